"""Taggings of a sentence whose tags are groups of states: the most probable ones, and bounds of their entropy.

Given its words a sentence's states are a Markov chain with a matrix a step, P_t(z, z') = p(z_{t+1} = z' | z_t = z, words). A
tagging's probability is a sum over the paths of states in its groups, so the best path of states may be no part of the best
tagging, which no dynamic program finds.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from pplseq.infer.discrete.constrained.moves import WordMoves

MAX_PREFIXES = 1_000_000  # of taggings in memory, some 500 bytes each
MORE_RIVALS = 64  # prefixes beside n that others are compared with, for each word and tag


class PosteriorChain(NamedTuple):
    """first (Z,) p(z_1 | words); steps (T - 1, Z, Z) [from, to]; groups (Z, M) 1 where a state is one of a tag's."""

    first: np.ndarray
    steps: np.ndarray
    groups: np.ndarray

    @classmethod
    def of(cls, marginals: np.ndarray, pairs: np.ndarray, tag_of_state: np.ndarray, num_tags: int) -> PosteriorChain:
        """From p(z_t | words) (T, Z) and p(z_t, z_{t+1} | words) (T - 1, Z, Z); states of no tag (-1) are left out."""
        kept = tag_of_state >= 0
        pairs = pairs[:, kept][:, :, kept]
        total = pairs.sum(-1, keepdims=True)
        steps = np.divide(pairs, total, out=np.zeros_like(pairs), where=total > 0)
        return cls(marginals[0, kept], steps, np.eye(num_tags)[tag_of_state[kept]])


def best_taggings(chain: PosteriorChain, n: int) -> list[tuple[tuple[int, ...], float]]:
    """The n most probable taggings, as numbers of tags, and log of their probabilities, best first; fewer where there are no
    more.

    A* over prefixes of taggings, with forward sums a(z) = p(tags so far, z_t = z | words). No tagging that goes on from a
    prefix is more probable than sum a(z), all of them together, nor than sum a(z) h_t(z), where

        h_t(z) = max over tags of  sum over the tag's states z' of  P_t(z, z') h_{t+1}(z'),   h_T = 1

    lets every state choose its own continuation. A prefix is left where n others with its last tag have sums a(z) that are no
    smaller for any z: whatever follows, those are as probable. Exact.

    Cost: a product of a tag's states and Z a prefix that is opened. What came long ago hardly tells, so that of two prefixes
    one is soon no smaller; there are a few for each word and tag.

    Raises:
        ValueError: more than MAX_PREFIXES are needed.

    Source: P. Hart, N. Nilsson and B. Raphael (1968), A formal basis for the heuristic determination of minimum cost paths.
    """
    first, steps, groups = chain
    members = [np.flatnonzero(group) for group in groups.T]
    futures, logs = [np.ones(len(first))], [0.0]  # h_t, its largest made 1, and log of what that was
    for step in steps[::-1]:
        best = ((step * futures[-1]) @ groups).max(-1)
        logs.append(logs[-1] + float(np.log(best.max())))
        futures.append(best / best.max())
    futures.reverse()
    logs.reverse()
    # the most promising first; the number breaks ties
    heap: list[tuple[float, int, int, tuple, np.ndarray, float]] = []
    done: list[float] = []  # the n best whole taggings so far, the worst first
    opened: dict[tuple[int, int], list[np.ndarray]] = {}  # by place and tag log a(z) of the first ones
    number = 0

    def push(forward: np.ndarray, scale: float, t: int, tags: tuple) -> None:
        nonlocal number
        with np.errstate(divide="ignore"):
            promise = scale + np.log(np.stack([forward @ groups, (forward * futures[t]) @ groups]))
        promise = np.minimum(promise[0], promise[1] + logs[t])
        least = done[0] if len(done) == n else -np.inf
        for tag in np.flatnonzero(promise > least).tolist():
            value = float(promise[tag])
            if t == len(steps):
                (heapq.heappush if len(done) < n else heapq.heappushpop)(done, value)
            number += 1
            own = forward[members[tag]]
            largest = own.max()
            heapq.heappush(heap, (-value, number, tag, tags, own / largest, scale + float(np.log(largest))))
        if number > MAX_PREFIXES:
            raise ValueError(
                f"the {n:,} best taggings of these {len(steps) + 1:,} words are too much alike to be told apart "
                f"({MAX_PREFIXES:,} beginnings were tried); ask for fewer, or of shorter sentences"
            )

    def surpassed(forward: np.ndarray, scale: float, place: tuple[int, int]) -> bool:
        """Whether n of the opened prefixes are no smaller; else it is one of them."""
        with np.errstate(divide="ignore"):
            sums = scale + np.log(forward)
        rivals = opened.setdefault(place, [])
        if len(rivals) >= n and int((np.stack(rivals) >= sums).all(-1).sum()) >= n:
            return True
        if len(rivals) < n + MORE_RIVALS:
            rivals.append(sums)
        return False

    push(first, 0.0, 0, ())
    found: list[tuple[tuple[int, ...], float]] = []
    while heap and len(found) < n:
        value, _, tag, tags, forward, scale = heapq.heappop(heap)
        depth = 0 if not tags else tags[2]
        if depth == len(steps):
            found.append((_unrolled((tag, tags, depth + 1)), -value))
        elif not surpassed(forward, scale, (depth, tag)):
            push(forward @ steps[depth][members[tag]], scale, depth + 1, (tag, tags, depth + 1))
    return found


def _unrolled(tags: tuple) -> tuple[int, ...]:
    """The tags of a linked list, last one first."""
    found = []
    while tags:
        found.append(tags[0])
        tags = tags[1]
    return tuple(found[::-1])


def entropy_bounds(chain: PosteriorChain) -> tuple[float, float]:
    """Two bounds of the entropy of the taggings given the words, nats; equal where each tag has one state.

        sum_t H(y_t | y_{t-1}, z_{t-2})  <=  H(y_1..y_T)  <=  sum_t H(y_t | y_{t-1}, y_{t-2})

    A tag's entropy given all tags before it is at most that given two of them, and at least that given one and the state
    before, behind which earlier tags tell nothing.

    Cost: T Z^2 M.

    Source: T. M. Cover and J. A. Thomas, Elements of information theory, theorem 4.5.1.
    """
    first, steps, groups = chain
    lower = upper = conditional_entropy((first @ groups)[None])
    state = first
    by_state = by_tag = None  # p(z_{t-2} or nothing, z_{t-1}), p(y_{t-2} or nothing, z_{t-1})
    for step in steps:
        by_state = state[None] if by_state is None else by_state
        by_tag = state[None] if by_tag is None else by_tag
        next_tag = step @ groups  # (Z, M)
        lower += _given_two(by_state, next_tag, groups)
        upper += _given_two(by_tag, next_tag, groups)
        by_state, by_tag = state[:, None] * step, groups.T @ (state[:, None] * step)
        state = state @ step
    return lower, max(upper, lower)


def _given_two(before: np.ndarray, next_tag: np.ndarray, groups: np.ndarray) -> float:
    """H(y_t | y_{t-1}, a) from p(a, z_{t-1}) and p(y_t | z_{t-1})."""
    return sum(
        conditional_entropy(before[:, states] @ next_tag[states]) for states in (group > 0 for group in groups.T)
    )


def conditional_entropy(joint: np.ndarray) -> float:
    """sum_a p(a) H(y | a) from a table p(a, y), which may be part of one."""
    total = joint.sum(-1, keepdims=True)
    shares = np.divide(joint, total, out=np.ones_like(joint), where=joint > 0)
    return -float((joint * np.log(shares)).sum())


def best_accepted(probs: np.ndarray, moves: WordMoves) -> list[int]:
    """Of the taggings that an automaton over tags accepts, the one with the largest sum of probabilities (T, tags), which is
    how many of its tags are right on average. One of probability zero is taken only where there is no other.

    Cost: T D tags, for D states of the automaton.
    """
    size, (length, num_tags) = moves.num_states, probs.shape
    after = moves.moves[:, moves.classes].numpy().reshape(-1)  # (D tags,)
    worth = np.where(probs > 0, probs, -1.0 - length)
    best = np.where(np.arange(size) == moves.start, 0.0, -np.inf)
    came: list[np.ndarray] = []
    for row in worth:
        ahead = (best[:, None] + row).reshape(-1)
        order = np.argsort(-ahead, kind="stable")[::-1]  # what is written last stands: the best, and of equals the first
        best, last = np.full(size, -np.inf), np.zeros(size, dtype=np.int64)
        best[after[order]], last[after[order]] = ahead[order], order
        came.append(last)
    state, tags = int(np.where(moves.accepting.numpy(), best, -np.inf).argmax()), []
    for last in reversed(came):
        state, tag = divmod(int(last[state]), num_tags)
        tags.append(tag)
    return tags[::-1]
