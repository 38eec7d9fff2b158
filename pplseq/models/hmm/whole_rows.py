"""A short way from parameters and a batch to its chain: of rows without gaps, under an HMM as it is.

What :meth:`~pplseq.models.base.SequenceModel.posterior` does for every program (modes, masks, checks of what was checked) costs
several times the answer where rows are few and short. The chain is the same; the readable twin is that method.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.distributions.state import Emission
from pplseq.infer.discrete import long
from pplseq.infer.discrete.dense import DenseChain
from pplseq.infer.discrete.long import replaced, tensors_of
from pplseq.infer.discrete.whole import LongWordsChain, WholeRowsChain
from pplseq.infer.fit.em import Batch, Statistics
from pplseq.kernels import compiled, twice
from pplseq.kernels.parallel import time_scan
from pplseq.kernels.whole_rows import statistics, tables
from pplseq.models.hmm.emissions import CategoricalTable, GaussianTable
from pplseq.models.remembered import Remembered

# in all emissions; beside more of them the long way costs nothing, and very long rows have a chain of their own
MOST_NUMBERS = 1 << 20


class PointSpecs(NamedTuple):
    """An HMM's specs at its parameters. words: (V, Z) log-probabilities of words, or None.

    chain, word_tables: the same as tables for the loops over whole rows, None where these do not do.
    """

    transition: DenseTransition
    emission: Emission
    words: Tensor | None
    chain: tables.Chain | None = None
    word_tables: tables.Emissions | None = None

    @classmethod
    def of(cls, transition: DenseTransition, emission: Emission, parameters: Iterable[Tensor]) -> PointSpecs:
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
        words = words.contiguous()
        found = None if chain is None or not tables.applies(words.shape[-1], words) else tables.emissions_of(words)
        return cls(transition, emission, words, None if found is None else chain, found)


def _chain_of(transition: DenseTransition) -> tables.Chain | None:
    initial, matrix = transition.initial.detach(), transition.matrix.detach()
    if twice.derivatives_wanted() or not tables.applies(len(matrix), initial, matrix):
        return None
    return tables.chain_of(initial, matrix)


def is_whole(batch: Batch, num_states: int, at_most: float = MOST_NUMBERS) -> bool:
    """Whether a batch that was checked is small, and all its numbers are there and nothing beside them."""
    x = batch.x
    if x.device.type != "cpu" or not all(value is None for value in batch[1:]):
        return False
    if not 0 < x.shape[0] * x.shape[1] * num_states <= at_most:
        return False
    return not bool((x.isnan() if x.is_floating_point() else x < 0).any())


def may_be_words(x: Any) -> bool:
    """Whether x is a tensor as of (B, T) words on the CPU; they may be no words, or gaps."""
    return type(x) is Tensor and x.dtype is torch.int64 and x.dim() == 2 and x.is_cpu and x.numel() > 0


def are_few_words(x: Any, num_states: int) -> bool:
    """:func:`may_be_words`, few enough for :func:`is_whole`."""
    return may_be_words(x) and x.numel() * num_states <= MOST_NUMBERS


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


def expectation_of_whole_rows(model: nn.Module, remembered: Remembered, x: Tensor) -> tuple[Statistics, float] | None:
    """Expected statistics of rows x that are whole, or :func:`may_be_words`, and log p(x) of all of them; None where the loops
    do not do."""
    parameters = parameters_of_loops(model, remembered)
    if parameters is None or not statistics.applies(parameters, x):
        return None
    if isinstance(parameters, statistics.Vectors):  # moments about the origin, as the table takes them
        emissions: Any = model._modules["emissions"]
        x, parameters = x - emissions.origin, parameters._replace(loc=parameters.loc.detach() - emissions.origin)
    return statistics.expected_statistics(parameters, x)


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


def log_prob_of_whole_rows(model: nn.Module, remembered: Remembered, x: Tensor) -> Tensor | None:
    """() log p(x) of such rows, differentiable in the parameters; None where the loops do not do."""
    parameters = parameters_of_loops(model, remembered)
    return statistics.log_prob(parameters, x) if parameters is not None and statistics.applies(parameters, x) else None


def chain_of_long_words(specs: PointSpecs, x: Tensor) -> WholeRowsChain | LongWordsChain | None:
    """The chain of more words x (B, T) than :func:`is_whole` takes for small; None where there are no loops for it."""
    if specs.chain is None or specs.word_tables is None or time_scan.ACTIVE.get() or not compiled.available():
        return None
    if specs.transition.num_states > tables.MOST_OF_PATHS or twice.derivatives_wanted():
        return None
    kind = LongWordsChain if long.applies(specs.transition, specs.emission, x.T, {}) else WholeRowsChain
    return kind(specs.transition, specs.emission, x.transpose(0, 1), specs.chain, specs.word_tables)


def chain_of_ready_words(specs: PointSpecs, x: Any) -> WholeRowsChain | None:
    """The chain of words x as they come, if they are a tensor (B, T) of known words without gaps, few enough for
    :func:`is_whole`; else None."""
    known, chain = specs.word_tables, specs.chain
    if known is None or chain is None or time_scan.ACTIVE.get() or not compiled.available():
        return None
    num_words, num_states = known.weights.shape
    if not are_few_words(x, num_states) or x.shape[1] < 2:  # a column could be one sequence
        return None
    index = x.contiguous().numpy()
    if not tables.are_words(index, num_words):
        return None
    return WholeRowsChain(specs.transition, specs.emission, x.transpose(0, 1), chain, known, index)


def chain_of_whole_rows(specs: PointSpecs, x: Tensor) -> DenseChain:
    """The chain of x (B, T[, D]), of a batch that is whole."""
    obs, chain = x.transpose(0, 1), specs.chain
    if chain is not None and not time_scan.ACTIVE.get() and compiled.available():
        return WholeRowsChain(specs.transition, specs.emission, obs, chain, specs.word_tables)
    if specs.words is None:
        emit = specs.emission.log_likelihood(obs)
    else:
        emit = specs.words.index_select(0, obs.reshape(-1)).reshape(*obs.shape, specs.words.shape[-1])
    return DenseChain.of_whole_rows(specs.transition, specs.emission, obs, emit)
