"""Random intercepts of groups: against integrals on a fine grid, and from data whose spread is known."""

import math

import numpy as np
import pytest
import torch
from random_effects import RandomEffects, _widened, checked_groups, fit_random_effects

from pplseq.models import IOHMM

pytestmark = pytest.mark.slow  # no part of the library

GAUSSIAN = dict(outputs="gaussian", num_outputs=1, mealy=True, num_inputs={"emission": 1})


def drawn(sigma, groups=60, steps=40, seed=0, turn=0.0):
    """Two regimes, and groups with levels of their own; with ``turn``, log odds of staying that differ by group."""
    generator = torch.Generator().manual_seed(seed)
    effect = torch.randn(groups, generator=generator).double()
    u = torch.randn(groups, steps, 1, generator=generator).double()
    z = torch.zeros(groups, steps, dtype=torch.long)
    z[:, 0] = torch.randint(2, (groups,), generator=generator)
    moves = torch.rand(groups, steps, generator=generator) < torch.sigmoid(-1.5 + turn * effect)[:, None]
    for t in range(1, steps):
        z[:, t] = torch.where(moves[:, t], 1 - z[:, t - 1], z[:, t - 1])
    mean = torch.where(z == 0, 1 + 0.8 * u[..., 0], 4 - u[..., 0]) + sigma * effect[:, None]
    return (mean + 0.5 * torch.randn(mean.shape, generator=generator).double()).unsqueeze(-1), u, effect


def fitted(x, u):
    return IOHMM(2, **GAUSSIAN).fit(x, inputs={"emission": u}, num_restarts=2, seed=0)


@pytest.mark.parametrize("sigma", [0.8, 0.3])
def test_a_known_spread_is_found(sigma):
    x, u, effect = drawn(sigma)
    plain = fitted(x, u)
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    found = fit_random_effects(plain, x, range(len(x)), inputs={"emission": u})
    error = sigma / math.sqrt(2 * len(x))
    assert abs(float(found.spread) - sigma) < 2 * error + 0.01 and found.converged
    assert found.num_free_parameters == plain.num_free_parameters + 1
    assert found.log_likelihood > plain.score(x, inputs={"emission": u}) + 50
    assert found.log_likelihood == pytest.approx(found.score(x, range(len(x)), inputs={"emission": u}), abs=1e-4)
    weight = found.model.network("emission").weight.detach()[:, :, 0]
    slopes = weight[weight[:, -1].argsort()]
    np.testing.assert_allclose(slopes[:, 0], [0.8, -1], atol=0.1)
    assert (weight[:, 1] == 1).all()  # an effect stands for itself
    effects = found.effects(x, range(len(x)), inputs={"emission": u})
    mean, deviation = torch.tensor(list(effects.values())).T
    assert float(torch.corrcoef(torch.stack([mean, effect]))[0, 1]) > 0.9
    outside = ((mean * found.spread - sigma * effect).abs() > 2.6 * deviation * found.spread).sum()
    assert int(outside) < 12  # the mean of all effects is the intercept's, so that all are off by a little
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())
    # questions go on with the effects as inputs
    more = found.inputs(x, range(len(x)), inputs={"emission": u})
    assert more["emission"].shape == (60, 40, 2)
    assert found.model.score(x, inputs=more) > plain.score(x, inputs={"emission": u})


@pytest.mark.filterwarnings("ignore:max_rounds")
def test_no_spread_is_the_plain_model():
    x, u, _ = drawn(0.0, groups=12)
    plain = fitted(x, u)
    expected = plain.score(x, inputs={"emission": u})
    found = fit_random_effects(plain, x, range(len(x)), inputs={"emission": u}, max_rounds=1)
    own = found.model.state_dict()
    for name, value in plain.state_dict().items():
        if name == "emission_network.weight":
            own[name][:, [0, -1]] = value
        else:
            own[name].copy_(value)
    found._spread.data.zero_()
    assert found.score(x, range(len(x)), inputs={"emission": u}) == pytest.approx(expected, abs=1e-8)
    # data without differences: the spread is near nothing, and so is the gain
    found = fit_random_effects(plain, x, range(len(x)), inputs={"emission": u})
    assert float(found.spread) < 0.12 and 0 <= found.log_likelihood - plain.score(x, inputs={"emission": u}) < 2


def grid_integral(found, x, u, groups, lengths):
    """log p(x) by the trapezoidal rule over 1,001 values of each group's effect, by forward sums of its own."""
    grid = torch.linspace(-9, 9, 1001).double()
    model = found.model
    start = torch.softmax(model.network("initial").logits.detach(), -1)
    spread = found._spread.detach()
    total = 0.0
    for group in dict.fromkeys(groups):
        log_prob = torch.zeros(len(grid)).double()
        for row in [row for row, own in enumerate(groups) if own == group]:
            alpha = start.expand(len(grid), -1)
            for t in range(int(lengths[row])):
                if found.part == "emission":
                    weight = model.network("emission").weight.detach()[..., 0]
                    mean = (weight[:, 0] * u[row, t] + weight[:, -1]) + (spread * grid)[:, None]
                    if t:
                        alpha = alpha @ torch.softmax(model.network("transition").logits.detach(), -1)
                else:
                    weight = model.network("emission").weight.detach()[..., 0]
                    mean = (weight[:, 0] * u[row, t] + weight[:, -1]).expand(len(grid), -1)
                    if t:
                        matrix = torch.softmax(model.network("transition")(grid[:, None]).detach(), -1)
                        alpha = (alpha.unsqueeze(1) @ matrix).squeeze(1)
                if not bool(x[row, t].isnan()):
                    noise = model.noise.log_scale.detach()[:, 0].exp()
                    alpha = alpha * torch.distributions.Normal(mean, noise).log_prob(x[row, t]).exp()
                norm = alpha.sum(-1, keepdim=True)
                log_prob, alpha = log_prob + norm[:, 0].log(), alpha / norm
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(grid)
        total += float(torch.logsumexp(log_prob + prior, 0) + math.log(18 / 1000))
    return total


@pytest.mark.filterwarnings("ignore:max_rounds")
@pytest.mark.parametrize("part", ["emission", "transition"])
def test_the_likelihood_is_the_integral(part):
    x, u, _ = drawn(0.5, groups=9, steps=25)
    lengths = torch.tensor([25, 3, 25, 10, 25, 1, 25, 7, 25])
    x[2, 4:6] = torch.nan
    groups = ["a", "a", "b", "c", "b", "d", "e", "e", "a"]
    inputs = {"emission": u}
    plain = fitted(x, u)
    found = fit_random_effects(plain, x, groups, lengths, inputs=inputs, part=part, max_rounds=2, num_nodes=15)
    value = found.score(x, groups, lengths, inputs=inputs)
    assert value == pytest.approx(grid_integral(found, x, u, groups, lengths), abs=2e-4)
    assert list(found.effects(x, groups, lengths, inputs=inputs)) == list("abcde")
    if part == "transition":
        return
    # the gradient that the fit goes by is that of the integral
    data = found._data(x, groups, lengths, inputs)
    mean, scale = found._adapted(data)
    found._log_marginal(data, mean, scale)[0].sum().backward()
    slope = float(found._spread.grad)
    ends = []
    for step in (1e-4, -1e-4):
        with torch.no_grad():
            found._spread += step
            ends.append(grid_integral(found, x, u, groups, lengths))
            found._spread -= step
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=2e-3, abs=2e-3)


def test_rounds_that_run_out_are_told():
    x, u, _ = drawn(0.8, groups=5, steps=10)
    with pytest.warns(RuntimeWarning, match="max_rounds = 1 ran out"):
        found = fit_random_effects(fitted(x, u), x, range(5), inputs={"emission": u}, max_rounds=1)
    assert not found.converged


def test_transitions_that_differ_by_group():
    x, u, effect = drawn(0.0, groups=30, turn=1.0, steps=80)
    plain = fitted(x, u)
    found = fit_random_effects(plain, x, range(len(x)), inputs={"emission": u}, part="transition")
    assert found.log_likelihood > plain.score(x, inputs={"emission": u}) + 10
    odds = (found.spread - found.spread.diagonal()[:, None]).abs().sum(-1)  # what eta adds to the log odds of leaving
    np.testing.assert_allclose(odds, 1.0, atol=0.35)
    means = torch.tensor([mean for mean, _ in found.effects(x, range(len(x)), inputs={"emission": u}).values()])
    assert abs(float(torch.corrcoef(torch.stack([means, effect]))[0, 1])) > 0.7
    assert found.num_free_parameters == plain.num_free_parameters + 2


def precise(noise, steps=40):
    """Six levels without regimes, known to ``noise`` / sqrt(``steps``), where the likelihood has a formula."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 1, 1, generator=generator).double() + noise * torch.randn(6, steps, 1, generator=generator).double()
    plain = IOHMM(1, num_inputs=0, outputs="gaussian", num_outputs=1).fit(x, num_restarts=1, seed=0)
    found = RandomEffects(_widened(plain, "emission", torch.Generator()), "emission", torch.ones(1).double(), 3, 9, plain)
    found.model.set_parameters(**{"noise.log_scale": torch.full((1, 1), math.log(noise)).double()})
    return found, x


@pytest.mark.parametrize("noise", [1.0, 1e-2, 1e-4, 1e-6])
def test_effects_however_precisely_they_are_known(noise):
    found, x = precise(noise)
    mean = found.model.network("emission").weight.detach()[0, -1].expand(40)
    covariance = noise**2 * torch.eye(40).double() + 1.0
    expected = float(torch.distributions.MultivariateNormal(mean, covariance).log_prob(x[..., 0]).sum())
    assert found.score(x, range(6)) == pytest.approx(expected, abs=1e-5 if noise > 1e-5 else 0.1)  # the formula's rounding
    deviations = [deviation for _, deviation in found.effects(x, range(6)).values()]
    np.testing.assert_allclose(deviations, (1 + 40 / noise**2) ** -0.5, rtol=1e-6)


@pytest.mark.parametrize("noise", [0.3, 3e-4])
def test_the_fit_comes_to_the_formula_of_the_maximum(noise):
    _, x = precise(noise)
    plain = IOHMM(1, num_inputs=0, outputs="gaussian", num_outputs=1).fit(x, num_restarts=1, seed=0)
    found = fit_random_effects(plain, x, range(6))
    means = x[..., 0].mean(1)
    variance = float((x[..., 0] - means[:, None]).square().sum()) / (6 * 39)
    spread = math.sqrt(float((means - means.mean()).square().mean()) - variance / 40)
    assert found.converged and float(found.spread) == pytest.approx(spread, rel=1e-3)
    assert float(found.model.noise.covariances()) == pytest.approx(variance, rel=1e-3)


def test_what_numbers_cannot_tell_is_refused():
    found, x = precise(1e-13)
    with pytest.raises(FloatingPointError, match="groups: the effect of 0 is known more precisely"):
        found.score(x, range(6))


@pytest.mark.filterwarnings("ignore:max_rounds")
def test_columns_are_read_by_name():
    pandas = pytest.importorskip("pandas")
    generator = np.random.default_rng(0)
    u = generator.random((6, 10, 2))
    y = 2 * u[..., :1] - u[..., 1:] + generator.normal(size=(6, 1, 1)) + 0.3 * generator.normal(size=(6, 10, 2)) + [0, 5]
    x = [pandas.DataFrame(row, columns=["p", "q"]) for row in y]
    inputs = [pandas.DataFrame(row, columns=["a", "b"]) for row in u]
    plain = IOHMM(1, num_inputs={"emission": 2}, outputs="gaussian", num_outputs=2, mealy=True)
    plain.fit(x, inputs={"emission": inputs}, num_restarts=1, seed=0)
    for turned in (plain, IOHMM(**plain.get_params())):
        turned.load_state_dict(plain.state_dict())
        turned.is_fitted = True
        found = fit_random_effects(turned, x, range(6), inputs={"emission": inputs}, max_rounds=2)
        value = found.score(x, range(6), inputs={"emission": inputs})
        other = [row[["q", "p"]] for row in x]
        assert found.score(other, range(6), inputs={"emission": inputs}) == pytest.approx(value)
        own = found.inputs(x, range(6), inputs={"emission": inputs})
        assert found.model.score(other, inputs=own) == pytest.approx(found.model.score(x, inputs=own))
        if turned is plain:
            again = fit_random_effects(turned, other, range(6), inputs={"emission": inputs}, max_rounds=2)
            assert again.log_likelihood == pytest.approx(found.log_likelihood)
        with pytest.raises(ValueError, match="no column 'p'"):
            found.score([row.rename(columns={"p": "r"}) for row in x], range(6), inputs={"emission": inputs})
    one = IOHMM(1, num_inputs=2, outputs="gaussian", num_outputs=2, mealy=True).fit(x, inputs=inputs, num_restarts=1, seed=0)
    found = fit_random_effects(one, x, range(6), inputs=inputs, max_rounds=2)
    swapped = [row[["b", "a"]] for row in inputs]
    assert found.score(x, range(6), inputs=swapped) == found.score(x, range(6), inputs=inputs)
    with pytest.raises(ValueError, match="no column 'a'"):
        found.score(x, range(6), inputs=[row.rename(columns={"a": "c"}) for row in inputs])


def test_outputs_that_go_in_opposite_directions():
    generator = torch.Generator().manual_seed(0)
    effect = torch.randn(20, generator=generator).double()
    x = torch.stack([-effect, 2 * effect], -1)[:, None] + 0.5 * torch.randn(20, 15, 2, generator=generator).double()
    plain = IOHMM(1, num_inputs=0, outputs="gaussian", num_outputs=2).fit(x, num_restarts=1, seed=0)
    found = fit_random_effects(plain, x, range(20))
    assert float(found.spread[0]) > 0 > float(found.spread[1])
    means = torch.tensor([mean for mean, _ in found.effects(x, range(20)).values()])
    levels = means[:, None] * found.spread
    for own, truth in zip(levels.T, (-effect, 2 * effect), strict=True):
        assert float(torch.corrcoef(torch.stack([own, truth]))[0, 1]) > 0.95


def test_weights_of_transitions_say_nothing_that_data_do_not():
    generator = torch.Generator().manual_seed(0)
    x = (torch.arange(20) // 7)[None, :, None].double() * 4 + torch.randn(5, 20, 1, generator=generator).double() / 2
    graph = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 1]]).bool()
    plain = IOHMM(3, num_inputs=0, outputs="gaussian", num_outputs=1, graph=graph).fit(x, num_restarts=2, seed=0)
    found = fit_random_effects(plain, x, range(5), part="transition", max_rounds=60)
    with torch.no_grad():
        found.model.network("transition").weight[:, -2] += torch.tensor([[2.0], [3.0], [-1.0]]).double()
        found.model.network("transition").weight[0, -2, :2] += torch.tensor([-0.5, 0.5]).double()
    before = found.score(x, range(5))
    found._rewrite()
    assert found.score(x, range(5)) == pytest.approx(before, abs=1e-8)
    torch.testing.assert_close(found.spread.sum(1), torch.zeros(3).double(), atol=1e-9, rtol=0)
    assert bool((found.spread[~graph] == 0).all()) and float(found.spread[0, 0]) > 0.4 and float(found.spread[2, 2]) == 0


@pytest.mark.parametrize("kind", [torch.tensor, lambda values: list(torch.tensor(values)), np.array])
def test_groups_are_told_apart_by_value(kind):
    assert checked_groups(kind([3, 1, 3]), 3) == [3, 1, 3]


@pytest.mark.filterwarnings("ignore:max_rounds")
@pytest.mark.parametrize("options", [dict(outputs=["poisson", "normal"]), dict(outputs="bernoulli", num_outputs=2)])
def test_other_outputs(options):
    torch.manual_seed(0)
    truth = IOHMM(2, num_inputs=0, **options)
    truth.is_fitted = True
    x = truth.sample(num_sequences=10, num_steps=15, seed=0).x
    plain = IOHMM(2, num_inputs=0, **options).fit(x, num_restarts=2, seed=0, max_iterations=20)
    found = fit_random_effects(plain, x, [row // 2 for row in range(10)], max_rounds=1)
    assert found.log_likelihood > plain.score(x) - 1e-3 and found.spread.shape == (2,)
    assert len(found.effects(x, range(10))) == 10


@pytest.mark.parametrize(
    "options, known, message",
    [
        (dict(num_inputs=1, num_outputs=3), {}, "part: effects on outputs that are classes"),
        (dict(num_symbols=2, num_outputs=3), {"part": "transition"}, "got a network a lookup table of symbols"),
        (GAUSSIAN, {"groups": [1, 2]}, "groups: expected one for each of 3 sequences"),
        (GAUSSIAN, {"part": "initial"}, "part"),
        (GAUSSIAN | {"hidden": (3,)}, {}, "got a network with hidden layers"),
        (GAUSSIAN | {"priors": True}, {}, "without priors and feedback; this one has priors"),
        (GAUSSIAN, {"num_nodes": 0}, "num_nodes"),
        (GAUSSIAN, {"num_nodes": 4}, "num_nodes: expected 5 or more"),
        (GAUSSIAN, {"groups": None}, "groups: expected one for each of 3 sequences.*got None"),
        (GAUSSIAN, {"groups": (i for i in range(3))}, "groups: expected one for each of 3 sequences.*generator"),
        (GAUSSIAN, {"groups": [[1], [2], [2]]}, r"groups: expected one .*got \[1\] for sequence 0"),
        (GAUSSIAN, {"groups": [1, 2, None]}, "groups: expected one .*got None for sequence 2"),
        (GAUSSIAN, {"groups": [1.0, math.nan, 2.0]}, "groups: expected one .*got nan for sequence 1"),
        (GAUSSIAN | {"initial": "stationary"}, {"part": "transition"}, "part: expected 'emission' for a model with a stat"),
        (GAUSSIAN | {"num_states": 1}, {"part": "transition"}, "part: expected 'emission' for a model in which no state"),
        (
            GAUSSIAN | {"num_inputs": {"transition": 1}, "mealy": False, "embeddings": {0: (5, 2)}}, {},
            "model: random effects are of models without embeddings",
        ),
    ],
)
def test_what_has_no_random_effects(options, known, message):
    model = IOHMM(**({"num_states": 2} | options))
    model.is_fitted = True
    x = torch.zeros(3, 4, 1).double() if options is not None and "outputs" in options else torch.zeros(3, 4, dtype=torch.long)
    groups = known.pop("groups", [1, 2, 3])
    u = torch.zeros(3, 4, dtype=torch.long) if "num_symbols" in options else torch.zeros(3, 4, 1).double()
    inputs = {"emission": u} if options.get("mealy") else u
    with pytest.raises(ValueError, match=message):
        fit_random_effects(model, x, groups, inputs=inputs, **known)
