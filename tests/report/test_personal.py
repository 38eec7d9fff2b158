"""The page and the picture of a stream's words, with words that try to break out of the page."""

import html.parser
import math
import re

import numpy as np
import pytest

from pplseq.report.personal import StreamTotals, StreamView, colour_scale, render_personal_page, signed

WORDS = ["<script>alert(1)</script>", "a&b", '"quoted"', "$x$", "שלום", "日本", "</style>", "a&b"]
FIRST = np.array([-1.0, -2.0, -math.inf, -4.0, -math.inf, -0.5, -3.0, -5.0])
SECOND = np.array([-2.0, -1.0, -1.0, -math.inf, -math.inf, -0.5, -9.0, -2.0])
ODDS = np.array([0.5, -0.25, math.inf, -math.inf, 0.0, 12.0, -3.0, 1.0])


def view(**changes):
    settings = {
        "words": WORDS,
        "log_probs": {"PROPS <b>": FIRST, "HMM": SECOND},
        "log_odds": ODDS,
        "line_starts": [0, 3, 6],
        "line_numbers": [1, 2, 4],
        "known": [True] * 7 + [False],
    }
    return StreamView(**settings | changes)


class Page(html.parser.HTMLParser):
    """Elements in pairs, the coloured words and their labels."""

    def __init__(self, page):
        super().__init__()
        self.open, self.names, self.words, self.texts = [], set(), [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.names.add(tag)
        if tag != "meta":
            self.open.append(tag)
        if tag == "span" and "title" in attributes:
            self.words.append({**attributes, "texts": []})

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.words and self.open[-1:] in (["bdi"], ["small"]) and "p" in self.open:
            self.words[-1]["texts"].append(data)


def test_ratios_are_differences():
    ratios = view().ratios
    np.testing.assert_array_equal(ratios[[0, 1, 5, 6, 7]], [1.0, -1.0, 0.0, 6.0, -3.0])
    assert ratios[2] == -math.inf and ratios[3] == math.inf and math.isnan(ratios[4])
    assert view(log_probs={"only": FIRST}).ratios is None


def test_every_word_is_coloured_by_its_value():
    page = Page(render_personal_page(view(), title="x"))
    assert not page.open
    assert len(page.words) == 2 * len(WORDS)  # one panel a figure
    values = [*view().ratios, *ODDS]
    scales = [colour_scale(view().ratios)] * len(WORDS) + [colour_scale(ODDS)] * len(WORDS)
    for shown, text, value, scale in zip(page.words, WORDS * 2, values, scales, strict=True):
        assert shown["texts"] == [text if len(text) <= 24 else text[:23] + "…", signed(value)]
        kind = shown["class"].split()[:1]
        assert math.isnan(value) or kind == (["up"] if value > 0 else ["down"])
        strength = float(re.search(r"--s:([\d.]+)", shown["style"])[1])
        assert strength == pytest.approx(0.0 if math.isnan(value) else min(abs(value) / scale, 1.0), abs=0.0051)
    assert ["unknown" in shown["class"] for shown in page.words] == [*[False] * 7, True] * 2
    assert "PROPS <b>: p = 0.368; HMM: p = 0.135; log-odds of the perturbation states +0.50" == page.words[0]["title"]


def test_nothing_breaks_out_of_the_page():
    page = render_personal_page(view(), title="<i>x</i>", notes=["5 > 3 <u>"], command="pplseq <em>")
    parsed = Page(page)
    assert not parsed.names & {"script", "u", "em", "img", "link"}
    assert "src=" not in page and "http:" not in page and "https:" not in page
    assert "5 > 3 <u>" in parsed.texts and "<i>x</i>" in parsed.texts and parsed.open == []


def test_lines_and_their_numbers():
    page = render_personal_page(view(), title="x")
    panel = page.partition("<section id=")[2].partition("</section>")[0]
    lines = re.findall(r'<p class="stream" dir="auto">(.*?)</p>', panel)
    assert [re.match(r'<span class="n">(\d+)</span>', line)[1] for line in lines] == ["1", "2", "4"]
    assert [line.count("title=") for line in lines] == [3, 3, 2]
    whole = StreamView(WORDS, {"a": FIRST})
    assert [(number, list(places)) for number, places in whole.lines()] == [(None, list(range(8)))]


def test_totals_of_a_longer_stream():
    totals = StreamTotals()
    totals.add({"a": [-1.0, -2.0], "b": [-2.0, -2.0]})
    totals.add({"a": [-3.0], "b": [-5.0]})
    assert totals.num_tokens == 3
    assert totals.perplexity("a") == pytest.approx(math.exp(2.0)) and totals.perplexity("b") == pytest.approx(
        math.exp(3)
    )
    assert totals.mean_ratio("a", "b") == pytest.approx(1.0)
    assert totals.mean_prob("b") == pytest.approx((2 * math.exp(-2) + math.exp(-5)) / 3)
    page = render_personal_page(StreamView(["w"], {"a": [-1.0], "b": [-2.0]}, totals=totals), title="x")
    assert "3 tokens; shown are words 3 to 3 of 3" in page and "7.39" in page and "+1.000" in page
    totals.add({"a": [-math.inf], "b": [0.0]})
    assert totals.perplexity("a") == math.inf and totals.mean_ratio("a", "b") == -math.inf
    with pytest.raises(ValueError, match="as many values of each of a, b"):
        totals.add({"a": [-1.0]})
    with pytest.raises(ValueError, match="'a': 1, 'b': 2"):
        totals.add({"a": [-1.0], "b": [-1.0, -2.0]})


def test_totals_of_what_is_shown():
    summed = StreamView(["u", "v"], {"a": [-1.0, -3.0]}).summed
    assert summed.num_tokens == 2 and summed.perplexity("a") == pytest.approx(math.exp(2))


@pytest.mark.parametrize(
    "changes,message",
    [
        (
            {"words": [], "log_probs": {"a": []}, "log_odds": None, "known": None, "line_starts": None},
            "stream was empty",
        ),
        ({"log_probs": {}}, "one model, or two"),
        ({"log_probs": {"a": FIRST, "b": FIRST, "c": FIRST}}, "got 3"),
        ({"log_probs": {"a": FIRST[1:]}}, r"log_probs\['a'\]: expected a value for each of the 8 words, got 7"),
        ({"log_odds": [0.0]}, "log_odds: expected"),
        ({"known": [True]}, "known: expected"),
        ({"line_starts": [0, 8]}, "rising places from 0 to 7"),
        ({"line_starts": [1, 3]}, "rising places"),
        ({"line_starts": [0, 3, 3]}, "rising places"),
        ({"line_numbers": [1]}, "line_numbers: expected 3"),
    ],
)
def test_bad_views(changes, message):
    with pytest.raises(ValueError, match=message):
        view(**changes)


def test_words_that_gain_and_lose_most():
    scores = {"a": [-1.0, -1.0, -1.0, -9.0], "b": [-3.0, -2.0, -4.0, -1.0]}
    page = render_personal_page(StreamView(["x", "y", "x", "z"], scores), title="t")
    rows = re.findall(r'<td class=l><bdi class="w">(.)</bdi></td><td class=r>(\d)</td><td class=r>([^<]*)</td>', page)
    assert rows == [("x", "2", "+5.00"), ("y", "1", "+1.00"), ("z", "1", "−8.00")]


def test_perplexity_up_to_the_end_of_each_line():
    """Of each model; a line in which a word was impossible, and all behind it, have none."""
    scores = {"a": [-1.0, -1.0, -4.0, -2.0, -2.0], "b": [-2.0, -2.0, -2.0, -math.inf, -2.0]}
    page = render_personal_page(StreamView(list("xyxzz"), scores, line_starts=[0, 2, 3, 4]), title="t")
    assert f"a {math.exp(2.0):.2f}" in page and f"b {math.exp(2.0):.2f}" in page
    assert [len(line.split()) for line in re.findall(r'<polyline class="valid." points="([^"]*)"', page)] == [4, 2]
    assert "line by line" not in render_personal_page(StreamView(list("xyxzz"), scores), title="t")


def test_one_model_is_coloured_by_surprise_about_its_mean():
    page = Page(render_personal_page(StreamView(["u", "v"], {"a": [-1.0, -3.0]}), title="t"))
    assert [(word["texts"][1], word["class"]) for word in page.words] == [("1.0", "down"), ("3.0", "up")]


def test_numbers_are_all_there():
    page = render_personal_page(view(), title="x")
    table = page.partition("<details>")[2]
    cells = re.findall(r"<td class=r>([^<]*)</td>", table)
    assert cells[:4] == ["−1.000", "−2.000", "+1.000", "+0.500"] and len(cells) == 4 * len(WORDS)


@pytest.mark.parametrize(
    "value,text", [(0.04, "0.0"), (-0.06, "−0.1"), (math.inf, "+∞"), (-math.inf, "−∞"), (math.nan, "–")]
)
def test_signed(value, text):
    assert signed(value) == text


def test_colour_scale():
    assert colour_scale([]) == colour_scale([math.inf, math.nan]) == colour_scale([0.1]) == 1.0
    assert colour_scale([-6.5]) == 7.0 and colour_scale([20.0]) == 20.0 and colour_scale([20.1]) == 30.0
