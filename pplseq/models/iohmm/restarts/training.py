"""A fit of many restarts as a run on disk: an iteration of all restarts a step, on the loop of :mod:`pplseq.runs.loop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pplseq.distributions.drawing import CPU, random_state, set_random_state
from pplseq.models.iohmm.restarts.history import RestartRun, Restarts
from pplseq.models.iohmm.restarts.outputs import Parameters
from pplseq.runs.loop import Step, Training
from pplseq.runs.settings import Progress


class RestartTraining(Training):
    """Groups of restarts, one after the other, and the choice among them.

    Args:
        begin_group: makes the run of the group of that number, from a start that is drawn now.
        num_groups: how many there are.
        load: gives the model the parameters of a restart.
        conclude: chooses among all, gives the model the chosen parameters and says why the fit ended.
        save: writes the model into a folder. num_steps: of the data, for records.
    """

    drops = True

    def __init__(
        self,
        begin_group: Callable[[int], RestartRun],
        num_groups: int,
        load: Callable[[Parameters, int], None],
        conclude: Callable[[Sequence[Restarts]], str],
        save: Callable[[Path], Any],
        num_steps: int,
    ):
        self.begin_group, self.num_groups, self.load, self.conclude = begin_group, num_groups, load, conclude
        self.save, self.num_steps, self.progress = save, num_steps, Progress()
        self.parts: list[Restarts] = []
        self.run: RestartRun | None = None
        self.reason = ""

    def ended(self) -> str:
        return self.reason

    def step(self) -> Step:
        run = self.run = self.run or self.begin_group(len(self.parts))
        looks = len(run.held_out.scores)
        best = float(run.step().nan_to_num(-torch.inf).max())
        self.progress.step += 1
        if run.ended:
            self.parts.append(run.outcome())
            self.run = None
            if len(self.parts) == self.num_groups:
                self.reason = self.conclude(self.parts)
        record = {"kind": "train", "nats_per_token": -best / self.num_steps, "group": len(self.parts)}
        looked = run.held_out.scores[max(looks, 1) :]  # the start itself is not looked at
        held_out = [{"kind": "validation", "nats_per_token": float(nats.nan_to_num(torch.inf).min())} for nats in looked]
        return Step([record, *held_out[-1:]], validate=bool(self.reason))

    def cut(self) -> None:
        """Ends the fit with what it has: chooses among the restarts so far."""
        if self.run is not None and self.run.best() is not None:
            self.run.cut()
            self.parts.append(self.run.outcome())
        if not self.parts:
            raise ValueError("max_time: it was over before the first iteration; give more")
        self.reason = self.conclude(self.parts)

    def save_model(self, folder: Path) -> None:
        """The likeliest restart that runs; in the end the chosen one."""
        if not self.reason and self.run is not None and (best := self.run.best()) is not None:
            self.load(*best)
        self.save(folder)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors: dict[str, Tensor] = {"random": random_state(CPU)}
        run = None if self.run is None else self.run.state()
        return tensors, {"run": packed(run, "run", tensors), "parts": packed([*map(vars, self.parts)], "parts", tensors)}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        self.parts = [Restarts(**part) for part in unpacked(state["parts"], tensors)]
        run = unpacked(state["run"], tensors)
        if run is not None:
            self.run = self.begin_group(len(self.parts))
            self.run.restore(run)
        set_random_state(CPU, tensors["random"])
        if len(self.parts) == self.num_groups:
            self.reason = self.conclude(self.parts)


def packed(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON holds it: tensors are put among ``tensors`` under the name given, dictionaries become pairs."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        return {"pairs": [[key, packed(each, f"{name}.{key}", tensors)] for key, each in value.items()]}
    if isinstance(value, (list, tuple)):
        return [packed(each, f"{name}.{place}", tensors) for place, each in enumerate(value)]
    return value


def unpacked(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Inverse of :func:`packed`; tuples come back as lists."""
    if isinstance(value, list):
        return [unpacked(each, tensors) for each in value]
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: unpacked(each, tensors) for key, each in value["pairs"]}
    return value
