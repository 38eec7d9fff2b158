"""Whatever stands in a line, it has its answer, and every answer is a line of JSON that every reader takes.

The number of lines is an option of the slow test: PPLSEQ_LINES=100000.
"""

import json
import os
import random

import pytest
from click.testing import CliRunner
from support.odd_lines import PIECES, QUESTIONS, a_line, check
from support.report_models import WORDS, tiny_model

from pplseq.cli import main
from pplseq.data.vocabulary import Vocabulary
from pplseq.files import json_line


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    made = tiny_model()
    made.vocabulary = Vocabulary(WORDS)
    made.save(folder)
    return folder


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_line_has_its_answer(question, model):
    draw = random.Random(question)
    check(["query", model, question, *QUESTIONS[question]], [*PIECES, *(a_line(draw) for _ in range(10))])


def test_no_samples_is_an_error_of_each_line(model):
    lines = CliRunner().invoke(main, ["query", str(model), "sample", "--num-samples", "0"], input="the\ncat\n").stdout
    assert ["num_samples must" in json.loads(line)["error"] for line in lines.splitlines()] == [True, True]


def test_a_line_without_an_end_is_an_error(model):
    found = CliRunner().invoke(main, ["query", str(model), "score"], input=b"the " * (1 << 19) + b"\nthe\n").stdout.splitlines()
    assert "the line has 2,097,153 bytes" in json.loads(found[0])["error"] and "log_prob" in json.loads(found[1])


def test_every_stream_line_has_its_answer(tmp_path):
    (tmp_path / "text").write_text("the cat\nthe dog\na cat\n" * 3)
    draw = random.Random(5)
    lines = [*PIECES, *(a_line(draw) for _ in range(100)), b"the cat"]
    result = CliRunner().invoke(main, ["personalize", f"ngram:{tmp_path / 'text'}", "--order", "2"], input=b"\n".join(lines))
    answers = [json.loads(line) for line in result.stdout_bytes.decode().splitlines()]
    assert len(answers) == len(lines) and "NaN" not in result.stdout and "Infinity" not in result.stdout


@pytest.mark.slow
def test_many_lines_have_their_answers(model):
    number, draw = int(os.environ.get("PPLSEQ_LINES", "10000")), random.Random(int(os.environ.get("PPLSEQ_SEED", "0")))
    for question, options in QUESTIONS.items():
        check(["query", model, question, *options], [a_line(draw) for _ in range(number // len(QUESTIONS))])


def test_what_is_no_number_is_null():
    assert json_line({"a": [float("nan"), -float("inf"), 1.5]}) == '{"a": [null, null, 1.5]}'
