"""NLTK's taggers behind the library's interface, trained on the sentences given: nothing is downloaded or pickled."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.baselines.adapters import Adapter, library_of
from pplseq.threads import from_shared_generator

BRILL_TEMPLATES = ("fntbl37", "brill24", "nltkdemo18plus", "nltkdemo18")


class NLTKTagger(Adapter):
    """What NLTK's taggers have in common; `nltk` is the trained one of NLTK's classes."""

    nltk: Any = None

    def _train(self, sentences, tags, progress):
        pairs = [list(zip(words, tags, strict=True)) for words, tags in sentences]
        with library_of("NLTK's"):
            self.nltk = self._train_nltk(pairs)  # pyright: ignore[reportArgumentType]  # trained on tagged words alone

    def _tag(self, sentences):
        return [[tag for _, tag in self.nltk.tag(words)] for words in sentences]

    def _pack(self):
        config, tensors = self._nltk_state()
        return {"nltk": config}, tensors

    def _unpack(self, config, tensors):
        with library_of("NLTK's"):
            self.nltk = self._from_nltk_state(config["nltk"], tensors)

    @abstractmethod
    def _train_nltk(self, pairs: list[list[tuple[str, str]]]) -> Any:
        """NLTK's tagger, trained."""

    @abstractmethod
    def _nltk_state(self) -> tuple[Any, dict[str, Tensor]]:
        """Of NLTK's tagger: what JSON can hold, and tensors."""

    @abstractmethod
    def _from_nltk_state(self, config: Any, tensors: dict[str, Tensor]) -> Any:
        """NLTK's tagger again."""


# ---------------------------------------------------------------- n-grams with back-off
class NgramTagger(NLTKTagger):
    """The most frequent tag after the n - 1 tags before and the word; unseen ones back off to fewer tags, then to suffixes.

    Args:
        n: 1, 2, ... tags and the word together.
        suffixes: lengths of the suffixes that words unknown even to n = 1 are tagged by, longest first.
        cutoff: contexts whose tag occurs at most so often are left to the next one.
    """

    name = "nltk-ngram"

    def __init__(self, n: int = 3, suffixes: Sequence[int] = (3, 2, 1), cutoff: int = 0):
        if n < 1 or cutoff < 0 or any(size < 1 for size in suffixes):
            raise ValueError(f"n and suffixes must be at least 1, cutoff not negative; got {n}, {suffixes}, {cutoff}")
        self.n, self.suffixes, self.cutoff = int(n), tuple(sorted(suffixes, reverse=True)), int(cutoff)

    def _train_nltk(self, pairs):
        return train_ngrams(pairs, self.n, self.suffixes, self.cutoff)

    def _nltk_state(self):
        return ngram_tables(self.nltk, self.suffixes, self.n), {}

    def _from_nltk_state(self, config, tensors):
        return ngrams_of_tables(config, self.suffixes)


def train_ngrams(pairs, n: int, suffixes: Sequence[int], cutoff: int = 0):
    """NLTK's n-gram tagger over suffixes over the most frequent tag."""
    from nltk.tag import sequential

    counts = Counter(tag for sentence in pairs for _, tag in sentence)
    tagger = sequential.DefaultTagger(min(counts, key=lambda tag: (-counts[tag], tag)))
    for size in sorted(suffixes):
        tagger = sequential.AffixTagger(pairs, affix_length=-size, min_stem_length=1, backoff=tagger)
    tagger = sequential.UnigramTagger(pairs, backoff=tagger, cutoff=cutoff)
    for size in range(2, n + 1):
        tagger = sequential.NgramTagger(size, pairs, backoff=tagger, cutoff=cutoff)
    return tagger


def ngram_tables(tagger, suffixes: Sequence[int], n: int) -> dict[str, Any]:
    """The tables of :func:`train_ngrams`, the longest context first. NLTK's own JSON form loads empty tables as none."""
    tables = []
    for _ in range(n + len(suffixes)):
        table = tagger._context_to_tag
        tables.append([[_as_list(context), tag] for context, tag in table.items()])
        tagger = tagger.backoff
    return {"tables": tables, "default": tagger.choose_tag([""], 0, [])}


def ngrams_of_tables(config: dict[str, Any], suffixes: Sequence[int]):
    """NLTK's tagger of :func:`ngram_tables`."""
    from nltk.tag import sequential

    tagger = sequential.DefaultTagger(config["default"])
    tables = [{_as_tuple(context): tag for context, tag in table} for table in reversed(config["tables"])]
    for size, table in zip(sorted(suffixes), tables, strict=False):
        tagger = _filled(
            sequential.AffixTagger(model={"": ""}, affix_length=-size, min_stem_length=1, backoff=tagger), table
        )
    for size, table in enumerate(tables[len(suffixes) :], start=1):
        made = (
            sequential.UnigramTagger(model={"": ""}, backoff=tagger)
            if size == 1
            else sequential.NgramTagger(size, model={"": ""}, backoff=tagger)
        )
        tagger = _filled(made, table)
    return tagger


def _filled(tagger, table):
    tagger._context_to_tag = table  # given to the constructor, an empty table would be refused
    return tagger


def _as_list(context):
    return context if isinstance(context, str) else [list(context[0]), context[1]]


def _as_tuple(context):
    return context if isinstance(context, str) else (tuple(context[0]), context[1])


# ---------------------------------------------------------------- transformation rules
class BrillTagger(NLTKTagger):
    """Transformation rules on top of the most frequent tag of each word, learned one by one.

    Args:
        max_rules: learned at most. min_score: errors that a rule must remove in training, more than it makes.
        templates: NLTK's sets of what rules may look at: "fntbl37", "brill24", "nltkdemo18plus", "nltkdemo18".
        suffixes: as in :class:`NgramTagger`, of the tags that rules begin with.

    Source: Brill, Transformation-based error-driven learning and natural language processing (1995).
    """

    name = "nltk-brill"

    def __init__(
        self, max_rules: int = 100, min_score: int = 2, templates: str = "fntbl37", suffixes: Sequence[int] = (3, 2, 1)
    ):
        self.templates = checks.choice("templates", templates, BRILL_TEMPLATES)
        self.max_rules, self.min_score = checks.count("max_rules", max_rules, least=0), int(min_score)
        self.suffixes = tuple(sorted(suffixes, reverse=True))

    @property
    def rules(self) -> list[str]:
        """The rules learned, in words, in the order in which they are applied."""
        self._check_fitted()
        return [rule.format("verbose") for rule in self.nltk.rules()]

    def _train_nltk(self, pairs):
        from nltk.tag import brill, brill_trainer

        first = train_ngrams(pairs, 1, self.suffixes)
        templates = getattr(brill, self.templates)()
        found = brill_trainer.BrillTaggerTrainer(first, templates, deterministic=True)
        return found.train(pairs, max_rules=self.max_rules, min_score=self.min_score)

    def _nltk_state(self):
        rules = []
        for rule in self.nltk.rules():
            parts = rule.encode_json_obj()
            conditions = [[type(f).__name__, list(f.positions), value] for f, value in parts["conditions"]]
            rules.append([parts["templateid"], parts["original"], parts["replacement"], conditions])
        first = self.nltk.encode_json_obj()[0]
        return {"first": ngram_tables(first, self.suffixes, 1), "rules": rules}, {}

    def _from_nltk_state(self, config, tensors):
        from nltk.tag import brill
        from nltk.tbl import rule

        features = {"Word": brill.Word, "Pos": brill.Pos}
        rules = [
            rule.Rule(
                template, old, new, tuple((features[name](positions), value) for name, positions, value in conditions)
            )
            for template, old, new, conditions in config["rules"]
        ]
        return brill.BrillTagger(ngrams_of_tables(config["first"], self.suffixes), rules)


# ---------------------------------------------------------------- TnT
class TnTTagger(NLTKTagger):
    """NLTK's TnT: a trigram HMM, decoded by beam search; unknown words by their suffixes.

    NLTK cannot write this tagger; saved is what it was trained on, in numbers, and loading trains it again.

    Args:
        beam: hypotheses so many times less probable than the best are dropped.
        capitals: tags of capitalised words are tags of their own.

    Source: Brants, TnT: a statistical part-of-speech tagger (2000).
    """

    name = "nltk-tnt"

    def __init__(self, beam: int = 1000, capitals: bool = False):
        self.beam, self.capitals = int(beam), bool(capitals)

    def _train_nltk(self, pairs):
        from nltk.tag import tnt

        self._pairs = pairs
        tagger = tnt.TnT(N=self.beam, C=self.capitals)
        tagger.train(pairs)
        return tagger

    def _nltk_state(self):
        words = {word: i for i, word in enumerate(sorted(self.known_words))}
        tags = {tag: i for i, tag in enumerate(self.tags)}
        return {}, {
            "lengths": torch.tensor([len(sentence) for sentence in self._pairs], dtype=torch.int32),
            "words": torch.tensor([words[word] for sentence in self._pairs for word, _ in sentence], dtype=torch.int32),
            "tags": torch.tensor([tags[tag] for sentence in self._pairs for _, tag in sentence], dtype=torch.int32),
        }

    def _from_nltk_state(self, config, tensors):
        words = sorted(self.known_words)
        tokens = [
            (words[word], self.tags[tag])
            for word, tag in zip(tensors["words"].tolist(), tensors["tags"].tolist(), strict=True)
        ]
        ends = np.cumsum(tensors["lengths"].numpy()).tolist()
        return self._train_nltk([tokens[start:end] for start, end in zip([0, *ends], ends, strict=False)])


# ---------------------------------------------------------------- averaged perceptron
class PerceptronTagger(NLTKTagger):
    """NLTK's averaged perceptron, word by word from left to right.

    Args:
        num_passes: over the training text. seed: of the order of its sentences.

    Source: Collins, Discriminative training methods for hidden Markov models (2002); Honnibal's tagger in NLTK.
    """

    name = "nltk-perceptron"

    def __init__(self, num_passes: int = 5, seed: int = 0):
        self.num_passes, self.seed = checks.count("num_passes", num_passes), int(seed)

    def _train_nltk(self, pairs):
        from nltk.tag import perceptron

        tagger = perceptron.PerceptronTagger(load=False)
        with from_shared_generator(self.seed):
            tagger.train(pairs, nr_iter=self.num_passes)
        return tagger

    def _nltk_state(self):
        model = self.nltk.model
        return {"weights": model.weights, "certain": self.nltk.tagdict, "classes": sorted(self.nltk.classes)}, {}

    def _from_nltk_state(self, config, tensors):
        from nltk.tag import perceptron

        tagger = perceptron.PerceptronTagger(load=False)
        tagger.model.weights, tagger.tagdict = config["weights"], config["certain"]
        tagger.classes = tagger.model.classes = set(config["classes"])
        return tagger
