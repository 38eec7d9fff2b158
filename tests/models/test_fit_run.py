"""Fits as runs on disk: the same parameters as in memory, also after an interruption."""

import json
import os
import signal
import warnings

import pytest
import torch

import pplseq
from pplseq.infer.fit import gradients
from pplseq.models import HMM, VLHMM

torch.manual_seed(0)
X = [torch.randint(5, (n,)) for n in (30, 12, 25, 8)]
EM = {"method": "em", "max_iterations": 12, "tolerance": 0.0}
SGD = {"method": "sgd", "num_steps": 45, "batch_size": 2}


def fitted(how, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return HMM(3, 5).fit(X, seed=4, **{**how, **options})


def same(model, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("how", [EM, SGD, {**EM, "num_restarts": 4, "batch_size": 3}], ids=["em", "sgd", "restarts"])
def test_a_folder_changes_nothing(how, tmp_path):
    memory, disk = fitted(how), fitted(how, folder=tmp_path / "run")
    assert same(memory, disk)
    for name in ("log_likelihoods", "losses", "reason", "converged", "method", "num_tokens"):
        assert getattr(memory.history, name) == getattr(disk.history, name), name
    for kept in ("best", "last"):
        loaded = pplseq.load(tmp_path / "run" / kept)
        assert same(loaded, disk) and loaded.is_fitted
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(record["kind"] == "train" for record in records)
    last = disk.history.losses[-1] if disk.history.losses else -disk.history.log_likelihoods[-1] / disk.history.num_tokens
    assert records[-1]["nats_per_token"] == pytest.approx(last)


def test_em_goes_on_where_it_stopped(tmp_path):
    fitted(EM, max_iterations=4, folder=tmp_path / "run")
    resumed = HMM(3, 5).fit(X, **EM, folder=tmp_path / "run", resume=True)
    whole = fitted(EM)
    assert same(resumed, whole) and resumed.history.log_likelihoods == whole.history.log_likelihoods


def test_a_signal_leaves_a_checkpoint(tmp_path, monkeypatch):
    step = gradients.Descent.step

    def interrupted(self):
        if len(self.history.losses) == 17:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(gradients.Descent, "step", interrupted)
        fitted(SGD, folder=tmp_path / "run")
    resumed = HMM(3, 5).fit(X, **SGD, folder=tmp_path / "run", resume=True)
    whole = fitted(SGD)
    assert len(resumed.history.losses) == 45 and resumed.history.losses == whole.history.losses
    assert same(resumed, whole)


def test_a_limit_of_time():
    model = HMM(3, 5).fit(X, method="sgd", num_steps=100_000, max_time=0.3, seed=0)
    assert model.history.reason == "max_time" and 0 < len(model.history.losses) < 100_000


def test_what_is_refused(tmp_path):
    fitted(EM, folder=tmp_path / "run")
    with pytest.raises(ValueError, match="already holds a run"):
        fitted(EM, folder=tmp_path / "run")
    with pytest.raises(ValueError, match="there is no folder to resume from"):
        fitted(EM, resume=True)
    with pytest.raises(ValueError, match="step_size: .* leave step_size out"):
        fitted(EM, step_size=0.7, folder=tmp_path / "other")
    with pytest.raises(ValueError, match="'lbfgs' cannot be interrupted; use em or sgd"):
        HMM(3, 5).fit(X, method="lbfgs", folder=tmp_path / "other")
    with pytest.raises(ValueError, match="of another model"):
        HMM(4, 5).fit(X, folder=tmp_path / "run", resume=True)


def test_another_family_has_a_fit_by_default(tmp_path):
    """Any program is fitted by gradients: it need only be a program."""
    model = VLHMM(5, 6, [0, 0, 1, 1, 2], hidden_size=4).double()
    before = model.score(X)
    super(VLHMM, model).fit(X, num_steps=30, seed=0, folder=tmp_path / "run")
    assert model.score(X) > before + 1 and len(model.history.losses) == 30
