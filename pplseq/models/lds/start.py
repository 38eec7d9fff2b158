"""Where the fit of a linear dynamical system starts: states guessed from the data, and regressions on them.

Source: W. E. Larimore (1990), Canonical variate analysis in identification, filtering, and adaptive control.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq import checks
from pplseq.infer.fit.em import LOST
from pplseq.kernels.kalman import symmetric

STARTS = ("subspace", "pca", "random")
MAX_WINDOWS = 20_000  # no more are needed to see the covariances of past and future
PAST_STEPS = 8  # at most, and as many of the future
RIDGE = 1e-4  # of the past's mean variance
STABLE = 0.99  # the largest spectral radius to start from
PERSISTENCE = 0.9  # of random dynamics


class Guess(NamedTuple):
    """transition (h, k), state_noise (h, h), emission (n, k), emission_noise (n, n), mean (h,) and covariance (h, h) of z_1.

    The weights' columns are those of the regressions in :mod:`pplseq.models.lds.statistics`.
    """

    transition: Tensor
    state_noise: Tensor
    emission: Tensor
    emission_noise: Tensor
    initial_mean: Tensor
    initial_covariance: Tensor


def guess_parameters(
    x: Tensor, observed: Tensor, valid: Tensor, num_states: int, transition_extras: Tensor, emission_extras: Tensor,
    how: str = "subspace",
) -> Guess:  # fmt: skip
    """Parameters from which EM finds a good maximum.

    Args:
        x: (B, T, n), finite. observed: (B, T, n) bool. valid: (B, T) bool.
        num_states: h. transition_extras, emission_extras: (B, T, k - h) further regressors (ones, inputs).
        how: "subspace": states are the best linear predictors of the future from the past (falls back to "pca" where
            sequences are too short). "pca": principal components of x, with its past where h > n. "random".
    """
    checks.choice("initialization", how, STARTS)
    seen = observed & valid.unsqueeze(-1)
    weight = seen.to(x)
    counts = weight.sum((0, 1)).clamp_min(1)
    mean = (x * weight).sum((0, 1)) / counts
    filled = torch.where(seen, x, mean)
    rows = valid.flatten()
    flat, extras = filled.flatten(0, 1)[rows], emission_extras.flatten(0, 1)[rows]
    # what inputs explain is not for states to explain
    centred = flat - mean
    if extras.shape[-1]:
        centred = centred - extras @ _regress(extras, centred).T
    signal = torch.zeros_like(filled)
    signal[valid] = centred.where(seen[valid], 0.0)
    square = flat.square().mean(0)
    spread = centred.square().mean(0).maximum(torch.where(square > 0, LOST * square, 1.0))
    signal = signal / spread.sqrt()  # units of measurement shall not matter
    pairs = None
    if how == "subspace":
        pairs = _canonical_states(signal, valid, num_states)
    if pairs is None and how != "random":
        pairs = _component_states(signal, valid, num_states)
    size = num_states
    identity = torch.eye(size).to(x)
    if pairs is None:
        turn = torch.linalg.qr(torch.randn(size, size, dtype=x.dtype, device=x.device))[0]
        transition = torch.cat([PERSISTENCE * turn, x.new_zeros(size, transition_extras.shape[-1])], 1)
        loadings = torch.randn(x.shape[-1], size).to(x) * (spread / size).sqrt().unsqueeze(-1)
        remaining = flat - mean if extras.shape[-1] == 0 else flat
        emission = torch.cat([loadings, _regress(extras, remaining)], 1)
        noise = torch.diag(spread / 2)
        return Guess(transition, (1 - PERSISTENCE**2) * identity, emission, noise, x.new_zeros(size), identity)
    states, following, now, later = pairs  # (N, h) twice, and the flat steps at which they stand
    regressors = torch.cat([states, transition_extras.flatten(0, 1)[later]], 1)
    transition = _regress(regressors, following)
    transition[:, :size] = stabilized(transition[:, :size])
    state_noise = _covariance(following - regressors @ transition.T) + 1e-3 * identity
    regressors = torch.cat([states, emission_extras.flatten(0, 1)[now]], 1)
    # data far from zero would drown in rounding and the ridge: only what is left of their mean is regressed
    constant = _regress(extras, torch.ones_like(extras[:, :1])) if extras.shape[-1] else extras.new_zeros(1, 0)
    has_offset = extras.shape[-1] > 0 and bool((extras @ constant.T - 1).abs().max() < 1e-6)
    centre = mean if has_offset else torch.zeros_like(mean)
    target = filled.flatten(0, 1)[now] - centre
    emission = _regress(regressors, target)
    emission_noise = _covariance(target - regressors @ emission.T) + torch.diag(1e-2 * spread)
    if has_offset:
        emission[:, size:] += centre.unsqueeze(-1) * constant
    return Guess(
        transition, state_noise, emission, emission_noise, states.mean(0), _covariance(states) + 1e-3 * identity
    )


def stabilized(transition: Tensor, radius: float = STABLE) -> Tensor:
    """The matrix (h, h), divided so that its spectral radius is at most ``radius``."""
    largest = float(torch.linalg.eigvals(transition).abs().max())
    return transition if largest <= radius else transition * (radius / largest)


def _regress(regressors: Tensor, target: Tensor) -> Tensor:
    """(n, k) least squares, with a ridge that only matters where regressors are collinear."""
    if regressors.shape[-1] == 0:
        return target.new_zeros(target.shape[-1], 0)
    gram = regressors.T @ regressors
    own = gram.diagonal()  # in units of each regressor: wide inputs would leave nothing of the states beside them
    ridge = torch.diag(1e-8 * torch.where(own > 0, own, 1.0))
    return torch.linalg.solve(gram + ridge, regressors.T @ target).T


def _covariance(rows: Tensor) -> Tensor:
    return symmetric(rows.T @ rows / max(1, len(rows)))


def _windows(valid: Tensor, width: int) -> Tensor | None:
    """(N,) flat first steps of windows of so many valid steps; None if there are too few."""
    if valid.shape[1] < width:
        return None
    starts = valid.unfold(1, width, 1).all(-1)  # (B, T - width + 1)
    row, step = starts.nonzero(as_tuple=True)
    first = row * valid.shape[1] + step
    if len(first) > MAX_WINDOWS:
        first = first[torch.linspace(0, len(first) - 1, MAX_WINDOWS).long()]
    return first


def _canonical_states(signal: Tensor, valid: Tensor, num_states: int):
    """States as the past's best predictors of the future (with p steps of each)."""
    num_features = signal.shape[-1]
    flat = signal.flatten(0, 1)
    least = math.ceil(num_states / num_features)
    for past in range(max(least + 1, PAST_STEPS), least, -1):
        first = _windows(valid, 2 * past)
        if first is not None and len(first) > 2 * past * num_features + num_states:
            break
    else:
        return None
    steps = torch.arange(past, device=signal.device)
    before = flat[first.unsqueeze(-1) + steps].flatten(1)
    after = flat[first.unsqueeze(-1) + past + steps].flatten(1)
    roots = []
    for block in (before, after):
        covariance = _covariance(block)
        size = float(covariance.diagonal().mean()) or 1.0  # of columns that stand still no window varies
        covariance = covariance + RIDGE * size * torch.eye(len(covariance)).to(covariance)
        roots.append(torch.linalg.cholesky(covariance))
    both = before.T @ after / len(before)
    whitened = torch.linalg.solve_triangular(roots[0], both, upper=False)
    whitened = torch.linalg.solve_triangular(roots[1], whitened.T, upper=False).T
    vectors = torch.linalg.svd(whitened, full_matrices=False)[0][:, :num_states]
    reader = torch.linalg.solve_triangular(roots[0].T, vectors, upper=True)  # (p n, h): whitened states of a past
    now = first + past
    states = before @ reader
    following = flat[first.unsqueeze(-1) + 1 + steps].flatten(1) @ reader
    return states, following, now, now + 1


def _component_states(signal: Tensor, valid: Tensor, num_states: int):
    """States as principal components of x and, where there are more states than features, of the steps before."""
    num_features = signal.shape[-1]
    depth = math.ceil(num_states / num_features)
    first = _windows(valid, depth + 1)
    while depth > 1 and (first is None or len(first) == 0):
        depth -= 1
        first = _windows(valid, depth + 1)
    assert first is not None  # there is a sequence of two steps
    steps = torch.arange(depth, device=signal.device)
    flat = signal.flatten(0, 1)
    block, following = (flat[first.unsqueeze(-1) + shift + steps].flatten(1) for shift in (0, 1))
    values, vectors = torch.linalg.eigh(_covariance(torch.cat([block, following])))
    values, vectors = values.flip(0)[:num_states], vectors.flip(1)[:, :num_states]
    reader = vectors / values.clamp_min(1e-6).sqrt()
    if reader.shape[1] < num_states:  # fewer directions than states: random mixtures for the others
        more = torch.randn(len(reader), num_states - reader.shape[1]).to(reader) / math.sqrt(len(reader))
        reader = torch.cat([reader, more], 1)
    now = first + depth - 1
    return block @ reader, following @ reader, now, now + 1
