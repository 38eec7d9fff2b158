"""Automata of what answers questions: active learning of a callable, through AALpy, which lacks TTT alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np

from pplseq import checks
from pplseq.models.automata.automaton import LABELS, Automaton, String
from pplseq.models.automata.ttt import TTT, Hypothesis
from pplseq.threads import from_shared_generator

METHODS = ("lstar", "kearns_vazirani", "ttt")


def learn_by_asking(
    answer: Callable[[String], bool | str],
    symbols: Sequence[str],
    *,
    method: str = "kearns_vazirani",
    walks_per_state: int = 100,
    walk_length: int = 12,
    max_rounds: int | None = None,
    examples: Iterable[String] = (),
    seed: int = 0,
) -> Automaton:
    """The smallest automaton of a language that can be asked about.

    What was learned is compared with the answers on random walks from every state, behind the shortest string to it; it is
    right on all that was asked, and exactly right unless every difference was missed.

    Args:
        answer: takes a string (a str where every symbol is one character, else a tuple) and says whether it is in the language,
            or names its class, always the same. Each string is asked once.
        symbols: that strings are made of, one or more.
        method: "kearns_vazirani" (a tree of what tells states apart; few questions), "lstar" (Angluin's table) or "ttt" (a
            tree of which every suffix is soon a short one); all look for the place in a counterexample by binary search.
        walks_per_state, walk_length: of the comparison. max_rounds: hypotheses at most; None: as many as it takes.
        examples: strings that what was learned is compared on first: of a rare language, which walks do not meet, some of it.
        seed: of the walks.

    Warns:
        RuntimeWarning: no string that was asked is in the language, or the rounds ran out before the comparison found nothing.

    Raises:
        ImportError: AALpy is not installed. TypeError: answers that are neither bools nor names. ValueError: no symbols, or
        an example of others.

    Source: M. J. Kearns and U. V. Vazirani, An introduction to computational learning theory (1994), chapter 8; D. Angluin,
        Learning regular sets from queries and counterexamples (1987); M. Isberner, F. Howar and B. Steffen, The TTT
        algorithm (2014), in :class:`~pplseq.models.automata.ttt.TTT`.
    """
    try:
        from aalpy.base import SUL
        from aalpy.learning_algs import run_KV, run_Lstar
        from aalpy.oracles import RandomWMethodEqOracle
    except ImportError as error:
        raise ImportError('learn_by_asking needs the package AALpy: pip install "pplseq[automata]"') from error
    checks.choice("method", method, METHODS)
    for name, value in (("walks_per_state", walks_per_state), ("walk_length", walk_length)):
        checks.count(name, value)
    if max_rounds is not None:
        checks.count("max_rounds", max_rounds)
    symbols = tuple(symbols)
    if not symbols or len(set(symbols)) != len(symbols) or not all(isinstance(s, str) and s for s in symbols):
        raise ValueError(f"symbols: expected one or more different ones, each a str, got {symbols}")
    one_character = all(len(symbol) == 1 for symbol in symbols)
    if isinstance(examples, str):
        raise TypeError(
            f"examples: expected a list of strings, got the string {checks.shown(examples)}; write [{checks.shown(examples)}]"
        )
    given = [tuple(string) for string in examples]
    for word in given:
        if (other := next((symbol for symbol in word if symbol not in symbols), None)) is not None:
            raise ValueError(
                f"examples: expected strings of the symbols {', '.join(symbols)}, got {checks.shown(other)} in {word}"
            )
    known: dict[tuple[str, ...], bool | str] = {}

    def ask(word: tuple[str, ...]) -> bool | str:
        if word not in known:
            said = answer("".join(word) if one_character else word)
            said = bool(said) if isinstance(said, (bool, np.bool_)) else said
            before = next(iter(known.values()), said)
            if not isinstance(said, (bool, str)) or isinstance(said, bool) != isinstance(before, bool):
                raise TypeError(
                    f"answer: expected True or False, or a name for every string, got {checks.shown(said)} for {word}"
                )
            known[word] = said
        return known[word]

    class Asked(SUL):
        def pre(self) -> None:
            self.word: tuple[str, ...] = ()

        def post(self) -> None:
            pass

        def step(self, letter: str | None) -> bool | str:
            self.word = self.word if letter is None else (*self.word, letter)
            return ask(self.word)

    class Compared(RandomWMethodEqOracle):
        """Examples before random walks; it keeps whether the last comparison found nothing."""

        agreed = False

        def find_cex(self, hypothesis: Any) -> Any:
            found = self.on_examples(hypothesis) or super().find_cex(hypothesis)
            self.agreed = found is None
            return found

        def on_examples(self, hypothesis: Any) -> tuple[str, ...] | None:
            for word in given:
                self.reset_hyp_and_sul(hypothesis)
                for end, letter in enumerate(word, start=1):
                    if self.sul.step(letter) != hypothesis.step(letter):
                        return word[:end]
            return None

    kind = "dfa" if isinstance(ask(()), bool) else "moore"
    with from_shared_generator(seed):  # of AALpy
        asked = Asked()
        oracle = Compared(list(symbols), asked, walks_per_state, walk_length)
        if method == "ttt":
            learnt = run_ttt(symbols, ask, oracle.find_cex, max_rounds)
        else:
            run = run_Lstar if method == "lstar" else run_KV
            # answers are remembered above
            learnt = run(
                list(symbols), asked, oracle, kind, cex_processing="rs", max_learning_rounds=max_rounds,
                cache_and_non_det_check=False, print_level=0,
            )  # fmt: skip
    if not oracle.agreed:
        warnings.warn(
            f"max_rounds = {max_rounds} ran out before a comparison with the answers found no difference: the language may be "
            "another; give more rounds, or None for as many as it takes",
            RuntimeWarning,
            stacklevel=2,
        )
    if kind == "dfa" and not any(known.values()):
        warnings.warn(
            f"not one of {len(known):,} strings that were asked is in the language, so that what was learned rejects all; give "
            "examples=[a string of it, ...], or a larger walk_length or walks_per_state",
            RuntimeWarning,
            stacklevel=2,
        )
    return of_peer(learnt, symbols)


def run_ttt(symbols: tuple[str, ...], ask: Callable, counterexample: Callable[[Any], Any], max_rounds: int | None) -> Any:
    """The last hypothesis of TTT as an automaton of AALpy, whose comparisons give the counterexamples."""
    learner, rounds = TTT(symbols, ask), 1
    while (word := counterexample(hypothesis := to_peer(symbols, learner.hypothesis))) is not None:
        if rounds == max_rounds:
            break
        learner.refine(word)
        rounds += 1
    return hypothesis


def to_peer(symbols: tuple[str, ...], found: Hypothesis) -> Any:
    """A hypothesis as an automaton of AALpy, with the strings that its comparisons begin at."""
    from aalpy.automata import Dfa, DfaState, MooreMachine, MooreState

    # the two kinds differ in the name of a state's label alone, which both take second
    whole, of_state = (Dfa, DfaState) if isinstance(found.labels[0], bool) else (MooreMachine, MooreState)
    states: list[Any] = [of_state(f"s{number}", cast(Any, label)) for number, label in enumerate(found.labels)]
    for state, moves, access in zip(states, found.transitions, found.accesses, strict=True):
        state.prefix = access
        state.transitions = {symbol: states[move] for symbol, move in zip(symbols, moves, strict=True)}
    return whole(states[0], states)


def of_peer(learnt: Any, symbols: tuple[str, ...]) -> Automaton:
    """The smallest form of an automaton of AALpy; a symbol that has no move at a state leads to one that rejects for ever."""
    number = {state.state_id: place for place, state in enumerate(learnt.states)}
    dead = len(number)
    transitions = np.full((dead + 1, len(symbols)), dead)
    for state in learnt.states:
        for symbol, following in state.transitions.items():
            transitions[number[state.state_id], symbols.index(symbol)] = number[following.state_id]
    start = number[learnt.initial_state.state_id]
    if hasattr(learnt.initial_state, "is_accepting"):
        outputs = np.array([*(bool(state.is_accepting) for state in learnt.states), False]).astype(int)
        return Automaton(symbols, transitions, outputs, start, LABELS).minimise()
    labels = tuple(sorted({state.output for state in learnt.states}))
    outputs = np.array([*(labels.index(state.output) for state in learnt.states), 0])
    return Automaton(symbols, transitions, outputs, start, labels).minimise()
