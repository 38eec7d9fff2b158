"""What a stream can be told: how texts are read, and how its model learns; also as options of the commands about streams."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from pplseq import checks
from pplseq.models.props.guard import LEAST


@dataclass(frozen=True)
class StreamOptions:
    """How texts become sources and lines become words; a stream goes on with those it was begun with.

    Args:
        order: longest n-gram of ngram:TEXT.
        min_count: rarer words of TEXT are unknown, where TEXT gives the vocabulary.
        max_vocabulary: at most so many words, where TEXT gives them.
        lower: lower-case all text.
        units: what is a word, where TEXT gives the vocabulary.
        checkpoint: of a run.
        decay: of the cache's counts at every word.
        eos: end every line with the end-of-line word (default: where the vocabulary has it).
        unknown: a word outside the vocabulary: read it as the unknown word, leave it out, or refuse its line (default: unk
            where the vocabulary has it, else error).
        by_line: every line is a sequence of its own, begun from the start distribution.
    """

    order: int = checks.setting(5, check=checks.count)
    min_count: int = checks.setting(2, check=checks.count)
    max_vocabulary: int | None = checks.setting(None, check=partial(checks.count, least=3))
    lower: bool = False
    units: Literal["words", "characters", "bytes"] = "words"
    checkpoint: Literal["best", "last"] = "best"
    decay: float = checks.setting(1.0, check=partial(checks.share, interval="(0, 1]"))
    eos: bool | None = None
    unknown: Literal["unk", "skip", "error"] | None = None
    by_line: bool = checks.setting(False, flag="--by-line")


@dataclass(frozen=True)
class StreamSettings:
    """How the model of a stream learns, a PROPSLearner.

    Args:
        num_perturbations: states that are learned.
        source_share: probability of the sources together before anything was learned; the rest is the learned states'.
        initial: all of these probabilities: of every source in its order, then of the learned states.
        exponent: word t weighs t^-EXPONENT in the running statistics (default: 0.8; 0.6 with several sources).
        step_size: the same weight for every word instead, for streams that drift.
        drift: where the stream has become another one, learn it anew: the step size goes back.
        guard: least weight of the first source in a mixture with all that is learned, which bounds what any stretch of the
            stream can lose to it: 4.3 nats of 200 words at .02; 0 for none.
        warm_up: tokens before the first update.
        smoothing: pseudo-count of a state, shared by all words.
        averaging: "recent": keep parameters averaged over the stream's later part too; what does not learn uses them.
        window: words at most whose state the next ones still bear on; costs exactness only where states last for very long.
        seed: of the first parameters.
    """

    num_perturbations: int = checks.setting(2, check=checks.count)
    source_share: float = checks.setting(0.9, check=partial(checks.share, interval="(0, 1)"))
    initial: tuple[float, ...] = ()
    exponent: float | None = checks.setting(None, check=partial(checks.share, interval="(0.5, 1]"))
    step_size: float | None = checks.setting(None, check=partial(checks.share, interval="(0, 1)"))
    drift: bool = checks.setting(False, flag="--drift")
    guard: float = checks.setting(LEAST, check=partial(checks.share, interval="[0, 1)"))
    warm_up: int = checks.setting(20, check=checks.count)
    smoothing: float = checks.setting(0.05, check=partial(checks.positive, zero=True))
    averaging: str | None = None
    window: int = checks.setting(256, check=checks.count)
    seed: int = 0
