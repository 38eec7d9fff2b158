"""Lines of words, JSON, bytes and parts of them in any order, and commands that have to answer each."""

from __future__ import annotations

import functools
import json

from click.testing import CliRunner

from pplseq.cli import main
from support.faulty_disk import command, warm

QUESTIONS = {
    "score": (), "filter": (), "smooth": (), "decode": ("--num-paths", 2), "sample": ("--num-samples", 2), "next-word": (),
    "infill": ("--num-samples", 1), "continue": ("--length", 3),
}  # fmt: skip
CONSTRAINED = {
    "continue containing": ("continue", "--length", "2-5", "--containing", "cat", "--num-samples", 1),
    "continue matching": ("continue", "--length", 6, "--matching", "(the|a) .*", "--whole", "--not", "dog"),
    "continue in order": ("continue", "--length", 5, "--in-order", "the", "--in-order", "bird", "--eos"),
    "infill containing": ("infill", "--gap-length", "1-3", "--containing-any", "cat", "--containing-any", "<unk>"),
    "infill matching": ("infill", "--matching", "<any> .*", "--word-class", "any=the,cat", "--num-samples", 1),
}
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


def check(arguments, lines):
    """Run a command on lines: valid JSON comes out, for every line that is not blank, in order."""
    text, arguments = b"\n".join(lines) + b"\n", [str(part) for part in arguments]
    result = CliRunner().invoke(main, arguments, input=text, catch_exceptions=False)
    assert result.exit_code in (0, 1), result.output[-1000:]

    def refuse(value):
        raise AssertionError(f"{value} is no JSON")

    answers = [json.loads(line, parse_constant=refuse) for line in result.stdout_bytes.decode().splitlines()]
    assert not set(result.stdout) & set("\x1b\x85\u202e\u2028")
    if arguments[0] == "tag":  # answers have words, and errors the number of a line; in order
        if "--splitter" in arguments:
            assert all("words" in answer or {"line", "error"} == {*answer} for answer in answers)
            return
        assert all("line" in answer if "error" in answer and "words" not in answer else "words" in answer for answer in answers)
        assert len(answers) >= sum(line.isascii() and line.isalpha() for line in lines)
        return
    if arguments[0] == "compare-streams":
        answers = [answer for answer in answers if "mean_log_likelihood_ratio" not in answer]
    assert [answer["line"] for answer in answers] == sorted(answer["line"] for answer in answers)
    blank = {n for n, line in enumerate(lines, 1) if not line.removeprefix(b"\xef\xbb\xbf" if n else b"").strip()}
    seen = {answer["line"] for answer in answers}
    missing = {n for n in range(1, len(lines) + 1) if n not in seen} - blank
    odd = [lines[n - 1] for n in missing if lines[n - 1].decode("utf-8-sig", "replace").strip()]
    assert not odd, odd[:5]


def treebank(tagged, path):
    """The sentences of a text of word_TAG as CoNLL-U, at `path`."""
    with path.open("w") as file:
        for line in tagged.read_text().splitlines():
            pairs = [pair.split("_") for pair in line.split()]
            file.write(f"# text = {' '.join(word for word, _ in pairs)}\n")
            file.writelines(f"{n}\t{w}\t_\t{t}" + "\t_" * 6 + "\n" for n, (w, t) in enumerate(pairs, 1))
            file.write("\n")
    return path


def askers(place, runs, data):
    """name -> function that asks about lines: every question to a model of text, taggers, and streams that learn.

    Args:
        place: an empty folder. runs, data: as of `small_runs` and `write_data`.
    """
    for name in ("vlhmm", "hmm-em", "lstm", "text-lds", "tagger", "latent", "crf", "strings"):
        (place / name).mkdir(parents=True)
        warm(runs[name](place / name))
    found = {f"vlhmm {name}": ["query", place / "vlhmm" / "run", name, *options] for name, options in QUESTIONS.items()}
    found |= {f"{name} score": ["query", place / name / "run", "score"] for name in ("hmm-em", "lstm")}
    found |= {f"text-lds {name}": ["query", place / "text-lds" / "run", name] for name in ("next-word", "score")}
    found |= {f"vlhmm {name}": ["query", place / "vlhmm" / "run", *asked] for name, asked in CONSTRAINED.items()}
    found |= {f"hmm-em {name}": ["query", place / "hmm-em" / "run", *asked] for name, asked in CONSTRAINED.items()}
    for name in ("tagger", "latent", "crf"):
        found[f"tag run {name}"] = ["tag", "run", place / name / "run", "--json", "--probabilities", "--format", "words"]
    found["tag run word_tag"] = ["tag", "run", place / "tagger" / "run", "--json", "--format", "word_tag"]
    more = ("--entropy", "--num-paths", 2, "--num-samples", 1, "--top", 2, "--log-prob", "--surprising")
    found["tag run all"] = ["tag", "run", place / "tagger" / "run", "--format", "words", *more]
    warm(command("tag", "splitter", treebank(data["tags.txt"], place / "treebank.conllu"), "--out", place / "splitter"))
    found["tag run raw"] = ["tag", "run", place / "tagger" / "run", "--splitter", place / "splitter", "--json"]
    stream = ["personalize", f"ngram:{data['text.txt']}", "--order", 2, "--source", "cache"]
    found |= {"personalize": stream, "personalize by line": [*stream, "--by-line", "--unknown", "error"]}
    found["compare-streams"] = ["compare-streams", stream[1], f"unigram:{data['text.txt']}"]
    return {name: functools.partial(check, command) for name, command in found.items()}
