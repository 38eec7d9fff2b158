"""From a folder back to the model in it, whichever it is."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pplseq import checks
from pplseq.baselines import NETWORKS
from pplseq.folder import unsealed, whole_folder
from pplseq.models.storage import MODEL, read_model
from pplseq.models.taggers.saved_columns import open_columns

CHECKPOINTS = ("best", "last")
# what is no model of text, in words, and what to do with it
OTHERS = {
    "tagger": "a tagger", "iohmm": "an input-output HMM", "lds": "a linear dynamical system of a table's rows",
    "props stream": "the state of a stream", "props learner": "the state of a stream",
}  # fmt: skip
OTHER_COMMANDS = {"tagger": "`pplseq tag`", "iohmm": "`pplseq query` or `pplseq evaluate`", "lds": "`pplseq evaluate`"}


def load(
    folder: str | Path, *, checkpoint: str | None = None, device: str | torch.device = "cpu", sources: Sequence = ()
) -> Any:
    """The model of a folder: of any family, a network, a tagger, a stream of PROPS; or of a run's folder.

    Args:
        folder: what ``model.save`` wrote, or a run's folder.
        checkpoint: of a run: "best" or "last"; None takes the best, the last where there is no best.
        device: where a model's parameters go.
        sources: of a ``PROPSLearner``, made anew, as many as it had.

    Returns:
        The model, ready to be asked. Its ``vocabulary`` and ``clusters`` are set where they were saved with it, else None.

    Warns:
        UserWarning: of a run on a table whose columns were standardized: the model itself takes and gives standardized numbers.

    Raises:
        FileNotFoundError: no model there. ValueError: a damaged folder, or one of another version.
    """
    folder = model_folder(folder, checkpoint)
    if changed := list(_standardized(folder)):
        warnings.warn(
            f"{folder}: this model was trained on standardized columns: what it takes and gives is {', '.join(changed)}. Bring "
            "your numbers into these units and its answers back, ask `pplseq query` or `pplseq evaluate`, which do so, or "
            "train with --raw",
            stacklevel=2,
        )
    return _opened(folder, device, sources)


def _opened(folder: Path, device: str | torch.device, sources: Sequence = ()) -> Any:
    """The model of a model's own folder."""
    kind = saved_kind(folder)
    if kind == "tagger":
        from pplseq.models.taggers.tagger import load_tagger

        tagger = load_tagger(folder)
        open_columns(tagger, load_text_model)
        return tagger
    if kind == "props learner":
        from pplseq.models.props.learner import PROPSLearner

        return PROPSLearner.load(folder, sources)
    if kind == "props stream":
        from pplseq.models.props.storage import load_stream

        return load_stream(folder)
    if kind in NETWORKS:
        return NETWORKS[kind].load(folder).to(device)
    return read_model(folder, device)


def _standardized(place: Path) -> Iterator[str]:
    """How the columns of a run on a table are changed before the model in this checkpoint sees them."""
    for path, within, names in (
        (place.parent / "columns.json", None, (("outputs", "mean", "scale"), ("inputs", "input_mean", "input_scale"))),
        (place / "iohmm.json", "columns", (("inputs", "mean", "scale"),)),
    ):
        if not path.is_file():
            continue
        units = {f"{name}?": [float] for name in ("mean", "scale", "input_mean", "input_scale")}
        units |= {"inputs?": [str], "outputs?": [str]}
        found = unsealed(path, "train again", units if within is None else {f"{within}?": units})
        columns = (found if within is None else found.get(within)) or {}
        for kind, mean, scale in names:
            for name, center, unit in zip(*(columns.get(part) or () for part in (kind, mean, scale)), strict=False):
                if (center, unit) != (0.0, 1.0):
                    yield f"({name} - {center:.6g}) / {unit:.6g}"


def load_text_model(folder: str | Path, checkpoint: str | None = None, device: str | torch.device = "cpu") -> Any:
    """:func:`load` for what works with words: a model or network with a vocabulary.

    Raises:
        FileNotFoundError: no model there. ValueError: a model without a vocabulary, or as :func:`load`.
    """
    folder = Path(folder)
    kind = saved_kind(folder)  # a wrong kind of model matters more than a checkpoint that it lacks
    if kind in OTHERS:
        raise ValueError(f"{folder}: holds {OTHERS[kind]}, no model of text; use {OTHER_COMMANDS.get(kind, 'pplseq.load')}")
    model = _opened(model_folder(folder, checkpoint), device)
    if model.vocabulary is None:
        numbers = f", and is a model of {model.num_features} numbers a step" if getattr(model, "num_features", None) else ""
        raise ValueError(
            f"{folder} has no vocab.txt{numbers or ', so its word ids have no words; set model.vocabulary and save it again'}"
        )
    return model


def saved_kind(folder: str | Path) -> str:
    """What a folder of a model, or of a run with any checkpoint, holds: "hmm", "tagger", "lstm", ...

    Raises:
        FileNotFoundError: no model there. ValueError: a damaged folder.
    """
    return str(MODEL.read_header(model_folder(folder)).get("model"))


def model_folder(folder: str | Path, checkpoint: str | None = None) -> Path:
    """The folder of a model itself: of a run's folder its best or last checkpoint, else the folder that was given.

    Raises:
        FileNotFoundError: no such folder, or a run without that checkpoint. ValueError: no such name of a checkpoint.
    """
    folder = whole_folder(folder)
    if checkpoint not in (None, *CHECKPOINTS):
        raise ValueError(f"checkpoint must be best, last or None, got {checks.shown(checkpoint)}")
    if not folder.exists():
        raise FileNotFoundError(f"{folder}: no such run or model folder")
    found = [name for name in CHECKPOINTS if whole_folder(folder / name).exists()]
    if not found and not (folder / "config.toml").exists():
        return folder
    if checkpoint is None and found or checkpoint in found:
        return folder / (checkpoint or found[0])
    raise FileNotFoundError(
        f"{folder / (checkpoint or 'last')}: the run has no {checkpoint or 'last'!r} checkpoint yet; "
        + ("try --checkpoint last, or train on" if found else "train on")
    )
