"""Which kind of chain a transition makes, and chains that see something else."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor

from pplseq.distributions.block import BlockTransition
from pplseq.distributions.dense import DenseTransition, StepTransition
from pplseq.distributions.hierarchical import HierarchicalTransition
from pplseq.distributions.product import ProductTransition
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.state import Emission, Transition
from pplseq.distributions.topics import TopicTransition
from pplseq.distributions.variable_order import VariableOrderTransition
from pplseq.infer.discrete import long
from pplseq.infer.discrete.block import BlockChain
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.discrete.contexts import ContextChain, SecondOrderChain, VariableOrderChain
from pplseq.infer.discrete.dense import DenseChain, FactorChain
from pplseq.infer.discrete.gap import GapChain
from pplseq.infer.discrete.hierarchical import HierarchicalChain
from pplseq.infer.discrete.product import ProductChain
from pplseq.infer.discrete.topics import TopicChain
from pplseq.kernels.parallel import time_scan


def build_chain(transition: Transition, emission: Emission, obs: Tensor, **options) -> Chain:
    """The chain of the family that ``transition`` belongs to; arguments as for :class:`Chain`.

    Raises:
        TypeError: for a transition of no family, and inside ``parallel_in_time`` for one without full matrices.
    """
    if time_scan.ACTIVE.get() and not isinstance(transition, (DenseTransition, StepTransition)):
        raise TypeError(
            "parallel_in_time: only chains with full matrices (DenseTransition, StepTransition) go parallel in time, got "
            f"{type(transition).__name__}; leave it out for this model"
        )
    kinds = set()
    for value in (*getattr(transition, "__dict__", {}).values(), *getattr(emission, "__dict__", {}).values()):
        if isinstance(value, Tensor) and value.is_floating_point():
            kinds.add(value.dtype)
    if len(kinds) > 1:
        kind = functools.reduce(torch.promote_types, kinds)
        transition, emission = _of_type(transition, kind), _of_type(emission, kind)
    if isinstance(transition, SecondOrderTransition):
        return SecondOrderChain(transition, emission, obs, **options)
    if isinstance(transition, VariableOrderTransition):
        return VariableOrderChain(transition, emission, obs, **options)
    if isinstance(transition, ProductTransition):
        return ProductChain(transition, emission, obs, **options)
    if isinstance(transition, BlockTransition):
        kind = BlockChain
        if isinstance(transition, HierarchicalTransition):
            kind = TopicChain if isinstance(transition, TopicTransition) else HierarchicalChain
        chain = kind(transition, emission, obs, **options)
        return GapChain(transition, emission, obs, **options) if chain.has_gaps else chain
    if long.applies(transition, emission, obs, options):
        return long.LongDenseChain(transition, emission, obs, **options)
    if isinstance(transition, (DenseTransition, StepTransition)):
        return DenseChain(transition, emission, obs, **options)
    raise TypeError(
        "transition must be a DenseTransition, StepTransition, ProductTransition, VariableOrderTransition, "
        f"SecondOrderTransition or BlockTransition, got {type(transition).__name__}"
    )


def _of_type(spec: Any, kind: torch.dtype) -> Any:
    """A transition or an emission, and the emission of its resets, in another precision."""
    found = copy.copy(spec)
    for name, value in vars(spec).items():
        if isinstance(value, Tensor) and value.is_floating_point():
            vars(found)[name] = value.to(kind)
        elif isinstance(value, Emission):
            vars(found)[name] = _of_type(value, kind)
    return found


def with_evidence(chain: Chain, emit: Tensor) -> Chain:
    """The chain's paths where what is seen has other log-likelihoods, emit (T, *B, K): another chain, as one keeps its answers.
    Impossible rows are no error.

    Args:
        chain: of states that are in memory as a whole, a step at a time.
    """
    factors = chain.factors._replace(emit=emit)
    if not isinstance(chain, ContextChain):  # whose matrix is a table of contexts
        return FactorChain(factors, chain._ids(), check=False, missing="a chain whose evidence was changed has no specs")
    masks = {"valid": chain.valid, "seen": chain.seen, "states": chain.states, "start": chain.start}
    found = type(chain)(chain.transition, chain.emission, chain.obs, check=False, **masks)
    found.factors = factors
    return found
