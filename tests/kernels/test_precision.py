"""Precision of matrix products."""

import pytest
import torch

from pplseq.kernels.precision import exact_products, has_bfloat16_products, matmul_precision
from pplseq.kernels.triton.launch import dot_precision


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
        assert setting.fp32_precision == ("bf16" if has_bfloat16_products() else "ieee")
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


def test_a_gpu_rounds_only_where_it_is_asked_to():
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    for name, expected in {"tf32": "tf32", "auto": "ieee", "bfloat16": "ieee"}.items():
        with matmul_precision(name):
            assert matmul.fp32_precision == expected == dot_precision()
            with exact_products():
                assert matmul.fp32_precision == "ieee"
            assert matmul.fp32_precision == expected
    assert matmul.fp32_precision == before
