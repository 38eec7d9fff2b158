"""Real-valued features of words in sentences for taggers: what unsupervised models say about each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

Sentences = Sequence[Sequence[str]]
Forms = Callable[[str], str]


class Columns(NamedTuple):
    """values: (N, h) numbers of all words. ids: (N, h) which column each is of, -1 for none; None: all, in order."""

    values: np.ndarray
    ids: np.ndarray | None = None


class ColumnSource(Protocol):
    """Computes features of sentences. num_columns: how many there are. sparse: whether its `Columns` have ids."""

    num_columns: int
    sparse: bool

    def __call__(self, sentences: Sentences) -> Columns: ...


class EmbeddingColumns:
    """Token embeddings of a :class:`~pplseq.models.TextLDS`, each from the whole sentence around it.

    Args:
        model: the LDS. vocabulary: its words, with an unknown one.
        forms: rewrites a word before it is looked up, as was done to the words that the model was learned from.
        kind: "smoothed" (words on both sides) or "filtered" (up to the word itself).
    """

    sparse = False

    def __init__(self, model, vocabulary, forms: Forms = str, kind: str = "smoothed"):
        self.model, self.vocabulary, self.forms, self.kind = model, vocabulary, forms, kind
        self.num_columns = int(model.num_states)

    def __call__(self, sentences):
        from pplseq.data import Text

        lines = [[self.forms(word) for word in sentence] for sentence in sentences]
        text = Text.from_lines(lines, self.vocabulary, name="sentences")
        values = np.asarray(self.model.embed_tokens(text, kind=self.kind))
        return Columns(values[text.tokens != self.vocabulary.eos_id].astype(np.float32))


class TypeColumns:
    """A vector a word, whatever stands around it, such as word2vec's.

    Args:
        vectors: (V, h). vocabulary: their words, with an unknown one. forms: as of :class:`EmbeddingColumns`.
    """

    sparse = False

    def __init__(self, vectors: np.ndarray, vocabulary, forms: Forms = str):
        if len(vectors) != len(vocabulary):
            raise ValueError(f"vectors: expected one for each of {len(vocabulary)} words, got {len(vectors)}")
        self.vectors, self.vocabulary, self.forms = vectors, vocabulary, forms
        self.num_columns = vectors.shape[1]

    def __call__(self, sentences):
        words = [self.forms(word) for sentence in sentences for word in sentence]
        return Columns(self.vectors[self.vocabulary.encode(words)].astype(np.float32))


class PosteriorColumns:
    """p(state | sentence) at each word, of an HMM or VL-HMM, states of small probability left out.

    Args:
        model: with ``posterior(x, lengths)`` and states of which a word has few (a VL-HMM: those of its block).
        vocabulary: its words, with an unknown one.
        forms: rewrites a word before it is looked up; None leaves it out of the sentence, without features of its own (so
            that a model of text without punctuation can be asked about text with it).
        least: the smallest probability that is a feature.
        batch_size: sentences at a time.
    """

    sparse = True

    def __init__(
        self, model, vocabulary, forms: Callable[[str], str | None] = str, least: float = 0.01, batch_size: int = 64
    ):
        if not 0 < least <= 1:
            raise ValueError(f"least: expected a probability above 0, got {least}")
        self.model, self.vocabulary, self.forms = model, vocabulary, forms
        self.least, self.batch_size = least, batch_size
        self.num_columns = int(model.num_states)

    def __call__(self, sentences):
        forms = [[self.forms(word) for word in sentence] for sentence in sentences]
        lines = [
            np.asarray(self.vocabulary.encode([w for w in words if w is not None]), dtype=np.int64) for words in forms
        ]
        order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
        found: list = [None] * len(lines)
        for start in range(0, len(order), self.batch_size):
            part = order[start : start + self.batch_size]
            for i, ids, probs in zip(part, *self._posterior([lines[i] for i in part]), strict=True):
                found[i] = ids, probs
        width = max((ids.shape[1] for ids, _ in found), default=1)
        present = np.array([word is not None for words in forms for word in words], dtype=bool)
        all_ids = np.full((len(present), width), -1)
        all_probs = np.zeros((len(present), width), dtype=np.float32)
        if present.any():
            all_ids[present] = np.concatenate([_padded(ids, width, -1) for ids, _ in found])
            all_probs[present] = np.concatenate([_padded(probs, width, 0.0) for _, probs in found])
        return Columns(all_probs, all_ids)

    def _posterior(self, lines: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """(T, k) states and probabilities of each line, which is followed by the end of the sentence."""
        import torch

        lengths = torch.tensor([len(line) + 1 for line in lines])
        x = torch.full((len(lines), int(lengths.max())), self.vocabulary.eos_id)
        for row, line in zip(x, lines, strict=True):
            row[: len(line)] = torch.from_numpy(line)
        with torch.no_grad():
            ids, probs = self._strongest(self.model.posterior(x, lengths).marginals())
        states, shares = ([part[row, : len(line)] for row, line in enumerate(lines)] for part in (ids, probs))
        return states, shares

    def _strongest(self, marginals) -> tuple[np.ndarray, np.ndarray]:
        """(B, T, k) states and probabilities, the largest first, -1 where less than `least`."""
        number = min(int(1 / self.least), marginals.probs.shape[-1])
        probs, place = marginals.probs.topk(number, -1)
        ids = place if marginals.ids is None else marginals.ids.gather(-1, place)
        small = probs < self.least
        ids = ids.masked_fill(small, -1)
        width = max(int((~small).sum(-1).max()), 1)
        return ids[..., :width].numpy(), probs.masked_fill(small, 0.0)[..., :width].float().numpy()


def _padded(values: np.ndarray, width: int, fill) -> np.ndarray:
    return np.pad(values, ((0, 0), (0, width - values.shape[1])), constant_values=fill)
