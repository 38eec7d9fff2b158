"""A tagger whose words are independent, so that every answer can be had by hand; and one without probabilities."""

import heapq
import itertools
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from pplseq.models.taggers.tagger import Tagger


@dataclass(frozen=True)
class ToySettings:
    rate: float = 1.0


class PlainTagger(Tagger):
    """The most frequent tag of every word. `weight` is added to the counts of all tags."""

    name = "toy-plain"

    def __init__(self, weight=0.5, settings=None, **options):
        self.weight, self.settings = weight, settings or ToySettings(**options)

    def fit(self, sentences, validation=None, *, progress=False):
        self.counts = {}
        for words, tags in sentences:
            for word, tag in zip(words, tags, strict=True):
                self.counts.setdefault(word, Counter())[tag] += tag is not None
        self.tags = tuple(sorted({tag for found in self.counts.values() for tag in found if tag is not None}))
        return self

    @property
    def known_words(self):
        return frozenset(self.counts)

    def probs(self, word):
        counts = np.array([self.counts.get(word, {}).get(tag, 0) for tag in self.tags]) + self.weight
        return counts / counts.sum()

    def tag(self, sentences):
        return [tuple(self.tags[int(self.probs(word).argmax())] for word in words) for words in sentences]

    def state(self):
        return {"weight": self.weight, "tags": self.tags, "counts": self.counts}, {"empty": torch.zeros(1)}

    @classmethod
    def from_state(cls, config, tensors):
        tagger = cls(config["weight"])
        tagger.tags = tuple(config["tags"])
        tagger.counts = {word: Counter(found) for word, found in config["counts"].items()}
        return tagger


class ToyTagger(PlainTagger):
    """p(tags | words) = the product over words; p(words) = the product of 1 / (number of letters + 1)."""

    name = "toy"

    def tag(self, sentences, decoder="viterbi"):
        assert decoder in ("viterbi", "posterior")
        return super().tag(sentences)

    def smooth(self, sentences):
        return [np.array([self.probs(word) for word in words]).reshape(-1, len(self.tags)) for words in sentences]

    def entropy(self, sentences):
        return np.array([-(p * np.log(p)).sum() for p in self.smooth(sentences)])

    def n_best(self, words, n):
        rows = [[(tag, math.log(p)) for tag, p in zip(self.tags, self.probs(word), strict=True)] for word in words]
        paths = ((tuple(tag for tag, _ in path), sum(p for _, p in path)) for path in itertools.product(*rows))
        return heapq.nlargest(n, paths, key=lambda path: path[1])

    def sample_states(self, sentences, num_samples, seed=0):
        random = np.random.default_rng(seed)
        return [
            [tuple(random.choice(self.tags, p=self.probs(word)) for word in words) for words in sentences]
            for _ in range(num_samples)
        ]

    def token_log_probs(self, sentences):
        return [-np.log([len(word) + 1 for word in words]) if words else np.zeros(0) for words in sentences]

    def log_prob(self, sentences):
        return np.array([found.sum() for found in self.token_log_probs(sentences)])


class Needy(PlainTagger):
    """A tagger whose package is not installed."""

    name = "toy-needy"

    def __init__(self):
        raise ImportError('nothing works without "nothing": pip install "pplseq[tagging]"')


class Failing(PlainTagger):
    """A tagger that cannot learn."""

    name = "toy-failing"

    def fit(self, sentences, validation=None, *, progress=False):
        raise ValueError("sentences: too few")
