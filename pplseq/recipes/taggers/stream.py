"""Words of standard input tagged as they come: what is there is answered at once, a line at a time or many."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, BinaryIO

from pplseq.data.columns import TaggedSentence, decoded
from pplseq.data.sources import available_lines
from pplseq.data.tag_formats import LineError, WordsFormat
from pplseq.data.tagged import render_tagged
from pplseq.files import json_line
from pplseq.recipes.taggers.answers import answer_each
from pplseq.recipes.taggers.settings import TagQuestions
from pplseq.recipes.taggers.systems import SavedTagger
from pplseq.recipes.taggers.tagging import columns_of_tags


def holds_words(stream: Any, saved: SavedTagger) -> bool:
    """Whether a stream may be read as it comes and what it has first are words: no comment and no columns between tabs, as
    CoNLL-U begins, nor columns with tags of the model. Waits for the first bytes, which stay in the stream."""
    lines = first_lines(stream)
    if not lines or lines[0].startswith("#") or re.match(r"\d+(-\d+|\.\d+)?\t", lines[0]):
        return False
    return columns_of_tags(saved, lines) is None


def first_lines(stream: Any) -> list[str]:
    """The lines that a stream has first, without blank ones; none of a stream that cannot be looked into."""
    peek = getattr(stream, "peek", None)
    if peek is None:
        return []
    lines = peek(1).decode("utf-8-sig", "replace").split("\n")
    whole = lines[:-1] or lines  # the last may not be all there yet
    return [line.strip(" \r") for line in whole if line.strip()]


def tag_stream(
    stream: BinaryIO,
    saved: SavedTagger,
    questions: TagQuestions,
    write: Callable[[str], None],
    say: Callable[[str], None],
    *,
    to: str | None = None,
    columns: Mapping[str, Any] | None = None,
    as_json: bool = False,
    separator: str = "_",
) -> int:
    """Tag a sentence a line; what is written is what the whole text at once would give.

    Args:
        write: takes text for the output, lines with their ends, which are to be seen at once. say: told what failed.
        to: a format of tagged files; None: word_TAG. columns: of the format, that get tags and words.

    Returns:
        how many sentences could not be read or tagged.
    """
    tag_format, failed, number, seen = WordsFormat(separator), 0, 0, 0
    for lines in available_lines(stream):
        parsed: list[tuple[int, TaggedSentence | str]] = []
        for raw in lines:
            number += 1
            raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            try:
                words = tag_format.parse(decoded([(number, raw)])).words
                parsed.append((number, TaggedSentence(words, (None,) * len(words))))
            except LineError as error:
                parsed.append((number, str(error)))
        sentences = [found.words for _, found in parsed if not isinstance(found, str) and found.words]
        answers = iter(answer_each(saved.tagger, sentences, replace(questions, seed=questions.seed + seen)))
        seen += len(sentences)
        text = ""
        for place, found in parsed:
            answer: dict[str, Any] | None = None
            if isinstance(found, str):
                failed += 1
                say(f"<stdin>: skipped line {place}: line {place}: {found}")
                text += json_line({"line": place, "error": found}) + "\n" if as_json else ""
                continue
            if found.words:
                answer = next(answers)
                if "error" in answer:
                    failed += 1
                    say(f"<stdin>, line {place}: no tags: {answer['error']}")
            if as_json:
                text += "" if answer is None else json_line(answer) + "\n"
            elif answer is None:
                text += "\n" if to in (None, "word_tag") else ""
            else:
                text += _written(answer, to, columns or {}, separator, questions.probabilities)
        write(text)
    return failed


def _written(
    answer: dict[str, Any], to: str | None, columns: Mapping[str, Any], separator: str, with_probabilities: bool
) -> str:
    """A sentence in a format of tagged files; where it has no tags `_`, in word_TAG the words alone."""
    words = tuple(answer["words"])
    tags = tuple(answer.get("tags", [None] * len(words)))
    probabilities = [answer.get("probabilities", [0.0] * len(words))] if with_probabilities else None
    sentence = TaggedSentence(words, tags)
    lines = render_tagged([sentence], to or "word_tag", **columns, probabilities=probabilities, separator=separator)
    return "".join(line + "\n" for line in lines)
