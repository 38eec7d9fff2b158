"""A run whose states are near-copies of those of a smaller one."""

import json

import pytest

import pplseq
from pplseq.folder import FolderError

SIZES = dict(
    num_blocks=4, hidden_size=8, batch_size=4, segment_length=8, epochs=1, transition="hierarchical", state_dropout=0.0
)  # fmt: skip


def validations(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [row["perplexity"] for row in rows if row["kind"] == "validation"]


def test_a_run_goes_on_with_more_states(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sees a dog\na dog sees the cat\nthe dog barks\na cat sleeps\n" * 20, encoding="utf-8")
    small, large = tmp_path / "small", tmp_path / "large"
    pplseq.train("vlhmm", text, folder=small, num_states=16, **SIZES | {"epochs": 3, "lr": 0.02})
    pplseq.train("vlhmm", text, folder=large, num_states=32, grow_from=small, lr=1e-6, **SIZES)
    assert validations(large)[0] == pytest.approx(min(validations(small)), rel=0.02)
    assert (large / "clusters.paths").read_bytes() == (small / "clusters.paths").read_bytes()
    bad = [
        (dict(num_states=24), "multiple of the 16"), (dict(num_states=32, num_blocks=8), "num_blocks = 4"),
        (dict(num_states=32, hidden_size=16), "hidden_size = 8"),
        (dict(num_states=32, transition="softmax"), "does not become one softmax"),
        (dict(num_states=32, grow_from=tmp_path / "nowhere"), "nowhere"),
        (dict(num_states=32, start="counts"), "leave start = counts out"),
    ]  # fmt: skip
    for options, message in bad:
        with pytest.raises((ValueError, FileNotFoundError, FolderError), match=message):
            pplseq.train("vlhmm", text, folder=tmp_path / "bad", **{**SIZES, "grow_from": small, **options})
