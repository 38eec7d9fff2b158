"""Weights of HMMs that others give away: read as they are written, or refused with what is wrong."""

import itertools
import json
import math

import pytest
import torch
from safetensors.torch import save_file

from pplseq import HMM, Constraint, Vocabulary
from pplseq.models import ProductMoves

Z, V = 3, 4


def weights(seed=0):
    torch.manual_seed(seed)
    moves, words, start = torch.rand(Z, Z).softmax(-1), torch.rand(Z, V).log_softmax(-1), torch.rand(Z).log_softmax(-1)
    return {"alpha_exp": moves, "beta": words, "gamma": start}


def monarch(sizes, seed=0):
    """As its makers save one: the first coordinate moves first, by blocks of the others in a circle behind it."""
    torch.manual_seed(seed)
    states, found = math.prod(sizes), {}
    for place, size in enumerate(sizes):
        found[f"alpha_exp.weights_exp.{place}"] = torch.rand(states // size, size, size).softmax(-1)
    words = torch.rand(states, V).log_softmax(-1)
    words[0, 1] = -1e10
    return found | {"beta": words.log_softmax(-1), "gamma_exp": torch.rand(1, states).softmax(-1)}


def log_prob_of_monarch(found, sizes, text):
    """As its makers compute it, from the last word to the first."""
    weights = [found[f"alpha_exp.weights_exp.{place}"] for place in range(len(sizes))]
    x = torch.ones(math.prod(sizes))
    for word in text[:0:-1]:
        x = x * found["beta"][:, word].exp()
        for weight in reversed(weights):
            x = (weight @ x.view(-1, weight.shape[-1], 1)).transpose(0, 1).reshape(-1)
    return float((found["gamma_exp"][0] * found["beta"][:, text[0]].exp() * x).sum().log())


def written(folder, form, found):
    folder.mkdir()
    if form == "safetensors":
        save_file(found, folder / "model.safetensors")
    elif form == "torch":
        torch.save(found, folder / "pytorch_model.bin")
    else:
        shards = {name: "two.safetensors" if name == "beta" else "one.safetensors" for name in found}
        for shard in set(shards.values()):
            save_file({name: value for name, value in found.items() if shards[name] == shard}, folder / shard)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    return folder


@pytest.mark.parametrize("form", ["safetensors", "torch", "shards"])
def test_likelihoods_are_those_of_the_weights(form, tmp_path):
    found = weights()
    vocabulary = Vocabulary(("a", "b", "c", "d"), unknown=None)
    model = HMM.from_pretrained(written(tmp_path / "hmm", form, found), vocabulary=vocabulary)
    text, total = [0, 3, 1], 0.0
    for path in itertools.product(range(Z), repeat=3):
        prob = math.prod(float(found["alpha_exp"][i, j]) for i, j in itertools.pairwise(path))
        prob *= math.exp(found["gamma"][path[0]])
        total += prob * math.prod(math.exp(found["beta"][state, word]) for state, word in zip(path, text, strict=True))
    assert model.score([text]) == pytest.approx(math.log(total), rel=1e-5) and model.is_fitted
    assert model.infill([["a", None, "b"]]).log_probs.exp().sum() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("form, sizes", [("safetensors", (2, 3)), ("torch", (2, 3, 4)), ("shards", (3, 2))])
def test_monarch_hmms(form, sizes, tmp_path):
    found = monarch(sizes)
    model = HMM.from_pretrained(written(tmp_path / "hmm", form, found))
    assert model._factors == ProductMoves(*sizes[::-1]) and model.emission.min() == 0
    for text in ([0, 3, 1, 2], [1], [2, 2]):
        assert model.score([text]) == pytest.approx(log_prob_of_monarch(found, sizes, text), rel=1e-5)
    constraint = Constraint.containing("1") & Constraint.excluding("3")
    chain = model.constrained(constraint, length=3)
    texts = [text for text in itertools.product(range(V), repeat=3) if constraint.accepts([*map(str, text)])]
    wanted = sum(math.exp(log_prob_of_monarch(found, sizes, text)) for text in texts)
    assert float(chain.log_prob().exp()) == pytest.approx(wanted, rel=1e-5)


def test_starts_may_be_probabilities(tmp_path):
    found = weights()
    other = {name: value for name, value in found.items() if name != "gamma"} | {"gamma_exp": found["gamma"].exp()[None]}
    models = [HMM.from_pretrained(written(tmp_path / name, "torch", one)) for name, one in (("a", found), ("b", other))]
    assert models[0].score([[0, 1]]) == pytest.approx(models[1].score([[0, 1]]), rel=1e-6)


def test_moves_that_there_are_not(tmp_path):
    found = weights() | {"alpha_exp": torch.tensor([[1.0, 0, 0], [0, 0.5, 0.5], [0, 0, 1.0]])}
    model = HMM.from_pretrained(written(tmp_path / "hmm", "torch", found))
    assert model.transition[0, 1] == 0 and math.isfinite(model.score([[0, 1, 2, 3]]))


def test_rows_that_are_nearly_distributions_are_divided_by_their_sums(tmp_path):
    found = weights()
    found["alpha_exp"][1] *= 1.01
    with pytest.warns(RuntimeWarning, match="a row of alpha_exp sums to one only within 0.01"):
        model = HMM.from_pretrained(written(tmp_path / "hmm", "safetensors", found))
    torch.testing.assert_close(model.transition.sum(-1), torch.ones(Z))


class Evil:
    def __reduce__(self):
        return print, ("ran",)


@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda w: {n: v for n, v in w.items() if n != "gamma"}, ValueError, "gamma_exp not there"),
        (lambda w: w | {"beta": w["beta"].exp()}, ValueError, "rows of beta must be .* misses a sum of one by"),
        (lambda w: w | {"gamma": w["gamma"].exp()}, ValueError, "rows of gamma must be .*, their logs in beta and gamma"),
        (lambda w: w | {"alpha_exp": 7 * w["alpha_exp"]}, ValueError, "rows of alpha_exp must be .* by 6"),
        (lambda w: w | {"beta": torch.zeros(Z + 1, V)}, ValueError, "sizes do not fit together"),
        (lambda w: w | {"alpha_exp": -w["alpha_exp"]}, ValueError, "alpha_exp must hold probabilities"),
        (lambda w: w | {"alpha_exp": torch.zeros(2, 2, 2)}, ValueError, "Monarch"),
        (lambda w: monarch((2, 3)) | {"alpha_exp.weights_exp.1": torch.ones(3, 2, 2)}, ValueError, "weights_exp.1 .3, 2, 2."),
        (lambda w: monarch((2, 3)) | {"alpha_exp.weights_exp.0": -torch.ones(3, 2, 2)}, ValueError, "weights_exp.0 must hold"),
        (lambda w: {n: v for n, v in monarch((2, 3)).items() if n[-1] != "0"}, ValueError, "sizes do not fit"),
        (lambda w: {n: v for n, v in monarch((2, 3)).items() if "alpha" not in n}, ValueError, "alpha_exp not there"),
        (lambda w: w | {"beta": torch.full((Z, V), -torch.inf)}, ValueError, "beta has a row that is no distribution"),
        (lambda w: w | {"more": Evil()}, ValueError, "reading it would run code"),
        (lambda w: [1], ValueError, "expected tensors by name"),
    ],
)
def test_refusals(change, error, message, tmp_path, capsys):
    with pytest.raises(error, match=message):
        HMM.from_pretrained(written(tmp_path / "hmm", "torch", change(weights())))
    assert "ran" not in capsys.readouterr().out


def test_folders_that_hold_no_weights(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        HMM.from_pretrained(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="no weights there"):
        HMM.from_pretrained(tmp_path)
    folder = written(tmp_path / "hmm", "shards", weights())
    with pytest.raises(ValueError, match="vocabulary: the HMM has 4 tokens, and it 2"):
        HMM.from_pretrained(folder, vocabulary=Vocabulary(("a", "b"), unknown=None))
    (folder / "two.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="shard two.safetensors is not there"):
        HMM.from_pretrained(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"beta": "../two.safetensors"}}))
    with pytest.raises(ValueError, match="shards must be files of this folder"):
        HMM.from_pretrained(folder)
