"""A short way from parameters and a batch to its chain: of rows of any lengths, under an HMM as it is.

What :meth:`~pplseq.models.base.SequenceModel.posterior` does for every program (modes, masks, checks of what was checked) costs
several times the answer where rows are few and short. The chain is the same; the readable twin is that method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.distributions.state import Emission, Transition
from pplseq.infer.discrete import long
from pplseq.infer.discrete.dense import DenseChain
from pplseq.infer.discrete.long import replaced, tensors_of
from pplseq.infer.discrete.table import LongTableChain, TableChain
from pplseq.infer.fit.em import Batch, Statistics
from pplseq.kernels import compiled, twice
from pplseq.kernels.chain import call, statistics
from pplseq.kernels.parallel import time_scan
from pplseq.models.parts.emissions import CategoricalTable, GaussianTable
from pplseq.models.remembered import Remembered

# in all emissions; beside more of them the long way costs nothing, and very long rows have a chain of their own
MOST_NUMBERS = 1 << 20


class PointSpecs(NamedTuple):
    """An HMM's specs at its parameters. words: (V, Z) log-probabilities of words, or None.

    chain, word_tables: the same as tables for the loops over rows, None where these do not do.
    """

    transition: Any  # a DenseTransition, or a ProductTransition, which no loop is for
    emission: Emission
    words: Tensor | None
    chain: call.Chain | None = None
    word_tables: call.Emissions | None = None

    @classmethod
    def of(cls, transition: Transition, emission: Emission, parameters: Iterable[Tensor]) -> PointSpecs:
        """Of specs, whose words are there without gradients only; then without the memory of the parameters they came from,
        which may change when it is theirs no more."""
        if torch.is_grad_enabled():
            return cls(transition, emission, None)
        if not twice.derivatives_wanted():  # else nothing is remembered, and tensors may have no memory of their own
            own = {part.untyped_storage().data_ptr() for part in parameters if part.device.type == "cpu"}
            found = [(path, part) for path, part in tensors_of(emission) if part.device.type == "cpu"]
            shared = {path: part for path, part in found if part.untyped_storage().data_ptr() in own}
            emission = replaced(emission, {path: part.detach().clone() for path, part in shared.items()})
        if not isinstance(emission, CategoricalEmission):
            return cls(transition, emission, None, _chain_of(transition))
        words, chain = emission.log_probs.detach().T, _chain_of(transition)
        if words.numel() > MOST_NUMBERS:
            return cls(transition, emission, words)
        words = torch.cat([words, torch.zeros_like(words[:1])])
        found = None if chain is None or not call.applies(words.shape[-1], words) else call.emissions_of(words)
        return cls(transition, emission, words[:-1], None if found is None else chain, found)


def _chain_of(transition: Transition) -> call.Chain | None:
    if not isinstance(transition, DenseTransition):
        return None
    initial, matrix = transition.initial.detach(), transition.matrix.detach()
    if twice.derivatives_wanted() or not call.applies(len(matrix), initial, matrix):
        return None
    return call.chain_of(initial, matrix)


def are_rows(batch: Batch) -> bool:
    """Whether a batch that was checked is observations and lengths on the CPU, and nothing beside them."""
    return batch.x.device.type == "cpu" and batch.x.numel() > 0 and all(value is None for value in batch[2:])


def are_few(x: Tensor, num_states: int) -> bool:
    """Whether observations (B, T[, D]) have few likelihoods."""
    return x.shape[0] * x.shape[1] * num_states <= MOST_NUMBERS


def may_be_words(x: Any) -> bool:
    """Whether x is a tensor as of (B, T) words on the CPU; they may be no words."""
    return type(x) is Tensor and x.dtype is torch.int64 and x.dim() == 2 and x.is_cpu and x.numel() > 0


def parameters_of_loops(model: nn.Module, remembered: Remembered) -> statistics.Words | statistics.Vectors | None:
    """Parameters of an HMM without ties, if there may be loops for them."""
    if time_scan.ACTIVE.get() or twice.derivatives_wanted() or remembered.plain(model) is None:
        return None
    # not by name, which would tell Pyro that they are used
    own: Any = model._parameters
    emissions = model._modules["emissions"]
    of_emissions: Any = None if emissions is None else emissions._parameters
    if isinstance(emissions, CategoricalTable):
        return statistics.Words(own["initial_logits"], own["transition_logits"], of_emissions["logits"])
    if isinstance(emissions, GaussianTable) and "log_scale" in of_emissions:
        return statistics.Vectors(
            own["initial_logits"], own["transition_logits"], of_emissions["loc"], of_emissions["log_scale"]
        )
    return None


def expectation_of_rows(model: nn.Module, remembered: Remembered, batch: Batch) -> tuple[Statistics, float] | None:
    """Expected statistics of a batch for which :func:`are_rows` holds, whose words need not have been checked, and log p(x) of
    all of it; None where the loops do not do."""
    parameters, x = parameters_of_loops(model, remembered), batch.x
    if parameters is None or not statistics.applies(parameters, x):
        return None
    if isinstance(parameters, statistics.Vectors):  # moments about the origin, as the table takes them
        emissions: Any = model._modules["emissions"]
        x, parameters = x - emissions.origin, parameters._replace(loc=parameters.loc.detach() - emissions.origin)
    return statistics.expected_statistics(parameters, x, batch.lengths)


def maximize_words(model: nn.Module, remembered: Remembered, counts: Statistics) -> bool:
    """The M-step of small tables without priors; False where that of all models is for them."""
    parameters = parameters_of_loops(model, remembered)
    if not isinstance(parameters, statistics.Words):
        return False
    tables_ = [(logits, statistics.small_modes(counts[name], logits)) for name, logits in parameters._asdict().items()]
    if any(found is None for _, found in tables_):
        return False
    for logits, found in tables_:
        logits.copy_(found)
    return True


def may_be_whole(x: Any) -> bool:
    """Whether gradients in parameters alone are wanted, of data that are a tensor."""
    if not isinstance(x, Tensor) or x.requires_grad or not torch.is_grad_enabled() or twice.derivatives_wanted():
        return False
    twice.refuse_jit()
    return True


def log_prob_of_rows(model: nn.Module, remembered: Remembered, batch: Batch) -> Tensor | None:
    """() log p(x) of such rows, differentiable in the parameters; None where the loops do not do."""
    parameters = parameters_of_loops(model, remembered)
    if parameters is None or not statistics.applies(parameters, batch.x):
        return None
    return statistics.log_prob(parameters, batch.x, batch.lengths)


def chain_of_words(specs: PointSpecs, x: Any) -> TableChain | None:
    """The chain of words x as they come, if they are a tensor (B, T) of known words without gaps, and few; else None."""
    known, chain = specs.word_tables, specs.chain
    if known is None or chain is None or time_scan.ACTIVE.get() or not compiled.available():
        return None
    if not may_be_words(x) or not are_few(x, specs.transition.num_states) or x.shape[1] < 2:  # a column could be one sequence
        return None
    rows = call.Rows(x.contiguous().numpy())
    if not call.are_words(rows, len(known.weights) - 1, gaps=False):
        return None
    return TableChain(specs.transition, specs.emission, x.T, None, None, chain, rows, known)


def chain_of_rows(
    specs: PointSpecs, batch: Batch, observed: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> DenseChain | None:
    """The chain of a batch for which :func:`are_rows` holds, from a model's ``observed``; None of many vectors, beside which
    the long way costs nothing, and of words where they are many and there are no loops for them."""
    x, lengths, valid, seen = *batch[:2], None, None
    few, has_loops = are_few(x, specs.transition.num_states), not time_scan.ACTIVE.get() and compiled.available()
    chain, words = (specs.chain, specs.word_tables) if has_loops else (None, None)
    if not few and words is None:
        return None
    obs, index = x, None if specs.words is None else compiled.array(x)
    if bool((x.isnan() if x.is_floating_point() else x < 0).any()):
        obs, seen = observed(x)
    if lengths is not None:
        valid = torch.arange(x.shape[1]).unsqueeze(-1) < lengths
        valid = None if bool(valid.all()) else valid
        seen = seen if seen is None or valid is None else seen | ~valid.T
    seen = None if seen is None or bool(seen.all()) else seen.T
    given = specs.transition, specs.emission, obs.transpose(0, 1), valid, seen
    if chain is not None and (specs.words is None or words is not None):
        if index is None:  # every step has a row of its own
            index = np.arange(x.shape[0] * x.shape[1]).reshape(x.shape[1], -1).T.copy()
        rows = call.Rows(index, *([] if lengths is None or valid is None else [compiled.array(lengths.long())]))
        kind = TableChain if few or not long.applies(*given[:3], {}) else LongTableChain
        return kind(*given, chain, rows, words)
    if specs.words is None or valid is not None or seen is not None:
        return DenseChain.of_rows(*given)
    emit = specs.words.index_select(0, given[2].reshape(-1)).reshape(*given[2].shape, specs.words.shape[-1])
    return DenseChain.of_rows(*given, emit)
