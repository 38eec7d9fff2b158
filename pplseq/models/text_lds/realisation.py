"""From (A, C, G) of subspace identification to a model with proper noises, where EM can start."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pplseq import checks
from pplseq.kernels.kalman import symmetric
from pplseq.kernels.matrix_equations import stationary_covariance
from pplseq.models.text_lds.asos import asos_likelihood
from pplseq.models.text_lds.asos_em import AsosFit, fit_asos
from pplseq.models.text_lds.lag_covariances import DenseLagCovariances, LagCovariances
from pplseq.models.text_lds.steady_state import SteadyState, TextParameters, gram, largest_reduction, on_arrays
from pplseq.models.text_lds.subspace import Identification, tall_qr

MARGIN = 0.98  # of the largest eigenvalue of C Sigma_inf C' that a start may have; at 1 D would be singular
SCALES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.98)  # of that eigenvalue, tried by the line search
METHODS = ("paper", "line_search", "consistent", "innovation", "restricted")


class Feasibility(NamedTuple):
    """Whether covariances admit a realisation as they are, and what had to be repaired.

    feasible: nothing had to be. smallest_noise: least eigenvalue of Q before clipping (NaN where Q is not estimated).
    largest_reduction: largest eigenvalue of C'C Sigma before scaling; D is positive definite below 1.
    num_iterations: of the method's own loop. reason: in words.
    """

    feasible: bool
    smallest_noise: float
    largest_reduction: float
    num_iterations: int
    reason: str


class PredictorForm(NamedTuple):
    """An innovation model x_{t+1} = A x_t + K e_t, w_t = C x_t + e_t, Cov(e) = Psi_0 - C P C'.

    gain: K (h, V). state_covariance: P (h, h), Cov(x_t).
    """

    transition: np.ndarray
    emission: np.ndarray
    gain: np.ndarray
    state_covariance: np.ndarray


class Realisation(NamedTuple):
    """A start for EM.

    parameters: None for "innovation", whose noises are correlated; see `predictor` there. scale: largest eigenvalue of
    C Sigma_inf C' that was chosen. fit: of "restricted", the EM in the subspace.
    """

    method: str
    parameters: TextParameters | None
    report: Feasibility
    scale: float = float("nan")
    predictor: PredictorForm | None = None
    fit: AsosFit | None = None


def realise(
    identification: Identification,
    cov: LagCovariances | DenseLagCovariances,
    how: str = "restricted",
    *,
    max_iterations: int = 150,
    horizon: int | None = None,
) -> Realisation:
    """A model with the identified dynamics.

    Args:
        identification: A, C, G.
        cov: the covariances they come from.
        how: "paper": Q = I, D = Psi_0 - C Sigma_inf C', scaled to be positive definite; always feasible, and poor, since
            the scale of C is arbitrary. "line_search": the same, the scale by likelihood. "consistent": noises from G;
            exact where a system with independent noises made the text, seldom feasible on real text ("line_search" takes
            its place then, and the report says so). "innovation": a predictor without Q and D (Faurre); no start for EM.
            "restricted": EM on the covariances of the subspace of C and G', started from "line_search"; the best, and
            what a caller who does not choose gets.
        max_iterations: of "restricted".
        horizon: of likelihoods; None for all lags.

    Raises:
        ValueError: an unknown method, sizes that do not fit.

    Source:
        Belanger & Kakade (2015), sections 3.4 and A.1; P. Van Overschee and B. De Moor (1996), chapter 3, for G's use.
    """
    if how not in METHODS:
        raise ValueError(f"how: expected one of {', '.join(METHODS)}, got {checks.shown(how)}")
    if len(identification.emission) != cov.size:
        raise ValueError(
            f"identification: {len(identification.emission)} words; expected {cov.size} as the covariances"
        )
    if how == "paper":
        return _paper(identification)
    if how == "line_search":
        return _line_search(identification, cov, horizon)
    if how == "consistent":
        return _consistent(identification, cov, horizon)
    if how == "innovation":
        return _innovation(identification)
    return restricted_em(identification, cov, max_iterations=max_iterations, horizon=horizon)


def _unit_noise(identification: Identification) -> tuple[TextParameters, float]:
    """A, C with Q = I and M = Sigma_inf, unscaled; and the largest eigenvalue of C'C Sigma_inf."""
    h = identification.num_states
    stationary = on_arrays(stationary_covariance, identification.transition, np.eye(h))
    parameters = TextParameters(identification.transition, identification.emission, np.eye(h), stationary)
    largest = largest_reduction(gram(identification.emission, identification.emission), stationary)
    return parameters, largest


def _scaled_to(parameters: TextParameters, largest: float, target: float) -> TextParameters:
    return parameters.scaled(np.sqrt(target / largest))


def _paper(identification: Identification) -> Realisation:
    parameters, largest = _unit_noise(identification)
    target = min(largest, MARGIN)
    reason = "as identified" if largest <= MARGIN else f"C scaled down to an eigenvalue of {MARGIN}, from {largest:.3g}"
    report = Feasibility(largest <= MARGIN, float("nan"), largest, 0, reason)
    return Realisation("paper", _scaled_to(parameters, largest, target), report, target)


def _line_search(identification: Identification, cov, horizon) -> Realisation:
    parameters, largest = _unit_noise(identification)
    grams = cov.moments(parameters.emission, horizon=horizon).grams  # the only work of the vocabulary's size
    emission_gram = gram(parameters.emission, parameters.emission)
    gains = []
    for target in SCALES:
        factor = target / largest
        # the matrices of the scaled model from those of the unscaled one, in h x h
        small = TextParameters(
            parameters.transition, np.zeros((1, len(grams[0]))), parameters.state_noise, parameters.reduction
        )
        steady = SteadyState(small, emission_gram=emission_gram * factor)
        gains.append(asos_likelihood(steady, cov, grams=grams * factor).gain)
    target = SCALES[int(np.argmax(gains))]
    report = Feasibility(
        largest <= MARGIN, float("nan"), largest, len(SCALES),
        f"the likeliest of {len(SCALES)} scales, {max(gains):.4g} nats per token over independent words",
    )  # fmt: skip
    return Realisation("line_search", _scaled_to(parameters, largest, target), report, target)


def _consistent(identification: Identification, cov, horizon) -> Realisation:
    """G = A Sigma C' if the noises are independent: Sigma = A^-1 G C (C'C)^-1, Q = Sigma - A Sigma A'."""
    a, emission = identification.transition, identification.emission
    emission_gram = gram(emission, emission)
    state = np.linalg.solve(a, gram(np.asarray(identification.cross).T, emission))
    state = symmetric(np.linalg.solve(emission_gram, state.T).T)
    noise = symmetric(state - a @ state @ a.T)
    values, vectors = np.linalg.eigh(noise)
    largest = largest_reduction(emission_gram, state)
    if not values[0] > 0:
        fallback = _line_search(identification, cov, horizon)
        reason = (
            f"no system with independent noises has these: Q with an eigenvalue of {values[0]:.3g}; line search instead"
        )
        return fallback._replace(report=Feasibility(False, float(values[0]), largest, 0, reason))
    noise = symmetric((vectors * values.clip(1e-8 * values[-1])) @ vectors.T)
    state = on_arrays(stationary_covariance, a, noise)
    largest = largest_reduction(emission_gram, state)
    parameters = TextParameters(a, emission, noise, state)
    target = min(largest, MARGIN)
    if largest > MARGIN:
        parameters = _scaled_to(parameters, largest, target)
    reason = "noises from G" if largest <= MARGIN else f"noises from G; C scaled down to {MARGIN}, from {largest:.3g}"
    report = Feasibility(largest <= MARGIN, float(values[0]), largest, 0, reason)
    return Realisation("consistent", parameters.rebased(), report, target)


def _innovation(identification: Identification, *, max_iterations: int = 1000, tolerance: float = 1e-10) -> Realisation:
    """P = A P A' + (G - A P C')(Psi_0 - C P C')^-1 (G - A P C')' from P = 0, in h x h by C'C, G C and G G'."""
    a, emission = identification.transition, identification.emission
    cross = np.asarray(identification.cross).T  # G' (V, h)
    cc, gc, gg = gram(emission, emission), gram(cross, emission), gram(cross, cross)
    identity = np.eye(len(a))
    state, largest, num_iterations = np.zeros_like(a), 0.0, 0
    reason, feasible = f"not converged in {max_iterations} iterations", False
    while num_iterations < max_iterations:
        num_iterations += 1
        # (Psi_0 - C P C')^-1 = I + C T C'
        inverse = symmetric(np.linalg.solve((identity - cc @ state).T, state).T)
        mixed = gc @ state @ a.T
        square = gg - mixed - mixed.T + a @ state @ cc @ state @ a.T
        against = gc - a @ state @ cc
        following = symmetric(a @ state @ a.T + square + against @ inverse @ against.T)
        change = np.linalg.norm(following - state)
        state = following
        largest = largest_reduction(cc, state) if np.isfinite(state).all() else np.inf
        if not largest < 1.0:
            reason = "the identified covariances are not positive real: no model has them"
            break
        if change <= tolerance * max(np.linalg.norm(state), 1e-300):
            feasible, reason = True, "converged"
            break
    report = Feasibility(feasible, float("nan"), largest, num_iterations, reason)
    if not feasible:
        return Realisation("innovation", None, report)
    inverse = symmetric(np.linalg.solve((identity - cc @ state).T, state).T)
    against = gc - a @ state @ cc
    gain = (
        cross
        - emission @ (a @ state).T.astype(emission.dtype)
        + emission @ (against @ inverse).T.astype(emission.dtype)
    )
    return Realisation("innovation", None, report, largest, PredictorForm(a, emission, gain.T, state))


def restricted_em(
    identification: Identification,
    cov: LagCovariances | DenseLagCovariances,
    *,
    max_iterations: int = 150,
    tolerance: float = 1e-5,
    horizon: int | None = None,
) -> Realisation:
    """EM in the subspace that identification found: S = orth([C, G']), on the m x m covariances of S'w, m = 2 h.

    It maximises the likelihood of S'w exactly, and every step costs h x h only; the model of w has C = S C_S, the rest of
    the words' space being plain noise.

    Args:
        max_iterations, tolerance, horizon: as for :func:`~pplseq.models.text_lds.asos_em.fit_asos`.
    """
    both = np.concatenate([identification.emission, np.asarray(identification.cross).T], axis=1)
    basis, triangle = tall_qr(cov.project(both))
    # columns that C and G' share would be directions of rounding
    left, values, _ = np.linalg.svd(triangle)
    keep = values > values[0] * np.sqrt(np.finfo(cov.dtype).eps)
    basis = cov.project(basis @ left[:, keep].astype(basis.dtype))
    inside = cov.restrict(basis)
    small = Identification(
        identification.transition,
        gram(basis, identification.emission),
        gram(basis, np.asarray(identification.cross).T).T,
        identification.singular_values,
        identification.radius,
    )
    start = _line_search(small, inside, horizon)
    fit = fit_asos(inside, start.parameters, max_iterations=max_iterations, tolerance=tolerance, horizon=horizon)  # pyright: ignore[reportArgumentType]
    found = fit.parameters
    emission = cov.project(basis @ found.emission.astype(cov.dtype))
    parameters = TextParameters(found.transition, emission, found.state_noise, found.reduction)
    largest = fit.history[fit.best_iteration].largest_reduction
    report = start.report._replace(
        num_iterations=len(fit.history) - 1,
        reason=f"EM in {basis.shape[1]} dimensions, {start.report.reason}, then {fit.history[-1].gain:.4g} ({fit.stop_reason})",
    )
    return Realisation("restricted", parameters, report, largest, fit=fit)
