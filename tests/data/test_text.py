"""Encoded text: <eos> placement, articles, splits, unknown words, and the counts of real corpora."""

import time

import numpy as np
import pytest

import pplseq.data
from pplseq.data import Text, Vocabulary, load_corpus, read_text
from pplseq.data.vocabulary import UNITS

WIKI = """
 = First title =

 Some text about = things =

 = = Section = =

 More text

 = Second title =

 Its text
"""


def words_of(text):
    return [text.vocabulary.decode(line) for line in text.lines()]


def write_folder(folder, **splits):
    for split, content in splits.items():
        (folder / f"{split}.txt").write_text(content, encoding="utf-8")
    return folder


def test_every_line_ends_in_eos():
    text = Text.from_lines([["a", "b"], [], ["b"]])
    assert words_of(text) == [["a", "b", "<eos>"], ["<eos>"], ["b", "<eos>"]]
    assert text.tokens.dtype == np.int32
    assert text.line_starts.tolist() == [0, 3, 4, 6]
    assert text.lengths.tolist() == [3, 1, 2]
    assert (text.num_tokens, text.num_lines, text.num_articles, text.num_unknown) == (6, 3, 3, 0)


def test_vocabulary_of_the_text_is_that_of_build():
    lines = [["b", "a", "b"], [], ["c", "b", "a"]]
    assert Text.from_lines(lines).vocabulary == Vocabulary.build(lines)


def test_vocabulary_without_eos_gives_bare_lines():
    lines = [["a", "b"], [], ["b"]]
    text = Text.from_lines(lines, Vocabulary.build(lines, add_eos=False))
    assert words_of(text) == lines
    assert text.line_starts.tolist() == [0, 2, 2, 3]


def test_eos_in_the_text_is_refused():
    with pytest.raises(ValueError, match="end-of-line word '<eos>' itself"):
        Text.from_lines([["a", "<eos>"]])
    with pytest.raises(ValueError, match="mine, line 2: the text holds the end-of-line word '<eos>' itself"):
        Text.from_lines([["a"], ["a", "<eos>"]], Vocabulary(("a", "<eos>")), name="mine")


def test_articles_follow_wikitext_titles():
    text = Text.from_lines([line.split() for line in WIKI.split("\n")[:-1]])
    assert text.article_starts.tolist() == [0, 9, 12]
    assert text.vocabulary.decode(list(text.lines())[9]) == ["=", "Second", "title", "=", "<eos>"]


def test_article_starts_can_be_given():
    lines = [["a"], ["b"], ["c"]]
    assert Text.from_lines(lines, article_starts=[0, 2, 3]).num_articles == 2
    for wrong in ([0, 2], [1, 3], [0, 2, 2, 3], []):
        with pytest.raises(ValueError, match="article_starts: expected rising line numbers from 0 to 3"):
            Text.from_lines(lines, article_starts=wrong)


def test_a_string_is_not_a_line():
    with pytest.raises(TypeError, match="line 1 is a string"):
        Text.from_lines(["a b c"])


@pytest.mark.parametrize("name", ["returns.csv", "RETURNS.TSV.gz", "returns.parquet"])
def test_a_table_is_no_corpus(tmp_path, name):
    for place in (tmp_path / name, tmp_path / "folder" / f"train-{name}"):
        place.parent.mkdir(exist_ok=True)
        place.write_text("a,b\n1,2\n3,4\n")
        with pytest.raises(ValueError, match=rf"{name} is a table, expected text.*pandas.read_.*pplseq train iohmm"):
            load_corpus(place if place.parent == tmp_path else place.parent)
    (tmp_path / "returns.csv.txt").write_text("the cat\n" * 30)
    assert "cat" in load_corpus(tmp_path / "returns.csv.txt").vocabulary.words


def test_folder(tmp_path):
    write_folder(tmp_path, train="a b <unk>\nb\n", valid="b zebra\n", test="a\n\n")
    corpus = load_corpus(tmp_path)
    assert corpus.name == tmp_path.name
    assert set(corpus.vocabulary) == {"a", "b", "<unk>", "<eos>"}
    assert words_of(corpus.valid) == [["b", "<unk>", "<eos>"]]
    assert corpus.valid.num_unknown == 1
    assert words_of(corpus.test) == [["a", "<eos>"], ["<eos>"]]


def test_folder_with_training_text_only(tmp_path):
    corpus = load_corpus(write_folder(tmp_path, train="a b\n"))
    assert corpus.valid is None and corpus.test is None


def test_vocabulary_options(tmp_path):
    write_folder(tmp_path, train="A a a b c\n", valid="d\n")
    corpus = load_corpus(tmp_path, lower=True, min_count=2, unknown_word="UNK")
    assert corpus.vocabulary.words == ("a", "UNK", "<eos>")
    assert words_of(corpus.valid) == [["UNK", "<eos>"]]
    assert len(load_corpus(tmp_path, max_vocabulary=3).vocabulary) == 3
    given = Vocabulary(("b", "<unk>", "<eos>"))
    assert load_corpus(tmp_path, vocabulary=given).vocabulary is given


def test_unknown_word_names_file_and_line(tmp_path):
    write_folder(tmp_path, train="a b\n", valid="a\n\nb a zebra\n")
    with pytest.raises(ValueError, match=r"valid\.txt, line 3: the word 'zebra' is not in the vocabulary.*min_count=2"):
        load_corpus(tmp_path, min_count=1)
    assert words_of(load_corpus(tmp_path).valid)[2] == ["<unk>", "<unk>", "<unk>", "<eos>"]


def test_unknown_word_of_a_split_file_names_its_line_there(tmp_path):
    path = tmp_path / "all.txt"
    path.write_text("".join(f"w{i} the\n" for i in range(40)), encoding="utf-8")
    with pytest.raises(ValueError) as error:
        load_corpus(path, min_count=1)
    message = str(error.value)
    word, line = message.split("'")[1], int(message.split("line ")[1].split(":")[0])
    assert word == f"w{line - 1}"


def test_one_file_is_split_by_seed(tmp_path):
    path = tmp_path / "all.txt"
    path.write_text("".join(f"{i % 7} {i % 3} <unk>\n" for i in range(1000)), encoding="utf-8")
    corpus, again, other = (load_corpus(path, test_fraction=0.1, seed=seed) for seed in (0, 0, 1))
    sizes = [text.num_lines for text in (corpus.train, corpus.valid, corpus.test)]
    assert sizes == [850, 50, 100]
    assert np.array_equal(corpus.valid.tokens, again.valid.tokens)
    assert not np.array_equal(corpus.valid.tokens, other.valid.tokens)
    no_test = load_corpus(path, test_fraction=0)
    assert no_test.test is None and no_test.train.num_lines == 950


def test_split_loses_no_line_and_keeps_order():
    lines = [[f"w{i}"] for i in range(100)]
    vocabulary = Text.from_lines(lines).vocabulary
    parts = pplseq.data.text.CodedLines(lines, "lines").split(0.2, 0.1, seed=3)
    texts = [Text.from_coded(part, vocabulary, "part") for part in parts.values()]
    found = [[int(vocabulary.words[line[0]][1:]) for line in text.lines()] for text in texts]
    assert sorted(sum(found, [])) == list(range(100))
    assert all(numbers == sorted(numbers) for numbers in found)


def test_articles_are_split_whole(tmp_path):
    path = tmp_path / "wiki.txt"
    path.write_text("".join(f"\n = T{i} = \n\n x y z\n x\n" for i in range(20)), encoding="utf-8")
    corpus = load_corpus(path, min_count=2, valid_fraction=0.1, test_fraction=0.1)
    assert [text.num_articles for text in (corpus.train, corpus.valid, corpus.test)] == [16, 2, 2]
    assert 9 <= corpus.valid.num_lines <= 11  # the blank line before a title belongs to the article before


@pytest.mark.parametrize(
    ("content", "message"), [("word\n", "one word"), ("a b c\n", "1 lines or articles"), ("a b\nc\n\n", "2 lines or")]
)
def test_too_short_to_train_on(tmp_path, content, message):
    path = tmp_path / "short.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_corpus(path)
    assert read_text(path).num_lines >= 1  # enough to evaluate on


def test_one_word_training_file_in_a_folder(tmp_path):
    with pytest.raises(ValueError, match=r"train\.txt: the training text has one word \('word'\)"):
        load_corpus(write_folder(tmp_path, train="word\n", valid="word\n"))


@pytest.mark.parametrize("options", [{"valid_fraction": -0.1}, {"test_fraction": 1.0}])
def test_fractions_are_checked(tmp_path, options):
    path = tmp_path / "a.txt"
    path.write_text("a b\n" * 10, encoding="utf-8")
    with pytest.raises(ValueError, match="_fraction: expected a number from 0 to below 1"):
        load_corpus(path, **options)
    with pytest.raises(ValueError, match="leaves nothing to train on"):
        load_corpus(path, valid_fraction=0.5, test_fraction=0.5)


def test_unknown_builtin():
    with pytest.raises(ValueError, match="unknown corpus 'builtin:pyhton'; expected builtin:python or"):
        load_corpus("builtin:pyhton")


def test_names_of_the_package():
    assert set(pplseq.data.__all__) <= set(dir(pplseq.data))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pplseq.data.nothing  # noqa: B018


def test_penn_treebank_counts(data_folder):
    started = time.perf_counter()
    corpus = load_corpus(data_folder / "ptb")
    assert time.perf_counter() - started < 3  # 0.2 s alone on one core
    assert [text.num_tokens for text in (corpus.train, corpus.valid, corpus.test)] == [929_589, 73_760, 82_430]
    assert len(corpus.vocabulary) == 10_000
    assert corpus.train.num_articles == corpus.train.num_lines == 42_068


def test_wikitext2_counts(data_folder):
    corpus = load_corpus(data_folder / "wikitext2")
    assert (corpus.train.num_tokens, corpus.valid.num_tokens, corpus.test) == (2_088_628, 217_646, None)
    assert len(corpus.vocabulary) == 33_278
    assert (corpus.train.num_articles, corpus.valid.num_articles) == (600, 60)
    title = corpus.vocabulary.decode(corpus.train.tokens[corpus.train.line_starts[corpus.train.article_starts[:-1]]])
    assert title[1:] == ["="] * 599


def test_new_words_have_a_probability_where_no_word_is_rare(tmp_path):
    """The last occurrence of the rarest word of the training text is read as unknown."""
    lines = ["up down up", "down left up", "left up down"] * 4  # left: 8 times, the others 12 and 16
    for name, text in (("train", lines), ("valid", lines[:3]), ("test", ["up new down"])):
        (tmp_path / f"{name}.txt").write_text("\n".join(text) + "\n")
    for options in ({}, {"min_count": 2}):
        corpus = load_corpus(tmp_path, **options)
        unknown, left = corpus.vocabulary.unknown_id, corpus.vocabulary.index["left"]
        train = corpus.train.tokens
        assert corpus.train.num_unknown == 1 and np.count_nonzero(train == left) == 7
        assert np.flatnonzero(train == unknown)[0] == len(train) - 4  # "left" of the last line
        assert corpus.valid.num_unknown == 0 and corpus.test.num_unknown == 1
    with pytest.raises(ValueError, match="min_count=2"):
        load_corpus(tmp_path, min_count=1)
    (tmp_path / "test.txt").unlink()
    assert load_corpus(tmp_path).vocabulary.unknown_id is None  # nothing new
    given = load_corpus(tmp_path, vocabulary=corpus.vocabulary)
    assert given.train.num_unknown == 0  # read with the words of another text, it is as it is


def test_a_line_that_holds_nearly_all_words_cannot_be_split(tmp_path):
    (tmp_path / "one.txt").write_text(" ".join(f"w{i % 50}" for i in range(2000)) + "\n" + "w1 w2 w3\n" * 9)
    with pytest.raises(ValueError, match="10 lines.* do not make 3 texts, as one of them has 2,000 of the 2,027 words"):
        load_corpus(tmp_path / "one.txt")
    whole = load_corpus(tmp_path / "one.txt", valid_fraction=0, test_fraction=0)
    assert whole.train.num_lines == 10


UNSPACED = "".join(f"今日は天気が{word}ですね明日も\n" for word in ("いい", "悪い", "寒い") * 4)


def test_units_of_a_corpus(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(UNSPACED, encoding="utf-8")
    with pytest.warns(UserWarning, match="one word, of 14 letters on average.*units='characters'"):
        load_corpus(path)
    for units, size in (("characters", 15), ("bytes", 43)):
        corpus = load_corpus(path, units=units)
        vocabulary = corpus.vocabulary
        assert vocabulary.units == units and set(corpus.train.lengths) == {size}
        lines = [vocabulary.join(vocabulary.decode(line[:-1])) for line in corpus.train.lines()]
        assert set(lines) <= set(UNSPACED.split("\n"))
        assert read_text(path, vocabulary).num_tokens == 12 * size  # in the units of the vocabulary
        with pytest.raises(ValueError, match=f"units: the vocabulary is of {units}, got 'words'"):
            load_corpus(path, vocabulary=vocabulary, units="words")
    generated = load_corpus("builtin:generated", units="characters", lower=True)
    assert "␠" in generated.vocabulary and max(map(len, generated.vocabulary.words)) == len("<eos>")


def test_articles_in_any_units(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n = One = \n\na b\n =x= \n\n = Two = \n\nc d\n", encoding="utf-8")
    whole = {units: load_corpus(path, units=units, valid_fraction=0, test_fraction=0).train for units in UNITS}
    assert {text.article_starts.tolist() == [0, 6, 9] for text in whole.values()} == {True}
