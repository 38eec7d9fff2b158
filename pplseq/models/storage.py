"""Models as folders: config.json, model.safetensors, vocab.txt, clusters.paths. Nothing is pickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from pplseq import checks
from pplseq.data.sources import SPECIAL_WORDS
from pplseq.folder import FolderError, FolderKind, check_finite, sound
from pplseq.infer.fit.held import frozen
from pplseq.models.declared import within

NAMES = {name.lstrip("_"): name for name in ("column_names", "input_column_names", "state_names", "_sized_by")}  # kept with it
MASK = "fixed:"  # before the name of a parameter of which the last fit held entries
MODEL = FolderKind(
    "pplseq", 2, header="config.json", tensors="model.safetensors", what="model", again="train again or save it again",
    schema={
        "model": str, "config?": dict, "column_names?": [str], "input_column_names?": [str], "fixed?": [str], "frozen?": [str],
        "bounds?": dict, "sized_by?": [str], "tagger?": str, "training?": dict, "special_words?": SPECIAL_WORDS,
    },
)  # fmt: skip


def save_model(model, folder) -> Path:
    """Writes a model as a folder, whole or not at all: an existing folder stays as it was until the new one is complete.

    Its ``vocabulary`` and ``clusters`` are written beside it where it has them.

    Args:
        model: a :class:`~pplseq.models.base.SequenceModel`, or anything else with name, config and state dict.
        folder: where to.

    Raises:
        ValueError: the folder holds something else. SaveError: the disk does not take it; the old folder is still there.
    """
    from pplseq.data.clustering import write_paths
    vocabulary, clusters = model.vocabulary, model.clusters

    def more(folder: Path) -> None:
        if vocabulary is not None:
            vocabulary.save(folder / "vocab.txt")
        if vocabulary is not None and clusters is not None:
            write_paths(folder / "clusters.paths", clusters, vocabulary)

    if clusters is not None and vocabulary is None:
        raise ValueError("clusters: they are written by word, so set model.vocabulary too")
    header = {"model": model.name, "config": model.config}
    for name, own in NAMES.items():
        if getattr(model, own, None) is not None:
            header[name] = list(getattr(model, own))
    still = {"fixed": sorted(getattr(model, "fixed_parameters", ())), "frozen": frozen(model)}
    still["bounds"] = getattr(model, "_bounds", {})
    header |= {name: value for name, value in still.items() if value}
    masks = {f"{MASK}{name}": mask for name, mask in getattr(model, "_fixed_entries", {}).items()}
    if vocabulary is not None:
        header["special_words"] = vocabulary.special_words
    return MODEL.write(folder, header, tensors={**model.state_dict(), **masks}, more=more)


class Words(NamedTuple):
    """What a model's folder says of words: vocabulary and clusters, None where it does not."""

    vocabulary: Any
    clusters: Any


def read_words(folder: Path, header: dict[str, Any]) -> Words:
    """The words of a model's folder, for `MODEL.read`."""
    from pplseq.data.clustering import read_paths
    from pplseq.data.vocabulary import Vocabulary

    vocabulary = clusters = None
    if header.get("special_words") is not None and "vocab.txt" not in header["files"]:
        raise FolderError(f"{folder}: files does not name vocab.txt; {MODEL.again}")
    if "vocab.txt" in header["files"]:
        vocabulary = Vocabulary.load(folder / "vocab.txt", **header.get("special_words", {}))
        if "clusters.paths" in header["files"]:
            clusters = read_paths(folder / "clusters.paths", vocabulary)
    return Words(vocabulary, clusters)


def read_model(folder, device: str | torch.device = "cpu"):
    """The model of a folder, in evaluation mode, with its ``vocabulary`` and ``clusters`` (None where there are none).

    It reads the models of :data:`pplseq.models.MODELS`; :func:`pplseq.load` reads networks, taggers and streams as well.

    Raises:
        FileNotFoundError: if there is no model in the folder.
        FolderError: if it is damaged, of another format or version, or its weights are not finite.
    """
    from pplseq.models import MODELS

    header, tensors, _, words = MODEL.read(folder, more=read_words)
    if header.get("model") not in MODELS:
        raise FolderError(f"{folder}: unknown model {header.get('model')!r}; known: {', '.join(MODELS)}")
    check_finite(tensors, folder)
    told = [name for name in tensors if name.startswith(MASK)]
    masks = {name.removeprefix(MASK): tensors.pop(name).bool().to(checks.device(device)) for name in told}
    with sound(f"{folder}: config.json does not describe these parameters", MODEL.again):
        with within(tensors):
            model = MODELS[header["model"]].from_config(header["config"], tensors)
        kinds = {value.dtype for value in tensors.values() if value.is_floating_point()}
        if len(kinds) == 1:  # one that was converted, as by .double(), keeps its digits, whatever its constructor makes
            model.to(kinds.pop())
        model.load_state_dict(tensors)
        for name in header.get("frozen", ()):
            model.get_parameter(name).requires_grad_(False)
        for name, mask in masks.items():
            if model._slots[name].raw.shape != mask.shape:
                raise ValueError(f"{name}: another shape than its mask's")
    model.fixed_parameters, model._fixed_entries = frozenset(header.get("fixed", ())), masks
    model._bounds = header.get("bounds", {})
    vocabulary, clusters = words
    num_words = getattr(model, "num_words", None)
    if vocabulary is not None and num_words is not None and num_words != len(vocabulary):
        raise FolderError(f"{folder}: vocab.txt has {len(vocabulary)} words, but the model has {num_words}")
    model.vocabulary, model.clusters = vocabulary, clusters
    for name, own in NAMES.items():
        if header.get(name) is not None:
            setattr(model, own, tuple(header[name]))
    model.is_fitted = True
    return model.to(checks.device(device)).eval()
