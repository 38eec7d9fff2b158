"""Missing tokens in block-sparse chains: runs of steps at which all states are open.

A run between two seen words is summed out into one K x K factor between their blocks, so the scan over time sees narrow
steps only; a run of one costs K Z for each neighbour, and longer runs pass through all states tile by tile.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pplseq.distributions.block import BlockTransition
from pplseq.kernels.log_semiring import log1mexp, log_matmul, max_matmul
from pplseq.kernels.path_scan import sample_log

GAP_CELLS = 1 << 26  # cells of K x N rows held at once


class Gaps(NamedTuple):
    """Where the seen words are.

    time: (S, B) original step of the s-th seen word of each row. num_seen: (B,) how many. lengths: (B,) valid steps.
    before: (S, B) missing steps right before it. trailing: (B,) missing steps behind the last seen one.
    """

    time: Tensor
    num_seen: Tensor
    lengths: Tensor
    before: Tensor
    trailing: Tensor

    @classmethod
    def of(cls, seen: Tensor, lengths: Tensor) -> Gaps:
        """From a (T, B) mask of seen steps and (B,) lengths."""
        count = seen.sum(0)
        size = max(1, int(count.max()))
        time = (~seen).to(torch.int8).argsort(dim=0, stable=True)[:size]
        slot = torch.arange(size, device=seen.device).unsqueeze(-1)
        last = time.gather(0, (count - 1).clamp_min(0).unsqueeze(0))
        time = torch.where(slot < count, time, last)
        before = torch.diff(time, dim=0, prepend=time.new_full((1, time.shape[1]), -1)) - 1
        trailing = torch.where(count > 0, lengths - 1 - last.squeeze(0), lengths)
        return cls(time, count, lengths, before.clamp_min(0), trailing)


def _sum_gap(transition: BlockTransition, rows: Tensor, following: Tensor, length: int, maximum: bool) -> Tensor:
    """(R, P, Q): rows (R, P, N) into the first missing step, through ``length`` steps, to local numbers (R, Q)."""
    product = max_matmul if maximum else log_matmul
    count, size, _ = rows.shape
    for _ in range(length - 1):
        flat = rows.reshape(count * size, -1)
        rows = torch.cat([product(flat, transition.columns(tile)) for tile in transition.column_tiles()], -1)
        rows = rows.view(count, size, -1)
    columns = transition.columns(following.reshape(-1)).view(-1, *following.shape).movedim(1, 0)  # (R, N, Q)
    if maximum:
        return torch.stack([max_matmul(a, b) for a, b in zip(rows, columns, strict=True)])
    return log_matmul(rows, columns)


def _by_length(transition: BlockTransition, lengths: Tensor, width: int):
    """Row numbers in groups of equal gap length, small enough for the memory bound."""
    step = max(1, GAP_CELLS // (width * transition.layout.num_kept))
    for length in lengths.unique().tolist():
        for part in (lengths == length).nonzero().squeeze(-1).split(step):
            yield length, part


def _through(transition: BlockTransition, first_rows, following: Tensor, lengths: Tensor, maximum: bool) -> Tensor:
    """(R, P, Q) factors over gaps; ``first_rows(part)`` gives the (r, P, N) rows into the first missing step."""
    order, parts = [], []
    for length, part in _by_length(transition, lengths, following.shape[-1]):

        def gap(part=part, length=length):
            return _sum_gap(transition, first_rows(part), following[part], length, maximum)

        # the wide rows are made again in the backward instead of being kept
        parts.append(checkpoint(gap, use_reentrant=False) if torch.is_grad_enabled() else gap())
        order.append(part)
    return torch.cat(parts)[torch.cat(order).argsort()]


def gap_pairs(transition, previous_block, block, previous_word, lengths, maximum=False) -> Tensor:
    """(R, K, K) log p(next seen state | last seen state) over gaps of the given lengths (R,)."""
    slots = transition.layout.slots
    transition.log_norm()

    def first_rows(part):
        word = None if previous_word is None else previous_word[part]
        return transition.wide_rows(slots[previous_block[part]], word)

    return _through(transition, first_rows, slots[block], lengths, maximum)


def gap_initial(transition, initial: Tensor, block: Tensor, lengths: Tensor, maximum=False) -> Tensor:
    """(R, K) log p(first seen state) behind leading gaps, from the distribution (R, N) of the first missing step."""
    transition.log_norm()
    rows = initial.unsqueeze(1)
    return _through(transition, lambda part: rows[part], transition.layout.slots[block], lengths, maximum).squeeze(1)


# ------------------------------------------------------------------------------- states inside gaps
class Run(NamedTuple):
    """One batch of gaps of equal length, with the messages at their ends.

    row: (R,) sequence. first: (R,) first missing step. length: steps. enter: (R, N) log message into the first missing
    step. leave: (R, N) log message from behind the last one (0 where nothing follows). leave_reset: (R,) the same if the
    last missing word is the reset word.
    """

    row: Tensor
    first: Tensor
    length: int
    enter: Tensor
    leave: Tensor
    leave_reset: Tensor | None = None


def messages_before(transition: BlockTransition, run: Run) -> list[Tensor]:
    """Log messages (R, N) from before at every step of the run."""
    forward = [run.enter]
    for _ in range(run.length - 1):
        forward.append(transition.wide_forward(forward[-1]))
    return forward


def _messages_behind(transition: BlockTransition, run: Run) -> list[Tensor]:
    backward = [run.leave]
    for _ in range(run.length - 1):
        backward.append(transition.wide_backward(backward[-1]))
    return backward[::-1]


def run_marginals(transition: BlockTransition, run: Run) -> Tensor:
    """(length, R, N) p(z_t | x) inside the run."""
    forward, backward = messages_before(transition, run), _messages_behind(transition, run)
    return torch.softmax(torch.stack(forward) + torch.stack(backward), -1)


def run_words(transition: BlockTransition, emission, run: Run) -> Tensor:
    """(length, R, V) log p(x_t | all seen words) inside the run.

    Where the model resets, a missing word says something about the next state: p(reset word | z, behind) is weighed by
    what follows a reset and what follows a normal step.
    """
    forward, backward = messages_before(transition, run), _messages_behind(transition, run)
    words = []
    for t in range(run.length):
        state = torch.log_softmax(forward[t] + backward[t], -1)
        if transition.reset_id is None:
            words.append(emission.word_log_prob(state))
            continue
        behind = run.leave_reset
        if t + 1 < run.length:
            behind = torch.logsumexp(transition.initial_log_prob() + backward[t + 1], -1)
        assert behind is not None, "runs of models that reset say what follows a reset"
        prior = emission.log_prob_of(transition.reset_id)
        reset = (prior + behind.unsqueeze(-1) - backward[t]).clamp(max=0.0)  # log p(reset word | z_t, what follows)
        reset = reset.where(state > -torch.inf, 0.0)  # of states that nothing leads on from
        other = torch.where(prior < 0, state + log1mexp(reset) - log1mexp(prior), -torch.inf)
        word = emission.word_log_prob(other)
        word[:, transition.reset_id] = torch.logsumexp(state + reset, -1)
        words.append(word)
    return torch.log_softmax(torch.stack(words), -1)


def run_paths(transition: BlockTransition, run: Run, maximum: bool) -> Tensor:
    """(length, R) local numbers: a posterior sample of the states in the run given both ends, or the best ones."""
    backward = [run.leave]
    for _ in range(run.length - 1):
        if maximum:
            parts = [max_matmul(backward[-1][:, tile], transition.columns(tile).T) for tile in transition.column_tiles()]
            backward.append(torch.stack(parts).amax(0))
        else:
            backward.append(transition.wide_backward(backward[-1]))
    pick = (lambda weight: weight.argmax(-1)) if maximum else sample_log
    state = pick(run.enter + backward[-1])
    path = [state]
    missing = None if transition.reset_id is None else torch.full_like(state, -1)
    for message in reversed(backward[:-1]):
        row = transition.wide_rows(state.unsqueeze(-1), missing).squeeze(-2)
        state = pick(row + message)
        path.append(state)
    return torch.stack(path)


def trailing_maximum(transition: BlockTransition, rows: Tensor, lengths: Tensor) -> Tensor:
    """(R, K) log-probability of the best continuation over trailing missing steps, given rows (R, K, N) into the first."""
    best = rows.new_empty(rows.shape[:2])
    for length in lengths.unique().tolist():
        part = (lengths == length).nonzero().squeeze(-1)
        ahead = rows.new_zeros(1, rows.shape[-1])
        for _ in range(length - 1):
            tiles = [max_matmul(ahead[:, tile], transition.columns(tile).T) for tile in transition.column_tiles()]
            ahead = torch.stack(tiles).amax(0)
        best[part] = (rows[part] + ahead).amax(-1)
    return best
