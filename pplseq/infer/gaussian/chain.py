"""The Gaussian chain: linear-Gaussian states, eliminated exactly, and every posterior query on them.

A chain is lowered to evidence about its states, so that nothing here has the size of an observation. Covariances come from
:mod:`pplseq.infer.gaussian.path`: few, exact through the transient and then constant. Means follow by products of (R, h)
with (h, h) matrices.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.gaussian_types import Evidence, GaussianBelief, LinearEvidence
from pplseq.infer.gaussian import likelihood
from pplseq.infer.gaussian import queries as gaussian_queries
from pplseq.infer.gaussian.given import Dynamics, FlatChain, flatten, path_input, without_gradients
from pplseq.infer.gaussian.left_out import LeftOut, left_out
from pplseq.infer.gaussian.numbers import Numbers
from pplseq.infer.gaussian.path import CovariancePath
from pplseq.infer.gaussian.results import GaussianForecast, GaussianStates, Innovations, StepCovariances
from pplseq.infer.gaussian.smoothed_path import SmoothedPath
from pplseq.kernels.gaussian import compiled_kalman, kalman_means
from pplseq.kernels.kalman import runs_of
from pplseq.kernels.matrix_table import MatrixIndex, apply_matrices, recursion

__all__ = ["Dynamics", "GaussianChain"]


def once(method):
    """Computes an attribute once; of a chain with gradients once without and once with them, as a query without leaves none."""

    @functools.wraps(method)
    def value(self):
        key = method.__name__, self._differentiable and torch.is_grad_enabled()
        if key not in self._known:
            self._known[key] = method(self)
        return self._known[key]

    return property(value)


class GaussianChain:
    """p(x, y) of a batch of linear-Gaussian sequences, and its posterior.

    What it is given is laid out as programs and kernels run, time first; what it answers, batch first.

    x_1 ~ N(start), x_t = A x_{t-1} + offset + q, and y_t through what it says about x_t:
    log p(y_t | x_t) = constant + vector' x_t - x_t' matrix x_t / 2.

    Args:
        start: the belief about x_1 before y_1; mean (*B, h), covariance (h, h) or (*B, h, h), which may be singular.
        dynamics: A and Q, which may be singular, and the offset.
        evidence: a LinearEvidence of residuals (T, *B, n), which keeps its digits however precise it is; or vector (T, *B, h),
            matrix (h, h), (T, h, h) or (T, *B, h, h), constant (T, *B).
        valid: (T, *B) bool, False at padded steps (a prefix of each row is valid), or None.
        seen: (T, *B) bool, False at missing observations, where there is no evidence and the state goes on, or None.
        tol: error of the log-likelihood, in nats an observed number, for which a covariance may be taken for the steady one:
            what it would still change, as a share of a coordinate's variance, and of an observation's given the past. 0:
            never; None: when the change is lost in rounding, so that the steady state is no approximation.
        emission: gives observations for states, ``predict(mean, covariance) -> (mean, covariance)``; for forecasts and
            innovations only.
        check: look for NaN and for covariances that are none.

    Raises:
        ValueError, TypeError: for arguments that do not fit; the message names them.

    All log-probabilities are in nats, results batch first. Padded steps are 0 in every result.
    Cost: a few h^3 a step of the transient and behind a gap, else 4 h^2 to 8 h^2 flops a token; memory T h, and h^2 for each
    distinct covariance. Matrices that change take h^3 a step (a step and row, where they differ by row).

    Source: B. D. O. Anderson and J. B. Moore (1979), Optimal Filtering; the smoother of A. E. Bryson and M. Frazier (1963).
    """

    is_whole = False  # whether it is known that every number is there
    recursion = staticmethod(recursion)  # of means; a chain that is parallel in time has another one
    _origin: GaussianChain | None = None  # a chain with the same covariances

    def __init__(
        self,
        start: GaussianBelief,
        dynamics: Dynamics,
        evidence: Evidence | LinearEvidence,
        *,
        valid: Tensor | None = None,
        seen: Tensor | None = None,
        tol: float | None = None,
        emission=None,
        check: bool = True,
    ):
        if tol is not None and not 0 <= tol < 1:
            raise ValueError(f"tol must be an error in [0, 1), nats an observed number, or None; got {tol}")
        self._has_gradients = torch.is_grad_enabled()
        if not self._has_gradients:  # what is made without gradients has none in later answers either
            start, dynamics, evidence = without_gradients(start, dynamics, evidence)
        self.start, self.dynamics, self.evidence, self.emission, self.tol = start, dynamics, evidence, emission, tol
        self.flat = flatten(start, dynamics, evidence, valid, seen, check)
        given = self.flat.evidence
        parts = *self.flat[1:6], *given
        self._differentiable = any([part.requires_grad for part in parts if part is not None])
        self.forget()

    def forget(self) -> None:
        """Computes everything anew when asked again."""
        self._known: dict = {}

    def with_numbers(self, flat: FlatChain) -> GaussianChain:
        """A chain of other means and observed numbers with the same covariances, which are not computed again."""
        path, other = self.path, GaussianChain.__new__(GaussianChain)
        other.__dict__.update(self.__dict__)
        other.flat, other._known = flat, {("path", self._differentiable and torch.is_grad_enabled()): path}
        return other

    @property
    def takes_other_numbers(self) -> bool:
        """Whether :meth:`with_residual` is there: for rows without gaps or ends, of numbers as they are, and no gradients."""
        flat, evidence = self.flat, self.flat.evidence
        if type(self) is not GaussianChain or not isinstance(evidence, Numbers) or self._has_gradients:
            return False
        parts = flat.valid, flat.used, evidence.observed, evidence.which, evidence.constant
        if any(part is not None for part in parts) or not isinstance(self.evidence, LinearEvidence):
            return False
        return self.loops is not None or self.shares_gains

    def with_residual(self, residual: Tensor) -> GaussianChain:
        """The chain of other numbers (T, B, n), less what they are off by, at the same steps: covariances are shared."""
        loops, shape = self.loops, self._numbers.residual.shape
        if residual.shape != shape:
            raise ValueError(f"residual must have the chain's shape {tuple(shape)}, got {tuple(residual.shape)}")
        other = self.with_numbers(self.flat._replace(evidence=self._numbers._replace(residual=residual)))
        other.evidence = dataclasses.replace(self.evidence, residual=residual)  # pyright: ignore[reportArgumentType]
        other._known["loops", False] = None if loops is None else loops.with_residual(residual)
        other._origin, other.is_whole = self, True
        return other

    def prepare(self) -> None:
        """Reads all parameters that queries need: done when a chain is made."""

    @property
    def num_steps(self) -> int:
        return self.flat.num_steps

    @property
    def num_states(self) -> int:
        return self.flat.mean.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        return self.flat.batch_shape

    @property
    def steady_step(self) -> int | None:
        """The first step at which all rows have the steady covariance; None where that never happens.

        Behind a later gap they leave it for a while.
        """
        return self.path.steady_step

    # ---------------------------------------------------------------- computed once
    @once
    def _lengths(self) -> Tensor | None:
        return None if self.flat.valid is None else self.flat.valid.sum(0)

    @once
    def path(self) -> CovariancePath:
        tol = 4 * torch.finfo(self.flat.mean.dtype).eps if self.tol is None else float(self.tol)
        return CovariancePath(path_input(self.flat, tol, self.tol is None))

    # ---------------------------------------------------------------- observed numbers, no gradients: the fast way
    @property
    def shares_gains(self) -> bool:
        """Whether means come from :mod:`~pplseq.kernels.gaussian.kalman_means`; what follows is their twin."""
        evidence = self.flat.evidence
        if not isinstance(evidence, Numbers) or len(evidence.loadings) > 1 or evidence.constant is not None:
            return False
        if self.flat.matrix.shape[:2] != (1, 1) or self.path.index.dim() > 1:
            return False
        return not (self._differentiable and torch.is_grad_enabled())

    @property
    def _numbers(self) -> Numbers:
        """The evidence, where it is of numbers."""
        assert isinstance(self.flat.evidence, Numbers)
        return self.flat.evidence

    @once
    def _observed(self) -> kalman_means.Observed:
        flat, numbers = self.flat, self._numbers
        return kalman_means.Observed(numbers.residual, numbers.loadings[0], flat.matrix[0, 0], flat.offset)

    @once
    def loops(self) -> compiled_kalman.MeanLoops | None:
        """Compiled loops over means, where there are some: of numbers, whatever is missing, with one matrix for all steps."""
        flat, evidence = self.flat, self.flat.evidence
        if not isinstance(evidence, Numbers) or not self.path.fits_loops or flat.matrix.shape[:2] != (1, 1):
            return None
        if (self._differentiable and torch.is_grad_enabled()) or not compiled_kalman.pays(evidence.residual, flat.mean):
            return None
        path = self.path
        tables = compiled_kalman.Tables(
            flat.matrix[0, 0], path.given.observed[0], path.kalman_gain, path.whitener, path.filtered, path.kinds, path.index
        )
        return compiled_kalman.MeanLoops(evidence.residual, flat.mean, flat.offset, tables, self._lengths)

    @once
    def _filtered(self) -> tuple[Tensor, Tensor]:
        """Means, and the squared length of white innovations."""
        if self.loops is not None:
            return self.loops.filter()
        path, mean = self.path, self.flat.mean
        return kalman_means.filter_means(self._observed, mean, runs_of(path.index), path.steps_of_means().to(mean.dtype))

    # ---------------------------------------------------------------- whatever the evidence
    @once
    def _which(self) -> MatrixIndex:
        return MatrixIndex(self.path.index, self.path.num_nodes)

    def _table(self, name: str) -> Tensor:
        return getattr(self.path, name).to(self.flat.mean.dtype)

    @once
    def filtered_means(self) -> Tensor:
        """(T, R, h) E[x_t | y_1..y_t]; meaningless at padded steps."""
        if self.loops is not None or self.shares_gains:
            return self._filtered[0]
        flat, path, which = self.flat, self.path, self._which
        carry = self._table("carry")
        evidence: Any = flat.evidence
        numbers = isinstance(evidence, Numbers)
        name, given = ("kalman_gain", evidence.residual) if numbers else ("filtered", evidence.vector)
        inputs = apply_matrices(self._table(name), which, given)
        first = torch.matmul(carry[path.index[0]], flat.mean.unsqueeze(-1)).squeeze(-1)
        shift = first.unsqueeze(0)
        if flat.offset is not None:
            if flat.offset.dim() == 1:
                later = (carry @ flat.offset)[path.index[1:]]
                later = later.unsqueeze(1).expand(-1, len(first), -1) if later.dim() == 2 else later
            else:
                later = apply_matrices(carry, MatrixIndex(path.index[1:], path.num_nodes), flat.offset)
            shift = torch.cat([shift, later])
        inputs[: len(shift)] += shift
        return self.recursion(self._table("forward"), MatrixIndex(path.index[1:], path.num_nodes), inputs, overwrite=True)

    def _step_means(self, means: Tensor) -> Tensor:
        """(T-1, R, h) A x_t + offset: predicted means of steps 2..T from the filtered ones."""
        stepped = times(self.flat.matrix, means[:-1])
        return stepped if self.flat.offset is None else stepped + self.flat.offset

    @once
    def _predicted_means(self) -> Tensor:
        return torch.cat([self.flat.mean.unsqueeze(0), self._step_means(self.filtered_means)])

    @once
    def white_innovations(self) -> Tensor:
        """(T, R, n) innovations, white: L^-1 (y - M x_t|t-1); zero for what is not seen."""
        numbers, predicted = self._numbers, self._predicted_means
        residual, whitener, real = numbers.residual, self.path.whitener, predicted.dtype
        if residual.shape[-1] <= predicted.shape[-1]:
            whitener = whitener.to(real)
        else:  # some numbers are beside what states may be, and differences of the others count in units of their noise
            predicted, residual = predicted.to(whitener.dtype), residual.to(whitener.dtype)
        if len(numbers.loadings) == 1:
            expected = predicted @ numbers.loadings[0].to(predicted.dtype).T
        else:
            expected = apply_matrices(self.path.observed.to(predicted.dtype), self._which, predicted)
        return apply_matrices(whitener, self._which, residual - expected).to(real)

    @once
    def _surprise(self) -> Tensor:
        """(T, R, h) M' S^-1 (y - M x_t|t-1); of information (I + Lam P)^-1 (vector - matrix x_t|t-1); zero without evidence."""
        evidence = self.flat.evidence
        if isinstance(evidence, Numbers):
            surprise = apply_matrices(self._table("surprising"), self._which, self.white_innovations)
        else:
            surprise = times(evidence.matrix, self.filtered_means, evidence.vector, scale=-1)
        return surprise if self.flat.used is None else torch.where(self.flat.used.unsqueeze(-1), surprise, 0.0)

    @once
    def step_log_probs(self) -> Tensor:
        """(T, R) log p(y_t | y_<t): -(|white|^2 + log det S + n log 2 pi) / 2 of numbers; of information
        constant + (vector' x_t|t + surprise' x_t|t-1 - log det(I + Lam P)) / 2."""
        flat, evidence, index = self.flat, self.flat.evidence, self.path.index
        numbers = isinstance(evidence, Numbers)
        known = (self._table("normalizer") if numbers else -self._table("half_log_det"))[index]
        known = known.unsqueeze(-1) if index.dim() == 1 else known
        if numbers:
            white = None if self.loops is not None or self.shares_gains else self.white_innovations
            squares = self._filtered[1] if white is None else _dot(white, white)
            result = known - squares / 2
            result = result if evidence.constant is None else result + evidence.constant
        else:
            first = (flat.mean * self._surprise[0]).sum(-1)[None]
            from_past = torch.cat([first, _dot(self._step_means(self.filtered_means), self._surprise[1:])])
            result = evidence.constant + (_dot(evidence.vector, self.filtered_means) + from_past) / 2 + known
        return result if flat.used is None else torch.where(flat.used, result, 0.0)

    # ---------------------------------------------------------------- likelihood and filtering
    def log_prob(self) -> Tensor:
        """(*B,) log p(y), differentiable."""
        if self._differentiable and torch.is_grad_enabled():
            rows = likelihood.row_log_probs(self)
            if rows is not None:
                return rows.reshape(self.batch_shape)
        return self.step_log_probs.sum(0).reshape(self.batch_shape)

    def token_log_probs(self) -> Tensor:
        """(*B, T) log p(y_t | y_1..y_{t-1}); 0 at padded and missing steps."""
        return self._batch_first(self.step_log_probs)

    def _batch_first(self, value: Tensor) -> Tensor:
        """(T, R, ...) -> (*B, T, ...)"""
        return value.transpose(0, 1).reshape(*self.batch_shape, len(value), *value.shape[2:])

    def filtered(self) -> GaussianBelief:
        """The belief about each row's last state given all its observations; the start for rows without a step."""
        mean, covariance = self._last_belief()
        covariance = covariance.to(mean.dtype)
        return GaussianBelief(mean.reshape(*self.batch_shape, self.num_states), self._unflat(covariance))

    def _last_belief(self) -> tuple[Tensor, Tensor]:
        """Of each row's last state: means (R, h) and covariances, double precision, (h, h) where rows agree, else (R, h, h)."""
        index, means, table = self.path.index, self.filtered_means, self.path.filtered
        if self._lengths is None:
            return means[-1], table[index[-1]]
        last, rows = (self._lengths - 1).clamp_min(0), torch.arange(means.shape[1], device=means.device)
        nodes = index[last] if index.dim() == 1 else index[last, rows]
        empty, mean = self._lengths == 0, means[last, rows]
        if bool(empty.any()):
            mean = torch.where(empty.unsqueeze(-1), self.flat.mean, mean)
            return mean, torch.where(empty[:, None, None], self.flat.covariance.to(table.dtype), table[nodes])
        return mean, table[nodes[0] if len(nodes) and bool((nodes == nodes[0]).all()) else nodes]

    def _unflat(self, covariance: Tensor) -> Tensor:
        """(h, h) or (R, h, h) -> (h, h) or (*B, h, h)."""
        return covariance if covariance.dim() == 2 else covariance.reshape(*self.batch_shape, *covariance.shape[-2:])

    def predicted_states(self) -> GaussianStates:
        """p(x_t | y_1..y_{t-1})."""
        return self._states(self._predicted_means, self._covariances("predicted"))

    def filtered_states(self) -> GaussianStates:
        """p(x_t | y_1..y_t)."""
        return self._states(self.filtered_means, self._covariances("filtered"))

    def _covariances(self, name: str) -> StepCovariances:
        return StepCovariances.later(lambda: (self._table(name), self.path.index), self.batch_shape, self.flat.valid)

    def _states(self, means: Tensor, covariances: StepCovariances) -> GaussianStates:
        if self.flat.valid is not None:
            means = torch.where(self.flat.valid.unsqueeze(-1), means, 0.0)
        return GaussianStates(self._batch_first(means), covariances)

    # ---------------------------------------------------------------- smoothing
    @once
    def smoothed_path(self) -> SmoothedPath:
        return SmoothedPath(self.path, self._lengths) if self._origin is None else self._origin.smoothed_path

    @once
    def _smoothed_means(self) -> Tensor:
        """x_t|t + Sigma A' lambda_{t+1}, where lambda_t = surprise_t + (A W)' lambda_{t+1}; zero behind a row's end."""
        if self.num_steps == 1:
            return self.filtered_means
        if self.loops is not None:
            return self.loops.smooth()[0]
        path = self.path
        if self.shares_gains:
            dtype, runs = self.flat.mean.dtype, runs_of(path.index)
            tables = path.steps_back().to(dtype), path.weighted_loadings.to(dtype)
            return kalman_means.smooth_means(self._observed, self.flat.used, self.filtered_means, runs, *tables)
        # the recursion runs over steps 2..T and from each row's own end, as surprises are zero behind it
        surprise = self._surprise[1:]
        links = MatrixIndex(path.index[1:-1], path.num_nodes)
        adjoint = self.recursion(self._table("closed_loop").mT, links, surprise, reverse=True)
        links = MatrixIndex(path.index[:-1], path.num_nodes)
        moved = apply_matrices(self._table("gain"), links, adjoint)
        return torch.cat([self.filtered_means[:-1] + moved, self.filtered_means[-1:]])

    def smoothed_states(self) -> GaussianStates:
        """p(x_t | all observations of the row)."""

        def make():
            return self.smoothed_path.smoothed.to(self.flat.mean.dtype), self.smoothed_path.index

        covariances = StepCovariances.later(make, self.batch_shape, self.flat.valid)
        return self._states(self._smoothed_means, covariances)

    def lag_one_covariances(self) -> StepCovariances:
        """Cov(x_{t+1}, x_t | all observations), t = 1..T-1, rows: the later state."""
        path, valid, table = self.smoothed_path, self.flat.valid, self.smoothed_path.lag_one.to(self.flat.mean.dtype)
        return StepCovariances(table, path.index[:-1], self.batch_shape, None if valid is None else valid[1:])

    @torch.no_grad()
    def entropy(self) -> Tensor:
        """(*B,) differential entropy of p(x_1..x_T | y), nats; -inf where some of it is certain.

        From its end it is a chain, of which a step's covariance given the next state and the past observations has the
        determinant |P_t|t| |Q_t| / |P_t+1|t|.
        """
        path, valid = self.path, self.flat.valid
        filtered, predicted, noise = (_half_log_det(part) for part in (path.filtered, path.predicted, path.noise))
        # what is singular stays so in all that follows from it, where rounding hides it
        noise = noise.where(~_is_singular(path.noise), -torch.inf).expand(len(filtered))
        index = path.index if path.index.dim() == 2 else path.index.unsqueeze(-1)
        steps = filtered[index] + self.num_states * (1 + math.log(2 * math.pi)) / 2
        later = noise[index[:-1]] - predicted[index[1:]]
        if valid is not None:
            steps, later = steps.where(valid, 0.0), later.where(valid[1:], 0.0)
        total = steps.sum(0) + later.sum(0)
        certain = total.isnan() | _is_singular(path.predicted)[index[0]]  # isnan: a certain step, and what is certain after it
        total = total.where(~certain, -torch.inf)
        return total.expand(self.flat.mean.shape[-2]).reshape(self.batch_shape).to(self.flat.mean.dtype)

    # ---------------------------------------------------------------- draws and predictions
    @torch.no_grad()
    def sample(self, num_samples: int = 1, *, seed: int | None = None) -> Tensor:
        """(S, *B, T, h) exact draws of all states given all observations; no gradients."""
        checks.count("num_samples", num_samples)
        noise = gaussian_queries.standard_normal((num_samples, self.num_steps, *self.flat.mean.shape), self.flat.mean, seed)
        draws = gaussian_queries.draw_states(self, noise).transpose(1, 2)
        return draws.reshape(num_samples, *self.batch_shape, self.num_steps, self.num_states)

    def forecast(self, num_steps: int, *, dynamics: Dynamics | None = None, emission=None) -> GaussianForecast:
        """The states, and observations, of the steps behind each row's own end.

        Args:
            num_steps: k, how many.
            dynamics: of these steps, matrices (h, h), (k, h, h) or (k, *B, h, h) and offset None, (h,) or (k, *B, h); None
                keeps the chain's own, which then must not change from step to step.
            emission: gives the observations; None takes the chain's own, if it has one, which must not change either.

        Raises:
            ValueError: where the steps behind the end are not known: dynamics or observations change from step to step.
        """
        other = dynamics is not None or emission is not None
        with torch.set_grad_enabled(torch.is_grad_enabled() and (self._has_gradients or other)):
            return gaussian_queries.forecast(self, num_steps, dynamics, emission)

    def missing_words(self):
        """Not offered.

        Raises:
            ValueError: always.
        """
        raise ValueError("infill is about missing words of discrete states; of Gaussian states ask smooth, or predict_next")

    @torch.no_grad()
    def left_out(self) -> LeftOut:
        """Each observed number less its expectation given all others of its row, and the variance of that; no gradients.

        Raises:
            ValueError: for evidence that is no :class:`~pplseq.distributions.gaussian_types.LinearEvidence`; and where noise
                is lost in rounding beside what predicted states may be.
        """
        return left_out(self)

    def innovations(self, observations: Tensor) -> Innovations:
        """Observations (*B, T, n) minus their predictions from all earlier ones, and the covariances of that."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self._has_gradients):
            return gaussian_queries.innovations(self, observations)


def times(matrices: Tensor, vectors: Tensor, plus: Tensor | None = None, scale: int = 1) -> Tensor:
    """(1 | T, 1 | R, h, h) times (T, R, h), scaled, plus (T, R, h)."""
    if len(matrices) == 1 and matrices.shape[1] == 1:
        if plus is None:
            return vectors @ matrices[0, 0].T
        h = vectors.shape[-1]  # in one go: a long chain's means are too much for the cache
        product = torch.addmm(plus.reshape(-1, h), vectors.reshape(-1, h), matrices[0, 0].T, alpha=scale)
        return product.reshape(plus.shape)
    if matrices.shape[1] == 1:
        product = torch.matmul(vectors, matrices[:, 0].mT)
    else:
        product = torch.matmul(matrices, vectors.unsqueeze(-1)).squeeze(-1)
    return product if plus is None else torch.add(plus, product, alpha=scale)


def _half_log_det(covariances: Tensor) -> Tensor:
    """(N,) of (N, h, h), or () of one for all; -inf where one is singular."""
    factor, info = torch.linalg.cholesky_ex(covariances)
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).where(info == 0, -torch.inf)


def _is_singular(covariances: Tensor) -> Tensor:
    """(N,) of (N, h, h), or () of one for all: whether some direction is certain, but for rounding."""
    deviations = covariances.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    correlations = covariances / (deviations.unsqueeze(-1) * deviations.unsqueeze(-2))
    smallest = torch.linalg.eigvalsh(correlations.nan_to_num(0.0, 0.0, 0.0))[..., 0]  # whose units are all the same
    return smallest <= 8 * covariances.shape[-1] * torch.finfo(smallest.dtype).eps


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.vecdot(left, right)
