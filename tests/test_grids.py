"""The cases of a grid that the default run takes."""

import math

import pytest
from support.grids import grid


@pytest.mark.parametrize("sizes", [(3,), (2, 2), (3, 28), (2, 3, 2, 2), (4, 1, 6)], ids=str)
@pytest.mark.parametrize("times", [1, 3])
def test_each_value_is_taken_as_often_as_the_others_allow(sizes, times):
    cases = grid({f"axis_{k}": range(size) for k, size in enumerate(sizes)}, times).args[1]
    taken = [case.values for case in cases if not case.marks]
    assert len(cases) == math.prod(sizes) and len(taken) == min(times * max(sizes), len(cases))
    for place, size in enumerate(sizes):
        number = [sum(values[place] == value for values in taken) for value in range(size)]
        assert min(number) >= 1 and max(number) - min(number) <= 1, number


def test_names_of_several_arguments_and_marks():
    mark = grid({"a, b": [(1, 2), pytest.param(3, 4, marks=pytest.mark.gpu)], "c": "xy"})
    assert mark.args[0] == "a, b, c" and [case.values for case in mark.args[1]][1] == (1, 2, "y")
    assert [[each.name for each in case.marks] for case in mark.args[1]] == [[], ["slow"], ["gpu", "slow"], ["gpu"]]
