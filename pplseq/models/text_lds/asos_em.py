"""EM from lag covariances, on the loop of :mod:`pplseq.runs.loop`: held-out likelihood, reasons to end, an answer to Ctrl-C."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pplseq.models.text_lds.asos import AsosStatistics, asos_likelihood, asos_statistics, check_horizon, maximize
from pplseq.models.text_lds.lag_covariances import DenseLagCovariances, LagCovariances
from pplseq.models.text_lds.steady_state import SteadyState, TextParameters
from pplseq.runs.loop import Step, Training, run_training
from pplseq.runs.settings import NonFiniteLoss, Progress
from pplseq.runs.signals import TimeOver

SLACK = 1e-4, 1e-3  # falls of the gain that truncation explains, nats per token: horizons from 4 on, and shorter ones


class AsosRecord(NamedTuple):
    """An iteration: what is known of the parameters that it began with.

    gain, log_prob: nats per token of the training covariances; see :class:`~pplseq.models.text_lds.asos.Likelihood`.
    held_out: nats per token of held-out text, or what ``evaluate`` returned; None without.
    largest_reduction: max eig of C'C M; D is positive definite while it is below 1. seconds: since the start.
    """

    iteration: int
    gain: float
    log_prob: float
    held_out: float | None
    largest_reduction: float
    seconds: float


@dataclass
class AsosFit:
    """A fit.

    Attributes:
        parameters: the best by held-out value, else the last whose likelihood is known. history: one record for each
            set of parameters, from the start. best_iteration: whose parameters these are.
        smoothed_moment, filtered_moment: second moments (h, h) of smoothed and filtered means under them.
        stop_reason: "iterations", "converged", "patience", "fell" or "interrupted".
        remarks: repairs that were made.
    """

    parameters: TextParameters
    smoothed_moment: np.ndarray
    filtered_moment: np.ndarray
    history: list[AsosRecord] = field(default_factory=list)
    best_iteration: int = 0
    stop_reason: str = "iterations"
    remarks: list[str] = field(default_factory=list)

    @property
    def converged(self) -> bool:
        """Whether the last iteration gained less than the tolerance."""
        return self.stop_reason == "converged"


def fit_asos(
    cov: LagCovariances | DenseLagCovariances,
    initial: TextParameters,
    *,
    max_iterations: int = 50,
    tolerance: float = 1e-5,
    update_state_noise: bool = True,
    evaluate: Callable[[TextParameters], float] | LagCovariances | DenseLagCovariances | None = None,
    patience: int | None = 3,
    horizon: int | None = None,
    radius: float = 0.9999,
    on_iteration: Callable[[AsosRecord], None] | None = None,
) -> AsosFit:
    """EM on covariances; an iteration costs the same however long the text was.

    Args:
        cov: of the training text, or its restriction to a subspace.
        initial: where to start; see :func:`~pplseq.models.text_lds.realisation.realise`.
        max_iterations: M-steps at most; 0 only evaluates the start.
        tolerance: stop when an iteration gains less, nats per token.
        update_state_noise: estimate Q and rebase; False keeps Q as it is, as the paper does.
        evaluate: held-out covariances whitened like the training text's (``from_counts(..., probs_from=cov)``), or a
            function of the parameters, larger is better. The best parameters are kept.
        patience: stop after so many iterations without a better held-out value; None never.
        horizon: largest lag used; None for all. From 7 on EM climbs steadily, at 1 to 4 it may fall slightly.
        radius: largest modulus of A's eigenvalues.
        on_iteration: called with every record.

    Returns:
        The fit. A first SIGINT ends it with what is there; a second one raises KeyboardInterrupt.

    Raises:
        ValueError: options out of range, a start that is not stable or has no positive definite D.
    """
    if max_iterations < 0 or not tolerance >= 0:
        raise ValueError(
            f"max_iterations and tolerance must not be negative, got max_iterations={max_iterations}, tolerance={tolerance}"
        )
    if patience is not None and patience < 1:
        raise ValueError(f"patience: expected at least 1 or None, got {patience}")
    if len(initial.emission) != cov.size:
        raise ValueError(f"initial: emission has {len(initial.emission)} rows; expected {cov.size} as the covariances")
    if initial.emission.dtype != cov.dtype:
        emission = initial.emission.astype(cov.dtype)
        initial = TextParameters(initial.transition, emission, initial.state_noise, initial.reduction)
    training = AsosTraining(
        cov, initial, max_iterations=max_iterations, tolerance=tolerance, update_state_noise=update_state_noise,
        evaluate=evaluate, patience=None if evaluate is None else patience, horizon=check_horizon(horizon, cov), radius=radius,
        on_iteration=on_iteration,
    )  # fmt: skip
    try:
        reason = run_training(training, folder=None).stop_reason
    except KeyboardInterrupt:
        if not training.whole:
            raise
        reason = "interrupted"
    if reason == "max_time":  # it has none itself: that of a run which this is the beginning of
        raise TimeOver
    best = training.best
    assert isinstance(best, Evaluated)
    return AsosFit(best.parameters, *best.moments, training.history, best.iteration, reason, training.all_remarks)


class Evaluated(NamedTuple):
    """Parameters, second moments of the smoothed and filtered means under them, and the iteration that they begin."""

    parameters: TextParameters
    moments: tuple[np.ndarray, np.ndarray]
    iteration: int


class AsosTraining(Training):
    """An iteration of EM a step: its M-step, then what is known of the new parameters.

    Arguments as of :func:`fit_asos`; ``tolerance`` None: a small gain is no reason to end. Without held-out values the last
    parameters are the best, unless the gain fell; ``patience`` then counts iterations without a new best gain.
    """

    says_best = True

    def __init__(
        self, cov, parameters: TextParameters | None, *, max_iterations: int, tolerance: float | None = None,
        update_state_noise: bool = True, evaluate=None, patience: int | None = None, horizon: int | None = None,
        radius: float = 0.9999, on_iteration: Callable[[AsosRecord], None] | None = None,
    ) -> None:  # fmt: skip
        self.cov, self.parameters, self.max_iterations, self.tolerance = cov, parameters, max_iterations, tolerance
        self.update_state_noise, self.held_out, self.patience = update_state_noise, evaluate, patience
        self.horizon, self.radius, self.on_iteration = horizon, radius, on_iteration
        self.slack = SLACK[(horizon or cov.max_lag) < 4]
        self.progress = Progress()
        self.history: list[AsosRecord] = []
        self.gram: np.ndarray | None = None
        self.statistics: AsosStatistics | None = None  # under the parameters
        self.gain: float | None = None  # of the parameters
        self.gain_before: float | None = None  # of those before them
        self.best_gain = -math.inf
        self.remarks: list[str] = []
        self.all_remarks: list[str] = []
        self.now: Evaluated | None = None
        self.best: Any = None
        self.whole = False  # whether it came to an orderly end, be it by a signal

    def first(self, resumed: bool) -> Step:
        step = self.measure()
        return Step() if resumed else step

    @property
    def gained(self) -> float:
        """What the last iteration gained, nats per token; infinite before it."""
        return math.inf if self.gain_before is None or self.gain is None else self.gain - self.gain_before

    def ended(self) -> str:
        p = self.progress
        if self.gained < -self.slack:
            return "fell"
        if self.tolerance is not None and self.gained < self.tolerance:
            return "converged"
        if self.patience is not None and p.step - p.best_step >= self.patience:
            return "patience"
        return "iterations" if p.step >= self.max_iterations else ""

    def step(self) -> Step:
        assert self.parameters is not None and self.statistics is not None
        noise = None if self.update_state_noise else self.parameters.state_noise
        self.parameters, self.gram, self.remarks = maximize(self.statistics, self.cov, state_noise=noise, radius=self.radius)
        self.all_remarks += [remark for remark in self.remarks if remark not in self.all_remarks]
        self.statistics = None  # a block of the vocabulary's size less at the peak
        self.gain_before = self.gain
        self.progress.step += 1
        return self.measure()

    def measure(self) -> Step:
        """What is known of the parameters, and whether they are the best so far."""
        p = self.progress
        assert self.parameters is not None
        try:
            with np.errstate(all="ignore"):
                steady = SteadyState(self.parameters, emission_gram=self.gram)
                self.statistics = asos_statistics(steady, self.cov, horizon=self.horizon)
            if not math.isfinite(self.statistics.likelihood.gain):
                raise ArithmeticError(f"the likelihood is {self.statistics.likelihood.gain}")
            if np.linalg.eigvalsh(self.parameters.reduction)[0] < 0:
                raise ArithmeticError("the states' second moment is not positive definite")
        except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
            if p.step == 0:
                raise ValueError(f"the starting parameters cannot be used: {error}") from error
            raise NonFiniteLoss(
                f"EM failed in iteration {p.step}: {error}; use more pseudo_counts or fewer states"
            ) from error
        likelihood = self.statistics.likelihood
        moments = self.statistics.smoothed_moment, self.statistics.filtered_moment
        self.now = Evaluated(self.parameters, moments, p.step)
        self.gain = value = likelihood.gain
        record: dict[str, Any] = {"kind": "fit", "gain_per_token": self.gain}
        held_out = self._held_out(steady)
        if held_out is not None:
            value = record["held_out_gain_per_token"] = held_out
        record["best"] = value > self.best_gain
        if record["best"]:
            self.best_gain, p.best_step = value, p.step
        # without held-out text the last ones are the best
        if best := record["best"] or (held_out is None and self.gained >= -self.slack):
            self.best = self.now
        if self.remarks:
            record["remarks"] = self.remarks
        self.history.append(AsosRecord(p.step, *likelihood, held_out, steady.largest_reduction, self.clock()))
        if self.on_iteration is not None:
            self.on_iteration(self.history[-1])
        return Step([record], best=best)

    def _held_out(self, steady: SteadyState) -> float | None:
        if self.held_out is None:
            return None
        if callable(self.held_out):
            held_out: Callable[..., Any] = self.held_out
            return float(held_out(steady.parameters))
        horizon = None if self.horizon is None else min(self.horizon, self.held_out.max_lag)
        return asos_likelihood(steady, self.held_out, horizon=horizon).gain

    def finish(self) -> None:
        self.whole = self.best is not None
