"""EM's statistics of a linear dynamical system from covariances at a few lags, without the text (ASOS)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from pplseq.kernels.kalman import symmetric
from pplseq.kernels.matrix_equations import SteinEquation, clip_eigenvalues
from pplseq.models.text_lds.lag_covariances import DenseLagCovariances, LagCovariances
from pplseq.models.text_lds.steady_state import SteadyState, TextParameters, gram, largest_reduction, on_arrays

MAX_CORRECTIONS = 200  # fixed point of the horizon's closure; a few in practice
LARGEST_REDUCTION = 1 - 1e-6  # of C'C M after an M-step, to keep D positive definite


class Likelihood(NamedTuple):
    """Average log-likelihood of a token in steady state, edges of the text neglected.

    gain: nats per token over independent Gaussian words N(0, Psi_0). log_prob: nats per token, density in whitened
    coordinates on the complement of u.
    """

    gain: float
    log_prob: float


class AsosStatistics(NamedTuple):
    """Second-order statistics per token, expected under the model with the parameters of the E-step.

    state: E[x_t x_t'] (h, h). lag_one: E[x_{t+1} x_t'] (h, h). emission: E[w_t x_t'] (V, h).
    smoothed_moment: E[xs xs'] (h, h) of the smoothed means (whitens embeddings). filtered_moment: the same of filtered
    means. likelihood: of the parameters that the statistics are under.
    """

    state: np.ndarray
    lag_one: np.ndarray
    emission: np.ndarray
    smoothed_moment: np.ndarray
    filtered_moment: np.ndarray
    likelihood: Likelihood


class _SmallStatistics(NamedTuple):
    """What can be said in h x h, from C' Psi_k C alone."""

    closure: np.ndarray  # X = (x, x)_r
    moments: np.ndarray  # (r + 1, h, h): (x, x)_k = E[x_{t+k} x_t'] of filtered means
    likelihood: Likelihood


def _filtered_statistics(steady: SteadyState, grams: np.ndarray, cov) -> _SmallStatistics:
    """Moments of the filtered means up to the horizon r, and the likelihood.

    With (a, b)_k = E[a_{t+k} b_t'], y = w and x the filtered mean: (y, x)_k = (y, x)_{k+1} H' + Psi_k K' downwards,
    (x, y)_k' = (x, y)_{k-1}' H' + Psi_k' K' upwards, both multiplied by C' from the left; at the horizon
    (x, x)_{r+1} = A (x, x)_r closes the system.
    """
    a, h_t = steady.transition, steady.filter_matrix.T
    gain, c_gram = steady.gain_factor, steady.gram
    r = len(grams) - 1
    # without the unknown (y, x)_{r+1} = C A X
    later = np.empty((r + 2, *a.shape))  # C'(y, x)_k
    later[r + 1] = 0.0
    for k in range(r, -1, -1):
        later[k] = later[k + 1] @ h_t + grams[k] @ gain
    earlier = np.empty((r + 1, *a.shape))  # C'(x, y)_k'
    earlier[0] = later[0]
    for k in range(1, r + 1):
        earlier[k] = earlier[k - 1] @ h_t + grams[k].T @ gain
    # X = A X H' + Z_r' K' + H^{2r+1} X' (K C A)'
    constant, carry, back = map(
        torch.from_numpy, (earlier[r].T @ gain, np.linalg.matrix_power(h_t, 2 * r + 1).T, (gain.T @ c_gram @ a).T)
    )
    stein = SteinEquation(torch.from_numpy(a), torch.from_numpy(h_t))
    closure = stein.solve(constant)
    for _ in range(MAX_CORRECTIONS):
        before, closure = closure, stein.solve(constant + carry @ closure.T @ back)
        if float((closure - before).norm()) <= 1e-14 * float(closure.norm()):
            break
    closure = closure.numpy()
    unknown = c_gram @ a @ closure
    for k in range(r + 1, -1, -1):
        later[k] += unknown
        unknown = unknown @ h_t
    for k in range(r + 1):
        earlier[k] += unknown
        unknown = unknown @ h_t
    moments = np.empty((r + 1, *a.shape))
    moments[r] = closure
    for k in range(r - 1, -1, -1):
        moments[k] = moments[k + 1] @ h_t + earlier[k].T @ gain
    # LL = -1/2 [(V-1) log 2 pi + log |S| + tr S^-1 E[e e']], e = w_t - C A x_{t-1}; S^-1 = I - C B C'
    weight = steady.innovation_weight
    cross = later[1] - c_gram @ (weight @ later[1])  # C' S^-1 (y, x)_1
    inner = c_gram - c_gram @ weight @ c_gram
    gain_nats = -0.5 * (
        steady.log_det
        - np.sum(weight * grams[0].T)
        - 2 * np.sum(a * cross)
        + np.sum((inner @ a) * (a @ symmetric(moments[0])))
    )
    iid = -0.5 * (cov.num_dimensions * np.log(2 * np.pi) + cov.trace)
    return _SmallStatistics(closure, moments, Likelihood(float(gain_nats), float(gain_nats + iid)))


def asos_likelihood(
    parameters: TextParameters | SteadyState,
    cov: LagCovariances | DenseLagCovariances,
    *,
    horizon: int | None = None,
    grams: np.ndarray | None = None,
) -> Likelihood:
    """Average log-likelihood of a token from lag covariances: one product with each Psi_k.

        -1/2 [(V-1) log 2 pi + log |S| + tr S^-1 E[e e']],  e_t = w_t - C A x_{t-1}

    Args:
        parameters: or their steady state.
        cov: of training or held-out text; see :meth:`LagCovariances.from_counts`.
        horizon: largest lag r to use; None for all.
        grams: (r + 1, h, h) C' Psi_k C, if known.

    Source:
        Belanger & Kakade (2015), equations 39-44 (there with V for V - 1 and a sign lost); covariances as in Martens (2010).
    """
    steady = parameters if isinstance(parameters, SteadyState) else SteadyState(parameters)
    if grams is None:
        grams = cov.moments(steady.parameters.emission, horizon=check_horizon(horizon, cov)).grams
    return _filtered_statistics(steady, grams, cov).likelihood


def check_horizon(horizon: int | None, cov) -> int:
    """The horizon, at most the lags there are."""
    if horizon is None:
        return cov.max_lag
    if not 1 <= horizon <= cov.max_lag:
        raise ValueError(f"horizon: expected 1..{cov.max_lag}, the lags of the covariances, got {horizon}")
    return horizon


def asos_statistics(
    parameters: TextParameters | SteadyState, cov: LagCovariances | DenseLagCovariances, *, horizon: int | None = None
) -> AsosStatistics:
    """The E-step of EM on a text of which only Psi_0 ... Psi_r are known.

    All recursions are h x h: E[w xs'] is linear in Psi_k C and Psi_k' C with h x h weights that depend on the model
    alone, so one pass over the covariances, holding C and the result, does everything of the vocabulary's size.

    Args:
        parameters: or their steady state.
        cov: covariances up to lag r, words or a restriction to a subspace.
        horizon: r; None for all lags.

    Source:
        J. Martens (2010), Learning the linear dynamical system with ASOS, ICML; Belanger & Kakade (2015), section 3.3.
    """
    steady = parameters if isinstance(parameters, SteadyState) else SteadyState(parameters)
    r = check_horizon(horizon, cov)
    a, h_t, gain = steady.transition, steady.filter_matrix.T, steady.gain_factor
    j, p = steady.smoother, steady.smoother_input
    size = len(a)
    # E[w xs'] = sum_{k<r} Z_k (J^k P)' + Z_r (J^r)' with Z_k = Y_0 H'^k + sum_{i<=k} Psi_i' K' H'^{k-i}
    endings = np.empty((r + 1, size, size))
    power = np.eye(size)
    for k in range(r):
        endings[k] = (power @ p).T
        power = power @ j
    endings[r] = power.T
    for k in range(r - 1, -1, -1):  # endings[k] <- sum_{i>=k} H'^{i-k} E_i
        endings[k] += h_t @ endings[k + 1]
    backward = gain @ endings
    forward = np.empty_like(backward)
    power = endings[0]
    for k in range(r + 1):
        forward[k] = gain @ power
        power = h_t @ power  # in the end H'^{r+1} times the sum
    grams, emission = cov.moments(steady.parameters.emission, forward, backward, horizon=r)
    small = _filtered_statistics(steady, grams, cov)
    emission += steady.parameters.emission @ (a @ small.closure @ power).astype(emission.dtype)  # pyright: ignore[reportOptionalMemberAccess]
    # smoothed against filtered, down from (xs, x)_r = (x, x)_r: future innovations are orthogonal to the past
    cross = small.closure
    for k in range(r - 1, 0, -1):
        cross = j @ cross + p @ small.moments[k]
    cross_one = cross  # (xs, x)_1
    cross_zero = j @ cross_one + p @ small.moments[0]
    constant = j @ cross_one @ p.T + p @ cross_zero.T
    smoothed = symmetric(on_arrays(lambda matrix, right: SteinEquation(matrix, matrix.T).solve(right), j, constant))
    smoothed_one = smoothed @ j.T + cross_one @ p.T
    return AsosStatistics(
        state=symmetric(smoothed + steady.smoothed),
        lag_one=smoothed_one + steady.smoothed_lag_one,
        emission=emission,
        smoothed_moment=smoothed,
        filtered_moment=symmetric(small.moments[0]),
        likelihood=small.likelihood,
    )


def maximize(
    statistics: AsosStatistics,
    cov: LagCovariances | DenseLagCovariances,
    *,
    state_noise: np.ndarray | None = None,
    radius: float = 0.9999,
) -> tuple[TextParameters, np.ndarray, list[str]]:
    """The M-step in closed form.

        A = E[x+ x'] E[xx']^-1,  C = E[wx'] E[xx']^-1,  D = Psi_0 - C E[xx'] C',
        Q = E[xx'] - A E[x x+'] - E[x+ x'] A' + A E[xx'] A'

    Args:
        state_noise: Q to keep, as the paper does; None estimates Q and rebases so that it is I, which changes nothing but
            the coordinates and climbs faster (parameter expansion).
        radius: largest modulus of A's eigenvalues.

    Returns:
        The parameters; C'C (h, h); remarks about repairs, in words.
    """
    remarks = []
    state = statistics.state
    inverse = symmetric(np.linalg.inv(state))
    raw = statistics.lag_one @ inverse
    transition = on_arrays(lambda matrix: clip_eigenvalues(matrix, radius), raw)
    if (transition != raw).any():
        remarks.append(f"eigenvalues of A were clipped to modulus {radius}")
    reduction = state
    coordinates = np.eye(len(state))
    if state_noise is None:
        cross = transition @ statistics.lag_one.T
        noise = symmetric(state - cross - cross.T + transition @ state @ transition.T)
        values, vectors = np.linalg.eigh(noise)
        floor = 1e-10 * max(values[-1], np.trace(state) / len(state))
        if values[0] < floor:
            remarks.append("Q was not positive definite: its eigenvalues were raised")
            noise = symmetric((vectors * values.clip(floor)) @ vectors.T)
        coordinates = np.linalg.cholesky(noise)
        back = np.linalg.inv(coordinates)
        transition, reduction = back @ transition @ coordinates, symmetric(back @ state @ back.T)
        state_noise = np.eye(len(state))
    emission = cov.project(statistics.emission @ (inverse @ coordinates).astype(statistics.emission.dtype))
    emission_gram = gram(emission, emission)
    largest = largest_reduction(emission_gram, reduction)
    if not largest < LARGEST_REDUCTION:
        scale = np.sqrt(LARGEST_REDUCTION / largest)
        remarks.append("D was not positive definite: C was scaled down")
        emission *= emission.dtype.type(scale)
        emission_gram = emission_gram * scale**2
    return TextParameters(transition, emission, state_noise, reduction), emission_gram, remarks
