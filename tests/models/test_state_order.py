"""States in another order: the same model, whose answers have other numbers."""

import numpy as np
import pytest
import torch
from support.model_cases import CASES, words

from pplseq import ARHMM, HMM, IOHMM, MixtureHMM, SemiMarkovHMM, SwitchingRegression, load
from pplseq.models import MixtureIOHMM, StreamingHMM

VECTORS = {"num_features": 2}
MODELS = {
    "hmm, words": lambda: HMM(3, 6), "hmm, full": lambda: HMM(3, covariance="full", **VECTORS),
    "hmm, tied": lambda: HMM(3, covariance="tied", **VECTORS),
    "hmm, spherical": lambda: HMM(2, covariance="spherical", **VECTORS),
    "hmm, mixture": lambda: HMM(2, emission="mixture", covariance="tied", **VECTORS),
    "hmm, mixture, full": lambda: HMM(3, emission="mixture", covariance="full", **VECTORS),
    "hmm, columns": lambda: HMM(3, emission=["categorical", "normal"], num_levels=[3, None]),
    "semi-markov": lambda: SemiMarkovHMM(3, max_duration=2, **VECTORS),
    "semi-markov, phases": lambda: SemiMarkovHMM(3, duration="negative_binomial", num_phases=2, **VECTORS),
    "autoregressive": lambda: ARHMM(3, 2, order=1), "streaming": lambda: StreamingHMM(3, 6),
    "switching, deviations": lambda: SwitchingRegression(2, order=1, lags_of="deviations", switching=("mean", "variance")),
    "iohmm, symbols": lambda: IOHMM(3, num_symbols=3, num_outputs=6, initial="transition"),
    "switching, learned start": lambda: SwitchingRegression(3, initial="learned"),
    "hmm, left to right": lambda: HMM(3, 6, graph="left_right"),
    "hmm, graph": lambda: HMM(3, 6, graph=torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1]]).bool(), start_states=[1]),
    "iohmm, left to right": lambda: IOHMM(3, num_symbols=3, num_outputs=6, graph="left_right"),
    "switching, durations": lambda: SwitchingRegression(3, duration="poisson", max_duration=3),
}  # fmt: skip
IOHMMS = ["iohmm", "iohmm, hidden layers", "iohmm, bits"]


def asked(name):
    """A model, data, and what is known of these."""
    if name in IOHMMS:
        case = CASES[name]
        return case.model(), case.data(), case.known
    torch.manual_seed(2)
    model = MODELS[name]().double()
    if isinstance(model, IOHMM):
        return model, words(), {"inputs": words() // 2}
    if model.num_words is not None:
        return model, words(), {}
    x = torch.randn(2, 30, model.num_features or 1).double()
    if name == "hmm, columns":
        x[..., 0] = x[..., 0].abs().round().clamp_max(2)
    return model, x, {}


@pytest.mark.parametrize("name", [*MODELS, *IOHMMS])
def test_another_order_is_the_same_model(name):
    model, x, known = asked(name)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    order = [2, 0, 1] if model._num_observable_states == 3 else [1, 0]
    found = model.permuted(order)
    assert found.score(x, **known) == pytest.approx(model.score(x, **known), rel=1e-12)
    torch.testing.assert_close(found.smooth(x, **known).probs, model.smooth(x, **known).probs[..., order])
    assert torch.equal(torch.tensor(order)[found.decode(x, **known)], model.decode(x, **known))
    assert found.bic(x, **known) == pytest.approx(model.bic(x, **known))
    aligned = found.align(model, x, **known)
    for one, other in zip(aligned.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    shares = found.sorted(x, by="share", **known).smooth(x, **known).probs.flatten(0, 1).sum(0)
    assert bool((shares.diff() < 1e-9).all())


def fitted(seed, **options):
    x = np.concatenate([np.random.default_rng(k).normal(3 * (k % 3), 0.5, 12) for k in range(9)])
    return HMM(3, num_features=1, **options).fit(x, seed=seed, num_restarts=4), x


def test_fits_stand_in_the_order_of_their_means_with_names_and_what_is_held(tmp_path):
    model, x = fitted(0, state_names=["a", "b", "c"])
    found = model.sorted(x)
    assert found.loc.flatten().tolist() == sorted(model.loc.flatten().tolist())
    names = [model.state_names[k] for k in model.loc.flatten().argsort()]
    assert list(found.state_names) == names == found.config["state_names"]
    assert found.decode(x)[0].tolist() == model.decode(x)[0].tolist()  # by name
    low = ["abc"[k] for k in model.loc.flatten().argsort(descending=True)]
    assert list(model.sorted([[*-x]]).state_names) != low  # the order of means of these data, which are others
    x[:3] = np.nan
    assert found.sorted(x).state_names == found.state_names
    held = HMM(3, num_features=1).set_parameters(loc=[[6.0], [0.0], [3.0]])
    held.fit(x, warm_start=True, bounds={"loc": ([[5.9], [-9], [-9]], 7), "covariance": (None, 2)}, max_iterations=1)
    assert held.sorted(x)._bounds == {"loc": [[[-9], [-9], [5.9]], 7], "covariance": [None, 2]}
    held.fit(x, warm_start=True, fixed={"loc": [[True], [False], [False]]}, max_iterations=2)
    moved = held.sorted(x)
    assert moved._fixed_entries["loc"].flatten().tolist() == [False, False, True]
    assert moved.num_free_parameters == held.num_free_parameters
    moved.save(tmp_path / "m")
    assert HMM.load(tmp_path / "m").loc.flatten().tolist() == moved.loc.flatten().tolist()


def test_states_take_their_moves_along(tmp_path):
    model = HMM(3, 6, graph="left_right", state_names=["a", "b", "c"])
    found = model.permuted([2, 0, 1])
    assert found.graph.tolist() == [[True, False, False], [True, True, True], [True, False, True]]
    assert found.start_states.tolist() == [False, True, False]
    x = words()
    found.fit(x, max_iterations=3, seed=0).save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.score(x) == found.score(x) and again.graph.tolist() == found.graph.tolist()
    assert again.transition[0].tolist() == [1.0, 0.0, 0.0] and found.permuted([1, 2, 0]).state_names == ("a", "b", "c")


def test_clusters_of_a_mixture_stand_in_an_order(tmp_path):
    rng = np.random.default_rng(0)
    rows = [rng.normal([0, 10][k % 3 == 0] + np.repeat(rng.integers(0, 2, 8), 5) * 3, 0.5) for k in range(18)]
    told = MixtureHMM(2, 2, num_features=1).fit(rows, seed=0, num_restarts=4)
    mixed = told.permuted([3, 2, 0, 1])
    assert mixed.score(rows) == pytest.approx(told.score(rows))
    assert torch.equal(mixed.predict(rows), 1 - told.predict(rows))
    model = mixed.sorted(rows)
    assert model.loc.flatten().tolist() == sorted(told.loc.flatten().tolist())
    assert model.predict(rows).tolist() == [int(k % 3 == 0) for k in range(18)]
    assert float(mixed.sorted(rows, by="share").weights[0]) == pytest.approx(2 / 3, abs=1e-6)
    assert mixed.sorted(-1 * np.array(rows)[..., None]).num_clusters == 2
    for start in ([0, 1, 2, 3], [3, 2, 0, 1], [2, 3, 1, 0], [2, 3, 0, 1], [1, 0, 2, 3], [3, 2, 1, 0]):
        torch.testing.assert_close(told.permuted(start).align(model, rows).loc, model.loc)
    model.save(tmp_path / "m")
    assert load(tmp_path / "m").score(rows) == model.score(rows)
    with pytest.raises(ValueError, match="expected a mixture of 2 clusters"):
        told.align(HMM(4, num_features=1).fit(rows, max_iterations=1), rows)
    inputs = [rng.normal(size=(40, 1)) for _ in rows]
    driven = MixtureIOHMM(2, 2, num_inputs=1, outputs="normal").fit(rows, inputs=inputs, seed=0, num_restarts=4)
    found = driven.permuted([2, 3, 1, 0])
    assert torch.equal(found.predict(rows, inputs=inputs), 1 - driven.predict(rows, inputs=inputs))
    back = found.align(driven, rows, inputs=inputs)
    torch.testing.assert_close(*(each.smooth(rows, inputs=inputs).probs[0] for each in (back, driven)))


def test_probabilities_are_tables_with_the_names_of_states():
    pd = pytest.importorskip("pandas")
    model, x = fitted(0, state_names=["a", "b", "c"])
    frame = pd.DataFrame({"x": x}, index=pd.date_range("2024-01-01", periods=len(x), freq="D"))
    table = model.smooth(frame).frame()
    assert list(table.columns) == ["a", "b", "c"] and table.index.equals(frame.index)
    np.testing.assert_array_equal(table.to_numpy(), model.smooth(x).probs[0])
    several = model.filter([x[:3], x[:2]]).frame()
    assert several["sequence"].tolist() == [0, 0, 0, 1, 1]
    padded = model.smooth(x[:8].reshape(2, 4, 1), lengths=[4, 2])
    assert len(padded.frame()) == 6 and len(padded.frame(1)) == 2
    with pytest.raises(ValueError, match="row: which of the 2 sequences"):
        padded.frame(2)
    regimes = SemiMarkovHMM(2, num_features=1, max_duration=2, state_names=["up", "down"]).fit(x, max_iterations=1, seed=0)
    assert list(regimes.smooth(x).frame().columns) == ["up", "down"]
    assert regimes.forecast(x, 2).state_log_probs.shape == (1, 2, 2)
    assert list(HMM(2, 6).set_parameters().fit(words(), max_iterations=1).smooth(words()[:1]).frame()) == ["state 0", "state 1"]
    vlhmm = CASES["vlhmm"].model()
    vlhmm.is_fitted = True
    with pytest.raises(ValueError, match="frame: states in blocks are others at every step"):
        vlhmm.smooth(words()).frame()


def test_a_fit_is_aligned_with_another_of_another_kind():
    model, x = fitted(1)
    other = SwitchingRegression(3, switching=("mean",)).fit(x, seed=3)
    found = model.align(other, x)
    together = other.smooth(x).probs[0].T @ found.smooth(x).probs[0]
    assert together.argmax(1).tolist() == [0, 1, 2]


def test_states_that_cannot_change_places_are_refused():
    for name, what in (
        ("lds", "of which none can take the place"), ("vlhmm", "of which none"), ("iohmm, states", "outputs: these are"),
        ("props", "share emissions"),
        ("hmm, columns, left to right", "share emissions"),
        ("mixture of hmms", "order: the 2 states of a cluster stay together, got .0, 2."),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            CASES[name].model().permuted([0, 2, 1, 3] if name.startswith("mixture") else [1, 0, 2])
    model, x = fitted(0)
    for order in ([0.9, 2.0, 1.0], "102", None, [[0, 1, 2]], [True, False, False]):
        with pytest.raises(TypeError, match="order must be whole numbers, every state 0..2 once, got"):
            model.permuted(order)
    for call, what in (
        (lambda: model.permuted([0, 0, 1]), "every state 0..2 once"), (lambda: model.sorted(x, by="size"), "by must be"),
        (lambda: model.sorted(x, column=1), "column must lie in 0..0"),
        (lambda: model.align(HMM(2, num_features=1), x), "a model of 3 states"),
        (lambda: HMM(2, 3).set_parameters(initial=[0.5, 0.5], transition=[[0.5, 0.5]] * 2, emission=[[0.2, 0.4, 0.4]] * 2)
         .sorted([[0, 1, 2]]), "words have no mean"),
        (lambda: HMM(2, 3, priors={"initial": [1.0, 2.0]}).permuted([1, 0]), "priors: initial has numbers of each state"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            call()
