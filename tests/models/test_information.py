"""Standard errors of every model that has them: the inverse of second derivatives by finite differences."""

import warnings

import numpy as np
import pytest
import torch

from pplseq import ARHMM, HMM, IOHMM, LDS, VLHMM, SwitchingRegression
from pplseq.models import ConstrainedLDS

F64 = torch.float64
STEP = 1e-4


def by_differences(model, batch):
    """Names, standard errors, the share of each slope in directions of which the data say nothing, and that slope."""
    raw = [parameter for parameter in model.parameters() if parameter.requires_grad]
    used = torch.cat([parameter.detach().isfinite().flatten() for parameter in raw])
    names = [f"{name}{place}" for name, value in model.estimates().items() for place in np.ndindex(*value.shape)]

    def shifted(place, by, what):
        left = place
        for parameter in raw:
            if left < parameter.numel():
                with torch.no_grad():
                    parameter.view(-1)[left] += by
                found = what()
                with torch.no_grad():
                    parameter.view(-1)[left] -= by
                return found
            left -= parameter.numel()
        raise AssertionError

    def slope():
        value = model.log_joint(batch.x, batch.lengths, **batch.known)
        parts = torch.autograd.grad(value, raw, allow_unused=True)
        return torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(raw, parts, strict=True)])

    def told():
        return torch.cat([value.detach().flatten() for value in model.estimates().values()])

    places = used.nonzero().flatten().tolist()
    second = torch.stack([(shifted(p, STEP, slope) - shifted(p, -STEP, slope)) / (2 * STEP) for p in places])[:, used]
    jacobian = torch.stack([(shifted(p, STEP, told) - shifted(p, -STEP, told)) / (2 * STEP) for p in places], -1)
    values, vectors = torch.linalg.eigh(-(second + second.T) / 2)
    known = values > 1e-6 * values.abs().max()
    slopes = jacobian @ vectors
    errors = (slopes.square() * torch.where(known, 1 / values.where(known, 1.0), 0.0)).sum(-1).sqrt()
    size = slopes.square().sum(-1)
    return names, errors, slopes[:, ~known].square().sum(-1) / size.clamp_min(1e-300), size


def regimes(seed=0, steps=60):
    random = np.random.default_rng(seed)
    return random.normal(size=steps) * 0.6 + np.where(np.arange(steps) // 15 % 2, 2.5, -1.0)


def hmm():
    return HMM(2, num_features=1, start_states=[0]), regimes(), {}


def counts():
    return HMM(2, emission="poisson", start_states=[0]), np.random.default_rng(1).poisson(np.repeat([2, 9, 3, 8], 20)), {}


def noisy():
    return HMM(2, num_features=1, start_states=[0]), regimes(), {"emission_noises": torch.full((60, 1, 1), 0.2, dtype=F64)}


def arhmm():
    rows = [regimes(seed, 40) * (-1.0) ** seed for seed in range(4)]  # which begin in either state
    return ARHMM(2, 1, order=1), rows, {}


def switching():
    return SwitchingRegression(2, switching=("mean", "variance")), regimes(), {}


def iohmm():
    inputs = np.random.default_rng(5).normal(size=(60, 1))
    x = (regimes() + 0.8 * inputs[:, 0])[:, None]
    return IOHMM(2, num_inputs=1, num_outputs=1, outputs="gaussian", mealy=True), [x], {"inputs": [inputs]}


def constrained():
    patterns = dict(transition=[["a"]], emission=[[1], [1]], emission_noise="scalar")
    patterns |= dict(initial_mean="zero", initial_covariance=[[1]])
    level = np.random.default_rng(2).normal(size=40).cumsum() * 0.3
    x = level[:, None] + 0.5 * np.random.default_rng(3).normal(size=(40, 2))
    return ConstrainedLDS(1, 2, patterns, offsets="emission"), [x], {}


def lds():
    level = np.random.default_rng(2).normal(size=(3, 40)).cumsum(-1) * 0.3
    x = level[..., None] + 0.5 * np.random.default_rng(3).normal(size=(3, 40, 2))
    return LDS(1, 2, offsets="none", initial="stationary"), [*(0.9 * x)], {}


@pytest.mark.parametrize("case", [hmm, counts, noisy, arhmm, switching, iohmm, constrained, lds])
def test_errors_are_those_of_finite_differences(case):
    torch.manual_seed(0)
    model, x, known = case()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which have none is seen below
        model.fit(x, **known, seed=0)
        if "lbfgs" in model.methods:
            model.fit(x, **known, method="lbfgs", warm_start=True, num_steps=30)
        found = model.summary(x, **known)
        names, errors, lost, size = by_differences(model, model._as_batch(x, **known))
    assert len(names) == len(found.names)
    moved = size > 1e-9  # a probability of 0 or 1 does not move with its logits
    seen = (lost < 1e-8) & moved
    assert int(seen.sum()) >= min(4, len(names) - 2)
    assert torch.equal(~found.errors[moved].isnan(), seen[moved]), (dict(zip(names, lost.tolist(), strict=True)), found.errors)
    torch.testing.assert_close(found.errors[seen], errors[seen], rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("seed", [12, 20])
def test_a_direction_that_says_nothing_takes_no_error_from_others(seed):
    """Fits that end a little before the maximum, where the likelihood is not quite flat in the scale of the state."""
    truth = LDS(1, 1, offsets="none", initial="stationary").set_parameters(
        transition=[[0.8]], state_noise=[[0.5]], emission=[[1.0]], emission_noise=[[0.3]]
    )
    x = truth.sample(50, 20, seed=seed).x
    table = truth.fit(x, warm_start=True).summary(x)
    errors = dict(zip(table.names, table.errors.tolist(), strict=True))
    assert errors["transition[0][0]"] == pytest.approx(0.028, abs=0.004)  # results/standard_errors.json: a spread of .030
    assert np.isnan(errors["emission[0][0]"]) and np.isnan(errors["state_noise[0][0]"])


def test_intervals_hold_what_they_say():
    model, x = HMM(2, 3), torch.randint(3, (4, 60), generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = model.fit(x, seed=0).summary(x)
    for level, deviations in ((0.95, 1.959964), (0.9, 1.644854), (0.6826895, 1.0)):
        low, high = table.intervals(level).unbind(-1)
        torch.testing.assert_close(high - table.estimates, deviations * table.errors, rtol=1e-6, atol=0, equal_nan=True)
        torch.testing.assert_close(table.estimates - low, deviations * table.errors, rtol=1e-6, atol=0, equal_nan=True)


def test_second_derivatives_that_no_memory_holds_are_refused_at_once():
    model = VLHMM(8, num_words=4)
    model.is_fitted = True
    with pytest.raises(ValueError, match="summary: this takes .* GB of memory, .* second derivatives"):
        model.summary([[0, 1, 2, 3]])


@pytest.mark.parametrize("held", ["fixed", "bounds"])
def test_what_is_held_takes_its_share_of_a_row_and_no_error(held):
    """The others are shares of what is left: a multinomial of the words that are not held."""
    x = np.repeat([0, 1, 2, 3], [5, 30, 20, 45])
    model = HMM(1, 4).set_parameters(emission=[[0.2, 0.2, 0.3, 0.3]])
    known = {"fixed": {"emission": np.array([[True, False, False, False]])}, "bounds": {"emission": ([[0.2, 0, 0, 0]], 1.0)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.fit(x, **{held: known[held]}).summary(x)
    share = np.array([30, 20, 45]) / 95
    np.testing.assert_allclose(found.estimates[3:], 0.8 * share, rtol=1e-6)
    np.testing.assert_allclose(found.errors[3:], 0.8 * np.sqrt(share * (1 - share) / 95), rtol=1e-6)
    assert found.errors[2].isnan() and (found.fixed + tuple(found.bounds)) == ("emission[0][0]",)
    whole = np.array([[True, True, True, False]])
    assert model.fit(x, fixed={"emission": whole}).summary(x).errors[5] == 0  # nothing is left to choose


@pytest.mark.parametrize("method", ["em", "lbfgs"])
def test_a_mean_at_its_bound_has_no_error_and_others_are_as_if_it_were_known(method):
    x = np.random.default_rng(0).normal(1.0, 2.0, size=60)
    model = HMM(1, num_features=1).fit(x, bounds={"loc": (1.5, None)}, method=method)
    with pytest.warns(RuntimeWarning, match="at its bound 1.5"):
        found = model.summary(x)
    precision = 1 / np.square(x - 1.5).mean()
    assert found.bounds == {"loc[0][0]": pytest.approx(1.5)} and found.errors[2].isnan()
    np.testing.assert_allclose(found.errors[3], precision * np.sqrt(2 / 60), rtol=1e-3)
    assert not HMM(1, num_features=1).fit(x, bounds={"loc": (0.5, None)}, method=method).summary(x).bounds


def test_weights_at_their_bounds_have_no_errors():
    draws = np.random.default_rng(0)
    u = draws.normal(size=(60, 2))
    x = (u @ [1.0, -1.0] + draws.normal(size=60))[:, None]
    model = IOHMM(1, num_inputs=2, num_outputs=1, outputs="gaussian", mealy=True)
    model.fit(x, inputs=u, bounds={"emission_network.weight": (-0.5, 0.5)}, method="sgd", num_steps=200, lr=0.1, seed=0)
    with pytest.warns(RuntimeWarning, match="is at its bound 0.5"):
        found = model.summary(x, inputs=u)
    assert [*found.bounds] == ["emission[0].x0.u0", "emission[0].x0.u1"] and found.errors[1:3].isnan().all()
    np.testing.assert_allclose(found.errors[3:], float(found.estimates[-1]) / np.sqrt([60, 120]), rtol=2e-2)


@pytest.mark.parametrize("method", ["em", "lbfgs"])
def test_means_that_an_order_makes_equal_are_one_number(method):
    draws, states = np.random.default_rng(0), np.repeat([0, 1, 2], 20)
    x = draws.normal(size=60) + np.array([1.0, 0.0, 3.0])[states]
    model = HMM(3, num_features=1).fit(x, states=states, bounds={"loc": "increasing"}, method=method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.summary(x, states=states)
    loc, precision = (torch.tensor([names.startswith(part) for names in found.names]) for part in ("loc", "precision"))
    errors, each = found.errors[loc], found.estimates[precision]
    mean, gaps = float(found.estimates[loc][0]), torch.tensor([x[states == state].sum() for state in (0, 1)])
    assert errors[0] == errors[1] == found.covariance[loc][:, loc][0, 1].sqrt()
    # a mean, beside two precisions that it is the mean by
    information = torch.zeros(3, 3, dtype=F64)
    information[0, 0] = 20 * each[:2].sum()
    for state in (0, 1):
        information[0, 1 + state] = information[1 + state, 0] = -(gaps[state] - 20 * mean)
        information[1 + state, 1 + state] = 10 / each[state] ** 2
    np.testing.assert_allclose(errors[0], information.inverse()[0, 0].sqrt(), rtol=1e-3)
