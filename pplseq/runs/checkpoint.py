"""Checkpoints of trainings: what it takes to go on to the same numbers, beside the model that a folder holds.

Layout of `RUN/last`::

    config.json, model.safetensors, ...   what `model.save` writes, so the folder loads as a model
    training.safetensors                  parameters, optimizer moments, carried belief, random state
    training.json                         counters and schedules; checksums of all files
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pplseq.distributions.drawing import random_state, set_random_state
from pplseq.files import locked, make_folder
from pplseq.folder import FolderError, FolderKind, check_finite
from pplseq.infer.fit.held import retake
from pplseq.runs.settings import Progress
from pplseq.runs.status import LOCK

_HELD: set[tuple[Path, int]] = set()  # folders and the threads that train there

PROGRESS = {f"{name}?": type(value) for name, value in asdict(Progress()).items()}
TRAINING = FolderKind(
    "pplseq-training", 2, header="training.json", tensors="training.safetensors", what="training checkpoint",
    again="resume from another checkpoint, or train again from the start",
    schema={"about?": dict, "state": {"progress?": PROGRESS}},
)  # fmt: skip


def check_numbers(tensors: Mapping[str, Tensor], state: Mapping[str, Any], folder: Path, *, dropped: bool = False) -> None:
    """Refuse a checkpoint from which a training would go on to wrong numbers.

    Args:
        tensors: none may hold NaN or +inf, which no weight, logit, belief or moment is, those of an optimizer no -inf either.
        state: from JSON; no NaN anywhere, and in `progress` nothing infinite but the best loss before there is one.
        dropped: the training keeps restarts that it drops for their NaN; then only `progress` is looked at.

    Raises:
        FolderError: naming what is not finite.
    """
    again = f"the run was spoilt before this was saved; {TRAINING.again}"
    for name, value in () if dropped else tensors.items():
        if value.is_floating_point():
            bad = ~torch.isfinite(value) if name.startswith("optimizer.") else torch.isnan(value) | (value == torch.inf)
            if bool(bad.any()):
                raise FolderError(f"{folder}: the checkpoint: {name} holds values that are not finite; {again}")
    for name, value in _floats(state["progress"] if dropped else state):
        if math.isnan(value):
            raise FolderError(f"{folder}: the checkpoint: {name} is not a number; {again}")
    for name, value in _floats(state["progress"]):
        if math.isinf(value) and name != "best":
            raise FolderError(f"{folder}: the checkpoint: progress.{name} is {value}; {again}")


def _floats(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Numbers with a point in what JSON holds, with their names."""
    if isinstance(value, float):
        yield name, value
    elif isinstance(value, (Mapping, list)):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _floats(part, f"{name}.{key}" if name else str(key))


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Split an optimizer's state into named tensors and JSON-able parameter groups."""
    state = optimizer.state_dict()
    tensors = {
        f"optimizer.{index}.{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for index, moments in state["state"].items()
        for key, value in moments.items()
    }
    return tensors, state["param_groups"]


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], groups: list[dict[str, Any]]
) -> None:
    """Inverse of `flatten_optimizer`, onto an optimizer over the same parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = tensor
    # JSON turns tuples (betas) into lists.
    groups = [{key: tuple(value) if key == "betas" else value for key, value in group.items()} for group in groups]
    try:
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except (ValueError, KeyError) as error:
        raise FolderError(f"the checkpoint's optimizer state is of another model: {error}") from error


def named_weights(module: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each shared one once (safetensors refuses shared storage)."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def restore_weights(module: torch.nn.Module, tensors: dict[str, Tensor], prefix: str = "weights.") -> None:
    """Copy `prefix`-named tensors into a module's parameters and buffers, in place.

    Raises:
        FolderError: when a name is absent, a shape differs or a weight is not finite.
    """
    saved = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    weights = named_weights(module)
    if missing := sorted(weights.keys() ^ saved.keys()):
        raise FolderError(
            f"the checkpoint is of another model: {', '.join(missing[:5])} on one side only; "
            "build the model it was saved from"
        )
    for name, tensor in weights.items():
        if tensor.shape != saved[name].shape:
            raise FolderError(
                f"the checkpoint is of another model: {name} has shape {tuple(saved[name].shape)} there and "
                f"{tuple(tensor.shape)} here; build the model it was saved from"
            )
    check_finite(saved, "the checkpoint")
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(saved[name])
    retake(module.parameters())


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The random generators that this thread draws from, as tensors of a checkpoint."""
    return {f"random.{kind}": random_state(place) for kind, place in _places(device).items()}


def restore_random_states(tensors: dict[str, Tensor], device: torch.device) -> None:
    """Inverse of `random_states`."""
    for kind, place in _places(device).items():
        if f"random.{kind}" in tensors:
            set_random_state(place, tensors[f"random.{kind}"])


def _places(device: torch.device) -> dict[str, torch.device]:
    return {"cpu": torch.device("cpu")} | ({"cuda": device} if device.type == "cuda" else {})


def is_held_here(folder: Path) -> bool:
    """Whether this thread keeps others out of a run's folder: a command is around that says when the run is finished."""
    return (folder.resolve(), threading.get_ident()) in _HELD


@contextlib.contextmanager
def only_one_run(folder: Path, *, within: bool = False) -> Iterator[None]:
    """Keeps a second process out of a run's folder, which two would spoil for each other; one that died holds nothing.

    Args:
        within: nothing is done where this thread keeps others out already: a command does around the loop, which does too.

    Raises:
        ValueError: if another process is training there.
    """
    make_folder(folder)
    if within and is_held_here(folder):
        yield
        return
    key = folder.resolve(), threading.get_ident()
    busy = f"{folder}: another process is training there (process {{pid}}); wait for it, or choose another folder"
    with locked(folder / LOCK, busy):
        _HELD.add(key)
        try:
            yield
        finally:
            _HELD.discard(key)
