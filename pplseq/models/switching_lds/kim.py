"""Kim's filter and smoother: after each step the Gaussians that end in one regime become one, of their mean and covariance.

The exact posterior of a switching system is a mixture of R^t Gaussians. What is kept is one for each regime, so that the
likelihood is exact for two steps, for one regime and for regimes that are alike, and approximate elsewhere, with no bound.

Source: C.-J. Kim (1994), Dynamic linear models with Markov-switching, Journal of Econometrics 60; C.-J. Kim and C. R. Nelson
(1999), State-space models with regime switching, sections 5.3 and 5.4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.distributions.gaussian_types import LOG_2PI
from pplseq.kernels.kalman import symmetric


class System(NamedTuple):
    """R regimes: moves (R, R) log-probabilities [from, to], first (R,); A (R, h, h), a (R, h), Q (R, h, h); C (R, n, h),
    c (R, n) and D (R, n, n); mean (h,) and covariance (h, h) of the first state."""

    moves: Tensor
    first: Tensor
    transition: Tensor
    transition_offset: Tensor
    state_noise: Tensor
    emission: Tensor
    emission_offset: Tensor
    emission_noise: Tensor
    mean: Tensor
    covariance: Tensor


class Collapsed(NamedTuple):
    """Of each step and regime: log_probs (T, B, R) of the regime, means (T, B, R, h) and covariances (T, B, R, h, h) of the
    state."""

    log_probs: Tensor
    means: Tensor
    covariances: Tensor


class KimChain:
    """What Kim's filter makes of observations x (B, T, n), NaN where missing; valid: (B, T) bool, a prefix of each row.

    Cost: R^2 (h^3 + n^3) a step and row, step by step in torch.
    """

    def __init__(self, system: System, x: Tensor, valid: Tensor):
        self.system, self.valid = system, valid.T
        longest, one = int(valid.sum(1).max()), len(system.first) == 1
        self.is_exact, self.smooths_exactly, self.x = one or longest <= 2, one or longest == 1, x
        mean, covariance = self._first()
        log_probs, total, kept = system.first.expand(len(x), -1), 0.0, []
        for t, (y, here) in enumerate(zip(x.unbind(1), self.valid, strict=True)):
            if t:  # by pairs (B, from, to)
                pairs = self._moved(mean, covariance)
                weight = log_probs.unsqueeze(-1) + system.moves
            else:
                pairs, weight = (mean.unsqueeze(1), covariance.unsqueeze(1)), log_probs.unsqueeze(1)
            density, *pairs = self._observed(y, *pairs)
            weight = weight + density
            step = weight.flatten(1).logsumexp(1)
            new = _collapsed((weight - step[:, None, None]).mT, pairs[0].transpose(1, 2), pairs[1].transpose(1, 2))
            old = log_probs, mean, covariance
            log_probs, mean, covariance = (
                torch.where(here.reshape(-1, *(1,) * (one.dim() - 1)), one, two) for one, two in zip(new, old, strict=True)
            )
            total = total + torch.where(here, step, 0.0)
            kept.append((log_probs, mean, covariance))
        self._total, self.filtered = total, Collapsed(*(torch.stack(part) for part in zip(*kept, strict=True)))

    def _first(self) -> tuple[Tensor, Tensor]:
        """(B, R, ...) of the first state, the same under every regime."""
        s, regimes, rows = self.system, len(self.system.first), len(self.x)
        return s.mean.expand(rows, regimes, -1), s.covariance.expand(rows, regimes, -1, -1)

    def _moved(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """(B, from, to, ...) of the next state from (B, from, ...)."""
        s = self.system
        moved = (s.transition @ mean[:, :, None, :, None]).squeeze(-1) + s.transition_offset
        return moved, symmetric(s.transition @ covariance.unsqueeze(2) @ s.transition.mT) + s.state_noise

    def _observed(self, y: Tensor, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log p(y) (B, from, to) and what it makes of states."""
        s, seen = self.system, (~y.isnan()).to(mean)
        mask = seen[:, None, None, :]
        error = (y.nan_to_num(0.0)[:, None, None] - (s.emission @ mean.unsqueeze(-1)).squeeze(-1) - s.emission_offset) * mask
        loadings = s.emission * mask.unsqueeze(-1)
        noise = s.emission_noise * mask.unsqueeze(-1) * mask.unsqueeze(-2)
        total = symmetric(loadings @ covariance @ loadings.mT) + noise + torch.diag_embed(1 - mask)
        factor = torch.linalg.cholesky(total)
        white = torch.linalg.solve_triangular(factor, error.unsqueeze(-1), upper=False).squeeze(-1)
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        density = -white.square().sum(-1) / 2 - log_det - seen.sum(-1)[:, None, None] * LOG_2PI / 2
        gain = torch.cholesky_solve(loadings @ covariance, factor).mT
        left = torch.eye(mean.shape[-1]).to(mean) - gain @ loadings
        covariance = symmetric(left @ covariance @ left.mT + gain @ noise @ gain.mT)
        return density, mean + (gain @ error.unsqueeze(-1)).squeeze(-1), covariance

    def log_prob(self) -> Tensor:
        """(B,) log p(x), approximate; differentiable."""
        return torch.as_tensor(self._total)

    def forecast(self, num_steps: int) -> Collapsed:
        """Of each of the steps to come, in means and covariances exactly what follows from where the filter ended."""
        s, found = self.system, []
        log_probs, mean, covariance = (part[-1] for part in self.filtered)
        for _ in range(num_steps):
            pairs = self._moved(mean, covariance)
            weight = (log_probs.unsqueeze(-1) + s.moves).mT
            log_probs, mean, covariance = _collapsed(weight, pairs[0].transpose(1, 2), pairs[1].transpose(1, 2))
            found.append((log_probs, mean, covariance))
        return Collapsed(*(torch.stack(part) for part in zip(*found, strict=True)))

    @torch.no_grad()
    def best(self, num_paths: int) -> tuple[Tensor, Tensor]:
        """(B, T) regimes of the most probable path that was found, -1 behind the ends, and (B,) its exact log p(path, x).

        Of all paths so far the ``num_paths`` most probable are kept, each with its own Gaussian: nothing is collapsed. It is
        the most probable of all where R^T is no larger; in longer rows a path that would have won later may have been dropped.

        Source: J. K. Tugnait (1982), Detection and estimation for abruptly changing systems, Automatica 18(5). Cost:
        num_paths R (h^3 + n^3) a step and row.
        """
        s, regimes, parents, chosen = self.system, len(self.system.first), [], []
        score, (mean, covariance) = self.x.new_zeros(len(self.x), 1), (part[:, :1] for part in self._first())
        stay = score.new_full((regimes,), -torch.inf).index_fill(0, torch.tensor(0, device=score.device), 0.0)
        for t, (y, here) in enumerate(zip(self.x.unbind(1), self.valid, strict=True)):
            still = mean.unsqueeze(2).expand(-1, -1, regimes, -1), covariance.unsqueeze(2).expand(-1, -1, regimes, -1, -1)
            density, *pairs = self._observed(y, *(self._moved(mean, covariance) if t else still))
            moves = s.moves[chosen[-1]] if t else s.first
            reached = torch.where(here[:, None, None], score.unsqueeze(-1) + moves + density, score.unsqueeze(-1) + stay)
            score, place = reached.flatten(1).topk(min(num_paths, reached[0].numel()), -1)
            mean, covariance = (
                torch.where(here.reshape(-1, *(1,) * (new.dim() - 1)), new, old).flatten(1, 2)
                for new, old in zip(pairs, still, strict=True)
            )
            mean = mean.take_along_dim(place.unsqueeze(-1), 1)
            covariance = covariance.take_along_dim(place[..., None, None], 1)
            parents.append(place // regimes)
            chosen.append(place % regimes)
        which, path = torch.zeros_like(parents[-1][:, :1]), []
        for parent, regime in zip(parents[::-1], chosen[::-1], strict=True):
            path.append(regime.gather(1, which))
            which = parent.gather(1, which)
        return torch.cat(path[::-1], 1).where(self.valid.T, -1), score[:, 0]

    def smoothed(self) -> Collapsed:
        """The same of each step given all of x, by a second approximation: x says of a regime what its successor knows."""
        s, now = self.system, self.filtered
        kept = [tuple(part[-1] for part in now)]
        for t in range(len(now.means) - 2, -1, -1):
            here, mean, covariance = (part[t] for part in now)
            joint = here.unsqueeze(-1) + s.moves
            joint = joint - joint.logsumexp(1, keepdim=True) + kept[-1][0].unsqueeze(1)  # (B, regime, the next one)
            predicted, spread = self._moved(mean, covariance)
            gain = covariance.unsqueeze(2) @ s.transition.mT @ torch.linalg.pinv(spread, hermitian=True)
            later, after = kept[-1][1].unsqueeze(1), kept[-1][2].unsqueeze(1)
            means = mean.unsqueeze(2) + (gain @ (later - predicted).unsqueeze(-1)).squeeze(-1)
            spreads = symmetric(covariance.unsqueeze(2) + gain @ (after - spread) @ gain.mT)
            new, end = _collapsed(joint, means, spreads), self.valid[t + 1]  # before a row's end it goes on
            kept.append(tuple(
                torch.where(end.reshape(-1, *(1,) * (one.dim() - 1)), one, two)
                for one, two in zip(new, (here, mean, covariance), strict=True)
            ))  # fmt: skip
        return Collapsed(*(torch.stack(part[::-1]) for part in zip(*kept, strict=True)))


def _collapsed(log_weights: Tensor, means: Tensor, covariances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gaussians (B, R, m, ...) of log_weights (B, R, m) as one for each regime: the total weight, mean and covariance."""
    total = log_weights.logsumexp(-1)
    share = (log_weights - total.unsqueeze(-1)).exp()
    mean = (share.unsqueeze(-1) * means).sum(2)
    apart = means - mean.unsqueeze(2)
    spread = covariances + apart.unsqueeze(-1) * apart.unsqueeze(-2)
    return total, mean, symmetric((share[..., None, None] * spread).sum(2))
