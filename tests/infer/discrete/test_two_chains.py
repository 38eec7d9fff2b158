"""Differentiable marginals and entropies, divergences between chains, fixed-lag smoothing: against all paths."""

import pytest
import torch
from support.tiny_chains import SITUATIONS, Case
from support.tiny_families import FAMILIES

from pplseq.distributions.dense import DenseTransition

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


@pytest.mark.parametrize("family", ["Dense", "Forbidden", "Step", "OneState"])
@pytest.mark.parametrize("situation", ["plain", "missing and ragged", "one step"])
def test_against_all_paths(family, situation):
    one, two = Case(FAMILIES[family](seed=1), SITUATIONS[situation]), Case(FAMILIES[family](seed=2), SITUATIONS[situation])
    two.obs, two.inputs = one.obs, one.inputs
    leaves = [*one.family.parameters, *two.family.parameters]
    p, q = one.chain(check=False), two.chain(check=False)
    laws = []
    for case in (one, two):
        laws.append([truth.scores.masked_fill(truth.scores.isneginf(), -1e4).log_softmax(0) for truth in case.truths])
    same(p.differentiable_entropy(), torch.stack([-(a.exp() * a).sum() for a in laws[0]]), leaves)
    pairs = list(zip(*laws, strict=True))
    if family != "Forbidden":
        same(p.cross_entropy(q), torch.stack([-(a.exp() * b).sum() for a, b in pairs]), leaves)
        same(p.divergence(q), torch.stack([(a.exp() * (a - b)).sum() for a, b in pairs]), leaves)
    expected = torch.zeros_like(p.differentiable_marginals())
    for row, (truth, law) in enumerate(zip(one.truths, laws[0], strict=True)):
        for t in range(truth.num_steps):
            expected[row, t] = torch.zeros(truth.num_states, dtype=F64).index_add(0, truth.paths[:, t], law.exp())
    same(p.differentiable_marginals(), expected, leaves)
    close(p.divergence(p), torch.zeros(len(laws[0]), dtype=F64))
    for lag in (0, 1, 2, 9):
        found = p.fixed_lag(lag).probs
        for row, truth in enumerate(one.truths):
            for t in range(truth.num_steps):
                close(found[row, t], truth.prefix(min(t + lag + 1, truth.num_steps)).marginals()[t])


def test_stationary_starts():
    score = torch.randn(4, 4, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: DenseTransition.stationary(s.log_softmax(-1)).initial.exp(), score)
    transition = DenseTransition.stationary(score.log_softmax(-1))
    close(transition.initial.exp() @ transition.matrix.exp(), transition.initial.exp())
    absorbing = torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=F64).log()
    close(DenseTransition.stationary(absorbing).initial.exp(), torch.tensor([0.0, 1.0], dtype=F64))
    with pytest.raises(ValueError, match="classes that never meet"):
        DenseTransition.stationary(torch.eye(2, dtype=F64).log())
