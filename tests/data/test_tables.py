"""Tables of sequences and labelled strings: what is read, and what is refused with its row and column."""

import gzip
import io
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from pplseq.data.labelled_strings import read_labelled_strings
from pplseq.data.tables import goes_on, read_table

CONTENT = """id,u,v,y,z,kind
one,1,2.5,,7,b
one,-1e2,0,3,,a

two,0,0,1,2,
two,4,5,6,7,10
two,4,5,6,8,9
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "table.csv").write_text(CONTENT)
    return tmp_path / "table.csv"


def check(table):
    assert table.ids == ("one", "two") and table.lengths == [2, 3]
    np.testing.assert_array_equal(table.inputs[0], [[1, 2.5], [-100, 0]])
    np.testing.assert_array_equal(table.outputs[0], [[np.nan, 7], [3, np.nan]])
    assert table.inputs[1].shape == (3, 2) and table.outputs[1].dtype == np.float64
    assert table.input_levels is None and table.output_names == ("y", "z")


NUMBERS = dict(sequence_id="id", inputs=["u", "v"], outputs=["y", "z"])


def test_numbers_from_any_file(path, tmp_path, monkeypatch):
    check(read_table(path, **NUMBERS))
    (tmp_path / "table.tsv").write_text("\ufeff" + CONTENT.replace(",", "\t"), encoding="utf-8")
    check(read_table(tmp_path / "table.tsv", **NUMBERS))
    with gzip.open(tmp_path / "table.csv.gz", "wt") as file:
        file.write(CONTENT.replace("\n", "\r\n"))
    check(read_table(tmp_path / "table.csv.gz", **NUMBERS))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CONTENT.encode())))
    check(read_table("-", **NUMBERS))


def test_parquet(path, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "id": ["one"] * 2 + ["two"] * 3, "u": [1.0, -100, 0, 4, 4], "v": [2.5, 0, 0, 5, 5], "y": [None, 3, 1, 6, 6],
        "z": [7, None, 2, 7, 8], "kind": ["b", "a", None, "10", "9"],
    }  # fmt: skip
    parquet.write_table(pyarrow.table(columns), tmp_path / "table.parquet")
    check(read_table(tmp_path / "table.parquet", **NUMBERS))
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "table.parquet").read_bytes()[:200])
    with pytest.raises(ValueError, match="not a whole Parquet file"):
        read_table(tmp_path / "cut.parquet", **NUMBERS)


def test_symbols_and_their_codes(path):
    table = read_table(path, sequence_id="id", inputs=["u"], outputs=["kind"], symbols=["kind"])
    assert table.output_levels == ("9", "10", "a", "b")  # numbers by size, before words
    assert [rows.tolist() for rows in table.outputs] == [[3, 2], [-1, 1, 0]]
    again = read_table(
        path, sequence_id=None, outputs=["kind"], symbols=["kind"], output_levels=["b", "a", "9", "10", "c"]
    )
    assert again.ids == ("1",) and again.lengths == [5]
    assert again.outputs[0].tolist() == [0, 1, -1, 3, 2] and again.inputs[0].shape == (5, 0)


def test_symbols_beside_numbers_are_numbers_of_their_own(tmp_path):
    (tmp_path / "t.csv").write_text("w,u,k,y\nrain,1,b,5\nsun,2,a,6\nrain,3,a,7\nfog,4,b,8\n")
    options = {"sequence_id": None, "inputs": ["w", "u", "k"], "outputs": ["y"], "symbols": ["w", "k"]}
    table = read_table(tmp_path / "t.csv", **options)
    assert table.input_names == ("w=rain", "w=sun", "u", "k=b") and table.input_levels is None
    assert table.inputs[0].tolist() == [[1, 0, 1, 1], [0, 1, 2, 0], [1, 0, 3, 0], [0, 0, 4, 1]]  # fog and a are 0
    assert table.describe()["input_symbols"] == {"w": ["fog", "rain", "sun"], "k": ["a", "b"]}
    (tmp_path / "new.csv").write_text("k,w,u\nb,sun,1\n")
    again = read_table(tmp_path / "new.csv", **options | {"outputs": []}, input_symbols=table.input_symbols)
    assert again.inputs[0].tolist() == [[0, 1, 1, 1]]
    (tmp_path / "new.csv").write_text("k,w,u\nb,snow,1\n")
    with pytest.raises(ValueError, match="row 2, column 'w': unknown symbol 'snow'; known: fog, rain, sun"):
        read_table(tmp_path / "new.csv", **options | {"outputs": []}, input_symbols=table.input_symbols)
    (tmp_path / "new.csv").write_text("k,w,u\nb,,1\n")
    with pytest.raises(ValueError, match="row 2, column 'w': an input is empty"):
        read_table(tmp_path / "new.csv", **options | {"outputs": []}, input_symbols=table.input_symbols)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "empty; expected a first row"),
        ("id,u,v,y,z\n", {}, "no rows"),
        (CONTENT, {"outputs": ["yy"]}, "no column 'yy'; did you mean 'y'"),
        (CONTENT, {"sequence_id": "name"}, "no column 'name'"),
        (CONTENT.replace("id,u", "u,u"), {"sequence_id": None}, "two columns are named 'u'"),
        (CONTENT.replace("two,0,0", "two,0"), {}, "row 5: 5 cells, but the first row names 6"),
        (CONTENT.replace("-1e2", ""), {}, "row 3, column 'u': an input is empty"),
        (CONTENT.replace("-1e2", "NaN"), {}, "row 3, column 'u': an input is empty or NaN"),
        (CONTENT.replace("-1e2", "inf"), {}, "row 3, column 'u': expected a finite number, got 'inf'"),
        (CONTENT.replace("-1e2", "x"), {}, "row 3, column 'u': expected a number, got 'x'; make one of it"),
        (CONTENT, {"order_by": "day"}, "no column 'day'"),
        (CONTENT, {"order_by": "kind"}, "row 2, column 'kind': expected a number, or a date like 2024-01-31 18:00, got 'b'"),
        (CONTENT, {"order_by": "y"}, "row 2, column 'y': empty; every row must say when it was"),
        (CONTENT.replace("-1e2", "2024-01-31"), {"inputs": ["v"], "order_by": "u"}, "column 'u' holds times that cannot be"),
        (CONTENT, {"inputs": ["u", "u"]}, "a column is named twice"),
        (CONTENT, {"inputs": ["kind"], "symbols": ["kind"]}, "row 5, column 'kind': an input is empty"),
        (CONTENT, {"allow_missing_outputs": False}, "row 2, column 'y': an output is empty or NaN"),
        (
            CONTENT,
            {"outputs": ["kind"], "symbols": ["kind"], "allow_missing_outputs": False},
            "row 5, column 'kind': an output is empty",
        ),
        (CONTENT.replace("two,0,0", ",0,0"), {}, "row 5, column 'id': empty; every row must say"),
        (CONTENT.replace("-1e2", "1_000"), {}, "row 3, column 'u': expected a number, got '1_000'"),
        (
            CONTENT,
            {"outputs": ["kind"], "symbols": ["kind"], "output_levels": ["a", "b"]},
            "unknown symbol '10'; known: a, b",
        ),
        ('id,u\n1,"2\n', {"sequence_id": None, "inputs": ["u"], "outputs": []}, "not a table that can be read"),
    ],
)
def test_bad_tables(tmp_path, content, options, message):
    (tmp_path / "bad.csv").write_text(content)
    with pytest.raises(ValueError, match="bad.csv|column") as error:
        read_table(tmp_path / "bad.csv", **(NUMBERS | options))
    assert message in str(error.value)


def test_rows_of_a_sequence_need_not_stand_together(path, tmp_path):
    header, one, other, _, *two = CONTENT.splitlines()
    mixed = "\n".join([header, one, two[0], other, *two[1:]]) + "\n"
    (tmp_path / "mixed.csv").write_text(mixed)
    check(read_table(tmp_path / "mixed.csv", **NUMBERS))
    (tmp_path / "bad.csv").write_text(mixed.replace("-1e2", "x"))
    some = read_table(tmp_path / "bad.csv", **NUMBERS, leave_out=True)
    assert some.ids == ("two",) and some.lengths == [3] and "row 4, column 'u'" in some.errors["one"]


@pytest.mark.parametrize("times", [["10", "9", "2"], ["2024-02-11", "2024-02-10", "2024-02-09 00:00"]])
def test_rows_by_their_times(tmp_path, times):
    late, middle, early = times
    (tmp_path / "table.csv").write_text(f"id,when,y\na,{late},3\nb,{late},30\na,{early},1\nb,{early},10\na,{middle},2\n")
    table = read_table(tmp_path / "table.csv", sequence_id="id", order_by="when", outputs=["y"])
    assert [rows[:, 0].tolist() for rows in table.outputs] == [[1, 2, 3], [10, 30]]
    (tmp_path / "table.csv").write_text(f"when,y\n{late},3\n{early},1\n")
    table = read_table(tmp_path / "table.csv", sequence_id=None, order_by="when", outputs=["y"])
    assert table.outputs[0][:, 0].tolist() == [1, 3]
    (tmp_path / "table.csv").write_text(f"id,when,y\na,,3\nb,{late},30\nb,{early},10\na,{early},x\n")
    table = read_table(tmp_path / "table.csv", sequence_id="id", order_by="when", outputs=["y"], leave_out=True)
    assert table.outputs[0][:, 0].tolist() == [10, 30] and "row 2, column 'when': empty" in table.errors["a"]


@pytest.mark.parametrize("cell", ["", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "-nan", "null", "None", "1.#IND"])
def test_what_pandas_takes_for_missing(tmp_path, cell):
    (tmp_path / "table.csv").write_text(f"u,y\n1,1\n2,{cell}\n")
    table = read_table(tmp_path / "table.csv", sequence_id=None, outputs=["y"])
    assert np.array_equal(table.outputs[0][:, 0], [1, np.nan], equal_nan=True)
    pandas = pytest.importorskip("pandas")
    assert cell == "None" or pandas.read_csv(tmp_path / "table.csv")["y"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    "content",
    ["day;y;u\n1;1,5;-0,25\n2;2;1e3\n", "day\ty\tu\n1\t1.5\t-0.25\n2\t2\t1e3\n", '"day";"y";u\n1;"1,5";-0,25\n2;2;1e3'],
)
def test_cells_between_semicolons(tmp_path, content):
    (tmp_path / "table.csv").write_text(content)
    table = read_table(tmp_path / "table.csv", sequence_id=None, order_by="day", outputs=["y", "u"])
    assert table.outputs[0].tolist() == [[1.5, -0.25], [2, 1000]]


def test_marks_of_thousands_are_refused(tmp_path):
    for second in ("1.234", "1.234,5"):
        (tmp_path / "table.csv").write_text(f"y;u\n1,5;2\n{second};3\n")
        with pytest.raises(ValueError, match=f"row 3, column 'y': expected a number, got '{second}'"):
            read_table(tmp_path / "table.csv", sequence_id=None, outputs=["y"])
    (tmp_path / "table.csv").write_text("y;u\n1.5;2\n2.5;3\n")
    assert read_table(tmp_path / "table.csv", sequence_id=None, outputs=["y"]).outputs[0].tolist() == [[1.5], [2.5]]
    (tmp_path / "table.csv").write_text("y,u\n\"1,5\",2\n")
    with pytest.raises(ValueError, match="expected a number, got '1,5'"):
        read_table(tmp_path / "table.csv", sequence_id=None, outputs=["y"])


def test_steps_that_dates_lack(tmp_path):
    (tmp_path / "table.csv").write_text("when,u,y\n2024-01-01,0,1\n2024-01-02,0,2\n2024-01-03,0,3\n2024-01-06,0,6\n")
    with pytest.warns(UserWarning, match="column 'when': 2 of 6 steps of a day are not there, .* they are taken as missing"):
        table = read_table(tmp_path / "table.csv", sequence_id=None, order_by="when", outputs=["y"])
    assert table.lengths == [6] and np.array_equal(table.outputs[0][:, 0], [1, 2, 3, np.nan, np.nan, 6], equal_nan=True)
    with pytest.warns(UserWarning, match="rows are taken for equal steps, as inputs of others are not known"):
        table = read_table(tmp_path / "table.csv", sequence_id=None, order_by="when", outputs=["y"], inputs=["u"])
    assert table.lengths == [4]
    (tmp_path / "table.csv").write_text("when,y\n2024-01-01,1\n2024-01-01,2\n")
    with pytest.raises(ValueError, match="column 'when': 2024-01-01 00:00:00 is there more than once in a sequence"):
        read_table(tmp_path / "table.csv", sequence_id=None, order_by="when", outputs=["y"])


def test_a_column_of_levels_need_not_be_read(path):
    """Inputs that are to come have no outputs, yet are read with the settings of the training table."""
    table = read_table(path, sequence_id="id", inputs=["u"], symbols=["kind"], output_levels=["a", "b"])
    assert table.output_levels is None and [rows.shape for rows in table.outputs] == [(2, 0), (3, 0)]


def test_none_is_a_symbol_but_no_number(tmp_path):
    (tmp_path / "table.csv").write_text("u,y,pain\n1,none,none\n2,null,some\n3,2,NA\n")
    table = read_table(tmp_path / "table.csv", sequence_id=None, inputs=["u"], outputs=["pain"], symbols=["pain"])
    assert table.output_levels == ("none", "some") and table.outputs[0].tolist() == [0, 1, -1]
    table = read_table(tmp_path / "table.csv", sequence_id=None, inputs=["u"], outputs=["y"])
    np.testing.assert_array_equal(table.outputs[0], [[np.nan], [np.nan], [2]])


def test_names_of_columns_are_a_list(path):
    with pytest.raises(TypeError, match="inputs must be names of columns"):
        read_table(path, sequence_id="id", inputs="u")


def test_bad_files(tmp_path):
    (tmp_path / "latin.csv").write_bytes("id,u\n1,é\n".encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8"):
        read_table(tmp_path / "latin.csv", sequence_id=None, inputs=["u"])
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(CONTENT.encode())[:40])
    with pytest.raises(ValueError, match="damaged"):
        read_table(tmp_path / "cut.csv.gz", **NUMBERS)
    with pytest.raises(FileNotFoundError, match="did you mean"):
        read_table(tmp_path / "latn.csv", **NUMBERS)
    with pytest.raises(ValueError, match="got a folder"):
        read_table(tmp_path, **NUMBERS)


# ---------------------------------------------------------------- strings
def strings_of(tmp_path, content):
    (tmp_path / "strings.txt").write_bytes(content.encode())
    return read_labelled_strings(tmp_path / "strings.txt")


def test_what_goes_on():
    def days(*numbers, zone=None, hours=0):
        return [datetime(2024, 1, 1, hours, tzinfo=zone) + timedelta(days=number) for number in numbers]

    week = days(0, 1, 2, 3, 4)  # Monday to Friday
    assert goes_on(week, *days(5)) and goes_on(week, *days(7)) and goes_on(days(0, 31), *days(40))
    assert not any(goes_on(week, day) for day in [*days(0, 4, 6, 9, 40), *days(5, hours=7), *days(5, zone=UTC), 5.0])
    months = [datetime(2024, month, 1) for month in (9, 10, 11, 12)]
    assert goes_on(months, datetime(2025, 1, 1)) and not goes_on(months, datetime(2025, 2, 1))
    for past in ([1.0, 2.0, 3.0], [1.0, 1.0, 3.0]):
        assert goes_on(past, 4.0) and goes_on(past, 0.0) and goes_on(past, 1.0) and not goes_on(past, 3.0)
    assert not goes_on([1.0, 2.0, 3.0], 5.0) and goes_on([0.1, 0.2, 0.3], 0.4)


def test_both_ways_of_writing_labels(tmp_path):
    found = strings_of(tmp_path, "# Tomita\n+ 0101\n\n- 00\n+\n-\t10\n")
    assert found.strings == [tuple("0101"), tuple("00"), (), ("1", "0")]
    assert found.labels == [True, False, True, False] and found.symbols == ("0", "1") and not found.one_class
    found = strings_of(tmp_path, "ab\tyes\nb\t0\r\n\tTRUE\n")
    assert found.strings == [("a", "b"), ("b",), ()] and found.labels == [True, False, True]
    found = strings_of(tmp_path, "+ go left\n+ go\n+ go\n")
    assert found.strings == [("go", "left"), ("go",), ("go",)] and found.symbols == ("go", "left") and found.one_class
    found = strings_of(tmp_path, " + 0\x0c1\r- 1 1")  # an indented line; a form feed is no end of one, nor of a symbol
    assert found.strings == [("0\x0c1",), ("1", "1")] and found.labels == [True, False]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no strings in it"),
        ("# nothing\n", "no strings in it"),
        ("+\n-\n", "line 2: '' has another label than in line 1"),
        ("+\n", "only the empty string"),
        ("+ 01\n0101\n", "line 2: '0101' has no label"),
        ("01\tmaybe\n", "line 1: unknown label 'maybe'"),
        ("+ 01\n- 01\n", "line 2: '01' has another label than in line 1"),
        ("+ go left\n- go  left\n", "line 2: 'go left' has another label than in line 1"),
        ("-\t1\n", "line 1: '-\\t1' may be the string '-' with the label '1', or"),
    ],
)
def test_bad_strings(tmp_path, content, message):
    with pytest.raises(ValueError, match="strings.txt") as error:
        strings_of(tmp_path, content)
    assert message in str(error.value)


def test_strings_of_known_symbols(tmp_path):
    """Words stay words in a file whose strings all have one; other symbols are refused."""
    (tmp_path / "words.txt").write_text("+ cat\n-\n- the\n")
    read = read_labelled_strings(tmp_path / "words.txt", symbols=["the", "cat"])
    assert read.strings == [("cat",), (), ("the",)] and read.symbols == ("the", "cat")
    with pytest.raises(ValueError, match=r"words.txt, line 3: unknown symbol 'the'; known: cat, dog"):
        read_labelled_strings(tmp_path / "words.txt", symbols=["dog", "cat"])
    (tmp_path / "words.txt").write_text("+ a b\n- a\n")
    assert read_labelled_strings(tmp_path / "words.txt", symbols="ab").strings == [("a", "b"), ("a",)]


def test_strings_that_are_no_text(tmp_path):
    (tmp_path / "strings.txt").write_bytes(b"+ 0\xff1\n")
    with pytest.raises(ValueError, match="not UTF-8 at byte 3"):
        read_labelled_strings(tmp_path / "strings.txt")
    with pytest.raises(ValueError, match="got a folder"):
        read_labelled_strings(tmp_path)


def test_files_of_the_abbadingo_competition(tmp_path):
    (tmp_path / "train.a").write_text("4 12\n1 3 0 11 0\n0 0\n0 2 5 5\n1 1 7\n")
    read = read_labelled_strings(tmp_path / "train.a")
    assert read.strings == [("0", "11", "0"), (), ("5", "5"), ("7",)] and read.labels == [True, False, False, True]
    (tmp_path / "again.a").write_text(read.to_abbadingo())
    again = read_labelled_strings(tmp_path / "again.a")
    assert again.labels == read.labels
    names = [[read.symbols[int(symbol)] for symbol in string] for string in again.strings]
    assert names == [list(string) for string in read.strings]
    for text, what in (
        ("3 2\n1 1 0\n", "first line says 3 strings of 2 symbols"), ("1 1\n1 2 0 1\n", "says 1 strings of 1 symbols"),
        ("1 2\n1 3 0 1\n", "line 2: expected a label, a length and as many symbols"), ("1 2\n-1 1 0\n", "unknown label '-1'"),
    ):  # fmt: skip
        (tmp_path / "bad.a").write_text(text)
        with pytest.raises(ValueError, match=what):
            read_labelled_strings(tmp_path / "bad.a")
