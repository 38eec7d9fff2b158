"""A small call of every command that trains, learns or counts, each a second or less, for disks that fail."""

from __future__ import annotations

import contextlib
import csv
import random
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any
from unittest import mock

from pplseq.runs.cluster import Cluster, PartFailed
from support.faulty_disk import command

Begin = Callable[[Path], Callable[[], object]]


def write_data(folder: Path) -> dict[str, Path]:
    """A text, a stream, tables, labelled strings and tagged sentences."""
    draw = random.Random(0)
    nouns, verbs = ["cat", "dog", "bird"], ["sees", "likes"]
    lines = [f"the {draw.choice(nouns)} {draw.choice(verbs)} a {draw.choice(nouns)}" for _ in range(60)]
    places = {name: folder / name for name in ("text.txt", "stream.txt", "rows.csv", "strings.txt", "tags.txt")}
    places["text.txt"].write_text("\n".join(lines) + "\n")
    places["stream.txt"].write_text("\n".join(lines[:20]) + "\n")
    with places["rows.csv"].open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["u", "y", "c"])
        y = 0.0
        for _ in range(60):
            u = draw.gauss(0, 1)
            y = 0.7 * y + u + draw.gauss(0, 0.3)
            rows.writerow([f"{u:.3f}", f"{y:.3f}", "ab"[y > 0]])
    strings = ["".join(draw.choice("01") for _ in range(draw.randint(1, 6))) for _ in range(40)]
    places["strings.txt"].write_text("".join(f"{'+' if s.count('1') % 2 else '-'} {s}\n" for s in strings))
    tags = {"the": "D", "a": "D", **dict.fromkeys(nouns, "N"), **dict.fromkeys(verbs, "V")}
    places["tags.txt"].write_text("".join(" ".join(f"{w}_{tags[w]}" for w in line.split()) + "\n" for line in lines))
    return places


class WorkersHere(Cluster):
    """A cluster whose work is done in this process, one part after the other, on the disk of this process."""

    def __init__(self) -> None:
        super().__init__(None)

    def keep(self, values: Sequence[Any]) -> list[Any]:
        """The values."""
        return list(values)

    def each(self, function: Any, parts: Any, names: Any = None, *, done: Any = None) -> list[Any]:
        """All parts, though some fail."""
        found, failed = [], []
        for part in parts:
            try:
                found.append(function(*part) if isinstance(part, tuple) else function(part))
            except OSError as error:
                failed.append(str(error))
        if failed:
            raise PartFailed("; ".join(failed))
        return found

    def total(self, function: Any, parts: Any, add: Any, names: Any = None) -> Any:
        """From left to right."""
        return reduce(add, self.each(function, parts))


def count_in_parts(text: Path, place: Path) -> Callable[[], object]:
    """`pplseq count --cluster` with such workers."""
    options = ("--max-lag", 2, "--force", "--cluster", "local:1", "--part-bytes", 400)
    call = command("count", text, "--out", place / "counts", *options)

    def count() -> None:
        with mock.patch("pplseq.recipes.counting.connected", lambda where, say=None: contextlib.nullcontext(WorkersHere())):
            call()

    return count


def fit_on_workers(place: Path) -> Callable[[], object]:
    """`fit(cluster=)` in a folder, which goes on where it was killed, with such workers."""

    def fit() -> None:
        import torch

        from pplseq.folder import whole_folder
        from pplseq.models import HMM

        rows = [torch.randint(5, (length,), generator=torch.Generator().manual_seed(length)) for length in range(3, 15)]
        resume = whole_folder(place / "run" / "last").exists()  # which a kill may have left beside its place
        options = {"batch_size": 4, "max_iterations": 6, "tolerance": 0.0, "resume": resume}
        try:
            HMM(3, num_words=5).fit(rows, seed=0, folder=place / "run", cluster=WorkersHere(), **options)
        except OSError as error:  # in a line, as a command says it
            print(error, file=sys.stderr)
            raise SystemExit(1) from None

    return fit


def small_runs(data: dict[str, Path], counts: Path | None = None) -> dict[str, Begin]:
    """name -> from the folder of a trial to a call that begins there, and goes on when it is made again."""

    def training(model: str, source: str, *options: Any) -> Begin:
        return lambda place: command("train", model, data[source], "--out", place / "run", *options)

    text = ("--min-count", 1, "--epochs", 2)
    found = {
        "vlhmm": training(
            "vlhmm", "text.txt", *text, "--num-states", 16, "--num-blocks", 4, "--hidden-size", 8, "--batch-size", 4,
            "--segment-length", 8, "--validate-per-epoch", 2,
        ),
        "hmm-em": training("hmm", "text.txt", *text, "--num-states", 4),
        "hmm-sgd": training("hmm", "text.txt", *text, "--num-states", 4, "--method", "sgd", "--batch-size", 4),
        "lstm": training("lstm", "text.txt", *text, "--hidden-size", 8, "--num-layers", 1, "--batch-size", 4),
        "ff": training("ff", "text.txt", *text, "--hidden-size", 8, "--order", 3, "--batch-size", 4),
        "rnn": training("rnn", "text.txt", *text, "--hidden-size", 8, "--batch-size", 4),
        "lds": training("lds", "rows.csv", "--outputs", "y", "--inputs", "u", "--max-iterations", 4),
        "iohmm": training(
            "iohmm", "rows.csv", "--outputs", "y", "--inputs", "u", "--num-states", "1,2", "--num-restarts", 2,
            "--max-iterations", 5,
        ),
        "strings": training("iohmm", "strings.txt", "--num-states", "2-3", "--num-restarts", 20, "--no-picture"),
        "tagger": training("tagger", "tags.txt", "--system", "hmm"),
        "crf": training("tagger", "tags.txt", "--system", "crf"),
        "unsupervised": training("tagger", "tags.txt", "--system", "unsupervised", "--set", "num_states=3"),
        "latent": training("tagger", "tags.txt", "--system", "latent", "--set", "num_substates=2", "--set", "max_iterations=3"),
        "personalize": lambda place: command(
            "personalize", f"ngram:{data['text.txt']}", "--source", "cache", "--order", 2, "--stream", data["stream.txt"],
            "--state", place / "state", "--out", place / "out.jsonl", "--save-every", 5,
        ),
        "three-sources": lambda place: command(
            "personalize", f"unigram:{data['text.txt']}", "--source", "cache", "--source", "online-ngram", "--order", 2,
            "--stream", data["stream.txt"], "--state", place / "state", "--out", place / "out.jsonl", "--save-every", 3,
            "--averaging", "--by-line",
        ),
        "streaming-hmm": lambda place: command(
            "personalize", f"words:{data['text.txt']}", "--stream", data["stream.txt"], "--state", place / "state",
            "--out", place / "out.jsonl", "--save-every", 4,
        ),
        "count": lambda place: command("count", data["text.txt"], "--max-lag", 4, "--out", place / "counts", "--force"),
        "fit on workers": fit_on_workers,
        "count parts": lambda place: count_in_parts(data["text.txt"], place),
        "cluster": lambda place: command("cluster", data["text.txt"], "--num-clusters", 3, "--out", place / "paths"),
    }  # fmt: skip
    if counts is not None:
        found["text-lds"] = lambda place: command(
            "train", "text-lds", counts, "--out", place / "run", "--num-states", 2, "--max-iterations", 3, "--pseudo-counts", 1,
            "--blocks", 2, "--restricted-iterations", 3,
        )  # fmt: skip
    return found


def small_writers(data: dict[str, Path], runs: Path) -> dict[str, Begin]:
    """name -> call of a command that writes files alone, from the folder of a trial; `runs` has folders of `small_runs`."""
    ngram = f"ngram:{data['text.txt']}"

    def call(*arguments: Any) -> Begin:
        """With {} for the folder of the trial."""
        return lambda place: command(*(str(part).replace("{}", str(place)) for part in arguments))

    return {
        "report": call("report", runs / "vlhmm" / "run", "--out", "{}/page.html"),
        "lds report": call("report", runs / "lds" / "run", "--out", "{}/page.html"),
        "lds query": call("query", runs / "lds" / "run", "smooth", data["rows.csv"], "--csv", "{}/states.csv"),
        "effects": call("query", runs / "iohmm" / "run", "effects", "--png", "{}/effects.png"),
        "automaton": call("query", runs / "strings" / "run", "automaton", "--dot", "{}/a.dot", "--png", "{}/a.png"),
        "tag run": call("tag", "run", runs / "tagger" / "run", data["tags.txt"], "--out", "{}/tags.txt", "--html", "{}/a.html"),
        "tag run json": call("tag", "run", runs / "tagger" / "run", data["tags.txt"], "--json", "--out", "{}/tags.jsonl"),
        "tag eval": call("tag", "eval", runs / "tagger" / "run", data["tags.txt"], "--html", "{}/a.html"),
        "tag compare": call(
            "tag", "compare", data["tags.txt"], data["tags.txt"], "--systems", "hmm,most-frequent", "--out", "{}/a.json",
            "--learning-curve", "0.5,1", "--plot", "{}/a.png",
        ),
        "personalize page": call(
            "personalize", ngram, "--order", 2, "--stream", data["stream.txt"], "--html", "{}/a.html"
        ),
        "compare-streams page": call(
            "compare-streams", ngram, f"unigram:{data['text.txt']}", "--order", 2, "--stream", data["stream.txt"],
            "--html", "{}/a.html",
        ),
        "cluster": call("cluster", data["text.txt"], "--num-clusters", 3, "--out", "{}/paths"),
    }  # fmt: skip
