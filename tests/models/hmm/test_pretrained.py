"""Weights of HMMs that others give away: read as they are written, or refused with what is wrong."""

import itertools
import json
import math

import pytest
import torch
from safetensors.torch import save_file

from pplseq import HMM, Vocabulary

Z, V = 3, 4


def weights(seed=0):
    torch.manual_seed(seed)
    moves, words, start = torch.rand(Z, Z).softmax(-1), torch.rand(Z, V).log_softmax(-1), torch.rand(Z).log_softmax(-1)
    return {"alpha_exp": moves, "beta": words, "gamma": start}


def written(folder, form, found):
    folder.mkdir()
    if form == "safetensors":
        save_file(found, folder / "model.safetensors")
    elif form == "torch":
        torch.save(found, folder / "pytorch_model.bin")
    else:
        shards = {"alpha_exp": "one.safetensors", "beta": "two.safetensors", "gamma": "one.safetensors"}
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
        (lambda w: {n: v for n, v in w.items() if n != "gamma"}, ValueError, "gamma not there"),
        (lambda w: w | {"beta": torch.zeros(Z + 1, V)}, ValueError, "sizes do not fit together"),
        (lambda w: w | {"alpha_exp": -w["alpha_exp"]}, ValueError, "alpha_exp must hold probabilities"),
        (lambda w: w | {"alpha_exp": torch.zeros(2, 2, 2)}, ValueError, "Monarch"),
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
