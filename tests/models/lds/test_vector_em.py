"""EM whose iterations are one compiled call: the history and parameters that the same loop over the model gives."""

import copy
import math

import pytest
import torch

from pplseq.infer.fit.em import Batch
from pplseq.kernels import compiled
from pplseq.models import LDS
from pplseq.models.lds import vector_em

pytestmark = pytest.mark.skipif(not compiled.available(), reason="no numba here")
KINDS = {
    "plain": {}, "no offsets": {"offsets": "none"}, "of moves": {"offsets": "transition"},
    "diagonal": {"state_noise": "diagonal", "emission_noise": "diagonal"},
    "half": {"state_noise": "diagonal", "offsets": "emission"}, "floor": {"noise_floor": 0.01},
}  # fmt: skip


def problem(h, n, rows, steps, **options):
    torch.manual_seed(h + n)
    model, x = LDS(h, n, **options), torch.randn(rows, steps, n, dtype=torch.float64).cumsum(1)
    with torch.no_grad():
        model.initial_scale.neg_()  # another factor of the same covariance
    return model, x


def twin(model, x, monkeypatch, **options):
    other = copy.deepcopy(model)
    with monkeypatch.context() as patch:
        patch.setattr(vector_em, "OPTIONS", frozenset())
        return other.fit(x, warm_start=True, **options)


def plainly(model, x, **options):
    return model.fit_at_once(x, {"max_iterations": 5, "tolerance": 0.0} | options)


def compare(found, expected, close=1e-7):
    assert found.history.log_likelihoods == pytest.approx(expected.history.log_likelihoods, rel=1e-9)
    assert found.history.log_posteriors == pytest.approx(expected.history.log_posteriors, rel=1e-9)
    for name in ("converged", "notes", "num_tokens", "method"):
        assert getattr(found.history, name) == getattr(expected.history, name)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(
            found.state_dict()[name], value, rtol=close, atol=close, msg=lambda text, n=name: n + text
        )
    assert found.is_fitted and not found.training


@pytest.mark.parametrize("size", [(1, 1, 1, 10), (3, 2, 4, 30), (2, 4, 5, 20), (2, 2, 1, 40), (2, 1, 130, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_one_iteration_and_many_are_those_of_the_model(kind, size, monkeypatch):
    for options in (
        {"max_iterations": 1},
        {"max_iterations": 15, "tolerance": 0.0},
        {"max_iterations": 9, "acceleration": 0},
    ):
        model, x = problem(*size, **KINDS[kind])
        compare(copy.deepcopy(model).fit(x, warm_start=True, **options), twin(model, x, monkeypatch, **options))


def test_these_fits_need_no_other_loop(monkeypatch):
    """That of the model would compare with itself."""
    monkeypatch.setattr(LDS, "maximize", None)
    for kind in KINDS.values():
        model, x = problem(3, 2, 4, 30, **kind)
        assert model.fit(x, warm_start=True, max_iterations=4, tolerance=0.0).history.num_iterations == 4


def test_a_fit_that_converges(monkeypatch):
    model, x = problem(3, 2, 4, 30)
    options = {"max_iterations": 200, "tolerance": 1e-3}
    assert plainly(copy.deepcopy(model), x, **options)
    found = copy.deepcopy(model).fit(x, warm_start=True, **options)
    assert found.history.converged and 3 < found.history.num_iterations < 200
    compare(found, twin(model, x, monkeypatch, **options))


def test_what_is_not_plain_is_left_to_the_model():
    model, x = problem(3, 2, 4, 30)
    before = copy.deepcopy(model.state_dict())

    def refused(subject, data, **options):
        return not plainly(copy.deepcopy(subject), data, **options)

    assert not refused(model, x)
    for number in (math.nan, math.inf):
        holes = x.clone()
        holes[1, 3, 1] = number
        assert refused(model, holes)
    assert refused(model, torch.ones_like(x)) and refused(model, x[:, :1]) and refused(model, x[:1, :2, :])
    assert refused(model, x.float()) and refused(model, x[..., :1]) and refused(model, x, step_size=0.7)
    assert refused(LDS(3, 2, state_prior={"count": 3.0}), x) and refused(LDS(3, 2, initial="stationary"), x)
    assert refused(LDS(3, 2, noise_floor=5.0), x)
    model.set_parameters(state_noise=torch.diag(torch.tensor([1.0, 0.0, 2.0])))
    assert refused(model, x)
    model.load_state_dict(before)
    model.maximize = lambda statistics: []
    assert refused(model, x)
    del model.maximize
    with compiled.twins_only():
        assert refused(model, x)
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_noise_that_comes_to_its_floor_leaves_nothing_behind(rows, monkeypatch):
    model, x = problem(3, 2, rows, 30, noise_floor=0.3)
    with pytest.warns(RuntimeWarning, match="met its floor of 0.3"):
        expected = twin(model, x, monkeypatch, max_iterations=20, tolerance=0.0)
        found = copy.deepcopy(model).fit(x, warm_start=True, max_iterations=20, tolerance=0.0)
    compare(found, expected, close=0)


def test_options_are_looked_at():
    model, x = problem(1, 1, 1, 10)
    with pytest.raises(ValueError, match="max_iterations"):
        model.fit(x, warm_start=True, max_iterations=0)
    with pytest.raises(ValueError, match="acceleration"):
        model.fit(x, warm_start=True, max_iterations=1, acceleration=-1)
    with pytest.raises(ValueError, match="x must hold more than num_states"):
        model.fit(x[:, :1], warm_start=True)
    with pytest.raises(ValueError, match="x must vary"):
        model.fit(torch.ones_like(x), warm_start=True)


def test_a_fall_of_the_objective_goes_back(monkeypatch):
    """Another system in the place of the likelier one."""
    from pplseq.kernels.gaussian import whole

    model, x = problem(1, 1, 1, 10)
    step, calls = whole.em_step, []

    def worse(*arguments):
        value, made = step(*arguments)
        calls.append(made)
        if len(calls) == 2:
            made[0][:] = made[0] + 5.0
        return value, made

    monkeypatch.setattr(whole, "em_step", worse)
    with pytest.warns(RuntimeWarning, match="EM's objective fell"):
        model.fit(x, warm_start=True, max_iterations=5, acceleration=0)
    assert model.history.reason == "the objective fell" and len(calls) == 3
    expected = model.posterior(x).log_prob().sum()
    assert model.history.log_likelihoods[-1] == pytest.approx(float(expected), rel=1e-10)
    assert model.expectation_at_once(Batch(x))[1] == pytest.approx(float(expected), rel=1e-10)
