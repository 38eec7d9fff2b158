"""The corpus of a run: as `load_corpus` reads it, or drawn from a language model and kept in the run's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pplseq.data.text import Corpus, Text, load_corpus
from pplseq.data.vocabulary import Vocabulary
from pplseq.folder import check_sum, write_with_sum
from pplseq.threads import parsing

SAMPLES, KEPT = "samples:", "samples.npz"
HELD_OUT = 20  # one in so many texts is for validation
READING = ("min_count", "max_vocabulary", "lower", "units")


def is_drawn(data: str) -> bool:
    """Whether data are samples of a language model."""
    return data.startswith(SAMPLES)


@parsing
def corpus_of_run(folder: Path, data: str, vocabulary: Vocabulary | None = None, **how: Any) -> Corpus:
    """:func:`~pplseq.data.text.load_corpus`, or the samples that a run has drawn.

    Raises:
        FileNotFoundError: samples that the run has not drawn. FolderError: a file of them that is damaged.
    """
    if not is_drawn(data):
        return load_corpus(data, vocabulary=vocabulary, **how)
    path = folder / KEPT
    if not path.is_file():
        raise FileNotFoundError(f"{path}: samples are drawn where a run is trained, and {folder} has none; name a text")
    check_sum(path)
    with np.load(path) as kept:
        words = Vocabulary(tuple(str(kept["words"]).split("\n")))
        if vocabulary is not None and vocabulary.words != words.words:
            raise ValueError(f"{path}: the samples have other words than the model")
        parts = {name: _text(kept[name], kept[f"{name}_starts"], words, f"{data} {name}") for name in ("train", "valid")}
    return Corpus(data, words, **parts)


def draw_corpus(folder: Path, data: str, settings: Any, say: Callable[[str], None]) -> None:
    """Draws the samples of a run, unless it has them.

    Raises:
        ValueError: settings of how a text is read, or too few texts that end.
    """
    if (folder / KEPT).is_file():
        return
    given = [name for name in READING if getattr(settings, name) not in (None, False, "words")]
    if given:
        raise ValueError(f"{given[0]}: the words of samples are the language model's own tokens; leave it out")
    from pplseq.sources.drawing import draw_texts, open_language_model

    model = open_language_model(data.removeprefix(SAMPLES))
    texts = draw_texts(model, settings.num_samples, settings.sample_length, settings.seed)
    end = model.vocabulary.eos_id
    ended = [text for text in texts if text[-1] == end]
    say(f"drew {len(texts):,} texts, {sum(map(len, texts)):,} tokens; {len(ended):,} ended in {settings.sample_length}")
    by_stream = getattr(settings, "method", "sgd") != "em" and settings.protocol == "carried"
    if by_stream:  # a cut text would seem to go on with the next one
        if 2 * len(ended) < len(texts):
            raise ValueError(
                f"sample_length: {len(ended):,} of {len(texts):,} texts ended within {settings.sample_length} tokens, and "
                "others make no stream; give --protocol sentence, where a cut text counts as a beginning, "
                "or a larger --sample-length"
            )
        texts = ended
    if len(texts) < 2:
        raise ValueError(f"num_samples: expected at least 2 texts to learn from and to validate on, got {len(texts)}")
    held_out = max(1, len(texts) // HELD_OUT)
    arrays = {}
    for name, part in (("train", texts[held_out:]), ("valid", texts[:held_out])):
        arrays[name] = np.concatenate([np.array(text, np.int32) for text in part])
        arrays[f"{name}_starts"] = np.cumsum([0, *map(len, part)])
    words = "\n".join(model.vocabulary.words)

    def write(new: Path) -> None:
        with new.open("wb") as file:
            np.savez(file, words=words, **arrays)

    folder.mkdir(parents=True, exist_ok=True)
    write_with_sum(folder / KEPT, write)


def _text(tokens: np.ndarray, starts: np.ndarray, vocabulary: Vocabulary, name: str) -> Text:
    return Text(tokens, starts, np.arange(len(starts)), vocabulary, name)
