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


def test_the_sum_by_ranges(plan, even, monkeypatch):
    monkeypatch.setattr(plan, "RANGE_BYTES", 240)  # of 20 entries
    costs = replace(even, storage=1e3, network=1e2, most_entries=1e9)
    found = plan.add_up(costs, 4, 64.0, 3)  # parts of 40 entries, two of 56.6, one of 80
    assert found["ranges"] == 8 and found["gigabytes"] == pytest.approx(80 * 12e-9)
    assert found["moved"] == pytest.approx((160 + 160 + 80) * 8 / 300)
    added = 2 * 2 * 40 + 2 * 10 * 32**0.5
    assert found["seconds"] == pytest.approx(found["moved"] + added / 3 * 9 / 8)
    assert plan.add_up(costs, 1, 16.0, 3)["seconds"] == pytest.approx((40 / 300 + 80 / 200) * 8)
