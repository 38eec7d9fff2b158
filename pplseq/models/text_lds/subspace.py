"""Subspace identification of a linear dynamical system for words: one singular value decomposition of a block Hankel matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pplseq.kernels.matrix_equations import clip_eigenvalues
from pplseq.models.text_lds.lag_covariances import DenseLagCovariances, LagCovariances
from pplseq.models.text_lds.steady_state import gram, on_arrays


@dataclass(frozen=True, eq=False)
class Identification:
    """What covariances at lags 1..2r-1 say of a system: Psi_k = C A^{k-1} G.

    Attributes:
        transition: A (h, h), stable. emission: C (V, h). cross: G = E[x_{t+1} w_t'] (h, V).
        singular_values: the largest of the Hankel matrix, h and some more. gap: the h-th over the next.
        radius: spectral radius of A before eigenvalues were clipped.
    """

    transition: np.ndarray
    emission: np.ndarray
    cross: np.ndarray
    singular_values: np.ndarray
    radius: float

    @property
    def num_states(self) -> int:
        """h."""
        return len(self.transition)

    @property
    def gap(self) -> float:
        """s_h / s_{h+1}: well above 1 where h is the rank of the process; infinite if no further value is known."""
        h = self.num_states
        if len(self.singular_values) <= h or self.singular_values[h] == 0:
            return float("inf")
        return float(self.singular_values[h - 1] / self.singular_values[h])


class BlockHankel:
    """The block Hankel matrix of lag covariances as an operator; block (i, j) = Psi_{r+i-j}, i, j = 1..r (equation 11).

    Blocks of vectors are (r, V, n). Every Psi_k is applied once, to all blocks that it meets side by side.
    """

    def __init__(self, cov: LagCovariances | DenseLagCovariances, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"blocks: expected at least 2, so that A can be seen, got {num_blocks}")
        if 2 * num_blocks - 1 > cov.max_lag:
            raise ValueError(
                f"blocks: {num_blocks} blocks need lags 1..{2 * num_blocks - 1}, but the covariances have lags up to "
                f"{cov.max_lag}; count with max_lag >= {2 * num_blocks - 1}, or use fewer blocks (--blocks), "
                f"{(cov.max_lag + 1) // 2} at most"
            )
        self.cov, self.num_blocks = cov, num_blocks

    def apply(self, blocks: np.ndarray) -> np.ndarray:
        """H X."""
        return self._product(blocks, self.cov.apply, 1)

    def apply_transposed(self, blocks: np.ndarray) -> np.ndarray:
        """H' X."""
        return self._product(blocks, self.cov.apply_transposed, -1)

    def _product(self, blocks, operator, sign) -> np.ndarray:
        r, size, n = blocks.shape
        result = np.zeros_like(blocks)
        for lag in range(1, 2 * r):
            shift = sign * (lag - r)  # i = j + lag - r for H, j = i - lag + r for H'
            sources = [j for j in range(r) if 0 <= j + shift < r]
            # at most two side by side at large sizes: the copies would take more room than they save time
            width = len(sources) if size * n < 2**22 else 1
            for first in range(0, len(sources), width):
                some = sources[first : first + width]
                beside = np.concatenate([blocks[j] for j in some], axis=1) if len(some) > 1 else blocks[some[0]]
                product = operator(lag, beside)
                for index, j in enumerate(some):
                    result[j + shift] += product[:, index * n : (index + 1) * n]
        return result


def tall_qr(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q (N, n) and R (n, n) of a tall matrix.

    In float32 by two Cholesky factorisations of float64 Gram matrices, whose work is in matrix products: several times
    faster, and as orthogonal, for condition numbers that float32 can represent; Householder's else.

    Source:
        Y. Yamamoto et al. (2015), Roundoff error analysis of the CholeskyQR2 algorithm, ETNA 44.
    """
    if matrix.dtype == np.float64:
        return np.linalg.qr(matrix)
    orthonormal, triangle = matrix, np.eye(matrix.shape[1])
    for _ in range(2):
        try:
            factor = np.linalg.cholesky(gram(orthonormal, orthonormal)).T
        except np.linalg.LinAlgError:
            return np.linalg.qr(matrix)
        diagonal = np.diag(factor)
        if diagonal.min() < 1e-5 * diagonal.max():
            return np.linalg.qr(matrix)
        orthonormal = orthonormal @ np.linalg.inv(factor).astype(matrix.dtype)
        triangle = factor @ triangle
    return orthonormal, triangle


def _orthonormal(blocks: np.ndarray) -> np.ndarray:
    r, size, n = blocks.shape
    return tall_qr(blocks.reshape(r * size, n))[0].reshape(r, size, n)


def randomized_svd(
    hankel: BlockHankel, rank: int, *, oversample: int = 10, num_iterations: int = 3, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Leading singular triples of an implicit block matrix.

    Power iterations with an orthonormalisation after each product, so that small singular values are not lost.

    Returns:
        U (r, V, n), s (n,), V (r, V, n) with n = rank + oversample, at most the matrix' size.

    Source:
        N. Halko, P.-G. Martinsson and J. A. Tropp (2011), Finding structure with randomness, algorithm 4.4.
    """
    size, r = hankel.cov.size, hankel.num_blocks
    width = min(rank + oversample, r * size)
    draws = np.random.default_rng(seed).standard_normal((r, size, width), dtype=np.float32)
    basis = _orthonormal(hankel.apply(draws.astype(hankel.cov.dtype, copy=False)))
    for _ in range(num_iterations):
        basis = _orthonormal(hankel.apply_transposed(basis))
        basis = _orthonormal(hankel.apply(basis))
    right = hankel.apply_transposed(basis)  # H'Q = V s U~'
    right, triangle = tall_qr(right.reshape(r * size, width))
    inner_left, values, inner_right = np.linalg.svd(triangle)
    right = (right @ inner_left.astype(right.dtype)).reshape(r, size, width)
    return basis @ inner_right.T.astype(basis.dtype), values.astype(np.float64), right


def subspace_identification(
    cov: LagCovariances | DenseLagCovariances,
    num_states: int,
    *,
    blocks: int = 4,
    oversample: int = 10,
    num_iterations: int = 3,
    seed: int = 0,
    radius: float = 0.98,
) -> Identification:
    """A, C and G of a stochastic system from its covariances: H = Gamma Delta.

        Gamma = [C; CA; ...; CA^{r-1}] = U s^1/2,  Delta = [A^{r-1}G ... G] = s^1/2 V'
        A = Delta_{1..r-1} Delta_{2..r}^+;  C and G by least squares over all blocks

    Args:
        cov: covariances up to lag 2 r - 1 at least.
        num_states: h.
        blocks: r.
        oversample, num_iterations, seed: of the randomised decomposition.
        radius: eigenvalues of A are clipped to this modulus.

    Raises:
        ValueError: too few lags; h larger than the space of words; a Hankel matrix of rank below h.

    Source:
        P. Van Overschee and B. De Moor (1994), N4SID; Belanger & Kakade (2015), section 3.4 and equation 11. C over all
        blocks instead of the first.
    """
    if isinstance(num_states, bool) or not isinstance(num_states, (int, np.integer)):
        raise TypeError(f"num_states: expected an integer, got {type(num_states).__name__}")
    if not 1 <= num_states <= cov.num_dimensions:
        raise ValueError(f"num_states: expected 1..{cov.num_dimensions}, the dimensions of the data, got {num_states}")
    hankel = BlockHankel(cov, blocks)
    h = int(num_states)
    left, values, right = randomized_svd(hankel, h, oversample=oversample, num_iterations=num_iterations, seed=seed)
    floor = values[0] * np.finfo(cov.dtype).eps * 100
    if len(values) < h or not values[h - 1] > floor:
        rank = int((values > floor).sum())
        raise ValueError(
            f"num_states: the Hankel matrix of the covariances has rank {rank}, so that at most {rank} states can be "
            f"identified, got {h}; use fewer states, more text or more blocks"
        )
    roots = np.sqrt(values[:h])
    observability = left[:, :, :h] * roots.astype(left.dtype)  # Gamma_i (V, h)
    reachability = right[:, :, :h] * roots.astype(right.dtype)  # Delta_j' (V, h)
    del left, right
    cross: Any = sum(gram(reachability[j], reachability[j + 1]) for j in range(blocks - 1))
    square: Any = sum(gram(reachability[j], reachability[j]) for j in range(1, blocks))
    raw = np.linalg.solve(square, cross.T).T
    transition = on_arrays(lambda matrix: clip_eigenvalues(matrix, radius), raw)
    powers = [np.eye(h)]
    for _ in range(blocks - 1):
        powers.append(powers[-1] @ transition)
    weights = np.linalg.inv(sum(power @ power.T for power in powers))
    emission: Any = sum(observability[i] @ (powers[i].T @ weights).astype(cov.dtype) for i in range(blocks))
    weights = np.linalg.inv(sum(power.T @ power for power in powers))
    # block j (from 0) of Delta is A^{r-1-j} G
    earlier: Any = sum(reachability[j] @ (powers[blocks - 1 - j] @ weights).astype(cov.dtype) for j in range(blocks))
    return Identification(
        transition, cov.project(emission), cov.project(earlier).T, values, float(np.abs(np.linalg.eigvals(raw)).max())
    )
