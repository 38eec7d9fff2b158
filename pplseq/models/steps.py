"""What is known of single steps, beside the data: matrices, covariances and vectors, checked and padded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.infer.fit.em import Batch
from pplseq.infer.gaussian.given import check_covariance
from pplseq.models.forms import unmasked
from pplseq.models.row_labels import check_rows_together


def step_matrices(name: str, value: Tensor | None, size: tuple[int, ...], shape: tuple[int, int]) -> Tensor | None:
    """(B or 1, T, *size) per-step matrices, or vectors."""
    if value is None:
        return None
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor of shape {(*shape, *size)}, got {type(value).__name__}")
    if value.shape not in ((*shape, *size), (shape[1], *size)):
        raise ValueError(
            f"{name} must have shape {(*shape, *size)} or, for all rows, {(shape[1], *size)}; got {tuple(value.shape)}"
        )
    return value if value.dim() == len(size) + 2 else value.unsqueeze(0)


def with_steps(batch: Batch, x, sizes: Mapping[str, tuple[int, ...]], **given) -> Batch:
    """The batch of x with what is known of single steps: a list of (T_i, *size) as x is one, or (B, T, *size), or (T, *size).

    Args:
        sizes: of the matrices of each name. Covariances are those of square matrices whose names speak of noise.
    """
    for name, value in given.items():
        if value is not None:
            check_rows_together(x, value, name)
            batch = batch._replace(**{name: padded_steps(name, value, batch, x, sizes[name])})
    return batch


def padded_steps(name: str, value: Any, batch: Batch, x, size: tuple[int, ...]) -> Tensor:
    """(B, T, *size) what is known of single steps, 0 at padded ones; see :func:`with_steps`."""
    if isinstance(value, (list, tuple)) and isinstance(x, (list, tuple)):
        rows = [as_tensor(row).to(batch.x) for row in value]
        wanted = [(len(row), *size) for row in x]
        if (came := [tuple(row.shape) for row in rows]) != wanted:
            raise ValueError(f"{name} must have the shapes {wanted}, as the sequences of x; got {came}")
        value = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    else:
        value = as_tensor(value).to(batch.x)
    value = step_matrices(name, value, size, (batch.x.shape[0], batch.x.shape[1]))
    assert value is not None
    value = value.expand(len(batch.x), *value.shape[1:])
    if batch.lengths is not None:
        known = torch.arange(batch.x.shape[1], device=value.device) < batch.lengths.unsqueeze(-1)
        value = value.where(known.reshape(*known.shape, *(1,) * len(size)), 0.0)
    checks.finite(name, value)
    if "noise" in name:
        check_covariance(name, value)
    return value


def steps_to_come(
    given: Mapping[str, Any], past: Batch, sizes: Mapping[str, tuple[int, ...]], rows: int, num_steps: int, reference: Tensor
) -> dict[str, Tensor]:
    """(B, K, ...) what is known of each of the steps to come, from arguments "future_..."; what is known of the past must be.

    Raises:
        ValueError, TypeError: for other names, for shapes, and for what is known of the past steps and not of those to come.
    """
    found = {}
    for name, value in given.items():
        own = name.removeprefix("future_")
        if own == name or own not in sizes:
            raise TypeError(f"no argument {name!r}.{checks.nearest(name, [f'future_{own}' for own in sizes])}")
        if value is None:
            continue
        value = step_matrices(name, as_tensor(value).to(reference), sizes[own], (rows, num_steps))
        assert value is not None
        found[own] = checks.finite(name, value.expand(rows, *value.shape[1:]))
        if "noise" in own:
            check_covariance(name, value)
    for name in sizes:
        if getattr(past, name) is not None and name not in found:
            raise ValueError(
                f"future_{name}: must be given, {(rows, num_steps, *sizes[name])} or {(num_steps, *sizes[name])}, as {name} of "
                "the past steps are"
            )
    return found


def as_tensor(values) -> Tensor:
    if isinstance(values, Tensor):
        return checks.dense("matrices", values)
    array = np.asarray(unmasked(values))
    return torch.as_tensor(array if array.flags.writeable else array.copy())  # a frame's may not be written to
