"""Blocks and states in words, and how the chain moves between them; nothing of size Z x Z is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq.data.text import Text
from pplseq.distributions.block import BlockTransition
from pplseq.distributions.state import Belief
from pplseq.distributions.topics import TopicTransition
from pplseq.report.usage import Usage

TILE_CELLS = 1 << 24  # cells of transition rows held at once
MAX_STATE_GROUPS = 48  # states on the map of a model without blocks
STATES_PER_BLOCK = 3  # described


@dataclass(frozen=True, eq=False)
class Groups:
    """What the map's rows and columns are: the model's blocks, or single states where it has none.

    Attributes:
        kind: "block" or "state".
        ids: (G,) number of each group in the model.
        of_state: (Z,) group of each state, -1 for states in none.
        slot: (Z,) place in 0..1 of each state among those of its group.
        block_of_word: (V,) for blocks, else None.
    """

    kind: str
    ids: np.ndarray
    of_state: np.ndarray
    slot: np.ndarray
    block_of_word: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class TransitionMap:
    """Transitions between groups.

    Attributes:
        model: (G, G) expected transitions, [from, to]: the states' posterior in the text, one step of the model on.
        leaving: (G,) expected transitions out of each group, those into states in no group included.
        text: (G, G) pairs that the text itself has, None where groups are single states.
    """

    model: np.ndarray
    leaving: np.ndarray
    text: np.ndarray | None

    @property
    def probs(self) -> np.ndarray:
        """(G, G) p(to | from) of the model, rows of groups that were never left are 0."""
        return self.model / np.maximum(self.leaving, 1e-300)[:, None]

    @property
    def text_probs(self) -> np.ndarray:
        """(G, G) p(to | from) of the text, rows of groups that never occur are 0."""
        assert self.text is not None
        return self.text / np.maximum(self.text.sum(1), 1)[:, None]


@dataclass(frozen=True)
class GroupSummary:
    """A block (or state) in words.

    Attributes:
        id: its number in the model. name: its most frequent word.
        share: of the text's tokens. num_words, num_states: its size. effective_states: exp of the entropy of their use.
        words: (word, share within the group), most frequent first.
        following: (group, probability) of where it goes.
    """

    id: int
    name: str
    share: float
    num_words: int
    num_states: int
    effective_states: float
    words: list[tuple[str, float]]
    following: list[tuple[int, float]]


@dataclass(frozen=True)
class StateSummary:
    """A state in words.

    Attributes:
        id, group: its number, and its group's place on the map (-1: not on it). share: of the text's tokens.
        words: (word, p(word | state)), most probable first.
        contexts: (words before, word, words behind, p(state | text)) where the text most surely uses it.
        following: (group, probability) of where it goes.
    """

    id: int
    group: int
    share: float
    words: list[tuple[str, float]]
    contexts: list[tuple[str, str, str, float]]
    following: list[tuple[int, float]]


def group_states(chain: Any, usage: Usage) -> Groups:
    """The blocks of a block-sparse chain, in the order of their tree; otherwise the most used states."""
    transition, num_states = chain.transition, len(usage.visits)
    if isinstance(transition, BlockTransition) and transition.layout.num_blocks > 1:
        of_state = transition.layout.block_of_state().cpu().numpy()
        count = np.bincount(of_state)
        first = np.cumsum(count) - count
        slot = (np.arange(num_states) - first[of_state]) / np.maximum(count[of_state] - 1, 1)
        words = chain.emission.block_of_word.cpu().numpy()
        return Groups("block", np.arange(len(count)), of_state, slot, words)
    ids = np.argsort(-usage.visits, kind="stable")[:MAX_STATE_GROUPS]
    ids = ids[usage.visits[ids] > 0]
    of_state = np.full(num_states, -1)
    of_state[ids] = np.arange(len(ids))
    return Groups("state", ids, of_state, np.full(num_states, 0.5))


def transition_rows(transition: Any, states: Tensor) -> Tensor:
    """(P, Z) p(z' | z) of an ordinary step out of states (P,), at test."""
    if isinstance(transition, BlockTransition):  # its generic `rows` would build the whole matrix
        return transition.wide_rows(states.unsqueeze(0)).squeeze(0).exp()
    return transition.rows(states).exp()


@torch.no_grad()
def transition_map(chain: Any, groups: Groups, usage: Usage, text: Text) -> TransitionMap:
    """Expected transitions between groups, by tiles of transition rows: (states of a group) x Z at once, at most."""
    transition = chain.transition
    num_groups, num_states = len(groups), len(usage.visits)
    # states in no group share a last column
    target = torch.from_numpy(np.where(groups.of_state < 0, num_groups, groups.of_state)).to(transition.device)
    mass = torch.zeros(num_groups, num_groups + 1, dtype=torch.float64, device=transition.device)
    leaving = torch.from_numpy(usage.leaving).to(transition.device)
    for group in range(num_groups):
        if isinstance(transition, TopicTransition):
            ids = torch.from_numpy(np.flatnonzero(groups.of_state == group)).to(transition.device).unsqueeze(0)
            belief = Belief(ids, leaving[ids].to(transition.initial).log())
            if (base := transition.of_one_block(belief)) is not None:
                mass[group].index_add_(0, target, transition.step_to_all(belief, base).squeeze(0).exp().double())
                continue
        states = torch.from_numpy(np.flatnonzero((groups.of_state == group) & (usage.leaving > 1e-9)))
        for part in states.to(transition.device).split(max(1, TILE_CELLS // num_states)):
            rows = transition_rows(transition, part)
            mass[group].index_add_(0, target, (leaving[part].to(rows.dtype) @ rows).double())
    restarts = np.bincount(groups.of_state[groups.of_state >= 0], usage.restarts[groups.of_state >= 0], num_groups)
    start = torch.zeros(num_groups + 1, dtype=torch.float64, device=transition.device)
    start.index_add_(0, target, transition.initial_log_prob().exp().double())
    mass += torch.from_numpy(restarts).to(mass).unsqueeze(-1) * start
    counts = None
    if groups.block_of_word is not None:
        blocks = groups.block_of_word[text.tokens]
        pairs = (blocks[:-1] * num_groups + blocks[1:])[usage.followed[:-1]]
        counts = np.bincount(pairs, minlength=num_groups**2).reshape(num_groups, num_groups)
    mass = mass.cpu().numpy()
    return TransitionMap(mass[:, :num_groups], mass.sum(1), counts)


def informative_transitions(transitions: TransitionMap, count: int = 12) -> list[tuple[int, int, float, float]]:
    """(from, to, p(to | from), lift) of the transitions with the largest shares of the map's mutual information.

    lift = p(to | from) / p(to).
    """
    joint = transitions.model / max(transitions.leaving.sum(), 1e-300)
    into = joint.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        lift = transitions.probs / into
        gain = np.where(joint > 0, joint * np.log(lift), 0.0)
    best = np.argsort(-gain, axis=None, kind="stable")[:count]
    pairs = [divmod(int(cell), len(joint)) for cell in best if gain.flat[cell] > 0]
    return [(i, j, float(transitions.probs[i, j]), float(lift[i, j])) for i, j in pairs]


@torch.no_grad()
def describe_groups(
    chain: Any, groups: Groups, transitions: TransitionMap, usage: Usage, word_counts: np.ndarray, vocabulary: Any
) -> list[GroupSummary]:
    """Every group in words; `word_counts` (V,) rank the words of a block."""
    summaries = []
    for group, number in enumerate(groups.ids):
        states = np.flatnonzero(groups.of_state == group)
        visits = usage.visits[states]
        shares = visits[visits > 0] / max(visits.sum(), 1e-300)
        if groups.block_of_word is None:
            num_words, words = len(vocabulary), top_words(chain, [number], vocabulary)[0]
        else:
            members = np.flatnonzero(groups.block_of_word == group)
            counts = word_counts[members]
            order = np.argsort(-counts, kind="stable")[:16]
            total = max(counts.sum(), 1)
            num_words, words = len(members), [(vocabulary.words[members[i]], float(counts[i] / total)) for i in order]
        summaries.append(
            GroupSummary(
                int(number),
                words[0][0],
                float(visits.sum() / usage.visits.sum()),
                num_words,
                len(states),
                float(np.exp(-(shares * np.log(shares)).sum())),
                words,
                _largest(transitions.probs[group]),
            )
        )
    return summaries


@torch.no_grad()
def describe_states(
    chain: Any, groups: Groups, usage: Usage, text: Text, vocabulary: Any, num_states: int
) -> list[StateSummary]:
    """The most used states in words, with the places of the text that show them best; at most `STATES_PER_BLOCK` a block.

    Without that limit the states of one frequent word would fill the list.
    """
    by_use = np.argsort(-usage.visits, kind="stable")
    by_use = by_use[usage.visits[by_use] > 0]
    if groups.kind == "block":
        group = groups.of_state[by_use]
        order = np.argsort(group, kind="stable")  # by block, within a block by use
        count = np.bincount(group, minlength=len(groups))
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order)) - (np.cumsum(count) - count)[group[order]]
        by_use = by_use[rank < STATES_PER_BLOCK]
    ids = by_use[:num_states]
    transition = chain.transition
    words = top_words(chain, ids, vocabulary)
    summaries = []
    for state, of_state in zip(ids, words, strict=True):
        rows = transition_rows(transition, torch.tensor([state], device=transition.device))[0].double().cpu().numpy()
        if usage.restarts[state] > usage.leaving[state]:
            rows = transition.initial_log_prob().exp().double().cpu().numpy()
        known = groups.of_state >= 0
        into = np.bincount(groups.of_state[known], rows[known], len(groups))
        contexts = _contexts(state, usage, text)
        group = int(groups.of_state[state])
        summaries.append(
            StateSummary(int(state), group, float(usage.shares[state]), of_state, contexts, _largest(into))
        )
    return summaries


@torch.no_grad()
def top_words(chain: Any, states: Any, vocabulary: Any, num_words: int = 8) -> list[list[tuple[str, float]]]:
    """(word, p(word | state)) of each state, most probable first; behind the first, those below 0.5 % are left out."""
    states = torch.as_tensor(np.asarray(states), device=chain.transition.device)
    probs = chain.emission.distribution(states).probs.cpu()
    values, ids = probs.topk(min(num_words, probs.shape[-1]))
    return [
        [(vocabulary.words[i], p) for rank, (i, p) in enumerate(zip(*row, strict=True)) if rank == 0 or p >= 0.005]
        for row in zip(ids.tolist(), values.tolist(), strict=True)
    ]


def _largest(probs: np.ndarray, count: int = 3) -> list[tuple[int, float]]:
    best = np.argsort(-probs, kind="stable")[:count]
    return [(int(i), float(probs[i])) for i in best if probs[i] >= 0.01]


def _contexts(
    state: int, usage: Usage, text: Text, count: int = 2, width: int = 3
) -> list[tuple[str, str, str, float]]:
    """Places where the state is most probable, no two of them with the same neighbours."""
    places = np.flatnonzero(usage.best_state == state)
    places = places[np.argsort(-usage.best_prob[places], kind="stable")][:200]
    found, seen = [], set()
    for place in places:
        line = int(np.searchsorted(text.line_starts, place, side="right")) - 1
        first, stop = text.line_starts[line], text.line_starts[line + 1]
        neighbours = tuple(text.tokens[max(first, place - 1) : min(stop, place + 2)])
        if neighbours in seen:
            continue
        seen.add(neighbours)
        parts = text.tokens[max(first, place - width) : place], text.tokens[place + 1 : min(stop, place + width + 1)]
        before, behind = (text.vocabulary.join(text.vocabulary.decode(part)) for part in parts)
        found.append((before, text.vocabulary.words[text.tokens[place]], behind, float(usage.best_prob[place])))
        if len(found) == count:
            break
    return found
