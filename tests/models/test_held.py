"""Parameters that a fit keeps, whole or in part, by every method, and how many are then free."""

import copy

import numpy as np
import pytest
import torch
from support.grids import grid

from pplseq import HMM, IOHMM, LDS, load
from pplseq.models import (
    ARHMM,
    PROPS,
    VLHMM,
    ConstrainedLDS,
    SemiMarkovHMM,
    StructuralModel,
    SwitchingRegression,
    TextLDS,
)

RNG = np.random.default_rng(0)
REGIME = np.arange(120) // 20 % 2
WORDS = RNG.integers(0, 3, 120)
VECTORS = 4 * np.eye(2)[REGIME] + RNG.normal(size=(120, 2))
COUNTS = RNG.poisson(np.array([2, 9])[REGIME])
NUMBERS = 5.0 * REGIME + RNG.normal(size=120)


def gaussian(kind):
    return lambda: HMM(2, num_features=2, covariance=kind)


ONE = [[True, False], [False, False]]
FIRST = [[True], [False]]
# how the model is made, data, what is held, and how many parameters are free with it and without
CASES = {
    "words": (lambda: HMM(2, 3), WORDS, "emission", 3, 7),
    "some words": (lambda: HMM(2, 3), WORDS, {"emission": [[True, False, False], [False, True, True]]}, 4, 7),
    "moves": (lambda: HMM(2, 3), WORDS, {"transition": [[True, False], [False, False]], "initial": True}, 5, 7),
    **{f"means, {kind}": (gaussian(kind), VECTORS, ["loc"], free - 4, free) for kind, free in
       {"diag": 11, "spherical": 9, "full": 13, "tied": 10}.items()},
    **{f"one mean, {kind}": (gaussian(kind), VECTORS, {"loc": ONE}, free - 1, free) for kind, free in
       {"diag": 11, "full": 13, "tied": 10}.items()},
    "covariances": (gaussian("full"), VECTORS, ["covariance"], 7, 13),
    "variances": (gaussian("diag"), VECTORS, {"precision": ONE}, 10, 11),
    "rates": (lambda: HMM(2, emission="poisson"), COUNTS, {"rate": FIRST}, 4, 5),
    "mean of counts": (lambda: HMM(2, emission="negative_binomial"), COUNTS, {"mean": FIRST}, 6, 7),
    "locations": (lambda: HMM(2, emission="normal"), NUMBERS, ["loc"], 5, 7),
    "scales": (lambda: HMM(2, emission="normal"), NUMBERS, ["scale"], 5, 7),
    "degrees of freedom": (lambda: HMM(2, emission="student_t"), NUMBERS, "df", 7, 9),
    "angles": (lambda: HMM(2, emission="von_mises"), NUMBERS / 4, ["loc"], 5, 7),
    "weights": (lambda: HMM(2, num_features=2, emission="mixture"), VECTORS, ["weights"], 19, 21),
    "durations": (
        lambda: SemiMarkovHMM(2, emission="poisson", max_duration=4), COUNTS, {"duration": [[True] * 4, [False] * 4]}, 6, 9
    ),
    "regimes": (lambda: SemiMarkovHMM(3, emission="poisson", max_duration=4), COUNTS, ["transition"], 14, 17),
    "autoregressions": (lambda: ARHMM(2, 1), NUMBERS[:, None], ["transition"], 7, 9),
    "regressors": (lambda: ARHMM(2, 1), NUMBERS[:, None], {"weights": [[[False, True]], [[False, False]]]}, 8, 9),
    "switching": (lambda: SwitchingRegression(2), NUMBERS, ["mean"], 4, 6),
    "durations of a regression": (
        lambda: SwitchingRegression(2, duration="explicit", max_duration=4, initial="learned"), NUMBERS, ["duration"], 5, 11
    ),
    "one variance": (lambda: SwitchingRegression(2), NUMBERS, {"variance": [True, False]}, 5, 6),
    "lds": (lambda: LDS(1, 2), VECTORS, ["emission_offset"], 9, 10),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_held_stays_and_the_rest_is_at_its_maximum(name):
    """Of EM, whose M-steps know of it; gradients then find nothing to gain."""
    make, x, fixed, held, free = CASES[name]
    model = make().fit(x, seed=0, method="em", max_iterations=5)
    assert model.num_free_parameters == free
    names = [fixed] if isinstance(fixed, str) else fixed
    with torch.no_grad():  # elsewhere than at the maximum
        for key in names:
            raw = model._slots[{"covariance": "precision"}.get(key, key)].raw
            raw.add_(0.2 * torch.linspace(-1, 1, raw.numel()).reshape(raw.shape) * (raw.isfinite()).double())

    def numbers():
        shares = {key: torch.softmax(slot.raw.detach(), -1) for key, slot in model._slots.items() if slot.rows}
        return {key: slot.raw.detach().clone() for key, slot in model._slots.items()} | shares

    before = numbers()
    model.fit(x, warm_start=True, method="em", fixed=fixed, max_iterations=300, tolerance=1e-9)
    now, best = numbers(), model.score(x)
    model.fit(x, warm_start=True, method="lbfgs", fixed=fixed)
    last = numbers()
    for key in names:
        own = {"covariance": "precision"}.get(key, key)
        mask = torch.as_tensor(fixed[key]) if isinstance(fixed, dict) and fixed[key] is not True else slice(None)
        for found in (now, last):
            assert torch.allclose(found[own][mask], before[own][mask], rtol=1e-12, atol=1e-12)
    assert model.score(x) < best + 0.02
    assert model.num_free_parameters == held
    assert model.bic(x) == pytest.approx(-2 * model.score(x) + held * np.log(len(x) - getattr(model, "order", 0)))
    assert all(parameter.requires_grad for parameter in model.parameters())


KINDS = ("some words", "moves", "one mean, full", "variances", "scales", "durations", "regressors", "one variance", "lds")
STORED = {name: CASES[name] for name in KINDS} | {
    "structural": (lambda: StructuralModel(trend="stochastic"), NUMBERS, ["slope", "noise"], 1, 3),
    "constrained": (lambda: ConstrainedLDS(1, 2, patterns={"transition": [[0.5]]}), VECTORS, ["emission_offset"], None, None),
    "iohmm": (lambda: IOHMM(2, num_inputs=0, outputs="gaussian", num_outputs=2), VECTORS, ["noise"], None, None),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STORED)
def test_what_was_held_is_saved_and_stays(name, tmp_path):
    make, x, fixed, *_ = STORED[name]
    x = x[:30]
    model = make()
    short = {"max_iterations" if model.methods[0] == "em" else "num_steps": 2}
    model.fit(x, seed=0, **short).fit(x, warm_start=True, fixed=fixed, folder=tmp_path / "run", **short)
    free = model.num_free_parameters
    assert free < make().num_free_parameters
    loaded = load(model.save(tmp_path / "model"))
    for other in (
        loaded, load(loaded.save(tmp_path / "again")), load(tmp_path / "run" / "best"), copy.deepcopy(model),
        copy.deepcopy(model).set_params(**model.get_params()),
    ):  # fmt: skip
        assert other.num_free_parameters == free and other._not_free == model._not_free
        assert all(parameter.requires_grad for parameter in other.parameters())
        assert other.bic(x) == pytest.approx(model.bic(x), rel=1e-6)
    frozen = [raw for raw, own in model.named_parameters() if own.numel() > 1][:1]
    for raw in frozen:
        model.get_parameter(raw).requires_grad_(False)
    model.fit(x, warm_start=True, **short)
    for other in (load(model.save(tmp_path / "model")), copy.deepcopy(model).set_params(**model.get_params())):
        assert [raw for raw, own in other.named_parameters() if not own.requires_grad] == frozen
        assert other.num_free_parameters == model.num_free_parameters


@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, "em") for name in ("words", "locations", "rates", "autoregressions", "switching", "lds", "regimes")),
     ("words", "lbfgs"), ("lds", "lbfgs"), ("rates", "sgd"), ("switching", "sgd")],
)  # fmt: skip
def test_frozen_by_hand(name, method):
    make, x, fixed, held, _ = CASES[name]
    model = make().fit(x, seed=0, method="em", max_iterations=3)
    frozen = model._slots[next(iter([fixed] if isinstance(fixed, str) else fixed))].raw.requires_grad_(False)
    before = frozen.clone()
    for warm in (True, False):
        model.fit(x, seed=1, warm_start=warm, method=method, **{"max_iterations" if method == "em" else "num_steps": 5})
        assert torch.equal(frozen, before) and not frozen.requires_grad
    if not isinstance(fixed, dict):
        assert model.num_free_parameters == held


@pytest.mark.parametrize("method", ["em", "lbfgs"])
@pytest.mark.parametrize("fixed", [["mean"], {"mean": [True, False]}])
def test_constants_that_are_held_stay_where_lags_move(fixed, method):
    x = NUMBERS + np.roll(NUMBERS, 1) / 2 + 20
    model = SwitchingRegression(2, order=1).fit(x, seed=0, num_steps=3)
    model.set_parameters(mean=[11.0, 17.0], lags=[[0.1], [-0.2]])
    model.fit(x, warm_start=True, method=method, fixed=fixed)
    held = slice(None) if isinstance(fixed, list) else slice(1)
    assert torch.allclose(model.mean[held], torch.tensor([11.0, 17.0]).double()[held], rtol=1e-12)
    assert abs(model.estimates()["lags"][0, 0] - 0.1) > 0.05


@pytest.mark.parametrize("method", ["em", "lbfgs", "sgd"])
def test_a_move_of_regimes_is_held_whatever_stands_where_none_is(method):
    model = SemiMarkovHMM(3, emission="poisson", max_duration=4).fit(COUNTS, seed=0, method="lbfgs", num_steps=2)
    before = model.estimates()["transition"][1, 2].item()
    fixed = {"transition": [[False] * 3, [False, False, True], [False] * 3]}
    model.fit(COUNTS, warm_start=True, method=method, fixed=fixed, **({"num_steps": 20} if method == "sgd" else {}))
    assert model.estimates()["transition"][1, 2].item() == pytest.approx(before, rel=1e-9)
    assert model.num_free_parameters == 16


def test_a_support_that_moves_is_held():
    x = np.where(REGIME, 10.0, 1.0) * (1 + RNG.pareto(3, 120))
    with pytest.raises(ValueError, match="the support of Pareto ends at its scale"):
        HMM(2, emission="Pareto").fit(x)
    model = HMM(2, emission="Pareto").set_parameters(scale=[[1.0], [10.0]]).fit(x, fixed=["scale"], seed=0)
    assert (model.decode(x)[0].numpy() == REGIME).mean() > 0.9
    assert model.emission_parameters["scale"].flatten().tolist() == pytest.approx([1.0, 10.0])


@grid({"method": ["em", "sgd"], "fixed": [["emission"], ["transition"], ["noise"], ["initial", "emission", "noise"]]})
def test_parts_of_an_iohmm(fixed, method):
    model = IOHMM(2, num_inputs=0, outputs="gaussian", num_outputs=2).fit(VECTORS, seed=0, max_iterations=5)
    before, free = {name: value.clone() for name, value in model.named_parameters()}, model.num_free_parameters
    steps = {"num_steps": 5} if method == "sgd" else {"max_iterations": 5}
    model.fit(VECTORS, seed=1, num_restarts=2, method=method, fixed=fixed, **steps)
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]) == (name.partition(".")[0].removesuffix("_network") in fixed)
    assert model.num_free_parameters == free - sum({"emission": 4, "transition": 2, "noise": 4, "initial": 1}[k] for k in fixed)
    plain = IOHMM(2, num_inputs=0, outputs="gaussian", num_outputs=2).fit(VECTORS, seed=0, max_iterations=5)
    for parameter in plain.network("emission").parameters():
        parameter.requires_grad_(False)
    plain.fit(VECTORS, warm_start=True)
    assert plain.num_free_parameters == free - 4
    for name, own in plain.network("emission").named_parameters():
        assert torch.equal(own, before[f"emission_network.{name}"])


@pytest.mark.parametrize(
    ("make", "x", "fixed", "values"),
    [
        (lambda: HMM(2, 3), WORDS, "initial", {"initial": [0.5, 0.5]}),
        (lambda: HMM(2, 3), WORDS, {"transition": ONE}, {"transition": [[0.5, 0.5], [0.1, 0.9]]}),
        (lambda: HMM(2, emission="poisson"), COUNTS, ["rate"], {"rate": [[2.0], [9.0]]}),
        (lambda: SwitchingRegression(2), NUMBERS, "mean", {"mean": [0.0, 5.0]}),
        (lambda: LDS(1, 2), VECTORS, ["emission"], {"emission": [[1.0], [1.0]]}),
        (lambda: StructuralModel(cycle=True), NUMBERS[:20], "frequency", {"frequency": 0.1}),
        (lambda: IOHMM(2, num_inputs=0, outputs="categorical", num_outputs=3), WORDS, "transition", None),
    ],
)  # fmt: skip
def test_what_nobody_has_set_is_not_held(make, x, fixed, values):
    name = fixed if isinstance(fixed, str) else next(iter(fixed))
    with pytest.raises(ValueError, match=rf"fixed: {name} of this .* would stay as drawn.*set_parameters\({name}="):
        make().fit(x, fixed=fixed)
    model = make().fit(x, seed=0) if values is None else make().set_parameters(**values)
    model.fit(x, fixed=fixed, **{"max_iterations" if model.methods[0] == "em" else "num_steps": 2})


def test_what_cannot_be_held():
    with pytest.raises(ValueError, match=r"fixed: HMM has no parameter 'emision'.*Did you mean 'emission'"):
        HMM(2, 3).fit(WORDS, fixed="emision")
    with pytest.raises(ValueError, match=r"'emission' takes True, or a mask of True and False in its shape \(2, 3\)"):
        HMM(2, 3).fit(WORDS, fixed={"emission": [True, False]})
    with pytest.raises(ValueError, match="entries of 'covariance' cannot be held one by one"):
        gaussian("full")().fit(VECTORS, fixed={"covariance": np.eye(2, dtype=bool)[None].repeat(2, 0)})
    with pytest.raises(ValueError, match="every parameter is held"):
        HMM(2, 3).fit(WORDS, fixed=["initial", "transition", "emission"])
    model = HMM(2, 3, priors=True).set_parameters(emission=[[0.2, 0.3, 0.5], [0.5, 0.3, 0.2]])
    with pytest.raises(ValueError, match="'emission' is not drawn whole and by itself, so that 'svi' and 'nuts' cannot"):
        model.fit(WORDS, method="svi", fixed={"emission": [[True, False, False], [False, False, False]]})
    with pytest.raises(ValueError, match="ConstrainedLDS"):
        LDS(1, 2).fit(VECTORS, fixed={"emission": [[True], [False]]})
    with pytest.raises(ValueError, match="no part 'noise'. There are: initial, transition, emission"):
        IOHMM(2, num_inputs=0, outputs="categorical", num_outputs=3).fit(WORDS, fixed="noise")
    with pytest.raises(ValueError, match="Components get shocks, or none"):
        StructuralModel().fit(NUMBERS, fixed="trend")


@pytest.mark.filterwarnings("ignore:no standard errors of initial")
def test_standard_errors_of_what_is_free():
    model = HMM(2, emission="normal").fit(NUMBERS, seed=0).fit(NUMBERS, warm_start=True, fixed={"loc": FIRST}, method="lbfgs")
    summary = model.summary(NUMBERS)
    assert summary.fixed == ("loc[0][0]",) and "fixed in the fit" in str(summary)


@pytest.mark.parametrize("fixed", ["emission", ["transition", "initial"]])
def test_draws_are_of_what_is_free(fixed):
    """A guide of a point ends where EM does."""
    known = {"initial": [0.6, 0.4], "transition": [[0.9, 0.1], [0.2, 0.8]], "emission": [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]}
    words = np.array([0, 1, 0, 0, 2, 2, 1, 2] * 2)
    models = [HMM(2, 3, priors={"initial": 2.0, "transition": 2.0, "emission": 2.0}).set_parameters(**known) for _ in range(3)]
    common = {"fixed": fixed, "warm_start": True, "seed": 0}
    models[0].fit(words, method="em", max_iterations=500, tolerance=1e-10, **common)
    models[1].fit(words, method="svi", guide="delta", num_steps=80, lr=0.3, **common)
    models[2].fit(words, method="nuts", num_samples=4, warmup_steps=2, max_tree_depth=2, **common)
    names = [fixed] if isinstance(fixed, str) else fixed
    start = HMM(2, 3).set_parameters(**known)
    for model in models:
        for name in names:
            assert torch.equal(model._slots[name].raw, start._slots[name].raw)
        assert model.num_free_parameters < 7
    for name, slot in models[0]._slots.items():
        torch.testing.assert_close(models[1]._slots[name].raw.softmax(-1), slot.raw.softmax(-1), atol=1e-2, rtol=0.0)
    assert models[2].history.samples.keys() == {"initial", "transition", "emission"} - set(names)


def test_draws_of_gaussians_hold_matrices_of_precision():
    known = {"loc": [[0.0, 0.0], [4.0, 4.0]], "covariance": np.stack([[[1.0, 0.3], [0.3, 2.0]]] * 2)}
    model = HMM(2, num_features=2, covariance="full", priors=True).set_parameters(**known)
    before = model._slots["precision"].raw.clone()
    model.fit(VECTORS, method="svi", num_steps=3, fixed=["covariance"], seed=0)
    assert torch.equal(model._slots["precision"].raw, before)
    assert not torch.equal(model.loc, torch.tensor(known["loc"]).double())


@pytest.mark.parametrize(("method", "steps"), [("em", "max_iterations"), ("sgd", "num_steps")])
def test_entries_of_a_run_that_goes_on_in_another_model(method, steps, tmp_path):
    fixed = {"emission": [[True, False, False], [False, False, False]]}
    make = CASES["words"][0]
    run = {"fixed": fixed, "method": method, "folder": tmp_path / "run", "seed": 0}
    first = make().set_parameters(emission=[[0.2, 0.3, 0.5], [0.5, 0.3, 0.2]]).fit(WORDS, **run, **{steps: 3})
    other = make().fit(WORDS, **run, resume=True, **{steps: 6})
    assert other.emission[0, 0] == pytest.approx(0.2, abs=1e-12) and not torch.equal(other.emission[1], first.emission[1])


@pytest.mark.parametrize("warm", [True, False])
def test_a_vlhmm(warm, tmp_path):
    words = WORDS.reshape(4, 30).tolist()
    how = {"epochs": 1, "seed": 0, "warm_start": warm, "weight_decay": 0.1}
    model = VLHMM(4, num_words=3, blocks=[0, 1, 1], hidden_size=4)
    with pytest.raises(ValueError, match=r"word_score.bias of this VLHMM would stay as drawn.*load_state_dict"):
        model.fit(words, fixed="word_score.bias", **how)
    model.fit(words, epochs=1, seed=1)
    free, before = model.num_free_parameters, {name: raw.detach().clone() for name, raw in model.named_parameters()}
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[1] = True
    fixed = {"word_score.weight": mask, "start_score.weight": True}
    model.fit(words, fixed=fixed, folder=tmp_path / "run", **how)
    again = copy.deepcopy(model).fit(words, fixed=fixed, folder=tmp_path / "run", resume=True, **how | {"epochs": 2})
    for one in (model, again, load(model.save(tmp_path / "model"))):
        same = {name for name, raw in one.named_parameters() if torch.equal(raw, before[name])}
        assert same == {"start_score.weight"} and torch.equal(one.word_score.weight[1], before["word_score.weight"][1])
        assert not (one.word_score.weight[0] == before["word_score.weight"][0]).any()
        assert one.num_free_parameters == free - 8
    with pytest.raises(ValueError, match="fixed: the run in .* is of another fixed"):
        model.fit(words, folder=tmp_path / "run", resume=True, **how)
    still = model.start_score.weight.requires_grad_(False).clone()
    model.fit(words, **how)
    assert torch.equal(model.start_score.weight, still) and model.num_free_parameters == free - 4
    with pytest.raises(ValueError, match="fixed: this VLHMM gets its words and parameters from the text"):
        VLHMM(num_states=4).fit(words, fixed="word_score.bias", blocks="none")


def test_a_text_lds_holds_nothing():
    model, words = TextLDS(1, num_words=3), WORDS.reshape(4, 30)
    with pytest.raises(ValueError, match="fixed: TextLDS.fit learns .* together, .* got 'transition'; go on from .* initial="):
        model.fit(words, fixed="transition")
    model.emission.requires_grad_(False)
    with pytest.raises(ValueError, match=r"nothing held .* got \['emission'\]"):
        model.fit(words)


@pytest.mark.parametrize("averaging", [None, "recent"])
@pytest.mark.parametrize("fixed", ["initial", "transition", "emission", ["emission", "transition"]])
def test_streams(fixed, averaging):
    model = PROPS(3, num_sources=0, num_perturbations=2, seed=0)
    by_hand = copy.deepcopy(model)
    names = [fixed] if isinstance(fixed, str) else fixed
    for name in names:
        by_hand._slots[name].raw.requires_grad_(False)
    how = {"averaging": averaging, "warm_up": 5}
    streams = [model.start(fixed=fixed, **how), by_hand.start(**how)]
    batch = model.start(2, fixed=fixed, **how)
    for word in WORDS[:40]:
        infos = [stream.step(word) for stream in streams]
        both = batch.step([word, word])
        assert infos[0].log_prob == infos[1].log_prob == pytest.approx(float(both.log_prob[1]), rel=1e-12)
    for stream in (*streams, batch.user(0)):
        now = stream.parameters()
        for name in ("initial", "transition", "emission"):
            assert np.array_equal(getattr(now, name), getattr(model, name).numpy()) == (name in names)


def test_streams_of_vectors_hold_emissions_whole():
    model = PROPS(num_features=2, num_sources=0, num_perturbations=2, seed=0)
    for fixed in ({"emission": True}, ["loc"]):
        with pytest.raises(ValueError, match="fixed"):
            model.start(fixed=fixed)
    model.emissions.loc.requires_grad_(False)
    with pytest.raises(ValueError, match="means and covariances together, and only some"):
        model.start()
    model.emissions.requires_grad_(False)
    stream = model.start(warm_up=2)
    for row in VECTORS[:10]:
        stream.step(row)
    assert np.array_equal(stream.loc, model.loc) and np.array_equal(stream.covariances, model.covariances)
