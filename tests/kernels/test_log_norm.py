"""The streamed row normaliser against its slow twin."""

import pytest
import torch
from support.grids import grid

from pplseq.kernels import log_semiring
from pplseq.kernels.log_semiring import log_norm_reference, streamed_log_norm

F64 = torch.float64
close = torch.testing.assert_close


def features(rows, columns, size=5, scale=1.0, dtype=F64):
    return [(torch.randn(n, size, dtype=F64) * scale).to(dtype).requires_grad_() for n in (rows, columns)]


@pytest.fixture(params=["kept", "recomputed in small tiles", "recomputed in one tile"])
def tiling(request, monkeypatch):
    if request.param != "kept":
        monkeypatch.setattr(log_semiring, "KEEP_CELLS", 0)
    if request.param == "recomputed in small tiles":
        monkeypatch.setattr(log_semiring, "CPU_TILE_CELLS", 50)
    return request.param


@grid({"scale": [0.0, 1.0, 30.0], "rows, columns": [(1, 1), (7, 7), (13, 29), (29, 13), (1, 40), (64, 1)]}, times=2)
def test_values_and_gradients(tiling, rows, columns, scale):
    out, into = features(rows, columns, scale=scale)
    weight = torch.linspace(-1, 2, rows, dtype=F64)
    got, wanted = streamed_log_norm(out, into), log_norm_reference(out, into)
    close(got, wanted)
    got = torch.autograd.grad((got * weight).sum(), (out, into))
    close(got, torch.autograd.grad((wanted * weight).sum(), (out, into)))


def test_gradcheck(tiling):
    assert torch.autograd.gradcheck(streamed_log_norm, features(6, 9))


def test_float32(tiling):
    out, into = features(20, 30, scale=10.0, dtype=torch.float32)
    exact = log_norm_reference(out.double(), into.double())
    got = streamed_log_norm(out, into)
    assert got.dtype == torch.float32
    close(got.double(), exact, rtol=1e-5, atol=1e-4)
    close(*(torch.autograd.grad(v.sum(), (out, into)) for v in (got, exact)), rtol=1e-3, atol=1e-4)


def test_bfloat16_products_are_near(tiling):
    out, into = features(20, 30, size=16, scale=0.5, dtype=torch.float32)
    got, exact = streamed_log_norm(out, into, torch.bfloat16), log_norm_reference(out, into)
    assert got.dtype == torch.float32
    close(got, exact, rtol=0.02, atol=0.02)
    close(*(torch.autograd.grad(v.sum(), (out, into)) for v in (got, exact)), rtol=0.1, atol=0.05)


@pytest.mark.parametrize("which", [0, 1])
def test_a_gradient_for_one_side_only(tiling, which):
    out, into = features(5, 6)
    leaf = (out, into)[which]
    fixed = [v if k == which else v.detach() for k, v in enumerate((out, into))]
    got = torch.autograd.grad(streamed_log_norm(*fixed).sum(), leaf)
    close(got, torch.autograd.grad(log_norm_reference(out, into).sum(), leaf))


def test_nothing_is_kept_at_test(monkeypatch):
    out, into = features(300, 200, size=3)
    monkeypatch.setattr(log_semiring, "CPU_TILE_CELLS", 400)
    with torch.no_grad():
        close(streamed_log_norm(out, into), log_norm_reference(out, into))
