"""Stationary distributions against the matrix-tree theorem, which has no subtraction either, and against powers."""

import pytest
import torch

from pplseq.distributions import stationary
from pplseq.distributions.stationary import stationary_log_probs

close = torch.testing.assert_close
F64 = torch.float64


def slow_chains(number=6, least=-13.0):
    """(B, 3, 3) log matrices whose moves have probabilities of very different sizes."""
    moves = 10 ** (least * torch.rand(number, 3, 3, dtype=F64)) / 3
    moves = moves - torch.diag_embed(moves.diagonal(dim1=-2, dim2=-1))
    return (moves + torch.diag_embed(1 - moves.sum(-1))).log()


def by_trees(matrix):
    a = matrix.exp()
    weights = [a[..., j, i] * a[..., k, i] + a[..., j, i] * a[..., k, j] + a[..., k, i] * a[..., j, k]
               for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1))]  # fmt: skip
    return torch.stack(weights, -1).log().log_softmax(-1)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_chains_that_hardly_move(dtype):
    torch.manual_seed(0)
    matrix = slow_chains().to(dtype)
    close(stationary_log_probs(matrix), by_trees(matrix.double()).to(dtype))
    for one in matrix:
        close(stationary_log_probs(one), by_trees(one.double()).to(dtype))


def test_gradients_of_both_orders():
    torch.manual_seed(0)
    score = (0.3 * torch.randn(2, 3, 3, dtype=F64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: stationary_log_probs(s.log_softmax(-1)), score)
    assert torch.autograd.gradgradcheck(lambda s: stationary_log_probs(s.log_softmax(-1)), score)
    matrix = slow_chains(2, -8.0).requires_grad_()
    weights = torch.randn(2, 3, dtype=F64)
    found, true = (torch.autograd.grad((weights * f(matrix)).sum(), matrix)[0] for f in (stationary_log_probs, by_trees))
    off = ~torch.eye(3, dtype=torch.bool)
    close(found[:, off], true[:, off])


def test_states_that_are_left_for_ever():
    matrix = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.0, 0.9, 0.1, 0.0], [0.0, 0.3, 0.7, 0.0], [0.1, 0.2, 0.3, 0.4]], dtype=F64)
    score = matrix.log().requires_grad_()
    found = stationary_log_probs(score)
    close(found.exp(), torch.tensor([0, 0.75, 0.25, 0], dtype=F64))
    assert torch.autograd.grad(found[1], score)[0].isfinite().all()
    close(stationary_log_probs(torch.zeros(1, 1)), torch.zeros(1))
    with pytest.raises(ValueError, match="classes that never meet"):
        stationary_log_probs(torch.block_diag(torch.ones(1, 1), torch.full((2, 2), 0.5)).log())


def test_many_states(monkeypatch):
    torch.manual_seed(0)
    score = torch.randn(7, 7, dtype=F64).masked_fill(torch.rand(7, 7) < 0.3, -torch.inf)
    score[:, 3] = 0.0
    score = score.log_softmax(-1).requires_grad_()
    one = stationary_log_probs(score)
    close(one.exp(), torch.linalg.matrix_power(score.exp(), 2000)[0])
    monkeypatch.setattr(stationary, "MOST_STATES", 3)
    other = stationary_log_probs(score)
    close(one, other)
    weights = torch.randn(7, dtype=F64)
    off = ~torch.eye(7, dtype=torch.bool)
    slopes = [torch.autograd.grad((weights * found.exp()).sum(), score)[0][off] for found in (one, other)]
    close(*slopes)
