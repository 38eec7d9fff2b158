"""Questions to a trained model of words, answered exactly, as JSON-able dictionaries.

Every function takes (model, vocabulary, words). In `words`, None is a gap: a token that was not seen. A word outside
the vocabulary counts as the unknown word, and its place stands under "unknown" in the answer. Log-probabilities are in
nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.vocabulary import Vocabulary
from pplseq.distributions.drawing import seeded
from pplseq.distributions.state import MISSING
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.discrete.results import StateMarginals
from pplseq.models.constrained import Bounds
from pplseq.models.constraints.constraint import Constraint
from pplseq.models.constraints.patterns import escaped
from pplseq.models.state_labels import named
from pplseq.runs.settings import perplexity
from pplseq.runs.training import model_device

Words = Sequence[str | None]
REJECTION_ROUNDS = 100


class Reading(NamedTuple):
    """How a kind of model is asked about words one after the other.

    tokens: (model, vocabulary, words) -> (log p of each word given those before it (T,), 0 at a gap; beginning of the answer).
    begin: (model, vocabulary, words, B) -> (log p(next word) (B, V), belief, beginning of the answer).
    go_on: (model, ids (B, 1), belief) -> (log p(next word) (B, V), belief); the belief is None at a sentence's start.
    """

    tokens: Callable[[Any, Vocabulary, Words], tuple[Tensor, dict[str, Any]]]
    begin: Callable[[Any, Vocabulary, Words, int], tuple[Tensor, Any, dict[str, Any]]]
    go_on: Callable[[Any, Tensor, Any], tuple[Tensor, Any]]


def _tokens(model: Any, vocabulary: Vocabulary, words: Words) -> tuple[Tensor, dict[str, Any]]:
    x, answer = observe(model, vocabulary, words)
    return model.posterior(x).token_log_probs()[0].double(), answer


def _begin(model: Any, vocabulary: Vocabulary, words: Words, rows: int) -> tuple[Tensor, Any, dict[str, Any]]:
    if words:
        x, answer = observe(model, vocabulary, words)
        chain = model.posterior(x.expand(rows, -1))
        return chain.next().word_log_probs, chain.filtered(), answer
    # The model's specs come with a chain; which word it is about does not matter here.
    chain = model.posterior(torch.zeros(rows, 1, dtype=torch.long, device=model_device(model)))
    return chain.next_after(None).word_log_probs.expand(rows, -1), None, {"words": [], "unknown": []}


def _go_on(model: Any, ids: Tensor, belief: Any) -> tuple[Tensor, Any]:
    chain = model.posterior(ids, start=belief)
    return chain.next().word_log_probs, chain.filtered()


def _network_tokens(model: Any, vocabulary: Vocabulary, words: Words) -> tuple[Tensor, dict[str, Any]]:
    _check_without_gaps(words)
    return _tokens(model, vocabulary, words)


def _network_begin(model: Any, vocabulary: Vocabulary, words: Words, rows: int) -> tuple[Tensor, Any, dict[str, Any]]:
    _check_without_gaps(words)
    answer = observe(model, vocabulary, words)[1] if words else {"words": [], "unknown": []}
    prefix = list(answer["words"])
    return torch.as_tensor(model.next_word(prefix)).expand(rows, -1), [prefix] * rows, answer


def _network_go_on(model: Any, ids: Tensor, belief: Any) -> tuple[Tensor, Any]:
    read = [[*words, word] for words, word in zip(belief, model.vocabulary.decode(ids[:, 0].tolist()), strict=True)]
    return torch.stack([torch.as_tensor(model.next_word(words)) for words in read]), read


def _check_without_gaps(words: Words) -> None:
    if None in words:
        raise ValueError("words: a network cannot read over a missing word; fill the gap, or ask a model with states")


STATES = Reading(_tokens, _begin, _go_on)
NETWORK = Reading(_network_tokens, _network_begin, _network_go_on)


def score(model: Any, vocabulary: Vocabulary, words: Words, *, how: Reading = STATES) -> dict[str, Any]:
    """log p(words), and of each word given those before it (0 at a gap)."""
    tokens, answer = how.tokens(model, vocabulary, words)
    num_seen, log_prob = sum(word is not None for word in words), float(tokens.sum())
    found = {"log_prob": log_prob, "perplexity": perplexity(-log_prob / num_seen) if num_seen else None}
    return answer | found | {"token_log_probs": tokens.tolist()}


def filter_states(model: Any, vocabulary: Vocabulary, words: Words, *, top: int = 5) -> dict[str, Any]:
    """p(z_t | x_1..x_t) for every t: the `top` most probable states."""
    x, answer = observe(model, vocabulary, words)
    belief, steps = None, []
    for t in range(x.shape[1]):
        belief = model.posterior(x[:, t : t + 1], start=belief).filtered()
        steps.append(top_states(belief.ids, belief.log_probs.exp(), top, getattr(model, "state_names", None)))
    return answer | {"states": steps}


def smooth_states(model: Any, vocabulary: Vocabulary, words: Words, *, top: int = 5) -> dict[str, Any]:
    """p(z_t | x_1..x_T) for every t: the `top` most probable states; and, without gaps, the path's entropy in nats."""
    x, answer = observe(model, vocabulary, words)
    chain = model.posterior(x)
    marginals = chain.marginals()
    if marginals.wide_places is None:
        answer["entropy"] = float(chain.entropy()[0].detach())
    else:  # a gap opens all states, whose pairs (which the entropy needs) are too many
        marginals = StateMarginals(None, marginals.dense(model.num_states))
    names = getattr(model, "state_names", None)
    steps = [
        top_states(None if marginals.ids is None else marginals.ids[:, t], marginals.probs[:, t], top, names)
        for t in range(x.shape[1])
    ]
    return answer | {"states": steps}


def topics(model: Any, vocabulary: Vocabulary, words: Words, *, top: int = 5) -> dict[str, Any]:
    """p(topic | x), the `top` most probable ones of the line, each with the words that it lifts most."""
    if getattr(model, "num_topics", 1) == 1:
        raise ValueError("topics: the model has none; train one with --num-topics")
    x, answer = observe(model, vocabulary, words)
    probs, order = model.topics(x)[0, -1].sort(descending=True)
    lifted = model.lifted_words(top)
    found = [{"topic": c, "prob": float(p), "words": lifted[c]} for c, p in zip(order.tolist(), probs, strict=True)]
    return answer | {"topics": found[:top]}


def decode_states(model: Any, vocabulary: Vocabulary, words: Words, *, num_paths: int = 1) -> dict[str, Any]:
    """The most probable state paths, argmax p(z_1..z_T | x), with their joint log p(z, x) and posterior probability."""
    x, answer = observe(model, vocabulary, words)
    chain = model.posterior(x)
    if num_paths == 1:
        paths, log_probs = (value.unsqueeze(0) for value in chain.viterbi())
    else:
        paths, log_probs = chain.k_best(num_paths)
    evidence, names = float(chain.log_prob()[0].detach()), getattr(model, "state_names", None)
    best = [
        {"states": named(path, names).tolist(), "log_prob": float(log_prob), "prob": math.exp(float(log_prob) - evidence)}
        for path, log_prob in zip(paths[:, 0], log_probs[:, 0], strict=True)
        if log_prob > -math.inf  # a short sentence may have fewer paths than asked for
    ]
    return answer | {"paths": best}


def sample_states(
    model: Any, vocabulary: Vocabulary, words: Words, *, num_samples: int = 1, seed: int = 0
) -> dict[str, Any]:
    """State paths drawn from the exact posterior p(z_1..z_T | x)."""
    checks.count("num_samples", num_samples)
    x, answer = observe(model, vocabulary, words)
    with seeded(seed):
        paths = model.posterior(x).sample(num_samples)
    return answer | {"samples": named(paths[:, 0], getattr(model, "state_names", None)).tolist()}


def next_word(
    model: Any, vocabulary: Vocabulary, words: Words, *, top: int = 5, allow_unknown: bool = True, how: Reading = STATES
) -> dict[str, Any]:
    """p(x_{T+1} | x_1..x_T): the `top` most probable words. No words at all: the first word of a sentence."""
    log_probs, _, answer = how.begin(model, vocabulary, words, 1)
    log_probs = without_unknown(log_probs, vocabulary, allow_unknown)
    return answer | {"next": top_words(vocabulary, log_probs[0], top)}


def infill(
    model: Any,
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
    """p(x_t | all other words) at every gap t: each gap's exact marginal, and joint draws of all gaps together.

    Words that end with the end word are one sentence: no gap is filled with it. Each marginal is given that its own gap is no
    word that is left out, a draw that none of them is. Under a constraint on the text, or where a gap may have several words,
    everything is given that as well.

    Args:
        top: words listed a gap, where all gaps have one word.
        num_samples: draws from the joint posterior of the gaps, or of the text.
        allow_unknown: False leaves the unknown word out and renormalises.
        constraint: what the whole text satisfies. gap_length: words at each gap, or (shortest, longest).
        max_states: of the automaton of words and gaps.

    Returns:
        ``gaps`` and ``filled``: the most probable word of each gap by itself; under a constraint the words of the most probable
        text and state path together, and beside it ``lengths``: p(number of words of the text), and ``log_prob``: log p(any
        text that fits).

    Raises:
        ValueError: when no word is a gap, or for a text that cannot be.
    """
    x, answer = observe(model, vocabulary, words)
    gaps = [place for place, word in enumerate(words) if word is None]
    if not gaps:
        raise ValueError("words must have a gap to fill: write _ in text, null in JSON")
    ended = vocabulary.eos_id is not None and words[-1] == vocabulary.eos
    unknown = None if allow_unknown or vocabulary.unknown_id is None else vocabulary.unknown
    refused = [] if unknown is None else vocabulary.encode([unknown]).tolist()
    if constraint is not None or gap_length != 1:
        inner = list(words[:-1] if ended else words)
        chain = _texts(model, vocabulary, inner, unknown, ended, constraint, Bounds.of(gap_length), max_states)
        best, found = chain.viterbi(), chain.marginals()
        answer["filled"] = vocabulary.decode(best.words[0, 0, : best.lengths[0, 0]].tolist())
        answer["lengths"] = {n: p for n, p in enumerate(found.lengths[0].tolist()) if p > 0}
        answer["log_prob"] = float(chain.log_prob()[0])
        log_probs = found.words[0, gaps].log() if tuple(Bounds.of(gap_length)) == (1, 1) else None
    else:
        chain = model.posterior(x)
        if ended:
            refused.append(vocabulary.eos_id)
        log_probs = without(chain.missing_words().log_probs, refused)
        best_words = iter(top_words(vocabulary, row, 1)[0]["word"] for row in log_probs)
        answer["filled"] = [next(best_words) if word is None else word for word in words]
    if log_probs is not None:
        rows = zip(gaps, log_probs, strict=True)
        answer["gaps"] = [{"position": gap, "words": top_words(vocabulary, row, top)} for gap, row in rows]
    if num_samples:
        with seeded(seed):
            if constraint is not None or gap_length != 1:
                drawn = [row[row >= 0] for row in chain.sample(num_samples).words[:, 0]]
            else:
                drawn = _draw_gaps(chain, gaps, num_samples, refused)
        answer["samples"] = [vocabulary.decode(row.tolist()) for row in drawn]
    return answer


def _texts(
    model: Any, vocabulary: Vocabulary, words: Words, unknown: str | None, ended: bool, constraint: Constraint | None,
    gap: Bounds, max_states: int,
) -> Any:  # fmt: skip
    """The texts that words with gaps may be, as a chain."""
    known = iter(vocabulary.decode(vocabulary.encode([word for word in words if word is not None]).tolist()))
    proposed = "." if unknown is None else f"[^{escaped(unknown)}]"
    least, most = gap
    pattern = " ".join(f"{proposed}{{{least},{most}}}" if word is None else escaped(next(known)) for word in words)
    template = Constraint.matching(pattern, max_states=max_states)
    template = template if constraint is None else template & constraint
    gaps = list(words).count(None)
    bounds = len(words) - gaps + gaps * least, len(words) - gaps + gaps * most
    return model.constrained(template, length=bounds, end=vocabulary.eos_id if ended else None)


def _draw_gaps(chain: Chain, gaps: list[int], num_samples: int, refused: Sequence[int]) -> Tensor:
    """(num_samples, gaps) words from their joint posterior, given that none is a refused one (by rejection)."""
    kept: list[Tensor] = []
    for _ in range(REJECTION_ROUNDS):
        drawn = chain.sample_words(num_samples)[:, 0, gaps]
        kept.append(drawn[~torch.isin(drawn, drawn.new_tensor(refused)).any(1)])
        if sum(map(len, kept)) >= num_samples:
            return torch.cat(kept)[:num_samples]
    raise ValueError(
        "the gaps can hardly be filled without the words left out (the unknown word, the end word); allow the unknown word, or "
        "ask for fewer gaps"
    )


def continue_text(
    model: Any,
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
    how: Reading = STATES,
) -> dict[str, Any]:
    """Sentences that go on from a prefix, drawn word by word from p(x_{t+1} | x_1..x_t); `<eos>` ends one.

    Under a constraint, or with a shortest length, they are drawn from the exact posterior, and the answer has
    ``constraint_log_prob``: log p(constraint | prefix), nats.

    Args:
        length: words to draw, at most, or (shortest, longest) without ``<eos>``.
        num_samples: sentences.
        temperature: 1 draws from the model, below 1 from its more probable words, near 0 the most probable one.
        allow_unknown: False never draws the unknown word.
        constraint: what the continuation, or the ``whole`` text, satisfies.

    Raises:
        ValueError: a constraint that cannot be satisfied; under one, a gap in the words, or a temperature other than 1.
    """
    checks.positive("temperature", temperature)
    checks.count("num_samples", num_samples)
    if constraint is not None or isinstance(length, tuple):
        if temperature != 1.0:
            raise ValueError(f"temperature: texts under a constraint are drawn from the model as it is (1), got {temperature}")
        if not hasattr(model, "constrained"):
            raise ValueError(f"length: of a {type(model).__name__} the most words alone, such as 20; got {length}")
        return _continue_under(model, vocabulary, words, length, num_samples, seed, allow_unknown, constraint, whole)
    checks.count("length", length)
    log_probs, belief, answer = how.begin(model, vocabulary, words, num_samples)
    drawn: list[list[int]] = [[] for _ in range(num_samples)]
    totals, finished = [0.0] * num_samples, [False] * num_samples
    with seeded(seed):
        for _ in range(length):
            scores = without_unknown(log_probs, vocabulary, allow_unknown)
            sharp = torch.softmax((scores - scores.amax(-1, keepdim=True)) / max(temperature, 1e-30), -1)  # no overflow
            ids = torch.multinomial(sharp, 1)
            for row, (word, log_prob) in enumerate(
                zip(ids[:, 0].tolist(), log_probs.gather(1, ids)[:, 0].tolist(), strict=True)
            ):
                if not finished[row]:
                    totals[row] += log_prob
                    finished[row] = word == vocabulary.eos_id
                    drawn[row].append(word)
            if all(finished):
                break
            log_probs, belief = how.go_on(model, ids, belief)
    rows = zip(drawn, totals, strict=True)
    return answer | {"continuations": [{"words": vocabulary.decode(row), "log_prob": total} for row, total in rows]}


def _continue_under(
    model: Any, vocabulary: Vocabulary, words: Words, length: int | tuple[int, int], num_samples: int, seed: int,
    allow_unknown: bool, constraint: Constraint | None, whole: bool,
) -> dict[str, Any]:  # fmt: skip
    if None in words:
        raise ValueError("words: a prefix has no gaps; ask infill")
    answer = observe(model, vocabulary, words)[1] if words else {"words": [], "unknown": []}
    if not allow_unknown and vocabulary.unknown_id is not None:
        drawn_words = Constraint.excluding([str(vocabulary.unknown)])
        # in what is drawn: the prefix may have words that the model does not know
        known = Constraint.length(len(words), len(words)).then(drawn_words) if whole else drawn_words
        constraint = known if constraint is None else constraint & known
    bounds = (0, length) if isinstance(length, int) else length
    chain = model.constrained(constraint, length=bounds, prefix=list(words), whole=whole)
    with seeded(seed):
        drawn = chain.sample(num_samples)
    rows = [row[row >= 0].tolist() for row in drawn.words[:, 0]]
    prefix = vocabulary.encode([word for word in words if word is not None]).tolist()
    before = _log_prob(model, prefix)
    texts = [{"words": vocabulary.decode(row), "log_prob": _log_prob(model, prefix + row) - before} for row in rows]
    return answer | {"constraint_log_prob": float(chain.log_prob()[0]), "continuations": texts}


def _log_prob(model: Any, ids: list[int]) -> float:
    """log p of a text's beginning, nats."""
    if not ids:
        return 0.0
    value = float(model.log_prob(torch.tensor([ids], device=model_device(model)))[0])
    assert not math.isnan(value), "a text that was drawn"
    return value


def observe(model: Any, vocabulary: Vocabulary, words: Words) -> tuple[Tensor, dict[str, Any]]:
    """(x (1, T), the beginning of the answer)."""
    if not words:
        raise ValueError("words must not be empty")
    seen = [word for word in words if word is not None]
    ids = iter(vocabulary.encode(seen).tolist())
    x = [MISSING if word is None else next(ids) for word in words]
    unknown = [t for t, word in enumerate(words) if word is not None and word not in vocabulary]
    return torch.tensor([x], device=model_device(model)), {"words": list(words), "unknown": unknown}


def top_states(
    ids: Tensor | None, probs: Tensor, top: int, names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The most probable states of row 0; ids (B, K) or None for all states, probs (B, K); names: what states are called."""
    values, places = probs[0].topk(min(top, probs.shape[1]))
    states = places if ids is None else ids[0][places]
    return [
        {"state": state if names is None else names[state], "prob": prob}
        for state, prob in zip(states.tolist(), values.tolist(), strict=True)
        if prob > 0
    ]


def top_words(vocabulary: Vocabulary, log_probs: Tensor, top: int) -> list[dict[str, Any]]:
    values, ids = log_probs.topk(min(top, len(log_probs)))
    return [
        {"word": word, "prob": math.exp(value)}
        for word, value in zip(vocabulary.decode(ids.tolist()), values.tolist(), strict=True)
        if value > -math.inf
    ]


def without_unknown(log_probs: Tensor, vocabulary: Vocabulary, allow_unknown: bool) -> Tensor:
    return log_probs if allow_unknown or vocabulary.unknown_id is None else without(log_probs, [vocabulary.unknown_id])


def without(log_probs: Tensor, refused: Sequence[int]) -> Tensor:
    """(R, V) log-probabilities given that it is none of these words."""
    if not refused:
        return log_probs
    log_probs = log_probs.clone()
    log_probs[:, list(refused)] = -math.inf
    return log_probs.log_softmax(-1)
