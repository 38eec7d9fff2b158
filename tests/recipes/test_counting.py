"""Counts by the workers of a cluster: those of one process, from files of every kind; parts that fail or are kept."""

import gzip
import json
import lzma

import numpy as np
import pytest
from click.testing import CliRunner

from pplseq.cli import main
from pplseq.data.lag_files import load_counts
from pplseq.data.lag_streaming import count_lags
from pplseq.data.locations import located, matching
from pplseq.data.streams import TextStream
from pplseq.data.text_parts import files_of, parts_of
from pplseq.data.vocabulary import WordForms
from pplseq.recipes import counting
from pplseq.recipes.counting import count_on
from pplseq.runs.cluster import PartFailed

pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("default")  # Dask's own


def lines(seed=0, count=60):
    drawn = np.random.default_rng(seed)
    words = ["the", "The", "cat", "é", "12", "日本", "x1", "\ufeffmark", "rare" + str(seed)]
    return [" ".join(drawn.choice(words, drawn.integers(0, 9))) for _ in range(count)]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines()) + "\nno end", encoding="utf-8")
    return path


@pytest.mark.parametrize("part_bytes", [1, 7, 64, 500, 10**6])
def test_spans_are_the_whole_text(text, part_bytes):
    data = text.read_bytes()
    found = b"".join(
        block for part in parts_of(files_of(text), "line", part_bytes) for block in TextStream(part.source, part.span).blocks()
    )
    assert found == data + b"\n"


@pytest.mark.parametrize(
    ("options", "part_bytes"),
    [({}, 10**6), ({"eos": False}, 199), ({"min_count": 3}, 199), ({"max_vocabulary": 5}, 199),
     ({"forms": WordForms(True, "NUM")}, 10**6)],
)  # fmt: skip
def test_counts_of_a_cluster_are_those_of_one_process(here, text, tmp_path, part_bytes, options):
    alone = count_lags(text, 3, **options)
    there = count_on(here, text, 3, tmp_path / "parts", part_bytes=part_bytes, **options)
    assert there == alone and there.parts == alone.parts
    again = count_on(here, text, 3, tmp_path / "parts2", part_bytes=part_bytes, vocabulary=alone.vocabulary,
                     forms=options.get("forms"))  # fmt: skip
    assert again == alone


def test_files_of_every_kind(here, tmp_path):
    """The same lines in five files, and by URL."""
    every = [lines(seed) for seed in range(5)]
    whole = tmp_path / "whole.txt"
    whole.write_text("".join(line + "\n" for some in every for line in some), encoding="utf-8")
    folder = tmp_path / "files"
    folder.mkdir()
    plain = ["".join(line + "\n" for line in some).encode() for some in every]
    (folder / "a.txt").write_bytes(plain[0])
    (folder / "b.txt.gz").write_bytes(gzip.compress(plain[1]))
    (folder / "c.txt.xz").write_bytes(lzma.compress(plain[2]))
    three = count_on(here, folder / "*", 2, tmp_path / "three", part_bytes=100)
    first = tmp_path / "first.txt"
    first.write_bytes(b"".join(plain[:3]))
    assert three == count_lags(first, 2) and len(three.parts) == 3
    by_url = count_on(here, f"file://{folder}/*", 2, tmp_path / "url", part_bytes=100)
    assert by_url == three
    records = folder.parent / "d.jsonl"
    records.write_text("".join(json.dumps({"n": 1, "text": line}) + "\n" for line in every[3]), encoding="utf-8")
    fourth = tmp_path / "fourth.txt"
    fourth.write_bytes(plain[3])
    assert count_lags(f"{records}#text", 2) == count_lags(fourth, 2)
    assert count_on(here, f"{records}#text", 2, tmp_path / "json", part_bytes=99) == count_lags(fourth, 2)
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": every[3], "n": list(range(len(every[3])))}), tmp_path / "d.parquet")
    assert count_on(here, f"{tmp_path}/d.parquet#text", 2, tmp_path / "parquet") == count_lags(fourth, 2)


def test_parts_that_fail_are_named_and_the_others_kept(here, tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("".join(line + "\n" for line in lines(ord(name))), encoding="utf-8")
    words = count_on(here, tmp_path / "*.txt", 1, tmp_path / "whole").vocabulary
    good = (tmp_path / "b.txt").read_bytes()
    (tmp_path / "b.txt").write_bytes(b"fine\nbad \xff\n")
    with pytest.raises(PartFailed, match=r"1 of 3 parts failed: .*b\.txt: ValueError: .*0xff, which is not UTF-8"):
        count_on(here, tmp_path / "*.txt", 1, tmp_path / "parts", vocabulary=words)
    (tmp_path / "b.txt").write_bytes(good)
    counted = []
    alone = load_counts(counting_alone(tmp_path, words))
    watched = lambda stream, *a, **k: counted.append(stream.name) or count_lags(stream, *a, **k)  # noqa: E731
    monkeypatch.setattr(counting, "count_lags", watched)
    done = count_on(here, tmp_path / "*.txt", 1, tmp_path / "parts", vocabulary=words)
    assert counted == ["b.txt"]
    assert done == alone


def counting_alone(tmp_path, words):
    joined = tmp_path / "joined"
    joined.write_bytes(b"".join((tmp_path / f"{name}.txt").read_bytes() for name in "abc"))
    words.save(tmp_path / "words")
    found = CliRunner().invoke(
        main, ["count", str(joined), "--max-lag", "1", "--vocabulary", str(tmp_path / "words"), "--out", str(tmp_path / "one")]
    )
    assert found.exit_code == 0, found.output
    return tmp_path / "one"


def test_parts_without_words_and_texts_without_any(here, tmp_path):
    (tmp_path / "a.txt").write_text("one two\n")
    (tmp_path / "b.txt").write_text("")
    (tmp_path / "c.txt").write_text("\n\n")
    assert count_on(here, tmp_path / "*.txt", 1, tmp_path / "parts").num_tokens == 2 + 3
    with pytest.raises(ValueError, match="the text is empty"):
        count_on(here, tmp_path / "c.txt", 1, tmp_path / "empty")


def test_bad_sources(here, tmp_path, text):
    with pytest.raises(FileNotFoundError, match=r"nothing\*: no file matches"):
        matching(tmp_path / "nothing*")
    with pytest.raises(ValueError, match="a cluster reads files that its workers can open"):
        count_on(here, "builtin:python", 1, tmp_path / "parts")
    (tmp_path / "copy.txt").write_bytes(text.read_bytes())
    with pytest.raises(ValueError, match="is counted twice"):
        count_on(here, tmp_path / "*.txt", 1, tmp_path / "parts")
    (tmp_path / "t.jsonl").write_text('{"text": 3}\n')
    with pytest.raises(ValueError, match=r"say which column holds the text: .*t.jsonl#text"):
        located(tmp_path / "t.jsonl")
    with pytest.raises(ValueError, match=r"t.jsonl, line 1: expected text in column 'text', got 3"):
        count_lags(f"{tmp_path}/t.jsonl#text", 1)
    with pytest.raises(ValueError, match=r"line 1: no column 'words'; its columns: 'text'"):
        count_lags(f"{tmp_path}/t.jsonl#words", 1)
    with pytest.raises(FileNotFoundError, match="file:///nowhere.txt: no such file"):
        located("file:///nowhere.txt")
    with pytest.raises((ValueError, ImportError), match="what://x"):
        located("what://x")
    (tmp_path / "t.gz").write_bytes(gzip.compress(b"a b\n"))
    with pytest.raises(ValueError, match="a span is of a text file that is not packed"):
        TextStream(tmp_path / "t.gz", (0, 3))
    with pytest.raises(ValueError, match="part of a text needs a vocabulary"):
        count_lags(TextStream(text, (0, 30)), 1)


@pytest.mark.slow
def test_the_command_counts_on_a_cluster(text, tmp_path):
    """Two processes of their own, and the same again, which is recognised."""
    out = str(tmp_path / "counts")
    command = ["count", str(text), "--max-lag", "2", "--out", out, "--cluster", "local:2", "--part-bytes", "100"]
    first = CliRunner().invoke(main, command)
    assert first.exit_code == 0, first.output
    assert "2 workers; dashboard: http://" in first.stderr
    assert load_counts(tmp_path / "counts") == count_lags(text, 2)
    assert not (tmp_path / "counts.parts").exists()
    again = CliRunner().invoke(main, command)
    assert json.loads(again.stdout)["skipped"] is True
    nobody = CliRunner().invoke(main, [*command, "--force", "--shard", "1/2"])
    assert nobody.exit_code == 2 and "exclude each other" in nobody.output
