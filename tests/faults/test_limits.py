"""What would fill memory is refused before it does, and how to allow more is said; same bits where they are promised."""

import lzma

import pytest
from support.small_runs import write_data

import pplseq
from pplseq.data.sources import UNPACKED_BYTES, read_text
from pplseq.data.streams import TextStream
from pplseq.models.automata.automaton import Automaton


def test_a_small_file_that_unpacks_to_very_much(tmp_path, monkeypatch):
    path = tmp_path / "text.xz"
    with lzma.open(path, "wb", preset=0) as file:
        for _ in range(UNPACKED_BYTES // (1 << 20) + 2):
            file.write(b"a" * (1 << 20))
    assert path.stat().st_size * 1000 < UNPACKED_BYTES + (2 << 20)
    for read in (lambda: read_text(path), lambda: list(TextStream(path).blocks())):
        with pytest.raises(ValueError, match="unpacks to more than 1000 times its size.*PPLSEQ_UNPACK_RATIO"):
            read()
    monkeypatch.setenv("PPLSEQ_UNPACK_RATIO", "1e9")
    assert sum(map(len, TextStream(path).blocks())) > UNPACKED_BYTES


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


def test_the_same_bits_for_any_number_of_threads(tmp_path):
    data = write_data(tmp_path)
    options = dict(min_count=1, epochs=1, hidden=8, layers=1, batch_size=4, deterministic=True)
    for threads in (1, 2):
        pplseq.train("lstm", data["text.txt"], folder=tmp_path / str(threads), threads=threads, **options)
    weights = [(tmp_path / str(threads) / "last" / "model.safetensors").read_bytes() for threads in (1, 2)]
    assert weights[0] == weights[1]
    assert "any number of threads" in (tmp_path / "1" / "config.toml").read_text()
