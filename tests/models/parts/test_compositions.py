"""Shares that sum to 1, and counts with a total: densities by scipy, all paths, EM, gradients, peers, errors, folders."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special, stats

from pplseq import HMM, IOHMM, MixtureHMM, SemiMarkovHMM
from pplseq.models.parts.compositions import likeliest_concentration

F64 = torch.float64
STATES = np.arange(160) // 20 % 2
CONCENTRATION = np.array([[8.0, 2.0, 2.0, 1.0], [2.0, 3.0, 9.0, 4.0]])
PROBS = np.array([[0.6, 0.2, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4]])
KINDS = {"dirichlet": ("concentration", CONCENTRATION), "multinomial": ("probs", PROBS)}


def data(name, steps=STATES, seed=0):
    random = np.random.default_rng(seed)
    if name == "dirichlet":
        return np.stack([random.dirichlet(CONCENTRATION[k]) for k in steps])
    return np.stack([random.multinomial(random.integers(0, 30), PROBS[k]) for k in steps]).astype(float)


def made(name, kind=HMM, **options):
    model = kind(2, num_features=4, emission=name, **options)
    model.set_parameters(initial=[0.7, 0.3], **{KINDS[name][0]: KINDS[name][1]})
    if kind is HMM:
        model.set_parameters(transition=[[0.8, 0.2], [0.4, 0.6]])
    return model


def density(name, row, k):
    """log p of a row in a state, by scipy."""
    if np.isnan(row).all():
        return 0.0
    if name == "multinomial":
        return stats.multinomial.logpmf(row, row.sum(), PROBS[k])
    return stats.dirichlet.logpdf(row, CONCENTRATION[k])


@pytest.mark.parametrize("name", KINDS)
def test_the_likelihood_is_that_of_enumeration(name):
    x = data(name)[17:23]
    x[2] = np.nan
    model = made(name)
    total = []
    for path in itertools.product(range(2), repeat=len(x)):
        moves = [model.initial[path[0]], *(model.transition[a, b] for a, b in itertools.pairwise(path))]
        total.append(sum(map(math.log, moves)) + sum(density(name, row, k) for row, k in zip(x, path, strict=True)))
    assert model.score(x) == pytest.approx(special.logsumexp(total), rel=1e-12)
    padded = np.stack([x, np.zeros_like(x)])  # behind the ends of rows anything may stand
    padded[1, 0] = x[0]
    assert model.score(padded, [6, 1]) == pytest.approx(model.score(x) + model.score(x[:1]), rel=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_models_with_moves_of_their_own_have_the_same_densities(name):
    x = data(name)
    one = MixtureHMM(1, 2, num_features=4, emission=name).set_parameters(
        initial=[0.7, 0.3], transition=[[0.8, 0.2], [0.4, 0.6]], **dict([KINDS[name]])
    )
    assert one.score(x) == pytest.approx(made(name).score(x), rel=1e-12)
    lasting = SemiMarkovHMM(2, num_features=4, emission=name, duration="geometric")
    lasting.set_parameters(initial=[0.7, 0.3], transition=[[0.0, 1.0], [1.0, 0.0]], duration=[0.8, 0.6], **dict([KINDS[name]]))
    assert lasting.score(x) == pytest.approx(made(name).score(x), rel=1e-12)


def test_missing_shares_are_summed_out():
    """One that misses alone is what the others leave; of two the density is integrated over how they share what is left."""
    model, row = made("dirichlet"), data("dirichlet")[0]

    def found(x):
        return model.emissions.spec().log_likelihood(x).detach()

    alone = torch.tensor(np.where(np.arange(4) == 2, np.nan, row))
    torch.testing.assert_close(found(alone), found(torch.tensor(row)), atol=1e-12, rtol=0)
    for gone in ([0, 2], [1, 3]):
        left = row[gone].sum()
        there = torch.tensor(np.where(np.isin(np.arange(4), gone), np.nan, row))
        for k in range(2):

            def own(value, gone=gone, left=left, k=k):
                new = row.copy()
                new[gone] = value, left - value
                return stats.dirichlet.pdf(new / new.sum(), CONCENTRATION[k])

            wanted = np.log(integrate.quad(own, 0, left, epsabs=1e-13, epsrel=1e-11)[0])
            assert float(found(there)[k]) == pytest.approx(wanted, rel=1e-8)


@pytest.mark.filterwarnings("ignore:no standard errors of initial")
@pytest.mark.parametrize("name", KINDS)
def test_em_rises_to_where_the_gradient_is_zero_and_finds_what_was_drawn(name):
    x = data(name)
    x[[5, 60]] = np.nan
    if name == "dirichlet":
        x[7, 1], x[9, [0, 2]], x[40:60, 3] = np.nan, np.nan, np.nan
    model = HMM(2, num_features=4, emission=name).fit(x, seed=1, max_iterations=1000, tolerance=1e-12)
    assert np.diff(model.history.log_likelihoods).min() > -1e-9
    model.log_joint(torch.tensor(x)[None]).backward()
    assert max(float(each.grad.abs().max()) for each in model.parameters()) < 1e-3
    right = model.decode(x)[0].numpy() == STATES
    assert max(right.mean(), 1 - right.mean()) > 0.97
    found = model.emission_parameters[KINDS[name][0]].numpy()
    found = found if found[0, 0] > found[1, 0] else found[::-1]
    np.testing.assert_allclose(found, KINDS[name][1], rtol=0.35)
    other = HMM(2, num_features=4, emission=name).fit(x, seed=1, method="lbfgs")
    assert other.score(x) == pytest.approx(model.score(x), abs=1e-3)
    table = model.summary(x)
    named = torch.tensor([not each.startswith("initial") for each in table.names])
    assert bool(table.errors[named].isfinite().all()), str(table)


def test_probabilities_of_counts_are_shares_of_what_was_seen():
    """One state: in closed form, and what was never seen has none, with a gradient that is a number."""
    x = data("multinomial")
    x[:, 3] = 0
    model = HMM(1, num_features=4, emission="multinomial").fit(x, seed=0)
    np.testing.assert_allclose(model.emission_parameters["probs"][0], x.sum(0) / x.sum(), atol=1e-12)
    assert model.score(x) == pytest.approx(stats.multinomial.logpmf(x, x.sum(1), x.sum(0) / x.sum()).sum(), rel=1e-12)
    model.log_joint(torch.tensor(x)[None]).backward()
    assert not any(bool(each.grad.isnan().any()) for each in model.parameters())
    assert model.score(np.array([[1.0, 0, 0, 1]])) == -np.inf


def test_counts_are_as_likely_as_in_hmmlearn():
    peer = pytest.importorskip("hmmlearn.hmm").MultinomialHMM(2, n_trials=12)
    random = np.random.default_rng(0)
    x = np.stack([random.multinomial(12, PROBS[k]) for k in STATES])
    own = made("multinomial", trials=12)
    peer.startprob_, peer.transmat_, peer.emissionprob_ = own.initial.numpy(), own.transition.numpy(), PROBS
    peer.n_features = 4
    assert own.score(x.astype(float)) == pytest.approx(peer.score(x), rel=1e-10)
    np.testing.assert_allclose(own.predict_proba(x.astype(float))[0], peer.predict_proba(x), atol=1e-9)


def test_concentrations_are_the_likeliest_ones():
    random = np.random.default_rng(0)
    for own in ([0.05, 0.3, 0.1], [1.0, 1.0, 1.0], [400.0, 900.0, 20.0], [2e4, 3.0, 50.0]):
        logs = np.log(random.dirichlet(own, 50).clip(1e-300)).mean(0)

        def loss(raw, logs=logs):
            a = np.exp(raw)
            return -(special.gammaln(a.sum()) - special.gammaln(a).sum() + (a * logs).sum())

        best = optimize.minimize(loss, np.log(own), method="BFGS", options={"gtol": 1e-12})
        for start in (np.ones(3), np.full(3, 1e4), np.array([1e-3, 1e3, 1.0])):
            found = likeliest_concentration(torch.tensor(logs)[None], torch.tensor(start)[None])[0]
            assert loss(found.log().numpy()) <= best.fun + 1e-9 * max(1.0, abs(best.fun))
            slope = special.digamma(float(found.sum())) - special.digamma(found.numpy()) + logs
            np.testing.assert_allclose(slope * found.numpy(), 0, atol=1e-5)


@pytest.mark.parametrize("most", [None, 5.0])
def test_within_bounds_concentrations_are_the_likeliest_there(most):
    """At the largest that there are, a million, as where rows repeat; and at bounds of a fit. By scipy."""
    logs = np.log([0.2, 0.5, 0.3]) - (0.0 if most is None else 0.05)
    within = None if most is None else (lambda a: a.clamp_max(most))
    found = likeliest_concentration(torch.tensor(logs)[None], torch.ones(1, 3, dtype=F64), within)[0].numpy()
    limit = 1e6 if most is None else most
    assert found.max() == pytest.approx(limit, rel=1e-9)
    slope = special.digamma(found.sum()) - special.digamma(found) + logs
    inside = found < limit * (1 - 1e-6)
    assert (np.abs(slope[inside] * found[inside]) < 1e-4 * limit * 1e-2).all() and (slope[~inside] > 0).all()


@pytest.mark.parametrize("method", ["em", "lbfgs"])
def test_rows_that_repeat_end_at_the_largest_concentration_and_are_said(method):
    x = data("dirichlet")
    x[STATES == 1] = [0.1, 0.2, 0.3, 0.4]
    model = HMM(2, num_features=4, emission="dirichlet")
    with pytest.warns(RuntimeWarning, match="collapsed to the largest"):
        model.fit(x, seed=0, method=method)
    found = model.emission_parameters["concentration"]
    assert float(found.max()) == pytest.approx(1e6, rel=0.01 if method == "em" else 0.1) and np.isfinite(model.score(x))
    with pytest.warns(RuntimeWarning, match="the same shares everywhere"), pytest.warns(RuntimeWarning, match="collapsed"):
        model.fit(x[STATES == 1], seed=0, max_iterations=2)


@pytest.mark.parametrize("name", KINDS)
def test_moments_intervals_and_draws(name):
    """Of one state those of scipy; draws have them too."""
    model = HMM(1, num_features=4, emission=name).set_parameters(**{KINDS[name][0]: KINDS[name][1][:1]})
    model.is_fitted = True
    x = data(name)[:3]
    if name == "dirichlet":
        found, wanted, parts = model.forecast(x, 1), stats.dirichlet(CONCENTRATION[0]), stats.beta(
            CONCENTRATION[0], CONCENTRATION[0].sum() - CONCENTRATION[0]
        )  # fmt: skip
        drawn = model.sample(1, 40_000, seed=0).x[:, 0]
        assert bool((drawn > 0).all()) and torch.allclose(drawn.sum(-1), torch.ones(40_000, dtype=F64))
        mean, covariance = wanted.mean(), wanted.cov()
    else:
        found, wanted, parts = model.forecast(x, 1, future_trials=9), stats.multinomial(9, PROBS[0]), stats.binom(9, PROBS[0])
        drawn = model.sample(1, 40_000, seed=0, trials=9).x[:, 0]
        assert bool((drawn.sum(-1) == 9).all()) and bool((drawn == drawn.round()).all())
        mean, covariance = wanted.mean(), wanted.cov()
    np.testing.assert_allclose(found.means[0, 0], mean, rtol=1e-12)
    np.testing.assert_allclose(found.covariances[0, 0], covariance, rtol=1e-10, atol=1e-14)
    scale = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((drawn.mean(0).numpy() - mean) / scale, 0, atol=0.03)
    np.testing.assert_allclose(np.cov(drawn.numpy().T) / np.outer(scale, scale), covariance / np.outer(scale, scale), atol=0.03)
    for end, share in zip(found.intervals(0.8), (0.1, 0.9), strict=True):
        np.testing.assert_allclose(end[0, 0], parts.ppf(share), atol=1e-5)


def test_totals_of_steps_to_come():
    x, model = data("multinomial"), made("multinomial")
    model.is_fitted = True
    found = model.forecast(x, 2, future_trials=[10, 20])
    np.testing.assert_allclose(found.means.sum(-1), [[10, 20]])
    fixed = made("multinomial", trials=12)
    fixed.is_fitted = True
    rows = np.array([[3.0, 3, 3, 3], [12, 0, 0, 0]])
    np.testing.assert_allclose(fixed.forecast(rows, 1).means.sum(-1), [[12]])
    assert bool((fixed.sample(5, 2, seed=0).x.sum(-1) == 12).all())
    assert fixed.score(rows) == pytest.approx(model.score(rows)) == pytest.approx(model.score(rows, trials=12))
    assert fixed.diagnostics(rows.repeat(10, 0), lags=2, seed=0).errors.isfinite().all()


def test_beside_other_columns():
    """Columns of one kind stand where they are told, and the others are as they are."""
    random, shares, counts = np.random.default_rng(1), data("dirichlet"), data("multinomial")
    calls = random.poisson(3 + 4 * STATES).astype(float)
    x = np.column_stack([shares[:, 0], calls, counts, shares[:, 1:]])
    x[4, [0, 6, 7, 8]], x[5, 1], x[6, 2:6], x[7, 6] = np.nan, np.nan, np.nan, np.nan
    kinds = ["dirichlet", "poisson", *["multinomial"] * 4, *["dirichlet"] * 3]
    model = HMM(2, emission=kinds).fit(x, seed=0, tolerance=1e-10)
    assert np.diff(model.history.log_likelihoods).min() > -1e-9
    values = {name: value.numpy() for name, value in model.emission_parameters.items()}
    wanted = np.zeros((len(x), 2))
    for k in range(2):
        a, p, rate = values["dirichlet_concentration"][k], values["multinomial_probs"][k], values["poisson_rate"][k]
        wanted[:, k] += stats.dirichlet.logpdf(shares.T, a) * (np.arange(len(x)) != 4)
        wanted[:, k] += np.nan_to_num(stats.poisson.logpmf(calls, rate)) * (np.arange(len(x)) != 5)
        wanted[:, k] += stats.multinomial.logpmf(counts, counts.sum(1), p) * (np.arange(len(x)) != 6)
    np.testing.assert_allclose(model.emissions.spec().log_likelihood(torch.tensor(x)).detach(), wanted, atol=1e-9)
    found = model.forecast(x, 1, future_trials=8)
    np.testing.assert_allclose(found.means[0, 0, [0, 6, 7, 8]].sum(), 1)
    np.testing.assert_allclose(found.means[0, 0, 2:6].sum(), 8)
    together = found.covariances[0, 0]
    np.testing.assert_allclose(together[[0, 6, 7, 8]].sum(0), 0, atol=1e-9)
    np.testing.assert_allclose(together[2:6].sum(0), 0, atol=1e-9)
    assert model.num_free_parameters == 3 + 2 * (4 + 1 + 3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_other_fits_and_folders(name, tmp_path):
    x, key = data(name), KINDS[name][0]
    drawn = HMM(2, num_features=4, emission=name, priors=True)
    drawn.fit(x[:12], method="nuts", num_samples=4, warmup_steps=2, max_tree_depth=2, seed=0)
    drawn.fit(x[:12], method="svi", num_steps=2, seed=0)
    model = SemiMarkovHMM(2, num_features=4, emission=name, max_duration=3).fit(x, seed=0, max_iterations=5)
    again = SemiMarkovHMM.load(model.save(tmp_path / "model"))
    assert again.score(x) == pytest.approx(model.score(x)) == pytest.approx(pickle.loads(pickle.dumps(model)).score(x))
    clusters = MixtureHMM(2, 1, num_features=4, emission=name).fit(x.reshape(8, 20, 4), seed=0)
    assert len(set(clusters.predict(x.reshape(8, 20, 4))[::2].tolist())) == 1
    labelled = HMM(2, num_features=4, emission=name, ties=[0, 1])
    labelled.fit(x, states=np.where(np.arange(160) < 60, STATES, -1), seed=0)
    assert (labelled.decode(x)[0].numpy() == STATES).mean() > 0.97
    reader = labelled.online()
    for row, wanted in zip(x[:9], labelled.filter(x).probs[0], strict=False):
        np.testing.assert_allclose(reader.step(row).states, wanted, atol=1e-9)
    before = labelled.emission_parameters[key]
    labelled.fit(x, warm_start=True, fixed=[key], max_iterations=2)
    torch.testing.assert_close(labelled.emission_parameters[key], before)


@pytest.mark.parametrize("name", KINDS)
def test_bounds_are_kept_by_em_at_its_maximum_within(name):
    """As fits by gradients find it."""
    x, key = data(name), KINDS[name][0]
    bounds = {key: (None, 5.0) if name == "dirichlet" else (None, 0.45)}
    model = HMM(2, num_features=4, emission=name).fit(x, seed=0, bounds=bounds, tolerance=1e-10, max_iterations=500)
    other = HMM(2, num_features=4, emission=name).fit(x, seed=0, bounds=bounds, method="lbfgs")
    assert np.diff(model.history.log_likelihoods).min() > -1e-9
    assert float(model.emission_parameters[key].max()) == pytest.approx(bounds[key][1], rel=1e-6)
    assert model.score(x) == pytest.approx(other.score(x), abs=0.01)


SHARES, COUNTS, ONE = data("dirichlet")[:8], data("multinomial")[:8], np.arange(4) == 1
REFUSED = {
    r"emission: 'dirichlet' is of columns that go together, at least 2": (dict(emission="dirichlet"), SHARES[:, :1], {}),
    r"x: columns \[0, 1, 2, 3\] must sum to 1.*row 0, step 2 holds": (
        "dirichlet", SHARES * np.where(np.arange(8) == 2, 0.9, 1.0)[:, None], {}
    ),
    r"x: columns .* must sum to 1, and to less where some are missing": ("dirichlet", np.where(ONE, np.nan, 0.4), {}),
    r"x: column 1 must hold shares above 0 .*row 0, step 0 holds 0": ("dirichlet", np.where(ONE, 0.0, SHARES), {}),
    r"x: column 1 is missing everywhere": ("dirichlet", np.where(ONE, np.nan, SHARES), {}),
    r"x: column 0 must hold counts 0, 1, 2": ("multinomial", SHARES, {}),
    r"x: columns .* must all be there or all be missing": ("multinomial", np.where(ONE, np.nan, COUNTS), {}),
    r"trials: .*have one total, their sum; row 0, step 0 is told .*, and x sums to": ("multinomial", COUNTS, dict(trials=99)),
    r"trials: they are of 'binomial' and 'multinomial'": (dict(emission="dirichlet", num_features=4, trials=3), SHARES, {}),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused_is_named(message):
    options, x, known = REFUSED[message]
    options = {"num_features": 4, "emission": options} if isinstance(options, str) else options
    x = np.broadcast_to(x, (8, 4)).copy() if x.ndim == 1 else x
    with pytest.raises(ValueError, match=message):
        HMM(2, **options).fit(x, **known)


def test_where_they_have_no_place_is_said():
    for make in (lambda: IOHMM(2, num_inputs=1, outputs="dirichlet"), lambda: HMM(2, emission="hurdle_multinomial")):
        with pytest.raises(ValueError, match="HMM, SemiMarkovHMM and MixtureHMM take it"):
            make()
    model = made("multinomial")
    model.is_fitted = True
    for ask in (lambda: model.forecast(COUNTS, 1), lambda: model.sample(num_steps=2)):
        with pytest.raises(ValueError, match="^trials: .*future_trials=n"):
            ask()


@pytest.mark.parametrize("name", [*KINDS, "gamma", "zero_truncated_poisson"])
def test_forecasts_of_rows_without_steps(name):
    """Where 0, which stands there, is none of the numbers that the family has: what comes first is that of the start."""
    model = HMM(2, num_features=4, emission=name)
    model.is_fitted = True
    x = data("dirichlet")[:3] if name in ("dirichlet", "gamma") else data("multinomial")[:3] + 1
    told = {"future_trials": 7} if name == "multinomial" else {}
    wanted = model.initial @ model.emissions.moments(*([torch.full((4,), 7.0).to(F64)] if told else []))[0]
    forms = [([x, x[:0]],), (np.stack([x, 0 * x]), [3, 0])]
    for form in forms:
        np.testing.assert_allclose(model.forecast(*form[:1], 1, *form[1:], **told).means[1, 0], wanted, rtol=1e-10)
    np.testing.assert_allclose(model.forecast(np.zeros((1, 0, 4)), 1, **told).means[0, 0], wanted, rtol=1e-10)


def test_totals_are_told_by_rows_after_a_fit_that_was_told_them():
    x = data("multinomial")
    told = HMM(2, num_features=4, emission="multinomial").fit(x, trials=x.sum(1), seed=0)
    free = HMM(2, num_features=4, emission="multinomial").fit(x, seed=0)
    assert told.score(x) == pytest.approx(free.score(x), rel=1e-12)
    assert told.score(x, trials=x.sum(1)) == pytest.approx(free.score(x), rel=1e-12)


def test_trials_of_a_model_are_those_of_its_binomial_columns():
    """And multinomial ones beside them tell their totals, whatever else is told of steps."""
    random, counts = np.random.default_rng(2), data("multinomial")
    hits, calls = random.binomial(40, 0.2 + 0.4 * STATES), random.poisson(2.0 + 3 * STATES)
    times = random.uniform(1, 2, len(STATES))
    x = np.column_stack([counts, hits, calls]).astype(float)
    x[4, :4], x[5, 4], x[6, 5] = np.nan, np.nan, np.nan
    kinds = [*["multinomial"] * 4, "binomial", "poisson"]
    model = HMM(2, emission=kinds, trials=40).fit(x, seed=0, exposure=times)
    assert np.diff(model.history.log_likelihoods).min() > -1e-9
    values = {name: value.numpy() for name, value in model.emission_parameters.items()}
    total = []
    for path in itertools.product(range(2), repeat=7):
        moves = [model.initial[path[0]], *(model.transition[a, b] for a, b in itertools.pairwise(path))]
        each = sum(map(math.log, moves))
        for t, k in enumerate(path):
            shares = values["multinomial_probs"][k]
            each += 0 if t == 4 else stats.multinomial.logpmf(counts[t], counts[t].sum(), shares)
            each += 0 if t == 5 else stats.binom.logpmf(x[t, 4], 40, values["binomial_probs"][k, 0])
            each += 0 if t == 6 else stats.poisson.logpmf(x[t, 5], times[t] * values["poisson_rate"][k, 0])
        total.append(each)
    wanted = special.logsumexp(total)
    assert model.score(x[:7], exposure=times[:7]) == pytest.approx(wanted, rel=1e-9)
    sizes = np.column_stack([*[counts.sum(1)] * 4, [40.0] * len(x), [1.0] * len(x)])
    assert model.score(x[:7], exposure=times[:7], trials=sizes[None, :7]) == pytest.approx(wanted, rel=1e-9)
    with pytest.raises(ValueError, match="trials: the total of multinomial counts .*future_trials=n"):
        model.forecast(x, 1, exposure=times, future_exposure=1.0)
    ahead = model.forecast(x, 1, exposure=times, future_exposure=1.0, future_trials=[[[9.0] * 4 + [40, 1]]])
    assert float(ahead.means[0, 0, :4].sum()) == pytest.approx(9)
    with pytest.raises(ValueError, match=r"row 0, step 3 holds 41 of 40"):
        model.score(np.where((np.arange(len(x)) == 3)[:, None] & (np.arange(6) == 4), 41.0, x), exposure=times)
