"""A short way from parameters and a batch to its chain: of rows without gaps, under an HMM as it is.

What :meth:`~pplseq.models.base.SequenceModel.posterior` does for every program (modes, masks, checks of what was checked) costs
several times the answer where rows are few and short. The chain is the same; the readable twin is that method.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.distributions.state import Emission
from pplseq.infer.discrete.dense import DenseChain
from pplseq.infer.fit.em import Batch

# in all emissions; beside more of them the long way costs nothing, and very long rows have a chain of their own
MOST_NUMBERS = 1 << 20


class PointSpecs(NamedTuple):
    """An HMM's specs at its parameters. words: (V, Z) log-probabilities of words, or None."""

    transition: DenseTransition
    emission: Emission
    words: Tensor | None

    @classmethod
    def of(cls, transition: DenseTransition, emission: Emission) -> PointSpecs:
        """Of specs without gradients."""
        has_words = isinstance(emission, CategoricalEmission)
        return cls(transition, emission, emission.log_probs.detach().T.contiguous() if has_words else None)


def chain_of_whole_rows(specs: PointSpecs, batch: Batch) -> DenseChain | None:
    """The chain of a batch that was checked, all of whose numbers are there and nothing beside them; else None."""
    x = batch.x
    if x.device.type != "cpu" or not all(value is None for value in batch[1:]):
        return None
    if x.shape[0] * x.shape[1] * specs.transition.num_states > MOST_NUMBERS:
        return None
    if x.is_floating_point():
        if bool(x.isnan().any()):
            return None
        obs = x.transpose(0, 1)
        return DenseChain.of_whole_rows(specs.transition, specs.emission, obs, specs.emission.log_likelihood(obs))
    if specs.words is None or bool((x < 0).any()):
        return None
    obs = x.T
    emit = specs.words.index_select(0, obs.reshape(-1)).reshape(*obs.shape, specs.words.shape[-1])
    return DenseChain.of_whole_rows(specs.transition, specs.emission, obs, emit)
