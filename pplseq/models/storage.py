"""Models as folders: config.json, model.safetensors, vocab.txt, clusters.paths. Nothing is pickled."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

FORMAT, VERSION = "pplseq", 1


def save_model(model, folder) -> Path:
    """Writes a model as a folder, whole or not at all: an existing folder stays as it was until the new one is complete.

    Its ``vocabulary`` and ``clusters`` are written beside it where it has them.

    Args:
        model: a :class:`~pplseq.models.base.SequenceModel`, or anything else with name, config and state dict.
        folder: where to.

    Raises:
        OSError: if the disk does not take it; the old folder, if any, is still there.
    """
    from pplseq.data.clustering import write_paths

    def more(folder: Path) -> None:
        if model.vocabulary is not None:
            model.vocabulary.save(folder / "vocab.txt")
        if model.clusters is not None:
            if model.vocabulary is None:
                raise ValueError("clusters: they are written by word, so set model.vocabulary too")
            write_paths(folder / "clusters.paths", model.clusters, model.vocabulary)

    return write_folder(folder, {"model": model.name, "config": model.config}, model.state_dict(), more)


def write_folder(folder, header: dict, tensors: dict, more: Callable[[Path], None] | None = None) -> Path:
    """Writes config.json (a header) and model.safetensors, and what `more(folder)` writes beside them: all or nothing."""
    folder = Path(folder)
    tensors = {name: value.detach().contiguous().cpu().clone() for name, value in tensors.items()}
    shapes = {name: list(value.shape) for name, value in tensors.items()}
    header = {"format": FORMAT, "version": VERSION, **header, "shapes": shapes}
    folder.parent.mkdir(parents=True, exist_ok=True)
    new, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir()
        (new / "config.json").write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")
        try:
            save_file(tensors, str(new / "model.safetensors"))
        except SafetensorError as error:  # a full disk, say
            raise OSError(f"{folder} could not be written ({error}); make room, or choose another folder") from error
        if more is not None:
            more(new)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
    os.replace(new, folder)
    shutil.rmtree(old, ignore_errors=True)
    return folder


def read_model(folder, device: str | torch.device = "cpu"):
    """The model of a folder, in evaluation mode, with its ``vocabulary`` and ``clusters`` (None where there are none).

    It reads the models of :data:`pplseq.models.MODELS`; :func:`pplseq.load` reads networks, taggers and streams as well.

    Raises:
        FileNotFoundError: if there is no model in the folder.
        ValueError: if it is truncated, of another format or version, or of other shapes than it says.
    """
    from pplseq.data.clustering import read_paths
    from pplseq.data.vocabulary import Vocabulary
    from pplseq.models import MODELS

    folder = whole_folder(folder)
    header, tensors = read_folder(folder)
    path = folder / "config.json"
    if header.get("model") not in MODELS:
        raise ValueError(f"{path}: unknown model {header.get('model')!r}; known: {', '.join(MODELS)}")
    try:
        model = MODELS[header["model"]].from_config(header["config"], tensors)
        model.load_state_dict(tensors)
    except (TypeError, RuntimeError, KeyError) as error:
        raise ValueError(f"{path}: its config does not describe these parameters ({error})") from error
    model = model.to(device).eval()
    vocabulary = Vocabulary.load(folder / "vocab.txt") if (folder / "vocab.txt").is_file() else None
    num_words = getattr(model, "num_words", None)
    if vocabulary is not None and num_words is not None and num_words != len(vocabulary):
        raise ValueError(
            f"{folder / 'vocab.txt'}: {len(vocabulary)} words, but the model has {num_words}; the file is cut short or belongs "
            "to another model"
        )
    model.vocabulary = vocabulary
    if vocabulary is not None and (folder / "clusters.paths").is_file():
        model.clusters = read_paths(folder / "clusters.paths", vocabulary)
    return model


def whole_folder(folder) -> Path:
    """The folder itself, or the copy of it that an interrupted save left."""
    folder = Path(folder)
    old = folder.with_name(f".{folder.name}.old")  # interrupted between the two renames of a save
    return old if not folder.exists() and old.exists() else folder


def read_folder(folder) -> tuple[dict, dict[str, torch.Tensor]]:
    """The header and the tensors of a folder that :func:`write_folder` wrote.

    Raises:
        FileNotFoundError: if there is none. ValueError: if it is truncated, of another format or version, or of other shapes
            than it says.
    """
    folder = whole_folder(folder)
    header = read_header(folder)
    tensors = read_tensors(folder / "model.safetensors")
    shapes = {name: list(value.shape) for name, value in tensors.items()}
    promised = header.get("shapes")
    promised = promised if isinstance(promised, dict) else {}
    if shapes != promised:
        wrong = sorted(n for n in {*shapes, *promised} if shapes.get(n) != promised.get(n))
        raise ValueError(
            f"{folder}: model.safetensors does not fit config.json in {', '.join(wrong[:5])}; the two files come from "
            "different models"
        )
    return header, tensors


def read_header(folder) -> dict:
    """What a model's folder says of itself; raises as :func:`read_folder`."""
    folder = whole_folder(folder)
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"no model at {folder}: expected a folder with config.json and model.safetensors")
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not readable as JSON ({error}); the file is damaged") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f'{path}: expected "format": "{FORMAT}"; this folder was not written by pplseq')
    if header.get("version") != VERSION:
        raise ValueError(
            f"{path}: format version {header.get('version')}, but this pplseq reads version {VERSION}; use the pplseq that "
            "wrote it, or train again"
        )
    return header


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file; ValueError if it is truncated or something else."""
    try:
        return load_file(str(path))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: missing; the folder is incomplete") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path}: not a whole safetensors file ({error}); it is truncated or of another format"
        ) from None
