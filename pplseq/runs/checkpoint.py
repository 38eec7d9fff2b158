"""Checkpoints: folders that are either whole or absent, with tensors in safetensors and everything else in JSON.

A folder is written beside its final place and then swapped in, so a crash, a signal or a full disk in the middle of a
save leaves the previous one as it was. Nothing is pickled: a checkpoint from a stranger can be wrong, but it cannot run
code.

Layout of a training checkpoint (`RUN/last`)::

    config.json, model.safetensors, ...   what `model.save` writes, so the folder loads as a model
    training.safetensors                  parameters, optimizer moments, carried belief, random state
    training.json                         format, version, size and CRC-32 of the tensors, counters, schedules
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

FORMAT = "pplseq-training"
VERSION = 1
USE_ANOTHER = "resume from another checkpoint, or train again from the start"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read: absent, cut short, of another program, or of another model."""


class SaveError(OSError):
    """A checkpoint that could not be written (full disk, no permission); the previous one is untouched."""


def replace_folder(folder: str | Path, write: Callable[[Path], None]) -> None:
    """Write a folder beside `folder`, then swap it in.

    Args:
        folder: where the folder has to end up; an existing one is replaced.
        write: fills the (new, empty) folder it is given.

    Raises:
        SaveError: when writing failed; `folder` is then what it was before.
    """
    folder = Path(folder)
    new, old = _beside(folder, "new"), _beside(folder, "old")
    try:
        recover_folder(folder)
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        write(new)
        _flush_to_disk(new)
        if folder.exists():
            os.rename(folder, old)
        os.rename(new, folder)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        # safetensors reports a full disk as its own exception type, with the cause only in its text.
        shutil.rmtree(new, ignore_errors=True)
        recover_folder(folder)
        kept = "the previous checkpoint there is whole" if folder.exists() else "nothing was left behind there"
        raise SaveError(
            f"could not save {folder}: {error}; {kept}. Free space (or choose another folder) and resume"
        ) from error


def recover_folder(folder: str | Path) -> None:
    """Put back a folder whose replacement was cut off between the two renames of `replace_folder`."""
    folder = Path(folder)
    old = _beside(folder, "old")
    if old.exists():
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(old, folder)


def save_training(folder: str | Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write `training.safetensors` and `training.json` into an existing folder.

    Args:
        folder: normally the new folder that `replace_folder` hands over.
        tensors: name -> tensor, on any device.
        state: JSON-able values; floats survive bit for bit.
    """
    folder = Path(folder)
    path = folder / "training.safetensors"
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    data = path.read_bytes()
    header = {"format": FORMAT, "version": VERSION, "bytes": len(data), "crc32": zlib.crc32(data)}
    (folder / "training.json").write_text(json.dumps({**header, "state": state}, indent=1), encoding="utf-8")


def load_training(folder: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_training` wrote.

    Returns:
        (tensors on the CPU, state).

    Raises:
        CheckpointError: naming the file that is absent, cut short or foreign.
    """
    folder = Path(folder)
    recover_folder(folder)
    header_path, path = folder / "training.json", folder / "training.safetensors"
    for needed in (header_path, path):
        if not needed.is_file():
            raise CheckpointError(
                f"{folder} is not a training checkpoint: it has no {needed.name}; give a run that `pplseq train` wrote"
            )
    try:
        header = json.loads(header_path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{header_path} is cut short or is not JSON ({error}); {USE_ANOTHER}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise CheckpointError(f'{header_path} was written by another program: expected "format": "{FORMAT}"')
    if header.get("version") != VERSION:
        raise CheckpointError(
            f"{header_path} has version {header.get('version')}, this library reads version {VERSION}; "
            "use the release that wrote it"
        )
    data = path.read_bytes()
    if len(data) != header.get("bytes"):
        raise CheckpointError(
            f"{path} is cut short: expected {header.get('bytes')} bytes, found {len(data)}; {USE_ANOTHER}"
        )
    if zlib.crc32(data) != header.get("crc32"):
        raise CheckpointError(f"{path} is damaged: its checksum is not the one in training.json; {USE_ANOTHER}")
    return load_file(path), header["state"]


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
        raise CheckpointError(f"the checkpoint's optimizer state is of another model: {error}") from error


def named_weights(module: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each shared one once (safetensors refuses shared storage)."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def restore_weights(module: torch.nn.Module, tensors: dict[str, Tensor], prefix: str = "weights.") -> None:
    """Copy `prefix`-named tensors into a module's parameters and buffers, in place.

    Raises:
        CheckpointError: when a name is absent or a shape differs.
    """
    saved = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    weights = named_weights(module)
    if missing := sorted(weights.keys() ^ saved.keys()):
        raise CheckpointError(
            f"the checkpoint is of another model: {', '.join(missing[:5])} on one side only; "
            "build the model it was saved from"
        )
    for name, tensor in weights.items():
        if tensor.shape != saved[name].shape:
            raise CheckpointError(
                f"the checkpoint is of another model: {name} has shape {tuple(saved[name].shape)} there and "
                f"{tuple(tensor.shape)} here; build the model it was saved from"
            )
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(saved[name])


def _beside(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{kind}")


def _flush_to_disk(folder: Path) -> None:
    """fsync every file: without it a power cut after the rename can leave empty files behind a new name."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDWR)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def only_one_run(folder: Path) -> Iterator[None]:
    """Keeps a second process out of a run's folder, which two would spoil for each other.

    Raises:
        ValueError: if another process is training there.
    """
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        folder.mkdir(parents=True, exist_ok=True)
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{folder}: another process is training there; wait for it, or choose another folder") from None
        try:
            yield
        finally:  # where the process dies, the lock goes with it, and the empty file does no harm
            (folder / ".lock").unlink(missing_ok=True)
