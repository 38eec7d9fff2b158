"""Gaussian outputs of an input-output model with R parameter sets at once; vectors may lack some of their dimensions.

Weights are {"emission": those of the mean's network, "noise": log_scale (Z, D or 1, R) or scale_tril ([Z,] D, D, R), lower
triangular with the logarithms of its diagonal}.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pplseq.models.iohmm.networks import scale_tril
from pplseq.models.iohmm.restarts.networks import RestartNetwork
from pplseq.models.iohmm.restarts.outputs import NoisyOutputs, Parameters, Seen
from pplseq.models.iohmm.restarts.regressions import residual_covariance


class GaussianOutputs(NoisyOutputs):
    """x in R^D with means from the network and covariances of each state (or one for all).

    Args:
        network: of the means. covariance: "diag", "full", "tied" or "spherical". floor: smallest variance, or (D,)
            of each dimension.
        num_climbs: steps uphill in an M-step where there is no formula.
    """

    def __init__(self, network: RestartNetwork, covariance: str, floor: float | Tensor, num_climbs: int = 10):
        super().__init__(network, num_climbs)
        self.covariance, self.floor = covariance, floor
        self.hold_means = False  # covariances are then about those that there are

    # ---------------------------------------------------------------- likelihood
    def _density(self, parameters, seen, num_restarts):
        means = self._means(parameters["emission"], seen)
        residual = seen.x.T.unsqueeze(-1) - means
        size, noise = residual.shape[1], parameters["noise"]
        if "log_scale" in noise:
            log_scale = noise["log_scale"].expand(-1, size, -1).unsqueeze(2)
            value = -((residual / log_scale.exp()) ** 2 / 2 + log_scale + math.log(2 * math.pi) / 2)
            if seen.present is not None:
                value = value.masked_fill(~seen.present.T.unsqueeze(-1), 0.0)
            return value.sum(1)
        tril = scale_tril(noise["scale_tril"].movedim(-1, -3))  # ([Z,] R, D, D)
        if seen.present is None:
            return _log_density(residual, tril)
        result = torch.zeros_like(residual[:, 0])
        for there, rows in _patterns(seen.present):
            part = torch.linalg.cholesky((tril @ tril.mT)[..., there, :][..., there])
            result = result.index_copy(1, rows, _log_density(residual[:, :, rows][:, there], part))
        return result

    def _means(self, emission: dict[str, Tensor], seen: Seen) -> Tensor:
        """(Z, D, M, R)."""
        return self.network.values(emission, seen.rows)[:, :, seen.entry]

    def _covariances(self, noise: dict[str, Tensor], size: int) -> Tensor:
        """(Z, R, D, D), or (R, D, D) where all states share it."""
        if "log_scale" in noise:
            variance = (2 * noise["log_scale"]).exp().expand(-1, size, -1)
            return torch.diag_embed(variance.transpose(1, 2))
        tril = scale_tril(noise["scale_tril"].movedim(-1, -3))
        return tril @ tril.mT

    # ---------------------------------------------------------------- maximiser
    def maximize(self, parameters, seen, visits, penalty, gradient):
        if gradient or penalty.precision or not self.network.exact:
            return self.climb(parameters, seen, visits, penalty), None
        known = seen.known
        seen = Seen(
            seen.rows, seen.entry[known], seen.x[known], known[known], None,
            None if seen.present is None else seen.present[known],
        )  # fmt: skip
        mass = visits[:, known].transpose(1, 2)  # (Z, R, M)
        targets, extra = seen.x, None
        if seen.present is not None:
            targets, extra = self._expected(parameters, seen, seen.present, mass)
        emission = parameters["emission"]
        if not self.hold_means:
            emission = self.network.fit_means(emission, seen.rows, seen.entry, targets, mass)
        residual = targets - self._means(emission, seen).permute(0, 3, 2, 1)  # (Z, R, M, D)
        parts = [residual, mass] if extra is None else [residual, mass, extra]
        if self.covariance == "tied":  # problems of one restart together
            parts = [part.transpose(0, 1) for part in parts]
        shape = parts[1].shape[:2]
        covariances, floored = residual_covariance(
            parts[0].flatten(0, 1), parts[1].flatten(0, 1), self.covariance, self.floor, group=self.num_states,
            extra=None if extra is None else parts[2].flatten(0, 1),
        )  # fmt: skip
        covariances, floored = covariances.unflatten(0, shape), floored.unflatten(0, shape)
        if self.covariance == "tied":
            covariances, floored = covariances[:, 0], floored.mT
        return {"emission": emission, "noise": self._raw(covariances, parameters["noise"])}, floored.any(0)

    def _expected(self, parameters: Parameters, seen: Seen, present: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """Targets (Z, R, M, D) with missing dimensions at their means given the others, and what that leaves of their scatter.

        With o the dimensions seen and m the others, E[y_m] = mu_m + S_mo S_oo^-1 (y_o - mu_o), Cov[y_m] = S_mm - S_mo S_oo^-1
        S_om, summed under the mass: (Z, R, D, D).
        """
        means = self._means(parameters["emission"], seen).permute(0, 3, 2, 1)
        covariances = self._covariances(parameters["noise"], means.shape[-1]).expand(*means.shape[:2], -1, -1)
        targets, extra = torch.where(present, seen.x, means), torch.zeros_like(covariances)
        for there, rows in _patterns(present):
            gone = (~torch.isin(torch.arange(means.shape[-1], device=rows.device), there)).nonzero().squeeze(-1)
            if not len(gone):
                continue
            across = covariances[..., gone, :][..., there]
            gain = torch.linalg.solve(covariances[..., there, :][..., there], across, left=False)
            off = (seen.x - means)[:, :, rows][..., there] @ gain.mT
            targets[:, :, rows.unsqueeze(-1), gone] += off
            left = covariances[..., gone, :][..., gone] - gain @ across.mT
            extra[:, :, gone.unsqueeze(-1), gone] += mass[..., rows].sum(-1)[..., None, None] * left
        return targets, extra

    def _raw(self, covariances: Tensor, before: dict[str, Tensor]) -> dict[str, Tensor]:
        """The noise's parameters from covariances ([Z,] R, D, D); NaN keeps what was before."""
        if "log_scale" in before:
            value = covariances.diagonal(dim1=-2, dim2=-1).log().movedim(-1, 1) / 2  # (Z, D, R)
            value = value[:, : before["log_scale"].shape[1]]
            return {"log_scale": torch.where(value.isnan(), before["log_scale"], value)}
        known = torch.isfinite(covariances).all(-1).all(-1)[..., None, None]
        eye = torch.eye(covariances.shape[-1], dtype=covariances.dtype, device=covariances.device)
        tril = torch.linalg.cholesky(torch.where(known, covariances, eye))
        raw = tril.tril(-1) + torch.diag_embed(tril.diagonal(dim1=-2, dim2=-1).log())
        return {"scale_tril": torch.where(known.movedim(-3, -1), raw.movedim(-3, -1), before["scale_tril"])}

    def inside(self, weights):
        if "noise.log_scale" in weights:
            value = weights["noise.log_scale"]  # (Z, D or 1, R)
            lowest = torch.as_tensor(self.floor).to(value).log().reshape(-1, 1) / 2
            lowest = lowest.mean(0) if value.shape[1] == 1 else lowest
            return weights | {"noise.log_scale": value.maximum(lowest)}
        raw = weights["noise.scale_tril"]  # ([Z,] D, D, R)
        lowest = torch.as_tensor(self.floor).to(raw).log().expand(raw.shape[-2]) / 2
        off = raw.new_full(raw.shape[-3:-1], -torch.inf).diagonal_scatter(lowest)
        return weights | {"noise.scale_tril": raw.maximum(off.unsqueeze(-1))}


def _log_density(residual: Tensor, tril: Tensor) -> Tensor:
    """(Z, M, R) log N(residual; 0, tril tril') of residuals (Z, D, M, R), tril ([Z,] R, D, D)."""
    white = torch.linalg.solve_triangular(tril, residual.permute(0, 3, 1, 2), upper=False)  # (Z, R, D, M)
    log_det = tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # ([Z,] R)
    density = -(white**2).sum(-2) / 2 - log_det.unsqueeze(-1) - residual.shape[1] * math.log(2 * math.pi) / 2
    return density.transpose(1, 2)


def _patterns(present: Tensor):
    """Which dimensions there are, and in which rows, for every pattern that occurs (those without any left out)."""
    patterns, which = torch.unique(present, dim=0, return_inverse=True)
    for k, pattern in enumerate(patterns):
        if bool(pattern.any()):
            yield pattern.nonzero().squeeze(-1), (which == k).nonzero().squeeze(-1)
