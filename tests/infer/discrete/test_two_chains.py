"""Differentiable marginals and entropies, divergences between chains, fixed-lag smoothing: against all paths."""

import pytest
import torch
from support.grids import grid
from support.tiny_chains import SITUATIONS, Case
from support.tiny_families import FAMILIES

from pplseq.distributions.block import BlockEmission
from pplseq.distributions.blocks import BlockLayout, WordGroups
from pplseq.distributions.dense import CategoricalEmission, DenseTransition, StepTransition
from pplseq.distributions.hierarchical import HierarchicalTransition
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.state import MISSING
from pplseq.distributions.stationary import stationary_log_probs
from pplseq.infer.discrete.build import build_chain

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
    if probs.shape[-1] == num_states:
        return probs
    return probs if ids is None else probs.new_zeros(*probs.shape[:2], num_states).scatter_add(-1, ids, probs)


QUICK = ("Dense", "Forbidden", "Step", "OneState", "UnevenBlocks", "ForbiddenReset", "ResetOneBlock")
GAPS = {"leading and trailing": "UnevenBlocks", "all missing": "ForbiddenReset", "hidden words": "UnevenBlocks Reset",
        "start and empty rows": "Reset"}  # fmt: skip


def cases():
    for situation in ("plain", "missing and ragged", "ragged", "one step", "start", *GAPS):
        for name in FAMILIES:
            few = ("Dense", "UnevenBlocks") if situation in ("plain", "ragged") else QUICK
            quick = name in (GAPS[situation].split() if situation in GAPS else few)
            if name != "Gaussian":
                yield pytest.param(name, situation, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("family", "situation"), [*cases()])
def test_against_all_paths(family, situation):
    kind, start = FAMILIES[family], situation == "start"
    rows = ["xxxx", "xxx "] if start else SITUATIONS[situation]
    start = start or situation == "start and empty rows"
    one, two = Case(kind(seed=1), rows, start), Case(kind(seed=2), rows, start)
    two.obs, two.inputs, two.states = one.obs, one.inputs, one.states
    leaves = [*one.family.parameters, *two.family.parameters]
    p, q = one.chain(check=False), two.chain(check=False)
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
        found = p.fixed_lag(lag).dense(one.family.num_states)
        for row, truth in enumerate(one.truths):
            for t in range(truth.num_steps):
                close(found[row, t], truth.prefix(min(t + lag + 1, truth.num_steps)).marginals()[t])


def test_a_path_that_the_other_forbids_costs_infinitely_much_and_no_other_path_does():
    start, emission = torch.zeros(2, dtype=F64), CategoricalEmission.from_probs(torch.full((2, 2), 0.5, dtype=F64))
    # p never goes from 0 to 0, and q never starts in 0: that 0 has cost infinity already is no cost of 1 before 0
    p = DenseTransition(start.log_softmax(-1), torch.tensor([[0.0, 1.0], [0.5, 0.5]], dtype=F64).log())
    q = DenseTransition(torch.tensor([0.0, 1.0], dtype=F64).log(), torch.full((2, 2), 0.5, dtype=F64).log())
    p, q = (build_chain(transition, emission, torch.zeros(3, 1, dtype=torch.long)) for transition in (p, q))
    assert p.divergence(q).tolist() == [torch.inf] and p.cross_entropy(q).tolist() == [torch.inf]
    assert q.divergence(q).tolist() == [0.0]


def hierarchical(seed, layout, reset_id):
    """States in blocks under hierarchical transitions, where blocks have two words or one; the same over all states; leaves."""
    torch.manual_seed(seed)
    leaves = [torch.randn(shape, dtype=F64, requires_grad=True) for shape in ((6, 3), (6, 3), (3, 3), (3,), (6,), (5, 2))]
    out, into, weight, bias, start, words = leaves
    kept, every = layout.kept_ids, torch.arange(6)
    block_of_word = torch.tensor([0, 0, 1, 1, 2])
    groups = WordGroups(block_of_word, 3)
    emission = BlockEmission(layout, block_of_word, groups.log_softmax(groups.rows(words[:, : layout.width])))
    transition = HierarchicalTransition(
        layout, start[kept].log_softmax(-1), out[kept], into[kept], weight, bias, reset_id=reset_id, emission=emission
    )

    def matrices(words):
        return transition.rows(every.expand(*words.shape, -1), words.unsqueeze(-1))

    dense = StepTransition(transition.rows(None), matrices, 6, input_dims=0)
    table = emission.log_likelihood(torch.arange(5)).T
    return (transition, emission), (dense, CategoricalEmission(table)), leaves


@pytest.mark.parametrize(("reset_id", "dropout"), [(None, False), (1, False), (None, True)])
def test_hierarchical_transitions_with_missing_words(reset_id, dropout):
    torch.manual_seed(3)
    layout = BlockLayout.from_sizes([2, 2, 2])
    layout = layout.dropped(0.5) if dropout else layout
    obs = torch.tensor([[0, 3, 1, 2, 4], [1, 4, 0, 0, 0], [2, 1, 1, 3, 0]]).T
    valid = torch.arange(5).unsqueeze(-1) < torch.tensor([5, 4, 5])
    seen = torch.tensor([[1, 0, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool).T
    inputs = torch.cat([torch.full((1, 3), MISSING - 1), obs.where(seen, MISSING)[:-1]])
    made = [hierarchical(seed, layout, reset_id) for seed in (1, 2)]
    (p, q), (dense_p, dense_q) = (
        [build_chain(*specs[kind], obs, valid=valid, seen=seen, inputs=inputs) for specs in made] for kind in (0, 1)
    )
    leaves = [leaf for specs in made for leaf in specs[2]]
    same(p.differentiable_marginals(), dense_p.differentiable_marginals(), leaves)
    same(p.differentiable_entropy(), dense_p.differentiable_entropy(), leaves)
    close(p.entropy(), dense_p.entropy())
    same(p.cross_entropy(q), dense_p.cross_entropy(dense_q), leaves)
    same(p.divergence(q), dense_p.divergence(dense_q), leaves)
    for lag in (0, 1, 9):
        close(p.fixed_lag(lag).dense(6), dense_p.fixed_lag(lag).probs)
    other = build_chain(*made[1][0], obs, valid=valid, seen=seen | (torch.arange(3) == 0), inputs=inputs)
    with pytest.raises(ValueError, match="the same blocks and missing words"):
        p.divergence(other)


@grid({"ragged": [False, True], "size": [1, 2, 3]})
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
        second = SecondOrderTransition(start, table)
        made = second, DenseTransition(start, second.rows(torch.arange(size**2)))
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
