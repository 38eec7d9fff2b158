"""States along paths, told in numbers that were counted by hand."""

import re

import numpy as np

from pplseq.report.series import MOST_SHOWN, MOST_STEPS, state_sections


def cells(html):
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows][1:]


def test_shares_stays_moves_and_what_is_observed():
    paths = [np.array([0, 0, 1, 1, 1, 0]), np.array([1, 1])]
    observed = [np.array([[1.0], [3.0], [10.0], [np.nan], [12.0], [2.0]]), np.array([[11.0], [11.0]])]
    (_, states), (_, moves) = state_sections(paths, ["calm", "<busy>", "never"], observed, ["y"])
    assert cells(states) == [
        ["calm", "37.5%", "1.5", "2 (0.816)"], ["&lt;busy&gt;", "62.5%", "2.5", "11 (0.707)"], ["never", "0.0%", "–", "–"],
    ]  # fmt: skip
    assert cells(moves) == [
        ["calm", "0.500", "0.500", "0.000"], ["&lt;busy&gt;", "0.250", "0.750", "0.000"], ["never", "–", "–", "–"],
    ]  # fmt: skip
    assert re.findall("<title>(.*?)</title>", moves) == ["calm to &lt;busy&gt;: 0.500", "&lt;busy&gt; to calm: 0.250"]


def test_long_paths_and_many_states_are_cut():
    path = np.arange(500) % 40
    (_, states), (_, moves) = state_sections([path, path[:3]], [f"s{k}" for k in range(40)])
    assert "<svg" not in moves  # a graph of so many says nothing
    assert f"step {500 - MOST_STEPS + 1}<" in states and "step 500<" in states and len(cells(states)) == MOST_SHOWN
