"""States whose steps are regressed on the steps before, read step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.models.lds.arguments import inputs_ahead, to_come
from pplseq.models.online.reader import Reading, finite, inputs_in_order, numbers_of
from pplseq.models.online.states import States
from pplseq.models.state_labels import numbers_of_states


class Regressions(States):
    """The states, and the p observations (and inputs) that the next step is regressed on.

    As in a whole row, the first p steps are given, and explained by nothing.
    """

    def __init__(self, model: Any):
        super().__init__(model, *model.specs())
        self.recent: list[np.ndarray] = []  # the last p, the oldest first
        self.inputs: list[np.ndarray] = []  # those of these steps

    def _inputs_of(self, known: Mapping[str, Any]) -> np.ndarray | None:
        size, given = self.model.num_inputs, known.get("inputs")
        if not size:
            if given is not None:
                raise ValueError("inputs: this model takes none; make it with num_inputs=..., or leave them out")
            return None
        if given is None:
            raise ValueError(f"inputs: expected the {size} numbers of this step, as the model has num_inputs={size}")
        given = inputs_in_order(given, self.model.input_column_names)
        try:
            return finite("inputs", np.asarray(given, dtype=np.float64).reshape(-1), (size,))
        except (TypeError, ValueError):
            raise ValueError(f"inputs: expected {size} finite numbers of this step, got {checks.shown(given)}") from None

    def _checked(self, state: Any) -> int:
        most = self.model._num_observable_states
        if isinstance(state, bool) or not isinstance(state, (int, np.integer)) or state >= most:
            raise ValueError(f"states: expected a state 0..{most - 1}, its name, or None, got {checks.shown(state)}")
        return int(state)

    def _rows(self, parts: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(parts)).to(self.model.reference).unsqueeze(0)

    @torch.no_grad()
    def step(self, x: Any, known: Mapping[str, Any]) -> Reading:
        model, order, like = self.model, self.model.order, None
        model._check_names(known)
        vector, inputs = numbers_of(x, model.num_features), self._inputs_of(known)
        seen = vector if vector is not None else np.full(model.num_features, np.nan)
        model._check_observations(self._rows([seen] * (order + 1)))  # says what may be missing
        if vector is not None and len(self.recent) == order:
            given = None if inputs is None else self._rows([*self.inputs, inputs])
            past = [*[np.zeros_like(seen)] * order, *self.recent, seen]
            row = model.regressors(self._rows(past), given)[:, -1]
            like = self.emission.log_likelihood(self._rows([seen])[0], row)[0].double().numpy()
        if (state := numbers_of_states(known.get("states"), model.state_names)) >= 0:
            only = np.where(model.regime_of.numpy() == self._checked(state), 0.0, -np.inf)
            like = only if like is None else like + only
        reading = self.told(like)
        if order:
            self.recent = [*self.recent, seen][-order:]
            self.inputs = [*self.inputs, inputs][-order:] if inputs is not None else []
        probs = torch.from_numpy(reading.states)
        return reading._replace(states=model.regimes(probs).numpy())

    def ahead(self, num_steps: int | None, told: Mapping[str, Any]) -> Any:
        model, order = self.model, self.model.order
        if len(self.recent) < order:
            raise ValueError(
                f"forecast: it goes on from the last {order} {model.steps_are}; read {order - len(self.recent)} more before"
            )
        if self.belief is None:
            raise ValueError("forecast: it goes on from a step; read one before")
        if odd := [name for name in told if name != "future_inputs"]:
            raise TypeError(f"forecast: no argument {odd[0]!r}.{checks.nearest(odd[0], ['num_steps', 'future_inputs'])}")
        steps, number = inputs_ahead(model, [[]], num_steps, told.get("future_inputs"))
        before = to_come(steps, 1, number, model.num_inputs, model.reference)
        if before is not None and order:
            before = torch.cat([self._rows(self.inputs), before], 1)
        now = torch.from_numpy(np.exp(self.belief)).to(model.reference).unsqueeze(0)
        recent = self._rows(self.recent[::-1]) if order else now.new_zeros(1, 0, model.num_features)
        found = model.steps_ahead(now, recent, before, number)
        return found._replace(column_names=model.column_names)

    def kept(self) -> dict[str, Any]:
        return super().kept() | {"recent": np.array(self.recent).tolist(), "inputs": np.array(self.inputs).tolist()}

    def take(self, kept: Mapping[str, Any]) -> None:
        super().take(kept)
        model, most = self.model, self.model.order
        number, size = len(kept["recent"]), model.num_inputs
        if number > most or number != len(kept["inputs"]) and size:
            raise ValueError(f"recent must be at most {most} steps, and inputs of as many")
        self.recent = [finite("recent", row, (model.num_features,)) for row in kept["recent"]]
        self.inputs = [finite("inputs", row, (size,)) for row in kept["inputs"]]
