"""Expected statistics of an LDS whose matrices, or noises, of single steps are known: step by step and row by row.

Where a covariance V_t is added to a noise N(0, S), the noise that is learned is w_t of e_t = w_t + v_t, of which the error e_t
tells E[w | e] = G e and Cov(w | e) = S - G S with G = S (S + V_t)^-1; a number that is missing is one of infinite V_t. With one
matrix for all steps these are the sums of :mod:`pplseq.models.lds.statistics`.

Source: R. H. Shumway and D. S. Stoffer (2017), Time Series Analysis and Its Applications, 4th ed., sections 6.3 and 6.4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.kernels.kalman import noise_gains, symmetric
from pplseq.models.lds.statistics import Regression, outer_sum


def regression_by_step(
    target: Tensor, spread: Tensor, shared: Tensor, states: Tensor, covariances: Tensor, weights: Tensor, extras: Tensor,
    noise: Tensor, *, seen: Tensor, matrices: Tensor | None, added: Tensor | None,
) -> Regression:  # fmt: skip
    """Sums over steps of y_t = M_t z_t + W extras_t + w_t + v_t, w_t ~ N(0, noise) and v_t ~ N(0, added_t).

    Args:
        target: (B, T, n) E[y], finite. spread: (B, T, n, n) Cov(y). shared: (B, T, n, h) Cov(y, z).
        states, covariances: (B, T, h) and (B, T, h, h) of z. weights: (n, k): M, where it is none of steps, and W.
        extras: (B, T, k - h). noise: (n, n). seen: (B, T, n) bool, which numbers there are.
        matrices: (B, T, n, h) M_t that are known, of which nothing is learned, or None. added: (B, T, n, n) or None.

    Cost: n^3 + n h^2 a step and row.
    """
    size, any_seen = states.shape[-1], seen.any(-1)
    matrix = weights[:, :size].expand(*target.shape, size) if matrices is None else matrices
    regressors = torch.cat([states if matrices is None else torch.zeros_like(states), extras], -1)
    regressors = regressors.where(any_seen.unsqueeze(-1), 0.0)
    mean = (matrix @ states.unsqueeze(-1)).squeeze(-1) + extras @ weights[:, size:].T
    errors = (target - mean).where(seen, 0.0)
    both = seen.unsqueeze(-1) & seen.unsqueeze(-2)
    across = matrix @ shared.mT
    around = symmetric(spread - across - across.mT + matrix @ covariances @ matrix.mT).where(both, 0.0)
    with_states = (shared - matrix @ covariances).where(seen.unsqueeze(-1), 0.0)
    gains, left = noise_gains(noise, seen, added)
    errors = (gains @ errors.unsqueeze(-1)).squeeze(-1)
    moment, cross = outer_sum(regressors, regressors), outer_sum(errors, regressors)
    if matrices is None:
        moment[:size, :size] += covariances[any_seen].sum(0)
        cross[:, :size] += (gains @ with_states)[any_seen].sum(0)
    scatter = outer_sum(errors, errors) + (gains @ around @ gains.mT + left)[any_seen].sum(0)
    return Regression(any_seen.sum().to(target), moment, cross, symmetric(scatter))
