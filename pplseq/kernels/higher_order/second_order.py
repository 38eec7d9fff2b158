"""Products of messages over pairs of states with a second-order transition: M^3 a step instead of M^4.

A message is over pairs (a, b), the state before and the state, flattened as a M + b. One step leads from (a, b) to (b, c), so
that for every b there is a product of its own: a batch of M small matrices instead of one of M^2 x M^2.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels import compiled, twice
from pplseq.kernels.log_semiring import logsumexp, safe_log
from pplseq.kernels.path_scan import rescaled, sample_log

MAX_CELLS = 1 << 22  # scores in one temporary of a maximum
POINTERS = 1 << 22  # back pointers of a row that the compiled loop may keep
# a smaller product may have lost digits, or be what is left of several that underflowed
LOWEST = {torch.float64: 1e-280, torch.float32: 1e-30}


class SecondOrderMatrices:
    """The steps of a second-order chain as linear maps in log space: what
    :class:`~pplseq.kernels.scan.StepMatrices` is to a first-order one.

    Args:
        log: (M, M, M) log p(c | a, b), [a, b, c].
    """

    shared: bool = False
    restart: Tensor | None = None

    def __init__(self, log: Tensor):
        self.size = log.shape[-1]
        self.table, self.into = log, log.permute(1, 2, 0).contiguous()  # (a, b, c), (b, c, a)
        self.reach = 500.0 if log.dtype == torch.float64 else 60.0
        top = log.amax(-1, keepdim=True).clamp_min(torch.finfo(log.dtype).min)
        shifted = log - top
        self.safe = twice.holds(shifted.detach().amin() > -self.reach)
        self.scaled = shifted.exp().transpose(0, 1)  # (b, a, c)
        self.top = top.squeeze(-1)  # (a, b)

    def _pairs(self, message: Tensor) -> Tensor:
        return message.reshape(-1, self.size, self.size)

    def forward(self, t: int, message: Tensor) -> Tensor:
        """log sum_a exp(message[a, b]) p(c | a, b): over pairs (b, c)."""
        score = self._pairs(message) + self.top  # (R, a, b)
        high = score.detach().amax(1, keepdim=True).clamp_min(torch.finfo(score.dtype).min)
        product = torch.bmm((score - high).exp().permute(2, 0, 1), self.scaled)  # (b, R, c)
        if not self.safe and (twice.transformed() or bool((product.detach() < math.exp(-self.reach)).any())):
            parts = self._pairs(message).split(max(1, MAX_CELLS // self.size**3))
            result = torch.cat([logsumexp(part.unsqueeze(-1) + self.table, 1) for part in parts])
        else:
            result = safe_log(product).transpose(0, 1) + high.transpose(1, 2)
        return result.reshape(message.shape)

    def backward(self, t: int, message: Tensor) -> Tensor:
        """log sum_c p(c | a, b) exp(message[b, c]) up to a constant: over pairs (a, b)."""
        score = self._pairs(message)  # (R, b, c)
        high = score.amax(2, keepdim=True).clamp_min(torch.finfo(score.dtype).min)
        product = torch.bmm((score - high).exp().transpose(0, 1), self.scaled.transpose(1, 2))  # (b, R, a)
        if not self.safe and bool((product < math.exp(-self.reach)).any()):
            parts = score.split(max(1, MAX_CELLS // self.size**3))
            result = torch.cat([logsumexp(part.unsqueeze(1) + self.table, -1) for part in parts])
        else:
            result = product.log().permute(1, 2, 0) + high.transpose(1, 2) + self.top
        return result.reshape(message.shape)

    def at(self, t: int) -> Tensor:
        """(M^2, M^2) log matrix between pairs: for small M."""
        size = self.size
        full = self.table.new_full((size, size, size, size), -math.inf)
        same = torch.arange(size, device=full.device)
        full[:, same, same] = self.table
        return full.reshape(size * size, size * size)

    def triples(self, message: Tensor, later: Tensor) -> Tensor:
        """(R, M, M, M) p(a, b, c) in proportion to message[a, b] p(c | a, b) later[b, c], both in logs."""
        score = self._pairs(message).unsqueeze(-1) + self.table + self._pairs(later).unsqueeze(1)
        return torch.softmax(score.flatten(1), -1).reshape(score.shape)


def _wanted(reached: Tensor, emit: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Row, b and c of the pairs (b, c) that words allow, whose b is `reached` (R, M), in rows that go on; sorted."""
    size = reached.shape[-1]
    some = reached.unsqueeze(-1) & (emit > -math.inf).reshape(-1, size, size)
    row, b, c = (some if valid is None else some & valid[:, None, None]).nonzero().unbind(1)
    return row, b, c


def _pieces(matrices: SecondOrderMatrices, number: int, device) -> tuple[Tensor, ...]:
    return torch.arange(number, device=device).split(max(1, MAX_CELLS // matrices.size))


def forward_pass(
    init: Tensor, matrices: SecondOrderMatrices, emit: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Filtering with scaled probabilities, over the pairs that words allow; without gradients.

    Returns:
        p(pair_t | x_<=t) (T, R, M^2), the last one carried over padded steps; log p(x_t | x_<t) (T, R), 0 at padded steps; and
        the rows (R,) in which digits may have been lost, to be redone in log space.
    """
    num_steps, rows, pairs = emit.shape
    size, into = matrices.size, matrices.into.exp()
    message = init + emit[0]
    top = message.amax(-1).clamp_min(torch.finfo(emit.dtype).min)
    message = (message - top.unsqueeze(-1)).exp()
    total = message.sum(-1)
    lost = total <= 0
    messages, steps = [message / total.unsqueeze(-1)], [total.log() + top]
    if valid is not None:
        steps[0] = steps[0].where(valid[0], 0.0)
    for t in range(1, num_steps):
        before = messages[-1].reshape(rows, size, size)
        now = None if valid is None else valid[t]
        row, b, c = _wanted((before > 0).any(1), emit[t], now)
        place = (row * size + b) * size + c
        said = emit[t].reshape(-1)[place]
        top = said.new_full((rows,), torch.finfo(emit.dtype).min).scatter_reduce(0, row, said, "amax")
        values = (said - top[row]).exp()
        for part in _pieces(matrices, len(row), emit.device):
            values[part] *= (before[row[part], :, b[part]] * into[b[part], c[part]]).sum(-1)
        lost.index_fill_(0, row[values < LOWEST[emit.dtype]], True)
        total = values.new_zeros(rows).index_add_(0, row, values)
        message = torch.zeros_like(messages[-1])
        message.view(-1)[place] = values / total[row]
        step = total.log() + top
        if now is not None:
            message, step = torch.where(now.unsqueeze(-1), message, messages[-1]), step.where(now, 0.0)
        messages.append(message)
        steps.append(step)
    steps = torch.stack(steps)
    return torch.stack(messages), steps, lost | ~steps.isfinite().all(0)


def state_posterior(
    messages: Tensor, matrices: SecondOrderMatrices, emit: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """p(pair_t | x) (T, R, M^2) from what :func:`forward_pass` gives, 0 at padded steps; and the rows to be redone."""
    num_steps, rows, pairs = emit.shape
    size, table = matrices.size, matrices.table.exp()
    later = torch.ones_like(emit[0])
    lost = torch.zeros(rows, dtype=torch.bool, device=emit.device)
    probs = [messages[-1]]
    for t in range(num_steps - 1, 0, -1):
        # p(x_>=t | pair_t) up to a factor
        top = emit[t].amax(-1, keepdim=True).clamp_min(torch.finfo(emit.dtype).min)
        evidence = ((emit[t] - top).exp() * later).reshape(rows, size, size)
        now = None if valid is None else valid[t]
        before = messages[t - 1].reshape(rows, size, size)
        row, a, b = (before > 0 if now is None else (before > 0) & now[:, None, None]).nonzero().unbind(1)
        place = (row * size + a) * size + b
        values = emit.new_empty(len(row))
        for part in _pieces(matrices, len(row), emit.device):
            values[part] = (table[a[part], b[part]] * evidence[row[part], b[part]]).sum(-1)
        highest = values.new_zeros(rows).scatter_reduce(0, row, values, "amax")
        values = values / highest[row]
        lost.index_fill_(0, row[~(values > LOWEST[emit.dtype])], True)
        new = torch.zeros_like(later)
        new.view(-1)[place] = values
        later = new if now is None else torch.where(now.unsqueeze(-1), new, later)
        prob = messages[t - 1] * later
        probs.append(prob / prob.sum(-1, keepdim=True))
    probs = torch.stack(probs[::-1])
    lost |= ~probs.isfinite().all(-1).all(0)
    return (probs if valid is None else probs * valid.unsqueeze(-1)), lost


def path_entropy(messages: Tensor, matrices: SecondOrderMatrices, valid: Tensor | None) -> Tensor:
    """(R,) entropy of the path given x, nats, forward in time: that of the path up to t given the pair at t.

    Source: D. Hernando, V. Crespi, G. Cybenko (2005), Efficient computation of the hidden Markov model entropy.
    """
    num_steps, rows, pairs = messages.shape
    size, into = matrices.size, matrices.into.exp()
    inner = torch.zeros_like(messages[0])
    for t in range(1, num_steps):
        now = messages[t].reshape(rows, size, size) > 0
        row, b, c = (now if valid is None else now & valid[t][:, None, None]).nonzero().unbind(1)
        place, before = (row * size + b) * size + c, messages[t - 1].reshape(rows, size, size)
        rest, values = inner.reshape(rows, size, size), inner.new_empty(len(row))
        for part in _pieces(matrices, len(row), messages.device):
            weight = before[row[part], :, b[part]] * into[b[part], c[part]]
            weight = weight / weight.sum(-1, keepdim=True)
            values[part] = (weight * rest[row[part], :, b[part]] + torch.special.entr(weight)).sum(-1)
        new = inner.clone() if valid is None else torch.where(valid[t].unsqueeze(-1), torch.zeros_like(inner), inner)
        new.view(-1)[place] = values
        inner = new
    last = messages[-1]
    return (last * inner + torch.special.entr(last)).sum(-1)


def viterbi_pass(
    init: Tensor, matrices: SecondOrderMatrices, emit: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The most probable paths: pairs (T, R) and log-probabilities (R,), of few states by a compiled loop."""
    num_steps, rows, pairs = emit.shape
    given = init, matrices.table, emit
    fits = num_steps * pairs <= POINTERS and emit.numel()
    fits = fits and not any(part.dtype != torch.float64 or part.device.type != "cpu" or part.isnan().any() for part in given)
    work = 20 * num_steps, num_steps * rows * pairs * len(matrices.table)
    if not fits or not compiled.pays("kernels.higher_order.second_order_loops.viterbi", *work):
        paths, log_prob = k_best_pass(init, matrices, emit, valid, 1)
        return paths[0], log_prob[0]
    lengths = torch.full((rows,), num_steps) if valid is None else valid.sum(0).clamp_min(1)
    return best_paths(init, matrices.table, emit, lengths)


def best_paths(init: Tensor, table: Tensor, emit: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`viterbi_pass` by the compiled loop, of rows of some lengths (R,), in float64 on the CPU."""
    from pplseq.kernels.higher_order import second_order_loops

    (num_steps, rows, pairs), size = emit.shape, len(table)
    starts, moves, emissions = (compiled.array(part) for part in (init.reshape(rows, size, size), table, emit))
    path, log_prob = np.empty((num_steps, rows), np.int64), np.empty(rows)
    words, counts = emissions.reshape(num_steps, rows, size, size), compiled.array(lengths)

    def run(part: int, begin: int, end: int) -> None:
        second_order_loops.viterbi(begin, end, starts, moves, words, counts, path, log_prob)

    compiled.by_rows(run, rows, num_steps * rows * pairs * size)
    return torch.from_numpy(path), torch.from_numpy(log_prob)


def k_best_pass(
    init: Tensor, matrices: SecondOrderMatrices, emit: Tensor, valid: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """The k most probable paths: pairs (k, T, R) and log-probabilities (k, R), -inf where there are fewer.

    Only pairs that words allow are looked at.
    """
    num_steps, rows, pairs = emit.shape
    size, into = matrices.size, matrices.into
    message = emit.new_full((rows, pairs, k), -math.inf)
    message[..., 0] = init + emit[0]
    # which (a, rank) led into each pair, as a k + rank, for row M^2 + pair in order: the pair before (b, c) is (a, b)
    ways, total = [], torch.zeros(rows, dtype=torch.float64, device=emit.device)
    for t in range(1, num_steps):
        before = message.reshape(rows, size, size, k)
        row, b, c = _wanted((before > -math.inf).any(-1).any(1), emit[t], None if valid is None else valid[t])
        place = (row * size + b) * size + c
        values, pointers = emit.new_full((max(len(row), 1), k), -math.inf), place.new_zeros(max(len(row), 1), k)
        for part in torch.arange(len(row), device=emit.device).split(max(1, MAX_CELLS // (size * k))):
            score = before[row[part], :, b[part]] + into[b[part], c[part]].unsqueeze(-1)  # (n, a, rank)
            found = score.flatten(1).topk(k) if k > 1 else score.flatten(1).max(1, keepdim=True)
            values[part], pointers[part] = found[0], found[1]
        if valid is None:
            message = torch.full_like(message, -math.inf)
        else:
            message = message.masked_fill(valid[t][:, None, None], -math.inf)
        message.view(-1, k)[place] = values[: len(row)] + emit[t].reshape(-1)[place].unsqueeze(-1)
        message, total = rescaled(message, total, (-2, -1))
        ways.append((place, pointers))
    best, place = message.flatten(1).topk(k, dim=-1)  # (R, k): pair k + rank
    log_prob = (total.unsqueeze(-1) + best).to(emit.dtype)
    pair, rank = place // k, place % k
    path = [pair]
    first = torch.arange(rows, device=emit.device).unsqueeze(-1) * pairs
    for t in range(num_steps - 1, 0, -1):
        places, pointers = ways[t - 1]
        found = pointers[torch.searchsorted(places, first + pair).clamp_max(len(pointers) - 1), rank]
        moved, rank_moved = (found // k) * size + pair // size, found % k
        if valid is not None:
            moved = torch.where(valid[t][:, None], moved, pair)
            rank_moved = torch.where(valid[t][:, None], rank_moved, rank)
        pair, rank = moved, rank_moved
        path.append(pair)
    return torch.stack(path[::-1]).movedim(-1, 0), log_prob.movedim(-1, 0)


def sample_pass(matrices: SecondOrderMatrices, filtered: Tensor, valid: Tensor | None, num_samples: int) -> Tensor:
    """Exact posterior paths by backward sampling: pairs (S, T, R)."""
    num_steps, rows, _ = filtered.shape
    size = matrices.size
    pair = sample_log(filtered[-1].expand(num_samples, -1, -1))
    path = [pair]
    row = torch.arange(rows, device=filtered.device)
    for t in range(num_steps - 1, 0, -1):
        b, c = pair // size, pair % size
        before = filtered[t - 1].reshape(rows, size, size)[row, :, b]  # (S, R, a)
        moved = sample_log(before + matrices.table[:, b, c].permute(1, 2, 0)) * size + b
        pair = moved if valid is None else torch.where(valid[t], moved, pair)
        path.append(pair)
    return torch.stack(path[::-1], 1)
