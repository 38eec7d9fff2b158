"""What a fitted linear dynamical system tells of observations: predictions, their signal, forecasts."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq import checks
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

    def intervals(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper ends (B, K, n) of intervals that hold each number with this probability."""
        checks.share("level", level, "(0, 1)")
        half = self.covariances.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
        half = half * math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
        return self.means - half, self.means + half


class Diagnostics(NamedTuple):
    """What is left to explain in one-step errors, which are independent N(0, 1) where the model is right; of n columns each.

    errors: (B, T, n) standardised, NaN where nothing was observed. ljung_box, jarque_bera, heteroskedasticity: (n, 2) a
    statistic and the probability of a larger one: of autocorrelation, of skewness and kurtosis, of a variance that changes
    (two-sided).
    """

    errors: Tensor
    ljung_box: Tensor
    jarque_bera: Tensor
    heteroskedasticity: Tensor


def diagnose(errors: Tensor, skip: int, lags: int) -> Diagnostics:
    """Tests of standardised errors (B, T, n), of which the first ``skip`` steps of each row are left out.

    Source: J. Durbin and S. J. Koopman (2012), Time series analysis by state space methods, section 2.12.
    """
    tests: dict[str, list[tuple[float, float]]] = {"ljung_box": [], "jarque_bera": [], "heteroskedasticity": []}
    for column in errors[:, skip:].unbind(-1):
        rows = [row[~row.isnan()] for row in column]
        whole = torch.cat(rows)
        count, centred = len(whole), torch.cat([row - whole.mean() for row in rows])
        variance = centred.square().mean()
        parts, total = centred.split([len(row) for row in rows]), 0.0
        for lag in range(1, lags + 1):
            together = sum(((part[lag:] * part[:-lag]).sum() for part in parts), torch.zeros(()).to(whole))
            total += float(together / (count * variance)) ** 2 / (count - lag)
        box = count * (count + 2) * total
        skewness, kurtosis = (float((centred**power).mean() / variance ** (power / 2)) for power in (3, 4))
        bera = count / 6 * (skewness**2 + (kurtosis - 3) ** 2 / 4)
        third = max(2, round(count / 3))
        ratio = float(whole[-third:].square().sum() / whole[:third].square().sum())
        grid = torch.linspace(0, ratio / (1 + ratio), 8001, dtype=torch.float64)
        density = torch.distributions.Beta(*torch.full((2,), third / 2).double(), validate_args=False).log_prob(grid).exp()
        share = float(torch.trapezoid(density, grid))  # of F(third, third) below the ratio
        tests["ljung_box"].append((box, float(torch.special.gammaincc(*torch.tensor([lags / 2, box / 2]).double()))))
        tests["jarque_bera"].append((bera, math.exp(-bera / 2)))
        tests["heteroskedasticity"].append((ratio, 2 * min(share, 1 - share)))
    return Diagnostics(errors, *(torch.tensor(found, dtype=torch.float64) for found in tests.values()))


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
