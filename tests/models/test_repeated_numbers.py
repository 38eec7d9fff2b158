"""Data in which a number repeats: a likelihood without a maximum, which fits by gradients do not run after."""

import numpy as np
import pytest
import torch

from pplseq import ARHMM, HMM, IOHMM, SemiMarkovHMM, SwitchingRegression

RNG = np.random.default_rng(0)
X = np.where(RNG.random(200) < 0.3, 0.0, RNG.normal(2, 1, 200))
INPUTS = RNG.normal(size=200)
MODELS = {  # how it is made, and how small variances may be
    "gaussian": (lambda: HMM(2, num_features=1), 1e-3),
    "full": (lambda: HMM(2, num_features=1, covariance="full"), 1e-3),
    "mixture": (lambda: HMM(2, num_features=1, emission="mixture"), 1e-3),
    "normal": (lambda: HMM(2, emission="normal"), 1e-3),
    "laplace": (lambda: HMM(2, emission="Laplace"), 1e-3),
    "logarithms": (lambda: HMM(2, emission="LogNormal"), 1e-3),
    "semi-markov": (lambda: SemiMarkovHMM(2, emission="student_t", max_duration=3), 1e-3),
    "switching": (lambda: SwitchingRegression(2), 1e-6),
    "autoregressive": (lambda: ARHMM(2, 1), 1e-6),
}


def smallest(model):
    """The smallest variance that a state has."""
    found = model.estimates()
    if "precision" in found:
        return float(1 / found["precision"].detach().max())
    for name in ("scale", "variance", "covariances"):
        if name in found:
            return float(found[name].detach().min()) ** (2 if name == "scale" else 1)
    raise AssertionError


@pytest.mark.filterwarnings("ignore:.*collapsed")
@pytest.mark.parametrize("method", ["lbfgs", "sgd"])
@pytest.mark.parametrize("name", MODELS)
def test_scales_have_the_floor_of_em(name, method):
    make, share = MODELS[name]
    x = np.exp(X) if name == "logarithms" else X[:, None] if name == "autoregressive" else X
    model = make()
    model.fit(x, method=method, seed=0, **({"num_steps": 40, "lr": 0.25} if method == "sgd" else {"num_steps": 60}))
    assert smallest(model) > 0.9 * share * X.var() / (2 if name == "laplace" else 1)
    assert model.score(x) < (100 if share == 1e-3 else 400)


@pytest.mark.parametrize("method", ["lbfgs", "sgd"])
def test_they_end_where_em_ends_and_say_so(method):
    best = HMM(2, num_features=1)
    with pytest.warns(RuntimeWarning, match="collapsed to the smallest variance"):
        best.fit(X, seed=0, max_iterations=100, tolerance=1e-8)
    model = HMM(2, num_features=1)
    with pytest.warns(RuntimeWarning, match="1 of 2 scales collapsed to the smallest one allowed"):
        model.fit(X, method=method, seed=0)
    assert model.score(X) == pytest.approx(best.score(X), abs=0.05)


def test_scales_that_states_share_are_counted_as_they_are():
    """Of two columns, one of which says nothing but one number, but for a rounding."""
    x = np.stack([np.random.default_rng(5).normal(size=100), np.where(np.arange(100) == 50, 1e-3, 0.0)], -1)
    x[50, 1] = 1.0
    with pytest.warns(RuntimeWarning, match="of 2 scales collapsed"):
        HMM(2, num_features=2, covariance="tied").fit(x, method="lbfgs", seed=0)


def test_what_is_held_or_bounded_is_as_it_was_told():
    model = HMM(2, num_features=1).set_parameters(loc=[[0.0], [2.0]], covariance=[[1e-8], [1.0]])
    model.fit(X, method="lbfgs", warm_start=True, fixed=["precision"])
    assert float(model.covariances.min()) == pytest.approx(1e-8)
    model.fit(X, method="lbfgs", warm_start=True, bounds={"covariance": (None, 1e-5)})
    assert float(model.covariances.max()) <= 1e-5 * (1 + 1e-9)
    other = HMM(2, emission="normal").fit(X, method="lbfgs", seed=0, bounds={"scale": (1e-4, None)})
    assert float(other.estimates()["scale"].detach().min()) == pytest.approx(1e-4, rel=0.05)


def test_priors_have_a_maximum_of_their_own():
    model = HMM(2, num_features=1, priors=True).fit(X, method="lbfgs", seed=0)
    other = HMM(2, num_features=1, priors=True).fit(X, seed=0, tolerance=1e-10)
    assert torch.isfinite(model.covariances).all() and model.score(X) == pytest.approx(other.score(X), abs=1.0)


@pytest.mark.parametrize(
    "options", [{"outputs": "normal"}, {"outputs": "gaussian"}, {"outputs": "gaussian", "covariance": "full"}], ids=str
)
def test_outputs_that_inputs_drive(options):
    x, inputs = torch.tensor(X).reshape(1, -1, 1), torch.tensor(INPUTS).reshape(1, -1, 1)
    model = IOHMM(2, num_inputs={"emission": 1}, num_outputs=1, mealy=True, **options)
    model.fit(x, inputs=inputs, method="sgd", num_steps=1, seed=0)
    (raw,) = model.noise.parameters()
    raw.data[:1] = -20.0  # on the way to where the likelihood has no end
    with pytest.warns(RuntimeWarning, match="a variance met its floor"):
        model.fit(x, inputs=inputs, method="sgd", warm_start=True, num_steps=1, seed=0)
    assert float(raw.detach().min()) == pytest.approx(np.log(1e-4 * X.var()) / 2)


@pytest.mark.parametrize("method", ["lbfgs", "sgd"])
@pytest.mark.parametrize("name", ["hurdle_normal", "hurdle_student_t", "zero_inflated_laplace", "Cauchy"])
def test_a_floor_is_of_what_has_the_scale(name, method):
    """Zeros of a gate, and the far ones of heavy tails, make no floor: scales come out as they are."""
    random = np.random.default_rng(0)
    x = 500 + random.normal(size=200) if name != "Cauchy" else random.standard_cauchy(300)
    x = np.where(np.arange(len(x)) % 3 == 0, 0.0, x) if name != "Cauchy" else np.append(x, 1e5)
    model = HMM(1, emission=name).fit(x, seed=0, method=method, **({"num_steps": 100, "lr": 0.2} if method == "sgd" else {}))
    assert 0.6 < float(model.estimates()["scale"].detach()) < 1.5


POSITIVE = np.where(RNG.random(200) < 0.4, 2.0, RNG.gamma(2.0, 3.0, 200))
ANGLES = np.where(RNG.random(200) < 0.4, 1.0, RNG.uniform(-3, 3, 200))
SHAPES = {  # numbers that repeat, the parameter that runs away, and where it ends
    "exponential": (np.where(POSITIVE == 2, 0.0, POSITIVE), "rate", "largest"),
    "HalfNormal": (np.where(POSITIVE == 2, 0.0, POSITIVE), "scale", "smallest"),
    "HalfCauchy": (np.where(POSITIVE == 2, 0.0, POSITIVE), "scale", "smallest"),
    "gamma": (POSITIVE, "concentration", "largest"),
    "hurdle_gamma": (np.where(POSITIVE > 8, 0.0, POSITIVE), "concentration", "largest"),
    "von_mises": (ANGLES, "concentration", "largest"),
    "Beta": (np.where(ANGLES == 1, 0.3, (ANGLES + 3) / 6), "concentration1", "largest"),
    "Kumaraswamy": (np.where(ANGLES == 1, 0.3, (ANGLES + 3) / 6), "concentration0", "largest"),
}


def end_of(name, x, which):
    """A million, or the millionth of what numbers are like."""
    size = np.abs(x[x != 0] if name.startswith("hurdle") else x).mean()
    ends = {"rate": 1e6 / size, "scale": size / 1e6, "concentration1": 1e6 / (1 - x).min(), "concentration0": 1e100}
    return ends.get(which, 1e6)


@pytest.mark.filterwarnings("ignore:.*collapsed")
@pytest.mark.parametrize("method", ["em", "lbfgs", "sgd"])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_have_ends_too(name, method):
    x, which, end = SHAPES[name]
    model = HMM(2, emission=name)
    if method not in model.methods:
        return
    model.fit(x, method=method, seed=0, **{"em": {}, "lbfgs": {}, "sgd": {"num_steps": 30, "lr": 1.0}}[method])
    found, limit = model.estimates()[which].detach(), end_of(name, x, which)
    assert bool((found <= limit * 1.001).all() if end == "largest" else (found >= limit / 1.001).all())
    assert np.isfinite(model.score(x)) and model.score(x) < 700


@pytest.mark.parametrize("unit", [1e-12, 1e9])
@pytest.mark.parametrize("name", ["exponential", "HalfNormal"])
def test_ends_are_of_the_units_of_the_data(name, unit):
    """By EM and by gradients the same, and said; a state that is a thousand times faster is no such state."""
    x, which, end = SHAPES[name]
    for method in ("em", "lbfgs") if name == "exponential" else ("lbfgs",):
        model = HMM(2, emission=name)
        with pytest.warns(RuntimeWarning, match=f"collapsed to the {end}"):
            model.fit(x * unit, method=method, seed=0)
        scale = float(model.estimates()[which].detach().log().sum()) + (1 if which == "rate" else -1) * 2 * np.log(unit)
        wanted = np.log(end_of(name, x, which)) + (np.log(1 / x[x > 0].mean()) if which == "rate" else np.log(RMS))
        assert scale == pytest.approx(wanted, abs=0.2)
        random = np.random.default_rng(0)
        fast = np.where(random.random(300) < 0.5, random.exponential(1e-3, 300), random.exponential(1.0, 300)) * unit
        model = HMM(2, emission=name).fit(fast, method=method, seed=0, num_restarts=3)
        ratio = model.estimates()[which].detach()
        assert 300 < float(ratio.max() / ratio.min()) < 3000


RMS = float(np.sqrt(np.square(SHAPES["HalfNormal"][0][SHAPES["HalfNormal"][0] > 0]).mean()))


def outputs_by(family, x, states, method="em"):
    """Scales of an IOHMM of numbers that one input drives."""
    x, inputs = torch.tensor(x).reshape(1, -1, 1), torch.tensor(INPUTS).reshape(1, -1, 1)
    model = IOHMM(states, num_inputs={"emission": 1}, num_outputs=[1], outputs=[family], mealy=True)
    model.fit(x, inputs=inputs, method=method, seed=0, **({"num_steps": 100, "lr": 0.2} if method == "sgd" else {}))
    return next(value for _, name, value in model.noise.values() if name == "scale").detach()


@pytest.mark.parametrize("family", ["normal", "Laplace", "Cauchy", "student_t"])
def test_scales_of_driven_outputs_have_floors(family):
    random = np.random.default_rng(0)
    x = np.where(random.random(200) < 0.4, 0.0, 2 + INPUTS + random.laplace(0, 1, 200))
    floor = 1e-2 * x.std()
    if family in ("Cauchy", "student_t"):
        floor = min(floor, 1e-2 * 1.4826 * np.median(np.abs(x - np.median(x))))
    by_gradients = [(1.0, "sgd")] if family in ("normal", "Cauchy") else []
    for unit, method in ((1.0, "em"), (1e9, "em"), *by_gradients):
        with pytest.warns(RuntimeWarning, match="met its floor"):
            assert float(outputs_by(family, unit * x, 2, method).min()) == pytest.approx(unit * floor, rel=0.05)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_zeros_of_a_gate_are_none_of_the_floor_of_outputs(unit):
    """As least squares of what is not zero."""
    x = np.where(np.arange(200) % 3 == 0, 0.0, 500 + INPUTS + np.random.default_rng(0).normal(size=200))
    rows = np.column_stack([INPUTS, np.ones(200)])[x != 0]
    left = x[x != 0] - rows @ np.linalg.lstsq(rows, x[x != 0])[0]
    found = outputs_by("hurdle_normal", unit * x, 1)
    assert float(found) / unit == pytest.approx(np.sqrt(np.square(left).mean()), rel=1e-3)
