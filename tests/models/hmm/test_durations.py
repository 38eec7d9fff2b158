"""Semi-Markov models against sums over all segmentations, EM, what they answer, and folders."""

import numpy as np
import pytest
import torch
from support.segmentations import duration_probs, sum_over_segmentations

from pplseq import HMM, SemiMarkovHMM
from pplseq.models import SequenceModel

close = torch.testing.assert_close
KINDS = {"explicit": dict(max_duration=3), "negative_binomial": dict(duration="negative_binomial", num_phases=2),
         "poisson": dict(duration="poisson", max_duration=3), "geometric": dict(duration="geometric")}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind, regimes=3, seed=0, **options):
    torch.manual_seed(seed)
    options = options or {"num_words": 4}
    model = SemiMarkovHMM(regimes, **options, **KINDS[kind])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return model


def likelihood(model, x, states=None):
    """log p(x), with regimes where these are known."""
    found = model.estimates()
    density = model.emissions.spec().log_likelihood(x).exp()  # (T, R)
    if states is not None:
        density = torch.where((states[:, None] < 0) | (states[:, None] == torch.arange(density.shape[1])), density, 0.0)
    probs = duration_probs(model.config["duration"], found["duration"], len(x))
    return sum_over_segmentations(found["initial"], found["transition"], probs, density)


@every_kind
def test_values_and_gradients_are_those_of_all_segmentations(kind):
    model, x, lengths = make(kind), torch.tensor([[0, 3, 3, 1, 2], [2, 2, 1, 0, 0]]), torch.tensor([5, 3])
    wanted = likelihood(model, x[0]) + likelihood(model, x[1, :3])
    value = model.log_joint(x, lengths)
    close(value, wanted)
    assert model.score(x, lengths) == pytest.approx(wanted.item(), abs=1e-9)
    states = torch.tensor([[-1, 2, 2, -1, 1], [0, -1, 1, -1, -1]])
    known = likelihood(model, x[0], states[0]) + likelihood(model, x[1, :3], states[1, :3])
    assert model.score(x, lengths, states=states) == pytest.approx(known.item(), abs=1e-9)
    parameters = list(model.parameters())
    for ours, theirs in zip(torch.autograd.grad(value, parameters), torch.autograd.grad(wanted, parameters), strict=True):
        close(ours, theirs)


def counts(steps=240, seed=0):
    """Two regimes that last 6 and 4 steps, always."""
    high = np.arange(steps) % 10 < 6
    return np.random.default_rng(seed).poisson(np.where(high, 8, 2)).astype(float)


@every_kind
def test_em_rises_and_finds_how_long_regimes_last(kind):
    options = dict(max_duration=9) if kind in ("explicit", "poisson") else {} if kind == "geometric" else dict(num_phases=3)
    options["duration"] = kind
    model = SemiMarkovHMM(2, emission="poisson", **options).fit(counts(), num_restarts=2, seed=0, max_iterations=40)
    assert np.all(np.diff(model.history.log_likelihoods) > -1e-8)
    high = int(model.emission_parameters["rate"].argmax())
    means = model.durations @ torch.arange(1.0, 10).double() if model.durations.dim() == 2 else model.durations
    near = 1.5 if kind == "geometric" else 0.8  # one number that makes short durations the likeliest
    assert means[high] == pytest.approx(6, abs=near) and means[1 - high] == pytest.approx(4, abs=near)
    x = counts()
    x[30:33] = np.nan
    found = model.decode(x)[0].numpy() == high
    assert (found == (np.arange(240) % 10 < 6)).mean() > 0.85
    close(model.smooth(x).probs.sum(-1), torch.ones(1, 240).double())
    assert model.forecast(x, 3).means.shape == (1, 3, 1)
    drawn = model.sample(30, 200, seed=0)
    assert drawn.x.shape == (200, 30, 1) and set(drawn.states.flatten().tolist()) == {0, 1}
    assert drawn.x[drawn.states == high].mean() > drawn.x[drawn.states != high].mean() + 4
    assert bool((model.log_prob(drawn.x, states=drawn.states) < model.log_prob(drawn.x)).all())


@every_kind
def test_posterior_draws_are_regimes_as_often_as_they_are_smoothed(kind):
    model, x = make(kind), torch.tensor([[0, 1, 3, 2, 1]])
    drawn = torch.nn.functional.one_hot(model.sample_states(x, 4000, seed=1), 3).double().mean(0)
    close(drawn, model.smooth(x).probs, rtol=0, atol=0.04)


@every_kind
def test_em_ends_where_the_gradient_is_zero(kind):
    model = make(kind, 2, emission="poisson")
    x = counts(60)
    model.fit(x, max_iterations=400, tolerance=1e-12, seed=3)
    batch = model._as_batch(x)
    model.log_joint(batch.x).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().max() < 1e-2, f"{name}: {parameter.grad}"


@every_kind
def test_it_is_saved_and_set(kind, tmp_path):
    model = make(kind)
    again = SequenceModel.load(model.save(tmp_path / "model"))
    assert again.score([[0, 1, 2]]) == pytest.approx(model.score([[0, 1, 2]]))
    found = model.estimates()
    again.set_parameters(
        initial=found["initial"].detach(), transition=found["transition"].detach(), duration=found["duration"].detach(),
        emission=found["emission"].detach(),
    )  # fmt: skip
    assert again.score([[0, 1, 2]]) == pytest.approx(model.score([[0, 1, 2]]))
    assert again.num_free_parameters == 2 + 3 + (6 if kind == "explicit" else 3) + 9


def test_durations_with_labels_are_those_that_were_seen():
    """All regimes known: the M-step is that of complete data, and Poisson durations have the mean that was seen."""
    lasted, states = [3, 1, 4, 2, 5, 1, 2, 2], np.repeat(np.arange(8) % 2, [3, 1, 4, 2, 5, 1, 2, 2])
    x = np.random.default_rng(0).poisson(np.where(states == 0, 9, 2))
    model = SemiMarkovHMM(2, emission="poisson", duration="poisson", max_duration=20).fit(x, states=states, tolerance=1e-13)
    means = model.durations @ torch.arange(1.0, 21).double()
    assert means[0] == pytest.approx(np.mean(lasted[::2]), abs=1e-6)
    assert means[1] == pytest.approx(np.mean(lasted[1::2]), abs=0.3)  # the last one may go on
    assert model.estimates()["duration"].detach()[0] == pytest.approx(np.mean(lasted[::2]) - 1, abs=1e-3)
    held = SemiMarkovHMM(2, emission="poisson", duration="poisson", max_duration=20)
    held.fit(x, states=states, bounds={"duration": (None, 1.5)})
    assert float(held.estimates()["duration"].detach().max()) == pytest.approx(1.5)


def test_geometric_durations_are_those_of_an_hmm():
    model = make("geometric")
    found = model.estimates()
    stay, moves = found["duration"].detach(), found["transition"].detach()
    hmm = HMM(3, 4).set_parameters(
        initial=found["initial"].detach(), emission=found["emission"].detach(),
        transition=torch.diag(stay) + (1 - stay)[:, None] * moves,
    )  # fmt: skip
    x = [[0, 3, 1, 1, 2, 0, 0]]
    assert model.score(x) == pytest.approx(hmm.score(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SemiMarkovHMM(2, 4), "max_duration: 'explicit' durations need it"),
        (lambda: SemiMarkovHMM(2, 4, duration="poisson"), "max_duration: 'poisson' durations need it"),
        (lambda: SemiMarkovHMM(2, 4, duration="geometric", num_phases=2), "'geometric' durations have one phase"),
        (lambda: SemiMarkovHMM(1, 4, max_duration=3), "num_states"),
        (lambda: SemiMarkovHMM(2, 4, max_duration=3, priors=True), "priors: a semi-Markov model has none"),
        (lambda: SemiMarkovHMM(2, 4, max_duration=3).set_parameters(transition=np.full((2, 2), 0.5)), "0 on the diagonal"),
    ],
)
def test_what_does_not_fit_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("kind", ["explicit", "poisson"])
def test_durations_of_one_step_have_nothing_to_learn(kind):
    """Regimes that alternate: a start, and a mean and a variance of each."""
    assert SemiMarkovHMM(2, num_features=1, duration=kind, max_duration=1).num_free_parameters == 1 + 4
