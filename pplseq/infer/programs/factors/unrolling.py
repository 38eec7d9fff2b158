"""Marked sites in a vectorised loop: what its body said once, for all steps, becomes sites and variables of every step.

The first step was run by itself. A variable of it that the body reads in the second run, the one for all other steps, stands
for the variable of that name one step before.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import pyro.distributions as dist
from torch.distributions import Distribution

from pplseq.distributions.timed import Timed
from pplseq.infer.programs.factors.enumeration import Enumeration, Site, Variable
from pplseq.infer.programs.factors.lookups import Lookup, StateValue

ADVICE = "write pplseq.markov(..., vectorize=False)"


class Loop:
    """The marked sites of one loop. first: those of its first step, once that was run."""

    def __init__(self, enumeration: Enumeration):
        self.enumeration = enumeration
        self.begin = len(enumeration.sites)
        self.first: list[Site] = []

    def first_step_ends(self, step: int, frame) -> bool:
        """Whether all other steps can be run at once; a body without marked sites always can, for all that is known here."""
        self.first = self.enumeration.sites[self.begin :]
        number = re.compile(rf"(?<!\d){step}(?!\d)")
        own = [site.own for site in self.first if site.own is not None]
        if self.first and not own:  # observations of what came before the loop
            return False
        if any(not number.search(site.name) for site in self.first):
            return False
        if any(type(site.fn) is not dist.Categorical for site in self.first if site.own is not None):
            return False
        # what a generator's caller carries from step to step cannot be seen
        return not own or not frame.f_code.co_flags & 0x20

    def end(self, first_step: int, steps: range, index: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
        """Replaces what was recorded for all steps at once; returns the names of that.

        Args:
            index: how the vectorised index stands in names. before, now: local variables around the second run of the body.
        """
        enumeration = self.enumeration
        timed = enumeration.sites[self.begin + len(self.first) :]
        firsts = {site.own.name: site.own for site in self.first if site.own is not None}
        if not timed and not firsts:
            return []
        own = [site.own for site in timed if site.own is not None]
        partner: dict[int, Variable] = {}  # number of a first step's variable -> the variable of all other steps
        for variable in own:
            name = variable.name.replace(index, str(first_step))
            if index not in variable.name or name not in firsts:
                raise ValueError(f"site {variable.name!r} of a vectorised loop was not in its first step; {ADVICE}")
            partner[firsts.pop(name).number] = variable
        if firsts or len(timed) != len(self.first):
            name = next(iter(firsts), self.first[0].name)
            raise ValueError(f"a vectorised loop has other sites than its first step had, {name!r} among these; {ADVICE}")
        _check_carried(partner, before, now)
        self._unroll(timed, own, partner, steps, index)
        return [site.name for site in timed]

    def _unroll(self, timed: list[Site], own: list[Variable], partner, steps: range, index: str) -> None:
        enumeration, number = self.enumeration, own[0].number
        del enumeration.sites[self.begin + len(self.first) :], enumeration.every[number:]
        later = {variable.number: first for first, variable in partner.items()}
        last = {first: enumeration.every[first] for first in partner}  # by the number of the first step's variable
        values = [(*map(_unbind, (site.value, site.mask, site.score)), _split(site.fn, len(steps))) for site in timed]
        for place, step in enumerate(steps):
            text, now = str(step), {}
            for variable in own:
                frames = _frames(variable.frames, index, text)
                name = variable.name.replace(index, text)
                now[later[variable.number]] = Variable(number, name, variable.dim, variable.values, frames)
                number += 1
            for site, (value, mask, score, laws) in zip(timed, values, strict=True):
                variables = {}
                for dim, variable in site.variables.items():
                    if variable.number in later:
                        variable = now[later[variable.number]]
                    elif variable.number in partner:
                        variable = last[variable.number]
                    variables[dim] = variable
                name, fn = site.name.replace(index, text), laws[place]
                frames, own_now = _frames(site.frames, index, text), None if site.own is None else now[later[site.own.number]]
                placed = value(place), mask(place), site.scale, frames, variables, own_now
                enumeration.sites.append(Site(name, fn, *placed, (site, place), score(place)))
            enumeration.every += now.values()
            last.update(now)
        for key, variable in list(enumeration.variables.items()):
            if variable in own:  # what comes after the loop sees its last step
                enumeration.variables[key] = last[later[variable.number]]


def _check_carried(partner: dict[int, Variable], before: dict[str, Any], now: dict[str, Any]) -> None:
    """Every local variable that held a state of the first step must hold the same site's state of all other steps now."""
    for name, value in now.items():
        if not isinstance(value, StateValue) or value.variable is None:
            continue
        old = before.get(name)
        old = old.variable if isinstance(old, StateValue) else None
        if value.variable.number in partner:  # a state of the first step, still or again
            raise ValueError(
                f"variable {name!r} holds the state {value.variable.name!r} of the first step after the other steps of a "
                f"vectorised loop, so that steps do not look back alike; {ADVICE}"
            )
        if old is not None and old.number in partner and partner[old.number] is not value.variable:
            raise ValueError(
                f"variable {name!r} holds the state {old.name!r} after the first step of a loop and "
                f"{value.variable.name!r} after the others, so that steps do not look back alike; {ADVICE}"
            )


def _frames(frames: tuple, index: str, text: str) -> tuple:
    if not any(index in frame.name for frame in frames):
        return frames
    return tuple(frame._replace(name=frame.name.replace(index, text)) for frame in frames)


def _unbind(value):
    """place -> the value at that step"""
    if isinstance(value, Timed):
        steps = value.steps.unbind(0)
        return steps.__getitem__
    return lambda place: value


def _timed_parts(fn) -> bool:
    """Whether anything of a distribution differs from step to step."""
    inner = (value for value in vars(fn).values() if isinstance(value, Distribution))
    return any(map(_is_timed, vars(fn).values())) or any(map(_timed_parts, inner))


def _is_timed(value) -> bool:
    if type(value) is Lookup:
        return any(isinstance(entry.index, Timed) for entry in value.entries)
    return isinstance(value, Timed)


def _split(fn, count: int) -> list:
    """A distribution of all steps, step by step; unbound once, so that gradients are put together once."""
    if not _timed_parts(fn):
        return [fn] * count
    found = [copy.copy(fn) for _ in range(count)]
    for name, value in vars(fn).items():
        if type(value) is Lookup and _is_timed(value):
            parts: Any = [value.at_step(place) for place in range(count)]
        elif isinstance(value, Timed):
            parts = value.steps.unbind(0)
        elif isinstance(value, Distribution) and _timed_parts(value):
            parts = _split(value, count)
        else:
            continue
        for one, part in zip(found, parts, strict=True):
            one.__dict__[name] = part
    return found
