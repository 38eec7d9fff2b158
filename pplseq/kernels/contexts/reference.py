"""Passes over chains of contexts in tensor operations, in log space: the readable twin of :mod:`pplseq.kernels.contexts.loops`.

A step leads from context s with symbol c to context successor[s, c], which ends with c; of a second-order chain contexts are
all pairs of states. Moves are listed from contexts that the words before reach, by symbols that the word at hand allows, and
summed into their targets in log space, so that nothing underflows.

Shapes, as in :mod:`pplseq.kernels.scan`: init (R, Z), emit (T, R, Z), valid (T, R) or None; Z contexts of M symbols.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.kernels import compiled, twice
from pplseq.kernels.log_semiring import logsumexp, safe_log
from pplseq.kernels.path_scan import sample_log
from pplseq.kernels.scan import Forward, forward_in_log_space, log_normalise, state_posterior
from pplseq.threads import once

MAX_MOVES = 1 << 19  # that are listed at a time


class Moves(NamedTuple):
    """Moves of rows of a batch out of n contexts by up to W symbols. which: (n,) of the contexts that were given. row, source:
    (n,). symbol: (n, W). target: (n, W) as row Z + context. score: (n, W) log p(symbol | source), -inf where a row's word
    allows fewer symbols."""

    which: Tensor
    row: Tensor
    source: Tensor
    symbol: Tensor
    target: Tensor
    score: Tensor


class ContextSteps:
    """The steps of a chain of contexts.

    Args:
        log: (Z, M) log p(symbol | context). successor: (Z, M). symbol: (Z,) the last one of each context.
        in_order: whether the symbols lead from every context to contexts one after the other.
    """

    shared = False
    restart: Tensor | None = None

    def __init__(self, log: Tensor, successor: Tensor, symbol: Tensor, in_order: bool = False):
        self.log, self.successor, self.symbol, self.in_order = log, successor, symbol, in_order
        self.size, self.num_symbols = log.shape

    @once
    def probs(self) -> np.ndarray | None:
        """The table's probabilities for the loops; None where they are too small for these."""
        from pplseq.kernels.contexts.loops import LEAST

        log = compiled.array(self.log)
        probs = np.exp(log)
        return None if (~(probs >= LEAST) & (log != -np.inf)).any() else probs

    def symbols(self, emit: Tensor) -> Tensor:
        """(R, M) whether a word (R, Z) allows a context that ends with the symbol."""
        row, context = (emit.detach() != -math.inf).nonzero().unbind(1)
        some = torch.zeros(len(emit), self.num_symbols, dtype=torch.bool, device=emit.device)
        some[row, self.symbol[context]] = True
        return some

    def moves(self, given: tuple[Tensor, ...], allowed: Tensor | None = None) -> Iterator[Moves]:
        """All of them, from given rows, in order, and contexts (n,), by symbols (R, M), or by all; in parts of whole rows that
        fit into memory, and of those whose words allow about as many symbols."""
        (row, source), every = given, torch.arange(self.num_symbols, device=given[0].device)
        if allowed is None or bool(allowed.all()):
            for part in _parts(row, self.num_symbols):
                rows, sources = row[part], source[part]
                score, target = self.log.index_select(0, sources), self.successor.index_select(0, sources)
                target = target + rows.unsqueeze(-1) * self.size
                yield Moves(part, rows, sources, every.expand(score.shape), target, score)
            return
        number, symbols = allowed.sum(1), allowed.nonzero()[:, 1]
        first, width = (number.cumsum(0) - number)[row], (2 * number - 1).clamp_min(0).to(torch.float64).log2().floor()[row]
        for most in width[number[row] > 0].unique().tolist():  # powers of two
            some = (width == most).nonzero().squeeze(-1)
            along = every[: 2 ** int(most)]
            for part in _parts(row[some], len(along)):
                part = some[part]
                rows, sources = row[part], source[part]
                symbol = symbols[(first[part].unsqueeze(-1) + along).clamp_max(len(symbols) - 1)]
                place = sources.unsqueeze(-1)
                target = self.successor[place, symbol] + rows.unsqueeze(-1) * self.size
                score = self.log[place, symbol].masked_fill(along >= number[rows].unsqueeze(-1), -math.inf)
                yield Moves(part, rows, sources, symbol, target, score)

    def forward(self, message: Tensor, emit: Tensor | None = None) -> Tensor:
        """(R, Z) log sum_s exp(message_s) p(s'| s), of contexts s' that end with a symbol which the word allows."""
        if twice.transformed():
            score = message.unsqueeze(-1) + self.log
            first = torch.arange(len(message), device=message.device).view(-1, 1, 1) * self.size
            return _summed(score.flatten(), (self.successor + first).flatten(), message.numel()).view(message.shape)
        allowed, found = None if emit is None else self.symbols(emit), torch.full_like(message, -math.inf)
        for move in self.moves((message.detach() > -math.inf).nonzero().unbind(1), allowed):
            score, (place, local) = message[move.row, move.source].unsqueeze(-1) + move.score, _places(move.target, message)
            found.view(-1)[place] = _summed(score.flatten(), local, len(place))
        return found

    def backward(self, message: Tensor, alive: Tensor | None = None) -> Tensor:
        """(R, Z) log sum_c p(c | s) exp(message of the successor), of contexts alive (R, Z), or of all; -inf of others."""
        found = torch.full_like(message, -math.inf)
        alive = torch.ones_like(message) > 0 if alive is None else alive
        for move in self.moves(alive.nonzero().unbind(1), self.symbols(message)):
            score = move.score + message.reshape(-1)[move.target]
            found = found.index_put((move.row, move.source), logsumexp(score, -1))
        return found

    @classmethod
    def of(cls, transition: Any, table: Tensor | None = None) -> ContextSteps:
        """Those of a transition between contexts, from its table or another one in its shape."""
        log: Tensor = transition.table if table is None else table
        return cls(log.flatten(0, -2), transition.successor, transition.symbol, transition.in_order)

    def at(self, t: int) -> Tensor:
        """(Z, Z) log matrix between contexts: for few of them."""
        size = self.size
        checks.fits("contexts", 8.0 * size**2, "ask for what takes no matrix between contexts: marginals, paths, entropy")
        return self.log.new_full((size, size), -math.inf).scatter(1, self.successor, self.log)

    @once
    def incoming(self) -> tuple[Tensor, Tensor, Tensor]:
        """The moves by the context that they lead to, (Z M,) places context M + symbol in the table; of each context the first
        of its own, and how many they are, (Z,)."""
        target = self.successor.flatten()
        number = target.bincount(minlength=self.size)
        return target.argsort(stable=True), number.cumsum(0) - number, number


def _places(target: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """The different ones of some places in a table, in order, and which of these each is, flattened."""
    target, number = target.flatten(), torch.empty(like.numel(), dtype=torch.long, device=target.device)
    some = torch.zeros(len(number), dtype=torch.bool, device=target.device)
    some[target] = True
    place = some.nonzero().squeeze(-1)
    number[place] = torch.arange(len(place), device=target.device)
    return place, number[target]


def _parts(row: Tensor, width: int) -> Iterator[Tensor]:
    """Which of a list of contexts, ordered by row, are moved at a time, by so many symbols: those of whole rows."""
    if len(row) * width <= MAX_MOVES:
        yield torch.arange(len(row), device=row.device)
        return
    part = (row.bincount().cumsum(0) * width // MAX_MOVES)[row]
    for number in part.unique().tolist():
        yield (part == number).nonzero().squeeze(-1)


def _summed(score: Tensor, place: Tensor, size: int) -> Tensor:
    """(size,) log of the sum of exp(score) into places of a vector."""
    top = score.new_full((size,), torch.finfo(score.dtype).min).scatter_reduce(0, place, score.detach(), "amax")
    return safe_log(score.new_zeros(size).index_add(0, place, (score - top.index_select(0, place)).exp())) + top


class _Allowed:
    """Steps into what the words of a chain allow, as :class:`~pplseq.kernels.scan.LogMatrices` are asked."""

    def __init__(self, steps: ContextSteps, emit: Tensor):
        self.steps, self.emit = steps, emit

    def forward(self, t: int, message: Tensor) -> Tensor:
        return self.steps.forward(message, self.emit[t])


def forward_pass(init: Tensor, steps: ContextSteps, emit: Tensor, valid: Tensor | None) -> Forward:
    """Filtering: log p(context_t | x_<=t). Cost: the moves that words allow. Gradients flow, to any order."""
    if valid is not None:  # what stands behind a row's end must not reach a gradient, were it NaN
        emit = torch.where(valid.unsqueeze(-1), emit, 0.0)
    allowed: Any = _Allowed(steps, emit)
    return forward_in_log_space(init, allowed, emit, valid)


def backward_pass(filtered: Tensor, steps: ContextSteps, emit: Tensor, valid: Tensor | None) -> Tensor:
    """(T, R, Z) log p(x_>t | context_t) up to a constant a step, of contexts that words before reach; -inf of others."""
    alive = filtered > -math.inf
    message = torch.zeros_like(emit[0]).where(alive[-1], -math.inf)
    messages = [message]
    for t in range(len(emit) - 1, 0, -1):
        new = log_normalise(steps.backward(emit[t] + message, alive[t - 1]))[0]
        message = new if valid is None else torch.where(valid[t].unsqueeze(-1), new, message)
        messages.append(message)
    return torch.stack(messages[::-1])


class Smoothed(NamedTuple):
    """posterior: (T, R, Z) p(context_t | x), 0 at padded steps. counts: (Z, M) expected symbols behind contexts, of all rows.
    entropy: (R,) of the path given x, nats. What was not asked for is None."""

    posterior: Tensor
    counts: Tensor | None
    entropy: Tensor | None


def smooth(
    filtered: Tensor, beta: Tensor, steps: ContextSteps, emit: Tensor, valid: Tensor | None, weight: Tensor | None = None,
    counts: bool = True, entropy: bool = False,
) -> Smoothed:  # fmt: skip
    """From :func:`forward_pass` and :func:`backward_pass`; weight: (R,) of each row in the counts."""
    posterior = state_posterior(filtered, beta, valid)  # of an impossible row 0
    total, inner = torch.zeros_like(steps.log).view(-1), torch.special.entr(posterior[0]).sum(-1)
    for t in range(1, len(emit) if counts or entropy else 0):
        before, later = posterior[t - 1], emit[t] + beta[t]
        alive = before > 0 if valid is None else (before > 0) & valid[t].unsqueeze(-1)
        for move in steps.moves(alive.nonzero().unbind(1), steps.symbols(later)):
            prob = torch.softmax(move.score + later.view(-1)[move.target], -1)  # of the symbol, given the context and x
            share = before[move.row, move.source]
            if entropy:
                inner.index_add_(0, move.row, share * torch.special.entr(prob).sum(-1))
            if counts:
                share = share if weight is None else share * weight[move.row]
                place = move.source.unsqueeze(-1) * steps.num_symbols + move.symbol
                total.index_add_(0, place.flatten(), (share.unsqueeze(-1) * prob).flatten())
    return Smoothed(posterior, total.view_as(steps.log) if counts else None, inner if entropy else None)


# ---------------------------------------------------------------- paths
def k_best_pass(
    init: Tensor, steps: ContextSteps, emit: Tensor, valid: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """The k most probable paths: contexts (k, T, R), log-probabilities (k, R), -inf where there are fewer. List Viterbi."""
    num_steps, rows, size = emit.shape
    first, ranks = init + emit[0], torch.arange(k, device=emit.device)
    if valid is not None:  # a row without steps has one path
        nothing = torch.full_like(first, -math.inf)
        nothing[:, 0] = 0.0
        first = first.where(valid[0].unsqueeze(-1), nothing)
    # of contexts that are reached places row Z + context, in order, and k best scores; the last stands for what is used up
    place = (first > -math.inf).view(-1).nonzero().squeeze(-1)
    best = emit.new_full((len(place), k + 1), -math.inf)
    best[:, 0] = first.reshape(-1)[place]
    ways, total = [], torch.zeros(rows, dtype=torch.float64, device=emit.device)
    for t in range(1, num_steps):
        row, allowed = place // size, steps.symbols(emit[t])
        moving = ranks.new_ones(len(place)) > 0 if valid is None else valid[t][row]
        found = [(place[~moving], best[~moving], place[~moving].unsqueeze(-1) * k + ranks)]  # rows that have ended stay
        given = row[moving], place[moving] % size
        for move in steps.moves(given, allowed):
            found.append(_best_moves(move, best[moving][move.which], emit[t], size))
        place, best, before = (torch.cat(parts) for parts in zip(*found, strict=True))
        order = place.argsort()
        place, best, before = place[order], best[order], before[order]
        row = place // size
        top = best.new_full((rows,), torch.finfo(best.dtype).min).scatter_reduce(0, row, best[:, 0], "amax")
        best, total = best - top[row].unsqueeze(-1), total + top
        ways.append((place, before))
    last = emit.new_full((rows * size, k), -math.inf)
    last[place] = best[:, :k]
    score, position = last.view(rows, -1).topk(k, dim=-1)  # (R, k) context k + rank
    lost = ~(emit < math.inf).all(-1)
    lost = lost if valid is None else lost & valid
    log_prob = (total.unsqueeze(-1) + score).masked_fill(lost.any(0).unsqueeze(-1), math.nan).to(emit.dtype)
    position = position + torch.arange(rows, device=emit.device).unsqueeze(-1) * size * k  # place k + rank
    path = [position // k % size]
    for place, before in reversed(ways):
        if len(place):
            here = torch.searchsorted(place, position // k).clamp_max(len(place) - 1)
            there = place[here] == position // k  # fewer than k paths: what is left has probability zero
            position = torch.where(there, before[here, position % k], position)
        path.append(position // k % size)
    return torch.stack(path[::-1]).movedim(-1, 0), log_prob.movedim(-1, 0)


def _best_moves(move: Moves, best: Tensor, emit: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """From scores (n, k + 1) of the contexts that move, the last -inf: the places that are reached, in order, their scores, and
    of each of its k best where it came from, as place k + rank (n, k)."""
    k, width = best.shape[1] - 1, move.score.shape[1]
    place, target = _places(move.target, emit)
    score = move.score.flatten() + emit.reshape(-1)[place][target]
    new, before = best.new_full((len(place), k + 1), -math.inf), target.new_zeros(len(place), k)
    rank, value = torch.zeros_like(target), best[:, 0].repeat_interleave(width) + score
    for j in range(k):  # the best move into each target, which then offers its next one
        new[:, j] = best.new_full((len(place),), -math.inf).scatter_reduce(0, target, value, "amax")
        wins = (value < new[:, j].index_select(0, target)).logical_not_().nonzero().squeeze(-1)
        winner = torch.full_like(place, len(value)).scatter_reduce(0, target[wins], wins, "amin")
        winner = winner.clamp_max(len(value) - 1)  # NaN has none
        source = winner // width
        before[:, j] = (move.row[source] * size + move.source[source]) * k + rank[winner]
        rank[winner] += 1
        value[winner] = best[source, rank[winner]] + score[winner]
    some = new[:, 0] > -math.inf
    return place[some], new[some], before[some]


def sample_pass(steps: ContextSteps, filtered: Tensor, valid: Tensor | None, num_samples: int) -> Tensor:
    """Exact posterior paths by backward sampling: contexts (S, T, R)."""
    place, first, number = steps.incoming
    context = sample_log(filtered[-1].expand(num_samples, -1, -1))
    path, row = [context], torch.arange(filtered.shape[1], device=filtered.device).unsqueeze(-1)
    for t in range(len(filtered) - 1, 0, -1):
        along = torch.arange(max(int(number[context].amax()), 1), device=filtered.device)
        moves = place[(first[context].unsqueeze(-1) + along).clamp_max(len(place) - 1)]  # (S, R, W) that lead here
        before, log = moves // steps.num_symbols, steps.log.view(-1)[moves]
        score = (filtered[t - 1][row, before] + log).where(along < number[context].unsqueeze(-1), -math.inf)
        moved = before.gather(-1, sample_log(score).unsqueeze(-1)).squeeze(-1)
        context = moved if valid is None else torch.where(valid[t], moved, context)
        path.append(context)
    return torch.stack(path[::-1], 1)
