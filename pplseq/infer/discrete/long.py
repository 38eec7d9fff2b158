"""Chains with one full matrix and so many steps that their emissions are computed some steps at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pplseq.distributions.dense import DenseTransition
from pplseq.distributions.state import Emission, Transition
from pplseq.infer.discrete.chain import query
from pplseq.infer.discrete.dense import DenseChain
from pplseq.infer.discrete.results import ExpectedCounts
from pplseq.kernels import long_scan, scan, twice
from pplseq.kernels.chain import piece_call
from pplseq.kernels.parallel import time_scan
from pplseq.threads import once

LONG = 1 << 22  # numbers in all emissions, 32 MB, from which on they are not kept

Path = tuple[str, ...]  # names of attributes and keys, one inside of the other


def applies(transition: Transition, emission: Emission, obs: Tensor, options: Mapping[str, Any]) -> bool:
    """Whether :class:`LongDenseChain` is right for a chain, and worth it."""
    if not isinstance(transition, DenseTransition) or transition.batch_shape or emission.batch_shape or twice.transformed():
        return False
    if time_scan.ACTIVE.get():
        return False
    batch = obs.shape[1 : obs.dim() - len(emission.event_shape)]
    if len(obs) * batch.numel() * transition.num_states <= LONG or options.get("emission_inputs") is not None:
        return False
    if len(obs) < 2 or not piece_call.gains(transition.matrix, torch.empty(1, *batch, transition.num_states)):
        return False
    # emissions must depend on the tensors that were found, and on no others
    tensors = {path: value.detach() for path, value in tensors_of(emission) if value.requires_grad}
    with torch.enable_grad():
        return not replaced(emission, tensors).log_likelihood(torch.zeros_like(obs[:1])).requires_grad


def tensors_of(emission: Emission) -> Iterator[tuple[Path, Tensor]]:
    """The tensors among an emission's attributes, those of emissions and mappings in it included."""
    yield from _tensors_in(vars(emission), ())


def _tensors_in(values: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Tensor]]:
    for name, value in values.items():
        if isinstance(value, Tensor):
            yield (*path, name), value
        elif isinstance(value, Emission):
            yield from _tensors_in(vars(value), (*path, name))
        elif isinstance(value, Mapping):
            yield from _tensors_in(value, (*path, name))


def replaced(emission: Emission, tensors: Mapping[Path, Tensor]) -> Emission:
    """The same emission with other tensors in those places."""
    for path, value in tensors.items():
        emission = _with(emission, path, value)
    return emission


def _with(whole, path: Path, value: Tensor):
    name, *rest = path
    if isinstance(whole, Mapping):
        return {**whole, name: _with(whole[name], tuple(rest), value) if rest else value}
    changed = copy.copy(whole)
    vars(changed)[name] = _with(vars(whole)[name], tuple(rest), value) if rest else value
    return changed


class LongForward(scan.Forward):
    """Of which the beliefs at all steps are computed when they are asked for, by the chain as a whole."""

    def __init__(self, chain: LongDenseChain, log_prob: Tensor, found: long_scan.Filtered, steps: Tensor):
        self.chain, self.found, self.log_prob, self.step_log_prob = chain, found, log_prob, steps
        self.in_logs, self.kept = True, None

    @once
    def messages(self) -> Tensor:
        with torch.no_grad():
            return scan.chain_log_prob(*self.chain.factors).filtered

    @property
    def last(self) -> Tensor:
        return self.found.ends[-1].to(self.log_prob.dtype).reshape(*self.log_prob.shape, -1)


class LongDenseChain(DenseChain):
    """A :class:`DenseChain` whose likelihood, its gradient, posteriors of states, expected counts and best path need memory for
    their results and a few megabytes beside them; other queries make the emissions of all steps."""

    _tables = None  # pyright: ignore[reportAssignmentType]  (they would be of all steps)

    @once
    def _parts(self) -> tuple[long_scan.LongChain, Tensor, Tensor, list[Tensor]]:
        """The chain, p(z_1) (N, K), the matrix, and the tensors that emissions depend on."""
        found = {path: value for path, value in tensors_of(self.emission) if value.requires_grad and torch.is_grad_enabled()}
        num_rows, num_states = self.batch_shape.numel(), self.transition.num_states

        def emit(tensors: Sequence[Tensor], begin: int, end: int) -> Tensor:
            emission = replaced(self.emission, dict(zip(found, tensors, strict=True)))
            return self._emit(emission, slice(begin, end)).reshape(end - begin, num_rows, num_states)

        lengths = torch.full((num_rows,), self.num_steps)
        if self.valid is not None:
            lengths = self.valid.reshape(self.num_steps, -1).sum(0)
        chain = long_scan.LongChain(emit, self.num_steps, num_states, lengths.numpy())
        init = self._initial().expand(*self.batch_shape, num_states).reshape(-1, num_states)
        return chain, init, self._matrix(None), list(found.values())

    def prepare(self) -> None:
        _ = self._parts

    @once
    def _forward(self) -> scan.Forward:
        log_prob, found, steps = long_scan.LongLogProb.apply(*self._parts[:3], *self._parts[3])
        return LongForward(self, log_prob.reshape(self.batch_shape), found, steps.reshape(-1, *self.batch_shape))

    def _smoothed(self, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """p(z_t | x) (T, *B, K), and the sum of all pairs (K, K)."""
        chain, _, log, tensors = self._parts
        forward: Any = self._possible()
        weight = torch.ones(self.batch_shape.numel(), dtype=torch.float64)
        probs = torch.empty(self.num_steps, len(weight), chain.num_states, dtype=forward.log_prob.dtype)
        total = torch.zeros_like(log) if pairs else None
        kept = [tensor.detach() for tensor in tensors]
        for part in long_scan.backward_pass(chain, forward.found, log, kept, weight, pairs):
            probs[part.begin : part.end] = part.states
            if total is not None and part.pairs is not None:
                total += part.pairs
        return probs.reshape(-1, *self.batch_shape, chain.num_states), total

    def _state_probs(self):
        return self._smoothed(pairs=False)[0]

    @query
    def expected_counts(self) -> ExpectedCounts:
        probs, transition = self._smoothed(pairs=True)
        assert transition is not None, "pairs are asked for"
        num_states = probs.shape[-1]
        start = probs[0] if self.start is None else torch.zeros_like(probs[0])
        return ExpectedCounts(
            start.reshape(-1, num_states).sum(0), transition, None, probs.reshape(-1, num_states).sum(0), self._by_state(probs)
        )

    def viterbi(self):
        self.prepare()  # in the caller's own gradient mode
        with torch.no_grad():
            chain, init, log, tensors = self._parts
            position, log_prob = long_scan.viterbi_pass(chain, init, log, tensors)
            log_prob = log_prob.to(log.dtype).reshape(self.batch_shape)
        if self.check and bool(torch.isneginf(log_prob).any()):
            self._possible()
        if self.valid is not None:
            position = position.masked_fill_(~self.valid.reshape(position.shape), -1)
        return self._batch_first(position.reshape(-1, *self.batch_shape)), self._unflatten(log_prob)
