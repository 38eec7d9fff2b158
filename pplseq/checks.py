"""Arguments checked in one place: errors say the argument's name, what was expected, and what came instead.

The ground of the house: this file knows no room, and imports torch only when it meets a tensor. TypeError is for what is of
another kind than expected, ValueError for a value that is out of range.

Example::

    from pplseq import checks

    self.num_states = checks.count("num_states", num_states)
    checks.choice("covariance", covariance, COVARIANCES)
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import MISSING, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


LARGEST = sys.float_info.max
MOST = 1 << 63  # whole numbers that a tensor can hold are below


def machine_memory() -> int | None:
    """Bytes of memory that this machine has; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


# ------------------------------------------------------------------------------------------------ whether to look
TRUSTED: ContextVar[bool] = ContextVar("trusted", default=False)  # whether this is inside `trusted`
WHOLE: ContextVar[bool] = ContextVar("every observation is there", default=False)


@contextlib.contextmanager
def trusted() -> Iterator[None]:
    """A block in which programs, and Pyro where it runs them, take the numbers inside tensors as they are.

    For loops that looked at their data before: on a GPU every look waits for the device. Pyro's own switch, that of all
    threads, says nothing about the checks of programs, so that whoever turns it off is still told of data that a model cannot
    take.
    """
    token = TRUSTED.set(True)
    try:
        yield
    finally:
        TRUSTED.reset(token)


@contextlib.contextmanager
def whole_text() -> Iterator[None]:
    """A block in which whoever calls knows that every observation is there and known to the model, as in an encoded text.

    What follows from that (no gaps, no unseen reset word, no impossible word id) is then not asked of the tensors.
    """
    token = WHOLE.set(True)
    try:
        yield
    finally:
        WHOLE.reset(token)


@functools.cache
def signature(function: Callable) -> inspect.Signature:
    """That of a function or class, looked up once: it takes longer than a small answer."""
    return inspect.signature(function)


class NotFittedError(RuntimeError):
    """A model was asked before it had learned anything."""


# ------------------------------------------------------------------------------------------------ numbers and names
def shown(value: Any, size: int = 60) -> str:
    """A value as an error writes it, on one line and cut short: of arrays, tensors and frames what they are."""
    dims: Any = getattr(value, "shape", None)
    is_array = hasattr(dims, "__len__")
    if is_array and len(dims):
        return f"a {type(value).__name__} of shape {tuple(dims)}"
    is_text = isinstance(value, (str, bytes))
    if not is_array and not is_text and hasattr(value, "__len__") and len(value) > size:  # nothing of it is written out
        return f"a {type(value).__name__} of length {len(value)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= size else f"{text[: size - 3]}..."


def count(name: str, value: Any, least: int = 1) -> int:
    """The value as an int: a whole number of at least ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {shown(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {shown(value)}")
    if int(value) >= MOST:
        raise ValueError(f"{name} must be below 2^63, got {shown(value)}")
    return int(value)


def seed(name: str, value: Any) -> int:
    """The value as an int from which random numbers are drawn: 0 or more."""
    return count(name, value, 0)


def is_path(what: str, value: Any) -> None:
    """Raises TypeError for what names no file or folder: ``what`` was expected."""
    if not isinstance(value, (str, os.PathLike)):
        in_memory = "; data in memory go to fit as they are" if isinstance(value, (list, tuple)) else ""
        raise TypeError(f"expected the name of {what}, got {shown(value)}{in_memory}")


def steps_ahead(x: Any, num_steps: Any) -> int:
    """How far a forecast of x goes: a count, which stands behind the data."""
    if num_steps is None:
        got = f"got {x} as the data, and no number" if isinstance(x, Integral) else "got None"
        raise TypeError(f"num_steps must be given, behind the data that it goes on from: forecast(x, 12); {got}")
    if isinstance(x, Integral) and not isinstance(num_steps, Integral):
        raise TypeError(f"x, num_steps: the data come first; write forecast(x, {x}), got {x} and {shown(num_steps)}")
    return count("num_steps", num_steps)


def no_sequences(name: str, value: Any) -> TypeError:
    """The error about what is no data; says what to do with a path, or with one sentence."""
    if value is None:
        got = "None; give the data"
    elif isinstance(value, (str, os.PathLike)):
        got = (
            f"the {'text' if isinstance(value, str) else 'path'} {str(value)[:60]!r}; read a file first, a table by "
            f"pandas.read_csv(path)[columns], text by pplseq.load_corpus(path); of one sentence write [{name}]"
        )
    else:
        got = type(value).__name__
    return TypeError(f"{name} must be a list of sequences, an array, a tensor or a frame, got {got}")


def number(name: str, value: Any) -> float:
    """The value, a number that is not NaN."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {shown(value)}")
    size: Any = abs(value)
    if size > LARGEST and value not in (math.inf, -math.inf):
        raise ValueError(f"{name} must be a number of at most 1.8e308, got {shown(value)}")
    if math.isnan(value):
        raise ValueError(f"{name} must be a number, got NaN")
    if isinstance(value, Integral) and size >= MOST:  # tensors take no such whole number
        return float(value)
    return value  # type: ignore[return-value]  # as it came: it may be written into a file


def flag(name: str, value: Any) -> bool:
    """The value as True or False."""
    try:
        return bool(value)
    except Exception:  # of arrays, tensors and frames each their own
        raise TypeError(f"{name} must be True or False, got {shown(value)}") from None


def function(name: str, value: Any, of: str) -> None:
    """Raises TypeError for what is neither None nor a function of what is said."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function of {of}, got {shown(value)}")


def positive(name: str, value: Any, *, zero: bool = False) -> float:
    """The value, a number above zero; with ``zero``, or zero."""
    if number(name, value) < 0 or (not zero and value == 0):
        raise ValueError(f"{name} must be {'0 or more' if zero else 'positive'}, got {value}")
    return value


def share(name: str, value: Any, interval: str = "[0, 1]") -> float:
    """The value, a number in an interval, written as in mathematics: "[0, 1)" is 0 <= value < 1."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    value = number(name, value)
    if not low <= value <= high or (value == low and interval[0] == "(") or (value == high and interval[-1] == ")"):
        raise ValueError(f"{name} must lie in {interval}, got {value}")
    return value


def choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """The value, one of the choices."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        close = difflib.get_close_matches(str(value), known, n=1, cutoff=0.5)
        hint = f". Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{name} must be one of {', '.join(known)}; got {shown(value)}{hint}")
    return value


def nearest(word: str, words: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or the list of what there is: the end of a message about an unknown name."""
    words = list(words)
    return similar(word, words) or f" There are: {', '.join(words)}"


def similar(word: str, words: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing where no word is near."""
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def parameters_of(model: Any, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError where a name is none of a model's parameters; says which these are."""
    known = list(known)
    for name in given:
        if name not in known:
            raise TypeError(f"{type(model).__name__} has no parameter {shown(name)}.{nearest(name, known)}")


def no_bounds(whose: str, options: Iterable[str], instead: str) -> None:
    """Raises ValueError where bounds are asked of a model that cannot keep them; says what to do instead."""
    if "bounds" in options:
        raise ValueError(
            f"bounds: {whose} takes none, as what it learns are weights that make its probabilities, means and variances "
            f"together, no number for itself; {instead}"
        )


SCALARS = {"bool", "int", "float", "str", "None"}


class NamedArguments:
    """A base of classes whose constructors and ``set_parameters``, for a misspelt argument, name the nearest that they take."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        method = vars(cls).get("set_parameters")
        if method is None:
            return
        parameters = inspect.signature(method).parameters
        if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
            known = list(parameters)[1:]

            @functools.wraps(method)
            def checked(self, *args: Any, **given: Any):
                parameters_of(self, given, known)
                return method(self, *args, **given)

            setattr(cls, "set_parameters", checked)  # noqa: B010  (a type checker sees the method as it was written)

    def __new__(cls, *args: Any, **given: Any):
        parameters = signature(cls.__init__).parameters
        for name, value in (*zip(list(parameters)[1:], args, strict=False), *given.items()):
            hint = str(parameters[name].annotation) if name in parameters else ""
            if set(hint.split(" | ")) <= SCALARS and getattr(value, "shape", ()) and not isinstance(value, str):
                raise TypeError(f"{name} must be {hint}, got {shown(value)}")
        known: list[str] = []
        for base in cls.__mro__[:-1]:
            if "__init__" not in vars(base):
                continue
            parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
            known += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
            if all(p.kind is not p.VAR_KEYWORD for p in parameters):  # else some go on to the next class, or elsewhere
                for name in given:
                    if name not in known:
                        raise TypeError(f"{cls.__name__} has no argument {name!r}.{nearest(name, known)}")
                break
        return super().__new__(cls)


# ------------------------------------------------------------------------------------------------ tensors and arrays
def device(name: Any) -> Any:
    """The named device, which is there; "auto" is a GPU if there is one.

    Raises:
        ValueError: for a name of no device, and for CUDA where there is none.
    """
    import torch

    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:NUMBER, got {name!r}") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {str(name)!r}: this machine or this build of torch has no CUDA; use cpu")
    return found


def not_masked(name: str, value: Any) -> None:
    """Raises ValueError for a masked array of numpy, or a list with one, that hides values: tensors would bare them."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    if any(hasattr(part, "filled") and hasattr(part, "mask") and part.mask.any() for part in parts):
        raise ValueError(f"{name}: some of its values are masked, and all must be there; give them by {name}.filled(...)")


def finite(name: str, value: Any, hint: str = "check how it is computed") -> Any:
    """The value, a number, array or tensor without NaN and infinity."""
    is_finite = abs(value) < math.inf  # False for NaN
    if not bool(is_finite.all() if hasattr(is_finite, "all") else is_finite):
        raise ValueError(f"{name} must be finite, got NaN or infinity; {hint}")
    return value


def surely_finite(value: Tensor) -> bool:
    """Whether no number is NaN or infinite, by their sum: one pass; False where the sum alone is too large, too."""
    return math.isfinite(float(value.detach().sum()))


def shape(name: str, value: Any, expected: Sequence[int]) -> Any:
    """The value, an array or tensor of this shape."""
    if not hasattr(value, "shape"):
        raise TypeError(f"{name} must be an array or tensor of shape {tuple(expected)}, got {type(value).__name__}")
    if tuple(value.shape) != tuple(expected):
        raise ValueError(f"{name} must have shape {tuple(expected)}, got {tuple(value.shape)}")
    return value


def is_masked_tensor(value: Any) -> bool:
    """Whether a value is a ``torch.masked.MaskedTensor``."""
    return type(value).__name__ == "MaskedTensor" and hasattr(value, "get_mask")


def dense(name: str, value: Tensor) -> Tensor:
    """The tensor, whose numbers are there to be read: no sparse one, no masked one, and none on the device "meta"."""
    import torch

    if is_masked_tensor(value):
        raise TypeError(f"{name}: got a MaskedTensor of shape {tuple(value.shape)}; give its numbers, ....to_tensor(...)")
    is_meta = value.is_meta and type(value) in (torch.Tensor, torch.nn.Parameter)  # a subclass may have numbers elsewhere
    if value.layout is not torch.strided or is_meta:
        kind = "on the device meta" if is_meta else "sparse"
        raise TypeError(f"{name} must be an array or a dense tensor, got {shown(value)}, which is {kind}; give its numbers")
    return value


def for_torch(x: Any) -> Any:
    """x, as a copy where it is an array that torch does not share: read-only, read backward, or of another byte order."""
    import numpy as np

    if isinstance(x, np.ndarray) and not (x.flags.writeable and x.dtype.isnative and min(x.strides, default=0) >= 0):
        return x.astype(x.dtype.newbyteorder("="))
    return x


def numbers(name: str, x: Any) -> Tensor:
    """x as a tensor whose numbers are there; a tensor stays as it is, an array shares its memory.

    Raises:
        TypeError: it holds no numbers, or is sparse, or on the device "meta", which holds none.
    """
    import numpy as np
    import torch

    if isinstance(x, torch.Tensor):
        return dense(name, x)
    try:
        return torch.as_tensor(for_torch(np.asarray(x)))
    except Exception:  # numpy and torch raise many kinds
        raise TypeError(f"{name} must hold numbers, got {shown(x)}") from None


def words(x: Any, num_words: int) -> None:
    """Raises unless x is a tensor (B, T) of word ids in [0, V), -1 where a word is missing."""
    import torch

    if not isinstance(x, torch.Tensor) or x.dim() != 2 or x.dtype not in (torch.int64, torch.int32):
        what = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
        todo = "encode text with the vocabulary"
        if isinstance(x, torch.Tensor) and x.dim() == 1:
            todo = "write x[None] for one sequence; of several in a row make a list, such as x.split(lengths)"
        raise TypeError(f"x must be an integer tensor (B, T) of word ids, got {what}; {todo}")
    if 0 in x.shape:
        raise ValueError(f"x must hold at least one row and one step, got shape {tuple(x.shape)}")
    low, high = (int(v) for v in x.aminmax())
    if low < -1 or high >= num_words:
        raise ValueError(f"x must hold ids 0..{num_words - 1}, or -1 for a missing word; got {low}..{high}")


def lengths(lengths: Tensor | None, x: Tensor) -> None:
    """Raises unless lengths is None or (B,) integers in 0..T."""
    import torch

    if lengths is None:
        return
    if not isinstance(lengths, torch.Tensor) or lengths.shape != x.shape[:1]:
        what = tuple(lengths.shape) if isinstance(lengths, torch.Tensor) else type(lengths).__name__
        raise ValueError(f"lengths must be a tensor of shape (B,) = ({x.shape[0]},), got {what}")
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths must hold integers, got {lengths.dtype}")
    if len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= x.shape[1]:
        raise ValueError(f"lengths must lie in 0..{x.shape[1]} (the steps of x), got {shown(lengths.tolist())}")


def start(start: Any, num_rows: int, num_states: int) -> None:
    """Raises unless start is None or a ``Belief`` of as many rows over states 0..Z-1."""
    if start is None:
        return
    if not hasattr(start, "log_probs"):
        raise TypeError(f"start must be a Belief (what chain.filtered() returns) or None, got {type(start).__name__}")
    if tuple(start.shape) != (num_rows,):
        raise ValueError(
            f"start must have one row for each of the {num_rows} rows of x, got shape {tuple(start.shape)}"
        )
    top = start.log_probs.shape[-1] - 1 if start.ids is None else int(start.ids.max())
    if top >= num_states:
        raise ValueError(f"start: state {top} is not in 0..{num_states - 1}; the belief comes from another model")


def gaussian_start(start: Any, num_rows: int, num_states: int) -> None:
    """Raises unless start is None or a ``GaussianBelief`` of as many rows over h = num_states dimensions."""
    if start is None:
        return
    if not hasattr(start, "covariance"):
        raise TypeError(
            f"start must be a GaussianBelief (what chain.filtered() returns) or None, got {type(start).__name__}"
        )
    h = num_states
    if start.mean.shape != (num_rows, h) or start.covariance.shape not in ((h, h), (num_rows, h, h)):
        raise ValueError(
            f"start must have a mean (B, h) = {(num_rows, h)} and a covariance (h, h) or (B, h, h), got "
            f"{tuple(start.mean.shape)} and {tuple(start.covariance.shape)}"
        )


def states(states: Any, x: Tensor, num_states: int) -> None:
    """Raises unless states is None or (B, T) state ids below Z, negative where unknown."""
    import torch

    if states is None:
        return
    if not isinstance(states, torch.Tensor) or states.is_floating_point():
        what = states.dtype if isinstance(states, torch.Tensor) else type(states).__name__
        raise TypeError(f"states must be an integer tensor (B, T), got {what}")
    if states.shape != x.shape[:2]:
        raise ValueError(f"states must have shape {tuple(x.shape[:2])}, got {tuple(states.shape)}")
    if states.numel() and int(states.max()) >= num_states:
        raise ValueError(
            f"states must have shape {tuple(x.shape[:2])} and ids below {num_states}, negative where unknown; got shape "
            f"{tuple(states.shape)} and ids up to {int(states.max())}"
        )


def fits(name: str, num_bytes: float, hint: str) -> None:
    """Raises ValueError, before anything is allocated, for what this machine's memory cannot hold."""
    there = machine_memory()
    if there is not None and num_bytes > there:
        raise ValueError(
            f"{name}: this takes {num_bytes / 1e9:,.0f} GB of memory, and this machine has {there / 1e9:,.0f} GB; {hint}"
        )


def padding(valid: Tensor) -> None:
    """Raises unless the valid steps of each row, (T, *B) of bool, come first."""
    if bool((~valid[:-1] & valid[1:]).any()):
        raise ValueError(
            "valid: padding must come behind each row (a mask of a prefix of its steps); for a missing observation mask the "
            "observation site only"
        )


def limit(name: str, default: float) -> float:
    """A limit that the environment variable `name` may raise; ValueError where it holds no positive number."""
    told = os.environ.get(name, "")
    try:
        value = float(told or default)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise ValueError(f"{name}: expected a positive number in the environment variable, got {shown(told)}")
    return value


# ------------------------------------------------------------------------------------------------ fields of settings
def setting(
    default: Any,
    *,
    flag: str = "",
    free: bool = False,
    repeat: bool = False,
    check: Callable[[str, Any], Any] | None = None,
) -> Any:
    """A field with more to say than its type, its default and its line in the docstring.

    Args:
        default: its value where none is given; ... for a field that must be given.
        flag: how the command line writes it, where that is not ``--its-name`` or ``--its-name/--no-its-name``.
        free: may be given anew when a run is resumed.
        repeat: a tuple whose values are given one by one, by a flag that is repeated.
        check: called with (name, value) for a value that is not None, of a tuple for each; raises for one that is out of range.
    """
    metadata = {"flag": flag, "free": free, "repeat": repeat, "check": check}
    return field(default=MISSING if default is ... else default, metadata=metadata)
