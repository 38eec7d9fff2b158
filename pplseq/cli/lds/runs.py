"""What `pplseq lds` does with files: runs, counts, texts and embeddings."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from pplseq.baselines.loading import load_text_model
from pplseq.data.text import Text, load_corpus
from pplseq.data.vocabulary import Vocabulary
from pplseq.folder import whole_folder
from pplseq.runs.checkpoint import TRAINING, only_one_run
from pplseq.runs.signals import TimeOver

BEGUN = {".lock", "fit.json", "metrics.jsonl", "status.json"}  # what a run leaves that ended before its first checkpoint
SUFFIXES = (".npz", ".tsv", ".jsonl")
STEADY_LINES = 256  # lines that one chain takes when a likelihood is computed


# ---------------------------------------------------------------- fitting
def start_fit(counts_folder: Path, out: Path, settings: dict[str, Any], on_record: Callable) -> dict[str, Any]:
    """Begin a run in a new folder; the summary."""
    counts = _counts(counts_folder, "COUNTS")
    held_out = settings.pop("held_out")
    found = {path.name for path in out.iterdir()} if out.exists() else set()
    if not found <= BEGUN or "metrics.jsonl" in found and "fit.json" not in found:
        if whole_folder(out / "last").exists():
            raise ValueError(f"--out {out} already holds a run; continue it with --resume {out}, or give a new folder")
        raise ValueError(
            f"--out {out} is not empty and holds no run; give a new folder, so that nothing is overwritten"
        )
    sources = {"counts": str(counts_folder.resolve()), "held_out": str(held_out.resolve()) if held_out else None}
    held_out_counts = None if held_out is None else _counts(held_out, "--held-out")
    return _fit(out, counts, held_out_counts, settings, sources, on_record, resume=False)


def resume_fit(folder: Path, changes: dict[str, Any], on_record: Callable) -> dict[str, Any]:
    """Go on with a run; the summary."""
    path = folder / "fit.json"
    if not path.is_file():
        raise FileNotFoundError(f"--resume {folder}: no run of `pplseq lds fit` there (it has no fit.json)")
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        sources, settings = saved["sources"], saved["settings"]
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}); fit again from the counts") from None
    if not whole_folder(folder / "last").exists():
        raise ValueError(
            f"--resume {folder}: this run ended before its first checkpoint; start it again with `pplseq lds fit COUNTS "
            f"--out {folder}`, its COUNTS being {sources['counts']}"
        )
    counts = _counts(Path(sources["counts"]), "the run's COUNTS")
    held_out = None if sources["held_out"] is None else _counts(Path(sources["held_out"]), "the run's --held-out")
    return _fit(folder, counts, held_out, settings | changes, sources, on_record, resume=True)


def _fit(folder, counts, held_out, settings, sources, on_record, *, resume: bool) -> dict[str, Any]:
    from pplseq.models.text_lds.program import TextLDS

    names = {
        "states": "num_states",
        "iterations": "num_iterations",
        "state_noise": "update_state_noise",
        "threads": "num_threads",
    }
    chosen = {names.get(name, name): value for name, value in settings.items()}
    model = TextLDS(counts.num_words, chosen.pop("num_states"))
    with only_one_run(folder):
        text = json.dumps({"sources": sources, "settings": settings}, indent=1) + "\n"
        (folder / ".fit.json.new").write_text(text, encoding="utf-8")
        os.replace(folder / ".fit.json.new", folder / "fit.json")
        try:
            model.fit(counts, held_out=held_out, folder=folder, resume=resume, on_record=on_record, **chosen)
        except TimeOver as error:
            click.echo(str(error), err=True)
            return {"run": str(folder), "stop_reason": "max_time", "iterations": 0}
        except (KeyboardInterrupt, SystemExit):
            if (folder / "last").exists():
                click.echo(f"\nstopped and saved; continue with: pplseq lds fit --resume {folder}", err=True)
            else:
                click.echo("\nstopped before the first parameters; nothing was saved", err=True)
            raise
    result = model.history
    last = result.records[-1]
    return {
        "run": str(folder),
        "stop_reason": result.stop_reason,
        "iterations": last["step"],
        "best_iteration": result.best_step,
        "gain_per_token": last["gain_per_token"],
        **({"best_held_out_gain_per_token": result.best} if held_out is not None else {}),
        "seconds": last["seconds"],
    }


def _counts(folder: Path, flag: str) -> Any:
    from pplseq.data.lag_files import load_counts

    try:
        counts = load_counts(folder)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"{flag}: {error}") from None
    if counts.missing:
        click.echo(
            f"Note: {flag}: not the whole text was counted: without {', '.join(map(str, counts.missing))}", err=True
        )
    return counts


# ---------------------------------------------------------------- models and texts
def load(folder: Path, checkpoint: str, threads: int | None = None) -> tuple[Any, Vocabulary]:
    """(model, vocabulary) of a run; ValueError where it holds another kind of model."""
    if threads:
        torch.set_num_threads(threads)
    model = load_text_model(folder, checkpoint)
    if model.name != "text_lds":
        raise ValueError(f"{folder} holds a {model.name}, and `pplseq lds` is about text_lds models (`pplseq lds fit`)")
    return model, model.vocabulary


def save_again(folder: Path, checkpoint: str, model: Any, vocabulary: Vocabulary) -> None:
    """Write a model back where `load` found it, beside what else is there."""
    inner = folder / checkpoint
    path = inner if inner.exists() else folder
    if not TRAINING.is_at(path):
        model.save(path)
        return
    header, tensors, *_ = TRAINING.read(path)
    TRAINING.write(path, header, tensors=tensors, more=model.save)


def read(model: Any, vocabulary: Vocabulary, source: str, split: str | None) -> Text:
    """A text encoded with the model's vocabulary and word forms: a file or stdin whole, of a corpus one split."""
    from pplseq.data.sources import read_lines

    if source == "-" or Path(source).is_file() and split is None:
        lines = ([model.forms(word) for word in words] for words in read_lines(source))
        return Text.from_lines(lines, vocabulary, name="<stdin>" if source == "-" else Path(source).name)
    if model.forms.digits is not None:
        raise ValueError(
            f"{source}: this model rewrites digits as {model.forms.digits}, which is done for text files only; give a file"
        )
    corpus = load_corpus(source, vocabulary=vocabulary, lower=model.forms.lower)
    text = getattr(corpus, split or "test")
    if text is None:
        there = [name for name in ("train", "valid", "test") if getattr(corpus, name) is not None]
        raise ValueError(f"{source} has no {split or 'test'} split; choose --split {' or '.join(there)}")
    return text


def evaluation(model: Any, text: Text) -> dict[str, Any]:
    """Gains over words without context, next-word perplexity, and how much the steady-state passes differ."""
    from pplseq.models.text_lds.head_difference import filter_decay
    from pplseq.models.text_lds.next_word import score_next_words

    began = time.monotonic()
    total = {"stationary": 0.0, "steady": 0.0}
    for x, lengths in _batches(text):
        baseline = model.word_emission().iid_log_prob(x)
        baseline = float((baseline * (torch.arange(x.shape[1]) < lengths.unsqueeze(1))).sum(dtype=torch.float64))
        for initial in total:
            gain = model.posterior(x, lengths, initial=initial).log_prob().sum(dtype=torch.float64)
            total[initial] += float(gain) - baseline
    mixed, unigram = score_next_words(model, text), score_next_words(model, text, 0.0)
    return {
        "num_tokens": text.num_tokens,
        "num_unknown": text.num_unknown,
        "gain_per_token": total["stationary"] / text.num_tokens,
        "steady_gain_per_token": total["steady"] / text.num_tokens,
        "filter_decay": filter_decay(model),
        "perplexity": mixed.perplexity,
        "unigram_perplexity": unigram.perplexity,
        "mixture_weight": float(model.mixture_weight),
        "seconds": round(time.monotonic() - began, 3),
    }


def _batches(text: Text) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    lines = sorted((line for line in text.lines() if len(line)), key=len)
    for first in range(0, len(lines), STEADY_LINES):
        part = lines[first : first + STEADY_LINES]
        x = torch.zeros(len(part), len(part[-1]), dtype=torch.long)
        for row, line in zip(x, part, strict=True):
            row[: len(line)] = torch.from_numpy(line.astype(np.int64))
        yield x, torch.tensor([len(line) for line in part])


# ---------------------------------------------------------------- embeddings
def embedded(
    model: Any, text: Text, *, kind: str, normalize: bool, eos: bool
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(words, line_starts, embeddings) of a text, with or without the ends of its lines."""
    vectors = model.embed_tokens(text, kind=kind, normalize=normalize)
    tokens, starts = text.tokens, text.line_starts
    if not eos and text.vocabulary.eos_id is not None:
        kept = tokens != text.vocabulary.eos_id
        starts = np.concatenate([[0], np.cumsum(kept)])[starts]
        tokens, vectors = tokens[kept], vectors[kept]
    return text.vocabulary.decode(tokens), starts, vectors


def writer(out: str) -> Callable[[Sequence[str], Sequence[int], np.ndarray], None]:
    """What writes words, line_starts and embeddings to a file, by its suffix; whole or not at all."""
    path = Path(out)
    if out == "-":
        return lambda *parts: _write_json(sys.stdout, *parts)
    if path.suffix not in SUFFIXES:
        raise click.BadParameter(f"expected a file ending in {', '.join(SUFFIXES)}, got {out!r}", param_hint="--out")
    if path.suffix == ".npz":

        def write(words, starts, vectors):
            save_arrays(path, embeddings=vectors, words=word_array(words), line_starts=np.asarray(starts))

        return write
    form = _write_json if path.suffix == ".jsonl" else _write_table

    def write_lines(words, starts, vectors):
        new = path.with_name(f".{path.name}.new")
        path.parent.mkdir(parents=True, exist_ok=True)
        with new.open("w", encoding="utf-8") as file:
            form(file, words, starts, vectors)
        os.replace(new, path)

    return write_lines


def _write_json(file, words, starts, vectors) -> None:
    for start, stop in zip(starts[:-1], starts[1:], strict=True):
        rows = [[round(value, 6) for value in row] for row in vectors[start:stop].tolist()]
        record = {"words": list(words[start:stop]), "embeddings": rows}
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _write_table(file, words, starts, vectors) -> None:
    for start, stop in zip(starts[:-1], starts[1:], strict=True):
        for word, row in zip(words[start:stop], vectors[start:stop].tolist(), strict=True):
            file.write("\t".join([word, *(f"{value:.6g}" for value in row)]) + "\n")
        file.write("\n")


def word_array(words: Sequence[str]) -> np.ndarray:
    """Words as an array of strings, which needs no pickle to be read."""
    return np.array(list(words), dtype=np.str_)


def save_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Write an .npz file, whole or not at all."""
    if path.suffix != ".npz":
        raise click.BadParameter(f"expected a file ending in .npz, got {path.name!r}", param_hint="--out")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new.npz")
    np.savez(new, **arrays)
    os.replace(new, path)
