"""Chains with full matrices: one for all steps, or one a step."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.distributions.dense import DenseTransition, StepTransition
from pplseq.distributions.state import Belief, Emission, broadcast_shapes
from pplseq.infer.discrete.chain import Chain, query
from pplseq.infer.discrete.results import ExpectedCounts, Factors, StateMarginals
from pplseq.kernels import scan, twice
from pplseq.kernels.chain import call
from pplseq.kernels.compiled import array
from pplseq.kernels.log_semiring import log_matmul
from pplseq.kernels.parallel import time_scan
from pplseq.threads import once

MOST_NUMBERS = 1 << 20  # in all emissions; of more of them the scans keep less


class Tables(NamedTuple):
    """A chain under one matrix as :mod:`pplseq.kernels.chain` takes it; batch: what its rows are in all."""

    chain: call.Chain
    emissions: call.Emissions
    rows: call.Rows
    batch: torch.Size


TOO_FAR = "probabilities of a row are too far apart for it"


class DenseChain(Chain):
    """Full matrices: one for all steps, or one a step.

    Without gradients, questions that are asked most go through the loops of :mod:`pplseq.kernels.chain` where the matrix is one
    and these do; the scans are their readable twins, and the way that is left.

    Attributes:
        in_parallel: made inside :func:`~pplseq.kernels.parallel.time_scan.parallel_in_time`.
    """

    _found: call.Smoothed | None = None
    _has_pairs = False  # what was found
    _likelihoods: np.ndarray | None = None
    _fails = False  # whether these loops do not do

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.in_parallel = time_scan.ACTIVE.get()

    @once
    def _tables(self) -> Tables | None:
        """What the loops take; None where they do not do."""
        f = self.factors
        parts, num_states = (f.init, f.pair, f.emit), f.emit.shape[-1]
        if self.in_parallel or not f.shared or f.pair.dim() > 2 or f.restart is not None or f.emit.numel() > MOST_NUMBERS:
            return None
        if any(part.requires_grad for part in parts) or twice.derivatives_wanted() or not call.applies(num_states, *parts):
            return None
        batch, lengths = f.emit.shape[1:-1], () if f.valid is None else (array(f.valid.reshape(len(f.valid), -1).sum(0)),)
        chain = call.chain_of(f.init if f.init.dim() == 1 else f.init.expand(*batch, num_states), f.pair)
        emissions = None if chain is None else call.emissions_of(f.emit.reshape(-1, num_states))
        if chain is None or emissions is None:
            return None
        index = np.arange(len(f.emit) * batch.numel()).reshape(len(f.emit), -1).T.copy()
        return Tables(chain, emissions, call.Rows(index, *lengths), batch)

    def _pays(self, loop: str) -> bool:
        return call.pays(loop, (self.batch_shape.numel(), self.num_steps), self.transition.num_states)

    def _tables_for(self, loop: str) -> Tables | None:
        if not self._pays(loop):
            return None
        if self._tables is None:
            call.declined(loop, "it is for one matrix of all steps, without gradients")
        return self._tables

    def _row_log_probs(self) -> np.ndarray | None:
        """(N,) log p(x); None where these loops do not do."""
        if self._likelihoods is None and not self._fails:
            tables = self._tables_for("likelihood")
            self._likelihoods = None if tables is None else call.log_prob(*tables[:3])
            self._fails = self._likelihoods is None
            if tables is not None and self._fails:
                call.declined("likelihood", TOO_FAR)
        return self._likelihoods

    def _posterior(self, pairs: bool) -> call.Smoothed | None:
        """Posteriors, with expected transitions or without; None where these loops do not do."""
        if self._found is None or pairs and not self._has_pairs:
            tables = None if self._fails else self._tables_for("smooth")
            if tables is None:
                return None
            self._found = call.smooth(*tables[:3], pairs=pairs)
            self._has_pairs, self._fails = pairs, self._found is None
            if self._fails:
                call.declined("smooth", TOO_FAR)
            self._likelihoods = None if self._found is None else self._found.log_prob
        return self._found

    def _shaped(self, value: np.ndarray) -> Tensor:
        """Of rows (N, ...) as of the batch (*B, ...)."""
        tables = self._tables
        assert tables is not None, "from which they come"
        return torch.from_numpy(value).reshape(*tables.batch, *value.shape[1:])

    def log_prob(self) -> Tensor:
        found = self._row_log_probs()
        return super().log_prob() if found is None else self._shaped(found)

    def total_log_prob(self) -> float:
        """log p(x) of all rows together."""
        found = self._row_log_probs()
        return float(super().log_prob().detach().sum(dtype=torch.float64) if found is None else found.sum())

    def marginals(self) -> StateMarginals:
        found = self._posterior(pairs=False)
        return super().marginals() if found is None else StateMarginals(None, self._shaped(found.posterior))

    def expected_counts(self) -> ExpectedCounts:
        found = self._posterior(pairs=True)
        if found is None:
            return super().expected_counts()
        starts, pairs, posterior = map(torch.from_numpy, (found.starts.sum(0), found.pairs[0], found.posterior))
        starts = starts if self.start is None else torch.zeros_like(starts)  # a carried belief is no start
        return ExpectedCounts(starts, pairs, None, posterior.sum((0, 1)), StateMarginals(None, self._shaped(found.posterior)))

    @once
    def _forward(self) -> scan.Forward:
        if not self.in_parallel:
            return scan.chain_log_prob(*self.factors)
        f = self.factors
        found = time_scan.forward_pass(f.init, f.pair, f.emit, f.valid, f.shared)
        return scan.Forward(found.log_prob, found.filtered.detach(), found.steps.detach())

    def _state_probs(self):
        if not self.in_parallel:
            return super()._state_probs()
        f = self.factors
        with torch.enable_grad():  # posteriors are the derivatives of log p(x) in the emissions' logarithms
            emit = f.emit.detach().requires_grad_()
            found = time_scan.forward_pass(f.init.detach(), f.pair.detach(), emit, f.valid, f.shared)
            return torch.autograd.grad(found.log_prob.sum(), emit)[0]

    def _best_path(self):
        if not self.in_parallel:
            return super()._best_path()
        f = self.factors
        position, log_prob = time_scan.viterbi_pass(f.init, f.pair, f.emit, f.valid, f.shared)
        return self._paths(position), log_prob

    def _begin(
        self, transition: DenseTransition | StepTransition, emission: Emission, obs: Tensor, valid: Tensor | None = None,
        seen: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Attributes of a chain of observations (T, B[, D]) that were checked; masks (T, B) None where they say nothing."""
        self.transition, self.emission, self.obs, self.check = transition, emission, obs, True
        self.valid, self.seen = valid, seen
        self.states = self.start = self.inputs = self.emission_inputs = None
        self._conditional, self.is_whole, self.in_parallel = False, seen is None, time_scan.ACTIVE.get()
        self.batch_shape = self.full_batch = obs.shape[1:2]

    @classmethod
    def of_rows(
        cls, transition: DenseTransition, emission: Emission, obs: Tensor, valid: Tensor | None, seen: Tensor | None,
        emit: Tensor | None = None,
    ) -> DenseChain:  # fmt: skip
        """The chain of what :meth:`_begin` takes; emit: (T, B, K) log-likelihoods of full rows without gaps, where they are
        known."""
        chain = cls.__new__(cls)
        chain._begin(transition, emission, obs, valid, seen)
        if emit is not None:
            chain.factors = Factors(transition.initial, transition.matrix, emit, None, shared=True)
        return chain

    @classmethod
    def of_moving_rows(
        cls, transition: StepTransition, emission: Emission, obs: Tensor, inputs: Tensor, factors: Factors,
        start: Belief | None = None,
    ) -> DenseChain:  # fmt: skip
        """The chain of rows that are full and have no gaps, from its factors too; inputs: (T, B[, U]) of the transition."""
        chain = cls.__new__(cls)
        chain._begin(transition, emission, obs)
        chain.inputs, chain.start, chain.factors = inputs, start, factors
        return chain

    def _aligned(self, value: Tensor) -> Tensor:
        """(T, *B, ...) with room between T and B for a batch of parameter sets."""
        dims = max(len(self.transition.batch_shape), len(self.emission.batch_shape)) - len(self.batch_shape)
        return value if dims <= 0 else value.reshape(len(value), *(1,) * dims, *value.shape[1:])

    def _matrix(self, inputs: Tensor | None) -> Tensor:
        if isinstance(self.transition, StepTransition):
            return self.transition.matrices(inputs)
        assert isinstance(self.transition, DenseTransition), "one matrix, or one a step"
        return self.transition.matrix

    def _predict(self, belief, inputs):
        return log_matmul(belief.dense(self.transition.num_states).unsqueeze(-2), self._matrix(inputs)).squeeze(-2)

    @query
    def predicted_states(self) -> StateMarginals:
        """p(z_t | x_1..x_{t-1}), (*B, T, Z)."""
        f, filtered = self.factors, self._possible().filtered
        first = f.init.expand(filtered.shape[1:]).unsqueeze(0)
        probs = torch.cat([first, self._moved(filtered[:-1])]).exp()
        return self._by_state(probs if f.valid is None else probs * f.valid.unsqueeze(-1))

    def _moved(self, filtered: Tensor) -> Tensor:
        """(T-1, *B, Z) log p(z_{t+1} | x_1..x_t)."""
        return log_matmul(filtered.unsqueeze(-2), self.factors.pair).squeeze(-2)

    def _emit(self, emission: Emission | None = None, steps: slice = slice(None)) -> Tensor:
        """(T, *B, Z) log p(x_t | z_t) of some steps; under another emission, where one is given."""
        emission, obs = self.emission if emission is None else emission, self._aligned(self.obs[steps])
        seen, states, used = (
            None if value is None else self._aligned(value[steps]) for value in (self.seen, self.states, self.valid)
        )
        if seen is not None:
            used = seen if used is None else seen & used
        if used is not None:
            obs = _filled(obs, used, emission)
        given = () if self.emission_inputs is None else (self._aligned(self.emission_inputs[steps]),)
        emit = emission.log_likelihood(obs, *given)
        if used is not None:
            emit = torch.where(used.unsqueeze(-1), emit, 0.0)
        if states is not None:
            numbers = getattr(self.transition, "regime_of", None)
            numbers = torch.arange(emit.shape[-1], device=emit.device) if numbers is None else numbers
            forbidden = (states.unsqueeze(-1) >= 0) & (states.unsqueeze(-1) != numbers)
            if self.valid is not None:
                forbidden &= self._aligned(self.valid[steps]).unsqueeze(-1)
            emit = emit.masked_fill(forbidden, -torch.inf)
        return emit

    def _initial(self, first: Tensor | None = None) -> Tensor:
        """(*B, Z) log p(z_1), or what the carried belief says of it, given the first inputs."""
        if self.start is not None:
            return self._predict(self.start, first)
        transition: Any = self.transition
        return transition.initial_log_prob(*([first] if isinstance(transition, StepTransition) else []))

    def _lower(self):
        transition, emit = self.transition, self._emit()
        inputs, valid = (None if value is None else self._aligned(value) for value in (self.inputs, self.valid))
        per_step = isinstance(transition, StepTransition)
        init = self._initial(None if inputs is None else inputs[0])
        batch = broadcast_shapes(emit.shape[1:-1], transition.batch_shape, init.shape[:-1])
        num_states = transition.num_states
        emit = emit.expand(emit.shape[0], *batch, num_states)
        valid = None if valid is None else valid.expand(self.num_steps, *batch)
        if not per_step:
            return Factors(init, self._matrix(None), emit, valid, shared=True)
        if self.num_steps == 1:
            pair = emit.new_zeros(0, *batch, num_states, num_states)
        else:
            pair = transition.matrices(None if inputs is None else inputs[1:])
            pair = pair.expand(self.num_steps - 1, *batch, num_states, num_states)
        kind = functools.reduce(torch.promote_types, (init.dtype, pair.dtype, emit.dtype))  # of functions' tables, too
        return Factors(init.to(kind), pair.to(kind), emit.to(kind), valid)


def _filled(obs: Tensor, used: Tensor, emission: Emission) -> Tensor:
    """Observations (T, *B, ...) with the first that is used (T, *B) wherever one is not: what stands there, NaN or a number
    outside of the support, would reach the gradient from under its mask."""
    event = tuple(emission.event_shape)
    shape = broadcast_shapes(used.shape, obs.shape[: obs.dim() - len(event)])
    flat = used.expand(shape).flatten()
    first = obs.expand(*shape, *event).flatten(0, len(shape) - 1).index_select(0, flat.int().argmax().reshape(1))[0]
    harmless = torch.where(flat.any(), first, emission.harmless().to(obs))
    return torch.where(used[(...,) + (None,) * len(event)], obs, harmless)


class FactorChain(Chain):
    """A chain given by its factors alone, without specs; they need not be probabilities: :meth:`log_prob` is the log of their
    sum over all paths, and every other answer is about the distribution of paths that is proportional to their product.

    Args:
        factors: the chain in numbers. ids: (T, *B, K) what its positions are called, or None. check: as for :class:`Chain`.
        missing: why there are no specs, for who asks what needs them.
    """

    def __init__(self, factors: Factors, ids: Tensor | None = None, *, check: bool = True, missing: str):
        self.factors, self.ids, self.check, self.missing = factors, ids, check, missing
        self.valid, self.start, self.seen, self.states, self.inputs = factors.valid, None, None, None, None
        self.emission_inputs = None
        self.obs = torch.zeros(factors.emit.shape[:-1])
        self.batch_shape = self.full_batch = factors.emit.shape[1:-1]

    def _ids(self):
        return self.ids

    def filtered(self):
        belief = super().filtered()
        if self.ids is None:
            return belief
        last = self.ids[-1]
        if self.valid is not None:
            step = self.valid.sum(0).sub(1).clamp_min(0)
            last = self.ids.gather(0, step[None, ..., None].expand(1, *last.shape)).squeeze(0)
        return belief._replace(ids=last)

    def _no_spec(self, *args, **kwargs):
        raise TypeError(f"{self.missing}; marginals(), pair_marginals(), viterbi(), k_best() and sample() are there")

    next = next_after = missing_words = sample_words = _no_spec
