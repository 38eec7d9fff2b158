"""A hidden Markov tagger whose states are finer than tags: each tag is split into substates that EM finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.distributions.block import BlockEmission, BlockTransition, TableTransition
from pplseq.distributions.blocks import BlockLayout
from pplseq.distributions.dense import DenseTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.chain import Chain
from pplseq.models.taggers.few_sentences import PosteriorTables, WordRows, applies, state_probs, state_weights
from pplseq.models.taggers.lexicon import ListedTags, lexicon_entries
from pplseq.models.taggers.rare_words import FormModel
from pplseq.models.taggers.sentences import SentenceTagger, WordTable
from pplseq.models.taggers.spans.word_lists import read_clusters
from pplseq.models.taggers.substates import split_merge
from pplseq.models.taggers.substates.split_merge import SubstateCounts, SubstateModel, TaggedTokens
from pplseq.models.taggers.substates.substate_words import SubstateWords
from pplseq.models.taggers.tagger import Words, check_sentences, tag_names
from pplseq.models.taggers.training import IterativeTagger, TaggerTraining

TINY_COUNT = 1e-6  # where transitions are not to back off: no sentence is impossible
FORMER_NAMES = {"num_iterations": "max_iterations"}  # of settings, in taggers that were saved before they were renamed


@dataclass(frozen=True)
class LatentTaggerSettings(checks.NamedArguments):
    """How a :class:`LatentTagger` learns; defaults were chosen on the development part of UD English EWT.

    Attributes:
        num_substates: of each tag, a power of two; rounds of splitting are its logarithm.
        max_iterations: of EM in each round, all of which are run. noise: by which new substates differ; see
            :func:`~pplseq.models.taggers.substates.split_merge.split`.
        min_count: words that a tag must have for each of the substates that it would be split into.
        merge: share of each round's splits that is undone where it helps least, except in the first round; num_substates then
            bounds the number.
        transition_count: pseudo-count of p(substate | tag before), to which transitions back off.
        emission_count: pseudo-count of p(substate | tag) in p(substate | word, tag).
        form_count: pseudo-count of what a word's form says about its tag; 0: new words only are judged by their form.
        form_l2: weight of the squared weights of the model of forms.
        case_count: pseudo-count of what the same word in lower case says of a new one, "Bush" and "bush". The first word of a
            sentence that is new is taken for the one in lower case.
        max_count: words up to this frequent are rare: new words are taken to be like them.
        clusters: the cluster of each word as a string of bits, or a file of `path word` lines as `pplseq cluster` writes them,
            of a text without tags: part of what a word's form says.
        lexicon: tags of words: a mapping, or a file (see :meth:`~pplseq.models.taggers.lexicon.TagDictionary.read`).
        lexicon_strength: None: other tags of listed words are impossible, unless training has them. A number: sightings that a
            listing is worth; see :class:`~pplseq.models.taggers.lexicon.ListedTags`.
        seed: of the noise.
    """

    num_substates: int = 16
    max_iterations: int = 20
    noise: float = 0.1
    min_count: float = 5.0
    merge: float = 0.0
    transition_count: float = 20.0
    emission_count: float = 10.0
    form_count: float = 1.0
    form_l2: float = 0.2
    case_count: float = 0.5
    max_count: float = 10
    clusters: Mapping[str, str] | str | Path | None = None
    lexicon: Mapping[str, Any] | str | Path | None = None
    lexicon_strength: float | None = None
    seed: int = 0

    def __post_init__(self):
        checks.seed("seed", self.seed)
        object.__setattr__(self, "lexicon", lexicon_entries(self.lexicon, self.lexicon_strength))
        if self.clusters is not None and not isinstance(self.clusters, Mapping):
            object.__setattr__(self, "clusters", read_clusters(self.clusters))  # once, as the settings are frozen
        if self.num_substates < 1 or self.num_substates & (self.num_substates - 1):
            raise ValueError(f"num_substates must be a power of two (1, 2, 4, ...), got {self.num_substates}")
        if self.max_iterations < 0 or not 0 <= self.noise < 1 or not 0 <= self.merge < 1:
            raise ValueError(
                "max_iterations must not be negative, noise and merge be in [0, 1); got "
                f"{self.max_iterations}, {self.noise} and {self.merge}"
            )
        for setting in ("min_count", "transition_count", "emission_count", "form_count", "form_l2", "case_count", "max_count"):
            if not getattr(self, setting) >= 0:
                raise ValueError(f"{setting} must not be negative, got {getattr(self, setting)}")

    def listed_tags(self, tags: Sequence[str]) -> ListedTags | None:
        """What the lexicon says, where there is one; ValueError for tags in it that are none of these."""
        entries: Any = self.lexicon
        return None if entries is None else ListedTags(entries, tags, self.lexicon_strength)

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> Self:
        """The settings a saved tagger holds, under the names of today.

        Raises:
            ValueError: one that there is no more.
        """
        saved = dict(saved)
        if weight := saved.pop("spelling_weight", 0):
            raise ValueError(f"spelling_weight: saved as {weight}, which there is no more; train the tagger anew")
        return cls(**{FORMER_NAMES.get(name, name): value for name, value in saved.items()})


class LatentTagger(IterativeTagger, SentenceTagger):
    """A hidden Markov model with several states a tag.

        z_t ~ p(z_t | z_{t-1}),  word_t ~ p(word_t | z_t),  tag_t = tag of z_t,  up to a boundary behind the last word

    Training counts tags and words, then repeatedly splits every state in two and runs EM on the tagged text, in which
    each word opens the states of its tag only. Words that are new or rare are judged by their form as well, inside
    p(word | z); see :class:`~pplseq.models.taggers.substates.substate_words.SubstateWords`.

    Attributes:
        log_probs: of the last fit, log p(words, tags) before each iteration of EM, nats.

    Example::

        tagger = LatentTagger(num_substates=16).fit(sentences)
        tagger.tag([["the", "dog", "barks"]])

    Source: Petrov, Barrett, Thibaux and Klein (2006), Learning accurate, compact, and interpretable tree annotation; Huang,
        Eidelman and Harper (2009), Improving a simple bigram HMM part-of-speech tagger by latent annotation.
    """

    name = "latent-tagger"
    decoder = "posterior"
    settings_class: ClassVar[type[LatentTaggerSettings]] = LatentTaggerSettings

    def __init__(self, settings: LatentTaggerSettings | None = None, **options):
        self.settings = settings or self.settings_class(**options)
        self.log_probs: list[float] = []
        self.known_forms: FormModel | None = None  # what words' forms say, where it was learned from the same text before

    @property
    def forms(self) -> FormModel:
        """What words' forms say, after fit."""
        return self._forms

    # ---------------------------------------------------------------- learning
    def training(self, x: Sequence[TaggedSentence], validation: Sequence[TaggedSentence] | None = None) -> TaggerTraining:
        return LatentTraining(self, x)

    def set_counts(
        self,
        tags: Sequence[str],
        words: Sequence[str],
        of_symbol: Tensor,
        counts: SubstateCounts,
        sizes: Tensor,
        forms: FormModel,
    ) -> LatentTagger:
        """Probabilities from expected counts; of_symbol (S, 2) words and tags."""
        settings = self.settings
        self.tags, self.words, self.known_words = tuple(tags), tuple(words), frozenset(words)
        self._of_symbol, self._counts, self._sizes, self._forms = of_symbol, counts, sizes, forms
        self._substate_words = SubstateWords(
            self.words, of_symbol, counts.emission, sizes, forms, form_count=settings.form_count,
            substate_count=settings.emission_count, case_count=settings.case_count, max_count=settings.max_count,
            listed=settings.listed_tags(tags),
        )  # fmt: skip
        self._tag_of_state = self._substate_words.tag_of_state
        self._word_rows, self._tables = WordRows(), PosteriorTables()
        self.transition = self._transition_of(SubstateModel(counts.transition, counts.emission, sizes, counts.pairs).matrix())
        return self

    def _transition_of(self, counts: Tensor) -> DenseTransition:
        """p(z' | z) = (n(z, z') + k p(z' | tag of z)) / (n(z) + k), where p(z' | tag) has one pseudo-count of p(z')."""
        of_tag = counts.new_zeros(len(self._sizes), len(counts)).index_add(0, self._tag_of_state, counts)
        overall = counts.sum(0) / counts.sum()
        by_tag = (of_tag + overall) / (of_tag.sum(-1, keepdim=True) + 1)  # any tag may follow any other
        weight = max(self.settings.transition_count, TINY_COUNT)
        rows = (counts + weight * by_tag[self._tag_of_state]) / (counts.sum(-1, keepdim=True) + weight)
        initial = rows[-1].clone()
        initial[-1] = 0.0  # a sentence has a word
        return DenseTransition((initial / initial.sum()).log(), rows.log())

    # ---------------------------------------------------------------- words
    def encode(self, sentences: Sequence[Words]) -> tuple[list[str], Tensor, Tensor]:
        return super().encode([self._cased(words) for words in sentences])

    def _cased(self, words: Words) -> Words:
        """A sentence whose first word is one that is known, in lower case if need be: all begin with a capital."""
        listed: Any = self.settings.lexicon or {}
        if not len(words) or any(words[0] in some for some in (self.known_words, listed)):
            return words
        lower = words[0].lower()
        return (lower, *words[1:]) if lower in self.known_words or lower in listed else words

    def tag_few(self, sentences: Sequence[Words], decoder: str) -> list[list[int]] | None:
        by_loop = decoder == "posterior" and applies(self, LatentTagger, "kernels.chain.loops.smooth")
        chain = self._tables.of(self.transition) if by_loop else None
        if chain is None:
            return None
        probs = [state_probs(chain, self._word_rows.of(self._cased(words), self._weights_of)) for words in sentences]
        if any(found is None for found in probs):
            return None
        states = self.tag_of_state()
        return [self._summed(torch.from_numpy(found), states).argmax(-1).tolist() for found in probs]

    def _weights_of(self, words: Sequence[str]) -> np.ndarray:
        return state_weights(self.word_log_probs(words))

    def word_log_probs(self, types: Sequence[str]) -> Tensor:
        return self._substate_words.log_probs(types)

    def tagged(self, sentences: Sequence[TaggedSentence]) -> tuple[Tensor, Tensor, BlockEmission, BlockTransition]:
        """Arguments of :meth:`model` for tagged sentences: a symbol, a word with its tag, opens the tag's block.

        Its likelihood is p(words, tags), its posterior that of states given both.
        """
        number: dict[str | None, int] = {tag: k for k, tag in enumerate(self.tags)}
        types, x, lengths = self.encode([sentence.words for sentence in sentences])
        tags = torch.full_like(x, len(self.tags))
        for i, sentence in enumerate(sentences):
            tags[i, : len(sentence.tags)] = torch.tensor([number[tag] for tag in sentence.tags], dtype=torch.long)
        pairs, symbols = torch.stack([x, tags], -1).flatten(0, 1).unique(dim=0, return_inverse=True)
        layout = BlockLayout.from_sizes(self._sizes)
        table = self.emission(types).table[pairs[:, 0]].gather(-1, layout.state_ids[pairs[:, 1]])
        now: Any = self.transition
        transition = TableTransition(layout, now.initial, now.matrix)
        return symbols.view_as(x), lengths, BlockEmission(layout, pairs[:, 1], table), transition

    def chain_given(self, sentences: Sequence[TaggedSentence]) -> Chain:
        """The chain of a batch of sentences, none empty, given their words and those of their tags that are not None."""
        number: dict[str | None, int] = {tag: k for k, tag in enumerate(self.tags)} | {None: -1}
        types, x, lengths = self.encode([sentence.words for sentence in sentences])
        tags = torch.full_like(x, -1)
        for i, sentence in enumerate(sentences):
            tags[i, : len(sentence.tags)] = torch.tensor([number[tag] for tag in sentence.tags], dtype=torch.long)
        pairs, symbols = torch.stack([x, tags], -1).flatten(0, 1).unique(dim=0, return_inverse=True)
        other = (pairs[:, 1:] >= 0) & (self.tag_of_state() != pairs[:, 1:])
        table = self.emission(types).table[pairs[:, 0]].masked_fill(other, -torch.inf)
        valid = torch.arange(x.shape[1])[:, None] < lengths
        return build_chain(self.transition, WordTable(table), symbols.view_as(x).T, valid=valid)

    def fill_tags(self, x: Sequence[TaggedSentence]) -> list[TaggedSentence]:
        """The sentences with all tags: where one is None, the most probable tag of that word given all words and the tags that
        are there.

        Raises:
            ValueError: a tag that this tagger does not have.
        """
        self._check_fitted()
        found, known = list(x), {None, *self.tags}
        for i, sentence in enumerate(x):
            if not known.issuperset(sentence.tags):
                strange = next(tag for tag in sentence.tags if tag not in known)
                raise ValueError(
                    f"x: number {i} has the tag {checks.shown(strange)}; expected None or one of: {', '.join(self.tags)}"
                )
        lacking = [i for i, sentence in enumerate(x) if None in sentence.tags]
        with torch.no_grad():
            for batch in self.batches([x[i].words for i in lacking]):
                rows = [x[lacking[i]] for i in batch]
                probs = self._of_tags(self._answering(self.chain_given(rows)).marginals())
                best = self.most_right(probs, [len(words) for words, _ in rows])
                for i, (words, tags), guess in zip(batch, rows, best, strict=True):
                    full = tuple(tag or self.tags[k] for tag, k in zip(tags, guess, strict=True))
                    found[lacking[i]] = TaggedSentence(words, full)
        return found

    def has_substates(self) -> bool:
        return bool((self._sizes > 1).any())

    def tag_of_state(self) -> Tensor:
        tags = self._tag_of_state.clone() if self.tags else torch.zeros(0, dtype=torch.long)
        tags[-1:] = -1
        return tags

    # ---------------------------------------------------------------- on disk
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        header, tensors = self._forms.state()
        tensors = {f"forms.{name}": value for name, value in tensors.items()}
        tensors |= {
            "symbols": self._of_symbol,
            "transition_counts": self._counts.transition,
            "tag_pairs": self._counts.pairs,
            "emission_counts": self._counts.emission,
            "sizes": self._sizes,
        }
        config = {
            "settings": asdict(self.settings),
            "tags": self.tags,
            "words": self.words,
            "forms": header,
            "log_probs": self.log_probs,
        }
        return config, tensors

    @classmethod
    def from_state(cls, config, tensors):
        tagger = cls(cls.settings_class.from_saved(config["settings"]))
        tagger.log_probs = config["log_probs"]
        own = {name.removeprefix("forms."): value for name, value in tensors.items() if name.startswith("forms.")}
        forms = FormModel.from_state(config["forms"], own, tagger.settings.clusters)  # pyright: ignore[reportArgumentType]
        log_prob = tagger.log_probs[-1] if tagger.log_probs else 0.0
        transition, pairs = tensors["transition_counts"], tensors.get("tag_pairs")
        if pairs is None:  # saved before only the pairs that occur were kept: (M, M, K, K)
            seen = transition.sum((2, 3)) > 0
            transition, pairs = transition[seen], seen.nonzero()
        counts = SubstateCounts(log_prob, transition, tensors["emission_counts"], pairs)
        return tagger.set_counts(config["tags"], config["words"], tensors["symbols"], counts, tensors["sizes"], forms)


class LatentTraining(TaggerTraining):
    """Rounds of splitting, EM and merging: an iteration of EM a step, with the splits and merges before it."""

    tagger: LatentTagger

    def __init__(self, tagger: LatentTagger, x: Sequence[TaggedSentence]):
        check_sentences(x)
        self.tags = tag_names(x)
        number = {tag: k for k, tag in enumerate(self.tags)}
        self.words = sorted({word for sentence in x for word in sentence.words})
        word_number = {word: i for i, word in enumerate(self.words)}
        symbols: dict[tuple[int, int], int] = {}
        rows = [
            [symbols.setdefault((word_number[w], number[str(t)]), len(symbols)) for w, t in zip(*sentence, strict=True)]
            for sentence in x
        ]
        self.of_symbol = torch.tensor([*symbols, (-1, len(self.tags))])
        word_tags = torch.zeros(len(self.words), len(self.tags), dtype=torch.float64)
        for row in rows:
            word_tags.index_put_(
                tuple(self.of_symbol[row].T), torch.ones(len(row), dtype=torch.float64), accumulate=True
            )
        settings = tagger.settings
        settings.listed_tags(self.tags)  # now, as training takes its time
        self.forms = tagger.known_forms or FormModel.fit(
            self.words, word_tags, max_count=settings.max_count, l2=settings.form_l2,
            clusters=settings.clusters,  # pyright: ignore[reportArgumentType]
        )
        self.tokens = TaggedTokens.pack(rows, self.of_symbol[:, 1])
        self.model = split_merge.supervised(self.tokens, torch.float32)
        self.log_probs: list[float] = []
        self.plan: list[str] = []
        for k in range(settings.num_substates.bit_length() - 1):
            self.plan += ["split", *["em"] * settings.max_iterations]
            if settings.merge and k:  # two substates are hardly ever one too many
                self.plan += ["merge", *["em"] * ((settings.max_iterations + 1) // 2)]
        self.done = 0  # in the plan
        super().__init__(tagger, x, self.plan.count("em"))

    def ended(self) -> str:
        return "" if self.done < len(self.plan) else "finished"

    def iterate(self) -> float:
        log_prob = self.log_probs[-1] if self.log_probs else 0.0
        for what in self.plan[self.done :]:
            self.done += 1
            if what == "em":
                counts = split_merge.expected_counts(self.model, self.tokens)
                log_prob = counts.log_prob
                self.log_probs.append(log_prob)
                self.model = split_merge.maximise(counts, self.tokens.tag_of_symbol, self.model.sizes)
                break
            (self._split if what == "split" else self._merge)()
        return -log_prob

    def _split(self) -> None:
        settings, number = self.tagger.settings, self.plan[: self.done - 1].count("split")
        seed = settings.seed + number
        enough = torch.bincount(self.tokens.tag) >= settings.min_count * 2 * self.model.sizes
        self.model = split_merge.split(
            self.model, self.tokens.tag_of_symbol, noise=settings.noise, seed=seed, which=enough
        )

    def _merge(self) -> None:
        counts = split_merge.expected_counts(self.model, self.tokens, merge_loss=True)
        share = self.tagger.settings.merge
        self.model, _ = split_merge.merge(counts, self.tokens.tag_of_symbol, self.model.sizes, share)

    def publish(self) -> None:
        counts = split_merge.expected_counts(self.model, self.tokens)
        counts = counts._replace(transition=counts.transition.double(), emission=counts.emission.double())
        self.tagger.log_probs = list(self.log_probs)
        self.tagger.set_counts(self.tags, self.words, self.of_symbol, counts, self.model.sizes, self.forms)

    def learned(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return dict(self.model._asdict()), {"place": self.done, "log_probs": self.log_probs}

    def relearn(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        self.model = SubstateModel(**tensors)
        self.done, self.log_probs = state["place"], state["log_probs"]
