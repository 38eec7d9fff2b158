"""A short way from an input-output HMM and a batch to its chain: of rows without gaps, whose transitions alone see inputs.

What :meth:`~pplseq.models.base.SequenceModel.posterior` does for every program costs more than the answer where rows are few
and short. The chain is the same; the readable twin is that method.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pplseq.distributions.dense import StepTransition
from pplseq.distributions.state import Belief
from pplseq.infer.discrete.dense import DenseChain
from pplseq.infer.discrete.results import Factors
from pplseq.infer.fit.em import Batch
from pplseq.kernels import twice

# what leads from parameters and observations to a chain; a model that has its own way of any of it takes the long way
WAYS = frozenset(
    ("specs", "given", "observed", "_direct_chain", "posterior", "_draw_weights", "_as_batch", "_emission", "_told")
)
OUTPUTS = ("categorical", "bernoulli", "gaussian")  # that say by a mark alone whether they are there


def sees_inputs_alone(model: Any, batch: Batch) -> bool:
    """Whether a batch that was checked is whole, and a model as it is and its transitions see inputs, nothing else does."""
    if model.outputs not in OUTPUTS or model.initial not in ("constant", "transition") or model.feedback or model._own:
        return False
    if model.priors is not None or not WAYS.isdisjoint(vars(model)) or not model._is_one_chain or twice.derivatives_wanted():
        return False
    if model.sources["transition"] is None or any(model.sources[part] is not None for part in ("initial", "emission")):
        return False
    if any(part is not None for part in (batch.lengths, batch.states, *batch[4:])) or batch.inputs is None:
        return False
    x = batch.x
    return not bool((x.isnan() if x.is_floating_point() else x < 0).any())


@torch.no_grad()
def chain_of_batch(model: Any, batch: Batch) -> DenseChain | None:
    """The chain of a batch for which :func:`sees_inputs_alone` holds; None where the transition is one matrix after all."""
    transition, emission = model.specs()
    if not isinstance(transition, StepTransition):
        return None
    given = batch.inputs["transition"] if isinstance(batch.inputs, Mapping) else batch.inputs
    obs, inputs = batch.x.transpose(0, 1), given.transpose(0, 1)
    matrices, start = transition.matrices(inputs), transition.initial_log_prob()
    if model.initial == "transition":
        belief = start.expand(obs.shape[1], model.num_states)
        first = torch.logsumexp(belief.unsqueeze(-1) + matrices[0], -2)
        return DenseChain.of_moving_rows(
            transition, emission, obs, inputs, Factors(first, matrices[1:], emission.log_likelihood(obs), None),
            Belief(None, belief),
        )  # fmt: skip
    factors = Factors(start, matrices[1:], emission.log_likelihood(obs), None)
    return DenseChain.of_moving_rows(transition, emission, obs, inputs, factors)
