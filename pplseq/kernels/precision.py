"""Matrix products of float32 numbers in bfloat16 with float32 sums, on processors that have them.

oneDNN rounds the factors of a product to bfloat16 and adds up in float32: on a core with AMX three to seven times as fast as
float32 products. Everything but products stays float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

MATMUL_PRECISIONS = ("auto", "float32", "bfloat16")


def has_bfloat16_products() -> bool:
    """Whether this processor multiplies bfloat16 matrices in hardware, and torch makes use of it."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported() and _in_hardware()


def _in_hardware() -> bool:
    checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(check is not None and check() for check in checks)


@contextlib.contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Products of float32 matrices on a CPU are "float32", "bfloat16", or "auto": bfloat16 where the processor has it.

    Raises:
        ValueError: for another name.
    """
    if name not in MATMUL_PRECISIONS:
        raise ValueError(f"matmul_precision must be one of {', '.join(MATMUL_PRECISIONS)}, got {name!r}")
    if name == "auto":
        name = "bfloat16" if has_bfloat16_products() else "float32"
    with _oned_nn("bf16" if name == "bfloat16" else "ieee"):
        yield


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Products of float32 matrices are float32 here, whatever is set around: for messages, which are multiplied T times."""
    with _oned_nn("ieee"):
        yield


@contextlib.contextmanager
def _oned_nn(precision: str) -> Iterator[None]:
    matmul = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]
    before = matmul.fp32_precision
    matmul.fp32_precision = precision
    try:
        yield
    finally:
        matmul.fp32_precision = before
