"""What parameters imply, computed once for as long as they hold the same numbers.

Questions about small data ask the same parameters again and again, and what these imply (normalised logarithms, factors of
covariances) then costs more than the answer. Numbers are compared with a copy, not versions of tensors: every way to change a
parameter is noticed, through ``.data``, an optimiser, a state dict or another library's view of the memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from pplseq.distributions.state import looks
from pplseq.kernels import compiled, twice

Value = TypeVar("Value")
MOST_NUMBERS = 1 << 16  # in all parameters; of more, what follows is dear whether or not this is remembered


class Parts(NamedTuple):
    """Of what a module consisted when it was looked through.

    whole: the module, which must not be kept alive by what it remembers. kind: its class. kinds: the modules in it and their
    classes. sizes: their dictionaries, and how much was in them. places: what stood where in them. numbers: parameters and
    buffers.
    """

    whole: weakref.ref[nn.Module]
    kind: type
    kinds: list[tuple[nn.Module, type]]
    sizes: list[tuple[dict[str, Any], int]]
    places: list[tuple[dict[str, Any], str, Any]]
    numbers: list[Tensor]

    @classmethod
    def of(cls, module: nn.Module, numbers: list[Tensor]) -> Parts:
        modules = list(module.modules())
        names = ("_modules", "_parameters", "_buffers", "_pyro_samples", "_pyro_params")
        held = [vars(part)[name] for part in modules for name in names if name in vars(part)]
        places = [(holder, name, value) for holder in held for name, value in holder.items()]
        kinds, sizes = [(part, type(part)) for part in modules[1:]], [(holder, len(holder)) for holder in held]
        return cls(weakref.ref(module), type(module), kinds, sizes, places, numbers)

    def stand(self) -> bool:
        """Whether everything is where it was."""
        if type(self.whole()) is not self.kind:
            return False
        for part, kind in self.kinds:
            if type(part) is not kind:
                return False
        for holder, size in self.sizes:
            if len(holder) != size:
                return False
        for holder, name, value in self.places:
            if holder.get(name) is not value:
                return False
        return True


class Numbers(NamedTuple):
    """A tensor with a copy of its numbers. memory: where they stood, which is kept from being anything else's."""

    tensor: Tensor
    address: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    memory: np.ndarray
    copy: bytes

    @classmethod
    def of(cls, tensor: Tensor) -> Numbers | None:
        """None of a tensor whose numbers do not lie one behind the other on the CPU."""
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.is_contiguous():
            return None
        memory = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        return cls(tensor, tensor.data_ptr(), tuple(tensor.shape), tensor.dtype, memory, memory.tobytes())

    def are_same(self) -> bool:
        tensor = self.tensor
        stands = tensor.data_ptr() == self.address and tensor.shape == self.shape and tensor.dtype is self.dtype
        return stands and tensor.is_contiguous() and self.memory.tobytes() == self.copy


class Kept(NamedTuple):
    """What follows from numbers of parts, and whether numbers were checked when it was computed."""

    checked: bool
    parts: Parts
    numbers: list[Numbers]
    value: Any

    def holds(self) -> bool:
        """Whether it would be computed as it was, and come out the same."""
        if self.checked != looks() or torch.is_inference_mode_enabled() or compiled.is_told():
            return False
        if twice.derivatives_wanted() or torch.is_autocast_enabled("cpu") or not self.parts.stand():
            return False
        for numbers in self.numbers:
            if not numbers.are_same():
                return False
        return True


class Remembered(Generic[Value]):
    """A value that follows from the parameters of a module, without their gradients.

    Nothing is remembered where gradients are wanted, on other devices than the CPU (a comparison would wait for them), of
    large modules, and where a parameter is drawn, constrained, computed or replaced, so that its numbers do not stand where
    they stood when the module was made.

    Args:
        names: of the module's parameters, from :func:`plain_parameters`.
    """

    def __init__(self, names: tuple[str, ...]):
        self._names = names
        # each in one piece, as threads may ask at once
        self._kept: Kept | None = None
        self._parts: Parts | None = None

    def get(self, module: nn.Module, compute: Callable[[], Value]) -> Value:
        """``compute()``, or what it returned when the parameters were the same numbers."""
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled() or twice.derivatives_wanted():
            return compute()
        kept = self._kept
        if kept is not None and kept.holds():
            return kept.value
        numbers, checked = self.plain(module), looks()
        if numbers is None:
            return compute()
        parts, copies = self._parts, []
        if sum(part.numel() for part in numbers) <= MOST_NUMBERS:
            copies = [found for part in numbers if (found := Numbers.of(part)) is not None]
        value = compute()
        if parts is not None and copies and len(copies) == len(numbers):
            kept = Kept(checked, parts, copies, value)
            self._kept = kept if kept.holds() else None  # not what another thread changed meanwhile
        return value

    def last(self) -> Value | None:
        """What :meth:`get` returned last, which depends on no gradient mode; None where it may not be the same now."""
        kept = self._kept
        return kept.value if kept is not None and kept.holds() else None

    def plain(self, module: nn.Module) -> list[Tensor] | None:
        """The parameters and buffers, where they stand as they stood when the module was made and are computed with as such."""
        if torch.is_autocast_enabled("cpu"):
            return None
        parts = self._parts
        if parts is not None and parts.whole() is module and parts.stand():
            return parts.numbers
        names, numbers = plain_parameters(module)
        self._parts = Parts.of(module, numbers) if names == self._names else None
        return None if self._parts is None else numbers

    def __reduce__(self):
        return Remembered, (self._names,)  # a copy has yet to see its parameters


def plain_parameters(module: nn.Module) -> tuple[tuple[str, ...], list[Tensor]]:
    """Names and values of parameters and buffers, part by part; other names where some are drawn, constrained or computed."""
    names, values = [], []
    for part in module.modules():
        own: Any = part
        if getattr(own, "_pyro_samples", None) or getattr(own, "_pyro_params", None) or "parametrizations" in own._modules:
            return ("computed",), []
        names.append(type(own).__name__)
        for name, value in (*own._parameters.items(), *own._buffers.items()):
            if value is not None:
                names.append(name)
                values.append(value)
    return tuple(names), values
