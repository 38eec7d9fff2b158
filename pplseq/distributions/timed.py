"""One tensor a step: what ``x[:, t]`` is while a loop's body runs once for all steps."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from pplseq.threads import filtering

_ABOUT_SHAPE = {
    "dim", "size", "numel", "nelement", "ndimension", "stride", "is_floating_point", "is_complex", "is_signed", "__len__",
    "element_size", "get_device", "is_contiguous", "__hash__",
}  # fmt: skip
_VALUES = {"T", "mT", "H", "mH", "data", "real", "imag"}  # properties that are values
_OF_STEPS = {"requires_grad", "is_leaf", "grad_fn"}
_NUMBERS = {
    "item", "tolist", "numpy", "__int__", "__float__", "__complex__", "__index__", "__array__", "__contains__", "equal",
    "allclose", "unique", "nonzero",
}  # fmt: skip


class Timed(Tensor):
    """A tensor of every step, which tensor code handles as the tensor of one: shape, dtype and dimensions are those of a step.

    Time is no dimension that code could meet. Every operation is that of one step, done at all steps (``torch.vmap``), so
    that what is shared by rows (``b[t]``, (n,) at a step) broadcasts as it does step by step, whatever the sizes. What needs
    a number raises TypeError; a condition is one where it holds at all steps or at none.

    Attributes:
        steps: (T, *shape) all of them, an ordinary tensor.
    """

    steps: Tensor

    @staticmethod
    def of(steps: Tensor) -> Timed:
        timed: Any = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            Timed, steps.shape[1:], strides=steps.stride()[1:], dtype=steps.dtype, device=steps.device
        )
        timed.steps = steps
        return timed

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"Timed(steps={len(self.steps)}, shape={tuple(self.shape)}, dtype={self.dtype})"

    def __format__(self, spec: str) -> str:
        return repr(self)

    __hash__ = Tensor.__hash__

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if any(not issubclass(kind, Timed) and kind not in (Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented  # of a hidden state, or of the index
        name, kwargs = getattr(func, "__name__", str(func)), kwargs or {}
        if name == "__get__":
            name = getattr(func.__self__, "__name__", "")
            if name in _OF_STEPS:
                return func(args[0].steps)
            if name == "data":  # no batched form; Pyro's enumeration asks for its shape
                return cls.of(args[0].steps.detach())
            if name not in _VALUES:
                return _with_plain_calls(func, args, kwargs)
        elif name in _ABOUT_SHAPE:
            return _with_plain_calls(func, args, kwargs)
        if func is Tensor.__getitem__ and not isinstance(args[0], Timed):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            numbers = [i for i in index if isinstance(i, Timed) and i.dim() == 0 and i.dtype is torch.int64]
            if len(numbers) == 1 and all(i is numbers[0] or not isinstance(i, Timed) for i in index):
                return at_steps(args[0], index, lambda i: i is numbers[0], numbers[0].steps)[0]
        if name == "__bool__":
            return _agreed(args[0].steps)
        if name == "_is_all_true":
            return bool(args[0].steps.all())
        if name in _NUMBERS or name == "__set__" or name.endswith("_") and not name.endswith("__") or name == "__setitem__":
            raise TypeError(
                f"{name} of values at all steps of a vectorised loop is not supported; write pplseq.markov(..., "
                "vectorize=False) to run the loop step by step"
            )
        if func is torch.nn.functional.linear and _rows_alone(args, kwargs):
            return cls.of(func(args[0].steps, *args[1:], **kwargs))  # torch.vmap would add the bias in a pass of its own
        return _at_every_step(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise TypeError(
            f"{func} met values at all steps of a vectorised loop where it cannot handle them; write pplseq.markov(..., "
            "vectorize=False)"
        )


def at_steps(tensor: Tensor, index: tuple, is_time, steps: slice | Tensor) -> tuple[Timed, int]:
    """tensor[index] at all steps, and the size of the dimension that time runs along.

    Args:
        is_time: which of the indices is the step's number. steps: all these numbers.
    """
    others = [i for i in index if not is_time(i) and not isinstance(i, (slice, int)) and i is not Ellipsis]
    if len(others) > 1 or any(not _picks_rows(i) for i in others):
        raise TypeError(
            "only slices, integers and one tensor of row numbers may stand beside a vectorised time index, as in x[:, t]"
        )
    position = next(k for k, i in enumerate(index) if is_time(i))
    rest = index[:position] + index[position + 1 :]
    if any(i is Ellipsis for i in index[:position]):
        position = tensor.dim() - len(index) + position
    moved = tensor.movedim(position, 0)
    if isinstance(steps, slice):
        return Timed.of(moved[(steps, *rest)]), len(moved)
    return Timed.of(moved[steps][(slice(None), *rest)]), len(moved)


def _picks_rows(index) -> bool:
    return isinstance(index, Tensor) and index.dim() == 1 and index.dtype == torch.int64


def _rows_alone(args: tuple, kwargs: dict) -> bool:
    """Whether of a function's arguments the first alone differs from step to step, and has a dimension at a step."""
    others = (*args[1:], *kwargs.values())
    return isinstance(args[0], Timed) and args[0].dim() > 0 and not any(isinstance(value, Timed) for value in others)


def _with_plain_calls(func, args, kwargs):
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _agreed(steps: Tensor) -> bool:
    """A condition that is the same at all steps."""
    if steps.numel() != len(steps):
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
    some, every = bool(steps.any()), bool(steps.all())
    if some != every:
        raise TypeError(
            "a condition holds at some steps of a vectorised loop and not at others; use torch.where or a mask, or write "
            "pplseq.markov(..., vectorize=False)"
        )
    return every


def _at_every_step(func, args, kwargs):
    flat, spec = tree_flatten((args, kwargs))
    places = [k for k, value in enumerate(flat) if isinstance(value, Timed)]
    spans = {len(flat[k].steps) for k in places}
    if len(spans) > 1:
        raise ValueError(f"values of different loops meet, of {' and '.join(map(str, sorted(spans)))} steps")

    def one(*values):
        given = list(flat)
        for place, value in zip(places, values, strict=True):
            given[place] = value
        args, kwargs = tree_unflatten(given, spec)
        return func(*args, **kwargs)

    # isclose has no batched form, and says so (validation of covariances asks for it)
    with filtering("ignore") if func is torch.isclose else contextlib.nullcontext():
        found = torch.vmap(one, randomness="different")(*(flat[k].steps for k in places))
    return tree_map_only(Tensor, Timed.of, found)


def all_steps(value, event: int, rows: int):
    """(T, 1, .., 1, *own, *event) of a :class:`Timed` whose last ``event`` dimensions are its own and others are rows, of
    ``rows`` dimensions; anything else as it is.
    """
    if not isinstance(value, Timed):
        return value
    steps = value.steps
    own = steps.dim() - 1 - event
    return steps.reshape(len(steps), *(1,) * (rows - own), *steps.shape[1:])
