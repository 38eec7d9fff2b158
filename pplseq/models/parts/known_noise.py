"""Gaussian emissions to whose covariance a known one is added at every step: measurement errors of known size.

    x_t | z_t ~ N(loc[z_t], covariance[z_t] + V_t)

is x_t = y_t + v_t with y_t | z_t ~ N(loc, covariance) and v_t ~ N(0, V_t), so that EM stays in closed form: y_t takes the place
of x_t, with E[y_t | x_t, z_t] = loc + G (x_t - loc), Cov(y_t | x_t, z_t) = S - G S and G = S (S + V_t)^-1.

Source: J. Bovy, D. W. Hogg and S. T. Roweis (2011), Extreme deconvolution, Annals of Applied Statistics 5(2B), section 2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pplseq.distributions.columns import SharedEmission
from pplseq.distributions.conditional import ConditionalEmission
from pplseq.distributions.dense import GaussianEmission
from pplseq.distributions.state import Emission
from pplseq.infer.fit.em import Statistics
from pplseq.kernels.kalman import noise_gains

CELLS = 1 << 20  # numbers in one temporary


def with_noise(emission: Emission) -> ConditionalEmission:
    """The emission given covariances (*B, D, D) that are added to those of its states.

    Raises:
        ValueError: for one that is not Gaussian.
    """
    rows = emission.rows if isinstance(emission, SharedEmission) else None
    base = emission.base if isinstance(emission, SharedEmission) else emission
    if not isinstance(base, GaussianEmission):
        raise ValueError(
            "emission_noises: known covariances are added to those of Gaussians, and this model has other emissions; make it "
            "with num_features and without emission"
        )
    loc = base.loc
    scale: Any = base.scale  # one of both is there
    covariances = torch.diag_embed(scale.square()) if base.scale_tril is None else base.scale_tril @ base.scale_tril.mT
    if rows is not None:
        loc, covariances = loc[..., rows, :], covariances[..., rows, :, :]

    def build(noises: Tensor) -> GaussianEmission:
        return GaussianEmission(loc, scale_tril=torch.linalg.cholesky(covariances + noises.unsqueeze(-3)))

    return ConditionalEmission(
        build, emission.num_states, event_shape=base.event_shape, input_dims=2, batch_shape=tuple(base.batch_shape)
    )


def noisy_moments(obs: Tensor, weight: Tensor, loc: Tensor, covariances: Tensor, noises: Tensor) -> Statistics:
    """Expected weight (Z,), first (Z, D) and second moments (Z, D, D) of what vectors (N, D) are without their noise.

    Args:
        obs: NaN where missing. weight: (N, Z). loc: (Z, D). covariances: (Z, D, D). noises: (N, D, D), known.

    Cost: D^3 a vector and state.
    """
    seen = ~obs.isnan()
    values, first, second = obs.masked_fill(~seen, 0.0), torch.zeros_like(loc), torch.zeros_like(covariances)
    rows = max(1, CELLS // obs.shape[-1] ** 2)
    for state, (mean, covariance) in enumerate(zip(loc, covariances, strict=True)):
        for part, share, there, noise in zip(*(v.split(rows) for v in (values, weight[:, state], seen, noises)), strict=True):
            gains, left = noise_gains(covariance, there, noise)
            apart = (part - mean).masked_fill(~there, 0.0)
            about = mean + (gains @ apart.unsqueeze(-1)).squeeze(-1)
            first[state] += share @ about
            second[state] += (share.unsqueeze(-1) * about).T @ about + torch.einsum("n,nij->ij", share, left)
    return {"weight": weight.sum(0), "first": first, "second": second}
