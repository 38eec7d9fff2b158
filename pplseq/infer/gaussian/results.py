"""What a Gaussian chain answers: states, their covariances, forecasts, innovations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq import notebooks


class StepCovariances:
    """One covariance for each step and row, of which only the distinct ones are stored.

    Attributes:
        table: (N, h, h) the distinct ones: those of the transient, behind gaps and at the ends, and the steady one.
        index: (T,) where rows agree, else (T, R): which one a step and row has. R = prod(B).
        batch_shape: *B. valid: (T, R) bool, False where there is no state (padding), or None.

    Table and index lie as the kernels made them, time first; what :meth:`dense` and :meth:`total` give and take, batch first.
    """

    _make: Callable[[], tuple[Tensor, Tensor]]
    _with_gradient: bool

    def __init__(self, table: Tensor, index: Tensor, batch_shape: torch.Size, valid: Tensor | None = None):
        self._made: tuple[Tensor, Tensor] | None = (table, index)
        self.batch_shape, self.valid = torch.Size(batch_shape), valid

    @classmethod
    def later(cls, make: Callable[[], tuple[Tensor, Tensor]], batch_shape: torch.Size, valid: Tensor | None = None):
        """With table and index made when first asked for: means alone cost nothing of them. Gradients are as of now."""
        new = cls.__new__(cls)
        new._made, new._make, new._with_gradient = None, make, torch.is_grad_enabled()
        new.batch_shape, new.valid = torch.Size(batch_shape), valid
        return new

    def _parts(self) -> tuple[Tensor, Tensor]:
        made = self._made
        if made is None:
            with torch.set_grad_enabled(self._with_gradient):
                made = self._made = self._make()
            del self._make
        return made

    @property
    def table(self) -> Tensor:
        return self._parts()[0]

    @property
    def index(self) -> Tensor:
        return self._parts()[1]

    def __len__(self) -> int:
        return len(self.index)

    def at(self, step: int) -> Tensor:
        """(h, h) where rows agree, else (*B, h, h): the covariance at a step (0 .. T-1, or from the end).

        Rows that are padded there may show any value; :meth:`dense` and :meth:`total` leave them out.
        """
        matrix = self.table[self.index[step]]
        return matrix if self.index.dim() == 1 else matrix.reshape(*self.batch_shape, *matrix.shape[-2:])

    def dense(self) -> Tensor:
        """(*B, T, h, h), zero at padded steps: takes T h^2 memory a row."""
        index, h = self.index, self.table.shape[-1]
        rows = math.prod(self.batch_shape)
        full = self.table[index]
        full = full.expand(rows, -1, -1, -1) if index.dim() == 1 else full.transpose(0, 1)
        if self.valid is not None:
            full = torch.where(self.valid.T[..., None, None], full, 0.0)
        return full.reshape(*self.batch_shape, len(index), h, h)

    def total(self, mask: Tensor | None = None) -> Tensor:
        """(h, h) their sum over steps and rows.

        Args:
            mask: (*B, T) bool, or weights, which rows and steps to add up; padded ones never count.
        """
        (table, index), rows = self._parts(), math.prod(self.batch_shape)
        weights = torch.ones(len(index), rows, dtype=table.dtype, device=table.device)
        if mask is not None:
            wanted = (*self.batch_shape, len(index))
            fits = mask.dim() == len(wanted) and all(m in (1, w) for m, w in zip(mask.shape, wanted, strict=True))
            if not fits:
                raise ValueError(f"mask must be (*B, T) = {wanted}, got {tuple(mask.shape)}")
            weights = mask.to(table.dtype).expand(wanted).reshape(rows, len(index)).T
        if self.valid is not None:
            weights = weights * self.valid
        if index.dim() == 1:
            weights = weights.sum(1)
        counts = table.new_zeros(len(table)).index_add(0, index.reshape(-1), weights.reshape(-1))
        return torch.einsum("n,nij->ij", counts, table)


class GaussianStates(NamedTuple):
    """N(means, covariances) of each step's state. means: (*B, T, h), zero at padded steps."""

    means: Tensor
    covariances: StepCovariances


class StateMoments(NamedTuple):
    """Means (B, T, h) and covariances (B, T, h, h) of each step's state, 0 at padded steps; lists of them for ragged data."""

    means: Tensor | list[Tensor]
    covariances: Tensor | list[Tensor]

    def _repr_html_(self) -> str | None:
        """For notebooks."""
        pairs = zip(self.means, self.covariances, strict=True)
        both = [torch.cat([mean, spread.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()], -1) for mean, spread in pairs]
        size = self.means[0].shape[-1]
        names = [f"{what}{k}" for what in ("mean ", "deviation ") for k in range(size)]
        return notebooks.by_steps("Means and deviations", both, names)


class GaussianForecast(NamedTuple):
    """The k steps behind each row's own end.

    state_means: (*B, k, h). state_covariances: (k, h, h) where rows agree, else (*B, k, h, h). means: (*B, k, n) of the
    observations, covariances: (k, n, n) or (*B, k, n, n); both None without an emission, covariances None where the emission
    gives none.
    """

    state_means: Tensor
    state_covariances: Tensor
    means: Tensor | None
    covariances: Tensor | None


class Innovations(NamedTuple):
    """y_t minus its prediction from y_1..y_{t-1}. values: (*B, T, n), zero at padded and missing steps.

    covariances: (n, n) matrices as :class:`StepCovariances`, or None where the emission gives none.
    """

    values: Tensor
    covariances: StepCovariances | None
