"""A Hugging Face causal language model as a source of words.

Its tokens are pieces of words, a stream's tokens are words. The word w behind a context c is the pieces s_1..s_k of " w",
followed by the beginning of another word:

    p(w | c) = prod_i q(s_i | c s_1..s_{i-1}) * q(some piece that begins a word, or the end | c s_1..s_k)

where q is the model. Over all strings these are probabilities; over the V words of a vocabulary they sum to less than one,
and what is left is the unknown word's.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.vocabulary import Vocabulary
from pplseq.models.props.source import PutBack, check_token, put_back
from pplseq.sources.piece_reader import CachedReader, PieceTree, Reader, has_cache
from pplseq.sources.weights import Weights, call_with, stretches

BATCH = 64  # contexts that go through a network without a cache at once
MAX_CONTEXT = 512  # pieces, where nothing else is said
LINE_BYTE = "<0x0A>"  # a line end, where bytes without a piece of their own are pieces
LEAST = 1e-12  # probability of the unknown word, where the others leave nothing


def _context_of(model: Any, max_context: int | None) -> int:
    """The context, checked against the model's positions where its configuration names them."""
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if max_context is None:
        return min(MAX_CONTEXT, positions or MAX_CONTEXT)
    checks.count("max_context", max_context)
    if positions is not None and max_context > positions:
        raise ValueError(f"max_context: the model has {positions} positions, got {max_context}; give at most {positions}")
    return max_context


class HuggingFaceSource:
    """A causal language model of the `transformers` library over the words of a vocabulary.

    Args:
        model: takes ``input_ids`` (B, t) and gives ``.logits`` (B, t, S) over S pieces.
        tokenizer: ``encode(text, add_special_tokens=False)`` to pieces and ``convert_ids_to_tokens(ids)`` to their spelling,
            in which pieces that begin a word start with a mark (GPT-2's and Llama's do). A word's pieces are those behind
            another line: what Llama's puts in front of a text stands once there, not before every word.
        vocabulary: of the stream; it must have an unknown word. `<eos>` is a line's end, "\\n" to the model. Words of the same
            pieces, as those out of a piece for unknown letters, share their probability evenly.
        start: pieces before the first word; default: the tokenizer's beginning or end of text.
        max_context: pieces the model reads at most; default: as many as it has positions, 512 at most. A context that has no
            room for another word loses its older half.
        cache: keep keys and values of the context, so that a word costs what its own pieces cost; None where the model has
            them (``past_key_values``, in transformers 5.24 ``cache``) and they can be cut. False reads the whole context anew
            for every word.

    The model is put in evaluation mode, read in it even where its owner trains it in between, and never trained.
    A word that the vocabulary has not leaves nothing in the context, as nobody knows its spelling.

    Raises:
        ValueError: a vocabulary without an unknown word, or with one that has no pieces, no start, more context than the model
            has positions, or less than start and the longest word need.

    Cost: ``log_prob_of`` of a known word reads its pieces, whatever V is. ``predict``, and ``log_prob_of`` of the unknown word,
    whose probability is what all V words leave, read every piece of the tree that the words make up, once for a context: of
    2,000 words 375 ms on one CPU where a known word costs 1.5 ms. No shorter way is exact: with which probability a word ends
    behind its last piece only the network says, for each word. Unknown words behind each other are one context. A stream with
    many of them wants a smaller vocabulary. Without a cache each reads the context as well.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        vocabulary: Vocabulary,
        *,
        start: list[int] | None = None,
        max_context: int | None = None,
        cache: bool | None = None,
    ):
        if vocabulary.unknown_id is None:
            raise ValueError(
                f"vocabulary: it needs an unknown word, which takes what the other {len(vocabulary)} words leave; build it "
                "with min_count=2 or max_size"
            )
        self.model, self.tokenizer, self.vocabulary = model.eval(), tokenizer, vocabulary
        self.num_words, self.max_context = len(vocabulary), _context_of(model, max_context)
        self.name = getattr(model, "name_or_path", None) or type(model).__name__
        if start is None:
            first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
            if first is None:
                raise ValueError("start: the tokenizer has no beginning of text; give the pieces before the first word")
            start = [first]
        self.start, self.device = list(start), next(model.parameters()).device
        self.pieces = [self._spell(word) for word in vocabulary.words]
        known = [tuple(pieces) for y, pieces in enumerate(self.pieces) if y != vocabulary.unknown_id]
        if () in known:
            empty = next(word for word, pieces in zip(vocabulary.words, self.pieces, strict=True) if not pieces)
            raise ValueError(f"vocabulary: the tokenizer has no pieces for {empty!r}; leave the word out")
        alike = Counter(known)
        self._shared = torch.tensor([math.log(alike.get(tuple(pieces), 1)) for pieces in self.pieces], dtype=torch.float64)
        num_pieces = int(model.get_output_embeddings().weight.shape[0])
        self._begins = torch.tensor(self._word_beginnings(num_pieces), device=self.device)
        self.tree = PieceTree(self.pieces)
        if (needed := len(self.start) + self.tree.depth) > self.max_context:
            raise ValueError(
                f"max_context: the longest word has {self.tree.depth} pieces behind {len(self.start)} of start, and at most "
                f"{self.max_context} are read; give max_context of {needed} or more, or leave long words out of the vocabulary"
            )
        if cache and not has_cache(model):
            raise ValueError(f"cache: {self.name} keeps no keys and values that can be cut; give cache=None or False")
        self.cached = has_cache(model) if cache is None else cache
        self._weights: Weights | None = None
        self._open()

    line_end = None  # a sequence begins with an empty context

    def _open(self) -> None:
        """Reads from the beginning."""
        slow = Reader(self._read_anew, self._hidden_anew)
        self._reader: Reader = CachedReader(self.model, self.device, self._call) if self.cached else slow
        self.reset()

    @property
    def weights(self) -> Weights | None:
        """Weights that the model is read with in the place of its own, by their names; None: its own."""
        return self._weights

    @weights.setter
    def weights(self, weights: Weights | None) -> None:
        self._weights, self._known, self._hidden = weights, None, None
        self._reader.forget()

    def apart(self) -> HuggingFaceSource:
        """The same source at its beginning, with weights, context and cache of its own; model and words are shared."""
        other = copy.copy(self)
        other._weights = None
        other._open()
        return other

    def _call(self, **inputs: Any) -> Any:
        return call_with(self.model, self._weights, **inputs)

    @classmethod
    def from_pretrained(cls, name: str, vocabulary: Vocabulary, **options: Any) -> HuggingFaceSource:
        """The named model and its tokenizer, from a local folder or the Hugging Face hub.

        Raises:
            ImportError: naming the extra to install.
        """
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            raise ImportError('Hugging Face models need transformers: pip install "pplseq[huggingface]"') from error
        model = AutoModelForCausalLM.from_pretrained(name)
        return cls(model, AutoTokenizer.from_pretrained(name), vocabulary, **options)

    def _spell(self, word: str) -> list[int]:
        text = "\n" if word == self.vocabulary.eos else " " + word
        if len(line := self.tokenizer.encode("\n", add_special_tokens=False)) > 1:  # what stands before every text, too
            behind = self.tokenizer.encode("\n" + text, add_special_tokens=False)
            if len(behind) > len(line) and behind[: len(line)] == line:
                return behind[len(line) :]
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _word_beginnings(self, num_pieces: int) -> list[bool]:
        """Which pieces cannot go on with a word: they begin one, or a line, or are special."""
        size = min(len(self.tokenizer), num_pieces)
        special = set(self.tokenizer.all_special_ids)
        names = self.tokenizer.convert_ids_to_tokens(list(range(size)))
        marks = (
            "\u0120",
            "\u2581",
            "\u010a",
            " ",
            "\n",
        )  # space and line end, as byte-level and sentence pieces write them
        flags = [n in special or (name or "").startswith(marks) or name == LINE_BYTE for n, name in enumerate(names)]
        return flags + [False] * (num_pieces - size)

    @torch.no_grad()
    def _read_anew(self, contexts: list[list[int]]) -> Tensor:
        """(N, S) log-probabilities of the next piece behind each context, by reading it from its start."""
        rows = []
        for first in range(0, len(contexts), BATCH):
            batch = [context[-self.max_context :] for context in contexts[first : first + BATCH]]
            longest = max(map(len, batch))
            # padded behind, where a causal model does not look
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in batch], device=self.device)
            ends = torch.tensor([len(row) - 1 for row in batch], device=self.device)
            logits = self._call(input_ids=ids).logits[torch.arange(len(batch), device=self.device), ends]
            rows.append(torch.log_softmax(logits.double(), -1))
        return torch.cat(rows)

    @torch.no_grad()
    def _hidden_anew(self, context: list[int]) -> Any:
        ids = torch.tensor([context[-self.max_context :]], device=self.device)
        return self._call(input_ids=ids, output_hidden_states=True)

    def hidden_state(self) -> np.ndarray:
        """(D,) the last layer's hidden state behind the context, from which the next word's first piece is predicted.

        So a word of several pieces stands in a cache beside the state before its first one.

        Raises:
            TypeError: a model that gives no ``hidden_states`` when asked by ``output_hidden_states=True``.
        """
        hidden = self._hidden
        if hidden is None:
            needed = f"model: {self.name} gives no hidden states; a model of transformers does by output_hidden_states=True"
            try:
                layers = getattr(self._reader.hidden(self.context), "hidden_states", None)
            except TypeError as error:
                raise TypeError(f"{needed} ({error})") from error
            if not layers:
                raise TypeError(needed)
            hidden = self._hidden = layers[-1][0, -1].double().cpu().numpy()
        return hidden

    def nats(self, state: dict[str, Any], words: list[int]) -> Tensor:
        """(n,) -log p of the known words among some behind a state of ``state_dict``, with gradients for ``weights``."""
        values = []
        for context, part in stretches(list(state["context"]), words, self._pieces_of, self._after):
            ids = context + [piece for y in part for piece in self._pieces_of(y)]
            logits = self._call(input_ids=torch.tensor([ids], device=self.device)).logits[0]
            rows, place = torch.log_softmax(logits.double(), -1), len(context) - 1
            for y in part:
                if pieces := self._pieces_of(y):
                    end = place + len(pieces)
                    spelled = rows[range(place, end), pieces].sum()
                    values.append(float(self._shared[y]) - spelled - torch.logsumexp(rows[end][self._begins], 0))
                    place = end
        return torch.stack(values) if values else torch.zeros(0, dtype=torch.float64, device=self.device)

    def _pieces_of(self, y: int) -> list[int]:
        """What a word adds to the context: an unknown one nothing, as nobody knows its spelling."""
        return [] if y == self.vocabulary.unknown_id else self.pieces[y]

    def _after(self, context: list[int], y: int) -> list[int]:
        context = context + self._pieces_of(y)
        if len(context) + self.tree.depth > self.max_context:
            context = context[-max(min(self.max_context // 2, self.max_context - self.tree.depth), 1) :]
        return context

    def _log_prob_by_pieces(self, y: int) -> float:
        rows = self._reader.along(self.context, self.pieces[y])
        spelled = sum(float(rows[n, piece]) for n, piece in enumerate(self.pieces[y]))
        return spelled + float(torch.logsumexp(rows[-1][self._begins], 0)) - float(self._shared[y])

    def log_prob_of(self, y: int) -> float:
        """log p(y), nats."""
        check_token(y, self.num_words, self.name)
        if (y == self.vocabulary.unknown_id or self._known is not None) and (prob := self.predict()[y]) > 0:
            return math.log(prob)
        return self._log_prob_by_pieces(y)  # below 1e-300, too

    @torch.no_grad()
    def predict(self) -> np.ndarray:
        """(V,) probabilities; the unknown word has what the others leave."""
        if self._known is not None:
            return self._known
        mass = torch.zeros(len(self.tree), dtype=torch.float64)  # log p of the pieces from the root to each node
        ends = torch.zeros(len(self.tree), dtype=torch.float64)
        for nodes, rows in self._reader.over(self.context, self.tree):
            ends[nodes] = torch.logsumexp(rows[:, self._begins], -1).cpu()
            for node, row in zip(nodes, rows.cpu(), strict=True):
                children = self.tree.children[node]
                mass[children] = mass[node] + row[self.tree.piece[children]]
        probs = ((mass + ends)[self.tree.words] - self._shared).exp().numpy()
        unknown = self.vocabulary.unknown_id
        probs[unknown] = 0.0
        probs[unknown] = max(1 - probs.sum(), LEAST)
        known = self._known = probs / probs.sum()
        return known

    def observe(self, y: int) -> None:
        """The word's pieces join the context."""
        check_token(y, self.num_words, self.name)
        before, self.context = self.context, self._after(self.context, y)
        if self.context != before:  # an unknown word leaves nothing behind, so that what was read of all words stands
            self._known = self._hidden = None

    def reset(self) -> None:
        """A new sequence: the context is empty."""
        self.context: list[int] = list(self.start)
        self._known: np.ndarray | None = None  # (V,) probabilities of the next word, once somebody asked for all
        self._hidden: np.ndarray | None = None  # (D,) behind the context, once somebody asked

    def mark(self) -> PutBack:
        """The context."""
        return put_back(self, "context", "_known", "_hidden")

    def state_dict(self) -> dict[str, Any]:
        """The context, in pieces."""
        return {"context": list(self.context)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a context."""
        self.reset()
        self.context = [int(piece) for piece in state["context"]]
