"""What a fitted linear dynamical system tells: states, predictions, forecasts, for whole data sets."""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels.matrix_equations import symmetric
from pplseq.models.batch import as_given


class StateMoments(NamedTuple):
    """Means (B, T, h) and covariances (B, T, h, h) of the states at each step; lists of them for ragged data."""

    means: Tensor | list[Tensor]
    covariances: Tensor | list[Tensor]


class Forecast(NamedTuple):
    """What comes after the observations: p(x_{T+k} | x_1..x_T), k = 1..K.

    means: (B, K, n). covariances: (B, K, n, n). state_means: (B, K, h). state_covariances: (B, K, h, h).
    """

    means: Tensor
    covariances: Tensor
    state_means: Tensor
    state_covariances: Tensor


class LDSQueries:
    """Mixed into :class:`LDS`; data come and results go as in :class:`~pplseq.models.estimator.Estimator`."""

    def filter(self, x, lengths=None, *, inputs=None) -> StateMoments:
        """p(z_t | x_1..x_t) at each step."""
        _, chain = self._posterior(x, lengths, inputs=inputs)
        return self._moments(chain.filtered_states(), x)

    def smooth(self, x, lengths=None, *, inputs=None) -> StateMoments:
        """p(z_t | x_1..x_T) at each step."""
        _, chain = self._posterior(x, lengths, inputs=inputs)
        return self._moments(chain.smoothed_states(), x)

    def transform(self, x, lengths=None, *, inputs=None):
        """(B, T, h) E[z_t | x]: smoothed means, as features."""
        _, chain = self._posterior(x, lengths, inputs=inputs)
        return as_given(chain.smoothed_states().means, x)

    def fit_transform(self, x, lengths=None, *, inputs=None, **options):
        """:meth:`fit`, then :meth:`transform` of the same data."""
        return self.fit(x, lengths, inputs=inputs, **options).transform(x, lengths, inputs=inputs)

    def predict(self, x, lengths=None, *, inputs=None):
        """(B, T, n) E[x_t | x_1..x_{t-1}]: each observation as predicted from those before it."""
        return self.predict_distribution(x, lengths, inputs=inputs).means

    def predict_distribution(self, x, lengths=None, *, inputs=None) -> StateMoments:
        """Means (B, T, n) and covariances (B, T, n, n) of p(x_t | x_1..x_{t-1}); their errors are the innovations."""
        batch, chain = self._posterior(x, lengths, inputs=inputs)
        return self._observations(chain.predicted_states(), batch, x)

    def reconstruct(self, x, lengths=None, *, inputs=None) -> StateMoments:
        """Means (B, T, n) and covariances (B, T, n, n) of emission z_t + offsets given all of x: its signal without noise."""
        batch, chain = self._posterior(x, lengths, inputs=inputs)
        return self._observations(chain.smoothed_states(), batch, x, noise=False)

    @torch.no_grad()
    def forecast(self, x, num_steps: int, lengths=None, *, inputs=None, future_inputs=None) -> Forecast:
        """p(x_{T+1}), ..., p(x_{T+K}) given x.

        Args:
            x, lengths, inputs: the past. num_steps: K.
            future_inputs: (B, K, U), or (K, U) for all rows: those of the steps to come.

        Returns:
            Tensors, one row for each sequence: they all end K steps after it.

        Raises:
            ValueError: for future inputs that are missing or of another shape.
        """
        if not isinstance(num_steps, Integral) or num_steps < 1:
            raise ValueError(f"num_steps must be a positive integer, got {num_steps!r}")
        batch, chain = self._posterior(x, lengths, inputs=inputs)
        rows = len(batch.x)
        future = self._future_inputs(future_inputs, (rows, num_steps))
        belief = chain.filtered()
        mean, covariance = belief.mean, belief.covariance.expand(rows, self.num_states, self.num_states)
        transition, noise = self.transition, self.state_noise
        means, covariances = [], []
        for step in range(num_steps):
            mean = mean @ transition.T + self._shift("transition", future, step)
            covariance = symmetric(transition @ covariance @ transition.T + noise)
            means.append(mean)
            covariances.append(covariance)
        means, covariances = torch.stack(means, 1), torch.stack(covariances, 1)
        emission = self.emission
        seen = means @ emission.T + self._shift("emission", future)
        return Forecast(seen, emission @ covariances @ emission.T + self.emission_noise, means, covariances)

    def _future_inputs(self, inputs, shape) -> Tensor | None:
        if inputs is not None:
            inputs = torch.as_tensor(np.asarray(inputs) if not isinstance(inputs, Tensor) else inputs).to(
                self.reference
            )
            if inputs.dim() == 2:
                inputs = inputs.expand(shape[0], *inputs.shape)
        try:
            return self.check_inputs(inputs, shape, None)
        except ValueError as error:
            raise ValueError(f"future_inputs: {error}") from None

    def _shift(self, kind: str, inputs: Tensor | None, step: int | None = None) -> Tensor:
        """offset + inputs of a regression: (B, K, n), or (B, n) at one step, or what broadcasts to it."""
        offset, weights = getattr(self, f"{kind}_offset"), getattr(self, f"{kind}_inputs")
        total = self.reference.new_zeros(1) if offset is None else offset
        if weights is not None:
            total = total + (inputs if step is None else inputs[:, step]) @ weights.T
        return total

    def _moments(self, states, x) -> StateMoments:
        return StateMoments(as_given(states.means, x), as_given(states.covariances.dense(), x))

    @torch.no_grad()
    def _observations(self, states, batch, x, noise: bool = True) -> StateMoments:
        emission, shift = self.emission, self._shift("emission", batch.inputs)
        means = states.means @ emission.T + shift
        covariances = emission @ states.covariances.dense() @ emission.T
        if noise:
            covariances = covariances + self.emission_noise
        return StateMoments(as_given(means, x), as_given(covariances, x))
