"""Models in continuous time that read step by step: a step may say when it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from pplseq.infer.fit.em import Batch
from pplseq.models.lds.times import gaps_of, times_of
from pplseq.models.online.reader import Chains


class TimedChains(Chains):
    """A chain of one step at a time, into which the state moves over the time since the step before."""

    def _of_step(self, name: str, value: Any) -> Any:
        return times_of([value], None) if name == "times" else super()._of_step(name, value)

    def _gaps(self, known: Mapping[str, Any]) -> Tensor | None:
        if self.belief is None:
            return None
        times: list[Any] = [None if self.last is None else self.last[2].get("times"), known.get("times")]
        if times == [None, None]:
            return None
        if any(each is None for each in times):
            raise ValueError("times: give those of all steps of a sequence, or of none")
        (before,), (now,) = times
        if (before.dtype.kind in "mM" or now.dtype.kind in "mM") and before.dtype.kind != now.dtype.kind:
            raise TypeError(f"times: dates go on from dates, and numbers from numbers; {now[0]} stands behind {before[0]}")
        return gaps_of([np.concatenate([before, now])], Batch(self.model.reference.new_zeros(1, 2, 1)))[:, 1:]
