"""Components of a structural time series: the block of states that each is."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Component(NamedTuple):
    """A block of states.

    transition: (m, m). emission: (m,) how much of each state is observed. shocks: (m,) the number of the variance that moves
    each state, -1 for none.
    """

    name: str
    transition: Tensor
    emission: Tensor
    shocks: list[int]


VARIANCES = ("level", "slope", "seasonal")


def components_of(trend: str | None, seasonal: int | None, level: str) -> list[Component]:
    """The blocks that options ask for, in their order.

    Source: A. C. Harvey (1989), Forecasting, structural time series models and the Kalman filter, section 2.3.
    """
    moved = 0 if level == "stochastic" else -1
    if trend is None:
        blocks = [Component("level", torch.ones(1, 1), torch.ones(1), [moved])]
    else:
        line = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
        blocks = [Component("trend", line, torch.tensor([1.0, 0.0]), [moved, 1 if trend == "stochastic" else -1])]
    if seasonal is not None:  # a season and those before it sum to noise
        size = seasonal - 1
        turn = torch.diag(torch.ones(size - 1), -1)
        turn[0] = -1.0
        blocks.append(Component("seasonal", turn, torch.eye(size)[0], [2] + [-1] * (size - 1)))
    return blocks
