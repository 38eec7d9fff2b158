"""Transitions and emissions of small state spaces: full matrices, one for all steps or one a step."""

from __future__ import annotations

import math
from collections.abc import Callable

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from pplseq.distributions.state import Emission, Transition, broadcast_shapes, looks, take_rows
from pplseq.distributions.stationary import stationary_log_probs
from pplseq.kernels import twice
from pplseq.kernels.gaussian import normal_densities
from pplseq.kernels.log_semiring import in_float32

DENSITY_CELLS = 1 << 18  # numbers in one temporary of a Gaussian's densities


def _check_states(name: str, value: Tensor, shape: str, sizes: tuple[int, ...]) -> None:
    if value.dim() < len(sizes) or tuple(value.shape[-len(sizes) :]) != sizes:
        raise ValueError(f"{name} must have shape (..., {shape}) = (..., {sizes}), got {tuple(value.shape)}")


def check_normalised(name: str, log_probs: Tensor) -> None:
    """Rows must sum to one, or be -inf throughout; where numbers are looked at."""
    if not looks() or not log_probs.numel():
        return
    total = torch.logsumexp(in_float32(log_probs.detach()), -1)
    near = max(1e-3, 8 * torch.finfo(log_probs.dtype).eps) if log_probs.is_floating_point() else 1e-3
    if twice.holds((total.abs() < near).all()):
        return
    off = ~((total.abs() < near) | torch.isneginf(total))  # NaN is off
    if twice.holds(off.any()):
        raise ValueError(
            f"{name} must hold log-probabilities that sum to one in each row; a row sums to {total[off][0].exp():.4g}. "
            "Apply log_softmax(-1) to scores, or log() to probabilities"
        )


class DenseTransition(Transition):
    """One matrix for all steps: p(z_1) = initial, p(z_t | z_{t-1}) = matrix[z_{t-1}].

    Args:
        initial: (*b, Z) log-probabilities of the first state.
        matrix: (*b, Z, Z) log transition probabilities, [from, to]; -inf forbids a transition.
        regime_of: (Z,) the regime of each state, where an observed state says the regime only; None: it says the state.
    """

    def __init__(self, initial: Tensor, matrix: Tensor, regime_of: Tensor | None = None):
        if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2]:
            raise ValueError(f"matrix must be square, (..., Z, Z), got {tuple(matrix.shape)}")
        _check_states("initial", initial, "Z", matrix.shape[-1:])
        check_normalised("initial", initial)
        check_normalised("matrix", matrix)
        self.initial, self.matrix, self.regime_of = in_float32(initial), in_float32(matrix), regime_of
        self.num_states, self.device = matrix.shape[-1], matrix.device
        self.batch_shape = broadcast_shapes(initial.shape[:-1], matrix.shape[:-2])

    @classmethod
    def from_probs(cls, initial: Tensor, matrix: Tensor) -> DenseTransition:
        """The same from probabilities; zeros are allowed."""
        return cls(in_float32(initial).log(), in_float32(matrix).log())

    @classmethod
    def stationary(cls, matrix: Tensor) -> DenseTransition:
        """One that starts in the stationary distribution of its matrix (Z, Z): p with p A = p; gradients flow.

        Raises:
            ValueError: where there is more than one, as the states fall into classes that never meet.
        """
        if matrix.dim() != 2:
            raise ValueError(f"matrix must be (Z, Z) for a stationary distribution, got {tuple(matrix.shape)}")
        return cls(stationary_log_probs(matrix), matrix)

    def initial_log_prob(self):
        return self.initial

    def rows(self, previous, inputs=None):
        return self.initial if previous is None else take_rows(self.matrix, previous)


class StepTransition(Transition):
    """A matrix a step, given that step's inputs: p(z_t | z_{t-1}, u_t) = matrix_of(u_t)[z_{t-1}].

    Args:
        initial: (*b, Z) log p(z_1), or a function of the first inputs (*B, U) -> (*B, Z).
        matrix_of: inputs (*B, U) -> (*B, Z, Z) log transition probabilities.
        num_states: Z.
        input_dims: trailing dimensions of one step's inputs (1 for a feature vector, 0 for a symbol).
    """

    def __init__(
        self,
        initial: Tensor | Callable[[Tensor | None], Tensor],
        matrix_of: Callable[[Tensor], Tensor],
        num_states: int,
        input_dims: int = 1,
        device: torch.device | str = "cpu",
    ):
        self.initial, self.matrix_of = initial, matrix_of
        self.num_states, self.input_dims, self.device = num_states, input_dims, torch.device(device)
        self.batch_shape = initial.shape[:-1] if isinstance(initial, Tensor) else torch.Size()

    def initial_log_prob(self, inputs: Tensor | None = None):
        return in_float32(self.initial if isinstance(self.initial, Tensor) else self.initial(inputs))

    def matrices(self, inputs: Tensor | None) -> Tensor:
        """(T-1, *B, Z, Z) for inputs (T-1, *B, U) of steps 2..T."""
        if inputs is None:
            raise ValueError("inputs: a StepTransition needs transition(z, inputs=u[:, t]) at every step, got None")
        return in_float32(self.matrix_of(inputs))

    def rows(self, previous, inputs=None):
        if previous is None:
            return self.initial_log_prob(inputs)
        return take_rows(self.matrices(inputs), previous)


class CategoricalEmission(Emission):
    """p(x | z) = exp(log_probs[z, x]), a table of words or symbols.

    Args:
        log_probs: (*b, Z, V) log-probabilities, rows summing to one; -inf forbids.
    """

    def __init__(self, log_probs: Tensor):
        if log_probs.dim() < 2:
            raise ValueError(f"log_probs must have shape (..., Z, V), got {tuple(log_probs.shape)}")
        check_normalised("log_probs", log_probs)
        self.log_probs = in_float32(log_probs)
        self.num_states, self.num_words = log_probs.shape[-2:]
        self.batch_shape = log_probs.shape[:-2]
        self.support_constraint = constraints.integer_interval(0, self.num_words - 1)

    @classmethod
    def from_probs(cls, probs: Tensor) -> CategoricalEmission:
        """The same from probabilities; zeros are allowed."""
        return cls(in_float32(probs).log())

    def log_likelihood(self, obs):
        if self.log_probs.dim() == 2:
            return self.log_probs.T[obs]
        batch = broadcast_shapes(self.batch_shape, obs.shape)
        index = obs.expand(batch)[..., None, None].expand(*batch, self.num_states, 1)
        return self.log_probs.expand(*batch, *self.log_probs.shape[-2:]).gather(-1, index).squeeze(-1)

    def word_log_prob(self, state_log_prob: Tensor) -> Tensor:
        """(*B, V) log p(x) for states (*B, Z) distributed as given: log sum_z p(z) p(x | z)."""
        return torch.logsumexp(state_log_prob.unsqueeze(-1) + self.log_probs, -2)

    def distribution(self, state):
        return dist.Categorical(logits=take_rows(self.log_probs, state), validate_args=False)


class GaussianEmission(Emission):
    """p(x | z) = Normal(loc[z], covariance[z]) over (D,) vectors. A coordinate that is NaN is missing: the likelihood is that
    of the others, and a vector of NaN alone says nothing.

    Args:
        loc: (*b, Z, D).
        scale: (*b, Z, D) standard deviations of a diagonal covariance, or None.
        scale_tril: (*b, Z, D, D) Cholesky factors of full covariances, or None. Exactly one of the two.
    """

    def __init__(self, loc: Tensor, scale: Tensor | None = None, scale_tril: Tensor | None = None):
        if (scale is None) == (scale_tril is None):
            raise ValueError("scale, scale_tril: give exactly one of them")
        self.loc = in_float32(loc)
        self.scale, self.scale_tril = (None if part is None else in_float32(part) for part in (scale, scale_tril))
        self.num_states, size = loc.shape[-2:]
        self.event_shape = torch.Size([size])
        spread, dims = (scale, 2) if scale is not None else (scale_tril, 3)
        assert spread is not None, "one of the two: see above"
        self.batch_shape = broadcast_shapes(loc.shape[:-2], spread.shape[:-dims])
        self.support_constraint = constraints.real_vector

    def _all(self):
        if self.scale is not None:
            return dist.Normal(self.loc, self.scale, validate_args=False).to_event(1)
        return dist.MultivariateNormal(self.loc, scale_tril=self.scale_tril, validate_args=False)

    def log_likelihood(self, obs):
        if obs.shape[-1:] != self.event_shape:
            raise ValueError(f"obs must end in dimension D = {self.event_shape[0]}, got shape {tuple(obs.shape)}")
        obs = in_float32(obs)
        if twice.holds(obs.detach().isnan().any()):
            return self._partly_seen(obs)
        rows = max(1, DENSITY_CELLS // (self.num_states * obs.shape[-1]))
        if not self.batch_shape and self.scale is not None:
            if normal_densities.applies(obs, self.loc, self.scale):
                flat = normal_densities.log_densities(obs.reshape(-1, obs.shape[-1]), self.loc, self.scale)
                return flat.reshape(*obs.shape[:-1], self.num_states)
            if obs.numel() <= rows * obs.shape[-1]:
                return normal_densities.readable(obs, self.loc, self.scale)
        density = self._all()
        if self.batch_shape or obs.numel() <= rows * obs.shape[-1]:
            return density.log_prob(obs.unsqueeze(-2))
        # in pieces that stay in the cache: differences of every observation from every mean are many numbers
        pieces = obs.reshape(-1, obs.shape[-1]).unsqueeze(-2).split(rows)
        return torch.cat([density.log_prob(piece) for piece in pieces]).reshape(*obs.shape[:-1], self.num_states)

    def _partly_seen(self, obs: Tensor) -> Tensor:
        """(*B, Z) where coordinates are missing."""
        missing = obs.isnan()
        apart = (torch.where(missing, 0.0, obs).unsqueeze(-2) - self.loc).masked_fill(missing.unsqueeze(-2), 0.0)
        nothing = 0.5 * math.log(2 * math.pi) * missing.to(self.loc).sum(-1, keepdim=True)  # of a standard normal at its mean
        if self.scale is not None:
            density = dist.Normal(torch.zeros_like(self.loc), self.scale, validate_args=False).log_prob(apart)
            return density.masked_fill(missing.unsqueeze(-2), 0.0).sum(-1)
        assert self.scale_tril is not None, "one of the two: see __init__"
        covariance = self.scale_tril @ self.scale_tril.mT
        patterns, of_row = missing.flatten(0, -2).unique(dim=0, return_inverse=True)
        of_row, total = of_row.reshape(missing.shape[:-1]), 0.0
        for number, gone in enumerate(patterns):
            # what is missing is a standard normal of its own, at its mean
            alone = covariance.masked_fill(gone | gone.unsqueeze(-1), 0.0) + torch.diag(gone.to(covariance))
            tril = self.scale_tril if not bool(gone.any()) else torch.linalg.cholesky(alone)
            density = dist.MultivariateNormal(torch.zeros_like(self.loc), scale_tril=tril, validate_args=False)
            here = (of_row == number).unsqueeze(-1)
            if self.batch_shape:
                total = total + torch.where(here, density.log_prob(apart), 0.0)
            else:
                rows = here.flatten()
                own = density.log_prob(apart.reshape(-1, *apart.shape[-2:])[rows])
                found = own.new_zeros(len(rows), self.num_states).index_put((rows.nonzero().squeeze(-1),), own)
                total = total + found.reshape(*here.shape[:-1], -1)
        return total + nothing

    def distribution(self, state):
        loc = take_rows(self.loc, state)
        if self.scale is not None:
            return dist.Normal(loc, take_rows(self.scale, state), validate_args=False).to_event(1)
        assert self.scale_tril is not None, "one of the two: see __init__"
        size = self.event_shape[0]
        tril = take_rows(self.scale_tril.flatten(-2), state)
        return dist.MultivariateNormal(loc, scale_tril=tril.reshape(*tril.shape[:-1], size, size), validate_args=False)
