"""What an input-output HMM is asked to be: its options checked, its networks made."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch
from torch import nn

from pplseq import checks
from pplseq.models.iohmm.data import PARTS
from pplseq.models.iohmm.embeddings import EmbeddedNetwork, Embeddings
from pplseq.models.iohmm.networks import (
    ConstantNetwork,
    LayeredNetwork,
    LinearNetwork,
    ModuleNetwork,
    Network,
    TableNetwork,
)
from pplseq.models.parts.named_families import DRIVEN
from pplseq.models.parts.responses import ResponseColumns

PerPart = int | Mapping[str, int] | None
Sources = dict[str, tuple[str, int] | None]


def input_sources(initial: str, mealy: bool, num_inputs: PerPart, num_symbols: PerPart) -> Sources:
    """What each part sees besides the state: ("vectors", U), ("symbols", L) or None."""
    vectors = per_part("num_inputs", num_inputs, Integral)
    symbols = per_part("num_symbols", num_symbols, Integral)
    if not vectors and not symbols:
        raise ValueError("num_inputs, num_symbols: give the size of the inputs, num_inputs=0 for none")
    both = [part for part in PARTS if part in vectors and part in symbols]
    if both:
        raise ValueError(f"num_inputs, num_symbols: {both[0]!r} has both; a part sees vectors or symbols")
    sources: Sources = {part: ("vectors", int(size)) for part, size in vectors.items()}
    sources |= {part: ("symbols", int(size)) for part, size in symbols.items()}
    sees = {"initial": initial == "inputs", "transition": True, "emission": mealy}
    options = {"initial": "initial='inputs'", "emission": "mealy=True"}
    for name, value in (("num_inputs", num_inputs), ("num_symbols", num_symbols)):
        for part in value if isinstance(value, Mapping) else ():
            if part not in sees:
                raise ValueError(f"{name}: no part {checks.shown(part)}.{checks.nearest(str(part), sees)}")
            if not sees[part]:
                raise ValueError(f"{name}: the {part} part sees inputs only with {options[part]}")
    if initial == "stationary" and ("transition" in sources or not mealy):
        raise ValueError(
            "initial: with inputs that drive transitions no distribution is stationary; use 'constant', 'inputs' or "
            "'transition', or give inputs to outputs alone, as mealy=True, num_inputs={'emission': 2}"
        )
    for part, option in options.items():
        if sees[part] and part not in sources:
            raise ValueError(f"num_inputs, num_symbols: {option} needs the size of that part's inputs, {part!r}")
    return {part: sources.get(part) if sees[part] else None for part in PARTS}


def output_columns(outputs: Any, num_outputs: Any, links: Any, trials: int | None) -> ResponseColumns | None:
    """The columns of outputs that are generalised linear models, or None where they are of another kind.

    Raises:
        ValueError, TypeError: for what does not fit together; says what there is.
    """
    listed = isinstance(outputs, (list, tuple))
    if not listed and (outputs in ("gaussian", "states") or outputs in ("categorical", "bernoulli") and links is None):
        for name, value in (("links", links), ("trials", trials)):
            if value is not None:
                raise ValueError(
                    f"{name}: of {', '.join(DRIVEN)}, or of a list of those; {checks.shown(outputs)} outputs have none"
                )
        if isinstance(num_outputs, (list, tuple)):
            raise ValueError(
                f"outputs: expected a list of families, one for each column of num_outputs={list(num_outputs)}, as those of "
                f"formulas: outputs=['normal', ...]; got {checks.shown(outputs)}, which is what stands for outputs= left out"
                if outputs == "categorical"
                else f"num_outputs: one number for outputs={checks.shown(outputs)}; got {checks.shown(num_outputs)}"
            )
        return None
    if outputs == "categorical":
        raise ValueError("links: 'categorical' outputs have none but softmaxes; leave links out")
    if not listed:
        outputs = [outputs] * checks.count("num_outputs", 1 if num_outputs is None else num_outputs)
        sizes = [1] * len(outputs)
    elif num_outputs is None:
        sizes: list[Any] = [None] * len(outputs)
    elif not isinstance(num_outputs, (list, tuple)):
        raise ValueError(
            f"num_outputs: of outputs in a list one a column, V of 'categorical' and else 1; got {checks.shown(num_outputs)}"
        )
    else:
        sizes = list(num_outputs)
    return ResponseColumns(list(outputs), sizes, links, trials)


def feedback_parts(
    outputs: str, sources: Sources, feedback: bool | str, columns: ResponseColumns | None = None
) -> tuple[str, ...]:
    """The parts that see past outputs."""
    able = [part for part in ("transition", "emission") if sources[part] is not None]
    if feedback is False:
        return ()
    if outputs == "states":
        raise ValueError(
            "feedback: with outputs='states' the past output is the past state, which transitions see anyway"
        )
    if columns is not None and any(column.family == "categorical" for column in columns.columns):
        raise ValueError(
            "feedback: a column of classes is no number that could be joined to inputs; give past outputs one-hot as inputs"
        )
    chosen = able if feedback is True else [feedback]
    if not chosen or any(part not in able for part in chosen):
        raise ValueError(
            f"feedback must be True, False or one of the parts that see inputs, {able}; got {checks.shown(feedback)}"
        )
    return tuple(chosen)


def per_part(name: str, value, kind: type) -> dict:
    """An option by part: a mapping as it is, one value for all."""
    if value is None:
        return {}
    given = dict(value) if isinstance(value, Mapping) else dict.fromkeys(PARTS, value)
    for part, one in given.items():
        if part not in PARTS:
            raise ValueError(f"{name}: unknown part {part!r}; known: {', '.join(PARTS)}")
        sizes: Any = [one] if kind is Integral else one
        if (
            not isinstance(one, kind)
            or isinstance(one, (bool, str))
            or any(not isinstance(size, Integral) or int(size) < (name != "num_inputs") for size in sizes)
        ):
            raise ValueError(f"{name} must hold positive integers, got {checks.shown(value)}")
    return given


def plain(value: PerPart):
    """The same, JSON-able."""
    if isinstance(value, Mapping):
        return {part: int(size) for part, size in value.items()}
    return None if value is None else int(value)


def make_network(
    part: str, source, shape, hidden: tuple[int, ...], own: nn.Module | None, dtype: torch.dtype, embeddings: Embeddings
) -> Network:
    """The network of a part: the user's own, or what its inputs and hidden layers ask for."""
    if own is not None:
        return _own_network(part, source, shape, own).to(dtype)
    if source is None:
        return ConstantNetwork(shape, dtype)
    kind, size = source
    if embeddings and kind == "vectors":
        return EmbeddedNetwork(size, shape, hidden, embeddings, dtype)
    if hidden:
        return LayeredNetwork(size, shape, hidden, dtype, symbols=kind == "symbols")
    return TableNetwork(size, shape, dtype) if kind == "symbols" else LinearNetwork(size, shape, dtype)


def _own_network(part: str, source, shape, own: nn.Module) -> Network:
    """A module of the user's as a network."""
    if not isinstance(own, nn.Module):
        raise TypeError(f"the {part} network must be a torch module, got {type(own).__name__}")
    if source is None:
        raise ValueError(
            f"the {part} network: this part sees no inputs; say which (num_inputs or num_symbols, mealy, initial)"
        )
    kind, input_dims = source[0], int(source[0] == "vectors")
    if not isinstance(own, Network):
        return ModuleNetwork(own, shape, input_dims)
    if own.shape != torch.Size(shape):
        raise ValueError(f"the {part} network must have shape {tuple(shape)}, got {tuple(own.shape)}")
    if own.input_dims != input_dims:
        takes = "vectors" if own.input_dims else "symbols"
        raise ValueError(f"the {part} network takes {takes}, but this part sees {kind}")
    return own


def checked_names(name: str, value: Mapping[str, Any] | None, sizes: Mapping[str, int | None]) -> dict[str, list[str]]:
    """Names of the inputs of parts, one for each.

    Raises:
        ValueError: for other parts, or as many names as there are not.
    """
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping from parts to names, got {checks.shown(value)}")
    for part, names in (value or {}).items():
        if sizes.get(part) is None or isinstance(names, str) or len(names) != sizes[part]:
            takes = sizes.get(part) or "no"
            raise ValueError(f"{name}: {part!r} takes {takes} names, one for each number it sees; got {checks.shown(names)}")
    return {part: [str(each) for each in names] for part, names in (value or {}).items()}
