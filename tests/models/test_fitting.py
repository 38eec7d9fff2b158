"""Fits as runs on disk: the same parameters as in memory, also after an interruption."""

import copy
import json
import math
import os
import signal
import warnings

import numpy as np
import pytest
import torch

import pplseq
from pplseq.infer.fit import gradients
from pplseq.models import HMM, IOHMM, LDS, VLHMM, StructuralModel, fitting
from pplseq.models.batch import split_rows

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


@pytest.mark.parametrize("method", HMM.methods)
def test_every_method_tells_of_itself(method, capsys):
    """The same fit, told of or not, and a bar's lines where there is no terminal."""
    size = "max_iterations" if method == "em" else "num_samples" if method == "nuts" else "num_steps"
    how, records = {"method": method, "seed": 0, size: 21}, []
    if method == "nuts":
        how |= {"num_samples": 5, "warmup_steps": 2}
    alone = HMM(3, 5, priors=True).fit(X, **how)
    assert same(HMM(3, 5, priors=True).fit(X, **how, on_record=records.append, progress=True), alone)
    assert records or method == "nuts"
    assert all(math.isfinite(record["nats_per_token"]) for record in records if record["kind"] == "train")
    assert len(records) == {"em": len(alone.history.log_likelihoods), "sgd": 2}.get(method, len(records))
    assert "Traceback" not in capsys.readouterr().err


def test_em_goes_on_where_it_stopped(tmp_path):
    fitted(EM, max_iterations=4, folder=tmp_path / "run")
    resumed = HMM(3, 5).fit(X, **EM, folder=tmp_path / "run", resume=True)
    whole = fitted(EM)
    assert same(resumed, whole) and resumed.history.log_likelihoods == whole.history.log_likelihoods


def test_a_smaller_tolerance_goes_on(tmp_path):
    coarse = fitted(EM, max_iterations=60, tolerance=1e-2, folder=tmp_path / "run")
    assert coarse.history.converged
    fine = HMM(3, 5).fit(X, method="em", max_iterations=60, tolerance=1e-4, folder=tmp_path / "run", resume=True)
    whole = fitted(EM, max_iterations=60, tolerance=1e-4)
    assert len(whole.history.log_likelihoods) > len(coarse.history.log_likelihoods)
    assert same(fine, whole) and fine.history.log_likelihoods == whole.history.log_likelihoods


IN_ONE_GO = {
    "lbfgs": {"num_steps": 5},
    "svi": {"num_steps": 8},
    "nuts": {"num_samples": 4, "warmup_steps": 2, "max_tree_depth": 2},
}


@pytest.mark.parametrize("method", IN_ONE_GO)
def test_every_method_leaves_its_model_in_a_folder(method, tmp_path, monkeypatch):
    how = {"method": method, **IN_ONE_GO[method]}
    priors = dict.fromkeys(["initial", "transition", "emission"], 2.0)

    def model():
        return HMM(2, 5, priors=priors)

    disk = model().fit(X, seed=4, **how, folder=tmp_path / "run")
    assert same(disk, model().fit(X, seed=4, **how))
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "finished"
    for folder in ("", "best", "last"):
        assert same(pplseq.load(tmp_path / "run" / folder), disk)
    monkeypatch.setattr(fitting, "fit_parameters", lambda *arguments: 1 / 0)  # what is finished is not done again
    again = model().fit(X, **how, folder=tmp_path / "run", resume=True)
    assert same(again, disk) and again.history.reason == disk.history.reason


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
    with pytest.raises(ValueError, match="max_time: a fit by 'lbfgs' cannot be interrupted; use em or sgd"):
        HMM(3, 5).fit(X, method="lbfgs", folder=tmp_path / "other", max_time=1)
    with pytest.raises(ValueError, match="of another model"):
        HMM(4, 5).fit(X, folder=tmp_path / "run", resume=True)


OTHER = [torch.cat([row[:-1], 4 - row[-1:]]) for row in X]
STATES = [torch.full((len(row),), -1) for row in X]
MASK = np.eye(3, dtype=bool)


@pytest.mark.parametrize(
    ("how", "changes"),
    [
        ({"method": "em", "max_iterations": 3}, {
            "x": {}, "fixed": {"fixed": "emission"}, "model": {}, "states": {"states": STATES},
            "acceleration": {"acceleration": 2},
        }),
        ({"method": "lbfgs", "num_steps": 3}, {
            "x": {}, "method": {"method": "sgd"}, "num_steps": {"num_steps": 4}, "fixed": {"fixed": ["initial"]},
        }),
        ({"method": "sgd", "num_steps": 3, "fixed": {"transition": MASK}}, {
            "lr": {"lr": 0.1}, "batch_size": {"batch_size": 1}, "fixed": {"fixed": {"transition": ~MASK}},
        }),
    ],
)  # fmt: skip
def test_a_run_goes_on_with_what_it_began_with(how, changes, tmp_path):
    done = HMM(3, 5).fit(X, seed=0, max_iterations=1).fit(X, seed=0, folder=tmp_path / "run", **how)
    for name, change in changes.items():
        x, model = OTHER if name == "x" else X, HMM(3, 5, priors=True) if name == "model" else HMM(3, 5)
        with pytest.raises(ValueError, match=f"{name}: the run in .* is of another {name}.*; resume it with the same, or fit"):
            model.fit(x, folder=tmp_path / "run", resume=True, **(how | change))
    assert same(HMM(3, 5).fit(X, folder=tmp_path / "run", resume=True, **how), done)


def test_every_model_goes_on_with_its_own_data(tmp_path):
    rows = np.random.default_rng(0).normal(size=(12, 2))
    cases = (
        (LDS(1, 2), rows, {"max_iterations": 2}, "emission_noise"),
        (StructuralModel(), rows[:, :1], {"num_steps": 2}, "noise"),
        (IOHMM(2, num_inputs=0, outputs="gaussian", num_outputs=2), rows, {"max_iterations": 2}, "emission"),
    )  # fmt: skip
    for model, rows, how, part in cases:
        run = {"folder": tmp_path / model.name, **how}
        model.fit(rows, seed=0, **run)
        model.fit(rows, resume=True, **run)
        for x, fixed, name in ((2 * rows, (), "x"), (rows, [part], "fixed")):
            with pytest.raises(ValueError, match=f"{name}: the run in .* is of another {name}.*; resume it with the same"):
                model.fit(x, resume=True, fixed=fixed, **run)


def test_another_family_has_a_fit_by_default(tmp_path):
    """Any program is fitted by gradients: it need only be a program."""
    model = VLHMM(6, num_words=5, blocks=[0, 0, 1, 1, 2], hidden_size=4).double()
    before = model.score(X)
    super(VLHMM, model).fit(X, num_steps=30, seed=0, folder=tmp_path / "run")
    assert model.score(X) > before + 1 and len(model.history.losses) == 30


@pytest.mark.parametrize("device, said", [("cuda", "no CUDA"), ("gpu", "must be auto, cpu"), (3, "must be auto, cpu")])
def test_devices_that_are_not_there(device, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=said):
        HMM(2, 3).fit([[0, 1, 2]], device=device)
    assert HMM(2, 3).fit([[0, 1, 2]], device="auto", max_iterations=1).reference.device.type == "cpu"


@pytest.mark.parametrize("order", [1, -1])
def test_the_better_half_of_several_starts_goes_on(order):
    """Whichever comes first: from equal states EM cannot leave, so the other two starts end above these two."""
    text, model = [torch.tensor([0] * 20 + [1] * 20)] * 3, HMM(2, 2)
    even = [[0.5, 0.5], [0.5, 0.5]]
    begin = [
        lambda stay=stay, emission=emission: model.set_parameters(
            initial=[0.5, 0.5], transition=[[stay, 1 - stay], [1 - stay, stay]], emission=emission
        )
        for stay, emission in ((0.5, even), (0.7, [[0.9, 0.1], [0.1, 0.9]]), (0.6, even), (0.6, [[0.2, 0.8], [0.7, 0.3]]))
    ][::order]
    batches = [model._as_batch(text)]
    for finalists in (1, 2):
        left = fitting.start_anew(model, batches, begin, finalists=finalists)
        assert len(left) == finalists
        for start in left:
            model.load_state_dict(start)
            assert model.score(text) > -15  # of equal states: -120 log 2 = -83


@pytest.mark.parametrize("order", [1, -1])
def test_the_best_of_several_fits_is_kept(order):
    text, model = [torch.tensor([0] * 20 + [1] * 20)] * 3, HMM(2, 2)
    starts = []
    for emission in ([[0.5, 0.5], [0.5, 0.5]], [[0.9, 0.1], [0.1, 0.9]]):  # EM does not leave the first
        model.set_parameters(initial=[0.5, 0.5], transition=[[0.6, 0.4], [0.4, 0.6]], emission=emission)
        starts.append({name: value.clone() for name, value in model.state_dict().items()})
    history = fitting.fit_best(model, [model._as_batch(text)], "em", {"max_iterations": 30}, starts[::order])
    assert model.score(text) == pytest.approx(history.log_likelihoods[-1], rel=1e-3) and model.score(text) > -15


# ---------------------------------------------------------------- batches
SHORT_AND_LONG = [[1]] * 4 + [[0] * 9] * 4  # one word in ten is 1


def test_the_mean_over_batches_is_the_gradient_of_the_whole():
    """However many tokens each of them has; of the prior, too."""
    torch.manual_seed(0)
    model = HMM(2, num_words=3, priors={"emission": 2.0, "transition": 1.5})
    rows = [[0], [1, 2, 1, 0, 0, 2], [2, 2], [1] * 9, [0, 1, 2, 0, 1]]
    found = []
    for size in (None, 1, 2):
        batches = split_rows(model._as_batch(rows), size)
        descent, slopes = gradients.Descent.of_model(copy.deepcopy(model), batches, lr=1e-30), []
        for _ in batches:
            descent.step()
            slopes.append(torch.cat([leaf.grad.flatten() for leaf in descent.points.leaves]))
        found.append(torch.stack(slopes).mean(0))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_batches_of_few_tokens_count_little():
    one = HMM(1, num_words=2).fit(SHORT_AND_LONG, method="em", step_size=0.7, batch_size=3, max_iterations=10, seed=0)
    assert float(one.emission[0, 1]) == pytest.approx(0.1, abs=0.02)
    rows = [[0]] * 6 + [[1]]  # in batches of six and one
    one = HMM(1, num_words=2, priors={"emission": 2.0})
    one.fit(rows, method="svi", guide="delta", batch_size=6, num_steps=150, lr=0.1, seed=0)
    assert float(one.emission[0, 1]) == pytest.approx(2 / 9, abs=0.03)
    x, inputs = [np.array(row) for row in SHORT_AND_LONG], [np.zeros((len(row), 1)) for row in SHORT_AND_LONG]
    scores = [
        IOHMM(1, num_inputs=1, outputs="categorical", num_outputs=2).fit(x, inputs=inputs, **how).score(x, inputs=inputs)
        for how in ({"method": "em", "seed": 0}, {"method": "sgd", "seed": 0, "batch_size": 2, "num_steps": 150, "lr": 0.1})
    ]
    assert scores[1] == pytest.approx(scores[0], abs=0.2)
