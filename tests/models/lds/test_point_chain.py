"""Chains of other numbers at the same steps share covariances, and answer as chains made anew do."""

import pytest
import torch
from support.grids import grid

from pplseq.kernels import compiled
from pplseq.models import LDS


def system(num_states=3, num_features=2, seed=0, **options):
    torch.manual_seed(seed)
    model = LDS(num_states, num_features, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def data(model, rows, steps, seed=1):
    return torch.randn(rows, steps, model.num_features, generator=torch.Generator().manual_seed(seed)).to(model.reference)


def answers(chain):
    smoothed, filtered, ahead = chain.smoothed_states(), chain.filtered_states(), chain.forecast(2)
    belief = chain.filtered()
    return {
        "log_prob": chain.log_prob(), "tokens": chain.token_log_probs(), "means": smoothed.means,
        "covariances": smoothed.covariances.dense(), "lags": chain.lag_one_covariances().dense(),
        "filtered": filtered.means, "spread": filtered.covariances.dense(), "predicted": chain.predicted_states().means,
        "belief": belief.mean, "forecast": ahead.means, "draws": chain.sample(2, seed=0),
    }  # fmt: skip


def total(chain):
    return float(chain.log_prob().sum(dtype=torch.float64))


def check(model, x):
    """The chain of the model's questions, and the one of the way that all programs take."""
    _, chain = model._posterior(x, None)
    for name, value in answers(model.posterior(x)).items():
        torch.testing.assert_close(answers(chain)[name], value, rtol=1e-12, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}")
    assert model.score(x) == pytest.approx(total(model.posterior(x)), rel=1e-13)
    return chain


KINDS = {
    "plain": {}, "one state": {"num_states": 1, "num_features": 1}, "single": {"dtype": "float32"},
    "diagonal": {"state_noise": "diagonal", "emission_noise": "diagonal"}, "no offsets": {"offsets": "none"},
    "stationary": {"initial": "stationary"},
}  # fmt: skip


@grid({"kind": KINDS, "rows, steps": [(1, 12), (3, 5), (2, 1)]})
def test_other_numbers_at_the_same_steps(kind, rows, steps):
    model = system(**KINDS[kind])
    first, second = data(model, rows, steps, 1), data(model, rows, steps, 2)
    assert not check(model, first).is_whole  # the first shares nothing yet
    assert check(model, second).is_whole == compiled.available()
    assert model.score(first) != model.score(second)
    check(model, data(model, rows, steps + 1, 3))
    assert check(model, first).is_whole is False  # after another shape


MANY = {"num_features": 5}


@pytest.mark.parametrize("options", [MANY, MANY | {"emission_noise": "diagonal"}, {"initial": "diffuse"}])
def test_what_is_not_of_numbers_as_they_are_is_made_anew(options):
    model = system(**options)
    x = data(model, 2, 9)
    for _ in range(2):
        _, chain = model._posterior(x, None)
        assert not chain.is_whole
        assert torch.equal(chain.log_prob(), model.posterior(x).log_prob())


def test_what_a_chain_reads_late_is_of_its_own_parameters():
    model = system()
    first, second = data(model, 1, 9, 1), data(model, 1, 9, 2)
    old = model.transition.detach().clone()
    model.score(first)
    _, chain = model._posterior(second, None)
    wanted = answers(model.posterior(second))["covariances"]
    model.transition.data.mul_(0.5)
    torch.testing.assert_close(chain.smoothed_states().covariances.dense(), wanted)
    model.transition.data.copy_(old)
    torch.testing.assert_close(model.smooth(first).covariances, answers(model.posterior(first))["covariances"])


def test_numbers_of_another_shape_are_refused():
    model = system()
    _, chain = model._posterior(data(model, 1, 9), None)
    if chain.takes_other_numbers:
        with pytest.raises(ValueError, match="residual must have the chain's shape"):
            chain.with_residual(torch.zeros(8, 1, 2).double())


def test_gaps_lengths_and_what_is_known_of_steps_are_made_anew():
    model = system()
    x = data(model, 2, 6)
    model.score(x)
    gaps = x.clone()
    gaps[0, 2] = torch.nan
    gaps[1, 3, 0] = torch.nan
    assert model.score(gaps) == pytest.approx(float(model.posterior(gaps).log_prob().sum()), rel=1e-13)
    lengths = torch.tensor([4, 6])
    assert model.score(x, lengths) == pytest.approx(float(model.posterior(x, lengths).log_prob().sum()), rel=1e-13)
    noises = torch.eye(3).double().expand(2, 6, 3, 3)
    assert model.score(x, state_noises=noises) != model.score(x)
    driven = system(num_inputs=1)
    with torch.no_grad():
        driven.transition_inputs.add_(1.0)
    one, other = (torch.full((2, 6, 1), value).double() for value in (0.0, 1.0))
    assert driven.score(x, inputs=one) != driven.score(x, inputs=other)


def step(model):
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    (-model.log_joint(data(model, 1, 5))).backward()
    optimizer.step()


CHANGES = {
    "in place": lambda model: model.transition.detach().mul_(0.5),
    ".data": lambda model: model.emission_offset.data.add_(1.0),
    "numpy": lambda model: model.emission_scale.detach().numpy().__iadd__(0.3),
    "an optimiser": step,
    "a state dict": lambda model: model.load_state_dict(system(seed=5).state_dict()),
    "set_parameters": lambda model: model.set_parameters(initial_mean=[1.0, 2.0, 3.0]),
    "precision": lambda model: model.float(),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen(change):
    model = system()
    x = data(model, 1, 8)
    before = model.score(x)
    assert model.score(x) == pytest.approx(before, rel=1e-14)
    CHANGES[change](model)
    x = x.to(model.reference)
    assert model.score(x) == pytest.approx(float(model.posterior(x).log_prob().sum()), rel=1e-12) != before


def test_other_distributions_keep_their_own_way():
    class Noisier(LDS):
        @property
        def state_noise(self):
            return 2 * super().state_noise

    torch.manual_seed(0)
    model = Noisier(2, 2)
    model.is_fitted = True
    plain = LDS(2, 2)
    plain.load_state_dict(model.state_dict())
    x = data(model, 1, 8)
    assert model._chain_of_rows(model._as_batch(x)) is None
    plain.score(x)
    assert abs(model.score(x) - plain.score(x)) > 1e-3


def test_parameters_that_are_no_numbers_still_raise():
    model = system()
    x = data(model, 1, 8)
    model.score(x)
    model.transition.data[0, 0] = torch.nan
    for _ in range(2):
        with pytest.raises(ValueError, match="must be finite"):
            model.score(x)
