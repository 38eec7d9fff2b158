"""Distributions of strings from examples alone: automata by merging states (ALERGIA, through AALpy), as hidden Markov models.

    from string_distributions import learn_distribution  # this folder on the path; pip install "pplseq[automata]"

    learn_distribution(["ab", "aab", "b"]).log_prob("aab")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch

from pplseq import checks
from pplseq.models.automata.automaton import String
from pplseq.models.hmm.program import HMM

CONFIDENCES = (0.005, 0.05, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class StringDistribution:
    """A distribution over strings: a hidden Markov model whose words are the symbols, and an end after which nothing comes.

    Attributes:
        symbols: V different ones; word v of the model is symbols[v], word V the end.
        model: an :class:`~pplseq.models.HMM`, of which ALERGIA's states emit one word each. ``model.fit(encode(strings),
            warm_start=True)`` goes on by EM, which keeps zeros.
    """

    symbols: tuple[str, ...]
    model: HMM

    def encode(self, strings: Sequence[String]) -> list[torch.Tensor]:
        """Word ids of each string, with the end.

        Raises:
            ValueError: a symbol that the model does not have.
        """
        return encode_strings(strings, self.symbols)

    @overload
    def log_prob(self, strings: str) -> float: ...  # pyright: ignore[reportOverlappingOverload]

    @overload
    def log_prob(self, strings: Sequence[String]) -> np.ndarray: ...

    def log_prob(self, strings: str | Sequence[String]) -> np.ndarray | float:
        """(N,) log p(string), nats, that it ends there included; -inf for one that cannot be. Of one str, a string of
        characters, a single number; one string of longer symbols stands in a list.
        """
        if isinstance(strings, str):
            return float(self.log_prob([strings])[0])
        start, moves, words = self._tables()
        result = np.zeros(len(strings))
        for n, row in enumerate(self.encode(strings)):
            state = start
            for y in row.tolist():
                joint = state * words[:, y]
                total = joint.sum()
                if total == 0:
                    result[n] = -np.inf
                    break
                result[n] += np.log(total)
                state = joint / total @ moves
        return result

    def _tables(self) -> list[np.ndarray]:
        tables = (self.model.initial, self.model.transition, self.model.emission)
        return [table.detach().double().numpy() for table in tables]

    def sample(self, num_strings: int, *, max_length: int = 1000, seed: int | None = None) -> list[tuple[str, ...]]:
        """Strings drawn from the distribution, as tuples of symbols.

        Raises:
            RuntimeError: one that had not ended after ``max_length`` symbols.
        """
        checks.count("num_strings", num_strings), checks.count("max_length", max_length)
        random = np.random.default_rng(seed)
        start, moves, words = self._tables()
        result = []
        for _ in range(num_strings):
            string, state = [], random.choice(len(start), p=start / start.sum())
            while (word := random.choice(words.shape[1], p=words[state] / words[state].sum())) < len(self.symbols):
                if len(string) == max_length:
                    raise RuntimeError(f"a string had not ended after max_length = {max_length} symbols; allow more")
                string.append(self.symbols[word])
                state = random.choice(len(start), p=moves[state] / moves[state].sum())
            result.append(tuple(string))
        return result


def encode_strings(strings: Sequence[String], symbols: tuple[str, ...]) -> list[torch.Tensor]:
    """Word ids of each string, the end (number V) behind them."""
    number, rows = {symbol: n for n, symbol in enumerate(symbols)}, []
    for place, string in enumerate(strings):
        if unknown := [symbol for symbol in string if symbol not in number]:
            raise ValueError(f"strings: string {place} has the symbol {unknown[0]!r}, which is not among {', '.join(symbols)}")
        rows.append(torch.tensor([*(number[symbol] for symbol in string), len(symbols)]))
    return rows


def learn_distribution(
    strings: Sequence[String], symbols: Sequence[str] | None = None, *, confidence: float | None = None
) -> StringDistribution:
    """The probabilistic automaton of strings without labels, by ALERGIA, and its hidden Markov model.

    Two states of the tree of all strings' beginnings are merged where the shares of what comes behind them, step by step, lie
    within Hoeffding's bound. Its probabilities are shares of the strings: what never came behind a state has probability zero.

    Args:
        strings: str where every symbol is one character, else sequences of symbols; as often as they were seen.
        symbols: that strings may hold; None: those that they do.
        confidence: epsilon of the bound in (0, 2): larger merges less. None: the one of :data:`CONFIDENCES`, and of 10 over the
            number of all symbols and ends, under which every fifth string, left out, is most probable; a string that then
            cannot be counts as one of symbols drawn evenly.

    Raises:
        ImportError: AALpy is not installed. ValueError: no strings, a symbol that is not among ``symbols``, or is there twice.

    Source: R. C. Carrasco and J. Oncina, Learning stochastic regular grammars by means of a state merging method (1994); H. Mao
        and others, Learning probabilistic automata for model checking (2011), for the bound's epsilon.
    """
    try:
        import aalpy.learning_algs  # noqa: F401
    except ImportError as error:
        raise ImportError('learn_distribution needs the package AALpy: pip install "pplseq[automata]"') from error
    strings = list(strings)
    if not strings:
        raise ValueError("strings: got none; give the strings whose distribution is looked for")
    known = tuple(sorted({symbol for string in strings for symbol in string})) if symbols is None else tuple(symbols)
    if twice := [symbol for n, symbol in enumerate(known) if symbol in known[:n]]:
        raise ValueError(f"symbols: {twice[0]!r} is there twice; give each once")
    if confidence is not None:
        checks.share("confidence", confidence, "(0, 2)")
    rows = [row.tolist() for row in encode_strings(strings, known)]
    if confidence is None:
        confidence = _most_probable(strings, rows, known)
    return StringDistribution(known, _merged(rows, len(known), confidence))


def _most_probable(strings: list[String], rows: list[list[int]], symbols: tuple[str, ...]) -> float:
    """The confidence that strings left out like best."""
    auto = min(10 / sum(map(len, rows)), 1.0)
    learnt = [row for n, row in enumerate(rows) if n % 5 != 4]
    held_out = [string for n, string in enumerate(strings) if n % 5 == 4]
    if not held_out:
        return auto
    even = np.array([-(len(string) + 1) * np.log(len(symbols) + 1) for string in held_out])

    def score(confidence: float) -> float:
        model = StringDistribution(symbols, _merged(learnt, len(symbols), confidence))
        return float(np.maximum(model.log_prob(held_out), even).sum())

    return max([auto, *CONFIDENCES], key=score)


def _merged(rows: list[list[int]], end: int, confidence: float) -> HMM:
    """ALERGIA's automaton of word ids as a model."""
    from aalpy.learning_algs import run_Alergia

    # the dummy in front is the state before the first symbol
    chain = run_Alergia([[-1, *row] for row in rows], "mc", eps=confidence)
    states: list[Any] = [state for state in chain.states if state is not chain.initial_state]
    number = {id(state): place for place, state in enumerate(states)}
    start, moves = np.zeros(len(states)), np.zeros((len(states), len(states)))
    for state in chain.states:
        row = start if state is chain.initial_state else moves[number[id(state)]]
        for following, share in state.transitions:
            row[number[id(following)]] += share
    emits = np.zeros((len(states), end + 1))
    for place, state in enumerate(states):
        emits[place, state.output] = 1.0
        if state.output == end:
            moves[place] = np.eye(len(states))[place]
    return HMM(len(states), end + 1).set_parameters(initial=start, transition=moves, emission=emits)
