"""Observed numbers as they are: their noise is never inverted, and many of them become few that say the same."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.distributions.gaussian_types import LOG_2PI, Evidence, LinearEvidence
from pplseq.kernels.kalman import DOUBLE
from pplseq.kernels.matrix_table import MatrixIndex, apply_matrices

PRECISE = 100  # mean squares of numbers in units of their noise, above which differences of squares lose too much
FEW_NUMBERS = 32  # observed numbers of which a covariance is small


class Numbers(NamedTuple):
    """Observed numbers, y = M x + noise, whose coordinates may be missing.

    residual: (T, R, n), zero where nothing is seen. loadings: (1 | P, n, h) M of each kind of observation. noise:
    (1 | P, n, n) covariances. observed: (P, n), 1 where a coordinate is seen and 0 elsewhere, or None for all.
    which: (T, 1 | R) kinds; all the same where None. constant: (T, R) nats to add, or None.
    """

    residual: Tensor
    loadings: Tensor
    noise: Tensor
    observed: Tensor | None
    which: Tensor | None
    constant: Tensor | None


def fewer_numbers(numbers: Numbers, used: Tensor | None, alone: bool) -> Evidence | Numbers:
    """Of n > h numbers h that say the same about the state: L^-1 M = O U (orthonormal, triangular), and y becomes O' L^-1 y.

    What is left of y, at right angles to O, depends on no state. Where some directions of the state are not observed there
    is no smooth O: few numbers stay as they are, and many become evidence.

    Args:
        alone: whether each number has noise of its own, whatever its parameters will be.
    """
    n, h = numbers.loadings.shape[-2:]
    real = numbers.residual.dtype
    with torch.no_grad():
        factor, failed = torch.linalg.cholesky_ex(masked_noise(numbers.noise, numbers.observed).to(DOUBLE))
        clear = not bool(failed.any())
        if clear:
            loadings = masked_loadings(numbers.loadings, numbers.observed).to(DOUBLE)
            values = torch.linalg.eigvalsh(loadings.mT @ torch.cholesky_solve(loadings, factor))
            clear = bool((values[..., 0] > 1e-13 * values[..., -1]).all())
    if not clear:
        return numbers if n <= max(FEW_NUMBERS, 2 * h) or bool(failed.any()) else _written_out(numbers, used)
    noise = masked_noise(numbers.noise, numbers.observed).to(DOUBLE)
    factor = torch.linalg.cholesky(noise)
    white = masked_loadings(numbers.loadings, numbers.observed).to(DOUBLE)
    basis, triangle = torch.linalg.qr(torch.linalg.solve_triangular(factor, white, upper=False))  # (P, n, h), (P, h, h)
    inverse = torch.linalg.solve_triangular(factor, torch.eye(n).to(factor).expand_as(factor), upper=False)
    size = torch.full((1,), n).to(noise) if numbers.observed is None else numbers.observed.sum(-1)
    constant = -factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) - (size - h) / 2 * LOG_2PI  # (P,)
    kinds = max(len(inverse), len(basis))
    which = None if kinds == 1 else numbers.which
    reader, basis, inverse = (m.expand(kinds, -1, -1) for m in (basis.mT @ inverse, basis, inverse))
    kept, rest = _parted(numbers.residual, reader, basis, inverse, which, alone)
    constant = (constant[0] if which is None else constant.expand(kinds)[which]).to(real) - rest / 2
    constant = constant if numbers.constant is None else constant + numbers.constant
    constant = constant if used is None else torch.where(used, constant, 0.0)
    identity = torch.eye(h, dtype=real, device=kept.device).unsqueeze(0)
    return Numbers(kept, triangle.to(real).expand(kinds, -1, -1), identity, None, which, constant)


def _parted(
    residual: Tensor, reader: Tensor, basis: Tensor, inverse: Tensor, which: Tensor | None, alone: bool
) -> tuple[Tensor, Tensor]:
    """Numbers that say all about the state, O' L^-1 y (T, R, h), and the squared length (T, R) of what is left of L^-1 y."""

    def times(matrices: Tensor, values: Tensor) -> Tensor:
        if which is None:
            return values @ matrices[0].mT.to(values)
        return apply_matrices(matrices.to(values), MatrixIndex(which.expand(values.shape[:-1]), len(matrices)), values)

    # a covariance that happens to be diagonal has a gradient beside its diagonal
    alone = which is None and (alone or not inverse.requires_grad) and bool((inverse[0].tril(-1) == 0).all())
    scaled = residual * inverse[0].diagonal().to(residual) if alone else times(inverse, residual)
    squares = torch.linalg.vecdot(scaled, scaled)
    if float(squares.detach().amax()) <= PRECISE * residual.shape[-1]:
        kept = times(reader, residual)
        return kept, squares - torch.linalg.vecdot(kept, kept)
    # what is left is far smaller than what there is
    scaled = times(inverse, residual.to(DOUBLE))
    kept = times(basis.mT, scaled)
    rest = scaled - times(basis, kept)
    return kept.to(residual), torch.linalg.vecdot(rest, rest).to(residual)


def _written_out(numbers: Numbers, used: Tensor | None) -> Evidence:
    """What numbers say about the state."""
    which = None if numbers.which is None else numbers.which.expand(numbers.residual.shape[:-1])
    seen = None if numbers.observed is None else numbers.observed > 0
    dense = LinearEvidence(numbers.residual, numbers.loadings, numbers.noise, which, seen, numbers.constant).dense()
    matrix = dense.matrix if dense.matrix.dim() == 4 else dense.matrix[None, None]
    if used is not None:
        matrix = matrix if matrix.shape[:2] == (1, 1) else torch.where(used[..., None, None], matrix, 0.0)
        dense = dense._replace(constant=torch.where(used, dense.constant, 0.0))
    return dense._replace(matrix=matrix)


def masked_loadings(loadings: Tensor, observed: Tensor | None) -> Tensor:
    """(1 | P, n, h), zero for coordinates that are not seen, which say nothing."""
    return loadings if observed is None else loadings * observed.unsqueeze(-1)


def masked_noise(noise: Tensor, observed: Tensor | None) -> Tensor:
    """(1 | P, n, n), white noise of its own for coordinates that are not seen."""
    if observed is None:
        return noise
    return noise * (observed.unsqueeze(-1) * observed.unsqueeze(-2)) + torch.diag_embed(1 - observed)
