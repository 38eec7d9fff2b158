"""Regressions of regimes that last: against sums over all segmentations and semi-Markov HMMs, EM, and what they answer."""

import numpy as np
import pytest
import torch
from support.segmentations import duration_probs, sum_over_segmentations

from pplseq import ARHMM, SemiMarkovHMM, SwitchingRegression, load

close = torch.testing.assert_close
KINDS = {"explicit": dict(max_duration=3), "negative_binomial": dict(num_phases=2), "poisson": dict(max_duration=3),
         "geometric": {}}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)


def drawn(model, seed=0):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return model


@every_kind
def test_values_and_gradients_are_those_of_all_segmentations(kind):
    """With a lag, an input and rows of other lengths; of numbers, and of vectors with a number each."""
    model = drawn(SwitchingRegression(3, order=1, num_inputs=1, initial="learned", duration=kind, **KINDS[kind]))
    found = model.estimates()
    torch.manual_seed(1)
    x, inputs, lengths = torch.randn(2, 6, 1).double(), torch.randn(2, 6, 1).double(), torch.tensor([6, 4])
    wanted = 0.0
    for row, size in enumerate(lengths.tolist()):
        mean = found["mean"] + x[row, :-1] * found["lags"][:, 0] + inputs[row, 1:] * found["inputs"][:, 0]
        density = torch.distributions.Normal(mean, found["variance"].sqrt()).log_prob(x[row, 1:]).exp()
        density = torch.cat([torch.ones(1, 3), density])[:size]  # the first number is given
        probs = duration_probs(kind, found["duration"], size)
        wanted = wanted + sum_over_segmentations(found["initial"], found["transition"], probs, density)
    value = model.log_joint(x, lengths, inputs=inputs)
    close(value, wanted)
    parameters = list(model.parameters())
    for ours, theirs in zip(torch.autograd.grad(value, parameters), torch.autograd.grad(wanted, parameters), strict=True):
        close(ours, theirs)
    values = {name: part.detach() for name, part in found.items()}
    vectors = ARHMM(3, 1, order=1, num_inputs=1, duration=kind, **KINDS[kind]).set_parameters(
        initial=values["initial"], transition=values["transition"], duration=values["duration"],
        constants=values["mean"][:, None], lags=values["lags"][..., None, None], inputs=values["inputs"][:, None],
        covariances=values["variance"][:, None, None],
    )  # fmt: skip
    assert vectors.score(x, lengths, inputs=inputs) == pytest.approx(wanted.item())


@every_kind
def test_without_regressors_they_answer_as_a_semi_markov_hmm(kind, tmp_path):
    options = {"duration": kind, **KINDS[kind]}
    model = drawn(SwitchingRegression(3, initial="learned", **options))
    found = {name: value.detach() for name, value in model.estimates().items()}
    moves = {name: found[name] for name in ("initial", "transition", "duration")}
    level, variance = found["mean"][:, None], found["variance"][:, None]
    hmm = SemiMarkovHMM(3, emission="normal", **options).set_parameters(**moves, loc=level, scale=variance.sqrt())
    vectors = ARHMM(3, 1, order=0, **options).set_parameters(**moves, constants=level, covariances=variance[..., None])
    x, lengths, states = torch.randn(2, 12, 1).double(), torch.tensor([12, 7]), torch.full((2, 12), -1)
    x[0, 3], states[0, 5] = torch.nan, 1
    for other in (model, vectors, load(model.save(tmp_path / "a")), load(vectors.save(tmp_path / "b"))):
        assert other.score(x, lengths, states=states) == pytest.approx(hmm.score(x, lengths, states=states))
        close(other.smooth(x, lengths).probs, hmm.smooth(x, lengths).probs)
        assert torch.equal(other.decode(x, lengths), hmm.decode(x, lengths))
        close(other.forecast(x, 4, lengths).means, hmm.forecast(x, 4, lengths).means)
        close(other.durations, hmm.durations)
        assert other.num_free_parameters == hmm.num_free_parameters
        assert set(other.sample(20, 2, seed=0).states.flatten().tolist()) <= {0, 1, 2}


@every_kind
def test_a_stationary_row_begins_in_the_midst_of_a_regime(kind):
    """As rows of which the first 300 steps are missing do."""
    model = drawn(SwitchingRegression(3, duration=kind, **KINDS[kind]))
    found = {name: value.detach() for name, value in model.estimates().items()}
    assert "initial" not in found
    other = drawn(SwitchingRegression(3, initial="learned", duration=kind, **KINDS[kind])).set_parameters(**found)
    x = torch.randn(1, 310, 1).double()
    x[:, :300] = torch.nan
    assert model.score(x[:, 300:]) == pytest.approx(other.score(x), abs=1e-7)


def test_a_markov_chain_lasts_as_geometric_durations_do():
    model = SwitchingRegression(2).set_parameters(transition=[[0.75, 0.25], [0.5, 0.5]])
    close(model.durations, torch.tensor([4.0, 2.0]).double())


def alternating(steps=300):
    """Two regimes of 4 and 11 steps about, with other slopes."""
    rng = np.random.default_rng(0)
    regime = np.concatenate([np.full(1 + rng.poisson([3, 10][k % 2]), k % 2) for k in range(60)])[:steps]
    inputs = rng.normal(size=(steps, 1))
    return np.array([1.0, -1.0])[regime] * inputs[:, 0] + rng.normal(0, 0.3, steps), inputs, regime


@pytest.mark.parametrize("initial", ["learned", "stationary"])
def test_em_rises_to_where_gradients_end(initial):
    x, inputs, regime = alternating()
    model = SwitchingRegression(2, num_inputs=1, duration="poisson", max_duration=30, initial=initial)
    model.fit(x, inputs=inputs, method="em", seed=0, max_iterations=200, tolerance=1e-10)
    assert np.all(np.diff(model.history.log_likelihoods) > -1e-8)
    best = model.score(x, inputs=inputs)
    assert model.fit(x, inputs=inputs, warm_start=True).score(x, inputs=inputs) == pytest.approx(best, abs=1e-3)
    fast = int(model.estimates()["inputs"].detach().argmax())
    rates = model.estimates()["duration"].detach()
    assert rates[fast] == pytest.approx(3, abs=1) and rates[1 - fast] == pytest.approx(10, abs=2)
    assert ((model.decode(x, inputs=inputs)[0].numpy() == fast) == (regime == 0)).mean() > 0.9
    vectors = ARHMM(2, 1, order=0, num_inputs=1, duration="poisson", max_duration=30)
    vectors.fit(x[:, None], inputs=inputs, seed=0, num_restarts=3, max_iterations=200, tolerance=1e-10)
    if initial == "learned":
        assert vectors.score(x[:, None], inputs=inputs) == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SwitchingRegression(2, max_duration=3), "max_duration: it is of durations"),
        (lambda: ARHMM(2, 1, num_phases=3), "num_phases: it is of durations"),
        (lambda: SwitchingRegression(2, duration="poisson"), "max_duration: 'poisson' durations need it"),
        (lambda: SwitchingRegression(1, duration="geometric"), "num_regimes"),
        (lambda: SwitchingRegression(2, order=1, lags_of="deviations", duration="geometric"), "duration: deviations"),
        (lambda: SwitchingRegression(2, duration="geometric").set_parameters(initial=[0.5, 0.5]), "initial: this model has"),
        (lambda: ARHMM(2, 1, duration="geometric").set_parameters(transition=np.full((2, 2), 0.5)), "0 on the diagonal"),
        (lambda: ARHMM(2, 1).set_parameters(duration=[0.5, 0.5]), "duration: this model has none"),
        (lambda: ARHMM(1, 1, duration="geometric"), "num_states must be at least 2"),
        (lambda: ARHMM(2, 1, duration="explicit", max_duration=10**7), "max_duration: this takes .* GB of memory"),
        (lambda: SwitchingRegression(2, duration="poisson", max_duration=10**7), "max_duration: this takes .* GB of memory"),
    ],
)
def test_what_does_not_fit_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("value", ["x", {"a": 1}, [None, 1]])
def test_durations_are_numbers(value):
    with pytest.raises(TypeError, match="duration must hold numbers, got"):
        ARHMM(2, 1, duration="geometric").set_parameters(duration=value)


def test_states_of_arrays_become_regimes():
    model = drawn(ARHMM(2, 1, duration="explicit", max_duration=3))
    probs = np.random.default_rng(0).dirichlet(np.ones(len(model.regime_of)), size=4)
    expected = np.stack([probs[:, model.regime_of.numpy() == regime].sum(1) for regime in range(2)], 1)
    np.testing.assert_allclose(model.regimes(probs).numpy(), expected)
