"""Chains of so many steps that their emissions would fill the memory: some steps at a time, computed again on the way back.

A chain is cut into segments. The pass forward keeps the log belief at each cut (and those between the pieces of
:mod:`pplseq.kernels.chain.piece_loops`, one in hundreds of steps); the emissions of a segment are made when its turn comes, and
forgotten after it. The pass backward goes from the last segment to the first and makes them once more. What follows a segment
is put onto the emissions of its last step, so that the loops need not know of segments. Every number is that of
:mod:`pplseq.kernels.scan`, the twin.

Shapes: init (N, K) log p(z_1), log (K, K) [from, to], lengths (N,); emissions of steps begin..end-1 (end - begin, N, K).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels import twice
from pplseq.kernels.chain import piece_call
from pplseq.kernels.chain.piece_call import Kept, Links
from pplseq.kernels.log_semiring import log_matmul
from pplseq.kernels.path_scan import max_forward
from pplseq.kernels.scan import forward_twin

SEGMENT = 1 << 18  # numbers in the emissions of a segment: 2 MB, several times that where densities are computed

Emissions = Callable[[Sequence[Tensor], int, int], Tensor]


class LongChain(NamedTuple):
    """What is known of a chain before its emissions are computed.

    emit: (tensors, begin, end) -> log p(x_t | z_t) (end - begin, N, K), differentiable in those tensors.
    lengths: (N,) numpy, valid steps.
    """

    emit: Emissions
    num_steps: int
    num_states: int
    lengths: np.ndarray

    @property
    def segments(self) -> list[tuple[int, int]]:
        """(begin, end), in the order of time."""
        size = max(1, SEGMENT // (self.num_states * len(self.lengths)))
        return [(begin, min(begin + size, self.num_steps)) for begin in range(0, self.num_steps, size)]

    def lengths_in(self, begin: int, end: int) -> np.ndarray:
        return (self.lengths - begin).clip(0, end - begin)

    def rows_beyond(self, step: int) -> Tensor:
        """(N,) which rows have a step of this number."""
        return torch.from_numpy(self.lengths > step)


class Filtered:
    """What the pass forward leaves, in float64.

    All of it is allocated before the first segment: small things that stay, between large ones that go, leave holes in the
    memory that no large one fits in (three times the peak of a million steps).

    Attributes:
        steps: (T, N) log p(x_t | x_<t). starts, ends: (S, N, K) the log belief before each segment's first step, and at its
            last one, of rows that ended before at their own last step.
        dtype: that of emissions.
    """

    def __init__(self, chain: LongChain, links: Links, init: Tensor, shape: torch.Size):
        num_segments, num_rows = len(chain.segments), len(init)
        self.steps = torch.empty(chain.num_steps, num_rows, dtype=torch.float64)
        self.starts, self.ends = (torch.empty(num_segments, *init.shape, dtype=torch.float64) for _ in range(2))
        begin, end = chain.segments[0]
        most = piece_call.num_pieces(end - begin, chain.num_states)
        self._carry = np.empty((num_segments, most + 1, *init.shape))
        self._in_logs = np.empty((num_segments, most, num_rows), np.bool_)
        self._chain, self._links, self._shape = chain, links, shape
        self.dtype = init.dtype

    def keep(self, number: int, kept: Kept) -> None:
        """All that the loops need on the way back through a segment, but for its emissions."""
        pieces = len(kept.in_logs)
        self._carry[number, : pieces + 1], self._in_logs[number, :pieces] = kept.carry, kept.in_logs
        self.dtype = kept.emit.dtype

    def with_emissions(self, number: int, emit: Tensor) -> Kept:
        """The same of a segment whose emissions were made again."""
        lengths, pieces = self._chain.lengths_in(*self._chain.segments[number]), piece_call.num_pieces(*emit.shape[::2])
        carry, in_logs = self._carry[number, : pieces + 1], self._in_logs[number, :pieces]
        return Kept(self._links, emit, lengths, carry, in_logs, self._shape)


def forward_pass(chain: LongChain, init: Tensor, log: Tensor, tensors: Sequence[Tensor]) -> Filtered:
    """Filtering. Cost: T K^2 a row, memory of one segment and of a belief in hundreds of steps."""
    log, message = log.double(), init.double()
    links = piece_call.links_of(log, True, torch.Size([len(init)]))
    found = Filtered(chain, links, init, log.shape)
    for number, (begin, end) in enumerate(chain.segments):
        start = message if begin == 0 else log_matmul(message, log)
        emit, lengths = chain.emit(tensors, begin, end), chain.lengths_in(begin, end)
        found.steps[begin:end], kept = piece_call.forward_along(start, links, emit, lengths, log.shape)
        goes_on = torch.from_numpy(lengths > 0).unsqueeze(-1)
        message = torch.where(goes_on, piece_call.carried(kept), message)
        found.starts[number], found.ends[number] = start, message
        found.keep(number, kept)
    return found


class Smoothed(NamedTuple):
    """A segment's posteriors: p(z_t | x) (end - begin, N, K), 0 at padded steps, and the pairs (K, K) of its steps and of that
    into its first one, each row's times its weight, None where they are not asked for; emit: as ``chain.emit`` gave them."""

    begin: int
    end: int
    states: Tensor
    pairs: Tensor | None
    emit: Tensor


def backward_pass(
    chain: LongChain, found: Filtered, log: Tensor, tensors: Sequence[Tensor], weight: Tensor, pairs: bool = True
) -> Iterator[Smoothed]:
    """Posteriors of one segment after another, from the last to the first.

    Args:
        tensors: those of them that require a gradient have a graph in each part's ``emit``.
        weight: (N,) multiplies each row's pairs.
    """
    log, ahead, wanted = log.double(), None, any(tensor.requires_grad for tensor in tensors)
    for number in range(len(chain.segments) - 1, -1, -1):
        begin, end = chain.segments[number]
        with torch.set_grad_enabled(wanted):
            made = chain.emit(tensors, begin, end)
        emit = made.detach()
        if ahead is not None:  # p(x after the segment | its last state), of rows that go on
            last = torch.where(chain.rows_beyond(end).unsqueeze(-1), emit[-1] + ahead, emit[-1])
            emit = torch.cat([emit[:-1], last.to(emit.dtype).unsqueeze(0)])
        kept = found.with_emissions(number, emit)
        states, inside = piece_call.smooth(kept, weight, scaled_states=False, pairs=pairs)
        if begin > 0:
            before = found.ends[number - 1]
            first, start, here = states[0].double(), found.starts[number], chain.rows_beyond(begin)
            # evidence for the first state, that of its own step included; where the posterior is nothing it does not matter
            right = torch.where(first == 0, -math.inf, first.log() - start)
            if inside is not None:
                inside = inside + _pairs_between(before[here], log, right[here], weight[here]).to(inside.dtype)
            ahead = log_matmul(right, log.T)
            ahead = ahead - ahead.amax(-1, keepdim=True).clamp_min(torch.finfo(ahead.dtype).min)
        yield Smoothed(begin, end, states, inside, made)


def _pairs_between(left: Tensor, log: Tensor, right: Tensor, weight: Tensor) -> Tensor:
    """(K, K) sum over rows of weight * p(last state before a cut, first state behind it)."""
    total = torch.zeros_like(log)
    for before, after, share in zip(left, right, weight.double(), strict=True):
        total += share * (before.unsqueeze(-1) + log + after).exp()
    return total


# ------------------------------------------------------------------------------------------------ likelihood
class LongLogProb(torch.autograd.Function):
    """log p(x) (N,), what :func:`forward_pass` found, and log p(x_t | x_<t) (T, N); of which the first is differentiable in
    init, log and the tensors that emissions depend on."""

    @staticmethod
    def forward(ctx, chain, init, log, *tensors):
        found = forward_pass(chain, init, log, tensors)
        ctx.chain, ctx.found = chain, found
        ctx.save_for_backward(init, log, *tensors)
        steps = found.steps.to(found.dtype)
        ctx.mark_non_differentiable(steps)
        return found.steps.sum(0).to(found.dtype), found, steps

    @staticmethod
    def backward(ctx, *grads):
        (init, log, *tensors), chain, weight = ctx.saved_tensors, ctx.chain, grads[0]
        if torch.is_grad_enabled():
            return None, *twice.gradients(lambda *a: long_twin(chain, *a), (init, log, *tensors), weight)
        leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        sums: list[Any] = [torch.zeros_like(leaf) for leaf in wanted]
        pairs, first = torch.zeros_like(log), torch.zeros_like(init)
        for part in backward_pass(chain, ctx.found, log, leaves, weight):
            assert part.pairs is not None, "pairs are asked for"
            pairs += part.pairs
            if part.begin == 0:
                first = part.states[0] * weight.unsqueeze(-1)
            if wanted:
                states = part.states.mul_(weight.unsqueeze(-1))
                found = torch.autograd.grad(part.emit, wanted, states, allow_unused=True)
                sums = [total if more is None else total.add_(more) for total, more in zip(sums, found, strict=True)]
        rest = iter(sums)
        return None, first, pairs, *(next(rest) if leaf.requires_grad else None for leaf in leaves)


def long_twin(chain: LongChain, init: Tensor, log: Tensor, *tensors: Tensor) -> Tensor:
    """The slow twin of :class:`LongLogProb`: all emissions at once, differentiable to any order."""
    valid = torch.arange(chain.num_steps).unsqueeze(-1) < torch.from_numpy(chain.lengths)
    emit = chain.emit(tensors, 0, chain.num_steps)
    return forward_twin(init, log, emit, valid, True, None, None)[0]


# ------------------------------------------------------------------------------------------------ the best path
def viterbi_pass(chain: LongChain, init: Tensor, log: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The most probable paths (T, N), padded steps repeating the last state, and log p(path, x) (N,).

    Cost: twice Viterbi's, memory of one segment.
    """
    log, score, total = log.double(), init.double(), torch.zeros(len(init), dtype=torch.float64)
    starts, scores = (torch.empty(len(chain.segments), *init.shape, dtype=torch.float64) for _ in range(2))
    paths = torch.empty(chain.num_steps, len(init), dtype=torch.int64)
    for number, (begin, end) in enumerate(chain.segments):
        start = score if begin == 0 else max_forward(score, log)[0]
        _, best, final = _best_in(chain, start, log, tensors, begin, end)
        goes_on = chain.rows_beyond(begin)
        total = total + best.where(goes_on, 0.0)
        score = torch.where(goes_on.unsqueeze(-1), final, score)
        starts[number], scores[number] = start, score
    position = score.argmax(-1)
    for number in range(len(starts) - 1, -1, -1):
        begin, end = chain.segments[number]
        here, goes_on = chain.rows_beyond(begin), chain.rows_beyond(end)
        path = _best_in(chain, starts[number], log, tensors, begin, end, position.where(goes_on, -1))[0]
        # rows that ended before stay where they ended; nothing is known of that yet
        paths[begin:end] = path.where(here, -1)
        if begin > 0:
            into = scores[number - 1] + log.T[path[0]]
            position = torch.where(here, into.argmax(-1), position)
    for row, length in enumerate(chain.lengths.tolist()):
        paths[max(length, 1) :, row] = paths[max(length, 1) - 1, row] if length else 0
        if not length:
            paths[0, row] = 0
    return paths, total


def _best_in(chain, start, log, tensors, begin, end, last: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Paths through a segment, their scores, and those of each last state; of paths that end in ``last``, where it is no -1."""
    emit, lengths = chain.emit(tensors, begin, end), chain.lengths_in(begin, end)
    if last is not None:
        other = (last.unsqueeze(-1) >= 0) & (last.unsqueeze(-1) != torch.arange(chain.num_states))
        emit = torch.cat([emit[:-1], emit[-1:].masked_fill(other, -math.inf)])
    return piece_call.viterbi_along(start, piece_call.links_of(log, True, start.shape[:-1]), emit, lengths)
