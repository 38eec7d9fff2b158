"""A model that reads one observation after another: the filtered state and how surprising each step was, as it comes."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from pplseq import checks, notebooks
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.distributions.state import MISSING, Belief
from pplseq.files import write_text
from pplseq.infer.discrete.chain import Chain
from pplseq.models.base import GOES_ON
from pplseq.models.forms import missing
from pplseq.models.state_labels import numbers_of_states

FORMAT = "pplseq online 1"


class Reading(NamedTuple):
    """What one step says.

    log_prob: log p(x_t | x_1..x_{t-1}), nats: low where the step is a surprise, 0 where nothing was seen. states: (Z,)
    p(z_t | x_1..x_t), or of Gaussian states their mean (h,). covariance: (h, h) of Gaussian states, else None.
    """

    log_prob: float
    states: np.ndarray
    covariance: np.ndarray | None = None

    def _repr_html_(self) -> str:
        """For notebooks."""
        caption, columns = f"log p {self.log_prob:.4g}", {"probability": self.states}
        if self.covariance is not None:
            columns = {"mean": self.states, "deviation": np.sqrt(np.diag(self.covariance).clip(min=0))}
        rows = zip(range(len(self.states)), *(column.tolist() for column in columns.values()), strict=True)
        return notebooks.table(caption, ["state", *columns], rows)


class Filter(Protocol):
    """One way to go on: what :class:`Online` asks."""

    def step(self, x: Any, known: Mapping[str, Any]) -> Reading: ...

    def ahead(self, num_steps: int | None, told: Mapping[str, Any]) -> Any: ...

    def kept(self) -> dict[str, Any]: ...

    def take(self, kept: Mapping[str, Any]) -> None: ...


class Online:
    """Reads a sequence step by step; ``model.online()`` makes one.

    The answers are those of ``filter`` and ``token_log_probs`` on the whole sequence. The parameters are those that the model
    has when this is made. One sequence and one thread each.

    Args:
        model: a fitted model. saved: what :meth:`save` wrote, or None to begin a sequence.

    Attributes:
        num_steps: read so far. log_prob: of all of them, nats.

    Cost: Z^2 a step of an HMM, h^2 of an LDS (h^3 until its covariances stand still and behind a missing step), in numbers
    alone; other models build a chain of one step.
    """

    def __init__(self, model: Any, saved: str | Path | None = None):
        model._check_fitted()
        self.model, self.num_steps, self.log_prob = model, 0, 0.0
        self._filter: Filter = model._reader()
        if saved is not None:
            self._resume(Path(saved))

    def _repr_html_(self) -> str:
        """For notebooks."""
        told = {"steps": self.num_steps, "log p": self.log_prob, "a step": self.log_prob / max(self.num_steps, 1)}
        return notebooks.table(f"Reads by {self.model!r}", [*told], [[*told.values()]])

    def step(self, x: Any = None, **known) -> Reading:
        """Reads the next observation: a word (as the model's vocabulary has it, or its number), a number, or a vector.

        Args:
            x: None, -1 for a word, or NaN where nothing was seen; vectors may lack some of their numbers. Of a model that was
                fitted to a frame also a mapping from its columns.
            **known: of this step, as ``inputs``.

        Returns:
            The reading. Where x is impossible its ``log_prob`` is -inf, and the states go on as if it had not been seen.

        Raises:
            ValueError, TypeError: for what is no observation of the model; nothing was read then.
        """
        names = self.model.column_names
        if hasattr(x, "to_dict") and names is not None and set(names) <= {*x.index}:
            x = x.to_dict()  # a row of a frame
        if isinstance(x, Mapping):
            if names is None or not set(names) <= set(x):
                raise ValueError(f"x: expected a number for each column of {checks.shown(names)}, got {checks.shown([*x])}")
            x = [x[name] for name in names]
        reading = self._filter.step(x, known)
        self.num_steps += 1
        self.log_prob += reading.log_prob
        return reading

    @torch.no_grad()
    def forecast(self, num_steps: int | None = None, **ahead) -> Any:
        """What comes in the next K = num_steps steps, as ``model.forecast`` tells it of the whole row; nothing is read.

        Args:
            num_steps: K; by default 1, or as many as ``future_inputs`` tell. **ahead: what ``model.forecast`` takes of the
                steps to come, as ``future_inputs`` (K, U).

        Raises:
            ValueError, TypeError: as ``model.forecast``; before the first step also where that takes no row without steps.
        """
        if num_steps is not None or not ahead:
            num_steps = checks.count("num_steps", 1 if num_steps is None else num_steps)
        return self._filter.ahead(num_steps, ahead)

    def save(self, path: str | Path) -> Path:
        """Writes where the sequence stands, as JSON; ``model.online(path)`` goes on from there to the same numbers."""
        told = {"format": FORMAT, "model": self.model.name, "num_steps": self.num_steps, "log_prob": repr(self.log_prob)}
        write_text(path, json.dumps(told | self._filter.kept()) + "\n")
        return Path(path)

    def _resume(self, path: Path) -> None:
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}: cannot read it; Online.save writes JSON ({checks.shown(str(error))})") from None
        if not isinstance(told, dict) or told.get("format") != FORMAT or told.get("model") != self.model.name:
            raise ValueError(f"{path}: expected {FORMAT!r} of a model {self.model.name!r}, got {checks.shown(told)}")
        try:
            num_steps, log_prob = told["num_steps"], float(told["log_prob"])
            if type(num_steps) is not int or num_steps < 0 or math.isnan(log_prob):
                raise ValueError("its counts are none")
            self._filter.take(told)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ValueError(f"{path}: it does not fit this model ({checks.shown(str(error))})") from None
        self.num_steps, self.log_prob = num_steps, log_prob


def finite(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    found = np.asarray(value, dtype=np.float64)
    if found.shape != shape or not np.isfinite(found).all():
        raise ValueError(f"{name} must be finite, of shape {shape}")
    return found


def is_none(x: Any) -> bool:
    """Whether a value that is one alone says that nothing was seen."""
    return x is np.ma.masked or np.ndim(x) == 0 and not isinstance(x, (Tensor, np.ndarray)) and missing(x)


def numbers_of(x: Any, size: int) -> np.ndarray | None:
    """(D,) numbers, NaN where missing; None where nothing was seen."""
    if is_none(x):
        return None
    if isinstance(x, Tensor):
        x = x.detach().cpu()
    if isinstance(x, np.ma.MaskedArray):
        x = np.ma.filled(x.astype(np.float64), np.nan)
    if isinstance(x, (list, tuple)):
        x = [math.nan if missing(each) else each for each in x]
    try:
        kind = np.asarray(x).dtype.kind
        found = np.array(np.asarray(x, dtype=np.float64), order="C").reshape(-1)  # of a frame it may be read backwards
    except (TypeError, ValueError):
        kind, found = "", np.empty(0)
    if kind not in ("i", "u", "f", "O") or isinstance(x, (str, bytes)):
        raise TypeError(f"x: expected {size} numbers, got {checks.shown(x)}")
    if found.shape != (size,):
        raise ValueError(f"x: expected {size} numbers, got {found.size}")
    if np.isinf(found).any():
        raise ValueError(f"x: expected finite numbers, or NaN where one is missing, got {checks.shown(x)}")
    return None if np.isnan(found).all() else found


def word_of(x: Any, vocabulary: Any, num_words: int) -> int:
    """The number of a word, -1 where nothing was seen."""
    if isinstance(x, str):
        if vocabulary is None:
            raise TypeError("x: got a word, and the model has no vocabulary; give its number")
        return int(vocabulary.encode([x])[0])
    if is_none(x):
        return MISSING
    if isinstance(x, (Tensor, np.ndarray)) and math.prod(x.shape) == 1:
        x = x.item()
    if isinstance(x, bool) or not isinstance(x, (int, np.integer)) or not -1 <= x < num_words:
        raise ValueError(f"x: expected a word's number in 0..{num_words - 1}, or -1 for none, got {checks.shown(x)}")
    return int(x)


def check_alone(model: Any, known: Mapping[str, Any]) -> None:
    """Raises for what is known beside an observation, where numbers alone are gone on with."""
    model._check_names({name.removeprefix("future_"): value for name, value in known.items()})
    if known:
        what = ", ".join(known)
        raise ValueError(f"{what}: {type(model).__name__} reads observations alone; ask filter for the whole sequence")


def log_probabilities(name: str, value: Any, size: int) -> np.ndarray:
    """(Z,) nats, of which None stands for none."""
    none = np.array([each is None for each in value])
    found = finite(name, [0.0 if each is None else each for each in value], (size,))
    found = np.where(none, -np.inf, found)
    if abs(np.exp(found.clip(max=1.0)).sum() - 1) > 1e-6:
        raise ValueError(f"{name} must hold log-probabilities that sum to one")
    return found


class Chains:
    """Any model whose rows may go on from a belief: a chain of one step at a time."""

    def __init__(self, model: Any):
        self.model, self.belief = model, None
        self.previous = self.read = None  # the output before, and of this step, where they are fed back
        self.last: Any = None  # what the last step went on from, its row, and what was known of it

    def _before(self, gaps: Tensor | None) -> dict[str, Any]:
        more = {"previous": self.previous, "gaps": gaps}
        return {"start": self.belief} | {name: value for name, value in more.items() if value is not None}

    def _gaps(self, known: Mapping[str, Any]) -> Tensor | None:
        """(1, 1) the time since the step before, of models whose steps have times; None of the first step."""
        return None

    def _row(self, x: Any) -> Any:
        form = getattr(self.model, "format", None)  # of an output, which are symbols or vectors
        size = self.model.num_features if form is None or form.discrete else form.num_outputs
        if size is not None:
            return vector_row(x, size)
        if self.model.num_words is not None:
            return [word_of(x, self.model.vocabulary, self.model.num_words)]
        return [MISSING if is_none(x) else x]  # symbols of an output

    def _chain(self, row: Any, known: Mapping[str, Any], gaps: Tensor | None) -> Any:
        batch = self.model._as_batch([row], None, **known)
        chain = self.model.posterior(batch.x, None, **(batch.known | self._before(gaps)))
        self.read = batch.x[:, 0] if getattr(self.model, "feedback", None) else None
        return chain

    def step(self, x: Any, known: Mapping[str, Any]) -> Reading:
        self.model._check_names(known)
        known = {name: self._of_step(name, value) for name, value in known.items()}
        return self._read(self._row(x), known, self._gaps(known))

    def _of_step(self, name: str, value: Any) -> Any:
        """What is known of a step as rows of one step; of inputs by part those of each."""
        if name == "states":
            value = numbers_of_states(value, self.model.state_names)
        if name == "inputs" and isinstance(value, Mapping) and set(value) <= {*getattr(self.model, "sources", ())}:
            return {part: [as_row(own)] for part, own in value.items()}
        if name == "inputs":
            value = inputs_in_order(value, self.model.input_column_names)
        return [as_row(value)]

    def _read(self, row: Any, known: Mapping[str, Any], gaps: Tensor | None) -> Reading:
        chain = self._chain(row, known, gaps)
        with torch.no_grad(), chain.unchecked() if isinstance(chain, Chain) else contextlib.nullcontext():
            log_prob = float(chain.log_prob().detach())
            if log_prob == -math.inf:
                row = self._row(None)
                chain = self._chain(row, known, gaps)
            belief = chain.filtered()
        self.last = self._before(gaps), row, known
        self.belief, self.previous = belief, self.read
        if isinstance(belief, GaussianBelief):
            covariance = belief.covariance if belief.covariance.dim() == 2 else belief.covariance[0]
            return Reading(log_prob, belief.mean[0].double().numpy(), covariance.double().numpy())
        states = dense_states(belief, self.model.num_states)
        regimes = getattr(self.model, "regimes", None)  # of models whose states are more than that
        return Reading(log_prob, states if regimes is None else regimes(torch.from_numpy(states)).numpy())

    def ahead(self, num_steps: int | None, told: Mapping[str, Any]) -> Any:
        """The model's forecast behind a row of the last step alone, which goes on from what was before it."""
        before, row, known = (None, [], {}) if self.last is None else self.last
        if self.last is None and self.belief is not None:
            raise ValueError("forecast: the file does not say what the last step was; read one step more")
        token = GOES_ON.set(before)
        try:
            return self.model.forecast([row], num_steps, **known, **told)
        finally:
            GOES_ON.reset(token)

    def kept(self) -> dict[str, Any]:
        if self.last is None:
            return {"belief": _written(self.belief, self.previous)}
        before, row, known = self.last
        last = {
            "belief": _written(before["start"], before.get("previous")), "row": _as_json(torch.as_tensor(row)),
            "known": {name: _rows_as_json(value) for name, value in known.items()},
        }  # fmt: skip
        if "gaps" in before:
            last["gaps"] = _as_json(before["gaps"])
        return {"belief": _written(self.belief, self.previous), "last": last}

    def take(self, kept: Mapping[str, Any]) -> None:
        last, end = kept.get("last"), self._belief_of(kept["belief"])
        if last is not None:
            self.belief, self.previous = self._belief_of(last["belief"])
            known = {name: _as_rows(value) for name, value in last["known"].items()}
            self.model._check_names(known)
            gaps = last.get("gaps")
            self._read(_as_tensor(last["row"]), known, None if gaps is None else _as_tensor(gaps))
        self.belief, self.previous = end

    def _belief_of(self, parts: Any) -> tuple[Any, Tensor | None]:
        """A belief and what is fed back, as they were written."""
        if parts is None:
            return None, None
        kind = GaussianBelief if len(parts) == 3 else Belief
        found: list[Any] = [None if part is None else _as_tensor(part) for part in parts]
        belief = kind(*found[:-1])
        numbers = belief if isinstance(belief, GaussianBelief) else (belief.log_probs,)
        if any(part is None or not part.is_floating_point() or bool(part.isnan().any()) for part in numbers):
            raise ValueError("its belief holds what are no numbers")
        self.model._check_start(belief, 1)
        return belief, found[-1]


TYPES = {str(each): each for each in (torch.float32, torch.float64, torch.int64, torch.int32)}


def _as_json(part: Any) -> dict[str, Any]:
    if isinstance(part, np.ndarray):  # times, which may be dates
        return {"dtype": part.dtype.str, "value": (part.view(np.int64) if part.dtype.kind in "mM" else part).tolist()}
    return {"dtype": str(part.dtype), "value": part.tolist()}


def _as_tensor(part: Mapping[str, Any]) -> Any:
    if part["dtype"] not in TYPES:
        return np.array(part["value"], dtype=np.int64 if part["dtype"][1] in "mM" else None).astype(part["dtype"])
    return torch.tensor(part["value"], dtype=TYPES[part["dtype"]])


def _rows_as_json(rows: Any) -> dict[str, Any]:
    """What is known of a step, of each part where there are several."""
    if isinstance(rows, Mapping):
        return {"parts": {part: _as_json(own[0]) for part, own in rows.items()}}
    return _as_json(rows[0])


def _as_rows(part: Mapping[str, Any]) -> Any:
    return {name: [_as_tensor(own)] for name, own in part["parts"].items()} if "parts" in part else [_as_tensor(part)]


def _written(belief: Any, previous: Tensor | None) -> Any:
    return None if belief is None else [None if part is None else _as_json(part) for part in (*belief, previous)]


def vector_row(x: Any, size: int) -> Any:
    vector = numbers_of(x, size)
    return torch.full((1, size), torch.nan, dtype=torch.float64) if vector is None else torch.from_numpy(vector).unsqueeze(0)


def as_row(value: Any) -> Tensor:
    """What is known of a step as a row of one step."""
    return torch.from_numpy(np.array(value, order="C")).unsqueeze(0)  # of a column of a frame also the strides are its own


def inputs_in_order(given: Any, names: Sequence[str] | None) -> Any:
    """Inputs of a step, those with names (a mapping, or a row of a frame) in the order of the fit."""
    if hasattr(given, "to_dict") and hasattr(given, "index"):
        there = [*given.index]
        if names is None or not any(isinstance(each, str) for each in there):
            return np.asarray(given, dtype=np.float64)
    elif not isinstance(given, Mapping):
        return given
    else:
        there = [*given]
        if names is None:
            raise ValueError(f"inputs: the model was fitted to numbers without names, got {checks.shown(there)}; give numbers")
    if absent := [name for name in names if name not in there]:
        raise ValueError(
            f"inputs: nothing is called {absent[0]!r}, and the model was fitted to {', '.join(names)}; got "
            f"{checks.shown(there)}"
        )
    return np.array([given[name] for name in names], dtype=np.float64)


def dense_states(belief: Belief, num_states: int) -> np.ndarray:
    probs = belief.log_probs.exp().reshape(-1).double()
    if belief.ids is None:
        return probs.numpy()
    return torch.zeros(num_states, dtype=probs.dtype).index_put((belief.ids.reshape(-1),), probs, accumulate=True).numpy()
