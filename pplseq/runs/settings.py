"""What a training run is told, where it stands, and what it returns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pplseq import checks
from pplseq.kernels.precision import MATMUL_PRECISIONS


class NonFiniteLoss(RuntimeError):
    """The loss or its gradient became NaN or infinite."""


@dataclass(frozen=True)
class TrainSettings:
    """How to train; the defaults are the measured recipe for a blocked HMM with tables drawn from N(0, 0.1^2).

    Args:
        lr, weight_decay: AdamW's.
        clip: largest gradient norm (of the loss in nats per token); None does not clip.
        epochs: passes over the batches, at most.
        max_time: seconds of training, validation included, over all resumptions; None has no limit.
        validate_per_epoch: validations per epoch, evenly spaced, the last one at its end.
        patience: the learning rate is multiplied by `factor` after more than this many validations in a row without a
            new best; None keeps it.
        factor: what the learning rate is multiplied by.
        schedule: "plateau" (patience and factor), "linear": the learning rate falls to zero over `epochs`, or "time": it
            stays, and falls linearly over the last `decay` of `max_time`. The last two end better when it is known beforehand
            how long a run may take: None is "time" where `max_time` is given, else "plateau", and of a resumed run what it was.
        decay: share of `max_time` over which the learning rate falls.
        final_dropout: state dropout to which the model's falls together with the learning rate; None keeps the model's.
        matmul_precision: of products of float32 matrices while training on a CPU: "auto" is bfloat16 factors with float32 sums
            where the processor has them, "float32", "bfloat16".
        early_stop: stop after this many validations in a row without a new best; None never does.
        log_interval: steps between two training records.
        checkpoint_interval: seconds after which `last` is saved even if no validation came.
    """

    lr: float = 0.003
    weight_decay: float = 0.0
    clip: float | None = 5.0
    epochs: int = 50
    max_time: float | None = None
    validate_per_epoch: int = 4
    patience: int | None = 4
    factor: float = 0.25
    schedule: str | None = None
    decay: float = 0.6
    final_dropout: float | None = None
    matmul_precision: str = "auto"
    early_stop: int | None = None
    log_interval: int = 20
    checkpoint_interval: float = 600.0

    def __post_init__(self) -> None:
        for name in ("lr", "factor", "epochs", "validate_per_epoch", "log_interval", "checkpoint_interval"):
            checks.positive(name, getattr(self, name))
        for name in ("clip", "max_time", "early_stop"):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name))
        if self.schedule is not None:
            checks.choice("schedule", self.schedule, ("plateau", "linear", "time"))
        checks.choice("matmul_precision", self.matmul_precision, MATMUL_PRECISIONS)
        checks.share("decay", self.decay, "(0, 1]")
        if self.schedule == "time" and self.max_time is None:
            raise ValueError("schedule: by time the learning rate falls towards max_time; give max_time")
        if self.final_dropout is not None:
            checks.share("final_dropout", self.final_dropout, "[0, 1)")
            if self.chosen_schedule == "plateau":
                raise ValueError("final_dropout: dropout falls with the learning rate; choose schedule linear or time")
        if self.patience is not None:
            checks.count("patience", self.patience, least=0)

    @property
    def chosen_schedule(self) -> str:
        """`schedule`, or what None stands for."""
        return self.schedule or ("plateau" if self.max_time is None else "time")


@dataclass
class Progress:
    """Where a run stands.

    Attributes:
        step, epoch, position: steps taken, epochs finished, batches of this epoch. seconds: over all resumptions.
        best, best_step, checks_since_best: of validations, nats per token. validation_due: one was cut short.
        window_*: losses since the last training record.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    seconds: float = 0.0
    best: float = math.inf
    best_step: int = 0
    checks_since_best: int = 0
    validation_due: bool = False
    window_nats: float = 0.0
    window_tokens: int = 0
    window_seconds: float = 0.0


@dataclass
class History:
    """What `train` returns: the records of `metrics.jsonl`, where the run stands, and why it ended."""

    records: list[dict[str, Any]] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)
    stop_reason: str = ""


def perplexity(nats: float) -> float:
    """exp(nats per token), infinite where a float ends."""
    return math.exp(nats) if nats < 700 else math.inf
