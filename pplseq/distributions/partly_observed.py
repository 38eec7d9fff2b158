"""A linear Gaussian observation of which some coordinates are missing, others at every step and in every row."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import constraints

from pplseq.distributions.gaussian_types import LinearEvidence, residual_of
from pplseq.distributions.noise import same_tensor
from pplseq.distributions.state import Conditional
from pplseq.distributions.timed import Timed, all_steps


class PartlyObserved(Conditional):
    """p(observed coordinates of y | z) where y ~ N(C z + offset + inputs, noise).

    Missing coordinates are integrated out: what is left is Gaussian, with the observed rows of C and block of the noise.

    Args:
        state: (*B, h), or the symbol of a state under ``KalmanCollapse``.
        matrix: (n, h) C, or (*B, n, h). noise: (n, n), (n,) variances, or (*B, n, n).
        offset: (n,) or None. inputs: (matrix (n, U), values (*B, U)) or None.
        observed: (*B, n) bool. Values at other coordinates must be finite; they do not count.
    """

    def __init__(self, state, matrix, noise, offset=None, inputs=None, *, observed, batch_shape=None):
        self.state, self.matrix, self.noise = state, matrix, noise
        self.offset, self.inputs, self.observed = offset, inputs, observed
        shape = torch.Size(state.shape[:-1]) if batch_shape is None else torch.Size(batch_shape)
        super().__init__(shape, torch.Size(matrix.shape[-2:-1]), validate_args=False)

    @property
    def support(self):
        return constraints.real_vector

    def expand(self, batch_shape, _instance=None):
        shape = torch.broadcast_shapes(self.batch_shape, torch.Size(batch_shape))
        return PartlyObserved(
            self.state, self.matrix, self.noise, self.offset, self.inputs, observed=self.observed, batch_shape=shape
        )

    @property
    def timed(self) -> bool:
        """Whether something differs between the steps of a vectorised loop."""
        return any(isinstance(v, Timed) for v in (self.matrix, self.noise, self.offset, self.observed, *(self.inputs or ())))

    def of_all_steps(self, rows: int) -> PartlyObserved:
        """The same with time in front of ``rows`` dimensions of rows, in the place of :class:`Timed` tensors."""
        inputs = None if self.inputs is None else (self.inputs[0], all_steps(self.inputs[1], 1, rows))
        offset, observed = all_steps(self.offset, 1, rows), all_steps(self.observed, 1, rows)
        matrix, noise = all_steps(self.matrix, 2, rows), all_steps(self.noise, 2, rows)
        return PartlyObserved(
            self.state, matrix, noise, offset, inputs, observed=observed, batch_shape=self.batch_shape
        )

    @property
    def emission(self) -> PartlyObserved:
        """What gives evidence: itself, as no two steps need observe the same coordinates."""
        return self

    @property
    def _shift(self) -> Tensor:
        shift = self.noise.new_zeros(1) if self.offset is None else self.offset
        return shift if self.inputs is None else shift + self.inputs[1] @ self.inputs[0].T

    def evidence(self, value: Tensor) -> LinearEvidence:
        """log p(observed coordinates of value (*B, n) | z) as a function of z."""
        shape = torch.broadcast_shapes(value.shape, self.observed.shape)
        observed = self.observed.expand(shape)
        residual = torch.where(observed, residual_of(value, self._shift, self.matrix), 0.0)
        matrix, noise = self.matrix, self.noise
        if matrix.dim() > 2 or noise.dim() > 2:
            matrix, noise = (
                m.expand(*shape[:-1], *m.shape[-2:]).flatten(0, -3) if m.dim() > 2 else m for m in (matrix, noise)
            )
            patterns = observed.reshape(-1, shape[-1])
            which = torch.arange(len(patterns), device=patterns.device)
        else:  # few patterns occur
            patterns, which = torch.unique(observed.reshape(-1, shape[-1]), dim=0, return_inverse=True)
        return LinearEvidence(residual, matrix, noise, which.reshape(shape[:-1]), patterns)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(observed coordinates of value | state), nats."""
        vector, matrix, constant = self.evidence(value).dense()
        quadratic = (matrix @ self.state.unsqueeze(-1)).squeeze(-1)
        result = constant + ((vector - quadratic / 2) * self.state).sum(-1)
        return result.expand(torch.broadcast_shapes(result.shape, self.batch_shape))

    def predicts_like(self, other) -> bool:
        """Whether another one's :meth:`predict` is the same, and inputs play no part."""
        pairs = (self.matrix, other.matrix), (self.noise, other.noise), (self.offset, other.offset)
        return self.inputs is None and other.inputs is None and all(same_tensor(*pair) for pair in pairs)

    def predict(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (..., n) and covariance (..., n, n) of all of y, without inputs, where z ~ N(mean, covariance)."""
        shift = 0.0 if self.offset is None else self.offset
        noise = torch.diag(self.noise) if self.noise.dim() == 1 else self.noise
        matrix = self.matrix
        return (matrix @ mean.unsqueeze(-1)).squeeze(-1) + shift, matrix @ covariance @ matrix.mT + noise

    def sample(self, sample_shape=()):
        """All of y, the coordinates included that are not observed."""
        with torch.no_grad():
            mean = (self.matrix @ self.state.unsqueeze(-1)).squeeze(-1) + self._shift
            noise = torch.diag(self.noise) if self.noise.dim() == 1 else self.noise
            shape = torch.Size(sample_shape) + self.batch_shape + self.event_shape
            return torch.distributions.MultivariateNormal(mean.expand(shape), noise, validate_args=False).sample()
