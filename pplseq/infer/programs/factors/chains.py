"""The factors that an elimination puts into a program's density."""

from __future__ import annotations

from typing import Any

from pplseq.infer.programs.factors.elimination import Elimination, eliminate
from pplseq.infer.programs.factors.enumeration import Enumeration
from pplseq.infer.programs.markov import emit_factor


def emit_components(enumeration: Enumeration) -> Elimination:
    """``pyro.factor`` of the log of the sum over each component, in its plates and with its scale."""
    found = eliminate(enumeration)
    groups: dict[tuple, list] = {}
    for root in found.roots:
        groups.setdefault((root.frames, id(root.scale) if hasattr(root.scale, "dim") else root.scale), []).append(root)
    for roots in groups.values():
        first, depth = roots[0], max((-frame.dim for frame in roots[0].frames), default=0)
        total: Any = sum((root.log_sum for root in roots[1:]), start=first.log_sum)
        emit_factor(first.name, first.frames, first.scale, total.reshape(total.shape[total.dim() - depth :]))
    return found
