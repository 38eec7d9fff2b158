"""The prefixes of a set of strings as a tree: what is computed for a prefix is computed once for all strings that share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.models.automata.automaton import String


class Group(NamedTuple):
    """The nodes of one length whose last symbol is the same: consecutive, so that one operation serves them all.

    Attributes:
        nodes: their numbers. symbol: the place of their last symbol.
        parents: (G,) their prefixes without it.
    """

    nodes: slice
    symbol: int
    parents: Tensor


class PrefixTree(NamedTuple):
    """All prefixes of strings, numbered by length, then by last symbol; node 0 is the empty string.

    Attributes:
        symbols: the L symbols.
        num_nodes: N.
        groups: the nodes but the first, the short ones first.
        end: (M,) the node where each distinct pair of string and label ends.
        label: (M,) the label. weight: (M,) how often the pair is given.
        of_string: (B,) the node where each string that was given ends.
    """

    symbols: tuple[str, ...]
    num_nodes: int
    groups: list[Group]
    end: Tensor
    label: Tensor
    weight: Tensor
    of_string: Tensor

    @classmethod
    def grow(
        cls, strings: Sequence[String], labels: Sequence[int] | None = None, symbols: Sequence[str] | None = None
    ) -> PrefixTree:
        """The tree of strings.

        Args:
            strings: B strings, also empty ones and some that are given several times.
            labels: B labels from 0; default: all 0.
            symbols: default: those of the strings, sorted.

        Raises:
            ValueError: a symbol that is not among `symbols`; another number of labels than strings; no strings.
            TypeError: a symbol that is no str.
        """
        strings = [tuple(string) for string in strings]
        if not strings:
            raise ValueError("strings: expected at least one, got none")
        labels = [0] * len(strings) if labels is None else [int(label) for label in labels]
        if len(labels) != len(strings):
            raise ValueError(f"labels: expected one for each of {len(strings)} strings, got {len(labels)}")
        found = {symbol for string in strings for symbol in string}
        if strange := [symbol for symbol in found if not isinstance(symbol, str)]:
            raise TypeError(f"strings: expected symbols that are str, got {strange[0]!r}; give str(symbol)")
        symbols = tuple(sorted(found)) if symbols is None else tuple(symbols)
        if found - set(symbols):
            raise ValueError(f"strings: symbol {min(found - set(symbols))!r} is not one of {', '.join(symbols)}")
        place = {symbol: number for number, symbol in enumerate(symbols)}

        # children are made level by level; a string is followed by the node it has reached
        reached = [0] * len(strings)
        open_strings = [number for number, string in enumerate(strings) if string]
        groups: list[Group] = []
        num_nodes, depth = 1, 0
        while open_strings:
            steps = {number: (place[strings[number][depth]], reached[number]) for number in open_strings}
            children = {step: num_nodes + k for k, step in enumerate(sorted(set(steps.values())))}
            for symbol in range(len(symbols)):
                parents = [parent for own, parent in children if own == symbol]
                if parents:
                    nodes = slice(num_nodes, num_nodes + len(parents))
                    groups.append(Group(nodes, symbol, torch.tensor(parents)))
                    num_nodes = nodes.stop
            for number, step in steps.items():
                reached[number] = children[step]
            depth += 1
            open_strings = [number for number in open_strings if len(strings[number]) > depth]
        pairs = Counter(zip(reached, labels, strict=True))
        end, label = torch.tensor(list(pairs)).unbind(-1)
        weight = torch.tensor(list(pairs.values()), dtype=torch.float64)
        return cls(symbols, num_nodes, groups, end, label, weight, torch.tensor(reached))
