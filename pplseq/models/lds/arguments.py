"""What a linear dynamical system takes beside its observations, checked: inputs, and matrices of single steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.ragged import pad_sequences
from pplseq.infer.fit.em import Batch
from pplseq.models.row_labels import check_rows_ahead
from pplseq.models.steps import as_tensor


def check_observations(x: Tensor, num_features: int) -> None:
    """Raises unless x is (B, T, n) of numbers that are finite, or NaN where missing."""
    expected = f"a floating-point tensor (B, T, n) with n = {num_features}"
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"x must be {expected}, got {x.dtype if isinstance(x, Tensor) else type(x).__name__}")
    if x.dim() != 3 or x.shape[-1] != num_features:
        raise ValueError(f"x must be {expected}, got shape {tuple(x.shape)}")
    if 0 in x.shape:
        raise ValueError(f"x must hold at least one row and one step, got shape {tuple(x.shape)}")
    if not checks.surely_finite(x) and bool(x.isinf().any()):
        raise ValueError("x must be finite (NaN marks what is missing), got infinite values")


def check_inputs(
    inputs: Tensor | None, shape: tuple[int, int], num_inputs: int, lengths: Tensor | None, name: str = "inputs"
) -> Tensor | None:  # fmt: skip
    """The inputs, zero at padded steps; raises unless they are (B, T, U) and finite elsewhere. ``name``: of the argument."""
    if not num_inputs:
        if inputs is not None:
            raise ValueError(f"{name}: this model takes none; make it with num_inputs=..., or leave them out")
        return None
    expected = f"({'B, T, U' if name == 'inputs' else 'B, K, U'}) = {(*shape, num_inputs)}"
    if inputs is None:
        raise ValueError(f"{name} must be given, {expected}: the model has num_inputs={num_inputs}")
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        what = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
        raise TypeError(f"{name} must be a floating-point tensor {expected}, got {what}")
    inputs = checks.numbers(name, inputs)
    if inputs.shape != (*shape, num_inputs):
        raise ValueError(f"{name} must have shape {expected}, got {tuple(inputs.shape)}")
    if lengths is not None:
        inputs = inputs.where((torch.arange(shape[1], device=inputs.device) < lengths.unsqueeze(-1)).unsqueeze(-1), 0.0)
    if not bool(inputs.isfinite().all()):
        raise ValueError(f"{name} must be finite: fill missing ones (only observations may be NaN)")
    return inputs


def with_inputs(batch: Batch, inputs, x, num_inputs: int) -> Batch:
    """The batch of x with its inputs, given like x: (T_i, U) for each sequence, or (B, T, U)."""
    if inputs is not None and isinstance(x, (list, tuple)):
        inputs, own = pad_sequences(inputs, event_dims=1, name="inputs")
        wanted = torch.tensor([len(row) for row in x])
        if len(own) != len(wanted) or bool((own != wanted).any()):
            raise ValueError(
                f"inputs must have a row for each step of each sequence of x, lengths {checks.shown(wanted.tolist())}; got "
                f"{checks.shown(own.tolist())}"
            )
    inputs = None if inputs is None else as_tensor(inputs).to(batch.x)
    return batch._replace(inputs=check_inputs(inputs, (batch.x.shape[0], batch.x.shape[1]), num_inputs, batch.lengths))


def inputs_ahead(
    model: Any, x: Any, num_steps: int | None, inputs: Any, lengths: Any = None, name: str = "future_inputs"
) -> tuple[Any, int]:
    """Inputs of the steps behind x as they came, of all rows or of each, for :func:`to_come`; and how many steps these are.

    Args:
        x, lengths: the past as it came. num_steps: K, or None for as many as the inputs have.
        inputs: (B, K, U), (K, U), (K,) where U is 1, a frame, or None. name: of the argument.

    Raises:
        ValueError, TypeError: where nothing says how many steps, or both do and disagree; and for inputs of another shape,
            or of other steps than those behind x.
    """
    size, given = model.num_inputs, inputs
    inputs = model._inputs_by_name(inputs, name)
    if inputs is None or not size:
        check_inputs(inputs, (0, 0), 0, None, name)  # of a model that takes none
        if size and num_steps is None:
            raise ValueError(f"{name} must be given, (B, K, {size}), or (K, {size}) for all rows; got None")
        return None, checks.steps_ahead(x, num_steps)
    sizes = [len(row) for row in inputs if hasattr(row, "__len__")] if isinstance(inputs, (list, tuple)) else []
    if len({*sizes}) > 1:
        raise ValueError(f"{name}: all sequences must have as many steps, got {checks.shown(sizes)}; cut them to the shortest")
    inputs = as_tensor(inputs, name)
    inputs = inputs.unsqueeze(-1) if inputs.dim() == 1 and size == 1 else inputs
    if inputs.dim() not in (2, 3) or not inputs.shape[-2]:
        shapes = f"(B, K, {size}), or (K, {size}) for all rows, of K > 0 steps"
        raise ValueError(f"{name} must have shape {shapes}; got {tuple(inputs.shape)}")
    told = inputs.shape[-2]
    if num_steps is not None and told != checks.steps_ahead(x, num_steps):
        raise ValueError(f"{name} must be of num_steps = {num_steps} steps, got {told}; leave num_steps out")
    check_rows_ahead(x, given, told, lengths=lengths)
    return inputs, told


def one_to_come(model: Any, inputs: Any) -> Tensor | None:
    """``next_inputs``, (B, U) or (U,), as ``future_inputs`` of one step; the columns of a frame by their names."""
    if inputs is None:
        return None
    found = as_tensor(model._inputs_by_name(inputs, "next_inputs"))
    if not found.dim():
        raise ValueError(f"next_inputs must have shape (B, U) or (U,), got {checks.shown(inputs)}")
    return found.unsqueeze(-2)


def to_come(
    inputs: Any, rows: int, num_steps: int, num_inputs: int, reference: Tensor, name: str = "future_inputs"
) -> Tensor | None:
    """(B, K, U) inputs of the steps to come, checked, from :func:`inputs_ahead`."""
    if inputs is not None:
        inputs = checks.dense(name, inputs).to(reference)
        inputs = inputs.expand(rows, *inputs.shape) if inputs.dim() == 2 else inputs
    return check_inputs(inputs, (rows, num_steps), num_inputs, None, name)


def inputs_to_draw(model: Any, inputs: Any, rows: int, num_steps: int | None) -> tuple[Tensor | None, int]:
    """(B, K, U) inputs of sequences that are drawn, from what :func:`inputs_ahead` takes; and K."""
    told, num_steps = inputs_ahead(model, None, num_steps, inputs, name="inputs")
    return to_come(told, rows, num_steps, model.num_inputs, model.reference, "inputs"), num_steps


def for_empty_rows(inputs, x, num_inputs: int):
    """Inputs with a step of zeros in rows that have none, as observations have then; see ``without_empty_rows``."""
    if inputs is None:
        return None
    if isinstance(x, (list, tuple)):
        return [row if len(row) else np.zeros((1, num_inputs)) for row in inputs]
    inputs = as_tensor(inputs)
    return inputs if inputs.dim() < 2 or inputs.shape[1] else inputs.new_zeros(len(inputs), 1, num_inputs)


def step_sizes(num_states: int, num_features: int) -> dict[str, tuple[int, ...]]:
    """What may be known of single steps, by name: sizes of matrices and, of what is added to offsets, of vectors."""
    h, n = num_states, num_features
    sizes: dict[str, tuple[int, ...]] = {"transitions": (h, h), "emissions": (n, h), "state_noises": (h, h)}
    return sizes | {"emission_noises": (n, n), "transition_offsets": (h,), "emission_offsets": (n,)}


CONTROLS = ("transition_controls", "emission_controls")


def control_sizes(num_states: int, num_features: int, num_inputs: int) -> dict[str, tuple[int, ...]]:
    """Sizes of the matrices of inputs that may be known of single steps, by name."""
    return dict(zip(CONTROLS, ((num_states, num_inputs), (num_features, num_inputs)), strict=True))


def check_controls(model: Any, given: Mapping[str, Any], inputs: Any) -> None:
    """Raises ValueError for control matrices of what is learned, or without inputs, and for inputs that nothing weighs."""
    for name in CONTROLS:
        if given.get(name) is None:
            continue
        kind = name.removesuffix("_controls")
        if not model.num_inputs or inputs is None:
            raise ValueError(f"{name}: they are the matrices of inputs; make the model with num_inputs, and give the inputs")
        if getattr(model, f"{kind}_inputs") is not None:
            other = "emission" if kind == "transition" else "transition"
            raise ValueError(
                f"{name}: this model learns {kind}_inputs, one matrix of all steps; make it with "
                f"inputs_to={checks.shown(other)} or 'none'"
            )
    learned = model.transition_inputs is not None or model.emission_inputs is not None
    ways = (*CONTROLS, "transition_offsets", "emission_offsets")  # which hold what controls have added
    if model.num_inputs and inputs is not None and not learned and all(given.get(name) is None for name in ways):
        raise ValueError("inputs: with inputs_to='none' they enter by transition_controls or emission_controls; give one")


def controlled(offsets: Tensor | None, controls: Tensor | None, inputs: Tensor | None) -> Tensor | None:
    """(B or 1, T, n) known offsets, and with them B_t u_t of control matrices (B or 1, T, n, U) and inputs (B, T, U)."""
    if controls is None or inputs is None:
        return offsets
    moved = (controls @ inputs.unsqueeze(-1)).squeeze(-1)
    return moved if offsets is None else offsets + moved


def driven_by(weights: Tensor | None, inputs: Tensor | None, offsets: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Weights and what they weigh of all steps (B, T, k): inputs, and known offsets (B or 1, T, n), whose weights are 1."""
    if offsets is None:
        return None if weights is None or inputs is None else (weights, inputs)
    ones = torch.eye(offsets.shape[-1]).to(offsets)
    if weights is None or inputs is None:
        return ones, offsets
    return torch.cat([weights, ones], -1), torch.cat([inputs, offsets.expand(*inputs.shape[:2], -1)], -1)
