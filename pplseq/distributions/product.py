"""Transitions that are products: a state is a tuple of coordinates, which move in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from pplseq.distributions.dense import check_normalised
from pplseq.distributions.state import Transition
from pplseq.kernels.log_semiring import in_float32
from pplseq.kernels.product_steps import ProductSteps


class ProductTransition(Transition):
    """p(z_t | z_{t-1}) over states (i, j), i of m values and j of n: first j moves within i, then i within j; or over more
    coordinates, of which the last moves first and each given all others as they then stand.

    State (i, j) has the number i n + j. Every state leads to every other one, by Z (m + n) numbers in the place of Z^2.

    Args:
        sizes: (m, n), two coordinates or more.
        initial: (Z,) log p(z_1), Z = m n.
        tables: log-probabilities in the order of moves: that of j (m, n, n), [i, from, to], then that of i (n, m, m),
            [j, from, to]. Of F coordinates each (Z / n, n, n), the others in their order first.

    Raises:
        ValueError: for sizes and shapes that do not fit together, and rows that do not sum to one.

    Source: H. Zhang et al. (2025), Scaling probabilistic circuits via Monarch matrices, ICML.
    """

    def __init__(self, sizes: Sequence[int], initial: Tensor, tables: Sequence[Tensor]):
        sizes, tables, total = tuple(sizes), tuple(tables), math.prod(sizes)
        shapes = shapes_of(sizes)
        if tuple(initial.shape) != (total,) or [tuple(table.shape) for table in tables] != shapes:
            raise ValueError(
                f"initial, tables: {total} states of coordinates {sizes} have shapes {(total,)} and {shapes}, got "
                f"{tuple(initial.shape)} and {[tuple(table.shape) for table in tables]}"
            )
        check_normalised("initial", initial)
        for table in tables:
            check_normalised("tables", table)
        self.sizes, self.initial, self.tables = sizes, in_float32(initial), tuple(map(in_float32, tables))
        self.num_states, self.device = total, initial.device

    @property
    def steps(self) -> ProductSteps:
        """A step as a map between messages."""
        return ProductSteps(self.sizes, self.tables)

    def initial_log_prob(self):
        return self.initial

    def rows(self, previous, inputs=None):
        return self.initial if previous is None else self.steps.rows(previous)


def shapes_of(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Of the tables of a :class:`ProductTransition`, in the order of moves."""
    return [(math.prod(sizes) // size, size, size) for size in reversed(sizes)]
