"""Scans that are parallel in time: prefix products of the steps of a chain as a tree, depth log T instead of T.

A chain's steps are matrices whose product is associative, so that all T prefixes come from 2 log2 T rounds of batched products.
That takes K times the multiplications of the loop over steps (K^3 a step), and T K^2 numbers of memory: it is for devices with
many cores and for small K; one core is faster step by step. Everything is in log space, in torch operations, differentiable to
any order by autograd. The twin is :mod:`pplseq.kernels.scan`.

Source: S. Särkkä and Á. F. García-Fernández (2021), Temporal parallelization of Bayesian smoothers; S. Hassan, S. Särkkä and
Á. F. García-Fernández (2021), Temporal parallelization of inference in hidden Markov models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.kernels.log_semiring import log_matmul, logsumexp

MAX_CELLS = 1 << 24  # sums in the largest temporary of a product of maxima

ACTIVE: ContextVar[bool] = ContextVar("parallel in time", default=False)


@contextmanager
def parallel_in_time() -> Iterator[None]:
    """Inside, chains with full matrices that are made filter, smooth and decode parallel in time, Gaussian ones too; others are
    refused.

    Likelihood with its gradient, filter, marginals of states and best path take this way; other queries go step by step. It is
    meant for GPUs and many cores: one core is faster step by step.
    """
    before = ACTIVE.set(True)
    try:
        yield
    finally:
        ACTIVE.reset(before)


def prefixes(combine: Callable, steps: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """x_1, x_1 x_2, x_1 x_2 x_3, ... of tensors over time (T, ...), by an associative ``combine(earlier, later)``."""
    num_steps = len(steps[0])
    if num_steps == 1:
        return steps
    pairs = combine(_every_second(steps, 0, num_steps - 1), _every_second(steps, 1, num_steps))
    odd = prefixes(combine, pairs)  # of steps 1, 3, 5, ...
    if num_steps > 2:
        known = tuple(part[: (num_steps - 1) // 2] for part in odd)
        even = combine(known, _every_second(steps, 2, num_steps))
        even = tuple(torch.cat([first[:1], later]) for first, later in zip(steps, even, strict=True))
    else:
        even = tuple(first[:1] for first in steps)
    return tuple(_interleaved(a, b) for a, b in zip(even, odd, strict=True))


def _every_second(steps: tuple[Tensor, ...], begin: int, end: int) -> tuple[Tensor, ...]:
    return tuple(part[begin:end:2] for part in steps)


def _interleaved(even: Tensor, odd: Tensor) -> Tensor:
    """(N, ...) and (N or N - 1, ...), one after the other."""
    whole = len(odd)
    both = torch.stack([even[:whole], odd], 1).flatten(0, 1)
    return both if len(even) == whole else torch.cat([both, even[whole:]])


def step_matrices(init: Tensor, log: Tensor, shared: bool, emit: Tensor, valid: Tensor | None) -> Tensor:
    """(T, *B, K, K) log matrices whose products are those of the chain; the rows of the first one are all log p(z_1, x_1).

    Args:
        init, log, shared, emit, valid: see :mod:`pplseq.kernels.scan`.
    """
    num_states = emit.shape[-1]
    if valid is not None:  # what stands behind a row's end must not reach a gradient, were it NaN
        emit = torch.where(valid.unsqueeze(-1), emit, 0.0)
    first = (init + emit[0]).unsqueeze(-2).expand(*emit.shape[1:], num_states)
    if valid is not None:
        first = torch.where(valid[0][..., None, None], first, init.unsqueeze(-2))
    rest = log.expand(len(emit) - 1, *emit.shape[1:], num_states) if shared else log
    rest = rest + emit[1:].unsqueeze(-2)
    if valid is not None:
        nothing = torch.full((num_states, num_states), -math.inf, dtype=emit.dtype, device=emit.device).fill_diagonal_(0.0)
        rest = torch.where(valid[1:][..., None, None], rest, nothing)
    return torch.cat([first.unsqueeze(0), rest])


class Filtered(NamedTuple):
    """log_prob: (*B,). filtered: (T, *B, K) log p(z_t | x_<=t), the last one carried over padded steps. steps: (T, *B)
    log p(x_t | x_<t), 0 at padded steps."""

    log_prob: Tensor
    filtered: Tensor
    steps: Tensor


def forward_pass(
    init: Tensor, log: Tensor, emit: Tensor, valid: Tensor | None = None, shared: bool = False
) -> Filtered:
    """Filtering, parallel in time; differentiable to any order.

    Cost: T K^3 a row in 2 log2 T rounds, T K^2 numbers, and as many again for each round that a gradient goes back through.
    """
    matrices = step_matrices(init.expand(emit.shape[1:]), log, shared, emit, valid)
    size = torch.zeros(matrices.shape[:-2], dtype=torch.float64, device=emit.device)
    products, sizes = prefixes(_product, _relative(matrices, size))
    messages = products[..., 0, :]
    rest = logsumexp(messages, -1)
    totals = sizes + rest.double()
    filtered = messages - rest.clamp_min(torch.finfo(rest.dtype).min).unsqueeze(-1)
    if valid is not None:
        totals = torch.where(valid[0], totals, 0.0)
    before = torch.cat([torch.zeros_like(totals[:1]), totals[:-1]])
    # beyond an impossible step everything is impossible, as step by step
    steps = torch.where(torch.isneginf(totals), totals, totals - torch.where(torch.isneginf(before), 0.0, before))
    if valid is not None:
        steps = torch.where(valid, steps, 0.0)
    return Filtered(totals[-1].to(emit.dtype), filtered, steps.to(emit.dtype))


def _relative(matrices: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices less their largest entry, which goes to the size: sums of thousands of logs lose digits."""
    top = matrices.detach().amax((-1, -2)).clamp_min(torch.finfo(matrices.dtype).min)
    return matrices - top[..., None, None], size + top


def _product(earlier: tuple[Tensor, ...], later: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return _relative(log_matmul(earlier[0], later[0]), earlier[1] + later[1])


# ------------------------------------------------------------------------------------------------ the best path
def viterbi_pass(
    init: Tensor, log: Tensor, emit: Tensor, valid: Tensor | None = None, shared: bool = False
) -> tuple[Tensor, Tensor]:
    """The most probable path (T, *B), padded steps repeating the last state, and log p(path, x) (*B,), parallel in time.

    Prefix products of maxima give the score of each state; back pointers are maps of states, composed by another scan.
    """
    init = init.expand(emit.shape[1:])
    matrices = step_matrices(init, log, shared, emit, valid)
    size = torch.zeros(matrices.shape[:-2], dtype=torch.float64, device=emit.device)
    products, sizes = prefixes(_best_product, _relative(matrices, size))
    scores = products[..., 0, :]
    best, last = scores[-1].max(-1)
    log_prob = sizes[-1] + best
    if valid is not None:
        log_prob = torch.where(valid[0], log_prob, 0.0)
        last = torch.where(valid[0], last, 0)
    if len(emit) == 1:
        return last.unsqueeze(0), log_prob.to(emit.dtype)
    pointers = (scores[:-1].unsqueeze(-1) + matrices[1:]).max(-2).indices  # (T-1, *B, K): the state before each
    (maps,) = prefixes(_composed, (pointers.flip(0),))
    index = last.unsqueeze(-1).expand(len(maps), *last.shape, 1)
    path = torch.cat([maps.gather(-1, index).squeeze(-1).flip(0), last.unsqueeze(0)])
    return path, log_prob.to(emit.dtype)


def _best_product(earlier: tuple[Tensor, ...], later: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    tile = max(1, MAX_CELLS // max(1, earlier[0].numel()))
    parts = [(earlier[0].unsqueeze(-1) + part.unsqueeze(-3)).amax(-2) for part in later[0].split(tile, -1)]
    return _relative(torch.cat(parts, -1), earlier[1] + later[1])


def _composed(earlier: tuple[Tensor, ...], later: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Maps of states (T, *B, K), the earlier one first."""
    return (later[0].gather(-1, earlier[0]),)
