"""Forms that look like something else, as words for sentences or ids for words; states as people hold them."""

import numpy as np
import pytest
import torch

from pplseq import HMM, HMMTagger, TextLDS, sequences_by
from pplseq.data.columns import TaggedSentence
from pplseq.models.forms import in_form

pandas = pytest.importorskip("pandas")

DRAW = np.random.default_rng(0)
NUMBERS, STATES = DRAW.normal(size=30), DRAW.integers(0, 2, 30)
TABLE = pandas.DataFrame({"id": [1] * 4 + [2] * 4, "kind": [0, 0, 1, 1] * 2, "word": [0, 1, 2, 1, 0, 1, 2, 2]})


def words():
    return HMM(2, num_words=3)


def test_words_are_one_column_of_a_frame():
    with pytest.raises(ValueError, match=r"x: words of a frame are one column, got 2, 'id', 'word'; give one, x\['word'\]"):
        words().fit(TABLE[["id", "word"]])
    assert words().fit(TABLE["word"], max_iterations=1).is_fitted
    assert words().fit(TABLE[["id", "kind"]].to_numpy(), max_iterations=1).is_fitted


def test_strings_of_one_word_each():
    model = words()
    for strings in (["the", "cat", "sleeps"], ("the", "cat"), np.array(["the", "cat"]), pandas.Series(["the", "cat"])):
        with pytest.raises(ValueError, match=r"could be one sentence or \d: write \[list\(x\)\] for the first, \[\[word\]"):
            model.score(strings)
        with pytest.raises(ValueError, match="one word each could be one sentence"):
            TextLDS(2, num_words=5).embed_tokens(strings)
    for strings in (["the"], ["the cat", "sleeps"], [["the"], ["cat"]], [["the", "cat"]]):
        assert in_form(strings, num_features=None)[0] == strings
    tagger = HMMTagger().fit([TaggedSentence(("the", "cat"), ("D", "N"))])
    with pytest.raises(TypeError, match="x: expected sequences of words, got a string"):
        tagger.tag(["one", "two"])


def test_missing_words_of_a_table():
    lacking = TABLE.assign(word=TABLE["word"].astype(float).where(TABLE.index != 2))
    rows, _ = in_form(sequences_by(lacking, "id", "word"), num_features=None)
    assert [row.tolist() for row in rows] == [[0, 1, -1, 1], [0, 1, 2, 2]]
    assert words().fit(sequences_by(lacking, "id", "word"), max_iterations=1).is_fitted


def test_sequences_told_by_several_columns():
    found = sequences_by(TABLE, ["id", "kind"], "word")
    assert found.ids == [(1, 0), (1, 1), (2, 0), (2, 1)] and [row.tolist() for row in found] == [[0, 1], [2, 1], [0, 1], [2, 2]]
    assert sequences_by(TABLE, ["id", "kind"]).column_names == ("word",)
    assert sequences_by(TABLE, ["id"], "word").ids == [1, 2]
    for by in ([], ["id", "kind", "word"]):
        with pytest.raises(ValueError, match="columns: expected at least one beside"):
            sequences_by(TABLE, by)


def test_groups_and_single_lengths():
    with pytest.raises(TypeError, match=r"x: got the groups of a frame, DataFrameGroupBy; .* sequences_by\(frame"):
        words().fit(TABLE.groupby("id"))
    with pytest.raises(TypeError, match=r"lengths: expected the number of steps of each sequence, such as \[3, 2\], got 5"):
        words().fit(STATES, 5)


def test_none_is_missing_in_lists():
    model = HMM(1, num_features=1).set_parameters(initial=[1.0])
    for holes in ([1.0, None, 2.0], [[1.0, None, 2.0]], [None, 1.0, 2.0], [[[1.0], [None], [2.0]]]):
        gone = [None if value is None else value for value in holes]
        whole = [1.0, np.nan, 2.0] if holes[0] is not None else [np.nan, 1.0, 2.0]
        assert model.score(gone) == pytest.approx(model.score(whole))
    assert in_form([1, None, 2], num_features=None)[0].tolist() == [[1, -1, 2]]
    assert in_form([[1, None, 2], [0]], num_features=None)[0][0].tolist() == [1, -1, 2]
    assert in_form([["a", None]], num_features=None)[0] == [["a", None]]


@pytest.mark.parametrize(
    ("x", "lengths", "states"),
    [
        (NUMBERS, None, STATES),
        (NUMBERS.tolist(), None, STATES.tolist()),
        (NUMBERS[:, None], None, pandas.Series(STATES)),
        (pandas.Series(NUMBERS), None, pandas.Series(STATES, index=np.arange(30) + 5)),
        ([NUMBERS], None, torch.as_tensor(STATES)),
        (NUMBERS, [10, 20], STATES),
        ([NUMBERS[:10], NUMBERS[10:]], None, [pandas.Series(STATES[:10]), STATES[10:].tolist()]),
    ],
)
def test_states_of_one_sequence_and_of_several(x, lengths, states):
    batch = HMM(2, num_features=1)._as_batch(x, lengths, states=states)
    assert torch.cat([row[row >= 0] for row in batch.states]).tolist() == STATES.tolist()


def test_states_that_are_none():
    model = HMM(2, num_features=1)
    for states in (np.where(STATES > 0, "a", "b"), [["a"] * 30], pandas.Series(["a"] * 30), ["a", "b"] * 15):
        with pytest.raises(ValueError, match=r"states: no state is called '[ab]'; the model's have numbers"):
            model._as_batch(NUMBERS, states=states)  # a fit takes names
    partly = pandas.Series(STATES.astype(float)).where(STATES > 0)
    assert set(model._as_batch(NUMBERS, states=partly).states[0].tolist()) == {-1, 1}
    with pytest.raises(ValueError, match=r"states must cover x, \(1, 30\), got \(1, 29\)"):
        model.fit(NUMBERS, states=STATES[1:])
