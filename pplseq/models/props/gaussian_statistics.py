"""Expected moments of vectors in an online EM: rows of a stream's matrix, as those of words are."""

from __future__ import annotations

import math

import numpy as np

from pplseq import checks

MOST = 700.0  # exp of more overflows; only states that cannot be reached have it
ROUNDING = 1e-13  # of moments, relative to the square of the means


class GaussianStatistics:
    """S of (1, y, y y') in the perturbation states, or of (1, y, y^2) where covariances are diagonal.

    Args:
        loc: (K_p, D) means before the first maximisation. covariances: (K_p, D, D).
        num_sources: K_s. full: whether covariances are full. floor: added to every variance.
    """

    residual = 0.0  # nothing is cut off
    smoothing = 0.0  # nothing is counted

    def __init__(self, loc: np.ndarray, covariances: np.ndarray, num_sources: int, full: bool, floor: float):
        self.num_own, self.size = loc.shape
        self.num_sources, self.num_states, self.full, self.floor = num_sources, num_sources + len(loc), full, floor
        self.start = (np.array(loc, float), np.array(covariances, float))
        self.center: np.ndarray | None = None  # the first vector: moments about a point among the data keep their digits
        self.num_moments = 1 + self.size + (self.size**2 if full else self.size)

    @property
    def num_rows(self) -> int:
        return self.num_own * self.num_moments

    def is_missing(self, y: np.ndarray) -> bool:
        return bool(np.isnan(y[0]))

    def check(self, y) -> np.ndarray:
        """The vector as (D,) floats.

        Raises:
            TypeError, ValueError: for what is none; names y.
        """
        try:
            y = np.asarray(y, dtype=float)
        except (TypeError, ValueError):
            raise TypeError(f"y must be a vector of {self.size} numbers, got {checks.shown(y)}") from None
        if y.shape != (self.size,):
            raise ValueError(f"y must have shape (D,) = ({self.size},), got {y.shape}")
        missing = np.isnan(y)
        if np.isinf(y).any() or (missing.any() and not missing.all()):
            raise ValueError(f"y must be finite, or NaN in all dimensions where it is missing; got {checks.shown(y.tolist())}")
        return y

    def moments(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means (K_p, D) and covariances (K_p, D, D) that maximise; an empty state keeps its first ones."""
        rows = rows[: self.num_rows].reshape(self.num_own, self.num_moments)
        weight = rows[:, :1]
        empty = weight[:, 0] <= 0
        mean = rows / np.where(weight > 0, weight, 1.0)
        shift = mean[:, 1 : 1 + self.size]
        if self.full:
            second = mean[:, 1 + self.size :].reshape(-1, self.size, self.size)
            covariances = second - shift[:, :, None] * shift[:, None, :]
            # the difference of large numbers may have negative eigenvalues
            if ROUNDING * (shift**2).max() > self.floor:
                values, vectors = np.linalg.eigh(covariances)
                values = np.maximum(values, ROUNDING * np.maximum(values[:, -1:], 0.0))
                covariances = (vectors * values[:, None, :]) @ vectors.transpose(0, 2, 1)
            covariances = covariances + self.floor * np.eye(self.size)
        else:
            variances = np.maximum(mean[:, 1 + self.size :] - shift**2, 0.0) + self.floor
            covariances = variances[:, :, None] * np.eye(self.size)
        loc = shift if self.center is None else shift + self.center
        if empty.any():
            loc, covariances = (
                np.where(empty.reshape(-1, *(1,) * (new.ndim - 1)), old, new)
                for old, new in zip(self.start, (loc, covariances), strict=True)
            )
        return loc, covariances

    def parameters(self, rows: np.ndarray, maximized: bool) -> tuple[np.ndarray, np.ndarray]:
        """Means and covariances now."""
        return self.moments(rows) if maximized else self.start

    def likelihood(self, y, rows, maximized, weight, priors) -> tuple[list[float], float]:
        """Densities of every perturbation state, and the log of what they are to be multiplied by.

        They are relative to the largest product with a state's prior, so that none that counts underflows.
        """
        logs = self.log_densities(y, rows, maximized).tolist()
        top = max((math.log(p) + value for p, value in zip(priors, logs, strict=True) if p > 0), default=max(logs))
        return [math.exp(min(value - top, MOST)) for value in logs], top

    def log_densities(self, y: np.ndarray, rows: np.ndarray, maximized: bool) -> np.ndarray:
        """(K_p,) log N(y; loc_k, covariance_k)."""
        loc, covariances = self.parameters(rows, maximized)
        factor = np.linalg.cholesky(covariances)
        error = np.linalg.solve(factor, (y - loc)[:, :, None])[:, :, 0]
        half_log_det = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(1)
        return -0.5 * (error**2).sum(1) - half_log_det - 0.5 * self.size * math.log(2 * math.pi)

    # ---------------------------------------------------------------- a step
    def add(self, rho: np.ndarray, g: float, y: np.ndarray) -> None:
        """Enters a vector of weight g into the stream's rows (R, K)."""
        if self.center is None:
            self.center = y.copy()
        y = y - self.center
        second = np.outer(y, y).reshape(-1) if self.full else y * y
        moments = g * np.concatenate([np.ones(1), y, second])
        rows = rho[: self.num_rows].reshape(self.num_own, self.num_moments, self.num_states)
        own = np.arange(self.num_own)
        rows[own, :, self.num_sources + own] += moments

    def about(self, center: np.ndarray | None, rows: np.ndarray) -> np.ndarray:
        """Rows (K_p (1 + D + ...),) of moments, as they are about another center."""
        if self.center is None or center is None:
            return rows  # nothing was counted
        by, size = self.center - center, self.size
        rows = rows.reshape(self.num_own, self.num_moments).copy()
        weight, first = rows[:, :1], rows[:, 1 : 1 + size]
        if self.full:
            crossed = first[:, :, None] * by
            second = crossed + crossed.transpose(0, 2, 1) + weight[:, :, None] * np.outer(by, by)
            rows[:, 1 + size :] += second.reshape(self.num_own, -1)
        else:
            rows[:, 1 + size :] += 2 * first * by + weight * by**2
        first += weight * by
        return rows.reshape(-1)

    # Vectors have neither hot nor cold parts: all of their statistics are rows.
    def shrink(self, factor: float) -> None:
        """Nothing lies outside of the stream's matrix."""

    def weigh(self, weight: float) -> None:
        """Nothing lies outside of the stream's matrix."""

    def cool(self, rho, rows, sums) -> None:
        """Nothing to move."""

    cool_all = cool

    def grow(self) -> bool:
        """Whether rows were added: never."""
        return False
