"""Answers of a chain that gradients flow through, answers about two chains, and smoothing with a fixed lag."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq import checks
from pplseq.infer.discrete.results import Factors, StateMarginals
from pplseq.kernels import scan
from pplseq.kernels.path_expectation import fixed_lag, path_divergence
from pplseq.threads import once


class Steps(NamedTuple):
    """A chain as tables of steps, with their graph.

    init, emit: (*B, *K) and (T, *B, *K), where *K are the ``width`` dimensions of a state: (K,), and of a chain over pairs
    (M, M). pair: (T-1, *B, *K, K), or one for all steps where ``shared``. Neighbouring states share all but one dimension.
    """

    init: Tensor
    pair: Tensor
    emit: Tensor
    shared: bool
    width: int = 1


class PathExpectations:
    """What every chain offers; each names the steps that it consists of."""

    factors: once[Factors]
    two_widths = False  # whether some steps open a block of states, and some all

    def _possible(self) -> Any:
        raise NotImplementedError

    def _ids(self) -> Tensor | None:
        raise NotImplementedError

    def _batch_first(self, value: Tensor, lead: int = 0, event: int = 0) -> Tensor:
        raise NotImplementedError

    def _unflatten(self, value: Tensor, dim: int = 0) -> Tensor:
        raise NotImplementedError

    def _by_state(self, probs: Tensor) -> StateMarginals:
        raise NotImplementedError

    # ---------------------------------------------------------------- the chain as steps
    def _as_steps(self) -> Steps:
        """With restarts written into the matrices of their steps."""
        f = self.factors
        init, pair, shared = f.init.expand(f.emit.shape[1:]), f.pair, f.shared
        if f.restart is not None and f.restart_to is not None and bool(f.restart[1:].any()):
            matrices = pair if not shared else pair.expand(len(f.emit) - 1, *f.emit.shape[1:-1], *pair.shape[-2:])
            pair, shared = torch.where(f.restart[1:, ..., None, None], f.restart_to.unsqueeze(-2), matrices), False
        return Steps(init, pair, f.emit, shared)

    def _log_prob_of(self, factors: Factors) -> Tensor:
        """(*B,) log p(x) of such factors, differentiable twice."""
        return scan.chain_log_prob(*factors).log_prob

    def _filtered_steps(self) -> tuple[Tensor, Steps]:
        """(T, *B, *K) filtered log-probabilities with their graph, and what they came by."""
        self._possible()
        steps = self._as_steps()
        given = steps.init, steps.pair, steps.emit, self.factors.valid, steps.shared
        return scan.filtered_twin(*given, width=steps.width)[0], steps

    def _divergence(self, other: PathExpectations | None, cross: bool) -> Tensor:
        filtered, own = self._filtered_steps()
        beside = None
        if other is not None:
            theirs, its = self._beside(other, own)
            beside = theirs, its.pair, its.shared
        return self._unflatten(
            path_divergence(filtered, own.pair, own.shared, self.factors.valid, beside, cross, own.width)
        )

    def _beside(self, other: PathExpectations, steps: Steps) -> tuple[Tensor, Steps]:
        self._check_beside(other)
        masks, names = (self.factors.valid, other.factors.valid), (self._ids(), other._ids())
        filtered, its = other._filtered_steps()
        alike = all(
            a is None and b is None or a is not None and b is not None and torch.equal(a, b) for a, b in (masks, names)
        )
        if steps.emit.shape != its.emit.shape or steps.width != its.width or not alike:
            raise self._unlike(other)
        return filtered, its

    def _check_beside(self, other) -> None:
        """Raises for what cannot be compared whatever its numbers."""
        if not isinstance(other, PathExpectations):
            raise TypeError(f"other: expected a chain, got {type(other).__name__}")
        if self.two_widths != other.two_widths:
            raise self._unlike(other)

    def _unlike(self, other) -> ValueError:
        return ValueError(
            "other: both chains must have the same steps, rows and states, got (T, *B, K) = "
            f"{tuple(self.factors.emit.shape)} and {tuple(other.factors.emit.shape)}, with the same padding and, where "
            "words open blocks of states, the same blocks and missing words"
        )

    # ---------------------------------------------------------------- answers
    def differentiable_marginals(self) -> Tensor:
        """(*B, T, K) p(z_t | x), 0 at padded steps; gradients flow. Of a block-sparse chain K are the states of the block
        that is open at a step, as in :meth:`marginals`; where a word is missing somewhere they are all states.
        Cost: a graph of T K^2 numbers a row."""
        self._possible()
        f = self.factors
        shift = torch.zeros_like(f.emit, requires_grad=True)
        wanted = torch.is_grad_enabled()
        with torch.enable_grad():
            value = self._log_prob_of(f._replace(emit=f.emit + shift)).sum()
            (probs,) = torch.autograd.grad(value, shift, create_graph=wanted)
        return self._batch_first(probs, event=1)

    def differentiable_entropy(self) -> Tensor:
        """(*B,) entropy of p(z_1..z_T | x), nats; gradients flow. No difference of large numbers is taken."""
        return self._divergence(None, False)

    def cross_entropy(self, other: PathExpectations) -> Tensor:
        """(*B,) E_p[-log q(z_1..z_T | x)], nats, of this chain's paths under another one; gradients flow into both.

        Raises:
            ValueError: unless both have the same steps, rows and states.
        """
        return self._divergence(other, True)

    def divergence(self, other: PathExpectations) -> Tensor:
        """(*B,) KL(p || q) of the paths given x, nats, as for :meth:`cross_entropy`; inf where q forbids what p allows."""
        return self._divergence(other, False)

    def fixed_lag(self, lag: int) -> StateMarginals:
        """p(z_t | x_1..x_{t+lag}), (*B, T, K): filtering for lag 0, smoothing for lag T - 1. Cost: lag T K^2 a row."""
        self._possible()
        with torch.no_grad():
            filtered, steps = self._filtered_steps()
            lag, valid = checks.count("lag", lag, 0), self.factors.valid
            probs = fixed_lag(filtered, steps.pair, steps.shared, steps.emit, valid, lag, steps.width)
            return self._by_state(probs.flatten(probs.dim() - steps.width))
