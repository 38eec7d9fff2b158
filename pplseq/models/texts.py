"""Texts at the door of a model: whatever a user has at hand becomes encoded text, and text becomes batches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.batches import SentenceBatches, StreamBatches
from pplseq.data.coding import CodedLines
from pplseq.data.sources import tokens_of
from pplseq.data.text import Corpus, Text
from pplseq.data.vocabulary import Vocabulary
from pplseq.files import write_text
from pplseq.folder import sealed, unsealed
from pplseq.models.batch import holds_words
from pplseq.models.forms import in_form, splitting
from pplseq.runs.evaluation import PROTOCOLS, score_text

SHUFFLES = ("line", "article", "none")


class Texts(NamedTuple):
    """Text to learn from and held-out text; ``has_words`` is False for ids, whose "words" are their digits."""

    train: Text
    validation: Text | None
    has_words: bool


def as_texts(
    x: Any,
    lengths: Any = None,
    validation: Any = None,
    *,
    vocabulary: Vocabulary | None = None,
    num_words: int | None = None,
    min_count: int | None = None,
) -> Texts:
    """Text of one kind from any of these.

    Args:
        x: a ``Corpus``, whose validation text is taken where ``valid`` is None; a ``Text``; sentences, each a string or a list
            of words, also as a column of a frame; or word ids in any form of :func:`~pplseq.models.forms.in_form`: a list of
            sequences, an array (B, T) with ``lengths`` (B,), ...
        validation: held-out text, of the same kind; of a ``Corpus`` its validation text.
        vocabulary: that the model has already; words are encoded with it. Default: all words of x and ``<eos>``.
        num_words: V of ids; default: one more than the largest.
        min_count: words rarer than this become ``<unk>``; default: 2 where held-out text has words that x has not, else 1. From
            2 on there is ``<unk>`` in any case: see :func:`~pplseq.data.text.load_corpus`.

    Raises:
        TypeError, ValueError: for what is no text; says where and what to do.
    """
    if isinstance(x, Corpus):
        x, validation = x.train, x.valid if validation is None else validation
    validation = held_out_text("validation", validation)
    if isinstance(x, str):
        raise TypeError("x must be a list of sentences, got one string; for a file: pplseq.load_corpus(path)")
    known = x if isinstance(x, Text) else validation if isinstance(validation, Text) else None
    known = known.vocabulary if vocabulary is None and known is not None else vocabulary
    split = splitting(known)
    x, lengths = _in_form(x, lengths, "x", split)
    validation, _ = _in_form(validation, None, "validation", split)
    if isinstance(x, Text):
        if validation is not None and not isinstance(validation, Text):
            validation = Text.from_lines(_lines(validation, "validation", split), x.vocabulary, name="valid")
        for name, text in (("x", x), ("validation", validation)):
            _check_same_words(name, text, vocabulary or x.vocabulary)
        return Texts(x, validation, True)
    if holds_words(x):
        lines = _lines(x, "x", split)
        units = "words" if known is not None else _units(lines)
        coded = CodedLines(lines if units == "words" else (tokens_of("".join(line), units) for line in lines), "x", units=units)
        held_out = None if validation is None or isinstance(validation, Text) else _lines(validation, "validation", split)
        if known is None:
            coded.warn()
        if isinstance(validation, Text):
            vocabulary = vocabulary or validation.vocabulary
            _check_same_words("validation", validation, vocabulary)
        words = vocabulary or _vocabulary(coded, held_out, min_count)
        text = Text.from_coded(coded, words, "x", with_unknown=vocabulary is None)
        return Texts(text, validation if held_out is None else Text.from_lines(held_out, words, name="valid"), True)
    rows = _id_rows(x, lengths, "x")
    held_out = None if validation is None else _id_rows(validation, None, "validation")
    largest = max(int(row.max()) for row in [*rows, *(held_out or [])])
    words = Vocabulary(tuple(map(str, range(largest + 1 if num_words is None else num_words))), unknown=None)
    if largest >= len(words):
        raise ValueError(f"x must hold ids 0..{len(words) - 1}, got {largest}")
    validation = None if held_out is None else _text_of_ids(held_out, words, "validation")
    return Texts(_text_of_ids(rows, words, "x"), validation, False)


def held_out_text(name: str, x: Any) -> Any:
    """The validation text of a corpus; anything else as it is."""
    if isinstance(x, Corpus) and x.valid is None:
        raise ValueError(f"{name}: the corpus {x.name!r} has no validation text; give one of its texts, such as corpus.test")
    return x.valid if isinstance(x, Corpus) else x


def make_batches(
    text: Text,
    protocol: str = "carried",
    *,
    shuffle: str = "line",
    batch_size: int = 16,
    segment_length: int = 32,
    batch_tokens: int = 512,
    seed: int = 0,
) -> StreamBatches | SentenceBatches:
    """Batches for training.

    Args:
        text: to learn from.
        protocol: "carried": ``batch_size`` streams cut into segments of ``segment_length`` tokens, the belief carried from one
            to the next; "sentence": whole lines, ``batch_tokens`` tokens at a time.
        shuffle: what is put in a new order each epoch: "line", "article" (carried) or "none".
        seed: of the orders.
    """
    checks.choice("protocol", protocol, PROTOCOLS)
    checks.choice("shuffle", shuffle, SHUFFLES)
    if protocol == "sentence":
        return SentenceBatches(text, batch_tokens, shuffle=shuffle != "none", seed=seed)
    return StreamBatches(text, batch_size, segment_length, shuffle=None if shuffle == "none" else shuffle, seed=seed)


def validator(model: Any, text: Text | None, protocol: str) -> Callable[[], Mapping[str, Any]] | None:
    """What a training loop calls on its schedule: the perplexity of held-out text; None where there is none."""
    return None if text is None else lambda: score_text(model, text, protocol).summary()


def introduction(what: str, model: Any, text: Text, name: str) -> str:
    """What a training tells people before its first step: what learns, of which size, from which text, by its name."""
    weights, device = sum(parameter.numel() for parameter in model.parameters()), next(model.parameters()).device
    return (
        f"{what}, {len(text.vocabulary):,} words, {weights:,} weights, {device}; {name}: {text.num_tokens:,} training tokens"
    )


def check_same_text(folder: Path, text: Text, resume: bool, name: str | None = None) -> None:
    """Writes down which text a run learns from (`data.json`), and compares it where the run is resumed.

    Raises:
        ValueError: the run began with another text or vocabulary.
    """
    path, name = folder / "data.json", name or text.name
    data = {
        "name": name,
        "vocabulary": text.vocabulary.fingerprint(),
        "training_text": hashlib.sha256(text.tokens.tobytes()).hexdigest(),
    }
    if resume and path.exists():
        before = unsealed(path, "put back a copy of it, or start a new run", {"vocabulary": str, "training_text": str})
        for key in ("vocabulary", "training_text"):
            if before[key] != data[key]:
                raise ValueError(
                    f"the {key.replace('_', ' ')} of {name} is no longer the one {folder} was trained with; "
                    "restore the data, or start a new run"
                )
    write_text(path, sealed(data))


# ---------------------------------------------------------------- kinds of text
def _in_form(x: Any, lengths: Any, name: str, split: Callable[[str], list[str]]) -> tuple[Any, Any]:
    """Texts as they are; anything else as lists of sentences or of ids, or ids (B, T) with lengths."""
    return (x, lengths) if x is None or isinstance(x, Text) else in_form(x, lengths, num_features=None, name=name, split=split)


def _lines(x: Any, name: str, split: Callable[[str], list[str]]) -> list[list[str]]:
    """Sentences as lists of words."""
    if not holds_words(x):
        raise TypeError(f"{name} must be sentences like x (strings, or lists of words), got {type(x).__name__}")
    return [split(sentence) if isinstance(sentence, str) else list(sentence) for sentence in x]


def _units(lines: list[list[str]]) -> str:
    """What words in lists are: "characters" where all are, and some are the spaces between words."""
    words = {word for line in lines for word in line}
    return "characters" if " " in words and all(isinstance(word, str) and len(word) == 1 for word in words) else "words"


def _vocabulary(coded: CodedLines, validation: list[list[str]] | None, min_count: int | None) -> Vocabulary:
    vocabulary = coded.vocabulary(min_count=1 if min_count is None else checks.count("min_count", min_count))
    if min_count is not None or validation is None or vocabulary.unknown_id is not None:
        return vocabulary
    has_new = any(vocabulary.number(word, -1) < 0 for line in validation for word in line)
    return coded.vocabulary(min_count=2) if has_new else vocabulary


def _check_same_words(name: str, text: Any, vocabulary: Vocabulary) -> None:
    if isinstance(text, Text) and text.vocabulary is not vocabulary and text.vocabulary.words != vocabulary.words:
        raise ValueError(
            f"{name}: {text.name!r} is encoded with other words than {'x' if name == 'valid' else 'the model'} "
            f"({len(text.vocabulary)} against {len(vocabulary)}); encode it with the same vocabulary"
        )


def _id_rows(x: Any, lengths: Any, name: str) -> list[np.ndarray]:
    """(T_i,) ids of each sequence."""
    if isinstance(x, (list, tuple)):
        if lengths is not None:
            raise ValueError("lengths: sequences in a list have their own lengths; leave lengths out")
        rows = [np.asarray(row) for row in x]
    elif isinstance(x, (np.ndarray, Tensor)):
        table = torch.as_tensor(x)
        if table.dim() != 2:
            raise ValueError(f"{name} must have shape (B, T), got {tuple(table.shape)}")
        known = None if lengths is None else torch.as_tensor(lengths)
        checks.lengths(known, table)
        ends: Sequence[int] = [table.shape[1]] * len(table) if known is None else known.tolist()
        rows = [row[:end] for row, end in zip(table.cpu().numpy(), ends, strict=True)]
    else:
        raise TypeError(f"{name} must be a Corpus, a Text, sentences or word ids, got {type(x).__name__}")
    rows = [row for row in rows if row.size]
    if not rows:
        raise ValueError(f"{name} must hold at least one word, got none")
    for number, row in enumerate(rows):
        if row.ndim != 1 or not np.issubdtype(row.dtype, np.integer):
            raise TypeError(f"{name}: sequence {number} must hold word ids (T,), got {row.dtype} of shape {row.shape}")
        if row.min() < 0:
            raise ValueError(f"{name}: sequence {number} has a missing word; a text to learn from has none, leave it out")
    return rows


def _text_of_ids(rows: list[np.ndarray], words: Vocabulary, name: str) -> Text:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Text(np.concatenate(rows).astype(np.int32), starts, np.arange(len(rows) + 1), words, name)
