"""Learning automata as a training: merging, then EM's iterations over sizes, on the loop of :mod:`pplseq.runs.loop`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq.models.automata.automaton import String
from pplseq.models.automata.description import inconsistent_length
from pplseq.models.automata.em import SymbolTables, TableFit
from pplseq.models.automata.prefix_tree import PrefixTree
from pplseq.models.automata.repair import num_right, repair
from pplseq.models.automata.state_merging import smallest_by_merging, too_large
from pplseq.models.iohmm.restarts.training import packed, unpacked
from pplseq.runs.loop import Step, Training
from pplseq.runs.settings import Progress

FEW_STRINGS = 100  # of fewer than these no label is taken for wrong
MARGIN = 1 / 3  # bits a string that exceptions must save, for labels to be taken for wrong
MOST_WRONG = 0.25  # share of labels that are taken for wrong, unless more are allowed


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
        self.rough: list[int] = []  # sizes that a short EM tries first, for automata that label some strings wrong
        self.merged: SymbolTables | None = None  # what merging found
        self.smallest = 0  # states of the smallest of these
        self.noisy: tuple[float, int, SymbolTables] | None = None  # bits, strings labelled right, and tables that do
        self.said = ""
        self.seconds, self.since = 0.0, time.perf_counter()  # spent on it

    @property
    def left(self) -> list[int]:
        """Sizes that are still to be tried, the short EM's first."""
        every = [*self.rough, *(self.learner.sizes if self.sizes is None else self.sizes)]
        return every[len(self.tried) :]

    def ended(self) -> str:
        if self.sizes is None or self.fit is not None:
            return ""
        if self.merged is not None:
            return "" if self.left else "finished"
        return "finished" if not self.left or (self.tried and self.tried[-1].num_consistent) else ""

    def step(self) -> Step:
        tree = self.told.tree
        if self.sizes is None:
            return self.merge()
        if self.fit is None:
            self.seconds, self.since = 0.0, time.perf_counter()
            self.fit = self.next_fit()
        assert self.fit is not None
        best = float(self.fit.step().nan_to_num(-torch.inf).max())
        self.progress.step += 1
        record = {"kind": "train", "nats_per_token": -best / float(tree.weight.sum()), "states": len(self.fit.parts[0].start)}
        if not self.fit.ended:
            return Step([record])
        self.judge()
        return Step([record], best=self.best is not None or self.merged is not None, save=True)

    def next_fit(self) -> TableFit:
        """EM of the size that is next."""
        rough = len(self.tried) < len(self.rough)
        return self.learner.begin_size(self.told.tree, self.left[0], len(self.told.names), rough)

    def merge(self) -> Step:
        """Merges states, and decides which sizes are left to EM: the one below what merging found, and further down from it."""
        told, learner = self.told, self.learner
        self.sizes = learner.sizes
        self.progress.step += 1
        if too_large(told.tree):
            self.said = "too many prefixes and symbols to merge states"
            return Step()
        found = smallest_by_merging(told.tree, len(told.names))
        if found is None or (learner.largest is not None and found.smallest > learner.largest):
            self.said = "merging states found no automaton of so few states"
            if found is not None:
                self.sizes = [size for size in learner.sizes if size >= found.least] or learner.sizes
            return Step()
        self.merged, self.smallest = found.tables(len(told.names)), found.smallest
        self.said = f"merging states: the smallest automaton that labels all strings right has {found.smallest} states"
        if found.whole:
            # validation strings may tell moves that no training string makes, and EM draws those
            self.sizes = [found.smallest] if found.open and told.validation is not None else []
            self.said += "; no other has so few, but for moves that no string makes" if found.only else "; all were found"
        else:
            below = range(found.smallest - 1, found.least - 1, -1)
            self.sizes = [size for size in below if size in learner.sizes] if found.smallest - 1 in learner.sizes else []
            self.said += f"; none has fewer than {found.least}"
        if learner.max_wrong != 0 and self.saves(0, 2):
            self.rough = [size for size in learner.sizes if size > 1 and self.saves(0, size)]
        self.tell()
        return Step([{"kind": "train", "nats_per_token": 0.0, "states": found.smallest}], best=True, save=True)

    def length(self, num_states: int, num_wrong: int = 0) -> float:
        """Bits of an automaton with its exceptions."""
        return inconsistent_length(num_states, len(self.told.tree.symbols), len(self.told.tree.end), num_wrong)

    def saves(self, num_wrong: int, num_states: int) -> bool:
        """Whether so many exceptions are few, and take far fewer bits than the smallest automaton without."""
        strings, most = len(self.told.tree.end), self.learner.max_wrong
        if most is None and strings < FEW_STRINGS:
            return False
        margin = MARGIN * strings if most is None else 0.0
        few = num_wrong <= (MOST_WRONG if most is None else most) * strings
        return few and self.length(num_states, num_wrong) + margin < self.length(self.smallest)

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
        states = len(tables.start)
        if len(self.tried) <= len(self.rough):
            self.judge_rough(tables, right, most, len(tree.end) - most, states)
        elif self.sizes is not None and self.merged is not None and states < self.smallest and not counted[0]:
            self.sizes = self.sizes[: len(self.tried) - len(self.rough)]  # a smaller one would be one of this size as well
        if most >= 0 and (self.best is None or most > self.best[0]):
            self.best = most, tables.restarts((right == most).nonzero().squeeze(-1))
        self.tell()
        if self.each is not None:
            self.each(size)

    def judge_rough(self, tables: SymbolTables, right: Tensor, most: int, wrong: int, states: int) -> None:
        """Keeps automata that label some strings wrong where that is beyond doubt; two sizes that are worse end it."""
        bits = self.length(states, wrong)
        if most >= 0 and self.saves(wrong, states) and (self.noisy is None or bits < self.noisy[0]):
            self.noisy = bits, most, tables.restarts((right == most).nonzero().squeeze(-1))
            self.sizes = []
        elif self.noisy is not None and states > len(self.noisy[2].start) + 1:
            self.rough = self.rough[: len(self.tried)]

    def tell(self) -> None:
        """Lets the learner know what there is so far."""
        found, strings, said = self.best, len(self.told.tree.end), self.said
        restarts = 0 if found is None else found[1].num_restarts
        if self.noisy is not None:
            bits, most, tables = self.noisy
            found, restarts = (most, tables), tables.num_restarts
            said += (
                f"; {strings - most} of {strings} labels are taken for wrong: {len(tables.start)} states with these exceptions "
                f"take {bits:.0f} bits, {self.smallest} states {self.length(self.smallest):.0f}"
            )
        elif self.merged is not None:
            if found is None or found[0] < strings:
                found, restarts = (strings, self.merged), 0
            elif len(found[1].start) == self.smallest:
                joined = zip(found[1].padded(len(self.merged.start)), self.merged, strict=True)
                found = strings, SymbolTables(*(torch.cat(tables, -1) for tables in joined))
        if found is not None:
            told = self.told
            noisy = self.noisy is not None
            self.learner._tried = told.tree, told.names, told.validation, list(self.tried), *found, restarts, said, noisy

    def cut(self) -> None:
        """Ends with what there is, where the time was over before a size was done."""
        if self.fit is None and self.best is None and self.merged is None:
            self.fit = self.next_fit()
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
        noisy = None if self.noisy is None else (*self.noisy[:2], tuple(self.noisy[2]))
        tried = [size._asdict() for size in self.tried]
        state = {"fit": fit, "best": best, "tried": tried, "merged": merged, "noisy": noisy}
        kept = {name: packed(value, name, tensors) for name, value in state.items()}
        return tensors, kept | {
            "seconds": self.spent(), "told": self.told.digest, "sizes": self.sizes, "rough": self.rough,
            "smallest": self.smallest, "said": self.said,
        }  # fmt: skip

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if state["told"] != self.told.digest:
            raise ValueError("the checkpoint is of other strings or settings; learn from those, or in another folder")
        found = {name: unpacked(state[name], tensors) for name in ("fit", "best", "tried", "merged", "noisy")}
        self.sizes, self.rough, self.smallest, self.said = (state[name] for name in ("sizes", "rough", "smallest", "said"))
        self.tried = [TriedSize(**size) for size in found["tried"]]
        if found["best"] is not None:
            self.best = found["best"][0], SymbolTables(*found["best"][1])
        if found["merged"] is not None:
            self.merged = SymbolTables(*found["merged"])
        if found["noisy"] is not None:
            self.noisy = *found["noisy"][:2], SymbolTables(*found["noisy"][2])
        self.tell()
        if found["fit"] is not None:
            self.fit = self.next_fit()
            self.fit.restore(found["fit"])
        self.seconds, self.since = state["seconds"], time.perf_counter()

    def save_model(self, folder: Path) -> None:
        """A checkpoint holds no model: it stands in ``best``."""

    def save_best(self, folder: Path) -> None:
        self.learner.save(folder)
