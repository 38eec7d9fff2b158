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

    What is left of y, at right angles to O, depends on no state. A kind of observation of which at most h numbers are seen
    keeps those, with their noise as it is. Where some directions of the state are not observed by more there is no smooth O:
    few numbers stay as they are, and many become evidence.

    Args:
        alone: whether each number has noise of its own, whatever its parameters will be.
    """
    n, h = numbers.loadings.shape[-2:]
    real = numbers.loadings.dtype
    loadings = masked_loadings(numbers.loadings, numbers.observed).to(DOUBLE)
    noise = masked_noise(numbers.noise, numbers.observed).to(DOUBLE)
    few = _few_seen(numbers.observed, loadings, noise)
    # of those that keep their numbers nothing below is used: any matrices with a gradient will do
    spread, seen = noise, loadings
    if few is not None:
        spread, seen = few.instead(torch.eye(n).to(noise), noise), few.instead(torch.eye(n, h).to(loadings), loadings)
    with torch.no_grad():
        factor, failed = torch.linalg.cholesky_ex(spread)
        clear = not bool(failed.any())
        if clear:
            values = torch.linalg.eigvalsh(seen.mT @ torch.cholesky_solve(seen, factor))
            clear = bool((values[..., 0] > 1e-13 * values[..., -1]).all())
    if not clear:
        return numbers if n <= max(FEW_NUMBERS, 2 * h) or bool(failed.any()) else _written_out(numbers, used)
    factor = torch.linalg.cholesky(spread)
    basis, triangle = torch.linalg.qr(torch.linalg.solve_triangular(factor, seen, upper=False))  # (P, n, h), (P, h, h)
    inverse = torch.linalg.solve_triangular(factor, torch.eye(n).to(factor).expand_as(factor), upper=False)
    size = torch.full((1,), n).to(noise) if numbers.observed is None else numbers.observed.sum(-1)
    constant = -factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) - (size - h) / 2 * LOG_2PI  # (P,)
    kinds = max(len(inverse), len(basis))
    which = None if kinds == 1 else numbers.which
    reader, basis, inverse = (m.expand(kinds, -1, -1) for m in (basis.mT @ inverse, basis, inverse))
    kept_noise, observed = torch.eye(h, dtype=real, device=noise.device).unsqueeze(0), None
    if few is not None:
        pick, white = few.pick, few.instead(torch.eye(n).to(noise), inverse)
        reader, basis, inverse = few.instead(pick, reader), few.instead(pick.mT, basis), white
        triangle, constant = few.instead(pick @ loadings, triangle), constant.masked_fill(few.kinds, 0.0)
        own = pick @ noise @ pick.mT + torch.diag_embed(1 - few.observed)
        kept_noise, observed = few.instead(own, kept_noise.to(own)).to(real), few.observed.to(real)
    kept, rest = _parted(numbers.residual, reader, basis, inverse, which, alone)
    if few is not None:
        rest = rest.masked_fill(few.kinds[0 if which is None else which], 0.0)
    constant = (constant[0] if which is None else constant.expand(kinds)[which]).to(real) - rest.to(real) / 2
    constant = constant if numbers.constant is None else constant + numbers.constant
    constant = constant if used is None else torch.where(used, constant, 0.0)
    return Numbers(kept.to(real), triangle.to(real).expand(kinds, -1, -1), kept_noise, observed, which, constant)


class _Few(NamedTuple):
    """Kinds of observations of which at most h numbers are seen: kinds (P,) bool; pick (P, h, n) the numbers that are seen,
    with rows of zeros for the rest; observed (P, h), 1 for those and for all of other kinds."""

    kinds: Tensor
    pick: Tensor
    observed: Tensor

    def instead(self, own: Tensor, other: Tensor) -> Tensor:
        """Matrices (P, ...): ``own`` of these kinds, ``other`` of the rest."""
        return torch.where(self.kinds[:, None, None], own, other)


def _few_seen(observed: Tensor | None, loadings: Tensor, noise: Tensor) -> _Few | None:
    if observed is None:
        return None
    kinds, h = max(map(len, (observed, loadings, noise))), loadings.shape[-1]
    seen = observed.to(DOUBLE).expand(kinds, -1)
    few = seen.sum(-1) <= h
    if not bool(few.any()):
        return None
    order = seen.argsort(dim=-1, descending=True, stable=True)[:, :h]
    there = seen.gather(-1, order)
    pick = torch.zeros(kinds, h, seen.shape[-1]).to(seen).scatter_(-1, order.unsqueeze(-1), there.unsqueeze(-1))
    return _Few(few, pick, there)


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
