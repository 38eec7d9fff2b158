"""The simulation of a cluster against what can be reckoned by hand."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest


@pytest.fixture
def plan(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "scripts" / "bench"), *sys.path])
    import cluster_plan

    return cluster_plan


@pytest.fixture
def even(plan):
    return plan.Costs(
        seconds_per_byte=1e-6, scale=10.0, power=0.5, most_entries=50.0, seconds_per_entry=1.0, bytes_per_token=5.0,
        slowness=0.0, failures_per_hour=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("workers, rounds", [(1, 7), (3, 3), (7, 1), (100, 1)])
def test_even_parts_take_turns(plan, even, workers, rounds):
    found = plan.count_parts(even, 7, 2e6, workers)
    assert found["seconds"] == pytest.approx(2 * rounds) and found["lost"] == 0
    assert found["busy"] == pytest.approx(7 / (rounds * workers))


def test_slow_storage_and_workers_that_die_take_longer(plan, even):
    slow = replace(even, storage=1e6)
    assert plan.count_parts(slow, 4, 2e6, 4)["seconds"] == pytest.approx(8)
    dying = replace(even, failures_per_hour=900.0)
    found = plan.count_parts(dying, 50, 2e6, 2)
    assert found["lost"] > 0 and found["seconds"] > 50


def test_the_tree_of_sums(plan, even):
    levels = plan.add_up(even, 4, 16.0, 1)
    assert [level["sums"] for level in levels] == [2, 1]
    assert [level["entries"] for level in levels] == pytest.approx([10 * 8**0.5, 40.0])
    moved = 20 * plan.ENTRY_BYTES / even.network
    assert levels[0]["seconds"] == pytest.approx(2 * (moved + 40.0))
    assert plan.add_up(even, 4, 1e6, 1)[-1]["entries"] == 50.0
    assert plan.add_up(even, 1, 16.0, 1) == []
