"""`pplseq query` under constraints: continue and infill."""

import json

import pytest
import torch
from click.testing import CliRunner

from pplseq import HMM, Constraint, Vocabulary
from pplseq.cli import main

WORDS = ("<eos>", "the", "stock", "market", "fell", "rose", "<unk>", "today")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.manual_seed(1)
    model = HMM(3, num_words=8)
    model.vocabulary, model.is_fitted = Vocabulary(WORDS), True
    return model.save(tmp_path_factory.mktemp("model") / "hmm"), model


def ask(run, *arguments, input, code=0):
    result = CliRunner().invoke(main, ["query", str(run[0]), *map(str, arguments)], input=input, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()] if result.stdout.startswith("{") else result.output


def test_continuations_satisfy_and_say_how_probable_it_was(run):
    options = ["--containing", "stock market", "--not", "fell", "--length", "5-7", "--num-samples", 8, "--no-unknown"]
    found = ask(run, "continue", *options, input="the\n\nthe zebra\n")
    wanted = Constraint.containing("stock market") & Constraint.excluding("fell", "<unk>")
    for answer, prefix in zip(found, ("the", None, "the <unk>"), strict=True):
        chain = run[1].constrained(wanted, prefix=prefix, length=(5, 7))
        assert answer["constraint_log_prob"] == pytest.approx(float(chain.log_prob()), rel=1e-5)
        assert len(answer["continuations"]) == 8
        for entry in answer["continuations"]:
            *words, last = entry["words"]
            assert last == "<eos>" and 5 <= len(words) <= 7 and wanted.accepts(words) and entry["log_prob"] < 0
    assert found[2]["unknown"] == [1]


def test_length_alone_other_constraints_and_the_whole_text(run):
    (answer,) = ask(run, "continue", "--length", "4-4", input="the")
    assert len(answer["continuations"][0]["words"]) == 5
    options = ["--in-order", "rose", "--in-order", "fell", "--containing-any", "today", "--containing-any", "market"]
    options += ["--matching", "the <noun> .*", "--word-class", "noun=stock,market", "--whole", "--length", 6]
    (answer,) = ask(run, "continue", *options, "--num-samples", 5, input="the stock")
    for entry in answer["continuations"]:
        words = entry["words"]
        assert words.index("rose") < len(words) - 1 - words[::-1].index("fell") and {"today", "market"} & set(words)
    (plain,) = ask(run, "continue", "--length", 6, "--num-samples", 5, input="the stock")
    assert "constraint_log_prob" not in plain


def test_alternatives_at_a_gap_are_a_pattern(run):
    result = CliRunner().invoke(main, ["query", str(run[0]), "infill"], input='{"words": ["the", ["stock", "market"], "fell"]}')
    assert result.exit_code == 1 and "a gap takes no list of alternatives" in json.loads(result.stdout)["error"]
    options = ["--whole", "--matching", "the (stock | market) fell", "--length", 2, "--num-samples", 9]
    (answer,) = ask(run, "continue", *options, input="the")
    assert {entry["words"][0] for entry in answer["continuations"]} <= {"stock", "market"}


def test_gaps_of_unknown_length(run):
    options = ["--gap-length", "1-3", "--containing", "stock", "--num-samples", 6]
    (answer,) = ask(run, "infill", *options, input="the _ market _ today")
    for text in (*answer["samples"], answer["filled"]):
        assert text[0] == "the" and text[-2:] == ["today", "<eos>"] and "market" in text[2:-3] and "stock" in text
        assert 6 <= len(text) <= 10
    assert set(answer["lengths"]) <= {str(n) for n in range(6, 11)} and sum(answer["lengths"].values()) == pytest.approx(1)
    assert "gaps" not in answer


def test_words_that_are_unknown_may_be_given_where_none_is_to_be_proposed(run):
    options = ["--containing", "the", "--no-unknown", "--no-eos"]
    (filled,) = ask(run, "infill", *options, "--gap-length", "1-2", "--num-samples", 20, input="zebra _\n")
    (continued,) = ask(run, "continue", *options[:-1], "--whole", "--length", "1-2", "--num-samples", 20, input="zebra\n")
    said = [words[1:] for words in (filled["filled"], *filled["samples"])]
    said += [entry["words"] for entry in continued["continuations"]]
    assert filled["filled"][0] == "<unk>" and len(said) == 41
    assert all("<unk>" not in words and "the" in words for words in said)
    chain = run[1].constrained(Constraint.containing("the") & Constraint.excluding("<unk>"), prefix="<unk>", length=(1, 2))
    assert continued["constraint_log_prob"] == pytest.approx(float(chain.log_prob()), rel=1e-5)


def test_gaps_of_one_word_are_those_without_a_constraint(run):
    (plain,) = ask(run, "infill", "--top", 8, input="the _ _ rose")
    (same,) = ask(run, "infill", "--top", 8, "--matching", ".*", input="the _ _ rose")
    for ours, theirs in zip(same["gaps"], plain["gaps"], strict=True):
        own = {entry["word"]: entry["prob"] for entry in theirs["words"]}
        assert {e["word"] for e in ours["words"]} == set(own) == set(WORDS) - {"<eos>"}  # which ends a text, and fills no gap
        assert ours["position"] == theirs["position"]
    for options in ((), ("--no-unknown",)):
        every = "infill", "--top", 8, *options
        plain, same = (ask(run, *every, *more, input="the _ rose")[0]["gaps"] for more in ((), ("--matching", ".*")))
        own = {entry["word"]: pytest.approx(entry["prob"], rel=1e-4) for entry in plain[0]["words"]}
        assert {entry["word"]: entry["prob"] for entry in same[0]["words"]} == own
    (drawn,) = ask(run, "infill", "--num-samples", 200, input="the _ _ rose")
    assert all("<eos>" not in sample for sample in drawn["samples"])
    (open_end,) = ask(run, "infill", "--top", 8, "--no-eos", input="the _ rose")
    assert {entry["word"] for entry in open_end["gaps"][0]["words"]} == set(WORDS)
    (fell,) = ask(run, "infill", "--containing", "fell", "--not", "stock", input="the _ rose")
    assert fell["gaps"] == [{"position": 1, "words": [{"word": "fell", "prob": pytest.approx(1.0)}]}]
    assert fell["filled"] == ["the", "fell", "rose", "<eos>"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--containing", "stok"], "'stok' of containing 'stok' is not in the vocabulary (8 words). Did you mean 'stock'?"),
        (["--containing", "fell", "--not", "fell"], "containing 'fell' and not containing 'fell': no text of the model's"),
        (["--containing", "stock market", "--length", "1-1"], "takes 2 words or more, and the length allows 1"),
        (["--containing", "fell", "--temperature", "0.5"], "temperature: texts under a constraint are drawn from the model"),
    ],
)
def test_what_cannot_be_is_an_error_of_its_line(run, options, message):
    (answer,) = ask(run, "continue", *options, input="the", code=1)
    assert message in answer["error"]


def test_options_that_cannot_be_read(run):
    for options, message in (
        (["--length", "7-5"], "length must go from a smaller number to a larger one, like 5-7, got '7-5'"),
        (["--length", "x"], "length must be a whole number, or two like 12-20, got 'x'"),
        (["--word-class", "x"], "--word-class must be NAME=WORD,WORD, got 'x'"),
        (["--matching", "(the"], "a parenthesis that is not closed"),
        (["--containing", "a b c d e", "--max-states", "3"], "needs an automaton of more than 3 states; raise max_states"),
    ):
        result = CliRunner().invoke(main, ["query", str(run[0]), "continue", *options], input="the")
        assert result.exit_code != 0 and message in result.output, result.output
    result = CliRunner().invoke(main, ["query", str(run[0]), "infill", "--containing", "the"], input="the stock")
    assert result.exit_code == 1 and "words must have a gap to fill" in result.output
