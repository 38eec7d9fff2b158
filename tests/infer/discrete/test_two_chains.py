"""Differentiable marginals and entropies, divergences between chains, fixed-lag smoothing: against all paths."""

import pytest
import torch
from support.tiny_chains import SITUATIONS, Case
from support.tiny_families import FAMILIES

from pplseq.distributions.dense import CategoricalEmission, DenseTransition, stationary_log_probs
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.gap import GapChain
from pplseq.kernels.higher_order.second_order import SecondOrderMatrices

close = torch.testing.assert_close
F64 = torch.float64


def gradients(value, leaves):
    found = torch.autograd.grad(value, leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]


def same(found, expected, leaves):
    close(found, expected)
    weight = torch.linspace(0.5, 2, found.numel(), dtype=F64).view_as(found)
    for a, b in zip(gradients((found * weight).sum(), leaves), gradients((expected * weight).sum(), leaves), strict=True):
        close(a, b)


def of_paths(chain, probs):
    """(B, T, K) of a chain's open states -> (B, T, Z)."""
    ids = chain.marginals().ids
    num_states = chain.transition.num_states
    return probs if ids is None else probs.new_zeros(*probs.shape[:2], num_states).scatter_add(-1, ids, probs)


QUICK = ("Dense", "Forbidden", "Step", "OneState", "UnevenBlocks", "ForbiddenReset", "ResetOneBlock")


@pytest.mark.parametrize("situation", ["plain", "missing and ragged", "ragged", "one step", "start"])
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES if name != "Gaussian"]
)
def test_against_all_paths(family, situation):
    kind, start = FAMILIES[family], situation == "start"
    rows = ["xxxx", "xxx "] if start else SITUATIONS[situation]
    one, two = Case(kind(seed=1), rows, start), Case(kind(seed=2), rows, start)
    two.obs, two.inputs = one.obs, one.inputs
    leaves = [*one.family.parameters, *two.family.parameters]
    p, q = one.chain(check=False), two.chain(check=False)
    if isinstance(p, GapChain):
        for ask in ("differentiable_marginals", "differentiable_entropy"):
            with pytest.raises(TypeError, match="block-sparse chain with missing words"):
                getattr(p, ask)()
        return
    laws = []
    for case in (one, two):
        laws.append([truth.scores.masked_fill(truth.scores.isneginf(), -1e4).log_softmax(0) for truth in case.truths])
    same(p.differentiable_entropy(), torch.stack([-(a.exp() * a).sum() for a in laws[0]]), leaves)
    pairs = list(zip(*laws, strict=True))
    if not family.startswith("Forbidden"):
        # a path that words forbid has a probability of nothing in both, whatever stands there in its place
        open_ = [truth.scores > -torch.inf for truth in one.truths]
        same(p.cross_entropy(q), torch.stack([-(a.exp() * b)[o].sum() for (a, b), o in zip(pairs, open_, strict=True)]), leaves)
        apart = [(a.exp() * (a - b))[o].sum() for (a, b), o in zip(pairs, open_, strict=True)]
        same(p.divergence(q), torch.stack(apart), leaves)
    expected = torch.zeros(*one.valid.T.shape, one.family.num_states, dtype=F64)
    for row, (truth, law) in enumerate(zip(one.truths, laws[0], strict=True)):
        for t in range(truth.num_steps):
            expected[row, t] = torch.zeros(truth.num_states, dtype=F64).index_add(0, truth.paths[:, t], law.exp())
    same(of_paths(p, p.differentiable_marginals()), expected, leaves)
    close(p.divergence(p), torch.zeros(len(laws[0]), dtype=F64))
    for lag in (0, 1, 2, 9):
        found = of_paths(p, p.fixed_lag(lag).probs)
        for row, truth in enumerate(one.truths):
            for t in range(truth.num_steps):
                close(found[row, t], truth.prefix(min(t + lag + 1, truth.num_steps)).marginals()[t])


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("ragged", [False, True])
def test_second_order_chains_as_chains_over_pairs(size, ragged):
    generator = torch.Generator().manual_seed(size)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=F64).requires_grad_()

    shapes = ((size * size,), (size, size, size), (size, 4))
    leaves = [[draw(*shape) for shape in shapes] for _ in range(2)]
    obs = torch.randint(4, (5, 3), generator=generator)
    valid = torch.arange(5).unsqueeze(-1) < torch.tensor([5, 1, 3]) if ragged else None
    chains = []
    for of_chain in leaves:
        start, table, words = of_chain
        if size == 3:
            table = table.masked_fill(torch.eye(3, dtype=torch.bool), -torch.inf)
        start, table, words = (value.log_softmax(-1) for value in (start, table, words))
        emission = CategoricalEmission(words.repeat(size, 1))
        wide = SecondOrderMatrices(table).at(1)
        made = SecondOrderTransition(start, table), DenseTransition(start, wide)
        chains.append([build_chain(transition, emission, obs, valid=valid) for transition in made])
    (p, dense_p), (q, dense_q) = chains
    every = leaves[0] + leaves[1]
    same(p.differentiable_marginals(), dense_p.differentiable_marginals(), every)
    same(p.differentiable_entropy(), dense_p.differentiable_entropy(), every)
    same(p.cross_entropy(q), dense_p.cross_entropy(dense_q), every)
    same(p.divergence(q), dense_p.divergence(dense_q), every)
    for lag in (0, 1, 2, 9):
        close(p.fixed_lag(lag).probs, dense_p.fixed_lag(lag).probs)


def test_chains_that_cannot_be_compared():
    one, other = (Case(FAMILIES[family](seed=1), SITUATIONS["plain"]) for family in ("UnevenBlocks", "Dense"))
    with pytest.raises(ValueError, match="the same steps, rows and states"):
        one.chain(check=False).divergence(other.chain(check=False))
    with pytest.raises(TypeError, match="expected a chain, got int"):
        one.chain(check=False).divergence(3)


def test_stationary_starts():
    score = torch.randn(4, 4, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: DenseTransition.stationary(s.log_softmax(-1)).initial.exp(), score)
    transition = DenseTransition.stationary(score.log_softmax(-1))
    close(transition.initial.exp() @ transition.matrix.exp(), transition.initial.exp())
    absorbing = torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=F64).log()
    close(DenseTransition.stationary(absorbing).initial.exp(), torch.tensor([0.0, 1.0], dtype=F64))
    with pytest.raises(ValueError, match="classes that never meet"):
        DenseTransition.stationary(torch.eye(2, dtype=F64).log())


def test_stationary_starts_of_other_families():
    table = torch.randn(3, 3, 3, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: SecondOrderTransition.stationary(t.log_softmax(-1)).initial.exp(), table)
    transition = SecondOrderTransition.stationary(table.detach().log_softmax(-1))
    first = transition.initial.exp().reshape(3, 3)
    close(torch.einsum("ab,abc->bc", first, transition.table.exp()), first)
    blocks = FAMILIES["UnevenBlocks"](seed=1).specs()[0]
    matrix = blocks.rows(torch.arange(6))
    start = stationary_log_probs(matrix).exp()
    close(start @ matrix.exp(), start)
    with pytest.raises(TypeError, match="stationary_log_probs"):
        type(blocks).stationary(matrix)
