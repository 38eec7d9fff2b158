"""A short way from parameters and a batch to its chain: of rows without gaps, under an LDS as it is.

Covariances, gains and normalisers depend on the parameters and on what is observed when, not on the numbers: a chain of other
numbers at the same steps keeps them. The chain is the same; the readable twin is
:meth:`~pplseq.models.base.SequenceModel.posterior`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from pplseq.infer.fit.em import Batch
from pplseq.infer.gaussian.chain import GaussianChain

MOST_NUMBERS = 1 << 16  # of observations that are kept with a chain; beside more of them its covariances are cheap


class PointChain:
    """The last chain at some parameters, whose covariances the next one may share. shift: what observations are off by."""

    def __init__(self, shift: Tensor | None):
        self.shift = shift
        self.shape: tuple[int, ...] = ()
        self.chain: GaussianChain | None = None


def chain_of_whole_rows(
    point: PointChain, batch: Batch, posterior: Callable[[Tensor], GaussianChain]
) -> GaussianChain | None:
    """The chain of a batch that was checked, all of whose numbers are there and nothing beside them; else None.

    Args:
        posterior: the long way, by which the first chain of a shape comes.
    """
    x = batch.x
    if x.device.type != "cpu" or x.numel() > MOST_NUMBERS or not all(value is None for value in batch[1:]):
        return None
    if bool(x.isnan().any()):
        return None
    if point.chain is not None and point.shape == x.shape:
        residual = x.transpose(0, 1)
        return point.chain.with_residual(residual if point.shift is None else residual - point.shift)
    chain = posterior(x)
    point.shape, point.chain = x.shape, chain if chain.takes_other_numbers else None
    return chain
