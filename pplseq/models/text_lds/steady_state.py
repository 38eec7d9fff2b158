"""The Kalman filter and smoother of a linear dynamical system for words in steady state: every matrix is h x h."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels.kalman import symmetric
from pplseq.kernels.matrix_equations import check_stable, predicted_covariance, stationary_covariance
from pplseq.threads import once


def on_arrays(function: Callable[..., Tensor], *matrices: np.ndarray) -> np.ndarray:
    """A function of tensors, such as the solution of a matrix equation, at arrays."""
    return function(*(torch.from_numpy(np.ascontiguousarray(matrix)) for matrix in matrices)).numpy()


def gram(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left' right in float64, whatever the dtype of the tall (V, h) factors."""
    if left.dtype == np.float64 == right.dtype:
        return left.T @ right
    total = np.zeros((left.shape[1], right.shape[1]))
    for start in range(0, len(left), 8192):  # in pieces: float64 copies of the whole would double the memory
        rows = slice(start, start + 8192)
        total += left[rows].T.astype(np.float64) @ right[rows].astype(np.float64)
    return total


@dataclass(frozen=True, eq=False)
class TextParameters:
    """Parameters of x_t = A x_{t-1} + q, w_t = C x_t + d for whitened words, q ~ N(0, Q), d ~ N(0, D).

    Words are w_t = W (e_i - mu), W = diag(mu)^-1/2, all orthogonal to u = mu^1/2 as are the columns of C.
    D = Psi_0 - C M C' is full rank, diagonal minus low rank, and never formed.

    Args:
        transition: A (h, h). emission: C (V, h), float64 or float32. state_noise: Q (h, h). reduction: M (h, h).
    """

    transition: np.ndarray
    emission: np.ndarray
    state_noise: np.ndarray
    reduction: np.ndarray

    def __post_init__(self):
        h = np.shape(self.emission)[-1]
        for name in ("transition", "state_noise", "reduction"):
            matrix = np.asarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, matrix)
            if matrix.shape != (h, h):
                raise ValueError(f"{name}: expected shape ({h}, {h}) as emission has {h} columns, got {matrix.shape}")
            if not np.isfinite(matrix).all():
                raise ValueError(f"{name}: expected finite numbers, got NaN or infinite ones")
        if np.ndim(self.emission) != 2:
            raise ValueError(f"emission: expected shape (V, h), got {np.shape(self.emission)}")

    @property
    def num_states(self) -> int:
        """h."""
        return len(self.transition)

    def rebased(self) -> TextParameters:
        """The same model in coordinates where the state noise Q is the identity: x <- L^-1 x, L L' = Q.

        Raises:
            ValueError: if Q is not positive definite.
        """
        try:
            root = np.linalg.cholesky(symmetric(self.state_noise))
        except np.linalg.LinAlgError as error:
            smallest = np.linalg.eigvalsh(symmetric(self.state_noise))[0]
            raise ValueError(
                f"state_noise: expected a positive definite matrix, got smallest eigenvalue {smallest:.3g}"
            ) from error
        inverse = np.linalg.inv(root)
        return TextParameters(
            inverse @ self.transition @ root,
            self.emission @ root.astype(self.emission.dtype),
            np.eye(self.num_states),
            symmetric(inverse @ self.reduction @ inverse.T),
        )

    def scaled(self, scale: float) -> TextParameters:
        """The model with emission scale * C; A, Q and M stay, so that D = Psi_0 - scale^2 C M C'."""
        emission = self.emission * self.emission.dtype.type(scale)
        return TextParameters(self.transition, emission, self.state_noise, self.reduction)


class Head(NamedTuple):
    """The exact filter's first steps: x_t = F_t x_{t-1} + Sigma_0(t) b_{w_t}; from then on the last entry holds."""

    filter_matrices: np.ndarray  # (n, h, h) F_t; F_1 meets a zero mean
    covariances: np.ndarray  # (n, h, h) Sigma_0(t) = Cov(x_t | w_1 ... w_t)
    predicted: np.ndarray  # (n, h, h) Sigma_1(t) = Cov(x_t | w_1 ... w_{t-1})


def largest_reduction(emission_gram: np.ndarray, reduction: np.ndarray) -> float:
    """Largest eigenvalue of C M C', from C'C and M; D = Psi_0 - C M C' is positive definite iff it is below 1."""
    values, vectors = np.linalg.eigh(symmetric(emission_gram))
    root = vectors * np.sqrt(values.clip(0.0))
    return float(np.linalg.eigvalsh(symmetric(root.T @ reduction @ root))[-1])


class SteadyState:
    """Filter, smoother and innovations of :class:`TextParameters` in the long run.

        filter:    x_t = H x_{t-1} + K w_t,  H = A - K C A;     smoother:  xs_t = J xs_{t+1} + P x_t,  P = I - J A

    Attributes (h x h each; equations of the paper in brackets):
        gram: C'C. precision_factor: R = (I - C'C M)^-1, for C'D^-1 = R C'. information: Lam = C'D^-1C.
        predicted: Sigma_1 = Cov(x_t | past words), of the Riccati equation. filtered: Sigma_0 = Cov(x_t | words to t).
        filter_matrix: H (4). gain_factor: N with K' = C N (6). smoother: J (5). smoother_input: P.
        innovation_weight: B in S^-1 = I - C B C' on the complement of u, S = Psi_0 + C (Sigma_1 - M) C' (7, 32).
        log_det: log |S| on that complement. stationary: Sigma_inf, Cov(x_t) (12). smoothed: V_T = Cov(x_t | all words);
        smoothed_lag_one: Cov(x_{t+1}, x_t | all words).

    Args:
        parameters: see there.
        emission_gram: C'C if known.

    Raises:
        ValueError: if A is not stable, or D is not positive definite.

    Source:
        Belanger & Kakade (2015), section 3.1 and appendix A.2, with Sigma_1 from the Riccati instead of the Lyapunov
        equation, and the inverse-free form of (32), since Sigma_1 - M is in general not invertible.
    """

    def __init__(self, parameters: TextParameters, *, emission_gram: np.ndarray | None = None) -> None:
        a, m = parameters.transition, symmetric(parameters.reduction)
        self.parameters = parameters
        self.transition, self.state_noise, self.reduction = a, symmetric(parameters.state_noise), m
        self.gram = symmetric(
            gram(parameters.emission, parameters.emission) if emission_gram is None else emission_gram
        )
        if not np.isfinite(self.gram).all():
            raise ValueError("emission: expected finite numbers, got NaN or infinite ones")
        check_stable("transition", torch.from_numpy(a))
        self.largest_reduction = largest_reduction(self.gram, m)
        if not self.largest_reduction < 1.0:
            raise ValueError(
                "parameters: the emission noise D = Psi_0 - C M C' is not positive definite; expected the largest "
                f"eigenvalue of C'C M below 1, got {self.largest_reduction:.9g}; scale C down (parameters.scaled)"
            )
        identity = np.eye(len(a))
        self.precision_factor = np.linalg.inv(identity - self.gram @ m)
        self.information = symmetric(self.precision_factor @ self.gram)
        self.predicted = on_arrays(predicted_covariance, a, self.state_noise, self.information)
        self.filtered = symmetric(np.linalg.solve(identity + self.predicted @ self.information, self.predicted))
        self.filter_matrix = a - self.filtered @ (self.information @ a)
        self.gain_factor = self.precision_factor.T @ self.filtered
        try:
            self.smoother = np.linalg.solve(self.predicted, a @ self.filtered).T
        except np.linalg.LinAlgError as error:
            raise ValueError(
                "state_noise: the predicted covariance is singular; expected Q positive definite"
            ) from error
        self.smoother_input = identity - self.smoother @ a
        excess = symmetric(self.predicted - m)
        inner = identity + self.gram @ excess
        self.innovation_weight = symmetric(np.linalg.solve(inner.T, excess).T)
        self.log_det = float(np.linalg.slogdet(inner)[1])

    @once
    def smoothed(self) -> np.ndarray:
        rest = symmetric(self.filtered - self.smoother @ self.predicted @ self.smoother.T)
        return on_arrays(stationary_covariance, self.smoother, rest)

    @once
    def smoothed_lag_one(self) -> np.ndarray:
        return self.smoothed @ self.smoother.T

    @once
    def stationary(self) -> np.ndarray:
        return on_arrays(stationary_covariance, self.transition, self.state_noise)

    def gain(self) -> np.ndarray:
        """K (h, V)."""
        return (self.parameters.emission @ self.gain_factor.astype(self.parameters.emission.dtype)).T

    def head(self, start: np.ndarray | None = None, *, tolerance: float = 1e-14, max_steps: int = 10_000) -> Head:
        """The exact filter of a short sequence, until it is in steady state; it does not depend on the words.

        Args:
            start: covariance of x_1 before the first word; None for the stationary one.
            tolerance: relative change of the predicted covariance that counts as steady.
            max_steps: the longest head.
        """
        predicted = self.stationary if start is None else symmetric(np.asarray(start, dtype=np.float64))
        identity = np.eye(len(predicted))
        steps = []
        for _ in range(max_steps):
            filtered = symmetric(np.linalg.solve(identity + predicted @ self.information, predicted))
            steps.append(((identity - filtered @ self.information) @ self.transition, filtered, predicted))
            following = symmetric(self.transition @ filtered @ self.transition.T) + self.state_noise
            if np.linalg.norm(following - predicted) <= tolerance * np.linalg.norm(following):
                break
            predicted = following
        return Head(*(np.stack(matrices) for matrices in zip(*steps, strict=True)))
