"""Paths of states with given potentials, against the list of all paths."""

import itertools

import pyro
import pytest
import torch
from pyro import poutine

from pplseq.infer.programs.linear_chain import LinearChain

F64 = torch.float64
B, T, K = 2, 4, 3
LENGTHS = torch.tensor([4, 2])
close = torch.testing.assert_close


def potentials(each_step=False):
    torch.manual_seed(0)
    return torch.randn(B, T, K, dtype=F64), torch.randn(*((B, T - 1) if each_step else ()), K, K, dtype=F64)


def score(scores, pair, row, path):
    """The sum of a path's potentials, step by step."""
    total = sum(scores[row, t, z] for t, z in enumerate(path))
    matrices = pair.expand(B, T - 1, K, K) if pair.dim() == 2 else pair
    return total + sum(matrices[row, t, a, b] for t, (a, b) in enumerate(itertools.pairwise(path)))


@pytest.mark.parametrize("each_step", [False, True])
def test_against_all_paths(each_step):
    scores, pair = (value.requires_grad_() for value in potentials(each_step))
    law = LinearChain(scores, pair, LENGTHS)
    found, expected, wanted = law.chain().log_prob(), [], []
    marginals = law.chain().marginals().probs
    for row, length in enumerate(LENGTHS.tolist()):
        paths = list(itertools.product(range(K), repeat=length))
        all_scores = torch.stack([score(scores, pair, row, path) for path in paths])
        expected.append(all_scores.logsumexp(0))
        probs, one_hot = all_scores.softmax(0).detach(), torch.nn.functional.one_hot(torch.tensor(paths), K).to(F64)
        close(marginals[row, :length].detach(), torch.einsum("p,ptk->tk", probs, one_hot))
        for path in paths[:5]:
            value = torch.zeros(B, T, dtype=torch.long)
            value[row, :length] = torch.tensor(path)
            close(law.log_prob(value)[row], score(scores, pair, row, path) - expected[-1])
    close(found, torch.stack(expected))
    wanted = torch.autograd.grad(torch.stack(expected).sum(), (scores, pair))
    close(torch.autograd.grad(found.sum(), (scores, pair)), wanted)


def test_unknown_states_are_summed_out():
    law = LinearChain(*potentials(), LENGTHS)
    every = [torch.tensor([[0, z, 1, 2], [z, 1, 0, 0]]) for z in range(K)]
    known = torch.stack([law.log_prob(value) for value in every]).logsumexp(0)
    close(law.log_prob(torch.tensor([[0, -1, 1, 2], [-1, 1, 0, 0]])), known)
    close(law.log_prob(torch.full((B, T), -1)), torch.zeros(B, dtype=F64))


def test_draws_and_sites():
    law = LinearChain(*potentials(), LENGTHS)
    torch.manual_seed(0)
    drawn = law.sample((5000,))
    assert drawn.shape == (5000, B, T) and (drawn[:, 1, 2:] == -1).all() and (drawn[:, 0] >= 0).all()
    frequency = torch.nn.functional.one_hot(drawn[:, 0], K).to(F64).mean(0)
    assert ((frequency - law.chain().marginals().probs[0]).abs() < 5 * 0.5 / 5000**0.5).all()
    with pyro.plate("rows", B), poutine.trace() as trace:
        pyro.sample("path", law, obs=drawn[0])
    close(trace.trace.log_prob_sum(), law.log_prob(drawn[0]).sum())


def test_wrong_shapes_are_refused():
    scores, pair = potentials()
    with pytest.raises(ValueError, match=r"scores must have shape \(\.\.\., T, K\)"):
        LinearChain(scores[:, :0], pair)
    with pytest.raises(ValueError, match=r"pair must have shape \(3, 3\)"):
        LinearChain(scores, pair[:2])
