"""Restarts by EM on the workers of a cluster, a few together in each."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from pplseq.models.iohmm.restarts.em import EMRun
from pplseq.models.iohmm.restarts.history import RestartBlock, Restarts
from pplseq.models.iohmm.restarts.outputs import Parameters
from pplseq.models.iohmm.restarts.problem import RestartProblem
from pplseq.runs.cluster import connected

SHARES = 2  # of the restarts for each worker, so that one with slow restarts holds up little


def fit_on(
    where: Any, problem: RestartProblem, groups: Sequence[tuple[Parameters, list[RestartBlock]]], options: dict[str, Any]
) -> list[Restarts]:
    """What became of the restarts, in their order: the numbers of one process, to rounding.

    Args:
        where: see :func:`pplseq.runs.cluster.connected`. problem: the data, which are sent once.
        groups: of restarts that one process would fit together: their parameters as drawn, and their blocks.
        options: of :class:`~pplseq.models.iohmm.restarts.em.EMRun`.

    Raises:
        PartFailed: names restarts that could not be fitted.
    """
    total = sum(block.num_restarts for _, blocks in groups for block in blocks)
    with connected(where) as cluster:
        most = max(1, -(-total // (SHARES * max(1, cluster.num_workers))))
        shares = [share for parameters, blocks in groups for share in _shares(parameters, blocks, most)]
        ends = [0]
        for _, blocks in shares:
            ends.append(ends[-1] + sum(block.num_restarts for block in blocks))
        names = [f"restarts {a} to {b - 1}" for a, b in zip(ends[:-1], ends[1:], strict=True)]
        [kept] = cluster.keep([problem])
        return cluster.each(_fit, [(kept, *share, options) for share in shares], names)


def _shares(parameters: Parameters, blocks: Sequence[RestartBlock], most: int) -> list[tuple[Parameters, list[RestartBlock]]]:
    """A group cut into shares of so many restarts."""
    single = [block for block in blocks for _ in range(block.num_restarts)]
    result = []
    for first in range(0, len(single), most):
        there = slice(first, first + most)
        part = {name: {key: value[..., there] for key, value in weights.items()} for name, weights in parameters.items()}
        found: list[RestartBlock] = []
        for block in single[there]:
            same = bool(found) and found[-1].replaced(1) == block.replaced(1)
            found[-1:] = [found[-1].replaced(found[-1].num_restarts + 1)] if same else [*found[-1:], block.replaced(1)]
        result.append((part, found))
    return result


def _fit(problem: RestartProblem, parameters: Parameters, blocks: list[RestartBlock], options: dict[str, Any]) -> Restarts:
    problem = copy.deepcopy(problem)  # threads of a worker share what it keeps
    return EMRun(problem, parameters, blocks=blocks, **options).run()
