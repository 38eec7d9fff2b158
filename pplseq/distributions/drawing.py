"""Random numbers of one call: from a generator of its own, which no other thread draws from.

Distributions of torch, Pyro and users take no generator; they draw from the one of the whole process. So a seeded block is a
mode of torch, of this thread alone, that hands its own generator to whatever draws: the same numbers as after
``torch.manual_seed(seed)``, and the process's generator is neither read nor set. Processes that are forked in it draw from
their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from typing import Any

import pyro.util
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from pplseq import checks, threads

CPU = torch.device("cpu")
RANDOM = frozenset(
    """rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial poisson binomial
    _standard_gamma _sample_dirichlet bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_
    kaiming_normal_ kaiming_uniform_""".split()
)
# these take none, in whatever they call: they borrow torch's, one at a time
WITHOUT = frozenset(
    """alpha_dropout dropout1d dropout2d dropout3d feature_alpha_dropout gru gumbel_softmax lstm multi_head_attention_forward
    pca_lowrank rnn_relu rnn_tanh rrelu scaled_dot_product_attention svd_lowrank""".split()
)


DRAWING = RANDOM | WITHOUT | {"dropout"}


class _Draws(TorchFunctionMode):
    """Gives generators, one a device, to the functions of torch that draw."""

    def __init__(self, seed: int):
        super().__init__()
        self.seed, self.process, self.generators = seed, os.getpid(), dict[torch.device, torch.Generator]()
        self.tokens: list[Token] = []
        self.generator(CPU)

    def generator(self, device: torch.device) -> torch.Generator:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self.generators[device]

    def __enter__(self) -> _Draws:
        self.tokens.append(_OPEN.set((*_OPEN.get(), self)))
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        _OPEN.reset(self.tokens.pop())
        if self in _get_current_function_mode_stack()[-1:]:  # Ctrl-C may have found it put aside
            super().__exit__(*raised)

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", None)
        if name not in DRAWING or self not in _OPEN.get() or self.process != os.getpid() or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        device = _device_of(args, kwargs)
        if device.type == "meta":  # where there are no numbers
            return func(*args, **kwargs)
        if name in RANDOM:
            return func(*args, **kwargs | {"generator": self.generator(device)})
        if func is functional.dropout:
            return self._dropout(*args, **kwargs)
        own = self.generator(device)
        with threads.LOCK, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            _set_torchs_state(device, own.get_state())
            found = func(*args, **kwargs)
            own.set_state(_torchs_state(device))
        return found

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or not 0 < p < 1:
            return functional.dropout(input, p, training, inplace)
        # not in place, where torch.vmap draws nothing for an input that all have in common
        keep = torch.bernoulli(input.detach(), 1 - p, generator=self.generator(input.device)).div_(1 - p)
        return input.mul_(keep) if inplace else input * keep


def _device_of(args: Any, kwargs: dict[str, Any]) -> torch.device:
    """Where a function of torch draws."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    given = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
    return torch.get_default_device() if given is None else given.device


# those that this thread is in: a mode that is not among them, as Ctrl-C may leave one, does nothing
_OPEN: ContextVar[tuple[_Draws, ...]] = ContextVar("draws with generators of their own", default=())


def seeded(seed: int | None) -> AbstractContextManager[Any]:
    """A block whose random numbers a seed fixes, whatever other threads draw; entered again it goes on where it was. For None
    the numbers are those of the block around it, or of torch's generator.

    Raises:
        TypeError, ValueError: for what is no seed.
    """
    return nullcontext() if seed is None else _Draws(checks.seed("seed", seed))


@contextmanager
def undrawn(model: Any = None) -> Iterator[None]:
    """A block, or a function, in which nothing is drawn, so that nobody has to look at every operation of torch: where an
    iteration takes a thousandth of a second, the mode would cost a third of it.

    What is drawn after all stands in :func:`drawn`.

    Args:
        model: whose code runs in it; of classes from elsewhere nobody knows whether they draw. None: only this library's.
    """
    put_aside: list[_Draws] = []
    try:
        if _OPEN.get() and (model is None or type(model).__module__.startswith("pplseq.")):
            while isinstance((_get_current_function_mode_stack() or [None])[-1], _Draws):
                put_aside.append(_pop_mode())  # pyright: ignore[reportArgumentType]
        yield
    except GeneratorExit:  # Ctrl-C came before this block's end was reached: later, when all is as it was, this is collected
        put_aside.clear()
        raise
    finally:
        while put_aside:
            _push_mode(put_aside.pop())


@contextmanager
def drawn() -> Iterator[None]:
    """A block, or a function, that draws inside of :func:`undrawn`."""
    draws = _OPEN.get()
    if not draws or draws[-1] in _get_current_function_mode_stack():
        yield
        return
    _push_mode(draws[-1])
    try:
        yield
    except GeneratorExit:  # as above
        raise
    except BaseException:
        _pop_mode()
        raise
    _pop_mode()


def generator_of(device: torch.device) -> torch.Generator | None:
    """What this thread draws from on a device; None for torch's own."""
    draws = _OPEN.get()
    return draws[-1].generator(device) if draws else None


def random_state(device: torch.device) -> Tensor:
    """The state of the generator that this thread draws from on a device."""
    draws = _OPEN.get()
    return draws[-1].generator(device).get_state() if draws else _torchs_state(device)


def set_random_state(device: torch.device, state: Tensor) -> None:
    """Puts the generator that this thread draws from where it was."""
    if draws := _OPEN.get():
        draws[-1].generator(device).set_state(state)
    else:
        _set_torchs_state(device, state)


def generators() -> Any:
    """Where all stand that a program may draw from: those of this thread, or torch's, and those of numpy and ``random``."""
    return pyro.util.get_rng_state(), [(own, own.get_state()) for draws in _OPEN.get() for own in draws.generators.values()]


def rewind(state: Any) -> None:
    """Puts what a program may draw from where it was."""
    process, own = state
    if own:  # torch's is for other threads
        process = process | {"torch": torch.get_rng_state()}
    pyro.util.set_rng_state(process)
    for generator, was in own:
        generator.set_state(was)


def _torchs_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_torchs_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
