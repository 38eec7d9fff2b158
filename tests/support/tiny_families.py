"""Tiny transitions and emissions of every kind, each beside the same tables built by hand."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pplseq.distributions.block import BlockEmission, EmbeddingTransition, TableTransition
from pplseq.distributions.blocks import BlockLayout, WordGroups
from pplseq.distributions.dense import CategoricalEmission, DenseTransition, GaussianEmission, StepTransition
from pplseq.distributions.state import MISSING, Belief

F64 = torch.float64


class Family:
    """One kind of transition and emission with free parameters; ``tables`` builds the same model densely by hand."""

    num_words = 5
    input_dims: int | None = None
    reset_id: int | None = None

    def __init__(self, seed: int = 0, scale: float = 1.0, dtype=F64):
        self.generator = torch.Generator().manual_seed(seed)
        self.scale, self.dtype = scale, dtype
        self.parameters: list[Tensor] = []

    def free(self, *shape) -> Tensor:
        value = (torch.randn(shape, generator=self.generator, dtype=F64) * self.scale).to(self.dtype)
        self.parameters.append(value.requires_grad_())
        return value

    def specs(self):
        raise NotImplementedError

    def tables(self):
        """initial (Z,), matrix (Z, Z), emission log-likelihood: obs (...) -> (..., Z)."""
        raise NotImplementedError

    def matrix(self, inputs) -> Tensor:
        """(Z, Z) into a step with the given inputs."""
        return self.tables()[1]

    def inputs(self, x: Tensor, seen: Tensor | None, start: Belief | None) -> Tensor | None:
        return None

    def observe(self, shape) -> tuple[Tensor, Tensor]:
        """Observations (T, B) drawn from the model, and their states."""
        with torch.no_grad():
            initial, _, emission = self.tables()
            states, words = [], []
            table = emission(torch.arange(self.num_words)).exp()  # (V, Z)
            u = self.inputs(torch.zeros(shape, dtype=torch.long), None, None) if self.input_dims else None
            for t in range(shape[0]):
                if t == 0:
                    weight = initial.exp().expand(shape[1], -1)
                else:
                    some = [self.matrix(None if u is None else u[t, b])[z] for b, z in enumerate(states[-1])]
                    weight = torch.stack(some).exp()
                states.append(torch.multinomial(weight, 1, generator=self.generator).squeeze(-1))
                words.append(torch.multinomial(table[:, states[-1]].T, 1, generator=self.generator).squeeze(-1))
            return torch.stack(words), torch.stack(states)


class Dense(Family):
    num_states = 3

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        z = self.num_states
        self.start, self.table, self.emit = self.free(z), self.free(z, z), self.free(z, self.num_words)

    def logs(self):
        return (value.log_softmax(-1) for value in (self.start, self.table, self.emit))

    def specs(self):
        start, table, emit = self.logs()
        return DenseTransition(start, table), CategoricalEmission(emit)

    def tables(self):
        start, table, emit = self.logs()
        return start, table, lambda obs: emit.T[obs]


class Forbidden(Dense):
    """Zeros in every table, one state that can only be started in and one word that one state says alone."""

    num_states = 4

    def logs(self):
        start, table, emit = self.start, self.table, self.emit
        no_start = torch.tensor([False, True, False, False])
        no_move = torch.zeros(4, 4, dtype=torch.bool)
        no_move[:, 3] = no_move[0, 2] = no_move[1, 1] = True
        no_word = torch.zeros(4, self.num_words, dtype=torch.bool)
        no_word[1:, 0] = no_word[0, 2] = True
        for value, closed in ((start, no_start), (table, no_move), (emit, no_word)):
            yield value.masked_fill(closed, -math.inf).log_softmax(-1)


class OneState(Dense):
    num_states = 1


class Gaussian(Dense):
    def specs(self):
        start, table, _ = self.logs()
        return DenseTransition(start, table), GaussianEmission(self.emit[:, :2], self.emit[:, 2:4].exp())

    def tables(self):
        start, table, _ = self.logs()

        def emission(obs):
            d = torch.distributions.Normal(self.emit[:, :2], self.emit[:, 2:4].exp())
            return d.log_prob(obs.unsqueeze(-2)).sum(-1)

        return start, table, emission

    def observe(self, shape):
        return torch.randn(*shape, 2, generator=self.generator, dtype=F64).to(self.dtype), torch.zeros(shape).long()


class Step(Dense):
    """A matrix a step, and a start distribution of the first input."""

    input_dims = 1

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.weight = self.free(self.num_states, self.num_states, 2)

    def matrix(self, inputs):
        return (self.table + (self.weight * inputs[..., None, None, :]).sum(-1)).log_softmax(-1)

    def specs(self):
        start, _, emit = self.logs()
        return StepTransition(start, self.matrix, self.num_states), CategoricalEmission(emit)

    def inputs(self, x, seen, start):
        value = torch.arange(x.numel() * 2, dtype=F64).view(*x.shape, 2)
        return value.sin().to(self.dtype)


class Blocks(Family):
    """States in blocks; words 0 and 1 in block 0, 2 and 3 in block 1, 4 in block 2."""

    sizes = [2, 2, 2]
    block_of_word = torch.tensor([0, 0, 1, 1, 2])

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.layout = BlockLayout.from_sizes(self.sizes)
        self.num_states = self.layout.num_states
        self.start = self.free(self.num_states)
        self.make_scores()
        self.word = self.free(self.num_words, self.layout.width)

    def make_scores(self):
        self.out, self.into = self.free(self.num_states, 3), self.free(self.num_states, 3)

    def score(self) -> Tensor:
        return self.out @ self.into.T

    def specs(self):
        words = WordGroups(self.block_of_word, self.layout.num_blocks)
        emission = BlockEmission(self.layout, self.block_of_word, words.log_softmax(words.rows(self.word)))
        return self.transition(self.start.log_softmax(-1), reset_id=self.reset_id, emission=emission), emission

    def transition(self, initial, **options):
        return EmbeddingTransition(self.layout, initial, self.out, self.into, **options)

    def tables(self):
        emit = self.word.new_full((self.num_words, self.num_states), -math.inf)
        first = 0
        for block, size in enumerate(self.sizes):
            words = (self.block_of_word == block).nonzero()
            emit[words, torch.arange(first, first + size)] = self.word[words, torch.arange(size)].log_softmax(0)
            first += size
        return self.start.log_softmax(-1), self.score().log_softmax(-1), lambda obs: emit[obs]


class UnevenBlocks(Blocks):
    sizes = [3, 1, 2]


class OneStateBlocks(Blocks):
    sizes = [1, 1, 1]


class OneBlock(Blocks):
    sizes = [3]
    block_of_word = torch.zeros(5, dtype=torch.long)


class Table(UnevenBlocks):
    def make_scores(self):
        self.table = self.free(self.num_states, self.num_states)

    def score(self):
        return self.table

    def transition(self, initial, **options):
        return TableTransition(self.layout, initial, self.table, **options)


class ForbiddenBlocks(Table):
    """Transitions of probability zero at block-sparse sizes: state 4 is only ever started in, 0 never follows 0."""

    def score(self):
        closed = torch.zeros(self.num_states, self.num_states, dtype=torch.bool)
        closed[:, 4] = closed[0, 0] = True
        return self.table.masked_fill(closed, -math.inf)

    def transition(self, initial, **options):
        return TableTransition(self.layout, initial, self.score(), **options)


class Reset(UnevenBlocks):
    """After word 1, which shares its block with word 0, the state starts afresh."""

    reset_id = 1
    input_dims = 0

    def matrix(self, inputs):
        initial, matrix, emission = self.tables()
        if inputs is None or inputs == MISSING - 1:
            return matrix
        if inputs == MISSING:
            words = torch.arange(self.num_words)
            reset = emission(words[words == self.reset_id]).T  # (Z, 1)
            other = emission(words[words != self.reset_id]).logsumexp(0).unsqueeze(-1)
            again, go_on = reset + initial, other + matrix
            closed = torch.isneginf(again) & torch.isneginf(go_on)
            both = torch.stack([again.masked_fill(closed, 0.0), go_on.expand_as(closed)])
            both = both.logsumexp(0).masked_fill(closed, -math.inf)
            return torch.where(torch.isinf(reset), matrix, both)
        return initial.expand_as(matrix) if inputs == self.reset_id else matrix

    def inputs(self, x, seen, start):
        first = torch.full_like(x[:1], MISSING - 1)
        if start is not None and start.last_observation is not None:
            first = start.last_observation.unsqueeze(0)
        words = x if seen is None else x.where(seen, MISSING)
        return torch.cat([first, words[:-1]])


class ForbiddenReset(Reset):
    """Resets beside transitions of probability zero; after a reset every state is possible again."""

    make_scores, score, transition = Table.make_scores, ForbiddenBlocks.score, ForbiddenBlocks.transition


class ResetOneBlock(Reset):
    sizes = [3]
    block_of_word = torch.zeros(5, dtype=torch.long)


FAMILIES = {
    kind.__name__: kind
    for kind in (
        *(Dense, Forbidden, OneState, Gaussian, Step),
        *(Blocks, UnevenBlocks, OneStateBlocks, OneBlock, Table, ForbiddenBlocks, Reset, ForbiddenReset, ResetOneBlock),
    )
}


def mask(*rows: str) -> Tensor:
    """(T, B) from one string a row: "x" for True."""
    return torch.tensor([[letter == "x" for letter in row] for row in rows]).T
