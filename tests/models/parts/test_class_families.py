"""Emissions named by a class of distributions: starts from the data in any unit, supports, names, missing values."""

import copy
import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from pplseq import HMM
from pplseq.models import IOHMM
from pplseq.models.parts.named_families import family_of

N = 80
REGIME = np.arange(N) // 20 % 2


def two(first, second):
    return np.where(REGIME == 0, first, second)


DATA = {
    "InverseGamma": lambda r: two(1 / r.gamma(5, 1, N), 1 / r.gamma(2, 0.25, N)),
    "LogNormal": lambda r: two(r.lognormal(0, 0.5, N), r.lognormal(2, 0.3, N)),
    "Weibull": lambda r: two(r.weibull(2, N), 5 * r.weibull(4, N)),
    "HalfCauchy": lambda r: two(abs(r.standard_cauchy(N)), 30 * abs(r.standard_cauchy(N))),
    "Beta": lambda r: two(r.beta(8, 3, N), r.beta(2, 8, N)),
    "Kumaraswamy": lambda r: two(r.beta(8, 1, N), r.beta(1, 8, N)),
    "Laplace": lambda r: two(r.laplace(0, 1, N), r.laplace(6, 2, N)),
    "Cauchy": lambda r: two(r.standard_cauchy(N), 10 + r.standard_cauchy(N)),
    "Gumbel": lambda r: two(r.gumbel(0, 1, N), r.gumbel(5, 1, N)),
    "Chi2": lambda r: two(r.chisquare(2, N), r.chisquare(15, N)),
    "GammaPoisson": lambda r: two(r.negative_binomial(5, 0.5, N), r.negative_binomial(5, 0.1, N)) * 1.0,
}
SCALED = ("InverseGamma", "LogNormal", "Weibull", "HalfCauchy", "Laplace", "Cauchy", "Gumbel")


# one of each support and kind of parameters
OFTEN = ("Gamma", "Beta", "Laplace", "HalfCauchy", "Chi2", "ZeroInflatedPoisson", "GammaPoisson")


@pytest.mark.parametrize("name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in DATA])
def test_every_seed_and_unit_ends_at_the_maximum(name):
    """That of a fit from clusters that are known, which a likelihood in another unit differs from by its density alone."""
    x = DATA[name](np.random.default_rng(0))
    best = HMM(2, emission=name).fit(x, states=REGIME).fit(x, warm_start=True, num_steps=100).score(x)
    units = (1.0, 1e-4) if name == "InverseGamma" else (1e-4,) if name in SCALED else (1.0,)
    for seed, unit in enumerate(units):
        model = HMM(2, emission=name).fit(unit * x, seed=seed)
        assert model.score(unit * x) + N * np.log(unit) > best - 0.2  # the start of a row is learned in the end


def test_several_starts_of_models_without_em():
    x = DATA["InverseGamma"](np.random.default_rng(1))
    one, several = (HMM(2, emission="InverseGamma").fit(x, num_restarts=number, seed=0, method="lbfgs") for number in (1, 3))
    assert several.score(x) > one.score(x) - 0.2
    assert HMM(2, emission="InverseGamma").fit(x, num_restarts=2, method="sgd", num_steps=20, seed=0).is_fitted


SPELLED = {
    "Gamma": "gamma", "lognormal": "LogNormal", "log_normal": "LogNormal", "Log-Normal": "LogNormal", "Student T": "student_t",
    "zero inflated poisson": "ZeroInflatedPoisson", "Zero-inflated Log-Normal": "zero_inflated_LogNormal",
    dist.ZeroInflatedPoisson: "zero_inflated_poisson", "HURDLE student_t": "hurdle_student_t",
    "VON_MISES": "von_mises", "Gaussian": "gaussian", "Mixture": "mixture",
    "NegativeBinomial": "negative_binomial", "StudentT": "student_t", "VonMises": "von_mises", "Bernoulli": "bernoulli",
    torch.distributions.NegativeBinomial: "negative_binomial", dist.Normal: "normal",
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLED)
def test_names_in_any_spelling(name):
    made, known = HMM(2, emission=name), HMM(2, emission=SPELLED[name])
    assert made.emission_parameters.keys() == known.emission_parameters.keys()
    assert HMM(**made.get_params()).emission_parameters.keys() == known.emission_parameters.keys()


OUTSIDE = {
    "gamma": (0.0, "positive numbers"), "zero_inflated_gamma": (-1.0, "0 or positive numbers"),
    "LogNormal": (-1.0, "positive numbers"), "Weibull": (0.0, "positive numbers"),
    "Beta": (1.0, "numbers between 0 and 1, both excluded"),
    "ContinuousBernoulli": (1.5, "numbers between 0 and 1, both included"),
    "HalfNormal": (-0.1, "numbers of at least 0"), "Geometric": (0.5, "counts 0, 1, 2, ..."),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_numbers_outside_of_the_support(name):
    wrong, what = OUTSIDE[name]
    x = np.full(10, 1.0 if name == "Geometric" else 0.5)
    x[3] = wrong
    for ask in (HMM(2, emission=name).fit, lambda x: HMM(2, emission=name).log_prob(torch.tensor(x)[None, :, None])):
        with pytest.raises(ValueError, match=rf"x: column 0 must hold {what} \({name}\); row 0, step 3 holds {wrong:g}"):
            ask(x)


def test_what_no_family_can_be_made_of():
    for name, why in {"LogisticNormal": "no distribution of single numbers", "Stable": "of Stable is no single number",
                      "GeneralizedPareto": r"cannot be made of GeneralizedPareto \(Double did not match Float\)",
                      "CoalescentTimes": "cannot be made of CoalescentTimes"}.items():  # fmt: skip
        with pytest.raises(ValueError, match=why):
            HMM(2, emission=name)
    with pytest.raises(ValueError, match="no family 'gama'. Did you mean 'gamma'"):
        HMM(2, emission="gama")


def test_density_outside_of_a_support_that_moves():
    model = HMM(1, emission="Pareto").set_parameters(alpha=2.0, scale=1.5)
    assert model.score([2.0, 3.0]) == pytest.approx(float(dist.Pareto(1.5, 2.0).log_prob(torch.tensor([2.0, 3.0])).sum()))
    assert model.emissions.spec().log_likelihood(torch.tensor([[1.0]]).double()).item() == -np.inf


POSITIVE = [0.5, 1.2, np.nan, 0.7, 2.0, 0.9, 3.1, 0.4]
ABOVE_ZERO = (
    "LogNormal", "gamma", "hurdle_gamma", "zero_inflated_LogNormal",
    "InverseGamma", "Weibull", "FisherSnedecor", "HalfCauchy", "Chi2", "exponential",
)  # fmt: skip
FAMILIES = {name: POSITIVE for name in ABOVE_ZERO} | {name: list(np.array(POSITIVE) / 4) for name in ("Beta", "Kumaraswamy")}


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_of_what_a_mask_hides(name):
    """Missing steps and padded ones, alone and among other columns; the likelihood is that of the states of whole rows."""
    x = torch.tensor(FAMILIES[name]).double()[:, None]
    model = HMM(2, emission=name)
    ragged = model._as_batch([x, x[:3], x[3:]])
    value = model.log_joint(ragged.x, ragged.lengths)
    value.backward()
    value = value.detach()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())
    assert float(value) == pytest.approx(sum(float(model.log_joint(part[None]).detach()) for part in (x, x[:3], x[3:])))
    wide = HMM(2, emission=[name, "normal"])
    wide.log_joint(torch.cat([x, torch.where(x > 1, torch.nan, x)], -1)[None]).backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in wide.parameters())
    for method in ("sgd", "lbfgs") if name == "gamma" else ("lbfgs",):
        fitted = HMM(2, emission=name).fit(x, method=method, num_steps=2, seed=0)
        assert all(bool(parameter.isfinite().all()) for parameter in fitted.parameters())


@pytest.mark.parametrize("outputs", ["gamma", "exponential", "poisson"])
def test_gradients_of_outputs_that_are_missing(outputs):
    x = np.array(POSITIVE)
    x = np.round(x) if outputs == "poisson" else x
    model = IOHMM(2, num_inputs=0, outputs=outputs)
    batch = model._as_batch([x, x[:3]])
    model.log_joint(batch.x, batch.lengths, **batch.known).backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters() if parameter.grad is not None)


def test_what_is_held_in_a_copy_of_a_family():
    x = np.random.default_rng(0).standard_t(4, size=60) + 4 * (np.arange(60) // 10 % 2)
    for model in (HMM(2, emission="StudentT"), copy.deepcopy(HMM(2, emission="student_t"))):
        model.set_parameters(df=[[4.0], [4.0]]).fit(x, fixed=["df"], method="em", seed=0, max_iterations=3)
        assert model.emission_parameters["df"].flatten().tolist() == pytest.approx([4.0, 4.0])


def test_a_soft_asymmetric_laplace_far_from_its_mode():
    """Where Pyro's density is 0: against its convolution of a normal and an asymmetric Laplace, in logarithms."""
    values = {"loc": 1.0, "scale": 0.5, "asymmetry": 2.0, "softness": 0.3}
    x = torch.linspace(-60, 60, 31, dtype=torch.float64).requires_grad_()
    made = family_of("SoftAsymmetricLaplace").make(**{name: torch.tensor(value).double() for name, value in values.items()})
    found, t = made.log_prob(x), torch.linspace(-9, 9, 4001, dtype=torch.float64) * 0.5 * 0.3
    sharp = dist.AsymmetricLaplace(1.0, 0.5, 2.0).log_prob(x.detach()[:, None] - t)
    right = torch.logsumexp(sharp + dist.Normal(0.0, 0.5 * 0.3).log_prob(t), -1) + (t[1] - t[0]).log()
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-3)
    assert torch.autograd.grad(found.sum(), x)[0].isfinite().all()


def test_a_kumaraswamy_near_its_ends():
    x = torch.tensor([1e-300, 1e-12, 0.3, 1 - 1e-14, 1 - 2.0**-53], dtype=torch.float64)
    found = family_of("Kumaraswamy").make(concentration1=torch.tensor(0.7).double(), concentration0=torch.tensor(2.5).double())
    torch.testing.assert_close(found.log_prob(x)[2], dist.Kumaraswamy(0.7, 2.5).log_prob(x[2].float()).double())
    left = torch.tensor([1, 1, 1, 0.7e-14, 0.7 * 2.0**-53], dtype=torch.float64)  # 1 - x^a
    wanted = math.log(0.7 * 2.5) - 0.3 * x.log() + 1.5 * left.log()
    ends = [0, 1, 3, 4]
    torch.testing.assert_close(found.log_prob(x)[ends], wanted[ends], rtol=1e-2, atol=1e-2)
    shapes = {"concentration1": 40.0, "concentration0": 1e18}
    narrow = family_of("Kumaraswamy").make(**{name: torch.tensor(shape, dtype=torch.float64) for name, shape in shapes.items()})
    exact = math.log(40e18) + 39 * math.log(0.3) - 1e18 * 0.3**40  # 1 - x^a is 1 but for its last digits
    assert float(narrow.log_prob(torch.tensor(0.3, dtype=torch.float64))) == pytest.approx(exact, rel=1e-12)
    model = HMM(2, emission="Kumaraswamy").fit(np.r_[np.linspace(1e-13, 1e-12, 20), 1 - np.linspace(1e-15, 1e-14, 10)], seed=0)
    assert math.isfinite(model.history.losses[-1]) and all(v.isfinite().all() for v in model.emission_parameters.values())


class Steep(dist.Exponential):
    """No number has a gradient."""

    def log_prob(self, value):
        return super().log_prob(value) + torch.where(value > 5, (0 * self.rate).sqrt(), 0.0)


@pytest.mark.parametrize("method", ["lbfgs", "sgd"])
def test_numbers_without_a_gradient_are_named(method):
    with pytest.raises(ArithmeticError, match=r"density of Steep, or its gradient, .* 6 of the 6 numbers of column 0, as 1.0;"):
        HMM(2, emission=family_of(Steep)).fit([1.0, 2.0, 3.0, 4.0, 6.0, 7.0], seed=0, method=method)


@pytest.mark.parametrize(("name", "parameter"), [("exponential", "rate"), ("poisson", "rate"), ("von_mises", "concentration")])
def test_guides_of_positive_parameters_are_of_positive_numbers(name, parameter):
    x = np.random.default_rng(0).exponential(np.where(np.arange(60) % 20 < 10, 0.5, 40.0)).round()
    model = HMM(2, emission=name, priors=True)
    model.fit(x if name != "von_mises" else x % 3, method="svi", num_steps=15, seed=0, lr=0.1)
    draws = torch.stack([model.history.guide()[parameter] for _ in range(20)])
    assert (draws > 0).all() and np.isfinite(model.history.losses).all()
