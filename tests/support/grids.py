"""Grids of cases of which the default run takes few: each value of each axis, beside others in turn."""

import itertools
from collections import Counter
from collections.abc import Iterable

import pytest


def grid(axes: dict[str, Iterable], times: int = 1):
    """Parametrizes a test by axes that do not meet in the code; where they do, stack ``parametrize``.

    Args:
        axes: names of arguments, as ``parametrize`` takes them, and their values.
        times: how often the values of the longest axis are taken, each time beside others; what is left runs under -m slow.
    """
    values = [[_as_case(value, name) for value in axis] for name, axis in axes.items()]
    sizes = [len(axis) for axis in values]
    taken, cases = _spread(sizes, times * max(sizes)), []
    for places in itertools.product(*map(range, sizes)):
        parts = [axis[place] for axis, place in zip(values, places, strict=True)]
        marks = [mark for part in parts for mark in part.marks] + ([] if places in taken else [pytest.mark.slow])
        cases.append(pytest.param(*(value for part in parts for value in part.values), marks=marks))
    return pytest.mark.parametrize(", ".join(axes), cases)


def _as_case(value, names: str):
    if isinstance(value, type(pytest.param())):
        return value
    return pytest.param(*value) if "," in names else pytest.param(value)


def _spread(sizes: list[int], number: int) -> list[tuple[int, ...]]:
    """So many of all cases, one after another: each with most that is new in values, in pairs, in what was taken seldom."""
    left, seen, taken = list(itertools.product(*map(range, sizes))), Counter(), []

    def gain(places):
        singles = list(enumerate(places))
        pairs = list(itertools.combinations(singles, 2))
        return sum(not seen[one] for one in singles), sum(not seen[two] for two in pairs), -sum(seen[one] for one in singles)

    for _ in range(min(number, len(left))):
        best = max(left, key=gain)
        left.remove(best)
        taken.append(best)
        seen.update([*enumerate(best), *itertools.combinations(enumerate(best), 2)])
    return taken
