"""A linear-chain conditional random field: tags given words, all of a sentence's tags at once."""

from __future__ import annotations

from collections.abc import Sequence

import pyro
import torch
from torch import Tensor

from pplseq.infer.programs.linear_chain import LinearChain
from pplseq.models.taggers.conditional import FeatureTagger, FeatureWeights
from pplseq.models.taggers.tagger import Words
from pplseq.models.taggers.weights import Bucket, TagData


class LinearChainCRF(FeatureWeights):
    """p(tags | words) = exp(sum_t scores[t, tag_t] + sum_t transition[tag_{t-1}, tag_t]) / Z(words)."""

    def paths(self, bucket: Bucket, scores: Tensor) -> LinearChain:
        """The distribution of tag paths of some sentences; scores (N, K) of all words."""
        return LinearChain(bucket.take(scores), self.transition, bucket.lengths)

    def model(self, data: TagData, l2: float = 0.0, share: float = 1.0) -> None:
        """One site for the tags of all sentences of like length; negative tags are unknown, and summed over."""
        self.prior(l2, share)
        scores = self.scores(data)
        for k, bucket in enumerate(data.buckets):
            tags = None if data.tags is None else bucket.take(data.tags)
            with pyro.plate(f"sentences_{k}", len(bucket.lengths)):
                pyro.sample(f"tags_{k}", self.paths(bucket, scores), obs=tags)

    def log_probs(self, data: TagData) -> Tensor:
        """(number of sentences,) log p(tags | words), nats."""
        bucket = data.bucket(torch.arange(data.num_sentences))
        return self.paths(bucket, self.scores(data)).log_prob(bucket.take(data.tags))


class CRFTagger(FeatureTagger):
    """A linear-chain CRF over features of words, trained by maximum likelihood with a Gaussian prior.

        log p(tags | words) = sum_t (sum_f weight[f, tag_t] + transition[tag_{t-1}, tag_t]) - log Z

    The gradient is that of the log-likelihood: observed counts less expected ones, by forward-backward.

    Args:
        templates: of features; see :class:`~pplseq.models.taggers.features.TagFeatures`.
        min_count: how often a feature must occur in training.
        columns: real-valued features beside them (token embeddings, posteriors of states); see
            :mod:`pplseq.models.taggers.columns`. After loading, set the attribute again.
        column_scale: standard deviation that dense columns are brought to, a factor of sparse ones: the smaller, the more the
            penalty holds their weights back.
        pairs: "observed": only pairs of feature and tag seen in training have a weight, as in crfsuite; or "all".
        settings: penalty and optimiser.
        dtype: in which features are summed up; all else is float64.
        decode: "viterbi" or "posterior".

    Source: Lafferty, McCallum and Pereira, Conditional random fields (2001); Okazaki, CRFsuite (2007), whose objective this is.
    """

    name = "crf-tagger"
    weights_class = LinearChainCRF

    def chain(self, sentences: Sequence[Words]):
        data = self.encode(sentences)
        with torch.no_grad():
            bucket = data.bucket(torch.arange(len(sentences)))
            return self.weights.paths(bucket, self.weights.scores(data)).chain()
