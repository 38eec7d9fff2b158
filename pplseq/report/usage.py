"""Which states a text uses: expected visits given all of its words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from pplseq.data.batches import SentenceBatches, StreamBatches
from pplseq.data.text import Text
from pplseq.distributions.drawing import seeded
from pplseq.runs.evaluation import check_vocabulary
from pplseq.runs.training import model_device

CELLS_AT_ONCE = 1 << 24  # transition cells held at once: 64 MB in float32
NUM_STREAMS = 4  # few, long segments: a state is smoothed with the words of its own segment only


@dataclass(frozen=True, eq=False)
class Usage:
    """Posterior states of a text's N tokens.

    Attributes:
        visits: (Z,) expected visits, summing to N.
        leaving: (Z,) those of them that are followed by an ordinary transition.
        restarts: (Z,) those that are followed by a fresh start, because their word is the model's reset word.
        followed: (N,) whether a token is followed by another one in its chain, by transition or restart.
        best_state, best_prob: (N,) each token's most probable state.
        entropy: (N,) nats, H(z_t | words).
        protocol: "sentence" if each line was its own chain, "carried" if the belief ran on.
    """

    visits: np.ndarray
    leaving: np.ndarray
    restarts: np.ndarray
    followed: np.ndarray
    best_state: np.ndarray
    best_prob: np.ndarray
    entropy: np.ndarray
    protocol: str

    @property
    def shares(self) -> np.ndarray:
        """(Z,) shares of the tokens."""
        return self.visits / self.visits.sum()

    @property
    def effective_states(self) -> float:
        """exp of the entropy of `shares`: how many equally used states would be as diverse."""
        shares = self.shares[self.shares > 0]
        return float(np.exp(-(shares * np.log(shares)).sum()))


def state_usage(model: Any, text: Text, *, protocol: str | None = None) -> Usage:
    """Run a text through a model once and add up its state posteriors.

    Args:
        model: a `SequenceModel` of words.
        text: encoded with the model's vocabulary.
        protocol: "sentence" or "carried"; default: "sentence" for a model that starts afresh at every `<eos>` (the two
            are then the same posterior), else "carried". A text with a line too long for one chain is always carried.
    """
    check_vocabulary(model, text)
    device, num_states = model_device(model), model.num_states
    reset_id = getattr(model, "reset_id", None)
    tokens_at_once = max(8, CELLS_AT_ONCE // max(getattr(model, "_cells_per_token", 1), num_states))
    tokens_at_once = min(tokens_at_once, 2048)
    if protocol is None:
        protocol = "carried" if reset_id is None else "sentence"
    if text.lengths.max() > 4 * tokens_at_once:
        protocol = "carried"
    ordinary, resets = _followers(text, reset_id, protocol)
    followed = torch.from_numpy(np.stack([ordinary, resets]).astype(np.float64))
    totals = torch.zeros(3, num_states, dtype=torch.float64)
    best_state = np.zeros(text.num_tokens, np.int64)
    best_prob, entropy = np.zeros(text.num_tokens), np.zeros(text.num_tokens)
    belief = None
    with torch.no_grad():
        for batch in _batches(text, protocol, tokens_at_once):
            lengths = batch.lengths
            x = torch.from_numpy(text.tokens[batch.x.numpy()].astype(np.int64)).to(device)
            chain = model.posterior(
                x, lengths=None if lengths is None else lengths.to(device), start=None if batch.is_first else belief
            )
            if protocol == "carried":
                belief = chain.filtered()
            marginals = chain.marginals()
            real = torch.ones_like(batch.x, dtype=torch.bool)
            if lengths is not None:
                real = torch.arange(batch.x.shape[1]) < lengths.unsqueeze(-1)
            place = batch.x[real]
            probs = marginals.probs[real.to(device)].double().cpu()  # (tokens, K)
            ids = None if marginals.ids is None else marginals.ids[real.to(device)].cpu()
            weights = torch.cat([torch.ones(1, len(place), dtype=torch.float64), followed[:, place]])
            if ids is None:
                totals += weights @ probs
            else:
                for total, weight in zip(totals, weights, strict=True):
                    total.index_add_(0, ids.reshape(-1), (weight.unsqueeze(-1) * probs).reshape(-1))
            top, slot = probs.max(-1)
            best_prob[place] = top
            best_state[place] = slot if ids is None else ids.gather(-1, slot.unsqueeze(-1)).squeeze(-1)
            entropy[place] = torch.special.entr(probs).sum(-1)
    visits, leaving, restarts = totals.numpy()
    return Usage(visits, leaving, restarts, ordinary | resets, best_state, best_prob, entropy, protocol)


def _followers(text: Text, reset_id: int | None, protocol: str) -> tuple[np.ndarray, np.ndarray]:
    """(N,) twice: tokens that an ordinary transition follows, and those that a fresh start follows."""
    resets = np.zeros(text.num_tokens, bool) if reset_id is None else text.tokens == reset_id
    inside = np.ones(text.num_tokens, bool)
    inside[text.line_starts[1:] - 1] = protocol == "carried"
    inside[-1] = resets[-1] = False
    return inside & ~resets, resets


def _batches(text: Text, protocol: str, tokens_at_once: int) -> SentenceBatches | StreamBatches:
    """Batches of places in the text instead of words: they say where each posterior belongs."""
    places = replace(text, tokens=np.arange(text.num_tokens))
    if protocol == "sentence":
        return SentenceBatches(places, tokens_at_once)
    return StreamBatches(places, NUM_STREAMS, max(2, tokens_at_once // NUM_STREAMS), drop_remainder=False)


def first_lines(text: Text, num_tokens: int) -> Text:
    """The whole lines of a text that fit in `num_tokens` tokens; a longer first line is cut."""
    num_lines = int(np.searchsorted(text.line_starts, num_tokens, side="right")) - 1
    if num_lines >= text.num_lines:
        return text
    starts = text.line_starts[: num_lines + 1] if num_lines else np.array([0, num_tokens])
    articles = np.array([0, len(starts) - 1])
    return replace(text, tokens=text.tokens[: starts[-1]], line_starts=starts, article_starts=articles)


def written_text(model: Any, vocabulary: Any, *, num_lines: int = 48, length: int = 40, seed: int = 0) -> Text:
    """Lines that the model writes itself, where no text is at hand; a line not ended after `length` words is cut.

    Large models write fewer: a step of one line costs the transitions out of a whole block.

    Raises:
        ValueError: if all of its lines are empty.
    """
    if model.num_states > 8192:
        num_lines, length = 8, 24
    with torch.no_grad(), seeded(seed):
        drawn = model.draws(num_sequences=num_lines, num_steps=length)[1]
    lines = [list(takewhile(lambda word: word != vocabulary.eos, vocabulary.decode(row))) for row in drawn.tolist()]
    if not any(lines):
        raise ValueError(f"model: it writes nothing but {vocabulary.eos}, so a text is needed to measure its states on")
    return Text.from_lines(lines, vocabulary, name="the model's own sentences")
