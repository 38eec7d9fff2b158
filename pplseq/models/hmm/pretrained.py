"""HMMs that others have trained and given away, as folders of weights: those of Ctrl-G."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pplseq import checks

NAMES = ("alpha_exp", "beta", "gamma")  # probabilities of moves, logs of words, logs of starts
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLE = ("model.safetensors", "pytorch_model.bin")
NEAR = 1e-4  # by which rows of float32 may miss a sum of one without a word


def read_pretrained(folder: str | Path) -> tuple[Tensor, Tensor, Tensor]:
    """Start (Z,), moves (Z, Z) and words (Z, V) as log-probabilities in single precision, of a folder of weights.

    Raises:
        ValueError: for other names or shapes, rows that are no distributions, and what only unpickling would read.
        FileNotFoundError: no weights there. MemoryError: they are more than the memory that is free.
    """
    folder = Path(folder)
    files, places = _files(folder)
    size = sum(file.stat().st_size for file in set(files))
    # as read, as logs, and a product of two
    checks.fits("folder", 3.0 * size, "free some memory, or take an HMM of fewer states")
    found: dict[str, Tensor] = {}
    for file in dict.fromkeys(files):
        found |= {name.rpartition(".")[2]: value for name, value in _tensors(file, places).items()}
    if missing := [name for name in NAMES if name not in found]:
        raise ValueError(
            f"{folder}: expected tensors {', '.join(NAMES)} of an HMM; {', '.join(missing)} not there, but "
            f"{checks.shown(sorted(found))}"
        )
    moves, words, start = (found[name].float() for name in NAMES)
    if moves.dim() != 2 or words.dim() != 2:
        raise ValueError(
            f"{folder}: expected one matrix of moves and one of words, got shapes {tuple(moves.shape)} and "
            f"{tuple(words.shape)}; products of block-sparse matrices (Monarch) are not read"
        )
    num_states = len(moves)
    start = start.reshape(-1) if start.numel() == num_states else start
    if moves.shape != (num_states, num_states) or len(words) != num_states or start.shape != (num_states,):
        raise ValueError(
            f"{folder}: sizes do not fit together: alpha_exp {tuple(moves.shape)}, beta {tuple(words.shape)}, gamma "
            f"{tuple(start.shape)}; expected (Z, Z), (Z, V), (Z,)"
        )
    if not bool((moves >= 0).all()):
        raise ValueError(f"{folder}: alpha_exp must hold probabilities, and has negative numbers or NaN")
    return _rows("gamma", start, folder), _rows("alpha_exp", moves.log(), folder), _rows("beta", words, folder)


def _rows(name: str, logs: Tensor, folder: Path) -> Tensor:
    """Log-probabilities whose rows sum to one."""
    total = logs.logsumexp(-1, keepdim=True)
    if not bool(total.isfinite().all()):
        raise ValueError(f"{folder}: {name} has a row that is no distribution (it sums to 0, or holds NaN)")
    if (off := float((total.exp() - 1).abs().max())) > NEAR:
        warnings.warn(
            f"{folder}: a row of {name} sums to one only within {off:.2g}; rows are divided by their sums", RuntimeWarning,
            stacklevel=4,
        )  # fmt: skip
    return logs - total


def _files(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """Files of weights, and of shards which tensor is in which."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; download the weights first (huggingface_hub.snapshot_download)")
    for name in INDICES:
        if not (folder / name).is_file():
            continue
        try:
            places = json.loads((folder / name).read_text(encoding="utf-8"))["weight_map"]
            shards = [*places.values()]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{folder / name}: expected an index of shards with a weight_map, got something else") from None
        if odd := [shard for shard in shards if not isinstance(shard, str) or Path(shard).name != shard]:
            raise ValueError(f"{folder / name}: shards must be files of this folder, got {checks.shown(odd[0])}")
        if gone := [shard for shard in shards if not (folder / shard).is_file()]:
            raise FileNotFoundError(f"{folder}: shard {gone[0]} is not there")
        return [folder / shard for shard in shards], places
    for name in SINGLE:
        if (folder / name).is_file():
            return [folder / name], None
    raise FileNotFoundError(f"{folder}: no weights there; expected {', '.join((*SINGLE, *INDICES))}")


def _tensors(file: Path, places: dict[str, str] | None) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)  # runs no code of the file
    except pickle.UnpicklingError:
        raise ValueError(
            f"{file}: holds more than tensors, and reading it would run code of whoever made it; ask for safetensors"
        ) from None
    except Exception as error:
        raise ValueError(f"{file}: cannot be read as weights ({checks.shown(str(error))})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file}: expected tensors by name, got {type(found).__name__}")
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    if places is not None:
        tensors = {name: value for name, value in tensors.items() if places.get(name) == file.name}
    return tensors
