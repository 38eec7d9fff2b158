"""Lag counts against a double loop, added up, cut, streamed, and out of damaged files."""

import gzip
import io
import lzma
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.grids import grid
from support.lag_texts import dense, drawn_lines

from pplseq.data import Text, Vocabulary, load_corpus, read_text
from pplseq.data import streams as reading
from pplseq.data.lag_counting import PairCounter
from pplseq.data.lag_counts import LagCounts
from pplseq.data.lag_files import load_counts, save_counts
from pplseq.data.lag_streaming import count_lags
from pplseq.data.vocabulary import WordForms

ARTICLES = """
 = One =

 a b c a 1990 b
 = = Section = =

 x = y
 c c b
 = no title =
 b a

 = Two =

 a a d 7th b
 b
"""


def loop(sequences, num_words, max_lag):
    """Row = the later word."""
    counts = np.zeros((max_lag, num_words, num_words), dtype=np.int64)
    for words in sequences:
        for t in range(len(words)):
            for lag in range(1, max_lag + 1):
                if t + lag < len(words):
                    counts[lag - 1, words[t + lag], words[t]] += 1
    return counts


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Texts of these tests go through the machinery of large ones."""
    monkeypatch.setattr(reading, "PIECE_BYTES", 37)
    monkeypatch.setattr("pplseq.data.lag_counting.PairCounter.__init__.__kwdefaults__", {"block_tokens": 11})


@pytest.mark.parametrize("unit", ["line", "article"])
@pytest.mark.parametrize("with_eos", [True, False])
def test_equal_to_a_double_loop(unit, with_eos):
    lines = drawn_lines()
    words = [f"w{i}" for i in range(7)] + ["<eos>"] * with_eos
    starts = [0, 3, 4, 20, 50]
    text = Text.from_lines(lines, Vocabulary(tuple(words)), article_starts=starts)
    ends = [["<eos>"] * with_eos] * len(lines)
    whole = [text.vocabulary.encode(line + end) for line, end in zip(lines, ends, strict=True)]
    if unit == "article":
        whole = [np.concatenate(whole[a:b]) for a, b in zip(starts[:-1], starts[1:], strict=True)]
    counts = LagCounts.from_text(text, 5, unit)
    expected = loop(whole, len(words), 5)
    np.testing.assert_array_equal(dense(counts), expected)
    np.testing.assert_array_equal(counts.counts, np.bincount(np.concatenate(whole), minlength=len(words)))
    np.testing.assert_array_equal(counts.num_pairs, expected.sum(axis=(1, 2)))
    assert counts.num_tokens == text.num_tokens
    assert all(matrix.dtype == np.int64 and matrix.has_canonical_format for matrix in counts.lags)


def test_rows_are_the_later_word():
    """In `a b c a b c ...` a word tells the next one, and never the other way round."""
    text = Text.from_lines([list("abc" * 10)], Vocabulary(tuple("abc")))
    counts = LagCounts.from_text(text, 2)
    # earlier: a b c
    np.testing.assert_array_equal(counts.lags[0].toarray(), [[0, 0, 9], [10, 0, 0], [0, 10, 0]])
    np.testing.assert_array_equal(counts.lags[1].toarray(), [[0, 9, 0], [0, 0, 9], [10, 0, 0]])


def test_margins():
    """A margin is the word counts less those at the ends of the lines."""
    text = Text.from_lines(drawn_lines(3))
    counts = LagCounts.from_text(text, 4)
    for lag, matrix in enumerate(counts.lags, 1):
        heads = np.concatenate([line[:lag] for line in text.lines()])
        tails = np.concatenate([line[max(len(line) - lag, 0) :] for line in text.lines()])
        np.testing.assert_array_equal(matrix.sum(axis=1), counts.counts - np.bincount(heads, minlength=8))
        np.testing.assert_array_equal(matrix.sum(axis=0), counts.counts - np.bincount(tails, minlength=8))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    units=st.lists(st.lists(st.integers(0, 4), max_size=9), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    max_lag=st.integers(1, 12),
)
def test_a_counter_fed_in_any_pieces(units, cuts, max_lag):
    tokens = np.array([word for unit in units for word in unit], dtype=np.int32)
    starts = np.cumsum([0, *map(len, units)])[:-1]
    counter = PairCounter(5, max_lag, block_tokens=7)
    edges = np.unique(np.clip([0, *cuts, len(tokens)], 0, len(tokens)))
    for number, (a, b) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        # units that begin behind the last token belong to the last piece
        inside = (starts >= a) & ((starts < b) | (number == len(edges) - 2))
        counter.add(tokens[a:b], starts[inside] - a)
    counts, lags = counter.result()
    np.testing.assert_array_equal(np.stack([m.toarray() for m in lags]), loop(units, 5, max_lag))
    np.testing.assert_array_equal(counts, np.bincount(tokens, minlength=5))


def test_keys_of_a_large_vocabulary():
    """Two words do not fit into 32 bits."""
    tokens = np.array([0, 99_999, 70_000, 99_999, 70_000, 0], dtype=np.int32)
    counter = PairCounter(100_000, 1)
    counter.add(tokens, np.array([0]))
    _, (matrix,) = counter.result()
    assert {(int(i), int(j)): int(v) for i, j, v in zip(*matrix.nonzero(), matrix.data, strict=True)} == {
        (99_999, 0): 1, (70_000, 99_999): 2, (99_999, 70_000): 1, (0, 70_000): 1
    }  # fmt: skip


def test_merged_in_any_order_and_grouping():
    text = Text.from_lines(drawn_lines(1))
    whole = LagCounts.from_text(text, 3)
    a, b, c, d = (LagCounts.from_text(text, 3, shard=(i, 4)) for i in range(1, 5))
    merge = LagCounts.merge
    for merged in (merge(a, b, c, d), merge(d, b, a, c), merge(merge(c, a), merge(d, b)), merge(merge(merge(a, b), c), d)):
        assert merged == whole
        assert merged.missing == ()
    assert merge(a, b, c) != whole
    assert [part.shard for part in merge(a, d).missing] == [2, 3]


def test_texts_are_added():
    vocabulary = Vocabulary(tuple(f"w{i}" for i in range(7)))
    lines, more = drawn_lines(1), drawn_lines(2)
    one, two, both = (LagCounts.from_text(Text.from_lines(x, vocabulary), 3) for x in (lines, more, lines + more))
    assert LagCounts.merge(one, two) == both


def test_what_does_not_add_up():
    lines = drawn_lines(1)
    vocabulary = Vocabulary(tuple(f"w{i}" for i in range(7)))
    text = Text.from_lines(lines, vocabulary, name="here")
    whole, first = LagCounts.from_text(text, 3), LagCounts.from_text(text, 3, shard=(1, 2))
    other_words = Text.from_lines(drawn_lines(2), Vocabulary(tuple(f"w{i}" for i in range(8))))
    more = Text.from_lines(drawn_lines(2), vocabulary)
    for parts, message in (
        ((whole, whole), "here is counted twice"),
        ((first, first), "shard 1/2 of here is counted twice"),
        ((whole, first), "overlap"),
        ((first, LagCounts.from_text(text, 3, shard=(2, 3))), "shard 1/2 of here and shard 2/3 of here overlap"),
        ((whole, LagCounts.from_text(other_words, 3)), "different vocabularies .7 words.*8 words"),
        ((whole, LagCounts.from_text(more, 4)), "max_lag 3 and .* 4"),
        ((whole, LagCounts.from_text(more, 3, "article")), "unit 'line' and .* 'article'"),
        ((), "got none"),
    ):
        with pytest.raises(ValueError, match=message):
            LagCounts.merge(*parts)
    with pytest.raises(TypeError, match="expected LagCounts, got Text"):
        LagCounts.merge(whole, text)


@pytest.mark.parametrize("with_eos", [True, False])
@pytest.mark.parametrize("size", [3, 5, 6])
def test_cut_is_counting_with_the_cut_vocabulary(with_eos, size):
    lines = drawn_lines(4, num_words=9)
    text = Text.from_lines(lines, Vocabulary.build(lines, add_eos=with_eos))
    cut = LagCounts.from_text(text, 3).cut(size)
    smaller = Vocabulary.build(lines, max_size=size, add_eos=with_eos)
    assert cut.vocabulary == smaller and len(smaller) == size
    assert cut == LagCounts.from_text(Text.from_lines(lines, smaller), 3)


def test_cut_twice_is_cut_once_and_needs_room():
    counts = LagCounts.from_text(Text.from_lines(drawn_lines(4, num_words=9)), 2)
    assert counts.cut(7).cut(4) == counts.cut(4)
    assert counts.cut(100) is counts
    with pytest.raises(ValueError, match="max_vocabulary.*2 leaves no room"):
        counts.cut(2)


def test_a_word_that_is_not_there():
    text = Text.from_lines([["a", "b"]], Vocabulary(("a", "b", "c", "<unk>")))
    counts = LagCounts.from_text(text, 1)
    assert counts.counts.tolist() == [1, 1, 0, 0]
    assert counts.cut(3).vocabulary.words == ("a", "b", "<unk>")


def test_texts_without_pairs():
    with pytest.raises(ValueError, match="no two words share a line .1 token in all"):
        LagCounts.from_text(Text.from_lines([["a"]], Vocabulary(("a",))), 1)
    with pytest.raises(ValueError, match="no two words share a line .3 tokens"):
        LagCounts.from_text(Text.from_lines([["a"], ["a"], ["a"]], Vocabulary(("a",))), 1)
    text = Text.from_lines([["a", "b"]], Vocabulary(("a", "b")))
    assert LagCounts.from_text(text, 3).num_pairs.tolist() == [1, 0, 0]
    for max_lag, unit, shard, message in (
        (0, "line", None, "max_lag must be at least 1"),
        (1, "word", None, "unit: expected 'line' or 'article'"),
        (1, "line", (3, 2), "shard: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            LagCounts.from_text(text, max_lag, unit, shard=shard)


# ---- streaming


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(" ".join(line) + "\n" for line in drawn_lines(5, num_lines=60)), encoding="utf-8")
    return path


@pytest.mark.parametrize("unit", ["line", "article"])
def test_streamed_is_read_at_once(path, unit):
    assert count_lags(path, 4, unit=unit) == LagCounts.from_text(read_text(path), 4, unit)
    vocabulary = read_text(path).vocabulary
    assert count_lags(path, 4, unit=unit, vocabulary=vocabulary) == count_lags(path, 4, unit=unit)


@grid({
    "text": [ARTICLES, ARTICLES.rstrip(), ARTICLES + "\n = Three =\n", "b\n" + ARTICLES[1:]],
    "size": [17, 37, 64, 1000],  # a line of the text is at most 17 characters
})
def test_articles_of_streams(tmp_path, monkeypatch, size, text):
    """Whole headings, and headings cut by pieces of the stream, begin the same articles."""
    path = tmp_path / "text.txt"
    path.write_text(text)
    monkeypatch.setattr(reading, "PIECE_BYTES", size)
    expected = LagCounts.from_text(read_text(path), 6, "article")
    assert count_lags(path, 6, unit="article") == expected
    shards = [count_lags(path, 6, unit="article", shard=(i, 2), vocabulary=expected.vocabulary) for i in (2, 1)]
    assert LagCounts.merge(*shards) == expected


def test_articles_without_headings_are_lines(path, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "PATIENCE", 100)
    assert dense(count_lags(path, 4, unit="article")).tolist() == dense(count_lags(path, 4)).tolist()
    late = tmp_path / "late.txt"
    late.write_text("a b c\n" * 100 + ARTICLES)
    with pytest.raises(ValueError, match="late.txt, line 102: the first heading stands behind"):
        count_lags(late, 4, unit="article")


@grid({"eos": [True, False], "known": [True, False], "unit": ["line", "article"]})
def test_shards_make_the_whole(tmp_path, unit, known, eos):
    path = tmp_path / "text.txt"
    path.write_text(ARTICLES + "".join(" ".join(line) + "\n" for line in drawn_lines(6)) + ARTICLES)
    whole = count_lags(path, 4, unit=unit, eos=eos)
    vocabulary = whole.vocabulary if known else None
    shards = [count_lags(path, 4, unit=unit, eos=eos, vocabulary=vocabulary, shard=(i, 3)) for i in (1, 2, 3)]
    assert LagCounts.merge(*shards) == whole
    assert all(shard.num_tokens < whole.num_tokens for shard in shards)
    # the same units go into shard i of a text in memory
    assert LagCounts.from_text(read_text(path, whole.vocabulary), 4, unit, shard=(2, 3)) == shards[1]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_packed(path, suffix, pack):
    packed = path.with_name(path.name + suffix)
    packed.write_bytes(pack(path.read_bytes()))
    assert count_lags(packed, 3, shard=(2, 3)) == count_lags(path, 3, shard=(2, 3))
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(ValueError, match=f"text.txt{suffix}: damaged or not a {suffix} file"):
        count_lags(packed, 3)


def test_standard_input_and_folders(path, tmp_path, monkeypatch):
    expected = count_lags(path, 3)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    streamed = count_lags("-", 3)
    assert streamed == expected and streamed.parts[0].source == "<stdin>" and len(streamed.parts[0].fingerprint) == 64
    (tmp_path / "folder").mkdir()
    path.rename(tmp_path / "folder" / "my.train.txt")
    assert count_lags(tmp_path / "folder", 3) == expected


def test_builtin_text():
    counts = count_lags("builtin:generated", 2)
    assert counts.parts[0].source == "builtin:generated" and counts.num_pairs[0] > 1000


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_line_longer_than_memory(tmp_path, end):
    """Pairs go over the pieces of a line, and it has one end."""
    path = tmp_path / "text.txt"
    words = [f"w{i % 5}" for i in range(0, 900, 7)]
    path.write_text("a b\n" + " ".join(words) + end)
    counts = count_lags(path, 3)
    assert counts == LagCounts.from_text(read_text(path), 3)
    assert counts.counts[counts.vocabulary.eos_id] == 2
    shards = [count_lags(path, 3, vocabulary=counts.vocabulary, shard=(i, 2)) for i in (1, 2)]
    assert LagCounts.merge(*shards) == counts


def test_vocabulary_made_on_the_way(path):
    lines = [line.split() for line in path.read_text().splitlines()]
    for options, expected in (
        ({"min_count": 30}, Vocabulary.build(lines, min_count=30)),
        ({"max_vocabulary": 5}, Vocabulary.build(lines, max_size=5)),
        ({"max_vocabulary": 5, "eos": False}, Vocabulary.build(lines, max_size=5, add_eos=False)),
    ):
        counts = count_lags(path, 3, **options)
        assert counts.vocabulary == expected
        assert counts == LagCounts.from_text(Text.from_lines(lines, expected), 3)


def test_word_forms(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("In 1990 the 7th of 1,250\nin 2000 The 8th .\n")
    forms = WordForms(lower=True, digits="NUM")
    rewritten = [["in", "NUM", "the", "NUMth", "of", "NUM,NUM"], ["in", "NUM", "the", "NUMth", "."]]
    counts = count_lags(path, 2, forms=forms)
    plain = LagCounts.from_text(Text.from_lines(rewritten), 2)
    assert counts.vocabulary == plain.vocabulary and (dense(counts) == dense(plain)).all()
    assert count_lags(path, 2, forms=forms, vocabulary=plain.vocabulary) == counts
    # a spelling of the vocabulary that no rewritten word can have is never met
    odd = Vocabulary(("1990", *plain.vocabulary.words))
    assert count_lags(path, 2, forms=forms, vocabulary=odd).counts[0] == 0
    with pytest.raises(ValueError, match="word forms"):
        LagCounts.merge(counts, plain)
    for digits in ("", "a b", "N1"):
        with pytest.raises(ValueError, match="digits: expected a word without digits"):
            WordForms(digits=digits)


def test_texts_that_cannot_be_counted(tmp_path):
    path = tmp_path / "text.txt"
    known = Vocabulary(("a", "b", "<eos>"))
    for content, vocabulary, message in (
        (b"", None, "text.txt: the text is empty"),
        (b"\n\n", None, "text.txt: the text is empty .2 lines"),
        (b"\n\n", known, "text.txt: the text is empty .2 lines"),
        (b"a b\nb c\n", known, "text.txt, line 2: the word 'c' is not in the vocabulary .3 words"),
        (b"a b\n" * 9 + b"b <eos>\n", known, "text.txt, line 10: the text holds the end-of-line word"),
        (b"a b\n" * 9 + b"b <eos>\n", None, "text.txt, line 10: the text holds the end-of-line word"),
        (b"a b\n" * 99 + b"b \xff\n", known, "byte 398 .line 100. is 0xff, which is not UTF-8"),
        (b"a b\n" * 99 + b"b \0\n", None, "byte 398 is NUL"),
        (b"a\nb\n", Vocabulary(("a", "b")), "no two words share a line .2 tokens"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            count_lags(path, 2, vocabulary=vocabulary)
    with pytest.raises(FileNotFoundError, match="did you mean"):
        count_lags(tmp_path / "texd.txt", 2)


def test_progress_reaches_the_end(path):
    calls = []
    counts = count_lags(path, 2, progress=lambda *call: calls.append(call))
    positions, sizes, tokens = zip(*calls, strict=True)
    assert set(sizes) == {path.stat().st_size} and max(positions) == path.stat().st_size
    assert tokens[-1] == counts.num_tokens


def test_penn_treebank(data_folder, monkeypatch):
    monkeypatch.undo()
    path = data_folder / "ptb" / "ptb.valid.txt"
    counts = count_lags(path, 7)
    text = read_text(path)
    assert counts == LagCounts.from_text(text, 7)
    assert counts.num_tokens == text.num_tokens
    assert counts.num_pairs.tolist() == [int(np.maximum(text.lengths - lag, 0).sum()) for lag in range(1, 8)]


@pytest.mark.parametrize("units", ["characters", "bytes"])
@pytest.mark.parametrize("size", [16, 1 << 20])
def test_units_of_streams(tmp_path, monkeypatch, units, size):
    monkeypatch.setattr(reading, "PIECE_BYTES", size)
    path = tmp_path / "text.txt"
    path.write_bytes("ä b\tc\r\n\nzwölf Boxkämpfer jagen Viktor quer über\nEnde\n".encode())
    text = read_text(path, load_corpus(path, units=units, valid_fraction=0, test_fraction=0).vocabulary)
    found = count_lags(path, 3, units=units)
    assert found.vocabulary.units == units and found == LagCounts.from_text(text, 3)
    assert count_lags(path, 3, vocabulary=found.vocabulary) == found
    assert load_counts(save_counts(found, tmp_path / "counts")).vocabulary == found.vocabulary
    with pytest.raises(ValueError, match=f"digits: stands for numbers among words, and not among {units}"):
        count_lags(path, 3, units=units, forms=WordForms(digits="NUM"))
