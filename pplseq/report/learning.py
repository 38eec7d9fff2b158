"""The course of training, from the records of `metrics.jsonl`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

MAX_POINTS = 1000  # of a drawn curve: more cannot be seen, and make the page heavy


@dataclass(frozen=True, eq=False)
class Curve:
    """Perplexity against steps.

    Attributes:
        label: "training", or the protocol of a validation.
        steps: (P,) optimizer steps, rising.
        nats: (P,) nats per token.
    """

    label: str
    steps: np.ndarray
    nats: np.ndarray

    @property
    def perplexity(self) -> np.ndarray:
        """(P,) exp of the nats per token; finite, since records that overflow are left out."""
        return np.exp(self.nats)

    @property
    def best(self) -> int:
        """Position of the lowest point, the first of equals."""
        return int(self.nats.argmin())

    def thinned(self, num_points: int = MAX_POINTS) -> Curve:
        """At most `num_points` points, each the mean of its stretch of the curve."""
        if len(self.steps) <= num_points:
            return self
        parts = np.array_split(np.arange(len(self.steps)), num_points)
        steps, nats = (np.array([values[part].mean() for part in parts]) for values in (self.steps, self.nats))
        return Curve(self.label, steps, nats)


@dataclass(frozen=True, eq=False)
class Learning:
    """What `metrics.jsonl` tells.

    Attributes:
        train: the training curve, None if no training record has a finite loss.
        validation: a curve a protocol, in the order they first occur.
        rate_drops: steps at which a lower learning rate was first recorded.
        steps, epochs, seconds, tokens_per_second: at the end, None where not recorded; the last one is a median.
    """

    train: Curve | None
    validation: tuple[Curve, ...]
    rate_drops: tuple[int, ...]
    steps: int
    epochs: int | None
    seconds: float | None
    tokens_per_second: float | None


def read_learning(records: Iterable[Mapping[str, Any]]) -> Learning | None:
    """The course of training in records; None if none of them holds a step with a finite loss.

    Args:
        records: dictionaries with "step", "nats_per_token" and "kind" ("train" or "validation"); others are left out.
    """
    usable = [record for record in records if isinstance(record, Mapping) and _is_point(record)]
    if not usable:
        return None
    usable.sort(key=lambda record: record["step"])
    by_label: dict[str, list[Mapping[str, Any]]] = {}
    for record in usable:
        validation = record.get("kind") == "validation"
        by_label.setdefault(str(record.get("protocol", "validation")) if validation else "", []).append(record)
    train = by_label.pop("", None)
    rates = [(record["step"], record["lr"]) for record in usable if _is_number(record.get("lr"))]
    drops = [step for (_, before), (step, rate) in zip(rates, rates[1:], strict=False) if rate < before * (1 - 1e-9)]
    speeds = [r["tokens_per_second"] for r in usable if _is_number(r.get("tokens_per_second"))]
    last = usable[-1]
    return Learning(
        train=None if train is None else _curve("training", train),
        validation=tuple(_curve(label, group) for label, group in by_label.items()),
        rate_drops=tuple(drops),
        steps=last["step"],
        epochs=last["epoch"] if _is_number(last.get("epoch")) else None,
        seconds=last["seconds"] if _is_number(last.get("seconds")) else None,
        tokens_per_second=float(np.median(speeds)) if speeds else None,
    )


def _curve(label: str, records: list[Mapping[str, Any]]) -> Curve:
    return Curve(label, np.array([r["step"] for r in records]), np.array([float(r["nats_per_token"]) for r in records]))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_point(record: Mapping[str, Any]) -> bool:
    nats = record.get("nats_per_token")
    # 700 nats per token: the largest loss whose perplexity is a number
    return _is_number(record.get("step")) and _is_number(nats) and abs(nats) < 700
