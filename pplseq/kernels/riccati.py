"""What the covariances of a time-invariant linear Gaussian chain tend to, by doubling: a handful of h x h products.

Everything here is differentiable, and in the information form: the observations enter as Lam = C'D^-1C, (h, h).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

MAX_DOUBLINGS = 60


def symmetrize(matrix: Tensor) -> Tensor:
    """The symmetric part of square matrices."""
    return (matrix + matrix.mT) / 2


def stationary_covariance(transition: Tensor, noise: Tensor) -> Tensor:
    """The covariance P = A P A' + Q that a stable chain has without observations.

    Args:
        transition: (h, h) A, spectral radius below 1.
        noise: (h, h) Q.

    Raises:
        ValueError: for an unstable A.
    """
    radius = float(torch.linalg.eigvals(transition.detach()).abs().max())
    if not radius < 1:
        raise ValueError(
            f"transition: its spectral radius is {radius:.6g}, so the chain is unstable and has no stationary distribution; "
            "it must be below 1 (clip the eigenvalues, or divide the matrix)"
        )
    power, total = transition, noise
    for _ in range(MAX_DOUBLINGS):
        step = power @ total @ power.T
        total, power = total + step, power @ power
        if float(step.detach().norm()) <= torch.finfo(noise.dtype).eps * float(total.detach().norm()):
            break
    return symmetrize(total)


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
    except torch.linalg.LinAlgError:
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
        step = symmetrize(power.T @ total @ inside)
        gathered = symmetrize(gathered + power @ outside)
        total, power = total + step, power @ inside
        if float(step.detach().norm()) <= torch.finfo(noise.dtype).eps * float(total.detach().norm()):
            return symmetrize(total)
    smallest = [float(torch.linalg.eigvalsh(m.detach())[0]) for m in (information, noise) if bool(torch.isfinite(m).all())]
    raise ValueError(
        "the Riccati equation has no solution by doubling: expected information and noise positive semidefinite; got "
        f"smallest eigenvalues {' and '.join(f'{value:.3g}' for value in smallest) or 'of NaN'}"
    )


def filtered_covariance(predicted: Tensor, information: Tensor) -> Tensor:
    """(P^-1 + Lam)^-1 without inverting P."""
    identity = torch.eye(len(predicted), dtype=predicted.dtype, device=predicted.device)
    return symmetrize(torch.linalg.solve(identity + predicted @ information, predicted))


def smoothed_covariance(transition: Tensor, predicted: Tensor, filtered: Tensor) -> Tensor:
    """Cov(z_t | all y) far from both ends: V = J V J' + P_filtered - J P_predicted J', J = P_filtered A' P_predicted^-1."""
    gain = torch.linalg.solve(predicted, transition @ filtered).T
    return stationary_covariance(gain, symmetrize(filtered - gain @ predicted @ gain.T))


def covariance_path(
    transition: Tensor, noise: Tensor, information: Tensor, start: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """(predicted, filtered) covariances of z_1, z_2, ..., without end; start: (h, h) covariance of z_1."""
    predicted = start
    while True:
        filtered = filtered_covariance(predicted, information)
        yield predicted, filtered
        predicted = symmetrize(transition @ filtered @ transition.T + noise)
