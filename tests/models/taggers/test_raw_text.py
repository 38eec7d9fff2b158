"""Raw text: units, what a splitter learns from a treebank's spaces, CoNLL-U and back, scores as CoNLL 2018 defines them."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from pplseq.cli import main
from pplseq.models.taggers.raw_text.scores import score_raw_text
from pplseq.models.taggers.raw_text.splitter import TextSplitter, units_of
from pplseq.models.taggers.raw_text.treebank import Token, conllu_lines, raw_text, read_paragraphs

TEXTS = [  # tokens end at |, where no space follows at ~, sentences end at ||
    "Mr.|Smith|saw|her~|.|| She|ca+n't|come~|.", "Dogs|bark~|.|| It|is|3.50~|,|he|says~|!",
    "Who|is|Mr.|Dog~|?|| He|is+n't|here~|.",
    "She|saw|a|dog~|.|| Mr.|Dog|barks~|!|| Here|!", "He|does+n't|bark~|,|she|says~|.|| He|saw|it~|.",
]  # fmt: skip


def sentences_of(text):
    found = []
    for part in text.split("||"):
        tokens = []
        for piece in part.strip().split("|"):
            words = tuple(piece.rstrip("~").split("+"))
            tokens.append(Token("".join(words), not piece.endswith("~"), words))
        found.append(tokens)
    return found


PARAGRAPHS = [sentences_of(text) for text in TEXTS * 6]


def plain(sentences):
    return [[token._replace(columns=()) for token in sentence] for sentence in sentences]


@pytest.fixture(scope="module")
def splitter():
    return TextSplitter(max_iterations=60).fit(PARAGRAPHS)


def test_units_hold_all_characters():
    text = "Ann's 3.50€,\n  naïve e\u0301te\u0301 日本語 \t!?"
    units = units_of(text)
    assert "".join(unit.text for unit in units) == "".join(text.split())
    words = ["Ann", "'", "s", "3", ".", "50", "€", ",", "naïve", "e\u0301", "te\u0301", *"日本語!?"]
    assert [unit.text for unit in units] == words
    assert all(text[unit.start :].startswith(unit.text) for unit in units)
    assert [unit.text for unit in units if unit.spaced] == ["3", "naïve", "e\u0301", "日", "!"] and units_of(" \n") == []


def test_a_text_is_split_as_the_treebank_was(splitter):
    for paragraph in PARAGRAPHS[:5]:
        text = raw_text(paragraph)
        found = splitter.split(text)
        assert [[token.text for token in s] for s in found] == [[token.text for token in s] for s in paragraph]
        assert found == [*paragraph[:-1], [*paragraph[-1][:-1], paragraph[-1][-1]._replace(space_after=True)]]
        assert raw_text(found) == text
    # a blank line ends a sentence; other white space is as a space; nothing is nothing
    found = splitter.split("He saw\nMr.  Dog\n \nShe barks.\n")
    assert [[token.text for token in s] for s in found] == [["He", "saw", "Mr.", "Dog"], ["She", "barks", "."]]
    assert splitter.split("") == splitter.split(" \n\n ") == []


def test_long_text_is_split_as_its_parts(splitter, monkeypatch):
    """Pieces are tagged together a few at a time; a paragraph that is longer than a piece goes on behind it."""
    from pplseq.models.taggers.raw_text import splitter as module

    whole = splitter.split("\n\n".join(map(raw_text, PARAGRAPHS[:5])))
    monkeypatch.setattr(module, "AT_A_TIME", 2)
    assert splitter.split("\n\n".join(map(raw_text, PARAGRAPHS[:5]))) == whole
    monkeypatch.setattr(module, "LONGEST", 4)
    cut = splitter.split(raw_text(PARAGRAPHS[0]))
    assert raw_text(cut) == raw_text(PARAGRAPHS[0])


def test_words_of_tokens(splitter):
    assert splitter.words_of_token("Can't") == ("Ca", "n't") and splitter.words_of_token("ISN'T") == ("IS", "N'T")
    assert splitter.words_of_token("haven't") == ("have", "n't")  # by its ending
    assert splitter.words_of_token("n't") == ("n't",) and splitter.words_of_token("dog") == ("dog",)
    # letters whose lower case is longer keep their places
    assert splitter.words_of_token("İİN'T") == ("İİ", "N'T") and len("İ".lower()) == 2


def test_kept_and_loaded(splitter, tmp_path):
    loaded = TextSplitter.load(splitter.save(tmp_path / "splitter"))
    text = raw_text(PARAGRAPHS[0]) + " Haven't"
    assert loaded.split(text) == splitter.split(text)
    with pytest.raises(ValueError, match="no splitter of text; `pplseq tag splitter` makes one"):
        TextSplitter.load(splitter.crf.save(tmp_path / "tagger"))


def test_conllu_and_back(tmp_path):
    lines = []
    for paragraph in PARAGRAPHS[:3]:
        for number, sentence in enumerate(paragraph):
            lines += [*(["# newpar"] if number == 0 else []), *conllu_lines(sentence), ""]
    (tmp_path / "a.conllu").write_text("\n".join(lines) + "\n")
    assert [plain(paragraph) for paragraph in read_paragraphs(tmp_path / "a.conllu")] == PARAGRAPHS[:3]
    (tmp_path / "b.conllu").write_text("1\ta\n\n")
    with pytest.raises(ValueError, match="b.conllu, line 1: expected 10 columns"):
        read_paragraphs(tmp_path / "b.conllu")


def tagged(*tokens):
    """Tokens of words of form/upos."""
    found = []
    for text, *words in tokens:
        pairs = [word.split("/") for word in words]
        columns = tuple((form, upos, "_", f"Case={upos}|Odd=x", *["_"] * 4) for form, upos in pairs)
        found.append(Token(text, True, tuple(form for form, _ in pairs), columns))
    return found


def test_scores_of_hand_made_texts():
    gold = [tagged(("can't", "ca/AUX", "n't/PART"), ("go", "go/VERB")), tagged(("a", "a/X"), ("b", "b/Y"))]
    assert all(score.f1 == 1 for score in score_raw_text(gold, gold).values())
    found = [[*tagged(("ca", "ca/AUX"), ("n't", "n't/X"), ("go", "go/VERB"), ("ab", "ab/X"))]]
    scores = score_raw_text(gold, found)
    # tokens: go; sentences: none of 2; words: ca and n't are found in the multiword token, go as it stands
    assert scores["tokens"] == (1, 4, 4) and scores["sentences"] == (0, 1, 2) and scores["words"] == (3, 4, 5)
    assert scores["upos"] == (2, 4, 5) and scores["ufeats"] == (2, 4, 5) and scores["alltags"] == (2, 4, 5)
    assert scores["lemmas"] == (3, 4, 5)
    other = tagged(("go", "go/VERB"), ("a", "a/X"), ("b", "b/X"))
    mixed = [other[0], other[1]._replace(columns=(("a", "X", "NN", *other[1].columns[0][3:]),)), other[2]]
    scores = score_raw_text([other], [mixed])  # of "a" the second of three columns is wrong
    assert [scores[name].num_correct for name in ("upos", "xpos", "ufeats", "alltags", "lemmas")] == [3, 2, 3, 2, 3]
    crossing = [tagged(("can'tg", "ca/AUX", "n't/PART", "g/X"), ("oab", "oab/X"))]
    assert score_raw_text(gold, crossing)["words"] == (2, 4, 5)
    with pytest.raises(ValueError, match="differs at character 3 .*'n'.*'r'|differs at character 3"):
        score_raw_text(gold, [tagged(("car", "car/X"))])


def pplseq(*arguments, input=None):
    result = CliRunner().invoke(main, [str(a) for a in arguments], input=input, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_raw_text_from_training_to_scores(tmp_path):
    lines = []
    for paragraph in PARAGRAPHS:
        for number, sentence in enumerate(paragraph):
            rows = [line.split("\t") for line in conllu_lines(sentence)]
            for row in rows[1:]:
                row[3] = "PUNCT" if row[1] in ".,!?" else "WORD"
            lines += [*(["# newpar"] if number == 0 else []), *("\t".join(row) for row in rows), ""]
    treebank, text, out = tmp_path / "a.conllu", tmp_path / "a.txt", tmp_path / "out.conllu"
    treebank.write_text("\n".join(lines) + "\n")
    text.write_text("\n\n".join(map(raw_text, PARAGRAPHS)))
    pplseq("train", "tagger", treebank, "--system", "hmm", "--out", tmp_path / "run")
    pplseq("tag", "splitter", treebank, "--out", tmp_path / "splitter")
    pplseq("tag", "run", tmp_path / "run", text, "--splitter", tmp_path / "splitter", "--out", out)
    scores = json.loads(pplseq("tag", "score", treebank, out, "--json"))
    assert scores["tokens"]["f1"] > 0.99 and scores["sentences"]["f1"] > 0.99 and scores["upos"]["f1"] > 0.98
    assert "sentences" in pplseq("tag", "score", treebank, out)
    told = pplseq("tag", "run", tmp_path / "run", "--splitter", tmp_path / "splitter", input="She can't bark.")
    assert told.splitlines()[0] == "# text = She can't bark." and "2-3\tcan't\t_" in told
    assert "4\tbark\t_\tWORD\t" in told and "SpaceAfter=No" in told


def test_a_line_that_is_no_text_is_skipped_by_name(splitter, tmp_path):
    from pplseq.recipes.taggers.tagging import read_raw

    splitter.save(tmp_path / "splitter")
    (tmp_path / "book.txt").write_bytes(b"\xef\xbb\xbfShe barks.\r\n\xff\xfe\nShe barks.\n\0\n")
    saved, told = SimpleNamespace(tagger=None, format="words", column=1), []
    found = read_raw(str(tmp_path / "book.txt"), tmp_path / "splitter", saved, say=told.append)
    assert [sentence.words for sentence in found] == [("She", "barks", ".")] * 2
    assert [bad.line for bad in found.skipped] == [2, 4] and "line 2: byte 0xff" in told[0] and "line 4: a NUL" in told[1]
    with pytest.raises(ValueError, match="line 2: byte 0xff"):
        read_raw(str(tmp_path / "book.txt"), tmp_path / "splitter", saved, "raise")


def test_lines_of_a_raw_text(splitter, tmp_path):
    """A sentence is told by the line of the text on which it begins, as is a line that could not be read."""
    from pplseq.recipes.taggers.tagging import read_raw

    (tmp_path / "a.txt").write_bytes(b"He saw\n  Mr. Dog.  \n\n\xff\n\nShe\nbarks. She can't.\n")
    saved = SimpleNamespace(tagger=None, column=None, format="conllu")
    found = read_raw(str(tmp_path / "a.txt"), splitter.save(tmp_path / "splitter"), saved)
    assert [(sentence.words[0], found.line_of(i)) for i, sentence in enumerate(found)] == [("He", 1), ("She", 6), ("She", 7)]
    assert [bad.first_line for bad in found.skipped] == [4]


def test_words_with_spaces_inside_keep_them(tmp_path):
    """Vietnamese: the file that is written says the same words in its columns as in its text, and can be scored."""
    words = [("h\u1ecdc sinh", "NOUN"), ("\u0111\u1ecdc", "VERB"), ("xe m\u00e1y", "NOUN"), ("1\u00a0000", "NUM")]
    words += [(".", "PUNCT")]
    rows = [
        "\t".join([str(i), form, "_", tag, *["_"] * 5, "SpaceAfter=No" if i == 4 else "_"])
        for i, (form, tag) in enumerate(words, start=1)
    ]
    text = " ".join(form for form, _ in words[:-1]) + "."
    gold = "\n".join([f"# text = {text}", *rows, "", ""])
    (tmp_path / "gold.conllu").write_text(gold)
    (tmp_path / "train.conllu").write_text(gold * 40)
    (tmp_path / "raw.txt").write_text(text.replace("m\u00e1y", "m\u00e1y\n") + "\n")

    pplseq("tag", "splitter", tmp_path / "train.conllu", "--out", tmp_path / "splitter")
    pplseq("train", "tagger", tmp_path / "train.conllu", "--system", "hmm", "--out", tmp_path / "run")
    found = pplseq("tag", "run", tmp_path / "run", tmp_path / "raw.txt", "--splitter", tmp_path / "splitter")
    assert found == gold
    (tmp_path / "found.conllu").write_text(found)
    scores = json.loads(pplseq("tag", "score", tmp_path / "gold.conllu", tmp_path / "found.conllu", "--json"))
    assert scores["words"]["f1"] == scores["upos"]["f1"] == 1
    assert [token.text for token in read_paragraphs(tmp_path / "found.conllu")[0][0]] == [form for form, _ in words]
