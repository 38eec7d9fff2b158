"""Moves whose transition matrix is a product, as a user declares them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from pplseq import checks
from pplseq.distributions.product import shapes_of


class ProductMoves:
    """Moves of a state that is a tuple of coordinates: of (i, j), i of m values and j of n, first j moves within i, by m
    matrices n x n, then i within j, by n matrices m x m. A step takes Z (m + n) multiplications where a full matrix takes Z^2,
    Z = m n; every state may follow every other one.

    Args:
        *sizes: m, n, or those of more coordinates, of which the last moves first. State (i, j) has the number i n + j.

    Raises:
        ValueError, TypeError: for fewer than two sizes, and what is none.

    Example::

        HMM(num_words=27, transition=ProductMoves(128, 128), dtype="float32")  # 2^14 states, each of which has every word

    Source: H. Zhang et al. (2025), Scaling probabilistic circuits via Monarch matrices, ICML.
    """

    def __init__(self, *sizes: int):
        if len(sizes) < 2:
            raise ValueError(f"ProductMoves: expected two sizes or more, as ProductMoves(128, 128), got {checks.shown(sizes)}")
        self.sizes = tuple(checks.count("sizes", size) for size in sizes)

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """From itself, what :meth:`as_config` gave, or None.

        Raises:
            TypeError: for anything else.
        """
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, Mapping) and [*value] == ["sizes"] and isinstance(value["sizes"], (list, tuple)):
            return cls(*value["sizes"])
        raise TypeError(
            f"transition: expected ProductMoves(m, n), or None for a full matrix, got {checks.shown(value)}; tables of "
            "probabilities go into set_parameters"
        )

    def as_config(self) -> dict[str, list[int]]:
        """The sizes, JSON-able."""
        return {"sizes": [*self.sizes]}

    @property
    def num_states(self) -> int:
        """Z"""
        return math.prod(self.sizes)

    @property
    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """Of the tables in the order of moves, [others, from, to], by the names of ``set_parameters``."""
        return {f"transition_{number}": shape for number, shape in enumerate(shapes_of(self.sizes), 1)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProductMoves) and self.sizes == other.sizes

    def __hash__(self) -> int:
        return hash(self.sizes)

    def __repr__(self) -> str:
        return f"ProductMoves({', '.join(map(str, self.sizes))})"
