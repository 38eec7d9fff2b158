"""Labels of strings as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from pplseq import checks
from pplseq.models.automata.automaton import LABELS, String, usual_pos_label
from pplseq.models.automata.prefix_tree import PrefixTree


class EncodedLabels(NamedTuple):
    """Names of labels, the place of each string's label in them, and the name of the label of accepted strings, if known.

    Of two names that of accepted strings is the second, so that 1 is "accept" in every table.
    """

    names: tuple[str, ...]
    numbers: list[int]
    pos_label: str | None


def encoded_labels(
    strings: Sequence[String], labels: Sequence[bool | int | str], pos_label: bool | int | str | None = None
) -> EncodedLabels:
    """Labels as numbers.

    Args:
        pos_label: that of accepted strings; default: True, 1, or what usual words say.

    Raises:
        ValueError: another number of labels than strings, labels that are all the same, a ``pos_label`` that is none of them.
        TypeError: labels of several types.
    """
    if len(labels) != len(strings):
        raise ValueError(f"labels: expected one for each of {len(strings)} strings, got {len(labels)}")
    values = [label.item() if isinstance(label, np.generic | Tensor) else label for label in labels]
    kinds = set(values)
    if len(kinds) < 2:
        only = f"all are {values[0]!r}" if values else "there are none"
        raise ValueError(
            f"labels: expected strings of two classes or more, {only}; any automaton would fit. Strings without labels have a "
            "distribution, which examples/string_distributions.py of the repository learns (learn_distribution)"
        )
    if pos_label is not None and pos_label not in kinds:
        known = ", ".join(sorted(map(repr, kinds))[:10])
        raise ValueError(f"pos_label: expected one of the labels {known}, got {checks.shown(pos_label)}")
    if kinds <= {False, True} and pos_label in (None, True):  # 0 and 1 are equal to them
        return EncodedLabels(LABELS, [int(value) for value in values], LABELS[1])
    if not (all(isinstance(value, str) for value in values) or all(isinstance(value, int) for value in values)):
        raise TypeError(f"labels: expected bools, whole numbers or names, got {sorted(map(repr, kinds))[:5]}")
    order = sorted(kinds)
    names = tuple(map(str, order))
    positive = usual_pos_label(names) if pos_label is None else names[order.index(pos_label)]
    if len(order) == 2 and positive == names[0]:
        order, names = order[::-1], names[::-1]
    return EncodedLabels(names, [order.index(value) for value in values], positive)


def refuse_contradictions(tree: PrefixTree, strings: Sequence[String]) -> None:
    """Raises ValueError for a string with two labels."""
    ends = tree.end.tolist()
    if len(set(ends)) < len(ends):
        twice = next(end for end in ends if ends.count(end) > 1)
        string = strings[tree.of_string.tolist().index(twice)]
        raise ValueError(
            f"labels: expected one label for each string, got several for {checks.shown(string)}; remove the wrong one"
        )
