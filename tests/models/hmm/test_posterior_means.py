"""Draws of NUTS for every family of emissions: their means are those of quadrature, within the error of the chain.

Two states share one emission, so that the posterior of its parameters is that of independent numbers, while starts and moves,
of which the numbers say nothing, keep their prior.
"""

import math

import pytest
import torch

from pplseq import HMM
from pplseq.models.hmm.families import FAMILIES, family_of

F64 = torch.float64
X = {
    "poisson": [3, 1, 4, 2, 2, 5], "negative_binomial": [3, 0, 9, 2, 1, 5], "exponential": [0.4, 1.3, 0.2, 2.0, 0.7],
    "bernoulli": [1, 0, 1, 1, 1, 0], "normal": [0.3, -0.8, 1.1, 0.4, 0.1], "student_t": [0.3, -0.8, 4.1, 0.4, 0.1],
    "von_mises": [0.3, -0.4, 0.9, 0.1, 0.5], "Laplace": [0.3, -0.8, 1.1, 0.4, 0.1],
}  # fmt: skip
PRIORS = {  # of the value where it is real, of its logarithm where it is positive, of its log odds between 0 and 1
    "poisson": {"rate": (1.0, 0.5)}, "negative_binomial": {"mean": (1.0, 0.5), "size": (1.0, 0.5)},
    "exponential": {"rate": (0.0, 0.7)}, "bernoulli": {"probs": (0.0, 1.0)}, "normal": {"loc": (0.0, 1.0), "scale": (0.0, 0.5)},
    "student_t": {"loc": (0.0, 1.0), "scale": (0.0, 0.5), "df": (1.5, 0.5)}, "von_mises": {"concentration": (1.0, 0.5)},
    "Laplace": {"loc": (0.0, 1.0), "scale": (0.0, 0.5)},
}  # fmt: skip
LINKS = {"probs": torch.sigmoid, "loc": lambda u: u}


def quadrature(family, x):
    """Posterior means of the parameters of independent numbers, on a grid of what they are before the link."""
    names, axes, prior, values = list(family_of(family).parameters), [], 0.0, {}
    for name in names:
        if name in PRIORS[family]:
            mean, deviation = PRIORS[family][name]
            axes.append(mean + deviation * torch.linspace(-6, 6, 81, dtype=F64))
        else:
            axes.append(torch.linspace(-math.pi, math.pi, 181, dtype=F64))  # even on the circle
    for name, u in zip(names, torch.meshgrid(*axes, indexing="ij"), strict=True):
        if name in PRIORS[family]:
            mean, deviation = PRIORS[family][name]
            prior = prior - ((u - mean) / deviation).square() / 2
        values[name] = LINKS.get(name, torch.exp)(u)
    density = prior + sum(family_of(family).make(**values).log_prob(number) for number in torch.tensor(x, dtype=F64))
    weight = (density - density.max()).exp()
    return {name: float((weight * value).sum() / weight.sum()) for name, value in values.items()}


def agrees(draws, wanted):
    """Whether the mean of a chain (S,) is a number, within five standard errors of batch means."""
    batches = draws.unflatten(0, (10, -1)).mean(1)
    error = float(batches.std()) / math.sqrt(len(batches))
    assert abs(float(draws.mean()) - wanted) < 5 * error + 1e-3, (float(draws.mean()), wanted, error)
    assert 0 < error < 0.5 * max(abs(wanted), 0.3), "the chain moved, and its mean says something"


def drawn(x, **options):
    model = HMM(2, ties=[0, 0], **options)
    return model.fit([x], method="nuts", num_samples=200, warmup_steps=100, seed=0, max_tree_depth=5).history.samples


def test_every_family_has_a_case():
    assert set(FAMILIES) <= set(X) == set(PRIORS)


@pytest.mark.slow
@pytest.mark.parametrize("family", X)
def test_parameters_of_families(family):
    found = drawn(torch.tensor(X[family], dtype=F64)[:, None], emission=family, priors={"parameters": PRIORS[family]})
    for name, wanted in quadrature(family, X[family]).items():
        agrees(found[name][:, 0, 0], wanted)
    agrees(found["transition"][:, 0, 0], 0.5)
    agrees(found["initial"][:, 0], 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [*({"covariance": kind} for kind in ("diag", "full", "tied", "spherical")), {"emission": "mixture"}]
)
def test_means_and_precisions_of_gaussians(options):
    """Conjugate, so that both means are known; a mixture of one component is one of these."""
    x, strength, shape, rate, about = torch.tensor(X["normal"], dtype=F64), 0.5, 3.0, 2.0, 0.4
    priors = dict(loc=about, loc_strength=strength, precision_shape=shape, precision_rate=rate)
    more = {"num_components": 1} if "emission" in options else {}
    found = drawn(x[:, None], num_features=1, priors=priors, **options, **more)
    count, mean = len(x), float(x.mean())
    agrees(found["loc"].flatten(1)[:, 0], (strength * about + count * mean) / (strength + count))
    spread = float((x - mean).square().sum()) / 2 + strength * count * (mean - about) ** 2 / (2 * (strength + count))
    agrees(found["precision"].flatten(1)[:, 0], (shape + count / 2) / (rate + spread))


@pytest.mark.slow
def test_tables_of_words():
    found = drawn([0, 2, 2, 1, 2, 0], num_words=3, priors=dict(emission=2.0))
    for word, count in enumerate((2, 1, 3)):
        agrees(found["emission"][:, 0, word], (2 + count) / (6 + 6))


@pytest.mark.slow
def test_moves_by_quadrature_over_all_paths():
    """Words that say much, but not all, of the states: their table is all but known, moves are drawn."""
    x = [0, 0, 0, 1, 1, 1, 0, 0]
    priors = dict(emission=[[8000.0, 2000.0], [2000.0, 8000.0]], transition=2.0)
    model = HMM(2, num_words=2, start_states=[0], priors=priors).set_parameters(emission=[[0.8, 0.2], [0.2, 0.8]])
    model.fit([x], method="nuts", num_samples=200, warmup_steps=100, seed=0, max_tree_depth=5, warm_start=True)
    grid = torch.linspace(0.0025, 0.9975, 200, dtype=F64)
    stay, back = torch.meshgrid(grid, grid, indexing="ij")
    says, weight = torch.tensor([[0.8, 0.2], [0.2, 0.8]], dtype=F64), stay * (1 - stay) * back * (1 - back)
    ends = [says[0, x[0]] * torch.ones_like(stay), torch.zeros_like(stay)]
    for word in x[1:]:
        calm, rough = ends
        ends = [(calm * stay + rough * back) * says[0, word], (calm * (1 - stay) + rough * (1 - back)) * says[1, word]]
    weight = weight * sum(ends)
    found = model.history.samples["transition"]
    agrees(found[:, 0, 0], float((weight * stay).sum() / weight.sum()))
    agrees(found[:, 1, 0], float((weight * back).sum() / weight.sum()))
