"""What a fitted linear dynamical system tells of observations: predictions, their signal, forecasts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.infer.gaussian.results import GaussianStates, StateMoments
from pplseq.kernels.matrix_equations import symmetric
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


def forecast(
    parameters: Parameters, first: GaussianBelief, inputs: Tensor | None, num_steps: int, noise: Tensor
) -> Forecast:
    """The K steps from one on whose state is N(mean (B, h), covariance (B, h, h)).

    Args:
        inputs: (B, K, U). noise: (n, n) of observations.
    """
    transition, emission = parameters.transition, parameters.emission
    moves, seen = parameters.shift("transition", inputs), parameters.shift("emission", inputs)
    means, covariances = [first.mean], [first.covariance]
    for step in range(1, num_steps):
        mean = means[-1] @ transition.T
        if moves is not None:
            mean = mean + (moves if moves.dim() == 1 else moves[:, step])
        means.append(mean)
        covariances.append(symmetric(transition @ covariances[-1] @ transition.T + parameters.state_noise))
    states, spread = torch.stack(means, 1), torch.stack(covariances, 1)
    observed = states @ emission.T
    observed = observed if seen is None else observed + seen
    return Forecast(observed, emission @ spread @ emission.T + noise, states, spread)
