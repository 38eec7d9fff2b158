"""EM of a small system as it is, of which an iteration is one compiled call between one vector of numbers and the next.

The twin is the same loop over the model itself, :func:`~pplseq.infer.fit.em.expectation_maximization`: whatever is not plain
(a covariance at its floor, moments that leave a direction open, digits that may be lost) sends the whole fit there, from the
start.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq.infer.fit.em import Batch, FitHistory, Statistics, expectation_maximization
from pplseq.kernels import compiled
from pplseq.kernels.gaussian import whole
from pplseq.kernels.gaussian.whole import Numbers

OPTIONS = frozenset(("max_iterations", "tolerance", "acceleration"))
LOOP, TWIN_OPERATIONS, WORTH = "kernels.gaussian.em_loops.step", 400, 20.0  # an iteration of two milliseconds
MOST_WORK = 1 << 22  # multiplications of a filter, of more of which the calls around it cost nothing
# what makes up EM; a system with its own way of any of it is fitted that way
WAYS = frozenset((
    "fit", "check_data", "check_method", "chain_of", "expected_statistics", "expectation_at_once", "maximize", "em_coordinates",
    "set_em_coordinates",
))  # fmt: skip


class NotPlain(Exception):
    """An iteration that the loop leaves to the twin."""


class VectorSystem:
    """What :class:`~pplseq.infer.fit.em.ExpectationModel` asks of a model, of a system as one vector of numbers.

    Args:
        system: where EM begins. values: (R, T, n) the observations. tol: as of
            :class:`~pplseq.kernels.gaussian.whole.WholeSystem`. floor: the smallest variance, or None.
    """

    def __init__(self, system: Numbers, values: np.ndarray, tol: float, floor: float | None):
        self.system, self.values, self.tol, self.floor = system, values, tol, 0.0 if floor is None else floor
        self.numbers, self._prior = system.numbers, torch.zeros((), dtype=torch.float64)
        self._made: tuple[np.ndarray, ...] | None = None  # new numbers, coordinates here and there, units, floors
        self._is_moved = False  # whether the numbers are those that the last iteration made

    def expectation_at_once(self, batch: Batch) -> tuple[Statistics, float]:
        """The whole iteration; its sums stay inside."""
        found = whole.em_step(self.system._replace(numbers=self.numbers), self.values, self.tol, self.floor)
        if found is None:
            raise NotPlain
        self._made, self._is_moved = found[1], False
        return {}, found[0]

    def maximize(self, statistics: Statistics) -> list[str]:
        self.numbers, self._is_moved = self._last[0], True
        return []

    @property
    def _last(self) -> tuple[np.ndarray, ...]:
        assert self._made is not None, "an M-step follows an E-step"
        return self._made

    def log_prior(self) -> Tensor:
        return self._prior

    def state_dict(self) -> dict[str, Tensor]:
        return {"numbers": torch.from_numpy(self.numbers)}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        self.numbers = state_dict["numbers"].numpy()

    def em_coordinates(self) -> tuple[Tensor, Tensor]:
        """Those of the numbers that the last iteration started from, or made; their units are of the latter."""
        _, here, image, units, _ = self._last
        return torch.from_numpy(image if self._is_moved else here), torch.from_numpy(units)

    def set_em_coordinates(self, coordinates: Tensor) -> None:
        found = whole.at_coordinates(self.system, coordinates.numpy(), self._last[-1])
        if found is None:
            raise NotPlain
        self.numbers = found


def fit_plainly(system: Numbers, values: np.ndarray, tol: float, floor: float | None, options: dict[str, Any]):
    """The history of a fit and the numbers that it comes to; None where it is left to the twin."""
    rows, steps, n = values.shape
    work = rows * steps * system.h * (2 * system.h + 4 * n)
    if steps < 2 or rows * steps <= system.h or work > MOST_WORK or compiled.num_parts(rows, 4 * work) > 1:
        return None
    if not compiled.pays(LOOP, worth=WORTH):
        return None
    vector: Any = VectorSystem(system, values, tol, floor)
    try:
        history: FitHistory = expectation_maximization(vector, [Batch(torch.from_numpy(values))], **options)
    except NotPlain:
        return None
    return history, vector.numbers
