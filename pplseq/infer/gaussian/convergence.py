"""When recursions of covariances stand still."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

DOUBLE = torch.float64
ROUNDING = 1e4 * torch.finfo(DOUBLE).eps  # changes below this that stopped falling are rounding errors
PATIENCE = 16  # steps without a smaller change


def size_of(matrix: Tensor) -> Tensor:
    """(...) the largest entry of matrices (..., h, h)."""
    return matrix.detach().abs().flatten(-2).amax(-1)  # faster than aminmax along a dimension, and than a norm


class Record(NamedTuple):
    """Relative changes on the way to a node: the smallest one, the number of steps since then, the last one."""

    least: float = float("inf")
    age: int = 0
    last: float = 0.0


class Convergence:
    """Decides when a recursion of covariances stands still: in value and, where gradients are wanted, in them as well.

    A change of an early covariance changes a later one by X dP X' with X the product of closed loops in between; unless X has
    died out, too, a start that happens to be the steady covariance would hide the gradient of everything behind it.
    """

    def __init__(self, tol: float, wait_for_rounding: bool, wants_gradient: bool, h: int):
        self.tol, self.wait_for_rounding, self.wants_gradient = tol, wait_for_rounding, wants_gradient
        self.sensitivity: dict[int, Tensor] = {}  # node -> X
        self.records: dict[int, Record] = {}
        self.rounding = ROUNDING
        self.identity = torch.eye(h, dtype=DOUBLE)

    @property
    def agree(self) -> float:
        """Relative difference within which two covariances that stand still are one: well above rounding."""
        return max(self.tol, 100 * self.rounding) if self.wait_for_rounding else self.tol

    def memory(self, parent: int, loop: Tensor, fresh: bool = False) -> tuple[Tensor, Tensor]:
        """X of a node, and of the one behind it by a step with this closed loop, where gradients are wanted.

        fresh: the parent stands still; what departs from it starts anew.
        """
        before = self.identity if fresh else self.sensitivity.get(parent, self.identity)
        return before, loop.detach().to(self.identity.device) @ before

    def forgotten(self, product: Tensor | None) -> bool:
        """Whether the start no longer matters: X is negligible."""
        return product is None or float(product.norm()) ** 2 <= self.tol * max(1.0, float(len(product)) ** 0.5)

    def still(self, parent: int, change: float, fresh: bool = False) -> tuple[bool, Record]:
        """Whether a relative change is none, and the record to keep for the new node; fresh: as above."""
        before = Record() if fresh else self.records.get(parent, Record())
        least, age = before.least, before.age + 1
        # what is far above rounding is a new transient, behind a gap
        if change < least or change > 100 * self.rounding:
            least, age = change, 0
        rounding = self.wait_for_rounding and max(least, change) <= self.rounding and age >= PATIENCE
        ahead = change
        if self.wait_for_rounding and self.tol > ROUNDING and before.last > 0:
            # single precision: small changes of a slow chain add up, as a geometric series, to what is not small
            rate = change / before.last
            ahead = max(change, change * rate / (1 - rate)) if rate < 1 else float("inf")
        return ahead <= self.tol or rounding, Record(least, age, change)
