"""Passes over chains of contexts: only contexts that the words before reach, and symbols that the word at hand allows.

A step leads from context s with symbol c to successor[s, c]. Its moves are listed, which of a sentence's words allow few, and
summed into their targets in log space, so that nothing underflows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq import checks
from pplseq.kernels.log_semiring import logsumexp, safe_log
from pplseq.kernels.path_scan import sample_log
from pplseq.kernels.scan import Forward, forward_in_log_space, log_normalise

MAX_MOVES = 1 << 21  # that are listed at a time


class Moves(NamedTuple):
    """Moves of rows of a batch. which: of the source in what was given; source, target: row Z + context; score: log p(symbol |
    context)."""

    which: Tensor
    row: Tensor
    source: Tensor
    target: Tensor
    score: Tensor


class ContextSteps:
    """The steps of a variable-order chain.

    Args:
        log: (Z, M) log p(symbol | context). successor: (Z, M). symbol: (Z,).
    """

    shared = False
    restart: Tensor | None = None

    def __init__(self, log: Tensor, successor: Tensor, symbol: Tensor):
        self.log, self.successor, self.symbol = log, successor, symbol
        self.size, self.num_symbols = log.shape

    def symbols(self, emit: Tensor) -> Tensor:
        """(R, M) whether a word (R, Z) allows a context that ends with the symbol."""
        row, context = (emit.detach() > -math.inf).nonzero().unbind(1)
        some = torch.zeros(len(emit), self.num_symbols, dtype=torch.bool, device=emit.device)
        some[row, self.symbol[context]] = True
        return some

    def moves(self, alive: Tensor, allowed: Tensor) -> Iterator[Moves]:
        """All of them, from contexts (R, Z) by symbols (R, M), in parts that fit into memory."""
        for part in alive.reshape(-1).nonzero().squeeze(-1).split(max(1, MAX_MOVES // self.num_symbols)):
            yield self.moves_of(part, allowed)

    def moves_of(self, place: Tensor, allowed: Tensor) -> Moves:
        """From some contexts, at places row Z + context."""
        symbols, number = allowed.nonzero()[:, 1], allowed.sum(1)
        first = number.cumsum(0) - number
        rows, contexts = place // self.size, place % self.size
        count = number[rows]
        which = torch.arange(len(place), device=place.device).repeat_interleave(count)
        along = torch.arange(len(which), device=place.device) - (count.cumsum(0) - count)[which]
        rows, contexts = rows[which], contexts[which]
        c = symbols[first[rows] + along]
        target = rows * self.size + self.successor[contexts, c]
        return Moves(which, rows, place[which], target, self.log[contexts, c])

    def forward(self, message: Tensor, emit: Tensor | None = None) -> Tensor:
        """(R, Z) log sum_s exp(message_s) p(s'| s), of contexts s' that end with a symbol which the word allows."""
        allowed = self._all(message) if emit is None else self.symbols(emit)
        flat, moves = message.reshape(-1), self.moves(message.detach() > -math.inf, allowed)
        return _together([_summed(flat[m.source] + m.score, m.target, flat) for m in moves], message)

    def backward(self, alive: Tensor, later: Tensor) -> Tensor:
        """(R, Z) log sum_c p(c | s) exp(later of the successor), of contexts that are alive (R, Z); -inf of others."""
        flat, moves = later.reshape(-1), self.moves(alive, self.symbols(later))
        return _together([_summed(flat[m.target] + m.score, m.source, flat) for m in moves], later)

    def at(self, t: int) -> Tensor:
        """(Z, Z) log matrix between contexts: for few of them."""
        size = self.size
        checks.fits("contexts", 8.0 * size**2, "ask for what takes no matrix between contexts: marginals, paths, entropy")
        return self.log.new_full((size, size), -math.inf).scatter(1, self.successor, self.log)

    def _all(self, message: Tensor) -> Tensor:
        return torch.ones(len(message), self.num_symbols, dtype=torch.bool, device=message.device)


def _summed(score: Tensor, place: Tensor, like: Tensor) -> Tensor:
    """(N,) log of the sum of exp(score) into places of a vector."""
    top = torch.full_like(like, torch.finfo(score.dtype).min).scatter_reduce(0, place, score.detach(), "amax")
    return safe_log(torch.zeros_like(like).index_add(0, place, (score - top[place]).exp())) + top


def _together(parts: list[Tensor], like: Tensor) -> Tensor:
    """Sums of parts of the moves, of the shape that messages have."""
    if not parts:
        return torch.full_like(like, -math.inf)
    return (parts[0] if len(parts) == 1 else logsumexp(torch.stack(parts), 0)).view(like.shape)


class _Allowed:
    """Steps into what the words of a chain allow, as :class:`~pplseq.kernels.scan.LogMatrices` are asked."""

    def __init__(self, steps: ContextSteps, emit: Tensor):
        self.steps, self.emit = steps, emit

    def forward(self, t: int, message: Tensor) -> Tensor:
        return self.steps.forward(message, self.emit[t])


def forward_pass(init: Tensor, steps: ContextSteps, emit: Tensor, valid: Tensor | None) -> Forward:
    """Filtering: log p(context_t | x_<=t). Cost: the moves that words allow."""
    allowed: Any = _Allowed(steps, emit)
    return forward_in_log_space(init, allowed, emit, valid)


def backward_pass(filtered: Tensor, steps: ContextSteps, emit: Tensor, valid: Tensor | None) -> Tensor:
    """(T, R, Z) log p(x_>t | context_t) up to a constant a step, of contexts that words before reach; -inf of others."""
    alive = filtered > -math.inf
    message = torch.zeros_like(emit[0]).where(alive[-1], -math.inf)
    messages = [message]
    for t in range(len(emit) - 1, 0, -1):
        new = log_normalise(steps.backward(alive[t - 1], emit[t] + message))[0]
        message = new if valid is None else torch.where(valid[t].unsqueeze(-1), new, message)
        messages.append(message)
    return torch.stack(messages[::-1])


def pair_posterior(
    filtered: Tensor, later: Tensor, steps: ContextSteps, valid: Tensor | None
) -> Iterator[tuple[Moves, Tensor]]:
    """Step by step the moves and (E,) p(context_t, context_{t+1} | x); later: (T, R, Z) emit plus :func:`backward_pass`."""
    for t in range(1, len(filtered)):
        alive = filtered[t - 1] > -math.inf
        if valid is not None:
            alive &= valid[t].unsqueeze(-1)
        parts = list(steps.moves(alive, steps.symbols(later[t])))
        move = parts[0] if len(parts) == 1 else Moves(*(torch.cat(fields) for fields in zip(*parts, strict=True)))
        score = filtered[t - 1].reshape(-1)[move.source] + move.score + later[t].reshape(-1)[move.target]
        norm = _summed(score, move.row, filtered.new_empty(filtered.shape[1]))
        yield move, (score - norm[move.row]).exp()


def k_best_pass(
    init: Tensor, steps: ContextSteps, emit: Tensor, valid: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """The k most probable paths: contexts (k, T, R), log-probabilities (k, R), -inf where there are fewer. List Viterbi.

    Only contexts that are reached are held: their places row Z + context, in order, and k scores each.
    """
    num_steps, rows, size = emit.shape
    first = init + emit[0]
    if valid is not None:  # a row without steps has one path
        nothing = torch.full_like(first, -math.inf)
        nothing[:, 0] = 0.0
        first = first.where(valid[0].unsqueeze(-1), nothing)
    place = (first > -math.inf).view(-1).nonzero().squeeze(-1)
    best = emit.new_full((len(place), k), -math.inf)
    best[:, 0] = first.reshape(-1)[place]
    total = torch.zeros(rows, dtype=torch.float64, device=emit.device)
    ways = []  # of each step the places, where each hypothesis came from, and its rank there
    for t in range(1, num_steps):
        goes_on = None if valid is None else valid[t][place // size]
        moving = torch.arange(len(place), device=emit.device) if goes_on is None else goes_on.nonzero().squeeze(-1)
        found = [_best_moves(steps, place, best, part, emit[t], k) for part in _parts(moving, steps)]
        if goes_on is not None:  # rows that have ended stay as they are
            still = (~goes_on).nonzero().squeeze(-1)
            found.append((place[still], best[still], place[still, None].expand(-1, k), _ranks(still, k)))
        if not found:  # nothing is possible
            break
        place, best, before, rank = _merged(found, k)
        row = place // size
        top = best.new_full((rows,), torch.finfo(best.dtype).min).scatter_reduce(0, row, best[:, 0], "amax")
        best, total = best - top[row].unsqueeze(-1), total + top
        ways.append((place, before, rank))
    last = emit.new_full((rows * size, k), -math.inf)
    last[place] = best
    score, position = last.view(rows, -1).topk(k, dim=-1)  # (R, k) positions in context * k + rank
    log_prob = (total.unsqueeze(-1) + score).to(emit.dtype)
    if len(ways) < num_steps - 1:
        return score.new_zeros((k, num_steps, rows), dtype=torch.long), log_prob.movedim(-1, 0)
    at, which = position // k + size * torch.arange(rows, device=emit.device).unsqueeze(-1), position % k
    path = [at % size]
    for place, before, rank in reversed(ways):
        if len(place):
            here = torch.searchsorted(place, at).clamp_max(len(place) - 1)
            there = place[here] == at  # fewer than k paths: what is left has probability zero
            at, which = torch.where(there, before[here, which], at), torch.where(there, rank[here, which], 0)
        path.append(at % size)
    return torch.stack(path[::-1]).movedim(-1, 0), log_prob.movedim(-1, 0)


def _parts(which: Tensor, steps: ContextSteps) -> tuple[Tensor, ...]:
    return which.split(max(1, MAX_MOVES // steps.num_symbols)) if len(which) else ()


def _ranks(which: Tensor, k: int) -> Tensor:
    return torch.arange(k, device=which.device).expand(len(which), k)


def _best_moves(
    steps: ContextSteps, place: Tensor, best: Tensor, which: Tensor, emit: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of some contexts the places they lead to, in order, and of each the k best scores, with where they came from."""
    move = steps.moves_of(place[which], steps.symbols(emit))
    score = best[which][move.which] + (move.score + emit.reshape(-1)[move.target]).unsqueeze(-1)
    if k == 1:
        return _best_of(move.target, score.squeeze(-1), move.source, emit.numel())
    return _k_best_of(move.target.repeat_interleave(k), score.reshape(-1), move.source.repeat_interleave(k),
                      _ranks(move.source, k).reshape(-1), k)  # fmt: skip


def _best_of(target: Tensor, score: Tensor, before: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """:func:`_k_best_of` for one a target below `size`, without sorting; of equals the first source."""
    top = score.new_full((size,), -math.inf).scatter_reduce(0, target, score, "amax")
    wins = ((score == top[target]) & (score > -math.inf)).nonzero().squeeze(-1)
    first = before.new_full((size,), torch.iinfo(before.dtype).max).scatter_reduce(0, target[wins], before[wins], "amin")
    places = (top > -math.inf).nonzero().squeeze(-1)
    return places, top[places, None], first[places, None], torch.zeros_like(places[:, None])


def _k_best_of(
    target: Tensor, score: Tensor, before: Tensor, rank: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The k highest scores of each target, in order of targets; what is impossible is left out."""
    some = (score > -math.inf).nonzero().squeeze(-1)
    some = some[score[some].argsort(descending=True, stable=True)]
    some = some[target[some].argsort(stable=True)]
    target = target[some]
    number = torch.arange(len(target), device=target.device) - torch.searchsorted(target, target)
    kept = number < k
    places, which = target[kept].unique(return_inverse=True)
    cell, some = (which, number[kept]), some[kept]
    found = []
    for values, empty in ((score, -math.inf), (before, 0), (rank, 0)):
        found.append(values.new_full((len(places), k), empty).index_put(cell, values[some]))
    return places, *found


def _merged(parts: list[tuple[Tensor, Tensor, Tensor, Tensor]], k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The best of several parts, whose places may be the same."""
    if len(parts) == 1:
        return parts[0]
    place, best, before, rank = (torch.cat(fields) for fields in zip(*parts, strict=True))
    return _k_best_of(place.repeat_interleave(k), best.reshape(-1), before.reshape(-1), rank.reshape(-1), k)


def sample_pass(steps: ContextSteps, filtered: Tensor, valid: Tensor | None, num_samples: int) -> Tensor:
    """Exact posterior paths by backward sampling: contexts (S, T, R)."""
    context = sample_log(filtered[-1].expand(num_samples, -1, -1))
    path = [context]
    for t in range(len(filtered) - 1, 0, -1):
        c = steps.symbol[context]  # (S, R)
        leads = steps.successor.T[c] == context.unsqueeze(-1)  # (S, R, Z)
        moved = sample_log((filtered[t - 1] + steps.log.T[c]).masked_fill(~leads, -math.inf))
        context = moved if valid is None else torch.where(valid[t], moved, context)
        path.append(context)
    return torch.stack(path[::-1], 1)
