"""Models of words with hidden states: texts that go on from a prefix, of bounded length, and satisfy a constraint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.vocabulary import Vocabulary
from pplseq.distributions.drawing import seeded
from pplseq.infer.discrete.constrained.build import constrain
from pplseq.infer.discrete.constrained.chain import ConstrainedChain
from pplseq.infer.discrete.constrained.moves import WordMoves
from pplseq.infer.discrete.constrained.steps import KEPT_BYTES
from pplseq.models.base import SequenceModel
from pplseq.models.estimator import Estimator, Sample

if TYPE_CHECKING:
    from pplseq.models.constraints.constraint import Constraint

Prefix = str | Sequence[str] | Sequence[int] | Tensor
FROM_VOCABULARY = "<eos>"


class Bounds(NamedTuple):
    """How long a text may be, in words without the end word."""

    shortest: int
    longest: int

    @classmethod
    def of(cls, length: int | tuple[int, int]) -> Bounds:
        """From a number of words, or two.

        Raises:
            TypeError, ValueError: for what is neither.
        """
        both = length if isinstance(length, (tuple, list)) else (length, length)
        if len(both) != 2:
            raise ValueError(f"length: expected a number of words, or (shortest, longest), got {checks.shown(length)}")
        bounds = cls(*(checks.count("length", value, 0) for value in both))
        if bounds.shortest > bounds.longest:
            raise ValueError(f"length: expected (shortest, longest) with shortest <= longest, got {checks.shown(length)}")
        return bounds


class Constrainable(Estimator):
    """What models of words add: :meth:`constrained`, and ``constraint``, ``prefix`` and ``length`` of :meth:`sample`."""

    @torch.no_grad()
    def constrained(
        self,
        constraint: Constraint | None = None,
        *,
        length: int | tuple[int, int],
        prefix: Prefix | None = None,
        whole: bool = False,
        end: str | int | None = FROM_VOCABULARY,
        kept_bytes: float = KEPT_BYTES,
    ) -> ConstrainedChain:
        """The words to come that satisfy a constraint, to be asked anything exactly: its probability, samples, the best texts,
        the next word, marginals; see :class:`~pplseq.infer.discrete.constrained.chain.ConstrainedChain`.

        Args:
            constraint: None for any text of that length.
            length: words to come without the end word: a number, or (shortest, longest).
            prefix: what stands before: a string, words, or ids; words outside the vocabulary count as the unknown word.
            whole: the constraint is about prefix and words to come together, instead of the words to come alone.
            end: the word or id that ends a text; by default ``<eos>`` where the vocabulary has it. None: texts just stop, and
                all lengths that are allowed are equally likely.
            kept_bytes: of transition probabilities that are kept from step to step.

        Raises:
            ValueError: a constraint that cannot be satisfied, with the shortest reason, words that the model does not know,
                or a length that cannot be. TypeError: what is no constraint, or a model of something else than words.

        Cost: one step of all states to all others for each word to come, in which each state of the automaton is a row of a
            product of matrices. Z^2 transition probabilities are kept up to ``kept_bytes``.

        Source: H. Zhang et al., Adaptable logical control for large language models (2024).
        """
        self._check_fitted()
        if self.num_words is None or self.num_features is not None:
            raise TypeError("constrained: constraints are about words, and this model is about vectors")
        bounds, vocabulary = Bounds.of(length), words_of(self)
        if constraint is not None and not hasattr(constraint, "over"):
            raise TypeError(
                f"constraint: expected a Constraint, such as Constraint.containing('stock market'), got "
                f"{checks.shown(constraint)}"
            )
        end_id = end_of(end, vocabulary)
        moves = WordMoves.anything(len(vocabulary)) if constraint is None else constraint.over(vocabulary)
        ids = _ids(prefix, vocabulary)
        if constraint is not None and not whole:
            constraint.check(vocabulary, *bounds, end_id)
        options: dict[str, Any] = dict(end=end_id, kept_bytes=kept_bytes)
        if not len(ids):
            return constrain(*self._specs_at_test(), moves, bounds.longest, bounds.shortest, **options)
        x = torch.tensor([ids], device=self.reference.device)
        if whole:
            options["start"] = moves.to(x.device).run(x)
        return self.posterior(x).constrained(moves, bounds.longest, bounds.shortest, **options)

    @torch.no_grad()
    def next_word(self, context: Prefix = ()) -> np.ndarray:
        """Log-probabilities of the word behind a text's first words, (V,) nats, as every baseline gives them.

        Args:
            context: a string, words or ids, from the start of a text; () for its first word. Words outside the vocabulary count
                as the unknown word.

        Raises:
            ValueError: ids outside the vocabulary, or an unknown word where it has none for them. TypeError: a model of
                something else than words.
        """
        self._check_fitted()
        if self.num_words is None or self.num_features is not None:
            raise TypeError("next_word: this model is about vectors; ask predict_next or forecast for what comes next")
        ids = _ids(context, words_of(self), "context")
        chain: Any = self.posterior(torch.tensor([ids or [0]], device=self.reference.device))
        return (chain.next() if ids else chain.next_after(None)).word_log_probs[0].double().cpu().numpy()

    def _specs_at_test(self):
        """Transition and emission, no state left out."""
        chain: Any = self.posterior(torch.zeros(1, 1, dtype=torch.long, device=self.reference.device))
        return chain.transition, chain.emission

    def sample(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        num_steps: int | None = None,
        num_sequences: int = 1,
        *,
        seed: int | None = None,
        constraint: Constraint | None = None,
        prefix: Prefix | None = None,
        length: int | tuple[int, int] | None = None,
        end: str | int | None = FROM_VOCABULARY,
        **known,
    ) -> Sample:
        """Sequences drawn from the model; of words, also such that go on from a prefix and satisfy a constraint, exactly.

        Args:
            num_steps, num_sequences: T and B. seed: makes the draw repeatable; None draws from torch's generator.
            end: the word or id that ends a text; by default ``<eos>`` where the vocabulary has it: one sentence a row, of
                ``num_steps`` words at most, and -1 behind its end. None: rows run on over the ends of sentences.
            constraint, prefix, length: instead of ``num_steps``: see :meth:`constrained`, whose other arguments are taken, too.
                What is drawn are the words behind the prefix, with the end word; rows end with -1.

        Raises:
            ValueError, TypeError: as :meth:`constrained`, and for a number of steps beside a length.
        """
        if constraint is None and prefix is None and length is None:
            if num_steps is None:
                raise TypeError("sample: say how many steps by num_steps, or by length beside a constraint or a prefix")
            self._check_fitted()
            if (self.num_words is None or self.num_features is not None) and end not in (None, FROM_VOCABULARY):
                raise TypeError(
                    f"end: no vector ends a sequence, and this model is about vectors; leave it out, got {checks.shown(end)}"
                )
            return up_to_end(self, super().sample(num_steps, num_sequences, seed=seed, **known), end)
        if num_steps is not None or length is None:
            raise ValueError(
                f"length: beside constraint or prefix say length=N or (shortest, longest), in the place of num_steps; got "
                f"length={checks.shown(length)}, num_steps={checks.shown(num_steps)}"
            )
        checks.count("num_sequences", num_sequences)
        chain = self.constrained(constraint, length=length, prefix=prefix, end=end, **known)
        with seeded(seed):
            drawn = chain.sample(num_sequences)
        x, states = drawn.words[:, 0], self._named_states(drawn.states[:, 0])
        words = None
        if self.vocabulary is not None:
            words = [self.vocabulary.decode(row[row >= 0].tolist()) for row in x]
        return Sample(x, states, words)


def words_of(model: SequenceModel) -> Vocabulary:
    """The model's words; of ids, their digits."""
    if model.vocabulary is not None:
        return model.vocabulary
    assert model.num_words is not None, "checked before"
    return Vocabulary(tuple(map(str, range(model.num_words))), unknown=None)


def up_to_end(model: SequenceModel, drawn: Sample, end: str | int | None) -> Sample:
    """What was drawn, each row up to the first word that ends a text: behind it words and states are -1, means of states 0.

    Args:
        end: as :meth:`Constrainable.sample` takes it.
    """
    vocabulary = model.vocabulary
    if end is None or (end == FROM_VOCABULARY and (vocabulary is None or vocabulary.eos_id is None)):
        return drawn
    ends = drawn.x == end_of(end, words_of(model))
    behind = ends.cumsum(1) > ends.long()
    x, states = drawn.x.masked_fill(behind, -1), drawn.states
    if isinstance(states, np.ndarray):  # by name
        states = states.copy()
        states[np.asarray(behind.cpu())] = None
    else:
        mark = behind if states.dim() == 2 else behind.unsqueeze(-1)
        states = states.masked_fill(mark, -1 if states.dim() == 2 else 0)
    return Sample(x, states, None if vocabulary is None else [vocabulary.decode(row[row >= 0].tolist()) for row in x])


def end_of(end: str | int | None, vocabulary: Vocabulary) -> int | None:
    """The id of the word that ends a text, None where texts just stop.

    Raises:
        ValueError: for a word or an id outside the vocabulary. TypeError: for what is neither.
    """
    if end is None or (isinstance(end, int) and not isinstance(end, bool)):
        if end is not None and not 0 <= end < len(vocabulary):
            raise ValueError(f"end: expected a word id in 0..{len(vocabulary) - 1}, got {end}")
        return end
    if not isinstance(end, str):
        raise TypeError(
            f"end: expected the word that ends a text, or its id; None: texts just stop, got {checks.shown(end)}; leave it out "
            "for the end "
            "word of the vocabulary"
        )
    if end == FROM_VOCABULARY:
        return vocabulary.eos_id
    if end not in vocabulary:
        raise ValueError(
            f"end: {checks.shown(end)} is not in the vocabulary ({len(vocabulary)} words); name one of its words, or None"
        )
    return vocabulary.index[end]


def _ids(prefix: Prefix | None, vocabulary: Vocabulary, name: str = "prefix") -> list[int]:
    """Word ids of a prefix, which its caller knows by this name."""
    if prefix is None:
        return []
    if isinstance(prefix, Tensor | np.ndarray):
        prefix = prefix.tolist()
    if isinstance(prefix, str):
        prefix = vocabulary.split(prefix)
    words = list(prefix) if isinstance(prefix, Sequence) else [prefix]
    if all(isinstance(word, str) for word in words):
        return vocabulary.encode(words).tolist()  # type: ignore[arg-type]
    if not all(type(word) is int and 0 <= word < len(vocabulary) for word in words) or not isinstance(prefix, Sequence):
        raise ValueError(
            f"{name}: expected a string, a list of words, or of ids in 0..{len(vocabulary) - 1}, got {checks.shown(prefix)}"
        )
    return words  # type: ignore[return-value]
