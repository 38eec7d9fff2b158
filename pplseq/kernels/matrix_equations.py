"""Matrix equations of linear systems by doubling: Riccati, Stein and Lyapunov, in a handful of h x h products."""

from __future__ import annotations

import numpy as np

MAX_DOUBLINGS = 60  # 2^60 steps: a spectral radius of 1 - 1e-15 has died out


def spectral_radius(matrix: np.ndarray) -> float:
    """Largest modulus of the eigenvalues."""
    return float(np.abs(np.linalg.eigvals(matrix)).max(initial=0.0))


def symmetric(matrix: np.ndarray) -> np.ndarray:
    """The symmetric part of a matrix (of the last two dimensions)."""
    return (matrix + np.swapaxes(matrix, -1, -2)) / 2


def check_stable(name: str, matrix: np.ndarray) -> None:
    """Raises ValueError unless all eigenvalues lie inside the unit circle."""
    if not np.isfinite(matrix).all():
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinite ones")
    radius = spectral_radius(matrix)
    if not radius < 1.0:
        raise ValueError(
            f"{name}: expected a stable matrix, all eigenvalues of modulus below 1, got spectral radius {radius:.9g}; "
            "clip its eigenvalues (clip_eigenvalues)"
        )


class SteinEquation:
    """X = A X B + C for fixed A and B: the powers A^(2^i), B^(2^i) are kept, so every further C costs products only.

        X = sum_k A^k C B^k;   X_{i+1} = X_i + A^(2^i) X_i B^(2^i)

    Args:
        left: A (n, n). right: B (m, m). The product of their spectral radii must be below 1.

    Raises:
        ValueError: if the sum does not converge.

    Source:
        R. A. Smith (1968), Matrix equation XA + BX = C, SIAM J. Appl. Math. 16: the doubling of the squared Smith method.
    """

    def __init__(self, left: np.ndarray, right: np.ndarray) -> None:
        if not spectral_radius(left) * spectral_radius(right) < 1.0:
            raise ValueError(
                "left, right: expected spectral radii whose product is below 1, "
                f"got {spectral_radius(left):.9g} and {spectral_radius(right):.9g}; X = A X B + C has no limit"
            )
        self.powers: list[tuple[np.ndarray, np.ndarray]] = []
        for _ in range(MAX_DOUBLINGS):
            self.powers.append((left, right))
            if np.linalg.norm(left) * np.linalg.norm(right) < 1e-18:
                break
            left, right = left @ left, right @ right

    def solve(self, constant: np.ndarray) -> np.ndarray:
        """X for one C (n, m)."""
        solution = constant
        for left, right in self.powers:
            solution = solution + left @ solution @ right
        return solution


def solve_stein(left: np.ndarray, right: np.ndarray, constant: np.ndarray) -> np.ndarray:
    """X = A X B + C. See :class:`SteinEquation`."""
    return SteinEquation(left, right).solve(constant)


def solve_lyapunov(transition: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The discrete Lyapunov equation X = A X A' + Q: the stationary covariance of x_t = A x_{t-1} + q.

    Args:
        transition: A (h, h), stable. noise: Q (h, h), symmetric.

    Raises:
        ValueError: if A is not stable.
    """
    check_stable("transition", transition)
    return symmetric(solve_stein(transition, transition.T, noise))


def solve_dare(transition: np.ndarray, information: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The filter's Riccati equation X = A (X^-1 + Lam)^-1 A' + Q, in information form, by structured doubling.

    Args:
        transition: A (h, h), stable. information: Lam = C'D^-1C (h, h). noise: Q (h, h), positive semidefinite.

    Returns:
        X (h, h): covariance of the state given the past, Cov(x_t | w_1 ... w_{t-1}), in the long run.

    Raises:
        ValueError: if A is not stable, or the doubling does not converge.
    """
    import torch

    from pplseq.kernels.riccati import predicted_covariance

    check_stable("transition", transition)
    matrices = (torch.from_numpy(np.ascontiguousarray(m)) for m in (transition, symmetric(noise), symmetric(information)))
    return predicted_covariance(*matrices).numpy()


def clip_eigenvalues(matrix: np.ndarray, radius: float) -> np.ndarray:
    """A matrix with eigenvalues of modulus at most ``radius``; those inside stay where they are.

    The eigenvectors are kept. Where they are too ill-conditioned for that, the whole matrix is scaled.
    """
    if not np.isfinite(matrix).all():
        raise ValueError("matrix: expected finite numbers, got NaN or infinite ones")
    values, vectors = np.linalg.eig(matrix)
    moduli = np.abs(values)
    if moduli.max(initial=0.0) <= radius:
        return matrix
    if np.linalg.cond(vectors) < 1e10:
        values = values * np.minimum(1.0, radius / np.maximum(moduli, radius / 2))
        clipped = np.linalg.solve(vectors.T, (vectors * values).T).T.real
        if spectral_radius(clipped) <= radius * (1 + 1e-9):
            return clipped
    return matrix * (radius / moduli.max())
