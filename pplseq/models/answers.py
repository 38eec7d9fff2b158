"""Questions to a trained word model, answered exactly, as JSON-able dictionaries.

Every function takes (model, vocabulary, words). In `words`, None is a gap: a token that was not seen. A word outside
the vocabulary counts as the unknown word, and its place stands under "unknown" in the answer. Log-probabilities are in
nats.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.sources import NUL_BYTE
from pplseq.data.vocabulary import Vocabulary, split_words
from pplseq.distributions.drawing import seeded
from pplseq.distributions.state import MISSING
from pplseq.files import json_line
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.discrete.results import StateMarginals
from pplseq.models.state_labels import named
from pplseq.runs.settings import perplexity
from pplseq.runs.training import model_device

Words = Sequence[str | None]
REJECTION_ROUNDS = 100
LINE_BYTES = "PPLSEQ_LINE_BYTES"


def score(model: Any, vocabulary: Vocabulary, words: Words) -> dict[str, Any]:
    """log p(words), and of each word given those before it (0 at a gap)."""
    x, answer = observe(model, vocabulary, words)
    tokens = model.posterior(x).token_log_probs()[0].double()
    num_seen = int((x != MISSING).sum())
    log_prob = float(tokens.sum())
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


class Reading(NamedTuple):
    """How next words are asked for, of a kind of model.

    begin: (model, vocabulary, words, B) -> (log p(next word) (B, V), belief, beginning of the answer).
    go_on: (model, ids (B, 1), belief) -> (log p(next word) (B, V), belief); the belief is None at a sentence's start.
    """

    begin: Callable[[Any, Vocabulary, Words, int], tuple[Tensor, Any, dict[str, Any]]]
    go_on: Callable[[Any, Tensor, Any], tuple[Tensor, Any]]


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


STATES = Reading(_begin, _go_on)


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
) -> dict[str, Any]:
    """p(x_t | all other words) at every gap t: each gap's exact marginal, and joint draws of all gaps together.

    Words that end with the end word are one sentence: no gap is filled with it, as under a constraint. Each marginal is given
    that its own gap is no word that is left out, a draw that none of them is.

    Args:
        top: words listed a gap.
        num_samples: draws from the joint posterior of the gaps.
        allow_unknown: False leaves the unknown word out and renormalises.

    Raises:
        ValueError: when no word is a gap.
    """
    x, answer = observe(model, vocabulary, words)
    gaps = (x[0] == MISSING).nonzero()[:, 0].tolist()
    if not gaps:
        raise ValueError("words must have a gap to fill: write _ in text, null in JSON")
    chain = model.posterior(x)
    refused = [] if allow_unknown or vocabulary.unknown_id is None else [vocabulary.unknown_id]
    if vocabulary.eos_id is not None and words[-1] == vocabulary.eos:
        refused.append(vocabulary.eos_id)
    word_log_probs = without(chain.missing_words().log_probs, refused)
    proposals = [top_words(vocabulary, row, top) for row in word_log_probs]
    filled = list(answer["words"])
    for gap, proposal in zip(gaps, proposals, strict=True):
        filled[gap] = proposal[0]["word"]
    answer |= {"gaps": [{"position": g, "words": p} for g, p in zip(gaps, proposals, strict=True)], "filled": filled}
    if num_samples:
        with seeded(seed):
            drawn = _draw_gaps(chain, gaps, num_samples, refused)
        answer["samples"] = [vocabulary.decode(row) for row in drawn.tolist()]
    return answer


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
    length: int = 20,
    num_samples: int = 1,
    temperature: float = 1.0,
    seed: int = 0,
    allow_unknown: bool = True,
    how: Reading = STATES,
) -> dict[str, Any]:
    """Sentences that go on from a prefix, drawn word by word from p(x_{t+1} | x_1..x_t); `<eos>` ends one.

    Args:
        length: words to draw, at most.
        num_samples: sentences.
        temperature: 1 draws from the model, below 1 from its more probable words, near 0 the most probable one.
        allow_unknown: False never draws the unknown word.
    """
    checks.positive("temperature", temperature)
    checks.count("length", length)
    checks.count("num_samples", num_samples)
    log_probs, belief, answer = how.begin(model, vocabulary, words, num_samples)
    drawn: list[list[int]] = [[] for _ in range(num_samples)]
    totals, finished = [0.0] * num_samples, [False] * num_samples
    with seeded(seed):
        for _ in range(length):
            sharp = torch.softmax(without_unknown(log_probs, vocabulary, allow_unknown) / temperature, -1)
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


def answer_lines(
    lines: Iterable[str | bytes],
    ask: Callable[[list[str | None]], dict[str, Any]],
    *,
    gap: str | None = None,
    end: str | None = None,
    lower: bool = False,
    split: Callable[[str], list[str]] = split_words,
) -> Iterator[dict[str, Any]]:
    """Answer line after line; a line that cannot be answered gives {"line", "error"} and the next one is taken.

    Args:
        lines: words separated by spaces, or (a line that begins with a brace) a JSON object with "words": a list where
            null is a gap, or "text": a string. An "id" is handed through. A blank line is a sentence without words;
            of a file, a line longer than `max_line_bytes` is an error.
        ask: from words to an answer.
        gap: the word that stands for a gap.
        end: a word to put after the last one if it is not there (`<eos>`: the query is about whole sentences).
        lower: lower-case the words.
        split: a text into words, as the vocabulary has them.
    """
    for number, line in enumerate(_bounded(lines), 1):
        answer: dict[str, Any] = {"line": number}
        try:
            if isinstance(line, int):
                raise ValueError(too_long(line))
            text = line.decode("utf-8-sig") if isinstance(line, bytes) else line
            words, handed_through = _parse(text, lambda text: split(text.lower() if lower else text))
            answer |= handed_through
            if any("\0" in word for word in words if word is not None):
                raise ValueError(NUL_BYTE)
            words = [None if word is None or word == gap else (word.lower() if lower else word) for word in words]
            if end is not None and (not words or words[-1] != end):
                words.append(end)
            answer |= ask(words)
        except UnicodeDecodeError as error:
            answer["error"] = f"not UTF-8 text: byte {error.start + 1} of the line"
        except Exception as error:  # whatever it is, the next line may be answered
            answer["error"] = why(error)
        yield answer


def answer_sequences(table: Any, ask: Callable[[int], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Answer sequence after sequence of a table; one that could not be read or answered gives {"id", "error"}.

    Args:
        table: a :class:`~pplseq.data.tables.SequenceTable`. ask: from the place of a sequence to an answer.
    """
    place = {name: k for k, name in enumerate(table.ids)}
    for name in table.all_ids:
        answer: dict[str, Any] = {"id": name}
        if name in table.errors:
            answer["error"] = table.errors[name]
        else:
            try:
                answer |= ask(place[name])
            except Exception as error:  # whatever it is, the next sequence may be answered
                answer["error"] = why(error)
        yield answer


def why(error: Exception) -> str:
    """What to say of an error that ends the answer to a line, and nothing else."""
    if isinstance(error, ValueError | TypeError) and str(error):
        return str(error)
    if isinstance(error, RecursionError):
        return "too many braces or brackets within each other"
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def max_line_bytes() -> int:
    """The longest line that is read: a mebibyte, or what PPLSEQ_LINE_BYTES says."""
    return int(min(checks.limit(LINE_BYTES, 1 << 20), 1 << 40))


def too_long(length: int) -> str:
    """What to say of a longer one."""
    most = max_line_bytes()
    return f"the line has {length:,} bytes, more than {most:,}; break it into several, or raise the limit {LINE_BYTES}"


def _bounded(lines: Iterable[str | bytes]) -> Iterator[str | bytes | int]:
    """Lines; of one in a file that is longer than memory may be used for, its length."""
    if not isinstance(lines, io.BufferedIOBase):
        yield from lines
        return
    most = max_line_bytes()
    while line := lines.readline(most + 1):
        if len(line) <= most or line.endswith(b"\n"):
            yield line
            continue
        length = len(line)
        while not line.endswith(b"\n") and (line := lines.readline(most)):
            length += len(line)
        yield length


def _parse(text: str, split: Callable[[str], list[str]]) -> tuple[list[str | None], dict[str, Any]]:
    """(words, {"id"} if there is one) of a line."""
    if not text.lstrip().startswith("{"):
        return list(split(text)), {}
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(
            f'a line that begins with a brace must be a JSON object with "words" or "text": {error}'
        ) from None
    handed_through = {"id": record["id"]} if "id" in record else {}
    json_line(handed_through)  # what cannot be written is this line's error
    words: Any = record.get("words")
    if words is None and isinstance(record.get("text"), str):
        words = split(record["text"])
    if isinstance(words, list) and any(isinstance(word, list) for word in words):
        raise ValueError(
            '"words": a gap takes no list of alternatives; ask for a pattern of the whole text: query RUN continue --whole '
            "--matching 'the (stock | market) fell', or Constraint.matching in Python"
        )
    if not isinstance(words, list) or not all(word is None or isinstance(word, str) for word in words):
        raise ValueError('expected {"words": [strings, null for a gap]} or {"text": "..."}')
    if any(word is not None and not word.strip() for word in words):
        raise ValueError('"words" must not hold empty strings; null is a gap')
    return words, handed_through


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
