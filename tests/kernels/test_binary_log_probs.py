"""Sums of Bernoulli cells by compiled loops against plain operations: values, gradients, second derivatives."""

import math

import pytest
import torch

from pplseq.kernels import compiled
from pplseq.kernels.binary import log_probs
from pplseq.kernels.binary.log_probs import row_log_probs, twin

DTYPES = {torch.float64: 1e-12, torch.float32: 1e-5}


def made(shape, dtype=torch.float64, scale=4.0):
    generator = torch.Generator().manual_seed(0)
    n, _, r, _, d = shape
    logits = (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype).requires_grad_()
    return logits, torch.rand(n, r, d, generator=generator) < 0.4, torch.rand(n, r, generator=generator) < 0.7


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 3, 4, 1, 51), (5, 2, 3, 4, 16), (2, 1, 7, 3, 1), (1, 1, 1, 1, 250), (2, 3, 1, 1, 113)])
def test_values_and_gradients(shape, dtype):
    logits, value, seen = made(shape, dtype)
    found, wanted = row_log_probs(logits, value, seen), twin(logits.double(), value, seen)
    weight = torch.linspace(-1, 2, found.numel(), dtype=dtype).reshape(found.shape)
    got, = torch.autograd.grad(found, logits, weight)
    expected, = torch.autograd.grad(wanted, logits, weight.double())
    assert found.dtype is dtype and got.dtype is dtype
    torch.testing.assert_close(found, wanted.to(dtype), rtol=DTYPES[dtype], atol=DTYPES[dtype])
    torch.testing.assert_close(got, expected, rtol=DTYPES[dtype], atol=DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_edges(dtype):
    """Certain, impossible, far and missing numbers; a NaN that was not seen does no harm."""
    inf = math.inf
    numbers = [[inf, -inf, 1.0], [-inf, 0, 0], [800.0, -800.0, 90.0], [math.nan, 0, 0], [math.nan, 0, 0]]
    logits = torch.tensor(numbers, dtype=dtype).reshape(1, 1, 5, 1, 3).requires_grad_()
    value = torch.tensor([[True, False, True], [True, False, False], [False, False, True], [True] * 3, [True] * 3])
    seen = torch.tensor([[True, True, True, True, False]])
    found, wanted = row_log_probs(logits, value[None], seen), twin(logits, value[None], seen)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    got, = torch.autograd.grad(found.sum(), logits)
    assert got.flatten()[3:9].tolist() == pytest.approx([1, -0.5, -0.5, -1, 0, 0], abs=1e-30)
    assert got.flatten()[:3].tolist() == pytest.approx([0, 0, 1 / (1 + math.e)], rel=1e-6, abs=1e-30)
    assert got[0, 0, 3, 0, 0].isnan() and got[0, 0, 4].tolist() == [[0, 0, 0]]


def test_all_orders_and_transforms():
    logits, value, seen = made((2, 2, 2, 1, 3))

    def total(x):
        return row_log_probs(x, value, seen).exp().sum()

    def plain(x):
        return twin(x, value, seen).exp().sum()

    hessian = torch.autograd.functional.hessian
    torch.testing.assert_close(hessian(total, logits), hessian(plain, logits))
    torch.testing.assert_close(torch.func.grad(total)(logits), torch.func.grad(plain)(logits))
    torch.testing.assert_close(torch.func.vmap(total)(logits[None]), plain(logits)[None])
    assert torch.autograd.gradcheck(total, logits) and torch.autograd.gradgradcheck(total, logits)


def test_without_loops():
    logits, value, _ = made((2, 2, 3, 1, 4))
    fast = row_log_probs(logits, value)
    with compiled.twins_only():
        torch.testing.assert_close(row_log_probs(logits, value), fast)


def test_gaps_in_memory(monkeypatch):
    """Views that are not contiguous, in threads."""
    logits, value, seen = made((3, 2, 5, 2, 7))
    monkeypatch.setattr(log_probs, "WORK", 1 << 20)
    turned = logits.transpose(1, 3).contiguous().transpose(1, 3)
    found = row_log_probs(turned, value, seen)
    torch.testing.assert_close(found, twin(logits, value, seen))
    got, = torch.autograd.grad(found.sum(), logits)
    torch.testing.assert_close(got, torch.autograd.grad(twin(logits, value, seen).sum(), logits)[0])
