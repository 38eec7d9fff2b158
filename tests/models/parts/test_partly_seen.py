"""Vectors with missing coordinates in an HMM: marginalised in the likelihood, expected in EM; against sub-Gaussians by hand."""

import math

import numpy as np
import pytest
import torch
from support.oracles.discrete import enumerate_paths
from torch.distributions import MultivariateNormal

from pplseq.distributions.dense import GaussianEmission
from pplseq.models import HMM

close = torch.testing.assert_close
F64 = torch.float64
KINDS = ("diag", "full", "tied", "spherical")
LENGTHS = torch.tensor([4, 3])


def data(rows=2, steps=4, size=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, steps, size, dtype=F64, generator=generator) + 5.0
    gone = torch.rand(x.shape, generator=generator) < 0.4
    gone[0, 1], gone[1, 0] = True, False  # a whole vector; one without gaps
    return x.masked_fill(gone, math.nan)


def small(kind, **options):
    torch.manual_seed(1)
    model = HMM(2, num_features=3, covariance=kind, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, dtype=F64))
        if hasattr(model.emissions, "loc"):
            model.emissions.loc.add_(5.0)
    return model


def density(loc, covariance, x):
    seen = ~x.isnan()
    if not bool(seen.any()):
        return loc.new_zeros(())
    return MultivariateNormal(loc[seen], covariance[seen][:, seen]).log_prob(x[seen])


def truth(model, x, lengths):
    """log p(x) by all paths."""
    locs, covariances = model.emissions.loc, model.emissions.covariances()
    total = torch.zeros((), dtype=F64)
    for row, length in zip(x, lengths.tolist(), strict=True):
        emit = torch.stack(
            [torch.stack([density(*state, one) for state in zip(locs, covariances, strict=True)]) for one in row[:length]]
        )
        matrix = torch.log_softmax(model.transition_logits, -1).expand(length - 1, -1, -1)
        total = total + torch.logsumexp(enumerate_paths(torch.log_softmax(model.initial_logits, -1), matrix, emit)[1], 0)
    return total


def log_prob(model, x, lengths=LENGTHS):
    return model.log_joint(x, lengths)


@pytest.mark.parametrize("kind", KINDS)
def test_the_likelihood_and_its_gradient(kind):
    model, x = small(kind), data()
    found, expected = log_prob(model, x), truth(model, x, LENGTHS)
    close(found, expected, rtol=1e-13, atol=1e-12)  # all digits: a constant in single precision is off by 1e-8 a number
    parameters = list(model.parameters())
    pairs = zip(torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters), strict=True)
    for got, wanted in pairs:
        close(got, wanted)
    close(torch.as_tensor(model.log_prob(x, LENGTHS)).sum(), expected.detach())
    model.vectorize = False
    close(log_prob(model, x), expected)
    other = HMM(2, num_features=3, covariance=kind, dtype="float32")
    other.load_state_dict(model.state_dict())
    close(log_prob(other, x.float()).double(), expected.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_expected_moments_are_those_of_fishers_identity(kind):
    """d log p(x) / d loc = precision (first - weight loc), whatever is missing; and the same for the spread."""
    model, x = small(kind), data()
    gradient = dict(zip(
        dict(model.emissions.named_parameters()), torch.autograd.grad(log_prob(model, x), model.emissions.parameters()),
        strict=True,
    ))  # fmt: skip
    chain = model.posterior(x, LENGTHS)
    moments = model.expected_statistics(chain)
    loc, covariances, weight = model.loc, model.covariances, moments["weight"].unsqueeze(-1)
    found = torch.linalg.solve(covariances, (moments["first"] - weight * loc).unsqueeze(-1)).squeeze(-1)
    close(found, gradient["loc"])
    if kind in ("diag", "spherical"):
        around = moments["second"] - 2 * moments["first"] * loc + weight * loc.square()
        slope = around / covariances.diagonal(dim1=1, dim2=2) - weight
        close(slope if kind == "diag" else slope.sum(-1, keepdim=True), gradient["log_scale"])


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow if kind != "tied" else ()) for kind in KINDS])
def test_em_climbs_to_where_the_gradient_vanishes(kind):
    torch.manual_seed(0)
    model, x = HMM(2, num_features=2, covariance=kind), data(3, 40, 2, seed=3)
    history = model.fit(x, method="em", max_iterations=400, tolerance=1e-10).history
    assert min(np.diff(history.log_posteriors)) > -1e-7
    slopes = torch.autograd.grad(log_prob(model, x, None), list(model.emissions.parameters()))
    assert all(float(slope.abs().max()) < 0.05 for slope in slopes)


def test_mixtures():
    model, x = small("full", emission="mixture", covariance_floor=1e-3), data()
    gaussians = model.emissions.gaussians
    each = [density(*one, x[1, 1]) for one in zip(gaussians.loc, gaussians.covariances(), strict=True)]
    joint = torch.stack(each).reshape(2, 2) + model.emissions.log_weights
    close(model.emissions.spec().log_likelihood(x[1, 1:2])[0], joint.logsumexp(-1))
    many = data(3, 40, seed=4)
    before = float(log_prob(model, many, None).detach())
    model.fit(many, method="em", max_iterations=3, warm_start=True)
    assert float(log_prob(model, many, None).detach()) > before


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_several_sets_of_parameters(kind):
    x = data()
    models = [small(kind), small(kind)]
    with torch.no_grad():
        models[1].emissions.loc.add_(1.0)
    specs = [model.emissions.spec() for model in models]
    name = "scale" if kind == "diag" else "scale_tril"
    stacked = {name: torch.stack([getattr(spec, name) for spec in specs]).unsqueeze(1)}
    both = GaussianEmission(torch.stack([spec.loc for spec in specs]).unsqueeze(1), **stacked)
    close(both.log_likelihood(x[0]), torch.stack([spec.log_likelihood(x[0]) for spec in specs]))


def test_priors_and_gradients_run_over_gaps():
    x = data()
    model = HMM(2, num_features=3, covariance="full", priors=True)
    model.fit(x, LENGTHS, method="svi", num_steps=2)
    model.fit(x, LENGTHS, method="em", max_iterations=2)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    close(model.smooth(x, LENGTHS).probs.sum(-1)[1], torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=F64))


def test_a_column_that_nobody_has_seen():
    x = data()
    x[..., 1] = math.nan
    with pytest.raises(ValueError, match="column 1 is NaN everywhere"):
        HMM(2, num_features=3).fit(x)
