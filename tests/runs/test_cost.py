"""Estimated costs against the counts behind the method, and against a model that exists."""

import pytest
import torch

from pplseq.models import VLHMM
from pplseq.runs.cost import Speed, check_fits, estimate, measure_speed, vlhmm_cost


def test_the_counts_at_2_to_the_15():
    """The table for one step at Z = 2^15, M = 128, dropout 0.5, h = 256, 16 x 32 tokens, PTB: 472, 12, 39, 2 GFLOP."""
    cost = vlhmm_cost(10_000, 2**15, 128, state_dropout=0.5, num_tokens=462, blocks_present=0.86)
    counts = [cost.normaliser_flops, cost.numerator_flops, cost.residual_flops, cost.emission_flops]
    assert [round(count / 1e9) for count in counts] == [473, 12, 39, 2]
    assert round(cost.num_weights / 1e6, 1) == 11.4


def test_weights_are_counted_right():
    options = [
        dict(), dict(tied=False), dict(shared_layer=True), dict(transition="hierarchical"), dict(parameterization="factored"),
        dict(parameterization="scalar"), dict(transition="hierarchical", parameterization="scalar"),
    ]  # fmt: skip
    for more in options:
        model = VLHMM(24, num_words=30, blocks=torch.arange(30) % 6, hidden_size=8, **more)
        cost = vlhmm_cost(30, 24, 6, hidden_size=8, **more)
        assert cost.num_weights == sum(parameter.numel() for parameter in model.parameters())


def test_nothing_of_hierarchical_transitions_grows_with_the_square():
    """Twice the states in twice the blocks cost about twice, not four times."""
    small, large = (vlhmm_cost(10_000, z, m, transition="hierarchical") for z, m in ((2**15, 128), (2**19, 2048)))
    for name in ("num_weights", "residual_flops", "evaluation_flops", "evaluation_bytes", "working_bytes"):
        assert getattr(large, name) <= 16 * getattr(small, name) + 1, name


def test_what_cannot_fit_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr("pplseq.runs.cost.memory_of", lambda device: 24_000_000_000)
    check_fits(vlhmm_cost(10_000, 2**20, 4096, hidden_size=64, transition="hierarchical"))
    with pytest.raises(ValueError, match="256 GB|GB of memory, and cpu has 24 GB; choose fewer states"):
        check_fits(vlhmm_cost(10_000, 10**7, 100))


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
