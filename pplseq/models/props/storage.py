"""A stream's state as a folder: statistics and settings, no text. And the union of several users' streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from pplseq import checks
from pplseq.folder import FolderError, check_content, sound
from pplseq.models.props.gaussian_statistics import GaussianStatistics
from pplseq.models.props.online_em import StreamState, shared_table
from pplseq.models.props.settings import OnlineEM
from pplseq.models.props.word_statistics import ColdWords, WordStatistics
from pplseq.models.storage import MODEL

KIND = "props stream"
FLAGS = ("num_steps", "clock", "fresh", "detached", "total_weight")
COLD_ARRAYS = ("values", "sums", "corrections")


def save_stream(state: StreamState, folder) -> Path:
    """Writes a stream as a folder (config.json, model.safetensors), whole or not at all.

    It holds filter, parameters and expected statistics: which words came and how often, in which state, but not in which
    order (except for the few whose posterior is not settled, in the order in which they came).
    """
    header, arrays = pack_stream(state)
    return MODEL.write(folder, {"model": KIND, **header}, tensors=as_tensors(arrays))


def load_stream(folder) -> StreamState:
    """Reads a stream; the next step gives what it would have given before.

    Raises:
        FileNotFoundError: if there is none. ValueError: if it is damaged or something else.
    """
    header, tensors, *_ = MODEL.read(folder)
    check_kind(header, KIND, folder)
    return unpack_checked(header, {name: value.numpy() for name, value in tensors.items()}, folder)


def check_kind(header: dict, kind: str, folder) -> None:
    """Raises ValueError unless the folder holds what is looked for."""
    if header.get("model") != kind:
        raise FolderError(f"{folder}: holds {header.get('model')!r}, expected {checks.shown(kind)}")


def as_tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Copies for a safetensors file."""
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def unpack_checked(header: dict, arrays: dict[str, np.ndarray], folder) -> StreamState:
    """The stream of :func:`pack_stream`; ValueError naming the folder if parts do not fit together."""
    with sound(f"{folder}: its parts do not fit together"):
        return unpack_stream(header, arrays)


def pack_stream(state: StreamState) -> tuple[dict, dict[str, np.ndarray]]:
    """A JSON-able header and arrays."""
    arrays = {
        name: getattr(state, name)
        for name in ("first_initial", "initial", "first_transition", "transition", "filter", "rho", "rows")
    }
    if state.sums is not None:
        arrays["sums"] = state.sums
    header = {"options": asdict(state.options), **{name: getattr(state, name) for name in FLAGS}}
    own = state.emissions
    if isinstance(own, GaussianStatistics):
        header |= {"emission": "gaussian", "full": own.full, "floor": own.floor}
        arrays |= {"loc": own.start[0], "covariances": own.start[1]}
        arrays["center"] = np.zeros(0) if own.center is None else own.center
        return header, arrays
    header |= {"emission": "words", "num_words": own.num_words, "num_own": own.num_own, "capacity": own.capacity}
    header |= {"residual": own.residual, "scale": own.cold.scale, "weighted": own.cold.weighted}
    seen = len(own.cold.places)
    arrays["cold_words"] = np.array(list(own.cold.places), dtype=np.int64)
    arrays["hot"] = np.array(list(own.hot), dtype=np.int64).reshape(-1, 2)
    arrays["free"] = np.array(own.free, dtype=np.int64)
    for name in COLD_ARRAYS if own.cold.averaging else COLD_ARRAYS[:1]:
        arrays[f"cold_{name}"] = getattr(own.cold, name)[:seen]
    if not state.maximized:  # afterwards nobody reads it
        arrays["table"] = own.table
    return header, arrays


def unpack_stream(header: dict, arrays: dict[str, np.ndarray]) -> StreamState:
    """The stream of :func:`pack_stream`."""
    options = OnlineEM(**header["options"])
    num_states = len(arrays["initial"])
    averaging = options.averaging is not None
    if header["emission"] == "gaussian":
        loc, covariances = arrays["loc"], arrays["covariances"]
        own = GaussianStatistics(loc, covariances, num_states - len(loc), header["full"], header["floor"])
        center = arrays["center"] if "center" in arrays else loc.mean(0)  # that of folders which do not say it
        if center.shape not in ((0,), loc.shape[1:]):
            raise ValueError(f"center has shape {center.shape}, expected {loc.shape[1:]}")
        own.center = np.array(center) if len(center) else None
    else:
        shape = (header["num_own"], header["num_words"])
        if not 0 < shape[0] <= num_states or header["capacity"] != len(arrays["hot"]) + len(arrays["free"]):
            raise ValueError("num_own or capacity is not that of its arrays")
        table = shared_table(arrays["table"]) if "table" in arrays else np.broadcast_to(1 / shape[1], shape)
        own = WordStatistics(table, num_states - shape[0], options.smoothing, options.window, averaging)
        own.capacity, own.residual, own.free = header["capacity"], header["residual"], arrays["free"].tolist()
        own.hot = deque((int(word), int(slot)) for word, slot in arrays["hot"])
        for word, slot in own.hot:
            own.slots.setdefault(word, []).append(slot)
        own.cold = _cold(header, arrays, averaging)
    state = StreamState(arrays["first_initial"], arrays["first_transition"], own, options)
    for name in ("rho", "rows", *(("sums",) if averaging else ())):
        if arrays[name].shape != getattr(state, name).shape:
            raise ValueError(f"{name} has shape {arrays[name].shape}, expected {getattr(state, name).shape}")
        setattr(state, name, np.array(arrays[name]))
    for name in ("initial", "transition", "filter"):
        setattr(state, name, np.array(arrays[name]))
    for name in FLAGS:
        setattr(state, name, header[name])
    _check_numbers(state, header, arrays)
    own.smoothing = options.smoothing_at(state.num_steps)
    return state


def _check_numbers(state: StreamState, header: dict, arrays: dict[str, np.ndarray]) -> None:
    """Raises ValueError for what a stream never holds: its file was changed."""
    for name in ("first_initial", "initial", "first_transition", "transition", "filter"):
        value, shape = arrays[name], (state.num_states,) * (2 if "transition" in name else 1)
        if value.shape != shape or not (value >= 0).all() or not (abs(value.sum(-1) - 1) < 1e-4).all():
            raise ValueError(f"{name} does not hold probabilities of {state.num_states} states")
    for name in ("rho", "rows", "sums", "loc", "covariances", "center", *(f"cold_{name}" for name in COLD_ARRAYS)):
        if name in arrays and not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} holds numbers that are not finite")
    for name in ("num_steps", "clock"):
        if isinstance(header[name], bool) or not isinstance(header[name], int) or header[name] < 0:
            raise ValueError(f"{name} is {header[name]!r}")
    check_content(header, {"fresh": bool, "detached": bool, "total_weight": float}, "config.json", "the file is damaged")
    if state.sums is None and header["total_weight"]:
        raise ValueError(f"total_weight is {header['total_weight']!r}, and nothing is averaged")
    if header["emission"] == "gaussian":
        return
    for name in ("residual", "scale", "weighted"):
        if not isinstance(header[name], (int, float)):
            raise ValueError(f"{name} is {header[name]!r}")
    seen = np.concatenate([arrays["cold_words"], arrays["hot"][:, 0]])
    if seen.size and not 0 <= seen.min() <= seen.max() < header["num_words"]:
        raise ValueError(f"words outside of 0..{header['num_words'] - 1}")
    slots = np.concatenate([arrays["free"], arrays["hot"][:, 1]])
    if not np.array_equal(np.sort(slots), np.arange(header["capacity"])):
        raise ValueError("slots of words are taken twice, or missing")


def _cold(header: dict, arrays: dict[str, np.ndarray], averaging: bool) -> ColdWords:
    cold = ColdWords(header["num_own"], averaging)
    for word in arrays["cold_words"].tolist():
        cold.place(word)
    for name in COLD_ARRAYS if averaging else COLD_ARRAYS[:1]:
        getattr(cold, name)[: len(cold.places)] = arrays[f"cold_{name}"]
    cold.scale, cold.weighted = header["scale"], header["weighted"]
    return cold


def merge_streams(states: Sequence[StreamState]) -> StreamState:
    """One stream that has learned from several users: statistics weighted by tokens, S = sum_u n_u S_u / sum_u n_u.

    The result begins a new sequence and goes on with the step size after all tokens together. Words after which nothing
    more came count with what their users knew of them.

    Raises:
        ValueError: for no streams, or streams of different sizes, options or first parameters.
    """
    states = list(states)
    if not states:
        raise ValueError("states: nothing to merge, got none")
    first = states[0]
    words = isinstance(first.emissions, WordStatistics)
    for k, state in enumerate(states[1:], 1):
        same = state.options == first.options and state.num_states == first.num_states
        same = same and np.array_equal(state.first_initial, first.first_initial)
        same = same and np.array_equal(state.first_transition, first.first_transition)
        own: Any = state.emissions
        theirs: Any = first.emissions
        same = same and type(own) is type(theirs) and state.num_own == first.num_own
        if words:
            same = same and own.num_words == theirs.num_words
        else:
            same = same and (own.full, own.floor) == (theirs.full, theirs.floor)
            same = same and all(map(np.array_equal, own.start, theirs.start))
        if not same:
            raise ValueError(
                f"states: stream {k} has other sizes, options or first parameters than stream 0; start them alike"
            )
    total = sum(state.num_steps for state in states)
    if total == 0:
        return first.copy()
    result = _empty_like(first)
    result.num_steps, result.detached = total, True
    result.clock = total
    result.emissions.smoothing = first.options.smoothing_at(total)
    result.total_weight = sum(state.total_weight for state in states)
    if not words:
        centers = [state.emissions.center for state in states if state.emissions.center is not None]
        result.emissions.center = np.mean(centers, 0) if centers else None
    for state in states:
        share = state.num_steps / total
        result.rows[: _settled(result)] += share * _rows(state, state.rows, result)
        if result.sums is not None and state.sums is not None:  # means weighted by tokens, as the statistics
            per_step = share * result.total_weight / state.total_weight if state.total_weight else 0.0
            result.sums[: _settled(result)] += per_step * _rows(state, state.sums, result)
        if words:
            _merge_words(result, state, share)
            result.emissions.residual = max(result.emissions.residual, state.residual)
    if result.moves_learned:
        result.initial, result.transition = result.maximal_moves(result.rows, first.initial, first.transition)
    return result


def _rows(state: StreamState, rows: np.ndarray, result: StreamState) -> np.ndarray:
    """Those that are not words, of vectors about the center of the result."""
    own, fixed = state.emissions, state.num_fixed
    if not isinstance(own, GaussianStatistics):
        return rows[: _settled(state)]
    return np.concatenate([rows[:fixed], own.about(result.emissions.center, rows[fixed:])])


def _settled(state: StreamState) -> int:
    """Rows that are not words."""
    if isinstance(state.emissions, GaussianStatistics):
        return len(state.rows)
    return state.num_fixed + state.num_own


def _empty_like(state: StreamState) -> StreamState:
    own = state.emissions
    if isinstance(own, GaussianStatistics):
        own = GaussianStatistics(*own.start, own.num_sources, own.full, own.floor)
    else:
        averaging = state.options.averaging is not None
        own = WordStatistics(own.table, own.num_sources, own.smoothing, own.window, averaging)
    return StreamState(state.first_initial, state.first_transition, own, state.options)


def _merge_words(result: StreamState, state: StreamState, share: float) -> None:
    """Adds a stream's words to the cold ones of another."""
    own: Any = state.emissions
    cold = cast(WordStatistics, result.emissions).cold
    words, counts = own.counts(state.rows[state.num_fixed :], None)
    means = counts * 0
    if result.sums is not None and state.sums is not None and state.total_weight > 0:
        means = own.counts(state.sums[state.num_fixed :] / state.total_weight, state.total_weight)[1]
    for word, count, mean in zip(words.tolist(), share * counts, share * result.total_weight * means, strict=True):
        cold.add(word, count, mean if result.sums is not None else None)
