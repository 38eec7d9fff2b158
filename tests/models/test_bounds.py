"""Bounds of parameters, of all or of single entries, by EM and by gradients: what is found is the best within them."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear, minimize

from pplseq import HMM, IOHMM, LDS
from pplseq.infer.fit.held import filled
from pplseq.models import ARHMM, VLHMM, SemiMarkovHMM, StructuralModel, SwitchingRegression, TextLDS
from pplseq.runs.fits import DescentTraining

RNG = np.random.default_rng(0)
REGIME = np.arange(60) // 12 % 2
WORDS = np.where(RNG.random(60) < 0.8, REGIME, RNG.integers(0, 3, 60))
VECTORS = 3 * np.eye(2)[REGIME] + RNG.normal(size=(60, 2))
COUNTS = RNG.poisson(np.array([2, 9])[REGIME])
NUMBERS = 5.0 * REGIME + RNG.normal(size=60)
SERIES = 0.9 * RNG.normal(size=(60, 1)).cumsum(0) * [1.0, 2.0] + RNG.normal(size=(60, 2))


def gaussian(kind):
    return lambda: HMM(2, num_features=2, covariance=kind)


def family(name):
    return lambda: HMM(2, emission=name)


# a model, data, bounds
CASES = {
    "moves": (lambda: HMM(2, 3), WORDS, {"transition": ([[0.3, 0.0], [0.0, 0.0]], [[1.0, 1.0], [0.05, 1.0]])}),
    "words": (lambda: HMM(2, 3), WORDS, {"emission": (0.05, [0.6, 0.7, 1.0])}),
    "means": (gaussian("diag"), VECTORS, {"loc": (0.5, [2.5, math.inf])}),
    "variances": (gaussian("diag"), VECTORS, {"covariance": (1.2, 3.0)}),
    "precisions": (gaussian("diag"), VECTORS, {"precision": (None, 0.7)}),
    "one variance": (gaussian("spherical"), VECTORS, {"covariance": (None, [[0.5], [math.inf]]), "loc": (None, 2.0)}),
    "rates": (family("poisson"), COUNTS, {"rate": ([[3.0], [3.0]], [[math.inf], [8.0]])}),
    "chances": (family("bernoulli"), WORDS > 0, {"probs": (0.3, 0.7)}),
    "waiting": (family("exponential"), NUMBERS**2, {"rate": (0.1, 0.5)}),
    "normal": (family("normal"), NUMBERS, {"loc": (1.0, 4.5), "scale": (None, 1.1)}),
    "student": (family("student_t"), NUMBERS, {"loc": (1.0, None), "df": (None, 5.0)}),
    "counts": (family("negative_binomial"), COUNTS, {"mean": (3.0, 7.0), "size": (None, 20.0)}),
    "durations": (lambda: SemiMarkovHMM(2, emission="poisson", max_duration=4), COUNTS, {"duration": (0.1, 0.6)}),
}


def room(model, bounds):
    """Smallest distances of values from their bounds; negative where one is passed."""
    for name, (low, high) in bounds.items():
        values = model.estimates() if name in model.estimates() else {"covariance": 1 / model.estimates()["precision"]}
        value = values[name].detach().double()
        for sign, end in ((1, low), (-1, high)):
            if end is not None:
                yield float((sign * (value - torch.as_tensor(end, dtype=torch.float64))).min())


@pytest.mark.parametrize("name", CASES)
def test_the_best_within_bounds(name):
    """EM never falls and keeps to them; gradients from there find nothing more."""
    make, x, bounds = CASES[name]
    x = np.asarray(x, float) if x.dtype == bool else x
    free = make().fit(x, seed=0, max_iterations=30)
    model = make().fit(x, seed=0, bounds=bounds, max_iterations=500, tolerance=1e-10)
    history = model.history.log_likelihoods
    assert min(room(model, bounds)) > -1e-9 and min(np.diff(history)) > -1e-9 * abs(history[0])
    assert min(room(free, bounds)) < 0, "bounds that bind nothing say nothing"
    assert model.num_free_parameters == free.num_free_parameters
    best = model.score(x)
    model.fit(x, warm_start=True, method="lbfgs", bounds=bounds)
    assert min(room(model, bounds)) > -1e-9
    assert model.score(x) == pytest.approx(best, abs=2e-3)


def test_rows_within_bounds_against_a_general_optimiser():
    generator = np.random.default_rng(1)
    for size in (2, 3, 5):
        probs, point = generator.dirichlet(np.ones(size)), generator.dirichlet(np.ones(size))
        wide = generator.random(size) * (generator.random(size) < 0.7)
        low, high = point * generator.random(size), point + (1 - point) * wide
        found = filled(*(torch.as_tensor(value).log() for value in (probs, low, high))).exp().numpy()
        sum_to_one = {"type": "eq", "fun": lambda q: q.sum() - 1}
        best = minimize(
            lambda q, probs=probs: -probs @ np.log(q.clip(1e-12)), point, bounds=list(zip(low, high, strict=True)),
            constraints=sum_to_one, method="SLSQP", options={"ftol": 1e-12},
        )  # fmt: skip
        assert found.sum() == pytest.approx(1) and (found >= low - 1e-12).all() and (found <= high + 1e-12).all()
        assert probs @ np.log(found) >= -best.fun - 1e-9 and np.allclose(found, best.x, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "x", "name", "bound", "values"),
    [
        (lambda: StructuralModel(), NUMBERS, "noise", (None, 0.4), {"noise": 0.4}),
        (lambda: StructuralModel(trend="fixed"), NUMBERS, "level", (None, 0.1), {"level": 0.1}),
        (lambda: LDS(1, 2, initial="stationary"), SERIES, "transition", (None, 0.6), {"transition": [[0.6]]}),
        (lambda: LDS(1, 2, initial="stationary", emission_noise="diagonal"), SERIES, "emission_noise", (None, 0.2), None),
        (lambda: ARHMM(1, 1), NUMBERS[:, None], "weights", (None, [math.inf, 0.4]), None),
    ],
)  # fmt: skip
def test_a_bound_that_binds_is_a_value_that_is_held(make, x, name, bound, values):
    """Of single numbers, by gradients alone."""
    model = make()
    how = {"method": "lbfgs", "seed": 0} | ({"initialization": "still"} if isinstance(model, StructuralModel) else {})
    if "em" in model.methods:
        with pytest.raises(ValueError, match=f"has no best '{name}' within bounds.* method='lbfgs'"):
            make().fit(x, bounds={name: bound}, method="em")
    model.fit(x, bounds={name: bound}, **how)
    assert make().fit(x, **how).score(x) > model.score(x) + 0.01
    if values is not None:
        other = make().set_parameters(**values).fit(x, fixed=[name], **how)
        assert model.score(x) == pytest.approx(other.score(x), abs=2e-3)


@pytest.mark.parametrize("name", ["moves", "means", "rates"])
def test_by_adam_and_where_a_run_goes_on(name, tmp_path):
    make, x, bounds = CASES[name]
    model = make().fit(x, seed=0, bounds=bounds)
    best, run = model.score(x), {"seed": 0, "bounds": bounds, "method": "sgd", "lr": 0.3}
    assert make().fit(x, num_steps=80, **run).score(x) == pytest.approx(best, abs=0.1)
    model = make().fit(x, num_steps=4, folder=tmp_path / "run", **run)
    with pytest.raises(ValueError, match="bounds: the run in .* is of another bounds"):
        make().fit(x, num_steps=8, folder=tmp_path / "run", resume=True, **(run | {"bounds": None}))
    assert min(room(make().fit(x, num_steps=8, folder=tmp_path / "run", resume=True, **run), bounds)) > -1e-9
    other, batch = copy.deepcopy(model), model._as_batch(x)
    for one in (model, other):
        with one._keeping({}, "sgd", (), one._bounds_by(bounds, "sgd")):
            training = DescentTraining(one, [batch], num_steps=6)
            for _ in range(3):
                training.step()
            if one is other:
                state = training.state()
                training = DescentTraining(one, [batch], num_steps=6)
                training.restore(*copy.deepcopy(state))
            for _ in range(3):
                training.step()
    assert model.score(x) == pytest.approx(other.score(x), rel=1e-12)


def test_starts_and_what_is_held_beside():
    bounds = {"loc": (0.5, 2.5), "transition": (0.2, None)}
    one = [[True, False], [False, False]]
    model = gaussian("diag")().fit(VECTORS, seed=1, num_restarts=3, bounds=bounds)
    model.set_parameters(loc=[[1.0, 1.0], [2.0, 2.0]])
    model.fit(VECTORS, warm_start=True, bounds=bounds, fixed={"loc": one})
    assert model.loc[0, 0] == 1 and min(room(model, bounds)) > -1e-9
    with pytest.raises(ValueError, match="'loc' is held .* outside of them, at .0, 0."):
        model.fit(VECTORS, warm_start=True, bounds={"loc": (2.0, None)}, fixed={"loc": one})


@pytest.mark.parametrize(
    ("make", "x", "bounds", "error"),
    [
        (CASES["means"][0], VECTORS, {"lok": (0, 1)}, "bounds: HMM has no parameter 'lok'.*Did you mean 'loc'"),
        (CASES["means"][0], VECTORS, {"loc": 3}, r"'loc' takes a pair \(low, high\).*got 3"),
        (CASES["means"][0], VECTORS, {"loc": (3, 1)}, "'loc' has a low bound above its high one"),
        (CASES["means"][0], VECTORS, {"loc": ([1, 2, 3], None)}, r"shape \(2, 2\), to which those of shape \(3,\)"),
        (CASES["means"][0], VECTORS, {"loc": (math.nan, None)}, "a bound that is NaN"),
        (CASES["means"][0], VECTORS, {"covariance": (None, -1)}, "no value of 'covariance', which lie between 0 and inf"),
        (CASES["words"][0], WORDS, {"emission": (0.4, None)}, "no probabilities of row .* low sum to 1.2"),
        (gaussian("full"), VECTORS, {"loc": (0, None)}, "no best 'loc' within bounds.*lbfgs"),
        (gaussian("full"), VECTORS, {"covariance": (0, None)}, "'covariance' is not learned number by number"),
        (family("von_mises"), NUMBERS / 4, {"loc": (0, 1)}, "no best 'loc' within bounds.*lbfgs"),
        (lambda: SwitchingRegression(2, order=1), NUMBERS, {"mean": (0.1, None)}, "'mean' is not learned number by number"),
        (lambda: IOHMM(2, num_inputs=0, outputs="gaussian", num_outputs=2), VECTORS, {"noise": (0, 1)},
         "bounds: IOHMM has no weights 'noise'.*emission_network.logits.*forbid moves by graph="),
        (lambda: IOHMM(2, num_inputs=0, outputs="gaussian", num_outputs=2), VECTORS, {"emission_network.logits": (0, 1)},
         "bounds: 'em' keeps none of an IOHMM; use method='sgd'"),
        (lambda: VLHMM(4, num_words=3, hidden_size=4), WORDS, {"transition": (0.1, None)}, "VLHMM.fit takes none, .* an HMM"),
        (lambda: TextLDS(num_words=3, num_states=1), WORDS, {"transition": (0.1, None)}, "TextLDS.fit takes none, .* an LDS"),
        (lambda: StructuralModel(), NUMBERS, {"trend": (0, 1)}, "no parameter 'trend'"),
        (lambda: StructuralModel(cycle=True), NUMBERS, {"damping": (0, 1)}, "'damping' is not learned"),
        (lambda: StructuralModel(), NUMBERS, {"noise": (-2, -1)}, "no value of 'noise', which lie between 0 and inf"),
    ],
)  # fmt: skip
def test_what_has_no_bounds(make, x, bounds, error):
    with pytest.raises((ValueError, TypeError), match=error):
        make().fit(x, bounds=bounds)


def test_draws_have_priors_instead():
    with pytest.raises(ValueError, match="bounds: 'svi' takes none, as priors say .* 'em' or 'sgd' or 'lbfgs'"):
        HMM(2, 3, priors=True).fit(WORDS, method="svi", bounds={"emission": (0.1, None)})


# ------------------------------------------------------------------------------------------------ of all states together
THREE = np.concatenate([RNG.normal(2 * (k % 3), 0.5 + 0.4 * (k % 3), 8) for k in range(9)])
RETURNS = RNG.normal(0.1, np.array([0.5, 3.0])[np.arange(80) // 20 % 2])
PAIRS = np.stack([THREE, THREE[::-1]], 1)
TOGETHER = {
    "one row of moves": (lambda: HMM(2, 3), WORDS, {"transition": "equal"}, 1),
    "one row of words": (lambda: HMM(2, 3), WORDS, {"emission": "equal"}, 2),
    "one variance": (lambda: HMM(3, num_features=2), PAIRS, {"covariance": "equal"}, 4),
    "one number": (lambda: HMM(3, num_features=2, covariance="spherical"), PAIRS, {"precision": "equal"}, 2),
    "one mean": (lambda: HMM(2, num_features=1), RETURNS, {"loc": "equal"}, 1),
    "falling means": (lambda: HMM(3, num_features=2), PAIRS, {"loc": "decreasing"}, 0),
    "rising variances": (lambda: HMM(2, num_features=1), RETURNS, {"covariance": "increasing", "loc": "equal"}, 1),
    "with priors": (lambda: HMM(3, num_features=1, priors=True), THREE, {"covariance": "equal", "transition": "equal"}, 6),
    "rising precisions": (lambda: HMM(3, num_features=1), THREE, {"precision": "increasing", "loc": (0.0, 3.0)}, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", TOGETHER)
def test_the_best_of_what_states_share_or_are_ordered_by(name):
    """EM never falls and keeps to it; gradients from there find nothing more."""
    make, x, bounds, fewer = TOGETHER[name]
    free = make().fit(x, seed=0, max_iterations=2).num_free_parameters
    model = make().fit(x, seed=0, bounds=bounds, max_iterations=2000, tolerance=1e-11)

    def check():
        values = model.estimates()
        for key, how in bounds.items():
            value = 1 / values["precision"] if key == "covariance" else values[key]
            if isinstance(how, str):
                steps = value.detach().diff(dim=0) * (-1 if how == "decreasing" else 1)
                assert float(steps.min()) > -1e-9 and (how != "equal" or float(steps.max()) < 1e-9)
        assert model.num_free_parameters == free - fewer

    check()
    objective = model.history.log_posteriors
    assert min(np.diff(objective)) > -1e-9 * abs(objective[0])
    batch = model._as_batch(x)
    best = float(model.log_joint(batch.x).detach())
    model.fit(x, warm_start=True, method="lbfgs", bounds=bounds)
    check()
    assert float(model.log_joint(batch.x).detach()) == pytest.approx(best, abs=5e-3)


def test_what_states_share_is_one_parameter_of_a_summary(tmp_path):
    """Its standard error is that of all data: of one variance of independent normals known means, sigma^2 sqrt(2 / n)."""
    states = np.arange(90) % 3
    x = 5.0 * states + RNG.normal(size=90)
    model = HMM(3, num_features=1).fit(x, states=states, bounds={"covariance": "equal"})
    found = model.summary(x, states=states)
    errors = dict(zip(found.names, found.errors.tolist(), strict=True))
    precision = 1 / float(np.mean([x[states == k].var() for k in range(3)]))
    for k in range(3):
        assert found.estimates[found.names.index(f"precision[{k}][0]")] == pytest.approx(precision)
        assert errors[f"precision[{k}][0]"] == pytest.approx(precision * math.sqrt(2 / 90), rel=1e-6)
    again = HMM.load(model.save(tmp_path / "m"))
    assert again.num_free_parameters == model.num_free_parameters == HMM(3, num_features=1).num_free_parameters - 2
    assert copy.deepcopy(model).fit(x, seed=0).num_free_parameters == again.num_free_parameters + 2


def test_ordered_means_come_out_in_order_whatever_the_start():
    for seed in range(4):
        model = HMM(3, num_features=1).fit(THREE, seed=seed, bounds={"loc": "increasing"})
        assert bool((model.loc.diff(dim=0) >= 0).all())
        assert model.score(THREE) > HMM(1, num_features=1).fit(THREE).score(THREE) + 5
    rates = HMM(2, emission="poisson").fit(COUNTS, method="lbfgs", bounds={"rate": "increasing"}, seed=0)
    free = HMM(2, emission="poisson").fit(COUNTS, seed=0)
    assert rates.score(COUNTS) == pytest.approx(free.score(COUNTS), abs=1e-3)


def test_what_cannot_be_shared_or_ordered_is_refused():
    vectors = HMM(2, num_features=2, covariance="full")
    for model, x, bounds, method, what in (
        (HMM(2, 3), WORDS, {"transition": "increasing"}, "em", "rows of probabilities, which have no order"),
        (HMM(2, 3), WORDS, {"transition": "same"}, "em", "'equal', 'increasing' or 'decreasing'; got 'same'"),
        (HMM(2, 3), WORDS, {"initial": "equal"}, "em", "no table of numbers of each state"),
        (HMM(2, 3, graph="left_right"), WORDS, {"transition": "equal"}, "em", "no table of numbers of each state"),
        (vectors, VECTORS, {"covariance": "equal"}, "em", "no table of numbers of each state"),
        (vectors, VECTORS, {"loc": "increasing"}, "em", "does not pool states; use method='lbfgs'"),
        (HMM(2, emission="poisson"), COUNTS, {"rate": "equal"}, "em", "does not pool states"),
        (HMM(2, num_features=2, emission="mixture"), VECTORS, {"loc": "equal"}, "em", "no table of numbers of each state"),
        (LDS(1, 2), SERIES, {"transition": "equal"}, "em", "no table of numbers of each state"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            model.fit(x, method=method, bounds=bounds)
    model = HMM(2, num_features=1).fit(NUMBERS, seed=0)
    with pytest.raises(ValueError, match="'increasing' of 'loc' says where all of it may lie; leave it out of fixed="):
        model.fit(NUMBERS, warm_start=True, fixed={"loc": [[True], [False]]}, bounds={"loc": "increasing"})


# ------------------------------------------------------------------------------------------------ regressions
SWITCHING = dict(switching=("mean", "variance"))


@pytest.mark.parametrize(
    ("bounds", "binds"),
    [({"mean": "increasing"}, False), ({"mean": "decreasing"}, False), ({"variance": (0.5, 0.8), "mean": (None, 4.0)}, True),
     ({"variance": "equal"}, True)],
)  # fmt: skip
def test_switching_means_and_variances(bounds, binds):
    """As an HMM of the same density has them, whose start is drawn from its moves; found by gradients."""
    model = SwitchingRegression(2, initial="learned", **SWITCHING).fit(NUMBERS, seed=0, bounds=bounds, num_restarts=2)
    alike = {{"mean": "loc", "variance": "covariance"}[name]: how for name, how in bounds.items()}
    other = HMM(2, num_features=1).fit(NUMBERS, seed=0, num_restarts=3, bounds=alike, tolerance=1e-9)
    assert model.score(NUMBERS) == pytest.approx(other.score(NUMBERS), abs=2e-3)
    assert model.num_free_parameters == other.num_free_parameters
    free = SwitchingRegression(2, initial="learned", **SWITCHING).fit(NUMBERS, seed=0)
    assert binds == (free.score(NUMBERS) > model.score(NUMBERS) + 0.01)
    if isinstance(how := bounds.get("mean"), str):
        assert bool(model.mean.diff() > 0) == (how == "increasing")
    with pytest.raises(ValueError, match="method='lbfgs'"):
        model.fit(NUMBERS, bounds=bounds, method="em")


@pytest.mark.parametrize("unit", [1.0, 1e4])
def test_effects_of_inputs_are_those_of_bounded_least_squares(unit):
    """Of regimes that are known, each a regression of its own; inputs and numbers in units of their own."""
    random, regime = np.random.default_rng(0), np.arange(160) // 20 % 2
    inputs = random.normal(size=(160, 2)) * [100.0, 0.01]
    slopes = np.where(regime[:, None] == 1, [0.5, -0.2], [-0.3, 0.9]) / [100.0, 0.01]
    x = unit * (1 + 2 * regime + (inputs * slopes).sum(1) + 0.3 * random.normal(size=160))
    low, high = unit * np.array([[-0.002, 0.0], [0.0, 0.0]]), unit * np.array([[0.002, np.inf], [0.003, np.inf]])
    model = SwitchingRegression(2, num_inputs=2)
    model.fit(x, inputs=inputs, states=regime, method="lbfgs", seed=0, bounds={"inputs": (low, high)}, tolerance=1e-10)
    for k in (0, 1):
        rows = np.column_stack([inputs, np.ones(160)])[regime == k]
        ends = [*low[k], -np.inf], [*high[k], np.inf]
        best = lsq_linear(rows * [0.01, 100, 1], x[regime == k], [end * np.array([100, 0.01, 1]) for end in ends], tol=1e-12)
        found = [*model.estimates()["inputs"][k].tolist(), model.estimates()["mean"][k].item()]
        np.testing.assert_allclose(np.array(found) * [100, 0.01, 1], best.x, atol=1e-3 * unit)
        assert model.estimates()["variance"][k].item() == pytest.approx(2 * best.cost / len(rows), rel=1e-3)
    with pytest.raises(ValueError, match="method='lbfgs'"):
        model.fit(x, inputs=inputs, bounds={"inputs": (low, high)}, method="em")


def test_weights_of_autoregressions_that_states_share():
    model = ARHMM(2, 1).fit(NUMBERS[:, None], seed=0, method="lbfgs", bounds={"weights": "equal"})
    free = ARHMM(2, 1).fit(NUMBERS[:, None], seed=0, num_restarts=3)
    assert torch.equal(*model.weights.detach()) and model.score(NUMBERS[:, None]) < free.score(NUMBERS[:, None])
    assert model.num_free_parameters == free.num_free_parameters - 2


# ------------------------------------------------------------------------------------------------ single precision
SINGLE = {
    "moves": (*CASES["moves"], ("em", "lbfgs", "sgd")),
    "means": (*CASES["means"], ("em", "lbfgs", "sgd")),
    "rates": (*CASES["rates"], ("em", "lbfgs", "sgd")),
    "means beyond": (lambda: HMM(2, num_features=2), VECTORS, {"loc": (-0.2, 0.4)}, ("em", "lbfgs", "sgd")),
    "order": (lambda: HMM(2, num_features=1), RETURNS, {"covariance": "increasing", "loc": "equal"}, ("em", "lbfgs", "sgd")),
    "effects": (lambda: SwitchingRegression(2, **SWITCHING), NUMBERS, {"mean": (None, 4.0)}, ("lbfgs",)),
    "systems": (lambda: LDS(1, 2, initial="stationary"), SERIES, {"transition": (None, 0.6)}, ("lbfgs",)),
}


@pytest.mark.parametrize("name", SINGLE)
def test_single_precision_comes_to_what_double_precision_does(name):
    make, x, bounds, methods = SINGLE[name]
    for method in methods:
        given = {"seed": 0, "bounds": bounds, "method": method} | ({} if method == "em" else {"num_steps": 10})
        wide = make()
        single = type(wide)(**wide.get_params() | {"dtype": "float32"}).fit(x, **given)
        wide.fit(x, **given)
        for key in bounds:
            own, other = (model.estimates()[key if key != "covariance" else "precision"].detach() for model in (single, wide))
            assert own.dtype == torch.float32 and other.dtype == torch.float64
            np.testing.assert_allclose(own, other, rtol=2e-3, atol=2e-3)
        if not any(isinstance(how, str) for how in bounds.values()):
            assert min(room(single, bounds)) > -1e-6
        assert single.score(x) == pytest.approx(wide.score(x), abs=0.01)


def test_what_is_held_at_a_bound_in_single_precision():
    model = HMM(2, 3, dtype="float32").set_parameters(transition=[[0.9, 0.1], [0.3, 0.7]])
    held = [[True, True], [False, False]]
    model.fit(WORDS, fixed={"transition": held}, bounds={"transition": (0.1, 0.9)}, max_iterations=3, seed=0)
    np.testing.assert_allclose(model.estimates()["transition"][0].detach(), [0.9, 0.1], rtol=1e-6)


# ------------------------------------------------------------------------------------------------ starts
LEVELS = np.arange(90) // 15 % 3
STARTS = {
    "means": (lambda: HMM(3, num_features=1), 4.0 * LEVELS + RNG.normal(size=90), {"loc": (None, 3.0)},
              {"loc": [[0.0], [3.0], [3.0]], "covariance": [[1.0], [2.0], [26.0]]}),
    "locations": (lambda: HMM(3, emission="normal"), 4.0 * LEVELS + RNG.normal(size=90), {"loc": (None, 3.0)},
                  {"loc": [[0.0], [3.0], [3.0]], "scale": [[1.0], [1.4], [5.1]]}),
    "rates": (lambda: HMM(3, emission="poisson"), RNG.poisson(2 + 6 * LEVELS), {"rate": (0, 6.0)},
              {"rate": [[1.5], [2.5], [6.0]]}),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_starts_that_bounds_would_make_one(name):
    """States beyond one bound start apart, and some start comes to what one at the truth comes to."""
    make, x, bounds, truth = STARTS[name]
    model = make()
    with model._keeping({}, "em", (), model._bounds_by(bounds, "em")):
        model._begin(model._as_batch(x))
    values = torch.cat([value.detach() for value in model.emissions.values().values()], -1)
    assert len(values.unique(dim=0)) == 3
    best = make().set_parameters(transition=0.8 * np.eye(3) + 0.2 / 3, **truth).fit(x, warm_start=True, bounds=bounds)
    found = [make().fit(x, seed=seed, num_restarts=4, bounds=bounds).score(x) for seed in (0, 1)]
    assert max(found) >= best.score(x) - 0.5


def test_effects_of_inputs_on_outputs():
    """With known regimes a Gaussian IOHMM is a regression in each: least squares within bounds, as of scipy."""
    rng = np.random.default_rng(3)
    inputs, states = rng.normal(size=(1, 120, 2)), np.arange(120)[None] // 5 % 2
    slopes = np.array([[1.0, -0.4], [-0.3, 0.8]])
    x = (inputs * slopes[states]).sum(-1, keepdims=True) + states[..., None] + 0.3 * rng.normal(size=(1, 120, 1))
    low, none = 0.1, -math.inf
    model = IOHMM(2, num_inputs={"emission": 2}, outputs="gaussian", num_outputs=1, mealy=True)
    given = {"inputs": {"emission": inputs}, "states": states, "method": "sgd", "num_steps": 200, "lr": 0.2, "seed": 0}
    model.fit(x, bounds={"emission_network.weight": ([[low], [low], [none]], None)}, num_restarts=2, **given)
    weight = model.network("emission").weight.detach()[..., 0]  # the constants are last
    for k in (0, 1):
        here = states[0] == k
        design = np.c_[inputs[0, here], np.ones(here.sum())]
        right = lsq_linear(design, x[0, here, 0], bounds=([low, low, none], np.inf)).x
        np.testing.assert_allclose(weight[k], right, atol=2e-3)
    assert (weight[:, :2] == low).sum() == 2  # those whose sign is the other one
    free = IOHMM(2, num_inputs={"emission": 2}, outputs="gaussian", num_outputs=1, mealy=True).fit(x, **given)
    assert (free.network("emission").weight[:, :2] < 0).sum() == 2
    with pytest.raises(ValueError, match="is of a part that is held"):
        model.fit(x, bounds={"emission_network.weight": (0, 1)}, fixed="emission", warm_start=True, **given)


# ------------------------------------------------------------------------------------------------ where fits go on
def test_gradients_come_to_a_corner_of_bounds():
    """Where the best row has one word at its low bound and one at its high one: only the third is what is left."""
    x = np.repeat([0, 1, 2], [40, 55, 5])
    model, bounds = HMM(1, 3), {"emission": ([0.1, 0.1, 0.15], [0.7, 0.45, 0.6])}
    model.fit(x, bounds=bounds, seed=0)
    assert model.emission[0].tolist() == pytest.approx([0.4, 0.45, 0.15])
    best = model.score(x)
    model.fit(x, bounds=bounds, warm_start=True, method="lbfgs")
    assert model.score(x) >= best - 1e-9
    for seed in range(3):
        assert HMM(1, 3).fit(x, bounds=bounds, method="lbfgs", seed=seed).score(x) == pytest.approx(best, abs=1e-3)


@pytest.mark.filterwarnings("ignore:.*collapsed:RuntimeWarning")
@pytest.mark.parametrize("name", ["variances", "counts", "at an end"])
def test_a_fit_that_goes_on_from_a_bound_ends_no_lower(name):
    end = (lambda: HMM(2, num_features=1), np.array([0.0, 0, 0, 0, 3, 5, 4, 6, 3]), {})
    make, x, bounds = end if name == "at an end" else CASES[name]
    model = make().fit(x, seed=0, bounds=bounds, max_iterations=300, tolerance=1e-10)
    best = model.score(x)
    for _ in range(2):
        model.fit(x, bounds=bounds, warm_start=True, method="lbfgs", num_steps=3)
        assert model.score(x) >= best - 1e-9
