"""Numbers of parameters that a fit leaves as they are, by every method.

A parameter whose ``requires_grad`` is False is held whole, whoever said so; of others single entries may be. M-steps set
parameters through :func:`kept`, gradients of what is held are none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Slot(NamedTuple):
    """A parameter as it is learned. raw: its numbers. rows: whether rows of them are logits of probabilities. allowed: which of
    these there are, None for all. triangle: whether they are lower triangular matrices, which are held whole."""

    raw: nn.Parameter
    rows: bool = False
    allowed: Tensor | None = None
    triangle: bool = False

    def num_free(self, mask: Tensor) -> int:
        """How many parameters those that the mask holds are."""
        if self.triangle:
            size = self.raw.shape[-1]
            return int(mask.all()) * self.raw[..., 0, 0].numel() * size * (size + 1) // 2
        if not self.rows:
            return int(mask.sum())
        allowed = torch.ones_like(mask) if self.allowed is None else self.allowed.expand(mask.shape)
        return int((mask & allowed).sum(-1).minimum(allowed.sum(-1) - 1).sum())


class Entries(NamedTuple):
    """Held entries of a parameter, those of a mask. values: numbers of all, of rows log-probabilities."""

    mask: Tensor
    values: Tensor
    rows: bool

    def at(self, raw: Tensor) -> Entries:
        """The same entries, at the numbers of a parameter."""
        return self._replace(values=raw.detach().log_softmax(-1) if self.rows else raw.detach().clone())

    def put(self, new: Tensor) -> Tensor:
        """New numbers with the held ones in their places; what these leave of a row is shared out as the new ones say."""
        values = self.values.to(new)
        if self.rows:
            left = 1 - values.exp().where(self.mask, 0.0).sum(-1, keepdim=True)
            free = new.masked_fill(self.mask, -torch.inf).log_softmax(-1)
            new = torch.where(self.mask, 0.0, free + left.clamp_min(0.0).log())
        return torch.where(self.mask, values, new)

    def slope(self, raw: Tensor, gradient: Tensor) -> Tensor:
        """The gradient in what may move, of rows as :meth:`put` makes them."""
        gradient = gradient.masked_fill(self.mask, 0.0)
        if self.rows:
            shares = raw.detach().masked_fill(self.mask, -torch.inf).softmax(-1).nan_to_num(0.0)
            gradient = gradient - shares * gradient.sum(-1, keepdim=True)
        return gradient


def held(raw: Tensor) -> Tensor | None:
    """Where a parameter is held; None where nowhere."""
    if not raw.requires_grad:
        return torch.ones_like(raw, dtype=torch.bool)
    entries = getattr(raw, "held_entries", None)
    return None if entries is None else entries.mask


def frozen(module: nn.Module) -> list[str]:
    """Names of parameters whose ``requires_grad`` is False, but for those that a fit holds while it lasts."""
    return [name for name, raw in module.named_parameters() if not raw.requires_grad and not hasattr(raw, "held_whole")]


def any_held(module: nn.Module) -> bool:
    return any(held(parameter) is not None for parameter in module.parameters())


def kept(raw: Tensor, new: Tensor) -> Tensor:
    """New numbers of a parameter, the old ones where it is held."""
    if not raw.requires_grad:
        return raw.detach().to(new)
    entries: Entries | None = getattr(raw, "held_entries", None)
    return new if entries is None else entries.put(new)


def retake(parameters: Iterable[Tensor]) -> None:
    """Holds entries at the numbers that their parameters have now: those of a run that goes on."""
    for raw in parameters:
        entries: Entries | None = getattr(raw, "held_entries", None)
        if entries is not None:
            raw.held_entries = entries.at(raw)  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """What is held is, behind this, what it was, whatever set it."""
    before = [(part, part.detach().clone()) for part in module.parameters() if held(part) is not None]
    yield
    with torch.no_grad():
        for part, value in before:
            part.copy_(kept(part, part) if part.requires_grad else value)


@torch.no_grad()
def settle(parameters: Iterable[Tensor]) -> None:
    """Puts rows of which some entries are held back to where these are their probabilities."""
    for raw in parameters:
        if getattr(raw, "held_entries", None) is not None:
            raw.copy_(kept(raw, raw))


@contextlib.contextmanager
def holding(slots: Iterable[tuple[Slot, Tensor | None]]) -> Iterator[None]:
    """Holds parameters, at the entries of a mask or whole for None, while this lasts."""
    undo: list[Any] = []
    try:
        for (raw, rows, *_), mask in slots:
            if not raw.requires_grad:
                continue
            if mask is None:
                raw.requires_grad_(False)
                raw.held_whole = True  # pyright: ignore[reportAttributeAccessIssue]
                undo.append(lambda raw=raw: (raw.requires_grad_(True), vars(raw).pop("held_whole", None)))
                continue
            before: Entries | None = getattr(raw, "held_entries", None)
            mask = mask if before is None else mask | before.mask
            entries: Any = Entries(mask, raw, rows).at(raw)
            raw.held_entries = entries  # pyright: ignore[reportAttributeAccessIssue]
            hook = raw.register_hook(lambda gradient, raw=raw, entries=entries: entries.slope(raw, gradient))
            undo.append(lambda raw=raw, hook=hook: (hook.remove(), vars(raw).pop("held_entries", None)))
        yield
    finally:
        for back in undo:
            back()
