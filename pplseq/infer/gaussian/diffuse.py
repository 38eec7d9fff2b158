"""Exact diffuse starts: nothing is known of some coordinates of the first state, whose variance is infinite.

The state is the sum of a proper one and of what the unknown coordinates d, seen through the filter, add to it: means are linear
in d, and covariances do not depend on it. So one chain with a proper start answers for d = 0, another one of zeros for each
unknown coordinate says what d changes, and d is found from the innovations by least squares.

    log p(y) = lim  log p(y | variance k) + log(k) / 2 per unknown coordinate
             = log p(y | d = 0) + r' N^-1 r / 2 - log det N / 2,    N = sum_t D_t' I_t D_t,   r = sum_t D_t' surprise_t

with D_t what d adds to the predicted mean and I_t what an observation says beyond the past. The proper start may give the
unknown coordinates any variance: the limit is the same.

Source: P. de Jong (1991), The diffuse Kalman filter; the likelihood is that of S. J. Koopman (1997), Exact initial Kalman
filtering and smoothing for nonstationary time series models.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.gaussian_types import Evidence, GaussianBelief, LinearEvidence
from pplseq.infer.gaussian import likelihood
from pplseq.infer.gaussian import queries as gaussian_queries
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain, once
from pplseq.infer.gaussian.given import without_gradients
from pplseq.infer.gaussian.left_out import LEAST, LeftOut, answer, weighted, weights_of
from pplseq.infer.gaussian.numbers import Numbers
from pplseq.infer.gaussian.parallel import ParallelChain
from pplseq.infer.gaussian.results import GaussianStates, StepCovariances
from pplseq.kernels.kalman import DOUBLE, symmetric
from pplseq.kernels.parallel import time_scan

DETERMINED = 1e-11  # smallest eigenvalue of N, its diagonal scaled to one, of coordinates that are determined
FAR = 1e6  # variances of the proper start above what is known in the end, in this ratio: digits are lost
TINY = 1e-12
ROUNDS = 3


def gaussian_chain(start: GaussianBelief, dynamics: Dynamics, evidence, **options) -> GaussianChain:
    """The chain of a start, which is diffuse in coordinates of infinite variance; parallel in time where that is wanted.

    Raises:
        TypeError: inside ``parallel_in_time`` for a diffuse start.
    """
    diffuse, parallel = bool(start.covariance.diagonal(dim1=-2, dim2=-1).isinf().any()), time_scan.ACTIVE.get()
    if diffuse and parallel:
        raise TypeError(
            "parallel_in_time: a diffuse start goes step by step only; leave parallel_in_time out, or give the first state a "
            "covariance"
        )
    if diffuse:
        return DiffuseChain(start, dynamics, evidence, **options)
    if parallel:
        return ParallelChain(start, dynamics, evidence, **options)
    return GaussianChain(start, dynamics, evidence, **options)


class Known(NamedTuple):
    """What is known of the unknown coordinates d of each row: mean (.., d), covariance (.., d, d); log_prob (..,) nats: what
    they change of a log-likelihood. determined: (..,) bool; elsewhere the others mean nothing."""

    mean: Tensor
    covariance: Tensor
    log_prob: Tensor
    determined: Tensor


class DiffuseChain(GaussianChain):
    """A :class:`~pplseq.infer.gaussian.chain.GaussianChain` that starts with infinite variances.

    Args:
        start: its covariance (h, h) has ``inf`` on the diagonal of coordinates of which nothing is known, and zeros beside it.
        Others: as for ``GaussianChain``. It computes in double precision, whatever it is given.

    Its log-probabilities are Koopman's, those of statsmodels' exact diffuse start. States that the observations up to a step
    do not determine have NaN means and infinite variances; ``token_log_probs`` is 0 at these steps and gives what they say,
    together, at the step that determines the state.

    Raises:
        ValueError: for starts that differ by row, and, in answers, for rows whose observations never determine the state.

    Cost: that of d + 1 chains whose covariances are computed once, and T h^2 for covariances of all steps.
    """

    def __init__(self, start: GaussianBelief, dynamics: Dynamics, evidence, **options):
        covariance = start.covariance
        if covariance.dim() != 2:
            raise ValueError(
                f"start.covariance must be (h, h), the same for all rows, where a start is diffuse; got "
                f"{tuple(covariance.shape)}"
            )
        unknown = covariance.diagonal().isinf()
        if bool((covariance[unknown].where(~torch.diag(unknown)[unknown], 0.0) != 0).any()):
            raise ValueError("start.covariance must be 0 beside the infinite variances of a diffuse start")
        if not torch.is_grad_enabled():
            start, dynamics, evidence = without_gradients(start, dynamics, evidence)
        self.dtype = start.mean.dtype
        self.unknown = unknown.nonzero().flatten()
        shift, spread = torch.zeros_like(start.mean[..., self.unknown]), _first_spread(evidence, len(self.unknown))
        for _ in range(ROUNDS):
            self._begin(start, shift, spread, dynamics, evidence, options)
            with torch.no_grad():
                known = self._known_in_the_end
            left = known.covariance.detach().diagonal(dim1=-2, dim2=-1).flatten(0, -2).amin(0) - spread
            left = left.clamp_min(TINY * spread)
            if bool((spread <= FAR * left).all()):
                break
            shift = shift + known.mean.detach().to(self.dtype).reshape(*self.batch_shape, -1)
            spread = (100 * left).minimum(spread)
        self.start, self.dynamics, self.evidence = start, dynamics, evidence

    def _begin(self, start: GaussianBelief, shift: Tensor, spread: Tensor, dynamics, evidence, options) -> None:
        """The chain with a proper start: means shifted, and variances ``spread`` where they are infinite."""
        mean = start.mean.index_add(-1, self.unknown, shift.expand(*start.mean.shape[:-1], -1))
        finite = start.covariance.where(start.covariance.isfinite(), 0.0)
        finite = finite + torch.diag(finite.new_zeros(len(finite)).index_add(0, self.unknown, spread.to(finite)))
        proper = GaussianBelief(mean.to(DOUBLE), finite.to(DOUBLE))
        matrix, noise, offset = dynamics
        dynamics = Dynamics(matrix.to(DOUBLE), noise.to(DOUBLE), None if offset is None else offset.to(DOUBLE))
        super().__init__(proper, dynamics, _in_double(evidence), **options)

    # ---------------------------------------------------------------- what the unknown coordinates change
    @once
    def _responses(self) -> list[GaussianChain]:
        """For each unknown coordinate the chain of zeros that starts with one there."""
        flat = self.flat
        rows = slice(None) if self._by_row else slice(0, 1)
        evidence, zero = flat.evidence, flat.mean[rows].detach() * 0
        if isinstance(evidence, Numbers):
            evidence = evidence._replace(residual=torch.zeros_like(evidence.residual[:, rows]), constant=None)
        else:
            evidence = evidence._replace(
                vector=torch.zeros_like(evidence.vector[:, rows]), constant=torch.zeros_like(evidence.constant[:, rows])
            )
        used = None if flat.used is None else flat.used[:, rows]
        flat = flat._replace(evidence=evidence, offset=None, used=used)
        unit = torch.eye(zero.shape[-1]).to(zero)
        return [self.with_numbers(flat._replace(mean=zero + unit[k])) for k in self.unknown.tolist()]

    @property
    def _by_row(self) -> bool:
        """Whether rows differ in what d adds to their means."""
        used = self.flat.used
        with torch.no_grad():  # indices have none
            by_row = self.path.index.dim() > 1
        return by_row or (used is not None and not bool((used == used[:, :1]).all()))

    def _responding(self, name: str) -> Tensor:
        """(T, 1 | R, h, d)"""
        return torch.stack([getattr(chain, name) for chain in self._responses], -1)

    @once
    def _steps(self) -> tuple[Tensor, Tensor]:
        """N (T, 1 | R, d, d) and r (T, R, d), summed up to each step."""
        added, surprise = self._responding("_predicted_means"), self._responding("_surprise")
        information = symmetric(-(added.mT @ surprise))
        return information.cumsum(0), (added.mT @ self._surprise.unsqueeze(-1)).squeeze(-1).cumsum(0)

    def _knowing(self, information: Tensor, about: Tensor) -> Known:
        """From N (.., d, d) and r (.., d)."""
        identity = torch.eye(len(self.unknown)).to(information)
        with torch.no_grad():
            scale = information.diagonal(dim1=-2, dim2=-1)
            scale = scale.where(scale > 0, 1.0).rsqrt()
            scaled = information * scale.unsqueeze(-1) * scale.unsqueeze(-2)
            determined = torch.linalg.eigvalsh(scaled.nan_to_num(0.0))[..., 0] > DETERMINED
        information = information.where(determined[..., None, None], identity)
        scaled = information * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        factor = torch.linalg.cholesky(scaled.where(determined[..., None, None], identity))
        covariance = torch.cholesky_inverse(factor) * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        mean = (covariance @ about.unsqueeze(-1)).squeeze(-1)
        log_det = 2 * (factor.diagonal(dim1=-2, dim2=-1).log() - scale.log()).sum(-1)
        log_prob = (torch.linalg.vecdot(about, mean) - log_det) / 2
        return Known(mean, covariance, log_prob, determined.expand(log_prob.shape))

    @once
    def _known_in_the_end(self) -> Known:
        """From all observations of each row, (R, ...) or, of the covariance, (1 | R, ...)."""
        known = self._knowing(*(total[-1] for total in self._steps))
        if not bool(known.determined.all()):
            row = int((~known.determined).nonzero()[0])
            raise ValueError(
                f"row {row}: its observations do not determine the {len(self.unknown)} coordinates of the first state of which "
                "nothing is known; leave it out, or give the state a proper start"
            )
        return known

    @once
    def _known_by_step(self) -> Known:
        return self._knowing(*self._steps)

    @once
    def _diffuse_log_probs(self) -> Tensor:
        """(T, R)"""
        known = self._known_by_step
        total = (self.step_log_probs.cumsum(0) + known.log_prob).where(known.determined, 0.0)
        return torch.cat([total[:1], total.diff(dim=0)])

    # ---------------------------------------------------------------- answers
    def log_prob(self) -> Tensor:
        smooth = None
        if self._differentiable and torch.is_grad_enabled() and not self._by_row:
            smooth = self._smoothly()
        with torch.set_grad_enabled(torch.is_grad_enabled() and smooth is None):
            total = self.step_log_probs.sum(0) + self._known_in_the_end.log_prob
        if smooth is not None:  # whose differences over narrow widths are rounded, its gradients are not
            total = total + (smooth - smooth.detach())
        return total.reshape(self.batch_shape).to(self.dtype)

    def _smoothly(self) -> Tensor | None:
        """(R,) log p(y), its gradients from the smoother, where there are compiled loops.

        log p(y | d) is quadratic in d, so that a few values, about where it is largest and as far apart as d is uncertain, say
        all of it, and their derivatives all of its derivatives.
        """
        flat, size = self.flat, len(self.unknown)
        with torch.no_grad():
            if self.loops is None:
                return None
            known = self._known_in_the_end
            root = torch.linalg.cholesky(known.covariance[0])  # one for all rows
        unit = torch.eye(size).to(root)
        pairs = torch.combinations(torch.arange(size), 2)
        values = torch.cat([torch.zeros_like(unit[:1]), unit, -unit, unit[pairs[:, 0]] + unit[pairs[:, 1]]])
        apart = values.new_zeros(len(values), flat.mean.shape[-1]).index_copy(1, self.unknown, values @ root.mT)
        centre = flat.mean.index_add(1, self.unknown, known.mean)
        many = len(values)
        numbers, constant = self._numbers, self._numbers.constant
        numbers = numbers._replace(
            residual=numbers.residual.repeat(1, many, 1), constant=None if constant is None else constant.repeat(1, many)
        )
        flat = flat._replace(
            batch_shape=torch.Size([many * len(centre)]), mean=(centre + apart.unsqueeze(1)).flatten(0, 1), evidence=numbers,
            offset=flat.offset if flat.offset is None or flat.offset.dim() == 1 else flat.offset.repeat(1, many, 1),
            valid=None if flat.valid is None else flat.valid.repeat(1, many),
            used=None if flat.used is None else flat.used.repeat(1, many),
        )  # fmt: skip
        with torch.no_grad():
            chain = self.with_numbers(flat)
        found = likelihood.row_log_probs(chain)
        if found is None:
            return None
        best, up, down, both = found.view(many, -1).split([1, size, size, len(pairs)])
        slope = ((up - down) / 2).mT  # (R, d)
        curvature = torch.diag_embed((2 * best - up - down).mT)
        across = (up[pairs[:, 0]] + up[pairs[:, 1]] - best - both).mT
        for k, (i, j) in enumerate(pairs.tolist()):
            place = torch.outer(unit[i], unit[j])
            curvature = curvature + across[:, k, None, None] * (place + place.mT)
        about = torch.linalg.vecdot(slope, torch.linalg.solve(curvature, slope))
        volume = torch.logdet(curvature) / 2 - root.diagonal().log().sum()
        return best[0] + about / 2 - volume

    def entropy(self) -> Tensor:
        raise ValueError(
            "entropy: first states of infinite variance have none before they are determined; make the model with "
            "initial='learned' (StructuralModel: 'wide')"
        )

    def token_log_probs(self) -> Tensor:
        return self._batch_first(self._diffuse_log_probs).to(self.dtype)

    def _last_belief(self) -> tuple[Tensor, Tensor]:
        means, table = self._smoothed, self._smoothed_table(0)
        if self._lengths is None:
            mean, covariance = means[-1], table[-1]
        else:
            last, rows = self._lengths - 1, torch.arange(means.shape[1], device=means.device)
            mean, covariance = means[last, rows], table[last, rows if table.shape[1] > 1 else 0 * rows]
        return mean.to(self.dtype), covariance[0] if len(covariance) == 1 else covariance

    def predicted_states(self) -> GaussianStates:
        return self._by_step("predicted", 1)

    def filtered_states(self) -> GaussianStates:
        return self._by_step("filtered", 0)

    def _by_step(self, name: str, lag: int) -> GaussianStates:
        """States given the observations up to a step, or the one before it."""
        known = self._known_by_step
        names = {"predicted": "_predicted_means", "filtered": "filtered_means"}
        added, means = self._responding(names[name]), getattr(self, names[name])
        determined, about, spread = known.determined, known.mean, known.covariance
        if lag:
            determined, about, spread = (
                torch.cat([torch.zeros_like(v[:1]), v[:-1]]) for v in (determined, about, spread)
            )
        means = (means + (added @ about.unsqueeze(-1)).squeeze(-1)).where(determined.unsqueeze(-1), torch.nan)
        table = getattr(self.path, name)[self.path.index]
        table = (table if table.dim() == 4 else table.unsqueeze(1)) + symmetric(added @ spread @ added.mT)
        shared = table.shape[1] == 1
        nothing = torch.full_like(table[0, 0].diagonal(), torch.inf).diag()
        table = table.where((determined[:, :1] if shared else determined)[..., None, None], nothing)
        return self._states(means.to(self.dtype), self._of_steps(table))

    def _of_steps(self, table: Tensor, valid: Tensor | None = None) -> StepCovariances:
        """From (T, 1 | R, h, h)."""
        index = torch.arange(table.shape[0] * table.shape[1], device=table.device).reshape(table.shape[:2])
        index = index[:, 0] if table.shape[1] == 1 else index
        valid = self.flat.valid if valid is None else valid
        return StepCovariances(table.flatten(0, 1).to(self.dtype), index, self.batch_shape, valid)

    def smoothed_states(self) -> GaussianStates:
        return self._states(self._smoothed.to(self.dtype), self._of_steps(self._smoothed_table(0)))

    @once
    def _added(self) -> Tensor:
        """(T, 1 | R, h, d) what d adds to smoothed means."""
        return self._responding("_smoothed_means")

    @once
    def _smoothed(self) -> Tensor:
        """(T, R, h)"""
        return self._smoothed_means + (self._added @ self._known_in_the_end.mean.unsqueeze(-1)).squeeze(-1)

    def _smoothed_table(self, lag: int) -> Tensor:
        """(T - lag, 1 | R, h, h) covariances with the step so far before."""
        path, added = self.smoothed_path, self._added
        table, index = (path.lag_one, path.index[:-1]) if lag else (path.smoothed, path.index)
        own = table[index]
        own = own if own.dim() == 4 else own.unsqueeze(1)
        both = added[lag:] @ self._known_in_the_end.covariance @ added[: len(added) - lag].mT
        return own + (both if lag else symmetric(both))

    def lag_one_covariances(self) -> StepCovariances:
        valid = self.flat.valid
        return self._of_steps(self._smoothed_table(1), None if valid is None else valid[1:])

    @torch.no_grad()
    def left_out(self) -> LeftOut:
        known, weights = self._known_in_the_end, weights_of(self)
        zero = torch.zeros_like(weights.numbers)
        added = torch.stack(
            [weighted(weights, zero[:, : chain.flat.mean.shape[0]], chain._predicted_means) for chain in self._responses], -1
        )  # (T, 1 | R, n, d)
        pulled = weighted(weights, weights.numbers, self._predicted_means) + (added @ known.mean.unsqueeze(-1)).squeeze(-1)
        proper = weights.precision[weights.nodes]
        precision = proper - (added @ known.covariance * added).sum(-1)
        return answer(self, weights, pulled, precision.where(precision > LEAST * proper, torch.nan))

    @torch.no_grad()
    def sample(self, num_samples: int = 1, *, seed: int | None = None) -> Tensor:
        checks.count("num_samples", num_samples)
        known, mean = self._known_in_the_end, self.flat.mean
        size = len(self.unknown)
        noise = gaussian_queries.standard_normal((num_samples, self.num_steps + 1, *mean.shape), mean, seed)
        draws = gaussian_queries.draw_states(self, noise[:, 1:])  # (S, T, R, h)
        root = torch.linalg.cholesky(known.covariance)
        values = known.mean + (root @ noise[:, 0, :, :size].unsqueeze(-1)).squeeze(-1)  # (S, R, d)
        draws = draws + (self._added @ values.unsqueeze(1).unsqueeze(-1)).squeeze(-1)
        if self.flat.valid is not None:
            draws = draws.where(self.flat.valid.unsqueeze(-1), 0.0)
        draws = draws.transpose(1, 2).to(self.dtype)
        return draws.reshape(num_samples, *self.batch_shape, self.num_steps, self.num_states)


def _first_spread(evidence: Evidence | LinearEvidence, size: int) -> Tensor:
    """(size,) a variance in the units of the states: of those that would make the observations alone."""
    linear = isinstance(evidence, LinearEvidence)
    values, matrix = (evidence.residual, evidence.loadings) if linear else (evidence.vector, evidence.matrix)
    values, matrix = (part.detach().to(DOUBLE).nan_to_num(0.0).square().mean() for part in (values, matrix))
    ratio = values / matrix
    return ratio.where(ratio.isfinite() & (ratio > 0), 1.0).expand(size)


def _in_double(evidence: Evidence | LinearEvidence) -> Evidence | LinearEvidence:
    if isinstance(evidence, LinearEvidence):
        residual, loadings, noise = (part.to(DOUBLE) for part in (evidence.residual, evidence.loadings, evidence.noise))
        extra = None if evidence.extra is None else evidence.extra.to(DOUBLE)
        return LinearEvidence(residual, loadings, noise, evidence.which, evidence.observed, extra)
    return Evidence(*(part.to(DOUBLE) for part in evidence))
