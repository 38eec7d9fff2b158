"""EM from lag covariances: the loop, with held-out likelihood, early stop and an answer to Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pplseq.models.text_lds.asos import AsosStatistics, asos_likelihood, asos_statistics, check_horizon, maximize
from pplseq.models.text_lds.lag_covariances import DenseLagCovariances, LagCovariances
from pplseq.models.text_lds.steady_state import SteadyState, TextParameters
from pplseq.runs.signals import Stopped, StopSignals


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
    num_iterations: int = 50,
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
        num_iterations: M-steps at most; 0 only evaluates the start.
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
    if num_iterations < 0 or not tolerance >= 0:
        raise ValueError(
            f"num_iterations and tolerance must not be negative, got num_iterations={num_iterations}, tolerance={tolerance}"
        )
    if patience is not None and patience < 1:
        raise ValueError(f"patience: expected at least 1 or None, got {patience}")
    if len(initial.emission) != cov.size:
        raise ValueError(f"initial: emission has {len(initial.emission)} rows; expected {cov.size} as the covariances")
    if initial.emission.dtype != cov.dtype:
        emission = initial.emission.astype(cov.dtype)
        initial = TextParameters(initial.transition, emission, initial.state_noise, initial.reduction)
    run = _Run(cov, evaluate, check_horizon(horizon, cov), patience, tolerance, on_iteration)
    with StopSignals() as signals:
        run.iterate(initial, num_iterations, update_state_noise, radius, signals)
    return run.fit


class _Run:
    def __init__(self, cov, evaluate, horizon, patience, tolerance, on_iteration) -> None:
        self.cov, self.evaluate, self.horizon = cov, evaluate, horizon
        self.patience, self.tolerance, self.on_iteration = patience, tolerance, on_iteration
        self.fit: AsosFit | None = None
        self.started = time.monotonic()

    def iterate(self, parameters, num_iterations, update_state_noise, radius, signals: StopSignals) -> None:
        steady = SteadyState(parameters)
        try:
            for iteration in range(num_iterations + 1):
                with signals.immediate():  # nothing is changed in place: cutting it short loses this iteration only
                    statistics = asos_statistics(steady, self.cov, horizon=self.horizon)
                    held_out = self.held_out(steady)
                reason = self.note(iteration, steady, statistics, held_out)
                if reason is not None or iteration == num_iterations:
                    self.fit.stop_reason = reason or "iterations"
                    return
                with signals.immediate():
                    noise = None if update_state_noise else steady.state_noise
                    parameters, emission_gram, remarks = maximize(
                        statistics, self.cov, state_noise=noise, radius=radius
                    )
                    del statistics  # a block of the vocabulary's size less at the peak
                    steady = SteadyState(parameters, emission_gram=emission_gram)
                self.fit.remarks += [remark for remark in remarks if remark not in self.fit.remarks]
        except Stopped:
            if self.fit is None:  # stopped before anything was known: the start is all there is
                signals.reraise()
                raise KeyboardInterrupt from None
            self.fit.stop_reason = "interrupted"

    def held_out(self, steady: SteadyState) -> float | None:
        if self.evaluate is None:
            return None
        if callable(self.evaluate):
            return float(self.evaluate(steady.parameters))
        return asos_likelihood(steady, self.evaluate, horizon=min(self.horizon, self.evaluate.max_lag)).gain

    def note(self, iteration: int, steady: SteadyState, statistics: AsosStatistics, held_out) -> str | None:
        """Files a record; a reason to stop, or None."""
        likelihood = statistics.likelihood
        if not np.isfinite(likelihood.gain):
            raise ArithmeticError(
                f"the likelihood is {likelihood.gain} after {iteration} iterations; check the covariances and the start "
                "for extreme values, or use float64"
            )
        record = AsosRecord(iteration, *likelihood, held_out, steady.largest_reduction, time.monotonic() - self.started)
        if self.fit is None:
            self.fit = AsosFit(steady.parameters, statistics.smoothed_moment, statistics.filtered_moment)
        fit = self.fit
        before = fit.history[-1] if fit.history else None
        fit.history.append(record)
        if self.on_iteration is not None:
            self.on_iteration(record)
        gained = np.inf if before is None else record.gain - before.gain
        best = fit.history[fit.best_iteration]
        improved = gained > -self.slack if held_out is None else iteration == 0 or held_out > best.held_out
        if improved:
            fit.parameters, fit.best_iteration = steady.parameters, iteration
            fit.smoothed_moment, fit.filtered_moment = statistics.smoothed_moment, statistics.filtered_moment
        if held_out is not None and self.patience is not None and iteration - fit.best_iteration >= self.patience:
            return "patience"
        if gained < -self.slack:
            return "fell"
        if gained < self.tolerance:
            return "converged"
        return None

    @property
    def slack(self) -> float:
        """A fall that truncation at the horizon explains, nats per token."""
        return 1e-3 if self.horizon < 4 else 1e-4
