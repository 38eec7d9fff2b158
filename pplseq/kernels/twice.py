"""Derivatives of every order, and ``torch.func``, for kernels whose fast backward is written by hand.

A hand-written backward gives numbers, no graph. Every such kernel has a twin in plain torch operations. Where a gradient is
to be differentiated again (``create_graph=True``: Hessians, Laplace approximations, gradient penalties), the backward is that
of the twin; inside of a ``torch.func`` transform the twin takes the kernel's place altogether. All else is the fast path.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]
from torch.autograd import forward_ad


def apply(fast: type[torch.autograd.Function], twin: Callable, *args):
    """``fast.apply(*args)``, or ``twin(*args)`` inside of a ``torch.func`` transform.

    Args:
        fast: a Function whose backward calls :func:`gradients` where a graph is wanted.
        twin: the same value from differentiable torch operations, without decisions that depend on values.

    Raises:
        NotImplementedError: under ``torch.jit.trace``, which would record one run's decisions as if they were the program.
    """
    refuse_jit()
    return twin(*args) if transformed() else fast.apply(*args)


def gradients(twin: Callable, args: tuple, grads: tuple | Tensor) -> tuple[Tensor | None, ...]:
    """What a backward returns for each argument of ``twin``, as a differentiable function of arguments and ``grads``.

    Args:
        twin: arguments -> a tensor, or a tuple of the differentiable outputs.
        args: of the forward; tensors as ``ctx.saved_tensors`` gives them, so that they hang on their own graphs.
        grads: of the outputs; None where there is none.
    """
    # views, as an argument may be a function of another one: its gradient is its own share only
    inputs = [v.view_as(v) if isinstance(v, Tensor) and v.requires_grad else v for v in args]
    wanted = [k for k, v in enumerate(inputs) if isinstance(v, Tensor) and v.requires_grad]
    outputs = twin(*inputs)
    pairs = zip(*(v if isinstance(v, tuple) else (v,) for v in (outputs, grads)), strict=True)
    given = [(out, grad) for out, grad in pairs if grad is not None and out.requires_grad]
    result: list[Tensor | None] = [None] * len(args)
    if given and wanted:
        of, by = zip(*given, strict=True)
        found = torch.autograd.grad(of, [inputs[k] for k in wanted], by, create_graph=True, allow_unused=True)
        for k, grad in zip(wanted, found, strict=True):
            result[k] = grad
    return tuple(result)


def derivatives_wanted(*tensors: Tensor | None) -> bool:
    """Whether what is computed from these tensors may be differentiated: backwards, forwards or by a transform."""
    if forward_ad._current_level >= 0 or transformed():
        return True
    return torch.is_grad_enabled() and any([tensor.requires_grad for tensor in tensors if tensor is not None])


def transformed() -> bool:
    """Whether this runs inside of ``torch.func.grad``, ``vmap``, ``jvp`` and the like."""
    return peek_interpreter_stack() is not None


def holds(condition: Tensor) -> bool:
    """``bool(condition)`` of a check; False under ``torch.func.vmap``, where rows may differ and nothing can be asked."""
    if transformed():
        try:
            return bool(condition)
        except RuntimeError:
            return False
    return bool(condition)


def refuse_jit() -> None:
    """Raises under ``torch.jit.trace``."""
    if torch._C._get_tracing_state() is not None:
        raise NotImplementedError(
            "torch.jit.trace (Pyro's JitTrace_ELBO and jit_compile=True) records one run's decisions, which here depend on the "
            "data; use the same objective without JIT: TraceBlockedEnum_ELBO, TraceKalman_ELBO, jit_compile=False"
        )
