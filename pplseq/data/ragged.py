"""Ragged lists at the public door: any mixture of lists and arrays becomes one padded tensor and its lengths."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pplseq import checks

KINDS = np.typecodes["AllInteger"] + "?efdFD"  # of numbers that torch has


def pad_sequences(
    sequences, *, event_dims: int = 0, dtype: torch.dtype | None = None, fill: float = 0, name: str = "x"
) -> tuple[Tensor, Tensor]:
    """One tensor from sequences of different lengths.

    Args:
        sequences: lists, arrays or tensors, each (T_i,) or with ``event_dims`` = 1 (T_i, D).
        event_dims: dimensions of one observation.
        dtype: of the result; None: that which holds all of them.
        fill: what stands behind a sequence's end.
        name: of the argument, for errors.

    Returns:
        (B, T[, D]) with T the longest length, and lengths (B,).

    Raises:
        ValueError: for no sequences, an empty one, or one of another shape.
    """
    rows = [_as_numbers(sequence, name, index) for index, sequence in enumerate(sequences)]
    if not rows:
        raise ValueError(f"{name} must hold at least one sequence, got an empty list")
    event, dims = tuple(rows[0].shape[1:]), 1 + event_dims
    shape = "(T,)" if event_dims == 0 else "(T, D)"
    for index, row in enumerate(rows):
        if row.ndim != dims or row.shape[1:] != event:
            raise ValueError(
                f"{name}: sequence {index} must have shape {shape}{f' with D = {event[0]}' if len(event) else ''}, got "
                f"{tuple(row.shape)}"
            )
        if not row.shape[0]:
            raise ValueError(f"{name}: sequence {index} is empty; leave it out")
    if all(isinstance(row, np.ndarray) for row in rows):
        flat = torch.from_numpy(np.concatenate(rows))
    else:
        home = next(row.device for row in rows if isinstance(row, Tensor))
        flat = torch.cat([torch.as_tensor(checks.for_torch(row), device=home) for row in rows])
    flat, lengths = flat if dtype is None else flat.to(dtype), torch.tensor([row.shape[0] for row in rows])
    used = torch.arange(int(lengths.max())) < lengths.unsqueeze(-1)
    padded = flat.new_full((*used.shape, *event), fill)
    return padded.masked_scatter_(used.reshape(*used.shape, *(1,) * event_dims).to(flat.device), flat), lengths


def _as_numbers(sequence, name: str, index: int) -> Tensor | np.ndarray:
    if isinstance(sequence, Tensor):
        return checks.numbers(f"{name}: sequence {index}", sequence)
    try:
        found = np.asarray(sequence)
        if found.dtype.char in KINDS:
            return found
    except (TypeError, ValueError):
        pass
    raise TypeError(
        f"{name}: sequence {index} must hold numbers, got {type(sequence).__name__} {str(sequence)[:40]!r}; encode words "
        "with a Vocabulary"
    )
