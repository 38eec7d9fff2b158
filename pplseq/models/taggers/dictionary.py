"""HMM taggers that learn from words without tags, with some tags, or with a dictionary of tags: expectation-maximisation."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.data.ragged import pad_sequences
from pplseq.distributions.drawing import seeded
from pplseq.infer.fit.em import Batch, FitHistory
from pplseq.models.hmm.program import HMM
from pplseq.models.taggers.clusters import names_of_clusters, tables_of_clusters
from pplseq.models.taggers.lexicon import TagDictionary, WordClasses, check_strength
from pplseq.models.taggers.probabilistic import DECODERS, GenerativeTagger
from pplseq.models.taggers.starts import Counts, count_states, rare_by_class, state_given_class
from pplseq.models.taggers.tagger import check_sentences, tag_names
from pplseq.models.taggers.training import IterativeTagger, TaggerTraining
from pplseq.runs.fits import EMTraining

EM_CELLS = 1 << 22  # rows x steps x states of a batch of EM
RACE = 10  # iterations of each random start before the worse half is dropped
LEARN_FROM = ("tags", "dictionary", "words")
STARTS = ("random", "clusters")
STATE = "state{}"  # names of tags that nobody named


class DictionaryTagger(IterativeTagger, GenerativeTagger):
    """An HMM with a state a tag, fitted by EM; tags are known of some words, or which of them a word may have, or nothing.

    Args:
        learn_from: "tags": tags of the text are observed where there are any (semi-supervised, partly tagged text), the others
            are summed out. "dictionary": only which tags a word has somewhere in the text is taken from them. "words": tags of
            the text are ignored, states are numbered.
        num_states: with "words", how many.
        lexicon: tags of words: a mapping, a file (see :meth:`TagDictionary.read`) or a TagDictionary; joined with that of the
            text's tags. It also holds for words that the text lacks. None: the text's alone.
        lexicon_strength: None: tags that a listed word has not are impossible. A number: listed tags count as so many sightings
            of the word, shared by their weights, and others are possible.
        open_tags: of words that are not listed; None allows all.
        min_count: words that occur less often, and are neither listed nor tagged, are replaced by their class (shape, suffix).
        max_iterations, tolerance: of EM, see :func:`~pplseq.infer.fit.em.expectation_maximization`.
        pseudo_count: added to every transition (1: add-one).
        emission_pseudo_count: added to every word of every state that may emit it.
        tagged_weight: how many times words whose tag is observed count; EM on much text without tags forgets few tags.
        start: of "words": "random", or "clusters", from as many Brown clusters, the same whatever the seed.
        num_restarts: random starts of which the likeliest after a few iterations goes on.
        seed: of the starts.
        decoder: see :class:`~pplseq.models.taggers.probabilistic.ProbabilisticTagger`.

    Attributes:
        history: of the last fit; its log-likelihoods never fall.
        hmm: the fitted :class:`~pplseq.models.hmm.program.HMM` over the words and classes of `vocabulary`.

    A word that training has not is emitted as its class. Words that occur once count as themselves and as their class, so that
    classes have probabilities; log p(words) is over known words and classes.

    Source: Merialdo, Tagging English text with a probabilistic model (1994); Johnson, Why doesn't EM find good HMM POS-taggers?
        (2007).
    """

    name = "dictionary-tagger"

    def __init__(
        self,
        learn_from: str = "tags",
        *,
        num_states: int = 50,
        lexicon=None,
        lexicon_strength: float | None = None,
        open_tags: Iterable[str] | None = None,
        min_count: int = 1,
        max_iterations: int = 30,
        tolerance: float = 1e-4,
        pseudo_count: float = 0.1,
        emission_pseudo_count: float = 0.0,
        tagged_weight: float = 1.0,
        start: str = "random",
        num_restarts: int = 1,
        seed: int = 0,
        decoder: str = "viterbi",
    ):
        self.learn_from = checks.choice("learn_from", learn_from, LEARN_FROM)
        self.start, self.seed = checks.choice("start", start, STARTS), checks.seed("seed", seed)
        self.decoder, self.min_count = checks.choice("decoder", decoder, DECODERS), checks.count("min_count", min_count)
        self.num_states = checks.count("num_states", num_states)
        checks.fits("num_states", 4.0 * num_states**2, "choose fewer states")
        self.max_iterations = checks.count("max_iterations", max_iterations)
        self.num_restarts = checks.count("num_restarts", num_restarts)
        if start == "clusters" and num_restarts != 1:
            raise ValueError(f"num_restarts: start='clusters' is one start, got {num_restarts}; use start='random'")
        if not tagged_weight >= 1:
            raise ValueError(f"tagged_weight must be at least 1, got {tagged_weight}")
        self.lexicon_strength = check_strength(lexicon_strength)
        self.tolerance, self.tagged_weight = float(tolerance), float(tagged_weight)
        self.lexicon = None if lexicon is None else TagDictionary.of(lexicon)
        self.open_tags = None if open_tags is None else tuple(open_tags)
        self.pseudo_count = float(checks.positive("pseudo_count", pseudo_count, zero=True))
        self.emission_pseudo_count = float(checks.positive("emission_pseudo_count", emission_pseudo_count, zero=True))
        self.history: FitHistory | None = None
        self.hmm: HMM  # after fit

    @classmethod
    def unsupervised(cls, num_states: int = 50, **options) -> DictionaryTagger:
        """Baum-Welch on words alone, from Brown clusters: from random starts it finds states that are less like tags."""
        chosen = {"min_count": 2, "max_iterations": 30, "start": "clusters", **options}
        return cls("words", num_states=num_states, **chosen)

    @classmethod
    def from_dictionary(cls, lexicon=None, **options) -> DictionaryTagger:
        """EM with the tags that a dictionary allows, that of the training text if none is given."""
        return cls("dictionary", lexicon=lexicon, **options)

    @classmethod
    def semi_supervised(cls, lexicon=None, **options) -> DictionaryTagger:
        """EM on text of which some sentences, or some words, have tags; one pass, as later ones forget what tags taught."""
        return cls("tags", lexicon=lexicon, **{"tagged_weight": 10.0, "min_count": 2, "max_iterations": 1, **options})

    # ---------------------------------------------------------------- fit
    def training(self, x: Sequence[TaggedSentence], validation: Sequence[TaggedSentence] | None = None) -> DictionaryTraining:
        check_sentences(x, need_tags=False)
        sentences = [sentence for sentence in x if len(sentence.words)]
        dictionary = self._dictionary(sentences)
        if self.learn_from == "words":
            names = tuple(STATE.format(k) for k in range(self.num_states))
        else:
            names = tuple(sorted({*tag_names(sentences), *dictionary.tags}))
        if not names:
            raise ValueError("x: expected some words with tags, or a lexicon; to learn from words alone, "
                             "learn_from='words'")  # fmt: skip
        counts = Counter(word for sentence in sentences for word in sentence.words)
        tagged = TagDictionary.from_sentences(sentences) if self.learn_from == "tags" else ()
        self._number_words(counts, dictionary, tagged)
        self.known_words = frozenset(counts)
        self._lengths = dict(sorted(Counter(len(sentence.words) for sentence in sentences).items()))
        self.tags, self._tag_of_state = names, torch.arange(len(names))
        return DictionaryTraining(self, sentences, dictionary, self._batches(sentences), counts)

    def _dictionary(self, sentences: Sequence[TaggedSentence]) -> TagDictionary:
        if self.learn_from == "words":
            return self.lexicon_of_states()
        found = TagDictionary.from_sentences(sentences)
        if self.lexicon is None:
            # with tags, words are free to have others than those seen; hard limits are for those who give a lexicon
            return TagDictionary({}) if self.learn_from == "tags" else found
        if self.learn_from == "dictionary":
            return self.lexicon.joined(found)
        return self.lexicon.joined(TagDictionary({w: t for w, t in found.entries.items() if w in self.lexicon}))

    def lexicon_of_states(self) -> TagDictionary:
        """A lexicon makes no sense where states have no names."""
        if self.lexicon is not None:
            raise ValueError("lexicon: with learn_from='words' states have no names that a lexicon could speak of")
        return TagDictionary({})

    def _number_words(self, counts: Counter, dictionary: TagDictionary, tagged: Container[str]) -> None:
        rare = [word for word, count in counts.items() if count < max(self.min_count, 2)]
        self._classes = WordClasses(rare)
        kept = {w for w, count in counts.items() if count >= self.min_count or w in dictionary or w in tagged}
        self._set_vocabulary(sorted(kept | dictionary.entries.keys()))  # also words that the lexicon alone has

    def _set_vocabulary(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        # a word may be written as a class is, "<x>"
        self._number = {word: i for i, word in enumerate(self.words)}
        self._number_of_class = {name: i for i, name in enumerate(self._classes.names, len(self.words))}

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Words, then classes of words: what the HMM emits."""
        return (*self.words, *self._classes.names)

    def _ids(self, words: Sequence[str]) -> list[int]:
        known, classes = self._number, self._number_of_class
        return [known[word] if word in known else classes[self._classes(word)] for word in words]

    def _class_numbers(self) -> Tensor:
        """(vocabulary,) the number of each word's class, and of classes themselves."""
        number = {name: k for k, name in enumerate(self._classes.names)}
        return torch.tensor([*(number[self._classes(word)] for word in self.words), *number.values()])

    def _batches(self, sentences: Sequence[TaggedSentence]) -> list[Batch]:
        number = {tag: k for k, tag in enumerate(self.tags)}
        rows = sorted(sentences, key=lambda sentence: len(sentence.words))
        batches, start = [], 0
        while start < len(rows):
            end = start + 1
            while end < len(rows) and (end + 1 - start) * len(rows[end].words) * len(self.tags) <= EM_CELLS:
                end += 1
            x, lengths = pad_sequences([torch.tensor(self._ids(s.words)) for s in rows[start:end]])
            states = None
            if self.learn_from == "tags":
                found = [torch.tensor([-1 if t is None else number[t] for t in s.tags]) for s in rows[start:end]]
                states = pad_sequences(found, fill=-1)[0]
            batches.append(Batch(x, lengths, states))
            start = end
        return batches

    def first_model(self, sentences: Sequence[TaggedSentence], dictionary: TagDictionary, batches: Sequence[Batch]) -> HMM:
        words = [self._ids(sentence.words) for sentence in sentences]
        size, num_words = len(self.tags), len(self.vocabulary)
        if self.learn_from == "words":
            return self.new_model().set_parameters(**tables_of_clusters([np.array(row) for row in words], num_words, size))
        number: dict[str | None, int] = {None: -1} | {tag: k for k, tag in enumerate(self.tags)}
        untagged = self.learn_from == "dictionary"
        states = [[-1 if untagged else number[tag] for tag in sentence.tags] for sentence in sentences]
        tagged = count_states(words, states, size, num_words)
        weights = torch.from_numpy(dictionary.weights(self.vocabulary, self.tags, self.open_tags))
        listed = torch.tensor([word in dictionary for word in self.vocabulary])
        sighted = tagged.emission.sum(0) > 0
        seen = torch.bincount(torch.cat([torch.tensor(row) for row in words]), minlength=num_words).double()
        emission = weights * seen
        like = torch.zeros_like(emission)  # classes, as tagged words that are rare have them
        if bool(sighted.any()):
            class_of = self._class_numbers()
            counts = rare_by_class(tagged.emission, class_of)
            like[:, len(self.words) :] = counts * (seen[len(self.words) :] > 0)
            # words never seen with a tag begin as the dictionary has them, or as rare words of their class that have tags
            guess = weights * state_given_class(counts)[:, class_of]
            emission = torch.where(listed, emission, guess / guess.sum(0).clamp_min(1e-300) * seen)
            emission = torch.where(sighted, tagged.emission + 0.01 * emission, emission) + like
        strength = self.lexicon_strength
        soft = strength is not None
        allowed = (weights > 0) | (tagged.emission > 0) | torch.tensor(soft)
        emission = emission + 1e-3 * (seen + 0.1) / seen.sum() * allowed
        extra = (
            (self.tagged_weight - 1.0) * tagged.emission
            + self.tagged_weight * like
            + self.emission_pseudo_count * allowed
        )
        if strength is not None:
            listing = strength * weights * listed
            emission, extra = emission + listing, extra + listing
        else:  # words that the text lacks: half a sighting, shared by their tags
            extra = extra + 0.5 * weights * (listed & (seen == 0))
        noise = torch.rand(size, size, dtype=torch.float64) * 0.01 + 1.0
        start = Counts(tagged.initial + 1.0, (tagged.transition + 1.0) * noise, emission)
        more = self.tagged_weight - 1.0
        return _set(self.new_model(Counts(more * tagged.initial, more * tagged.transition, extra)), start)

    def new_model(self, extra: Counts | None = None) -> HMM:
        """An HMM with priors that are worth these counts, and the pseudo-counts."""
        if extra is None:
            extra = Counts(torch.zeros(()), torch.zeros(()), torch.full((), self.emission_pseudo_count))
        pseudo = {"initial": self.pseudo_count, "transition": self.pseudo_count, "emission": 0.0}
        priors = {name: 1.0 + pseudo[name] + value.double() for name, value in extra._asdict().items()}
        flat = {
            name: float(v.flatten()[0]) if bool((v == v.flatten()[0]).all()) else v.tolist()
            for name, v in priors.items()
        }
        return HMM(len(self.tags), len(self.vocabulary), priors=flat)

    def with_classes(self, model: HMM, batches: Sequence[Batch], counts: Counter) -> HMM:
        """The same HMM, whose classes of words also have what words that occur once have."""
        with torch.no_grad():
            emission = sum(
                model.expected_statistics(model.posterior(b.x, b.lengths, **b.known), b)["emission"] for b in batches
            )
        prior = torch.as_tensor(model.priors.emission, dtype=torch.float64)
        emission = emission + (prior - 1.0)
        once = [i for i, word in enumerate(self.words) if counts[word] == 1]
        classes = torch.tensor([self._number_of_class[self._classes(self.words[i])] for i in once], dtype=torch.long)
        extra = torch.zeros_like(emission)
        if once:
            extra.index_add_(1, classes, emission[:, once])
            extra[:, self._number_of_class["<any>"]] += emission[:, once].sum(1) * 1e-3
        # never nothing: a class that no state emits would make sentences impossible
        visits = emission.sum(1, keepdim=True)
        extra[:, len(self.words) :] += 1e-6 * (visits + 1.0)
        total = emission + extra
        made = HMM(len(self.tags), len(self.vocabulary))
        return made.set_parameters(
            initial=_mixed(model.initial),
            transition=_mixed(model.transition),
            emission=total / total.sum(1, keepdim=True),
        )

    # ---------------------------------------------------------------- the chain
    def has_substates(self) -> bool:
        return len(self._tag_of_state) > len(self.tags)  # behind `name_states`

    def tag_of_state(self):
        return self._tag_of_state

    def chain(self, sentences):
        x, lengths = pad_sequences([torch.tensor(self._ids(words)) for words in sentences])
        return self.hmm.posterior(x, lengths)

    def state_paths(self, x: Sequence[Sequence[str]]) -> list[tuple[int, ...]]:
        """The most probable states of each sentence's words, by number, whatever their tags are."""

        def paths(chain, lengths):
            return [tuple(row[:n]) for row, n in zip(chain.viterbi()[0].tolist(), lengths, strict=True)]

        return self.each(x, paths, tuple)

    def name_states(self, x: Sequence[TaggedSentence]) -> DictionaryTagger:
        """Gives each state the tag that its words most often have in tagged sentences; several states may share one.

        States that do not occur in them get the most frequent tag.
        """
        check_sentences(x, need_tags=False)
        found = names_of_clusters(x, self.state_paths([sentence.words for sentence in x]))
        counts = Counter(tag for sentence in x for tag in sentence.tags if tag is not None)
        if not counts:
            raise ValueError("x: expected some words with tags, got none")
        names = [found.get(k, counts.most_common(1)[0][0]) for k in range(self.hmm.num_states)]
        self.tags = tuple(sorted(set(names)))
        self._tag_of_state = torch.tensor([self.tags.index(name) for name in names])
        return self

    def sample(self, num_steps: int = 100, num_sequences: int = 1, *, seed: int | None = None) -> list[TaggedSentence]:
        """Sentences drawn from the model; their lengths are drawn from those of the training text, as it has no end.

        Classes of rare words stand for such words.
        """
        self.check_unconstrained("sample")
        checks.count("num_steps", num_steps)
        checks.count("num_sequences", num_sequences, least=0)
        random = np.random.default_rng(seed if seed is None else checks.seed("seed", seed))
        lengths, counts = np.array(list(self._lengths)), np.array(list(self._lengths.values()), dtype=float)
        drawn = np.minimum(random.choice(lengths, size=num_sequences, p=counts / counts.sum()), num_steps).tolist()
        if not drawn:
            return []
        x, states, _ = self.hmm.sample(max(drawn), num_sequences, seed=int(random.integers(1 << 31)))
        vocabulary = self.vocabulary
        return [
            TaggedSentence(tuple(vocabulary[i] for i in ids[:n]), self.names_of(row, n))
            for ids, row, n in zip(x.tolist(), states, drawn, strict=True)
        ]

    # ---------------------------------------------------------------- storage
    def state(self):
        options = self.get_params()
        options["lexicon"] = None if self.lexicon is None else self.lexicon.entries
        fitted = {
            "tags": self.tags,
            "words": self.words,
            "classes": self._classes.names,
            "known_words": sorted(self.known_words),
            "lengths": {str(length): count for length, count in self._lengths.items()},
        }
        tables = {"initial": self.hmm.initial, "transition": self.hmm.transition, "emission": self.hmm.emission}
        return {"options": options, "fitted": fitted}, {**tables, "tag_of_state": self._tag_of_state}

    @classmethod
    def from_state(cls, config: dict[str, Any], tensors: dict[str, Tensor]):
        tagger, fitted = cls(**config["options"]), config["fitted"]
        tagger.tags, tagger._tag_of_state = tuple(fitted["tags"]), tensors["tag_of_state"]
        tagger._classes = WordClasses.of_names(fitted["classes"])
        tagger._set_vocabulary(fitted["words"])
        tagger.known_words = frozenset(fitted["known_words"])
        tagger._lengths = {int(length): count for length, count in fitted["lengths"].items()}
        tables = {name: tensors[name] for name in ("initial", "transition", "emission")}
        tagger.hmm = HMM(*tables["emission"].shape).set_parameters(**tables)
        return tagger


class DictionaryTraining(TaggerTraining):
    """An iteration of EM a step; of several random starts the worse half is dropped after every few iterations."""

    tagger: DictionaryTagger

    def __init__(
        self,
        tagger: DictionaryTagger,
        sentences: Sequence[TaggedSentence],
        dictionary: TagDictionary,
        batches: Sequence[Batch],
        counts: Counter,
    ):
        self.sentences, self.dictionary, self.batches, self.counts = sentences, dictionary, batches, counts
        self.random = tagger.learn_from == "words" and tagger.start == "random"
        self.models: list[HMM] = []  # those that are left, and how far each has come
        self.runs: list[EMTraining] = []
        super().__init__(tagger, sentences, tagger.max_iterations)

    def begin(self) -> None:
        if self.models:  # of a checkpoint
            return
        tagger = self.tagger
        with seeded(tagger.seed):
            if self.random:
                valid = [torch.arange(b.x.shape[1]) < torch.as_tensor(b.lengths)[:, None] for b in self.batches]
                whole = Batch(torch.cat([b.x[rows] for b, rows in zip(self.batches, valid, strict=True)])[None])
                models = []
                for _ in range(tagger.num_restarts):
                    models.append(tagger.new_model())
                    models[-1].initialize(whole)
            else:
                models = [tagger.first_model(self.sentences, self.dictionary, self.batches)]
        self._race(models)

    def _race(self, models: Sequence[HMM]) -> None:
        tagger = self.tagger
        most = tagger.max_iterations if len(models) == 1 else RACE
        self.models = list(models)
        options = {"max_iterations": most, "tolerance": tagger.tolerance}
        self.runs = [EMTraining(model, self.batches, **options) for model in self.models]

    def ended(self) -> str:
        return self.runs[0].ended() if len(self.runs) == 1 else ""

    def iterate(self) -> float:
        run = next(run for run in self.runs if not run.ended())
        with torch.no_grad():
            run.step()
        loss = -run.history.log_likelihoods[-1]
        if len(self.runs) > 1 and all(run.ended() for run in self.runs):
            values = [run.history.log_posteriors[-1] for run in self.runs]
            order = sorted(range(len(values)), key=values.__getitem__, reverse=True)
            self._race([self.models[k] for k in order[: len(order) // 2]])
        return loss

    def publish(self) -> None:
        self.tagger.history = self.runs[0].history
        self.tagger.hmm = self.tagger.with_classes(self.models[0], self.batches, self.counts)

    def finish(self) -> None:
        super().finish()
        for note in self.runs[0].history.notes if self.runs else ():
            warnings.warn(note, RuntimeWarning, stacklevel=6)

    def learned(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, states = {}, []
        for k, run in enumerate(self.runs):
            own, state = run.state()
            tensors |= {f"{k}.{name}": value for name, value in own.items()}
            states.append(state)
        return tensors, {"runs": states}

    def relearn(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        tagger = self.tagger
        if tagger.learn_from == "words":
            self._race([tagger.new_model() for _ in state["runs"]])
        else:  # for the priors, that stand for what is known of tags
            self._race([tagger.first_model(self.sentences, self.dictionary, self.batches)])
        for k, (run, own) in enumerate(zip(self.runs, state["runs"], strict=True)):
            run.restore({name.removeprefix(f"{k}."): v for name, v in tensors.items() if name.startswith(f"{k}.")}, own)


def _set(model: HMM, counts: Counts) -> HMM:
    rows = {name: value / value.sum(-1, keepdim=True) for name, value in counts._asdict().items()}
    return model.set_parameters(**rows)


def _mixed(probs: Tensor) -> Tensor:
    """Without zeros: what training did not have is improbable, not impossible."""
    return (1 - 1e-6) * probs + 1e-6 / probs.shape[-1]
