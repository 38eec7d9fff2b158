"""Random programs against plain enumeration of all paths: values, gradients and Hessians (times a direction).

The seed is an option of the environment: PPLSEQ_FUZZ_SEED=7 pytest tests/peers/test_fuzz.py -m "slow or not slow"
"""

import math
import os
import random

import pyro
import pytest
import torch
from pyro import poutine
from support.oracles.discrete import enumerate_paths

from pplseq.distributions.block import BlockEmission, TableTransition
from pplseq.distributions.blocks import BlockLayout
from pplseq.distributions.dense import CategoricalEmission, DenseTransition, GaussianEmission, StepTransition
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.state import Belief
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.markov import markov

F64 = torch.float64
SEED = int(os.environ.get("PPLSEQ_FUZZ_SEED", "0"))
PIECE, QUICK, ALL = 20, 60, 2000
FAMILIES = ("dense", "gaussian", "step", "second order", "blocks", "one block")


class Program:
    """A random program, and what it says in numbers."""

    def __init__(self, seed: int):
        rng = self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.family = rng.choice(FAMILIES)
        self.size, self.rows, self.steps = rng.randint(1, 3), rng.randint(1, 4), rng.randint(1, 4)
        if self.family == "second order":
            self.size, self.steps = rng.randint(1, 2), rng.randint(1, 4)
        if self.family == "blocks":
            self.size = rng.choice([2, 3, 4])
        self.vectorize, self.scale = rng.random() < 0.6, rng.choice([1.0, 1.0, 0.5, 3.0])
        self.nesting = 1 if self.family == "second order" else rng.choice([1, 1, 1, 2])
        shape = (2,) * (self.nesting - 1) + (self.rows,)
        self.shape, flat = torch.Size(shape), math.prod(shape)
        wide = self.size**2 if self.family == "second order" else self.size
        self.num_states = wide
        zeros = rng.random() < 0.3
        self.leaves = [self.draw(wide), self.draw(*self.table_shape()), self.draw(self.size, 4), self.draw(self.size, 2)]
        for leaf in self.leaves:
            leaf.requires_grad_()
        self.closed = torch.rand(self.table_shape(), generator=self.generator) < (0.25 if zeros else 0.0)
        self.closed[..., -1] = False
        self.inputs = self.draw(self.steps, 2) if rng.random() < 0.5 else self.draw(*shape, self.steps, 2)
        words = torch.randint(4, (*shape, self.steps), generator=self.generator)
        self.obs = self.draw(*shape, self.steps, 2) if self.family == "gaussian" else words
        start = self.draw(*shape, wide).log_softmax(-1)
        self.start = Belief(None, start) if rng.random() < 0.3 and self.nesting == 1 else None
        lowest = 0 if self.start is not None else 1
        self.lengths = None
        if rng.random() < 0.5:
            self.lengths = torch.randint(lowest, self.steps + 1, shape, generator=self.generator)
        self.missing, kind = None, rng.random()
        if kind < 0.25:
            self.missing = torch.rand(*shape, self.steps, generator=self.generator) < 0.3
        elif kind < 0.4:
            self.missing = torch.rand(self.steps, generator=self.generator) < 0.3
        self.states = None
        if rng.random() < 0.25 and self.family in ("dense", "step"):
            some = torch.randint(self.num_states, (*shape, self.steps), generator=self.generator)
            self.states = some.masked_fill(torch.rand(some.shape, generator=self.generator) < 0.6, -1)
        self.flat = flat

    def draw(self, *shape):
        return torch.randn(shape, generator=self.generator, dtype=F64)

    def table_shape(self):
        return (self.size,) * (3 if self.family == "second order" else 2)

    def __repr__(self):
        options = {k: v for k, v in vars(self).items() if not isinstance(v, (list, torch.Generator, random.Random))}
        return f"Program({options})"

    # ---------------------------------------------------------------- in numbers
    def tables(self):
        start, table, words, loc = self.leaves
        return start.log_softmax(-1), table.masked_fill(self.closed, -math.inf).log_softmax(-1), words.log_softmax(-1), loc

    def step_matrix(self, u):
        table = self.leaves[1] + u[..., :1, None] * self.leaves[1].sin() + u[..., 1:, None] * self.leaves[1].cos()
        return table.masked_fill(self.closed, -math.inf).log_softmax(-1)

    @property
    def blocks(self):
        """Words 0 and 1 open the first states, words 2 and 3 the others."""
        half = self.size // 2
        return torch.tensor([0] * half + [1] * (self.size - half)), torch.tensor([0, 0, 1, 1])

    def word_table(self):
        words = self.leaves[2]
        if self.family == "blocks":
            of_state, of_word = self.blocks
            words = words.masked_fill(of_state.unsqueeze(-1) != of_word, -math.inf)
        return words.log_softmax(-1)

    def specs(self):
        start, table, words, loc = self.tables()
        if self.family == "second order":
            return SecondOrderTransition(start, table), CategoricalEmission(words.repeat(self.size, 1))
        if self.family == "step":
            return StepTransition(start, self.step_matrix, self.size), CategoricalEmission(words)
        if self.family == "gaussian":
            return DenseTransition(start, table), GaussianEmission(loc, torch.ones_like(loc))
        if self.family == "dense":
            return DenseTransition(start, table), CategoricalEmission(words)
        of_state, of_word = self.blocks if self.family == "blocks" else (torch.zeros(self.size).long(), torch.zeros(4).long())
        sizes = torch.bincount(of_state).tolist()
        layout, words = BlockLayout.from_sizes(sizes), self.word_table()
        first = [0, *torch.tensor(sizes).cumsum(0).tolist()]
        rows = []
        for word in range(4):
            block = int(of_word[word])
            own = words[first[block] : first[block + 1], word]
            rows.append(torch.cat([own, own.new_zeros(layout.width - len(own))]))
        scores = self.leaves[1].masked_fill(self.closed, -math.inf)
        return TableTransition(layout, start, scores), BlockEmission(layout, of_word, torch.stack(rows))

    def model(self):
        transition, emission = self.specs()
        z = self.start
        outer = pyro.plate("outer", 2, dim=-2) if self.nesting == 2 else poutine.scale(scale=1.0)
        with poutine.scale(scale=self.scale), outer, pyro.plate("rows", self.rows, dim=-1):
            for t in markov(range(self.steps), vectorize=self.vectorize):
                with poutine.mask(mask=True if self.lengths is None else t < self.lengths):
                    u = self.inputs[t] if self.inputs.dim() == 2 else self.inputs[..., t, :]
                    given = {"inputs": u} if self.family == "step" else {}
                    obs = None if self.states is None else self.states[..., t]
                    z = pyro.sample(f"z_{t}", transition(z, **given), obs=obs)
                    with poutine.mask(mask=True if self.missing is None else ~self.missing[..., t]):
                        x = self.obs[..., t, :] if self.family == "gaussian" else self.obs[..., t]
                        pyro.sample(f"x_{t}", emission(z), obs=x)

    def log_prob(self):
        return poutine.trace(BlockedEnum()(self.model)).get_trace().log_prob_sum()

    # ---------------------------------------------------------------- all paths
    def wide(self, table):
        """The matrix between pairs of a second-order table."""
        if self.family != "second order":
            return table
        size = self.size
        full = table.new_full((size,) * 4, -math.inf)
        a, b, c = torch.meshgrid(*[torch.arange(size)] * 3, indexing="ij")
        return full.index_put((a, b, b, c), table).reshape(size**2, size**2)

    def truth(self):
        start, table, _, loc = self.tables()
        total = torch.zeros((), dtype=F64)
        for row in range(self.flat):
            place = tuple(int(i) for i in torch.unravel_index(torch.tensor(row), self.shape))
            length = self.steps if self.lengths is None else int(self.lengths[place])
            if not length:
                continue
            emits, matrices = [], []
            for t in range(length):
                u = self.inputs[t] if self.inputs.dim() == 2 else self.inputs[place][t]
                matrices.append(self.step_matrix(u) if self.family == "step" else self.wide(table))
                gone = self.missing is not None and bool(self.missing[t] if self.missing.dim() == 1 else self.missing[place][t])
                x = self.obs[place][t]
                if gone:
                    emit = torch.zeros(self.size, dtype=F64)
                elif self.family == "gaussian":
                    emit = torch.distributions.Normal(loc, 1.0).log_prob(x).sum(-1)
                else:
                    emit = self.word_table()[:, x]
                emit = emit.repeat(self.num_states // self.size)
                if self.states is not None and int(self.states[place][t]) >= 0:
                    emit = emit.masked_fill(torch.arange(self.num_states) != self.states[place][t], -math.inf)
                emits.append(emit)
            init = start
            if self.start is not None:
                joint = self.start.log_probs[place].unsqueeze(-1) + matrices[0]
                init = torch.stack([_total(joint[:, k]) for k in range(self.num_states)])
            stacked = torch.stack(matrices[1:]) if length > 1 else torch.zeros(0, 1, 1, dtype=F64)
            total = total + _total(enumerate_paths(init, stacked, torch.stack(emits))[1])
        return self.scale * total


def _total(scores):
    possible = scores[scores > -math.inf]
    return torch.logsumexp(possible, 0) if len(possible) else scores.max().detach()


def derivatives(value, leaves):
    """The gradient, and the Hessian times a direction."""
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves] * 2
    first = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True)
    first = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, first, strict=True)]
    along = sum((g * torch.linspace(-1, 1 + k, g.numel(), dtype=F64).view_as(g)).sum() for k, g in enumerate(first))
    if not along.requires_grad:
        return first + [torch.zeros_like(leaf) for leaf in leaves]
    second = torch.autograd.grad(along, leaves, allow_unused=True)
    return first + [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, second, strict=True)]


def check(seed):
    program = Program(seed)
    expected = program.truth()
    if not bool(expected.isfinite()):
        with pytest.raises(ValueError, match="is impossible"):
            program.log_prob()
        return
    found = program.log_prob()
    what = f"seed {seed}: {program}"
    torch.testing.assert_close(found, expected, msg=lambda m: f"{what}\n{m}")
    pairs = zip(derivatives(found, program.leaves), derivatives(expected, program.leaves), strict=True)
    for k, (got, wanted) in enumerate(pairs):
        torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-9, msg=lambda m, k=k: f"{what}, derivative {k}\n{m}")


@pytest.mark.parametrize(
    "first", [pytest.param(k, marks=() if k < QUICK else pytest.mark.slow) for k in range(0, ALL, PIECE)]
)
def test_random_programs(first):
    for seed in range(first, first + PIECE):
        check(100_000 * SEED + seed)
