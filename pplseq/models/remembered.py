"""What parameters imply, computed once for as long as they hold the same numbers.

Questions about small data ask the same parameters again and again, and what these imply (normalised logarithms, factors of
covariances) then costs more than the answer. Numbers are compared with a copy, not versions of tensors: every way to change a
parameter is noticed, through ``.data``, an optimiser, a state dict or another library's view of the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pplseq.kernels import twice

Value = TypeVar("Value")
MOST_NUMBERS = 1 << 16  # in all parameters; of more, what follows is dear whether or not this is remembered


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
        # what was checked, the parameters, and what follows: in one piece, as threads may ask at once
        self._last: tuple[str, list[Tensor], Any] = ("nothing", [], None)

    def get(self, module: nn.Module, compute: Callable[[], Value]) -> Value:
        """``compute()``, or what it returned when the parameters were the same numbers."""
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled() or twice.derivatives_wanted():
            return compute()
        numbers = self.plain(module)
        if numbers is None:
            return compute()
        key = "checked" if Distribution._validate_args else "unchecked"
        known, kept, value = self._last
        if key == known and all(map(_same, numbers, kept)):
            return value
        value = compute()
        if sum(part.numel() for part in numbers) <= MOST_NUMBERS and all(part.device.type == "cpu" for part in numbers):
            self._last = key, [part.detach().clone() for part in numbers], value
        return value

    def plain(self, module: nn.Module) -> list[Tensor] | None:
        """The parameters and buffers, where they stand as they stood when the module was made and are computed with as such."""
        names, numbers = plain_parameters(module)
        return None if names != self._names or torch.is_autocast_enabled("cpu") else numbers

    def __reduce__(self):
        return Remembered, (self._names,)  # a copy has yet to see its parameters


def _same(new: Tensor, old: Tensor) -> bool:
    return new.dtype == old.dtype and new.device == old.device and torch.equal(new, old)


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
