"""Emissions by name: against scipy and hmmlearn, EM at a maximum, gaps in columns, transitions with zeros, shared emissions."""

import math
import warnings

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from hmmlearn import hmm as peer
from scipy import stats
from support.oracles.discrete import generic_log_prob

from pplseq.models import HMM, SequenceModel
from pplseq.models.parts.emissions import mixture_moments
from pplseq.models.parts.families import FAMILIES, Family, Parameter, maximize_each

close = torch.testing.assert_close
STATES = np.arange(80) // 20 % 2
DENSITIES = {
    "normal": lambda x, p: stats.norm.logpdf(x, p["loc"], p["scale"]),
    "student_t": lambda x, p: stats.t.logpdf(x, p["df"], p["loc"], p["scale"]),
    "poisson": lambda x, p: stats.poisson.logpmf(x, p["rate"]),
    "negative_binomial": lambda x, p: stats.nbinom.logpmf(x, p["size"], p["size"] / (p["size"] + p["mean"])),
    "von_mises": lambda x, p: stats.vonmises.logpdf(x, p["concentration"], p["loc"]),
    "exponential": lambda x, p: stats.expon.logpdf(x, scale=1 / p["rate"]),
    "bernoulli": lambda x, p: stats.bernoulli.logpmf(x, p["probs"]),
    "gamma": lambda x, p: stats.gamma.logpdf(x, p["concentration"], scale=1 / p["rate"]),
    "binomial": lambda x, p: stats.binom.logpmf(x, 9, p["probs"]),
}
TRIALS = {"binomial": {"trials": 9}}


def data(name, size=80, seed=0):
    random, low = np.random.default_rng(seed), STATES[:size] == 0
    return {
        "normal": lambda: random.normal(np.where(low, 0, 3)), "student_t": lambda: 3 * low + random.standard_t(3, size),
        "poisson": lambda: random.poisson(np.where(low, 2, 9)),
        "negative_binomial": lambda: random.negative_binomial(2, 2 / (2 + np.where(low, 2, 20))),
        "von_mises": lambda: random.vonmises(np.where(low, -1, 2), 4),
        "exponential": lambda: random.exponential(np.where(low, 1, 6)),
        "bernoulli": lambda: random.random(size) < np.where(low, 0.1, 0.8),
        "gamma": lambda: random.gamma(np.where(low, 2, 6), np.where(low, 1, 2)),
        "binomial": lambda: random.binomial(9, np.where(low, 0.2, 0.7)),
    }[name]().astype(float)  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_scipys_and_em_ends_where_the_gradient_is_zero(name):
    x = [data(name)[:50], data(name)[50:79], data(name)[79:]]
    x[0][7] = np.nan
    model = HMM(2, emission=name, **TRIALS.get(name, {})).fit(x, seed=1, max_iterations=500, tolerance=1e-10)
    seen = np.concatenate(x)[~np.isnan(np.concatenate(x))]
    wanted = DENSITIES[name](seen[:, None], {n: v[:, 0].numpy() for n, v in model.emission_parameters.items()})
    close(model.emissions.spec().log_likelihood(torch.tensor(seen[:, None])), torch.tensor(wanted), atol=1e-9, rtol=1e-9)
    assert np.all(np.diff(model.history.log_likelihoods) > -1e-8)
    batch = model._as_batch(x)
    model.log_joint(batch.x, batch.lengths).backward()
    for name, parameter in model.emissions.named_parameters():
        assert parameter.grad.abs().max() < 5e-3, f"{name}: {parameter.grad}"
    close(generic_log_prob(model, batch.x, batch.lengths), torch.tensor(model.score(x)).double())


def test_poisson_agrees_with_hmmlearn():
    x = data("poisson")
    model = HMM(2, emission="poisson").set_parameters(
        initial=[0.5, 0.5], transition=[[0.9, 0.1], [0.2, 0.8]], rate=[[3.0], [8.0]]
    )
    other = peer.PoissonHMM(2, n_iter=5, tol=-np.inf, init_params="", params="stl")
    other.startprob_, other.transmat_ = model.initial.numpy(), model.transition.numpy()
    other.lambdas_ = model.emission_parameters["rate"].numpy()
    assert model.score(x) == pytest.approx(other.score(x[:, None].astype(int)), abs=1e-9)
    model.fit(x, warm_start=True, max_iterations=5, tolerance=0)
    other.fit(x[:, None].astype(int))
    np.testing.assert_allclose(model.emission_parameters["rate"], other.lambdas_, rtol=1e-8)


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_mixtures_agree_with_hmmlearn(covariance):
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 2)) + 3 * random.integers(0, 3, 60)[:, None]
    model = HMM(2, num_features=2, emission="mixture", covariance=covariance).fit(x, seed=1, max_iterations=4)
    other = peer.GMMHMM(2, n_mix=2, covariance_type="full", init_params="")
    other.startprob_, other.transmat_ = model.initial.numpy(), model.transition.numpy()
    values, table = model.emission_parameters, model.emissions.gaussians
    other.weights_, other.means_ = values["weights"].numpy(), values["loc"].reshape(2, 2, 2).numpy()
    other.covars_ = table.covariances().detach().reshape(2, 2, 2, 2).numpy()
    other.n_features = 2
    assert model.score(x) == pytest.approx(other.score(x), abs=1e-7)
    assert model.forecast(x, 2).means.shape == (1, 2, 2)


def test_columns_of_different_kinds_are_independent_and_may_be_missing():
    columns = ["poisson", "von_mises", "normal", "poisson"]
    x = np.stack([data(name, seed=k) for k, name in enumerate(columns)], 1)
    x[3, 1] = x[5] = x[8:11, 3] = np.nan
    model = HMM(2, emission=columns).fit(x, seed=0)
    values = {name: value.numpy() for name, value in model.emission_parameters.items()}
    total = np.zeros((80, 2))
    for column, name in enumerate(columns):
        place = 1 if column == 3 else 0
        own = {n.removeprefix(f"{name}_"): v[:, place] for n, v in values.items() if n.startswith(name)}
        density = DENSITIES[name](np.where(np.isnan(x[:, column]), 0, x[:, column])[:, None], own)
        total += np.where(np.isnan(x[:, column, None]), 0.0, density)
    close(model.emissions.spec().log_likelihood(torch.tensor(x)), torch.tensor(total))
    batch = model._as_batch(x)
    model.log_joint(batch.x).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert model.sample(5, 3, seed=0).x.shape == (3, 5, 4)


def test_an_infinite_variance_of_a_state_that_is_not_possible_counts_nothing():
    variances = torch.tensor([[2.0], [math.inf]]).unsqueeze(-1)
    mean, covariance = mixture_moments(torch.tensor([1.0, 0.0]), torch.tensor([[3.0], [5.0]]), variances)
    assert mean.tolist() == [3.0] and covariance.tolist() == [[2.0]]
    assert torch.isinf(mixture_moments(torch.tensor([0.5, 0.5]), torch.tensor([[3.0], [5.0]]), variances)[1]).all()


def test_what_has_no_closed_form_is_learned_by_gradients_and_saved_by_name(tmp_path):
    x = data("normal")
    model = HMM(2, emission="Laplace").fit(x, seed=0, num_steps=8)
    assert model.history.method == "lbfgs"
    with pytest.raises(ValueError, match="method must be one of lbfgs, sgd"):
        model.fit(x, method="em")
    again = SequenceModel.load(model.save(tmp_path / "model"))
    assert again.score(x) == pytest.approx(model.score(x))
    own = Family(lambda loc: dist.Cauchy(loc, 1.0), {"loc": Parameter()})
    with pytest.raises(ValueError, match=r"FAMILIES\['name'\]"):
        HMM(2, emission=own).fit(x, seed=0, num_steps=5).save(tmp_path / "own")
    mixed = HMM(2, emission=["poisson", "normal"]).fit(np.stack([data("poisson"), x], 1), seed=0, max_iterations=3)
    assert type(mixed)(**mixed.get_params()).config == mixed.config
    SequenceModel.load(mixed.save(tmp_path / "mixed"))


@pytest.mark.slow
def test_draws_of_a_familys_parameters():
    x = data("poisson")
    model = HMM(2, emission="poisson", priors=dict(sticky=5.0, parameters={"rate": [1.0, 1.0]}))
    model.fit(x, method="lbfgs", num_steps=30, seed=1)
    with pytest.raises(ValueError, match="'em' takes none of families"):
        model.fit(x)
    model.fit(x, method="nuts", num_samples=8, warmup_steps=8, seed=1, warm_start=True)
    assert model.history.samples["rate"].shape == (8, 2, 1)
    assert (model.history.samples["rate"] > 0).all()


def test_zeros_of_the_graph_stay():
    graph = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1]]).bool()
    x = data("poisson")
    for options in ({}, {"method": "lbfgs", "num_steps": 10}):
        model = HMM(3, emission="poisson", graph=graph, start_states=[0]).fit(x, seed=0, **options)
        assert (model.transition[~graph] == 0).all() and model.initial.tolist() == [1, 0, 0]
        close(model.transition.sum(-1), torch.ones(3).double())
    assert model.num_free_parameters == 3 + 3
    sticky = HMM(3, emission="poisson", graph=graph.numpy(), priors=dict(sticky=50.0, transition=2.0)).fit(x, seed=0)
    assert (sticky.transition[~graph] == 0).all() and (sticky.transition.diagonal() > 0.7).all()
    assert np.all(np.diff(sticky.history.log_posteriors) > -1e-8)
    with pytest.raises(ValueError, match="forbids"):
        model.set_parameters(transition=np.full((3, 3), 1 / 3))
    assert type(model)(**model.get_params()).config == model.config


def test_tied_states_are_one_model_with_equal_rows():
    x = data("poisson")
    tied = HMM(3, emission="poisson", ties=[0, 1, 0]).fit(x, seed=2)
    free = HMM(3, emission="poisson").set_parameters(
        initial=tied.initial, transition=tied.transition, rate=tied.emission_parameters["rate"][[0, 1, 0]]
    )
    assert tied.score(x) == pytest.approx(free.score(x), abs=1e-9)
    close(tied.forecast(x, 3).means, free.forecast(x, 3).means)
    assert np.all(np.diff(tied.history.log_likelihoods) > -1e-8)
    words = HMM(3, 5, ties=[0, 0, 1]).fit([[0, 1, 4, 4, 2], [1, 1]], seed=0)
    assert words.emission.shape == (2, 5)
    close(words.forecast([[0, 1]], 2).word_log_probs.exp().sum(-1), torch.ones(1, 2).double())


def test_newtons_method_finds_the_maximum_of_each():
    centre = torch.tensor([0.01, 3.0, 700.0]).double()
    found = maximize_each(torch.ones(3).double(), lambda x: -(x.log() - centre.log()).square())
    close(found, centre)
    assert maximize_each(torch.ones(1).double(), lambda x: x.log()) > 1e5, "no finite maximum: as far as is allowed"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HMM(2, emission="poison"), "Did you mean 'poisson'"),
        (lambda: HMM(2, 5, emission="poisson"), "words have a table"),
        (lambda: HMM(2, num_features=3, emission=["poisson"]), "each of the 3 columns"),
        (lambda: HMM(2, emission="MultivariateNormal"), "no single number"),
        (lambda: HMM(2, emission="poisson").fit([1.5, 2.0, 3.0]), "column 0 must hold counts .* row 0, step 0 holds 1.5"),
        (lambda: HMM(2, emission="poisson", ties=[0, 2]), "ties must give"),
        (lambda: HMM(2, emission="poisson", graph=torch.tensor([[0, 1], [0, 0]]).bool()), "dead end"),
        (lambda: HMM(2, emission="poisson").set_parameters(rate=[[-1.0], [2.0]]), "rate: outside"),
    ],
)
def test_what_does_not_fit_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("emission", ["gaussian", "normal"])
def test_standard_errors_do_not_depend_on_the_units_of_the_data(emission):
    random = np.random.default_rng(0)
    x = np.where(np.arange(60) // 10 % 2, 2.0, -2.0) + 0.5 * random.normal(size=60)
    model = HMM(2, emission=emission, start_states=[0]).fit(x, seed=0, tolerance=1e-9, max_iterations=200)
    other = HMM(2, emission=emission, start_states=[0]).fit(1e7 * x, seed=0, tolerance=1e-9, max_iterations=200)
    errors, far = (dict(zip(s.names, s.errors, strict=True)) for s in (model.summary(x), other.summary(1e7 * x)))
    names = [name for name in errors if name.startswith("loc")]
    assert len(names) == 2
    for name in names:
        assert float(far[name]) == pytest.approx(1e7 * float(errors[name]), rel=1e-3) and errors[name] > 0.05


@pytest.mark.parametrize(
    "emission, value, warned",
    [
        ("normal", 3.0, True), ("student_t", 0.5, True), ("von_mises", 1.0, True), ("poisson", 0.0, True),
        ("exponential", 0.0, True), ("bernoulli", 1.0, True), ("poisson", 3.0, False), ("exponential", 3.0, False),
        ("negative_binomial", 3.0, False),
    ],
)  # fmt: skip
def test_a_column_of_one_value_is_named(emission, value, warned):
    """Behind one that varies, with a missing number, and padding that is another value."""
    torch.manual_seed(0)
    x = torch.randn(2, 12, 2, dtype=torch.float64)
    x[..., 1] = value
    x[0, 3, 1] = math.nan
    x[1, 9:, 1] = 0.0 if value else 1.0
    model = HMM(2, num_features=2, emission=["normal", emission] if emission != "normal" else "normal")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, lengths=torch.tensor([12, 9]), max_iterations=2)
    said = [str(warning.message) for warning in caught if "everywhere" in str(warning.message)]
    assert bool(said) == warned
    assert not warned or f"x: column 1 holds {value:g} everywhere" in said[0] and f"parameters of {emission}" in said[0]


def test_a_distribution_without_moments_makes_no_forecast():
    model = HMM(2, num_features=1, emission="SkewLogistic")
    model.is_fitted = True
    x = torch.rand(1, 6, 1)
    with pytest.raises(ValueError, match="means and variances, which a distribution of this model does not tell"):
        model.forecast(x, 2)
    assert model.filter(x).probs.shape == (1, 6, 2)
