"""Draws of NUTS for every kind of emission: their means are those of quadrature, or of conjugate priors in closed form, within
the error of the chain.

Two states share one emission, so that the posterior of its parameters is that of independent numbers, while starts and moves,
of which the numbers say nothing, keep their prior.
"""

import math

import pytest
import torch

from pplseq import HMM
from pplseq.models.parts.named_families import family_of

F64 = torch.float64
X = {
    "poisson": [3, 1, 4, 2, 2, 5], "negative_binomial": [3, 0, 9, 2, 1, 5], "exponential": [0.4, 1.3, 0.2, 2.0, 0.7],
    "bernoulli": [1, 0, 1, 1, 1, 0], "normal": [0.3, -0.8, 1.1, 0.4, 0.1], "student_t": [0.3, -0.8, 4.1, 0.4, 0.1],
    "von_mises": [0.3, -0.8, 1.1, 2.9, -2.8, 0.2], "laplace": [0.3, -0.8, 4.1, 0.4, 0.1],
}  # fmt: skip
CLASSES = {"laplace": torch.distributions.Laplace}  # which have no name of their own
PRIORS = {  # of the value where it is real, of its logarithm where it is positive, of its log odds between 0 and 1
    "poisson": {"rate": (1.0, 0.5)}, "negative_binomial": {"mean": (1.0, 0.5), "size": (1.0, 0.5)},
    "exponential": {"rate": (0.0, 0.7)}, "bernoulli": {"probs": (0.0, 1.0)}, "normal": {"loc": (0.0, 1.0), "scale": (0.0, 0.5)},
    "student_t": {"loc": (0.0, 1.0), "scale": (0.0, 0.5), "df": (1.5, 0.5)},
    "von_mises": {"concentration": (0.5, 0.5)}, "laplace": {"loc": (0.0, 1.0), "scale": (0.0, 0.5)},
}  # fmt: skip
LINKS = {"probs": torch.sigmoid, "loc": lambda u: u}


def quadrature(family, x):
    """Posterior means of the parameters of independent numbers, on a grid of what they are before the link.

    Of an angle, whose prior is the circle's uniform one, those of its cosine and sine.
    """
    kind = family_of(CLASSES.get(family, family))
    names, axes, prior, values = list(kind.parameters), [], 0.0, {}
    for name in names:
        mean, deviation = PRIORS[family].get(name, (0.0, torch.pi / 6))
        axes.append(mean + deviation * torch.linspace(-6, 6, 81, dtype=F64)[: -1 if name not in PRIORS[family] else None])
    for name, u in zip(names, torch.meshgrid(*axes, indexing="ij"), strict=True):
        if name in PRIORS[family]:
            mean, deviation = PRIORS[family][name]
            prior = prior - ((u - mean) / deviation).square() / 2
        values[name] = LINKS.get(name, torch.exp)(u)
    density = prior + sum(kind.make(**values).log_prob(number) for number in torch.tensor(x, dtype=F64))
    weight = (density - density.max()).exp()
    weight = weight / weight.sum()
    means = {name: float((weight * value).sum()) for name, value in values.items() if name in PRIORS[family]}
    angles = {name: value for name, value in values.items() if name not in PRIORS[family]}
    return means | {name: [float((weight * part).sum()) for part in (u.cos(), u.sin())] for name, u in angles.items()}


def agrees(draws, wanted):
    """Whether the mean of a chain (S,) is a number, within five standard errors of batch means."""
    batches = draws.unflatten(0, (10, -1)).mean(1)
    error = float(batches.std()) / math.sqrt(len(batches))
    assert abs(float(draws.mean()) - wanted) < 5 * error + 1e-3, (float(draws.mean()), wanted, error)
    assert 0 < error < 0.5 * max(abs(wanted), 0.3), "the chain moved, and its mean says something"


def drawn(x, **options):
    model = HMM(2, ties=[0, 0], **options)
    return model.fit([x], method="nuts", num_samples=300, warmup_steps=150, seed=0, max_tree_depth=6).history.samples


@pytest.mark.slow
@pytest.mark.parametrize("family", X)
def test_parameters_of_families(family):
    kind = CLASSES.get(family, family)
    found = drawn(torch.tensor(X[family], dtype=F64)[:, None], emission=kind, priors={"parameters": PRIORS[family]})
    for name, wanted in quadrature(family, X[family]).items():
        draws = found[name][:, 0, 0]
        if isinstance(wanted, list):
            agrees(draws.cos(), wanted[0])
            agrees(draws.sin(), wanted[1])
        else:
            agrees(draws, wanted)
    agrees(found["transition"][:, 0, 0], 0.5)
    agrees(found["initial"][:, 0], 0.5)


@pytest.mark.slow
def test_words():
    """Dirichlet: counts and concentrations, normalised."""
    found = drawn(torch.tensor([0, 2, 2, 1, 2]), num_words=3, priors={"emission": 1.5})["emission"]
    for word, count in enumerate([1, 1, 3]):
        agrees(found[:, 0, word], (count + 1.5) / (5 + 4.5))


VECTORS = torch.tensor([[0.3, 1.0], [-0.8, 0.2], [1.1, 1.9], [0.4, 0.1], [0.1, -0.7], [1.6, 0.9]], dtype=F64)
WISHART = dict(loc_strength=0.5, precision_shape=3.0, precision_rate=2.0)


def conjugate(covariance, x):
    """Means of the posterior normal-gamma, or normal-Wishart, of independent vectors: of their mean, and of the precision."""
    strength, shape, rate = WISHART.values()
    number, size = x.shape
    about = x.mean(0)
    scatter = (x - about).T @ (x - about) + strength * number / (strength + number) * torch.outer(about, about)
    loc = number * about / (strength + number)
    if covariance == "diag":
        return loc, (shape + number / 2) / (rate + scatter.diagonal() / 2)
    if covariance == "spherical":
        return loc, (shape + number * size / 2) / (rate + scatter.trace() / 2).reshape(1)
    freedom = 2 * shape + size - 1 + number
    return loc, freedom * torch.linalg.inv(2 * rate * torch.eye(size).to(x) + scatter)


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical"])
def test_covariances(covariance):
    found = drawn(VECTORS, num_features=2, covariance=covariance, priors=WISHART)
    loc, precision = conjugate(covariance, VECTORS)
    draws = found["precision"] if covariance == "tied" else found["precision"][:, 0]
    for name, got, wanted in (("loc", found["loc"][:, 0], loc), ("precision", draws, precision)):
        assert got.shape[1:] == wanted.shape, name
        for one, mean in zip(got.flatten(1).T, wanted.flatten().tolist(), strict=True):
            agrees(one, mean)


@pytest.mark.slow
def test_mixtures():
    """The predictive density, which labels of components do not change, against weighted draws of the prior."""
    x, at = torch.tensor([0.2, 2.5, 2.9], dtype=F64), torch.tensor([-1.0, 0.3, 2.6], dtype=F64)

    def density(weights, loc, precision, points):
        normal = torch.distributions.Normal(loc[..., None, :], precision[..., None, :].rsqrt())
        return (weights[..., None, :] * normal.log_prob(points[:, None]).exp()).sum(-1)

    found = drawn(x[:, None], num_features=1, emission="mixture", num_components=2, priors=WISHART)
    parts = [found[name].flatten(1) for name in ("weights", "loc", "precision")]
    torch.manual_seed(0)
    strength, shape, rate = WISHART.values()
    precision = torch.distributions.Gamma(torch.tensor(shape, dtype=F64), rate).sample((400_000, 2))
    loc = torch.randn_like(precision) * (strength * precision).rsqrt()
    first = torch.rand(len(loc), 1, dtype=F64)
    weights = torch.cat([first, 1 - first], 1)
    likelihood = density(weights, loc, precision, x).prod(-1, keepdim=True)
    wanted = (likelihood * density(weights, loc, precision, at)).sum(0) / likelihood.sum()
    for got, mean in zip(density(*parts, at).T, wanted.tolist(), strict=True):
        agrees(got, mean)
