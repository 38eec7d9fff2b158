"""Corners that once gave wrong numbers without a word: gradients under masks, long rows in float32, impossible starts."""

import math

import pytest
import torch
from support.tiny_chains import Case
from support.tiny_families import ForbiddenReset

from pplseq.distributions.dense import CategoricalEmission, DenseTransition, GaussianEmission, StepTransition
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.state import Belief
from pplseq.infer.discrete.build import build_chain

close = torch.testing.assert_close
F64 = torch.float64


def second_order(table, x, **options):
    size = table.shape[0]
    initial = torch.full((size * size,), 1.0 / size**2, dtype=F64).log()
    words = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]], dtype=F64).log()
    return build_chain(SecondOrderTransition(initial, table), CategoricalEmission(words.repeat(size, 1)), x, **options)


def test_the_first_step_behind_a_belief_counts_in_the_gradient():
    logits = torch.randn(2, 2, 2, dtype=F64)
    start, x = Belief(None, torch.randn(2, 4, dtype=F64).log_softmax(-1)), torch.tensor([[0, 1], [1, 0], [0, 0]])

    def log_prob(logits):
        return second_order(logits.log_softmax(-1), x, start=start).log_prob().sum()

    assert torch.autograd.gradcheck(log_prob, logits.requires_grad_())
    assert torch.autograd.gradgradcheck(log_prob, logits)


@pytest.mark.parametrize("lengths", [[3, 1], [3, 0]])
def test_an_impossible_word_behind_the_end_is_nothing(lengths):
    logits = torch.randn(2, 2, 2, dtype=F64, requires_grad=True)
    x, valid = torch.tensor([[0, 1], [1, 2], [0, 2]]), torch.arange(3)[:, None] < torch.tensor(lengths)
    start = None if min(lengths) else Belief(None, torch.zeros(2, 4, dtype=F64).log_softmax(-1))
    got, expected = (
        second_order(logits.log_softmax(-1), words, valid=valid, start=start).log_prob().sum()
        for words in (x, x.masked_fill(~valid, 0))
    )
    close(got, expected)
    close(*(torch.autograd.grad(value, logits)[0] for value in (got, expected)))


@pytest.mark.parametrize("shared", [True, False])
def test_nan_behind_the_end_is_nothing(shared):
    loc, table = torch.randn(2, 3, dtype=F64, requires_grad=True), torch.randn(2, 2, dtype=F64, requires_grad=True)
    x, valid = torch.randn(4, 2, 3, dtype=F64), torch.arange(4)[:, None] < torch.tensor([4, 2])
    start = torch.full((2,), 0.5, dtype=F64).log()
    matrix = table.log_softmax(-1)
    transition = DenseTransition(start, matrix)
    if not shared:
        transition = StepTransition(start, lambda u: matrix + 0 * u[..., None], 2)
    emission = GaussianEmission(loc, torch.ones(2, 3, dtype=F64))
    inputs = None if shared else torch.zeros(4, 2, 1, dtype=F64)
    found = []
    for padding in (0.0, math.nan):
        padded = x.masked_fill(~valid.unsqueeze(-1), padding)
        value = build_chain(transition, emission, padded, valid=valid, inputs=inputs).log_prob()
        found.append([value, *torch.autograd.grad(value.sum(), (loc, table), retain_graph=True)])
    for left, right in zip(*found, strict=True):
        close(left, right)


@pytest.mark.parametrize("shared", [True, False])
def test_a_row_without_steps_asks_nothing_of_its_matrix(shared):
    """Its own matrix may forbid everything."""
    score, emit = torch.randn(2, 3, 3, dtype=F64, requires_grad=True), torch.randn(3, 4, dtype=F64).log_softmax(-1)
    closed = torch.tensor([False, True])[:, None, None]
    matrix = score.log_softmax(-1).masked_fill(closed, -torch.inf)
    start = torch.full((3,), 1 / 3, dtype=F64).log()
    x, valid = torch.randint(4, (4, 2)), torch.tensor([[True, False]]).expand(4, 2)
    transition = DenseTransition(start, matrix) if shared else StepTransition(start, lambda u: matrix + 0 * u[..., None], 3)
    inputs = None if shared else torch.zeros(4, 2, 1, dtype=F64)
    belief = Belief(None, torch.zeros(2, 3, dtype=F64).log_softmax(-1))
    for options in ({}, {"start": belief}):
        chain = build_chain(transition, CategoricalEmission(emit), x, valid=valid, inputs=inputs, check=False, **options)
        value = chain.log_prob()
        (gradient,) = torch.autograd.grad(value.sum(), score, retain_graph=True)
        assert value[0].isfinite() and gradient.isfinite().all() and (gradient[1] == 0).all()
        assert bool((gradient[0] != 0).any())


class ClosedStart(ForbiddenReset):
    """A model that resets; the state of words 2 and 3 cannot be first, and does not follow state 0."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.start = self.start.detach().masked_fill(torch.arange(6) == 3, -torch.inf)

    def score(self):
        closed = torch.zeros(6, 6, dtype=torch.bool)
        closed[0, 3] = True
        return self.table.masked_fill(closed, -torch.inf)


def test_missing_words_of_models_that_reset():
    c = Case(ClosedStart(seed=3), ["..xx", ".x..", "x..x"])
    c.obs[1, 1] = c.obs[2, 0] = c.obs[3, 2] = 2
    c.inputs = c.family.inputs(c.obs, c.seen, None)
    found = c.chain().missing_words()
    assert not found.log_probs.isnan().any()
    for (row, step), words in zip(found.places.tolist(), found.log_probs, strict=True):
        filled = []
        seen = c.seen.clone()
        seen[step, row] = True
        for word in range(c.family.num_words):
            obs = c.obs.clone()
            obs[step, row] = word
            chain = build_chain(*c.family.specs(), obs, seen=seen, inputs=c.family.inputs(obs, seen, None), check=False)
            filled.append(chain.log_prob()[row])
        close(words, torch.stack(filled).log_softmax(0))


@pytest.mark.parametrize("shared", [True, False])
def test_long_rows_in_float32(shared):
    """The score that is reported is the path's, and no other path is better by more than rounding."""
    generator = torch.Generator().manual_seed(0)
    steps, size = 2_500, 3
    emit = torch.randn(size, 50, generator=generator).mul(3).log_softmax(-1)
    matrix = torch.randn(size, size, generator=generator).log_softmax(-1)
    start = torch.full((size,), 1 / size).log()
    x = torch.randint(50, (steps, 1), generator=generator)

    def chain(dtype):
        table = matrix.to(dtype)
        transition = DenseTransition(start.to(dtype), table)
        if not shared:
            transition = StepTransition(start.to(dtype), lambda u: table + 0 * u[..., None], size)
        inputs = None if shared else torch.zeros(steps, 1, 1, dtype=dtype)
        return build_chain(transition, CategoricalEmission(emit.to(dtype)), x, inputs=inputs)

    def score(path):
        z, log, table = path[0], emit.double(), matrix.double()
        return start.double()[z[0]] + table[z[:-1], z[1:]].sum() + log[z, x[:, 0]].sum()

    optimum = chain(F64).viterbi()[1]
    path, value = chain(torch.float32).viterbi()
    paths, values = chain(torch.float32).k_best(2)
    for found, reported in ((path, value), (paths[0], values[0]), (paths[1], values[1])):
        close(reported.double().squeeze(), score(found), rtol=1e-7, atol=0)
    close(value.double(), optimum, rtol=2e-7, atol=0)
    close(values[0].double(), optimum, rtol=2e-7, atol=0)
