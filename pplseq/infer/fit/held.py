"""Numbers of parameters that a fit leaves as they are, or within bounds, by every method.

A parameter whose ``requires_grad`` is False is held whole, whoever said so; of others single entries may be, whose bounds are
then one number. M-steps set parameters through :func:`kept`, gradients of what is held are none, and what has bounds is moved
by :class:`~pplseq.infer.fit.points.Points`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Ends = dict[str, tuple[Tensor, Tensor]]  # by name of a parameter the smallest and the largest numbers it may have


class Slot(NamedTuple):
    """A parameter as it is learned. raw: its numbers. rows: whether rows of them are logits of probabilities. allowed: which of
    these say anything, None for all. triangle: whether they are lower triangular matrices, which are held whole. raw_of: a
    number from a value as models are given it, increasing; None where it is not a function of that alone. support: the ends of
    what such values may be. clips: whether the best value within bounds, of an M-step, is the best of all, moved into them.
    value_of: what ``raw_of`` undoes. of_states: whether states lie along the first axis. pools: whether an M-step says how much
    it knows of each of them, so that what they share, or their order, is the best there is."""

    raw: nn.Parameter
    rows: bool = False
    allowed: Tensor | None = None
    triangle: bool = False
    raw_of: Callable[[Tensor], Tensor] | None = None
    support: tuple[float, float] = (-math.inf, math.inf)
    clips: bool = True
    value_of: Callable[[Tensor], Tensor] | None = None
    of_states: bool = False
    pools: bool = False

    def num_free(self, mask: Tensor | None = None) -> int:
        """How many parameters there are, or those that a mask holds."""
        if self.triangle:
            size, whole = self.raw.shape[-1], mask is None or bool(mask.all())
            return whole * self.raw[..., 0, 0].numel() * size * (size + 1) // 2
        if mask is None and self.allowed is None:
            return self.raw.numel() - (self.raw[..., 0].numel() if self.rows else 0)
        mask = torch.ones_like(self.raw, dtype=torch.bool) if mask is None else mask
        allowed = torch.ones_like(mask) if self.allowed is None else self.allowed.expand(mask.shape)
        if not self.rows:
            return int((mask & allowed).sum())
        return int((mask & allowed).sum(-1).minimum(allowed.sum(-1) - 1).sum())

    def held_at(self, mask: Tensor) -> Entries:
        """The entries of a mask, held at the numbers that they have."""
        low, high = torch.full_like(self.raw, -torch.inf), torch.full_like(self.raw, 0.0 if self.rows else torch.inf)
        if self.rows and self.allowed is not None:  # what says nothing has no share of a row
            never = ~self.allowed.expand(mask.shape)
            high, mask = high.masked_fill(never, -torch.inf), mask | never
        return Entries(low, high, self.rows, mask).at(self.raw)

    def between(self, name: str, low: Tensor, high: Tensor) -> Entries:
        """Values between bounds, in the shape and precision of the parameter.

        Raises:
            ValueError: where there are none, or bounds are not of single numbers of this parameter.
        """
        if self.rows:
            allowed = torch.ones_like(low, dtype=torch.bool) if self.allowed is None else self.allowed.expand(low.shape)
            low, high = low.clamp_min(0.0), high.clamp_max(1.0).where(allowed, 0.0)
            fits = (low <= high).all(-1) & (low.sum(-1) <= 1 + 1e-12) & (high.sum(-1) >= 1 - 1e-12)
            if not bool(fits.all()):
                row = (~fits).nonzero()[0].tolist()
                raise ValueError(
                    f"bounds: no probabilities of row {row or ''} of {name!r} lie within them and sum to 1: low sum to "
                    f"{float(low.sum(-1)[tuple(row)]):.6g}, high to {float(high.sum(-1)[tuple(row)]):.6g}"
                )
            return Entries(low.log().to(self.raw), high.log().to(self.raw), True, low == high)
        self.check_bounds(name, low, high)
        assert self.raw_of is not None
        least, most = self.support
        ends = self.raw_of(torch.where(low > least, low, 1.0)), self.raw_of(torch.where(high < most, high, 1.0))
        found = torch.where(low > least, ends[0], -torch.inf), torch.where(high < most, ends[1], torch.inf)
        return Entries(found[0].to(self.raw), found[1].to(self.raw), False, low == high)

    def check_bounds(self, name: str, low: Tensor, high: Tensor) -> None:
        """Raises ValueError where numbers have no bounds, or no value that the parameter of this name may have is in them."""
        if self.raw_of is None:
            raise ValueError(
                f"bounds: {name!r} is not learned number by number (a matrix whose numbers go together, or in units of the "
                "data), so that single ones have no bounds; hold it, fixed=, or leave its bounds out"
            )
        least, most = self.support
        empty = (low > high) | (high <= least) | (low >= most)
        if bool(empty.any()):
            place = empty.nonzero()[0].tolist()
            pair = float(low[tuple(place)]), float(high[tuple(place)])
            at = f" at {place}" if place else ""
            raise ValueError(f"bounds: no value of {name!r}, which lie between {least:g} and {most:g}, is in {pair}{at}")

    def together(self, name: str, how: str) -> Together:
        """Values that all states share ("equal"), or that rise or fall from state to state.

        Raises:
            ValueError: for parameters that states have no values of.
        """
        if how not in ("equal", *ORDERS):
            raise ValueError(f"bounds: {name!r} takes a pair (low, high), 'equal', 'increasing' or 'decreasing'; got {how!r}")
        if not self.of_states or self.allowed is not None or (self.raw_of is None and not self.rows):
            raise ValueError(f"bounds: {name!r} is no table of numbers of each state that these could share or be ordered by")
        if self.rows and how != "equal":
            raise ValueError(f"bounds: {name!r} holds rows of probabilities, which have no order; 'equal' shares one row")
        return Together(self, how)


@torch.no_grad()
def scatter(slots: Iterable[Slot]) -> None:
    """Moves starts of states that would be the same once they are moved into their bounds, so that no fit would ever tell them
    apart, to random places inside: as far from a bound as they were beyond it at most."""
    own = [slot.raw for slot in slots if slot.of_states and not slot.rows]
    own = [raw for raw in own if len(raw) == len(own[0])]
    if not any(isinstance(entries_of(raw), Entries) for raw in own):
        return
    nearest = [kept(raw, raw) for raw in own]
    each = torch.cat([value.reshape(len(value), -1) for value in nearest], -1)
    alike = ((each.unsqueeze(0) == each.unsqueeze(1)).all(-1).sum(-1) > 1).nonzero().flatten()
    for raw, inside in zip(own, nearest, strict=True):
        entries = entries_of(raw)
        if isinstance(entries, Entries):
            beyond = (raw - inside).masked_fill(entries.mask, 0.0)
            depth = torch.rand_like(beyond) * beyond.abs().minimum(entries.high - entries.low)
            raw[alike] = torch.where(beyond != 0, inside - beyond.sign() * depth, raw)[alike]


ORDERS = {"increasing": 1.0, "decreasing": -1.0}


class Together(NamedTuple):
    """What holds of the values of all states (their first axis) together, in the place of :class:`Entries`."""

    slot: Slot
    how: str
    bounded = True

    @property
    def mask(self) -> Tensor:
        """Nothing is held."""
        return torch.zeros(1, dtype=torch.bool)

    @property
    def told(self) -> tuple[str]:
        """What a resumed fit must be given alike."""
        return (self.how,)

    def at(self, raw: Tensor) -> Together:
        """The same."""
        return self

    def put(self, new: Tensor, weight: Tensor | None = None) -> Tensor:
        """The best numbers, of a function that is a sum over states of weights (Z, ...) times squared distances of values, or
        times divergences whose means are the values: pooled means. Without weights sorted, or their mean.

        Source: R. E. Barlow and others (1972), Statistical inference under order restrictions, theorem 1.10 and section 2.3.
        """
        values = new.log_softmax(-1).exp() if self.slot.rows else _value_of(self.slot, new)
        known = torch.ones_like(values) if weight is None else weight.to(values)
        known = known.reshape(*known.shape, *(1,) * (values.dim() - known.dim())).expand_as(values)
        known = known.masked_fill(values.isnan(), 0.0)
        values = values.nan_to_num(0.0)
        if self.how == "equal":
            total = known.sum(0)
            mean = torch.where(total > 0, (known * values).sum(0) / total, values.mean(0))
            values = mean.expand_as(values)
        elif weight is None:
            values = values.sort(0, descending=self.how == "decreasing").values
        else:
            sign = ORDERS[self.how]
            values = sign * isotonic(sign * values, known)
        if self.slot.rows:
            return values.log()
        assert self.slot.raw_of is not None, "see Slot.together"
        return self.slot.raw_of(values)

    def slope(self, raw: Tensor, gradient: Tensor) -> Tensor:
        """The gradient as it is: what an optimizer moves is another number."""
        return gradient


def _value_of(slot: Slot, raw: Tensor) -> Tensor:
    assert slot.value_of is not None, "which goes with raw_of, see Slot.together"
    return slot.value_of(raw)


def isotonic(values: Tensor, weight: Tensor) -> Tensor:
    """(Z, ...) the nearest values that do not fall along the first axis, by weighted squares: neighbours that do are pooled."""
    columns, shares = values.reshape(len(values), -1).T.tolist(), weight.reshape(len(values), -1).T.tolist()
    found = []
    for column, share in zip(columns, shares, strict=True):
        blocks: list[list[float]] = []  # mean, weight, size
        for value, known in zip(column, share, strict=True):
            blocks.append([value, known, 1])
            while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
                (a, u, m), (b, v, n) = blocks[-2:]
                blocks[-2:] = [[(u * a + v * b) / (u + v) if u + v > 0 else (a + b) / 2, u + v, m + n]]
        found.append([mean for mean, _, size in blocks for _ in range(int(size))])
    return torch.tensor(found, dtype=values.dtype, device=values.device).T.reshape(values.shape)


class Entries(NamedTuple):
    """Where numbers of a parameter may lie, of rows their log-probabilities: between low and high; mask: where these are one,
    and a number is held."""

    low: Tensor
    high: Tensor
    rows: bool
    mask: Tensor

    @property
    def bounded(self) -> bool:
        """Whether some have bounds and are not held."""
        ends = self.low.isfinite() | ((self.high < 0) if self.rows else self.high.isfinite())
        return bool((ends & ~self.mask & (self.low < self.high)).any())

    @property
    def told(self) -> tuple[Tensor, Tensor]:
        """What a resumed fit must be given alike."""
        return self.low, self.high

    def at(self, raw: Tensor) -> Entries:
        """The same, with what is held at the numbers of a parameter."""
        value = raw.detach()
        if self.rows:
            value = value.masked_fill(self.high == -torch.inf, -torch.inf).log_softmax(-1)
        return self._replace(low=torch.where(self.mask, value, self.low), high=torch.where(self.mask, value, self.high))

    def within(self, name: str, other: Entries) -> Entries:
        """These held entries within bounds.

        Raises:
            ValueError: where a number that is held lies outside.
        """
        slack = max(1e-9, 8 * torch.finfo(self.low.dtype).eps) * (1 + self.low.abs().nan_to_num(0.0, 0.0, 0.0))
        out = self.mask & ((self.low < other.low - slack) | (self.low > other.high + slack))
        if bool(out.any()):
            raise ValueError(f"bounds: {name!r} is held (fixed=) at a value outside of them, at {out.nonzero()[0].tolist()}")
        low, high = (torch.where(self.mask, own, new) for own, new in ((self.low, other.low), (self.high, other.high)))
        return self._replace(low=low, high=high, mask=self.mask | other.mask)

    def put(self, new: Tensor, weight: Tensor | None = None) -> Tensor:
        """The best numbers within, of a function whose best ones anywhere are given and that falls with the distance of each;
        of rows, of one that is a sum of their logarithms in the weights of the best ones."""
        low, high = self.low.to(new), self.high.to(new)
        return filled(new.log_softmax(-1), low, high) if self.rows else new.minimum(high).maximum(low)

    def slope(self, raw: Tensor, gradient: Tensor) -> Tensor:
        """The gradient in what may move, of rows as :meth:`put` makes them."""
        gradient = gradient.masked_fill(self.mask, 0.0)
        if self.rows:
            shares = raw.detach().masked_fill(self.mask, -torch.inf).softmax(-1).nan_to_num(0.0)
            gradient = gradient - shares * gradient.sum(-1, keepdim=True)
        return gradient


def filled(log_probs: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Rows of log-probabilities within bounds that maximise sum_i p_i log q_i, with p what is given: q_i is p_i times one
    factor a row, or the bound that this passes.

    Source: G. R. Bitran and A. C. Hax (1981), Disaggregation and resource allocation using convex knapsack problems with
    bounded variables, Management Science 27: numbers beyond their bounds are set to these, on that side where more is beyond,
    until none is.
    """
    free, found, new = low < high, low, low
    for _ in range(log_probs.shape[-1] + 1):
        left = (1 - found.exp().masked_fill(free, 0.0).sum(-1, keepdim=True)).clamp_min(0.0).log()
        own = log_probs.masked_fill(~free, -torch.inf)
        own = torch.where((own == -torch.inf).all(-1, keepdim=True) & free, 0.0, own)  # nothing is known of these: alike
        new = torch.where(free, left + own.log_softmax(-1), found)
        over, under = free & (new > high), free & (new < low)
        if not bool((over | under).any()):
            break
        excess = (new.exp() - high.exp()).masked_fill(~over, 0.0).sum(-1, keepdim=True)
        lack = (low.exp() - new.exp()).masked_fill(~under, 0.0).sum(-1, keepdim=True)
        over, under = over & (excess >= lack), under & (lack >= excess)
        found, free = torch.where(over, high, torch.where(under, low, found)), free & ~over & ~under
    return new


def entries_of(raw: Tensor) -> Entries | Together | None:
    """Where numbers of a parameter may lie, while a fit lasts that holds or bounds some."""
    return getattr(raw, "held_entries", None)


def held(raw: Tensor) -> Tensor | None:
    """Where a parameter is held; None where nowhere."""
    if not raw.requires_grad:
        return torch.ones_like(raw, dtype=torch.bool)
    entries = entries_of(raw)
    return None if entries is None or not bool(entries.mask.any()) else entries.mask


def frozen(module: nn.Module) -> list[str]:
    """Names of parameters whose ``requires_grad`` is False, but for those that a fit holds while it lasts."""
    return [name for name, raw in module.named_parameters() if not raw.requires_grad and not hasattr(raw, "held_whole")]


def any_held(module: nn.Module) -> bool:
    """Whether anything is held, or has bounds."""
    return any(map(is_bound, module.parameters()))


def is_bound(raw: Tensor) -> bool:
    """Whether a parameter is held, in part or whole, or has bounds."""
    return not raw.requires_grad or entries_of(raw) is not None


def kept(raw: Tensor, new: Tensor, weight: Tensor | None = None) -> Tensor:
    """New numbers of a parameter, the old ones where it is held; weight: (Z, ...) how much is known of those of each state, as
    :meth:`Together.put` takes it."""
    if not raw.requires_grad:
        return raw.detach().to(new)
    entries = entries_of(raw)
    return new if entries is None else entries.put(new, weight)


def retake(parameters: Iterable[Tensor]) -> None:
    """Holds entries at the numbers that their parameters have now: those of a run that goes on."""
    for raw in parameters:
        entries = entries_of(raw)
        if entries is not None:
            raw.held_entries = entries.at(raw)  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """What is held is, behind this, what it was, whatever set it."""
    before = [(part, part.detach().clone()) for part in module.parameters() if is_bound(part)]
    yield
    with torch.no_grad():
        for part, value in before:
            part.copy_(kept(part, part) if part.requires_grad else value)


@torch.no_grad()
def settle(parameters: Iterable[Tensor]) -> None:
    """Puts rows of which some entries are held back to where these are their probabilities."""
    for raw in parameters:
        if entries_of(raw) is not None:
            raw.copy_(kept(raw, raw))


@contextlib.contextmanager
def holding(slots: Iterable[tuple[Slot, Entries | Together | Tensor | None]]) -> Iterator[None]:
    """Holds parameters, at the entries of a mask or whole for None, or keeps them within bounds, while this lasts."""
    undo: list[Any] = []
    try:
        for slot, what in slots:
            raw = slot.raw
            if not raw.requires_grad:
                continue
            if what is None:
                raw.requires_grad_(False)
                raw.held_whole = True  # pyright: ignore[reportAttributeAccessIssue]
                undo.append(lambda raw=raw: (raw.requires_grad_(True), vars(raw).pop("held_whole", None)))
                continue
            entries: Any = slot.held_at(what) if isinstance(what, Tensor) else what
            before = vars(raw).get("held_entries")
            raw.held_entries = entries  # pyright: ignore[reportAttributeAccessIssue]
            hook = raw.register_hook(lambda gradient, raw=raw, entries=entries: entries.slope(raw, gradient))
            undo.append(lambda raw=raw, hook=hook, before=before: (hook.remove(), _set_entries(raw, before)))
            if entries.bounded:
                settle([raw])
        yield
    finally:
        for back in undo:
            back()


def _set_entries(raw: Tensor, entries: Any) -> None:
    if entries is None:
        vars(raw).pop("held_entries", None)
    else:
        raw.held_entries = entries  # pyright: ignore[reportAttributeAccessIssue]


def between(raw: nn.Parameter, low: Tensor, high: Tensor) -> Entries | Together:
    """Where numbers of a parameter may lie as it is told, those that are not held between ``low`` and ``high`` too."""
    own = entries_of(raw)
    if isinstance(own, Together):
        return own
    if own is None:
        own = Entries(torch.full_like(raw, -torch.inf), torch.full_like(raw, torch.inf), False, torch.zeros_like(raw).bool())
    low, high = own.low.maximum(low.to(own.low)), own.high.minimum(high.to(own.high))
    return own._replace(low=torch.where(own.mask, own.low, low), high=torch.where(own.mask, own.high, high))
