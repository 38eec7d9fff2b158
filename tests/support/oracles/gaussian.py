"""Slow, readable truths about linear-Gaussian chains: one row, observations in full, no information form, no steady state."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class GaussianSequence(NamedTuple):
    """x_1 ~ N(mean, covariance), x_t = A_t x_{t-1} + a_t + q, y_t = C_t x_t + c_t + d, q ~ N(0, Q_t), d ~ N(0, D_t).

    mean: (h,). covariance: (h, h). matrix, noise, offset: T-1 matrices A_t, Q_t and vectors a_t, of the steps into 2..T.
    emission, emission_noise, emission_offset: T matrices C_t (n, h), D_t (n, n) and vectors c_t.
    observations: T vectors (n,), None where missing.
    """

    mean: Tensor
    covariance: Tensor
    matrix: list[Tensor]
    noise: list[Tensor]
    offset: list[Tensor]
    emission: list[Tensor]
    emission_noise: list[Tensor]
    emission_offset: list[Tensor]
    observations: list[Tensor | None]


class GaussianTruth(NamedTuple):
    """Of one row of T steps. log_prob (), token_log_probs (T,); predicted, filtered, smoothed: means (T, h) and covariances
    (T, h, h); lag_one (T-1, h, h) Cov(x_{t+1}, x_t | y)."""

    log_prob: Tensor
    token_log_probs: Tensor
    predicted: tuple[Tensor, Tensor]
    filtered: tuple[Tensor, Tensor]
    smoothed: tuple[Tensor, Tensor]
    lag_one: Tensor


def log_normal(value: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """log N(value; mean, covariance)."""
    rest = value - mean
    quadratic = rest @ torch.linalg.solve(covariance, rest)
    return -(quadratic + torch.linalg.slogdet(covariance)[1] + len(rest) * math.log(2 * math.pi)) / 2


def joint_gaussian(sequence: GaussianSequence) -> tuple[Tensor, Tensor]:
    """Mean (T h,) and covariance (T h, T h) of all states, before any observation."""
    means, blocks = [sequence.mean], [[sequence.covariance]]
    for matrix, noise, offset in zip(sequence.matrix, sequence.noise, sequence.offset, strict=True):
        means.append(matrix @ means[-1] + offset)
        row = [matrix @ block for block in blocks[-1]]
        row.append(matrix @ blocks[-1][-1] @ matrix.T + noise)
        for above, block in zip(blocks, row, strict=False):
            above.append(block.T)
        blocks.append(row)
    return torch.cat(means), torch.cat([torch.cat(row, 1) for row in blocks])


def joint_posterior(sequence: GaussianSequence) -> tuple[Tensor, Tensor, Tensor]:
    """log p(y), and mean (T h,) and covariance (T h, T h) of all states given all observations: one big conditioning."""
    mean, covariance = joint_gaussian(sequence)
    seen = {t: y for t, y in enumerate(sequence.observations) if y is not None}
    if not seen:
        return mean.new_zeros(()), mean, covariance
    h = len(sequence.mean)
    pick = torch.zeros(sum(map(len, seen.values())), len(mean), dtype=mean.dtype)
    emission, start = pick, 0
    for t, observation in seen.items():
        size = len(observation)
        place = torch.zeros(len(pick), size, dtype=mean.dtype)
        place[start : start + size] = torch.eye(size, dtype=mean.dtype)
        spread = torch.zeros(h, len(mean), dtype=mean.dtype)
        spread[:, t * h : (t + 1) * h] = torch.eye(h, dtype=mean.dtype)
        emission = emission + place @ sequence.emission[t] @ spread
        start += size
    noise = torch.block_diag(*(sequence.emission_noise[t] for t in seen))
    value = torch.cat([observation - sequence.emission_offset[t] for t, observation in seen.items()])
    total = emission @ covariance @ emission.T + noise
    gain = torch.linalg.solve(total, emission @ covariance).T
    log_prob = log_normal(value, emission @ mean, total)
    return log_prob, mean + gain @ (value - emission @ mean), covariance - gain @ emission @ covariance


def diffuse_posterior(sequence: GaussianSequence, unknown: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`joint_posterior` where nothing is known of some coordinates of the first state: generalised least squares of y on
    what they add to it. The limit of log p(y | variance k) + log(k) / 2 for each of them, and the states' mean and covariance.
    """
    unit = torch.eye(len(sequence.mean), dtype=sequence.mean.dtype)[unknown]
    of_unit = [sequence._replace(mean=sequence.mean + row) for row in unit]
    log_prob, mean, covariance = joint_posterior(sequence)
    added = torch.stack([joint_posterior(other)[1] - mean for other in of_unit], 1)  # (T h, d)
    # log p(y | d) is quadratic in d
    first = torch.stack([joint_posterior(other)[0] for other in of_unit])
    opposite = torch.stack([joint_posterior(sequence._replace(mean=sequence.mean - row))[0] for row in unit])
    both = [[joint_posterior(sequence._replace(mean=sequence.mean + a + b))[0] for a in unit] for b in unit]
    slope = (first - opposite) / 2
    information = first.unsqueeze(0) + first.unsqueeze(1) - log_prob - torch.stack([torch.stack(row) for row in both])
    spread = torch.linalg.inv(information)
    log_prob = log_prob + slope @ spread @ slope / 2 - torch.linalg.slogdet(information)[1] / 2
    return log_prob, mean + added @ spread @ slope, covariance + added @ spread @ added.T


def kalman_loop(sequence: GaussianSequence) -> GaussianTruth:
    """The textbook: Kalman filter with gains, then the Rauch-Tung-Striebel smoother.

    Source: B. D. O. Anderson and J. B. Moore (1979), Optimal Filtering, chapters 3 and 7.
    """
    mean, covariance = sequence.mean, sequence.covariance
    predicted, filtered, log_probs = [], [], []
    for t, observation in enumerate(sequence.observations):
        if t > 0:
            matrix = sequence.matrix[t - 1]
            mean = matrix @ mean + sequence.offset[t - 1]
            covariance = matrix @ covariance @ matrix.T + sequence.noise[t - 1]
        predicted.append((mean, covariance))
        log_prob = mean.new_zeros(())
        if observation is not None:
            emission = sequence.emission[t]
            expected = emission @ mean + sequence.emission_offset[t]
            total = emission @ covariance @ emission.T + sequence.emission_noise[t]
            log_prob = log_normal(observation, expected, total)
            gain = torch.linalg.solve(total, emission @ covariance).T
            mean, covariance = mean + gain @ (observation - expected), covariance - gain @ emission @ covariance
        filtered.append((mean, covariance))
        log_probs.append(log_prob)
    smoothed, lag_one = [filtered[-1]], []
    for t in range(len(filtered) - 2, -1, -1):
        (mean, covariance), (mean_later, covariance_later) = filtered[t], predicted[t + 1]
        # where the next state is certain in some direction its covariance has only a pseudo-inverse
        inverse = torch.linalg.pinv(covariance_later, hermitian=True, rtol=1e-12)
        gain = covariance @ sequence.matrix[t].T @ inverse
        mean_all, covariance_all = smoothed[0]
        lag_one.insert(0, covariance_all @ gain.T)
        smoothed.insert(
            0, (mean + gain @ (mean_all - mean_later), covariance + gain @ (covariance_all - covariance_later) @ gain.T)
        )
    token_log_probs = torch.stack(log_probs)
    h = len(sequence.mean)

    def moments(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        means, covariances = zip(*pairs, strict=True)
        return torch.stack(means), torch.stack(covariances)

    lag_ones = torch.stack(lag_one) if lag_one else mean.new_zeros(0, h, h)
    total = token_log_probs.sum()
    return GaussianTruth(total, token_log_probs, moments(predicted), moments(filtered), moments(smoothed), lag_ones)
