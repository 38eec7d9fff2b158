"""HMMs that others have trained and given away, as folders of weights: those of Ctrl-G, and Monarch HMMs."""

from __future__ import annotations

import json
import math
import pickle
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq import checks

# probabilities of moves (alpha_exp.weights_exp.0, .1, ... of a product), logs of words, logs or probabilities of starts
NAMES = ("alpha_exp", "beta", "gamma or gamma_exp")
FACTOR = re.compile(r"(?:.*\.)?(alpha_exp\.weights_exp\.\d+)")
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLE = ("model.safetensors", "pytorch_model.bin")
IMPOSSIBLE = -1e9  # logs below stand for a probability of zero
NEAR = 1e-4  # by which rows of float32 may miss a sum of one without a word
FAR = 0.1  # by which those of half precision do not miss it: these are other numbers, probabilities in the place of logs, say


class Pretrained(NamedTuple):
    """Log-probabilities in single precision: start (Z,), words (Z, V), and moves: one table (Z, Z), or those of a product as
    :class:`~pplseq.distributions.product.ProductTransition` has them, with its sizes."""

    start: Tensor
    moves: list[Tensor]
    words: Tensor
    sizes: tuple[int, ...] | None


def read_pretrained(folder: str | Path) -> Pretrained:
    """The HMM of a folder of weights.

    Raises:
        ValueError: for other names or shapes, rows that are no distributions, and what only unpickling would read.
        FileNotFoundError: no weights there.
    """
    folder = Path(folder)
    files, places = _files(folder)
    size = sum(file.stat().st_size for file in set(files))
    # as read, as logs, and a product of two
    checks.fits("folder", 3.0 * size, "free some memory, or take an HMM of fewer states")
    found: dict[str, Tensor] = {}
    for file in dict.fromkeys(files):
        for name, value in _tensors(file, places).items():
            factor = FACTOR.fullmatch(name)
            found[name.rpartition(".")[2] if factor is None else factor[1]] = value
    factors = sorted((name for name in found if "." in name), key=lambda name: int(name.rpartition(".")[2]))
    starts = [name for name in ("gamma", "gamma_exp") if name in found]
    there = bool(factors) or "alpha_exp" in found, "beta" in found, bool(starts)
    if missing := [name for name, is_there in zip(NAMES, there, strict=True) if not is_there]:
        raise ValueError(
            f"{folder}: expected tensors {', '.join(NAMES)} of an HMM; {', '.join(missing)} not there, but "
            f"{checks.shown(sorted(found))}"
        )
    names = factors or ["alpha_exp"]
    moves, words, start = [found[name].float() for name in names], found["beta"].float(), found[starts[0]].float()
    start = start.reshape(-1) if start.numel() == words[..., :1].numel() else start
    sizes = tuple(len(one[0]) for one in moves) if factors and all(one.dim() == 3 for one in moves) else None
    num_states = start.numel() if sizes is None else math.prod(sizes)
    shapes = [(num_states,) * 2] if sizes is None else [(num_states // size, size, size) for size in sizes]
    fit = [tuple(one.shape) for one in moves] == shapes and words.dim() == 2 and start.shape == words.shape[:1] == (num_states,)
    if not fit or sizes is not None and len(sizes) < 2:
        got = ", ".join(f"{name} {tuple(found[name].shape)}" for name in (*names, "beta", starts[0]))
        raise ValueError(
            f"{folder}: sizes do not fit together: {got}; expected (Z, Z), (Z, V), (Z,), or of a Monarch HMM of "
            "m n = Z states factors (n, m, m) and (m, n, n)"
        )
    for name, value in (*zip(names, moves, strict=True), *([("gamma_exp", start)] if starts[0] == "gamma_exp" else [])):
        if not bool((value >= 0).all()):
            raise ValueError(f"{folder}: {name} must hold probabilities, and has negative numbers or NaN")
    start = start.log() if starts[0] == "gamma_exp" else start
    if sizes is not None:
        moves = [_turned(one, place, sizes) for place, one in enumerate(moves)]
        start, words, sizes = _reversed(start, sizes), _reversed(words, sizes), sizes[::-1]
    tables = [_rows(name, table.log(), folder) for name, table in zip(names, moves, strict=True)]
    return Pretrained(_rows(starts[0], start, folder), tables, _rows("beta", words, folder), sizes)


def _reversed(value: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """(Z, ...) by states whose coordinates stand in the opposite order: of a Monarch HMM the first one moves first."""
    order = range(len(sizes))
    return value.reshape(*sizes, -1).permute(*order[::-1], len(sizes)).reshape(value.shape)


def _turned(table: Tensor, place: int, sizes: tuple[int, ...]) -> Tensor:
    """The table of a coordinate with the others in the opposite order; in the file they are those behind it, then those
    before."""
    behind, before = sizes[place + 1 :], sizes[:place]
    last = len(sizes) - 1
    order = (*range(len(behind))[::-1], *range(len(behind), last)[::-1])
    return table.reshape(*behind, *before, *table.shape[1:]).permute(*order, last, last + 1).reshape(table.shape)


def _rows(name: str, logs: Tensor, folder: Path) -> Tensor:
    """Log-probabilities whose rows sum to one."""
    logs = logs.masked_fill(logs < IMPOSSIBLE, -torch.inf)
    total = logs.logsumexp(-1, keepdim=True)
    if not bool(total.isfinite().all()):
        raise ValueError(f"{folder}: {name} has a row that is no distribution (it sums to 0, or holds NaN)")
    off = float((total.exp() - 1).abs().max())
    if off > FAR:
        raise ValueError(
            f"{folder}: rows of {name} must be distributions, and one misses a sum of one by {off:.2g}; expected probabilities "
            "in alpha_exp and gamma_exp, their logs in beta and gamma"
        )
    if off > NEAR:
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
