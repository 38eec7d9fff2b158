"""What the commands of `pplseq tag` do between reading their options and printing."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from pplseq.baselines.tagging_systems import SavedTagger, check_system, make_tagger, save_tagger
from pplseq.data.columns import TaggedSentence
from pplseq.data.tagged import TaggedFile, read_tagged
from pplseq.models.taggers.answers import TagQuestions, answer, unseen_tags
from pplseq.models.taggers.comparison import CurvePoint, SystemResult, check_fractions, compare_taggers, learning_curve
from pplseq.models.taggers.scores import (
    TagScores,
    TrainingWords,
    difference_interval,
    mcnemar,
    score_tags,
    training_words,
)
from pplseq.report import tag_tables
from pplseq.report.tagging import SentenceView, render_tagging_page

SHOWN_ALTERNATIVES = 4  # of a word, on a page


# ---- files


def read(
    path: str,
    options: Mapping[str, Any],
    saved: SavedTagger | None = None,
    *,
    tags: str = "required",
    allow_empty: bool = False,
) -> TaggedFile:
    """A file as the options say, by default with the column of a saved tagger. Names what was skipped on stderr."""
    column = column_of(options["column"])
    if column is None and saved is not None:
        column = saved.columns
    found = read_tagged(
        path,
        options["format"],
        column,
        on_error=options["on_error"],
        tags=tags,
        separator=options["separator"],
        allow_empty=allow_empty,
    )
    for first, last, line, message in found.skipped:
        lines = f"line {first}" if first == last else f"lines {first} to {last}"
        click.echo(f"{found.name}: skipped {lines}: line {line}: {message}", err=True)
    if found.skipped:
        click.echo(f"{found.name}: {len(found.skipped):,} skipped, {len(found):,} sentences read", err=True)
    return found


def column_of(column: str | None) -> str | int | None:
    """A column's number or name."""
    return int(column) if column is not None and column.isdecimal() else column


def write_answers(answers: Sequence[dict[str, Any]], path: str) -> None:
    """JSON lines, to a file whole or not at all, or to stdout."""
    text = "".join(json.dumps(found, ensure_ascii=False) + "\n" for found in answers)
    if path == "-":
        click.echo(text, nl=False)
    else:
        _write(Path(path), text)


def write_json(path: Path, content: Any) -> None:
    """Numbers as JSON."""
    _write(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)


# ---- train


def train_tagger(
    tagger: Any,
    system: str,
    sentences: TaggedFile,
    dev: TaggedFile | None,
    folder: Path,
    *,
    progress: bool = False,
) -> dict[str, Any]:
    """Train, save, and tell what came of it."""
    began = time.perf_counter()
    tagger.fit(list(sentences), None if dev is None else list(dev), progress=progress)
    seconds = time.perf_counter() - began
    words = training_words(sentences)
    column = getattr(sentences.tag_format, "column", None)
    save_tagger(tagger, folder, system=system, column=column, file_format=sentences.format, ambiguous=words.ambiguous)
    summary = {
        "system": system,
        "out": str(folder),
        "sentences": len(sentences),
        "tokens": sentences.num_tokens,
        "words": len(words.known),
        "tags": len(tagger.tags),
        "seconds": round(seconds, 3),
    }
    if dev is not None and dev.num_tokens and system != "unsupervised":
        summary["dev_accuracy"] = score_tags(dev, tagger.tag([s.words for s in dev]), words).accuracy
    return summary


# ---- run


def note_other_tags(saved: SavedTagger, sentences: TaggedFile) -> None:
    """Say so where the column that is written over has tags of another tag set."""
    try:
        unseen_tags(saved.tagger.tags, sentences)
    except ValueError as error:
        click.echo(f"Note: {error}. The tags are written over", err=True)


def run_page(saved: SavedTagger, sentences: TaggedFile, path: Path, max_sentences: int, decode: str | None) -> None:
    """The page of the first sentences, with probabilities where the tagger has them."""
    words = [sentence.words for sentence in sentences[:max_sentences]]
    title = f"{saved.system} on {Path(sentences.name).name}"
    notes = _cut(len(words), len(sentences), "sentences")
    page = render_tagging_page(_views(saved, words, range(1, len(words) + 1), decode), title=title, notes=notes)
    _write(path, page)


def _views(
    saved: SavedTagger,
    sentences: Sequence[Sequence[str]],
    numbers: Sequence[int],
    decode: str | None,
    gold: Sequence[Sequence[str | None]] | None = None,
    names: Mapping[str, str] | None = None,
) -> list[SentenceView]:
    """names: what clusters are called."""
    tagger = saved.tagger
    probabilistic = hasattr(tagger, "marginals")
    questions = TagQuestions(probabilities=True, top=SHOWN_ALTERNATIVES) if probabilistic else TagQuestions()
    views = []
    for i, found in enumerate(answer(tagger, sentences, replace(questions, decode=decode))):
        views.append(
            SentenceView(
                found["words"],
                found["tags"] if names is None else [names.get(cluster) for cluster in found["tags"]],
                found.get("probabilities"),
                None if gold is None else gold[i],
                [word in tagger.known_words for word in found["words"]],
                [[(entry["tag"], entry["prob"]) for entry in entries] for entries in found["alternatives"]]
                if probabilistic
                else None,
                numbers[i],
            )
        )
    return views


def _cut(shown: int, num: int, what: str) -> list[str]:
    return [] if shown == num else [f"The first {shown:,} of {num:,} {what}."]


# ---- eval


class Scored(NamedTuple):
    """Scores of a tagger on a text, the tags it gave, those it has never seen with counts, and seconds of tagging. clusters:
    how well clusters agree with tags, and what each is called; None of a tagger whose tags have names."""

    scores: TagScores
    tags: list[tuple[str, ...]]
    unseen: Counter[str]
    seconds: float
    clusters: dict[str, Any] | None = None


def score(saved: SavedTagger, sentences: TaggedFile, decode: str | None, clusters: bool = False) -> Scored:
    """Tag a text and score it; ValueError for a model of another tag set."""
    clusters = clusters or saved.system == "unsupervised"
    unseen = Counter() if clusters else unseen_tags(saved.tagger.tags, sentences)
    began = time.perf_counter()
    words = [sentence.words for sentence in sentences]
    tags = saved.tagger.tag(words) if decode is None else saved.tagger.tag(words, decode=decode)
    seconds = time.perf_counter() - began
    agreement = None
    if clusters:
        from pplseq.models.taggers.clusters import names_of_clusters, score_clusters

        names = names_of_clusters(sentences, tags)
        agreement = {**score_clusters(sentences, tags)._asdict(), "names": names}
        tags = [tuple(names.get(cluster) for cluster in row) for row in tags]
    training = TrainingWords(frozenset(saved.tagger.known_words), saved.ambiguous)
    return Scored(score_tags(sentences, tags, training), tags, unseen, seconds, agreement)


def scores_text(model: Path, result: Scored, top: int, against: Path | None, other: Scored | None) -> str:
    """The tables."""
    scores = result.scores
    parts = [tag_tables.scores_table(scores, scores.interval())]
    if result.clusters is not None:
        shown = " ".join(f"{name} {result.clusters[name]:.4f}" for name in ("v_measure", "homogeneity", "completeness"))
        parts[0] += f"\nclusters called by their most frequent tag (many-to-one); {shown}"
    if result.unseen:
        listed = ", ".join(f"{tag} {count:,}" for tag, count in result.unseen.most_common())
        parts.append(f"tags that the model has not seen in training, always wrong: {listed}")
    parts.append(tag_tables.per_tag_table(scores))
    if top:
        parts.append(tag_tables.confusion_table(scores, top))
    if other is not None:
        test, interval = mcnemar(scores, other.scores), difference_interval(scores, other.scores)
        accuracy = f"{against}: accuracy {other.scores.accuracy:.4f}"
        parts.append(f"{accuracy}\n{tag_tables.mcnemar_text(str(model), str(against), test, interval)}")
    return "\n\n".join(parts)


def scores_json(model: str, text: str, result: Scored, against: Path | None, other: Scored | None) -> dict[str, Any]:
    """The numbers."""
    found = {"model": model, "text": text, **result.scores.summary()}
    found |= {"interval": result.scores.interval(), "unseen_tags": dict(result.unseen), "seconds": result.seconds}
    if result.clusters is not None:
        found["clusters"] = result.clusters
    found["confusions"] = [pair._asdict() for pair in result.scores.confusion_pairs(50)]
    if other is not None:
        test = mcnemar(result.scores, other.scores)._asdict()
        interval = difference_interval(result.scores, other.scores)
        found["against"] = {"model": str(against), **other.scores.summary(), "mcnemar": test, "difference": interval}
    return found


def errors_page(
    saved: SavedTagger,
    sentences: TaggedFile,
    result: Scored,
    path: Path,
    title: str,
    max_sentences: int,
    decode: str | None,
) -> None:
    """The page of scores and of the first sentences with errors."""
    wrong = [
        i
        for i, (sentence, tags) in enumerate(zip(sentences, result.tags, strict=True))
        if any(gold not in (None, tag) for gold, tag in zip(sentence.tags, tags, strict=True))
    ]
    shown = wrong[:max_sentences]
    views = _views(
        saved,
        [sentences[i].words for i in shown],
        [i + 1 for i in shown],
        decode,
        [sentences[i].tags for i in shown],
        None if result.clusters is None else result.clusters["names"],
    )
    notes = _cut(len(shown), len(wrong), "sentences with errors") or ["All sentences with errors."]
    _write(path, render_tagging_page(views, title=title, scores=result.scores, notes=notes))


# ---- compare


def makers_of(systems: str) -> dict[str, Callable[[], Any]]:
    """What makes each system of a list of names; one that cannot be imported fails when it is made."""
    names = [name.strip() for name in systems.split(",") if name.strip()]
    if not names:
        raise ValueError("--systems: expected names between commas, got none")
    for name in names:
        check_system(name)
    return {name: partial(make_tagger, name) for name in dict.fromkeys(names)}


def fractions_of(text: str | None) -> list[float]:
    """Numbers between commas."""
    if text is None:
        return []
    try:
        fractions = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--learning-curve: expected numbers between commas such as 0.1,0.3,1, got {text!r}") from None
    return check_fractions(fractions)  # now, and not when all systems are trained


def compare(
    makers: Mapping[str, Callable[[], Any]],
    train: Sequence[TaggedSentence],
    test: TaggedFile,
    dev: TaggedFile | None,
    fractions: Sequence[float],
    seed: int,
) -> tuple[list[SystemResult], dict[str, list[CurvePoint]]]:
    """Results of all systems, and the learning curves of those that worked, with progress on stderr."""

    def tell(result: SystemResult) -> None:
        if result.scores is not None:
            click.echo(f"{result.name:<16} {result.scores.accuracy:.4f}  {result.train_seconds:8.1f} s", err=True)
        else:
            click.echo(f"{result.name:<16} {'not there' if result.missing else 'failed'}: {result.error}", err=True)

    results = compare_taggers(makers, train, test, dev=dev, on_result=tell)
    curves = {}
    for result in results:
        if fractions and result.scores is not None:
            click.echo(f"{result.name:<16} learning curve", err=True)
            curves[result.name] = learning_curve(makers[result.name], train, test, fractions, dev=dev, seed=seed)
    return results, curves


def comparison_text(results: Sequence[SystemResult], curves: Mapping[str, Sequence[CurvePoint]]) -> str:
    """The tables."""
    tables = [f"{name}\n{tag_tables.curve_table(points)}" for name, points in curves.items()]
    return "\n\n".join([tag_tables.comparison_table(results), *tables])


def comparison_json(
    train: str, test: str, results: Sequence[SystemResult], curves: Mapping[str, Sequence[CurvePoint]]
) -> dict[str, Any]:
    """The numbers."""
    return {
        "train": train,
        "test": test,
        "systems": {result.name: _result_json(result) for result in results},
        "learning_curves": {
            name: [
                {"num_sentences": point.num_sentences, "num_tokens": point.num_tokens, **_result_json(point.result)}
                for point in points
            ]
            for name, points in curves.items()
        },
    }


def _result_json(result: SystemResult) -> dict[str, Any]:
    if result.scores is None:
        return {"error": result.error, "missing": result.missing}
    numbers = {"train_seconds": result.train_seconds, "tokens_per_second": result.tokens_per_second}
    return {**result.scores.summary(), **numbers}
