"""Whether a model has learned anything yet: what scikit-learn asks, and what keeps random answers from being taken for real.
And what a fit is told to hold, or to keep within bounds, by the names that its parameters have.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.text import Text
from pplseq.infer.fit.fittable import Fittable
from pplseq.infer.fit.held import Entries, Slot, Together, holding
from pplseq.models.base import SequenceModel
from pplseq.models.forms import (
    Form,
    Sequences,
    by_names,
    column_names,
    holds_texts,
    in_form,
    rows_of,
    splitting,
    states_in_form,
)
from pplseq.models.row_labels import check_rows_together, in_steps, indexes_of, labels_ahead
from pplseq.models.state_labels import checked_names, names_of_states, numbers_of_states
from pplseq.runs.loop import digest


class FittedState(SequenceModel):
    """A model that knows whether its parameters are still those that its constructor drew."""

    is_fitted: bool = False
    num_features: int | None = None
    column_names: tuple[str, ...] | None = None  # of the frame it was fitted to, in the order of its numbers
    input_column_names: tuple[str, ...] | None = None  # of the frame of inputs
    # of states 0, 1, ..., where a fit was given observed states by name, or the constructor their names
    state_names: tuple[str, ...] | None = None
    _is_named = False  # by the constructor
    _sized_by: tuple[str, ...] | None = None  # "exposure", "trials": what the data it was fitted to came with
    fixed_parameters: frozenset[str] = frozenset()  # names of those that the last fit was told to keep
    _fixed_entries: Mapping[str, Tensor] = {}  # noqa: RUF012  (of others, which entries it was)
    _bounds: Mapping[str, Any] = {}  # noqa: RUF012  (of the last fit, as `told_bounds` has them)

    @property
    def _has_columns(self) -> bool:
        """Whether a step of its observations is a vector, whose columns a frame names."""
        return self.num_features is not None

    def _in_form(self, x: Any, lengths: Any = None) -> Form:
        """Observations as :func:`pplseq.models.forms.in_form` reads them, a frame's columns by the names of the fit, and
        sentences as lists of words, in the units of the vocabulary."""
        x = rows_of(x)
        if isinstance(x, Text) and self.vocabulary is not None and self.vocabulary.words != x.vocabulary.words:
            raise ValueError(
                f"x: {x.name!r} is encoded with other words ({len(x.vocabulary)}) than the model's ({len(self.vocabulary)}); "
                "read it with those, load_corpus(..., vocabulary=model.vocabulary), or give its sentences as lists"
            )
        if self.num_features is not None or not holds_texts(x):
            x, lengths = in_steps(x, lengths)  # rows of text are sequences, and not steps
        rows, ends = in_form(by_names(x, self.column_names), lengths, num_features=self.num_features, split=self._split)
        if self.num_features is None and isinstance(rows, list):
            rows = [self._split(row) if isinstance(row, str) else row for row in rows]
        return rows, ends

    def _split(self, text: str) -> list[str]:
        return splitting(getattr(self, "vocabulary", None))(text)

    def _states_in_form(self, states: Any, x: Any, lengths: Any = None) -> Any:
        """Observed states beside x, both as they came, as numbers, -1 where unknown; of one sequence as a row."""
        if states is None:
            return None
        check_rows_together(x, states, "states")
        states, lengths = in_steps(states, lengths, "states")
        return states_in_form(numbers_of_states(states, self.state_names), lengths)

    def _inputs_in_form(self, inputs: Any, lengths: Any = None, *, size: int, beside: Any = None) -> Any:
        """Inputs (N, U) of that size as :func:`pplseq.models.forms.in_form` reads them, a frame's columns by those names;
        ``beside``: x as it came, whose rows are those of the inputs."""
        check_rows_together(beside, inputs)
        if not size:
            raise ValueError("inputs: this model takes none; make it with num_inputs=..., or leave them out")
        in_steps(inputs, lengths, "inputs", fill=False)
        return in_form(self._inputs_by_name(inputs), lengths, num_features=size, name="inputs")[0]

    def _inputs_by_name(self, inputs: Any, name: str = "inputs") -> Any:
        """Inputs as they come, the columns of a frame in the order of the fit."""
        return by_names(inputs, self.input_column_names, name)

    def _labelled(
        self, found: Any, x: Any, lengths: Any, num_steps: int, names: Sequence[str] | None = None, ahead: Any = None
    ) -> Any:
        """A forecast of the steps behind x with the names of the columns (or others), of the sequences where x knows them, and
        the times of these steps where the frames of x, or ``ahead``, what is given of the steps to come, say them."""
        rows = len(next(part for part in found if part is not None))
        times = None if lengths is not None else labels_ahead(x, ahead, num_steps, rows)
        of = self._told_of_rows(x, lengths)["sequences"]
        names, levels = self.column_names if names is None else names, self._levels
        if names is not None:  # of a column of levels each is a number
            each = [[f"{name}={k}" for k in range(levels[c])] if c in levels else [name] for c, name in enumerate(names)]
            names = tuple(name for column in each for name in column)
        return found._replace(column_names=names, times=times, sequences=of)

    def _told_of_rows(self, x: Any, lengths: Any) -> dict[str, Any]:
        """The times of the steps of each row, and what rows are called, where x says these."""
        times = indexes_of(x) if lengths is None else []
        told = tuple(times) if times and all(index is not None for index in times) else None
        return {"times": told, "sequences": (x.by, tuple(x.ids)) if isinstance(x, Sequences) else None}

    @property
    def _levels(self) -> dict[int, int]:
        """Columns of levels, and how many each has."""
        return {}

    def _take_names(self, other: FittedState) -> None:
        """Words, their clusters and the names of columns of another model; of its states, where there are as many and the
        constructor was told none."""
        for name in ("vocabulary", "clusters", "column_names", "input_column_names", "_sized_by"):
            setattr(self, name, getattr(other, name))
        told = other.state_names
        if not self._is_named and (told is None or len(told) == self._num_observable_states):
            self.state_names = told

    @contextlib.contextmanager
    def _naming(self, x: Any, keep: bool, inputs: Any = None, states: Any = None, beside: Sequence[Any] = ()) -> Iterator[None]:
        """Takes the names of frames' columns, and of observed states, for the fit; an error inside leaves those of the fit
        before. ``beside``: names of columns of x that are no observations, as those of exposures; what is no name counts not.

        Raises:
            ValueError: for more names of states than the model has states.
        """
        before = self.column_names, self.input_column_names, self.state_names
        if not keep or before[0] is None:
            names = column_names(x) if self._has_columns else None
            told = [each for each in beside if isinstance(each, str)]
            self.column_names = tuple(name for name in names if name not in told) if names and told else names
        if not keep or before[1] is None:
            self.input_column_names = column_names(inputs, "inputs")
        if (not keep or before[2] is None) and not self._is_named:
            self.state_names = names_of_states(states, self._num_observable_states)
        try:
            if self.state_names is not None and len(self.state_names) > self._num_observable_states:
                names = ", ".join(self.state_names[:8])
                raise ValueError(f"states: {len(self.state_names)} names ({names}) for {self._num_observable_states} states")
            yield
        except BaseException:
            self.column_names, self.input_column_names, self.state_names = before
            raise

    def _name_states(self, names: Sequence[str] | None) -> None:
        """Takes the constructor's ``state_names``; behind the configuration, of which they are."""
        self.state_names = checked_names(names, self._num_observable_states)
        if self.state_names is not None:
            self._is_named, self._config = True, self._config | {"state_names": [*self.state_names]}

    def _entry_name(self, name: str, place: Sequence[int], shape: Sequence[int]) -> str:
        """What one number of a parameter is called in a summary."""
        return name + "".join(f"[{k}]" for k in place)

    def _unidentified(self) -> tuple[frozenset[str], str]:
        """Parameters of the summary that other values of others make up for, whatever the data, and what to say of them."""
        return frozenset(), ""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        if "set_parameters" in own:
            cls.set_parameters = _noting(own["set_parameters"])

    def drawn(self, names: Sequence[str] | None = None) -> None:
        """Called by constructors that draw parameters at random: until these change the model has nothing to say.

        Args:
            names: of the parameters that were drawn; None for those that look it, or where none does, for all.
        """
        stamps = self._stamps()
        if names is None:
            names = [name for name, parameter in self.named_parameters() if _looks_drawn(name, parameter)] or list(stamps)
        certain = self._certain
        vars(self)["_drawn"] = {name: stamps[name] for name in names if name in stamps and stamps[name][0] not in certain}

    @property
    def _certain(self) -> set[int]:
        """Parameters, by their ids, that can be but one thing: without a number, as of what is known in full, and of
        distributions over one thing, as of the next of two regimes that do not stay."""
        slots: Mapping[str, Slot] = getattr(self, "_slots", {})
        ways = {id(slot.raw): slot.allowed for slot in slots.values() if slot.rows and slot.allowed is not None}
        alone = {key for key, allowed in ways.items() if bool((allowed.sum(-1) <= 1).all())}
        return alone | {id(parameter) for parameter in self.parameters() if not parameter.numel()}

    def _stamps(self) -> dict[str, tuple]:
        return {name: (id(parameter), parameter._version, _some_of(parameter)) for name, parameter in self.named_parameters()}

    @property
    def _random_parameters(self) -> tuple[str, ...]:
        """Names of those that are as the constructor drew them, of a model that is not fitted."""
        return () if self.__sklearn_is_fitted__() else tuple(vars(self)["_drawn"])

    def _check_set(self, held: Iterable[tuple[str, Tensor]], drawn: Iterable[str]) -> None:
        """Raises ValueError where a fit is asked to keep some (names, tensors) of the :attr:`_random_parameters`."""
        named = dict(self.named_parameters())
        left = {id(named[name]) for name in drawn}
        if names := [name.removeprefix("raw_") for name, raw in held if id(raw) in left]:
            own = names[0].isidentifier() and hasattr(type(self), "set_parameters")
            how = f"set_parameters({names[0]}=...)" if own else "load_state_dict(...)"
            raise ValueError(
                f"fixed: {', '.join(names)} of this {type(self).__name__} would stay as drawn at random; give the values to "
                f"keep, {how}, or fit the model before"
            )

    def __getstate__(self) -> dict[str, Any]:
        state = {**super().__getstate__(), "_drawn": list(self._random_parameters) or None}
        state.pop("_chains", None)  # which follow from this model's parameters
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        left = vars(self).get("_drawn")
        if left:  # a copy's parameters are others, and no more fitted; earlier versions did not say which
            self.drawn(left if isinstance(left, list) else None)

    def __sklearn_is_fitted__(self) -> bool:
        own = vars(self)
        left = own.get("_drawn")
        if self.is_fitted or not left:
            return True
        now = self._stamps()
        if all(now.get(name) == stamp for name, stamp in left.items()):
            return False
        own["_drawn"] = None  # what an optimizer, or a state that was loaded, has changed does not become what it was
        return True

    def __sklearn_tags__(self):
        from sklearn.utils import Tags, TargetTags  # only scikit-learn asks

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __sklearn_clone__(self) -> Self:
        """A model built alike that has learned nothing; it knows the same words."""
        built: Any = type(self)(**copy.deepcopy(cast(Any, self).get_params()))
        built.vocabulary, built.clusters = self.vocabulary, self.clusters
        return built

    def _check_fitted(self) -> None:
        """Raises NotFittedError while the parameters are those that the constructor drew: neither fitted, nor set or loaded."""
        if self.__sklearn_is_fitted__():
            return
        left = ", ".join(dict.fromkeys(map(_written, self._random_parameters)))
        raise checks.NotFittedError(
            f"this {type(self).__name__} has random parameters ({left}): fit it, or give it parameters (set_parameters, "
            "load_state_dict, an optimizer of your own)"
        )


def _noting(method: Callable) -> Callable:
    """``set_parameters`` of a class: all that is given is taken, or nothing; what it sets is no random draw any more."""

    @functools.wraps(method)
    def set_parameters(self, *args, **kwargs):
        for name, value in kwargs.items():
            checks.not_masked(name, value)
        before = self._stamps()
        values = [(value, value.detach().clone()) for value in (*self.parameters(), *self.buffers())]
        try:
            result = method(self, *args, **kwargs)
        except BaseException:
            with torch.no_grad():
                for value, was in values:
                    value.copy_(was)
            raise
        left, now = vars(self).get("_drawn"), self._stamps()
        if left and now != before:
            still = [name for name in left if now.get(name) == before.get(name)]
            named = dict(self.named_parameters())
            vars(self)["_drawn"] = {name: left[name] for name in still if _looks_drawn(name, named[name])}
        return result

    return set_parameters


def _some_of(parameter: Tensor) -> tuple[float, ...]:
    """Some of its numbers, in single precision, as they may be converted: fused optimizers change them without a new version of
    the tensor."""
    flat = parameter.detach().reshape(-1)
    if type(flat) is not Tensor or flat.device.type not in ("cpu", "cuda") or len(flat) == 0:
        return ()
    return tuple(flat[:: -(-len(flat) // 8)].float().tolist())


def _looks_drawn(name: str, value: Tensor) -> bool:
    """Whether these numbers differ from each other as random ones do, not as those of a constant or an identity matrix."""
    value = value.detach()
    if name.endswith("logits") and value.shape[-1:] == (1,) or value.numel() == 0:
        return False  # of a distribution over one thing
    if value.numel() == 1:
        return float(value) not in (0.0, 1.0)
    first = value.reshape(-1)[0]
    if bool((value == first).all()):
        return False
    is_square = value.dim() == 2 and value.shape[0] == value.shape[1]
    return not (is_square and torch.equal(value, first * torch.eye(len(value), dtype=value.dtype, device=value.device)))


# parameters as `set_parameters` has them, where that is not the name less "raw_" and "_logits"
WRITTEN = {
    "logits": "emission", "log_scale": "variance", "start_logits": "initial", "move_logits": "transition",
    "state_scale": "state_noise", "emission_scale": "emission_noise", "initial_scale": "initial_covariance",
    "log_scales": "variances", "log_noise": "noise",
}  # fmt: skip


def _written(name: str) -> str:
    """A parameter as ``set_parameters`` has it."""
    first, _, last = name.partition(".")
    if first.endswith("_network"):
        return first.removesuffix("_network")
    last = last or first
    return WRITTEN.get(last, last.removeprefix("raw_").removesuffix("_logits"))


# ------------------------------------------------------------------------------------------------ what a fit holds
class HeldParameters(FittedState, Fittable):
    """A model whose parameters a fit may hold, in part or whole, or keep within bounds."""

    methods: ClassVar[tuple[str, ...]] = ("sgd", "lbfgs")  # of fits
    _replaced: frozenset[str] = frozenset()  # parameters that what is known of single steps stands in for, while a fit lasts

    def _held_by(self, fixed: str | Sequence[str] | Mapping[str, Any]) -> dict[str, Tensor | None]:
        """What a fit shall hold: None for all of a parameter, or the mask of its entries.

        Raises:
            ValueError, TypeError: for other names, and masks that are none.
        """
        slots, found = self._slots, {}
        given = dict(fixed) if isinstance(fixed, Mapping) else dict.fromkeys([fixed] if isinstance(fixed, str) else fixed, True)
        for name, mask in given.items():
            own = self._slot_name("fixed", name)
            if mask is True:
                found[own] = None
                continue
            mask = torch.as_tensor(np.asarray(mask))
            shape = tuple(slots[own].raw.shape)
            if mask.dtype != torch.bool or tuple(mask.shape) != shape:
                raise ValueError(
                    f"fixed: {name!r} takes True, or a mask of True and False in its shape {shape}; got {mask.dtype} of shape "
                    f"{tuple(mask.shape)}"
                )
            if slots[own].triangle and bool(mask.any()) and not bool(mask.all()):
                raise ValueError(f"fixed: entries of {name!r} cannot be held one by one; give True, to hold it whole")
            if bool(mask.any()):
                found[own] = None if bool(mask.all()) else mask.to(slots[own].raw.device)
        return found

    def _slot_name(self, argument: str, name: str) -> str:
        """The name of a slot, from that of a parameter."""
        slots, other = self._slots, {"covariance": "precision", "covariances": "precision"}
        own = name if name in slots else other.get(name, name)
        if own not in slots:
            near = checks.nearest(str(name), slots)
            raise ValueError(f"{argument}: {type(self).__name__} has no parameter {str(name)[:40]!r}.{near}")
        return own

    def _bounds_by(self, bounds: Mapping[str, Any], method: str) -> dict[str, Any]:
        """Where a fit shall keep parameters, by the names of :attr:`_slots`.

        Raises:
            ValueError, TypeError: for other names and what are no bounds, and where a method cannot keep them.
        """
        if not isinstance(bounds, Mapping):
            raise TypeError(
                f"bounds must be a mapping from names of parameters to pairs (low, high), got {checks.shown(bounds)}"
            )
        if bounds and method not in ("em", "sgd", "lbfgs"):
            raise ValueError(
                f"bounds: {method!r} takes none, as priors say where parameters may lie; leave them out, or use "
                f"{' or '.join(repr(own) for own in self.methods if own in ('em', 'sgd', 'lbfgs'))}"
            )
        found: dict[str, Any] = {}
        for name, pair in bounds.items():
            own = self._slot_name("bounds", name)
            slot = self._slots[own]
            if isinstance(pair, str):
                swapped = {"increasing": "decreasing", "decreasing": "increasing"}
                found[own] = slot.together(name, swapped.get(pair, pair) if name == "precision" else pair)
                if method == "em" and not slot.pools:
                    raise ValueError(
                        f"bounds: the M-step of {name!r} does not pool states; use method='lbfgs' or 'sgd' for {pair!r}"
                    )
                continue
            low, high = ends(name, pair, slot.raw)
            if name == "precision" and own == name:  # slots of Gaussians are of covariances
                low, high = high.clamp_min(0.0).reciprocal(), low.clamp_min(0.0).reciprocal()
            found[own] = slot.between(name, low, high)
            if method == "em" and not slot.clips:
                raise ValueError(
                    f"bounds: the M-step of {type(self).__name__} has no best {name!r} within bounds, as it depends on others; "
                    "use method='lbfgs' or 'sgd'"
                )
        return found

    @contextlib.contextmanager
    def _keeping(
        self, holds: Mapping[str, Tensor | None], method: str, drawn: Sequence[str],
        boxes: Mapping[str, Entries | Together] | None = None,
    ) -> Iterator[None]:
        """Holds what :meth:`_held_by` found while a fit lasts, and remembers it; and keeps to :meth:`_bounds_by`.

        Args:
            drawn: the :attr:`_random_parameters`, which nobody has set.

        Raises:
            ValueError: where some of these were to be held, or the method cannot.
        """
        slots = self._slots
        self.fixed_parameters = frozenset(name for name, mask in holds.items() if mask is None)
        self._fixed_entries = {name: mask for name, mask in holds.items() if mask is not None}
        what: dict[str, Any] = {**holds}
        for name, box in (boxes or {}).items():
            if name in what:
                mask = torch.ones_like(slots[name].raw, dtype=torch.bool) if what[name] is None else what[name]
                if isinstance(box, Together):
                    raise ValueError(f"bounds: {box.how!r} of {name!r} says where all of it may lie; leave it out of fixed=")
                box = slots[name].held_at(mask).within(name, box)
            what[name] = None if name in holds and holds[name] is None else box
        with holding([(slots[name], own) for name, own in what.items()]):
            self._check_held(method)
            self._check_set([(name, slots[name].raw) for name in holds if name not in self._replaced], drawn)
            yield

    @property
    def shared_parameters(self) -> frozenset[str]:
        """Names of :attr:`_slots` whose values the last fit made equal in all states."""
        return frozenset(self._slot_name("bounds", name) for name, how in self._bounds.items() if how == "equal")

    @property
    def _ordered_parameters(self) -> frozenset[str]:
        """Names of :attr:`_slots` whose values the last fit let rise, or fall, from state to state."""
        found = (name for name, how in self._bounds.items() if isinstance(how, str) and how != "equal")
        return frozenset(self._slot_name("bounds", name) for name in found)

    @property
    def num_free_parameters(self) -> int:
        """Numbers that are learned, of the criteria: one less a row of probabilities, none of what is held."""
        return sum(slot.num_free() for slot in self._slots.values()) - self._num_held

    @property
    def _num_held(self) -> int:
        """How many parameters are not free, as they are held or the last fit was told to keep them."""
        slots = self._slots
        whole = {name: torch.ones_like(slots[name].raw, dtype=torch.bool) for name in self._not_free if name in slots}
        for name in self.shared_parameters - whole.keys():  # of which the first state's are free
            whole[name] = torch.ones_like(slots[name].raw, dtype=torch.bool).index_fill_(0, torch.tensor(0), False)
        return sum(slots[name].num_free(mask) for name, mask in ({**self._fixed_entries} | whole).items())

    def _held_estimate(self, name: str, value: Tensor) -> Tensor:
        """Where one of :meth:`estimates` is what the last fit was told to keep."""
        return self._of_entries(name, value, self._fixed_entries, self._not_free)

    def _of_entries(
        self, name: str, value: Tensor, masks: Mapping[str, Tensor], whole: frozenset[str] = frozenset()
    ) -> Tensor:
        """Where one of :meth:`estimates` is among entries, by the names of :attr:`_slots`, or of a whole parameter."""
        own = name.partition("[")[0]
        own = "transition" if own == "eigenvalue" else own.partition(" ")[0]  # "transition a" of an entry with a name
        mask, found = masks.get(own), torch.full_like(value, own in whole, dtype=torch.bool)
        return found if mask is None or mask.shape != value.shape else mask | found

    @torch.no_grad()
    def _at_told_bounds(self, deviations: Mapping[int, Tensor]) -> tuple[dict[str, Tensor], dict[int, Tensor]]:
        """Which numbers stand at a bound of the last fit: probabilities by name of :attr:`_slots`, others by id of a parameter.

        Args:
            deviations: by id of a parameter, of its numbers: what is within a hundredth of one of a bound is at it.
        """
        probs, others = {}, {}
        for name, box in self._bounds_by(self._bounds, "sgd").items() if self._bounds else ():
            raw = self._slots[name].raw
            if isinstance(box, Together) or id(raw) not in deviations:
                continue
            low, high, rows = *box[:2], isinstance(box, Entries) and box.rows
            value = raw.log_softmax(-1) if rows else raw
            near = 0.01 * deviations[id(raw)].minimum(torch.ones_like(value) if rows else high - low)
            at_low, at_high = ((value - end).abs() <= near.maximum(1e-6 * end.abs()) for end in (low, high))
            found = (at_low & low.isfinite()) | (at_high & (high < (0 if rows else torch.inf)))
            if rows:
                probs[name] = found
            else:
                others[id(raw)] = found
        return probs, others

    @property
    def _not_free(self) -> frozenset[str]:
        """Parameters that the last fit was told to keep whole, or whose ``requires_grad`` is False."""
        return self.fixed_parameters | {name for name, slot in self._slots.items() if not slot.raw.requires_grad}


def ends(name: str, pair: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds (low, high) of each number of a parameter, double precision.

    Raises:
        ValueError, TypeError: for what is no pair of bounds.
    """
    try:
        low, high = pair
    except (TypeError, ValueError):
        raise ValueError(f"bounds: {name!r} takes a pair (low, high), None for no bound; got {checks.shown(pair)}") from None
    found = []
    for end, free in ((low, -math.inf), (high, math.inf)):
        value = torch.full((), free) if end is None else checks.numbers(f"bounds[{name!r}]", end)
        try:
            value = value.to(device=like.device, dtype=torch.float64).expand(like.shape).clone()
        except RuntimeError:
            raise ValueError(
                f"bounds: {name!r} has shape {tuple(like.shape)}, to which those of shape {tuple(value.shape)} do not broadcast"
            ) from None
        if bool(value.isnan().any()):
            raise ValueError(f"bounds: {name!r} has a bound that is NaN; give None for no bound")
        found.append(value)
    if bool((found[0] > found[1]).any()):
        raise ValueError(f"bounds: {name!r} has a low bound above its high one; got {checks.shown(pair)}")
    return found[0], found[1]


def told_bounds(bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Bounds of a fit, JSON-able: a word, or [low, high], each a number, nested lists of numbers or None."""
    def end(value: Any) -> Any:
        return None if value is None else checks.numbers("bounds", value).tolist()

    return {name: how if isinstance(how, str) else [end(value) for value in how] for name, how in bounds.items()}


def told_held(holds: Mapping[str, Tensor | None]) -> dict[str, str]:
    """What a fit holds, as a run's folder says it."""
    return {name: "whole" if mask is None else digest(mask) for name, mask in holds.items()}


@torch.no_grad()
def told_parameters(model: Any) -> dict[str, Tensor]:
    """What a model tells of its parameters, by name."""
    try:
        return model.estimates()
    except ValueError:  # which mean nothing one by one
        return dict(model.named_parameters())


def mean_the_same(model: Any, other: Any) -> bool:
    """Whether parameters that two models share have the same names and values in both, but for what another type of numbers
    rounds, and the same moves and starts are allowed."""
    allowed = [{name: getattr(one, name, None) for name in ("graph", "start_states")} for one in (model, other)]
    masks = ({name: mask for name, mask in each.items() if isinstance(mask, Tensor)} for each in allowed)
    some, others = (told_parameters(one) | mask for one, mask in zip((model, other), masks, strict=True))
    return {n: value.shape for n, value in some.items()} == {n: value.shape for n, value in others.items()} and all(
        torch.allclose(value.double(), others[n].double(), rtol=1e-4, atol=1e-6, equal_nan=True) for n, value in some.items()
    )
