"""Random intercepts of groups: against integrals on a fine grid, and from data whose spread is known."""

import math

import numpy as np
import pytest
import torch

from pplseq.models import IOHMM
from pplseq.models.iohmm.random_effects import fit_random_effects

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
    return IOHMM(2, **GAUSSIAN).fit(x, inputs={"emission": u}, num_restarts=5, seed=0)


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
    """log p(x) by the trapezoidal rule over 4,001 values of each group's effect, by forward sums of its own."""
    grid = torch.linspace(-9, 9, 4001).double()
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
        total += float(torch.logsumexp(log_prob + prior, 0) + math.log(18 / 4000))
    return total


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


def test_transitions_that_differ_by_group():
    x, u, effect = drawn(0.0, turn=1.0, steps=80)
    plain = fitted(x, u)
    found = fit_random_effects(plain, x, range(len(x)), inputs={"emission": u}, part="transition")
    assert found.log_likelihood > plain.score(x, inputs={"emission": u}) + 10
    odds = (found.spread - found.spread.diagonal()[:, None]).abs().sum(-1)  # what eta adds to the log odds of leaving
    np.testing.assert_allclose(odds, 1.0, atol=0.35)
    means = torch.tensor([mean for mean, _ in found.effects(x, range(len(x)), inputs={"emission": u}).values()])
    assert abs(float(torch.corrcoef(torch.stack([means, effect]))[0, 1])) > 0.7
    assert found.num_free_parameters == plain.num_free_parameters + 2


@pytest.mark.parametrize("options", [dict(outputs=["poisson", "normal"]), dict(outputs="bernoulli", num_outputs=2)])
def test_other_outputs(options):
    torch.manual_seed(0)
    truth = IOHMM(2, num_inputs=0, **options)
    x = truth.sample(num_sequences=10, num_steps=15, seed=0).x
    plain = IOHMM(2, num_inputs=0, **options).fit(x, num_restarts=2, seed=0, max_iterations=20)
    found = fit_random_effects(plain, x, [row // 2 for row in range(10)], max_rounds=3)
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
    ],
)
def test_what_has_no_random_effects(options, known, message):
    model = IOHMM(2, **options)
    model.is_fitted = True
    x = torch.zeros(3, 4, 1).double() if options is not None and "outputs" in options else torch.zeros(3, 4, dtype=torch.long)
    groups = known.pop("groups", [1, 2, 3])
    u = torch.zeros(3, 4, dtype=torch.long) if "num_symbols" in options else torch.zeros(3, 4, 1).double()
    inputs = {"emission": u} if "outputs" in options else u
    with pytest.raises(ValueError, match=message):
        fit_random_effects(model, x, groups, inputs=inputs, **known)
