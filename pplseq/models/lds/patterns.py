"""Matrices of which some numbers are known, some are equal, and the rest is free: what a constrained system is made of.

A covariance may have the patterns that are closed under products (Jordan algebras of symmetric matrices): blocks that are free,
diagonal, tied, or of one variance and one covariance, and blocks that are known. Then the exponential reaches every covariance
of the pattern and nothing else, so that gradients may go where they like, and the most likely one is the average of the sample
covariance over equal entries.

Source: T. H. Szatrowski (1980), Necessary and sufficient conditions for explicit solutions in the multivariate normal
estimation problem for patterned means and covariances, Annals of Statistics 8(4); E. E. Holmes (2013), Derivation of the EM
algorithm for constrained and unconstrained multivariate autoregressive state-space (MARSS) models, arXiv:1302.3919, for
matrices of numbers and names.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pplseq import checks

WORDS = ("free", "diagonal", "scalar", "identity", "zero")
NEAR = 1e-9  # differences that are rounding, of the largest number


class Pattern:
    """A vector or matrix of known and of named numbers.

    Args:
        name: of the parameter, for messages.
        given: nested lists, an array or a tensor of ``shape``: a number is known, entries of one name (a string) are equal, NaN
            or None is free. Or a word for all of it: "free" and "zero"; of square matrices also "diagonal", "scalar" (one
            number along the diagonal) and "identity".

    Attributes:
        known: the numbers, 0 where they are named. index: (*shape) the number of each entry's name, -1 where it is known.
        names: of the free numbers.

    Raises:
        ValueError, TypeError: for what is no such pattern.
    """

    symmetric = False

    def __init__(self, name: str, given: Any, shape: tuple[int, ...]):
        self.name, self.shape = name, shape
        if isinstance(given, str):
            checks.choice(name, given, WORDS if len(shape) == 2 and shape[0] == shape[1] else ("free", "zero"))
            given = _of_word(given, shape)
        entries, found = _flat(given)
        if found != shape:
            raise ValueError(f"{name}: its pattern must have shape {shape}, got {found}")
        names: dict[str, int] = {}
        known, index = [], []
        for place, entry in enumerate(entries):
            if entry is None or (not isinstance(entry, str) and math.isnan(entry)):
                where = [int(part) for part in torch.unravel_index(torch.tensor(place), shape)]
                entry = str(sorted(where) if self.symmetric else where)
            if isinstance(entry, str):
                index.append(names.setdefault(entry, len(names)))
                known.append(0.0)
            elif math.isfinite(entry):
                index.append(-1)
                known.append(float(entry))
            else:
                raise ValueError(f"{name}: a known number must be finite, got {entry}")
        self.names = list(names)
        self.known = torch.tensor(known, dtype=torch.float64).reshape(shape)
        self.index = torch.tensor(index, dtype=torch.long).reshape(shape)

    def filled(self, free: Tensor) -> Tensor:
        """The matrix of free numbers (m,); differentiable."""
        known, index = self.known.to(free), self.index.to(free.device)
        if not self.names:
            return known
        return torch.where(index < 0, known, free[index.clamp_min(0)])

    def average(self, value: Tensor) -> Tensor:
        """(m,) averages of a matrix over the entries of each name: the nearest matrix of the pattern has these."""
        return self.total(value) / self.total(torch.ones_like(value)).clamp_min(1)

    def total(self, value: Tensor) -> Tensor:
        """(m,) sums of a matrix over the entries of each name."""
        index = self.index.to(value.device)
        return value.new_zeros(len(self.names)).index_add_(0, index[index >= 0], value[index >= 0])

    def check(self, value: Tensor) -> Tensor:
        """The matrix itself; raises ValueError where it has not this pattern, and names an entry that has not."""
        checks.finite(self.name, checks.shape(self.name, value, self.shape))
        wanted = self.filled(self.average(value))
        off = ((value - wanted).abs() > NEAR * value.abs().max().clamp_min(1.0)).nonzero().tolist()
        if off:
            place = tuple(off[0])
            number = int(self.index[place])
            must = f"is known to be {float(wanted[place]):g}" if number < 0 else f"equals others named {self.names[number]!r}"
            raise ValueError(f"{self.name}: by its pattern {list(place)} {must}, got {float(value[place]):g}")
        return value

    # how free numbers are kept, so that every number is allowed: of weights as they are
    def matrix(self, raw: Tensor) -> Tensor:
        """The matrix of what is kept (m,); differentiable."""
        return self.filled(raw)

    def raw(self, value: Tensor) -> Tensor:
        """(m,) what is kept of a matrix of this pattern."""
        return self.average(value)

    def as_config(self) -> list:
        """Nested lists, as the pattern is given."""
        flat = zip(self.known.flatten().tolist(), self.index.flatten().tolist(), strict=True)
        flat = [number if place < 0 else self.names[place] for number, place in flat]
        return flat if len(self.shape) == 1 else [flat[k : k + self.shape[1]] for k in range(0, len(flat), self.shape[1])]


class CovariancePattern(Pattern):
    """The pattern of a covariance (n, n); given as a list of n entries, of its diagonal. What is kept is its logarithm.

    Raises:
        ValueError: for a pattern that is not symmetric, or not closed under products, or whose known part is no covariance.
    """

    symmetric = True

    def __init__(self, name: str, given: Any, size: int):
        if not isinstance(given, str) and len(_flat(given)[1]) == 1:
            entries, (number,) = _flat(given)
            given = [[_own(entries[i], i) if i == j else 0.0 for j in range(number)] for i in range(number)]
        super().__init__(name, given, (size, size))
        if bool((self.index != self.index.T).any()) or bool((self.known != self.known.T).any()):
            raise ValueError(f"{name}: the pattern of a covariance must be symmetric")
        linked = (self.index >= 0) | (self.known != 0) | torch.eye(size, dtype=torch.bool)
        together = linked.double()
        for _ in range(size.bit_length()):  # who is in one block with whom
            together = (together @ together > 0).double()
        self.moving = (together.bool() & (self.index >= 0).any(-1)).any(-1)  # coordinates of blocks with names
        mixed = self.moving & (self.known != 0).any(-1)
        values = torch.linalg.eigvalsh(self.known)
        if bool(mixed.any()):
            raise ValueError(
                f"{name}: coordinates {mixed.nonzero().flatten().tolist()} have known numbers other than 0 in a block with "
                "free ones, which then could not vary freely; know a whole block, or none of it"
            )
        if float(values[0]) < -NEAR * float(values[-1].abs()):
            raise ValueError(f"{name}: what is known must be a covariance, but its smallest eigenvalue is {values[0]:.3g}")
        self.diagonal = not bool((linked & ~torch.eye(size, dtype=torch.bool)).any())
        basis = [(self.index == k).double() for k in range(len(self.names))]
        products = [torch.diag(self.moving.double())]
        products += [a @ b + b @ a for place, a in enumerate(basis) for b in basis[: place + 1]]
        for product in products:
            if bool((self.filled(self.average(product)) - self.known - product).abs().max() > NEAR * product.abs().max()):
                raise ValueError(
                    f"{name}: this pattern is not closed under products of its matrices, so that its free numbers could not "
                    "vary freely; make it of blocks that are free, diagonal, tied, of one variance and one covariance, or known"
                )

    def matrix(self, raw: Tensor) -> Tensor:
        known, index = self.known.to(raw), self.index.to(raw.device)
        if not self.names:
            return known
        if self.diagonal:
            return torch.diag(torch.where(index.diagonal() < 0, known.diagonal(), raw[index.diagonal().clamp_min(0)].exp()))
        some = self.moving.nonzero().flatten().to(raw.device)
        inner = torch.where(index < 0, 0.0, raw[index.clamp_min(0)])[some][:, some]
        return known.index_put((some.unsqueeze(-1), some), torch.linalg.matrix_exp(inner))

    def raw(self, value: Tensor) -> Tensor:
        some = self.moving.nonzero().flatten().to(value.device)
        if not len(some):
            return value.new_zeros(0)
        values, vectors = torch.linalg.eigh(value[some][:, some])
        if float(values[0]) <= 0:
            raise ValueError(
                f"{self.name} must be positive definite where it is free, but its smallest eigenvalue is "
                f"{float(values[0]):.3g}; a variance of 0 is one that the pattern knows"
            )
        logarithm = torch.zeros_like(value)
        logarithm[some.unsqueeze(-1), some] = (vectors * values.log()) @ vectors.T
        return self.average(logarithm)

    def nearest(self, value: Tensor, floor: float | Tensor, before: Tensor) -> tuple[Tensor, bool]:
        """The most likely covariance of the pattern where the sample's is ``value``, with no variance below the floor in any
        direction of what is free; and whether one was.

        Args:
            floor: a variance, or (n,), of which the smallest counts.
            before: what it was: where that is below the floor, the floor is lowered to it.
        """
        some = self.moving.nonzero().flatten().to(value.device)
        if not len(some):
            return before, False
        averaged = self.filled(self.average(value))[some][:, some]
        values, vectors = torch.linalg.eigh(averaged)
        lowest = min(float(torch.as_tensor(floor).min()), float(torch.linalg.eigvalsh(before[some][:, some])[0]))
        kept = (vectors * values.clamp_min(lowest)) @ vectors.T  # a function of it has its pattern
        whole = self.known.to(value).index_put((some.unsqueeze(-1), some), (kept + kept.T) / 2)
        return whole, bool((values < lowest).any())


def _of_word(word: str, shape: tuple[int, ...]) -> Any:
    if word in ("free", "zero"):
        return torch.full(shape, torch.nan if word == "free" else 0.0)
    along = {"diagonal": None, "scalar": word, "identity": 1.0}[word]
    return [[_own(along, i) if i == j else 0.0 for j in range(shape[1])] for i in range(shape[0])]


def _own(entry: Any, place: int) -> Any:
    """An entry of a diagonal; a free one with a name of its own."""
    return str([place, place]) if entry is None or entry != entry else entry


def _flat(given: Any) -> tuple[list, tuple[int, ...]]:
    """Entries and shape of nested lists, of an array or a tensor."""
    given = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(given, (list, tuple)):
        return [given], ()
    parts = [_flat(part) for part in given]
    shapes = {shape for _, shape in parts}
    if len(shapes) != 1:
        raise ValueError(f"a pattern must be a matrix, with rows of one length; got {checks.shown(given)}")
    return [entry for entries, _ in parts for entry in entries], (len(parts), *shapes.pop())
