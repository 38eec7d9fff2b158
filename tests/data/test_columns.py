"""Columns of words and tags: what is read, and what is refused with the line's number."""

import gzip

import pytest

from pplseq.data import read_columns, read_conllu
from pplseq.data.columns import PTB_TO_UNIVERSAL, UNIVERSAL_TAGS, to_universal

CONLL2000 = "The DT B-NP\ndog NN I-NP\nbarks VBZ B-VP\n\n\n. . O\n   \n"
CONLLU = """# sent_id = 1
1-2\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
1\tca\tcan\tAUX\tMD\t_\t0\troot\t_\t_
2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_
2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

# sent_id = 2
1\t1 000\t1000\tNUM\tCD\t_\t0\troot\t_\t_
"""


@pytest.fixture
def write(tmp_path):
    def write(content, name="file.txt"):
        path = tmp_path / name
        data = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


@pytest.mark.parametrize("name", ["file.txt", "file.gz"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_conll2000(write, name, ending):
    path = write(CONLL2000.replace("\n", ending), name)
    assert list(read_columns(path)) == [(("The", "dog", "barks"), ("DT", "NN", "VBZ")), ((".",), (".",))]
    assert [s.tags for s in read_columns(path, tag_column=2)] == [("B-NP", "I-NP", "B-VP"), ("O",)]


def test_last_sentence_without_a_blank_line_and_byte_order_mark(write):
    path = write("\ufeffa X\n\nb Y")
    assert list(read_columns(path)) == [(("a",), ("X",)), (("b",), ("Y",))]


def test_conllu_has_neither_multiword_tokens_nor_empty_nodes(write):
    path = write(CONLLU)
    assert list(read_conllu(path)) == [(("ca", "n't"), ("AUX", "PART")), (("1 000",), ("NUM",))]
    assert [s.tags for s in read_conllu(path, tag="xpos")] == [("MD", "RB"), ("CD",)]


def test_refusals(write, tmp_path):
    with pytest.raises(ValueError, match=r"line 2: expected at least 2 columns, got 1: 'b'"):
        list(read_columns(write("a X\nb\n")))
    with pytest.raises(ValueError, match=r"line 3: expected 3 columns as in the lines before, got 2"):
        list(read_columns(write("a X O\n\nb Y\n")))
    with pytest.raises(ValueError, match=r"line 2: expected 10 columns"):
        list(read_conllu(write("# text\n1 a X\n")))
    with pytest.raises(ValueError, match=r"line 1: expected an id such as 3, 3-4 or 3.1, got 'one'"):
        list(read_conllu(write("one" + "\t_" * 9)))
    with pytest.raises(ValueError, match=r"line 2: byte 0xff is not UTF-8"):
        list(read_columns(write(b"a X\n\xff Y\n")))
    for read, content in ((read_columns, "\n\n"), (read_conllu, "# only a comment\n")):
        with pytest.raises(ValueError, match="no tokens"):
            list(read(write(content)))
    with pytest.raises(ValueError, match="got a folder"):
        list(read_columns(tmp_path))
    with pytest.raises(FileNotFoundError, match="no such file"):
        list(read_columns(tmp_path / "absent.txt"))
    with pytest.raises(ValueError, match="tag_column"):
        list(read_columns(write("a X\n"), tag_column=0))
    with pytest.raises(ValueError, match="tag: expected 'upos' or 'xpos'"):
        list(read_conllu(write(CONLLU), tag="lemma"))


def test_universal_tags():
    assert to_universal(["NNPS", "TO", "WRB", "$", "EX", "NN|JJ"]) == ["NOUN", "PRT", "ADV", ".", "DET", "NOUN"]
    assert set(PTB_TO_UNIVERSAL.values()) == set(UNIVERSAL_TAGS) and len(UNIVERSAL_TAGS) == 12
    with pytest.raises(ValueError, match="'NOM' is no Penn Treebank tag"):
        to_universal(["NN", "NOM"])


def test_real_files(data_folder):
    sentences = list(read_columns(data_folder / "conll2000" / "train.txt"))
    assert (len(sentences), sum(len(s.words) for s in sentences)) == (8936, 211_727)
    assert set(to_universal(tag for s in sentences for tag in s.tags)) == set(UNIVERSAL_TAGS)
    sentences = list(read_conllu(data_folder / "ud_english_ewt" / "en_ewt-ud-test.conllu", tag="xpos"))
    assert sum(len(s.words) for s in sentences) == 25_094
    assert set(to_universal(tag for s in sentences for tag in s.tags)) == set(UNIVERSAL_TAGS)
