"""Perplexity of a text, exact and under a named protocol.

Two numbers are in use in the literature and differ by several percent on the same model, so each is always printed with
its name:

* carried: the text is cut in B contiguous streams and the filtered belief is carried from segment to segment;
* sentence: every line starts from the start distribution.

Every token counts once in both, `<eos>` and unknown words included: perplexity = exp(-sum log p / N).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from pplseq import checks
from pplseq.data.batches import SentenceBatches, StreamBatches
from pplseq.data.text import Text
from pplseq.runs.processes import current
from pplseq.runs.settings import perplexity
from pplseq.runs.training import model_device

PROTOCOLS = ("carried", "sentence")
STREAMS, STREAM_TOKENS = 16, 128  # streams of the carried protocol, and the tokens that each should have


@dataclass(frozen=True, eq=False)
class TextScore:
    """The log-probability of a text.

    Attributes:
        protocol: "carried" or "sentence".
        num_streams: B of the carried protocol; the number of lines per sentence.
        num_tokens, num_unknown: N, and how many of them are the unknown word.
        log_prob: nats, of all tokens together.
        token_log_probs: (N,) nats, in the order of the text; empty where a cluster summed them up.
        known_log_prob: nats, of the tokens that are not the unknown word, which is easier than the words it stands for.
    """

    protocol: str
    num_streams: int
    num_tokens: int
    num_unknown: int
    log_prob: float
    token_log_probs: np.ndarray
    known_log_prob: float | None = None

    @property
    def nats_per_token(self) -> float:
        return -self.log_prob / self.num_tokens

    @property
    def perplexity(self) -> float:
        return perplexity(self.nats_per_token)

    @property
    def known_perplexity(self) -> float | None:
        """Perplexity without the unknown word; None where nothing else stands in the text."""
        if self.known_log_prob is None or self.num_tokens == self.num_unknown:
            return None
        return perplexity(-self.known_log_prob / (self.num_tokens - self.num_unknown))

    def summary(self) -> dict[str, Any]:
        """The score as JSON-able values, without the tokens."""
        return {
            "protocol": self.protocol,
            "num_streams": self.num_streams,
            "num_tokens": self.num_tokens,
            "num_unknown": self.num_unknown,
            "unknown_share": self.num_unknown / self.num_tokens,
            "log_prob": self.log_prob,
            "nats_per_token": self.nats_per_token,
            "perplexity": self.perplexity,
            "known_perplexity": self.known_perplexity,
        }


CELLS_AT_ONCE = 1 << 23  # transition cells held at once: 32 MB in float32


def _tokens_at_once(model: Any) -> int:
    """How many tokens to take at once: 512, or fewer where each costs many transition cells."""
    return max(1, min(512, CELLS_AT_ONCE // getattr(model, "_cells_per_token", 1)))


def score_carried(model: Any, text: Text, *, num_streams: int | None = None, segment_length: int | None = None) -> TextScore:
    """Score a text as contiguous streams with the belief carried over.

    Args:
        model: a `SequenceModel`.
        text: what to score, encoded with the model's vocabulary.
        num_streams: B; each stream but the first starts in the middle of the text from the start distribution, so
            fewer streams score a little better and run longer. None is 16, the literature's number, or what leaves each
            stream 128 tokens: of shorter ones starts would be most of the score. A text of fewer tokens gives fewer.
        segment_length: T, tokens taken at once; it changes speed and memory, not the result. Default: what suits the
            model's size.
    """
    check_vocabulary(model, text)
    device = model_device(model)
    # Batches of places in the text instead of words: they say where each log-probability belongs.
    places = replace(text, tokens=np.arange(text.num_tokens))
    if num_streams is None:
        num_streams = min(STREAMS, max(1, text.num_tokens // STREAM_TOKENS))
    segment_length = segment_length or max(2, _tokens_at_once(model) // num_streams)
    batches = StreamBatches(places, num_streams, segment_length, shuffle=None, drop_remainder=False)
    scores = np.full(text.num_tokens, np.nan)
    belief = None
    with torch.no_grad(), checks.trusted(), checks.whole_text():
        for batch in map(_own_rows, batches):
            if not len(batch.x):
                continue
            x = torch.from_numpy(text.tokens[batch.x.numpy()].astype(np.int64)).to(device)
            chain = model.posterior(x, lengths=_to(batch.lengths, device), start=None if batch.is_first else belief)
            belief = chain.filtered()
            _put(scores, batch, chain.token_log_probs())
    return _score("carried", batches.batch_size, text, scores)


def score_sentences(model: Any, text: Text, *, batch_tokens: int | None = None) -> TextScore:
    """Score a text line by line, each from the start distribution.

    Args:
        model: a `SequenceModel`.
        text: what to score, encoded with the model's vocabulary.
        batch_tokens: tokens taken at once; it changes speed and memory, not the result. Default: what suits the model's
            size.
    """
    check_vocabulary(model, text)
    device = model_device(model)
    places = replace(text, tokens=np.arange(text.num_tokens))
    scores = np.full(text.num_tokens, np.nan)
    with torch.no_grad(), checks.trusted(), checks.whole_text():
        for batch in map(_own_rows, SentenceBatches(places, batch_tokens or _tokens_at_once(model))):
            if not len(batch.x):
                continue
            x = torch.from_numpy(text.tokens[batch.x.numpy()].astype(np.int64)).to(device)
            chain = model.posterior(x, lengths=batch.lengths.to(device))
            _put(scores, batch, chain.token_log_probs())
    return _score("sentence", text.num_lines, text, scores)


def score_text(model: Any, text: Text, protocol: str, **options: Any) -> TextScore:
    """`score_carried` or `score_sentences`, by name."""
    checks.choice("protocol", protocol, PROTOCOLS)
    return {"carried": score_carried, "sentence": score_sentences}[protocol](model, text, **options)


def check_vocabulary(model: Any, text: Text) -> None:
    """Raises ValueError when the text is encoded with another number of words than the model knows."""
    num_words = getattr(model, "num_words", None)
    if num_words is not None and num_words != len(text.vocabulary):
        raise ValueError(
            f"text {text.name!r} is encoded with a vocabulary of {len(text.vocabulary)} words, the model has "
            f"{num_words}; encode the text with the model's own vocabulary (vocab.txt in its folder)"
        )


def _put(scores: np.ndarray, batch: Any, token_log_probs: torch.Tensor) -> None:
    places, values = batch.x.numpy(), token_log_probs.double().cpu().numpy()
    if batch.lengths is None:
        scores[places] = values
    else:
        real = np.arange(places.shape[1]) < batch.lengths.numpy()[:, None]
        scores[places[real]] = values[real]


def _own_rows(batch: Any) -> Any:
    """The rows of a batch that this process scores: all of them, unless several train together."""
    if not current().several:
        return batch
    own = current().share(len(batch.x))
    return batch._replace(**{name: rows[own] for name, rows in batch._asdict().items() if isinstance(rows, torch.Tensor)})


def _score(protocol: str, num_streams: int, text: Text, scores: np.ndarray) -> TextScore:
    if current().several:  # places that are others' are NaN here; one that all have is so after the sum
        parts = torch.stack([torch.from_numpy(scores).nan_to_num(0.0), torch.from_numpy(~np.isnan(scores)).double()])
        total, scored = current().total(parts).numpy()
        scores = np.where(scored == 1, total, np.nan)
    if np.isnan(scores).any():
        raise FloatingPointError(f"{int(np.isnan(scores).sum())} of {len(scores)} tokens have no log-probability (NaN)")
    known = scores if text.vocabulary.unknown_id is None else scores[text.tokens != text.vocabulary.unknown_id]
    total = float(scores.sum())
    return TextScore(protocol, num_streams, text.num_tokens, text.num_unknown, total, scores, float(known.sum()))


def _to(lengths: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if lengths is None else lengths.to(device)
