"""Learning automata as a training: merging, then EM's iterations over sizes, on the loop of :mod:`pplseq.runs.loop`."""

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
from pplseq.models.automata.state_merging import held_out_accuracy, smallest_by_merging, too_large
from pplseq.models.iohmm.restarts.training import packed, unpacked
from pplseq.runs.loop import Step, Training
from pplseq.runs.settings import Progress

BELIEVED = 0.95  # share of strings left out that merging must label right, to be taken without EM


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
    """What an automaton is learned from: strings as a tree and as they are, labels, validation, a fingerprint of everything."""

    tree: PrefixTree
    strings: Sequence[String]
    labels: Sequence[int]
    names: tuple[str, ...]
    validation: tuple[Sequence[String], Sequence[bool | int | str]] | None
    digest: str


class AutomatonTraining(Training):
    """Merging is the first step; then sizes one after the other, an iteration of EM of one batch of restarts a step.

    Args:
        learner: an ``AutomatonLearner``, which begins sizes and whose ``save`` writes what is best; its ``_tried`` is what
            there is so far.
        each: is told each size after it was tried.
    """

    says_best = True
    drops = True

    def __init__(self, learner: Any, told: Told, each: Callable[[TriedSize], None] | None):
        self.learner, self.told, self.each, self.progress = learner, told, each, Progress()
        self.tried: list[TriedSize] = []
        self.best: tuple[int, SymbolTables] | None = None  # strings that are labelled right, and tables that do
        self.fit: TableFit | None = None  # of the size that is being tried
        self.sizes: list[int] | None = None if learner.merging else learner.sizes  # for EM; None: states are merged first
        self.merged: SymbolTables | None = None  # what merging found
        self.share_right = 1.0  # of strings that it labels right: all, or of those left out
        self.said = ""
        self.seconds, self.since = 0.0, time.perf_counter()  # spent on it

    def ended(self) -> str:
        done = self.tried and self.tried[-1].num_consistent
        return "finished" if done or len(self.tried) == len(self.learner.sizes if self.sizes is None else self.sizes) else ""

    def step(self) -> Step:
        tree = self.told.tree
        if self.sizes is None:
            return self.merge()
        if self.fit is None:
            self.seconds, self.since = 0.0, time.perf_counter()
            self.fit = self.learner.begin_size(tree, self.sizes[len(self.tried)], len(self.told.names))
        assert self.fit is not None
        best = float(self.fit.step().nan_to_num(-torch.inf).max())
        self.progress.step += 1
        record = {"kind": "train", "nats_per_token": -best / float(tree.weight.sum()), "states": len(self.fit.parts[0].start)}
        if not self.fit.ended:
            return Step([record])
        self.judge()
        return Step([record], best=self.best is not None, save=True)

    def merge(self) -> Step:
        """Merges states, and decides which sizes are left to EM."""
        told, learner = self.told, self.learner
        self.sizes = learner.sizes
        self.progress.step += 1
        if too_large(told.tree):
            self.said = "too many prefixes and symbols to merge states"
            return Step()
        found = smallest_by_merging(told.tree, len(told.names))
        if found is None or (learner.largest is not None and found.num_states > learner.largest):
            self.said = "merging states found no automaton of so few states"
            return Step()
        self.merged = found.tables(len(told.names))
        states, number = found.num_states, len(found.labels)
        what = "1 automaton labels" if number == 1 else f"{number} automata label"
        self.said = f"merging states: {what} all strings right with {states} states"
        if found.whole:
            # validation strings may tell moves that no training string makes, and EM draws those
            self.sizes = [states] if found.open and told.validation is not None else []
            self.said += "; there is none that is smaller, and no other but for moves that no string makes"
        elif states > max(learner.sizes):
            self.share_right = held_out_accuracy(told.strings, told.labels, told.tree.symbols)
            self.said += f"; without a fifth of the strings, {self.share_right:.0%} of that fifth"
            if self.share_right >= BELIEVED:
                self.sizes = []
        else:
            self.said += f"; none has fewer than {found.least}"
            self.sizes = [size for size in learner.sizes if found.least <= size <= states]
        self.tell()
        return Step([{"kind": "train", "nats_per_token": 0.0, "states": states}], best=True, save=True)

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
        found, strings = self.best, len(self.told.tree.end)
        restarts = 0 if found is None else found[1].num_restarts
        if self.merged is not None and (found is None or found[0] < strings):
            # nothing that EM found labels all strings right
            if found is None or found[0] <= self.share_right * strings or self.sizes == []:
                found, restarts = (strings, self.merged), 0
        elif self.merged is not None and found is not None and len(found[1].start) == len(self.merged.start):
            joined = zip(found[1], self.merged, strict=True)
            found = strings, SymbolTables(*(torch.cat(tables, -1) for tables in joined))
        if found is not None:
            told = self.told
            self.learner._tried = told.tree, told.names, told.validation, list(self.tried), *found, restarts, self.said

    def cut(self) -> None:
        """Ends with what there is, where the time was over before a size was done."""
        if self.fit is None and self.best is None and self.merged is None:
            self.fit = self.learner.begin_size(self.told.tree, self.learner.sizes[0], len(self.told.names))
        if self.fit is not None:
            self.judge()

    def spent(self) -> float:
        return self.seconds + time.perf_counter() - self.since

    # ---------------------------------------------------------------- checkpoints
    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors: dict[str, Tensor] = {}
        fit = None if self.fit is None else self.fit.state()
        best = None if self.best is None else (self.best[0], tuple(self.best[1]))
        merged = None if self.merged is None else tuple(self.merged)
        state = {"fit": fit, "best": best, "tried": [size._asdict() for size in self.tried], "merged": merged}
        kept = {name: packed(value, name, tensors) for name, value in state.items()}
        return tensors, kept | {
            "seconds": self.spent(), "told": self.told.digest, "sizes": self.sizes, "share_right": self.share_right,
            "said": self.said,
        }  # fmt: skip

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if state["told"] != self.told.digest:
            raise ValueError("the checkpoint is of other strings or settings; learn from those, or in another folder")
        found = {name: unpacked(state[name], tensors) for name in ("fit", "best", "tried", "merged")}
        self.sizes, self.share_right, self.said = state["sizes"], state["share_right"], state["said"]
        self.tried = [TriedSize(**size) for size in found["tried"]]
        if found["best"] is not None:
            self.best = found["best"][0], SymbolTables(*found["best"][1])
        if found["merged"] is not None:
            self.merged = SymbolTables(*found["merged"])
        self.tell()
        if found["fit"] is not None:
            assert self.sizes is not None
            self.fit = self.learner.begin_size(self.told.tree, self.sizes[len(self.tried)], len(self.told.names))
            assert self.fit is not None
            self.fit.restore(found["fit"])
        self.seconds, self.since = state["seconds"], time.perf_counter()

    def save_model(self, folder: Path) -> None:
        """A checkpoint holds no model: it stands in ``best``."""

    def save_best(self, folder: Path) -> None:
        self.learner.save(folder)
