"""Fewer iterations of EM: steps extrapolated from the last few.

EM is a map M of the parameters whose fixed point is wanted, and near it nearly linear. Anderson's acceleration finds, among
the affine combinations of the last iterates, the one whose change M(theta) - theta is smallest, and goes on from the same
combination of their images. The map's own image is kept for where this loses.

Source: D. G. Anderson (1965), Iterative procedures for nonlinear integral equations; H. F. Walker and P. Ni (2011), Anderson
acceleration for fixed-point iterations, eq. 2.3.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FARTHEST = 0.5  # units of a coordinate ahead of M; variances that all but vanish at one stride would hold EM there
COLLINEAR = 1e-4  # singular values of the changes, in the share of the largest, that say nothing
FAILURES = (ValueError, ArithmeticError, torch.linalg.LinAlgError)  # pyright: ignore[reportPrivateImportUsage]


class Acceleration:
    """Memory of the last iterates, and where they lead.

    Args:
        model: offers ``em_coordinates()``, a vector of its free parameters in which any number is allowed, with a vector of
            their units, and ``set_em_coordinates(vector)``. depth: how many differences of iterates are combined.

    Attributes:
        memory: "iterates" and "images", each (k, P), k <= depth + 1; what a checkpoint holds.
    """

    def __init__(self, model: Any, depth: int = 5):
        self.model, self.depth = model, depth
        self.memory: dict[str, Tensor] = {}

    @property
    def is_ahead(self) -> bool:
        """Whether the model's parameters are extrapolated, and not M of the iterate before."""
        return len(self.memory.get("images", ())) > 1

    def step(self, iterate: Tensor) -> None:
        """Moves the model, which stands at M(iterate), ahead."""
        image, units = self.model.em_coordinates()
        pairs: dict[str, Tensor] = {"iterates": iterate, "images": image}
        for name, value in pairs.items():
            known = self.memory.get(name, value.new_zeros(0, len(value)))
            self.memory[name] = torch.cat([known, value.unsqueeze(0)])[-self.depth - 1 :]
        if self.is_ahead:
            images = self.memory["images"]
            changes = (images - self.memory["iterates"]) / units
            weights = changes[-1] @ torch.linalg.pinv(changes.diff(dim=0), rtol=COLLINEAR)
            ahead = -weights @ images.diff(dim=0)
            ahead = ahead * (FARTHEST / (ahead / units).abs().amax().clamp_min(FARTHEST))
            try:
                self.model.set_em_coordinates(images[-1] + ahead)
            except FAILURES:
                self.fall_back()

    def fall_back(self) -> None:
        """Back to M of the last iterate; what was known is forgotten."""
        self.model.set_em_coordinates(self.memory["images"][-1])
        self.memory.clear()
