"""Learning automata as a training: EM's iterations over the sizes that are tried, on the loop of :mod:`pplseq.runs.loop`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq.models.automata.automaton import String
from pplseq.models.automata.em import SymbolTables, TableFit
from pplseq.models.automata.prefix_tree import PrefixTree
from pplseq.models.automata.repair import num_right, repair
from pplseq.models.iohmm.restarts.training import packed, unpacked
from pplseq.runs.loop import Step, Training
from pplseq.runs.settings import Progress


class TriedSize(NamedTuple):
    """What became of one number of states.

    Attributes:
        num_states: of the tables. num_restarts: restarts.
        num_collapsed: dropped, as their log-likelihood was not finite.
        num_consistent: whose automaton gives every training string its label.
        num_repaired: of these, how many were repaired to do so.
        most_right: training strings that the best automaton labels right.
        seconds: of wall time.
    """

    num_states: int
    num_restarts: int
    num_collapsed: int
    num_consistent: int
    num_repaired: int
    most_right: int
    seconds: float


class Told(NamedTuple):
    """What an automaton is learned from: a tree of strings, names of labels, validation, and a fingerprint of everything."""

    tree: PrefixTree
    names: tuple[str, ...]
    validation: tuple[Sequence[String], Sequence[bool | int | str]] | None
    digest: str


class AutomatonTraining(Training):
    """Sizes one after the other, an iteration of EM of one batch of restarts a step; ``learner.save`` writes the best.

    Args:
        learner: an ``AutomatonLearner``, which begins sizes and writes what is best; its ``_tried`` is what there is so far.
        each: is told each size after it was tried.
    """

    says_best = True

    def __init__(self, learner: Any, told: Told, each: Callable[[TriedSize], None] | None):
        self.learner, self.told, self.each, self.progress = learner, told, each, Progress()
        self.tried: list[TriedSize] = []
        self.best: tuple[int, SymbolTables] | None = None  # strings that are labelled right, and tables that do
        self.fit: TableFit | None = None  # of the size that is being tried
        self.seconds, self.since = 0.0, time.perf_counter()  # spent on it

    def ended(self) -> str:
        done = self.tried and self.tried[-1].num_consistent
        return "finished" if done or len(self.tried) == len(self.learner.sizes) else ""

    def step(self) -> Step:
        tree = self.told.tree
        if self.fit is None:
            self.seconds, self.since = 0.0, time.perf_counter()
            self.fit = self.learner.begin_size(tree, self.learner.sizes[len(self.tried)], len(self.told.names))
        best = float(self.fit.step().nan_to_num(-torch.inf).max())
        self.progress.step += 1
        record = {"kind": "train", "nats_per_token": -best / float(tree.weight.sum()), "states": len(self.fit.parts[0].start)}
        if not self.fit.ended:
            return Step([record])
        self.judge()
        return Step([record], best=self.best is not None, save=True)

    def judge(self) -> None:
        """Makes the tables of the size that is being tried hard, and keeps those that label most strings right."""
        assert self.fit is not None
        tree = self.told.tree
        tables, log_likelihood = self.fit.outcome()
        finite = torch.isfinite(log_likelihood)
        right = num_right(tree, tables)
        was_consistent = right == len(tree.end)
        if self.learner.repair:
            tables = repair(tree, tables, finite)
            right = num_right(tree, tables)
        right[~finite] = -1
        most = int(right.max())
        consistent = right == len(tree.end)
        counted = int(consistent.sum()), int((consistent & ~was_consistent).sum())
        size = TriedSize(len(tables.start), len(right), int((~finite).sum()), *counted, most, self.spent())
        self.fit = None
        self.tried.append(size)
        if most >= 0 and (self.best is None or most > self.best[0]):
            self.best = most, tables.restarts((right == most).nonzero().squeeze(-1))
        self.tell()
        if self.each is not None:
            self.each(size)

    def tell(self) -> None:
        """Lets the learner know what there is so far."""
        if self.best is not None:
            self.learner._tried = self.told.tree, self.told.names, self.told.validation, list(self.tried), *self.best

    def cut(self) -> None:
        """Ends with what there is, where the time was over before a size was done."""
        if self.fit is not None:
            self.judge()

    def spent(self) -> float:
        return self.seconds + time.perf_counter() - self.since

    # ---------------------------------------------------------------- checkpoints
    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors: dict[str, Tensor] = {}
        fit = None if self.fit is None else self.fit.state()
        best = None if self.best is None else (self.best[0], tuple(self.best[1]))
        state = {"fit": fit, "best": best, "tried": [size._asdict() for size in self.tried]}
        kept = {name: packed(value, name, tensors) for name, value in state.items()}
        return tensors, kept | {"seconds": self.spent(), "told": self.told.digest}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if state["told"] != self.told.digest:
            raise ValueError("the checkpoint is of other strings or settings; learn from those, or in another folder")
        found = {name: unpacked(state[name], tensors) for name in ("fit", "best", "tried")}
        self.tried = [TriedSize(**size) for size in found["tried"]]
        if found["best"] is not None:
            self.best = found["best"][0], SymbolTables(*found["best"][1])
            self.tell()
        if found["fit"] is not None:
            self.fit = self.learner.begin_size(
                self.told.tree, self.learner.sizes[len(self.tried)], len(self.told.names)
            )
            self.fit.restore(found["fit"])
        self.seconds, self.since = state["seconds"], time.perf_counter()

    def save_model(self, folder: Path) -> None:
        """A checkpoint holds no model: it stands in ``best``."""

    def save_best(self, folder: Path) -> None:
        self.learner.save(folder)
