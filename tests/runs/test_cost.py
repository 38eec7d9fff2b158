"""Estimated costs against the counts behind the method, and against a model that exists."""

import pytest
import torch

from pplseq.models import VLHMM
from pplseq.runs.cost import Speed, estimate, measure_speed, vlhmm_cost


def test_the_counts_at_2_to_the_15():
    """The table for one step at Z = 2^15, M = 128, dropout 0.5, h = 256, 16 x 32 tokens, PTB: 472, 12, 39, 2 GFLOP."""
    cost = vlhmm_cost(10_000, 2**15, 128, num_tokens=462, blocks_present=0.86)
    counts = [cost.normaliser_flops, cost.numerator_flops, cost.residual_flops, cost.emission_flops]
    assert [round(count / 1e9) for count in counts] == [473, 12, 39, 2]
    assert round(cost.num_weights / 1e6, 1) == 11.4


def test_weights_are_counted_right():
    for tied in (True, False):
        model = VLHMM(30, 24, torch.arange(30) % 6, hidden_size=8, tied=tied)
        cost = vlhmm_cost(30, 24, 6, hidden_size=8, tied=tied)
        assert cost.num_weights == sum(parameter.numel() for parameter in model.parameters())


def test_time_follows_the_counts():
    cost = vlhmm_cost(10_000, 4096, 128)
    slow, fast = Speed(1e9, 1e9, 1e9), Speed(4e9, 4e9, 4e9)
    assert slow.training_step(cost) == pytest.approx(cost.step_flops / 1e9)
    assert fast.training_step(cost) == pytest.approx(cost.step_flops / 4e9)
    assert slow.evaluation(cost, 1000) > slow.evaluation(cost, 0) > 0


def test_the_estimate_is_of_this_machine():
    speed = measure_speed(16, size=128)
    assert min(speed.normaliser_training, speed.normaliser_test, speed.product) > 0
    facts = estimate(
        1000, 64, torch.device("cpu"), num_words=50, num_states=64, num_blocks=8, hidden_size=16, state_dropout=0.5
    )
    assert facts["steps_per_epoch"] == 16 and facts["epoch_seconds"] > 0
    assert facts["training_gigabytes"] > facts["evaluation_gigabytes"] > 0.3
