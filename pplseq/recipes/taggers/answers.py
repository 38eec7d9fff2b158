"""Questions to a tagger about sentences, answered as JSON-able dictionaries. Log-probabilities are in nats."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pplseq.data.columns import TaggedSentence
from pplseq.data.tag_formats import BETWEEN_COLUMNS
from pplseq.recipes.taggers.settings import TagQuestions
from pplseq.runs.cluster import connected
from pplseq.runs.progress import parts_bar
from pplseq.sources.lines import why

Words = Sequence[str]
BATCH_SENTENCES = 512  # marginals of as many are in memory at a time
PART_SENTENCES = 4 * BATCH_SENTENCES  # of a part that a worker of a cluster tags
MOST_SURPRISING = 3  # words of a sentence that are named
SHARED_TAGS = 0.5  # of a text's words must have tags that the model knows


# question -> (method of a tagger that answers it, what it takes)
_NEEDS = {
    "probabilities": ("smooth", "probabilities of tags"),
    "top": ("smooth", "probabilities of tags"),
    "num_paths": ("n_best", "several taggings of a sentence"),
    "num_samples": ("sample_states", "taggings drawn from the posterior"),
    "entropy": ("entropy", "an entropy"),
    "log_prob": ("token_log_probs", "the probability of a sentence"),
    "surprising": ("token_log_probs", "the probability of a word"),
}


def check_answerable(tagger: Any, questions: TagQuestions) -> None:
    """Refuse questions that a tagger has no answer to.

    Raises:
        ValueError: naming the first of them.
    """
    for question, (method, what) in _NEEDS.items():
        if getattr(questions, question) and not hasattr(tagger, method):
            raise ValueError(
                f"{question}: the system {tagger.name!r} does not give {what}; ask one that does, such as hmm, trigram, "
                "tnt or latent"
            )
    check_decoder(tagger, questions.decoder)


def check_decoder(tagger: Any, decoder: str | None) -> None:
    """ValueError where a way of decoding is asked of a tagger that has no choice."""
    if decoder is not None and "decoder" not in inspect.signature(tagger.tag).parameters:
        raise ValueError(f"decoder: the system {tagger.name!r} decodes in one way only; leave it out")


def answer(tagger: Any, sentences: Sequence[Words], questions: TagQuestions) -> list[dict[str, Any]]:
    """Tags of sentences and the answers to questions about them.

    Args:
        tagger: a :class:`pplseq.models.taggers.tagger.Tagger`; most questions need a probabilistic one.
        sentences: of words.

    Returns:
        A dictionary a sentence: "words", "tags", and as asked "probabilities" (a word), "alternatives" (a word a list of
        {"tag", "prob"}), "n_best" ({"tags", "log_prob", "prob"}: of the taggings given the words), "samples",
        "entropy" (nats; where tags have several states an upper bound, beside "entropy_at_least"),
        "log_prob" (nats), "surprisals" (nats, a word) and "most_surprising" ({"position" from 1, "word", "nats"}).

    Raises:
        ValueError: a question that the tagger has no answer to.
    """
    check_answerable(tagger, questions)
    answers = []
    for start in range(0, len(sentences), BATCH_SENTENCES):
        part = sentences[start : start + BATCH_SENTENCES]
        answers += _answer_batch(tagger, part, questions, start)
    return answers


def answer_each(tagger: Any, sentences: Sequence[Words], questions: TagQuestions, first: int = 0) -> list[dict[str, Any]]:
    """As :func:`answer`; a sentence that has none, whatever the reason, gives {"words", "error"}.

    Args:
        first: the number of the first sentence in a larger text.
    """
    check_answerable(tagger, questions)
    answers = []
    for start in range(0, len(sentences), BATCH_SENTENCES):
        part = sentences[start : start + BATCH_SENTENCES]
        try:
            answers += _answer_batch(tagger, part, questions, first + start)
        except Exception:
            for place, words in enumerate(part, first + start):
                try:
                    answers += _answer_batch(tagger, [words], questions, place)
                except Exception as error:
                    answers.append({"words": list(words), "error": why(error)})
    return answers


def answer_on(
    where: Any, tagger: Any, sentences: Sequence[Words], questions: TagQuestions, **options: Any
) -> list[dict[str, Any]]:
    """:func:`answer_each` by the workers of a cluster.

    Args:
        where, **options: see :func:`pplseq.runs.cluster.connected`.

    Raises:
        PartFailed: names the sentences that no worker could do, where workers died.
    """
    check_answerable(tagger, questions)
    starts = range(0, len(sentences), PART_SENTENCES)
    parts = [[list(words) for words in sentences[start : start + PART_SENTENCES]] for start in starts]
    names = [f"sentences {start + 1:,} to {start + len(part):,}" for start, part in zip(starts, parts, strict=True)]
    with connected(where, **options) as cluster, parts_bar("tagged") as done:
        [kept] = cluster.keep([tagger])
        work = [(kept, part, questions, start) for part, start in zip(parts, starts, strict=True)]
        found = cluster.each(answer_each, work, names, done=done)
    return [answer for part in found for answer in part]


def _put_first(n_best: list[dict[str, Any]], tags: list[str]) -> None:
    """Of taggings that are equally probable, that which was chosen comes first."""
    for k, tagging in enumerate(n_best):
        if tagging["tags"] == tags and math.isclose(tagging["log_prob"], n_best[0]["log_prob"], rel_tol=1e-9, abs_tol=1e-9):
            n_best.insert(0, n_best.pop(k))
            return


def _answer_batch(tagger: Any, sentences: Sequence[Words], questions: TagQuestions, start: int) -> list[dict[str, Any]]:
    tags = tagger.tag(sentences, **({} if questions.decoder is None else {"decoder": questions.decoder}))
    answers: list[dict[str, Any]] = [
        {"words": list(words), "tags": list(found)} for words, found in zip(sentences, tags, strict=True)
    ]
    if questions.probabilities or questions.top:
        index = {tag: k for k, tag in enumerate(tagger.tags)}
        for found, marginals in zip(answers, tagger.smooth(sentences), strict=True):
            if questions.probabilities:
                found["probabilities"] = [_prob(marginals[t, index[tag]]) for t, tag in enumerate(found["tags"])]
            if questions.top:
                found["alternatives"] = [_top(tagger.tags, row, questions.top) for row in marginals]
    if questions.entropy:
        for found, entropy in zip(answers, tagger.entropy(sentences), strict=True):
            found["entropy"] = float(entropy)
        if getattr(tagger, "has_substates", bool)():
            for found, (least, _) in zip(answers, tagger.entropy_bounds(sentences), strict=True):
                found["entropy_at_least"] = float(least)
    if questions.log_prob:
        for found, log_prob in zip(answers, tagger.log_prob(sentences), strict=True):
            found["log_prob"] = float(log_prob)
    for i, (words, found) in enumerate(zip(sentences, answers, strict=True)):
        if questions.num_paths:
            found["n_best"] = [
                {"tags": list(path), "log_prob": log_prob, "prob": math.exp(min(log_prob, 0.0))}
                for path, log_prob in tagger.n_best(words, questions.num_paths)
            ]
            _put_first(found["n_best"], found["tags"])
        if questions.num_samples:
            drawn = tagger.sample_states([words], questions.num_samples, seed=questions.seed + start + i)
            found["samples"] = [list(path) for (path,) in drawn]
        if questions.surprising:
            found["surprisals"] = nats = [-float(value) for value in tagger.token_log_probs([words])[0]]
            first = sorted(range(len(nats)), key=lambda t: -nats[t])[:MOST_SURPRISING]
            found["most_surprising"] = [{"position": t + 1, "word": words[t], "nats": nats[t]} for t in first]
    return answers


def _top(tags: Sequence[str], probs: Any, top: int) -> list[dict[str, Any]]:
    ranked = sorted(range(len(tags)), key=lambda k: -float(probs[k]))[:top]
    return [{"tag": tags[k], "prob": _prob(probs[k])} for k in ranked if probs[k] > 0]


def _prob(value: Any) -> float:
    return min(float(value), 1.0)  # sums of rounded numbers may pass it


def unseen_tags(tags: Sequence[str], sentences: Sequence[TaggedSentence]) -> Counter[str]:
    """Gold tags that a model does not have, with their counts: it gets those words wrong.

    Raises:
        ValueError: most words have such tags, so that the model is one for another tag set.
    """
    # of several columns the first one tells, as the last may be lemmas
    known = {tag.partition(BETWEEN_COLUMNS)[0] for tag in tags}
    counts = Counter(tag.partition(BETWEEN_COLUMNS)[0] for sentence in sentences for tag in sentence.tags if tag is not None)
    unseen = Counter({tag: count for tag, count in counts.items() if tag not in known})
    shared = 1 - unseen.total() / max(counts.total(), 1)
    if shared < SHARED_TAGS:
        raise ValueError(
            f"the model is one for another tag set: it knows the tags of only {shared:.0%} of the words. Its tags are "
            f"{_listed(tags)}; the text's are {_listed([tag for tag, _ in counts.most_common()])}. Choose the text's column "
            "with --column, or a model that was trained on such tags"
        )
    return unseen


def _listed(tags: Sequence[str], limit: int = 8) -> str:
    return " ".join(tags[:limit]) + (" ..." if len(tags) > limit else "")
