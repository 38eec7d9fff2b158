"""Several columns at once, and lemmas: rules, guesses, one model from training to CoNLL-U."""

import json

import pytest
from click.testing import CliRunner

from pplseq.cli import main
from pplseq.data.columns import TaggedSentence
from pplseq.data.tag_formats import ConlluFormat, Line, LineError
from pplseq.data.tagged import read_tagged, write_tagged
from pplseq.models.taggers.morphology.lemmas import LemmaGuesser, LemmaRule, lemma_rule
from pplseq.models.taggers.morphology.tagger import MorphologyTagger

COLUMNS = "upos,feats,lemma"
VERBS, NOUNS = ("walk", "bark", "sing", "jump", "look", "talk"), ("dog", "cat", "tree", "house", "bird", "stone")


def row(word, upos, lemma, feats="_"):
    return f"{word}\t{lemma}\t{upos}\t_\t{feats}\t_\t_\t_\t_"


def conllu(number=30):
    """the dogs walked . / a cat barks ."""
    blocks = []
    for i in range(number):
        noun, verb = NOUNS[i % 5], VERBS[(i // 3) % 5]
        several = i % 2
        rows = [
            row(("a", "the")[several], "DET", ("a", "the")[several]),
            row(noun + "s" * several, "NOUN", noun, f"Number={'Plur' if several else 'Sing'}"),
            row(verb + ("ed" if several else "s"), "VERB", verb, f"Tense={'Past' if several else 'Pres'}"),
            row(".", "PUNCT", "."),
        ]
        blocks.append("\n".join(f"{k}\t{line}" for k, line in enumerate(rows, 1)) + "\n")
    return "\n".join(blocks) + "\n"


@pytest.mark.parametrize(
    ("word", "lemma", "rule"),
    [
        ("dogs", "dog", LemmaRule((0, 1))),
        ("Dogs", "dog", LemmaRule((0, 1), case="lower")),
        ("tries", "try", LemmaRule((0, 3), back="y")),
        ("gesehen", "sehen", LemmaRule((2, 0))),
        ("PARIS", "Paris", LemmaRule(case="title")),
        ("went", "go", LemmaRule(whole="go")),
        ("n't", "not", None),
        ("İ", "i", None),  # changes its length in lower case
        ("a", "_", LemmaRule(whole="_")),
    ],
)
def test_rules_give_the_lemma_back(word, lemma, rule):
    found = lemma_rule(word, lemma)
    assert found(word) == lemma
    assert rule is None or found == rule


def test_rules_that_do_not_fit():
    assert LemmaRule((0, 3), back="y")("dry") is None
    assert LemmaRule((2, 0))("gehoben") == "hoben"


def test_guesses_by_hand():
    tokens = [("dogs", "N", "dog"), ("cats", "N", "cat"), ("cats", "N", "cat"), ("bus", "N", "bus"), ("is", "V", "be")]
    guesser = LemmaGuesser([*tokens, ("cats", "N", "cats")], theta=0.5)
    assert guesser("cats", "N") == "cat" and guesser("is", "V") == "be"
    # words in s are two to one without it, those in us the other way
    assert guesser("hats", "N") == "hat" and guesser("virus", "N") == "virus"
    # a lemma that has nothing to do with its word is no rule; nor is there one for a tag that was not seen
    assert guesser("his", "V") == "his" and guesser("hats", "X") == "hats"
    assert LemmaGuesser.from_state(json.loads(json.dumps(guesser.state())))("virus", "N") == "virus"


def test_several_columns_of_a_file(tmp_path):
    path = tmp_path / "text.conllu"
    path.write_text(conllu(2))
    text = read_tagged(path, column=COLUMNS)
    assert text[1].tags[1] == "NOUN\tNumber=Plur\tcat"
    tags = [tuple(tag.replace("cat", "Cat") for tag in s.tags) for s in text]
    write_tagged(tmp_path / "out.conllu", [TaggedSentence(s.words, t) for s, t in zip(text, tags, strict=True)], source=text)
    assert (tmp_path / "out.conllu").read_text() == conllu(2).replace("\tcat\t", "\tCat\t")
    untagged = ConlluFormat("upos,lemma").parse([Line(1, "1\tword\tlemma\t_" + "\t_" * 6)])
    assert untagged.tags == (None,)
    with pytest.raises(LineError, match="expected a lemma"):
        ConlluFormat("upos,lemma").parse([Line(1, "1\tword\t\tX" + "\t_" * 6)])
    with pytest.raises(ValueError, match="with tabs between"):
        ConlluFormat("upos,lemma").render(("a",), ("X",))
    for column, message in (("upos,upos", "each column once"), ("upos,word", "several with commas")):
        with pytest.raises(ValueError, match=message):
            ConlluFormat(column)


def test_what_is_refused(tmp_path):
    with pytest.raises(ValueError, match="lemma as the last"):
        MorphologyTagger("lemma,upos")
    with pytest.raises(ValueError, match="expected 4 columns with tabs between"):
        MorphologyTagger().fit([TaggedSentence(("a",), ("X",))])


def test_from_training_to_conllu(tmp_path):
    text, run, new = tmp_path / "train.conllu", tmp_path / "run", tmp_path / "new.conllu"
    text.write_text(conllu())

    def pplseq(*arguments, code=0, input=None):
        result = CliRunner().invoke(main, [str(a) for a in arguments], input=input, catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    options = ["--system", "morphology", "--column", COLUMNS, "--set", "num_substates=1", "--out", run]
    pplseq("train", "tagger", text, *options)
    # words that training has not: the ending tells
    written = pplseq("tag", "run", run, input="the stones talked .\n").stdout
    rows = [line.split("\t") for line in written.splitlines() if line]
    assert [line[2] for line in rows] == ["the", "stone", "talk", "."]
    assert [line[3] for line in rows] == ["DET", "NOUN", "VERB", "PUNCT"]
    assert [line[5] for line in rows] == ["_", "Number=Plur", "Tense=Past", "_"]
    new.write_text(pplseq("tag", "run", run, text).stdout)
    found = json.loads(pplseq("tag", "score", text, new, "--json").stdout)
    assert all(found[name]["f1"] == 1.0 for name in ("upos", "ufeats", "lemmas"))
    scores = json.loads(pplseq("tag", "eval", run, text, "--json").stdout)
    assert {name: part["all"]["accuracy"] for name, part in scores["columns"].items()} == {"upos": 1, "feats": 1, "lemma": 1}
    assert "lemma" in pplseq("tag", "eval", run, text).stdout
