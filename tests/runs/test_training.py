"""The training loop, on a model small enough to run thousands of steps."""

import json
import math
import os
import signal
from dataclasses import asdict
from functools import partial

import pyro
import pytest
import torch
from pyro.infer import Trace_ELBO
from support.small_training import SETTINGS, SmallChain, SmallHMM, load_training, numbers, run, same_weights

from pplseq.data.batches import SentenceBatches, StreamBatches
from pplseq.data.text import Text
from pplseq.folder import FolderError, SaveError
from pplseq.models import VLHMM
from pplseq.runs.metrics_log import read_metrics
from pplseq.runs.settings import NonFiniteLoss, TrainSettings
from pplseq.runs.training import train


@pytest.fixture
def text():
    words = "a b c d e".split()
    lines = [[words[(i * j + i) % 5] for j in range(2 + i % 5)] for i in range(60)]
    return Text.from_lines(lines)


class StopAt:
    """Send a signal when a step is done."""

    def __init__(self, step, number=signal.SIGINT):
        self.step, self.number = step, number

    def __call__(self, progress, num_tokens):
        if progress.step == self.step:
            os.kill(os.getpid(), self.number)


def test_loss_falls_and_everything_is_written(text, tmp_path):
    _, history = run(text, tmp_path)
    losses = [r["nats_per_token"] for r in history.records if r["kind"] == "train"]
    assert losses[-1] < losses[0] - 0.05
    validations = [r for r in history.records if r["kind"] == "validation"]
    assert len(validations) == 6
    assert history.stop_reason == "epochs"
    assert history.progress.best == min(r["nats_per_token"] for r in validations)
    assert numbers(tmp_path / "metrics.jsonl") == [
        {k: v for k, v in r.items() if k not in ("seconds", "tokens_per_second")} for r in history.records
    ]
    assert (tmp_path / "best" / "model.json").exists() and (tmp_path / "last" / "model.json").exists()
    assert not (tmp_path / "best" / "training.json").exists()


def test_the_belief_is_carried(text, tmp_path):
    """One epoch without learning, in one stream: the loss is that of the text as one sequence."""
    model = SmallHMM(len(text.vocabulary), noise=0.0)
    batches = StreamBatches(text, 1, 7, shuffle=None)
    settings = TrainSettings(lr=1e-30, epochs=1, log_interval=len(batches), patience=None, clip=None)
    history = train(model, batches, evaluate=None, settings=settings, folder=tmp_path, elbo=Trace_ELBO())
    x = torch.from_numpy(text.tokens.astype("int64"))[None]
    expected = -model.chain_of(x, None, None).log_prob().item() / text.num_tokens
    assert history.records[-1]["nats_per_token"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_steps_are_those_of_adamw_on_the_nats_per_token(text, tmp_path, clip):
    """Against the update written out: the loss of each batch is divided by its own number of tokens, then clipped."""
    settings = TrainSettings(lr=0.02, weight_decay=0.1, epochs=1, log_interval=1, patience=None, clip=clip)
    batches = SentenceBatches(text, 30, shuffle=True, seed=4)
    assert len({int(batch.lengths.sum()) for batch in batches}) > 3 and len(batches) > 6
    model = SmallHMM(len(text.vocabulary), noise=0.0)
    weights = [parameter.detach().clone().double().requires_grad_() for parameter in model.parameters()]
    first, second = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    history = train(model, batches, evaluate=None, settings=settings, folder=tmp_path, elbo=Trace_ELBO())
    records = [record for record in history.records if record["kind"] == "train"]
    batches.load_state_dict({"epoch": 0, "position": 0})
    for step, (batch, record) in enumerate(zip(batches, records, strict=True), 1):
        num_tokens = int(batch.lengths.sum())
        chain = SmallChain(*(weight.log_softmax(-1) for weight in weights), batch.x, batch.lengths, None)
        nats = -chain.log_prob().sum() / num_tokens
        gradients = torch.autograd.grad(nats, weights)
        norm = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())
        assert record["nats_per_token"] == pytest.approx(nats.item(), rel=1e-4)
        assert record["gradient_norm"] == pytest.approx(norm, rel=1e-3)
        scale = 1.0 if clip is None else min(1.0, clip / norm)
        with torch.no_grad():
            for weight, gradient, m, v in zip(weights, gradients, first, second, strict=True):
                m.lerp_(scale * gradient, 0.1)
                v.lerp_((scale * gradient) ** 2, 0.001)
                weight.mul_(1 - 0.02 * 0.1)
                weight -= 0.02 * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
    for mine, expected in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(mine.double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("stop_at", "kind"), [(1, "streams"), (9, "streams"), (20, "streams"), (4, "sentences"), (15, "sentences")]
)
def test_resumed_equals_uninterrupted_to_the_bit(text, tmp_path, stop_at, kind):
    def batches():
        if kind == "streams":
            return StreamBatches(text, 4, 5, shuffle="line", seed=2)
        return SentenceBatches(text, 40, shuffle=True, seed=2)

    whole, history = run(text, tmp_path / "whole", batches=batches())
    assert history.progress.step > 20
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "parts", batches=batches(), on_step=StopAt(stop_at))
    assert load_training(tmp_path / "parts" / "last")[1]["progress"]["step"] == stop_at
    torch.manual_seed(99)
    parts, resumed = run(text, tmp_path / "parts", batches=batches(), resume=True)
    assert same_weights(whole, parts)
    assert numbers(tmp_path / "whole" / "metrics.jsonl") == numbers(tmp_path / "parts" / "metrics.jsonl")
    assert resumed.progress.best == history.progress.best
    one, two = (load_training(tmp_path / name / "last")[0] for name in ("whole", "parts"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_resume_after_a_crash_repeats_the_lost_steps(text, tmp_path):
    """Killed between two checkpoints: records after the last checkpoint are dropped and written again."""
    whole, _ = run(text, tmp_path / "whole")

    def crash(progress, num_tokens):
        if progress.step == 20:
            raise ZeroDivisionError("stands for kill -9")

    with pytest.raises(ZeroDivisionError):
        run(text, tmp_path / "parts", on_step=crash)
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tra')
    step = load_training(tmp_path / "parts" / "last")[1]["progress"]["step"]
    assert step < 18 <= read_metrics(tmp_path / "parts" / "metrics.jsonl")[-1]["step"]
    parts, _ = run(text, tmp_path / "parts", resume=True)
    assert same_weights(whole, parts)
    assert numbers(tmp_path / "whole" / "metrics.jsonl") == numbers(tmp_path / "parts" / "metrics.jsonl")


def test_signal_during_validation_validates_again_on_resume(text, tmp_path):
    whole, _ = run(text, tmp_path / "whole")

    def interrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("validation went on")

    with pytest.raises(SystemExit) as stop:
        run(text, tmp_path / "parts", evaluate=interrupted)
    assert stop.value.code == 143
    assert load_training(tmp_path / "parts" / "last")[1]["progress"]["validation_due"]
    parts, _ = run(text, tmp_path / "parts", resume=True)
    assert same_weights(whole, parts)
    assert numbers(tmp_path / "whole" / "metrics.jsonl") == numbers(tmp_path / "parts" / "metrics.jsonl")


def test_failed_evaluation_loses_nothing(text, tmp_path):
    whole, _ = run(text, tmp_path / "whole")

    def failing():
        raise ArithmeticError("no perplexity today")

    with pytest.raises(ArithmeticError, match="today"):
        run(text, tmp_path / "parts", evaluate=failing)
    assert load_training(tmp_path / "parts" / "last")[1]["progress"]["step"] > 0
    parts, _ = run(text, tmp_path / "parts", resume=True)
    assert same_weights(whole, parts)


def test_signal_handlers_are_put_back(text, tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        run(text, tmp_path, on_step=StopAt(2, signal.SIGTERM))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_longer_run_from_a_finished_one(text, tmp_path):
    whole, _ = run(text, tmp_path / "whole")
    run(text, tmp_path / "parts", settings=TrainSettings(**{**SETTINGS.__dict__, "epochs": 1}))
    parts, _ = run(text, tmp_path / "parts", resume=True)
    assert same_weights(whole, parts)


def test_max_time_validates_outside_the_schedule_and_goes_on_exactly(text, tmp_path):
    whole, _ = run(text, tmp_path / "whole")
    short = {**SETTINGS.__dict__, "max_time": 1e-9, "schedule": "plateau"}
    _, history = run(text, tmp_path / "parts", settings=TrainSettings(**short))
    assert history.stop_reason == "max_time" and history.progress.step == 1
    assert [r["scheduled"] for r in history.records if r["kind"] == "validation"] == [False]
    parts, _ = run(text, tmp_path / "parts", resume=True)
    assert same_weights(whole, parts)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_loss_names_the_step_and_keeps_the_last_good_checkpoint(text, tmp_path, bad):
    def poison(progress, num_tokens):
        if progress.step == 10:
            with torch.no_grad():
                models[0].emit.mul_(bad)

    models = []
    save = SmallHMM.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SmallHMM, "save", lambda self, folder: (models.append(self), save(self, folder))[1])
        with pytest.raises(NonFiniteLoss, match="at step 11 .epoch 1"):
            run(text, tmp_path, on_step=poison)
    tensors, state = load_training(tmp_path / "last")
    assert 0 < state["progress"]["step"] <= 10
    assert all(torch.isfinite(value).all() for value in tensors.values() if value.is_floating_point())
    assert math.isfinite(sum(map(sum, json.loads((tmp_path / "best" / "model.json").read_text()))))


def test_nan_in_validation_stops(text, tmp_path):
    with pytest.raises(NonFiniteLoss, match="validation gives nan nats per token at step"):
        run(text, tmp_path, evaluate=lambda: {"nats_per_token": math.nan})


def test_full_disk_keeps_the_previous_checkpoint(text, tmp_path):
    class FullDisk:
        calls = 0

        def __call__(self, folder):
            FullDisk.calls += 1
            (folder / "model.json").write_text("part")
            if FullDisk.calls > 2:
                raise OSError(28, "No space left on device")

    with pytest.raises(SaveError, match="the previous one there is whole"):
        run(text, tmp_path, save=FullDisk())
    assert load_training(tmp_path / "last")[1]["progress"]["step"] == 0


def test_plateau_divides_the_learning_rate(text, tmp_path):
    values = iter([1.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    _, history = run(text, tmp_path, evaluate=lambda: {"nats_per_token": next(values)})
    # patience 0: the second validation, the first without a new best, divides by 4, and so does each after it
    rates = [r["lr"] for r in history.records if r["kind"] == "validation"]
    assert rates == pytest.approx([0.05 / 4**k for k in range(6)])
    assert history.progress.best == 1.0


def test_linear_schedule_ends_at_zero_and_resumes_exactly(text, tmp_path):
    settings = TrainSettings(**{**asdict(SETTINGS), "schedule": "linear"})
    whole, history = run(text, tmp_path / "whole", settings=settings)
    rates = [record["lr"] for record in history.records]
    assert rates == sorted(rates, reverse=True) and rates[-1] < settings.lr / 10
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "parts", settings=settings, on_step=StopAt(7))
    parts, _ = run(text, tmp_path / "parts", settings=settings, resume=True)
    assert same_weights(whole, parts)


def test_schedule_by_time_falls_with_the_clock_and_takes_dropout_along(text, monkeypatch):
    ticks = iter(range(1, 10_000))
    monkeypatch.setattr("pplseq.runs.loop._Loop._clock", lambda loop: 0.1 * next(ticks))
    settings = TrainSettings(lr=0.05, epochs=50, max_time=9.0, schedule="time", decay=0.5, final_dropout=0.1, log_interval=1)
    model, dropouts = SmallHMM(len(text.vocabulary)), []
    model.state_dropout = 0.5
    batches = StreamBatches(text, 4, 5, seed=3)
    history = train(
        model, batches, evaluate=None, settings=settings, folder=None,
        on_step=lambda progress, tokens: dropouts.append(model.state_dropout),
    )  # fmt: skip
    rates = [record["lr"] for record in history.records]
    assert history.stop_reason == "max_time" and rates[0] == 0.05 and rates == sorted(rates, reverse=True) and rates[-1] < 0.005
    assert dropouts[0] == 0.5 and dropouts == sorted(dropouts, reverse=True) and 0.1 <= dropouts[-1] < 0.15
    assert TrainSettings(max_time=9.0).chosen_schedule == "time" and TrainSettings().chosen_schedule == "plateau"
    for wrong, message in [(dict(schedule="time"), "max_time"), (dict(final_dropout=0.1), "falls with the learning rate")]:
        with pytest.raises(ValueError, match=message):
            TrainSettings(**wrong)


def test_a_resumed_run_keeps_its_schedule(text, tmp_path):
    """Whatever time it is given: a plateau goes on as one, and what falls towards an end needs one."""
    def rates(folder, **settings):
        given = TrainSettings(**{**asdict(SETTINGS), **settings})
        _, history = run(text, folder, settings=given, resume=folder.exists())
        return [record["lr"] for record in history.records if record["step"] > 0]

    plateau = rates(tmp_path / "plateau", epochs=1, patience=9)
    assert set(rates(tmp_path / "plateau", patience=9, max_time=1e-9)) == set(plateau) == {0.05}
    assert set(rates(tmp_path / "plateau", patience=9, max_time=500.0)) == {0.05}
    assert rates(tmp_path / "time", epochs=1, schedule="linear")[-1] < 0.01
    fell = rates(tmp_path / "fell", epochs=1, max_time=500.0, decay=1.0)
    assert fell[-1] < 0.05
    with pytest.raises(ValueError, match="max_time: the learning rate of this run falls towards its end; give max_time, or"):
        rates(tmp_path / "fell")
    for name in ("fell", "time"):  # a plateau that is asked for starts where the run did, not where the fall ended
        assert rates(tmp_path / name, schedule="plateau", patience=9)[-1] == 0.05


def test_early_stop(text, tmp_path):
    values = iter([3.0, 1.0, 2.0, 2.0])
    settings = TrainSettings(**{**SETTINGS.__dict__, "early_stop": 2})
    _, history = run(text, tmp_path, settings=settings, evaluate=lambda: {"nats_per_token": next(values)})
    assert history.stop_reason == "early_stop"
    assert [r["best"] for r in history.records if r["kind"] == "validation"] == [True, True, False, False]


def test_without_validation_best_is_the_latest(text, tmp_path):
    model, history = run(text, tmp_path, evaluate=None)
    assert json.loads((tmp_path / "best" / "model.json").read_text()) == model.emit.tolist()
    assert all(r["kind"] == "train" for r in history.records)


def test_a_run_is_not_overwritten(text, tmp_path):
    run(text, tmp_path)
    with pytest.raises(ValueError, match="already holds a run"):
        run(text, tmp_path)


def test_resume_with_another_model(text, tmp_path):
    run(text, tmp_path)
    model = SmallHMM(len(text.vocabulary), num_states=4)
    resume = partial(train, model, StreamBatches(text, 4, 5), evaluate=None, settings=SETTINGS, elbo=Trace_ELBO())
    with pytest.raises(FolderError, match="another model: .* has shape"):
        resume(folder=tmp_path, resume=True)


@pytest.mark.parametrize(
    "wrong",
    [{"lr": 0.0}, {"epochs": 0}, {"clip": -1.0}, {"max_time": 0.0}, {"patience": -1}, {"validate_per_epoch": 0}],
)
def test_settings_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TrainSettings(**wrong)


def test_words_that_are_none_are_refused_by_name(text, tmp_path):
    """Pyro's validation is off in the loop, so the loop itself looks at what it trains on."""
    model = VLHMM(4, num_words=len(text.vocabulary), hidden_size=4)

    class Bad(StreamBatches):
        def __iter__(self):
            for batch in super().__iter__():
                yield batch._replace(x=batch.x.masked_fill(batch.x == batch.x[0, 0], -5))

    with pytest.raises(ValueError, match="x must hold ids 0.."):
        train(model, Bad(text, 2, 5, shuffle=None), evaluate=None, settings=TrainSettings(epochs=1), folder=tmp_path)


def test_a_program_of_ones_own_is_run(text):
    """A class that changes the program is trained by its program, not by the shorter way of the class it comes from."""

    class Pulled(VLHMM):
        def model(self, x=None, lengths=None, start=None, **options):
            pyro.factor("pull", -100 * self.start_score.weight.square().sum())
            return super().model(x, lengths, start, **options)

    def trained(kind):
        torch.manual_seed(0)
        model = kind(4, num_words=len(text.vocabulary), hidden_size=4)
        before = float(model.start_score.weight.detach().norm())
        train(model, StreamBatches(text, 2, 8), evaluate=None, settings=TrainSettings(lr=0.05, epochs=2), folder=None)
        return float(model.start_score.weight.detach().norm()) / before

    assert trained(Pulled) < 0.5 < trained(VLHMM)


def test_a_factor_beside_the_chain_counts(text):
    """Where parameters of one's own are drawn or penalised the program is run, with the numbers it would have drawn."""

    class Pulled(VLHMM):
        def specs(self):
            pyro.factor("pull", -100 * self.start_score.weight.square().sum())
            return super().specs()

    class Stepwise(Pulled):
        vectorize = False

    def trained(kind):
        torch.manual_seed(0)
        model = kind(4, num_words=len(text.vocabulary), hidden_size=4, state_dropout=0.5)
        before = float(model.start_score.weight.detach().norm())
        train(model, StreamBatches(text, 2, 8), evaluate=None, settings=TrainSettings(lr=0.05, epochs=2), folder=None)
        return model.start_score.weight.detach().norm() / before

    pulled = trained(Pulled)
    assert float(pulled) < 0.5 < float(trained(VLHMM))
    torch.testing.assert_close(pulled, trained(Stepwise), rtol=1e-3, atol=0)
