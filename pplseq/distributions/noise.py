"""Gaussian noise: a covariance matrix, variances, or a diagonal minus a matrix of low rank that is never written out."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.distributions.timed import Timed, all_steps
from pplseq.threads import once


class FullNoise:
    """N(0, D) with a covariance matrix (*b, n, n); source: what it was computed from, by name, or None."""

    def __init__(self, covariance: Tensor, source: tuple[str, Tensor] | None = None):
        self.covariance, self.source = covariance, source

    @once
    def factor(self) -> Tensor:
        factor, failed = torch.linalg.cholesky_ex(self.covariance)
        if bool(failed.any()):
            smallest = float(torch.linalg.eigvalsh(self.covariance.detach()).min())
            raise ValueError(
                f"noise must be positive definite where it is observed or sampled; its smallest eigenvalue is {smallest:.3g}"
            )
        return factor

    @property
    def size(self) -> int:
        return self.covariance.shape[-1]

    @property
    def zero(self) -> Tensor:
        """(n,) zeros of its dtype, on its device."""
        return self.covariance.new_zeros(self.size)

    @property
    def batch_shape(self) -> torch.Size:
        return self.covariance.shape[:-2]

    @property
    def log_determinant(self) -> Tensor:
        return 2 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @property
    def whitener(self) -> Tensor:
        """(*b, n, n) R with R' R = D^-1."""
        identity = torch.eye(self.size, dtype=self.covariance.dtype, device=self.covariance.device)
        return torch.linalg.solve_triangular(self.factor, identity.expand_as(self.factor), upper=False)

    def solve(self, matrix: Tensor) -> Tensor:
        """D^-1 matrix, for (*b, n, k)."""
        return torch.cholesky_solve(matrix, self.factor)

    def draw(self, shape: torch.Size) -> Tensor:
        values, vectors = torch.linalg.eigh(self.covariance)  # singular noise can be drawn, though not observed
        if bool((values < -1e-6 * values.abs().amax(-1, keepdim=True)).any()):
            raise ValueError(
                f"noise must be positive semidefinite; its smallest eigenvalue is {float(values.min()):.3g}"
            )
        z = torch.randn(*shape, self.size, dtype=values.dtype, device=values.device) * values.clamp_min(0).sqrt()
        return (vectors @ z.unsqueeze(-1)).squeeze(-1)


class DiagonalNoise:
    """N(0, diag(d)) with variances (*b, n); source: what they were computed from, by name, or None."""

    def __init__(self, variances: Tensor, source: tuple[str, Tensor] | None = None):
        self.variances, self.source = variances, source

    @property
    def size(self) -> int:
        return self.variances.shape[-1]

    @property
    def zero(self) -> Tensor:
        """(n,) zeros of its dtype, on its device."""
        return self.variances.new_zeros(self.size)

    @property
    def batch_shape(self) -> torch.Size:
        return self.variances.shape[:-1]

    @property
    def covariance(self) -> Tensor:
        return torch.diag_embed(self.variances)

    @property
    def log_determinant(self) -> Tensor:
        return self.variances.log().sum(-1)

    @property
    def whitener(self) -> Tensor:
        """(*b, n) the diagonal of R with R' R = D^-1."""
        return self.variances.rsqrt()

    def solve(self, matrix: Tensor) -> Tensor:
        return matrix / self.variances.unsqueeze(-1)

    def draw(self, shape: torch.Size) -> Tensor:
        z = torch.randn(*shape, self.size, dtype=self.variances.dtype, device=self.variances.device)
        return z * self.variances.sqrt()


class DiagonalMinusLowRank:
    """N(0, D) with D = diag(d) - F M F', never written out: a full-rank covariance of many observed numbers.

    Args:
        diagonal: (n,) d, positive. factor: (n, h) F. middle: (h, h) M, symmetric and positive semidefinite.

    Raises:
        ValueError: for shapes that do not fit, or where D is not positive definite.

    Cost: n h^2 once; D^-1 r is diag(1/d) r + (F/d) (M^-1 - F' diag(1/d) F)^-1 (F/d)' r, written without M^-1.
    """

    def __init__(self, diagonal: Tensor, factor: Tensor, middle: Tensor):
        if (
            diagonal.dim() != 1
            or factor.dim() != 2
            or len(factor) != len(diagonal)
            or middle.shape != (factor.shape[1],) * 2
        ):
            raise ValueError(
                "DiagonalMinusLowRank takes diagonal (n,), factor (n, h) and middle (h, h), got "
                f"{tuple(diagonal.shape)}, {tuple(factor.shape)} and {tuple(middle.shape)}"
            )
        self.diagonal, self.factor, self.middle = diagonal, factor, middle
        self.scaled = factor / diagonal.unsqueeze(-1)
        gram = factor.T @ self.scaled
        identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        # the eigenvalues of I - M G are those of D relative to diag(d)
        root = _square_root(middle.detach())
        largest = float(torch.linalg.eigvalsh(root.mT @ gram.detach() @ root)[-1])
        if not largest < 1 or not bool((diagonal > 0).all()):
            raise ValueError(
                "noise diag(d) - F M F' must be positive definite: d must be positive, and the largest eigenvalue of "
                f"F M F' relative to diag(d) below 1; got {largest:.6g}. Scale F or M down"
            )
        self.core = identity - middle @ gram
        inner = torch.linalg.solve(self.core, middle)  # (M^-1 - G)^-1
        self.inner = (inner + inner.T) / 2

    @property
    def size(self) -> int:
        return len(self.diagonal)

    @property
    def zero(self) -> Tensor:
        """(n,) zeros of its dtype, on its device."""
        return torch.zeros_like(self.diagonal)

    batch_shape = torch.Size()

    @property
    def covariance(self) -> Tensor:
        return torch.diag(self.diagonal) - self.factor @ self.middle @ self.factor.T

    @property
    def log_determinant(self) -> Tensor:
        return self.diagonal.log().sum() + torch.linalg.slogdet(self.core)[1]

    def solve(self, matrix: Tensor) -> Tensor:
        return matrix / self.diagonal.unsqueeze(-1) + self.scaled @ (self.inner @ (self.scaled.T @ matrix))

    def draw(self, shape: torch.Size) -> Tensor:
        # in the coordinates where diag(d) is white, D is the identity but in the columns of F: there its root is small
        basis, triangle = torch.linalg.qr(self.factor / self.diagonal.sqrt().unsqueeze(-1))
        small = torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device) - triangle @ self.middle @ triangle.T
        z = torch.randn(*shape, self.size, dtype=basis.dtype, device=basis.device)
        inside = z @ basis
        z = z + (inside @ torch.linalg.cholesky((small + small.T) / 2).T - inside) @ basis.T
        return z * self.diagonal.sqrt()


def _square_root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    if float(values.min()) < -1e-8 * max(1.0, float(values.abs().max())):
        raise ValueError(f"middle must be positive semidefinite; its smallest eigenvalue is {float(values.min()):.3g}")
    return vectors * values.clamp_min(0).sqrt()


Noise = FullNoise | DiagonalNoise | DiagonalMinusLowRank


def noise_of_all_steps(noise: Noise, rows: int) -> Noise:
    """Noise that differs between the steps of a vectorised loop with time in front; other noise as it is."""
    if isinstance(noise, FullNoise) and isinstance(noise.covariance, Timed):
        return FullNoise(all_steps(noise.covariance, 2, rows))
    if isinstance(noise, DiagonalNoise) and isinstance(noise.variances, Timed):
        return DiagonalNoise(all_steps(noise.variances, 1, rows))
    return noise


def as_noise(noise, size: int) -> Noise:
    """A covariance (*b, n, n), variances (n,) or a noise object, as a noise object.

    Raises:
        TypeError, ValueError: for anything else; names the argument.
    """
    if isinstance(noise, Noise):
        result = noise
    elif not isinstance(noise, Tensor):
        raise TypeError(
            f"noise must be a covariance (n, n), variances (n,) or a DiagonalMinusLowRank, got {type(noise).__name__}"
        )
    elif noise.dim() == 1:
        result = DiagonalNoise(noise)
    elif noise.dim() >= 2 and noise.shape[-1] == noise.shape[-2]:
        result = FullNoise(noise)
    else:
        raise ValueError(
            f"noise must be a covariance (n, n) or variances (n,), n = {size}; got shape {tuple(noise.shape)}. Variances that "
            "differ from step to step or row to row: give DiagonalNoise(variances)"
        )
    if result.size != size:
        raise ValueError(f"noise must have size {size}, as the mean has; got {result.size}")
    return result


def same_tensor(left: Tensor | None, right: Tensor | None) -> bool:
    """Whether two tensors are views of the same numbers, as a loop makes ``A.T`` anew at every step, or equal constants.

    Parameters that happen to be equal are two: each wants its own gradient.
    """
    if left is None or right is None:
        return left is right
    if left is right:
        return True
    if isinstance(left, Timed) or isinstance(right, Timed):
        return False
    if left.shape != right.shape or left.dtype != right.dtype or left.device != right.device:
        return False
    if left.requires_grad or right.requires_grad:
        views = left.data_ptr() == right.data_ptr() and left.stride() == right.stride()
        return views and left._base is not None and left._base is right._base
    return torch.equal(left, right)


def same_noise(left: Noise, right: Noise) -> bool:
    """Whether two noises are one."""
    if left is right:
        return True
    for kind, numbers in ((FullNoise, "covariance"), (DiagonalNoise, "variances")):
        if isinstance(left, kind) and isinstance(right, kind):
            if same_tensor(getattr(left, numbers), getattr(right, numbers)):
                return True
            if left.source is None or right.source is None or left.source[0] != right.source[0]:
                return False
            return same_tensor(left.source[1], right.source[1])
    return False
