"""How probable automata are that label all strings right: few bits to tell them, and the strings' labels as evidence."""

from __future__ import annotations

from collections.abc import Sequence
from math import lgamma, log, log2

import numpy as np

from pplseq.models.automata.automaton import Automaton
from pplseq.models.automata.label_evidence import label_evidence
from pplseq.models.automata.prefix_tree import PrefixTree


def description_length(automaton: Automaton) -> float:
    """Nats that tell an automaton, but for how its states are numbered: shorter for counters and for states that are left late.

    Each symbol's moves are told in the shortest of four ways: any moves; which states it leaves alone, and where it leads from
    the others; a permutation; a permutation whose cycles all have one length, as a counter's.
    """
    size = automaton.num_states
    places = np.arange(size)
    total = size * np.log(2) - lgamma(size)
    for moves in automaton.transitions.T:
        loops = int((moves == places).sum())
        alone = lgamma(size + 1) - lgamma(loops + 1) - lgamma(size - loops + 1) + np.log(size + 1)
        ways = [size * np.log(size), alone + (size - loops) * np.log(max(size - 1, 1))]
        if len(set(moves.tolist())) == size:
            ways += [lgamma(size + 1), alone + lgamma(size - loops + 1)]
            length, to = 1, moves
            while (to != places).all():
                length, to = length + 1, moves[to]
            if (to == places).all():  # all cycles close at once
                divisors = sum(size % divisor == 0 for divisor in range(1, size + 1))
                number = size // length
                ways.append(lgamma(size + 1) - number * np.log(length) - lgamma(number + 1) + np.log(divisors))
        total += min(ways) + np.log(4)
    return float(total)


def log_weights(automata: Sequence[Automaton], tree: PrefixTree) -> np.ndarray:
    """(M,) log posterior weights of automata that label all strings right, nats, but for a constant.

    Prior: e to the minus :func:`description_length`. Likelihood: the strings were drawn label by label, or drawn first and
    labelled then, either as likely: see :func:`~pplseq.models.automata.label_evidence.label_evidence`.
    """
    evidence = np.logaddexp(0.0, label_evidence(automata, tree))
    return evidence - np.array([description_length(automaton) for automaton in automata])


def inconsistent_length(num_states: int, num_symbols: int, num_strings: int, num_wrong: int) -> float:
    """Bits that tell any automaton of two labels and so many states, and which of the strings it labels wrong."""
    exceptions = lgamma(num_strings + 1) - lgamma(num_wrong + 1) - lgamma(num_strings - num_wrong + 1)
    return num_states * num_symbols * log2(num_states) + num_states + exceptions / log(2)
