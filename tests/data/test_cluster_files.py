"""Files of word clusters: there and back, missing words, damage."""


import numpy as np
import pytest

from pplseq.data.clustering import (
    brown_clusters,
    read_paths,
    uniform_clusters,
    write_paths,
)
from pplseq.data.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("the", "cat", "<eos>", "sat", "naïve"))


def test_paths_round_trip(tmp_path):
    tokens = np.array([0, 1, 3, 2, 0, 4, 1, 3, 2, 0, 1, 2])
    clusters = brown_clusters(tokens, 5, 3, own_block=[2])
    write_paths(tmp_path / "paths", clusters, VOCABULARY)
    again = read_paths(tmp_path / "paths", VOCABULARY)
    assert again.paths == clusters.paths
    assert again.block_of_word.tolist() == clusters.block_of_word.tolist()
    assert again.counts.tolist() == clusters.counts.tolist()
    assert again.num_ignored == 0 and again.mutual_information is None
    write_paths(tmp_path / "twice", again, VOCABULARY)
    assert (tmp_path / "twice").read_bytes() == (tmp_path / "paths").read_bytes()


def write(folder, text):
    (folder / "paths").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "paths"


FIVE = "0\tthe\t9\n10\tcat\t2\n10\tsat\t3\n11\tnaïve\t1\n11\t<eos>\t4\n"


def test_format_of_the_file(tmp_path):
    clusters = read_paths(write(tmp_path, FIVE), VOCABULARY)
    write_paths(tmp_path / "out", clusters, VOCABULARY)
    assert (tmp_path / "out").read_text(encoding="utf-8") == (
        "0\tthe\t9\n10\tsat\t3\n10\tcat\t2\n11\t<eos>\t4\n11\tnaïve\t1\n"
    )
    assert read_paths(write(tmp_path, FIVE.replace("\n", "\r\n")), VOCABULARY).paths == clusters.paths


def test_words_of_the_file_outside_the_vocabulary_are_counted(tmp_path):
    clusters = read_paths(write(tmp_path, FIVE + "110\tdog\t4\n111\tmat\t4\n"), VOCABULARY)
    assert clusters.num_ignored == 2 and clusters.num_blocks == 3


def test_missing_words(tmp_path):
    path = write(tmp_path, "0\tthe\t9\n10\tcat\t2\n11\tsat\t3\n")
    with pytest.raises(ValueError, match=r"2 of the 5 words .* '<eos>', 'naïve'; .*missing='own'"):
        read_paths(path, VOCABULARY)
    own = read_paths(path, VOCABULARY, missing="own")
    assert own.paths == ("00", "010", "10", "011", "11")
    assert own.num_blocks == 5
    rarest = read_paths(path, VOCABULARY, missing="rarest")
    assert rarest.paths == ("0", "10", "10", "11", "10")
    assert rarest.counts.tolist() == [9, 2, 0, 3, 0]
    with pytest.raises(ValueError, match="missing: expected 'error', 'own' or 'rarest', got 'skip'"):
        read_paths(path, VOCABULARY, missing="skip")


@pytest.mark.parametrize(
    "text, message",
    [
        ("0\tthe\t9\n0 cat 2\n", r"line 2: expected bitpath<TAB>word<TAB>count, got '0 cat 2'"),
        ("0\tthe\t9\n\n", r"line 2: expected bitpath"),
        ("0\t\t9\n", r"line 1: expected bitpath"),
        ("0\tthe\t9\n02\tcat\t9\n", r"line 2: expected a path of the digits 0 and 1, got '02'"),
        ("0\tthe\tmany\n", r"line 1: expected a count, a whole number, after the word 'the', got 'many'"),
        ("0\tthe\t-1\n", r"line 1: expected a count"),
        ("0\tthe\t9\n1\tcat\t2\n1\tthe\t9\n", r"line 3: the word 'the' stands already in line 1"),
        (b"0\tthe\t9\n\xff\tcat\t2\n", r"line 2: byte 0 of the line is not UTF-8"),
        ("0\tdog\t9\n", r"none of the 1 words of the file is in the vocabulary \(5 words\)"),
        ("", r"the file is empty"),
    ],
)
def test_malformed_files_name_the_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_paths(write(tmp_path, text), VOCABULARY)


def test_writing_with_another_vocabulary(tmp_path):
    with pytest.raises(ValueError, match="each of the 5 words of the vocabulary, got 4"):
        write_paths(tmp_path / "paths", uniform_clusters(4, 2), VOCABULARY)
