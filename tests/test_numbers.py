"""Measured numbers in README and docs are those of the files of `results/` that are named before or behind them."""

import functools
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
NUMBER = re.compile(r"(?<![\w.,^/-])(\d{1,3}(?:,\d{3})+|\d*\.\d+|\d+)(?![\w^]|[.,]\d)")
MEASURED = re.compile(r" (?:ms|milliseconds|seconds|tokens a second)\b")
# what was not measured here: numbers of papers, versions, settings, what follows by arithmetic, made-up data
OTHERS = {
    "README.md": {"3.11"},
    "docs/exactness.md": {"1.25"},
    "docs/faq.md": {"3.11", "3.12", "3.13", "3.14"},
    "docs/stability.md": {"3.11", "3.12", "3.13"},
    "docs/tutorials/constraints.md": {"1.3"},
    "docs/tutorials/regimes.md": {"0.7", "2.4"},
    "docs/tutorials/scaling.md": {"1.25", "115.8", "125.0", "142.3", "152.5"},
    "docs/tutorials/steering.md": {"0.9"},
    "docs/tutorials/tagging.md": {"1.2", "2.5", "2.16"},
}


def sections(page):
    """Prose of every section, without programs and pictures."""
    text = re.sub(r"^```.*?^```|<svg.*?</svg>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.split(r"^(?=#+ )", text, flags=re.MULTILINE)


NAME = r"`(results/[\w/*]+\.(?:json|md))`"


def named(text):
    return [path for name in re.findall(NAME, text) for path in sorted(ROOT.glob(name)) or [ROOT / name]]


def pieces(section):
    """Prose between two names of files, or lists of such names, with the files named right before and right after it."""
    parts = re.split(rf"({NAME}(?:(?:,|,? and)\s+{NAME})*)", section)[::4]
    names = [named(found[0]) for found in re.finditer(rf"{NAME}(?:(?:,|,? and)\s+{NAME})*", section)]
    for number, part in enumerate(parts):
        yield part, [*(names[number - 1] if number else []), *(names[number] if number < len(names) else [])]


def told(text):
    """Numbers that prose tells as measured: with a point, of a perplexity, or of a time or speed."""
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "`", text)
    for found in NUMBER.finditer(prose):
        if "." in found[1] or MEASURED.match(prose, found.end()) or prose[: found.start()].endswith("perplexity "):
            yield found[1]


@functools.cache
def held(path):
    """Numbers of a file of results, as they stand there."""
    if path.suffix == ".md":
        return [float(number.replace(",", "")) for number in NUMBER.findall(path.read_text(encoding="utf-8"))]
    numbers = []
    inside = [json.loads(path.read_text(encoding="utf-8"))]
    while inside:
        value = inside.pop()
        if isinstance(value, dict | list):
            inside += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int | float):
            numbers.append(float(value))
    return numbers


def as_told(value):
    """A value in the units that prose may tell it in: shares and per cent, seconds and milliseconds, millions."""
    yield value
    if 0 < value <= 1:
        yield from (100 * value, 1000 * value)
    elif value <= 100:
        yield value / 100
    elif value >= 1e6:
        yield value / 1e6


def missing(section):
    """Told numbers that neither the files named before nor those named behind them hold, rounded as they are told."""
    for part, paths in pieces(section):
        values = [value for path in paths for number in held(path) for value in as_told(number)]
        for number in told(part):
            near = 500 if number.endswith(",000") else 0.5001 / 10 ** len(number.partition(".")[2])
            if not any(abs(value - float(number.replace(",", ""))) <= near for value in values):
                yield number


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_measured_numbers_are_those_of_results(page):
    """Every file that is named is there; what the files of a section do not hold is among the others, each of which is told."""
    assert [path for section in sections(page) for path in named(section) if not path.exists()] == []
    wrong = {number: section.partition("\n")[0] for section in sections(page) for number in missing(section)}
    assert wrong == {number: wrong.get(number) for number in OTHERS.get(page.relative_to(ROOT).as_posix(), ())}


def test_a_stale_number_is_found():
    section = "# A\n\nPerplexity 105.3, not 7.77 (`results/vlhmm_ptb_65536_better_clusters_drawn_further_then_true.json`)"
    assert list(missing(section)) == ["7.77"]
    assert list(missing(section.replace("105.3", "106.3"))) == ["106.3", "7.77"]
    assert list(missing("# B\n\na perplexity of 12 is perplexity 12, 3 ms")) == ["12", "3"]
