"""What taggers answer whose tags are states of a chain, or groups of states: probabilities, best taggings, draws."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.data.vocabulary import Vocabulary
from pplseq.distributions.drawing import seeded
from pplseq.distributions.state import Belief
from pplseq.infer.discrete.build import with_evidence
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.discrete.constrained.moves import WordMoves
from pplseq.infer.discrete.constrained.states import constrain_states
from pplseq.infer.discrete.results import StateMarginals
from pplseq.models.taggers.features import FEW_WORDS
from pplseq.models.taggers.substates.taggings import PosteriorChain, best_accepted, best_taggings, entropy_bounds
from pplseq.models.taggers.tagger import Tagger, Words, check_words

if TYPE_CHECKING:
    from pplseq.models.constraints.constraint import Constraint

BATCH_CELLS = 1 << 21  # steps x rows x states of one batch
MAX_PAIRS = 1 << 27  # steps x states x states of the longest sentence whose pairs of states are all in memory, 8 bytes each
DECODERS = ("viterbi", "posterior")


class NextTag(NamedTuple):
    """What comes behind sentences: tags (N, K), the probability that another word with this tag comes; end (N,), that none
    does. They sum to one."""

    tags: np.ndarray
    end: np.ndarray


class TagEvidence(NamedTuple):
    """What speaks for a tag of a word, of :meth:`ProbabilisticTagger.explain`; all in nats.

    Attributes:
        tag: the tag.
        log_prob: log p(tag | all words).
        context: log p(tag | words, the score of this word left out): what its neighbours say, and a constraint. Of a MEMM,
            whose words speak through the moves from tag to tag, nothing is left out.
        lacking: how much more the word would have to speak for this tag, and this tag alone, for the tagger to say it; 0 of the
            tag that it says, inf where the model rules it out.
        tags: the best tagging of the sentence with this tag, by the tagger's decoder "viterbi"; None where there is none.
    """

    tag: str
    log_prob: float
    context: float
    lacking: float
    tags: tuple[str, ...] | None


class ProbabilisticTagger(Tagger):
    """A tagger whose tags are states of a chain, or groups of them: it answers with probabilities.

    Subclasses give the chain. It may have steps behind the last word (an end of the sentence), which are left out of all
    answers except probabilities of whole sentences.

    Attributes:
        decoder: how tags are chosen: "viterbi", the most probable path of states, or "posterior", word by word the tag with the
            largest probability, summed over its states; under a constraint, of the taggings that satisfy it the one with the
            largest sum of these probabilities.
    """

    decoder: str = "viterbi"
    _constraint: Constraint | None = None

    @abstractmethod
    def tag_of_state(self) -> Tensor:
        """(Z,) the number of each state's tag; -1 for states that no word has."""

    @abstractmethod
    def chain(self, sentences: Sequence[Words]) -> Chain:
        """The chain of a batch of sentences, none empty: a :class:`~pplseq.infer.discrete.chain.Chain`, without gradients."""

    # ---------------------------------------------------------------- constraints
    def under(self, constraint: Constraint) -> Self:
        """This tagger, answering about taggings that satisfy a constraint alone, exactly: its tags and :meth:`n_best`,
        :meth:`smooth`, :meth:`confidence`, :meth:`explain`, :meth:`entropy` and :meth:`sample_states` are given the words, the
        constraint and those before it. Other questions, and the disk, are for the tagger without constraints.

        Args:
            constraint: a :class:`~pplseq.models.constraints.constraint.Constraint` on the sequence of tags of a sentence:
                ``Constraint.bio(tagger.tags)``, ``Constraint.containing("VERB")``, ...

        Raises:
            ValueError: tags that there are not; asked: a sentence all of whose possible taggings the constraint rules out.

        Cost: of an automaton of D states, D^2 that of a chain without it.
        """
        if not hasattr(constraint, "over"):
            raise TypeError(
                f"constraint: expected a Constraint on tags, like Constraint.bio(tagger.tags), got {checks.shown(constraint)}"
            )
        self._check_fitted()
        found = copy.copy(self)
        found._constraint = constraint if self._constraint is None else self._constraint & constraint
        _ = found._moves  # tags that there are not are refused
        return found

    @property
    def _moves(self) -> WordMoves | None:
        """The automaton of the constraint over states."""
        if self._constraint is None:
            return None
        over_tags = self._constraint.over(Vocabulary(tuple(self.tags), unknown=None))
        tags = self.tag_of_state()
        # states that no word has leave the automaton where it is
        classes = torch.where(tags < 0, over_tags.num_classes, over_tags.classes[tags.clamp_min(0)])
        stays = torch.arange(over_tags.num_states).unsqueeze(-1)
        return WordMoves.of(classes, torch.cat([over_tags.moves, stays], -1), over_tags.accepting, over_tags.start)

    def check_unconstrained(self, what: str) -> None:
        """Raises TypeError for a question that :meth:`under` does not answer, and RuntimeError before :meth:`fit`."""
        self._check_fitted()
        if self._constraint is not None:
            raise TypeError(
                f"{what}: not for a tagger under a constraint ({self._constraint.text}), which answers tag, n_best, smooth, "
                "confidence, explain, entropy, sample_states and constraint_log_prob; call it of the tagger without"
            )

    def _answering(self, chain: Chain) -> Chain:
        moves = self._moves
        return chain if moves is None else constrain_states(chain, moves)

    def constraint_log_prob(self, x: Sequence[Words]) -> np.ndarray:
        """(N,) log p(the tagging satisfies the constraint of :meth:`under` | words) of each sentence; 0 without one."""
        moves = self._moves

        def each(sentences: list[Words]) -> float:
            if moves is None or not len(sentences[0]):
                return 0.0 if moves is None or bool(moves.accepting[moves.start]) else -math.inf
            with torch.no_grad():
                chain = self.chain(sentences)
                inside = constrain_states(chain, moves, check=False)
                return min(0.0, float(inside.log_prob()[0] - chain.log_prob()[0]))

        self._check_fitted()
        check_words(x)
        return np.array([each([words]) for words in x])

    def save(self, folder: str | Path, training: dict[str, Any] | None = None) -> Path:
        self.check_unconstrained("save")
        return super().save(folder, training)

    # ---------------------------------------------------------------- batches
    def batches(self, sentences: Sequence[Words]) -> Iterator[list[int]]:
        """Numbers of sentences of like length, shortest first, in batches that bound the memory; empty ones are left out."""
        order = sorted((i for i, words in enumerate(sentences) if len(words)), key=lambda i: len(sentences[i]))
        budget = max(BATCH_CELLS // max(len(self.tag_of_state()), 1), 1)
        if self._constraint is not None:
            budget = max(budget // self._constraint.num_states**2, 1)
        batch: list[int] = []
        for i in order:
            if batch and (len(batch) + 1) * (len(sentences[i]) + 1) > budget:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def each(
        self, sentences: Sequence[Words], answer: Callable[[Chain, list[int]], Sequence[Any]], empty: Callable[[], Any]
    ) -> list[Any]:
        """answer(chain, lengths) -> one value a row, for all sentences in their order; `empty()` for empty ones."""
        self._check_fitted()
        check_words(sentences)
        if self._constraint is not None and not self._constraint.accepts(()):
            for i, words in enumerate(sentences):
                if not len(words):
                    raise ValueError(f"x: number {i} has no words, and no tags do not satisfy: {self._constraint.text}")
        found: list[Any] = [None] * len(sentences)
        with torch.no_grad():
            for batch in self.batches(sentences):
                rows = [sentences[i] for i in batch]
                chain = self._answering(self.chain(rows))
                for i, value in zip(batch, answer(chain, [len(words) for words in rows]), strict=True):
                    found[i] = value
        return [empty() if len(words) == 0 else value for words, value in zip(sentences, found, strict=True)]

    def names_of(self, states: Tensor, length: int) -> tuple[str, ...]:
        """Tags of a path of states (T,)."""
        return tuple(self.tags[k] for k in self.tag_of_state().to(states.device)[states[:length]].tolist())

    def _of_tags(self, marginals: StateMarginals) -> Tensor:
        """(B, T, tags) probabilities of tags."""
        states = self.tag_of_state()
        return self._summed(marginals.dense(len(states)), states)

    def _summed(self, probs: Tensor, states: Tensor) -> Tensor:
        """(..., Z) probabilities of states summed over those of a tag, (..., tags)."""
        some = states >= 0
        total = probs.new_zeros(*probs.shape[:-1], len(self.tags))
        return total.index_add_(-1, states[some].to(probs.device), probs[..., some.to(probs.device)])

    def _rows(self, sentences: Sequence[Words], marginals: Callable[[Chain], StateMarginals]) -> list[np.ndarray]:
        def rows(chain: Chain, lengths: list[int]) -> list[np.ndarray]:
            probs = self._of_tags(marginals(chain)).cpu().numpy()
            return [row[:n].copy() for row, n in zip(probs, lengths, strict=True)]

        return self.each(sentences, rows, lambda: np.zeros((0, len(self.tags))))

    # ---------------------------------------------------------------- questions
    def tag(self, x: Sequence[Words], *, decoder: str | None = None) -> list[tuple[str, ...]]:
        """The tags of each sentence's words; `decoder` as in the class."""
        decoder = checks.choice("decoder", self.decoder if decoder is None else decoder, DECODERS)
        if self._constraint is None and self.tags and not isinstance(x, str) and sum(map(len, x)) <= FEW_WORDS:
            check_words(x)
            some = [words for words in x if len(words)]
            few = iter(found) if some and (found := self.tag_few(some, decoder)) is not None else None
            if few is not None:
                return [tuple([self.tags[k] for k in next(few)]) if len(words) else () for words in x]

        def paths(chain: Chain, lengths: list[int]) -> list[tuple[str, ...]]:
            if decoder == "viterbi":
                found = self.tag_of_state()[chain.viterbi()[0].cpu()]  # padded steps are cut off below
                chosen = [row[:n] for row, n in zip(found.tolist(), lengths, strict=True)]
            else:
                chosen = self.most_right(self._of_tags(chain.marginals()), lengths)
            return [tuple(self.tags[k] for k in row) for row in chosen]

        return self.each(x, paths, tuple)

    def tag_few(self, sentences: Sequence[Words], decoder: str) -> list[list[int]] | None:
        """Numbers of the tags of some sentences, none empty, without a chain; None where there is no such way to them."""
        return None

    def most_right(self, probs: Tensor, lengths: Sequence[int]) -> list[list[int]]:
        """Of each row of probabilities (B, T, tags) the tags of which most are right on average: word by word the most
        probable, or under a constraint the best of all taggings that satisfy it."""
        if self._constraint is None:
            return [row[:n] for row, n in zip(probs.argmax(-1).tolist(), lengths, strict=True)]
        moves = self._constraint.over(Vocabulary(tuple(self.tags), unknown=None))
        return [best_accepted(row[:n].cpu().numpy(), moves) for row, n in zip(probs, lengths, strict=True)]

    def decode(self, x: Sequence[Words], *, decoder: str | None = None) -> list[tuple[str, ...]]:
        """The same as :meth:`tag`, by the name that all models have for their best path."""
        return self.tag(x, decoder=decoder)

    def smooth(self, x: Sequence[Words]) -> list[np.ndarray]:
        """Of each sentence the (T, tags) probabilities of tags given all its words."""
        return self._rows(x, lambda chain: chain.marginals())

    def confidence(self, x: Sequence[Words], *, decoder: str | None = None) -> list[np.ndarray]:
        """Of each sentence the (T,) probability that each word's tag, as :meth:`tag` gives it, is right."""
        number = {tag: k for k, tag in enumerate(self.tags)}
        tags = self.tag(x, decoder=decoder)
        return [
            probs[np.arange(len(path)), [number[tag] for tag in path]] if len(path) else np.zeros(0)
            for probs, path in zip(self.smooth(x), tags, strict=True)
        ]

    def has_substates(self) -> bool:
        """Whether several states have the same tag, so that a tagging is a set of paths of states."""
        return False

    def _posterior_chain(self, chain: Chain, row: int, length: int) -> PosteriorChain:
        states = self.tag_of_state()
        size = len(states) * (1 if self._constraint is None else self._constraint.num_states)
        if length * size**2 > MAX_PAIRS:
            raise ValueError(
                f"x: got a sentence of {length:,} words; with {size:,} states the best taggings and the entropy are for "
                f"sentences of at most {MAX_PAIRS // size**2:,} words, whose pairs of states fit in memory: cut it"
            )
        if self._constraint is None:
            marginals = chain.marginals().dense(len(states))[row, :length]
        else:  # given a constraint, states beside those of its automaton are a chain, and states alone are none
            marginals, states = chain.marginals().probs[row, :length], states.repeat(self._constraint.num_states)
        pairs, states = chain.pair_marginals().probs[row, : length - 1], states.numpy()
        return PosteriorChain.of(marginals.cpu().numpy(), pairs.cpu().numpy(), states, len(self.tags))

    def entropy(self, x: Sequence[Words]) -> np.ndarray:
        """(N,) entropy of the taggings given the words, nats: exact where each tag is one state, and else an upper bound, the
        upper one of :meth:`entropy_bounds`."""
        return self.entropy_bounds(x)[:, 1]

    def entropy_bounds(self, x: Sequence[Words]) -> np.ndarray:
        """(N, 2) a lower and an upper bound of the entropy of the taggings given the words, nats; equal where each tag is one
        state. See :func:`~pplseq.models.taggers.substates.taggings.entropy_bounds`, also for the cost."""

        def exact(chain: Chain, _: list[int]) -> list[tuple[float, float]]:
            return [(value, value) for value in chain.entropy().tolist()]

        def bounds(chain: Chain, lengths: list[int]) -> list[tuple[float, float]]:
            return [entropy_bounds(self._posterior_chain(chain, row, n)) for row, n in enumerate(lengths)]

        if not self.has_substates():
            return np.array(self.each(x, exact, lambda: (0.0, 0.0)), dtype=float).reshape(-1, 2)
        found = [self.each([words], bounds, lambda: (0.0, 0.0))[0] for words in x]  # the pairs of one fill the memory of many
        return np.array(found, dtype=float).reshape(-1, 2)

    def n_best(self, sentence: Words, n: int) -> list[tuple[tuple[str, ...], float]]:
        """The n most probable taggings, and log p(tagging | words), nats, best first; fewer where there are not as many.

        Exact, also where tags have several states, over whose paths it sums: see
        :func:`~pplseq.models.taggers.substates.taggings.best_taggings`.
        """
        checks.count("n", n)

        def best(chain: Chain, lengths: list[int]) -> list[list[tuple[tuple[str, ...], float]]]:
            if self.has_substates():
                found = best_taggings(self._posterior_chain(chain, 0, lengths[0]), n)
                return [[(tuple(self.tags[k] for k in tags), log_prob) for tags, log_prob in found]]
            paths, log_probs = chain.k_best(n)
            total = float(chain.log_prob())
            found = zip(paths[:, 0], (log_probs[:, 0]).tolist(), strict=True)
            return [[(self.names_of(path, lengths[0]), value - total) for path, value in found if value > -torch.inf]]

        return self.each([sentence], best, lambda: [((), 0.0)])[0]

    def explain(self, sentence: Words, position: int, *, decoder: str | None = None) -> list[TagEvidence]:
        """Why a word has its tag: of each tag what speaks for it, the one that is said first, then by what it lacks.

        A word speaks for a tag by its score, log p(word | tag) or the weights of its features. Exact, of the chain's scores.

        Args:
            position: of the word, from 0. decoder: as in the class; by "posterior" what a tag lacks is in probability.

        Raises:
            ValueError: a position without a word; "posterior" under a constraint, by which whole taggings are weighed.

        Cost: a best path and two sums over all for each tag.
        """
        self._check_fitted()
        check_words([sentence])
        decoder = checks.choice("decoder", self.decoder if decoder is None else decoder, DECODERS)
        if checks.count("position", position, least=0) >= len(sentence):
            raise ValueError(f"position: expected a word of the sentence, 0 to {len(sentence) - 1}, got {position}")
        if decoder == "posterior" and self._constraint is not None:
            raise ValueError(
                f"decoder: by 'posterior' a tagger under a constraint ({self._constraint.text}) weighs whole taggings, so that "
                "no tag lacks something by itself; ask with decoder='viterbi'"
            )
        with torch.no_grad():
            chain, moves = self.chain([sentence]), self._moves
            total = self._answering(chain).log_prob()
            own, states = chain.factors.emit[position], self.tag_of_state()

            def scored(scores: Tensor, tag: int) -> Chain:
                """With other scores (1, Z) of the word's states, which are a tag's."""
                emit = chain.factors.emit.clone()
                emit[position] = scores.masked_fill(states.to(emit.device) != tag, -torch.inf)
                found = with_evidence(chain, emit)
                return found if moves is None else constrain_states(found, moves, check=False)

            alone = torch.cat([scored(torch.zeros_like(own), k).log_prob() for k in range(len(self.tags))])
            found = []
            for k, (tag, context) in enumerate(zip(self.tags, (alone - alone.logsumexp(0)).tolist(), strict=True)):
                given = scored(own, k)
                log_prob, (path, score) = float(given.log_prob() - total), given.viterbi()
                tags = self.names_of(path[0].cpu(), len(sentence)) if score > -torch.inf else None
                evidence = TagEvidence(tag, min(log_prob, 0.0), context, 0.0, tags)
                found.append((evidence, log_prob if decoder == "posterior" else float(score)))
        best = max(score for _, score in found)
        lacking = [each._replace(lacking=best - score if score > -math.inf else math.inf) for each, score in found]
        return sorted(lacking, key=lambda each: (each.lacking, -each.log_prob))

    def sample_states(
        self, x: Sequence[Words], num_samples: int = 1, *, seed: int | None = None
    ) -> list[list[tuple[str, ...]]]:
        """Taggings drawn from the posterior: `num_samples` lists of as many taggings as there are sentences."""
        checks.count("num_samples", num_samples)

        def draws(chain: Chain, lengths: list[int]) -> list[list[tuple[str, ...]]]:
            paths = chain.sample(num_samples)  # (S, B, T)
            return [[self.names_of(path, n) for path in paths[:, row]] for row, n in enumerate(lengths)]

        with seeded(seed):
            found = self.each(x, draws, lambda: [()] * num_samples)
        return [[taggings[s] for taggings in found] for s in range(num_samples)]


class GenerativeTagger(ProbabilisticTagger):
    """A probabilistic tagger that also gives words probabilities."""

    def log_prob(self, x: Sequence[Words]) -> np.ndarray:
        """(N,) log p(words), nats, the end of the sentence included where the model has one; 0 for empty sentences."""
        self.check_unconstrained("log_prob")
        return np.array(self.each(x, lambda chain, _: chain.log_prob().tolist(), float), dtype=float)

    def score(self, x: Sequence[Words], *, per_token: bool = False) -> float:
        """log p(words) of all sentences together, nats; or their mean over words."""
        total = float(self.log_prob(x).sum())
        return total / max(sum(map(len, x)), 1) if per_token else total

    def token_log_probs(self, x: Sequence[Words]) -> list[np.ndarray]:
        """Of each sentence the (T,) log p(word | words before), nats: low where a word was not expected."""
        self.check_unconstrained("token_log_probs")

        def nats(chain: Chain, lengths: list[int]) -> list[np.ndarray]:
            return [row[:n].numpy() for row, n in zip(chain.token_log_probs().cpu(), lengths, strict=True)]

        return self.each(x, nats, lambda: np.zeros(0))

    def filter(self, x: Sequence[Words]) -> list[np.ndarray]:
        """Of each sentence the (T, tags) probabilities of tags given the words up to each."""
        self.check_unconstrained("filter")
        return self._rows(x, lambda chain: chain.filtered_states())

    def predict_next(self, x: Sequence[Words]) -> NextTag:
        """What comes behind sentences, which may be empty: the next word's tag, or the end."""
        self.check_unconstrained("predict_next")
        states = self.tag_of_state()

        def behind(chain: Chain, lengths: list[int]) -> list[np.ndarray]:
            probs = chain.filtered_states().dense(len(states))
            last = probs[torch.arange(len(lengths)), torch.tensor(lengths) - 1]
            return list(self._summed(chain.next_after(Belief(None, last.log())).state_log_probs.exp(), states).numpy())

        found = self.each(x, behind, lambda: None)
        if any(probs is None for probs in found):
            known = next(iter(self.known_words))
            with torch.no_grad():
                first = self.chain([[known]]).next_after(None).state_log_probs.exp()
            beginning = self._summed(first, states)[0].numpy()
            found = [beginning if probs is None else probs for probs in found]
        tags = np.stack(found) if found else np.zeros((0, len(self.tags)))
        return NextTag(tags, (1.0 - tags.sum(1)).clip(min=0.0))

    @abstractmethod
    def sample(self, num_steps: int = 100, num_sequences: int = 1, *, seed: int | None = None) -> list[TaggedSentence]:
        """Sentences of at most `num_steps` words with their tags, drawn from the model."""
