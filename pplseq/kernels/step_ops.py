"""The few operations that loops over time are made of, from torch or from numpy.

A step of a small chain is a few microseconds of work. There most of the time goes into calling, and numpy's calls cost less
than half of torch's; both see the same memory. Products of a few rows with a larger matrix are compiled, see
:mod:`pplseq.kernels.product_loops`: on one core they take a third of a library's time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels import compiled

STEPS = 100  # that are usually taken with the operations asked for
TILED_ROWS, TILED_CELLS, TILED_MATRIX = 4, 1 << 14, 1 << 18  # fewest rows and multiplications; the largest matrix
SMALL = 1 << 17  # multiplications of one step, up to which numpy's BLAS also keeps to one thread


class StepOps(NamedTuple):
    """Operations on arrays of one kind, each writing to its last argument (``take`` and ``best`` excepted)."""

    views: Callable  # tensor -> list of its parts along the first axis, as arrays
    product: Callable  # (N, K), (K, M), out
    multiply: Callable  # a, b, out
    add: Callable  # a, b, out
    best_first: Callable  # maximum over the first axis, out
    keep: Callable  # out, value, where: out[where] = value
    take: Callable  # rows of a matrix
    best: Callable  # arg max over the last axis
    where: Callable
    stack: Callable  # list of arrays -> tensor


def _numpy_views(tensor: Tensor) -> list:
    return list(tensor.detach().numpy())


def _torch_keep(out: Tensor, value, where: Tensor) -> None:
    out.copy_(torch.where(where, value, out))


NUMPY = StepOps(
    views=_numpy_views,
    product=np.dot,
    multiply=np.multiply,
    add=np.add,
    best_first=lambda a, out: np.maximum.reduce(a, axis=0, out=out),
    keep=lambda out, value, where: np.copyto(out, value, where=where),
    take=lambda matrix, index: matrix.take(index, 0),
    best=lambda a: a.argmax(-1),
    where=np.where,
    stack=lambda arrays: torch.from_numpy(np.stack(arrays)),
)
TORCH = StepOps(
    views=lambda tensor: tensor.unbind(),
    product=lambda a, b, out: torch.mm(a, b, out=out),
    multiply=lambda a, b, out: torch.mul(a, b, out=out),
    add=lambda a, b, out: torch.add(a, b, out=out),
    best_first=lambda a, out: torch.amax(a, 0, out=out),
    keep=_torch_keep,
    take=lambda matrix, index: matrix[index],
    best=lambda a: a.argmax(-1),
    where=torch.where,
    stack=lambda arrays: torch.stack(list(arrays)),
)


@functools.cache
def _by_tiles() -> StepOps:
    """numpy's operations, with compiled products."""
    from pplseq.kernels.product_loops import multiply

    return NUMPY._replace(product=lambda a, b, out: multiply(a, b, out) or out)


def step_ops(device: torch.device, cells: int, num_rows: int = 1) -> StepOps:
    """Operations on the CPU for steps of so many multiplications, with vectors of so many rows; torch's on other devices.

    Few multiplications are numpy's. Several rows are multiplied by compiled tiles, where threads are few and a matrix stays in
    a core's cache; torch has the rest.
    """
    if device.type != "cpu":
        return TORCH
    if TILED_CELLS < cells <= TILED_MATRIX * num_rows and num_rows >= TILED_ROWS:
        # the work of a step: whoever takes many of them asks once, and reckons with some hundreds
        if compiled.few_threads() and compiled.pays("kernels.product_loops.multiply", 0, STEPS * cells):
            return _by_tiles()
    return NUMPY if cells <= SMALL else TORCH
