"""Zero-inflated and hurdle families of any family, and zero-truncated ones of counts: "zero_inflated_poisson", "hurdle_gamma",
"zero_truncated_poisson" (counts that are never 0: a hurdle whose gate is shut) and the like.

EM: of a zero-inflated family the gate's share of each zero is its posterior, and the rest of it is the base's; of a hurdle over
counts as many zeros are added to what the base has seen as it would have shown beside it. The base's own M-step does the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pplseq.distributions.zeros import WithZeros
from pplseq.infer.fit.em import NOTHING, Statistics
from pplseq.models.parts.families import FAMILIES, SHARE, TINY, Driven, Family, name_of
from pplseq.models.parts.links import Link

KINDS = ("zero_inflated", "hurdle", "zero_truncated")
COUNTS = "poisson", "negative_binomial", "binomial"
FIRST_GATE = 0.3  # where regressions begin


@dataclass(frozen=True, eq=False)
class ZerosFamily(Family):
    """A family that was made of another by :func:`with_zeros`."""

    base: Family = FAMILIES["poisson"]
    kind: str = KINDS[0]

    def predicted(self, link: Link, eta: Tensor, others: Mapping[str, Tensor]) -> WithZeros:
        own = {name: value for name, value in others.items() if name != "gate"}
        base = self.base.predicted(link, eta, own)
        return WithZeros(base, others.get("gate", eta.new_zeros(base.batch_shape)), self.kind != "zero_inflated")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return with_zeros, (self.kind, self.base)


@functools.cache
def with_zeros(kind: str, base: Family) -> Family:
    """The zero-inflated or the hurdle family of another, with the chance of a zero as parameter "gate" beside its own; or the
    zero-truncated one.

    Raises:
        ValueError: for families that have zeros of this kind already, or whose support moves.
    """
    if isinstance(base, ZerosFamily) or base is FAMILIES["bernoulli"] or base.moving:
        why = "its support ends at a parameter" if base.moving else "of its zeros nothing could tell the gate's apart"
        raise ValueError(f"families: there is no {kind}_{name_of(base)}, {why}; use {name_of(base)}")
    hurdle, truncated = kind != "zero_inflated", kind == "zero_truncated"
    if truncated and base not in [FAMILIES[name] for name in COUNTS]:
        raise ValueError(f"families: there is no {kind}_{name_of(base)}; there are those of {', '.join(COUNTS)}")

    def make(gate: Tensor | None = None, **own: Tensor) -> WithZeros:
        made = base.make(**own)
        shut = next(iter(own.values())).new_zeros(made.batch_shape) if gate is None else gate
        return WithZeros(made, shut, hurdle)

    def split(zero: Tensor, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Which share of zeros is the gate's, and how many zeros the base would have shown beside each number above 0."""
        gate = {} if truncated else {"gate": parameters["gate"].double()}
        made = make(**gate, **_own(parameters))
        none = made.log_none.exp() if made.counts else torch.zeros_like(made.gate)
        if hurdle or not made.counts:
            return torch.ones_like(none), none / (1 - none).clamp_min(TINY)
        return made.gate / (made.gate + (1 - made.gate) * none), torch.zeros_like(none)

    def statistics(obs: Tensor, weight: Tensor, parameters: Mapping[str, Tensor]) -> Statistics:
        assert base.statistics is not None, "has EM"
        zero = (obs + parameters.get("origin", 0.0) == 0).unsqueeze(1)
        share, unseen = split(zero, parameters)
        gates = torch.where(zero, share * weight, 0.0)
        alone = bool((share == 1).all())  # all zeros are the gate's
        values = torch.where(zero.squeeze(1), base.fill, obs) if alone else obs
        own = dict(base.statistics(values, weight - gates, parameters))
        if hurdle and bool((unseen > 0).any()):
            more = base.statistics(torch.zeros_like(obs), torch.where(zero, 0.0, unseen * weight), parameters)
            own = {name: value + more[name] for name, value in own.items()}
        return {"weight": weight.sum(0), "gate": gates.sum(0)} | {f"own {name}": value for name, value in own.items()}

    def update(s: Statistics, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if "histogram" in s:
            counts = s["histogram"].clone()
            share, unseen = split(counts[..., 0] > 0, parameters)
            total, gates = counts.sum(-1), counts[..., 0] * share
            above = counts[..., 1:].sum(-1)
            counts[..., 0] = above * unseen if hurdle else counts[..., 0] - gates
            own, seen = {"histogram": counts}, counts.sum(-1)
        else:
            own = {name.removeprefix("own "): value for name, value in s.items() if name.startswith("own ")}
            total, gates, seen = s["weight"], s["gate"], own["weight"]
        assert base.update is not None, "has EM"
        after = base.update(own, _without_gate(parameters))
        # of a state that shows only zeros nothing is known of what it would be like above them
        after = {name: torch.where(seen < NOTHING, parameters[name].to(value), value) for name, value in after.items()}
        return after if truncated else after | {"gate": (gates / total.clamp_min(TINY)).clamp(TINY, 1 - TINY)}

    def start(column: Tensor, states: int) -> dict[str, Tensor]:
        assert base.start is not None
        above = column[column != 0]
        gate = (column == 0).to(column).mean().clamp(0.05, 0.95) * (1.0 if hurdle else 0.5)
        found = base.start(above if len(above) else column + base.fill, states)
        return found if truncated else found | {"gate": gate.expand(states)}

    driven = base.driven
    if driven is not None:
        first = driven.start if driven.start is not None or len(base.parameters) > 1 else lambda *_: {}

        def begin(mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
            assert first is not None
            return ({} if truncated else {"gate": FIRST_GATE * torch.ones_like(mean)}) | first(mean, variance)

        driven = Driven(driven.name, driven.links, None if first is None else begin)
    holds = base.holds
    if truncated:
        assert holds is not None, "of counts"
        told = (lambda column: (column > 0) & holds[0](column)), holds[1].replace("0, 1, 2", "1, 2, 3")
    else:
        told = None if holds is None else ((lambda column: (column == 0) | holds[0](column)), _zero_or(holds[1]))
    return ZerosFamily(
        make, {**base.parameters} | ({} if truncated else {"gate": SHARE}),
        None if base.statistics is None else statistics, None if base.update is None else update,
        None if base.start is None else start, told, fill=max(base.fill, 1.0) if truncated else base.fill,
        histogram=base.histogram, unusual=base.unusual, about_origin=base.about_origin, called=f"{kind}_{name_of(base)}",
        driven=driven, sized=base.sized, base=base, kind=kind,
    )  # fmt: skip


def _own(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a base is made of, among what an M-step is given."""
    named = {name: value for name, value in _without_gate(parameters).items() if " " not in name and name != "origin"}
    return {name: value.double() for name, value in named.items()}


def _without_gate(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in parameters.items() if name not in ("gate", "within gate")}


def _zero_or(what: str) -> str:
    return what if what.startswith("counts") else f"0 or {what}"
