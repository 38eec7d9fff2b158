"""What a release wrote, to be read by all later ones: `python -m support.stored_formats 0.1.0`, in `tests/`, writes it.

`stored/RELEASE.zip` holds data, a folder of every kind that `pplseq` made of it, a model of each class, and what these
answered.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import pplseq
from pplseq.data.lag_files import load_counts
from pplseq.models import MODELS
from pplseq.sources import PersonalStream
from support.model_cases import CASES
from support.small_runs import small_runs, write_data

TRAINED = {  # name of a small run -> the data that it is evaluated on
    "vlhmm": "text.txt", "hmm-em": "text.txt", "lstm": "text.txt", "lds": "rows.csv", "iohmm": "rows.csv",
    "strings": "strings.txt", "tagger": "tags.txt", "crf": "tags.txt", "latent": "tags.txt", "text-lds": "text.txt",
}  # fmt: skip
STREAMS = {"personalize": ["ngram:text.txt", "cache"], "streaming-hmm": ["words:text.txt"]}  # their sources
NAMES = {  # of models -> of their cases
    "semi_markov_hmm": "semi-markov hmm", "arhmm": "autoregressive hmm", "switching_regression": "switching regression",
    "mixture_hmm": "mixture of hmms", "mixture_iohmm": "mixture of iohmms",
}  # fmt: skip


def write(place: Path) -> None:
    """All of it, with the answers of this version."""
    place.mkdir(parents=True)
    os.chdir(place)  # so that records name no folder of a machine
    data = write_data(Path())
    runs = small_runs(data, Path("counts"))
    for name in ("count", *TRAINED, *STREAMS):
        folder = Path() if name == "count" else Path(name)
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(SystemExit):  # of a command that has ended; what it has not written cannot be asked below
            runs[name](folder)()
    for name in MODELS:
        case = CASES[NAMES.get(name, name)]
        case.model().save(Path("models", name))
        tensors = {"x": case.data(), **case.known}
        Path("models", f"{name}.json").write_text(json.dumps({key: value.tolist() for key, value in tensors.items()}))
    for path in Path().rglob("*"):
        if path.suffix in (".html", ".png", ".svg", ".dot", ".jsonl"):
            path.unlink()
    answers = {name: answer(place, name) for name in names(place)}
    Path("answers.json").write_text(json.dumps(answers, indent=1) + "\n")


def names(place: Path) -> list[str]:
    """Of all that can be asked."""
    return ["counts", *TRAINED, *STREAMS, *(f"models/{path.stem}" for path in sorted((place / "models").glob("*.json")))]


def answer(place: Path, name: str) -> Any:
    """What a stored folder answers, in a process that is at `place`, where streams have their sources."""
    folder = place / name
    if name == "counts":
        counts = load_counts(folder)
        return [counts.num_tokens, *(float(lag.sum()) for lag in counts.lags)]
    if name in STREAMS:
        with PersonalStream.open(STREAMS[name], folder / "state", learn=False) as stream:
            return stream.read("the cat sees a dog", learn=False).log_prob
    if name in TRAINED:
        return pplseq.evaluate(folder / "run", place / TRAINED[name])
    known = json.loads(folder.with_suffix(".json").read_text())
    known = {key: torch.tensor(value) for key, value in known.items()}
    known = {key: value.double() if value.is_floating_point() else value for key, value in known.items()}
    return pplseq.load(folder).score(known.pop("x"), **known)


if __name__ == "__main__":
    release = Path("stored").resolve() / sys.argv[1]
    with tempfile.TemporaryDirectory() as made:
        write(Path(made, "written"))
        shutil.make_archive(str(release), "zip", made, "written")
