"""Matrix products in log space against the plain formula."""

import math

import pytest
import torch

from pplseq.kernels import log_semiring
from pplseq.kernels.log_semiring import log_matmul, log_softmax, logsumexp, max_matmul

F64 = torch.float64
close = torch.testing.assert_close


def plain(a, b):
    return torch.logsumexp(a.unsqueeze(-1) + b.unsqueeze(-3), -2)


SHAPES = [((3, 4), (4, 5)), ((1, 1), (1, 1)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 1)), ((2, 1, 3, 4), (5, 4, 2))]


@pytest.mark.parametrize("left, right", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 400.0], ids=["near", "must be repaired"])
@pytest.mark.parametrize("repair_cells", [log_semiring.REPAIR_CELLS, 4])
def test_values_and_gradients(left, right, scale, repair_cells, monkeypatch):
    monkeypatch.setattr(log_semiring, "REPAIR_CELLS", repair_cells)
    a, b = ((torch.randn(s, dtype=F64) * scale).requires_grad_() for s in (left, right))
    got, wanted = log_matmul(a, b), plain(a, b)
    close(got, wanted)
    weight = torch.randn(wanted.shape, dtype=F64)
    close(*(torch.autograd.grad((value * weight).sum(), (a, b)) for value in (got, wanted)))


@pytest.mark.parametrize("shape", [(1, 700, 4, 3), (1000, 8), (1000, 9), (999, 2), (3, 2), (2000, 1)])
def test_softmax_across_rows(shape):
    x = torch.randn(shape, dtype=F64)
    x[0] = x[0].masked_fill(torch.rand(shape[1:]) < 0.3, -math.inf) if shape[-1] > 2 else x[0]
    x[..., 0].clamp_(min=-5.0)  # every row allows something
    given, weight = (x.clone().requires_grad_() for _ in range(2)), torch.randn(shape, dtype=F64)
    (a, b), found = given, []
    for value, leaf in ((log_softmax(a), a), (torch.log_softmax(b, -1), b)):
        total = (value.masked_fill(value == -math.inf, 0.0) * weight).sum()
        found.append((value, *torch.autograd.grad(total, leaf)))
    for got, wanted in zip(*found, strict=True):
        close(got, wanted, rtol=1e-13, atol=1e-14)
    across = shape[-1] <= log_semiring.SHORT and x[..., 0].numel() >= log_semiring.MANY_ROWS
    assert found[0][0].is_contiguous() == (not across or shape[-1] == 1)


def test_float32_is_repaired():
    a, b = torch.tensor([[0.0, -300.0]]), torch.tensor([[-400.0, 0.0], [-1.0, -500.0]])
    close(log_matmul(a, b), plain(a.double(), b.double()).float())
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(20, 20, generator=generator) * 50 for _ in range(2))
    close(log_matmul(a, b), plain(a.double(), b.double()).float(), rtol=1e-6, atol=1e-4)


def test_forbidden_entries_have_gradient_zero():
    a = torch.tensor([[0.0, -math.inf], [-math.inf, -math.inf]], dtype=F64, requires_grad=True)
    b = torch.tensor([[-math.inf, 1.0], [2.0, 3.0]], dtype=F64, requires_grad=True)
    result = log_matmul(a, b)
    close(result.detach(), torch.tensor([[-math.inf, 1.0], [-math.inf, -math.inf]], dtype=F64))
    result[0, 1].backward()
    assert torch.isfinite(a.grad).all() and torch.isfinite(b.grad).all()
    close(a.grad, torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=F64))


def test_logsumexp():
    score = torch.randn(3, 4, dtype=F64)
    score[1] = -math.inf
    score[2, 0] = -math.inf
    score.requires_grad_()
    for dim in (0, -1):
        close(logsumexp(score, dim), torch.logsumexp(score, dim))
    (gradient,) = torch.autograd.grad(logsumexp(score, -1)[[0, 2]].sum(), score)
    close(gradient.sum(-1), torch.tensor([1.0, 0.0, 1.0], dtype=F64))
    assert torch.autograd.gradcheck(lambda s: logsumexp(s, 0), torch.randn(3, 2, dtype=F64, requires_grad=True))


@pytest.mark.parametrize("max_cells", [log_semiring.MAX_CELLS, 1])
def test_max_matmul(max_cells, monkeypatch):
    monkeypatch.setattr(log_semiring, "MAX_CELLS", max_cells)
    a, b = torch.randn(3, 4), torch.randn(4, 7)
    a[0] = -math.inf
    close(max_matmul(a, b), (a.unsqueeze(-1) + b).amax(-2))
