"""Tables of half precision: everything is computed in float32, and gradients reach the tables."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from support.grids import grid

from pplseq.distributions.block import BlockEmission, TableTransition
from pplseq.distributions.blocks import BlockLayout
from pplseq.distributions.dense import CategoricalEmission, DenseTransition, GaussianEmission, StepTransition
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.infer import TraceBlockedEnum_ELBO
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.programs.blocked_enum import no_guide

SHAPES = {
    "dense": [(3,), (3, 3), (3, 4)], "step": [(3,), (3, 3), (3, 4)], "second order": [(4,), (2, 2, 2), (4, 4)],
    "blocks": [(4,), (4, 4), (4, 2)], "gaussian": [(3,), (3, 3), (3, 2)],
}  # fmt: skip


def chain(kind, start, table, words, x):
    if kind == "second order":
        return build_chain(SecondOrderTransition(start, table), CategoricalEmission(words), x)
    if kind == "blocks":
        layout, of_word = BlockLayout.from_sizes([2, 2]), torch.tensor([0, 0, 1, 1])
        return build_chain(TableTransition(layout, start, table), BlockEmission(layout, of_word, words), x)
    if kind == "gaussian":
        emission = GaussianEmission(words, torch.ones_like(words))
        return build_chain(DenseTransition(start, table), emission, torch.stack([x, -x], -1).to(words.dtype))
    if kind == "step":
        inputs = torch.zeros(*x.shape, 1)
        transition = StepTransition(start, lambda u: table.expand(*u.shape[:-1], 3, 3), 3)
        return build_chain(transition, CategoricalEmission(words), x, inputs=inputs)
    return build_chain(DenseTransition(start, table), CategoricalEmission(words), x)


@grid({"kind": SHAPES, "dtype": [torch.bfloat16, torch.float16]})
def test_chains(kind, dtype):
    tables = [torch.randn(shape).log_softmax(-1).to(dtype) for shape in SHAPES[kind]]
    x = torch.randint(4, (6, 2))
    halves = [table.clone().requires_grad_() for table in tables]
    found = chain(kind, *halves, x)
    if kind in ("dense", "step", "gaussian", "second order"):
        tables = [table.float() for table in tables]
        with pyro.validation_enabled(False):  # rounded rows do not sum to one
            expected = chain(kind, *(table.requires_grad_() for table in tables), x)
    else:
        tables = [table.float().requires_grad_() for table in tables]
        expected = chain(kind, *tables, x)
    assert found.log_prob().dtype == torch.float32
    torch.testing.assert_close(found.log_prob(), expected.log_prob())
    torch.testing.assert_close(found.marginals().probs, expected.marginals().probs)
    torch.testing.assert_close(found.viterbi()[1], expected.viterbi()[1])
    pairs = zip(
        torch.autograd.grad(found.log_prob().sum(), halves), torch.autograd.grad(expected.log_prob().sum(), tables), strict=True
    )
    for got, wanted in pairs:
        assert got.dtype == dtype
        torch.testing.assert_close(got, wanted.to(dtype))


@grid({"kind": SHAPES, "singles": [(0,), (1,), (2,), (0, 1)]})
def test_tables_of_two_precisions(kind, singles):
    """Are computed in the greater one, and each has a gradient of its own type."""
    tables, x = [torch.randn(shape).log_softmax(-1).double() for shape in SHAPES[kind]], torch.randint(4, (6, 2))
    mixed = [(table.float() if i in singles else table).clone().requires_grad_() for i, table in enumerate(tables)]
    tables = [table.detach().requires_grad_() for table in tables]
    found, expected = chain(kind, *mixed, x), chain(kind, *tables, x)
    assert found.log_prob().dtype == torch.float64
    for ask in ("log_prob", "marginals", "viterbi", "expected_counts", "entropy", "filtered_states", "sample"):
        if ask == "sample":
            answers = [torch.manual_seed(0) and each.sample(2) for each in (found, expected)]
        else:
            answers = [getattr(each, ask)() for each in (found, expected)]
        torch.testing.assert_close(*[[part for part in answer if part is not None] for answer in answers])
    if kind != "step":
        torch.testing.assert_close(found.next().state_log_probs, expected.next().state_log_probs)
    pairs = zip(
        torch.autograd.grad(found.log_prob().sum(), mixed), torch.autograd.grad(expected.log_prob().sum(), tables), strict=True
    )
    for table, (got, wanted) in zip(mixed, pairs, strict=True):
        assert got.dtype == table.dtype
        torch.testing.assert_close(got.double(), wanted, atol=1e-5, rtol=1e-5)


def test_rows_that_do_not_sum_to_one_are_still_refused():
    with pytest.raises(ValueError, match="must hold log-probabilities that sum to one"):
        DenseTransition(torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, 2, dtype=torch.bfloat16))


def test_marked_sites():
    trans, emit, y = torch.randn(3, 3), torch.randn(3, 4), (torch.rand(2, 5, 4) < 0.5).float()

    def model(dtype):
        with pyro.plate("rows", 2, dim=-2):
            x = 0
            for t in pyro.markov(range(5)):
                law = dist.Categorical(logits=trans.log_softmax(-1).to(dtype)[x])
                x = pyro.sample(f"x_{t}", law, infer={"enumerate": "parallel"})
                with pyro.plate(f"tones_{t}", 4, dim=-1):
                    pyro.sample(f"y_{t}", dist.Bernoulli(logits=emit.to(dtype)[x.squeeze(-1)]), obs=y[:, t])

    elbo = TraceBlockedEnum_ELBO(max_plate_nesting=2)
    losses = [elbo.differentiable_loss(model, no_guide, dtype) for dtype in (torch.bfloat16, torch.float32)]
    assert losses[0].dtype == torch.float32
    assert float(losses[0]) == pytest.approx(float(losses[1]), rel=3e-3)  # what the tables were rounded by
