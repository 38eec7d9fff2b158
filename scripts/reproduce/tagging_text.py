"""The text from which word embeddings are learned for tagging: books, and the words (not the tags) of tagged training text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from treebank_words import alternate_quotes, treebank_sentences

from pplseq.data import Text, Vocabulary, read_columns, read_conllu, read_text
from pplseq.data.lag_counts import LagCounts
from pplseq.data.lag_files import load_counts, save_counts
from pplseq.data.sources import read_lines
from pplseq.data.vocabulary import WordForms

FORMS = WordForms(digits="NUM")
OOV = "<unk>"


@dataclass(frozen=True)
class TaggedText:
    """Encoded sentences and the tag of every word; `<eos>` has the tag "".

    words: (N,) the words as they stand in the corpus, "" for `<eos>`. tags: (N,).
    """

    text: Text
    words: np.ndarray
    tags: np.ndarray

    @property
    def real(self) -> np.ndarray:
        """(N,) bool: not `<eos>`."""
        return self.words != ""

    def first(self, num_lines: int) -> TaggedText:
        """The first sentences."""
        starts = self.text.line_starts[: num_lines + 1]
        stop = starts[-1]
        text = replace(
            self.text, tokens=self.text.tokens[:stop], line_starts=starts, article_starts=np.arange(len(starts))
        )
        return TaggedText(text, self.words[:stop], self.tags[:stop])


def sentences(data: Path, max_lines: int | None) -> Iterator[list[str]]:
    """Gutenberg (the first `max_lines` paragraphs), CoNLL-2000 train, UD EWT train: words with NUM for digits."""
    books = next((data / "gutenberg").glob("*train*"))
    for line in islice(read_lines(books), max_lines):
        for sentence in treebank_sentences(" ".join(line)):
            yield [FORMS(word) for word in sentence]
    for sentence in read_columns(data / "conll2000" / "train.txt"):
        yield [FORMS(word) for word in sentence.words]
    for sentence in read_conllu(data / "ud_english_ewt" / "en_ewt-ud-train.conllu"):
        yield [FORMS(word) for word in alternate_quotes(sentence.words)]


def encoded(data: Path, folder: Path, max_vocabulary: int, min_count: int, max_lines: int | None) -> Text:
    """The training text with its vocabulary, cut by frequency; made once, then read from `folder`.

    Words seen less than `min_count` times become the unknown word, so that it is seen in training as new words are later.
    """
    text_path = folder / f"text_{max_lines or 'all'}.txt"
    vocabulary_path = folder / f"vocab_{max_lines or 'all'}_{max_vocabulary}_{min_count}.txt"
    folder.mkdir(parents=True, exist_ok=True)
    if not text_path.is_file():
        new = text_path.with_suffix(".new")
        with new.open("w", encoding="utf-8") as file:
            file.writelines(" ".join(sentence) + "\n" for sentence in sentences(data, max_lines) if sentence)
        new.replace(text_path)
    if not vocabulary_path.is_file():
        Vocabulary.build(read_lines(text_path), min_count=min_count, max_size=max_vocabulary, unknown=OOV).save(
            vocabulary_path
        )
    vocabulary = Vocabulary.load(vocabulary_path)
    if vocabulary.unknown_id is None:
        raise ValueError(f"min_count: {min_count} makes no word unknown, but other text has new words; give 2 or more")
    return read_text(text_path, vocabulary, name="tagging text")


def lag_counts(text: Text, folder: Path, max_lag: int) -> tuple[LagCounts, float]:
    """Counts of the text, made once, and the seconds they took (0: read)."""
    path = folder / f"counts_{text.vocabulary.fingerprint()[:8]}_{max_lag}"
    if path.is_dir():
        return load_counts(path), 0.0
    started = time.perf_counter()
    counts = LagCounts.from_text(text, max_lag)
    save_counts(counts, path)
    return counts, round(time.perf_counter() - started, 1)


def tagged(path: Path, vocabulary: Vocabulary) -> TaggedText:
    """A CoNLL-2000 file with its Penn Treebank tags."""
    found = list(read_columns(path))
    text = Text.from_lines([[FORMS(word) for word in sentence.words] for sentence in found], vocabulary, name=path.name)
    words = np.array([word for sentence in found for word in (*sentence.words, "")])
    tags = np.array([tag for sentence in found for tag in (*sentence.tags, "")])
    return TaggedText(text, words, tags)


def word2vec(text: Text, folder: Path, num_dimensions: int, *, window: int, epochs: int, threads: int, seed: int):
    """(V, h) float32 CBOW vectors of the words of the vocabulary, and what they took; made once.

    Words cut from the vocabulary are one word here too, so that unknown words have a vector.
    """
    path = folder / f"word2vec_{text.vocabulary.fingerprint()[:8]}_{num_dimensions}_{window}_{epochs}.npy"
    if path.is_file():
        return np.load(path), {"seconds": None}
    try:
        import gensim
    except ImportError as error:
        raise ImportError('word2vec needs gensim: pip install "pplseq[bench]"') from error
    lines, words = folder / "word2vec.txt", text.vocabulary.words
    with lines.open("w", encoding="utf-8") as file:
        file.writelines(" ".join(words[i] for i in line[:-1]) + "\n" for line in text.lines())
    started = time.perf_counter()
    model = gensim.models.Word2Vec(
        corpus_file=str(lines), vector_size=num_dimensions, window=window, sg=0, min_count=1, epochs=epochs,
        workers=threads, seed=seed,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    vectors = np.zeros((len(words), num_dimensions), dtype=np.float32)
    for number, word in enumerate(words):
        if word in model.wv:
            vectors[number] = model.wv[word]
    np.save(path, vectors)
    lines.unlink()
    return vectors, {"seconds": round(seconds, 1), "gensim": gensim.__version__}
