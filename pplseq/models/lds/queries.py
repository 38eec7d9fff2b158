"""What a fitted linear dynamical system tells of observations: predictions, their signal, forecasts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.infer.gaussian.results import GaussianStates, StateMoments
from pplseq.kernels.kalman import symmetric
from pplseq.models.batch import as_given
from pplseq.models.lds.parameters import Parameters


class Forecast(NamedTuple):
    """What comes after the observations: p(x_{T+k} | x_1..x_T), k = 1..K; without K for the next step alone.

    means: (B, K, n). covariances: (B, K, n, n). state_means: (B, K, h). state_covariances: (B, K, h, h).
    """

    means: Tensor
    covariances: Tensor
    state_means: Tensor
    state_covariances: Tensor


def observed_moments(
    parameters: Parameters, states: GaussianStates, inputs: Tensor | None, x, noise: Tensor | None
) -> StateMoments:
    """Means (B, T, n) and covariances (B, T, n, n) of what states make, in the form in which x came; noise: (n, n) of it."""
    emission, shift = parameters.emission, parameters.shift("emission", inputs)
    means = states.means @ emission.T
    covariances = emission @ states.covariances.dense() @ emission.T
    return StateMoments(
        as_given(means if shift is None else means + shift, x),
        as_given(covariances if noise is None else covariances + noise, x),
    )


def next_states(
    transition: Tensor, noise: Tensor, moves: Tensor | None, last: GaussianBelief, num_steps: int,
    empty: tuple[Tensor | None, GaussianBelief],
) -> GaussianBelief:  # fmt: skip
    """Means (B, K, h) and covariances (B, K, h, h) of the K states behind the last one.

    Args:
        transition, noise: (h, h). moves: (h,) or (B, K, h), added to the state, or None.
        last: mean (B, h), covariance (h, h) or (B, h, h).
        empty: (B,) bool, rows that have no last state (None for none), and what their first one is, (h,) and (h, h).
    """
    none, first = empty
    mean, covariance = last.mean, last.covariance.expand(*last.mean.shape, last.mean.shape[-1])
    means, covariances = [], []
    for step in range(num_steps):
        mean = mean @ transition.T
        if moves is not None:
            mean = mean + (moves if moves.dim() == 1 else moves[:, step])
        covariance = symmetric(transition @ covariance @ transition.T + noise)
        if step == 0 and none is not None:
            none = none.to(mean.device)
            mean = torch.where(none[:, None], first.mean, mean)
            covariance = torch.where(none[:, None, None], first.covariance, covariance)
        means.append(mean)
        covariances.append(covariance)
    return GaussianBelief(torch.stack(means, 1), torch.stack(covariances, 1))


def observed_forecast(parameters: Parameters, states: GaussianBelief, inputs: Tensor | None, noise: Tensor) -> Forecast:
    """Those states and what is observed of them; noise: (n, n)."""
    emission, shift = parameters.emission, parameters.shift("emission", inputs)
    means = states.mean @ emission.T
    covariances = emission @ states.covariance @ emission.T + noise
    return Forecast(means if shift is None else means + shift, covariances, *states)
