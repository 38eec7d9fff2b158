"""States in another order: the same model, whose answers have other numbers."""

import numpy as np
import pytest
import torch
from support.model_cases import CASES, words

from pplseq import ARHMM, HMM, IOHMM, MixtureHMM, SemiMarkovHMM, SwitchingRegression
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


def test_a_fit_is_aligned_with_another_of_another_kind():
    model, x = fitted(1)
    other = SwitchingRegression(3, switching=("mean",)).fit(x, seed=3)
    found = model.align(other, x)
    together = other.smooth(x).probs[0].T @ found.smooth(x).probs[0]
    assert together.argmax(1).tolist() == [0, 1, 2]


def test_states_that_cannot_change_places_are_refused():
    for name, what in (
        ("lds", "of which none can take the place"), ("vlhmm", "of which none"), ("iohmm, states", "outputs: these are"),
        ("hmm, columns, left to right", "share emissions"), ("mixture of hmms", "order: "),
        ("props", "share emissions"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            CASES[name].model().permuted([1, 0, 2])
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


def mixtures():
    """Sequences of two kinds with two levels each, mixtures that were fitted to them, and what is known of them."""
    random = np.random.default_rng(0)
    x = [5.0 * (k % 2) + 2.0 * (np.arange(30) // 5 % 2) + 0.3 * random.normal(size=30) for k in range(12)]
    inputs = [np.sin(np.arange(30.0))[:, None]] * 12
    driven = {"num_inputs": {"emission": 1}, "num_outputs": 1, "outputs": "gaussian", "mealy": True}
    yield MixtureHMM(2, 2, num_features=1).fit(x, seed=0, num_restarts=3), x, {}
    yield MixtureIOHMM(2, 2, **driven).fit(x, inputs=inputs, seed=0, num_restarts=5), x, {"inputs": inputs}


def test_clusters_and_the_states_in_them_change_places():
    for model, x, known in mixtures():
        other = model.permuted([3, 2, 0, 1])
        assert other.score(x, **known) == pytest.approx(model.score(x, **known), rel=1e-12)
        torch.testing.assert_close(other.predict(x, **known), 1 - model.predict(x, **known))
        for found in (other.sorted(x, **known), model.sorted(x, **known)):
            means = np.zeros(4)
            for row, probs in zip(x, found.smooth(x, **known).probs, strict=True):
                means += row @ np.asarray(probs)
            means /= sum(np.asarray(probs).sum(0) for probs in found.smooth(x, **known).probs)
            assert means == pytest.approx([0, 2, 5, 7], abs=0.3)
        shares = sum(np.asarray(probs).sum(0) for probs in model.sorted(x, by="share", **known).smooth(x, **known).probs)
        assert shares[0] >= shares[1] and shares[2] >= shares[3] and shares[:2].sum() >= shares[2:].sum()
        back = other.align(model, x, **known)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(back.state_dict()[name], value)
        with pytest.raises(ValueError, match="stay in their clusters, 2 behind each other"):
            model.permuted([0, 2, 1, 3])


def test_states_with_the_same_moves_change_places():
    """Of a graph: the second and the third, which follow the first and each go back to it."""
    graph = torch.tensor([[True, True, True], [True, True, False], [True, False, True]])
    x = torch.randn(1, 40, 1).double()
    model = HMM(3, num_features=1, graph=graph).fit(x, seed=0)
    assert model.permuted([0, 2, 1]).score(x) == pytest.approx(model.score(x), rel=1e-12)
    with pytest.raises(ValueError, match="graph: states change places with those that have the same moves"):
        model.permuted([1, 0, 2])
