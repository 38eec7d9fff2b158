"""Trace_ELBO with hidden states summed or integrated out."""

from __future__ import annotations

from pyro.infer import Trace_ELBO

from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.kalman_collapse import KalmanCollapse


class TraceBlockedEnum_ELBO(Trace_ELBO):
    """``Trace_ELBO`` whose model runs under :class:`BlockedEnum`; guides for the other (continuous) sites work as usual.

    Use it with ``pyro.infer.SVI``, or as ``TraceBlockedEnum_ELBO()(model, guide)`` (an ``ELBOModule``) with one
    ``torch.optim`` optimizer. For a further discrete site to be enumerated outside the chains, use Pyro's
    ``TraceEnum_ELBO`` on ``BlockedEnum()(model)`` instead.

    Args:
        vectorize: let ``pplseq.markov`` run loop bodies once for all steps.
        **options: those of ``pyro.infer.Trace_ELBO``.
    """

    def __init__(self, *, vectorize: bool = True, **options):
        super().__init__(**options)
        self.vectorize = vectorize

    def _get_trace(self, model, guide, args, kwargs):
        return super()._get_trace(BlockedEnum(vectorize=self.vectorize)(model), guide, args, kwargs)


class TraceKalman_ELBO(Trace_ELBO):
    """``Trace_ELBO`` whose model runs under :class:`KalmanCollapse`; see :class:`TraceBlockedEnum_ELBO`.

    Args:
        vectorize, tol: of the handler.
        **options: those of ``pyro.infer.Trace_ELBO``.
    """

    def __init__(self, *, vectorize: bool = True, tol: float | None = None, **options):
        super().__init__(**options)
        self.vectorize, self.tol = vectorize, tol

    def _get_trace(self, model, guide, args, kwargs):
        return super()._get_trace(KalmanCollapse(self.vectorize, self.tol)(model), guide, args, kwargs)


def no_guide(*args, **kwargs) -> None:
    """The guide of a model whose only latent sites are hidden states."""
