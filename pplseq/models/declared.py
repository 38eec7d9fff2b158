"""Building a model of a stored folder within the memory that its tensors speak for."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

ROOM = 1 << 26  # bytes that a constructor may take beside what the tensors themselves take
SQUARED = ("aten::eye", "aten::diag_embed", "aten::block_diag")  # make as many numbers as the square of what they are given
SHARE = 4  # of these: numbers may be of twice the digits, and masks and starts stand beside them


@contextmanager
def within(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """A block that builds the model whose parameters these are, by a configuration that may be anybody's.

    Until all stored shapes were met, no step may make much more than the stored tensors hold, and no large parameter another
    shape; afterwards the configuration is theirs, and memory is as it needs.

    Raises:
        ValueError: naming the parameter, or what was asked for.
    """
    mode, here = _Within(tensors), threading.get_ident()

    def met(module: torch.nn.Module, name: str, value: Any) -> None:
        if value is not None and threading.get_ident() == here:
            mode.meet(name, value)

    hooks = [register_module_parameter_registration_hook(met), register_module_buffer_registration_hook(met)]
    try:
        with mode:
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _Within(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # to hide this mode from its compiler torch would import it: most of a second of the first folder that a process loads
        return False

    def __init__(self, tensors: Mapping[str, Tensor]):
        super().__init__()
        self.shapes = {(name.rpartition(".")[2], tuple(value.shape)) for name, value in tensors.items()}
        self.waiting = set(self.shapes)
        self.most = ROOM + SHARE * sum(value.nbytes for value in tensors.values())

    def meet(self, name: str, value: Tensor) -> None:
        shape = tuple(value.shape)
        if isinstance(value, torch.nn.Parameter) and (name, shape) not in self.shapes and value.nbytes > ROOM // 64:
            raise ValueError(f"{name}: none of shape {shape} is stored, of which the configuration is")
        self.waiting.discard((name, shape))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        power = 2 if func.name() in SQUARED else 1
        if self.waiting and 8 * _at_most(args, kwargs) ** power > self.most:
            self._look(_made(func, args, kwargs))
        found = func(*args, **kwargs)
        if self.waiting:
            self._look(found)
        return found

    def _look(self, found: Any) -> None:
        size = max((value.untyped_storage().nbytes() for value in tree_leaves(found) if isinstance(value, Tensor)), default=0)
        if size > self.most:
            raise ValueError(f"the configuration is of {size:,} bytes, far more than are stored")


def _at_most(args: Any, kwargs: Any) -> float:
    """Numbers that an operation makes at most, of most operations: by the sizes it is given, and those of its tensors."""
    given = tree_leaves((args, kwargs))
    shapes = [value.shape for value in given if isinstance(value, Tensor)]
    depth = max(map(len, shapes), default=0)
    together = math.prod(max(shape[-d] for shape in shapes if len(shape) >= d) for d in range(1, depth + 1))
    sizes = math.prod(value for value in given if isinstance(value, int) and value > 1)
    return float(max(together, sum(map(math.prod, shapes)), 1)) * sizes


def _made(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation would make, without memory; None where that cannot be told."""
    args, kwargs = tree_map_only(Tensor, lambda value: value.to("meta"), (args, kwargs))
    made_of = any(isinstance(value, Tensor) for value in tree_leaves(args)) and "device" not in kwargs
    device = {} if made_of else {"device": "meta"}
    try:
        return func(*args, **kwargs | device)
    except (RuntimeError, NotImplementedError, TypeError):
        return None
