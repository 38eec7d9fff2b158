"""Counts by the workers of a cluster: those of one process, from files of every kind; parts that fail or are kept."""

import gzip
import json
import lzma
import os
import shutil
import signal

import numpy as np
import pytest
from click.testing import CliRunner

from pplseq.cli import main
from pplseq.data import lag_streaming
from pplseq.data.lag_files import load_counts
from pplseq.data.lag_streaming import count_lags
from pplseq.data.locations import located, matching
from pplseq.data.streams import TextStream
from pplseq.data.text_parts import files_of, parts_of
from pplseq.data.vocabulary import WordForms
from pplseq.folder import FolderError
from pplseq.recipes import counting
from pplseq.recipes.count_ranges import add_range, ranges_of
from pplseq.recipes.counting import count_on
from pplseq.runs.cluster import PartFailed, connected

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
    [({}, 10**6), ({"eos": False, "max_vocabulary": 5}, 199), ({"forms": WordForms(True, "NUM"), "min_count": 3}, 199)],
)
def test_counts_of_a_cluster_are_those_of_one_process(here, text, tmp_path, part_bytes, options):
    alone = count_lags(text, 3, **options)
    there = load_counts(count_on(here, text, 3, tmp_path / "counts", part_bytes=part_bytes, **options))
    assert there == alone and there.parts == alone.parts
    again = count_on(here, text, 3, tmp_path / "counts2", part_bytes=part_bytes, vocabulary=alone.vocabulary,
                     forms=options.get("forms"), range_bytes=300)  # fmt: skip
    assert load_counts(again) == alone and len(list(again.glob("words-*"))) > 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counts", "counts2", "text.txt"]


@pytest.mark.parametrize("unit", ["line", "article"])
def test_the_text_is_read_once_and_nothing_is_left_of_it(here, text, tmp_path, monkeypatch, unit):
    text.write_text(" = One =\n" + text.read_text() + "\n = Two =\nthe cat\n")
    read, decoded = [], lag_streaming.decoded
    monkeypatch.setattr(lag_streaming, "decoded", lambda stream, lower: read.append(stream.span) or decoded(stream, lower))
    parts = parts_of(files_of(text), unit, 100)
    folder = count_on(here, text, 2, tmp_path / "counts", part_bytes=100, unit=unit)
    assert sorted(map(str, read)) == sorted(str(part.span) for part in parts)
    assert load_counts(folder) == count_lags(text, 2, unit=unit) and not (tmp_path / "counts.parts").exists()


def test_a_numbered_text_that_was_left_is_not_taken_for_another(here, text, tmp_path):
    """Of a run that failed before there was a vocabulary; this one has another spelling of words."""
    alone = count_lags(text, 3, forms=WordForms(True, "NUM"))
    for options in ({"vocabulary": alone.vocabulary}, {}):
        how = {"forms": WordForms(), "eos": True, "units": "words", "unit": "line"}
        counting._number_part(parts_of(files_of(text))[0], tmp_path / "counts.parts" / "part-00000", how)
        folder = count_on(here, text, 3, tmp_path / "counts", forms=WordForms(True, "NUM"), **options)
        assert load_counts(folder) == alone


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
    three = load_counts(count_on(here, folder / "*", 2, tmp_path / "three", part_bytes=100))
    first = tmp_path / "first.txt"
    first.write_bytes(b"".join(plain[:3]))
    assert three == count_lags(first, 2) and len(three.parts) == 3
    by_url = count_on(here, f"file://{folder}/*", 2, tmp_path / "url", part_bytes=100)
    assert load_counts(by_url) == three
    records = folder.parent / "d.jsonl"
    records.write_text("".join(json.dumps({"n": 1, "text": line}) + "\n" for line in every[3]), encoding="utf-8")
    fourth = tmp_path / "fourth.txt"
    fourth.write_bytes(plain[3])
    assert count_lags(f"{records}#text", 2) == count_lags(fourth, 2)
    by_column = count_on(here, f"{records}#text", 2, tmp_path / "json", part_bytes=99)
    assert load_counts(by_column) == count_lags(fourth, 2)
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": every[3], "n": list(range(len(every[3])))}), tmp_path / "d.parquet")
    by_column = count_on(here, f"{tmp_path}/d.parquet#text", 2, tmp_path / "parquet")
    assert load_counts(by_column) == count_lags(fourth, 2)


def test_parts_that_fail_are_named_and_the_others_kept(here, tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("".join(line + "\n" for line in lines(ord(name))), encoding="utf-8")
    words = load_counts(count_on(here, tmp_path / "*.txt", 1, tmp_path / "whole")).vocabulary
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
    assert load_counts(done) == alone


def test_what_is_counted_is_found_again_and_what_is_damaged_made_again(here, text, tmp_path, monkeypatch):
    """A run that ends before its sum is there, and a part that changes on the disk."""
    count, broken = lambda: count_on(here, text, 2, tmp_path / "counts", part_bytes=300), []
    monkeypatch.setattr(counting, "add_range", lambda *_: broken.append(1) or 1 / 0)
    with pytest.raises(PartFailed, match="words 0 to 12: ZeroDivisionError"):
        count()
    parts = sorted(tmp_path.glob("counts.parts/*.counts"))
    assert len(parts) > 2 and not (tmp_path / "counts").exists()
    place = parts[1] / "columns_2.npy"
    place.write_bytes(place.read_bytes()[:-1] + b"\7")
    monkeypatch.setattr(counting, "add_range", add_range)
    with pytest.raises(FolderError, match=r"columns_2.npy: damaged: its checksums are not those of its content"):
        add_range(parts, (0, 12), 2)
    counted, watched = [], counting.count_part
    monkeypatch.setattr(counting, "count_part", lambda folder, *a, **k: counted.append(folder.name) or watched(folder, *a, **k))
    monkeypatch.setattr(counting, "save_numbered", None)
    assert load_counts(count()) == count_lags(text, 2) and counted == ["part-00001.text"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counts", "text.txt"]


@pytest.mark.parametrize(
    ("pairs", "entries", "wanted"),
    [([3, 3, 3], 9, [(0, 3)]), ([3, 3, 3], 8, [(0, 2), (2, 3)]), ([0, 0, 9, 0, 0, 2], 4, [(0, 2), (2, 3), (3, 6)]),
     ([7], 1, [(0, 1)]), ([0, 0], 1, [(0, 2)])],
)  # fmt: skip
def test_ranges_have_their_room_or_are_one_word(pairs, entries, wanted):
    assert ranges_of(np.array(pairs), entries * 12) == wanted


@pytest.mark.parametrize("content", ["a b c d a b\nc\n", "a a a a\n", "a\nb b\n"])
def test_ranges_of_one_word_each(here, tmp_path, content):
    """As many ranges as words, of words without pairs too, and one word alone."""
    (tmp_path / "t.txt").write_text(content)
    alone = count_lags(tmp_path / "t.txt", 2, eos=False)
    folder = count_on(here, tmp_path / "t.txt", 2, tmp_path / "counts", eos=False, part_bytes=3, range_bytes=1)
    assert load_counts(folder) == alone
    size = json.loads((folder / "counts.json").read_text()).get("ranges")
    assert (size or 1) == alone.num_words
    assert counting.summary(folder)["num_pairs"] == alone.num_pairs.tolist()
    for number in range(1, size + 1 if size else 1):
        one = load_counts(folder, number)
        own = np.arange(alone.num_words) == number - 1
        np.testing.assert_array_equal(one.counts, alone.counts * own)
        for mine, whole in zip(one.lags, alone.lags, strict=True):
            np.testing.assert_array_equal(mine.toarray(), whole.toarray() * own[:, None])
    with pytest.raises(ValueError, match=rf"number: expected a range of the counts, got 99; .* {size or 'no'} *"):
        load_counts(folder, 99)


def test_a_range_is_not_the_whole_and_a_strange_one_is_noticed(here, text, tmp_path):
    folders = [count_on(here, text, lag, tmp_path / f"counts{lag}", range_bytes=300) for lag in (2, 3)]
    first = next(folders[0].glob("words-1-*"))
    with pytest.raises(ValueError, match=r"holds pairs that end in words 0 to \d+ only; load the folder that it stands in"):
        load_counts(first)
    (first / "counts.npz").write_bytes((next(folders[0].glob("words-2-*")) / "counts.npz").read_bytes())
    with pytest.raises(FolderError, match=r"words-1-of-[0-9]+.counts.npz: (damaged|cut short)"):
        load_counts(folders[0])
    shutil.rmtree(first)
    shutil.copytree(next(folders[1].glob("words-1-*")), first)
    with pytest.raises(FolderError, match=r"words-1-of-[0-9]+.counts.json: (damaged|cut short)"):
        load_counts(folders[0])


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
    assert load_counts(count_on(here, tmp_path / "*.txt", 1, tmp_path / "parts")).num_tokens == 2 + 3
    with pytest.raises(ValueError, match="the text is empty"):
        count_on(here, tmp_path / "c.txt", 1, tmp_path / "empty")
    (tmp_path / "d.txt").write_text("one\ntwo\n")
    with pytest.raises(ValueError, match=r"d.txt: no two words share a line \(2 tokens in all\)"):
        count_on(here, tmp_path / "d.txt", 1, tmp_path / "alone", eos=False)
    assert not (tmp_path / "alone").exists()


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
    with connected("local:2") as cluster:

        def kill_one(number, count):
            if number == 3:
                os.kill(next(iter(cluster.client.run(os.getpid).values())), signal.SIGKILL)

        count_on(cluster, text, 2, tmp_path / "killed", part_bytes=50, range_bytes=300, done=kill_one)
    assert load_counts(tmp_path / "killed") == count_lags(text, 2)
    nobody = CliRunner().invoke(main, [*command, "--force", "--shard", "1/2"])
    assert nobody.exit_code == 2 and "exclude each other" in nobody.output
