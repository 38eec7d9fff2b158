"""Gaussian states as symbols: what a state site returns under ``KalmanCollapse``, and affine functions of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pplseq.distributions.timed import Timed

_SHAPE_ONLY = {"dim", "size", "__get__", "ndimension", "is_floating_point", "numel", "__len__", "stride", "is_complex"}

_VIEWS = {"T", "mT", "H", "mH", "data", "real", "imag"}  # properties that are values


class GaussianVar(Tensor):
    """``matrix @ x + offset``, where x is a hidden state: its chain and step are known, its value is not.

    The tensor itself holds the offset, so shapes, dtype and device are those of a value. Plain tensor code may multiply it
    by matrices, add constants, scale and slice its last dimension and add affine functions of the same state; everything
    else raises TypeError.

    Attributes:
        chain: the recording that the state belongs to. step: which of its steps.
        matrix: (*b, n, h), or None for the identity. column: a trailing dimension of size one was added.
        scalar: the last dimension is gone (a number a row): matrix has one row.
        shift: the offset as the program gave it, None for zero, or False where it was computed. That of a step is the same
        tensor as that of the next one, where an offset that was computed anew can only be taken for another.
        timed: the offset where it differs between the steps of a vectorised loop; the tensor holds that of one step then.
    """

    chain: Any
    step: int
    matrix: Tensor | None
    column: bool
    scalar: bool
    shift: Tensor | bool | None
    timed: Timed | None

    @staticmethod
    def make(
        offset: Tensor, chain, step: int, matrix: Tensor | None = None, column=False, scalar=False, shift=None
    ) -> GaussianVar:
        timed = offset if isinstance(offset, Timed) else None
        var = (offset if timed is None else timed.steps[0]).as_subclass(GaussianVar)
        var.timed = timed
        var.chain, var.step, var.matrix, var.column, var.scalar = chain, step, matrix, column, scalar
        var.shift = shift
        return var

    @property
    def offset(self) -> Tensor:
        """The value where the state is zero, an ordinary tensor."""
        return _plain(self)

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"GaussianVar(site={self.chain.name!r}, step={self.step}, shape={tuple(self.shape)})"

    def __format__(self, spec: str) -> str:
        return repr(self)

    __hash__ = Tensor.__hash__

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", str(func))
        if name in _SHAPE_ONLY and getattr(getattr(func, "__self__", None), "__name__", "") not in _VIEWS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        # constructors of distributions check that a parameter equals itself; that is no question about its value
        if name in ("eq", "__eq__") and args[0] is args[1]:
            return torch.ones(args[0].shape, dtype=torch.bool, device=args[0].device)
        in_place = name.endswith("_") and not name.endswith("__")
        rule = None if in_place else _RULES.get(name.strip("_"))
        result = rule(func, *args, **(kwargs or {})) if rule is not None else NotImplemented
        if result is NotImplemented:
            raise TypeError(
                f"{name} of a hidden Gaussian state is not affine in the latent state (or not known to be); under "
                "KalmanCollapse a state may be multiplied by matrices (x @ A.T), scaled, sliced along its last dimension and "
                "added to constants. Its site can also be left out of the collapse and sampled"
            )
        return result


# Tensor's own operators turn a TypeError into NotImplemented: Python would make `x == 0` False, and name no reason
_OPERATORS = {
    "add": torch.add, "radd": torch.add, "sub": torch.sub, "rsub": torch.rsub, "mul": torch.mul, "rmul": torch.mul,
    "truediv": torch.div, "matmul": torch.matmul, "rmatmul": lambda var, other: torch.matmul(other, var),
    "rtruediv": lambda var, other: torch.reciprocal(var), "pow": torch.pow, "rpow": torch.pow, "eq": torch.eq,
    "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip
for _name, _function in _OPERATORS.items():
    setattr(GaussianVar, f"__{_name}__", lambda var, other, _function=_function: _function(var, other))
GaussianVar.__hash__ = Tensor.__hash__


def _plain(value):
    if not isinstance(value, GaussianVar):
        return value
    if value.timed is not None:
        return value.timed
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(Tensor)


def _like(var: GaussianVar, offset: Tensor, matrix: Tensor | None, **changes) -> GaussianVar:
    flags = {"column": var.column, "scalar": var.scalar, "shift": None if var.shift is None else False} | changes
    return GaussianVar.make(offset, var.chain, var.step, matrix, **flags)


def full_matrix(var: GaussianVar) -> Tensor:
    """(*b, n, h) the matrix, the identity written out."""
    if var.matrix is None:
        return torch.eye(var.shape[-2] if var.column else var.shape[-1], dtype=var.dtype, device=var.device)
    return var.matrix


def compose(left: Tensor, var: GaussianVar) -> Tensor:
    """left @ matrix, without a product where the matrix is the identity."""
    return left if var.matrix is None else left @ var.matrix


def _matmul(func, left, right):
    if isinstance(left, GaussianVar) and isinstance(right, GaussianVar):
        return NotImplemented
    if isinstance(left, GaussianVar):
        if left.column or left.scalar:
            return NotImplemented
        offset = _plain(left) @ right
        if right.dim() == 1:
            return _like(left, offset, compose(right.unsqueeze(0), left), scalar=True)
        transposed = right.mT if right.dim() == 2 else right.mT.unsqueeze(-3)  # x's last but one dimension are rows
        return _like(left, offset, compose(transposed, left))
    if right.column or right.dim() == 1 and not right.scalar:
        if left.dim() == 1:
            return NotImplemented
        return _like(right, left @ _plain(right), compose(left, right))
    return NotImplemented


def _linear(func, input, weight, bias=None):
    if not isinstance(input, GaussianVar) or isinstance(weight, GaussianVar) or input.column or input.scalar:
        return NotImplemented
    shift = bias if input.shift is None else False
    return _like(input, torch.nn.functional.linear(_plain(input), weight, bias), compose(weight, input), shift=shift)


def _add(func, left, right, *, alpha=1):
    if not isinstance(right, GaussianVar):
        offset = func(_plain(left), right, alpha=alpha) if alpha != 1 else func(_plain(left), right)
        added = alpha == 1 and "sub" not in func.__name__
        return _like(left, offset, left.matrix, shift=_added(left, right) if added else False)
    if not isinstance(left, GaussianVar):
        sign = -1 if "sub" in func.__name__ else 1
        matrix = right.matrix if sign * alpha == 1 else sign * alpha * full_matrix(right)
        if "rsub" in func.__name__:
            return NotImplemented
        return _like(right, torch.add(left, _plain(right), alpha=sign * alpha), matrix, shift=_added(right, left))
    if (
        right.chain is not left.chain
        or right.step != left.step
        or (left.column, left.scalar) != (right.column, right.scalar)
    ):
        return NotImplemented  # of two different states
    sign = alpha * (-1 if "sub" in func.__name__ else 1)
    offset, matrix = torch.add(_plain(left), _plain(right), alpha=sign), full_matrix(left) + sign * full_matrix(right)
    return _like(left, offset, matrix, shift=None if left.shift is None and right.shift is None else False)


def _added(var: GaussianVar, constant) -> Tensor | bool:
    """The shift of a symbol to which a constant was added."""
    whole = torch.is_tensor(constant) and constant.shape[-1:] == var.shape[-1:] and not (var.column or var.scalar)
    return constant if var.shift is None and whole else False


def _rsub(func, left, right):
    """right - left, where left is the symbol."""
    if isinstance(right, GaussianVar):
        return NotImplemented
    return _like(left, right - _plain(left), -full_matrix(left), shift=_added(left, right))


def _neg(func, var):
    return _like(var, -_plain(var), -full_matrix(var))


def _scale(func, left, right):
    var, factor = (left, right) if isinstance(left, GaussianVar) else (right, left)
    divided = "div" in func.__name__
    if isinstance(factor, GaussianVar) or divided and var is right:
        return NotImplemented
    if divided:
        factor = 1 / factor
    matrix = full_matrix(var)
    if torch.is_tensor(factor) and factor.dim() > 0:
        if var.column:
            return NotImplemented
        by_row = factor.unsqueeze(-1)
        matrix = (by_row.unsqueeze(-1) if var.scalar else by_row) * matrix
    else:
        matrix = factor * matrix
    return _like(var, _plain(var) * factor, matrix)


def _sum(func, var, dim=None, keepdim=False):
    last = dim in (-1, [-1], (-1,))
    if not last or keepdim or var.column or var.scalar:
        return NotImplemented
    return _like(var, _plain(var).sum(-1), full_matrix(var).sum(-2, keepdim=True), scalar=True)


def _getitem(func, var, index):
    index = index if isinstance(index, tuple) else (index,)
    only_last = index[0] is Ellipsis and len(index) == 2 or len(index) == var.dim() and all(
        i == slice(None) for i in index[:-1]
    )  # fmt: skip
    if not only_last or var.column or var.scalar or not isinstance(index[-1], (slice, int)):
        return NotImplemented
    last, matrix = index[-1], full_matrix(var)
    if isinstance(last, int):
        rows = slice(last, last + 1 or None)
        return _like(var, _plain(var)[..., last], matrix[..., rows, :], scalar=True)
    return _like(var, _plain(var)[..., last], matrix[..., last, :])


def _expand(func, var, *sizes):
    return _like(var, func(_plain(var), *sizes), var.matrix, shift=var.shift)


def _same(func, var, *args, **kwargs):
    return _like(var, func(_plain(var), *args, **kwargs), var.matrix, shift=var.shift)


def _unsqueeze(func, var, dim):
    if dim in (-1, var.dim()):
        return (
            NotImplemented
            if var.column or var.scalar
            else _like(var, _plain(var).unsqueeze(-1), var.matrix, column=True)
        )
    if var.matrix is not None and var.matrix.dim() > 2:
        return NotImplemented
    return _like(var, _plain(var).unsqueeze(dim), var.matrix)


def _squeeze(func, var, dim=None):
    if dim == -1 and var.column:
        return _like(var, _plain(var).squeeze(-1), var.matrix, column=False)
    return NotImplemented


def _broadcast(func, *tensors):
    tensors = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    full = torch.broadcast_tensors(*(_plain(t) for t in tensors))
    pairs = zip(tensors, full, strict=True)
    return tuple(_like(t, f, t.matrix, shift=t.shift) if isinstance(t, GaussianVar) else f for t, f in pairs)


_RULES = {
    "matmul": _matmul, "rmatmul": lambda func, var, left: _matmul(func, left, var), "mv": _matmul, "mm": _matmul,
    "linear": _linear, "add": _add, "radd": _add, "sub": _add, "subtract": _add, "rsub": _rsub, "neg": _neg,
    "negative": _neg, "mul": _scale, "multiply": _scale, "rmul": _scale, "div": _scale, "truediv": _scale, "sum": _sum,
    "getitem": _getitem, "expand": _expand, "unsqueeze": _unsqueeze, "squeeze": _squeeze, "clone": _same,
    "contiguous": _same, "broadcast_tensors": _broadcast,
}  # fmt: skip
