"""Tiny chains of every family in every situation, with the truth about each row."""

from __future__ import annotations

import math
from functools import cache, cached_property

import pytest
import torch
from torch import Tensor

from pplseq.distributions.state import MISSING, Belief
from pplseq.infer.discrete.build import build_chain
from support.path_truth import PathTruth
from support.tiny_families import F64, FAMILIES, Blocks, Family

# what the rows of a batch look like: "x" seen, "." missing, "s" state known too, "h" state known but word missing, " " padding
SITUATIONS = {
    "plain": ["xxxx", "xxxx"],
    "one step": ["x", "x"],
    "two steps": ["xx", "xx"],
    "ragged": ["xxxx", "x   ", "xxx "],
    "missing": ["x.xx", "xxxx", "x..x"],
    "leading and trailing": [".xxx", "..xx", "xxx.", "xx..", "..x."],
    "all missing": ["....", "xxxx", "..  ", ".   "],
    "nothing seen": ["...", ".. "],
    "missing and ragged": ["x.xx", "x.x ", ".x. ", "x   "],
    "states": ["sxxs", "xsx ", "ssss"],
    "hidden words": ["xhx.", "h.xh", "hx  ", ".hhs"],
    "start": ["xxxx", "x.x ", "..x.", "xxx "],
    "start and empty rows": ["xxx ", "    ", "x.  ", "    "],
    "sparse start": ["xxxx", "x.. ", ".xx "],
}


class Case:
    """A family in a situation: the chain, and the truth about every row."""

    def __init__(self, family: Family, rows: list[str], start: bool | str = False):
        self.family = family
        steps = len(rows[0])
        shape = (steps, len(rows))
        obs, drawn = family.observe(shape)
        letters = [[row[t] for row in rows] for t in range(steps)]

        def where(*some):
            return torch.tensor([[letter in some for letter in step] for step in letters])

        self.valid, self.seen = ~where(" "), where("x", "s")
        known = where("s", "h")
        self.obs = obs
        self.states = drawn.where(known, -1) if bool(known.any()) else None
        self.start = self.make_start(len(rows), start) if start else None
        self.inputs = family.inputs(obs, self.seen, self.start)
        self.lengths = self.valid.sum(0)

    def make_start(self, batch: int, kind) -> Belief:
        family = self.family
        z = family.num_states
        last = torch.full((batch,), 3)
        if kind == "sparse" and isinstance(family, Blocks):
            ids = family.layout.state_ids[family.block_of_word[last]]
            filled = family.layout.filled
            score = torch.randn(ids.shape, generator=family.generator, dtype=F64)
            if filled is not None:
                score = score.masked_fill(~filled[family.block_of_word[last]], -math.inf)
        else:
            ids, score = None, torch.randn(batch, z, generator=family.generator, dtype=F64)
        # a belief over all states may come from a word that was not seen, or seen; from the reset word too
        if family.reset_id is not None and kind != "sparse":
            last = torch.tensor([0, family.reset_id, MISSING, 3])[torch.arange(batch) % 4]
        log_probs = score.log_softmax(-1).to(family.dtype)
        return Belief(ids, log_probs, last if family.reset_id is not None else None)

    def chain(self, **options):
        given = dict(valid=self.valid, seen=self.seen, states=self.states, start=self.start, inputs=self.inputs)
        return build_chain(*self.family.specs(), self.obs, **{**given, **options})

    def truth(self, row: int) -> PathTruth:
        family = self.family
        initial, _, emission = family.tables()
        length = int(self.lengths[row])
        emit = emission(self.obs[:length, row])
        emit = torch.where(self.seen[:length, row].unsqueeze(-1), emit, 0.0)
        if self.states is not None:
            known = self.states[:length, row].unsqueeze(-1)
            emit = emit.masked_fill((known >= 0) & (known != torch.arange(emit.shape[-1])), -math.inf)
        u = self.inputs
        matrices = [family.matrix(None if u is None else u[t, row]) for t in range(length)]
        if self.start is not None and length:
            joint = self.start.dense(family.num_states)[row].unsqueeze(-1) + matrices[0]
            closed = torch.isneginf(joint).all(0)  # a state that is never entered
            initial = torch.where(closed, 0.0, joint).logsumexp(0).masked_fill(closed, -math.inf)
        matrices = torch.stack(matrices[1:]) if length > 1 else emit.new_zeros(0, family.num_states, family.num_states)
        return PathTruth(initial, matrices, emit)

    @cached_property
    def truths(self) -> list[PathTruth]:
        return [self.truth(row) for row in range(len(self.lengths))]


@cache
def case(family: str, situation: str) -> Case:
    """The case of that name; the same object every time, since its truth is slow to make."""
    start = {"start": True, "start and empty rows": True, "sparse start": "sparse"}.get(situation, False)
    seed = sum(map(ord, family + situation))
    return Case(FAMILIES[family](seed=seed), SITUATIONS[situation], start)


# each family meets these, and the families below every situation; all pairs run with -m slow
COMMON = ("plain", "missing and ragged", "hidden words", "start and empty rows")
THOROUGH = ("Dense", "UnevenBlocks", "Reset")


def cases():
    """Names of all cases that make sense."""
    for family in FAMILIES:
        for situation in SITUATIONS:
            if family == "Gaussian" and situation in ("states", "hidden words"):
                continue  # its observations are not drawn together with states
            quick = situation in COMMON or family in THOROUGH
            yield pytest.param(family, situation, marks=() if quick else pytest.mark.slow)


def dense_pairs(case: Case, pairs) -> Tensor:
    """(B, T-1, Z, Z) from pair marginals between blocks."""
    if pairs.ids is None:
        return pairs.probs
    z = case.family.num_states
    index = pairs.ids[:, :-1].unsqueeze(-1) * z + pairs.ids[:, 1:].unsqueeze(-2)
    full = pairs.probs.new_zeros(*pairs.probs.shape[:2], z * z)
    return full.scatter_add(-1, index.flatten(-2), pairs.probs.flatten(-2)).view(*full.shape[:2], z, z)
