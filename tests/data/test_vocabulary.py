"""Vocabulary: numbering, cuts, unknown words, files."""

import numpy as np
import pytest

from pplseq.data import Vocabulary
from pplseq.data.vocabulary import UNITS, WordForms, split_line, split_words

LINES = [["b", "a", "b"], [], ["c", "b", "a"]]


def test_ids_follow_frequency_then_first_appearance():
    vocabulary = Vocabulary.build(LINES)
    assert vocabulary.words == ("<eos>", "b", "a", "c")  # <eos> counts once a line, blank lines too
    assert vocabulary.eos_id == 0
    assert vocabulary.unknown_id is None
    assert list(vocabulary) == list(vocabulary.words)
    assert "a" in vocabulary and "z" not in vocabulary and len(vocabulary) == 4


def test_without_eos():
    vocabulary = Vocabulary.build(LINES, add_eos=False)
    assert vocabulary.words == ("b", "a", "c")
    assert vocabulary.eos_id is None


def test_rare_words_become_unknown():
    vocabulary = Vocabulary.build(LINES, min_count=2)
    assert vocabulary.words == ("<eos>", "b", "a", "<unk>")
    assert vocabulary.encode(["a", "c", "never seen"]).tolist() == [2, 3, 3]


def test_the_unknown_word_stands_where_its_count_puts_it():
    lines = [["a"] * 9 + ["b"] * 4 + ["c", "d", "e", "f", "g", "h"]]  # six words that are rare
    assert Vocabulary.build(lines, min_count=2).words == ("a", "<unk>", "b", "<eos>")


def test_unknown_word_in_the_text_survives_the_cut():
    vocabulary = Vocabulary.build([["a", "a", "<unk>"]], min_count=2)
    assert set(vocabulary) == {"a", "<eos>", "<unk>"}
    assert Vocabulary.build([["a", "<unk>"]]).unknown_id is not None


@pytest.mark.parametrize("max_size", [3, 4, 5, 6])
def test_max_size_counts_everything(max_size):
    lines = [["a"] * 5 + ["b"] * 4 + ["c"] * 3 + ["d"]]
    vocabulary = Vocabulary.build(lines, max_size=max_size)
    assert len(vocabulary) == min(max_size, 5)
    assert (vocabulary.unknown_id is None) == (max_size >= 5)
    assert "a" in vocabulary


def test_max_size_without_room():
    with pytest.raises(ValueError, match=r"max_size \(max_vocabulary\): 2 leaves no room beside <eos> and <unk>"):
        Vocabulary.build([["a", "b", "c"]], max_size=2)


def test_encode_and_decode_are_inverse():
    vocabulary = Vocabulary.build(LINES)
    ids = vocabulary.encode(["c", "a", "<eos>"])
    assert ids.dtype == np.int64
    assert vocabulary.decode(ids) == ["c", "a", "<eos>"]
    assert vocabulary.encode([]).shape == (0,)


def test_unknown_word_without_a_word_for_it():
    with pytest.raises(
        ValueError,
        match="the word 'zebra' is not in the vocabulary.*min_count=2 \\(--min-count 2\\).*new words become '<unk>'",
    ):
        Vocabulary.build(LINES).encode(["a", "zebra"])


def test_a_string_is_not_a_list_of_words():
    with pytest.raises(TypeError, match="expected a list of words"):
        Vocabulary.build(LINES).encode("a b")
    with pytest.raises(TypeError, match="expected a sequence of words"):
        Vocabulary("abc")


@pytest.mark.parametrize("ids", [[4], [-1]])
def test_decode_refuses_foreign_ids(ids):
    with pytest.raises(ValueError, match=r"expected 0\.\.3"):
        Vocabulary.build(LINES).decode(ids)


@pytest.mark.parametrize(
    ("words", "message"),
    [(("a", "a"), "stands twice"), (("",), "not empty"), *(((f"a{sign}",), "no space") for sign in " \t\r\n")],
)
def test_words_are_checked(words, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(words)


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ([], {}, "found no words"),
        ([["a"]], {"min_count": 0}, "min_count must be at least 1, got 0"),
        ([["a", "<eos>"]], {}, "end-of-line word '<eos>' itself"),
    ],
)
def test_build_refuses(lines, options, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary.build(lines, **options)


def test_file_round_trip(tmp_path):
    vocabulary = Vocabulary.build([["naïve", "東京", "a"]], min_count=1)
    vocabulary.save(tmp_path / "vocab.txt")
    loaded = Vocabulary.load(tmp_path / "vocab.txt")
    assert loaded == vocabulary
    assert loaded.fingerprint() == vocabulary.fingerprint()
    assert (tmp_path / "vocab.txt").read_text(encoding="utf-8") == "".join(f"{word}\n" for word in vocabulary)


def test_fingerprint_depends_on_order():
    assert Vocabulary(("a", "b")).fingerprint() != Vocabulary(("b", "a")).fingerprint()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"a\n\nb\n", "a word per line"),
        (b"a\na\n", "stands twice"),
        (b"a\xff\n", "byte 1 is not UTF-8"),
    ],
)
def test_load_refuses(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Vocabulary.load(path)
    with pytest.raises(FileNotFoundError, match="no such file or folder; did you mean"):
        Vocabulary.load(f"{path}s")
    with pytest.raises(ValueError, match="expected a vocabulary, a word per line, got a folder"):
        Vocabulary.load(tmp_path)


def test_words_end_at_spaces_tabs_and_line_ends_alone():
    """Other white space is part of a word: a no-break space in a number, a line separator, a form feed."""
    inside = [chr(number) for number in range(0x110000) if chr(number).isspace() and chr(number) not in " \t\r\n"]
    assert len(inside) > 20
    for sign in inside:
        assert split_words(f" a{sign}b \t{sign}\r\nc\n") == [f"a{sign}b", sign, "c"]
        assert Vocabulary((f"a{sign}b", sign)).encode([sign]).tolist() == [1]
    assert split_words("\t the  cat\n\n") == ["the", "cat"] and split_words(" \n") == []


def test_a_vocabulary_of_odd_words_is_read_as_it_was_written(tmp_path):
    vocabulary = Vocabulary(("1\u00a0000", "a\u2028b", "\u0085", "\x0c", "<unk>", "<eos>"))
    vocabulary.save(tmp_path / "vocab.txt")
    assert Vocabulary.load(tmp_path / "vocab.txt") == vocabulary


TEXT = " ä b\tc␠\u2028=<\r\n"
TOKENS = {
    "words": ["ä", "b", "c␠\u2028=<"],
    "characters": ["␠", "ä", "␠", "b", "␉", "c", "<U+2420>", "\u2028", "=", "<"],
    "bytes": "<0x20> <0xC3> <0xA4> <0x20> b <0x09> c <0xE2> <0x90> <0xA0> <0xE2> <0x80> <0xA8> = <".split(),
}


@pytest.mark.parametrize("units", UNITS)
def test_units(units, tmp_path):
    vocabulary = Vocabulary.build([split_line(TEXT, units)], units=units)
    assert vocabulary.split(TEXT) == TOKENS[units]
    assert vocabulary.join(TOKENS[units]) == (TEXT.rstrip("\r\n") if units != "words" else "ä b c␠\u2028=<")
    assert vocabulary.join(["a", "<unk>", "b"]) == ("a <unk> b" if units == "words" else "a<unk>b")
    vocabulary.save(tmp_path / "vocab.txt")
    assert Vocabulary.load(tmp_path / "vocab.txt", **vocabulary.special_words) == vocabulary
    assert ("units" in vocabulary.special_words) == (units != "words")  # as older folders have them
    lower = WordForms(lower=True)
    assert [lower(token) for token in ["<0xE4>", "<U+2420>", "Ä"]] == ["<0xE4>", "<U+2420>", "ä"]


def test_bytes_that_are_no_text_and_units_that_there_are_not():
    assert Vocabulary(("<0xE4>", "a"), units="bytes").join(["<0xE4>", "a"]) == "\ufffda"
    with pytest.raises(ValueError, match="units must be one of words, characters, bytes; got 'letters'"):
        Vocabulary(("a",), units="letters")
