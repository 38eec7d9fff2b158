"""Every observed number beside what all the others of its row say of it: leave-one-out predictions, in one pass.

Of a row y ~ N(m, S) with precision S^-1 the error of y_i, given all other numbers, is [S^-1 (y - m)]_i / [S^-1]_ii, and its
variance 1 / [S^-1]_ii. Along a chain u_t = (S^-1 (y - m))_t and D_t = (S^-1)_tt go by the filter and the way back:

    u_t = F_t^-1 v_t - K_t' b_t,    D_t = F_t^-1 + K_t' N_t K_t,    b_t = A' (M' u_{t+1} + b_{t+1}),    N_t = Var b_t

with v_t, F_t the innovation and its covariance, and K_t = P_t|t-1 M' F_t^-1. All are sums, so that digits are kept, and no
noise is inverted, which may be 0. A start of which nothing is known takes from u and D what finding it takes.

Source: P. de Jong (1988), A cross-validation filter for time series models, Biometrika 75(3); P. de Jong (1989), Smoothing and
interpolation with the state-space model, Journal of the American Statistical Association 84.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq.distributions.gaussian_types import LinearEvidence
from pplseq.infer.gaussian.given import over_rows
from pplseq.infer.gaussian.numbers import masked_loadings, masked_noise
from pplseq.kernels.kalman import DOUBLE
from pplseq.kernels.matrix_table import MatrixIndex, apply_matrices, recursion

LEAST = 1e-8  # share of a precision that must be left when an unknown start was found, for a number to be foretold


class LeftOut(NamedTuple):
    """Errors y - E[y | all other numbers of the row], and their variances, both (*B, T, n) in double precision: NaN where
    nothing was seen, and where the others do not determine the number (of a diffuse start)."""

    errors: Tensor
    variances: Tensor


class Weights(NamedTuple):
    """What turns numbers into u and D, of each kind of step (M, ...): loadings (M, n, h), of a number not seen zero; inverse
    (M, n, n) F^-1; gain (M, h, n) K; back (M, h, h) A'; loop (M, h, h) what b of a step's own end makes before it; precision
    (M, n) diagonals of D. nodes: (T, 1 | R) which kind. seen: (T, R, n) bool. numbers: (T, R, n), 0 where not seen."""

    loadings: Tensor
    inverse: Tensor
    gain: Tensor
    back: Tensor
    loop: Tensor
    precision: Tensor
    nodes: Tensor
    seen: Tensor
    numbers: Tensor


def weights_of(chain: Any) -> Weights:
    """Of a chain of observed numbers.

    Raises:
        ValueError: for a chain of other evidence, and where noise is lost in rounding beside predicted states.
    """
    evidence, path, back, used = chain.evidence, chain.path, chain.smoothed_path, chain.flat.used
    if not isinstance(evidence, LinearEvidence):
        raise ValueError("left_out: observations must enter as numbers; leave parallel_in_time out")
    loadings, noise, observed = (None if part is None else part.to(DOUBLE) for part in evidence.tables())
    assert loadings is not None and noise is not None
    steps, batch, device = chain.num_steps, chain.batch_shape, loadings.device
    numbers = over_rows(evidence.residual.to(DOUBLE), steps, batch, evidence.residual.shape[-1:])

    def by_row(index: Tensor) -> Tensor:
        index = index if index.dim() == 2 else index.unsqueeze(-1)
        return index[:, :1] if bool((index == index[:, :1]).all()) else index

    kinds = torch.zeros(steps, 1, dtype=torch.long, device=device)
    if evidence.which is not None:
        kinds = by_row(over_rows(evidence.which.expand(evidence.residual.shape[:-1]), steps, batch))
    behind = torch.as_tensor(back.later, device=device)[back.index]
    parts = [path.index, behind, kinds, torch.ones_like(kinds) if used is None else used.long()]
    found = torch.broadcast_tensors(*map(by_row, parts))
    distinct, index = torch.unique(torch.stack(found, -1).flatten(0, 1), dim=0, return_inverse=True)
    index = index.reshape(found[0].shape)
    node, behind, kind, is_used = distinct.unbind(-1)

    def pick(table: Tensor, of: Tensor) -> Tensor:
        return table[of if len(table) > 1 else torch.zeros_like(of)]

    seen = is_used.unsqueeze(-1) * torch.ones_like(numbers[0, :1])
    seen = seen if observed is None else seen * pick(observed, kind)
    loadings, noise = masked_loadings(pick(loadings, kind), seen), masked_noise(pick(noise, kind), seen)
    cross = path.predicted[node].to(DOUBLE) @ loadings.mT
    factor, failed = torch.linalg.cholesky_ex(loadings @ cross + noise)
    if bool(failed.any()):
        raise ValueError(
            "left_out: beside what states may be the noise of some observations is lost in rounding; give observations more "
            "noise, or the first state a covariance that is less wide"
        )
    inverse, matrix = torch.cholesky_inverse(factor), pick(path.matrix.to(DOUBLE), node)
    gain = cross @ inverse
    spread = matrix.mT @ back.information.to(DOUBLE)[behind] @ matrix
    loop = (torch.eye(len(matrix[0])).to(gain) - gain @ loadings).mT
    precision = inverse.diagonal(dim1=-2, dim2=-1) + (gain * (spread @ gain)).sum(-2)
    seen = (seen > 0)[index].expand(numbers.shape)
    return Weights(
        loadings, inverse, gain, matrix.mT.contiguous(), loop, precision, index, seen, numbers.where(seen, 0.0)
    )


def weighted(weights: Weights, numbers: Tensor, predicted: Tensor) -> Tensor:
    """(T, R, n) u, from numbers (T, R, n) and the predicted means of states (T, R, h)."""
    which = MatrixIndex(weights.nodes, len(weights.gain))
    predicted = predicted.to(DOUBLE)
    innovation = numbers - apply_matrices(weights.loadings, which, predicted)
    white = apply_matrices(weights.inverse, which, innovation)
    said = apply_matrices(weights.loadings.mT.contiguous(), which, white)
    # b before a step's own evidence: that of the step, and through its loop, that of the steps behind
    links = MatrixIndex(weights.nodes[:-1], len(weights.gain))
    whole = recursion(weights.loop @ weights.back, links, said, reverse=True)
    later = torch.cat([apply_matrices(weights.back, links, whole[1:]), torch.zeros_like(whole[:1])])
    return white - apply_matrices(weights.gain.mT.contiguous(), which, later)


def left_out(chain: Any) -> LeftOut:
    """See :meth:`~pplseq.infer.gaussian.chain.GaussianChain.left_out`."""
    weights = weights_of(chain)
    return answer(chain, weights, weighted(weights, weights.numbers, chain._predicted_means), weights.precision[weights.nodes])


def answer(chain: Any, weights: Weights, pulled: Tensor, precision: Tensor) -> LeftOut:
    """Errors and variances from u (T, R, n) and diagonals of D (T, 1 | R, n), NaN where nothing is foretold."""
    parts = (pulled / precision, (1 / precision).expand(pulled.shape))
    found = (part.where(weights.seen, torch.nan).transpose(0, 1) for part in parts)
    return LeftOut(*(part.reshape(*chain.batch_shape, *part.shape[1:]) for part in found))
