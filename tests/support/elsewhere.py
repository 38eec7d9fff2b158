"""Tensors that live on the CPU and say that they are on another device: values are real, mixing devices raises.

What a GPU would refuse, without one. "meta" stands for the other device.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

DEVICE = torch.device("meta")
MOVES = {"copy_", "_to_copy", "_local_scalar_dense", "set_", "lift_fresh", "detach", "alias"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
class Elsewhere(Tensor):
    """A tensor that holds real numbers and says it is on DEVICE."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def of(real: Tensor) -> Elsewhere:
        made = Tensor._make_wrapper_subclass(
            Elsewhere, real.size(), strides=real.stride(), storage_offset=real.storage_offset(), dtype=real.dtype, device=DEVICE
        )
        made.held = real
        return made

    def tolist(self):
        return self.held.tolist()

    def new_tensor(self, data, dtype=None, device=None, requires_grad=False):
        made = torch.tensor(getattr(data, "held", data), dtype=dtype or self.dtype, device=device or DEVICE)
        return made.requires_grad_(requires_grad)

    def __getitem__(self, index):
        return super().__getitem__(_index(index))

    def __setitem__(self, index, value):
        super().__setitem__(_index(index), value)

    def numpy(self, *args, **kwargs):
        raise TypeError("a tensor of another device has no numpy array")

    def __repr__(self, **kwargs):
        return f"Elsewhere({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def is_there(value) -> bool:
    """Whether it is a tensor that holds numbers and says it is elsewhere."""
    return isinstance(value, Tensor) and "held" in vars(value)


_as_subclass = Tensor.as_subclass


def as_subclass(value: Tensor, cls: type) -> Tensor:
    """A tensor of exactly that class that holds the same numbers, and is elsewhere too; of an Elsewhere without its history."""
    if not is_there(value):
        return _as_subclass(value, cls)
    if isinstance(value, Elsewhere):
        with no_dispatch():
            value, held = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=DEVICE), value.held
    else:
        held = value.held
    made = _as_subclass(value, cls)
    made.held = held
    return made


def _index(index):
    """An index whose lists are tensors: torch itself would make them elsewhere, without numbers."""
    if isinstance(index, list):
        return torch.tensor(index) if index else torch.empty(0, dtype=torch.long)
    return tuple(map(_index, index)) if isinstance(index, tuple) else index


def _run(func, args, kwargs):
    name = func.overloadpacket.__name__
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    there, here = [t for t in tensors if is_there(t)], [t for t in tensors if not is_there(t)]
    # numbers in the shape of a tensor, and indices, may come from the CPU, as on a GPU
    indices = name in INDEXING and is_there(args[0])
    if any(t.device.type == DEVICE.type for t in here):
        raise AssertionError(f"{name}: a tensor was made elsewhere without numbers; the pretence has a hole")
    if there and not indices and name not in MOVES and any(t.dim() > 0 for t in here):
        raise RuntimeError(f"mixed devices in {name}: {[tuple(t.shape) for t in here]} are on the CPU")
    device = kwargs.get("device")
    kept = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory", "generator")}
    if device is not None and name == "_to_copy":
        kept["device"] = torch.device("cpu")
    real_args, real_kwargs = tree_map(lambda t: t.held if is_there(t) else t, (args, kept))
    if "generator" in kwargs:
        real_kwargs["generator"] = None  # no generator can say that it is elsewhere
    found = func(*real_args, **real_kwargs)
    if name == "_local_scalar_dense":
        return found
    if torch.Tag.inplace_view in func.tags and there:  # squeeze_ and the like: the wrapper takes the new shape too
        with no_dispatch():
            func(*args, **kwargs)
    if name == "copy_":
        return args[0]
    elsewhere = torch.device(device).type == DEVICE.type if device is not None else bool(there)

    def wrap(value):
        same = next((t for t in there if value is t.held), None)
        return same if same is not None else Elsewhere.of(value) if elsewhere else value

    return tree_map_only(Tensor, wrap, found)


class _Everything(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


@contextlib.contextmanager
def other_device(monkeypatch) -> Iterator[None]:
    """Inside of it, tensors can be made on DEVICE."""
    plain = torch.tensor, torch.as_tensor

    def made(k, data, dtype=None, device=None, **options):
        if device is None or isinstance(data, Tensor):
            value = plain[k](data, dtype=dtype, **options)
            return value if device is None else value.to(device)
        value = plain[k](data, dtype=dtype, **options)
        return Elsewhere.of(value) if torch.device(device).type == DEVICE.type else value

    monkeypatch.setattr(Tensor, "as_subclass", as_subclass)
    monkeypatch.setattr(torch, "tensor", lambda data, **options: made(0, data, **options))
    monkeypatch.setattr(torch, "as_tensor", lambda data, dtype=None, device=None: made(1, data, dtype, device))
    with _Everything():
        yield


def moved(model: nn.Module) -> nn.Module:
    """A module whose parameters and buffers are on DEVICE."""
    for module in model.modules():
        for name, value in list(module._parameters.items()):
            if value is not None:
                module._parameters[name] = nn.Parameter(Elsewhere.of(value.detach()), requires_grad=value.requires_grad)
        for name, value in list(module._buffers.items()):
            if value is not None:
                module._buffers[name] = Elsewhere.of(value)
    return model


ASKING = {
    "_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "unique_consecutive", "masked_select", "equal", "is_nonzero",
    "bincount",
}  # fmt: skip


def questions(func, args, kwargs) -> bool:
    """Whether an operation makes the host wait for numbers of the other device."""
    name = func.overloadpacket.__name__
    there = any(is_there(value) for value in tree_flatten((args, kwargs))[0])
    if not there:
        return False
    if name in INDEXING:
        return any(isinstance(value, Tensor) and value.dtype is torch.bool for value in tree_flatten(args[1])[0])
    if name == "_to_copy":
        return kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu"
    if name == "copy_":
        return is_there(args[1]) and not is_there(args[0])
    return name in ASKING or (name == "repeat_interleave" and "output_size" not in kwargs)


class Questions(TorchDispatchMode):
    """Inside of it, :func:`other_device` being around: what the host asks of the other device, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if questions(func, args, kwargs or {}):
            place = next((f"{f.filename}:{f.lineno}" for f in traceback.extract_stack()[::-1] if "/pplseq/" in f.filename), "")
            self.asked.append(f"{func.overloadpacket.__name__} at {place}")
        return _run(func, args, kwargs or {})
