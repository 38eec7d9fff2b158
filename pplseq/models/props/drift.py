"""Has a stream become another one? A test of a stream's surprise, token by token."""

from __future__ import annotations

import math
import warnings
from typing import Any

from pplseq import checks

NEVER = -30.0  # nats: a source that gives a word so much less than the learner does all but excludes it
STATE = ("threshold", "slack", "warm_up", "count", "mean", "squares", "total")


class SurpriseDetector:
    """Tells when surprise, -log p(token | past), has risen for good: a cumulative sum of standardised surprise.

    A learner with sources gives it the surprise beyond its first source's, -log p(token | past) + log q(token | past): texts
    differ in how hard they are to everybody, and what a shift costs is what was learned beyond the source.

        S_t = max(0, S_{t-1} + min((x_t - m_t) / s_t, 3) - slack),    a change where S_t > threshold

    with mean m_t and deviation s_t of the surprises since the last change, x_t left out. Words to which the first source
    gives probability zero, or less than e^-30 of what the learner gives, are not heard: a few of them would drown the others
    in their deviation, as one in a hundred at e^-20 still blunts it. Surprise that falls, as it does while a stream is
    learned, raises no alarm. The interface is that of river's drift detectors: ``update(x)``, ``drift_detected``.

    Args:
        threshold, slack: in deviations; a rise by less than the slack is not seen, one by d deviations after about
            threshold / (d - slack) tokens. Of independent surprises one alarm in about exp(2 slack threshold) / (2 slack^2)
            tokens is false (Gaussian ones; millions at the defaults).
        warm_up: tokens before the first alarm.

    Source: E. S. Page, Continuous inspection schemes (1954), section 3.
    """

    def __init__(self, threshold: float = 40.0, slack: float = 0.15, warm_up: int = 50):
        self.threshold, self.slack = checks.positive("threshold", threshold), checks.positive("slack", slack)
        self.warm_up = checks.count("warm_up", warm_up, 2)
        self.drift_detected = False
        self._begin()

    def _begin(self) -> None:
        self.count, self.mean, self.squares, self.total = 0, 0.0, 0.0, 0.0

    def update(self, x: float) -> SurpriseDetector:
        """Takes a surprise, nats; ``drift_detected`` says afterwards whether it was the one too many."""
        if not math.isfinite(x):
            raise ValueError(f"x must be a finite surprise, nats, got {x}")
        self.drift_detected = False
        if self.count >= self.warm_up:
            spread = math.sqrt(max(self.squares / (self.count - 1), 1e-12))
            # one token alone proves nothing, however surprising
            self.total = max(0.0, self.total + min((x - self.mean) / spread, 3.0) - self.slack)
            if self.total > self.threshold:
                self._begin()
                self.drift_detected = True
                return self
        self.count += 1
        step = x - self.mean
        self.mean += step / self.count
        self.squares += step * (x - self.mean)
        return self

    def state_dict(self) -> dict[str, Any]:
        """The sums so far, and the arguments."""
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from sums, with the arguments under which they were made."""
        for name in STATE:
            setattr(self, name, state[name])


def detector_from(saved: dict[str, Any], has_sources: bool) -> SurpriseDetector:
    """The detector of a learner that was saved; one that heard something else then begins anew, with a warning."""
    detector = SurpriseDetector()
    if all(name in saved for name in STATE) and (saved.get("beyond_source", False) or not has_sources):
        detector.load_state_dict(saved)
    else:
        warnings.warn(
            "drift: the detector that was saved heard the surprise itself, not that beyond the first source's; it begins anew",
            stacklevel=3,
        )
    return detector


def detector_of(drift: Any, options: dict[str, Any]) -> Any:
    """The detector that a learner is to have: its own for True, none for None or False, or the object given.

    Raises:
        TypeError: an object without update() and drift_detected. ValueError: options that have no step size to be moved.
    """
    if drift is None or drift is False:
        return None
    for name in ("step_size", "averaging"):
        if options.get(name) is not None:
            raise ValueError(
                f"drift: it moves the falling step size back, and {name} keeps the past in another way; give one of the two"
            )
    if drift is True:
        return SurpriseDetector()
    if not callable(getattr(drift, "update", None)) or not hasattr(drift, "drift_detected"):
        raise TypeError(
            f"drift must be True, or a detector with update(x) and drift_detected as river's have, got {type(drift).__name__}"
        )
    return drift
