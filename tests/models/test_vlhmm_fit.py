"""From text to a trained VLHMM."""

import json
import math
import os
import shutil
import signal

import numpy as np
import pytest
import torch

import pplseq
from pplseq.data import Text, Vocabulary, load_corpus
from pplseq.models import VLHMM
from pplseq.models.texts import as_texts
from pplseq.models.vlhmm.fit import LAYOUT, batching
from pplseq.runs.checkpoint import TRAINING
from pplseq.runs.evaluation import score_text
from pplseq.runs.status import run_status, unfinished

SENTENCES = ["the cat sees a dog", "a dog sees the cat", "the dog barks", "a cat sleeps", ""] * 8
SMALL = dict(num_states=8, hidden_size=8)
QUICK = dict(num_blocks=4, epochs=2, batch_size=4, segment_length=8)


@pytest.fixture(scope="module")
def corpus():
    return load_corpus("builtin:generated")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run, and one of an older version, whose checkpoint does not tell its layout."""
    run = tmp_path_factory.mktemp("runs") / "run"
    VLHMM(**SMALL).fit(SENTENCES, folder=run, **QUICK)
    older = shutil.copytree(run, run.with_name("older"))
    header, tensors, *_ = TRAINING.read(older / "last")
    about = {name: value for name, value in header["about"].items() if name not in (*LAYOUT, "seed", "validation")}
    model = pplseq.load(older, checkpoint="last")
    TRAINING.write(older / "last", {"about": about, "state": header["state"]}, tensors=tensors, more=model.save)
    return run, older


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# ------------------------------------------------------------------------------------------------ what it learns from
def test_from_a_corpus_it_learns(corpus):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model = VLHMM(num_states=32, hidden_size=16, init_scale=0.3)
    assert model.fit(corpus, num_blocks=8, epochs=3, lr=0.02, seed=1) is model
    assert torch.equal(torch.get_rng_state(), before)
    assert model.num_words == len(corpus.vocabulary) and model.vocabulary is corpus.vocabulary
    assert model.clusters.num_blocks == 8 and model.reset_id == corpus.vocabulary.eos_id and not model.training
    found = score_text(model, corpus.valid, "carried").perplexity
    assert found == pytest.approx(math.exp(model.history.progress.best), rel=1e-5), "the best parameters, not the last"
    assert 8 < found < 20  # 61 words; the language itself has about 12


def ids(vocabulary):
    return [vocabulary.encode([*line.split(), "<eos>"]).tolist() for line in SENTENCES]


@pytest.mark.parametrize("kind", ["strings", "words", "text", "ids", "padded ids"])
def test_every_kind_of_text(kind):
    text = Text.from_lines([line.split() for line in SENTENCES])
    rows = ids(text.vocabulary)
    lengths = torch.tensor([len(row) for row in rows])
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    x, more = {
        "strings": (SENTENCES, {}),
        "words": ([line.split() for line in SENTENCES], {}),
        "text": (text, {}),
        "ids": (rows, {}),
        "padded ids": (padded, {"lengths": lengths}),
    }[kind]
    model = VLHMM(**SMALL).fit(x, seed=0, **more, **QUICK)
    assert model.num_words == len(text.vocabulary) and model.history.progress.step > 0
    if "ids" in kind:
        assert model.vocabulary is None and model.clusters is None and model.reset_id is None
        same = VLHMM(**SMALL).fit(rows, seed=0, **QUICK)
    else:
        assert set(model.vocabulary) == {*" ".join(SENTENCES).split(), "<eos>"}
        same = VLHMM(**SMALL).fit(SENTENCES, seed=0, **QUICK)
    for name, value in model.state_dict().items():
        assert torch.equal(same.state_dict()[name], value), name


def test_held_out_sentences_with_new_words():
    sentences = [*SENTENCES, "the horse sleeps"]
    texts = as_texts(sentences, validation=["the cow barks"])
    assert texts.train.vocabulary.unknown_id is not None and texts.validation.num_unknown == 1
    model = VLHMM(**SMALL).fit(sentences, validation=["the cow barks", "a cat sees"], seed=0, **QUICK)
    assert math.isfinite(model.history.progress.best)


def test_a_model_with_words_keeps_them():
    vocabulary = Vocabulary.build([line.split() for line in SENTENCES])
    model = VLHMM(8, num_words=len(vocabulary), blocks=torch.arange(len(vocabulary)) % 2, hidden_size=8)
    model.vocabulary = vocabulary
    model.fit(SENTENCES, epochs=1, batch_size=4, seed=0)
    assert model.vocabulary is vocabulary and model.clusters is None and model.reset_id is None
    again = {name: value.clone() for name, value in model.state_dict().items()}
    model.fit(SENTENCES, epochs=1, batch_size=4, seed=0)
    assert all(torch.equal(again[name], value) for name, value in model.state_dict().items()), "anew, from the same seed"
    model.fit(SENTENCES, epochs=1, batch_size=4, seed=0, warm_start=True)
    assert not torch.equal(again["word_score.bias"], model.state_dict()["word_score.bias"])
    with pytest.raises(ValueError, match="the model has its words and blocks already"):
        model.fit(SENTENCES, num_blocks=4)
    for option in ({"min_count": 2}, {"reset": False}, {"exchange_passes": 1}):
        with pytest.raises(ValueError, match=f"{next(iter(option))}: the model has its words"):
            model.fit(SENTENCES, **option)
    with pytest.raises(ValueError, match="encoded with other words than the model"):
        model.fit(Text.from_lines([["something", "else"]]))


@pytest.mark.parametrize(
    "options, blocks, sizes",
    [
        (dict(num_blocks=4), 4, [2, 2, 2, 2]),
        (dict(), 8, [1] * 8),
        (dict(blocks="uniform", num_blocks=2), 2, [4, 4]),
        (dict(blocks="none"), 1, [8]),
    ],
)
def test_blocks(options, blocks, sizes):
    model = VLHMM(**SMALL).fit(SENTENCES, epochs=1, batch_size=4, **options)
    assert int(model.block_of_word.max()) + 1 == blocks
    assert model._sizes.tolist() == sizes


def test_frequent_blocks_have_more_states():
    model = VLHMM(num_states=40, hidden_size=8).fit(
        SENTENCES, epochs=1, batch_size=4, num_blocks=4, block_sizes="frequency", seed=0
    )
    assert sum(model.config["states_per_block"]) == 40 and len(set(model.config["states_per_block"])) > 1


# ------------------------------------------------------------------------------------------------ a run
def test_a_run_goes_on_to_the_same_numbers(tmp_path):
    options = dict(seed=3, validation=SENTENCES[:5], **QUICK)
    whole = VLHMM(**SMALL).fit(SENTENCES, folder=tmp_path / "whole", **options)
    VLHMM(**SMALL).fit(SENTENCES, folder=tmp_path / "parts", **(options | dict(epochs=1)))
    assert run_status(tmp_path / "parts")["status"] == "finished" and unfinished(tmp_path / "parts") is None
    with pytest.raises(ValueError, match="already holds a run; resume it"):
        VLHMM(**SMALL).fit(SENTENCES, folder=tmp_path / "parts", **options)
    parts = VLHMM(**SMALL).fit(SENTENCES, folder=tmp_path / "parts", resume=True, **options)
    for name, value in whole.state_dict().items():
        assert torch.equal(parts.state_dict()[name], value), name
    loaded = pplseq.load(tmp_path / "parts")
    assert loaded.vocabulary.words == whole.vocabulary.words and loaded.clusters.num_blocks == 4
    records = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert {record["kind"] for record in records} >= {"validation"}
    with pytest.raises(ValueError, match=r"segment_length: the run in .* \(it was .*, is 7\); resume it with the same"):
        VLHMM(**SMALL).fit(SENTENCES, folder=tmp_path / "parts", resume=True, **(options | dict(segment_length=7)))
    sized = {name: value for name, value in options.items() if name != "num_blocks"}
    with pytest.raises(ValueError, match="segment_length: the run in"):  # a model that was fitted stays as it is
        parts.fit(SENTENCES, folder=tmp_path / "parts", resume=True, **(sized | dict(segment_length=7)))
    assert all(torch.equal(parts.state_dict()[name], value) for name, value in whole.state_dict().items())
    with pytest.raises(ValueError, match="training text of x is no longer the one"):
        VLHMM(**SMALL).fit(SENTENCES[:-5] + SENTENCES[-4:], folder=tmp_path / "parts", resume=True, **options)


@pytest.mark.parametrize(
    "options, of_model, message",
    [
        (dict(block_sizes="frequency"), {}, "it was 'even', is 'frequency'"), (dict(reset=False), {}, "it was True, is False"),
        (dict(num_blocks=8), {}, "it was 4, is 8"), (dict(blocks="uniform"), {}, "it was 'brown', is 'uniform'"),
        (dict(blocks="none"), {}, "is 'none'"), (dict(eos_block=False), {}, "it was True, is False"),
        (dict(exchange_passes=2), {}, "it was 0, is 2"), (dict(seed=3), {}, "it was 0, is 3"),
        (dict(validation=SENTENCES[:3]), {}, "; resume it with the same"),
        ({}, dict(transition="hierarchical"), "it was 'softmax'"), ({}, dict(parameterization="factored"), "is 'factored'"),
        ({}, dict(num_states=16), "it was 8, is 16"), ({}, dict(normalizer_dtype="bfloat16"), "it was 'float32'"),
        ({}, dict(init_scale=0.3), "it was 0.1, is 0.3"), ({}, dict(temperature=2.0), "it was 1.0, is 2.0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("older", [False, True])
def test_a_run_is_resumed_with_the_same_model_and_layout(runs, tmp_path, options, of_model, message, older):
    """Before anything is written. Runs that do not tell their layout are held to what their checkpoint shows of it."""
    folder = shutil.copytree(runs[older], tmp_path / "run")
    (name,) = options or of_model
    if older and name in ("blocks", "eos_block", "exchange_passes", "seed", "validation"):
        if options != dict(blocks="none"):
            return
        name, message = "num_blocks", "it was 4, is 1"
    with pytest.raises(ValueError, match=f"^{name}: the run in .* is of another {name}.*{message}"):
        VLHMM(**SMALL | of_model).fit(SENTENCES, folder=folder, resume=True, **QUICK | options)
    assert contents(folder) == contents(runs[older])


@pytest.mark.parametrize("older", [False, True])
def test_a_run_goes_on_with_other_epochs_and_patience(runs, tmp_path, older):
    longer, whole = QUICK | dict(epochs=3, patience=1), VLHMM(**SMALL)
    folder = shutil.copytree(runs[older], tmp_path / "run")
    found = VLHMM(**SMALL).fit(SENTENCES, folder=folder, resume=True, **longer)
    whole.fit(SENTENCES, seed=0, **longer)
    assert all(torch.equal(found.state_dict()[name], value) for name, value in whole.state_dict().items())


def test_a_run_is_resumed_with_the_blocks_of_its_own(tmp_path):
    """Also by a model that has its words, and where the file of a run's blocks is gone."""
    model = VLHMM(**SMALL).fit(SENTENCES, folder=tmp_path / "run", **QUICK)
    other = VLHMM(**SMALL).fit(SENTENCES, **QUICK | dict(blocks="uniform"), seed=5)
    same = {name: value for name, value in QUICK.items() if name != "num_blocks"}
    with pytest.raises(ValueError, match="blocks: the run in .* is of another blocks; resume it with the same"):
        other.fit(SENTENCES, folder=tmp_path / "run", resume=True, **same)
    model.fit(SENTENCES, folder=tmp_path / "run", resume=True, **same | dict(epochs=3))
    VLHMM(**SMALL).fit(SENTENCES, folder=tmp_path / "run", resume=True, **QUICK | dict(epochs=4))
    paths = (tmp_path / "run" / "clusters.paths").rename(tmp_path / "paths")
    words = dict(line.split("\t")[1::-1] for line in paths.read_text(encoding="utf-8").splitlines())
    words["cat"], words["sees"] = words["sees"], words["cat"]
    lines = [f"{path}\t{word}\t1\n" for word, path in words.items()]
    paths.write_text("".join(lines), encoding="utf-8")
    of_file = dict(blocks=str(paths)) | {name: value for name, value in QUICK.items() if name != "num_blocks"}
    VLHMM(**SMALL).fit(SENTENCES, folder=tmp_path / "file", **of_file)
    words["cat"], words["a"] = words["a"], words["cat"]
    lines = [f"{path}\t{word}\t1\n" for word, path in words.items()]
    paths.write_text("".join(lines), encoding="utf-8")
    VLHMM(**SMALL).fit(SENTENCES, folder=tmp_path / "file", resume=True, **of_file | dict(epochs=3))  # with those it keeps
    (tmp_path / "file" / "clusters.paths").unlink()
    with pytest.raises(ValueError, match="blocks: the run in .* is of another blocks; resume it with the same"):
        VLHMM(**SMALL).fit(SENTENCES, folder=tmp_path / "file", resume=True, **of_file | dict(epochs=4))


def test_the_recipe_comes_to_the_same_numbers(tmp_path, corpus):
    shared = dict(num_blocks=8, seed=0, device="cpu", epochs=1)
    sizes = dict(num_states=16, hidden_size=16, state_dropout=0.5)
    pplseq.train("vlhmm", "builtin:generated", folder=tmp_path / "run", **sizes, **shared)
    model = VLHMM(**sizes).fit(corpus, folder=tmp_path / "fit", **shared)
    for folder in ("run", "fit"):
        for name, value in pplseq.load(tmp_path / folder).state_dict().items():
            assert torch.equal(model.state_dict()[name], value), name


def test_ctrl_c_keeps_what_was_learned():
    model = VLHMM(**SMALL)
    records = []

    def stop(record):
        records.append(record)
        if len(records) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        model.fit(SENTENCES, validation=SENTENCES[:5], seed=0, on_record=stop, **(QUICK | dict(epochs=1000)))
    best = min(record["nats_per_token"] for record in records if record["kind"] == "validation")
    text = Text.from_lines([line.split() for line in SENTENCES[:5]], model.vocabulary)
    assert score_text(model, text, "carried").nats_per_token == pytest.approx(best, rel=1e-5)


def test_a_bar_if_wanted(capsys):
    VLHMM(**SMALL).fit(SENTENCES, validation=SENTENCES[:5], progress=True, **QUICK)
    assert "perplexity" in capsys.readouterr().err
    VLHMM(**SMALL).fit(SENTENCES, **QUICK)
    assert capsys.readouterr().err == ""


# ------------------------------------------------------------------------------------------------ what is wrong
def test_a_model_without_words_says_so(tmp_path):
    model = VLHMM(num_states=8)
    x = torch.zeros(1, 3, dtype=torch.long)
    for use in (
        lambda: model(x),
        lambda: model.posterior(x),
        lambda: model.log_prob(x),
        lambda: model.model(num_steps=3),
        lambda: model.save(tmp_path / "model"),
    ):
        with pytest.raises(RuntimeError, match="VLHMM of 8 states without words: fit it to a text, or make it with num_words"):
            use()
    assert not (tmp_path / "model").exists()
    with pytest.raises(ValueError, match="need num_words; without it, fit finds all of them"):
        VLHMM(num_states=8, blocks=[0, 1])


@pytest.mark.parametrize(
    "x, options, message",
    [
        ("the cat", {}, "x must be a list of sentences, got one string"),
        (3, {}, "x must be a Corpus, a Text, sentences or word ids, got int"),
        ([], {}, "x must hold at least one word, got none"),
        ([[0, -1, 2]], {}, "sequence 0 has a missing word"),
        ([[0.5, 2.0]], {}, "sequence 0 must hold word ids"),
        (np.zeros((4, 1), dtype=int), {}, "one sequence of 4 or 4 sequences of one word"),
        (SENTENCES, {"validation": [[1, 2]]}, "validation must be sentences like x"),
        (SENTENCES, {"num_blocks": 3}, "num_states = 8 is not divisible by num_blocks = 3: the nearest sizes are 6 and 9"),
        (SENTENCES, {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        (SENTENCES, {"num_blocks": 1}, "num_blocks = 1, and <eos> has a block of its own: choose at least 2"),
        (SENTENCES, {"num_blocks": 64}, "num_blocks = 64 is more than the 8 words"),
        (SENTENCES, {"blocks": "brwn"}, "got 'brwn'. Did you mean 'brown'"),
        (SENTENCES, {"epoch": 3}, "fit has no option 'epoch'. Did you mean 'epochs'"),
        (SENTENCES, {"protocol": "carry"}, "protocol must be one of carried, sentence"),
        (SENTENCES, {"resume": True}, "resume: give the folder of the run"),
    ],
)
def test_wrong_data_and_options(x, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        VLHMM(**SMALL).fit(x, **options)


@pytest.mark.parametrize("transition", ["softmax", "hierarchical"])
def test_a_size_that_memory_cannot_hold_is_refused_before_anything_is_allocated(transition):
    model = VLHMM(num_states=10**13, transition=transition)
    with pytest.raises(ValueError, match="states: a training of this size takes about .* GB of memory"):
        model.fit(SENTENCES, num_blocks=8)
    assert model.num_words is None


def test_topics_count_in_what_a_training_takes(monkeypatch):
    """As `pplseq info` counts them: 4000 topics, of which one softmax a word has as many numbers."""
    monkeypatch.setattr("pplseq.runs.cost.memory_of", lambda device: 600_000_000)
    small = dict(num_states=16, transition="hierarchical", hidden_size=8)
    VLHMM(**small).fit(SENTENCES, **(QUICK | dict(epochs=1)))
    with pytest.raises(ValueError, match="a training of this size takes"):
        VLHMM(**small, num_topics=40_000).fit(SENTENCES, **(QUICK | dict(epochs=1)))


def test_batches_by_the_length_of_a_text():
    assert batching(10**6, "carried", None, 32, None) == (64, 0.006)
    assert batching(10**5, "carried", None, 32, None) == (16, 0.003)
    assert batching(10**6, "sentence", None, 32, None)[1] == 0.003
    assert batching(10**6, "carried", 4, 32, 0.02) == (4, 0.02)
