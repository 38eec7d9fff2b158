"""Does a source predict the token that comes next, or is it one off?

PROPS weighs y_t by what its sources said of y_t before it came. A source that is asked too late has seen y_t and predicts
y_{t+1}; one that is asked for the token before has only stale things to say. Either ruins the weights without any error, so
the contract is tested: predictions must fit the token they are for better than its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pplseq.models.props.source import CheckedSource, Source


class Alignment(NamedTuple):
    """Mean log-probabilities, nats, of a stream's tokens under predictions made for time t.

    previous: of y_{t-1}, which the source has observed. current: of y_t. following: of y_{t+1}.
    late, early: z-scores of (previous - current) and (following - current), paired over t. Above 3, `early` says that the
        source has seen the token it was to predict. `late` says that it predicts what it observed last: it is one step
        behind, or it is a cache, which may well do so.
    """

    previous: float
    current: float
    following: float
    late: float
    early: float


def measure_alignment(source: Source, tokens: Sequence[int]) -> Alignment:
    """Runs a source over a stream and compares its predictions with three tokens each; see :class:`Alignment`.

    Args:
        source: it observes the stream.
        tokens: at least 12 tokens, 100 or more to say something.
    """
    ids = np.asarray(tokens)
    if ids.ndim != 1 or len(ids) < 12:
        raise ValueError(f"tokens: expected at least 12 ids in a row, got shape {ids.shape}")
    checked = CheckedSource(source)
    scores = np.empty((len(tokens) - 2, 3))
    for t, y in enumerate(ids.tolist()):
        probs = checked.predict()
        if 0 < t < len(tokens) - 1:
            scores[t - 1] = probs[ids[t - 1 : t + 2]]
        checked.observe(y)
    scores = np.log(np.maximum(scores, 1e-12))
    return Alignment(*scores.mean(0).tolist(), *(_paired(scores[:, k] - scores[:, 1]) for k in (0, 2)))


def check_alignment(source: Source, tokens: Sequence[int]) -> Alignment:
    """:func:`measure_alignment`, and a ValueError where predictions fit the token behind the one they are for."""
    found = measure_alignment(source, tokens)
    name = getattr(source, "name", None) or type(source).__name__
    values = f"{found.previous:.3f}, {found.current:.3f}, {found.following:.3f}"
    said = f"mean log p is {values} for the token before, the next one, and the one behind it"
    if found.early > 3:
        raise ValueError(
            f"{name}: its predictions fit the token behind the next one ({said}): it has already seen the token it is asked "
            "for. Ask with predict() first, then tell with observe(y)"
        )
    return found


def _paired(differences: np.ndarray) -> float:
    error = differences.std(ddof=1) / math.sqrt(len(differences))
    return float(differences.mean() / error) if error > 0 else 0.0
