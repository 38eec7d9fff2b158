"""A mixture of HMMs against Bayes' rule over its components, and clusters that are found again."""

import pytest
import torch

from pplseq import HMM, MixtureHMM
from pplseq.models import SequenceModel

close = torch.testing.assert_close


def made(kind):
    torch.manual_seed(0)
    options = {
        "words": dict(num_words=5), "vectors": dict(num_features=2), "full": dict(num_features=2, covariance="full"),
        "tied": dict(num_features=2, covariance="tied"), "family": dict(emission=["poisson", "normal"]),
        "mixture": dict(num_features=2, emission="mixture"),
    }[kind]  # fmt: skip
    model = MixtureHMM(3, 2, **options)
    x = torch.randint(0, 5, (4, 6)) if kind == "words" else torch.randn(4, 6, 2).double()
    x = x.round().abs() if kind == "family" else x
    x[1, 2] = -1 if kind == "words" else torch.nan
    return model, x


@pytest.mark.parametrize("kind", ["words", "vectors", "full", "tied", "family", "mixture"])
def test_memberships_are_bayes_rule(kind):
    model, x = made(kind)
    lengths = torch.tensor([6, 5, 1, 3])
    parts = [model.component(c) for c in range(3)]
    joint = torch.stack([part.log_prob(x, lengths) for part in parts], -1) + model.weights.log()
    close(model.log_prob(x, lengths), joint.logsumexp(-1))
    close(model.predict_proba(x, lengths), joint.softmax(-1))
    assert torch.equal(model.predict(x, lengths), joint.argmax(-1))
    rows = [row[:n] for row, n in zip(x, lengths.tolist(), strict=True)]
    close(model.predict_proba(rows), joint.softmax(-1))
    assert type(parts[0]) is HMM and parts[0].num_states == 2
    assert model.num_free_parameters == 2 + sum(part.num_free_parameters for part in parts) - (6 if kind == "tied" else 0)


def test_clusters_of_one_level_and_other_moves_are_found():
    options = dict(loc=[[0.0], [2.0]], covariance=[[0.5], [0.5]], initial=[0.5, 0.5])
    slow = HMM(2, num_features=1).set_parameters(transition=[[0.95, 0.05], [0.05, 0.95]], **options)
    quick = HMM(2, num_features=1).set_parameters(transition=[[0.5, 0.5], [0.5, 0.5]], **options)
    rows = [*slow.sample(60, 20, seed=1).x, *quick.sample(60, 10, seed=2).x]
    model = MixtureHMM(2, 2, num_features=1).fit(rows, num_restarts=4, seed=0)
    found = model.predict(rows)
    assert len(set(found[:20].tolist())) == 1 and (found[20:] != found[0]).all()
    close(model.weights[found[0]], torch.tensor(2 / 3).double(), rtol=0, atol=0.02)
    assert min(range(1, 4), key=lambda c: MixtureHMM(c, 2, num_features=1).fit(rows, num_restarts=4, seed=0).bic(rows)) == 2


def test_clusters_of_other_words_are_found_at_once():
    rows = [[0, 1, 0, 0, 1]] * 6 + [[2, 3, 3, 2]] * 4
    model = MixtureHMM(2, 1, num_words=4).fit(rows, seed=0)
    found = model.predict(rows)
    assert found[0] != found[-1] and len(set(found[:6].tolist())) == len(set(found[6:].tolist())) == 1
    never_falls = torch.tensor(model.history.log_likelihoods)
    assert (never_falls.diff() > -1e-9).all()


def test_names_of_states_are_those_of_clusters():
    model = MixtureHMM(2, 2, num_words=3, state_names=["a", "b", "c", "d"])
    assert model.component(1).state_names == ("c", "d") and set(model.decode([[0, 1, 2]])[0]) <= set("abcd")


def test_a_folder_and_arguments(tmp_path):
    model, x = made("vectors")
    model.save(tmp_path / "model")
    again = SequenceModel.load(tmp_path / "model")
    assert isinstance(again, MixtureHMM) and again.get_params() == model.get_params()
    close(again.predict_proba(x), model.predict_proba(x))
    assert model.set_params(num_clusters=2).num_clusters == 2 and model.num_states == 4


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: MixtureHMM(2, 2, num_words=3, graph="left_right"), ValueError, "graph: what moves there are makes"),
        (lambda: MixtureHMM(0, 2, num_words=3), ValueError, "num_clusters"),
        (lambda: MixtureHMM(2, 2, num_words=3).component(2), ValueError, "cluster must be in 0..1, got 2"),
        (lambda: MixtureHMM(2, 1, num_words=3, ties=[0, 0]).component(0), ValueError, "share emissions"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_sequence_without_steps_has_no_memberships():
    model, x = made("words")
    for ask in (model.predict, model.predict_proba):  # they were 0 of each cluster
        with pytest.raises(ValueError, match="x: sequence 2 is empty; leave it out"):
            ask(x, torch.tensor([6, 5, 0, 3]))
