"""Files of tagged sentences: read, written again with other tags, and skipped where they are broken."""

import gzip
import io
import sys

import pytest

from pplseq.data import TaggedSentence, read_tagged, write_tagged
from pplseq.data.tag_formats import guess_format

CONLLU = """# newdoc
# sent_id = 1
1-2\tcan't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tca\tcan\tAUX\tMD\tVerbForm=Fin\t0\troot\t_\t_
2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\tSpaceAfter=No|TagProb=0.1
2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t1:x\t_

# a sentence without words

# sent_id = 2
1\t1 000\t1000\tNUM\tCD\t_\t0\troot\t_\t_

"""
SENTENCES = [(("ca", "n't"), ("AUX", "PART")), (("1 000",), ("NUM",))]
BROKEN = """1\ta\ta\tDET\n\n1\tb\tb\tNOUN\tNN\t_\t_\t_\t_\t_\n\n# c
1\tc\tc\tVERB\tVB\t_\t_\t_\t_\t_\nx\td\td\tVERB\tVB\t_\t_\t_\t_\t_\n2\te\te\tVERB\tVB\t_\t_\t_\t_\t_\n"""


@pytest.fixture
def write(tmp_path):
    def write(content, name="file.txt"):
        path = tmp_path / name
        data = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def retagged(found, tag="X"):
    return [TaggedSentence(s.words, (tag,) * len(s.words)) for s in found]


# ---- reading


@pytest.mark.parametrize("name", ["file.conllu", "file.conllu.gz", "file.txt"])
def test_conllu(write, name):
    found = read_tagged(write(CONLLU, name))
    assert (found.format, list(found), found.num_tokens, found.skipped) == ("conllu", SENTENCES, 3, ())
    assert [found.line_of(0), found.line_of(0, 1), found.line_of(1)] == [4, 5, 11]
    assert found[-1] == SENTENCES[1] and found[:1] == (SENTENCES[0],)


@pytest.mark.parametrize("column", ["xpos", "XPOS", 4])
def test_any_column_of_conllu(write, column):
    assert [s.tags for s in read_tagged(write(CONLLU), column=column)] == [("MD", "RB"), ("CD",)]


def test_a_column_by_format(write):
    columns = {"conllu": "xpos", "columns": 2}
    assert read_tagged(write(CONLLU), column=columns)[1].tags == ("CD",)
    assert read_tagged(write("a X O\nb Y O\n"), column=columns)[0].tags == ("O", "O")
    assert read_tagged(write("a X O\nb Y O\n"), column={"conllu": "xpos"})[0].tags == ("X", "Y")


def test_unlabelled_words(write):
    path = write(CONLLU)
    assert None in [tag for s in read_tagged(path, column="deps", tags="optional") for tag in s.tags]
    with pytest.raises(ValueError, match=r"no tag of the word .* in column 8"):
        read_tagged(path, column="deps")
    assert list(read_tagged(write("a_X b c_Y\n"), "word_tag", tags="optional")) == [(("a", "b", "c"), ("X", None, "Y"))]
    assert list(read_tagged(write("a\nb\n"), tags="optional")) == [(("a", "b"), (None, None))]
    assert list(read_tagged(write("a X\nb _\n"), tags="optional")) == [(("a", "b"), ("X", None))]
    with pytest.raises(ValueError, match="line 2: no tag of the word 'b'"):
        read_tagged(write("a X\nb _\n"), "columns")


def test_word_tag(write):
    path = write("The_DT snake_case_NN __SYM ._.\n\nnach\u00a0oben_ADV \u4e2d\u6587_NN x_0.5_CD y_NN_0.25\n")
    found = read_tagged(path)
    assert found.format == "word_tag"
    assert list(found) == [
        (("The", "snake_case", "_", "."), ("DT", "NN", "SYM", ".")),
        (("nach\u00a0oben", "\u4e2d\u6587", "x_0.5", "y"), ("ADV", "NN", "CD", "NN")),
    ]
    assert found.line_of(1, 2) == 3
    assert list(read_tagged(write("1/2/CD of/IN\n"), "word_tag", separator="/")) == [(("1/2", "of"), ("CD", "IN"))]
    for text, wrong in (("a_X b", "'b'"), ("a_X _Y", "'_Y'"), ("a_X b_", "'b_'")):
        with pytest.raises(ValueError, match=f"line 2: expected word_TAG, got {wrong}"):
            read_tagged(write(f"a_X\n{text}\n"), "word_tag")


@pytest.mark.parametrize(
    ("content", "format"),
    [
        ("The DT B-NP\ndog NN I-NP\n\n# # O\n", "columns"),
        ("The\tDT\ndog\tNN\n", "columns"),
        ("the at\ndog nn\nbarks vb\n\n" * 4, "columns"),
        ("The_DT dog_NN\nbarks_VBZ\n", "word_tag"),
        ("the dog barks\n", "words"),
        ("".join(f"John{i} Smith{i}\n" for i in range(30)), "words"),
        ("the dog barks\nno\n", "words"),
        ("the\ndog\n\nbarks\n", "columns"),
        ("1 the the DET DT _ 0 root _ _\n", "conllu"),
    ],
)
def test_formats_are_told_apart(write, content, format):
    try:
        assert read_tagged(write(content), tags="optional").format == format
    except ValueError as error:
        assert format == "conllu" and "expected 10 columns between tabs (CoNLL-U), got 1" in str(error)


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfa_X b_Y\n")))
    found = read_tagged("-")
    assert (found.name, list(found)) == ("<stdin>", [(("a", "b"), ("X", "Y"))])


# ---- broken sentences


def test_skipped_sentences_are_named_and_lose_no_other(write):
    path = write(BROKEN, "file.conllu")
    with pytest.raises(ValueError, match=r"file.conllu, line 1: expected 10 columns"):
        read_tagged(path)
    found = read_tagged(path, on_error="skip")
    assert list(found) == [(("b",), ("NOUN",))]
    assert [(s.first_line, s.last_line, s.line) for s in found.skipped] == [(1, 1, 1), (5, 8, 7)]
    assert "expected an id" in found.skipped[1].message


def test_broken_lines_of_other_formats(write):
    found = read_tagged(write(b"a X O\n\nb\n\nc \xff O\n\nd\0 Y O\n\ne Y O\n"), "columns", on_error="skip")
    assert [s.words for s in found] == [("a",), ("e",)] and [s.line for s in found.skipped] == [3, 5, 7]
    found = read_tagged(write("a X Y Z\nb X\n\nc X\n\nd Y\n"), on_error="skip", format="columns")
    assert [s.words for s in found] == [("c",), ("d",)]  # a sentence that is skipped says nothing about the others
    found = read_tagged(write("a_X b\nc_Y\n"), "word_tag", on_error="skip")
    assert list(found) == [(("c",), ("Y",))] and found.skipped[0].first_line == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("1\ta", "3\tb"), "line 2: expected the word with id 2, got 3; words are numbered"),
        (("1\ta", "1\tb"), "line 2: expected the word with id 2, got 1"),
        (("2-1\ta", "1\tb"), "line 1: expected an id such as 3, 3-4 or 3.1, got '2-1'"),
        (("0\ta",), "line 1: expected an id such as"),
        (("1\t",), "line 1: expected a form, got an empty column"),
    ],
)
def test_malformed_conllu(write, rows, message):
    with pytest.raises(ValueError, match=message):
        read_tagged(write("".join(row + "\ta\tX\tX" + "\t_" * 5 + "\n" for row in rows)), "conllu")


def test_refusals(write, tmp_path):
    path = write("a X\n")
    for options, message in (
        ({"format": "conll"}, "format: expected one of conllu, conllup, columns, tabs, word_tag, words, got 'conll'"),
        ({"format": "conllu", "column": "pos"}, "column: expected one of lemma, upos"),
        ({"format": "conllu", "column": 1}, "column: expected 2 to 9"),
        ({"format": "columns", "column": "feats"}, "column: expected a number"),
        ({"format": "columns", "column": 0}, "column: expected 1 or more"),
        ({"format": "columns", "column": 2}, "line 1: expected at least 3 columns, got 2"),
        ({"format": "words"}, "line 1: no tag of the word 'a'; the format 'words' has no tags"),
        ({"on_error": "ignore"}, "on_error: expected"),
        ({"tags": "none"}, "tags: expected"),
        ({"format": "word_tag", "separator": " "}, "separator: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            read_tagged(path, **options)
    with pytest.raises(ValueError, match="not clear how it is written; say its format"):
        read_tagged(write("a b c\nd e\n"))
    with pytest.raises(ValueError, match="the file is empty"):
        read_tagged(write("\n\n"))
    with pytest.raises(
        ValueError, match=r"no words in any sentence \(conllu\); the first was skipped because of line 1"
    ):
        read_tagged(write("1\ta\n", "file.conllu"), on_error="skip")
    with pytest.raises(ValueError, match="line 1: a carriage return within the line; convert"):
        read_tagged(write("a X\rb Y\r"), "columns")
    (tmp_path / "damaged.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match="damaged or not a .gz file"):
        read_tagged(tmp_path / "damaged.gz")
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_tagged(tmp_path / "absent.conllu")


# ---- writing


def test_what_is_not_tagged_is_kept(write, tmp_path):
    source = read_tagged(write(CONLLU, "file.conllu"))
    path = tmp_path / "new" / "out.conllu"
    write_tagged(path, source, source=source)
    assert path.read_text() == CONLLU
    write_tagged(path, retagged(source), source=source, probabilities=[[0.5, 0.25], [1.0]])
    changed = CONLLU.replace("AUX", "X").replace("PART", "X").replace("NUM", "X")
    changed = changed.replace("root\t_\t_", "root\t_\tTagProb=0.5000", 1).replace("TagProb=0.1", "TagProb=0.2500")
    assert path.read_text() == changed.replace("root\t_\t_", "root\t_\tTagProb=1.0000")
    write_tagged(path, retagged(source), column="xpos", source=source)
    assert list(read_tagged(path)) == SENTENCES
    assert [s.tags for s in read_tagged(path, column="xpos")] == [("X", "X"), ("X",)]


def test_a_file_may_be_written_over(write):
    path = write("a X O\nb Y O\n\n\nc Z O\n", "file.gz")
    source = read_tagged(path)
    write_tagged(path, retagged(source), source=source, probabilities=[[0.1, 0.2], [1 / 3]])
    assert gzip.decompress(path.read_bytes()).decode() == "a X O 0.1000\nb X O 0.2000\n\nc X O 0.3333\n\n"
    tabs = read_tagged(write("a\tX\tO\n"), "columns", 2)
    write_tagged(path.with_suffix(".txt"), retagged(tabs, "B"), source=tabs)
    assert path.with_suffix(".txt").read_text() == "a\tX\tB\n\n"


def test_a_file_without_words(write, tmp_path):
    for content, name in (("", "a.txt"), ("\n\n", "b.txt"), ("# nothing\n\n", "c.conllu")):
        source = read_tagged(write(content, name), to_tag=True)
        assert len(source) == 0
        write_tagged(tmp_path / "out", [], source=source)
        assert (tmp_path / "out").read_text() == content
    with pytest.raises(ValueError, match="no words in any sentence"):
        read_tagged(write("1\tbroken\n", "d.conllu"), on_error="skip", to_tag=True)


def test_a_probability_goes_with_its_tag(write, tmp_path):
    source = read_tagged(write(CONLLU, "file.conllu"))
    tags = [("AUX", "X"), ("X",)]
    write_tagged(
        tmp_path / "out", [TaggedSentence(s.words, t) for s, t in zip(source, tags, strict=True)], source=source
    )
    changed = CONLLU.replace("PART", "X").replace("NUM", "X").replace("|TagProb=0.1", "")
    assert (tmp_path / "out").read_text() == changed


def test_lines_stay_in_their_place(write, tmp_path):
    source = read_tagged(write("the dog\n\nbarks\n"), tags="optional")
    assert source.format == "words"
    write_tagged(tmp_path / "out", retagged(source), source=source)
    assert (tmp_path / "out").read_text() == "the_X dog_X\n\nbarks_X\n"
    write_tagged(tmp_path / "out", retagged(source), source=source, probabilities=[[0.5, 0.75], [1]])
    assert (tmp_path / "out").read_text() == "the_X_0.5000 dog_X_0.7500\n\nbarks_X_1.0000\n"
    assert [s.tags for s in read_tagged(tmp_path / "out")] == [("X", "X"), ("X",)]


@pytest.mark.parametrize("format", ["conllu", "columns", "tabs", "word_tag"])
def test_every_format_reads_what_it_writes(tmp_path, format):
    sentences = [TaggedSentence(("\u5df4\u9ece", "_", "a_b", "#", "1-2"), ("A", "B|C", "D", "#", "``"))]
    sentences += [TaggedSentence(("\U0001f600", "\u05e9\u05dc\u05d5\u05dd", "e\u0301x", "\u200d"), ("X",) * 4)]
    sentences += [TaggedSentence(("a\u2028b", "\u0085", "1\u00a0000"), ("X", "Y", "NUM"))]
    if format in ("conllu", "tabs"):  # columns between tabs
        sentences += [TaggedSentence(("h\u1ecdc sinh", " a", "b  c"), ("X", "Y", "Z"))]
    write_tagged(tmp_path / "out", sentences, format)
    assert list(read_tagged(tmp_path / "out", format)) == sentences
    write_tagged(tmp_path / "out", sentences, format, probabilities=[[0.5] * len(s.words) for s in sentences])
    assert list(read_tagged(tmp_path / "out", format)) == sentences


def test_from_one_format_to_another(write, tmp_path, capsysbinary):
    source = read_tagged(write(CONLLU))
    write_tagged("-", source, "word_tag", source=source, separator="/")
    assert capsysbinary.readouterr().out == b"ca/AUX n't/PART\n1_000/NUM\n"
    write_tagged(tmp_path / "out", [TaggedSentence(("a b", "c"), ("X", None))], "columns", 2)
    assert (tmp_path / "out").read_text() == "a_b _ X\nc _ _\n\n"
    write_tagged(tmp_path / "out", [])
    assert (tmp_path / "out").read_bytes() == b""


def test_refused_to_be_written(write, tmp_path):
    source, out = read_tagged(write(CONLLU)), tmp_path / "out"
    for sentences, options, message in (
        (source[:1], {"source": source}, "sentences: expected the 2 of"),
        ([source[0], TaggedSentence(("x",), ("X",))], {"source": source}, "number 1 has other words than .* line 11"),
        ([TaggedSentence(("x",), ())], {}, "expected a tag a word, got 1 words and 0 tags in number 0"),
        (source, {"probabilities": [[1.0, 1.0]]}, "probabilities: expected 2 sentences, got 1"),
        (source, {"probabilities": [[1.0], [1.0]]}, "probabilities: expected 2 numbers in sentence 0, got 1"),
        ([TaggedSentence(("x",), ("A_B",))], {"format": "word_tag"}, "tag 'A_B' holds the separator '_'.*--to columns"),
    ):
        with pytest.raises(ValueError, match=message):
            write_tagged(out, sentences, **options)
    assert not out.exists()


def test_long_sentence(tmp_path):
    sentence = TaggedSentence(tuple(f"w{i}" for i in range(5000)), ("X",) * 5000)
    for format in ("conllu", "columns", "word_tag"):
        write_tagged(tmp_path / "out", [sentence], format)
        assert list(read_tagged(tmp_path / "out")) == [sentence]


def test_real_file_is_written_as_it_was(data_folder, tmp_path):
    path = data_folder / "ud_english_ewt" / "en_ewt-ud-dev.conllu"
    source = read_tagged(path)
    write_tagged(tmp_path / "out", source, source=source)
    assert (tmp_path / "out").read_bytes() == path.read_bytes()
    path = data_folder / "conll2000" / "test.txt"
    source = read_tagged(path, column="chunk")
    write_tagged(tmp_path / "out", source, source=source)
    assert (tmp_path / "out").read_bytes() == path.read_bytes()
    assert (len(source), source.num_tokens) == (2012, 47_377)


@pytest.mark.parametrize(
    "text",
    [
        "In 2004 Google grew quickly .\n",
        "\u0930\u093e\u092e \u0918\u0930 \u0917\u092f\u093e\n\u0938\u0940\u0924\u093e \u0935\u0928 \u0906\u0908\n",
        "\u4ed6 \u6765 \u4e86\n\u6211 \u53bb \u4e86\n",
        "3 men in a boat went out to sea at noon .\n",
        "NASA USA\n",
        "the cat sleeps\nthe cat barks\n" * 6,
    ],
)
def test_sentences_to_be_tagged_are_words(write, text):
    """Whatever the script, and however alike the lines; on standard input nothing but CoNLL-U's tabs says otherwise."""
    lines = text.splitlines()
    for path in (write(text, "plain.txt"), write(text, "plain")):
        found = read_tagged(path, tags="optional", to_tag=True)
        assert found.format == "words" and [s.words for s in found] == [tuple(line.split()) for line in lines]
    assert guess_format("<stdin>", ["the_X dog_Y"], tags_optional=True, to_tag=True) == "words"
    assert guess_format("<stdin>", ["1\tthe" + "\t_" * 8], tags_optional=True, to_tag=True) == "conllu"
    clear = "the DT B\ndog NN I\n. . O\n"
    assert read_tagged(write(clear, "clear.txt"), tags="optional", to_tag=True).format == "columns"


def test_no_features_are_a_value(write):
    path = write("1\tdogs\tdog\tNOUN\t_\tNumber=Plur" + "\t_" * 4 + "\n2\tbark\tbark\t_\t_\t_" + "\t_" * 4 + "\n", "a.conllu")
    assert [s.tags for s in read_tagged(path, column="feats")] == [("Number=Plur", "_")]
    assert [s.tags for s in read_tagged(path, tags="optional")] == [("NOUN", None)]
    source = read_tagged(path, column="feats")
    write_tagged(path.with_name("b.conllu"), source, source=source, column="feats")
    assert path.with_name("b.conllu").read_text() == path.read_text() + "\n"


CONLL_2003 = "-DOCSTART- -X- -X- O\n\nAnn NNP I-NP I-PER\nsaw VBD I-VP O\n\n-DOCSTART-\nBob NNP I-NP I-PER\n"


def test_the_beginning_of_a_document_is_no_sentence(write, tmp_path):
    """With a blank line behind it and without, in as many columns as words have and in one; it stays where it stands."""
    for format in (None, "columns"):
        found = read_tagged(write(CONLL_2003, "eng.train"), format, 3)
        assert list(found) == [(("Ann", "saw"), ("I-PER", "O")), (("Bob",), ("I-PER",))]
        assert [found.line_of(0), found.line_of(1), found.num_tokens] == [3, 7, 3]
    write_tagged(tmp_path / "out", [TaggedSentence(s.words, ("X",) * len(s.words)) for s in found], source=found)
    assert (tmp_path / "out").read_text().split("\n") == [
        "-DOCSTART- -X- -X- O", "", "Ann NNP I-NP X", "saw VBD I-VP X", "", "-DOCSTART-", "Bob NNP I-NP X", "", "",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [10, 14, 3])
def test_columns_that_begin_with_a_number_are_not_learned_by_it(write, width):
    """CoNLL-X, CoNLL-2009 and others number their words; a sentence of numbers, or one that begins with 1, is none of these."""
    rows = [["1", "Ann", "NNP"], ["2", "saw", "VBD"]]
    text = "\n".join("\t".join((row + ["_"] * width)[:width]) for row in rows)
    for before in ("", "-DOCSTART- -X- O\n\n" if width == 3 else ""):
        with pytest.raises(ValueError, match="the first column numbers the words.*'conllu'"):
            read_tagged(write(before + text, "x.txt"), "columns")
    for names in ("0 1", "1-2 1 2", "1 1.1 2"):
        with pytest.raises(ValueError, match="the first column numbers the words"):
            read_tagged(write("".join(f"{name} x X\n" for name in names.split()), "x.txt"), "columns")
    assert read_tagged(write("1 CD\n\n3 CD\n2 CD\n", "x.txt"), "columns").num_tokens == 3
    assert read_tagged(write("go VB\nto TO\n\n1 CD\n2 CD\n", "x.txt"), "columns").num_tokens == 4
    if width == 10:
        assert read_tagged(write(text, "x.txt"), column="upos", tags="optional")[0].words == ("Ann", "saw")


KEYS = (
    "1\tAnn\t_\tPROPN\t_\tCase=Nom|Number=Sing\t2\tnsubj\t_\tEntity=B-PER|SpaceAfter=No\n"
    "2\tran\t_\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No|TagProb=0.5000\n\n"
)


def test_a_key_of_misc_or_feats_is_a_column(write, tmp_path):
    path = write(KEYS, "keys.conllu")
    found = read_tagged(path, column="misc:Entity", tags="optional")
    assert found[0].tags == ("B-PER", None) and found.tag_format.column == "misc:Entity"
    assert read_tagged(path, column="feats:Number")[0].tags == ("Sing", "_")  # none is a value, as of all features
    assert read_tagged(path, column="upos,misc:SpaceAfter")[0].tags == ("PROPN\tNo", "VERB\tNo")
    write_tagged(tmp_path / "same.conllu", found, source=found)
    assert (tmp_path / "same.conllu").read_text() == KEYS
    tagged = [TaggedSentence(found[0].words, ("_", "O"))]
    write_tagged(tmp_path / "new.conllu", tagged, source=found, probabilities=[[0.25, 0.75]])
    lines = (tmp_path / "new.conllu").read_text().splitlines()
    assert [line.split("\t")[9] for line in lines[:2]] == [
        "SpaceAfter=No|TagProb=0.2500", "SpaceAfter=No|TagProb=0.7500|Entity=O"
    ]
    features = read_tagged(path, column="feats:Gender")
    write_tagged(tmp_path / "f.conllu", [TaggedSentence(found[0].words, ("Fem", "_"))], source=features)
    assert "\tCase=Nom|Gender=Fem|Number=Sing\t" in (tmp_path / "f.conllu").read_text()
    for column in ("upos:Key", "misc:", "misc:a=b", "misc:Entity,misc", "misc:Entity,misc:Entity", "mics:Entity"):
        with pytest.raises(ValueError, match="column: "):
            read_tagged(path, column=column)
    with pytest.raises(ValueError, match=r"misc:Entity holds no \|"):
        write_tagged(tmp_path / "bad.conllu", [TaggedSentence(found[0].words, ("a|b", "O"))], source=found)


# ------------------------------------------------------------------------------------------------ further forms of columns
PLUS = """# global.columns = ID FORM UPOS NER PARSEME:MWE
# text = in New York
1\tin\tADP\tO\t*
2-3\tNew York\t_\t_\t_
2\tNew\tPROPN\tB-LOC\t1:NE
3\tYork\tPROPN\tI-LOC\t1

1\tyes\tINTJ\tO\t*

"""


@pytest.mark.parametrize(
    ("column", "tags"),
    [
        (None, [("ADP", "PROPN", "PROPN"), ("INTJ",)]), ("ner", [("O", "B-LOC", "I-LOC"), ("O",)]),
        ("parseme:mwe", [("*", "1:NE", "1"), ("*",)]), (3, [("O", "B-LOC", "I-LOC"), ("O",)]),
        ("upos,NER", [("ADP\tO", "PROPN\tB-LOC", "PROPN\tI-LOC"), ("INTJ\tO",)]),
    ],
)  # fmt: skip
def test_conllu_plus_has_the_columns_that_it_names(write, tmp_path, column, tags):
    read = read_tagged(write(PLUS), column=column)
    assert read.format == "conllup" and [s.tags for s in read] == tags
    assert [s.words for s in read] == [("in", "New", "York"), ("yes",)]
    write_tagged(tmp_path / "out", read, source=read)
    assert (tmp_path / "out").read_text() == PLUS
    with pytest.raises(ValueError, match="probabilities: they go to MISC, and the file has no such column"):
        write_tagged(tmp_path / "out", read, source=read, probabilities=[[0.5] * 3, [0.5]])
    with pytest.raises(ValueError, match="'conllup' is written where it was read"):
        write_tagged(tmp_path / "out", list(read), "conllup")


@pytest.mark.parametrize(
    ("text", "column", "error"),
    [
        (PLUS, "xpos", r"line 1: column: expected one of upos, ner, parseme:mwe in this CoNLL-U file"),
        (PLUS, 5, "line 1: column: expected 2 to 4"),
        (PLUS.replace(" UPOS", " TAG"), None, "line 1: column: expected one of tag, ner, .* got 'upos'; say it by column"),
        (PLUS.replace("ID ", ""), None, "line 1: expected ID, FORM and further columns, each once"),
        (PLUS.replace("NER", "UPOS"), None, "line 1: expected ID, FORM and further columns, each once"),
        (PLUS.replace("\tO\t*\n\n", "\tO\n\n"), None, "line 8: expected 5 columns between tabs"),
        (PLUS + PLUS.replace(" NER", " NE"), None, "line 10: other columns than before, which were id form upos ner"),
        (PLUS.partition("\n")[2], None, "line 2: a CoNLL-U Plus file begins with # global.columns"),
    ],
)  # fmt: skip
def test_what_is_no_conllu_plus(write, text, column, error):
    with pytest.raises(ValueError, match=error):
        read_tagged(write(text), "conllup", column)


def test_a_column_that_a_file_lacks_is_named_though_sentences_may_be_skipped(write):
    with pytest.raises(ValueError, match="the first was skipped because of line 1: column: expected one of upos, ner"):
        read_tagged(write(PLUS), column="xpos", on_error="skip")


COLUMNS = "1 the D x\n2 dog N y\n\n1 barks V z\n\n"


def test_words_stand_in_a_column_of_choice(write, tmp_path):
    for column, tags in ((2, [("D", "N"), ("V",)]), (3, [("x", "y"), ("z",)]), (0, [("1", "2"), ("1",)])):
        read = read_tagged(write(COLUMNS), "columns", column, word_column=1)
        assert [s.words for s in read] == [("the", "dog"), ("barks",)] and [s.tags for s in read] == tags
        write_tagged(tmp_path / "out", read, source=read)
        assert (tmp_path / "out").read_text() == COLUMNS
    write_tagged(tmp_path / "out", read, "columns", 3, source=read)  # in another column, the words where they are
    assert (tmp_path / "out").read_text() == "1 the D 1\n2 dog N 2\n\n1 barks V 1\n\n"
    write_tagged(tmp_path / "out", read, "tabs", 0, word_column=1)
    assert (tmp_path / "out").read_text() == "1\tthe\n2\tdog\n\n1\tbarks\n\n"
    assert read_tagged(write(COLUMNS), "columns", 2, word_column=1, word_columns=[3])[0].words[1].columns == {3: "y"}
    for options, error in (
        ({}, "the first column numbers the words.*as by word_column=1"),
        ({"word_column": 1}, r"column: expected another number \(the word is column 1\), got 1"),
        ({"word_column": 1, "column": 9}, "line 1: expected at least 10 columns, got 4"),
        ({"word_column": -1}, "word_column"), ({"format": "conllu", "word_column": 1}, "word_column: of the formats"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=error):
            read_tagged(write(COLUMNS), **({"format": "columns"} | options))


@pytest.mark.parametrize("format", ["words", "word_tag"])
def test_a_format_without_columns_has_none_to_choose(write, format):
    with pytest.raises(ValueError, match=f"column: the format '{format}' has none, got 'xpos'; leave it out"):
        read_tagged(write("the_D\n"), format, "xpos")


def test_columns_between_tabs_alone_hold_spaces(write, tmp_path):
    text = "New York\tLOC\t\nis\tO\tbig\n\n-DOCSTART-\t\t\n\n 1 000\tNUM\t a\n\n"
    read = read_tagged(write(text), "tabs")
    assert list(read) == [TaggedSentence(("New York", "is"), ("LOC", "O")), TaggedSentence((" 1 000",), ("NUM",))]
    write_tagged(tmp_path / "out", read, source=read)
    assert (tmp_path / "out").read_text() == text
    assert read_tagged(write(text), "tabs", 2, tags="optional")[0].tags == (None, "big")
    with pytest.raises(ValueError, match="line 2: expected a word in column 0, got none"):
        read_tagged(write("a\tX\n\tY\n"), "tabs")
