"""`pplseq report` of every kind of run: its scores are those of `evaluate`, beside those of a simple rival."""

import json
import math
import random
import re

import numpy as np
import pytest
from support.commands import pplseq

from pplseq.data.text import load_corpus
from pplseq.recipes.runs import evaluate, report


def rows_of(page, heading):
    """Cells of the first table of a section, without markup."""
    section = page.partition(f"</span>{heading}</h2>")[2].partition("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section.partition("</table>")[0])
    return [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows][1:]


def page_of(run, **settings):
    return report(run, **settings)[0].read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    lines = [f"the {draw.choice(['cat', 'dog'])} {draw.choice(['sees', 'likes'])} it" for _ in range(60)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    tags = {"the": "D", "it": "P", "cat": "N", "dog": "N", "sees": "V", "likes": "V"}
    for name in ("tags.txt", "test.txt"):
        tagged = [" ".join(f"{w}_{'X' if draw.random() < 0.1 else tags[w]}" for w in line.split()) for line in lines]
        (folder / name).write_text("\n".join(tagged) + "\n")
    rows, y = ["u,y,c"], 0.0
    for t in range(60):
        u = draw.gauss(0, 1)
        y = 0.7 * y + u
        rows.append(f"{u:.3f},{'' if t == 7 else f'{y:.3f}'},{'ab'[y > 0.5]}")
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    strings = ["".join(draw.choice("01") for _ in range(draw.randint(1, 6))) for _ in range(40)]
    (folder / "strings.txt").write_text("".join(f"{'+' if s.count('1') % 2 else '-'} {s}\n" for s in strings))
    return folder


def test_lds(data, tmp_path):
    pplseq("train", "lds", data / "rows.csv", "--outputs", "y", "--max-iterations", 2, "--out", tmp_path / "run")
    page = page_of(tmp_path / "run")
    (found,) = evaluate(tmp_path / "run", data / "rows.csv")
    scores = rows_of(page, "Scores")
    y = np.genfromtxt(data / "rows.csv", delimiter=",", skip_header=1, usecols=1)
    y = y[~np.isnan(y)]
    assert scores[0][1] == f"{found['nats_per_step']:,.6g}"
    error = found["prediction"]["root_mean_squared_error"]["y"]
    assert scores[1][1:3] == [f"{error:,.6g}", f"{np.sqrt((np.diff(y) ** 2).mean()):,.6g}"]
    assert scores[2][2] == f"{found['mean']['root_mean_squared_error']['y']:,.6g}"
    assert "its own training data, rows.csv" in page and "<polygon" in page and "nan" not in page
    assert all(f"</span>{name}</h2>" in page for name in ("Residuals", "Forecast", "Smoothed states"))
    assert page.count("Nats a step") == 1 and "<details><summary>Settings</summary>" in page
    assert "rows.csv, given with --data" in page_of(tmp_path / "run", data=str(data / "rows.csv"))


def test_iohmm_of_classes(data, tmp_path):
    options = ["--symbols", "c", "--num-states", 2, "--num-restarts", 1, "--max-iterations", 2]
    options += ["--validation", data / "rows.csv"]
    pplseq("train", "iohmm", data / "rows.csv", "--outputs", "c", "--inputs", "u", *options, "--out", tmp_path / "run")
    page = page_of(tmp_path / "run")
    scores = rows_of(page, "Scores")
    classes = np.genfromtxt(data / "rows.csv", delimiter=",", skip_header=1, usecols=2, dtype=str)
    often = max("ab", key=lambda name: (classes == name).sum())
    share = (classes == often).mean()
    (found,) = evaluate(tmp_path / "run", data / "rows.csv")
    assert scores[1][1:] == [f"{found['prediction']['accuracy']:,.6g}", f"{share:,.6g}", f"always {often}, the most frequent"]
    smoothed = {name: ((classes == name).sum() + 1) / (len(classes) + 2) for name in "ab"}
    assert scores[0][2] == f"{-np.mean([math.log(smoothed[name]) for name in classes]):,.6g}"
    assert "the held-out data by which the training chose" in page
    assert [row[0] for row in rows_of(page, "States")] == ["state 0", "state 1"] == [row[0] for row in rows_of(page, "Moves")]


def test_automaton(data, tmp_path):
    options = ("--num-states", "2-3", "--num-restarts", 20, "--no-picture")
    pplseq("train", "iohmm", data / "strings.txt", *options, "--out", tmp_path / "run")
    page = page_of(tmp_path / "run")
    labels = [line[0] == "+" for line in (data / "strings.txt").read_text().splitlines()]
    accuracy = rows_of(page, "Scores")[0]
    assert accuracy[1:3] == ["1", f"{max(np.mean(labels), 1 - np.mean(labels)):,.6g}"]
    assert {tuple(row[1:]) for row in rows_of(page, "The automaton")} <= {
        ("reject", "0&nbsp;→&nbsp;0; 1&nbsp;→&nbsp;1"), ("accept", "0&nbsp;→&nbsp;1; 1&nbsp;→&nbsp;0"),
    }  # fmt: skip
    assert "digraph" in page


def test_tagger(data, tmp_path):
    for system in ("hmm", "most-frequent"):
        pplseq("train", "tagger", data / "tags.txt", "--system", system, "--out", tmp_path / system)
    page = page_of(tmp_path / "hmm", data=str(data / "test.txt"))
    own, rival = (evaluate(tmp_path / name, data / "test.txt")[0] for name in ("hmm", "most-frequent"))
    assert rows_of(page, "Scores")[0][1:3] == [f"{found['all']['accuracy']:,.6g}" for found in (own, rival)]
    tags = {row[0]: row[3] for row in rows_of(page, "Tags")}
    assert tags == {name: f"{found['f1']:.4f}" for name, found in own["tags"].items()}
    assert 'class="matrix"' in page


@pytest.mark.parametrize("model", ["rnn", "hmm"])
def test_models_of_words(data, tmp_path, model):
    from pplseq.baselines import KneserNey

    options = {"rnn": ("--hidden-size", 4, "--batch-size", 4), "hmm": ("--num-states", 3)}[model]
    pplseq("train", model, data / "text.txt", "--min-count", 1, "--epochs", 1, *options, "--out", tmp_path / "run")
    page = page_of(tmp_path / "run")
    corpus = load_corpus(str(data / "text.txt"), min_count=1)
    expected = KneserNey(5).fit(corpus.train).perplexity(corpus.test)
    own = {row["protocol"]: row["perplexity"] for row in evaluate(tmp_path / "run")}
    for row in rows_of(page, "Scores"):
        assert float(row[1]) == pytest.approx(own[row[0].removeprefix("perplexity, ")], rel=1e-4)
        assert float(row[2]) == pytest.approx(expected, rel=1e-4)
    assert page.count('<p class="written"') in range(1, 6)


def test_counts_without_and_with_a_text(data, tmp_path):
    pplseq("count", data / "text.txt", "--max-lag", 4, "--out", tmp_path / "counts")
    options = ("--num-states", 2, "--max-iterations", 1, "--blocks", 2, "--restricted-iterations", 1)
    pplseq("train", "text-lds", tmp_path / "counts", *options, "--out", tmp_path / "run")
    assert "give one with --data" in page_of(tmp_path / "run")
    page = page_of(tmp_path / "run", data=str(data / "text.txt"))
    (found,) = evaluate(tmp_path / "run", data / "text.txt")
    assert rows_of(page, "Scores")[0][1:3] == [f"{found[name]:,.6g}" for name in ("perplexity", "unigram_perplexity")]
    assert "What turns into what" in page and page.count('<p class="written"') == 5


def test_state_of_a_stream(data, tmp_path):
    arguments = ("--source", "cache", "--order", 2, "--stream", data / "text.txt", "--state", tmp_path / "state")
    pplseq("personalize", f"ngram:{data / 'text.txt'}", *arguments, "--out", tmp_path / "out.jsonl")
    rows = rows_of(page_of(tmp_path / "state"), "Scores")
    assert [row[3] for row in rows] == [f"ngram:{data / 'text.txt'}", "cache"] and rows[0][1] == rows[1][1]
    assert 1 < float(rows[0][1]) < float(rows[1][2])


def test_comparison_of_taggers(data, tmp_path):
    page = tmp_path / "systems.html"
    told = pplseq("tag", "compare", data / "tags.txt", data / "test.txt", "--systems", "hmm,most-frequent", "--html", page)
    page = page.read_text(encoding="utf-8")
    first = told.stdout.splitlines()[2].split()
    systems = rows_of(page, "Systems")
    assert systems[0][:2] == first[:2] and {row[0] for row in systems} == {"hmm", "most-frequent baseline"}
    assert {row[0] for row in rows_of(page, "F1 of every tag")} == {"D", "N", "P", "V", "X"}


def test_regimes_of_returns(tmp_path):
    """A table of one column and nothing else said but how many states: both regimes are found."""
    draw, path = np.random.default_rng(3), [0]
    for _ in range(599):
        path.append(path[-1] if draw.random() < (0.98 if path[-1] == 0 else 0.95) else 1 - path[-1])
    calm = np.array(path) == 0
    returns = np.where(calm, 0.0008, -0.002) + np.where(calm, 0.006, 0.022) * draw.normal(size=600)
    (tmp_path / "returns.csv").write_text("return\n" + "\n".join(f"{value:.6f}" for value in returns) + "\n")
    model = ("--outputs", "return", "--num-states", "2", "--num-restarts", "3", "--out", str(tmp_path / "run"))
    pplseq("train", "iohmm", tmp_path / "returns.csv", *model)
    told = pplseq("query", tmp_path / "run", "decode", tmp_path / "returns.csv")
    found = np.array(json.loads(told.stdout)["path"])
    agree = (found == np.array(path)).mean()
    assert max(agree, 1 - agree) > 0.93
    error, of_mean = (float(cell) for cell in rows_of(page_of(tmp_path / "run"), "Scores")[1][1:3])
    assert error == pytest.approx(of_mean, rel=0.1)  # the level says little, the variance much: nothing to see in errors


def test_spans_of_a_tagger(tmp_path):
    text = "\n\n".join(["a B-X\nb I-X\nc O", "c O\na B-X", "b B-Y\nc O"] * 4) + "\n"
    (tmp_path / "spans.txt").write_text(text)
    given = (tmp_path / "spans.txt", "--system", "spans", "--format", "columns")
    pplseq("train", "tagger", *given, "--out", tmp_path / "run")
    page = page_of(tmp_path / "run")
    (found,) = evaluate(tmp_path / "run", tmp_path / "spans.txt")
    assert rows_of(page, "Scores")[0][:2] == ["F1 of spans, 12", f"{found['spans']['f1']:,.6g}"]
    shown = {row[0]: row[3] for row in rows_of(page, "Spans")}
    kinds = {kind: score["f1"] for kind, score in found["spans"]["kinds"].items()}
    assert shown == {name: f"{f1:.4f}" for name, f1 in ({"all spans": found["spans"]["f1"]} | kinds).items()}
