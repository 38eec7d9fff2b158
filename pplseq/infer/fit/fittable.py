"""What a fit asks of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pplseq.infer.fit.em import Batch, Statistics
from pplseq.infer.fit.held import Ends, Slot


class Fittable(nn.Module):
    """What the fit of a model asks of it, each with the answer of one that has nothing to say; a family overrides these.

    Names that begin with an underscore are for families and fits alone; users have no use for them.

    Every fit: ``starts``, :meth:`initialize`, :meth:`log_prior`, ``_slots``, and what it refuses. "sgd" and "lbfgs":
    ``log_joint``, which every program has, :meth:`_parameter_units` and :meth:`_ends`. "em": :meth:`chain_of`,
    :meth:`expected_statistics` and :meth:`maximize`. "svi" and "nuts": priors, ``sites()``, ``from_sites()`` and
    ``set_parameters()``.
    """

    # ---------------------------------------------------------------- where it starts
    starts: ClassVar[tuple[str, ...]] = ()  # ways to initialize, where there are several
    _turns: ClassVar[tuple[str, ...]] = ()  # ways that several starts take in turn; none: all start in the first way
    _least_starts: ClassVar[int] = 1  # that a fit races, where it is not asked for more
    _finalists: ClassVar[int] = 1  # of several starts those that are fitted to the end, where they do not end alike

    def initialize(self, batch: Batch, how: str = "") -> None:
        """Where a fit starts: by default the parameters as they are."""

    def _take_units(self, batch: Batch, warm: bool, holds: Mapping[str, Any]) -> None:
        """What a model takes from data before it starts, warm or anew, or anything is held."""

    # ---------------------------------------------------------------- what is learned
    @property
    def _slots(self) -> dict[str, Slot]:
        """What is learned, by the names of ``estimates``."""
        return {name: Slot(parameter) for name, parameter in self.named_parameters()}

    def log_prior(self) -> Tensor:
        """log density of the parameters under the priors, nats; 0 without priors."""
        return next(self.parameters(), torch.empty(0)).new_zeros(())

    # ---------------------------------------------------------------- what it refuses
    def _check_method(self, method: str) -> None:
        """Raises ValueError where this model cannot be fitted by a method."""

    def _check_data(self, batch: Batch) -> None:
        """Raises ValueError for data of which nothing can be learned."""

    def _check_held(self, method: str) -> None:
        """Raises ValueError where a method cannot hold what is held."""
        if not any(parameter.requires_grad for parameter in self.parameters()):
            raise ValueError("fixed: every parameter is held, so there is nothing to fit")

    def _why_no_number(self, batch: Batch) -> str:
        """What to say of data at which a likelihood, or its gradient, is no number with these parameters; "" for nothing."""
        return ""

    # ---------------------------------------------------------------- by gradients
    def _parameter_units(self) -> dict[str, Tensor]:
        """By name how much each number of a parameter varies: L-BFGS takes its steps in these, so that a fit does not depend
        on what the data are measured in. 1 of those that are left out."""
        return {}

    def _ends(self, batches: Sequence[Batch]) -> Ends:
        """By name of a parameter the smallest and the largest numbers that a fit to these data may come to; see
        :func:`~pplseq.infer.fit.gradients.ends_of`."""
        return {}

    # ---------------------------------------------------------------- by EM
    def chain_of(self, batch: Batch) -> Any:
        """The :class:`~pplseq.infer.discrete.chain.Chain`, or ``GaussianChain``, of a batch."""
        raise NotImplementedError

    def expected_statistics(self, chain: Any, batch: Batch) -> Statistics:
        """The E-step: expected sufficient statistics of a batch, from its chain."""
        raise NotImplementedError

    def maximize(self, statistics: Statistics) -> list[str]:
        """The M-step: sets the parameters; returns what was remarkable (empty or collapsed states), in words."""
        raise NotImplementedError

    def _expectation_by_loops(self, batch: Batch) -> tuple[Statistics, float] | None:
        """The E-step of a batch that needs no chain, and the log-likelihood in nats; None of other data."""

    def _implied_statistics(self, num_sequences: float, num_tokens: float) -> Statistics:
        """Statistics of which the current parameters are the maximum: where stepwise EM starts from."""
        raise ValueError(f"step_size: {type(self).__name__} has no stepwise EM; leave it out, or use method='sgd'")

    def _em_coordinates(self) -> tuple[Tensor, Tensor] | None:
        """A vector of the free parameters in which any number is allowed, and one of their units; None of a model whose EM is
        not accelerated."""

    def _set_em_coordinates(self, coordinates: Tensor) -> None:
        """Sets the parameters from such a vector."""
        raise NotImplementedError
