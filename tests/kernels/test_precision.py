"""Precision of matrix products."""

import pytest
import torch

from pplseq.kernels.precision import exact_products, has_bfloat16_products, has_bfloat16_tensors, matmul_precision
from pplseq.kernels.triton.launch import dot_precision
from pplseq.models.vlhmm.layers import ResidualLayer


def test_precision_is_set_and_set_back():
    setting = torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    with matmul_precision("bfloat16"):
        assert setting.fp32_precision == "bf16"
        with exact_products():
            assert setting.fp32_precision == "ieee"
        assert setting.fp32_precision == "bf16"
    assert setting.fp32_precision == before
    with pytest.raises(ZeroDivisionError), matmul_precision("auto"):
        assert setting.fp32_precision == ("bf16" if has_bfloat16_products() or has_bfloat16_tensors() else "ieee")
        1 / 0  # noqa: B018
    assert setting.fp32_precision == before
    with pytest.raises(ValueError, match="float32"), matmul_precision("float16"):
        pass


@pytest.mark.skipif(not has_bfloat16_products(), reason="the processor has no bfloat16 products")
def test_products_are_rounded_where_asked():
    a = torch.randn(256, 256)
    exact = a.double() @ a.double()
    with matmul_precision("bfloat16"):
        rough = a @ a
        with exact_products():
            fine = a @ a
    assert (fine - exact).abs().max() < 1e-3 < (rough - exact).abs().max() < 1.0


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "auto"])
def test_layers_are_rounded_where_asked_and_as_little(precision):
    torch.manual_seed(0)
    layer, x = ResidualLayer(64), torch.randn(100, 64, requires_grad=True)
    weight = torch.randn(100, 64)

    def values_and_gradients():
        value = layer(x)
        return [value.detach(), *torch.autograd.grad((value * weight).sum(), [x, *layer.parameters()])]

    exact = values_and_gradients()
    with matmul_precision(precision):
        rough = values_and_gradients()
        with exact_products():
            assert all(torch.equal(one, other) for one, other in zip(values_and_gradients(), exact, strict=True))
    assert all(one.dtype is torch.float32 for one in rough)
    differences = [float((one - other).norm() / other.norm()) for one, other in zip(rough, exact, strict=True)]
    rounds = precision != "float32" and (has_bfloat16_products() or has_bfloat16_tensors())
    assert max(differences) < 0.1 and (max(differences) > 1e-4) == rounds


def test_layers_in_float64_are_never_rounded():
    layer, x = ResidualLayer(32).double(), torch.randn(40, 32, dtype=torch.float64)
    with matmul_precision("bfloat16"):
        rounded = layer(x)
    assert torch.equal(rounded, layer(x))


def test_a_gpu_rounds_only_where_it_is_asked_to():
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    for name, expected in {"tf32": "tf32", "auto": "ieee", "bfloat16": "ieee"}.items():
        with matmul_precision(name):
            assert matmul.fp32_precision == expected == dot_precision(torch.float32)
            with exact_products():
                assert matmul.fp32_precision == "ieee"
            assert matmul.fp32_precision == expected
    assert matmul.fp32_precision == before
