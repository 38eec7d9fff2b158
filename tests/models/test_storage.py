"""Models as folders: what is written, and every way in which a folder can be wrong."""

import json
import os
import pickle

import pytest
import torch
from safetensors.torch import load_file
from support.stored import rewrite, rewrite_tensors

from pplseq import load
from pplseq.data import Vocabulary
from pplseq.data.clustering import uniform_clusters
from pplseq.models import HMM, MODELS, VLHMM, SequenceModel

X = torch.tensor([[0, 3, 2], [4, 4, -1]])


def make(seed=0, **options):
    torch.manual_seed(seed)
    options = {"hidden_size": 4, "states_per_block": [1, 2, 3], **options}
    return VLHMM(6, num_words=5, blocks=torch.tensor([0, 1, 1, 2, 2]), **options)


@pytest.fixture
def folder(tmp_path):
    return make().save(tmp_path / "run" / "model")


def header(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(parameterization="factored", tied=False, reset_id=2, state_dropout=0.25, temperature=3.0),
        dict(parameterization="scalar", initialization="xavier", normalizer_dtype="bfloat16"),
    ],
)
def test_there_and_back(tmp_path, options):
    model = make(**options)
    saved = model.save(tmp_path / "model")
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]
    loaded = load(saved)
    assert type(loaded) is VLHMM and loaded.config == model.config and not loaded.training
    assert loaded.vocabulary is None and loaded.clusters is None
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert torch.equal(loaded.log_prob(X), model.log_prob(X))
    loaded(X)  # and it can go on learning
    loaded.chain.log_prob().sum().backward()


def test_vocabulary_and_clusters(tmp_path):
    vocabulary = Vocabulary(["a", "b", "c", "d", "e"], unknown=None, eos="e")
    clusters = uniform_clusters(5, 3, seed=0)
    model = make()
    model.vocabulary, model.clusters = vocabulary, clusters
    found = load(load(model.save(tmp_path / "model")).save(tmp_path / "again"))  # it keeps them when it is saved again
    assert found.vocabulary.words == vocabulary.words
    assert list(found.clusters.block_of_word) == list(clusters.block_of_word)
    assert (found.vocabulary.unknown, found.vocabulary.eos, found.vocabulary.eos_id) == (None, "e", 4)
    model.vocabulary = None
    with pytest.raises(ValueError, match="set model.vocabulary too"):
        model.save(tmp_path / "other")
    assert not (tmp_path / "other").exists() and not list(tmp_path.glob(".*"))


def test_saving_again_replaces_the_folder(folder):
    (folder / "of another run").write_text("")
    make(seed=1).save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert torch.equal(load(folder).log_prob(X), make(seed=1).log_prob(X))
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_failed_save_leaves_the_old_folder(folder, monkeypatch):
    import safetensors.torch

    def full_disk(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        make(seed=1).save(folder)
    assert torch.equal(load(folder).log_prob(X), make().log_prob(X))
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_interrupted_between_the_two_renames(folder):
    os.replace(folder, folder.with_name(".model.old"))
    assert torch.equal(load(folder).log_prob(X), make().log_prob(X))


def test_parameters_on_another_device_or_type_are_written_as_they_are(tmp_path):
    model = make().double()
    folder = model.save(tmp_path / "model")
    assert load_file(str(folder / "model.safetensors"))["word_score.weight"].dtype == torch.float64


# ------------------------------------------------------------------------------------------------ wrong folders
def test_missing(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match="no model at .*nowhere"):
        SequenceModel.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="nowhere: no such run or model folder"):
        load(tmp_path / "nowhere")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model.safetensors: missing; the folder is incomplete"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_parameters(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="model.safetensors: cut short or changed"):
        load(folder)


def test_a_pickle_is_never_read(folder):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    for content in (pickle.dumps(Trap()),):
        (folder / "model.safetensors").write_bytes(content)
        rewrite(folder)
        with pytest.raises(ValueError, match="not a whole safetensors file"):
            load(folder)
    torch.save(make().state_dict(), folder / "model.safetensors")
    rewrite(folder)
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load(folder)


@pytest.mark.parametrize("text", ["", "{", "\x00\x01", '{"format": "pplseq"'])
def test_a_damaged_config(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match="not readable as JSON"):
        load(folder)


def test_a_config_that_is_no_text(folder):
    (folder / "config.json").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(ValueError, match="not readable as JSON"):
        load(folder)


@pytest.mark.parametrize("content", [[], {}, {"architectures": ["GPT2LMHeadModel"]}, {"format": "other"}])
def test_a_foreign_config(folder, content):
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="was not written by pplseq"):
        load(folder)


@pytest.mark.parametrize("version", [0, 1, 3, None, "2"])
def test_another_version(folder, version):
    rewrite(folder, version=version)
    with pytest.raises(ValueError, match="this pplseq reads version 2"):
        load(folder)


def test_an_unknown_model(folder):
    rewrite(folder, model="transformer")
    with pytest.raises(ValueError, match="unknown model 'transformer'; known: .*vlhmm"):
        load(folder)
    with pytest.raises(ValueError, match="unknown model 'transformer'; known: .*vlhmm"):
        MODELS.named("transformer")


def test_parameters_of_another_model(folder, tmp_path):
    other = make(hidden_size=6).save(tmp_path / "other")
    os.replace(other / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(ValueError, match="model.safetensors: cut short or changed"):
        load(folder)


def test_a_parameter_too_few_or_too_many(folder):
    rewrite_tensors(folder, lambda tensors: {**tensors, "extra": torch.zeros(1)})
    with pytest.raises(ValueError, match="config.json does not describe these parameters .*extra"):
        load(folder)
    rewrite_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if k not in ("extra", "word_score.bias")})
    with pytest.raises(ValueError, match="config.json does not describe these parameters .*word_score.bias"):
        load(folder)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(folder, bad):
    rewrite_tensors(folder, lambda tensors: {**tensors, "word_score.bias": tensors["word_score.bias"] * bad})
    with pytest.raises(ValueError, match="word_score.bias holds values that are not finite; .*use an earlier checkpoint"):
        load(folder)


@pytest.mark.parametrize(
    "change",
    [dict(hidden_size=8), dict(num_states=9, states_per_block=None), dict(parameterization="scalar"), dict(depth=3)],
)
def test_a_config_that_does_not_describe_the_parameters(folder, change):
    rewrite(folder, config={**header(folder)["config"], **change})
    with pytest.raises(ValueError, match="config.json does not describe these parameters"):
        load(folder)


@pytest.mark.parametrize("missing", ["config", "model"])
def test_a_config_without_a_part(folder, missing):
    rewrite(folder, without=(missing,))
    with pytest.raises(ValueError):
        load(folder)


def test_a_value_that_no_model_takes(folder):
    rewrite(folder, config={**header(folder)["config"], "state_dropout": 1.5})
    with pytest.raises(ValueError, match="state_dropout must lie in"):
        load(folder)


def test_a_class_reads_its_own_models_only(folder):
    assert isinstance(VLHMM.load(folder), VLHMM)
    with pytest.raises(ValueError, match="holds a VLHMM, not a HMM; pplseq.load reads any model"):
        HMM.load(folder)


def test_a_model_that_was_made_double_stays_so(tmp_path):
    """Its constructor makes single precision: the folder says which digits there were."""
    model = make().double()
    loaded = load(model.save(tmp_path / "model"))
    assert {value.dtype for value in loaded.state_dict().values() if value.is_floating_point()} == {torch.float64}
    assert torch.equal(loaded.log_prob(X), model.log_prob(X)) and loaded.log_prob(X).dtype == torch.float64
    assert {value.dtype for value in load(make().save(tmp_path / "other")).parameters()} == {torch.float32}
