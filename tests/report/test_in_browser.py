"""Every kind of page in a real browser: no violation of axe-core, no sideways scrolling on a phone, labels one can read."""

import random

import pytest
from support.browser import wrong_with
from support.commands import pplseq

pytestmark = pytest.mark.browser

TAGS = {
    "the": "DET", "dog": "NOUN", "runs": "VERB", "saw": "NOUN", "quickly": "ADV", "red": "ADJ", "she": "PRON", "of": "ADP",
    "and": "CCONJ", "two": "NUM", "not": "PART", "Anna": "PROPN", "!": "PUNCT", "oh": "INTJ", "will": "AUX", "if": "SCONJ",
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A text, a stream that surprises, a table, labelled strings, tagged sentences with errors, counts."""
    folder, draw = tmp_path_factory.mktemp("pages"), random.Random(1)
    words = sorted(TAGS)
    lines = [[draw.choice(words) for _ in range(draw.randint(3, 12))] for _ in range(80)]
    (folder / "text.txt").write_text("\n".join(map(" ".join, lines)) + "\n")
    (folder / "stream.txt").write_text(("dog " * 9 + "runs\n") * 6 + "\n".join(map(" ".join, lines[:9])) + "\n")
    tagged = [[(w, "VERB" if w == "saw" and draw.random() < 0.5 else TAGS[w]) for w in line] for line in lines]
    (folder / "tags.txt").write_text("\n".join(" ".join(f"{w}_{t}" for w, t in line) for line in tagged) + "\n")
    rows, y = ["u,y,c"], 0.0
    for _ in range(80):
        u = draw.gauss(0, 1)
        y = 0.7 * y + u + draw.gauss(0, 0.3)
        rows.append(f"{u:.3f},{y:.3f},{'ab'[y > 0]}")
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    strings = ["".join(draw.choice("01") for _ in range(draw.randint(1, 6))) for _ in range(40)]
    (folder / "strings.txt").write_text("".join(f"{'+' if s.count('1') % 2 else '-'} {s}\n" for s in strings))
    return folder


def check(browser, page):
    assert wrong_with(browser, page) == []
    listed, led_to = browser.headings()
    assert listed == led_to and len(listed) > 1


TRAININGS = {
    "vlhmm": "text.txt --min-count 1 --epochs 1 --num-states 32 --num-blocks 4 --hidden-size 8 --batch-size 4",
    "hmm": "text.txt --min-count 1 --epochs 2 --num-states 4",
    "lstm": "text.txt --min-count 1 --epochs 1 --hidden-size 8 --num-layers 1 --batch-size 4",
    "lds": "rows.csv --outputs y --inputs u --max-iterations 4",
    "iohmm-classes": "rows.csv --outputs c --symbols c --inputs u --num-states 1,2 --num-restarts 2 --max-iterations 5",
    "iohmm-numbers": "rows.csv --outputs y --inputs u --num-states 2 --num-restarts 2 --max-iterations 5",
    "iohmm-strings": "strings.txt --num-states 2-3 --num-restarts 20 --no-picture",
    "tagger": "tags.txt --system hmm",
    "text-lds": "counts --num-states 2 --max-iterations 3 --pseudo-counts 1 --blocks 2 --restricted-iterations 3",
}


@pytest.mark.parametrize("name", TRAININGS)
def test_report_of_a_run(place, browser, name):
    model = name if name == "text-lds" else name.partition("-")[0]
    data, *options = TRAININGS[name].split()
    if data == "counts":
        pplseq("count", place / "text.txt", "--max-lag", 4, "--out", place / "counts")
    pplseq("train", model, place / data, "--out", place / name, *options)
    given = ["--data", place / "text.txt"] if model == "text-lds" else []
    pplseq("report", place / name, *given)
    check(browser, place / name / "report.html")


def test_pages_of_streams(place, browser):
    ngram, unigram = (f"{kind}:{place / 'text.txt'}" for kind in ("ngram", "unigram"))
    stream = ("--order", 2, "--stream", place / "stream.txt", "--max-words", 90)
    pplseq("compare-streams", ngram, unigram, *stream, "--html", place / "compare.html")
    check(browser, place / "compare.html")
    state = ("--state", place / "state", "--out", place / "out.jsonl")
    pplseq("personalize", ngram, "--source", "cache", *stream, *state, "--html", place / "personal.html")
    check(browser, place / "personal.html")
    pplseq("report", place / "state")
    check(browser, place / "state" / "report.html")


def test_pages_of_taggers(place, browser):
    text = place / "tags.txt"
    pplseq("train", "tagger", text, "--system", "hmm", "--out", place / "second")
    pplseq("tag", "run", place / "second", text, "--html", place / "run.html", "--out", place / "tagged.txt")
    pplseq("tag", "eval", place / "second", text, "--html", place / "eval.html")
    pplseq("tag", "compare", text, text, "--systems", "hmm,most-frequent", "--html", place / "systems.html")
    for name in ("run", "eval", "systems"):
        assert wrong_with(browser, place / f"{name}.html") == []


def test_the_check_finds_what_is_wrong(place, browser):
    """A page with each fault is told of."""
    page = place / "wrong.html"
    page.write_text(
        "<!DOCTYPE html><html lang=en><title>x</title><style>html{background:#fff}svg text{fill:#aaa;font-size:5px}</style>"
        '<h1>x</h1><p style="width:900px;color:#aaa">pale and wide</p><svg width=50 height=20><text y=9>label</text></svg>'
    )
    found = " ".join(wrong_with(browser, page))
    assert "color-contrast" in found and "px wider than the window" in found and "label 'label' of 5.0 px" in found
