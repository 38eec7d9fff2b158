"""How much a learned stream may lose to its first source: a mixture of the two whose source never weighs little."""

from __future__ import annotations

import math
from typing import Any

from pplseq import checks

# chosen on streams of development: scripts/reproduce/personalisation_guards.py
LEAST = 0.02
START, BACK = 0.9, 0.002


class SourceGuard:
    """Mixes what a model and the first of its sources, left as it is, give to a token; nothing of the model changes.

        p(x) = w q(x) + (1 - w) p_model(x),     w <- max(least, (1 - back) w q(x) / p(x)),     w = start at first

    where q is the source. Over any n tokens in a row log p is at least that of the source less

        -log(least) - (n - 1) log(1 - back)

    nats, as w' p >= (1 - back) w q at every token: 4.3 nats of any 200 tokens at the defaults, and of the first 20 of a
    stream .15, of the first 200 .504 (-log start in the place of -log least). Where a learner is told by ``initial`` where
    its stream begins, start is `least`, and the beginning is promised no more than other places. Its price is at most -log(1
    - w) nats a token.

    A :class:`~pplseq.models.props.learner.PROPSLearner` has one; beside streams of ``PROPS.start``, of one user or many, it
    is the caller's to hold.

    Args:
        least: the source's least weight. start: its first one, at least `least`.
        back: share of the source's weight that the model gets back at every token, so that it is heard again soon after
            tokens at which the source was better.

    Source: M. Herbster and M. Warmuth, Tracking the best expert (1998), for shares that stay with an expert; here the one
        expert's is a floor, since all that is lost to the other is the model's own affair.
    """

    def __init__(self, least: float = LEAST, *, start: float = START, back: float = BACK):
        self.least = checks.share("guard", least, "(0, 1)")
        self.back = checks.share("back", back, "(0, 1)")
        self.weight = max(checks.share("start", start, "[0, 1)"), self.least)

    def mixed(self, source: float, model: float) -> float:
        """log p of a token, nats, from what the source and the model give to it."""
        first, second = math.log(self.weight) + source, math.log1p(-self.weight) + model
        top = max(first, second)
        return top if top == -math.inf else top + math.log(math.exp(first - top) + math.exp(second - top))

    def take(self, source: float, model: float) -> float:
        """The same, of a token that came: the weights move."""
        value = self.mixed(source, model)
        share = math.exp(math.log(self.weight) + source - value) if value > -math.inf else self.weight
        self.weight = max(self.least, (1 - self.back) * min(share, 1.0))
        return value

    def bound(self, num_tokens: int) -> float:
        """The most that so many tokens in a row can lose to the source, nats."""
        return -math.log(self.least) - (checks.count("num_tokens", num_tokens) - 1) * math.log1p(-self.back)

    def state_dict(self) -> dict[str, Any]:
        """Weight and arguments."""
        return {"least": self.least, "back": self.back, "weight": self.weight}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> SourceGuard:
        """One that goes on with a weight.

        Raises:
            KeyError, TypeError, ValueError: parts are missing, or no shares.
        """
        return cls(state["least"], start=state["weight"], back=state["back"])


def guard_of(guard: float | None, initial: Any, num_sources: int) -> SourceGuard | None:
    """The guard that a learner is to have: of `LEAST` unless told; none for 0, and without a source.

    Raises:
        ValueError: a least weight where there is no source that could have it.
    """
    least = checks.share("guard", LEAST if guard is None else guard, "[0, 1)")
    if guard and not num_sources:
        raise ValueError(f"guard: it is the least weight of the first source, and there is none; leave it out, got {guard}")
    # whoever says where the stream begins is not overruled
    start = {} if initial is None else {"start": least}
    return SourceGuard(least, **start) if least and num_sources else None
