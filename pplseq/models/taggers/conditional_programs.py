"""Programs of tags given words: the linear-chain conditional random field, and the maximum-entropy Markov model."""

from __future__ import annotations

from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor
from torch.nn.functional import log_softmax

from pplseq.distributions.dense import StepTransition
from pplseq.distributions.state import Emission
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.programs.linear_chain import LinearChain
from pplseq.infer.programs.markov import markov
from pplseq.models.taggers.weights import Bucket, TagData, ranges, sparse_product
from pplseq.threads import alone

FEW = 4  # words with less than a fourth as many features as there are do without the table of all weights


class FeatureWeights(PyroModule):
    """scores[n, tag] = sum over features f of word n of weight[f, tag] + columns[n] . column_weights[:, tag].

    Args:
        pairs: (P,) feature * K + tag of the pairs that have a weight, rising; all others stay at 0.
        num_features: F. num_tags: K. num_columns: h, of real-valued features.
        dtype: that scores are worked out in; weights and all that follows are float64.
    """

    def __init__(self, pairs: Tensor, num_features: int, num_tags: int, num_columns: int, dtype: torch.dtype):
        super().__init__()
        self.num_features, self.num_tags, self.dtype = num_features, num_tags, dtype
        self.register_buffer("pairs", pairs)
        self.weights = torch.nn.Parameter(torch.zeros(len(pairs), dtype=torch.float64))
        self.column_weights = torch.nn.Parameter(torch.zeros(num_columns, num_tags, dtype=torch.float64))
        self.transition = torch.nn.Parameter(torch.zeros(num_tags, num_tags, dtype=torch.float64))
        starts = torch.searchsorted(pairs, torch.arange(num_features + 1) * num_tags)
        self.register_buffer("feature_starts", starts, persistent=False)

    def table(self, used: Tensor | None = None) -> Tensor:
        """(F, K) weights, or those of some features."""
        weights, pairs, num_features = self.weights, self.pairs, self.num_features
        if used is not None:
            starts = self.feature_starts[used]
            num_features, sizes = len(used), self.feature_starts[used + 1] - starts
            taken = ranges(starts, sizes)
            row = torch.repeat_interleave(torch.arange(num_features), sizes)
            weights, pairs = weights[taken], row * self.num_tags + pairs[taken] % self.num_tags
        table = torch.zeros(num_features * self.num_tags, dtype=self.dtype)
        return table.index_copy(0, pairs, weights.to(self.dtype)).view(num_features, self.num_tags)

    def scores(self, data: TagData) -> Tensor:
        """(N, K) float64; -inf of blocked tags. Of few words only the weights of their features are looked at, so that nothing
        has to be kept that could grow old.
        """
        features, used = data.features, data.used
        if used is None and FEW * len(features.columns) < self.num_features:
            features, used = features.rows(torch.arange(len(features)))
        scores = sparse_product(features, self.table(used))
        if data.columns is not None:
            scores = scores + data.columns.to(self.dtype) @ self.column_weights.to(self.dtype)
        scores = scores.double()
        return scores if data.blocked is None else scores.masked_fill(data.blocked, -torch.inf)

    def squares(self) -> Tensor:
        """The sum of all squared weights."""
        zero = torch.zeros((), dtype=torch.float64)
        return sum((parameter.square().sum() for parameter in self.parameters()), zero)

    def prior(self, l2: float, share: float = 1.0) -> None:
        """The Gaussian prior of all weights, up to its constant, as a factor of the program."""
        pyro.factor("prior", -l2 * share * self.squares())

    def model(self, data: TagData, l2: float = 0.0, share: float = 1.0) -> None:
        """The program: tags given words. `share` of the prior goes with these sentences."""
        raise NotImplementedError

    def sentence_chain(self, bucket: Bucket, scores: Tensor) -> Chain:
        """The chain of some sentences' tags; scores (N, K) of all words."""
        raise NotImplementedError

    def log_probs(self, data: TagData) -> Tensor:
        """(number of sentences,) log p(tags | words), nats."""
        raise NotImplementedError

    def forward(self, data: TagData, l2: float = 0.0, share: float = 1.0) -> None:
        return self.model(data, l2, share)

    def loss(self, data: TagData, l2: float = 0.0, share: float = 1.0) -> Tensor:
        """-log p(tags | words) - log prior (up to its constant), nats."""
        trace = alone(lambda: poutine.trace(self).get_trace(data, l2, share))
        return -torch.as_tensor(trace.log_prob_sum())


class LinearChainCRF(FeatureWeights):
    """p(tags | words) = exp(sum_t scores[t, tag_t] + sum_t transition[tag_{t-1}, tag_t]) / Z(words).

    Attributes:
        allowed: first (K,), after (K, K) and last (K,), bool: tags that may begin, follow and end; Z sums over these taggings.
            None: all.
    """

    allowed: tuple[Tensor, Tensor, Tensor] | None = None

    def scores(self, data: TagData) -> Tensor:
        """As those of all such weights; -inf too of tags that may not begin or end a sentence."""
        scores = super().scores(data)
        if self.allowed is not None:
            first, _, last = self.allowed
            starts, ends = data.starts, data.starts + data.lengths - 1
            blocked = torch.zeros(scores.shape, dtype=torch.bool)
            blocked[starts] = ~first
            blocked[ends] |= ~last
            scores = scores.masked_fill(blocked, -torch.inf)
        return scores

    def follow(self) -> Tensor:
        """(K, K) scores of tags after tags; -inf of those that may not follow."""
        return self.transition if self.allowed is None else self.transition.masked_fill(~self.allowed[1], -torch.inf)

    def paths(self, bucket: Bucket, scores: Tensor) -> LinearChain:
        """The distribution of tag paths of some sentences; scores (B, T, K) of their words."""
        return LinearChain(scores, self.follow(), bucket.lengths)

    def sentence_chain(self, bucket: Bucket, scores: Tensor) -> Chain:
        return self.paths(bucket, bucket.take(scores)).chain()

    def model(self, data: TagData, l2: float = 0.0, share: float = 1.0) -> None:
        """One site for the tags of all sentences of like length; negative tags are unknown, and summed over."""
        self.prior(l2, share)
        for k, (bucket, scores) in enumerate(zip(data.buckets, data.by_bucket(self.scores(data)), strict=True)):
            tags = None if data.tags is None else bucket.take(data.tags)
            with pyro.plate(f"sentences_{k}", len(bucket.lengths)):
                pyro.sample(f"tags_{k}", self.paths(bucket, scores), obs=tags)

    def loss(self, data: TagData, l2: float = 0.0, share: float = 1.0) -> Tensor:
        """As the program's; known tags add up their scores over all words in a row, so that no bucket has to look for them."""
        if not data.complete:
            return super().loss(data, l2, share)
        scores, follow = self.scores(data), self.follow()
        assert data.tags is not None  # as they are complete
        pairs = data.tags[data.follows - 1] * self.num_tags + data.tags[data.follows]
        total = scores.gather(-1, data.tags.unsqueeze(-1)).sum() + follow.reshape(-1).index_select(0, pairs).sum()
        for bucket, part in zip(data.buckets, data.by_bucket(scores), strict=True):
            total = total - self.paths(bucket, part).chain().log_prob().sum()
        return l2 * share * self.squares() - total

    def log_probs(self, data: TagData) -> Tensor:
        """(number of sentences,) log p(tags | words), nats."""
        bucket = data.bucket(torch.arange(data.num_sentences))
        assert data.tags is not None
        return self.paths(bucket, bucket.take(self.scores(data))).log_prob(bucket.take(data.tags))


class Silent(Emission):
    """Says nothing about the state: words are what the chain is conditioned on, not what it emits."""

    def __init__(self, num_states: int):
        self.num_states = num_states

    def log_likelihood(self, obs):
        return torch.zeros(*obs.shape, self.num_states, dtype=torch.float64)


class MEMM(FeatureWeights):
    """p(tag_t | tag_{t-1}, words) = softmax over tags of scores[t] + transition[tag_{t-1}]; of scores[t] for the first."""

    def step(self) -> StepTransition:
        """A matrix a word, given the word's scores (B, K)."""
        return StepTransition(
            lambda scores: log_softmax(scores, -1),  # pyright: ignore[reportArgumentType]
            lambda scores: log_softmax(scores.unsqueeze(-2) + self.transition, -1),
            self.num_tags,
        )

    def model(self, data: TagData, l2: float = 0.0, share: float = 1.0) -> None:
        """The program, tag by tag. All words must have tags, or none."""
        self.prior(l2, share)
        scores, transition = self.scores(data), self.step()
        for k, bucket in enumerate(data.buckets):
            inputs = bucket.take(scores)
            tags = None if data.tags is None else bucket.take(data.tags)
            with pyro.plate(f"sentences_{k}", len(bucket.lengths)):
                tag = None
                t: Any  # a step, or all at once
                for t in markov(range(inputs.shape[1])):
                    with poutine.mask(mask=t < bucket.lengths):
                        obs = None if tags is None else tags[:, t]
                        tag = pyro.sample(f"tags_{k}_{t}", transition(tag, inputs=inputs[:, t]), obs=obs)

    def chain(self, bucket: Bucket, scores: Tensor, tags: Tensor | None = None) -> Chain:
        """The chain of some sentences; scores (N, K) and tags (N,) of all words, negative where unknown."""
        inputs = bucket.take(scores).transpose(0, 1)
        valid = torch.arange(len(inputs)).unsqueeze(-1) < bucket.lengths
        states = None if tags is None else bucket.take(tags).T
        obs = torch.zeros(valid.shape)
        return build_chain(self.step(), Silent(self.num_tags), obs, valid=valid, states=states, inputs=inputs)

    def sentence_chain(self, bucket: Bucket, scores: Tensor) -> Chain:
        return self.chain(bucket, scores)

    def log_probs(self, data: TagData) -> Tensor:
        """(number of sentences,) log p(tags | words), nats; all steps at once where all tags are known."""
        scores = self.scores(data)
        if not data.complete:
            chain = self.chain(data.bucket(torch.arange(data.num_sentences)), scores, data.tags)
            with chain.unchecked():
                return chain.log_prob()
        assert data.tags is not None  # as they are complete
        scores = scores.index_add(0, data.follows, self.transition.index_select(0, data.tags[data.follows - 1]))
        words = log_softmax(scores, -1).gather(-1, data.tags.unsqueeze(-1)).squeeze(-1)
        sentence = torch.repeat_interleave(torch.arange(data.num_sentences), data.lengths)
        return words.new_zeros(data.num_sentences).index_add(0, sentence, words)

    def loss(self, data: TagData, l2: float = 0.0, share: float = 1.0) -> Tensor:
        """As the program's, without its loop over words."""
        if data.complete:
            total = self.log_probs(data).sum()
        else:
            scores = self.scores(data)
            parts = (self.chain(bucket, scores, data.tags).log_prob().sum() for bucket in data.buckets)
            total = sum(parts, torch.zeros((), dtype=torch.float64))
        return l2 * share * self.squares() - total
