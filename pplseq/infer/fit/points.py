"""Numbers that an optimizer may move as it likes, in place of parameters in their units and within their bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pplseq.infer.fit.held import ORDERS, Entries, Together, entries_of

HALVINGS = 60  # of what is added to logits of rows
INSIDE = 0.02  # of the way from one bound to the other, where a search begins that would not leave a bound


class Points:
    """Numbers without bounds that stand for parameters: these in their units, or what leads between their bounds.

    Args:
        parameters: by name. units: of some of them, how much each number varies.

    Attributes:
        leaves: what an optimizer moves; parameters themselves where nothing stands for them.

    Source of the functions: F. James and M. Roos (1975), Minuit, Computer Physics Communications 10, section on limits, but
    for rows of probabilities.
    """

    def __init__(self, parameters: Mapping[Any, Tensor], units: Mapping[Any, Tensor] | None = None):
        self.own: list[tuple[Tensor, Callable[[Tensor], Tensor], Tensor]] = []
        self.leaves: list[Tensor] = []
        for name, raw in parameters.items():
            unit, entries = (units or {}).get(name), entries_of(raw)
            unit = torch.ones_like(raw) if unit is None else unit.to(raw)
            if entries is not None and entries.bounded:
                both: Any = (_together, _apart) if isinstance(entries, Together) else (_angles, _value)
                with torch.no_grad():
                    leaf = both[0](raw.detach(), entries, unit)
                value = partial(both[1], entries=entries, unit=unit)
            elif units is not None and name in units:
                leaf, value = raw.detach() / unit, partial(torch.mul, unit)
            else:
                self.leaves.append(raw)
                continue
            leaf = leaf.requires_grad_()
            self.own.append((raw, value, leaf))
            self.leaves.append(leaf)

    @torch.no_grad()
    def put(self) -> None:
        """Sets the parameters."""
        for raw, value, leaf in self.own:
            raw.copy_(value(leaf))

    def pull(self) -> None:
        """Gradients from those of the parameters, which are then none."""
        for raw, value, leaf in self.own:
            leaf.grad = None
            if raw.grad is not None:
                with torch.enable_grad():
                    (leaf.grad,) = torch.autograd.grad(value(leaf), leaf, raw.grad)
            raw.grad = None


def _together(raw: Tensor, entries: Together, unit: Tensor) -> Tensor:
    """What :func:`_apart` makes numbers of all states of: that of the first, and how far each lies from the one before."""
    raw = entries.put(raw)
    if entries.how == "equal":
        return raw[:1] / unit[:1]
    beyond = (ORDERS[entries.how] * raw.diff(dim=0) / unit[1:]).clamp_min(INSIDE)
    return torch.cat([raw[:1] / unit[:1], ((beyond + 1).square() - 1).sqrt()])


def _apart(leaf: Tensor, entries: Together, unit: Tensor) -> Tensor:
    first = leaf[:1] * unit[:1]
    if entries.how == "equal":
        return first.expand(unit.shape)
    beyond = unit[1:] * ((leaf[1:].square() + 1).sqrt() - 1)
    return first + ORDERS[entries.how] * torch.cat([torch.zeros_like(first), beyond.cumsum(0)])


def _angles(raw: Tensor, entries: Entries, unit: Tensor) -> Tensor:
    """What :func:`_value` makes numbers of a parameter of, but for what lies at a bound, which is taken a little inside."""
    raw = entries.put(raw)
    if entries.rows:
        low, width = _box(entries, raw)
        return ((_inside(raw.exp(), low, width) - low) / width).nan_to_num(0.5).logit(1e-12)
    low, high = entries.low.to(raw), entries.high.to(raw)
    both = low.isfinite() & high.isfinite()
    beyond = torch.where(low.isfinite(), raw - low, high - raw).nan_to_num(0.0, 0.0, 0.0) / unit
    one = (beyond.clamp_min(INSIDE) + 1).square().sub(1).sqrt()
    share = (raw - low) / (high - low)
    anywhere = low.isinf() & high.isinf()
    return torch.where(both, _angle(share.where(both, 0.5), INSIDE), torch.where(anywhere, raw / unit, one))


def _inside(probs: Tensor, low: Tensor, width: Tensor) -> Tensor:
    """Rows, those of which one lies at a bound a little nearer to the middle."""
    middle = low + width * ((1 - low.sum(-1, keepdim=True)) / width.sum(-1, keepdim=True)).nan_to_num(0.0)
    at = ((width > 0) & ((probs - low).minimum(low + width - probs) < INSIDE / probs.shape[-1] * width)).any(-1, keepdim=True)
    return torch.where(at, probs + INSIDE * (middle - probs), probs)


def _angle(share: Tensor, near: float) -> Tensor:
    return (2 * share.nan_to_num(0.5).clamp(near, 1 - near) - 1).asin()


def _value(angles: Tensor, entries: Entries, unit: Tensor) -> Tensor:
    """Numbers within bounds: any angles lead to some, and a bound is reached at a finite one, where the function is flat; those
    of rows at infinite logits, as probabilities of 0 are."""
    if entries.rows:
        values = _shared_out(angles, *_box(entries, angles))
        return values.clamp_min(torch.finfo(values.dtype).tiny).log().masked_fill(entries.high == -torch.inf, -torch.inf)
    low, high = entries.low.to(angles), entries.high.to(angles)
    has_low, has_high = low.isfinite(), high.isfinite()
    low, high = low.where(has_low, 0.0), high.where(has_high, 0.0)
    beyond = unit * ((angles.square() + 1).sqrt() - 1)
    both = low + (high - low) * (angles.sin() + 1) / 2
    one = torch.where(has_low, low + beyond, torch.where(has_high, high - beyond, unit * angles))
    return torch.where(has_low & has_high, both, one)


def _box(entries: Entries, like: Tensor) -> tuple[Tensor, Tensor]:
    """The least probabilities of rows, and how much more they may be."""
    low, high = entries.low.to(like).exp(), entries.high.to(like).exp()
    return low, (high - low).clamp_min(0.0)


def _shared_out(logits: Tensor, low: Tensor, width: Tensor) -> Tensor:
    """Rows low + width * sigmoid(logits + one number a row) that sum to 1: without a kink, wherever several are at bounds."""
    with torch.no_grad():
        most = logits.abs().amax(-1, keepdim=True) + 40.0
        less, more = -most, most
        for _ in range(HALVINGS):
            level = (less + more) / 2
            above = (low + width * (logits + level).sigmoid()).sum(-1, keepdim=True) > 1
            less, more = torch.where(above, less, level), torch.where(above, level, more)
        level, shares = (less + more) / 2, (logits + (less + more) / 2).sigmoid()
        slope = (width * shares * (1 - shares)).sum(-1, keepdim=True).clamp_min(torch.finfo(width.dtype).tiny)
    excess = (low + width * (logits + level).sigmoid()).sum(-1, keepdim=True) - 1
    return low + width * (logits + level - (excess - excess.detach()) / slope).sigmoid()
