"""Whatever stands in a line, it has its answer, and every answer is a line of JSON that every reader takes.

The number of lines is an option of the slow test: PPLSEQ_LINES=100000.
"""

import json
import os
import random

import pytest
from click.testing import CliRunner
from support.report_models import WORDS, tiny_model

from pplseq.cli import main
from pplseq.data.vocabulary import Vocabulary
from pplseq.files import json_line

QUESTIONS = {
    "score": (), "filter": (), "smooth": (), "decode": ("--num-paths", 2), "sample": ("--num-samples", 2), "next-word": (),
    "infill": ("--num-samples", 1), "continue": ("--length", 3),
}  # fmt: skip
PIECES = [
    b"the", b"cat", b"_", b"<unk>", b"<eos>", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b[2J",
    "\u202e\u200d\u2028\x85".encode(),
    b'{"words": ["the", null]}', b'{"text": "the cat", "id": NaN}', b'{"words": ["\\ud800", "the"]}', b'{"words": []}',
    b'{"words": [1e999]}', b'{"id": ' + b"[" * 500 + b"]" * 500 + b', "text": "the"}', b"{" * 3000, b'{"a":' * 3000,
    b'{"id": ' + b"9" * 5000 + b', "text": "the"}', b'{"text": 3}', b'{"words": "the"}', b'{"words": [" "]}', b"\xef\xbb\xbf{}",
    b"\t", b" ", b"\r", b"{", b"}", b'"', b"null", b"1e400", b"[]",
]  # fmt: skip


def a_line(draw):
    """Words, JSON, bytes, and parts of them in any order."""
    kind = draw.random()
    if kind < 0.1:
        return draw.randbytes(draw.randint(0, 40)).replace(b"\n", b"")
    if kind < 0.5:
        return draw.choice(PIECES)
    line = bytearray((b" " if draw.random() < 0.7 else b"").join(draw.choice(PIECES[:10]) for _ in range(draw.randint(0, 6))))
    if line and kind > 0.9:
        del line[draw.randrange(len(line))]
    return bytes(line)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    made = tiny_model()
    made.vocabulary = Vocabulary(WORDS)
    made.save(folder)
    return folder


def check(arguments, lines):
    """Run a command on lines: valid JSON comes out, for every line that is not blank, in order."""
    text, arguments = b"\n".join(lines) + b"\n", [str(part) for part in arguments]
    result = CliRunner().invoke(main, arguments, input=text, catch_exceptions=False)
    assert result.exit_code in (0, 1), result.output[-1000:]

    def refuse(value):
        raise AssertionError(f"{value} is no JSON")

    answers = [json.loads(line, parse_constant=refuse) for line in result.stdout_bytes.decode().splitlines()]
    assert not set(result.stdout) & set("\x1b\x85\u202e\u2028")
    assert [answer["line"] for answer in answers] == sorted(answer["line"] for answer in answers)
    blank = {n for n, line in enumerate(lines, 1) if not line.removeprefix(b"\xef\xbb\xbf" if n else b"").strip()}
    seen = {answer["line"] for answer in answers}
    missing = {n for n in range(1, len(lines) + 1) if n not in seen} - blank
    odd = [lines[n - 1] for n in missing if lines[n - 1].decode("utf-8-sig", "replace").strip()]
    assert not odd, odd[:5]


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
