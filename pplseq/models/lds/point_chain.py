"""A short way from parameters and a batch to its chain: of rows without gaps, under an LDS as it is.

Covariances, gains and normalisers depend on the parameters and on what is observed when, not on the numbers: a chain of other
numbers at the same steps keeps them. The chain is the same; the readable twin is
:meth:`~pplseq.models.base.SequenceModel.posterior`.
"""

from __future__ import annotations

from typing import Any

import torch

from pplseq.distributions.linear_gaussian import LinearEmission
from pplseq.distributions.noise import as_noise
from pplseq.infer.fit.em import Batch
from pplseq.infer.gaussian.chain import GaussianChain
from pplseq.kernels.parallel import time_scan
from pplseq.models.lds.fit import chain_of
from pplseq.models.lds.parameters import Parameters

MOST_NUMBERS = 1 << 19  # of observations that are kept with a chain; beside more of them its covariances are cheap


class PointChain:
    """An LDS's parameters, and the last chain at them, whose covariances the next one may share."""

    def __init__(self, parameters: Parameters):
        copies: Any = [None if part is None else part.clone() for part in parameters]  # a chain reads some of them late
        self.parameters = Parameters(*copies)
        self.last: tuple[torch.Size, GaussianChain] | None = None  # in one piece, as threads may ask at once


def is_all_seen(batch: Batch) -> bool:
    """Whether a batch that was checked is small, and all its numbers are there and nothing beside them."""
    x = batch.x
    if x.device.type != "cpu" or x.numel() > MOST_NUMBERS or not all(value is None for value in batch[1:]):
        return False
    return not (time_scan.ACTIVE.get() or bool(x.isnan().any()))


def chain_of_batch(point: PointChain, batch: Batch) -> GaussianChain:
    """The chain of a batch that is whole."""
    now, x, last = point.parameters, batch.x, point.last
    if last is not None and last[0] == x.shape:
        residual = x.transpose(0, 1)
        return last[1].with_residual(residual if now.emission_offset is None else residual - now.emission_offset)
    chain = chain_of(now, batch, LinearEmission(now.emission, as_noise(now.emission_noise, x.shape[-1])))
    if chain.takes_other_numbers:
        point.last = x.shape, chain
    return chain
