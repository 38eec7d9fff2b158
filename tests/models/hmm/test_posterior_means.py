"""Draws of NUTS for families of emissions: their means are those of quadrature, within the error of the chain.

Two states share one emission, so that the posterior of its parameters is that of independent numbers, while starts and moves,
of which the numbers say nothing, keep their prior.
"""

import math

import pytest
import torch

from pplseq import HMM
from pplseq.models.hmm.families import family_of

F64 = torch.float64
X = {
    "poisson": [3, 1, 4, 2, 2, 5], "negative_binomial": [3, 0, 9, 2, 1, 5], "exponential": [0.4, 1.3, 0.2, 2.0, 0.7],
    "bernoulli": [1, 0, 1, 1, 1, 0], "normal": [0.3, -0.8, 1.1, 0.4, 0.1], "student_t": [0.3, -0.8, 4.1, 0.4, 0.1],
}  # fmt: skip
PRIORS = {  # of the value where it is real, of its logarithm where it is positive, of its log odds between 0 and 1
    "poisson": {"rate": (1.0, 0.5)}, "negative_binomial": {"mean": (1.0, 0.5), "size": (1.0, 0.5)},
    "exponential": {"rate": (0.0, 0.7)}, "bernoulli": {"probs": (0.0, 1.0)}, "normal": {"loc": (0.0, 1.0), "scale": (0.0, 0.5)},
    "student_t": {"loc": (0.0, 1.0), "scale": (0.0, 0.5), "df": (1.5, 0.5)},
}  # fmt: skip
LINKS = {"probs": torch.sigmoid, "loc": lambda u: u}


def quadrature(family, x):
    """Posterior means of the parameters of independent numbers, on a grid of what they are before the link."""
    names, axes, prior, values = list(family_of(family).parameters), [], 0.0, {}
    for name in names:
        mean, deviation = PRIORS[family][name]
        axes.append(mean + deviation * torch.linspace(-6, 6, 81, dtype=F64))
    for name, u in zip(names, torch.meshgrid(*axes, indexing="ij"), strict=True):
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
    return model.fit([x], method="nuts", num_samples=300, warmup_steps=150, seed=0, max_tree_depth=6).history.samples


@pytest.mark.slow
@pytest.mark.parametrize("family", X)
def test_parameters_of_families(family):
    found = drawn(torch.tensor(X[family], dtype=F64)[:, None], emission=family, priors={"parameters": PRIORS[family]})
    for name, wanted in quadrature(family, X[family]).items():
        agrees(found[name][:, 0, 0], wanted)
    agrees(found["transition"][:, 0, 0], 0.5)
    agrees(found["initial"][:, 0], 0.5)
