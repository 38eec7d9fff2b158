"""Posterior marginals of a constrained text: messages forward over the automaton's states, beside the table's backward ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pplseq.infer.discrete.constrained.results import TextMarginals
from pplseq.infer.discrete.constrained.table import BackwardTable
from pplseq.infer.discrete.constrained.words import by_group

if TYPE_CHECKING:
    from pplseq.infer.discrete.constrained.chain import ConstrainedChain


def text_marginals(chain: ConstrainedChain, table: BackwardTable, evidence: Tensor) -> TextMarginals:
    """See :meth:`ConstrainedChain.marginals`; evidence (B,) log p(constraint).

    Cost: for each word, and each state of the automaton that is there, a chain step of all states and a sum over words.
    """
    rows, num_states = chain.first.shape

    def nothing(*shape: int) -> Tensor:
        return chain.first.new_zeros(rows, *shape)

    words, lengths = nothing(chain.num_steps, len(chain.moves.classes)), nothing(chain.num_steps + 1)
    states, automaton = nothing(chain.num_steps, num_states), nothing(chain.num_steps, chain.moves.num_states)
    lengths[:, 0] = (table.stop_at(0, chain.start) - evidence).exp()
    active = table.active[0].nonzero().squeeze(-1)
    begins = chain.start.unsqueeze(-1) == active
    ahead = torch.where(
        begins.unsqueeze(-1), chain.first.unsqueeze(1), -torch.inf
    )  # (B, R, Z), of the next word's state
    for step in range(chain.num_steps):
        if not len(active):  # every text has ended
            break
        flat, of_row = ahead.flatten(0, 1), active.repeat(rows)
        weight = table.weights(step, active)
        states[:, step] = (torch.logsumexp(ahead + weight, 1) - evidence.unsqueeze(-1)).exp()
        said = chain.words_from(flat, of_row, step).view(rows, len(active), -1)
        words[:, step] = (torch.logsumexp(said, 1) - evidence.unsqueeze(-1)).exp()
        following = table.active[step + 1].nonzero().squeeze(-1)
        normal, again = _say(chain, ahead, active, following)
        # what the automaton's states are worth behind the word
        worth, worth_again = table.ahead(step + 1, following)
        joint = torch.logsumexp(normal + worth, -1)
        total = torch.logsumexp(normal, -1)
        if again is not None and worth_again is not None:
            joint, total = torch.logaddexp(joint, again + worth_again), torch.logaddexp(total, again)
        automaton[:, step, following] = (joint - evidence.unsqueeze(-1)).exp()
        ended = total + table.stop_at(step + 1, following)
        lengths[:, step + 1] = (torch.logsumexp(ended, -1) - evidence).exp()
        active = following
        ahead = chain.steps.forward(normal.flatten(0, 1)).view(rows, len(active), num_states)
        if again is not None:
            ahead = torch.logaddexp(ahead, again.unsqueeze(-1) + chain.steps.initial)
    return TextMarginals(states, words, lengths, automaton)


def _say(chain: ConstrainedChain, ahead: Tensor, active: Tensor, following: Tensor) -> tuple[Tensor, Tensor | None]:
    """(B, R', Z) log-joints behind a word by the automaton's next states; (B, R') those behind the reset word."""
    words, moves = chain.words, chain.moves
    place = torch.full(
        (moves.num_states,), len(following), device=ahead.device
    )  # the last place is for what has no hope
    place[following] = torch.arange(len(following), device=ahead.device)
    log_probs = words.pair_log_probs(False)
    count = (len(following) + 1) * words.num_blocks
    total = ahead.new_full((len(ahead), count, log_probs.shape[-1]), -torch.inf)
    again = ahead.new_full((len(ahead), len(following) + 1), -torch.inf)
    for number, state in enumerate(active.tolist()):
        said = words.of_blocks(ahead[:, number])[:, words.block] + log_probs  # (B, P, K)
        to = place[moves.moves[state, words.word_class]]
        if words.reset is not None:
            mass = torch.logsumexp(said[:, words.reset], -1)
            at = int(to[words.reset])
            again[:, at] = torch.logaddexp(again[:, at], mass)
            said = said.clone()
            said[:, words.reset] = -torch.inf
        part = by_group(said, to * words.num_blocks + words.block, count)
        total = torch.logaddexp(total, part)
    shaped = total.view(len(ahead), len(following) + 1, words.num_blocks, -1)[:, :-1]
    return words.of_states(shaped), None if words.reset is None else again[:, :-1]
