"""Passes over chains of contexts: only contexts that the words before reach, and symbols that the word at hand allows.

A step leads from context s with symbol c to successor[s, c]. Its moves are listed, which of a sentence's words allow few, and
summed into their targets in log space, so that nothing underflows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq import checks
from pplseq.kernels.log_semiring import logsumexp, safe_log
from pplseq.kernels.path_scan import rescaled, sample_log
from pplseq.kernels.scan import Forward, log_normalise

MAX_MOVES = 1 << 21  # that are listed at a time


class Moves(NamedTuple):
    """Moves of rows of a batch. source, target: row Z + context; score: log p(symbol | context)."""

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
        some = torch.zeros(len(emit), self.num_symbols, dtype=torch.long, device=emit.device)
        return some.index_add_(1, self.symbol, (emit.detach() > -math.inf).long()) > 0

    def moves(self, alive: Tensor, allowed: Tensor) -> Iterator[Moves]:
        """All of them, from contexts (R, Z) by symbols (R, M), in parts that fit into memory."""
        row, context = alive.nonzero().unbind(1)
        symbols, number = allowed.nonzero()[:, 1], allowed.sum(1)
        first = number.cumsum(0) - number
        for part in torch.arange(len(row), device=row.device).split(max(1, MAX_MOVES // self.num_symbols)):
            rows, contexts = row[part], context[part]
            count = number[rows]
            which = torch.arange(len(part), device=row.device).repeat_interleave(count)
            place = torch.arange(len(which), device=row.device) - (count.cumsum(0) - count)[which]
            rows, contexts = rows[which], contexts[which]
            c = symbols[first[rows] + place]
            target = rows * self.size + self.successor[contexts, c]
            yield Moves(rows, rows * self.size + contexts, target, self.log[contexts, c])

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


def forward_pass(init: Tensor, steps: ContextSteps, emit: Tensor, valid: Tensor | None) -> Forward:
    """Filtering: log p(context_t | x_<=t). Cost: the moves that words allow."""
    message, total = log_normalise(init + emit[0])
    if valid is not None:
        total = total.where(valid[0], 0.0)
    messages, totals = [message], [total]
    for t in range(1, len(emit)):
        new, total = log_normalise(steps.forward(message, emit[t]) + emit[t])
        if valid is not None:
            new, total = torch.where(valid[t].unsqueeze(-1), new, message), total.where(valid[t], 0.0)
        message = new
        messages.append(message)
        totals.append(total)
    kept = torch.stack(totals)
    return Forward(kept.sum(0, dtype=torch.float64).to(emit.dtype), torch.stack(messages), kept)


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
    """The k most probable paths: contexts (k, T, R), log-probabilities (k, R), -inf where there are fewer. List Viterbi."""
    _, rows, size = emit.shape
    message = emit.new_full((rows, size, k), -math.inf)
    message[..., 0] = init + emit[0]
    if valid is not None:  # a row without steps has one path
        nothing = torch.full_like(emit[0], -math.inf)
        nothing[:, 0] = 0.0
        message[..., 0] = message[..., 0].where(valid[0].unsqueeze(-1), nothing)
    pointers, total = [], torch.zeros(rows, dtype=torch.float64, device=emit.device)
    for t in range(1, len(emit)):
        alive, allowed = (message > -math.inf).any(-1), steps.symbols(emit[t])
        best, pointer = torch.full_like(message, -math.inf), torch.zeros(rows * size, k, dtype=torch.long, device=emit.device)
        flat = best.view(-1, k)
        for move in steps.moves(alive, allowed):
            score = message.view(-1, k)[move.source] + move.score.unsqueeze(-1)
            came = (move.source % size).unsqueeze(-1) * k + torch.arange(k, device=emit.device)
            _keep_best(flat, pointer, score.reshape(-1), came.reshape(-1), move.target.repeat_interleave(k), k)
        best = best + emit[t].unsqueeze(-1)
        pointer = pointer.view(rows, size, k)
        if valid is not None:
            keep = valid[t][:, None, None]
            stays = torch.arange(size * k, device=emit.device).view(size, k)
            best, pointer = torch.where(keep, best, message), torch.where(keep, pointer, stays)
        message, total = rescaled(best, total, (-2, -1))
        pointers.append(pointer)
    best, position = message.flatten(1).topk(k, dim=-1)
    path = [position // k]
    for pointer in reversed(pointers):
        position = pointer.flatten(1).gather(-1, position)
        path.append(position // k)
    return torch.stack(path[::-1]).movedim(-1, 0), (total.unsqueeze(-1) + best).to(emit.dtype).movedim(-1, 0)


def _keep_best(best: Tensor, pointer: Tensor, score: Tensor, came: Tensor, target: Tensor, k: int) -> None:
    """Takes the k highest scores of each target, those that are there already among them, into best and pointer (N, k)."""
    places = target.unique()
    score, came = torch.cat([best[places].reshape(-1), score]), torch.cat([pointer[places].reshape(-1), came])
    target = torch.cat([places.repeat_interleave(k), target])
    order = score.argsort(descending=True, stable=True)
    order = order[target[order].argsort(stable=True)]
    target = target[order]
    start = torch.searchsorted(target, target)  # the first of each target, as they are sorted
    rank = torch.arange(len(target), device=target.device) - start
    kept = rank < k
    best[target[kept], rank[kept]] = score[order[kept]]
    pointer[target[kept], rank[kept]] = came[order[kept]]


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
