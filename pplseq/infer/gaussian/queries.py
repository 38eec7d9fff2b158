"""Questions to a Gaussian chain that look away from its means: posterior draws, forecasts, innovations."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.gaussian_types import LinearEvidence
from pplseq.infer.gaussian.given import Dynamics, by_step, step_offset
from pplseq.infer.gaussian.results import GaussianForecast, Innovations, StepCovariances
from pplseq.kernels import kalman
from pplseq.kernels.kalman import DOUBLE
from pplseq.kernels.matrix_table import MatrixIndex, apply_matrices, recursion


def draw_states(chain, noise: Tensor) -> Tensor:
    """(S, T, R, h) exact posterior draws from standard normal noise (S, T, R, h); without noise the smoothed means.

    Backward from each row's own end: x_t = x_t|t + J (x_{t+1} - x_{t+1|t}) + root_t noise_t, an affine recursion.

    Source: S. Fruehwirth-Schnatter (1994), Data augmentation and dynamic linear models.
    """
    path, means, lengths = chain.path, chain.filtered_means, chain._lengths
    num_samples, num_steps, num_rows, h = noise.shape
    draw = kalman.backward_draw(path.filtered, path.matrix, path.noise)
    gain, root, last_root = (m.to(means.dtype) for m in (draw.gain, draw.root, kalman.square_root(path.filtered)))
    index = path.index if path.index.dim() == 1 else path.index.repeat(1, num_samples)
    size = len(gain)
    base = means.clone()
    base[:-1] -= apply_matrices(gain, MatrixIndex(path.index[:-1], size), chain._step_means(means))
    noise = noise.transpose(0, 1).reshape(num_steps, num_samples * num_rows, h)
    shifts = apply_matrices(root, MatrixIndex(index, size), noise).view(num_steps, num_samples, num_rows, h)
    shifts += base.unsqueeze(1)
    # each row starts at its own end, where only the past is known; behind it everything is zero
    last = (
        torch.full((num_rows,), num_steps - 1, device=means.device) if lengths is None else (lengths - 1).clamp_min(0)
    )
    rows = torch.arange(num_rows, device=means.device)
    nodes = path.index[last] if path.index.dim() == 1 else path.index[last, rows]
    ends = noise.view(shifts.shape)[last, :, rows]  # (R, S, h)
    shifts[last, :, rows] = means[last, rows].unsqueeze(1) + ends @ last_root[nodes].mT
    if lengths is not None:
        behind = torch.arange(num_steps, device=means.device).unsqueeze(1) >= lengths
        shifts.masked_fill_(behind[:, None, :, None], 0.0)
    links = MatrixIndex(index[:-1], size)
    states = recursion(gain, links, shifts.view(num_steps, -1, h), reverse=True, overwrite=True)
    return states.view(num_steps, num_samples, num_rows, h).transpose(0, 1)


def forecast(chain, num_steps: int, dynamics: Dynamics | None, emission) -> GaussianForecast:
    """See :meth:`~pplseq.infer.gaussian.chain.GaussianChain.forecast`."""
    checks.count("num_steps", num_steps)
    given = chain.dynamics if dynamics is None else dynamics
    per_step = given.matrix.dim() > 2 or given.noise.dim() > 2 or (given.offset is not None and given.offset.dim() > 1)
    if per_step and dynamics is None:
        raise ValueError(
            "dynamics change from step to step, and behind the end they are not known; give forecast(num_steps, "
            "dynamics=Dynamics(...)) with matrices (h, h) or (num_steps, h, h)"
        )
    batch, h = chain.batch_shape, chain.num_states
    matrix = by_step(given.matrix, "dynamics.matrix", num_steps, batch, h, count="num_steps")
    noise = by_step(given.noise, "dynamics.noise", num_steps, batch, h, count="num_steps").to(DOUBLE)
    offset = step_offset(given.offset, num_steps, batch, h, count="num_steps")
    mean, covariance = chain._last_belief()
    agree = covariance.dim() == 2
    covariance = covariance.unsqueeze(0) if agree else covariance
    means, covariances = [], []
    for t in range(num_steps):
        step = matrix[min(t, len(matrix) - 1)]  # (1 | R, h, h)
        mean = (step @ mean.unsqueeze(-1)).squeeze(-1)
        if offset is not None:
            mean = mean + (offset if offset.dim() == 1 else offset[t])
        covariance = kalman.predict(covariance, step.to(DOUBLE), noise[min(t, len(noise) - 1)])
        means.append(mean)
        covariances.append(covariance)
    state_means = torch.stack(means, 1).reshape(*batch, num_steps, h)
    state_covariances = torch.stack(covariances).to(mean.dtype)  # (k, 1 | R, h, h)
    shared = state_covariances.shape[1] == 1 and agree
    if emission is None and getattr(chain.emission, "changes", False):
        raise ValueError(
            "emission: observations change from step to step, and behind the end they are not known; give "
            "forecast(num_steps, emission=...) what predicts those, such as LinearEmission(C, FullNoise(D))"
        )
    emission = chain.emission if emission is None else emission
    if emission is None:
        return GaussianForecast(state_means, _batched(state_covariances, shared, batch), None, None)
    # the mean of an observation does not depend on the covariance of its state
    observed = _predicted_means(emission, state_means, state_covariances[0, 0])
    if getattr(emission, "by_row", False):
        rows = state_covariances.expand(-1, len(mean), -1, -1).reshape(num_steps, *batch, h, h)
        spread = torch.stack([emission.predict(mean.new_zeros(h), covariance)[1] for covariance in rows], -3)
        return GaussianForecast(state_means, _batched(state_covariances, shared, batch), observed, spread)
    spread = _predicted_covariances(emission, state_covariances.flatten(0, 1))
    if spread is not None:
        spread = _batched(spread.view(*state_covariances.shape[:2], *spread.shape[1:]), shared, batch)
    return GaussianForecast(state_means, _batched(state_covariances, shared, batch), observed, spread)


def _batched(covariances: Tensor, shared: bool, batch: torch.Size) -> Tensor:
    """(k, 1 | R, n, n) -> (k, n, n) where rows share it, else (*B, k, n, n)."""
    if shared:
        return covariances[:, 0]
    return covariances.transpose(0, 1).reshape(*batch, len(covariances), *covariances.shape[-2:])


def _predicted_means(emission, means: Tensor, covariance: Tensor) -> Tensor:
    """(*B, T, n) of observations from (*B, T, h) of states; emissions, which may differ from step to step, have time first."""
    return emission.predict(means.movedim(-2, 0), covariance)[0].movedim(0, -2)


def _predicted_covariances(emission, covariances: Tensor) -> Tensor | None:
    """(N, n, n) of observations from (N, h, h) of states."""
    zero = covariances.new_zeros(covariances.shape[-1])
    spreads = [emission.predict(zero, covariance)[1] for covariance in covariances]
    return None if spreads[0] is None else torch.stack(spreads)


def innovations(chain, observations: Tensor) -> Innovations:
    """See :meth:`~pplseq.infer.gaussian.chain.GaussianChain.innovations`."""
    if chain.emission is None:
        raise ValueError("emission: innovations need one; build the chain with emission=...")
    evidence = chain.evidence
    of_steps = (evidence.loadings, evidence.noise) if isinstance(evidence, LinearEvidence) else (evidence.matrix,)
    if any(matrix.dim() > 2 for matrix in of_steps):
        raise ValueError(
            "evidence.matrix changes from step to step, so the emission stands for one step only; compare the observations "
            "with C x of predicted_states()"
        )
    states = chain.predicted_states()
    expected = _predicted_means(chain.emission, states.means, states.covariances.table[0])
    if observations.shape != expected.shape:
        raise ValueError(f"observations must be (*B, T, n) = {tuple(expected.shape)}, got {tuple(observations.shape)}")
    values = observations - expected
    used = chain.flat.used
    if used is not None:
        values = torch.where(used.T.reshape(*values.shape[:-1], 1), values, 0.0)
    spread = _predicted_covariances(chain.emission, states.covariances.table)
    if spread is None:
        return Innovations(values, None)
    return Innovations(values, StepCovariances(spread, states.covariances.index, chain.batch_shape, used))


def standard_normal(shape: tuple[int, ...], like: Tensor, seed: int | None) -> Tensor:
    """Draws on the device of a tensor; with a seed the same ones every time."""
    generator = None if seed is None else torch.Generator(like.device).manual_seed(checks.seed("seed", seed))
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
