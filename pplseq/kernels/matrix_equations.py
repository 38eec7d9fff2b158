"""Matrix equations of linear systems by doubling: Riccati, Stein and Lyapunov, in a handful of h x h products.

What the covariances of a time-invariant linear Gaussian chain tend to follows from them. Everything but clipping is
differentiable, and in the information form: the observations enter as Lam = C'D^-1C, (h, h).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pplseq.kernels.kalman import symmetric

MAX_DOUBLINGS = 60  # 2^60 steps: a spectral radius of 1 - 1e-15 has died out

def spectral_radius(matrix: Tensor) -> float:
    """Largest modulus of the eigenvalues."""
    return float(torch.linalg.eigvals(matrix.detach()).abs().max())


def check_stable(name: str, matrix: Tensor) -> None:
    """Raises ValueError unless all eigenvalues lie inside the unit circle."""
    if not bool(matrix.isfinite().all()):
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinite ones")
    radius = spectral_radius(matrix)
    if not radius < 1:
        raise ValueError(
            f"{name}: its spectral radius is {radius:.9g}, but only a stable matrix, of spectral radius below 1, has a "
            "stationary distribution; clip its eigenvalues, or divide the matrix"
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

    def __init__(self, left: Tensor, right: Tensor) -> None:
        radii = spectral_radius(left), spectral_radius(right)
        if not radii[0] * radii[1] < 1.0:
            raise ValueError(
                "left, right: expected spectral radii whose product is below 1, "
                f"got {radii[0]:.9g} and {radii[1]:.9g}; X = A X B + C has no limit"
            )
        self.powers: list[tuple[Tensor, Tensor]] = []
        for _ in range(MAX_DOUBLINGS):
            self.powers.append((left, right))
            if float(left.norm() * right.norm()) < 1e-18:
                break
            left, right = left @ left, right @ right

    def solve(self, constant: Tensor) -> Tensor:
        """X for one C (n, m)."""
        for left, right in self.powers:
            constant = constant + left @ constant @ right
        return constant


def stationary_covariance(transition: Tensor, noise: Tensor) -> Tensor:
    """The covariance P = A P A' + Q (discrete Lyapunov) that a stable chain has without observations.

    Args:
        transition: (h, h) A, spectral radius below 1.
        noise: (h, h) Q, symmetric.

    Raises:
        ValueError: for an unstable A.
    """
    check_stable("transition", transition)
    power, total = transition, noise
    for _ in range(MAX_DOUBLINGS):
        step = power @ total @ power.T
        total, power = total + step, power @ power
        if float(step.detach().norm()) <= torch.finfo(noise.dtype).eps * float(total.detach().norm()):
            break
    return symmetric(total)


def stationary_coordinates(transition: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Coordinates in which the stationary covariance is I, so that A A' + Q = I there.

    Returns:
        B, A~ and the root of Q~, (h, h) each: P = B B' is the stationary covariance, A = B A~ B^-1, Q = B Q~ B'.

    Raises:
        ValueError: for an unstable A, or a Q that is not positive definite.
    """
    try:
        root = torch.linalg.cholesky(noise)
        basis = torch.linalg.cholesky(stationary_covariance(transition, noise))
    except RuntimeError:  # LinAlgError, which torch.linalg does not export
        smallest = float(torch.linalg.eigvalsh(noise)[0])
        raise ValueError(
            f"state_noise must be positive definite, but its smallest eigenvalue is {smallest:.3g}; add a small diagonal"
        ) from None
    inner = torch.linalg.solve_triangular(basis, transition @ basis, upper=False)
    return basis, inner, torch.linalg.solve_triangular(basis, root, upper=False)


def predicted_covariance(transition: Tensor, noise: Tensor, information: Tensor) -> Tensor:
    """Cov(z_t | y_1..y_{t-1}) in the steady state: the solution of the discrete algebraic Riccati equation.

    P = A (P^-1 + Lam)^-1 A' + Q, by structure-preserving doubling: with Phi = A', Psi = Lam, Th = Q repeat

        W = (I + Psi Th)^-1,  Th += Phi' Th W Phi,  Psi += Phi W Psi Phi',  Phi = Phi W Phi;   P = lim Th

    Args:
        transition, noise, information: (h, h) A, Q and Lam = C'D^-1C, the latter two positive semidefinite.

    Raises:
        ValueError: where the doubling does not converge.

    Source: B. D. O. Anderson (1978), Second-order convergent algorithms for the steady-state Riccati equation; E. K.-W. Chu,
    H.-Y. Fan, W.-W. Lin and C.-S. Wang (2004), Structure-preserving algorithms for periodic discrete-time algebraic Riccati
    equations, Int. J. Control 77.
    """
    identity = torch.eye(len(noise), dtype=noise.dtype, device=noise.device)
    power, gathered, total = transition.T, information, noise
    for _ in range(MAX_DOUBLINGS):
        # one factorisation for both products with W
        solved = torch.linalg.solve(identity + gathered @ total, torch.cat([power, gathered @ power.T], 1))
        inside, outside = solved.split(len(noise), 1)
        step = symmetric(power.T @ total @ inside)
        gathered = symmetric(gathered + power @ outside)
        total, power = total + step, power @ inside
        size = float(total.detach().norm())
        if not math.isfinite(size):
            break
        if float(step.detach().norm()) <= torch.finfo(noise.dtype).eps * size:
            return symmetric(total)
    smallest = [float(torch.linalg.eigvalsh(m.detach())[0]) for m in (information, noise) if bool(torch.isfinite(m).all())]
    raise ValueError(
        "the Riccati equation has no solution by doubling: expected information and noise positive semidefinite; got "
        f"smallest eigenvalues {' and '.join(f'{value:.3g}' for value in smallest) or 'of NaN'}"
    )


def filtered_covariance(predicted: Tensor, information: Tensor) -> Tensor:
    """(P^-1 + Lam)^-1 without inverting P."""
    identity = torch.eye(len(predicted), dtype=predicted.dtype, device=predicted.device)
    return symmetric(torch.linalg.solve(identity + predicted @ information, predicted))


def smoothed_covariance(transition: Tensor, predicted: Tensor, filtered: Tensor) -> Tensor:
    """Cov(z_t | all y) far from both ends: V = J V J' + P_filtered - J P_predicted J', J = P_filtered A' P_predicted^-1."""
    gain = torch.linalg.solve(predicted, transition @ filtered).T
    return stationary_covariance(gain, symmetric(filtered - gain @ predicted @ gain.T))


def covariance_path(
    transition: Tensor, noise: Tensor, information: Tensor, start: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """(predicted, filtered) covariances of z_1, z_2, ..., without end; start: (h, h) covariance of z_1."""
    predicted = start
    while True:
        filtered = filtered_covariance(predicted, information)
        yield predicted, filtered
        predicted = symmetric(transition @ filtered @ transition.T + noise)


def clip_eigenvalues(matrix: Tensor, radius: float) -> Tensor:
    """A matrix with eigenvalues of modulus at most ``radius``; those inside stay where they are.

    The eigenvectors are kept. Where they are too ill-conditioned for that, the whole matrix is scaled.
    """
    if not bool(matrix.isfinite().all()):
        raise ValueError("matrix: expected finite numbers, got NaN or infinite ones")
    values, vectors = torch.linalg.eig(matrix)
    moduli = values.abs()
    largest = float(moduli.max())
    if largest <= radius:
        return matrix
    if float(torch.linalg.cond(vectors)) < 1e10:
        values = values * (radius / moduli.clamp_min(radius / 2)).clamp_max(1.0)
        clipped = torch.linalg.solve(vectors.T, (vectors * values).T).T.real
        if spectral_radius(clipped) <= radius * (1 + 1e-9):
            return clipped
    return matrix * (radius / largest)
