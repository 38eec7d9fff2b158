"""Tables looked up at states, ``probs[x]``, that stay tables: code of a program is then computed once for all steps.

A marked site's value is a :class:`StateValue`. A tensor indexed by it is a :class:`Lookup`: the table and the index instead of
what they give. Elementwise code acts on the table (``probs[x].log()`` is ``probs.log()[x]``), and what a program says again at
every step is the same object. Everything else gets the tensor itself, so that any code computes what it always did.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq.distributions.timed import Timed

_ELEMENTWISE = {
    "abs", "add", "and", "bitwise_and", "clamp", "clamp_min", "clamp_max", "cos", "div", "eq", "exp", "expm1",
    "float", "double", "ge", "gt", "le", "log", "log1p", "log_sigmoid", "logsigmoid", "logical_and", "logical_not",
    "logical_or", "lt", "mul", "ne", "neg", "pow", "radd", "reciprocal", "relu", "rmul", "rsub", "rtruediv", "rdiv",
    "rsqrt", "sigmoid", "sin", "softplus", "sqrt", "square", "sub", "tanh", "true_divide", "truediv", "isfinite",
    "isnan", "logit",
}  # fmt: skip
_ALONG = {"sum", "all", "any", "logsumexp", "amax", "amin", "log_softmax", "softmax", "mean"}
_METADATA = {
    "dim", "size", "numel", "nelement", "ndimension", "is_floating_point", "is_complex", "is_signed", "__len__", "get_device",
    "element_size", "__hash__",
}  # fmt: skip
_PROPERTIES = {"shape", "dtype", "device", "requires_grad", "ndim", "layout", "is_leaf", "grad_fn", "is_sparse", "names"}
_VIEWS = {"squeeze", "unsqueeze", "reshape", "view", "expand", "long"}
_NUMBERS = (int, float, bool, type(None))
_AUGMENTED = {f"__i{name}__" for name in "add and div floordiv lshift mod mul or pow rshift sub truediv xor".split()}
IN_PLACE = (
    "a table looked up at states, as `p = probs[x]`, is changed in place, but all steps that look it up share it; write the "
    "new value, `p = p + 1` for `p += 1` and torch.where for `p[...] = 0`, or change `probs[x].clone()`"
)


class Memo(dict):
    """What was looked up or computed already, by what it came from; it lives as long as one run of a program.

    made: lookups whose tensors somebody has.
    """

    def __init__(self):
        super().__init__()
        self.made: list[Lookup] = []

    def check_unchanged(self) -> None:
        """Raises where a tensor of a lookup was changed through a view of it."""
        for lookup in self.made:
            lookup.check_unchanged()
        self.made.clear()


class Entry(NamedTuple):
    """One index of a lookup. dim: the dimension, from the right, along which it runs over all states; None for data."""

    index: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]
    dim: int | None


def _plain(func, args, kwargs):
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _version(value: Tensor) -> int:
    """How often a tensor was changed in place; inference tensors do not count."""
    value = value.steps if isinstance(value, Timed) else value
    return -1 if value.is_inference() else value._version


def _joint_shape(shapes: list) -> torch.Size:
    """``torch.broadcast_shapes``, which takes far longer."""
    first = shapes[0]
    return first if all(shape == first for shape in shapes[1:]) else _broadcast_shapes(tuple(shapes))


@functools.lru_cache(maxsize=1024)
def _broadcast_shapes(shapes: tuple) -> torch.Size:
    return torch.broadcast_shapes(*shapes)


def _name(func) -> str:
    return getattr(func, "__name__", "").strip("_")


class StateValue(Tensor):
    """The states 0..K-1 of an enumerated site, along one dimension.

    Attributes: num_states: K. memo: shared by the states of a run. version: how often its memory had been changed in
    place. variable: the site.
    """

    num_states: int
    memo: Memo
    version: int
    variable: Any

    @staticmethod
    def of(values: Tensor, memo: Memo, variable: Any = None) -> StateValue:
        states: Any = values.as_subclass(StateValue)
        states.variable = variable
        states.num_states, states.memo, states.version = values.numel(), memo, _version(values)
        support = getattr(values, "_pyro_categorical_support", None)
        if support is not None:
            states._pyro_categorical_support = support
        return states

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is Tensor.__getitem__ and not isinstance(args[0], (StateValue, Lookup)):
            found = look_up(*args)
            if found is not None:
                return found
        if all(issubclass(kind, (StateValue, Tensor)) and kind is not Timed for kind in types):
            result = _plain(func, args, kwargs)
        else:
            result = func(*_without_states(args), **_without_states(kwargs))
        own = args[0] if args else None
        if type(own) is StateValue and _name(func) in _VIEWS and isinstance(result, Tensor) and not result.is_floating_point():
            plain: Any = _plain(Tensor.as_subclass, (result, Tensor), {})
            states = StateValue.of(plain, own.memo, own.variable)
            states.version = own.version
            return states if states.num_states == own.num_states else plain
        return _as_plain(result)


def _without_states(value) -> Any:
    if type(value) is StateValue:
        return _plain(Tensor.as_subclass, (value, Tensor), {})
    if isinstance(value, (tuple, list)):
        return type(value)(map(_without_states, value)) if type(value) in (tuple, list) else value
    if isinstance(value, dict):
        return {key: _without_states(item) for key, item in value.items()}
    return value


def _writes(name: str, args: tuple, kwargs: dict) -> bool:
    """Whether a function of that name changes a lookup among its arguments in place."""
    if kwargs and (type(kwargs.get("out")) is Lookup or kwargs.get("inplace")):
        return True
    if not args or type(args[0]) is not Lookup or name == "requires_grad_":
        return False
    return name in _AUGMENTED or name == "__setitem__" or name[-1:] == "_" and name[-2:] != "__"


def _as_plain(value):
    if type(value) is StateValue:
        return _plain(Tensor.as_subclass, (value, Tensor), {})
    if type(value) in (tuple, list):
        return type(value)(map(_as_plain, value))
    return value


# ------------------------------------------------------------------------------------------------ lookups
def look_up(table: Tensor, index: Any) -> Lookup | None:
    """table[index] where the index is states, and maybe data, for the first dimensions of the table; None for anything else."""
    index = index if isinstance(index, tuple) else (index,)
    while index and isinstance(index[-1], slice) and index[-1] == slice(None):
        index = index[:-1]
    if isinstance(table, Timed) or len(index) > table.dim() or not all(isinstance(i, Tensor) for i in index):
        return None
    memo = next(one.memo for one in index if type(one) is StateValue)
    entries, key, lasting = [], [id(table), _version(table), torch.is_grad_enabled()], True
    last = index[-1]
    if len(index) == table.dim() > 1 and type(last) is Tensor and _counts(last, table.shape[-1], memo):
        # a last index that takes all there is, as that of a plate: the same as none
        if all(one.dim() == 0 or one.shape[-1] == 1 for one in index[:-1]):
            index = tuple(one.squeeze(-1) if one.dim() else one for one in index[:-1])
    for one in index:
        if one.dtype is not torch.int64:
            return None
        dim = None
        if type(one) is StateValue:
            plain = _without_states(one)
            if _version(plain) != one.version:
                return None  # changed in place
            shape = plain.shape
            key.append(shape)
            if len(shape) and one.num_states > 1:
                dim = next(d for d in range(-1, -1 - len(shape), -1) if shape[d] > 1)
                if shape[dim] != one.num_states or shape[dim] > table.shape[len(entries)]:
                    return None
            one = plain
        else:
            lasting = False
        entries.append((one, dim))
    found = memo.get(tuple(key)) if lasting else None
    if found is None:
        # copies, as indexing would make, of what may change in place before it is used
        copied = tuple(Entry(one.clone(), dim) for one, dim in entries)
        found = Lookup.of(_copy(table, memo), copied, memo)
        if lasting:
            memo[tuple(key)] = found
    return found


def _copy(table: Tensor, memo: Memo) -> Tensor:
    key = "copy", id(table), _version(table), torch.is_grad_enabled()
    if key not in memo:
        memo[key] = (table if torch.is_grad_enabled() else table.detach()).clone(), table
    return memo[key][0]


def _counts(index: Tensor, size: int, memo: Memo) -> bool:
    """Whether an index is 0, .., size - 1 along its last dimension."""
    if index.numel() != size or index.dim() == 0 or index.shape[-1] != size or index.dtype is not torch.int64:
        return False
    key = "counts", id(index), _version(index)
    if key not in memo:
        memo[key] = torch.equal(index.reshape(-1), torch.arange(size, device=index.device)), index
    return memo[key][0]


class _Connect(torch.autograd.Function):
    """Ties a lookup to its table, for code that asks for gradients of it."""

    @staticmethod
    def forward(ctx, table, index, lead, made):
        ctx.index, ctx.lead, ctx.like = index, lead, table.shape
        return made()

    @staticmethod
    def backward(ctx, *grads):
        grad = grads[0]
        trail = grad.dim() - len(ctx.lead)
        lead = torch.broadcast_shapes(*(i.shape for i in ctx.index))
        grad = grad.sum_to_size(*lead, *grad.shape[grad.dim() - trail :])
        return grad.new_zeros(ctx.like).index_put(ctx.index, grad, accumulate=True), None, None, None


class Lookup(Tensor):
    """A table and where it is looked up: (*lead, *trail), of a table (one dimension an entry, *trail).

    Attributes:
        table: a tensor. entries: an :class:`Entry` for each of its first dimensions. lead: the shape that these broadcast to.
    """

    table: Tensor
    entries: tuple[Entry, ...]
    lead: torch.Size
    memo: Memo
    done: dict
    connected: bool  # whether gradients reach the table

    @staticmethod
    def of(table: Tensor, entries: tuple[Entry, ...], memo: Memo, lead: torch.Size | None = None) -> Lookup:
        index = tuple(entry.index for entry in entries)
        if lead is None:
            lead = _joint_shape([i.shape for i in index])
        shape = (*lead, *table.shape[len(entries) :])

        def made() -> Any:
            return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                Lookup, shape, dtype=table.dtype, device=table.device
            )

        connected = table.requires_grad and torch.is_grad_enabled() and not any(isinstance(i, Timed) for i in index)
        found: Any = _Connect.apply(table, index, lead, made) if connected else made()
        found.connected = connected
        found.table, found.entries, found.lead, found.memo, found.done = table, entries, lead, memo, {}
        return found

    @property
    def trail(self) -> int:
        """How many dimensions of the table are not looked up."""
        return self.table.dim() - len(self.entries)

    def check_unchanged(self) -> None:
        """Raises where the tensor was changed through a view of it."""
        found = self.done.get("value")
        if found is not None and _version(found) != self.done["version"]:
            raise RuntimeError(IN_PLACE)

    def value(self) -> Tensor:
        """The tensor itself."""
        self.check_unchanged()
        found = self.done.get("value")
        if found is None:
            if self.table.requires_grad and not self.connected and not torch.is_grad_enabled():
                raise TypeError(
                    "a function without gradients (no_grad, or an autograd function of one's own) on a table looked up at all "
                    "steps of a vectorised loop is not supported; write pplseq.markov(..., vectorize=False)"
                )
            found = self.table[tuple(entry.index for entry in self.entries)]
            found = found.expand(*self.lead, *self.table.shape[len(self.entries) :])
            if found.requires_grad == self.table.requires_grad:  # else it was asked for in the middle of an autograd function
                self.done["value"], self.done["version"] = found, _version(found)
                self.memo.made.append(self)
        return found

    def __repr__(self, *, tensor_contents=None) -> str:
        return repr(self.value())

    def __format__(self, spec: str) -> str:
        return format(self.value(), spec)

    __hash__ = Tensor.__hash__

    def at_step(self, step: int) -> Lookup:
        """Of a lookup at all steps of a loop: that of one."""
        entries = tuple(Entry(i.steps[step] if isinstance(i, Timed) else i, dim) for i, dim in self.entries)
        return Lookup.of(self.table, entries, self.memo, self.lead)

    def with_table(self, func, args, kwargs, table: Tensor, lead=None) -> Lookup:
        key = (func, id(table), *args, *map(type, args), *kwargs.items())  # 1 and 1.0 are equal, and give other types
        made = self.memo.get(key)
        if made is None:
            made = self.memo[key] = (func(table, *args, **kwargs), table)
        return Lookup.of(made[0], self.entries, self.memo, self.lead if lead is None else lead)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if _writes(name, args, kwargs):  # no TypeError, for which Python would compute p = p + 1 and leave other names of p
            raise RuntimeError(IN_PLACE)
        if name == "__get__" and getattr(func.__self__, "__name__", "") in _PROPERTIES or name in _METADATA:
            return _plain(func, args, kwargs)
        own = args[0] if args else None
        if name == "broadcast_tensors":
            found = _broadcast(args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args)
            if found is not None:
                return found
        elif type(own) is Lookup and (torch.is_grad_enabled() or not own.connected):  # else in an autograd function's forward
            found = _as_lookup(own, func, name.strip("_"), args[1:], kwargs)
            if found is not None:
                return found
        return func(*_values(args), **_values(kwargs))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*_values(args, True), **_values(kwargs or {}, True))


def _values(value, detached: bool = False) -> Any:
    if type(value) is Lookup:
        return value.value().detach() if detached else value.value()
    if type(value) is StateValue:
        return _without_states(value)
    if type(value) in (tuple, list):
        return type(value)(_values(item, detached) for item in value)
    if type(value) is dict:
        return {key: _values(item, detached) for key, item in value.items()}
    return value


def _as_lookup(own: Lookup, func, name: str, args: tuple, kwargs: dict):
    """What ``func(own, *args, **kwargs)`` is as a lookup (or, about the whole table, as a tensor); None if it is none."""
    if name == "is_all_true" or name == "all" and not args and not kwargs:
        found = func(own.table)
        return found if bool(found) else None  # what is not looked up does not count
    if name == "expand":
        return _expanded(own, args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args)
    if name not in _ELEMENTWISE and name not in _ALONG:
        return None
    if len(args) == 1 and type(args[0]) is Lookup and name in _ELEMENTWISE and not kwargs:
        other = args[0]
        if other.entries is not own.entries or other.trail != own.trail:
            return None
        key = (func, id(other))
        if key not in own.done:
            own.done[key] = (_pair(own, other, func), other)
        return own.done[key][0]
    if not all(isinstance(a, _NUMBERS) for a in (*args, *kwargs.values())):
        return None
    if name in _ALONG:
        dim = kwargs.get("dim", args[0] if args else None)
        if type(dim) is not int or not -own.trail <= dim < 0 or "dtype" in kwargs:
            return None
    key = (func, args, *map(type, args), *kwargs.items())
    if key not in own.done:
        own.done[key] = own.with_table(func, args, kwargs, own.table)
    return own.done[key]


def _pair(own: Lookup, other: Lookup, func) -> Lookup:
    lead = own.lead if own.lead == other.lead else _joint_shape([own.lead, other.lead])
    key = (func, id(own.table), id(other.table))
    made = own.memo.get(key)
    if made is None:
        made = own.memo[key] = (func(own.table, other.table), own.table, other.table)
    return Lookup.of(made[0], own.entries, own.memo, lead)


def _expanded(own: Lookup, shape) -> Lookup | None:
    shape = tuple(shape)
    if shape == own.shape:
        return own
    lead, trail = shape[: len(shape) - own.trail], shape[len(shape) - own.trail :]
    if trail != own.table.shape[len(own.entries) :] or -1 in lead or len(lead) < len(own.lead):
        return None
    if any(want != have and have != 1 for want, have in zip(lead[len(lead) - len(own.lead) :], own.lead, strict=True)):
        return None
    if shape not in own.done:
        own.done[shape] = Lookup.of(own.table, own.entries, own.memo, torch.Size(lead))
    return own.done[shape]


def _broadcast(tensors) -> tuple | None:
    if len(tensors) == 1:
        return tuple(tensors)
    if any(type(tensor) is Lookup and tensor.connected for tensor in tensors) and not torch.is_grad_enabled():
        return None  # in an autograd function's forward
    shape = _joint_shape([tensor.shape for tensor in tensors])
    return tuple(tensor.expand(shape) for tensor in tensors)
