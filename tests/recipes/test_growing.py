"""A run whose states are near-copies of those of a smaller one."""

import json
import shutil

import pytest
import torch

import pplseq
from pplseq.data import load_corpus
from pplseq.distributions.drawing import seeded
from pplseq.folder import FolderError
from pplseq.models.texts import make_batches
from pplseq.runs.settings import TrainSettings
from pplseq.runs.training import train

SIZES = dict(
    num_blocks=4, hidden_size=8, batch_size=4, segment_length=8, epochs=1, transition="hierarchical", state_dropout=0.0
)  # fmt: skip


def validations(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [row["perplexity"] for row in rows if row["kind"] == "validation"]


@pytest.fixture
def text(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sees a dog\na dog sees the cat\nthe dog barks\na cat sleeps\n" * 5, encoding="utf-8")
    return text


def test_a_size_without_time_hands_on_to_the_next(tmp_path, text, monkeypatch):
    """Where reading and clustering take all the time of the first size, the second begins by itself."""
    from pplseq.recipes.text import training
    from pplseq.runs.signals import TimeOver

    train = training.train

    def slow_at_first(name, job):
        if job.settings.num_states == 4:
            raise TimeOver
        return train(name, job)

    monkeypatch.setattr(training, "train", slow_at_first)
    watched = dict(max_time=30, folder=tmp_path / "run", grow=(4, 8, 16), **SIZES)
    assert pplseq.train("vlhmm", text, **watched)["steps"] > 0
    grown = tmp_path / "run" / "grown"
    assert not (grown / "4" / "last").exists() and (grown / "8" / "last").is_dir()
    assert (tmp_path / "run" / "clusters.paths").read_bytes() == (grown / "8" / "clusters.paths").read_bytes()


def test_a_run_goes_on_with_more_states(tmp_path, text):
    small, large = tmp_path / "small", tmp_path / "large"
    pplseq.train("vlhmm", text, folder=small, num_states=16, **SIZES | {"epochs": 3, "lr": 0.02})
    pplseq.train("vlhmm", text, folder=large, num_states=32, grow_from=small, lr=1e-6, **SIZES)
    assert validations(large)[0] == pytest.approx(min(validations(small)), rel=0.02)
    assert (large / "clusters.paths").read_bytes() == (small / "clusters.paths").read_bytes()
    bad = [
        (dict(num_states=24), "multiple of the 16"), (dict(num_states=32, num_blocks=8), "num_blocks = 4"),
        (dict(num_states=32, hidden_size=16), "hidden_size = 8"),
        (dict(num_states=32, transition="softmax"), "does not become one softmax"),
        (dict(num_states=32, grow_from=tmp_path / "nowhere"), "nowhere"),
        (dict(num_states=32, start="counts"), "leave start = counts out"),
    ]  # fmt: skip
    for options, message in bad:
        with pytest.raises((ValueError, FileNotFoundError, FolderError), match=message):
            pplseq.train("vlhmm", text, folder=tmp_path / "bad", **{**SIZES, "grow_from": small, **options})


def test_a_run_that_grew_is_resumed_without_the_one_that_it_grew_from(tmp_path, text):
    """Also where a parameter is held by the model's own settings: to the numbers of a run that was never stopped."""
    topics = SIZES | dict(num_topics=2, topic_persistence=0.9, epochs=2)
    pplseq.train("vlhmm", text, folder=tmp_path / "small", num_states=8, **topics)
    larger = topics | dict(num_states=16, grow_from=tmp_path / "small", epochs=1)
    for name in ("whole", "parts"):
        pplseq.train("vlhmm", text, folder=tmp_path / name, **larger)
    shutil.rmtree(tmp_path / "small")
    assert pplseq.train(folder=tmp_path / "whole", resume=True, epochs=3)["steps"] > 0
    for epochs in (2, 3):
        pplseq.train(folder=tmp_path / "parts", resume=True, epochs=epochs)
    assert validations(tmp_path / "parts") == validations(tmp_path / "whole") and len(validations(tmp_path / "parts")) > 2
    whole, parts = (pplseq.load(tmp_path / name, checkpoint="last").state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(parts[name], value) for name, value in whole.items())


def test_sizes_that_grow_are_runs_that_grow_from_each_other(tmp_path, text, monkeypatch):
    pplseq.train("vlhmm", text, folder=tmp_path / "grown", grow=(4, 8, 16), **SIZES)
    for size, before in ((4, {}), (8, {"grow_from": tmp_path / "4"}), (16, {"grow_from": tmp_path / "8"})):
        pplseq.train("vlhmm", text, folder=tmp_path / str(size), num_states=size, **SIZES, **before)
    assert validations(tmp_path / "grown") == validations(tmp_path / "16")

    counted = pplseq.train("vlhmm", text, folder=tmp_path / "counted", grow=(4, 8), start="counts", **SIZES)
    assert counted["stop_reason"] == "epochs"  # the first size alone starts from them

    def stop(*given, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # between two sizes
        patch.setattr("pplseq.models.vlhmm.program.VLHMM.split", stop)
        with pytest.raises(KeyboardInterrupt):
            pplseq.train("vlhmm", text, folder=tmp_path / "stopped", grow=(4, 8, 16), **SIZES)
    pplseq.train(folder=tmp_path / "stopped", resume=True)
    assert validations(tmp_path / "stopped") == validations(tmp_path / "16")
    pplseq.train(folder=tmp_path / "stopped", resume=True, epochs=2)
    assert len(validations(tmp_path / "stopped")) == 2 * len(validations(tmp_path / "16"))


def test_a_grown_run_draws_its_dropout_behind_the_noise_that_sets_copies_apart(tmp_path, text):
    """One stream of numbers for both: those of a seeded block in which a model is split and fitted by hand."""
    sizes = SIZES | dict(state_dropout=0.5, lr=0.003)
    pplseq.train("vlhmm", text, folder=tmp_path / "small", num_states=16, **sizes)
    pplseq.train("vlhmm", text, folder=tmp_path / "large", num_states=32, grow_from=tmp_path / "small", **sizes)
    corpus, small = load_corpus(text), pplseq.load(tmp_path / "small")
    batches = make_batches(corpus.train, "carried", batch_size=4, segment_length=8, seed=0)
    with seeded(0):
        model = small.split(2)
        train(model, batches, evaluate=None, settings=TrainSettings(epochs=1, lr=0.003), folder=None)
    large = pplseq.load(tmp_path / "large", checkpoint="last").state_dict()
    assert all(torch.equal(large[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(grow=(8,)), "at least two"), (dict(grow=(4, 6)), "6 is not of 4"), (dict(grow=(6, 12)), "6 is not of 4"),
        (dict(grow=(8, 8)), "8 is not of 8"), (dict(grow=(4, 8), blocks="none"), "in even blocks"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_grow(tmp_path, text, options, message):
    with pytest.raises(ValueError, match=message):
        pplseq.train("vlhmm", text, folder=tmp_path / "bad", **SIZES, **options)
