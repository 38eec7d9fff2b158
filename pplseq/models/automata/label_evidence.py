"""Whether strings were drawn label by label, and which of several automata says so best.

Examples of a rare language are seldom met by chance: somebody looked for strings of each label. Under an automaton of which
few strings have a label it is then no surprise that all strings of this label are among these few; under one of which many
have it, it is. Strings that came as they came and were labelled afterwards tell nothing of the kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pplseq.models.automata.automaton import Automaton
from pplseq.models.automata.prefix_tree import PrefixTree

SMALLEST = 1e-300  # share of one string among those of its length; longer strings have no say, as a float64 holds no less


def label_evidence(automata: Sequence[Automaton], tree: PrefixTree) -> np.ndarray:
    """How much likelier different strings are drawn label by label than drawn first and labelled then, for each automaton.

    Drawn label by label, a string of n symbols is one of those of its label and length, all alike; labels are drawn with
    shares of which any are as likely. Drawn first, it is one of those of its length, and its label is what it is.

    Args:
        automata: M of the same symbols and labels, all of which label all strings right.
        tree: of the strings and their labels.

    Returns:
        (M,) in nats. Differences are log likelihood ratios of automata where strings are drawn label by label.

    Source: the size principle: J. B. Tenenbaum and T. L. Griffiths, Generalization, similarity, and Bayesian inference
        (2001), equation 7, with strong sampling.

    Cost: M Z L for each length, up to 996 for two symbols, as many as the longest string has for one.
    """
    num_symbols, num_labels = len(tree.symbols), len(automata[0].labels)
    length = np.zeros(tree.num_nodes, np.int64)
    for nodes, _, parents in tree.groups:
        length[nodes] = length[parents.numpy()] + 1
    length, label = length[tree.end.numpy()], tree.label.numpy()
    has_say = length * math.log(num_symbols) <= -math.log(SMALLEST) if num_symbols else length >= 0
    length, label = length[has_say], label[has_say]
    counts = np.bincount(label, minlength=num_labels)
    labels_drawn = math.lgamma(num_labels) + sum(math.lgamma(count + 1) for count in counts)
    evidence = np.full(len(automata), labels_drawn - math.lgamma(len(label) + num_labels))
    # states of all automata behind each other, so that one product of shares and moves serves them all
    first = np.cumsum([0, *(automaton.num_states for automaton in automata)])
    moves = np.concatenate([automaton.transitions + place for automaton, place in zip(automata, first, strict=False)])
    outputs = np.concatenate([automaton.outputs + num_labels * number for number, automaton in enumerate(automata)])
    share = np.zeros(first[-1])
    share[first[:-1] + np.array([automaton.start for automaton in automata])] = 1.0
    for now in range(length.max(initial=-1) + 1):
        own = np.bincount(label[length == now], minlength=num_labels)
        if own.any():
            of_label = np.bincount(outputs, share, len(automata) * num_labels).reshape(-1, num_labels)
            evidence -= np.log(of_label[:, own > 0]) @ own[own > 0]
        share = np.bincount(moves.reshape(-1), np.repeat(share / num_symbols, num_symbols), len(share))
    return evidence
