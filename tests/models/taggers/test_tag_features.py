"""Numbers of features against a loop over words, written to be read."""

import copy
import json
import pickle

import numpy as np
import pytest
from support.grids import grid

from pplseq.models.taggers.features import (
    ATTRIBUTES,
    DEFAULT_TEMPLATES,
    TagFeatures,
    capitals,
    digits,
    hyphen,
    prefix,
    short_shape,
    suffix,
    word_shape,
)

SENTENCES = [
    ["The", "dog", "barked", "at", "McDonald's", "."],
    [],
    ["Yes"],
    ["A", "well-known", "B-52", "1,250", "times", "the", "the"],
    ["Ünïcödé", "日本語", "dog", "😀", "barked"],
]
NEW = [["the", "dogs", "barked"], [], ["unheard-of"], ["日本語"]]


def by_hand(templates, sentences):
    """The features of every word as strings, one template after the other."""
    found = []
    for words in sentences:
        for t in range(len(words)):
            row = []
            for template in templates:
                values = []
                for part in template.split("|"):
                    name, place = part.rstrip("]").split("[")
                    at = t + int(place)
                    if not 0 <= at < len(words):
                        values.append("<begin>" if at < 0 else "<end>")
                    elif name in ATTRIBUTES:
                        values.append(ATTRIBUTES[name](words[at]))
                    else:
                        values.append({"prefix": prefix, "suffix": suffix}[name[:-1]](words[at], int(name[-1])))
                row.append(None if None in values else f"{template}={'|'.join(values)}")
            found.append(row)
    return found


@pytest.mark.parametrize("min_count", [1, 2])
def test_numbers_stand_for_what_a_loop_finds(min_count):
    features = TagFeatures(min_count=min_count).fit(SENTENCES)
    expected = by_hand(DEFAULT_TEMPLATES, SENTENCES)
    counts = {}
    for row in expected:
        for name in row:
            counts[name] = counts.get(name, 0) + 1
    kept = {name for name, count in counts.items() if name is not None and count >= min_count}
    names = features.names()
    assert features.num_features == len(names) == len(set(names)) and set(names) == kept
    for sentences in (SENTENCES, NEW):
        ids = features.encode(sentences)
        assert ids.dtype == np.int64
        got = [[None if i < 0 else names[i] for i in row] for row in ids.tolist()]
        assert got == [[name if name in kept else None for name in row] for row in by_hand(DEFAULT_TEMPLATES, sentences)]


def test_strings_are_the_known_features_by_sentence():
    features = TagFeatures(["word[0]", "word[-1]|word[0]"]).fit(SENTENCES)
    assert features.as_strings([["Yes", "dog"], [], ["new"]]) == [
        [["word[0]=Yes", "word[-1]|word[0]=<begin>|Yes"], ["word[0]=dog"]],
        [],
        [[]],
    ]


def test_attributes():
    assert word_shape("McDonald's-4") == "XxXxxxxx'x-d" and short_shape("McDonald's-4") == "XxXx'x-d"
    assert [capitals(w) for w in ("USA", "A", "The", "iPod", "dog", "1")] == ["all", "first", "first", "some", None, None]
    assert [digits(w) for w in ("1990", "B52", "dog")] == ["all", "some", None]
    assert [hyphen(w) for w in ("well-known", "-", "--", "pre-")] == ["inside", None, None, None]
    assert (prefix("The", 2), prefix("A", 2), suffix("Running", 3), suffix("ab", 3)) == ("th", None, "ing", None)


def test_no_words_and_empty_sentences():
    features = TagFeatures().fit([[], []])
    assert features.num_features == 0 and features.names() == []
    assert features.encode([]).shape == (0, len(DEFAULT_TEMPLATES))
    assert (features.encode([["word"]]) == -1).all()


def test_state_is_json_and_arrays_and_gives_the_same_numbers_again():
    features = TagFeatures(["suffix12[0]", "lower[-1]|lower[0]|lower[1]"], min_count=1).fit([*SENTENCES, ["x" * 30] * 2])
    header, arrays = features.state()
    again = TagFeatures.from_state(json.loads(json.dumps(header)), arrays)
    assert again.names() == features.names() and any("suffix12" in name for name in again.names())
    for sentences in (SENTENCES, NEW):
        np.testing.assert_array_equal(again.encode(sentences), features.encode(sentences))


@pytest.mark.parametrize("template", ["word", "words[0]", "suffix[0]", "suffix0[0]", "word3[0]", "word[0]|", "word[x]"])
def test_templates_that_are_none(template):
    with pytest.raises(ValueError, match="is none; expected attributes"):
        TagFeatures([template])


def test_other_arguments_that_are_wrong():
    with pytest.raises(ValueError, match="4 parts, at most 3"):
        TagFeatures(["word[0]|word[1]|word[2]|word[3]"])
    with pytest.raises(ValueError, match="at least one"):
        TagFeatures([])
    with pytest.raises(ValueError, match="min_count must be at least 1, got 0"):
        TagFeatures(min_count=0)


@grid({
    "min_count": [1, 2, 100],
    "templates": [DEFAULT_TEMPLATES, ("word[0]",), ("lower[-3]|suffix1[0]|word[2]", "shape[1]", "word[0]|lower[-1]")],
})
def test_a_sentence_alone_has_the_numbers_that_it_has_among_many(templates, min_count):
    features = TagFeatures(templates, min_count).fit(SENTENCES)
    for _ in range(2):  # words that are new, and remembered ones
        for batch in (SENTENCES, NEW, [[]], [], *([sentence] for sentence in SENTENCES + NEW)):
            few, many = features._encode_few(batch), features._encode_many(batch)
            assert few.dtype == many.dtype == np.int64
            np.testing.assert_array_equal(few, many)
    features.fit(NEW)  # what was remembered is forgotten
    for batch in (SENTENCES, NEW):
        np.testing.assert_array_equal(features.encode(batch), TagFeatures(templates, min_count).fit(NEW).encode(batch))


def test_words_are_remembered_up_to_a_number(monkeypatch):
    from pplseq.models.taggers import features as module

    monkeypatch.setattr(module, "KEPT_WORDS", 3)
    features = TagFeatures().fit(SENTENCES)
    for sentence in [*SENTENCES, ["The", "cat"], ["The", "dog"]]:
        np.testing.assert_array_equal(features._encode_few([sentence]), features._encode_many([sentence]))
        assert len(features._of_word) < 3 + max(map(len, SENTENCES))


def test_by_loops_to_attributes_are_the_definitions():
    signs = [c for c in map(chr, range(0x110000)) if c < "\u2200" or c.isdigit() or c.isupper() or c.istitle()]
    for word in (*signs, *(f"a{c}" for c in signs), "", "AB", "Ab1", "ab12", "é1"):
        shape = "".join("d" if c.isdigit() else "X" if c.isupper() else "x" if c.isalpha() else c for c in word)
        assert word_shape(word) == shape
        assert (capitals(word) is None) == (not any(c.isupper() for c in word))
        count = sum(c.isdigit() for c in word)
        assert digits(word) == (None if not count else "all" if count == len(word) else "some")


def test_features_with_clusters_are_pickled_and_copied_after_use():
    features = TagFeatures(["cluster2[0]", "lower[0]"], clusters={"the": "0110", "dog": "1"}).fit(SENTENCES)
    expected = features.encode(NEW)
    for again in (pickle.loads(pickle.dumps(features)), copy.deepcopy(features)):
        again._of_word = {}
        np.testing.assert_array_equal(again.encode(NEW), expected)
        again.fit(NEW)
        np.testing.assert_array_equal(again.encode(NEW), again._encode_many(NEW))
    assert expected.max() >= 0
