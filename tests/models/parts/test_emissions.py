"""Every new emission in every model: against enumeration by scipy's densities, EM, gradients, forecasts, errors, folders."""

import itertools
import math
from functools import partial

import numpy as np
import pandas
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression, PoissonRegressor

from pplseq import sequences_by
from pplseq.models import HMM, IOHMM, SemiMarkovHMM

F64 = torch.float64
STATES = np.arange(120) // 15 % 2


def zeros(kind, pmf, at_zero):
    """The density of a family with zeros of their own, from that of another, as textbooks have it."""

    def density(x, gate=0.0, **own):
        above = (1 - gate) * pmf(x, **own)
        if kind == "zero_truncated":
            return np.where(x == 0, 0.0, pmf(x, **own) / (1 - at_zero(**own)))
        if kind == "hurdle":
            return np.where(x == 0, gate, above / (1 - at_zero(**own)))
        return np.where(x == 0, gate + (1 - gate) * at_zero(**own), above)

    return density


def poisson(x, rate, exposure=1.0):
    return stats.poisson.pmf(x, rate * exposure)


def gamma(x, concentration, rate):
    return stats.gamma.pdf(np.where(x > 0, x, 1.0), concentration, scale=1 / rate)


def size_of(mean, size):
    return {"n": size, "p": size / (size + mean)}


def negative_binomial(x, mean, size, exposure=1.0):
    return stats.nbinom.pmf(x, **size_of(mean * exposure, size))


def counts(random, low, high, gates=(0.5, 0.2)):
    drawn = random.poisson(np.where(STATES == 0, low, high))
    return np.where(random.random(len(STATES)) < np.where(STATES == 0, *gates), 0, drawn).astype(float)


EXPOSURE = np.random.default_rng(9).uniform(0.5, 9, len(STATES))
TRIALS = np.random.default_rng(9).integers(1, 12, len(STATES)).astype(float)
LEVELS = np.random.default_rng(8).random((2, len(STATES)))
# emission and options, data, what is known of steps, density of one column
CASES = {
    "zero_inflated_poisson": ({}, lambda r: counts(r, 2, 9), {}, zeros("zero_inflated", poisson, lambda rate: np.exp(-rate))),
    "hurdle_poisson": ({}, lambda r: counts(r, 2, 9), {}, zeros("hurdle", poisson, lambda rate: np.exp(-rate))),
    "hurdle_negative_binomial": (
        {}, lambda r: counts(r, 3, r.gamma(2, 6, len(STATES))), {},
        zeros("hurdle", lambda x, mean, size: stats.nbinom.pmf(x, **size_of(mean, size)),
              lambda mean, size: stats.nbinom.pmf(0, **size_of(mean, size))),
    ),
    "zero_truncated_poisson": (
        {}, lambda r: counts(r, 2, 9) + 1, {}, zeros("zero_truncated", poisson, lambda rate: np.exp(-rate)),
    ),
    "zero_truncated_binomial": (
        {}, lambda r: r.binomial(TRIALS.astype(int), np.where(STATES == 0, 0.2, 0.7)).clip(1), {"trials": TRIALS},
        zeros("zero_truncated", lambda x, probs, trials: stats.binom.pmf(x, trials, probs),
              lambda probs, trials: (1 - probs) ** trials),
    ),
    "zero_inflated_gamma": (
        {}, lambda r: counts(r, 2, 9) * r.gamma(4, 0.25, len(STATES)), {},
        zeros("zero_inflated", gamma, lambda concentration, rate: 0.0),
    ),
    "poisson": ({}, lambda r: r.poisson(np.where(STATES == 0, 1, 4) * EXPOSURE), {"exposure": EXPOSURE}, poisson),
    "hurdle_Poisson": (
        {}, lambda r: counts(r, EXPOSURE, 4 * EXPOSURE), {"exposure": EXPOSURE},
        zeros("hurdle", poisson, lambda rate, exposure: np.exp(-rate * exposure)),
    ),
    "Zero inflated Poisson": (
        {}, lambda r: counts(r, EXPOSURE, 4 * EXPOSURE), {"exposure": EXPOSURE},
        zeros("zero_inflated", poisson, lambda rate, exposure: np.exp(-rate * exposure)),
    ),
    "negative_binomial": (
        {}, lambda r: r.poisson(np.where(STATES == 0, 1, 6) * EXPOSURE * r.gamma(3, 1 / 3, len(STATES))),
        {"exposure": EXPOSURE}, negative_binomial,
    ),
    "Zero inflated negative binomial": (
        {}, lambda r: counts(r, *(rate * EXPOSURE * r.gamma(1, 1, len(STATES)) for rate in (2, 20)), (0.3, 0.1)),
        {"exposure": EXPOSURE}, zeros("zero_inflated", negative_binomial, partial(negative_binomial, 0)),
    ),
    "Hurdle negative binomial": (
        {}, lambda r: counts(r, *(rate * EXPOSURE * r.gamma(1, 1, len(STATES)) for rate in (2, 20)), (0.3, 0.1)),
        {"exposure": EXPOSURE}, zeros("hurdle", negative_binomial, partial(negative_binomial, 0)),
    ),
    "binomial": (
        {}, lambda r: r.binomial(TRIALS.astype(int), np.where(STATES == 0, 0.2, 0.7)), {"trials": TRIALS},
        lambda x, probs, trials: stats.binom.pmf(x, trials, probs),
    ),
    "zero_inflated_binomial": (
        {"trials": 8}, lambda r: r.binomial(8, np.where(STATES == 0, 0.3, 0.8)) * (r.random(len(STATES)) < 0.7), {},
        zeros("zero_inflated", lambda x, probs: stats.binom.pmf(x, 8, probs), lambda probs: (1 - probs) ** 8),
    ),
    "categorical": (
        {"num_levels": 3}, lambda r: np.where(STATES == 0, r.integers(0, 2, len(STATES)), r.integers(1, 3, len(STATES))), {},
        lambda x, probs: probs[..., x.astype(int)],
    ),
}  # fmt: skip


def case(name):
    """Options of the model, three rows of data in which some are missing, and what is known of their steps, as lists."""
    options, draw, known, density = CASES[name]
    x = draw(np.random.default_rng(3)).astype(float)
    x[7] = np.nan
    cut = (50, 100)
    return {"emission": name, **options}, np.split(x, cut), {n: np.split(v, cut) for n, v in known.items()}, density


@pytest.mark.parametrize("name", CASES)
def test_the_likelihood_is_that_of_enumeration(name):
    options, rows, known, density = case(name)
    torch.manual_seed(0)
    model = HMM(2, **options).set_parameters(initial=[0.7, 0.3], transition=[[0.8, 0.2], [0.4, 0.6]])
    row, own = rows[0][4:9], {n: v[0][4:9] for n, v in known.items()}
    values = {n: v.numpy() for n, v in model.emission_parameters.items()}
    each = np.stack([  # a column of levels has a row of probabilities, others a number
        density(row, **{n: (v[k] if n == "probs" and name == "categorical" else v[k, 0]) for n, v in values.items()}, **own)
        if name != "categorical" else values["probs"][k][np.nan_to_num(row).astype(int)]
        for k in range(2)
    ], -1)  # fmt: skip
    each[np.isnan(row)] = 1.0
    initial, transition = model.initial.numpy(), model.transition.numpy()
    total = 0.0
    for path in itertools.product(range(2), repeat=len(row)):
        moves = math.prod(transition[a, b] for a, b in itertools.pairwise(path))
        total += initial[path[0]] * moves * math.prod(each[t, z] for t, z in enumerate(path))
    assert model.score(row, **own) == pytest.approx(np.log(total), rel=1e-10)


@pytest.mark.filterwarnings("ignore:no standard errors")
@pytest.mark.parametrize("name", CASES)
def test_em_rises_to_where_the_gradient_is_zero_and_finds_the_states(name):
    options, rows, known, _ = case(name)
    model = HMM(2, **options).fit(rows, **known, seed=1, max_iterations=1000, tolerance=1e-9)
    assert np.diff(model.history.log_likelihoods).min() > -1e-8
    batch = model._as_batch(rows, **known)
    model.log_joint(batch.x, batch.lengths, **batch.known).backward()
    for own, parameter in model.named_parameters():
        # at the end of a range, as of a gate at 0, the last step is small and not zero
        assert float(parameter.grad.abs().max()) < 0.02, own
    right = np.concatenate([path.numpy() for path in model.decode(rows, **known)]) == STATES
    assert max(right.mean(), 1 - right.mean()) > 0.8
    found = model.summary(rows, **known)
    names = torch.tensor([name.startswith(("initial", "transition")) for name in found.names])
    assert bool((found.errors.isfinite() | (found.estimates < 1e-6) | names).all()), str(found)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_finite_differences_also_with_ties_and_known_states(name):
    options, rows, known, _ = case(name)
    torch.manual_seed(0)
    model = HMM(3, ties=[0, 1, 1], **options)
    states = torch.full((3, 50), -1)
    states[0, :5] = torch.tensor(STATES[:5])
    batch = model._as_batch(rows, states=[row[:n] for row, n in zip(states, map(len, rows), strict=True)], **known)
    model.log_joint(batch.x, batch.lengths, **batch.known).backward()
    for parameter in model.emissions.parameters():
        for place in list(np.ndindex(*parameter.shape))[:3]:
            ends = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    parameter[place] += step
                    ends.append(float(model.log_joint(batch.x, batch.lengths, **batch.known)))
                    parameter[place] -= step
            assert float(parameter.grad[place]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_forecasts_are_those_of_draws(name):
    options, rows, known, _ = case(name)
    model = HMM(2, **options).fit(rows, **known, seed=1, max_iterations=5)
    ahead = {"trials": [4.0, 9.0], "exposure": [0.6, 5.0]}
    ahead = {f"future_{n}": ahead[n] for n in known}
    found = model.forecast(rows, 2, **known, **ahead)
    states = torch.distributions.Categorical(logits=found.state_log_probs[0, 1]).sample((20_000,))
    sizes = {n.removeprefix("future_"): torch.full((20_000, 1), v[1], dtype=F64) for n, v in ahead.items()}
    x = model.sample(1, 20_000, states=states[:, None], seed=0, **sizes).x[:, 0]
    if name == "categorical":
        x = torch.nn.functional.one_hot(x[:, 0].long(), 3).double()
    spread = x.std(0).clamp_min(1e-3)
    torch.testing.assert_close(found.means[0, 1] / spread, x.mean(0) / spread, atol=0.03, rtol=0)
    torch.testing.assert_close(found.covariances[0, 1] / torch.outer(spread, spread), torch.cov(x.T).reshape(x.shape[1], -1)
                               / torch.outer(spread, spread), atol=0.08, rtol=0)  # fmt: skip
    low, high = (end[0, 1] for end in found.intervals(0.8))
    assert bool(((x <= high).double().mean(0) > 0.89).all() and ((x < high - 1e-9).double().mean(0) < 0.91).all())
    assert bool(((x < low - 1e-9).double().mean(0) < 0.11).all() and ((x <= low).double().mean(0) > 0.09).all())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_other_fits_models_and_folders(name, tmp_path):
    options, rows, known, _ = case(name)
    short, few = [row[:12] for row in rows], {n: [v[:12] for v in value] for n, value in known.items()}
    drawn = HMM(2, priors=True, **options).fit(short, **few, method="svi", num_steps=2, seed=0)
    if name in ("zero_inflated_gamma", "hurdle_Poisson", "categorical"):  # with densities, sizes of steps and rows of a table
        drawn.fit(short, **few, method="nuts", num_samples=4, warmup_steps=2, max_tree_depth=2, seed=0)
    model = SemiMarkovHMM(2, max_duration=3, **options).fit(rows, **known, seed=0, max_iterations=3)
    assert np.diff(model.history.log_likelihoods).min() > -1e-8
    again = SemiMarkovHMM.load(model.save(tmp_path / "model"))
    assert again.score(rows, **known) == pytest.approx(model.score(rows, **known))
    for lost in known:
        with pytest.raises(ValueError, match=f"^{lost}: "):
            again.score(rows)
    several = HMM(2, **options).fit(rows, **known, seed=0, max_iterations=3, num_restarts=2)
    reader, wanted = several.online(), several.filter(rows, **known).probs[0]
    for t, x in enumerate(rows[0][:9]):
        step = reader.step(x, **{n: v[0][t] for n, v in known.items()})
        np.testing.assert_allclose(step.states, wanted[t], atol=1e-9)
    if known:
        with pytest.raises(ValueError, match=f"^{next(iter(known))}: "):
            several.online().step(rows[0][0])
    fixed = next(iter(several.emission_parameters))
    before = several.emission_parameters[fixed]
    several.fit(rows, **known, fixed=[fixed], max_iterations=2)
    torch.testing.assert_close(several.emission_parameters[fixed], before)


def test_moments_of_columns_stand_in_their_order():
    """Where the columns of one family are those around another's, each tells its own mean and variance."""
    model = HMM(1, emission=["poisson", "exponential", "poisson"])
    model.set_parameters(poisson_rate=[[2.0, 5.0]], exponential_rate=[[0.25]])
    model.is_fitted = True
    found = model.forecast([[[1.0, 2.0, 3.0]]], 1)
    torch.testing.assert_close(found.means[0, 0], torch.tensor([2.0, 4.0, 5.0]).to(F64))
    torch.testing.assert_close(found.covariances[0, 0], torch.diag(torch.tensor([2.0, 16.0, 5.0])).to(F64))


def test_columns_of_levels_beside_numbers():
    """Each has a table of its own, and any of them may be missing."""
    random = np.random.default_rng(0)
    x = np.stack([np.where(STATES == 0, 0, 2) + random.integers(0, 2, len(STATES)), random.normal(3.0 * STATES),
                  (random.random(len(STATES)) < 0.1 + 0.7 * STATES)], -1)  # fmt: skip
    x[random.random(x.shape) < 0.2] = np.nan
    model = HMM(2, emission=["categorical", "normal", "categorical"], num_levels=[4, None, 2]).fit(x, seed=0)
    values = model.emission_parameters
    assert {n: tuple(v.shape) for n, v in values.items()} == {
        "categorical0_probs": (2, 4), "categorical2_probs": (2, 2), "normal_loc": (2, 1), "normal_scale": (2, 1),
    }  # fmt: skip
    assert model.num_free_parameters == 3 + 2 * (3 + 1 + 2)
    total = torch.zeros(len(x), 2, dtype=F64)
    for column, name in ((0, "categorical0"), (2, "categorical2")):
        own = torch.tensor(x[:, column])
        total += torch.where(own.isnan()[:, None], 0.0, values[f"{name}_probs"].log().T[own.nan_to_num(0).long()])
    own = torch.tensor(x[:, 1:2])
    total += torch.distributions.Normal(values["normal_loc"].T, values["normal_scale"].T).log_prob(own.nan_to_num(0)).where(
        ~own.isnan(), 0.0
    )
    torch.testing.assert_close(model.emissions.spec().log_likelihood(torch.tensor(x)), total)
    frame = pandas.DataFrame(x, columns=["mood", "steps", "rain"])
    assert model.forecast(x, 2).means.shape == (1, 2, 7)
    named = model.fit(frame, warm_start=True, max_iterations=1).forecast(frame, 2).frame()
    assert [*named.columns[::3]] == ["mood=0", "mood=1", "mood=2", "mood=3", "steps", "rain=0", "rain=1"]
    assert set(model.sample(50, 1, seed=0).x[0, :, 0].tolist()) <= {0.0, 1.0, 2.0, 3.0}
    same = HMM(2, num_features=2, emission="categorical", num_levels=3)  # one number of levels for all columns
    assert {n: tuple(v.shape) for n, v in same.emission_parameters.items()} == {
        "categorical0_probs": (2, 3), "categorical1_probs": (2, 3),
    }  # fmt: skip
    kept = HMM(2, emission=["categorical", "normal"], num_levels=[4, None])
    kept.set_parameters(categorical0_probs=[[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    kept.fit(x[:, :2], warm_start=True, fixed={"categorical0_probs": [[False, False, True, True], [True, True, False, False]]})
    assert kept.emission_parameters["categorical0_probs"][0, 2:].tolist() == [0.0, 0.0]


def test_exposures_come_in_every_form_that_data_have():
    frame = pandas.DataFrame({"trip": np.repeat(["a", "b"], [70, 50]), "calls": CASES["poisson"][1](np.random.default_rng(0)),
                              "hours": EXPOSURE})  # fmt: skip
    x, hours = frame["calls"].to_numpy().astype(float), EXPOSURE
    calls, of_calls = (sequences_by(frame, "trip", [name]) for name in ("calls", "hours"))
    for make in (lambda: HMM(2, emission="poisson"), lambda: IOHMM(2, num_inputs=0, outputs="poisson")):
        model = make().fit(calls, exposure=of_calls, seed=0)
        forms = [
            model.score(calls, exposure=of_calls), model.score(x, [70, 50], exposure=hours),
            model.score([x[:70], x[70:]], exposure=[hours[:70], hours[70:]]),
        ]  # fmt: skip
        assert forms == pytest.approx([forms[0]] * 3, rel=1e-12)
        one = [model.score(x, exposure=hours), model.score(frame[["calls"]], exposure=frame["hours"]),
               model.score(frame[["calls"]], exposure=frame[["hours"]])]  # fmt: skip
        assert one == pytest.approx([one[0]] * 3, rel=1e-12)
        model = make().fit(table := sequences_by(frame, "trip", ["calls", "hours"]), exposure="hours", seed=0)
        assert [model.column_names, model.score(table, exposure="hours")] == [("calls",), pytest.approx(forms[0], rel=1e-12)]
        assert model.score(frame[["hours", "calls"]], exposure="hours") == pytest.approx(one[0], rel=1e-12)
        ahead = model.forecast(table, 2, exposure="hours", future_exposure=[1.0, 2.0])
        flat = model.forecast(x, 2, [70, 50], exposure=hours, future_exposure=[1.0, 2.0])
        torch.testing.assert_close(flat.means, ahead.means)
        assert ahead.frame(0).columns.tolist() == ["calls", "calls low", "calls high"]
        if isinstance(model, HMM):  # a row may be empty, and so is what is told of it
            none = model.forecast([x[:70], []], 2, exposure=[hours[:70], []], future_exposure=[1.0, 2.0]).state_log_probs
            torch.testing.assert_close(none[0], ahead.state_log_probs[0])
            torch.testing.assert_close(none[1, 0].exp(), model.initial)
            with pytest.raises(ValueError, match=r"exposure must have as many steps as the sequences of x, \[70, 1\]"):
                model.forecast([x[:70], [3.0]], 2, exposure=[hours[:70], []], future_exposure=[1.0, 2.0])
        padded, hours_ = np.zeros((2, 70, 1)), np.full((2, 70), np.nan)  # behind the ends of rows anything may stand
        for row, (a, b) in enumerate(((0, 70), (70, 120))):
            padded[row, : b - a, 0], hours_[row, : b - a] = x[a:b], hours[a:b]
        assert model.score(padded, [70, 50], exposure=hours_) == pytest.approx(forms[0], rel=1e-12)
        if isinstance(model, HMM):
            given = torch.tensor(padded), torch.tensor([70, 50])
            assert float(model.log_joint(*given, exposure=torch.tensor(hours_)).detach()) == pytest.approx(forms[0])
        again = model.fit(calls, seed=0).score(calls)  # a fit without them needs none any more
        assert np.isfinite(again)


def test_levels_beside_numbers_are_drawn_as_they_are():
    """A first column of whole numbers makes no whole numbers of the others."""
    model = IOHMM(1, num_inputs=0, outputs=["categorical", "normal"], num_outputs=[3, 1])
    model.is_fitted = True
    x = model.sample(20, 1, seed=0).x[0]
    assert bool((x[:, 1] != x[:, 1].round()).any()) and bool((x[:, 0] == x[:, 0].round()).all())


ROWS = np.array([3.0, 0, 2, 5])
REFUSED = {
    "trials: binomial columns count successes": (dict(emission="binomial"), ROWS, {}),
    "exposure: poisson and negative_binomial columns take it": (dict(emission="normal"), ROWS, dict(exposure=ROWS)),
    "trials: binomial columns take it": (dict(emission="poisson"), ROWS, dict(trials=ROWS)),
    "exposure: of column 0 it must be a number above 0.*row 0, step 1 is 0 and x 0": (
        dict(emission="poisson"), ROWS, dict(exposure=ROWS)
    ),
    "exposure: no column 'hours' in x, x has no names": (dict(emission="poisson"), ROWS, dict(exposure="hours")),
    "exposure: of column 0 it must be .*step 2 is nan": (
        dict(emission="poisson"), ROWS, dict(exposure=[1.0, 1.0, np.nan, 1.0])
    ),
    "trials: of column 0 it must be a whole number, at least .*step 3 is 4 and x 5": (
        dict(emission="binomial"), ROWS, dict(trials=4)
    ),
    "x: column 0 counts successes.*step 3 holds 5 of 4": (dict(emission="binomial", trials=4), ROWS, {}),
    r"exposure must be a number, or have shape \(1, 4\)": (dict(emission="poisson"), ROWS, dict(exposure=[1.0, 2.0])),
    r"exposure must have as many steps as the sequences of x, \[4, 2\]; got \[4, 1\]": (
        dict(emission="poisson"), [ROWS, ROWS[:2]], dict(exposure=[ROWS + 1, [1.0]])
    ),
    "x: column 0 must hold levels 0..2 ": (dict(emission="categorical", num_levels=3), ROWS, {}),
    "x: column 0 must hold counts 1, 2, 3": (dict(emission="zero_truncated_poisson"), [np.zeros(3)], {}),
    "x: column 0 must hold counts": (dict(emission="hurdle_poisson"), ROWS + 0.5, {}),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_data_that_do_not_fit_are_refused_by_name(message):
    options, x, known = REFUSED[message]
    with pytest.raises((ValueError, TypeError), match=message):
        HMM(2, **options).fit(x, **known)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(emission="categorical"), "num_levels: column 0 is 'categorical': say how many levels it has; got None"),
        (dict(emission=["categorical", "normal"], num_levels=[3, 2]), "column 1 is not 'categorical': None there; got 2"),
        (dict(emission=["categorical", "normal"], num_levels=[3]), "one for each of the 2 columns"),
        (dict(emission="poisson", num_levels=3), "num_levels: it is of 'categorical' columns"),
        (dict(emission="categorical", num_levels=1), "num_levels must be at least 2"),
        (dict(num_features=1, trials=3), "trials: emission='gaussian' has none"),
        (dict(emission="poisson", trials=3), "trials: they are of 'binomial' and 'multinomial' emissions"),
        (dict(emission="zero_inflated_bernoulli"), "no zero_inflated_bernoulli, of its zeros nothing"),
        (dict(emission="hurdle_hurdle_poisson"), "no hurdle_hurdle_poisson, of its zeros nothing"),
        (dict(emission="zero_truncated_gamma"), "no zero_truncated_gamma; there are those of poisson, negative_binomial"),
        (dict(emission="hurdle_Pareto"), "its support ends at a parameter"),
        (dict(emission="hurdle_poison"), "no family 'poison'. Did you mean 'poisson'"),
    ],
)
def test_emissions_that_there_are_not(options, message):
    with pytest.raises(ValueError, match=message):
        HMM(2, **options)


OUTPUTS = {
    "hurdle_normal": lambda r, mean: (mean + r.normal(size=len(mean))) * (r.random(len(mean)) < 0.7),
    "zero_inflated_poisson": lambda r, mean: r.poisson(mean) * (r.random(len(mean)) < 0.7),
    "hurdle_negative_binomial": lambda r, mean: r.poisson(mean) * (r.random(len(mean)) < 0.7),
    "zero_truncated_poisson": lambda r, mean: r.poisson(mean) + 1,
    "zero_truncated_negative_binomial": lambda r, mean: r.poisson(mean) + 1,
    "hurdle_gamma": lambda r, mean: r.gamma(3, mean / 3) * (r.random(len(mean)) < 0.7),
    "student_t": lambda r, mean: mean + r.standard_t(3, len(mean)),
    "Laplace": lambda r, mean: mean + r.laplace(0, 1, len(mean)),
    "von_mises": lambda r, mean: r.vonmises(mean / 4, 8),
}


@pytest.mark.parametrize(
    ("name", "mealy"), [*((name, True) for name in OUTPUTS), ("hurdle_gamma", False), ("Laplace", False), ("von_mises", False)]
)
def test_em_of_every_family_that_inputs_drive_rises_to_where_the_gradient_is_zero(name, mealy):
    random = np.random.default_rng(0)
    u = random.normal(size=len(STATES))
    eta = 0.5 + 1.5 * STATES + 0.5 * u * mealy
    x = OUTPUTS[name](random, np.exp(eta)).astype(float)
    x[5] = np.nan
    known = {"inputs": u} if mealy else {}
    model = IOHMM(2, num_inputs=int(mealy), outputs=name, mealy=mealy)
    model.fit(x, **known, num_restarts=1, seed=0, max_iterations=60, tolerance=1e-7)
    trace = model.history.restarts.trace
    assert float((trace[1:] - trace[:-1]).nan_to_num(0.0).min()) > -1e-8
    batch = model._as_batch(x, **known)
    model.log_joint(batch.x, **batch.known).backward()
    for own, parameter in model.named_parameters():  # a median may lie at a number, on both sides of which it is 1 / scale
        if parameter.numel():
            assert float(parameter.grad.abs().max()) < (2.5 if name == "Laplace" else 0.02), own
    drawn = model.forecast(x, 1, **known, **({"future_inputs": [[0.4]]} if mealy else {}))
    assert drawn.covariances.shape == (1, 1, 1, 1)


@pytest.mark.parametrize("name", ["poisson", "hurdle_Poisson", "zero_inflated_poisson", "binomial", "zero_inflated_binomial"])
def test_a_constant_predictor_is_the_hmm(name):
    """Likelihoods and forecasts, sizes of the steps included; what EM of both comes to is the same."""
    options, rows, known, _ = case(name)
    hmm = HMM(2, **options).fit(rows, **known, seed=1, max_iterations=8)
    family = options.pop("emission")
    model = IOHMM(2, num_inputs=0, outputs=family, **options)
    values = {n: v.numpy()[:, 0] for n, v in hmm.emission_parameters.items()}
    mean = np.log(values["rate"]) if "rate" in values else np.log(values["probs"] / (1 - values["probs"]))
    model._set_tables(initial=hmm.initial, emission=mean[:, None])
    with torch.no_grad():
        model.transition_network.weight.copy_(hmm.transition.log()[:, None])
        if "gate" in values:
            model.noise.raw.copy_(torch.tensor(np.log(values["gate"] / (1 - values["gate"])))[:, None])
    assert model.score(rows, **known) == pytest.approx(hmm.score(rows, **known), rel=1e-12)
    ahead = {f"future_{n}": {"trials": [4.0, 9.0], "exposure": [0.6, 5.0]}[n] for n in known}
    found, wanted = (each.forecast(rows, 2, **known, **ahead) for each in (model, hmm))
    torch.testing.assert_close(found.means, wanted.means)
    torch.testing.assert_close(found.covariances, wanted.covariances)
    torch.testing.assert_close(found.intervals(), wanted.intervals())
    problem = model.fit(rows, **known, warm_start=True, max_iterations=1).history.restarts.trace
    assert float(problem.flatten()[0]) == pytest.approx(hmm.score(rows, **known), rel=1e-9)
    found = model.forecast(rows, 2, **known, **ahead)
    one = model.predict_next(rows, **known, **{f"next_{n}": {"trials": 4.0, "exposure": 0.6}[n] for n in known})
    torch.testing.assert_close(one.means, found.means[:, 0])
    torch.testing.assert_close(one.covariances, found.covariances[:, 0])
    for lost in known:
        for ask in (model.score, model.filter, model.one_step, lambda x: model.forecast(x, 2)):
            with pytest.raises(ValueError, match=f"^{lost}: "):
                ask(rows)
        with pytest.raises(ValueError, match=f"^future_{lost}: "):
            model.forecast(rows, 2, **known)
        with pytest.raises(ValueError, match=f"^{lost}: "):
            model.sample(3, 2)
        drawn = model.sample(3, 2, **{lost: {"trials": 4.0, "exposure": 0.6}[lost]}, seed=0).x
        assert drawn.shape == (2, 3, 1) and (lost == "exposure" or float(drawn.max()) <= 4)


def test_regressions_with_trials_and_exposures_are_those_of_their_rates():
    """A Poisson regression with exposures is that of rates weighted by them, a binomial one that of its single trials."""
    random = np.random.default_rng(0)
    u, size = random.normal(size=80), random.integers(1, 9, 80).astype(float)
    counts = random.poisson(np.exp(0.3 + 0.5 * u) * size).astype(float)
    model = IOHMM(1, num_inputs=1, outputs="poisson", mealy=True).fit(counts, inputs=u, exposure=size, tolerance=1e-12)
    peer = PoissonRegressor(alpha=0, tol=1e-10).fit(u[:, None], counts / size, sample_weight=size)
    found = model.emission_network.weight.detach().flatten().numpy()
    np.testing.assert_allclose(found, [peer.coef_[0], peer.intercept_], atol=1e-4)
    right = random.binomial(size.astype(int), 1 / (1 + np.exp(-u)))
    model = IOHMM(1, num_inputs=1, outputs="binomial", mealy=True)
    model.fit(right.astype(float), inputs=u, trials=size, tolerance=1e-12)
    each = np.concatenate([np.repeat([1, 0], [k, int(n) - k]) for k, n in zip(right, size, strict=True)])
    peer = LogisticRegression(C=np.inf, tol=1e-10).fit(np.repeat(u, size.astype(int))[:, None], each)
    found = model.emission_network.weight.detach().flatten().numpy()
    np.testing.assert_allclose(found, [peer.coef_[0, 0], peer.intercept_[0]], atol=1e-4)


@pytest.mark.parametrize("inputs", [True, False])
@pytest.mark.parametrize("name", ["negative_binomial", "zero_inflated_poisson", "zero_inflated_negative_binomial"])
def test_regressions_of_counts_with_exposures_are_those_of_statsmodels(name, inputs):
    sm = pytest.importorskip("statsmodels.api")
    random = np.random.default_rng(4)
    u, size = random.normal(size=400), random.uniform(0.5, 8, 400)
    rate = np.exp(0.4 + 0.5 * u * inputs) * size
    x = random.poisson(rate * random.gamma(2.5, 1 / 2.5, 400) if "negative" in name else rate).astype(float)
    x = np.where(random.random(400) < 0.25, 0.0, x) if "zero" in name else x
    design = np.column_stack([u, np.ones(400)]) if inputs else np.ones((400, 1))
    kinds = sm.NegativeBinomial, sm.ZeroInflatedPoisson, sm.ZeroInflatedNegativeBinomialP
    peer = kinds[("zero" in name) + ("zero" in name and "negative" in name)](x, design, exposure=size)
    peer = peer.fit(method="bfgs", maxiter=2000, gtol=1e-8, disp=0)
    told = {"num_inputs": 1, "mealy": True} if inputs else {"num_inputs": {"transition": 1}}
    model = IOHMM(1, outputs=name, **told).fit(
        x, inputs=u, exposure=size, tolerance=1e-13, max_iterations=3000, num_restarts=1, seed=0
    )
    assert model.score(x, inputs=u, exposure=size) == pytest.approx(peer.llf, abs=1e-4)
    if not inputs:  # as an HMM of one state, by its own EM and by gradients
        for options in ({"tolerance": 1e-13, "max_iterations": 5000}, {"method": "lbfgs"}):
            other = HMM(1, emission=name).fit(x, exposure=size, seed=0, **options)
            assert other.score(x, exposure=size) == pytest.approx(peer.llf, abs=1e-4)


@pytest.mark.parametrize("name", ["Beta", "Gamma Poisson", "Weibull"])
def test_families_that_inputs_cannot_drive(name):
    with pytest.raises(ValueError, match="has no mean or location that inputs could drive"):
        IOHMM(2, num_inputs=1, outputs=name, mealy=True)


@pytest.mark.parametrize("emission", ["negative_binomial", "poisson", "zero_inflated_poisson"])
def test_fits_do_not_depend_on_the_unit_of_exposures(emission):
    rng = np.random.default_rng(0)
    states, exposure = np.arange(120) // 15 % 2, rng.uniform(0.2, 5, 120)
    x = rng.poisson(np.where(states, 6, 1.5) * exposure).astype(float)
    scores = []
    for size in (1.0, 1e5, 1e-5):
        given = {"exposure": exposure * size}
        for model in (HMM(2, emission=emission), IOHMM(2, num_inputs=0, outputs=[emission])):
            scores.append(model.fit(x, seed=0, max_iterations=10, **given).score(x, **given))
    assert scores[2:] == pytest.approx(2 * scores[:2], rel=1e-6)
