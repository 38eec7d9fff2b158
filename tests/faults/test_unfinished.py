"""What is not finished, or not finite, says so: runs, checkpoints, states that learned from the text they are asked about."""

import os

import pytest
import torch
from click.testing import CliRunner
from support.small_runs import write_data
from support.stored import rewrite_tensors

import pplseq
from pplseq.cli import main
from pplseq.files import locked
from pplseq.folder import FolderError, sealed, unsealed
from pplseq.models import IOHMM, PROPSLearner
from pplseq.runs.progress import Watch


def call(*arguments, code=0, text=None):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=text, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def hmm(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    pplseq.train("hmm", data["text.txt"], folder=folder, num_states=3, min_count=1, epochs=2)
    return folder


def status(run, **said):
    path = run / "status.json"
    path.write_text(sealed({**unsealed(path, ""), **said}))


def used(run, data, tmp_path):
    """What every command that uses a run says on stderr."""
    return [
        call("evaluate", run, data["text.txt"]).stderr,
        call("query", run, "score", text="the cat").stderr,
        call("report", run, "--out", tmp_path / "page.html").stderr,
    ]


def test_an_unfinished_run_says_so_wherever_it_is_used(hmm, data, tmp_path):
    before = (hmm / "status.json").read_text()
    assert not any("Note" in told for told in used(hmm, data, tmp_path))
    how = {"stopped": "it was stopped", "failed": "it failed", "running": "it was killed"}
    for said, verb in how.items():
        status(hmm, status=said, reason="signal" if said == "stopped" else "", step=1)
        note = f"Note: {hmm} is not finished: {verb} at step 1; go on with `pplseq train --resume {hmm}`"
        assert [note in told for told in used(hmm, data, tmp_path)] == [True] * 3
    with locked(hmm / ".lock"):
        note = f"Note: {hmm} is still in training at step 1; this is its best checkpoint so far"
        assert [note in told for told in used(hmm, data, tmp_path)] == [True] * 3
    (hmm / "status.json").write_text("{")
    note = f"Note: {hmm}/status.json is damaged, so it is not known whether the training came to its end"
    assert [note in told for told in used(hmm, data, tmp_path)] == [True] * 3
    (hmm / "status.json").unlink()
    note = f"Note: {hmm}/status.json is missing, so it is not known whether the training came to its end"
    assert [note in told for told in used(hmm, data, tmp_path)] == [True] * 3
    assert "status.json is missing" in call("info", hmm).stdout
    (hmm / "status.json").write_text(before)


def test_weights_that_are_not_finite(hmm, tmp_path):
    with torch.no_grad():
        model = IOHMM(2, num_symbols=2, num_outputs=2, initial="transition")
        model.save(tmp_path / "model")
    name = next(name for name, value in model.state_dict().items() if value.is_floating_point())
    learner = PROPSLearner([lambda prefix: [0.25] * 4], 4)
    learner.learn_many([1, 2, 3])
    learner.save(tmp_path / "learner")

    def spoilt(*names):
        return lambda tensors: {key: value * torch.nan if key in names else value for key, value in tensors.items()}

    rewrite_tensors(tmp_path / "model", spoilt(name))
    for read in (IOHMM.load, pplseq.load, model.load_weights):
        with pytest.raises(FolderError, match="not finite"):
            read(tmp_path / "model")
    rewrite_tensors(tmp_path / "learner", spoilt("rho"))
    with pytest.raises(ValueError, match="not finite"):
        PROPSLearner.load(tmp_path / "learner", [lambda prefix: [0.25] * 4])


def test_a_stream_that_was_learned_from_is_no_measure(data, tmp_path):
    source, state = f"ngram:{data['text.txt']}", tmp_path / "state"
    call("personalize", source, "--order", 2, "--stream", data["stream.txt"], "--state", state)
    warning = f"Warning: {state} has learned from this very text"
    copy = tmp_path / "copy.txt"
    copy.write_text(data["stream.txt"].read_text() + "the cat sees\n")
    for text, told in ((data["stream.txt"], True), (copy, True), (data["text.txt"], True)):
        result = call("compare-streams", state, source, "--stream", text, "--order", 2)
        assert (warning in result.stderr) is told, text
    other = tmp_path / "other.txt"
    other.write_text("a dog sees the bird\n")
    assert warning not in call("compare-streams", state, source, "--stream", other, "--order", 2).stderr


def test_a_tagger_without_its_record_ends_its_training(data, tmp_path):
    options = dict(system="unsupervised", set=("num_states=2", "max_iterations=2"))
    summary = pplseq.train("tagger", data["tags.txt"], folder=tmp_path / "run", **options)
    os.remove(tmp_path / "run" / "tagger.json")  # as a process leaves it that is killed before it writes this
    again = pplseq.train("tagger", data["tags.txt"], folder=tmp_path / "run", **options)
    assert {**again, "seconds": 0} == {**summary, "seconds": 0} and (tmp_path / "run" / "tagger.json").is_file()
    (tmp_path / "run" / "tagger.json").write_text((tmp_path / "run" / "tagger.json").read_text().replace("1", "2"))
    with pytest.raises(FolderError, match="tagger.json: damaged"):
        pplseq.train(folder=tmp_path / "run", resume=True)


def test_a_run_of_sizes_that_was_killed_before_its_first_model(data, tmp_path):
    """A kill within a size leaves its folder, one behind it the folder of a size that is finished."""
    options = dict(outputs="y", inputs="u", num_states="1,2", num_restarts=2, max_iterations=3)
    summary = pplseq.train("iohmm", data["rows.csv"], folder=tmp_path / "run", **options)
    before = sorted(path.name for path in (tmp_path / "run").iterdir())

    def again(run):
        status(run, status="running")
        found = pplseq.train("iohmm", data["rows.csv"], folder=run, **options)
        assert sorted(path.name for path in run.iterdir()) == before
        assert {**found, "seconds": 0, "run": ""} == {**summary, "seconds": 0, "run": ""}

    (tmp_path / "run" / "size_1" / "last").mkdir(parents=True)
    again(tmp_path / "run")
    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        pplseq.train("iohmm", data["rows.csv"], folder=cut, watch=Interrupting(), **options)
    assert not (cut / "best").exists() and (cut / "size_1" / "last").exists()
    again(cut)


class Interrupting(Watch):
    """Ctrl-C at the first record."""

    def record(self, record):
        raise KeyboardInterrupt


def test_a_checkpoint_that_is_not_finite_is_not_resumed(data, tmp_path):
    pplseq.train("hmm", data["text.txt"], folder=tmp_path / "run", num_states=3, min_count=1, epochs=1)
    rewrite_tensors(
        tmp_path / "run" / "last",
        lambda tensors: {name: value * torch.nan if name.startswith("weights.") else value for name, value in tensors.items()},
        "training.json",
        "training.safetensors",
    )
    with pytest.raises(FolderError, match="the checkpoint: .* not finite"):
        pplseq.train(folder=tmp_path / "run", resume=True, epochs=2)
