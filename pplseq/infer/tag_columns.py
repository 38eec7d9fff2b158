"""Real-valued features of words in sentences for taggers: what unsupervised models say about each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

Sentences = Sequence[Sequence[str]]


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

    def __init__(self, model, vocabulary, forms: Callable[[str], str] = str, kind: str = "smoothed"):
        self.model, self.vocabulary, self.forms, self.kind = model, vocabulary, forms, kind
        self.num_columns = int(model.num_states)

    def __call__(self, sentences):
        from pplseq.data import Text

        lines = [[self.forms(word) for word in sentence] for sentence in sentences]
        text = Text.from_lines(lines, self.vocabulary, name="sentences")
        values = np.asarray(self.model.embed_tokens(text, kind=self.kind))
        return Columns(values[text.tokens != self.vocabulary.eos_id].astype(np.float32))


class PosteriorColumns:
    """p(state | sentence) at each word, of an HMM or VL-HMM, states of small probability left out.

    Args:
        model: with ``posterior(x, lengths)`` and states of which a word has few (a VL-HMM: those of its block).
        vocabulary, forms: as of :class:`EmbeddingColumns`.
        least: the smallest probability that is a feature.
        batch_size: sentences at a time.
    """

    sparse = True

    def __init__(self, model, vocabulary, forms: Callable[[str], str] = str, least: float = 0.01, batch_size: int = 64):
        self.model, self.vocabulary, self.forms = model, vocabulary, forms
        self.least, self.batch_size = least, batch_size
        self.num_columns = int(model.num_states)

    def __call__(self, sentences):
        import torch

        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        rows: list = [None] * len(sentences)
        for start in range(0, len(order), self.batch_size):
            part = order[start : start + self.batch_size]
            lengths = torch.tensor([len(sentences[i]) + 1 for i in part])
            x = torch.full((len(part), int(lengths.max())), self.vocabulary.eos_id)
            for row, i in enumerate(part):
                x[row, : len(sentences[i])] = torch.from_numpy(
                    self.vocabulary.encode([self.forms(word) for word in sentences[i]]).astype(np.int64)
                )
            with torch.no_grad():
                ids, probs = self._strongest(self.model.posterior(x, lengths).marginals())
            for row, i in enumerate(part):
                rows[i] = ids[: len(sentences[i]), row], probs[: len(sentences[i]), row]
        width = max((ids.shape[1] for ids, _ in rows), default=0)
        ids, probs = (
            np.concatenate([np.zeros((0, width), dtype), *(_padded(row[k], width, fill) for row in rows)])
            for k, dtype, fill in ((0, np.int64, -1), (1, np.float32, 0.0))
        )
        return Columns(probs, ids)

    def _strongest(self, marginals) -> tuple[np.ndarray, np.ndarray]:
        """(T, B, k) states and probabilities, the largest first, -1 where less than `least`."""
        number = min(int(1 / self.least), marginals.probs.shape[-1])
        probs, place = marginals.probs.topk(number, -1)
        ids = place if marginals.ids is None else marginals.ids.gather(-1, place)
        small = probs < self.least
        ids = ids.masked_fill(small, -1)
        width = max(int((~small).sum(-1).max()), 1)
        return ids[..., :width].numpy(), probs.masked_fill(small, 0.0)[..., :width].float().numpy()


class JoinedColumns:
    """Dense columns of several sources beside each other."""

    sparse = False

    def __init__(self, *sources: ColumnSource):
        if any(source.sparse for source in sources):
            raise ValueError("sources: only dense columns can be joined")
        self.sources, self.num_columns = sources, sum(source.num_columns for source in sources)

    def __call__(self, sentences):
        return Columns(np.concatenate([source(sentences).values for source in self.sources], 1))


def _padded(values: np.ndarray, width: int, fill) -> np.ndarray:
    return np.pad(values, ((0, 0), (0, width - values.shape[1])), constant_values=fill)
