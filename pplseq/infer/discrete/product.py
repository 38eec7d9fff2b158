"""Chains whose transition is a product: no answer that models give makes its Z^2 numbers."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.dense import CategoricalEmission
from pplseq.distributions.product import ProductTransition
from pplseq.distributions.state import Emission
from pplseq.infer.discrete.chain import query
from pplseq.infer.discrete.dense import DenseChain
from pplseq.infer.discrete.expectations import Steps
from pplseq.infer.discrete.results import ExpectedCounts, Factors
from pplseq.kernels import product_steps, scan, twice
from pplseq.kernels.product_steps import ProductSteps
from pplseq.threads import once


class ProductChain(DenseChain):
    """See :class:`~pplseq.infer.discrete.chain.Chain`; it takes one batch dimension.

    Cost: a step Z (m + n) multiplications a row; paths, and their entropy, as many additions. Pairs of states, divergences and
    answers that gradients flow through multiply the factors out, where Z^2 numbers find room.
    """

    _is_scored = False
    _tables = None  # pyright: ignore[reportAssignmentType]
    transition: ProductTransition  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, transition: ProductTransition, emission: Emission, obs: Tensor, **options):
        super().__init__(transition, emission, obs, **options)
        if len(self.batch_shape) != 1 or emission.batch_shape:
            raise ValueError(
                f"obs: a chain of a product transition takes one batch dimension, (T, B), got rows of shape "
                f"{tuple(self.batch_shape)}; put the sequences in one plate"
            )

    @once
    def _steps(self) -> ProductSteps:
        return self.transition.steps

    def _lower(self) -> Factors:
        numbers = self.num_steps * self.batch_shape.numel() * self.transition.num_states
        size = self.transition.initial.element_size()
        tables = sum(table.numel() for table in self.transition.tables)  # as they are, exponentiated, and sums of pairs of both
        advice = "ask fewer rows at once; of a fit give batch_size, or dtype='float32'"
        checks.fits("x", size * (3.0 * numbers + 5.0 * tables), advice)
        emit = self._emit()
        return Factors(self._initial().expand(emit.shape[1:]), emit.new_empty(0), emit, self.valid, shared=True)

    def prepare(self) -> None:
        if not self._is_plain:
            super().prepare()

    @once
    def _is_plain(self) -> bool:
        """Whether a likelihood may be had without all emissions at once: of a table of words that takes no gradient."""
        transition, emission = self.transition, self.emission
        if not isinstance(emission, CategoricalEmission):
            return False
        return not twice.derivatives_wanted(transition.initial, *transition.tables, emission.log_probs, self._initial())

    @once
    def _forward(self):
        if self._is_scored and self._is_plain and "factors" not in vars(self):
            chain = weakref.proxy(self)  # what the chain keeps must not keep it, nor its tables
            emit = product_steps.EmissionSteps(lambda steps: chain._emit(steps=steps), self.num_steps)
            init = self._initial().expand(*self.batch_shape, self.transition.num_states)
            return product_steps.forward_pass(init, self._steps, emit, self.valid, messages=False)
        return self._log_prob_with(self.factors)

    def log_prob(self):
        self._is_scored = True  # which may be all that is asked
        return super().log_prob()

    def _log_prob_with(self, factors: Factors) -> scan.Forward:
        return product_steps.product_log_prob(factors.init, self._steps, factors.emit, factors.valid)

    def _log_prob_of(self, factors: Factors) -> Tensor:
        return self._log_prob_with(factors).log_prob

    def _predict(self, belief, inputs):
        return self._moved(belief.dense(self.transition.num_states))

    def _moved(self, filtered):
        return self._steps.forward(filtered.reshape(-1, filtered.shape[-1]).T).T.reshape(filtered.shape)

    # ---------------------------------------------------------------- states
    def _state_probs(self) -> Tensor:
        f = self.factors
        return product_steps.smooth(self._steps, f.emit, self._possible(), f.valid, pairs=False)[0]

    @query
    def expected_counts(self) -> ExpectedCounts:
        """Expected starts (Z,), moves of each coordinate in the shapes of the transition's tables, and visits (Z,) given x,
        summed over rows."""
        f = self.factors
        probs, moves = product_steps.smooth(self._steps, f.emit, self._possible(), f.valid)
        start = probs[0] if self.start is None else torch.zeros_like(probs[0])
        return ExpectedCounts(start.sum(0), moves, None, probs.sum((0, 1)), self._by_state(probs))

    @query
    def entropy(self) -> Tensor:
        """(B,) entropy of p(z_1..z_T | x), nats: of the first state, and of each move given what is before it."""
        f = self.factors
        return product_steps.entropy(self._steps, f.emit, self._possible(), f.valid)

    # ---------------------------------------------------------------- paths
    def _best_path(self):
        paths, log_prob = self._best_paths(1)
        return paths[0], log_prob[0]

    def _best_paths(self, k):
        f = self.factors
        paths, log_prob = product_steps.k_best_pass(f.init, self._steps, f.emit, f.valid, k)
        return self._paths(paths), log_prob

    def _draw_paths(self, num_samples):
        filtered = self._possible().filtered
        return self._paths(product_steps.sample_pass(self._steps, filtered, self.factors.valid, num_samples))

    # ---------------------------------------------------------------- what needs all pairs of states
    def _dense(self) -> Tensor:
        num_states = self.transition.num_states
        size = self.transition.initial.element_size()
        checks.fits("pairs of states", 3.0 * size * num_states**2, "this answer is for fewer states")
        return self._steps.dense()

    @once
    def _matrices(self) -> scan.LogMatrices:
        return scan.StepMatrices(self._dense().detach(), True)

    def _as_steps(self) -> Steps:
        f = self.factors
        return Steps(f.init, self._dense(), f.emit, True)
