"""The Gaussian chain parallel in time: every step has a covariance of its own, and all of them come from associative scans.

Inside :func:`~pplseq.kernels.parallel.time_scan.parallel_in_time` chains are made so. Observations enter as information,
so that their noise must not be singular; the readable twin is the chain as it is, step by step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pplseq.distributions.gaussian_types import Evidence, GaussianBelief, LinearEvidence
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain, once
from pplseq.infer.gaussian.given import PathInput, path_input
from pplseq.infer.gaussian.path import CovariancePath
from pplseq.infer.gaussian.smoothed_path import SmoothedPath
from pplseq.kernels import kalman
from pplseq.kernels.parallel import kalman_scan


class ParallelChain(GaussianChain):
    """A :class:`~pplseq.infer.gaussian.chain.GaussianChain` whose filter and smoother are parallel in time.

    Likelihood with its gradient, filter and smoother take 2 log2 T rounds of batched operations; posterior draws and forecasts
    go on step by step from there.

    Raises:
        ValueError: for observations without noise in some direction.

    Cost: tens of h^3 and several times h^2 numbers for each step (and row, where rows differ in what they observe when).
    """

    recursion = staticmethod(kalman_scan.recursion)

    def __init__(self, start: GaussianBelief, dynamics: Dynamics, evidence: Evidence | LinearEvidence, **options):
        if isinstance(evidence, LinearEvidence):
            noise = evidence.noise.detach()
            exact = (noise <= 0).any() if noise.dim() == 1 else (torch.linalg.cholesky_ex(noise).info > 0).any()
            if bool(exact):
                raise ValueError(
                    "parallel_in_time: the noise of observations must be positive definite, as they enter as information; "
                    "leave parallel_in_time out, which takes observations without noise"
                )
            evidence = evidence.dense()
        super().__init__(start, dynamics, evidence, **options)

    @once
    def path(self) -> CovariancePath:
        return ParallelPath(path_input(self.flat, 0.0, False))

    @once
    def smoothed_path(self) -> SmoothedPath:
        return ParallelSmoothedPath(self.path, self._lengths)


class ParallelPath(CovariancePath):
    """All predicted and filtered covariances by one scan: a node for each step, and row where rows differ."""

    def __init__(self, given: PathInput):
        self._begin(given)
        num_steps, columns = given.num_steps, self._columns
        which = torch.tensor(given.which, device=self.device).expand(-1, columns)
        information = given.observed[0][which]
        predicted = kalman_scan.predicted_covariances(given.start, given.matrix, given.noise, information)
        self.predicted = predicted.flatten(0, 1)
        updated = kalman.update(self.predicted, information.flatten(0, 1))
        self._place = [(node, node // columns, node % columns) for node in range(num_steps * columns)]
        moved = self.matrix @ updated.filtered
        self._parts = [kalman.Part(0, updated, which.reshape(-1).tolist(), moved)]
        index = torch.arange(num_steps * columns, device=self.device).view(num_steps, columns)
        self.index = index[:, 0] if columns == 1 else index
        self._tabulate()


class ParallelSmoothedPath(SmoothedPath):
    """All covariances given all observations by one scan."""

    def __init__(self, path: CovariancePath, lengths: Tensor | None):
        self.path = path
        num_steps = path.given.num_steps
        nodes = path.index.view(num_steps, -1)
        inside = torch.ones(num_steps, 1, dtype=torch.bool, device=path.device)
        if lengths is not None:
            inside = torch.arange(num_steps, device=path.device).unsqueeze(1) < lengths
            nodes = nodes.expand(-1, inside.shape[1])
        columns = nodes.shape[1]
        said = torch.where(inside[..., None, None], path.information[nodes], 0.0)
        found = kalman_scan.adjoint_information(said, path.closed_loop[nodes])
        # numbered from the last step on, as each follows the one behind it
        self.information = torch.cat([torch.zeros_like(found[0, :1]), found.flip(0).flatten(0, 1)])
        self.of = [-1, *nodes.flip(0).reshape(-1).tolist()]
        self.later: Any = [0] * (columns + 1) + [*range(1, (num_steps - 1) * columns + 1)]
        index = torch.arange(1, num_steps * columns + 1, device=path.device).view(num_steps, columns).flip(0)
        index = torch.where(inside, index, 0)
        self.index = index[:, 0] if columns == 1 else index
