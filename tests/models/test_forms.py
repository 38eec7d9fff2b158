"""Data as people hold them: every form of the same sequences gives the same answer; what is ambiguous says so."""

import datetime

import numpy as np
import pytest
import torch
from support.model_cases import CASES

from pplseq import HMM, IOHMM, LDS, TextLDS, load_corpus, sequences_by
from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary
from pplseq.models.forms import in_form, numbers_of
from pplseq.models.text_lds.fit import as_counts
from pplseq.models.texts import as_texts

WORDS = HMM(3, num_words=6).set_parameters(initial=[0.2, 0.3, 0.5])
NUMBERS = HMM(2, num_features=1).set_parameters(loc=[[0.0], [1.0]])
VECTORS = HMM(2, num_features=2).set_parameters(loc=[[0.0, 1.0], [1.0, 0.0]])
ids = np.array([3, 1, 4, 1, 5, 0, 2])
values = np.linspace(-1, 2, 7)
vectors = np.stack([values, values**2], 1)


def modules():
    return [pytest.param(name, id=name) for name in ("pandas", "polars")]


@pytest.mark.parametrize("model, x", [(WORDS, ids), (NUMBERS, values), (NUMBERS, values[:, None]), (VECTORS, vectors)])
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
    of_words = library.DataFrame({"trip": [1, 0, 1], "word": [3, 1, 4]})
    assert WORDS.score(sequences_by(of_words, "trip", "word")) == pytest.approx(WORDS.score([[3, 4], [1]]))
    late = library.DataFrame({"trip": ["u", "v", "u", "u"], "day": [3, 1, 1, 2], "a": [1.0, 2.0, 3.0, 4.0]})
    assert [row.tolist() for row in sequences_by(late, "trip", order_by="day")] == [[[3], [4], [1]], [[2]]]
    assert sequences_by(late, "trip", ["a", "day"], order_by="day")[0].tolist() == [[3, 1], [4, 2], [1, 3]]
    assert sequences_by(frame, "trip", "a", order_by="b")[0].tolist() == [1, 3, 4]  # as they stood
    with pytest.raises(KeyError, match="no column 'night'; there are: trip, day, a"):
        sequences_by(late, "trip", order_by="night")
    with pytest.raises(KeyError, match="no column 'tour'; there are: trip, a, b"):
        sequences_by(frame, "tour")
    with pytest.raises(TypeError, match="column 'trip' must hold numbers, got str"):
        VECTORS.score(frame)


@pytest.mark.parametrize("name", modules())
def test_dates_of_sequences_that_lack_steps(name):
    library, day = pytest.importorskip(name), datetime.datetime(2024, 1, 1)
    days = [day + datetime.timedelta(days=number) for number in (0, 5, 2, 1, 0, 1, 2)]
    table = {"trip": list("aaaabbb"), "day": days, "v": [0, 5, 2, 1, 7, 8, 9], "w": list("abcdefg")}
    frame = library.DataFrame(table)
    for columns, wanted in (
        ("v", [[0, 1, 2, -1, -1, 5], [7, 8, 9]]), ("w", [["a", "d", "c", None, None, "b"], list("efg")]),
        (["v"], [[[0.0], [1.0], [2.0], [np.nan], [np.nan], [5.0]], [[7.0], [8.0], [9.0]]]),
    ):  # fmt: skip
        with pytest.warns(UserWarning, match="order_by: column 'day': 2 of 6 steps of a day are not there"):
            found = sequences_by(frame, "trip", columns, order_by="day")
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    for told in (
        [str(each.date()) for each in days], [each.isoformat() for each in days], [each.day for each in days],
        [str(each.day + 8) for each in days], [each - day for each in days],
    ):  # fmt: skip
        with pytest.warns(UserWarning, match="order_by: column 'day': 2 of 6 steps of .* are not there"):
            found = sequences_by(library.DataFrame(table | {"day": told}), "trip", "v", order_by="day")
        assert [row.tolist() for row in found] == [[0, 1, 2, -1, -1, 5], [7, 8, 9]]
    with pytest.raises(ValueError, match="order_by: column 'day': 2024-01-01 .*is there more than once"):
        sequences_by(library.DataFrame(table | {"trip": ["a"] * 7}), "trip", "v", order_by="day")


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
    assert model._as_batch(y, inputs=u).x.dtype == torch.float64
    y[0, 1, 0] = "a"
    for call in (lambda: NUMBERS.score(np.array([1.0, object()])), lambda: model._as_batch(y, inputs=u)):
        with pytest.raises(TypeError, match="must hold numbers, None where one is missing, got"):
            call()


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_what_numpy_masks_is_missing(case):
    """In every model and form: never the number that stands behind the mask."""
    model, x = case.model(), case.data().numpy()
    hidden = np.zeros(x.shape, dtype=bool)
    hidden[0, 2] = hidden[2, 3] = True
    words = x.dtype.kind == "i"
    missing = np.where(hidden, -1 if words else np.nan, x)
    masked = np.ma.masked_array(np.where(hidden, 9999, x), hidden)
    known = {name: value.numpy() for name, value in case.known.items()}
    lists = {name: list(value) for name, value in known.items()}
    expected = model.score(missing, **known)
    for form in (list(masked), [list(row) for row in masked]):
        assert model.score(form, **lists) == pytest.approx(expected)
    assert model.score(masked, **known) == pytest.approx(expected)
    assert model.score(np.ma.masked_array(x, np.ma.nomask), **known) == pytest.approx(model.score(x, **known))
    lengths = np.ma.masked_array([6, 6, 6, 6], [False, True, False, False])
    with pytest.raises(ValueError, match="lengths: some of its values are masked"):
        model.score(x, lengths, **known)
    for name, value in known.items():
        if name == "inputs" and value.dtype.kind == "f":
            behind = np.ma.masked_array(value, np.zeros(value.shape, dtype=bool))
            behind[1, 2, 0] = np.ma.masked
            for form, x_form in ((behind, x), (list(behind), list(x))):
                with pytest.raises(ValueError, match="inputs.*finite"):
                    model.score(x_form, **{name: form})


def test_masked_states_matrices_and_parameters():
    states = np.ma.masked_array([0, 1, 7, 1, 2, 0, 0], [0, 0, 1, 0, 0, 0, 0])
    known = [0, 1, -1, 1, 2, 0, 0]
    for form in (states, states[None], [states]):
        x = [ids] if isinstance(form, list) else ids
        assert WORDS._as_batch(x, states=form).states.tolist() == [known]
    texts = np.ma.masked_array(["a", "b", "c"], [False, True, False])
    assert in_form([texts], num_features=None)[0][0] == ["a", None, "c"]
    noises = np.ma.masked_array(np.ones((7, 1, 1)), np.arange(7).reshape(7, 1, 1) == 3)
    with pytest.raises(ValueError, match="emission_noises must be finite"):
        LDS(1, 1).set_parameters(transition=[[0.5]], emission=[[1.0]]).score(values, emission_noises=noises)
    with pytest.raises(ValueError, match="loc: some of its values are masked"):
        NUMBERS.set_parameters(loc=np.ma.masked_array([[0.0], [1.0]], [[False], [True]]))
    assert NUMBERS.score([0.5, np.ma.masked, 1.0]) == pytest.approx(NUMBERS.score([0.5, None, 1.0]))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", modules())
def test_outputs_and_inputs_of_an_iohmm(name, size):
    """Frames, series, one sequence alone and several one behind the other, as lists of arrays."""
    library = pytest.importorskip(name)
    model = IOHMM(2, num_inputs=size, num_outputs=size, outputs="gaussian")
    y, u = (vectors, -vectors) if size == 2 else (values, -values)
    frame = (lambda x: library.DataFrame({"a": x[:, 0], "b": x[:, 1]})) if size == 2 else library.Series
    whole = model._as_batch([y], inputs=[u])
    for x, inputs in [(y, u), (torch.as_tensor(y), torch.as_tensor(u)), (frame(y), frame(u)), ([frame(y)], [frame(u)])]:
        batch = model._as_batch(x, inputs={"transition": inputs} if x is y else inputs)
        assert torch.equal(batch.x, whole.x) and torch.equal(batch.inputs, whole.inputs) and batch.lengths is None
    parts = model._as_batch([y[:3], y[3:]], inputs=[u[:3], u[3:]], states=[[0] * 3, [1] * 4])
    for x, inputs in [(y, u), (frame(y), frame(u)), (y.reshape(7, -1), u.reshape(7, -1))]:
        batch = model._as_batch(x, [3, 4], inputs=inputs, states=np.repeat([0, 1], [3, 4]))
        assert all(torch.equal(got, expected) for got, expected in zip(batch[:4], parts[:4], strict=True))
    final = model._as_batch(y[:2], inputs=np.zeros((2, 4, size)))  # one target a sequence
    assert final.x.shape == (2, 4, size) and bool(final.x[:, :3].isnan().all())
    first, second = model.fit(y, [3, 4], inputs=u, max_iterations=2, seed=0).decode([y[:3], y[3:]], inputs=[u[:3], u[3:]])
    assert torch.equal(model.decode(frame(y), [3, 4], inputs=frame(u))[1], second) and len(first) == 3
    assert model.score(frame(y), inputs=frame(u)) == pytest.approx(model.score([y], inputs=[u]))
    ahead = model.forecast([y], inputs=[u], future_inputs=u[:3]).means
    for given in (frame(u[:3]), [frame(u[:3])], {"transition": frame(u[:3])}):  # of one sequence, and of each
        assert torch.equal(model.forecast(frame(y), inputs=frame(u), future_inputs=given).means, ahead)
    torch.testing.assert_close(model.predict_next(frame(y), inputs=frame(u), next_inputs=frame(u[:1])).means, ahead[:, 0])


def test_symbols_and_words_of_an_iohmm():
    pandas = pytest.importorskip("pandas")
    model = IOHMM(2, num_symbols=2, num_outputs=6, outputs="categorical")
    symbols = ids % 2
    whole = model._as_batch([ids], inputs=[symbols])
    rows = [np.array([part, part[:2]], dtype=object) for part in (ids, symbols)]  # sequences as objects
    for x, inputs in [
        (ids, symbols), (pandas.Series(ids), pandas.Series(symbols)), (ids.tolist(), symbols.tolist()),
        (pandas.DataFrame({"x": ids}), pandas.DataFrame({"u": symbols})), (ids[:, None], symbols),
    ]:  # fmt: skip
        batch = model._as_batch(x, inputs=inputs)
        assert torch.equal(batch.x, whole.x) and torch.equal(batch.inputs, whole.inputs)
    assert model._as_batch(rows[0], inputs=rows[1]).lengths.tolist() == [7, 2]
    assert model._as_batch(ids, np.ones(7, int), inputs=symbols[:, None]).x.shape == (7, 1)
    assert model._as_batch(pandas.Series([1, None, 5]), inputs=symbols[:3]).x.tolist() == [[1, -1, 5]]
    alone = IOHMM(2, num_inputs=0, num_outputs=6, outputs="categorical")  # nothing but outputs
    assert torch.equal(alone._as_batch(ids).x, whole.x) and alone._as_batch(ids, [3, 4]).x.shape == (2, 4)
    for call, error, message in [
        (lambda: model._as_batch(ids, inputs=symbols[:, None]), ValueError, r"7 sequences of one step: write inputs\[:, 0\]"),
        (lambda: alone._as_batch(ids[:, None]), ValueError, r"one sequence of 7 or 7 sequences of one step: write x\[:, 0\]"),
        (lambda: model._as_batch(pandas.Series(["a", "b"]), inputs=symbols[:2]), TypeError,
         "x: expected the numbers 0, 1, .* of outputs, .* got the text 'a'"),
        (lambda: model._as_batch({"x": ids}, inputs=symbols), TypeError, r"x: got columns in a dict; .* pandas.DataFrame\(x\)"),
        (lambda: model._as_batch(ids, inputs={"speed": symbols}), ValueError, r"of a table .* pandas.DataFrame\(inputs\)"),
        (lambda: model._as_batch(pandas.DataFrame([[1, 2]], columns=[0, 0]), inputs=symbols[:1]), ValueError,
         "names of their own"),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("name", modules())
def test_texts_to_learn_from(name):
    """Sentences and ids in the forms of all other data, for models that learn from whole texts."""
    library = pytest.importorskip(name)
    lines = ["a b a", "b", "c a"]
    expected = as_texts(lines).train.tokens
    split = [line.split() for line in lines]
    frame = library.DataFrame({"line": [1, 1, 1, 2, 3, 3], "word": [word for line in split for word in line]})
    for form in (library.Series(lines), np.array(lines), split, sequences_by(frame, "line", "word")):
        assert np.array_equal(as_texts(form, validation=form).validation.tokens, expected)
    assert np.array_equal(as_texts(frame["word"], [3, 1, 2]).train.tokens, expected)  # words one behind the other
    for form, lengths in [(ids, [3, 4]), (library.Series(ids.tolist()), [3, 4]), ([ids[:3], ids[3:]], None)]:
        text = as_texts(form, lengths).train
        assert np.array_equal(text.tokens, ids) and text.line_starts.tolist() == [0, 3, 7]
        counts = as_counts(form, lengths, num_words=6, max_lag=2)
        assert np.array_equal(counts.counts, np.bincount(ids, minlength=6))
    with pytest.raises(ValueError, match="one sequence of 7 or 7 sequences"):
        as_texts(ids[:, None])
    with pytest.raises(TypeError, match=r"column 'word' must hold numbers, .* or give x\['word'\] alone as sentences"):
        as_texts(frame)


def test_a_text_lds_learns_sentences():
    """Their words become its vocabulary, rewritten as the model says; of others the number is named."""
    lines = np.array(["the cat sat on 12 mats", "The dog sat", "a cat and a dog ran"] * 20)
    words = Vocabulary.build([line.lower().replace("12", "NUM").split() for line in lines])
    model = TextLDS(2, num_words=len(words), forms={"lower": True, "digits": "NUM"})
    settings = dict(max_iterations=2, blocks=2, pseudo_counts=1.0)
    model.fit(lines, validation=lines[:3], **settings)
    assert model.vocabulary.words == words.words and model.forms.lower
    by_hand = Text.from_lines([line.lower().replace("12", "NUM").split() for line in lines])
    same = TextLDS(2, num_words=len(words)).fit(by_hand, **settings)
    assert torch.equal(model.emission, same.emission) and same.vocabulary.words == words.words
    assert model.score(["The cat ran"]) == pytest.approx(same.score(["the cat ran"]))
    with pytest.raises(ValueError, match=r"x: its vocabulary \(12 words\) is not that of the model, num_words=5"):
        TextLDS(2, num_words=5).fit(list(lines))
    assert TextLDS(2, num_words=6).fit([ids] * 9, **settings).vocabulary is None


def test_tables_of_other_libraries():
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    table = arrow.table({"a": vectors[:, 0], "b": vectors[:, 1], "word": ["x"] * 7})
    assert VECTORS.score(table.select(["a", "b"])) == pytest.approx(VECTORS.score([vectors]))
    assert NUMBERS.score(table["a"]) == pytest.approx(NUMBERS.score([values]))
    assert NUMBERS.score([table["a"], table["a"]]) == pytest.approx(2 * NUMBERS.score([values]))
    assert [len(row) for row in sequences_by(table, "word", ["a"])] == [7]
    with pytest.raises(TypeError, match="x: got columns in a dict"):
        VECTORS.score({"a": values, "b": values})


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
        (lambda: WORDS.score(ids, [-1, 8]), ValueError, "lengths must be 0 or more, got -1"),
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


@pytest.mark.parametrize("call, error, message", [
    (lambda pd: sequences_by(pd.DataFrame({"id": [1.0, None], "v": [1, 2]}), "id"), ValueError, "row 1 has no 'id', so that"),
    (lambda pd: sequences_by(pd.DataFrame({"id": ["a", None], "v": [1, 2]}), "id"), ValueError, "row 1 has no 'id', so that"),
    (lambda pd: sequences_by(pd.DataFrame([[1, 1, 2]] * 3, columns=list("iiv")), "i", "v"), ValueError, "2 columns 'i'"),
    (lambda pd: sequences_by(pd.DataFrame([[1, 1, 2]] * 3, columns=list("ivv")), "i", "v"), ValueError, "2 columns 'v'"),
    (lambda pd: sequences_by(pd.DataFrame({"id": [1]}), "id"), ValueError, "at least one beside 'id'"),
    (lambda pd: sequences_by(pd.DataFrame([[1, 2]]), 0, 1), TypeError, r"got 1; for one write \[1\]"),
    (lambda pd: sequences_by(pd.DataFrame({"i": [1, 1], "t": [2.0, None], "v": 0}), "i", order_by="t"), ValueError,
     "order_by: row 1 has no 't'; fill it in"),
    (lambda pd: sequences_by(pd.DataFrame({"i": [1, 1], "t": ["x10", "x9"], "v": 0}), "i", order_by="t"), TypeError,
     "order_by: the values of 't' have no order of time .they are text.; make numbers of them, or dates by pandas.to_datetime"),
    (lambda pd: sequences_by(pd.Series([1, 2]), "id"), TypeError, "expected a table with columns, got Series"),
    (lambda pd: NUMBERS.score(pd.Series([b"1", b"2"])), TypeError, "x must hold numbers, got bytes"),
    (lambda pd: WORDS.score([b"a b"]), TypeError, r"x: got bytes; make text of them: \[row.decode\(\) for row in x\]"),
    (lambda pd: WORDS.score(np.array([b"a", b"b"])), TypeError, "x: got bytes"),
    (lambda pd: WORDS.score(pd.Series([1.0, np.inf])), TypeError, "whole numbers"),
])  # fmt: skip
def test_odd_frames_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(pytest.importorskip("pandas"))


def test_masks_in_an_array_of_objects_are_heard():
    rows = [np.ma.masked_greater(np.array([5.1, 9999.0, 5.3]), 9000), np.ma.masked_greater(np.array([9999.0, 4.9]), 9000)]
    held = np.empty(2, dtype=object)
    held[0], held[1] = rows
    model = HMM(1, num_features=1).set_parameters(loc=[[5.0]], covariance=[[1.0]])
    assert model.score(held) == model.score([row.filled(np.nan) for row in rows]) == model.score(rows)
    single = np.array([5.1, np.ma.masked, 4.9], dtype=object)
    assert model.score(single) == model.score(np.array([5.1, np.nan, 4.9]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_what_torch_masks_and_rows_of_a_series_are_missing():
    pandas = pytest.importorskip("pandas")

    def masked(values, seen):
        return torch.masked.masked_tensor(torch.tensor(values), torch.tensor(seen))

    hidden = np.ma.array([1.0, 9999.0, 3.0], mask=[0, 1, 0])
    model = HMM(1, num_features=1).set_parameters(loc=[[0.0]], covariance=[[1.0]])
    wanted = model.score([[1.0, np.nan, 3.0]])
    row = masked([1.0, 9999.0, 3.0], [True, False, True])
    for x in (masked([[[1.0], [9999.0], [3.0]]], [[[True], [False], [True]]]), [row], pandas.Series([hidden])):
        assert model.score(x) == pytest.approx(wanted)
    days = pandas.DatetimeIndex(["2024-01-01", "2024-01-09", "2024-01-05"])  # of sequences
    assert model.score(pandas.Series([hidden] * 3, index=days)) == pytest.approx(3 * wanted)
    assert WORDS.score(masked([[1, 2]], [[True, False]])) == WORDS.score([[1, -1]])
    states = masked([[0, 1]], [[True, False]])
    assert WORDS.score([[1, 2]], states=states) == pytest.approx(WORDS.score([[1, 2]], states=[[0, -1]]))
    with pytest.raises(TypeError, match=r"x: got a MaskedTensor of shape \(1, 2, 1\)"):
        model.log_prob(masked([[[1.0], [2.0]]], [[[True], [False]]]))
