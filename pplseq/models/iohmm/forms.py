"""Outputs and inputs in the forms people hold them in: frames, one sequence alone, several one behind the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pplseq.models.forms import is_frame, numbers_of


def parts_of(inputs: Any) -> Mapping[str, Any]:
    """Inputs by part; those of all parts under ""."""
    return inputs if isinstance(inputs, Mapping) else {"": inputs}


def part_name(part: str) -> str:
    """How a part's inputs are called in errors."""
    return f"inputs[{part!r}]" if part else "inputs"


def without_frames(value: Any, size: int | None, name: str) -> Any:
    """Frames and series, alone or in a list, as arrays (N, D); (N,) where there is one column."""
    if isinstance(value, (list, tuple)) and any(is_frame(row) for row in value):
        return [without_frames(row, size, name) for row in value]
    if not is_frame(value):
        return value
    numbers = numbers_of(value, size, name)
    if isinstance(numbers, list):
        raise TypeError(f"{name} must hold numbers, got the text {numbers[0]!r}; give numbers to its values, 0, 1, ...")
    return numbers[:, 0] if numbers.ndim == 2 and numbers.shape[1] == 1 else numbers


def is_alone(value: Any, size: int | None, name: str, lengths: Any, with_outputs: bool) -> bool:
    """Whether inputs are of one sequence, or of several one behind the other: (N,), or (N, U) vectors.

    Raises:
        ValueError: for (N, 1), which could be one sequence or N of one step, and lengths do not tell.
    """
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and np.ndim(value[0]) == 0
    if np.ndim(value) != 2 or value.shape[1] != 1 or value.shape[0] == 1:
        return np.ndim(value) == 1 or np.ndim(value) == 2 and size not in (None, 1) and value.shape[1] == size
    if lengths is None and with_outputs:
        many = f"{name}[..., None]" if size == 1 else f"list({name})"
        raise ValueError(
            f"{name}: shape {tuple(value.shape)} could be one sequence of {value.shape[0]} or {value.shape[0]} sequences of "
            f"one step: write {name}[:, 0] for the first, {many} for the second, and x alike"
        )
    return lengths is not None and len(lengths) != value.shape[0]
