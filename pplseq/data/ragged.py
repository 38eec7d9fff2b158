"""Ragged lists at the public door: any mixture of lists and arrays becomes one padded tensor and its lengths."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pplseq import checks


def pad_sequences(
    sequences, *, event_dims: int = 0, dtype: torch.dtype | None = None, fill: float = 0, name: str = "x"
) -> tuple[Tensor, Tensor]:
    """One tensor from sequences of different lengths.

    Args:
        sequences: lists, arrays or tensors, each (T_i,) or with ``event_dims`` = 1 (T_i, D).
        event_dims: dimensions of one observation.
        dtype: of the result; None keeps that of the first sequence.
        fill: what stands behind a sequence's end.
        name: of the argument, for errors.

    Returns:
        (B, T[, D]) with T the longest length, and lengths (B,).

    Raises:
        ValueError: for no sequences, an empty one, or one of another shape.
    """
    rows = [_as_tensor(sequence, name, index) for index, sequence in enumerate(sequences)]
    if not rows:
        raise ValueError(f"{name} must hold at least one sequence, got an empty list")
    event = rows[0].shape[1:]
    shape = "(T,)" if event_dims == 0 else "(T, D)"
    for index, row in enumerate(rows):
        if row.dim() != 1 + event_dims or row.shape[1:] != event:
            raise ValueError(
                f"{name}: sequence {index} must have shape {shape}{f' with D = {event[0]}' if len(event) else ''}, got "
                f"{tuple(row.shape)}"
            )
        if len(row) == 0:
            raise ValueError(f"{name}: sequence {index} is empty; leave it out")
    if dtype is None:
        dtype = rows[0].dtype
    lengths = torch.tensor([len(row) for row in rows])
    padded = torch.full((len(rows), int(lengths.max()), *event), fill, dtype=dtype)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded, lengths


def for_torch(x):
    """x, as a copy where it is an array that torch does not share: read-only, as those of frames are, or read backward."""
    if isinstance(x, np.ndarray) and (not x.flags.writeable or min(x.strides, default=0) < 0):
        return x.copy()
    return x


def _as_tensor(sequence, name: str, index: int) -> Tensor:
    if isinstance(sequence, Tensor):
        return checks.numbers(f"{name}: sequence {index}", sequence)
    try:
        return torch.as_tensor(for_torch(np.asarray(sequence)))
    except (TypeError, ValueError):
        raise TypeError(
            f"{name}: sequence {index} must hold numbers, got {type(sequence).__name__} {str(sequence)[:40]!r}; encode words "
            "with a Vocabulary"
        ) from None
