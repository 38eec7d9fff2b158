"""Pyro's ``DiscreteHMM`` as an observation: its likelihood by the kernels for chains.

Pyro multiplies matrices in pairs, which takes T K^3 operations a row and T K^2 numbers; a chain takes T K^2 and T K.
"""

from __future__ import annotations

import copy
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pplseq.kernels.binary.log_probs import row_log_probs
from pplseq.kernels.log_semiring import logsumexp
from pplseq.kernels.scan import chain_log_prob


class ChainDiscreteHMM(dist.DiscreteHMM):
    """A ``DiscreteHMM`` with another way to the same ``log_prob``: (*B,) nats, and its gradients of all orders."""

    @staticmethod
    def of(fn: dist.DiscreteHMM) -> ChainDiscreteHMM:
        """The same distribution; it shares everything with ``fn``."""
        found: Any = copy.copy(fn)
        found.__class__ = ChainDiscreteHMM
        return found

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        emit, valid = _emissions(self.observation_dist, value)
        pair, start = self.transition_logits, self.initial_logits
        if pair.dim() == 2:  # without a dimension of time
            pair = pair.unsqueeze(0)
        # a state before the first observation, as in Pyro
        init = logsumexp(start.unsqueeze(-1) + pair[..., 0, :, :], -2)
        num_steps, num_states = max(emit.shape[-2], pair.shape[-3]), emit.shape[-1]
        batch = torch.broadcast_shapes(emit.shape[:-2], pair.shape[:-3], init.shape[:-1])
        emit = emit.to(torch.result_type(emit, init)).expand(*batch, num_steps, num_states).movedim(-2, 0)
        shared = pair.shape[-3] == 1
        if shared:
            pair = pair.squeeze(-3)
            if pair.dim() > 2:
                pair = pair.expand(*batch, num_states, num_states)
        else:
            pair = pair[..., 1:, :, :].expand(*batch, num_steps - 1, num_states, num_states).movedim(-3, 0)
        if valid is not None:
            valid = valid.expand(*batch, num_steps).movedim(-1, 0)
        return chain_log_prob(init, pair, emit, valid, shared).log_prob


def _emissions(law: Any, value: Tensor) -> tuple[Tensor, Tensor | None]:
    """log p(value | state) (*B, T, K), 0 where masked; and which steps are not (*B, T), if they are the first ones of each row.

    Rows of a transition sum to one, so that a row may end where its observations end.
    """
    seen, inner = None, law
    if type(law) is dist.MaskedDistribution and isinstance(law._mask, Tensor):
        inner, mask = law.base_dist, law._mask.expand(law.batch_shape)
        if mask.shape[-1] == 1 or mask.stride(-1) == 0:
            seen = mask[..., 0]
    found = None
    if seen is not None or inner is law:
        found = _binary(inner, value, seen)
    if found is None:
        found = law.log_prob(value.unsqueeze(-1 - law.event_dim))
    if seen is not None:
        seen = seen.expand(found.shape[:-1])
        if bool((~seen[..., :-1] & seen[..., 1:]).any()):
            seen = None
    return found, seen


def _binary(law: Any, value: Tensor, seen: Tensor | None) -> Tensor | None:
    """(*B, T, K) for vectors of zeros and ones with a logit for every row, step and state; None for anything else."""
    if type(law) is not dist.Independent or law.reinterpreted_batch_ndims != 1 or type(law.base_dist) is not dist.Bernoulli:
        return None
    own = law.base_dist.__dict__
    if "probs" in own or own["logits"].dim() < 3 or own["logits"].shape[:-2] != value.shape[:-1]:
        return None
    if not bool(((value == 0) | (value == 1)).all()):
        return None
    logits = own["logits"]
    num_states, num_cells = logits.shape[-2:]
    where = None if seen is None else seen.expand(logits.shape[:-2]).reshape(1, -1)
    cells = value.reshape(1, -1, num_cells) != 0
    found = row_log_probs(logits.reshape(1, 1, -1, num_states, num_cells), cells, where)
    return found.reshape(logits.shape[:-1])
