"""Labels of strings as numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from pplseq.models.automata.automaton import LABELS, String
from pplseq.models.automata.prefix_tree import PrefixTree


def encoded_labels(labels: Sequence[bool | int | str]) -> tuple[tuple[str, ...], list[int]]:
    """Names of labels, and the place of each label in them."""
    values = [label.item() if isinstance(label, np.generic | Tensor) else label for label in labels]
    kinds = set(values)
    if len(kinds) < 2:
        only = f"all are {values[0]!r}" if values else "there are none"
        raise ValueError(f"labels: expected strings of two classes or more, {only}; any automaton would fit")
    if kinds <= {False, True}:  # 0 and 1 are equal to them
        return LABELS, [int(value) for value in values]
    if not (all(isinstance(value, str) for value in values) or all(isinstance(value, int) for value in values)):
        raise TypeError(f"labels: expected bools, whole numbers or names, got {sorted(map(repr, kinds))[:5]}")
    order = sorted(kinds)
    return tuple(map(str, order)), [order.index(value) for value in values]


def refuse_contradictions(tree: PrefixTree, strings: Sequence[String]) -> None:
    """Raises ValueError for a string with two labels."""
    ends = tree.end.tolist()
    if len(set(ends)) < len(ends):
        twice = next(end for end in ends if ends.count(end) > 1)
        string = strings[tree.of_string.tolist().index(twice)]
        raise ValueError(
            f"labels: expected one label for each string, got several for {string!r}; remove the wrong one"
        )
