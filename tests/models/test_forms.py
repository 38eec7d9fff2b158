"""Data as people hold them: every form of the same sequences gives the same answer; what is ambiguous says so."""

import numpy as np
import pytest
import torch

from pplseq import HMM, IOHMM, LDS, load_corpus, sequences_by
from pplseq.models.forms import in_form, numbers_of

WORDS = HMM(3, num_words=6).set_parameters(initial=[0.2, 0.3, 0.5])
NUMBERS = HMM(2, num_features=1).set_parameters(loc=[[0.0], [1.0]])
VECTORS = HMM(2, num_features=2).set_parameters(loc=[[0.0, 1.0], [1.0, 0.0]])
ids = np.array([3, 1, 4, 1, 5, 0, 2])
values = np.linspace(-1, 2, 7)
vectors = np.stack([values, values**2], 1)


def modules():
    return [pytest.param(name, id=name) for name in ("pandas", "polars")]


@pytest.mark.parametrize(
    "model, x", [(WORDS, ids), (NUMBERS, values), (NUMBERS, values[:, None]), (VECTORS, vectors)]
)
def test_one_sequence_alone(model, x):
    expected = model.score([x])
    alone = [x, torch.as_tensor(x)] + ([x.tolist()] if x.ndim == 1 else [x[None]])
    for form in alone:
        assert model.score(form) == pytest.approx(expected)
    assert model.decode(x).shape == (1, 7)  # batch first, as for x[None]
    assert torch.equal(model.decode(x)[0], model.decode([x])[0])
    assert model.forecast(x, 2).state_log_probs.shape == (1, 2, model.num_states)


@pytest.mark.parametrize(
    "model, x", [(WORDS, ids), (WORDS, ids[:, None]), (NUMBERS, values), (NUMBERS, values[:, None]), (VECTORS, vectors)]
)
@pytest.mark.parametrize("lengths", [[3, 4], np.array([7]), torch.tensor([1, 1, 5])])
def test_sequences_one_behind_the_other(model, x, lengths):
    flat = x[:, 0] if model is WORDS and x.ndim == 2 else x
    parts = np.split(flat, np.cumsum(np.asarray(lengths))[:-1])
    assert model.score(x, lengths) == pytest.approx(sum(model.score([part]) for part in parts))
    assert model.smooth(x, lengths).probs.shape[0] == len(lengths)


@pytest.mark.parametrize("name", modules())
def test_frames(name):
    library = pytest.importorskip(name)
    frame = library.DataFrame({"a": vectors[:, 0], "b": vectors[:, 1]})
    assert VECTORS.score(frame) == pytest.approx(VECTORS.score([vectors]))
    assert VECTORS.score([frame, frame]) == pytest.approx(2 * VECTORS.score([vectors]))
    assert NUMBERS.score(frame["a"]) == pytest.approx(NUMBERS.score([values]))
    assert WORDS.score(library.Series(ids.tolist())) == pytest.approx(WORDS.score([ids]))
    missing = library.Series([3, None, 4])
    assert WORDS.score(missing) == pytest.approx(WORDS.score([[3, -1, 4]]))
    gaps = library.DataFrame({"a": [0.0, None, 1.0]})
    assert NUMBERS.score(gaps) == pytest.approx(NUMBERS.score([[0.0, np.nan, 1.0]]))
    assert VECTORS.posterior(frame).log_prob().item() == pytest.approx(VECTORS.score(frame))


@pytest.mark.parametrize("name", modules())
def test_frames_by_a_column(name):
    library = pytest.importorskip(name)
    frame = library.DataFrame({"trip": ["u", "v", "u", "u"], "a": [1.0, 2.0, 3.0, 4.0], "b": [5, 6, 7, 8]})
    first, second = sequences_by(frame, "trip")
    assert first.tolist() == [[1, 5], [3, 7], [4, 8]] and second.tolist() == [[2, 6]]
    assert [row.tolist() for row in sequences_by(frame, "trip", "b")] == [[5, 7, 8], [6]]
    with pytest.raises(KeyError, match="no column 'tour'; there are: trip, a, b"):
        sequences_by(frame, "tour")
    with pytest.raises(TypeError, match="column 'trip' must hold numbers, got str"):
        VECTORS.score(frame)


def test_pandas_missing_integers_and_texts():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match="column 'a' must hold numbers, got str"):
        NUMBERS.score(pandas.DataFrame({"a": ["1", "2"]}))  # digits, but text
    assert numbers_of(pandas.Series([1, None, 2], dtype="Int64")).tolist() == [1, -1, 2]
    assert in_form(pandas.Series(["a b", "c"]), num_features=None)[0] == ["a b", "c"]
    with pytest.raises(ValueError, match="some of the texts are missing"):
        numbers_of(pandas.Series(["a", None]))


def test_texts_of_a_corpus():
    corpus = load_corpus("builtin:generated")
    model = HMM(2, num_words=len(corpus.vocabulary)).set_parameters(initial=[0.5, 0.5])
    assert model.score(corpus.valid) == pytest.approx(model.score([line.tolist() for line in corpus.valid.lines()]))
    assert len(model.decode(corpus.valid)) == corpus.valid.num_lines


def test_arrays_of_objects():
    """None is missing; sequences may be held as objects; anything else is named."""
    some = np.array([1.5, None, 0.5, np.nan], dtype=object)
    assert np.array_equal(in_form(some, num_features=1)[0][0, :, 0], [1.5, np.nan, 0.5, np.nan], equal_nan=True)
    assert in_form(np.array([[1, None, 0]], dtype=object), num_features=None)[0].tolist() == [[1, -1, 0]]
    rows, _ = in_form(np.array([np.array([1, 2]), np.array([0])], dtype=object), num_features=None)
    assert [row.tolist() for row in rows] == [[1, 2], [0]]
    assert NUMBERS.score(some) == pytest.approx(NUMBERS.score(some.astype(float)))
    model = IOHMM(2, num_inputs=1, num_outputs=1, outputs="gaussian")
    y, u = np.zeros((1, 3, 1), dtype=object), np.zeros((1, 3, 1), dtype=object)
    assert model.as_batch(y, inputs=u).x.dtype == torch.float64
    y[0, 1, 0] = "a"
    for call in (lambda: NUMBERS.score(np.array([1.0, object()])), lambda: model.as_batch(y, inputs=u)):
        with pytest.raises(TypeError, match="must hold numbers, None where one is missing, got"):
            call()


def test_inputs_come_alike():
    model = LDS(1, 1, num_inputs=2).set_parameters(transition=[[0.5]])
    u = np.stack([values, -values], 1)
    expected = model.score([values[:, None]], inputs=[u])
    assert model.score(values, inputs=u) == pytest.approx(expected)
    parts = model.score([values[:3, None], values[3:, None]], inputs=[u[:3], u[3:]])
    assert model.score(values, [3, 4], inputs=u) == pytest.approx(parts)
    assert model.forecast(values, 1, inputs=u, future_inputs=np.ones((1, 2))).means.shape == (1, 1, 1)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: WORDS.score(np.zeros((300, 1), int)), ValueError, r"one sequence of 300 or 300 .* x\[:, 0\] .* list\(x\)"),
        (lambda: NUMBERS.score(values, np.full(7, 0.5)), TypeError, "lengths must be whole numbers"),
        (lambda: NUMBERS.score(values * 1j), TypeError, "real numbers, got torch.complex128"),
        (lambda: WORDS.score(ids, [3, 5]), ValueError, "they must sum to the 7 rows of x, got 8$"),
        (lambda: NUMBERS.score(values, np.arange(7)), ValueError, "got 21; if these are targets y, leave them out"),
        (lambda: NUMBERS.score(["a b"]), TypeError, "expected numbers, vectors of 1 a step, got the text 'a b'"),
        (lambda: NUMBERS.score(np.array(["1", "2"])), TypeError, "vectors of 1 a step, got the text '1'"),
        (lambda: VECTORS.score([[0.5, None], ["b", 1.0]]), TypeError, "vectors of 2 a step, got the text 'b'"),
        (lambda: NUMBERS.score([[1.0], [2.0]]), ValueError, r"one sequence or 2: write \[x\] .* \[\[row\] for row in x\]"),
        (lambda: VECTORS.score(values), ValueError, r"must be \(N, D\) with D = 2, got shape \(7,\)"),
        (lambda: NUMBERS.score(vectors), ValueError, r"For rows of single numbers write x\[..., None\]"),
        (lambda: VECTORS.score(np.zeros((4, 3))), ValueError, r"padded rows \(B, T, D\); got shape \(4, 3\)"),
    ],
)
def test_what_is_ambiguous_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_both_readings_of_a_column_of_words():
    column = ids[:, None]
    assert WORDS.score(column[:, 0]) == pytest.approx(WORDS.score([ids]))
    assert WORDS.score(list(column)) == pytest.approx(sum(WORDS.score([[word]]) for word in ids))
    assert WORDS.score(column, np.ones(7, int)) == pytest.approx(WORDS.score(list(column)))


def test_columns_of_the_same_name_are_refused():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="x: columns must have names of their own, got \\[0, 0\\]"):
        in_form(pandas.DataFrame([[1.0, 2.0]] * 5, columns=[0, 0]), num_features=2)
