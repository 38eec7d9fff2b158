"""Evaluating models of words, and asking them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch

from pplseq import checks
from pplseq.baselines import NETWORKS
from pplseq.data.text import Text, read_text
from pplseq.data.vocabulary import Vocabulary
from pplseq.files import new_file
from pplseq.loading import load_text_model
from pplseq.models.constraints.constraint import Constraint
from pplseq.recipes.recipe import Lines
from pplseq.recipes.run_folder import Record, record_of
from pplseq.recipes.text import questions
from pplseq.recipes.text.corpus import corpus_of_run
from pplseq.recipes.text.questions import NETWORK, STATES, Reading
from pplseq.recipes.text.settings import OWN, ConstrainedAsking, reading
from pplseq.runs.evaluation import TextScore, score_text
from pplseq.runs.processes import current
from pplseq.runs.progress import Watch, parts_bar
from pplseq.sources.lines import answer_lines

MANY_UNKNOWN = "Warning: more than a fifth of the words are unknown to the model; is this text of its kind?"

# question -> the function that answers it; whether it is about whole sentences, ended by <eos>
FUNCTIONS = {
    "score": (questions.score, True),
    "filter": (questions.filter_states, True),
    "smooth": (questions.smooth_states, True),
    "decode": (questions.decode_states, True),
    "topics": (questions.topics, True),
    "sample": (questions.sample_states, True),
    "next-word": (questions.next_word, False),
    "infill": (questions.infill, True),
    "continue": (questions.continue_text, False),
}


def load(folder: Path, settings: Any) -> Any:
    """The model of a run or of its own folder, with its vocabulary, on the device that the settings name."""
    return load_text_model(folder, settings.checkpoint, checks.device(settings.device))


# ---------------------------------------------------------------- evaluation
def evaluate(folder: Path, data: str | None, settings: Any, watch: Watch) -> Iterator[dict[str, Any]]:
    """Perplexities of a text, every token counted once; a record for each protocol."""
    if settings.cluster is not None:
        yield _evaluate_on_cluster(folder, data, settings, watch)
        return
    if settings.part_bytes is not None:
        raise ValueError("part_bytes: is of parts on a cluster; give cluster too")
    model = load(folder, settings)
    if settings.vocabulary is not None:
        check_same_vocabulary(model.vocabulary, settings.vocabulary)
    text = text_to_score(folder, data, settings, model.vocabulary)
    asked: list[tuple[str, dict[str, Any]]] = []
    if settings.protocol != "sentence":
        numbers = settings.streams or (None,)
        asked += [("carried", {"num_streams": n, "segment_length": settings.segment_length}) for n in numbers]
    if settings.protocol != "carried":
        asked.append(("sentence", {"batch_tokens": settings.batch_tokens}))
    if not asked:
        raise ValueError("streams: expected whole numbers of at least 1, like 16 or 16,1; got none")
    scores = []
    for name, options in asked:
        began = time.monotonic()
        scores.append(score_text(model, text, name, **options))
        seconds = round(time.monotonic() - began, 3)
        yield {"model": str(folder), "text": text.name, **scores[-1].summary(), "seconds": seconds}
    if scores[0].num_unknown > 0.2 * scores[0].num_tokens:
        watch.say(MANY_UNKNOWN)
    if settings.per_token is not None and current().writes:
        write_tokens(settings.per_token, text, scores)


def _evaluate_on_cluster(folder: Path, data: str | None, settings: Any, watch: Watch) -> dict[str, Any]:
    """The record of the sentence protocol, of files that the workers read."""
    from pplseq.recipes.text.parts import PART_BYTES, score_on
    from pplseq.runs.cluster import connected

    refused = {
        "protocol": settings.protocol == "carried", "streams": settings.streams, "per_token": settings.per_token,
        "split": settings.split, "device": settings.device not in ("auto", "cpu"),
    }  # fmt: skip
    for name, value in refused.items():
        if value:
            raise ValueError(
                f"{name}: on a cluster every line of DATA's files is scored from the start, on CPUs, and summed up; leave "
                f"{name} out, or leave out cluster"
            )
    if data is None or Path(data).is_dir():
        raise ValueError(f"DATA: the workers read files; expected a file, a pattern of files with * or a URL, got {data!r}")
    model = load(folder, replace(settings, device="cpu"))
    if settings.vocabulary is not None:
        check_same_vocabulary(model.vocabulary, settings.vocabulary)
    lower = reading_of(record_of(folder), settings.lower)["lower"]
    began = time.monotonic()
    with connected(settings.cluster, say=watch.say) as cluster, parts_bar("scored") as done:
        score = score_on(
            cluster, model, data, lower=lower, batch_tokens=settings.batch_tokens,
            part_bytes=settings.part_bytes or PART_BYTES, done=done,
        )  # fmt: skip
    if score.num_unknown > 0.2 * score.num_tokens:
        watch.say(MANY_UNKNOWN)
    return {"model": str(folder), "text": data, **score.summary(), "seconds": round(time.monotonic() - began, 3)}


def check_same_vocabulary(vocabulary: Vocabulary, path: Path) -> None:
    """Raise ValueError, naming the first difference, where a file holds another vocabulary."""
    given = Vocabulary.load(path)
    if given.fingerprint() != vocabulary.fingerprint():
        pairs = zip(vocabulary.words, given.words, strict=False)
        first = next((n for n, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(vocabulary), len(given)))
        raise ValueError(
            f"vocabulary mismatch: {path} has {len(given)} words, the model {len(vocabulary)}, and they differ from "
            f"word {first} on; evaluate with data of the model's vocabulary, or leave out --vocabulary to encode DATA "
            "with the model's own"
        )


def text_to_score(folder: Path, data: str | None, settings: Any, vocabulary: Vocabulary) -> Text:
    """The text to score, encoded with the model's vocabulary: a file whole, of a corpus one split."""
    record = record_of(folder)
    how = reading_of(record, settings.lower)
    if data is None and record is None:
        raise ValueError("give DATA: a saved model does not say what it was trained on")
    if data == "-" or (data is not None and settings.split is None and Path(data).is_file()):
        return read_text(data, vocabulary, lower=how["lower"])
    source = record.data if data is None and record is not None else str(data)
    corpus = corpus_of_run(folder, source, vocabulary, **how)
    split = settings.split or "test"
    text = getattr(corpus, split)
    if text is None:
        there = [name for name in ("train", "valid", "test") if getattr(corpus, name) is not None]
        raise ValueError(f"{source} has no {split} split; choose --split {' or '.join(there)}")
    return text


def reading_of(record: Record | None, lower: bool | None = None) -> dict[str, Any]:
    """How the text of a run was read, or the defaults, with another `lower` where one is given."""
    found = {} if record is None else reading(record.settings)
    return {"lower": False, **found, **({} if lower is None else {"lower": lower})}


def write_tokens(path: Path, text: Text, scores: list[TextScore]) -> None:
    """A line of word and log-probabilities (nats) for each token, a column a score."""
    words = text.vocabulary.decode(text.tokens)
    columns = [score.token_log_probs.tolist() for score in scores]
    with new_file(path) as new, new.open("w", encoding="utf-8", newline="\n") as file:
        file.write("\t".join(["word", *(f"{score.protocol}_{score.num_streams}" for score in scores)]) + "\n")
        file.writelines(
            "\t".join([word, *(f"{value:.6f}" for value in row)]) + "\n"
            for word, *row in zip(words, *columns, strict=True)
        )


# ---------------------------------------------------------------- questions
def query(
    folder: Path, question: str, lines: Lines, settings: Any, how: Reading | None = None
) -> Iterator[dict[str, Any]]:
    """Answers to a question, line by line; ``how``: of models that have no chain of states."""
    model = load(folder, settings)
    vocabulary = model.vocabulary
    function, whole = FUNCTIONS[question]
    known = {name: getattr(settings, name, None) for name in inspect.signature(function).parameters}
    known["how"] = how or (NETWORK if model.name in NETWORKS else STATES)
    if isinstance(settings, ConstrainedAsking) and question in OWN:
        known["constraint"] = constraint_of(settings, vocabulary)
    chosen = {name: known[name] for name in inspect.signature(function).parameters if known[name] is not None}
    ask = partial(function, model, vocabulary, **chosen)
    end = (
        vocabulary.eos if (whole if settings.eos is None else settings.eos) and vocabulary.eos_id is not None else None
    )
    gap = "_" if settings.gap is None and question == "infill" else settings.gap
    lower, record = settings.lower, record_of(folder)
    if lower is None:  # a run on counts of words says nothing of it, but its model does
        lower = record is not None and getattr(record.settings, "lower", False)
        lower = lower or getattr(getattr(model, "forms", None), "lower", False)
    with torch.no_grad(), opened(lines) as source:
        told = {} if vocabulary.units == "words" else {"units": vocabulary.units}
        for answer in answer_lines(source, ask, gap=gap, end=end, lower=lower, split=vocabulary.split):
            yield answer | told


def constraint_of(settings: ConstrainedAsking, vocabulary: Vocabulary) -> Constraint | None:
    """The constraint that settings say; None for none.

    Raises:
        ValueError: phrases, patterns and classes that cannot be read, or that need too large an automaton.
    """
    classes = {}
    for entry in settings.word_class:
        name, equals, words = entry.partition("=")
        if not name or not equals or not all(word.strip() for word in words.split(",")):
            raise ValueError(f"word_class must be NAME=WORD,WORD, got {checks.shown(entry)}")
        classes[name] = [word.strip() for word in words.split(",")]
    most: dict[str, Any] = {"max_states": settings.max_states}
    found = []
    if settings.containing:
        found.append(Constraint.containing(*map(vocabulary.split, settings.containing), **most))
    if settings.containing_any:
        found.append(Constraint.containing(*map(vocabulary.split, settings.containing_any), how="any", **most))
    if settings.excluding:
        found.append(Constraint.excluding(*map(vocabulary.split, settings.excluding), **most))
    if settings.in_order:
        found.append(Constraint.in_order(*map(vocabulary.split, settings.in_order), **most))
    found += [Constraint.matching(pattern, classes, **most) for pattern in settings.matching]
    return functools.reduce(operator.and_, found) if found else None


@contextlib.contextmanager
def opened(lines: Lines) -> Iterator[Iterable[str | bytes] | BinaryIO]:
    """Lines, those of a file named, or of standard input (-)."""
    if not isinstance(lines, (str, Path)):
        yield lines
    elif str(lines) == "-":
        yield sys.stdin.buffer
    else:
        with open(lines, "rb") as file:
            yield file
