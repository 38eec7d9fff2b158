"""Evaluating the linear dynamical system for text, embedding words with it, looking into it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pplseq.data.sources import read_lines
from pplseq.data.text import Text, load_corpus
from pplseq.files import json_line, new_file
from pplseq.loading import load_text_model
from pplseq.models.text_lds.head_difference import filter_decay
from pplseq.models.text_lds.next_word import score_next_words, token_probs, tune_mixture_weight, word_probs
from pplseq.models.text_lds.parameters import rewritten
from pplseq.models.text_lds.program import TextLDS
from pplseq.models.text_lds.state_words import singular_pairs
from pplseq.recipes.text import answers as of_texts
from pplseq.recipes.text.questions import Reading, Words, observe
from pplseq.runs.checkpoint import TRAINING
from pplseq.runs.progress import Watch

SUFFIXES = (".npz", ".tsv", ".jsonl")
STEADY_LINES = 256  # lines that one chain takes when a likelihood is computed


def load(folder: Path, settings: Any) -> TextLDS:
    """The model of a run; ValueError where it holds another kind of model."""
    model = load_text_model(folder, settings.checkpoint)
    if not isinstance(model, TextLDS):
        raise ValueError(f"{folder} holds a {model.name}, no text_lds")
    return model


# ---------------------------------------------------------------- evaluation
def evaluate(folder: Path, data: str, settings: Any, watch: Watch) -> Iterator[dict[str, Any]]:
    """Likelihood and next-word perplexity of a text, after the mixture's weight was tuned, where it is to be.

    "gain": nats a token, as log-density, over words without context; "steady_gain": by the paper's steady passes.
    """
    if settings.save_weight and settings.tune_on is None:
        raise ValueError("save_weight: it keeps what --tune-on found: give --tune-on TEXT")
    model = load(folder, settings)
    if settings.tune_on is not None:
        tune_mixture_weight(model, read(model, settings.tune_on, "valid"))
        if settings.save_weight:
            save_again(folder, settings.checkpoint, model)
    text = read(model, data, settings.split)
    yield {"model": str(folder), "text": text.name, **evaluation(model, text)}


def save_again(folder: Path, checkpoint: str, model: TextLDS) -> None:
    """Write a model back where it was found, beside what else is there."""
    inner = folder / checkpoint
    path = inner if inner.exists() else folder
    if not TRAINING.is_at(path):
        model.save(path)
        return
    header, tensors, *_ = TRAINING.read(path)
    TRAINING.write(path, header, tensors=tensors, more=model.save)


def read(model: TextLDS, source: Any, split: str | None) -> Text:
    """A text encoded with the model's vocabulary and word forms: a file or stdin whole, of a corpus one split."""
    vocabulary: Any = model.vocabulary
    if not isinstance(source, str | Path):
        lines = [line.decode() if isinstance(line, bytes) else line for line in source]
        return Text.from_lines(rewritten(lines, model.forms, vocabulary) if lines else [], vocabulary)
    source = str(source)
    if source == "-" or Path(source).is_file() and split is None:
        read = read_lines(source, lower=model.forms.lower, units=vocabulary.units)
        lines = ([model.forms(word) for word in words] for words in read)
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


def evaluation(model: TextLDS, text: Text) -> dict[str, Any]:
    """Gains over words without context, next-word perplexity, and how much the steady-state passes differ."""
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


# ---------------------------------------------------------------- questions
def query(folder: Path, question: str, lines: Any, settings: Any) -> Iterator[dict[str, Any]]:
    """What other models of words answer, too; vectors of words, pairs of singular vectors, weights of a network, with `out` in
    a file and its name here."""
    if question in of_texts.FUNCTIONS:
        yield from of_texts.query(folder, question, lines, settings, MIXTURE)
        return
    _check_out(question, settings)
    model = load(folder, settings)
    vocabulary = list(model.vocabulary or ())
    if question == "pairs":
        names = ("num_pairs", "num_words", "ranking", "most_frequent")
        for pair in singular_pairs(model, **{name: getattr(settings, name) for name in names}):
            words = {name: [vocabulary[i] for i in ids] for name, ids in pair._asdict().items() if name != "value"}
            yield {"value": pair.value, **words}
        return
    if question == "export-rnn":
        weights = model.rnn_weights(settings.form, coordinates=settings.coordinates)
        save_arrays(settings.out, words=word_array(vocabulary), **weights)
        yield {"file": str(settings.out), **{name: list(value.shape) for name, value in weights.items()}}
        return
    options = {"kind": settings.kind, "normalize": not settings.plain}
    if question == "types":
        words, starts = vocabulary, np.arange(len(vocabulary) + 1)
        vectors = model.type_embeddings(**options)
        if settings.out is not None:
            starts = np.array([0, len(words)])
    else:
        words, starts, vectors = embedded(model, read(model, lines, settings.split), eos=bool(settings.eos), **options)
    if settings.out is not None:
        write(settings.out, words, starts, vectors)
        yield {"file": str(settings.out), "words": len(words), "dimensions": vectors.shape[1]}
        return
    for start, stop in pairwise(starts.tolist()):
        yield as_answer(words[start:stop], vectors[start:stop])


# Probabilities of words are those of the next-word mixture: the model itself has densities of whitened one-hot vectors.
def _tokens(model: TextLDS, vocabulary: Any, words: Words) -> tuple[torch.Tensor, dict[str, Any]]:
    """Beside it "gain": the model's log-density of the sentence over that of words without context, nats."""
    x, answer = observe(model, vocabulary, _forms(model, words))
    own, unigram = token_probs(model, x[0].cpu().numpy(), np.array([0, x.shape[1]]))
    weight = float(model.mixture_weight)
    gain = float(model.log_prob(x)[0] - model.word_emission().iid_log_prob(x)[0].sum())
    return torch.as_tensor(np.log(weight * own + (1 - weight) * unigram)), answer | {"gain": gain}


def _begin(model: TextLDS, vocabulary: Any, words: Words, rows: int) -> tuple[torch.Tensor, Any, dict[str, Any]]:
    if not words:
        return model.unigram.log().expand(rows, -1), None, {"words": [], "unknown": []}
    x, answer = observe(model, vocabulary, _forms(model, words))
    return *_go_on(model, x.expand(rows, -1), None), answer


def _go_on(model: TextLDS, ids: torch.Tensor, belief: Any) -> tuple[torch.Tensor, Any]:
    now = model.posterior(ids, start=belief).filtered()
    return word_probs(model, now.mean @ model.transition.T).log(), now


def _forms(model: TextLDS, words: Words) -> list[str | None]:
    return [None if word is None else model.forms(word) for word in words]


MIXTURE = Reading(_tokens, _begin, _go_on)


def _check_out(question: str, settings: Any) -> None:
    """Raises ValueError, before the work, for a file that cannot be written so."""
    if question == "export-rnn" and settings.out is None:
        raise ValueError("out: name the file of the weights, --out FILE.npz")
    suffixes = SUFFIXES if question in ("embed", "types") else (".npz",)
    if settings.out is not None and settings.out.suffix not in suffixes:
        raise ValueError(f"out: expected a file ending in {', '.join(suffixes)}, got {settings.out.name!r}")


# ---------------------------------------------------------------- embeddings
def embedded(
    model: TextLDS, text: Text, *, kind: str, normalize: bool, eos: bool
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(words, line_starts, embeddings) of a text, with or without the ends of its lines."""
    vectors: Any = model.embed_tokens(text, kind=kind, normalize=normalize)
    tokens, starts = text.tokens, text.line_starts
    if not eos and text.vocabulary.eos_id is not None:
        kept = tokens != text.vocabulary.eos_id
        starts = np.concatenate([[0], np.cumsum(kept)])[starts]
        tokens, vectors = tokens[kept], vectors[kept]
    return text.vocabulary.decode(tokens), starts, vectors


def write(path: Path, words: Sequence[str], starts: Sequence[int] | np.ndarray, vectors: np.ndarray) -> None:
    """Words, line_starts and embeddings in a file, by its suffix; whole or not at all."""
    if path.suffix == ".npz":
        save_arrays(path, embeddings=vectors, words=word_array(words), line_starts=np.asarray(starts))
        return
    with new_file(path) as new, new.open("w", encoding="utf-8", newline="\n") as file:
        for start, stop in pairwise(starts):
            if path.suffix == ".jsonl":
                file.write(json_line(as_answer(words[start:stop], vectors[start:stop])) + "\n")
                continue
            for word, row in zip(words[start:stop], vectors[start:stop].tolist(), strict=True):
                file.write("\t".join([word, *(f"{value:.6g}" for value in row)]) + "\n")
            file.write("\n")


def as_answer(words: Sequence[str], vectors: np.ndarray) -> dict[str, Any]:
    """A line of text as JSON."""
    return {"words": list(words), "embeddings": [[round(value, 6) for value in row] for row in vectors.tolist()]}


def word_array(words: Sequence[str]) -> np.ndarray:
    """Words as an array of strings, which needs no pickle to be read."""
    return np.array(list(words), dtype=np.str_)


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write an .npz file, whole or not at all."""
    with new_file(path) as new, new.open("wb") as file:
        np.savez(file, **arrays)
