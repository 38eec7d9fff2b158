"""A maximum-entropy Markov model: each tag given the tag before it and the words."""

from __future__ import annotations

from collections.abc import Sequence

import pyro
import torch
from pyro import poutine
from torch import Tensor
from torch.nn.functional import log_softmax

from pplseq.distributions.dense import StepTransition
from pplseq.distributions.state import Emission
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.programs.markov import markov
from pplseq.models.taggers.conditional import FeatureTagger, FeatureWeights
from pplseq.models.taggers.tagger import Words
from pplseq.models.taggers.weights import Bucket, TagData


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
            lambda scores: log_softmax(scores, -1),
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

    def log_probs(self, data: TagData) -> Tensor:
        """(number of sentences,) log p(tags | words), nats; all steps at once where all tags are known."""
        scores = self.scores(data)
        if not data.complete:
            return self.chain(data.bucket(torch.arange(data.num_sentences)), scores, data.tags).log_prob()
        before = torch.cat([data.tags.new_zeros(1), data.tags[:-1]])
        first = torch.zeros(len(before), dtype=torch.bool)
        first[data.starts] = True
        scores = scores + self.transition.index_select(0, before).masked_fill(first.unsqueeze(-1), 0.0)
        words = log_softmax(scores, -1).gather(-1, data.tags.unsqueeze(-1)).squeeze(-1)
        sentence = torch.repeat_interleave(torch.arange(data.num_sentences), data.lengths)
        return words.new_zeros(data.num_sentences).index_add(0, sentence, words)

    def loss(self, data: TagData, l2: float = 0.0, share: float = 1.0) -> Tensor:
        """As the program's, without its loop over words."""
        squares = sum(parameter.square().sum() for parameter in self.parameters())
        if data.complete:
            total = self.log_probs(data).sum()
        else:
            scores = self.scores(data)
            total = sum(self.chain(bucket, scores, data.tags).log_prob().sum() for bucket in data.buckets)
        return l2 * share * squares - total


class MEMMTagger(FeatureTagger):
    """A maximum-entropy Markov model: a logistic regression of each tag on features of words and the tag before it.

    Trained on gold tags, decoded over all paths. Arguments as for :class:`~pplseq.models.taggers.conditional_crf.CRFTagger`.

    Source: McCallum, Freitag and Pereira, Maximum entropy Markov models (2000).
    """

    name = "memm-tagger"
    weights_class = MEMM

    def chain(self, sentences: Sequence[Words]):
        data = self.encode(sentences)
        with torch.no_grad():
            return self.weights.chain(data.bucket(torch.arange(len(sentences))), self.weights.scores(data))
