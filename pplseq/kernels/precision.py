"""Matrix products of float32 numbers with rounded factors and float32 sums, where they are wanted.

oneDNN rounds the factors of a product to bfloat16 and adds up in float32: on a core with AMX three to seven times as fast as
float32 products. With AVX512_BF16 alone it does so for tensors of bfloat16 only, three to five times as fast: there the layers
of a network run in bfloat16 (:func:`network_precision`), and other products stay as they are. A GPU rounds factors to TF32 (10
bits of 23) if it is asked to. Everything but products and those layers stays float32.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from pplseq import threads

_has_rounded = False  # whether this process ever asked for rounded factors: else nobody has to wait for anybody
MATMUL_PRECISIONS = ("auto", "float32", "bfloat16", "tf32")


@functools.cache
def has_bfloat16_products() -> bool:
    """Whether torch multiplies float32 matrices in bfloat16 on this processor, where it may.

    It is tried, as neither the processor nor oneDNN tells: with AVX512_BF16 alone, torch 2.13 keeps to float32.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    ones = torch.full((256, 256), 1 + 2.0**-12, device="cpu")  # 1 in bfloat16
    with _oned_nn("bf16"):
        return bool((ones @ ones == 256).all())


@contextlib.contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """How products of float32 matrices are made inside, where no other thread makes exact ones: the setting is the process's.

    Args:
        name: "float32" everywhere; "bfloat16" of a CPU; "tf32" of a GPU, float32 on a CPU; "auto" is bfloat16 on a CPU that has
            it, and float32 on a GPU, where nothing else was measured yet.

    Raises:
        ValueError: for another name.
    """
    if name not in MATMUL_PRECISIONS:
        raise ValueError(f"matmul_precision must be one of {', '.join(MATMUL_PRECISIONS)}, got {name!r}")
    if name == "auto":
        name = "bfloat16" if has_bfloat16_products() or has_bfloat16_tensors() else "float32"
    on_gpu = "tf32" if name == "tf32" else "ieee"
    global _has_rounded
    _has_rounded = _has_rounded or name != "float32"
    with threads.LOCK, _oned_nn("bf16" if name == "bfloat16" else "ieee"), _set(torch.backends.cuda.matmul, on_gpu):
        yield


def network_precision(x: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Around the linear layers of a network: they run in bfloat16 where that is wanted and the only way to have such products.

    Sums inside of a product are float32; what comes out is of bfloat16 and goes back to float32 behind the layers.
    """
    wanted = torch.backends.mkldnn.matmul.fp32_precision == "bf16"  # pyright: ignore[reportAttributeAccessIssue]
    if wanted and x.device.type == "cpu" and x.dtype is torch.float32 and has_bfloat16_tensors():
        return torch.autocast("cpu", torch.bfloat16)
    return contextlib.nullcontext()


@functools.cache
def has_bfloat16_tensors() -> bool:
    """Whether this processor multiplies matrices of bfloat16 fast, but torch rounds no float32 ones for it."""
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return supported is not None and supported() and not has_bfloat16_products()


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Products of float32 matrices are float32 here, whatever is set around: for messages, which are multiplied T times, and
    for answers, beside which another thread may train."""
    settings = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul  # pyright: ignore[reportAttributeAccessIssue]
    if not _has_rounded and all(setting.fp32_precision in ("none", "ieee") for setting in settings):
        yield
        return
    with threads.LOCK, _set(settings[0], "ieee"), _set(settings[1], "ieee"):
        yield


def _oned_nn(precision: str):
    return _set(torch.backends.mkldnn.matmul, precision)  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def _set(backend: Any, precision: str) -> Iterator[None]:
    before, outermost = backend.fp32_precision, backend not in threads.precisions
    try:
        if outermost:
            threads.precisions[backend] = before
        backend.fp32_precision = precision
        yield
    finally:
        if backend in threads.precisions:  # else Ctrl-C ended this block before, and all is as it was
            backend.fp32_precision = before
        if outermost:
            threads.precisions.pop(backend, None)
