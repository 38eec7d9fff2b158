"""Autoregressive HMMs: enumeration of every path of states, EM beside gradients, forecasts, what is refused."""

import itertools

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from pplseq import ARHMM, HMM, SwitchingRegression
from pplseq.models import SequenceModel

F64 = torch.float64
close = torch.testing.assert_close
LENGTHS = torch.tensor([5, 3, 2])


def made(order=2, num_inputs=1, states=2, size=2, seed=0):
    torch.manual_seed(seed)
    model = ARHMM(states, size, order=order, num_inputs=num_inputs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn_like(parameter))
        model.centre.copy_(torch.randn(size))
    x = torch.randn(3, 5, size, dtype=F64)
    return model, x, {"inputs": torch.randn(3, 5, num_inputs, dtype=F64)} if num_inputs else {}


def paths(model, x, inputs):
    """log p(path, x) of a row (T, D), path by path, and the paths."""
    found, given = [], model.estimates()
    for path in itertools.product(range(model.num_states), repeat=len(x)):
        total = given["initial"][path[0]].log()
        for t, state in enumerate(path):
            if t:
                total = total + given["transition"][path[t - 1], state].log()
            if t < model.order:
                continue
            mean = given["constants"][state] + sum(given["lags"][state, k] @ x[t - 1 - k] for k in range(model.order))
            if model.num_inputs:
                mean = mean + given["inputs"][state] @ inputs[t]
            total = total + MultivariateNormal(mean, given["covariances"][state]).log_prob(x[t])
        found.append(total)
    return torch.stack(found), torch.tensor([*itertools.product(range(model.num_states), repeat=len(x))])


@pytest.mark.parametrize(("order", "num_inputs", "states", "size"), [(1, 0, 2, 2), (2, 1, 2, 2), (1, 2, 1, 3), (1, 0, 3, 1)])
def test_likelihood_and_gradients_are_those_of_all_paths(order, num_inputs, states, size):
    model, x, known = made(order, num_inputs, states, size)
    inputs = known.get("inputs", x)
    wanted = sum(paths(model, x[row, :n], inputs[row])[0].logsumexp(0) for row, n in enumerate(LENGTHS.tolist()))
    found = model.log_joint(x, LENGTHS, **known)
    close(found, wanted)
    parameters = [parameter for parameter in model.parameters() if parameter.numel()]
    grads = [torch.autograd.grad(value, parameters, allow_unused=True) for value in (found, wanted)]
    for one, other, of in zip(*grads, parameters, strict=True):
        close(*(torch.zeros_like(of) if g is None else g for g in (one, other)))
    assert model.score(x, LENGTHS, **known) == pytest.approx(float(wanted.detach()))


def test_posteriors_are_those_of_all_paths():
    model, x, known = made()
    log_probs, states = paths(model, x[0], known["inputs"][0])
    weights = log_probs.detach().softmax(0)
    smooth = torch.stack([(weights[:, None] * (states == state)).sum(0) for state in range(2)], -1)
    close(model.smooth(x[:1], inputs=known["inputs"][:1]).probs[0], smooth)
    assert model.decode(x[:1], inputs=known["inputs"][:1])[0].tolist() == states[log_probs.argmax()].tolist()


def test_forecasts_are_mixtures_over_paths():
    model, x, known = made()
    given, steps = {name: value.detach() for name, value in model.estimates().items()}, 3
    ahead = torch.randn(steps, 1, dtype=F64)
    found = model.forecast(x, steps, LENGTHS, inputs=known["inputs"], future_inputs=ahead)
    for row, n in enumerate(LENGTHS.tolist()):
        log_probs, states = paths(model, x[row, :n], known["inputs"][row])
        last = torch.stack([log_probs.detach()[states[:, -1] == state].logsumexp(0) for state in range(2)]).softmax(0)
        means, seconds = torch.zeros(2, steps, 2, dtype=F64)[0], torch.zeros(steps, 2, 2, dtype=F64)
        for path in itertools.product(range(2), repeat=steps):
            weight = (last[:, None] * given["transition"])[:, path[0]].sum()
            for before, state in itertools.pairwise(path):
                weight = weight * given["transition"][before, state]
            mean, spread = x[row, n - 2 : n].flip(0).flatten(), torch.zeros(4, 4, dtype=F64)  # of x_t, x_t-1
            for k, state in enumerate(path):
                move = torch.cat([torch.cat([*given["lags"][state]], -1), torch.eye(2, 4, dtype=F64)])
                shift = given["constants"][state] + given["inputs"][state] @ ahead[k]
                mean = move @ mean + torch.cat([shift, torch.zeros(2, dtype=F64)])
                spread = move @ spread @ move.T
                spread[:2, :2] += given["covariances"][state]
                means[k] += weight * mean[:2]
                seconds[k] += weight * (spread[:2, :2] + torch.outer(mean[:2], mean[:2]))
        close(found.means[row], means)
        close(found.covariances[row], seconds - means.unsqueeze(-1) * means.unsqueeze(-2))
    close(model.predict_next(x, LENGTHS, inputs=known["inputs"], next_inputs=ahead[0]).means, found.means[:, 0])


def test_without_lags_it_is_an_hmm():
    model, x, _ = made(0, 0)
    given = {name: value.detach() for name, value in model.estimates().items()}
    other = HMM(2, num_features=2, covariance="full").set_parameters(
        transition=given["transition"], initial=given["initial"], loc=given["constants"],
        covariance=given["covariances"],
    )  # fmt: skip
    x[1, 2] = torch.nan
    assert model.score(x) == pytest.approx(other.score(x), rel=1e-12)
    one, two = model.forecast(x, 3), other.forecast(x, 3)
    close(one.means, two.means)
    close(one.covariances, two.covariances)
    with torch.no_grad():
        model.fit(x.repeat(3, 1, 1), max_iterations=3)
    assert (np.diff(model.history.log_likelihoods) > 0).all()


def test_single_numbers_are_a_switching_regression():
    model, x, _ = made(2, 0, 2, 1)
    given = {name: value.detach() for name, value in model.estimates().items()}
    other = SwitchingRegression(2, order=2, initial="learned").set_parameters(
        transition=given["transition"], initial=given["initial"], mean=given["constants"][:, 0], lags=given["lags"][..., 0, 0],
        variance=given["covariances"][:, 0, 0],
    )  # fmt: skip
    assert model.score(x) == pytest.approx(other.score(x), rel=1e-12)
    one, two = model.forecast(x, 4), other.forecast(x, 4)
    close(one.means, two.means)
    close(one.covariances, two.covariances)


def drawn(scale=1.0):
    true = ARHMM(2, 2).set_parameters(
        transition=[[0.95, 0.05], [0.08, 0.92]], initial=[0.5, 0.5], constants=[[0.0, 1.0], [2.0, 0.0]],
        lags=[[[[0.9, 0.2], [-0.2, 0.7]]], [[[-0.5, 0.0], [0.1, 0.3]]]],
        covariances=[[[0.3, 0.1], [0.1, 0.2]], [[1.0, 0.0], [0.0, 0.5]]],
    )  # fmt: skip
    return true, scale * true.sample(150, 2, seed=1).x


def test_em_and_gradients_find_the_same_maximum_in_any_units():
    true, x = drawn()
    model = ARHMM(2, 2).fit(x, num_restarts=2, seed=0, max_iterations=60, tolerance=1e-8)
    assert (np.diff(model.history.log_likelihoods) > -1e-9).all() and model.score(x) > true.score(x)
    state = int(model.estimates()["lags"][:, 0, 0, 0].argmax())
    close(model.estimates()["lags"][state, 0], true.estimates()["lags"][0, 0], atol=0.2, rtol=0)
    model.log_joint(x).backward()
    assert max(float(parameter.grad.abs().max()) for parameter in (model.weights, model.scale)) < 0.2  # of 300 vectors
    again = ARHMM(2, 2)
    again.load_state_dict(model.state_dict())
    again.fit(x, method="lbfgs", warm_start=True, num_steps=5)
    assert model.score(x) - 1e-6 <= again.score(x) <= model.score(x) + 0.05
    far = 1e4 * (x + 1e4)
    scaled = ARHMM(2, 2).fit(far, num_restarts=2, seed=0, max_iterations=60, tolerance=1e-8)
    assert scaled.score(far) + 2 * 298 * np.log(1e4) == pytest.approx(model.score(x), abs=1e-3)
    one, two = scaled.forecast(far, 3), model.forecast(x, 3)
    close(one.means / 1e4 - 1e4, two.means, rtol=0, atol=1e-3)
    close(one.covariances / 1e8, two.covariances, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:.*collapsed")
def test_gradients_from_where_states_collapsed_end_no_lower():
    x = np.random.default_rng(1).normal(size=(14, 2)).cumsum(0) * [1, 50]
    model = ARHMM(3, 2).fit(x, seed=1)
    assert any("collapsed" in note for note in model.history.notes)
    before = model.score(x)
    assert model.fit(x, method="lbfgs", warm_start=True).score(x) > before - 1e-9


def test_statistics_have_the_gradient_of_the_likelihood():
    """Fisher's identity."""
    model, x, known = made()
    batch = model._as_batch(x, LENGTHS, **known)
    found = model.expected_statistics(model.posterior(batch.x, batch.lengths, **batch.known), batch)
    model.log_joint(batch.x, batch.lengths, **batch.known).backward()
    close(torch.linalg.solve(model.covariances.detach(), found["cross"]), model.weights.grad)


def test_known_states_folders_and_draws(tmp_path):
    true, x = drawn()
    sample = true.sample(40, 3, seed=2)
    single = ARHMM(2, 2, dtype="float32").fit(sample.x.float() + 50, max_iterations=5, seed=0)
    assert single.score(sample.x.float() + 50) == pytest.approx(single.double().score(sample.x + 50), rel=1e-3)
    model = ARHMM(2, 2).fit(sample.x, states=sample.states, max_iterations=5)
    close(model.estimates()["lags"][0, 0], true.estimates()["lags"][0, 0], atol=0.3, rtol=0)
    again = SequenceModel.load(model.save(tmp_path / "model"))
    assert again.score(x) == model.score(x) and again.config == model.config
    assert torch.equal(again.sample(5, 2, seed=1).x, model.sample(5, 2, seed=1).x)
    assert model.num_free_parameters == 3 + 2 * (2 * 3 + 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: m.score(x.index_fill(1, torch.tensor([3]), torch.nan)), "a number is missing"),
        (lambda m, x: m.score(x[:, :2]), "the first 2 vectors are given"),
        (lambda m, x: m.forecast(x, 2, [5, 1, 3]), "goes on from the last 2 vectors; the shortest row has 1"),
        (lambda m, x: m.set_parameters(lags=[[1.0]]), "lags must"),
        (lambda m, x: m.set_parameters(covariances=torch.zeros(2, 2, 2)), "covariances must be positive definite"),
        (lambda m, x: m.set_parameters(inputs=[1.0]), "inputs: this model has none"),
        (lambda m, x: m.set_parameters(transition=[[0.5, 0.4], [0.5, 0.5]]), "transition: every row"),
        (lambda m, x: m.fit(torch.ones(3, 9, 2)), r"columns \[0, 1\] \(from 0\) hold one value only"),
        (lambda m, x: m.fit(x[:1, :4]), "5 weights of every number need more than 2 vectors"),
        (lambda m, x: m.fit(x, step_size=0.7), "step_size: ARHMM has no stepwise EM"),
        (lambda m, x: ARHMM(2, 2, order=-1), "order"),
        (lambda m, x: ARHMM(2, 2, order=0).score(x.index_fill(2, torch.tensor([0]), torch.nan)), "missing in part"),
    ],
)
def test_what_does_not_fit_is_said(call, message):
    model, x, _ = made(num_inputs=0)
    with pytest.raises(ValueError, match=message):
        call(model, x)
