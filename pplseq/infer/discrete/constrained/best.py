"""The k best texts and paths: a search whose bounds are exact, so that it goes nowhere in vain."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pplseq.infer.discrete.constrained.results import Texts
from pplseq.infer.discrete.constrained.table import BackwardTable

if TYPE_CHECKING:
    from pplseq.infer.discrete.constrained.chain import ConstrainedChain


class _Node(NamedTuple):
    """A beginning: its last word and state, the automaton's state, log p so far, and the beginning before it."""

    step: int
    word: int
    state: int
    automaton: int
    log_prob: float
    before: _Node | None
    whole: bool = False


def best_texts(chain: ConstrainedChain, table: BackwardTable, k: int) -> Texts:
    """See :meth:`ConstrainedChain.k_best`. Beginnings are taken up in the order of the best text that goes on from them,
    which the table of maxima knows: the k-th whole one that comes is the k-th best.

    Source: F. Soong and E.-F. Huang (1991), A tree-trellis based fast search for finding the N best sentence hypotheses.
    """
    rows, device = len(chain.first), chain.first.device
    shape = (k, rows, chain.num_steps)
    words, states = torch.full((2, *shape), -1, device=device)
    log_prob = chain.first.new_full(shape[:2], -torch.inf)
    for row in range(rows):
        for place, found in enumerate(itertools.islice(_in_order(chain, table, row, k), k)):
            log_prob[place, row] = found.log_prob
            node: _Node | None = found
            while node is not None and node.step:
                if not node.whole:
                    words[place, row, node.step - 1], states[place, row, node.step - 1] = node.word, node.state
                node = node.before
    return Texts(words, states, (words >= 0).sum(-1), log_prob)


def _in_order(chain: ConstrainedChain, table: BackwardTable, row: int, k: int):
    """Whole texts of a row, the best first."""
    number = itertools.count()
    weights: dict[tuple[int, int], Tensor] = {}
    root = _Node(0, -1, -1, int(chain.start[row]), 0.0, None)
    heap: list[tuple[float, int, int, _Node]] = [(0.0, 0, next(number), root)]
    while heap:
        *_, node = heapq.heappop(heap)
        if node.whole:
            yield node
            continue
        here = torch.tensor([node.automaton], device=chain.first.device)
        stop = float(table.stop_at(node.step, here)[0])
        if stop > -torch.inf:
            total = node.log_prob + stop
            ended = node._replace(log_prob=total, before=node, whole=True)
            heapq.heappush(heap, (-total, -node.step - 1, next(number), ended))
        if node.step == chain.num_steps:
            continue
        key = node.step, node.automaton
        if key not in weights:
            weights[key] = table.weights(node.step, here)[0]
        for bound, child in _children(chain, table, node, _moves(chain, node, row), weights[key], here, k):
            heapq.heappush(heap, (-bound, -child.step, next(number), child))


def _moves(chain: ConstrainedChain, node: _Node, row: int) -> Tensor:
    """(Z,) log p(next state | the beginning)."""
    if node.before is None:
        return chain.first[row]
    if node.word == chain.words.reset_id:
        return chain.steps.initial
    return chain.steps.rows(torch.tensor([node.state], device=chain.first.device))[0]


def _children(
    chain: ConstrainedChain, table: BackwardTable, node: _Node, moves: Tensor, weight: Tensor, here: Tensor, k: int
):
    """The k best steps on, each with the log-probability of the best whole text behind it."""
    bound = moves + weight
    top = bound.topk(min(k, len(bound)))
    states = top.indices[top.values > -torch.inf]
    if not len(states):
        return
    score = moves[states].unsqueeze(-1) + chain.words_of(table, node.step, here.expand(len(states)), states)
    best = score.flatten().topk(min(k, score.numel()))
    possible = best.values > -torch.inf
    places = best.indices[possible]
    which, word = places // score.shape[-1], places % score.shape[-1]
    said = moves[states[which]] + chain.words.word_rows(states)[which, word]
    after = chain.moves.read(here.expand(len(word)), word)
    columns = [column.tolist() for column in (best.values[possible], word, states[which], after, said)]
    for value, own, state, automaton, log_prob in zip(*columns, strict=True):
        yield node.log_prob + value, _Node(node.step + 1, own, state, automaton, node.log_prob + log_prob, node)
