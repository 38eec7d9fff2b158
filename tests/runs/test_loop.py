"""The loop under all trainings, on one that only counts: what is written when, and what happens when it is cut off."""

import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from pplseq.folder import FolderError, SaveError, sealed, whole_folder
from pplseq.runs.checkpoint import TRAINING, only_one_run
from pplseq.runs.loop import GRACE, Step, Training, run_training
from pplseq.runs.metrics_log import read_metrics
from pplseq.runs.settings import NonFiniteLoss, Progress
from pplseq.runs.status import run_status


class Counting(Training):
    """Adds up random numbers; `values` are what its validations give, `every` how often there is one."""

    def __init__(self, num_steps=6, values=None, every=2, act=None):
        self.progress, self.num_steps, self.every = Progress(), num_steps, every
        self.values = iter(values) if values is not None else None
        self.act = act or (lambda step: None)
        self.total, self.finished = torch.zeros(()), False
        torch.manual_seed(0)

    def first(self, resumed):
        return Step() if resumed else Step([{"kind": "start"}])

    def ended(self):
        return "steps" if self.progress.step >= self.num_steps else ""

    def step(self):
        p = self.progress
        self.total = self.total + torch.rand(())
        p.step += 1
        self.act(p.step)
        return Step([{"kind": "train", "total": float(self.total)}], validate=p.step % self.every == 0)

    def evaluate(self):
        return None if self.values is None else {"nats_per_token": next(self.values)}

    def place(self):
        return {"epoch": 1}

    def state(self):
        return {"total": self.total, "random": torch.get_rng_state()}, {"kind": "counting"}

    def restore(self, tensors, state):
        if state["kind"] != "counting":
            raise ValueError("another")
        self.total = tensors["total"]
        torch.set_rng_state(tensors["random"])

    def save_model(self, folder):
        (folder / "total").write_text(str(float(self.total)))

    def finish(self):
        self.finished = True


class SlowBegin(Counting):
    def begin(self):
        while True:
            time.sleep(0.01)


def run(training, folder, **options):
    return run_training(training, folder=folder, **options)


def records(folder):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in read_metrics(folder / "metrics.jsonl")]


def kill(number, step):
    return lambda now: os.kill(os.getpid(), number) if now == step else None


def test_what_is_written(tmp_path):
    training = Counting(values=[3.0, 1.0, 2.0])
    history = run(training, tmp_path / "run")
    assert history.stop_reason == "steps" and history.progress.best == 1.0 and history.progress.best_step == 4
    assert [record["kind"] for record in history.records] == ["start", *["train", "train", "validation"] * 3]
    assert [record["best"] for record in history.records if record["kind"] == "validation"] == [True, True, False]
    assert [record["step"] for record in history.records] == [0, 1, 2, 2, 3, 4, 4, 5, 6, 6]
    assert all(record["epoch"] == 1 for record in history.records)
    assert history.records == read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["best", "last", "metrics.jsonl", "status.json"]
    fourth = [record["total"] for record in history.records if record["kind"] == "train"][3]
    assert float((tmp_path / "run" / "best" / "total").read_text()) == fourth
    assert float((tmp_path / "run" / "last" / "total").read_text()) == float(training.total)
    assert training.finished and training.records is history.records
    status = run_status(tmp_path / "run")
    assert (status["status"], status["reason"], status["step"], status["pid"]) == ("finished", "steps", 6, os.getpid())


def test_without_a_folder():
    history = run(Counting(values=[3.0, 1.0, 2.0]), None)
    assert len(history.records) == 10 and history.progress.step == 6
    with pytest.raises(ValueError, match="there is no folder to resume from"):
        run(Counting(), None, resume=True)


@pytest.mark.parametrize("number,code", [(signal.SIGINT, None), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("stop_at", [1, 2, 5, 6])
def test_stopped_and_resumed_equals_uninterrupted(tmp_path, number, code, stop_at):
    whole = Counting(values=[3.0, 1.0, 2.0])
    run(whole, tmp_path / "whole")
    training = Counting(values=[3.0, 1.0, 2.0], act=kill(number, stop_at))
    with pytest.raises(KeyboardInterrupt if code is None else SystemExit) as stop:
        run(training, tmp_path / "parts")
    assert code is None or stop.value.code == code
    assert training.finished and run_status(tmp_path / "parts")["status"] == "stopped"
    assert run_status(tmp_path / "parts")["step"] == stop_at
    resumed = Counting(values=[3.0, 1.0, 2.0][(stop_at - 1) // 2 :])  # one that was due is made again
    torch.manual_seed(9)
    history = run(resumed, tmp_path / "parts", resume=True)
    assert torch.equal(resumed.total, whole.total) and history.stop_reason == "steps"
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert run_status(tmp_path / "parts")["status"] == "finished"


def test_nohup_stays_nohup(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(Counting(act=kill(signal.SIGHUP, 2)), tmp_path / "run").stop_reason == "steps"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_does_not_wait(tmp_path):
    def act(step):
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("the step went on")

    with pytest.raises(KeyboardInterrupt):
        run(Counting(act=act), tmp_path / "run")
    assert run_status(tmp_path / "run")["status"] == "stopped"
    assert run(Counting(), tmp_path / "run", resume=True).progress.step == 6


def test_a_validation_whose_record_was_written_but_not_saved_is_made_once(tmp_path):
    """Killed between the line in metrics.jsonl and the checkpoint."""

    def stop(record):
        if record["kind"] == "validation":
            raise ZeroDivisionError

    training = Counting(values=[3.0, 1.0, 2.0])
    training.progress.validation_due = True  # as before the first step
    with pytest.raises(ZeroDivisionError):
        run(training, tmp_path / "run", on_record=stop)
    assert [record["kind"] for record in records(tmp_path / "run")] == ["start", "validation"]
    assert run_status(tmp_path / "run")["status"] == "failed" and "ZeroDivisionError" in run_status(tmp_path / "run")["reason"]
    run(Counting(values=[3.0, 1.0, 2.0, 4.0]), tmp_path / "run", resume=True)
    kinds = [record["kind"] for record in records(tmp_path / "run")]
    assert kinds.count("validation") == 4 and kinds[:2] == ["validation", "train"]


# ---- time
def test_no_time_at_all_takes_one_step_and_validates(tmp_path):
    history = run(Counting(values=[3.0]), tmp_path / "run", max_time=1e-9)
    assert history.stop_reason == "max_time" and history.progress.step == 1
    history = run(Counting(values=[5.0, 1.0, 2.0]), tmp_path / "run", resume=True)
    assert history.progress.step == 6


def test_what_comes_before_the_first_step_is_cut_short(tmp_path):
    began = time.monotonic()
    history = run(SlowBegin(), tmp_path / "run", max_time=0.3)
    assert 0.2 < time.monotonic() - began < 1.3 and history.stop_reason == "max_time"
    assert not whole_folder(tmp_path / "run" / "last").exists() and history.progress.step == 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_time_before_the_loop_counts(tmp_path):
    history = run(Counting(values=[3.0]), tmp_path / "run", max_time=60, began=time.monotonic() - 61)
    assert history.stop_reason == "max_time" and history.progress.step == 1 and history.progress.seconds > 61


def test_time_is_set_aside_for_the_last_validation(tmp_path):
    class Slow(Counting):
        def evaluate(self):
            time.sleep(0.4)
            return {"nats_per_token": 1.0}

        def step(self):
            time.sleep(0.02)
            return super().step()

    began = time.monotonic()
    history = run(Slow(num_steps=10**6, every=5), None, max_time=1.5)
    assert history.stop_reason == "max_time" and time.monotonic() - began < 1.5 + 0.2
    assert history.records[-1]["kind"] == "validation"


def test_a_validation_that_takes_too_long_is_cut_short(tmp_path):
    class Slow(Counting):
        def evaluate(self):
            time.sleep(20)

    began = time.monotonic()
    history = run(Slow(num_steps=10**6, every=10**6, act=lambda step: time.sleep(0.02)), tmp_path / "run", max_time=1.0)
    assert history.stop_reason == "max_time" and time.monotonic() - began < 1.0 + GRACE + 0.5
    assert history.progress.step > 10 and (tmp_path / "run" / "best").is_dir() and math.isinf(history.progress.best)


def test_the_first_validation_comes_early_enough_and_steps_go_on_behind_it(tmp_path):
    nap = lambda step: time.sleep(0.02)  # noqa: E731
    history = run(Counting(values=[3.0] * 9, num_steps=10**6, every=10**6, act=nap), tmp_path / "run", max_time=1.0)
    found = [record["step"] for record in history.records if record["kind"] == "validation"]
    assert len(found) == 2 and found[0] < found[1] == history.progress.step and history.stop_reason == "max_time"
    assert history.progress.seconds < 1.3


def test_time_counts_over_resumptions(tmp_path):
    def nap(step):
        time.sleep(0.05)

    first = run(Counting(num_steps=4, act=nap), tmp_path / "run", max_time=60)
    assert first.progress.seconds >= 0.2
    second = run(Counting(num_steps=10**6, act=nap), tmp_path / "run", resume=True, max_time=first.progress.seconds + 0.2)
    assert 4 < second.progress.step <= 9 and second.stop_reason == "max_time"


def test_early_stop():
    history = run(Counting(num_steps=99, values=[3.0, 1.0, 2.0, 2.0, 2.0]), None, early_stop=2)
    assert history.stop_reason == "early_stop" and history.progress.step == 8


def test_checkpoints_come_by_the_clock(tmp_path):
    seen = []

    def act(step):
        seen.append(TRAINING.read(tmp_path / "run" / "last").header["state"]["progress"]["step"])

    run(Counting(num_steps=4, every=99, act=act), tmp_path / "run", checkpoint_interval=0.0)
    assert seen == [0, 1, 2, 3]


# ---- what goes wrong
def test_nan_in_validation(tmp_path):
    with pytest.raises(NonFiniteLoss, match="validation gives nan nats per token at step 4; the checkpoints in .*run are from"):
        run(Counting(values=[2.0, math.nan]), tmp_path / "run")
    assert TRAINING.read(tmp_path / "run" / "last").header["state"]["progress"]["step"] == 2
    assert run_status(tmp_path / "run")["status"] == "failed"


def test_a_full_disk(tmp_path):
    class Full(Counting):
        def save_model(self, folder):
            if self.progress.step:
                raise OSError(28, "No space left on device")
            super().save_model(folder)

    with pytest.raises(SaveError, match="No space left"):
        run(Full(), tmp_path / "run")
    assert TRAINING.read(tmp_path / "run" / "last").header["state"]["progress"]["step"] == 0


def test_the_best_is_kept_when_a_later_step_fails(tmp_path):
    """A training that keeps its best to itself: it is on the disk after an error, though no checkpoint was due."""

    class Keeping(Counting):
        def step(self):
            super().step()
            if self.progress.step == 3:
                raise NonFiniteLoss("step 3")
            self.kept = float(self.total)
            return Step(best=True)

        def save_best(self, folder):
            (folder / "total").write_text(str(self.kept))

    training = Keeping()
    with pytest.raises(NonFiniteLoss):
        run(training, tmp_path / "run")
    assert float((tmp_path / "run" / "best" / "total").read_text()) == training.kept > 0


def test_a_run_is_not_overwritten_nor_resumed_by_another(tmp_path):
    run(Counting(), tmp_path / "run")
    with pytest.raises(ValueError, match="already holds a run; resume it, or choose another folder"):
        run(Counting(), tmp_path / "run")
    os.rename(tmp_path / "run" / "last", tmp_path / "run" / ".last.old")  # cut off between two renames
    with pytest.raises(ValueError, match="already holds a run"):
        run(Counting(), tmp_path / "run")
    path = tmp_path / "run" / ".last.old" / "training.json"
    path.write_text(path.read_text().replace("counting", "sleeping"))
    with pytest.raises(FolderError, match="training.json: damaged"):
        run(Counting(), tmp_path / "run", resume=True)
    with pytest.raises(FileNotFoundError, match="no training checkpoint at .*last"):
        run(Counting(), tmp_path / "other", resume=True)


OTHER = """
import sys, time
sys.path.insert(0, {here!r})
from test_loop import Counting, run
from pathlib import Path
run(Counting(num_steps=10**9, act=lambda step: (print("step", flush=True), time.sleep(0.05))), Path({folder!r}))
"""


def test_a_second_process_is_kept_out_and_a_dead_one_recognised(tmp_path):
    folder = tmp_path / "run"
    code = OTHER.format(here=os.path.dirname(__file__), folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "step\n"
    assert (run_status(folder)["status"], run_status(folder)["pid"]) == ("running", process.pid)
    with pytest.raises(ValueError, match=f"another process is training there .process {process.pid}."):
        run(Counting(), folder, resume=True)
    process.kill()
    process.wait()
    process.stdout.close()
    assert run_status(folder)["status"] == "died" and (folder / ".lock").exists()
    assert run(Counting(num_steps=6), folder, resume=True).stop_reason == "steps"
    assert not (folder / ".lock").exists()


def test_a_command_may_hold_the_folder_around_the_loop(tmp_path):
    with only_one_run(tmp_path / "run"):
        assert run(Counting(), tmp_path / "run").stop_reason == "steps"
        caught = []

        def other():
            try:
                run(Counting(), tmp_path / "run", resume=True)
            except ValueError as error:
                caught.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert "another process is training there" in caught[0]


def test_status_of_what_is_no_run(tmp_path):
    assert run_status(tmp_path) == {"status": "absent"}
    (tmp_path / "status.json").write_text("{")
    assert run_status(tmp_path) == {"status": "damaged"}
    (tmp_path / "status.json").write_text(sealed({"status": "running", "host": "elsewhere"}))
    assert run_status(tmp_path)["status"] == "running"  # another machine's processes are not seen from here
