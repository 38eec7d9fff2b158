"""Embeddings of words in and out of their sentences, as a part of :class:`~pplseq.models.text_lds.program.TextLDS`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class TextEmbeddings:
    """Token and type embeddings of a linear dynamical system for text; see :mod:`pplseq.models.text_lds.embeddings`."""

    embedding_share: float

    def evidence_factor(self) -> Tensor:
        """(V,) (n + kappa) / (n + r kappa): what ``embedding_share`` r makes of each word's evidence in embeddings."""
        # probs are (n + kappa) / (T + kappa V), and kappa / (T + kappa V) is (1 - shrinkage) / V
        pseudo = (1 - self.shrinkage.double()) / self.num_words
        probs = self.probs.double()
        return probs / (probs - (1 - self.embedding_share) * pseudo)

    def set_embedding_share(self, share: float, x, lengths=None) -> TextEmbeddings:
        """Sets ``embedding_share`` and, by :meth:`estimate_moments` of a text x, what whitens the new embeddings."""
        self.embedding_share = check_share(share)
        self.estimate_moments(x, lengths)
        return self

    def estimate_moments(self, x, lengths=None) -> None:
        """Sets what whitens embeddings from a text's own posterior means: after gradient training, or for other text."""
        from pplseq.models.text_lds.embeddings import TokenEmbedder, as_lines

        moments = []
        for kind in ("smoothed", "filtered"):
            means = TokenEmbedder(self, kind=kind, normalize=False, dtype="float64").embed(*as_lines(x, lengths))
            if len(means) < self.num_states:
                raise ValueError(f"x must hold at least {self.num_states} words (num_states), got {len(means)}")
            moments.append(torch.from_numpy(means.T @ means / len(means)))
        self.set_moments(*moments)

    def embed_tokens(self, x, lengths=None, *, kind: str = "smoothed", normalize: bool = True, dtype: str = "float32"):
        """Embeddings of tokens in their sentences.

        Args:
            x: a :class:`~pplseq.data.text.Text`, a list of id sequences, or padded ids (B, T) with lengths (B,).
            kind, normalize, dtype: of :class:`~pplseq.models.text_lds.embeddings.TokenEmbedder`.

        Returns:
            (N, h) array of all tokens in their order, for a Text; else a list of (T_i, h).
        """
        from pplseq.models.text_lds.embeddings import TokenEmbedder, as_lines

        tokens, line_starts = as_lines(x, lengths)
        result = TokenEmbedder(self, kind=kind, normalize=normalize, dtype=dtype).embed(tokens, line_starts)
        return result if hasattr(x, "line_starts") else np.split(result, line_starts[1:-1])

    def type_embeddings(self, *, kind: str = "smoothed", normalize: bool = True) -> np.ndarray:
        """(V, h) embeddings of word types: the filter's response to the word alone, in the coordinates of the tokens."""
        from pplseq.models.text_lds.embeddings import TokenEmbedder

        return TokenEmbedder(self, kind=kind, normalize=normalize).types()


def check_share(share: float) -> float:
    if not 0 < share <= 1:
        raise ValueError(f"embedding_share must be in (0, 1], 1 for the model as it was learned; got {share}")
    return float(share)
