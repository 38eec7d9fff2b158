"""Tagging files, scoring taggers on them, and the tables and pages about it."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, cast

from pplseq import checks
from pplseq.data.columns import TaggedSentence, decoded, read_raw_lines
from pplseq.data.tag_formats import (
    BETWEEN_COLUMNS,
    NEW_DOCUMENT,
    NO_TAG,
    ColumnsFormat,
    ConlluFormat,
    Line,
    LineError,
    TabsFormat,
    guess_format,
)
from pplseq.data.tagged import STDIN, SentenceBlock, SkippedSentence, TaggedFile, read_tagged
from pplseq.files import write_text
from pplseq.models.taggers.scores import TagScores, TrainingWords, difference_interval, mcnemar, score_tags
from pplseq.models.taggers.spans.schemes import are_spans, in_scheme, scheme_of
from pplseq.models.taggers.spans.scores import SpanScore, SpanScores, score_spans
from pplseq.recipes.taggers.answers import answer, unseen_tags
from pplseq.recipes.taggers.settings import TagQuestions
from pplseq.recipes.taggers.systems import Comparison, SavedTagger, check_out
from pplseq.report import tag_tables
from pplseq.report.tagging import SentenceView, render_tagging_page

SHOWN_ALTERNATIVES = 4  # of a word, on a page
COLUMN_FORMATS = ColumnsFormat.name, TabsFormat.name
MANY_LINES = 5  # sentences that follow each other rarely have as many words each
SEPARATORS = ("_", "/", "#", "~", "^", "@", "//", "##", "~~")  # "|" and "=" stand in features


# ---- files


def separator_of(reading: Any, saved: SavedTagger | None) -> str:
    """What stands between word and tag of word_TAG: what was asked for, or that of the text a tagger learned from."""
    return reading.separator or (SEPARATORS[0] if saved is None else saved.separator)


def not_words(name: str, file_format: str) -> str:
    """What is said of standard input that is no words."""
    looks = {"conllu": "CoNLL-U, ten columns between tabs", "conllup": "CoNLL-U Plus", "word_tag": "words with their tags"}
    looks_like = looks.get(file_format, "columns, a word and its tags a line")
    return (
        f"{name}: expected words between spaces, got lines that look like {looks_like}; say --format {file_format}, or "
        "--format words"
    )


def guess_for(saved: SavedTagger, reading: Any, tags: str, to_tag: bool) -> Callable[[str, Sequence[str]], str]:
    """From a file's name and first lines to its format: that of the text a tagger learned from where the file may be of it,
    otherwise what it looks like.

    Lines of words that all have as many columns, one of them tags of the model, are no sentences: they are refused where the
    model does not know which column it is.
    """

    def guess(name: str, lines: Sequence[str]) -> str:
        seen = {"separator": separator_of(reading, saved), "tags_optional": tags == "optional" or not lines, "to_tag": to_tag}
        columns = columns_of_tags(saved, lines)
        try:
            found = guess_format(name, lines, **seen)
        except ValueError:
            if columns is None or saved.format not in COLUMN_FORMATS:
                raise
            found = saved.format
        alike = found in (*COLUMN_FORMATS, "words") and columns is not None or found in COLUMN_FORMATS
        if alike and saved.format in COLUMN_FORMATS and (saved.format != TabsFormat.name or any("\t" in row for row in lines)):
            return saved.format
        if found == "words" and columns is not None and (reading.column, reading.word_column) == (None, None):
            at = f", tags of the model in column {columns[0]} (the first is 0)" if columns else ""
            trained = "" if saved.format is None else f"; the model was trained on the format {saved.format}"
            raise ValueError(
                f"{name}: expected sentences, got lines of as many columns each{at}{trained}; say --format columns and "
                "--column N, or --format words"
            )
        return found

    return guess


def columns_of_tags(saved: SavedTagger, lines: Sequence[str]) -> list[int] | None:
    """Columns that hold tags of a model, of lines that look like words with their columns; None of lines that do not.

    They do if all have as many columns, and one holds nothing but tags of the model, or `_`; of a model that was trained on
    columns also if there are many such lines, or tabs between. A single line tells nothing.
    """
    learned, known = saved.format in COLUMN_FORMATS, set(saved.tagger.tags)
    between = "\t" if saved.format == TabsFormat.name else None
    lines = [line for line in lines if not line.startswith(NEW_DOCUMENT)]
    rows = [line.split(between) for line in lines]
    widths = {len(row) for row in rows}
    if len(rows) < 2 or len(widths) != 1 or (width := widths.pop()) < 2:
        return None
    found = []
    for column in range(width):
        if column == saved.word_column:
            continue
        entries = [row[column].strip() for row in rows]
        # a full stop is often its own tag, and then stands in sentences as well
        lettered = any(any(sign.isalpha() for sign in entry) for entry in entries)
        if all(entry in known or entry == NO_TAG for entry in entries) and (lettered or {*entries} == {NO_TAG}):
            found.append(column)
    tabs = all("\t" in line.strip() for line in lines)
    many = learned and width > saved.word_column and (tabs or len(rows) >= MANY_LINES)
    return found if found or many else None



def _word_column(reading: Any, saved: SavedTagger | None) -> int | dict[str, int]:
    """That of the words: what was asked for, or that of the text a tagger learned from, in files of its format."""
    if reading.word_column is not None:
        return checks.count("word_column", reading.word_column, 0)
    return {} if saved is None else dict.fromkeys(saved.formats, saved.word_column)


def read(
    path: str,
    reading: Any,
    say: Callable[[str], None],
    saved: SavedTagger | None = None,
    *,
    tags: str = "required",
    to_tag: bool = False,
    word_columns: Sequence[int] = (),
) -> TaggedFile:
    """A file of sentences, by default with the column of a saved tagger.

    Args:
        reading: with column, format, separator and on_error. say: told what was skipped.
        word_columns: that a tagger looks at; those of a saved one are known.
    """
    column = int(reading.column) if reading.column is not None and reading.column.isdecimal() else reading.column
    if column is None and saved is not None:
        column = saved.columns
    found = read_tagged(
        path,
        reading.format if reading.format is not None or saved is None else guess_for(saved, reading, tags, to_tag),
        column,
        on_error=reading.on_error,
        tags=tags,
        separator=separator_of(reading, saved),
        to_tag=to_tag,
        word_columns=word_columns if saved is None else getattr(saved.tagger, "word_columns", ()),
        word_column=_word_column(reading, saved),
    )
    named = found.name.removesuffix(".gz").removesuffix(".xz").lower().endswith((".conllu", ".conll-u", ".conllup"))
    if to_tag and reading.format is None and found.format != "words" and not named:
        if path == "-":
            raise ValueError(not_words(found.name, found.format))
        say(f"{found.name}: read as {found.format}, by its first lines; --format says otherwise")
    for first, last, line, message in found.skipped:
        lines = f"line {first}" if first == last else f"lines {first} to {last}"
        say(f"{found.name}: skipped {lines}: line {line}: {message}")
    if found.skipped:
        say(f"{found.name}: {len(found.skipped):,} skipped, {len(found):,} sentences read")
    return found


class SplitText(TaggedFile):
    """The sentences that were found in a raw text; lines are those of the text.

    Args:
        first_lines: the line of the text on which each sentence begins. Others as of :class:`TaggedFile`.
    """

    def __init__(self, *parts: Any, first_lines: Sequence[int]) -> None:
        super().__init__(*parts)
        self._first_lines = tuple(first_lines)

    def line_of(self, index: int, position: int = 0) -> int:
        """The line of the text on which a sentence begins."""
        return self._first_lines[index]


def read_raw(
    path: str, splitter: Path, saved: SavedTagger, on_error: str = "skip", say: Callable[[str], None] = lambda line: None
) -> SplitText:
    """The sentences that a splitter finds in a raw text, as a CoNLL-U file whose words have no tags yet.

    Args:
        on_error: "raise" at a line that is no text, or "skip" it: a paragraph ends there. say: told what was skipped.
    """
    from pplseq.models.taggers.raw_text.splitter import TextSplitter
    from pplseq.models.taggers.raw_text.treebank import conllu_lines

    if getattr(saved.tagger, "word_columns", ()):
        raise ValueError(f"splitter: the model looks at columns {saved.tagger.word_columns}, which raw text has not")
    name, lines_of_text, skipped = STDIN if path == "-" else path, [], []
    for number, raw in read_raw_lines(path):
        try:
            raw = raw.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").rstrip(b"\r\n")
            [line] = decoded([(number, raw.replace(b"\r", b"\n"))])
            lines_of_text.append(line.text)
        except LineError as error:
            if on_error == "raise":
                raise ValueError(f"{name}, line {number}: {error}") from None
            say(f"{name}: skipped line {number}: {error}")
            skipped.append(SkippedSentence(number, number, number, str(error)))
            lines_of_text.append("")
    tag_format = ConlluFormat(saved.column if saved.format == ConlluFormat.name else None)
    sentences, blocks, first_lines = [], [], []
    # all signs of the text but white space are in tokens, in their order: their number tells the line
    ends, place = list(accumulate(len("".join(line.split())) for line in lines_of_text)), 0
    for sentence in TextSplitter.load(splitter).split("\n".join(lines_of_text)):
        first_lines.append(bisect_right(ends, place) + 1)
        place += sum(len("".join(token.text.split())) for token in sentence)
        lines = conllu_lines(sentence)
        parsed = tag_format.parse([Line(number, line) for number, line in enumerate(lines, start=1)])
        sentences.append(TaggedSentence(parsed.words, parsed.tags))
        first = blocks[-1].first_line + len(blocks[-1].lines) + 1 if blocks else 1
        blocks.append(SentenceBlock(first, tuple(lines), parsed.places))
    return SplitText(name, tag_format, sentences, blocks, skipped, first_lines=first_lines)


def train_splitter(path: str, folder: Path) -> dict[str, int]:
    """Learn a splitter from a treebank and keep it; how much it was learned from."""
    from pplseq.models.taggers.raw_text.splitter import TextSplitter
    from pplseq.models.taggers.raw_text.treebank import read_paragraphs

    paragraphs = read_paragraphs(path)
    check_out(folder)
    TextSplitter().fit(paragraphs).save(folder)
    sentences = [sentence for paragraph in paragraphs for sentence in paragraph]
    return {"paragraphs": len(paragraphs), "sentences": len(sentences), "tokens": sum(map(len, sentences))}


def raw_scores(gold: str, found: str) -> dict[str, SpanScore]:
    """Scores of a CoNLL-U file that was made from raw text."""
    from pplseq.models.taggers.raw_text.scores import score_raw_text
    from pplseq.models.taggers.raw_text.treebank import read_paragraphs

    texts = ([sentence for paragraph in read_paragraphs(path) for sentence in paragraph] for path in (gold, found))
    return score_raw_text(*texts)


def describe(path: str, reading: Any) -> dict[str, Any]:
    """Sizes of a file of sentences, and how often each tag occurs, most frequent first."""
    sentences = read(path, reading, lambda remark: None, tags="optional")
    words = Counter(word for sentence in sentences for word in sentence.words)
    tags = Counter(tag for sentence in sentences for tag in sentence.tags)
    untagged = tags.pop(None, 0)
    return {
        "sentences": len(sentences), "words": words.total(), "distinct_words": len(words), "untagged_words": untagged,
        "longest": max((len(sentence.words) for sentence in sentences), default=0), "tags": dict(tags.most_common()),
    }  # fmt: skip


def written_separator(saved: SavedTagger, separator: str, say: Callable[[str], None]) -> str:
    """What stands between word and tag of word_TAG: what was asked for, or, where that is the usual `_` and a tag of the model
    holds it, another that no tag holds, which is said."""
    tags = saved.tagger.tags
    holds = [tag for tag in tags if separator in tag]
    if separator != SEPARATORS[0] or not holds:
        return separator
    free = next((other for other in SEPARATORS if not any(other in tag for tag in tags)), None)
    if free is None:
        raise ValueError(
            f"--separator: tags of the model hold {' '.join(SEPARATORS)}; give one that none holds, or --to columns, or --json"
        )
    say(f"{free} stands between words and tags, as the tag {holds[0]!r} holds {separator!r}; --separator chooses another")
    return free


def write_json(path: Path, content: Any) -> None:
    """Numbers as JSON."""
    write_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


# ---- run


def other_tags(saved: SavedTagger, sentences: TaggedFile) -> str | None:
    """A remark where the column that is written over has tags of another tag set."""
    try:
        unseen_tags(saved.tagger.tags, sentences)
    except ValueError as error:
        return f"Note: {error}. The tags are written over"
    return None


def run_page(saved: SavedTagger, sentences: TaggedFile, path: Path, max_sentences: int, decoder: str | None) -> None:
    """The page of the first sentences, with probabilities where the tagger has them."""
    words = [sentence.words for sentence in sentences[:max_sentences]]
    title = f"{saved.system} on {Path(sentences.name).name}"
    notes = _cut(len(words), len(sentences), "sentences")
    page = render_tagging_page(_views(saved, words, range(1, len(words) + 1), decoder), title=title, notes=notes)
    write_text(path, page)


def _views(
    saved: SavedTagger,
    sentences: Sequence[Sequence[str]],
    numbers: Sequence[int],
    decoder: str | None,
    gold: Sequence[Sequence[str | None]] | None = None,
    names: Mapping[str, str] | None = None,
) -> list[SentenceView]:
    """names: what clusters are called."""
    tagger = saved.tagger
    probabilistic = hasattr(tagger, "smooth")
    questions = TagQuestions(probabilities=True, top=SHOWN_ALTERNATIVES) if probabilistic else TagQuestions()
    views = []
    for i, found in enumerate(answer(tagger, sentences, replace(questions, decoder=decoder))):
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
    how well clusters agree with tags, and what each is called; None of a tagger whose tags have names. spans: scores of whole
    spans, where the right tags stand for spans. columns: scores of each column, where tags are read from several. scheme: of
    spans, that right tags were brought to, as the model writes no other."""

    scores: TagScores
    tags: list[tuple[str, ...]]
    unseen: Counter[str]
    seconds: float
    clusters: dict[str, Any] | None = None
    spans: SpanScores | None = None
    columns: dict[str, TagScores] | None = None
    scheme: str | None = None


def other_scheme(saved: SavedTagger, sentences: Sequence[TaggedSentence]) -> str | None:
    """A remark where the tags that are written over stand for spans in another scheme than those that are written."""
    scheme = scheme_of(saved.tagger, sentences)
    if scheme is None or list(in_scheme(saved.tagger, sentences)) == list(sentences):
        return None
    return f"Note: the model writes spans in the scheme {scheme}, those of the text are in another"


def score(saved: SavedTagger, sentences: TaggedFile, decoder: str | None, clusters: bool = False) -> Scored:
    """Tag a text and score it; ValueError for a model of another tag set."""
    clusters = clusters or saved.system == "unsupervised"
    gold = in_scheme(saved.tagger, sentences)
    unseen = Counter() if clusters else unseen_tags(saved.tagger.tags, gold)
    began = time.perf_counter()
    words = [sentence.words for sentence in sentences]
    tags = saved.tagger.tag(words) if decoder is None else saved.tagger.tag(words, decoder=decoder)
    seconds = time.perf_counter() - began
    agreement = None
    if clusters:
        from pplseq.models.taggers.clusters import names_of_clusters, score_clusters

        names = names_of_clusters(sentences, tags)
        agreement = {**score_clusters(sentences, tags)._asdict(), "names": names}
        tags = cast(list[tuple[str, ...]], [tuple(names.get(cluster) for cluster in row) for row in tags])
    training = TrainingWords(frozenset(saved.tagger.known_words), saved.ambiguous)
    spans = None
    if not clusters and are_spans(tag for sentence in sentences for tag in sentence.tags) and are_spans(saved.tagger.tags):
        spans = score_spans(sentences, tags)
    columns = None
    names = getattr(sentences.tag_format, "column_names", ())
    if len(names) > 1:
        columns = {
            name: score_tags(
                [TaggedSentence(s.words, _part(s.tags, k)) for s in sentences], [_part(row, k) for row in tags], training
            )
            for k, name in enumerate(names)
        }
    scheme = scheme_of(saved.tagger, sentences)
    return Scored(score_tags(gold, tags, training), tags, unseen, seconds, agreement, spans, columns, scheme)


def _part(tags: Sequence[str | None], number: int) -> tuple[Any, ...]:
    """One column of tags that are several."""
    return tuple(None if tag is None else [*tag.split(BETWEEN_COLUMNS), *[""] * number][number] for tag in tags)


def scores_text(model: Path, result: Scored, top: int, against: Path | None, other: Scored | None) -> str:
    """The tables."""
    scores = result.scores
    parts = [tag_tables.scores_table(scores, scores.interval())]
    if result.clusters is not None:
        shown = " ".join(f"{name} {result.clusters[name]:.4f}" for name in ("v_measure", "homogeneity", "completeness"))
        parts[0] += f"\nclusters called by their most frequent tag (many-to-one); {shown}"
    if result.spans is not None:
        parts.append(tag_tables.spans_table(result.spans))
        if result.scheme is not None:
            parts[-1] += f"\nwords are compared in the scheme {result.scheme}, which the model writes"
    if result.unseen:
        listed = ", ".join(f"{tag} {count:,}" for tag, count in result.unseen.most_common())
        parts.append(f"tags that the model has not seen in training, always wrong: {listed}")
    if result.columns is not None:
        parts.append(tag_tables.columns_table(result.columns))
        scores = next(iter(result.columns.values()))  # tags of all columns together are too many for a table
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
    if result.spans is not None:
        found["spans"] = result.spans.summary() | ({} if result.scheme is None else {"scheme": result.scheme})
    if result.columns is not None:
        found["columns"] = {name: scores.summary() for name, scores in result.columns.items()}
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
    decoder: str | None,
) -> None:
    """The page of scores and of the first sentences with errors."""
    gold_sentences = in_scheme(saved.tagger, sentences)
    wrong = [
        i
        for i, (sentence, tags) in enumerate(zip(gold_sentences, result.tags, strict=True))
        if any(gold not in (None, tag) for gold, tag in zip(sentence.tags, tags, strict=True))
    ]
    shown = wrong[:max_sentences]
    views = _views(
        saved,
        [sentences[i].words for i in shown],
        [i + 1 for i in shown],
        decoder,
        [gold_sentences[i].tags for i in shown],
        None if result.clusters is None else result.clusters["names"],
    )
    notes = _cut(len(shown), len(wrong), "sentences with errors") or ["All sentences with errors."]
    write_text(path, render_tagging_page(views, title=title, scores=result.scores, notes=notes, spans=result.spans))


# ---- compare


def comparison_text(found: Comparison, per_tag: bool = False) -> str:
    """The tables. per_tag: also F1 of every tag by every system."""
    tables = [f"{name}\n{tag_tables.curve_table(points)}" for name, points in found.curves.items()]
    if per_tag:
        tables.insert(0, tag_tables.systems_by_tag_table(found.results))
    return "\n\n".join([tag_tables.comparison_table(found.results), *tables])
