"""What would fill memory is refused before it does, and how to allow more is said; same bits where they are promised."""

import contextlib
import io
import lzma

import pytest
from click.testing import CliRunner
from support.small_runs import write_data

import pplseq
from pplseq.cli import main
from pplseq.data import sources
from pplseq.data.sources import read_text
from pplseq.data.streams import TextStream
from pplseq.models.automata.automaton import Automaton
from pplseq.runs.signals import StopSignals
from pplseq.sources.lines import LineReader, answer_lines


def test_a_small_file_that_unpacks_to_very_much(tmp_path, monkeypatch):
    path, most = tmp_path / "text.xz", 1 << 23
    monkeypatch.setattr(sources, "UNPACKED_BYTES", most)
    with lzma.open(path, "wb", preset=0) as file:
        for _ in range(most // (1 << 20) + 2):
            file.write(b"a" * (1 << 20))
    assert path.stat().st_size * 1000 < most + (2 << 20)
    for read in (lambda: read_text(path), lambda: list(TextStream(path).blocks())):
        with pytest.raises(ValueError, match="unpacks to more than 1000 times its size.*PPLSEQ_UNPACK_RATIO"):
            read()
    monkeypatch.setenv("PPLSEQ_UNPACK_RATIO", "1e9")
    assert sum(map(len, TextStream(path).blocks())) > most


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a|b)*a(a|b){22}", "needs more than 10,000 states; raise max_states"),
        ("a{1000000}", "more than 10,000 repetitions; raise max_states"),
        ("(a{9000}){9000}", "more than 10,000 symbols"),
        ("(" * 300 + "a" + ")" * 300, "more than 100 parentheses within each other"),
    ],
)
def test_expressions_that_grow(pattern, why):
    with pytest.raises(ValueError, match=why):
        Automaton.from_regex(pattern)
    assert Automaton.from_regex("(a|b)*a(a|b){3}", max_states=40).num_states == 16
    assert Automaton.from_regex("(" * 150 + "a" + ")" * 150, max_nested=150).num_states == 3
    with pytest.raises(ValueError, match="recursion limit"):
        Automaton.from_regex("(" * 10_000 + "a", max_nested=10_000)


def test_many_lags_are_asked_for(tmp_path):
    (tmp_path / "text").write_text("the cat sees a dog\n" * 9)

    def count(*options):
        return CliRunner().invoke(main, ["count", str(tmp_path / "text"), "--out", str(tmp_path / "counts"), *options])

    result = count("--max-lag", "1001")
    assert result.exit_code == 2 and "--max-lag: got 1,001" in result.stderr and "--most-lags" in result.stderr
    assert not (tmp_path / "counts").exists()
    assert count("--max-lag", "1001", "--most-lags", "1001").exit_code == 0


def test_longer_lines_are_asked_for(tmp_path, monkeypatch):
    line = b"the cat " * 10
    source = io.BufferedReader(io.BytesIO(line + b"\n" + b"a\n"))
    monkeypatch.setenv("PPLSEQ_LINE_BYTES", "50")
    found = list(answer_lines(source, lambda words: {"n": len(words)}))
    assert "the line has 81 bytes, more than 50" in found[0]["error"] and "PPLSEQ_LINE_BYTES" in found[0]["error"]
    assert found[1]["n"] == 1
    monkeypatch.setenv("PPLSEQ_LINE_BYTES", "1e9")
    assert next(answer_lines(io.BufferedReader(io.BytesIO(line)), lambda words: {"n": len(words)}))["n"] == 20
    (tmp_path / "stream").write_bytes(line)
    with contextlib.closing(LineReader(str(tmp_path / "stream"))) as reader:
        assert reader.read_line(StopSignals()) == line
    for wrong in ("none", "-1", "nan"):
        monkeypatch.setenv("PPLSEQ_LINE_BYTES", wrong)
        with pytest.raises(ValueError, match="PPLSEQ_LINE_BYTES: expected a positive number"):
            LineReader(str(tmp_path / "stream"))


def test_the_same_bits_for_any_number_of_threads(tmp_path):
    data = write_data(tmp_path)
    options = dict(min_count=1, epochs=1, hidden_size=8, num_layers=1, batch_size=4, deterministic=True)
    for threads in (1, 2):
        pplseq.train("lstm", data["text.txt"], folder=tmp_path / str(threads), threads=threads, **options)
    weights = [(tmp_path / str(threads) / "last" / "model.safetensors").read_bytes() for threads in (1, 2)]
    assert weights[0] == weights[1]
    assert "any number of threads" in (tmp_path / "1" / "config.toml").read_text()
