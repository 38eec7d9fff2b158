"""Models of regimes whose steps are regressed on inputs and on earlier steps: their chains and draws, without the program."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pplseq.infer.discrete.chain import Chain
from pplseq.models.base import Given
from pplseq.models.estimator import Estimator
from pplseq.models.lds.arguments import check_inputs


class RegressedSteps(Estimator):
    """``seen_before(given, inputs)`` is what steps are regressed on: called with a step, its row; ``values`` of all steps, and
    ``last`` the observation before, where there are none yet."""

    num_inputs: int

    def seen_before(self, given: Given, inputs: Tensor | None) -> Any:
        raise NotImplementedError

    def _told(self, x, lengths, start, inputs, known):
        """What the program was called with, what its steps are regressed on, and the two specs."""
        given = self.given(x, lengths, start, **known)
        return given, self.seen_before(given, check_inputs(inputs, given.shape, self.num_inputs, lengths)), self.specs()

    def _direct_chain(self, x, lengths=None, start=None, *, inputs=None, **known) -> Chain | None:
        if not self._is_one_chain:
            return None
        given, see, specs = self._told(x, lengths, start, inputs, known)
        return given.chain(*specs, start, emission_inputs=see.values)  # pyright: ignore[reportCallIssue]

    def _direct_draw(self, *, start=None, inputs=None, **known) -> tuple[Tensor, Tensor] | None:
        if not self._is_one_chain:
            return None
        given, see, (transition, emission) = self._told(None, None, start, inputs, known)

        def emit(z, t, x):
            see.last = x
            return emission(z, inputs=see(t))

        return given.draw(lambda z, t, x: transition(z), emit, start)
