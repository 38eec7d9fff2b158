"""What is known of single steps, beside the data: matrices, covariances and vectors, checked and padded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.infer.fit.em import Batch
from pplseq.infer.gaussian.given import check_covariance
from pplseq.models.forms import by_names, column_names, unmasked
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
        value = value.where(batch.valid.reshape(*batch.x.shape[:2], *(1,) * len(size)), 0.0)
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


# what families take of each step, and such families
SIZED = {"trials": ("binomial",), "exposure": ("poisson", "negative_binomial")}


def all_sizes(
    given: Mapping[str, Any], columns: Mapping[str, Sequence[int]], shape: tuple[int, int], num_features: int,
    needed: Sequence[str], trials: int | None,
) -> Tensor | None:  # fmt: skip
    """(B, T, D) numbers of trials and exposures, 1 of columns that take none; None where nothing of single steps is told.

    Args:
        given: "trials" and "exposure", each None, or what :func:`step_sizes` takes. columns: which take each of them.
        needed: what must be told: as it was in the fit, and trials of binomial columns. trials: of all steps, where the model
            knows.

    Raises:
        ValueError: where they must be told, or there is no column that takes them.
    """
    found = None
    for name, value in given.items():
        if value is None:
            if name in needed and not (name == "trials" and trials is not None):
                raise ValueError(
                    "trials: binomial columns count successes of a number of trials: give that of each step beside x, "
                    "trials=n, or of all steps to the model, trials=12; got None"
                    if name == "trials"
                    else "exposure: this model was fitted to data with exposures, so that its rates are those of a unit; give "
                    "those of x, too"
                )
            continue
        if not columns[name]:
            raise ValueError(
                f"{name}: {' and '.join(SIZED[name])} columns take it, those with zeros of their own too, and this model has "
                f"none; leave it out, or make the model with {' or '.join(map(repr, SIZED[name]))} among its families"
            )
        value = step_sizes(name, value, shape, num_features)
        if found is None:
            found = torch.ones(*shape, num_features, dtype=torch.float64, device=value.device)
            if trials is not None:
                found[..., columns.get("trials", [])] = float(trials)
        found[..., columns[name]] = value.to(found)[..., columns[name]]
    return found


def column_of(name: str, value: Any, x: Any) -> Any:
    """What is told by the name of a column of x, a frame or several; anything else as it is."""
    if not isinstance(value, str):
        return value
    there = column_names(x) or ()
    if value not in there:
        own = f"there are {', '.join(there)}" if there else "x has no names"
        raise ValueError(f"{name}: no column {checks.shown(value)} in x, {own}; give a column's name, or numbers")
    return by_names(x, (value,))


def sizes_beside(name: str, value: Any, batch: Batch, x: Any, lengths: Any, num_features: int) -> Tensor:
    """(B, T, D) numbers of trials or exposures, which came beside x in any form that x may have, or as the name of a column of
    it; see :func:`step_sizes`."""
    shape = (batch.x.shape[0], batch.x.shape[1])
    value = column_of(name, value, x)
    check_rows_together(x, value, name)
    ends = [shape[1]] * shape[0] if batch.lengths is None else batch.lengths.tolist()
    rows: Any = value if isinstance(value, (list, tuple)) and any(np.ndim(row) for row in value) else None
    if rows is None:
        value = as_tensor(value)
        flat = lengths is not None or isinstance(x, list)  # as which a forecast reads them
        if flat and value.dim() and len(value) == sum(ends) and value.shape[:2] != shape:
            rows = value.split(ends)  # one behind the other
    if rows is not None:
        rows = [as_tensor(row) for row in rows]
        if len(rows) == len(ends):  # a forecast reads of a row without steps one that was not seen
            none = (batch.x[:, 0].isnan().all(-1).cpu() & (torch.tensor(ends) == 1)).tolist()
            rows = [row.new_ones(1) if unseen and not len(row) else row for row, unseen in zip(rows, none, strict=True)]
        if (came := [len(row) for row in rows]) != ends:
            raise ValueError(f"{name} must have as many steps as the sequences of x, {_cut(ends)}; got {_cut(came)}")
        value = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    value = step_sizes(name, value, shape, num_features).to(batch.x)
    return value if batch.lengths is None else value.where(batch.valid.unsqueeze(-1), 1.0)


def _cut(numbers: list[int]) -> str:
    return f"{numbers[:6]}"[:-1] + (", ...]" if len(numbers) > 6 else "]")


def step_sizes(name: str, value: Any, shape: tuple[int, int], num_features: int) -> Tensor:
    """(B, T, D) from one number for all, or (T,), (B, T) or (B, T, D) of them.

    Raises:
        TypeError, ValueError: for what is of no such shape.
    """
    value = as_tensor(value, name)
    if value.dim() == 2 and value.shape != shape and value.shape[0] == shape[1] and shape[0] == 1:  # a frame of one sequence
        value = value.unsqueeze(0)
    if value.dim() in (1, 2) and value.shape in ((shape[1],), shape):
        value = value.reshape(-1, shape[1], 1)
    if value.dim() not in (0, 3) or value.dim() and value.shape not in ((*shape, num_features), (*shape, 1), (1, shape[1], 1)):
        raise ValueError(
            f"{name} must be a number, or have shape {shape} or {(*shape, num_features)}, as x; got {tuple(value.shape)}"
        )
    return value.expand(*shape, num_features)


def check_sizes(sizes: Tensor, x: Tensor, columns: Mapping[str, Sequence[int]]) -> None:
    """Raises ValueError where sizes (B, T, D) of a column of x that was seen are none: exposures are positive, trials whole
    numbers, at least as many as successes. Where x is missing they may be, too, and are then 1."""
    for name, own in columns.items():
        for column in own:
            seen, value = ~x[..., column].isnan(), sizes[..., column]
            whole = name == "trials"
            good = value.isfinite() & ((value >= 0) & (value == value.floor()) if whole else value > 0)
            bad = seen & ~(good & ((x[..., column] <= value) | (not whole)))
            if bool(bad.any()):
                row, step = bad.nonzero()[0].tolist()
                what = "a whole number, at least as large as the number of successes" if whole else "a number above 0"
                raise ValueError(
                    f"{name}: of column {column} it must be {what}, wherever x is seen; row {row}, step {step} is "
                    f"{float(value[row, step]):g} and x {float(x[row, step, column]):g} there"
                )
            value[~good] = 1.0


def as_tensor(values, name: str = "matrices") -> Tensor:
    return checks.numbers(name, values if isinstance(values, Tensor) else unmasked(values))
