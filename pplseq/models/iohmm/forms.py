"""Outputs and inputs in the forms people hold them in: frames, one sequence alone, several one behind the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pplseq import checks
from pplseq.models.forms import as_frame, holds_none, in_form, is_frame, is_table, numbers_of, of_objects, unmasked
from pplseq.models.row_labels import check_rows_together, in_steps, is_of_rows

Sizes = Mapping[str, int | None]  # part -> U of its inputs, None for symbols; "" for all parts


def parts_of(inputs: Any) -> dict[str, Any]:
    """Inputs by part, as far as there are some; those of all parts under ""."""
    parts = inputs if isinstance(inputs, Mapping) else {"": inputs}
    return {part: value for part, value in parts.items() if value is not None}


def part_name(part: str) -> str:
    """How a part's inputs are called in errors."""
    return f"inputs[{part!r}]" if part else "inputs"


def put_to_steps(x: Any, inputs: Any, states: Any, lengths: Any, *, fill: bool) -> tuple[Any, Any, Any]:
    """Outputs, states and lengths, with missing ones at steps that their dates lack; see
    :func:`~pplseq.models.row_labels.in_steps`.

    Args:
        fill: False where outputs and inputs come in one frame, of which no row may be missing.

    Raises:
        ValueError: where frames and series say that inputs or states are of other steps than outputs, of steps that are in no
            order of time, or that inputs lack some.
    """
    check_rows_together(x, inputs)
    check_rows_together(x, states, "states")
    parts = parts_of(inputs)
    for part, value in parts.items():
        in_steps(value, lengths, part_name(part), fill=False)
    given = lengths
    if isinstance(x, (list, tuple)) or not any(map(is_of_rows, parts.values())):
        x, lengths = in_steps(x, given, fill=fill)  # else outputs may be one target a sequence
    return x, in_steps(states, given, "states")[0], lengths


def begun(x: Any, inputs: Any, sizes: Mapping[str, Any]) -> tuple[Any, Any, Mapping[str, Any], list[bool] | None]:
    """Lists of which some rows have no step yet, with the first step of another there; and which those are, None for none."""
    empty = [np.shape(row)[:1] == (0,) for row in x] if isinstance(x, (list, tuple)) else []
    if not any(empty) or all(empty):
        return x, inputs, sizes, None
    beside = [*parts_of(inputs).values(), *sizes.values()]
    if any(isinstance(value, (list, tuple)) and [len(row) == 0 for row in value] != empty for value in beside):
        return x, inputs, sizes, None  # they do not go together, which is said where they are put to each other

    def filled(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: filled(own) for name, own in value.items()}
        if not isinstance(value, (list, tuple)):
            return value
        return [value[empty.index(False)][:1] if none else row for row, none in zip(value, empty, strict=True)]

    return filled(x), filled(inputs), filled(sizes), empty


def in_pairs(
    x: Any, inputs: Any, states: Any, lengths: Any, *, num_features: int | None, sizes: Sizes, alone: bool
) -> tuple[Any, Any, Any, Any]:
    """Outputs, inputs, states and lengths, as lists or rows where they are of one sequence, or of several one behind the other.

    Inputs tell which it is: they are (N,) symbols or numbers, or (N, U); and where there are none, outputs do.

    Args:
        x, inputs, states, lengths: as of :meth:`~pplseq.models.iohmm.data.IOFormat.batch`. num_features: D, None for words.
        sizes: of inputs. alone: whether outputs without inputs, (N,) or (N, D), are one sequence.

    Raises:
        ValueError: for what could be one sequence or many of one step. TypeError: for tables without numbers.
    """
    checks.not_masked("lengths", lengths)
    x, states = without_frames(x, num_features, "x"), unmasked(states, words=True)
    for part, value in parts_of(inputs).items():
        one = value[0] if isinstance(value, (list, tuple)) and len(value) else value
        if sizes.get(part) == 0 and np.shape(one)[-1:] != (0,):
            raise ValueError(f"{part_name(part)}: this model takes none; make it with num_inputs=..., or leave them out")
    parts = {part: without_frames(value, sizes[part], part_name(part)) for part, value in parts_of(inputs).items()}
    if x is not None and (np.ndim(x[0]) > 0 if isinstance(x, (list, tuple)) and len(x) else np.ndim(x) > 2):
        are_alone = [False]  # outputs are sequences, or padded rows
    elif parts:
        forms = [(value, sizes[part], part_name(part)) for part, value in parts.items()]
        # a column (N, 1) is what other parts are, which tell; or what outputs are, which are vectors, a row each
        telling = [form for form in forms if not (_shape(form[0])[1:] == (1,) and form[1] in (None, 1))]
        beside = num_features not in (None, 1) and _shape(x)[1:] == (num_features,)
        if not telling and beside and all(_shape(value)[:1] == _shape(x)[:1] for value, *_ in forms):
            are_alone = [True]
        else:
            are_alone = [is_alone(*form, lengths) for form in telling or forms]
    else:
        are_alone = [alone and x is not None and is_alone(x, num_features, "x", lengths)]
    if all(are_alone):
        ends = None
        if x is not None:
            x, ends = in_form(_flat(x, num_features), lengths, num_features=num_features)
        for part, value in parts.items():
            name = part_name(part)
            parts[part], ends = in_form(_flat(value, sizes[part]), lengths, num_features=sizes[part], name=name)
        if states is not None:
            states, _ = in_form(_flat(states, None), lengths, num_features=None, name="states")
        lengths = ends
    return x, parts if isinstance(inputs, Mapping) else parts.get(""), states, lengths


def _shape(value: Any) -> tuple[int, ...]:
    """Of an array or tensor; of anything else ()."""
    return tuple(getattr(value, "shape", ()))


def without_frames(value: Any, size: int | None, name: str) -> Any:
    """Frames and series, alone or in a list, as arrays (N, D), (N,) where there is one column; objects as what they hold."""
    value = unmasked(value, words=size is None)
    if isinstance(value, (list, tuple)) and any(is_table(row) for row in value):
        return [without_frames(row, size, name) for row in value]
    if isinstance(value, (list, tuple)) and any(step is None for step in value):
        value = np.asarray(value, dtype=object)
    elif isinstance(value, (list, tuple)):
        holes = [isinstance(row, (list, tuple)) and any(map(holds_none, row)) for row in value]
        pairs = zip(value, holes, strict=True)
        value = [of_objects(np.asarray(row, dtype=object), size, name) if hole else row for row, hole in pairs]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return of_objects(value, size, name)
    value = as_frame(value, name)
    if not is_frame(value):
        return value
    numbers = numbers_of(value, size, name)
    if isinstance(numbers, list):
        raise TypeError(f"{name} must hold numbers, got the text {numbers[0]!r}; give numbers to its values, 0, 1, ...")
    return numbers[:, 0] if numbers.ndim == 2 and numbers.shape[1] == 1 else numbers


def is_alone(value: Any, size: int | None, name: str, lengths: Any) -> bool:
    """Whether data are of one sequence, or of several one behind the other: (N,), or (N, U) vectors.

    Raises:
        ValueError: for (N, 1), which could be one sequence or N of one step, and lengths do not tell.
    """
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and np.ndim(value[0]) == 0
    if np.ndim(value) != 2:
        return np.ndim(value) == 1
    if value.shape[1] != 1 or value.shape[0] == 1:
        return size not in (None, 1) and value.shape[1] == size
    if lengths is None:
        raise ValueError(
            f"{name}: shape {tuple(value.shape)} could be one sequence of {value.shape[0]} or {value.shape[0]} sequences of "
            f"one step: write {name}[:, 0] for the first, list({name}) for the second, and what else there is alike"
        )
    return len(lengths) != value.shape[0]


def _flat(value: Any, size: int | None) -> Any:
    """One column of words, symbols or states as (N,)."""
    return value[:, 0] if size is None and np.ndim(value) == 2 and value.shape[1] == 1 else value
