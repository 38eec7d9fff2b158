"""Questions about texts that satisfy a constraint, answered exactly; names and answers as in :mod:`pplseq.models.answers`."""

from __future__ import annotations

import math
from typing import Any

import torch

from pplseq import checks
from pplseq.data.vocabulary import Vocabulary
from pplseq.distributions.drawing import seeded
from pplseq.models.answers import Words, observe, top_words
from pplseq.models.constrained import Bounds, Constrainable
from pplseq.models.constraints.constraint import Constraint
from pplseq.models.constraints.patterns import escaped
from pplseq.runs.training import model_device


def continue_text(
    model: Constrainable,
    vocabulary: Vocabulary,
    words: Words,
    *,
    length: int | tuple[int, int] = 20,
    num_samples: int = 1,
    temperature: float = 1.0,
    seed: int = 0,
    allow_unknown: bool = True,
    constraint: Constraint | None = None,
    whole: bool = False,
) -> dict[str, Any]:
    """Texts that go on from a prefix and satisfy a constraint, drawn from the model's exact posterior.

    Args:
        length: words behind the prefix without ``<eos>``: at most, or (shortest, longest).
        constraint: what the continuation, or the ``whole`` text, satisfies; None: its length alone.
        allow_unknown: False never draws the unknown word.

    Returns:
        Besides the continuations, each with log p(words | prefix), ``constraint_log_prob``: log p(constraint | prefix), nats.

    Raises:
        ValueError: a constraint that cannot be satisfied, a gap in the words, or a temperature other than 1.
    """
    if temperature != 1.0:
        raise ValueError(f"temperature: texts under a constraint are drawn from the model as it is (1), got {temperature}")
    if None in words:
        raise ValueError("words: a prefix has no gaps; ask infill")
    bounds = (0, length) if isinstance(length, int) else length
    answer: dict[str, Any] = {"words": [], "unknown": []}
    if words:
        answer = observe(model, vocabulary, words)[1]
    unknown = _refused(vocabulary, allow_unknown)
    if unknown is not None:  # in what is drawn: the prefix may have words that the model does not know
        drawn_words = Constraint.excluding([unknown])
        known = Constraint.length(len(words), len(words)).then(drawn_words) if whole else drawn_words
        constraint = known if constraint is None else constraint & known
    chain = model.constrained(constraint, length=bounds, prefix=list(words), whole=whole)  # type: ignore
    with seeded(seed):
        drawn = chain.sample(checks.count("num_samples", num_samples))
    rows = [row[row >= 0].tolist() for row in drawn.words[:, 0]]
    prefix = vocabulary.encode([word for word in words if word is not None]).tolist()
    before = _log_prob(model, prefix)
    texts = [{"words": vocabulary.decode(row), "log_prob": _log_prob(model, prefix + row) - before} for row in rows]
    return answer | {"constraint_log_prob": float(chain.log_prob()[0]), "continuations": texts}


def infill(
    model: Constrainable,
    vocabulary: Vocabulary,
    words: Words,
    *,
    top: int = 5,
    num_samples: int = 0,
    seed: int = 0,
    allow_unknown: bool = True,
    constraint: Constraint | None = None,
    gap_length: int | tuple[int, int] = 1,
    max_states: int = 10_000,
) -> dict[str, Any]:
    """What stands at gaps of one, several or an unknown number of words, given everything else and a constraint on the text.

    Args:
        words: None is a gap. gap_length: words at each gap, or (shortest, longest).
        constraint: what the whole text satisfies. top: words listed a gap, where all gaps have one word.
        max_states: of the automaton of words and gaps.

    Returns:
        ``filled``: the words of the most probable text and state path together; ``lengths``: p(number of words of the text);
        ``log_prob``: log p(any text that fits); ``gaps`` and ``samples`` as without a constraint.

    Raises:
        ValueError: no gap, or a text that cannot be.
    """
    x, answer = observe(model, vocabulary, words)
    gaps = [place for place, word in enumerate(words) if word is None]
    if not gaps:
        raise ValueError("words must have a gap to fill: write _ in text, null in JSON")
    ended = vocabulary.eos_id is not None and words[-1] == vocabulary.eos
    inner = list(words[:-1] if ended else words)
    least, most = Bounds.of(gap_length)
    known = iter(vocabulary.decode(vocabulary.encode([word for word in inner if word is not None]).tolist()))
    unknown = _refused(vocabulary, allow_unknown)
    proposed = "." if unknown is None else f"[^{escaped(unknown)}]"
    pattern = " ".join(f"{proposed}{{{least},{most}}}" if word is None else escaped(next(known)) for word in inner)
    template = Constraint.matching(pattern, max_states=max_states)
    template = template if constraint is None else template & constraint
    spare = len(inner) - inner.count(None)
    bounds = spare + inner.count(None) * least, spare + inner.count(None) * most
    chain = model.constrained(template, length=bounds, end=vocabulary.eos_id if ended else None)
    best, found = chain.viterbi(), chain.marginals()
    filled = vocabulary.decode(best.words[0, 0, : best.lengths[0, 0]].tolist())
    lengths = {n: p for n, p in enumerate(found.lengths[0].tolist()) if p > 0}
    answer |= {"filled": filled, "lengths": lengths, "log_prob": float(chain.log_prob()[0])}
    if least == most == 1:
        answer["gaps"] = [
            {"position": gap, "words": top_words(vocabulary, found.words[0, gap].log(), top)} for gap in gaps
        ]
    if num_samples:
        with seeded(seed):
            drawn = chain.sample(num_samples).words[:, 0]
        answer["samples"] = [vocabulary.decode(row[row >= 0].tolist()) for row in drawn]
    return answer


def _refused(vocabulary: Vocabulary, allow_unknown: bool) -> str | None:
    """The unknown word, where it must not be proposed."""
    return None if allow_unknown or vocabulary.unknown_id is None else vocabulary.unknown


def _log_prob(model: Constrainable, ids: list[int]) -> float:
    """log p of a text's beginning, nats."""
    if not ids:
        return 0.0
    value = float(model.log_prob(torch.tensor([ids], device=model_device(model)))[0])
    assert not math.isnan(value), "a text that was drawn"
    return value
