"""Linear-Gaussian conditionals, written down and not computed: what programs with Gaussian hidden states are made of."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import constraints

from pplseq.distributions.affine import GaussianVar, compose
from pplseq.distributions.gaussian_types import LOG_2PI, Evidence, GaussianBelief, LinearEvidence, residual_of
from pplseq.distributions.noise import (
    DiagonalNoise,
    FullNoise,
    Noise,
    as_noise,
    noise_of_all_steps,
    same_noise,
    same_tensor,
)
from pplseq.distributions.state import Conditional, broadcast_shapes
from pplseq.distributions.timed import Timed, all_steps


# ------------------------------------------------------------------------------------------------ what an observation says
class LinearEmission:
    """y = M x + residual noise: what observed residuals say about the state.

    Args:
        matrix: (*b, n, h) M. noise: of n numbers.
    """

    def __init__(self, matrix: Tensor, noise: Noise):
        self.matrix, self.noise = matrix, noise

    def residual(self, value: Tensor, offset: Tensor | None) -> Tensor:
        """(*B, n) what :meth:`evidence` is given of an observation and its offset."""
        if offset is not None and isinstance(self.noise, FullNoise | DiagonalNoise):
            return residual_of(value, offset, self.matrix)
        return value if offset is None else value - offset

    def evidence(self, residual: Tensor) -> Evidence | LinearEvidence:
        """log N(residual | M x, D) as a function of x, for residuals (*B, n): nats."""
        noise = self.noise
        if isinstance(noise, FullNoise | DiagonalNoise):
            numbers = noise.variances if isinstance(noise, DiagonalNoise) else noise.covariance
            if self.matrix.dim() == 2 and not noise.batch_shape:
                return LinearEvidence(residual, self.matrix, numbers)
            matrix, covariance = _unexpanded(self.matrix), _unexpanded(noise.covariance)
            kinds = broadcast_shapes(matrix.shape[:-2], covariance.shape[:-2])
            matrix, covariance = (m.expand(*kinds, *m.shape[-2:]).flatten(0, -3) for m in (matrix, covariance))
            which = torch.arange(len(matrix), device=matrix.device).reshape(kinds)
            return LinearEvidence(
                residual, matrix, covariance, which.expand(broadcast_shapes(residual.shape[:-1], kinds))
            )
        weighted = noise.solve(self.matrix)  # D^-1 M
        vector = (residual.unsqueeze(-2) @ weighted).squeeze(-2) if weighted.dim() > 2 else residual @ weighted
        flat = residual.reshape(-1, residual.shape[-1])
        squares = (flat * noise.solve(flat.T).T).sum(-1).reshape(residual.shape[:-1])
        constant = -0.5 * (squares + noise.log_determinant + noise.size * LOG_2PI)
        information = self.matrix.mT @ weighted
        return Evidence(vector, (information + information.mT) / 2, constant)

    def predict(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (*B, n) and covariance (*b, n, n) of y where x ~ N(mean, covariance), offsets left out."""
        return (self.matrix @ mean.unsqueeze(-1)).squeeze(
            -1
        ), self.matrix @ covariance @ self.matrix.mT + self.noise.covariance

    @property
    def timed(self) -> bool:
        """Whether it differs between the steps of a vectorised loop."""
        noise = getattr(self.noise, "covariance" if isinstance(self.noise, FullNoise) else "variances", None)
        return isinstance(self.matrix, Timed) or isinstance(noise, Timed)

    def of_all_steps(self, rows: int) -> LinearEmission:
        """The same with time in front of ``rows`` dimensions of rows, in the place of :class:`Timed` tensors."""
        return LinearEmission(all_steps(self.matrix, 2, rows), noise_of_all_steps(self.noise, rows))

    def same(self, other) -> bool:
        """Whether another emission is this one."""
        return (
            isinstance(other, LinearEmission)
            and same_tensor(self.matrix, other.matrix)
            and same_noise(self.noise, other.noise)
        )


# ------------------------------------------------------------------------------------------------ the conditional
class LinearGaussian(Conditional):
    """N(A x + offset + B u, noise), the state, the matrix and the noise kept apart.

    Under ``KalmanCollapse`` nothing is computed here. Elsewhere, where x is a number, it samples and scores like the
    Gaussian it is.

    Args:
        x: the state: a symbol (under ``KalmanCollapse``), a tensor (*B, h), a :class:`GaussianBelief` about the state of the
            step before (then this is the predictive distribution), or None, which gives N(offset, noise): the first state.
        A: (n, h), or (*B, n, h) where rows differ; None with x = None.
        noise: (n, n) covariance, (n,) variances, or a :class:`~pplseq.distributions.noise.DiagonalMinusLowRank`. Of a first
            state variances may be infinite: an exact diffuse start (:mod:`pplseq.infer.gaussian.diffuse`).
        offset: (n,) or (*B, n), added to the mean.
        inputs: (B, u): the matrix (n, U) and the inputs (*B, U) of this step.

    Raises:
        TypeError, ValueError: for what does not fit together; names the argument.
    """

    has_rsample = True

    def __init__(self, x, A: Tensor | None, noise, offset: Tensor | None = None, inputs=None, batch_shape=None):
        if x is not None and (not isinstance(A, Tensor) or A.dim() < 2):
            what = f"shape {tuple(A.shape)}" if isinstance(A, Tensor) else type(A).__name__
            raise ValueError(f"A must be a matrix (n, h), got {what}")
        state = x.mean if isinstance(x, GaussianBelief) else x
        if state is not None:
            if not isinstance(state, Tensor):
                raise TypeError(f"x must be a state, a tensor, a GaussianBelief or None, got {type(x).__name__}")
            assert isinstance(A, Tensor), "checked above"
            if state.dim() < 1 or state.shape[-1] != A.shape[-1]:
                raise ValueError(
                    f"A must be (n, h) with h = {state.shape[-1] if state.dim() else '?'}, the size of x; got {tuple(A.shape)}"
                )
        self.x: GaussianVar | Tensor | GaussianBelief | None = x
        self.A = A if x is not None else None
        size = _size(noise, offset) if self.A is None else self.A.shape[-2]
        self.noise = as_noise(noise, size)
        if offset is not None and offset.shape[-1:] != (size,):
            raise ValueError(f"offset must be (..., n) with n = {size}, got shape {tuple(offset.shape)}")
        if inputs is not None:
            matrix, values = inputs
            if matrix.shape[-2] != size or matrix.shape[-1] != values.shape[-1]:
                raise ValueError(
                    f"inputs must be a matrix (n, U) with n = {size} and values (..., U); got {tuple(matrix.shape)} and "
                    f"{tuple(values.shape)}"
                )
            driven = values @ matrix.mT
            offset = driven if offset is None else offset + driven
        self.offset = offset
        if batch_shape is None:
            parts = [torch.Size()] if state is None else [torch.Size(state.shape[:-1])]
            for value, dims in ((self.A, 2), (offset, 1)):
                if value is not None:
                    parts.append(value.shape[: value.dim() - dims])
            batch_shape = broadcast_shapes(*parts)
        super().__init__(torch.Size(batch_shape), torch.Size((size,)), validate_args=False)

    @property
    def support(self):
        return constraints.real_vector

    def expand(self, batch_shape, _instance=None):
        new = object.__new__(LinearGaussian)
        new.x, new.A, new.noise, new.offset = self.x, self.A, self.noise, self.offset
        shape = broadcast_shapes(self.batch_shape, torch.Size(batch_shape))
        super(LinearGaussian, new).__init__(shape, self.event_shape, validate_args=False)
        return new

    # ---------------------------------------------------------------- symbolic
    @property
    def state(self):
        """The symbol that the mean depends on, or None."""
        return self.x if isinstance(self.x, GaussianVar) else None

    def affine(self) -> tuple[Tensor, Tensor | None]:
        """(matrix, offset or None) of the mean as a function of the hidden state that ``state`` stands for."""
        x, A = self.state, self.A
        assert x is not None and A is not None, (
            "only the mean of a site that depends on a hidden state is a function of it"
        )
        matrix = compose(A, x)
        if x.shift is None:
            return matrix, self.offset
        shift = (A @ x.offset.unsqueeze(-1)).squeeze(-1)
        return matrix, shift if self.offset is None else shift + self.offset

    def observe(self, value: Tensor) -> tuple[LinearEmission, Tensor]:
        """What is observed of the state: an emission without offset, and the residual (*B, n) that it is given."""
        matrix, offset = self.affine()
        emission = LinearEmission(matrix, self.noise)
        return emission, emission.residual(value, offset)

    def evidence(self, value: Tensor) -> Evidence | LinearEvidence:
        """log p(value | x) as a function of the hidden state: nats."""
        emission, residual = self.observe(value)
        return emission.evidence(residual)

    def predict(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (*B, n) and covariance (*b, n, n) of the site where the hidden state is N(mean, covariance)."""
        matrix, offset = self.affine()
        mean, covariance = LinearEmission(matrix, self.noise).predict(mean, covariance)
        return mean if offset is None else mean + offset, covariance

    def belief(self) -> GaussianBelief:
        """The Gaussian where x is no symbol: what a chain starts with."""
        mean, covariance = self.noise.zero, self.noise.covariance
        if isinstance(self.x, GaussianBelief):
            assert self.A is not None, "given wherever x is"
            mean = (self.A @ self.x.mean.unsqueeze(-1)).squeeze(-1)
            covariance = self.A @ self.x.covariance @ self.A.mT + covariance
        elif self.x is not None:
            assert self.A is not None, "given wherever x is"
            mean = (self.A @ self.x.unsqueeze(-1)).squeeze(-1)
        if self.offset is not None:
            mean = mean + self.offset
        return GaussianBelief(mean.expand(*broadcast_shapes(self.batch_shape, mean.shape[:-1]), -1), covariance)

    # ---------------------------------------------------------------- at concrete values
    def _concrete(self) -> tuple[Tensor, Noise]:
        if self.state is not None:
            raise TypeError(
                "a LinearGaussian of a hidden state has no value outside KalmanCollapse; sample the state, or leave the site "
                "to the handler"
            )
        if isinstance(self.x, GaussianBelief):
            mean, covariance = self.belief()
            return mean, FullNoise(covariance)
        noise = self.noise
        if isinstance(noise, FullNoise | DiagonalNoise) and bool(noise.covariance.isinf().any()):
            raise ValueError(
                "noise is infinite: a diffuse start can be integrated out by KalmanCollapse, but has no draws and no density; "
                "give a start"
            )
        return self.belief().mean, noise

    def rsample(self, sample_shape=()):
        mean, noise = self._concrete()
        return mean + noise.draw(torch.Size(sample_shape) + mean.shape[:-1])

    def log_prob(self, value: Tensor) -> Tensor:
        mean, noise = self._concrete()
        residual = value - mean
        if isinstance(noise, FullNoise | DiagonalNoise) and noise.batch_shape:
            squares = (residual * noise.solve(residual.unsqueeze(-1)).squeeze(-1)).sum(-1)
        else:
            flat = residual.reshape(-1, residual.shape[-1])
            squares = (flat * noise.solve(flat.T).T).sum(-1).reshape(residual.shape[:-1])
        return -0.5 * (squares + noise.log_determinant + noise.size * LOG_2PI)


def _unexpanded(matrix: Tensor) -> Tensor:
    """A matrix (*b, n, k) with dimensions of size 1 where it was expanded."""
    for dim in range(matrix.dim() - 2):
        if matrix.stride(dim) == 0:
            matrix = matrix.narrow(dim, 0, 1)
    return matrix


def _size(noise, offset: Tensor | None) -> int:
    if isinstance(noise, Noise):
        return noise.size
    if isinstance(noise, Tensor) and noise.dim() > 0:
        return noise.shape[-1]
    if offset is not None:
        return offset.shape[-1]
    raise TypeError(f"noise must be a covariance (n, n) or variances (n,), got {type(noise).__name__}")
