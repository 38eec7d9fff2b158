"""Log-likelihood of an HMM's rows with its gradient, or expected statistics, straight from parameters.

By Fisher's identity the gradient in the logits of a table is what its rows are expected to be counted less what they would be
on average, counts_ij - counts_i. p_ij, and that in means and scales the same of moments; nothing is kept of the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels import compiled, scan, twice
from pplseq.kernels.chain import call
from pplseq.kernels.compiled import array

FEW_NUMBERS = 1 << 11  # of which tensor operations cost more than a loop


class Words(NamedTuple):
    """Parameters of an HMM over words: logits (K,), (K, K) and (K, V)."""

    initial: Tensor
    transition: Tensor
    emission: Tensor


class Vectors(NamedTuple):
    """Parameters of an HMM over vectors with independent columns: logits (K,), (K, K), means (K, D), log scales (K, D or 1)."""

    initial: Tensor
    transition: Tensor
    loc: Tensor
    log_scale: Tensor


def applies(parameters: Words | Vectors, x: Tensor) -> bool:
    """Whether there are loops for such parameters and rows (B, T[, D])."""
    wanted = torch.int64 if isinstance(parameters, Words) else torch.float64
    num_states = len(parameters.initial)
    if not call.applies(num_states, *parameters) or x.dtype != wanted or not x.numel():
        return False
    return call.pays("smooth", x.shape[:2], num_states)


def expected_statistics(
    parameters: Words | Vectors, x: Tensor, lengths: Tensor | None = None
) -> tuple[dict[str, Tensor], float] | None:
    """Expected sufficient statistics of rows x (B, T[, D]), -1 or NaN where a step is missing, of which lengths (B,) steps
    count, and log p(x) of all of them.

    "initial" (K,), "transition" (K, K), and "emission" (K, V), or "weight" (K,), "first" and "second" (K, D).

    Returns:
        None where digits may be lost, a row is impossible, a number is no word, or a vector is seen in part.
    """
    found = _run(parameters, x, lengths, False)
    if found is None:
        return None
    names = ("initial", "transition", "emission") if isinstance(parameters, Words) else (
        "initial", "transition", "first", "second", "weight")  # fmt: skip
    return dict(zip(names, map(torch.from_numpy, found[0]), strict=True)), found[1]


def log_prob(parameters: Words | Vectors, x: Tensor, lengths: Tensor | None = None) -> Tensor | None:
    """log p(x) of all rows together (), differentiable to any order in the parameters; None as of
    :func:`expected_statistics`."""
    found = _run(parameters, x, lengths, True)
    if found is None:
        return None
    twin = words_twin if isinstance(parameters, Words) else vectors_twin
    gradients = tuple(map(torch.from_numpy, found[0][: len(parameters)]))
    return KnownGradient.apply(found[1], gradients, partial(twin, lengths=lengths), x, *parameters)  # pyright: ignore


def _run(
    parameters: Words | Vectors, x: Tensor, lengths: Tensor | None, gradients: bool
) -> tuple[list[np.ndarray], float] | None:
    """What the loops leave, and log p(x)."""
    if isinstance(parameters, Vectors):
        given, rows = _packed(x, lengths)
        # a coordinate that is missing beside others has moments of its own
        return None if bool(given.isnan().any()) else _in_steps(parameters, given, rows, gradients)
    rows = _rows(x, lengths)
    if compiled.num_parts(len(x), 4 * x.numel() * len(parameters.initial) ** 2) == 1:
        return _from_words(parameters, rows, gradients)
    return _in_steps(parameters, x, rows, gradients) if call.are_words(rows, parameters.emission.shape[1]) else None


def _rows(index: Tensor, lengths: Tensor | None) -> call.Rows:
    return call.Rows(array(index), *([] if lengths is None else [array(lengths.long())]))


def _packed(x: Tensor, lengths: Tensor | None) -> tuple[Tensor, call.Rows]:
    """The vectors (M, D) that count and were seen, and which one each step of rows (B, T, D) has."""
    missing = x.isnan()
    if lengths is None and not bool(missing.any()):
        return x.flatten(0, 1), call.Rows(np.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2]))
    used = ~missing.all(-1)
    if lengths is not None:
        used &= torch.arange(x.shape[1]) < lengths.unsqueeze(-1)
    index = used.flatten().cumsum(0).sub_(1).reshape(used.shape).masked_fill_(~used, -1)
    return x[used], _rows(index, lengths)


def _from_words(parameters: Words, rows: call.Rows, gradients: bool) -> tuple[list[np.ndarray], float] | None:
    """:func:`_in_steps` of words in one call, on one thread."""
    from pplseq.kernels.chain import table_loops as loops

    initial, transition, emission = [array(part) for part in parameters]
    starts, moves, visits = np.empty(initial.shape), np.empty(transition.shape), np.empty(emission.shape)
    value = loops.word_statistics(
        initial.reshape(1, -1), transition, emission, rows.numbers, rows.lengths, call.states_of(len(initial)), gradients,
        starts.reshape(1, -1), moves, visits,
    )  # fmt: skip
    return ([starts, moves, visits], value) if math.isfinite(value) else None


def _in_steps(
    parameters: Words | Vectors, x: Tensor, rows: call.Rows, gradients: bool
) -> tuple[list[np.ndarray], float] | None:
    """:func:`_run`, loop by loop; x: of vectors those that :func:`_packed` found."""
    from pplseq.kernels.chain import table_loops as loops

    (initial, transition, *given), data = [array(part) for part in parameters], array(x)
    num_states, words = len(initial), isinstance(parameters, Words)
    start, (matrix, transposed) = np.empty((1, num_states)), np.empty((2, num_states, num_states))
    safe, probs = loops.chain_tables(initial.reshape(1, -1), transition, start, matrix, transposed), start
    number = (given[0].shape[1] if words else len(data)) + 1
    emissions = call.Emissions(np.empty((number, num_states)), np.empty(number))
    if words:
        probs = np.empty(given[0].shape)
        safe = loops.word_tables(given[0], probs, *emissions[:2]) and safe
    else:
        safe = loops.density_tables(data, *given, *emissions[:2]) and safe
    chain = call.Chain((start, matrix[None], transposed[None]))
    found = call.smooth(chain, emissions, rows, visits=True, posterior=False) if safe else None
    if found is None or not math.isfinite(value := float(found.log_prob.sum())):
        return None
    visits = found.visits[:-1]
    starts, pairs, rest = found.starts[0], found.pairs[0], [visits.T]
    if not words:
        rest = [np.empty(given[0].shape), np.empty(given[1 if gradients else 0].shape), np.empty(num_states)]
        loops.moments(data, visits, *given, gradients, *rest)
    if gradients:
        slopes = [np.empty_like(start), np.empty_like(matrix), *([probs] if words else [])]
        tables_, counts = (start, matrix, probs), (starts.reshape(-1, 1), np.ascontiguousarray(pairs.T), visits)
        for slope, count, table in zip(slopes, counts, tables_, strict=False):
            loops.to_gradients(count, table, slope)
        starts, pairs, rest = slopes[0][0], slopes[1], slopes[2:] if words else rest
    return [starts, pairs, *rest], value


def small_modes(counts: Tensor, previous: Tensor) -> Tensor | None:
    """Logarithms of rows of counts (..., N) over their sums, or of the softmax of previous (..., N) where there are none; None
    of numbers that are many, or need not lie in the CPU's memory as float64: tensor operations are for those."""
    if counts.numel() > FEW_NUMBERS or counts.shape != previous.shape or counts.numel() == 0:
        return None
    if twice.derivatives_wanted(counts, previous) or not call.applies(1, counts, previous):
        return None
    if not compiled.pays("kernels.chain.table_loops.modes", 15):
        return None
    from pplseq.kernels.chain import table_loops as loops

    given, before = array(counts), array(previous)
    found, rows = np.empty(given.shape), (-1, given.shape[-1])
    loops.modes(given.reshape(rows), before.reshape(rows), found.reshape(rows))
    return torch.from_numpy(found)


class KnownGradient(torch.autograd.Function):
    """A number whose gradient in some tensors was computed beside it; ``twin(*parameters, x)`` is the same number."""

    @staticmethod
    def forward(
        ctx, value: float, gradients: tuple[Tensor, ...], twin: Callable[..., Tensor], x: Tensor, *parameters: Tensor
    ):
        ctx.save_for_backward(x, *parameters)
        ctx.gradients, ctx.twin = gradients, twin
        return torch.from_numpy(np.array(value))

    @staticmethod
    def backward(ctx, *grads):
        x, *parameters = ctx.saved_tensors  # raises where they were changed in place, as every backward does
        if torch.is_grad_enabled():
            found = twice.gradients(lambda *args: ctx.twin(*args, x), tuple(parameters), grads[0])
            return None, None, None, None, *found
        wanted = ctx.needs_input_grad[4:]
        return None, None, None, None, *(g * grads[0] if w else None for g, w in zip(ctx.gradients, wanted, strict=True))


def words_twin(initial: Tensor, transition: Tensor, emission: Tensor, x: Tensor, lengths: Tensor | None = None) -> Tensor:
    """log p(x) of all rows of words (B, T), in plain torch operations."""
    return _twin(initial, transition, torch.log_softmax(emission, -1).T, x, lengths)


def vectors_twin(
    initial: Tensor, transition: Tensor, loc: Tensor, log_scale: Tensor, x: Tensor, lengths: Tensor | None = None
) -> Tensor:
    """log p(x) of all rows of vectors (B, T, D), in plain torch operations."""
    x, rows = _packed(x, lengths)
    unit = (x.unsqueeze(-2) - loc) * (-log_scale).exp()
    constant = log_scale.expand(loc.shape).sum(-1) + 0.5 * math.log(2 * math.pi) * loc.shape[-1]
    return _twin(initial, transition, -0.5 * unit.square().sum(-1) - constant, torch.from_numpy(rows.numbers), lengths)


def _twin(initial: Tensor, transition: Tensor, table: Tensor, index: Tensor, lengths: Tensor | None) -> Tensor:
    """Of steps with a row of the table (V, K) each, (B, T), -1 for a gap."""
    emit = torch.cat([table, torch.zeros_like(table[:1])])[index.T]
    valid = None if lengths is None else torch.arange(index.shape[1]).unsqueeze(-1) < lengths
    init = torch.log_softmax(initial, -1).expand(emit.shape[1:])
    return scan.forward_twin(init, torch.log_softmax(transition, -1), emit, valid, True, None, None)[0].sum()
