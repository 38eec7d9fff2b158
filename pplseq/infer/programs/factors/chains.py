"""What an elimination leaves: factors of the program's density, and chains that answer questions about the states."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from pplseq import checks
from pplseq.infer.discrete.dense import FactorChain
from pplseq.infer.discrete.results import Factors
from pplseq.infer.programs.factors.elimination import Component, Elimination
from pplseq.infer.programs.factors.enumeration import Variable
from pplseq.infer.programs.factors.lowering import Steps, find_steps, lower
from pplseq.infer.programs.markov import emit_factor
from pplseq.threads import once

MISSING = "a chain of marked sites has tables of one program's run, and nothing that says what comes behind it"


def emit_components(found: Elimination) -> None:
    """``pyro.factor`` of the log of the sum over each component, in its plates and with its scale."""
    groups: dict[tuple, list] = {}
    for root in found.roots:
        groups.setdefault((root.frames, id(root.scale) if hasattr(root.scale, "dim") else root.scale), []).append(root)
    for roots in groups.values():
        first, depth = roots[0], max((-frame.dim for frame in roots[0].frames), default=0)
        total: Any = sum((root.log_sum for root in roots[1:]), start=first.log_sum)
        emit_factor(first.name, first.frames, first.scale, total.reshape(total.shape[total.dim() - depth :]))


class MarkedChain(FactorChain):
    """The posterior of sites marked ``infer={"enumerate": "parallel"}`` that form a chain, given everything observed.

    A step has one variable or (of factorial and coupled chains) several, whose joint states are numbered with the last variable
    running fastest; every query of :class:`~pplseq.infer.discrete.chain.Chain` that needs no table of words answers about these
    joint states, and :meth:`marginal` and :meth:`values` lead back to single sites.

    Attributes:
        sites: of each step, the names of its sites. sizes: how many values each of a step's variables has.
    """

    def __init__(self, component: Component, steps: Steps, check: bool = True):
        self._component, self._steps = component, steps
        width = steps.width
        ordered = component.variables
        self._variables: list[list[Variable]] = [ordered[k : k + width] for k in range(0, len(ordered), width)]
        self.sites = [[variable.name for variable in some] for some in self._variables]
        self.sizes = steps.sizes
        depth = max((-frame.dim for frame in component.frames), default=0)
        shape = component.shape[len(component.shape) - depth :] if depth else ()
        self.batch_shape = self.full_batch = torch.Size(shape)
        self.obs, self.check, self.missing = torch.zeros(len(self.sites), *shape), check, MISSING
        self.ids = self.start = self.seen = self.states = self.inputs = self.emission_inputs = None

    @once
    def factors(self) -> Factors:  # type: ignore[override]
        """The chain in numbers, computed once: tables with their gradients."""
        found = lower(self._component.problem, self._component.stacks(), always=True)
        if found is None:
            raise ValueError(f"chain {self.sites[0][0]!r}: its matrices, one a step and row, are too large; use infer_states")
        batch, states = self.batch_shape, found.emit.shape[-1]
        pair = found.pair
        if not found.shared:
            pair = pair.reshape(len(pair), *batch, states, states)
        elif pair.dim() > 2:
            pair = pair.reshape(*batch, states, states)
        emit = found.emit.reshape(len(found.emit), *batch, states)
        return Factors(found.init.reshape(*batch, states), pair, emit, self.valid, found.shared)

    @once
    def valid(self) -> Tensor | None:  # type: ignore[override]
        """(T, *B) False where a step's states are masked; or None."""
        own = {table.site.own.number: table.site.mask for table in self._component.tables if table.site and table.site.own}
        # a state's own distribution sums to one, whatever other states a mask of it depends on
        nesting = len(self._component.shape)
        own = {number: None if torch.is_tensor(mask) and mask.dim() > nesting else mask for number, mask in own.items()}
        masks = [[own.get(variable.number) for variable in some] for some in self._variables]
        if all(mask is None or mask is True for some in masks for mask in some):
            return None
        rows = []
        for some, names in zip(masks, self.sites, strict=True):
            wide = [torch.as_tensor(True if mask is None else mask).expand(self.batch_shape) for mask in some]
            if any(not torch.equal(wide[0].to(mask.device), mask) for mask in wide[1:]):
                raise ValueError(f"sites {', '.join(map(repr, names))} of one step have different masks; they are no chain")
            rows.append(wide[0])
        valid = torch.stack(rows)
        checks.padding(valid)
        return valid

    def _place(self, name: str) -> int:
        first = self.sites[0]
        if name not in first:
            raise ValueError(f"name: expected the first site of one of the chain's variables, {first}, got {name!r}")
        return first.index(name)

    def _over_variables(self, probs: Tensor, name: str) -> Tensor:
        place, lead = self._place(name), probs.shape[:-1]
        others = [len(lead) + k for k in range(len(self.sizes)) if k != place]
        probs = probs.reshape(*lead, *self.sizes)
        return probs.sum(others) if others else probs

    def marginal(self, name: str) -> Tensor:
        """(*B, T, K) p(state | everything observed) of one variable, by the name of its first site; 0 at padded steps."""
        return self._over_variables(self.marginals().probs, name)

    def filtered_marginal(self, name: str) -> Tensor:
        """(*B, T, K) p(state at t | observed up to t) of one variable; 0 at padded steps."""
        return self._over_variables(self.filtered_states().probs, name)

    def values(self, paths: Tensor) -> dict[str, Tensor]:
        """Site -> its values (..., *B) in joint paths (..., *B, T), as viterbi, k_best and sample give them; first values where
        padded."""
        found: dict[str, Tensor] = {}
        for step, variables in enumerate(self._variables):
            number = paths[..., step].clamp_min(0)
            for variable in reversed(variables):
                found[variable.name] = variable.values[number % variable.size]
                number = number // variable.size
        return found


def marked_chains(found: Elimination, check: bool) -> dict[str, MarkedChain]:
    """The chains among components, by the name of each variable's first site."""
    chains = {}
    for component in found.roots:
        steps = find_steps(component.problem)
        if steps is None:
            continue
        names = [re.sub(r"\d+", "#", variable.name) for variable in component.variables]
        if any(name != names[k % steps.width] for k, name in enumerate(names)):
            continue  # steps by chance alone
        chain = MarkedChain(component, steps, check)
        chains.update(dict.fromkeys(chain.sites[0], chain))
    return chains
