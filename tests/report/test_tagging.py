"""The page of tagged sentences, the tables and the pictures, with words and tags that try to break out of the page."""

import html.parser
import re

import numpy as np
import pytest

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.comparison import CurvePoint, SystemResult
from pplseq.models.taggers.scores import difference_interval, mcnemar, score_tags, training_words
from pplseq.report.tag_tables import (
    comparison_table,
    confusion_table,
    curve_table,
    mcnemar_text,
    p_value,
    per_tag_table,
    plain_table,
    scores_table,
)
from pplseq.report.tagging import SentenceView, render_tagging_page, tag_colours

GOLD = [
    TaggedSentence(("<script>", "a&b", "שלום"), ("NN", "<b>", "VB")),
    TaggedSentence(("the", "日本", "."), ("DT", "NN", None)),
]
PREDICTED = [("NN", "NN", "VB"), ("DT", "VB", "$x$")]
SCORES = score_tags(GOLD, PREDICTED, training_words(GOLD[1:]))
VIEW = SentenceView(
    GOLD[0].words,
    PREDICTED[0],
    probabilities=(0.9, 0.333, 1.0),
    gold=GOLD[0].tags,
    known=(True, False, True),
    alternatives=[[("NN", 0.9), ('"><i>', 0.1)], [("NN", 0.333)], [("VB", 1.0)]],
    number=7,
)


class Tags(html.parser.HTMLParser):
    """Names of the elements, in pairs."""

    VOID = ("meta",)

    def __init__(self, page):
        super().__init__()
        self.open, self.seen, self.texts = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_page_is_whole_and_nothing_breaks_out():
    page = render_tagging_page([VIEW], title="<i>model</i>", scores=SCORES, notes=["5 > 3"])
    parsed = Tags(page)
    assert not parsed.open
    names = {name for name, _ in parsed.seen}
    assert "script" not in names and "i" not in names and "b" not in names
    assert all(word in parsed.texts for word in GOLD[0].words) and "5 > 3" in parsed.texts
    assert "src=" not in page and "http:" not in page and "https:" not in page


def test_sentence_view():
    parsed = Tags(render_tagging_page([VIEW], title="x"))
    tokens = [attributes for name, attributes in parsed.seen if name == "span" and "title" in attributes]
    assert [token["class"] for token in tokens] == ["", "wrong unknown", ""]
    assert [re.search(r"--c:([\d.]+)", token["style"])[1] for token in tokens] == ["0.90", "0.33", "1.00"]
    assert tokens[0]["title"] == 'NN 90%, "><i> 10%'
    assert VIEW.num_errors == 1 and SentenceView(("a",), ("X",)).num_errors == 0
    assert "7" in parsed.texts and "NN 33%" in parsed.texts and " <b>" in parsed.texts


def test_view_without_anything_but_tags():
    page = render_tagging_page([SentenceView(("a", "b"), ("X", None)), SentenceView((), ())], title="x")
    assert not Tags(page).open
    page = page.partition("</style>")[2]
    assert "fainter" not in page and "struck out" not in page and "dotted" not in page and ">–<" in page


def test_colours_go_by_class():
    colours = tag_colours(["NN", "NNS", "VB", "NOUN", "PROPN", "B-NP", "I-NP", "odd"])
    hues = {tag: hue for tag, (hue, _) in colours.items()}
    assert hues["NN"] == hues["NNS"] == hues["NOUN"] == hues["PROPN"] != hues["VB"]
    assert hues["B-NP"] == hues["I-NP"] not in (hues["NN"], hues["odd"])
    assert len(set(colours.values())) == len(colours)
    assert all(0 <= hue < 360 and 0 <= lightness <= 1 for hue, lightness in colours.values())


def test_matrix_of_the_page():
    page = render_tagging_page([VIEW], title="x", scores=SCORES)
    matrix = re.search(r'<table class="matrix">(.*?)</table>', page)[1]
    rows = [re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", row) for row in matrix.split("</tr>")[:-1]]
    shown = [[int(cell or 0) for cell in row[1:]] for row in rows[1:]]
    order = [SCORES.tags.index(score.tag) for score in SCORES.per_tag()]
    np.testing.assert_array_equal(shown, SCORES.confusion[np.ix_(order, order)])


# ---- tables


def test_plain_table():
    assert plain_table(["a", "bc"], [["xyz", "1"], ["", "22"]], "lr") == "a    bc\n---  --\nxyz   1\n     22"


def test_tables_of_scores():
    table = scores_table(SCORES, (0.25, 0.75))
    assert "all words          0.6000      3   5" in table and "0.2500 to 0.7500" in table
    assert "1 words without a gold tag" in table
    assert "known" not in scores_table(score_tags(GOLD, PREDICTED))
    rows = per_tag_table(SCORES).splitlines()
    assert rows[2].split() == ["NN", "0.5000", "0.5000", "0.5000", "2", "2"]
    assert any(row.split() == ["<b>", "–", "0.0000", "0.0000", "1", "0"] for row in rows)
    assert confusion_table(SCORES).splitlines()[2].split() == ["<b>", "NN", "1", "50.0%", "a&b", "1"]
    right = score_tags(GOLD, [sentence.tags for sentence in GOLD])
    assert confusion_table(right) == "no errors"


def test_table_of_systems():
    right = score_tags(GOLD, [sentence.tags for sentence in GOLD], training_words(GOLD))
    results = [
        SystemResult("worse", SCORES, 1.5, 0.5),
        SystemResult("absent", error="needs nltk", missing=True),
        SystemResult("best", right, 1234.0, 0.001),
    ]
    lines = comparison_table(results).splitlines()
    assert lines[0].split()[:5] == ["system", "all", "known", "unknown", "ambiguous"]
    assert lines[2].split() == ["best", "1.0000", "1.0000", "–", "–", "1.0000", "1.0000", "1,234.0", "6,000"]
    assert lines[3].split()[0] == "worse" and lines[3].split()[-3:] == ["0.50", "1.5", "12"]
    assert lines[4:] == ["", "absent: needs nltk"]
    assert comparison_table(results[1:2]) == "absent: needs nltk"


def test_other_texts():
    right = score_tags(GOLD, [sentence.tags for sentence in GOLD])
    text = mcnemar_text("a", "b", mcnemar(right, SCORES), difference_interval(right, SCORES))
    assert text.startswith("right in both 3; only in a 2; only in b 0; in neither 0\nMcNemar's test: p = 0.50; ")
    assert [p_value(p) for p in (1.0, 0.0512, 0.00123, 1.23e-9, 0.0)] == ["1.00", "0.051", "0.001", "1e-09", "< 1e-99"]
    table = curve_table([CurvePoint(1, 1000, SystemResult("x", SCORES, 2.0))])
    assert table.splitlines()[2].split() == ["1", "1,000", "0.6000", "0.5000", "0.6667", "2.0"]


# ---- pictures


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    from pplseq.report.tagging_picture import draw_learning_curves

    points = [CurvePoint(n, 10 * n, SystemResult("x", SCORES, 1.0)) for n in (1, 10, 100)]
    curves = {"one": points, "two": [CurvePoint(1, 5, SystemResult("two", error="failed"))]}
    assert draw_learning_curves({}, tmp_path / "none.png").exists()
    assert draw_learning_curves(curves, tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
