"""Observed states as people have them (numbers or names, None or NaN where one is not known), and the order of states."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.models.forms import as_frame, is_table, missing, unmasked, whole


def names_of_states(states: Any, number: int = 0) -> tuple[str, ...] | None:
    """What observed states are called, in alphabetical order; None where they are numbers.

    Args:
        number: of states: those that no name is given of are called "state 2" and so on, behind the others.

    Raises:
        ValueError: for an empty name, and names beside numbers.
    """
    found = _texts(states)
    if not found:
        return None
    if not all(name.strip() for name in found):
        raise ValueError("states: the name of a state is empty, ''; give it a name, or None where the state is not known")
    if (other := next(_numbers(states), None)) is not None:
        raise ValueError(
            f"states: names and numbers are mixed, {checks.shown(min(found))} and {checks.shown(other)}; give names alone, or "
            "numbers alone, and None where a state is not known"
        )
    return (*sorted(found), *(f"state {k}" for k in range(len(found), number)))


def _texts(states: Any) -> set[str]:
    found: set[str] = set()
    for value in _items(states):
        found |= {str(value)} if isinstance(value, str) else _texts(value)
    return found


def _numbers(states: Any) -> Iterator[Any]:
    """Those of known states."""
    if isinstance(states, (list, tuple)) or _is_of_objects(states):
        for value in _items(states):
            yield from _numbers(value)
    elif getattr(states, "ndim", 0):
        yield from (value for value in states.flatten().tolist() if value >= 0)
    elif not isinstance(states, str) and not missing(states) and not (isinstance(states, (int, float)) and states < 0):
        yield states


def numbers_of_states(states: Any, names: Sequence[str] | None) -> Any:
    """Observed states as numbers, sequence by sequence as they came: of names their places among ``names``, -1 where unknown.

    Raises:
        ValueError: for a name that is not among them, and names beside numbers. TypeError: for True and False.
    """
    states = unmasked(states, words=True)
    names_of_states(states)
    return _as_numbers(states, names)


def _as_numbers(states: Any, names: Sequence[str] | None) -> Any:
    if isinstance(states, (list, tuple)) or _is_of_objects(states):
        found = [_as_numbers(value, names) for value in _items(states)]
        if isinstance(states, (list, tuple)) or any(map(np.ndim, found)):
            return found
        return np.asarray(found).reshape(np.shape(states))
    if getattr(states, "ndim", 0):
        kind: Any = states.dtype
        floats = kind.kind == "f" if isinstance(states, np.ndarray) else getattr(kind, "is_floating_point", False)
        return whole(checks.numbers("states", states).detach().cpu().double().numpy()) if floats else states
    if isinstance(states, str):
        if names is not None and states in names:
            return names.index(states)
        if names is None:
            there = "; the model's have numbers, as no fit was given names"
        else:
            there = f".{checks.nearest(states, names)}"
        raise ValueError(f"states: no state is called {str(states)[:40]!r}{there}")
    if missing(states):
        return -1
    if isinstance(states, (bool, np.bool_)):
        raise TypeError(f"states: expected the numbers 0, 1, ... of states, or their names, got {states}; write int(...)")
    return int(states) if isinstance(states, float) and states.is_integer() else states


def named(path: Any, names: Sequence[str] | None) -> Any:
    """Paths of states (..., T), or a list of them, by name: arrays of text, None at padded steps; without names as they are."""
    if names is None:
        return path
    if isinstance(path, list):
        return [named(part, names) for part in path]
    told = np.array([*names, None], dtype=object)  # the last, for -1
    return told[np.asarray(path.cpu())]


def checked_names(names: Sequence[str] | None, number: int) -> tuple[str, ...] | None:
    """Names of all states, as they are told to a constructor."""
    if names is None:
        return None
    if isinstance(names, (set, frozenset, Mapping)):
        raise TypeError(f"state_names: expected a list, in the order of the states, got a {type(names).__name__}")
    if isinstance(names, str) or not all(isinstance(name, str) and name.strip() for name in names):
        raise TypeError(f"state_names: expected a name for each of {number} states, got {checks.shown(names)}")
    if len(names) != number or len(set(names)) != number:
        raise ValueError(f"state_names: expected {number} different names, got {checks.shown([*names])}")
    return tuple(names)


def _is_of_objects(states: Any) -> bool:
    return is_table(states) or isinstance(states, np.ndarray) and states.dtype.kind in "OU"


def _items(states: Any) -> Any:
    if _is_of_objects(states):
        return np.asarray(as_frame(unmasked(states, words=True), "states"), dtype=object).flat
    return states if isinstance(states, (list, tuple)) else ()


def matching(together: np.ndarray) -> list[int]:
    """Of each row its column: the matching with the largest sum.

    Raises:
        ImportError: without scipy.
    """
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise ImportError('align: matching states needs scipy: pip install "pplseq[text]"') from error
    return linear_sum_assignment(together, maximize=True)[1].tolist()


class StateOrder:
    """Models whose states may change places, so that two fits can be compared."""

    def _state_axes(self) -> Mapping[str, Sequence[int]]:
        """By name of a parameter its axes along which states lie, or several numbers of each behind each other.

        Raises:
            ValueError: for a model whose states cannot change places.
        """
        raise ValueError(f"a {type(self).__name__} has states of which none can take the place of another")

    def _named_states(self: Any, states: Tensor) -> Any:
        """States of the chain (..., T) as answers tell them: by name where they have names."""
        return named(states, None if states.is_floating_point() else self.state_names)

    def permuted(self: Any, order: Sequence[int]) -> Any:
        """A copy in which state k is what was state order[k], with its name and moves, what is held and its bounds; ``history``
        is None.

        Args:
            order: every state once (of models with regimes these). Of a mixture states of one cluster stay together: then the
                clusters change places, too.

        Raises:
            ValueError: for another order, and a model whose states are told apart by more than their parameters. TypeError: for
                what is no row of whole numbers.
        """
        axes, number = self._state_axes(), self._num_observable_states
        places = np.asarray(order)
        if places.dtype.kind not in "iu" or places.ndim != 1:
            raise TypeError(f"order must be whole numbers, every state 0..{number - 1} once, got {checks.shown(order)}")
        order = places.tolist()
        if sorted(order) != list(range(number)):
            raise ValueError(f"order: every state 0..{number - 1} once, got {checks.shown(order)}")
        self._check_order(order)
        found, index = copy.deepcopy(self), torch.tensor(order)

        def moved(value: Tensor, along: Sequence[int]) -> Tensor:
            for axis in along:
                each = torch.arange(value.shape[axis]).reshape(number, -1)[index].flatten()
                value = value.index_select(axis, each.to(value.device))
            return value

        with torch.no_grad():
            for name, parameter in found.named_parameters():
                parameter.copy_(moved(parameter, axes.get(name, ())))
        of = {id(parameter): axes.get(name, ()) for name, parameter in self.named_parameters()}
        slots = self._slots
        found._fixed_entries = {name: moved(mask, of[id(slots[name].raw)]) for name, mask in self._fixed_entries.items()}

        def moved_end(end: Any, raw: Tensor) -> Any:
            if not isinstance(end, list):
                return end
            return moved(torch.tensor(end, dtype=torch.float64).expand(raw.shape), of[id(raw)]).tolist()

        for name, how in self._bounds.items():
            if not isinstance(how, str):
                found._bounds[name] = [moved_end(end, slots[self._slot_name("bounds", name)].raw) for end in how]
        for name, dims in (("start_states", (0,)), ("graph", (0, 1))):
            if (mask := getattr(self, name, None)) is not None:
                setattr(found, name, mask := moved(mask, dims))
                if name in found._config:
                    told = mask.tolist() if name == "graph" else mask.nonzero().flatten().tolist()
                    found._config = found._config | {name: told}
        if self.state_names is not None:
            found.state_names = tuple(self.state_names[state] for state in order)
            if self._is_named:
                found._config = found._config | {"state_names": [*found.state_names]}
        vars(found)["history"] = None
        return found

    def sorted(self: Any, x, by: str = "mean", lengths=None, *, column: int = 0, **known) -> Any:
        """A copy whose states stand in an order that two fits share: see :meth:`permuted`.

        Args:
            x, lengths, **known: the data. by: "mean", from the state whose steps are expected to have the lowest mean of a
                column, or "share", from the state in which most steps are expected to be; those without steps come last. Of a
                mixture clusters come in this order, and in each its states.
        """
        checks.choice("by", by, ("mean", "share"))
        batch, probs = self._posteriors(x, lengths, known)
        if by == "share":
            return self.permuted(self._in_order(-probs.sum(0), torch.ones_like(probs[0])))
        if batch.x.dim() < 3:
            raise ValueError("by: words have no mean; sort by='share', or align the states with those of another model")
        if not 0 <= checks.count("column", column, 0) < batch.x.shape[-1]:
            raise ValueError(f"column must lie in 0..{batch.x.shape[-1] - 1}, got {column}")
        numbers = batch.x[..., column].flatten().double()
        weights = probs.masked_fill(numbers.isnan().unsqueeze(-1), 0.0)
        return self.permuted(self._in_order(numbers.nan_to_num(0.0) @ weights, weights.sum(0)))

    def align(self: Any, other: Any, x, lengths=None, **known) -> Any:
        """A copy whose state k is the one that is most like state k of another model: the matching with the largest expected
        number of steps in which both models are in states that were matched; see :meth:`permuted`.

        Args:
            other: a model with as many states, of any kind that takes these data; of a mixture one with as many clusters,
                which are matched as wholes. x, lengths, **known: the data.

        Raises:
            ImportError: without scipy.
        """
        if getattr(other, "_num_observable_states", None) != self._num_observable_states:
            raise ValueError(f"other: expected a model of {self._num_observable_states} states, got {checks.shown(other)}")
        theirs, own = other._posteriors(x, lengths, known)[1], self._posteriors(x, lengths, known)[1]
        return self.permuted(self._matched((theirs.cpu().T @ own.cpu()).numpy(), other))

    def _check_order(self, order: Sequence[int]) -> None:
        """Raises ValueError for an order that would break states apart which belong together."""

    def _in_order(self, sums: Tensor, weights: Tensor) -> list[int]:
        """The states by sums / weights, (Z,) each, the smallest first, those of no weight last."""
        return (sums / weights).argsort(stable=True).tolist()

    def _matched(self, together: np.ndarray, other: Any) -> list[int]:
        """Which state stands for each of the other model's, given (Z, Z) expected steps in both."""
        return matching(together)

    def _posteriors(self: Any, x, lengths, known: Mapping[str, Any]) -> tuple[Any, Tensor]:
        """The data, and (B T, Z) probabilities of states, 0 at padded steps."""
        self._state_axes()
        batch = self._as_batch(x, lengths, **known)
        return batch, self.smooth(batch.x, batch.lengths, **batch.known).probs.flatten(0, 1).double()
