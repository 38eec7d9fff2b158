"""A stored model that is damaged anywhere says so, or answers as before: never with a traceback, never with another number.

The number of damages is an option of the slow test: PPLSEQ_DAMAGES=5000.
"""

import json
import os

import pytest
from support.damaged import wrong_answers


def test_damage_is_named_or_does_no_harm(tmp_path):
    assert not wrong_answers(tmp_path, 60)


@pytest.mark.slow
def test_much_damage_is_named_or_does_no_harm(tmp_path):
    wrong = wrong_answers(tmp_path, int(os.environ.get("PPLSEQ_DAMAGES", "5000")), seed=1)
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("line", ["{", "null", '{"step": null}', "[" * 100_000, '\udc80'.encode("utf-8", "surrogateescape")])
def test_a_damaged_record_does_not_drop_later_ones(line, tmp_path):
    from pplseq.runs.metrics_log import MetricsLog, read_metrics

    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in (1, 2):
        log.write({"step": step, "kind": "train", "nats_per_token": float("inf"), "other": float("nan")})
    log.close()
    first, second = (tmp_path / "metrics.jsonl").read_bytes().splitlines()
    assert "NaN" not in first.decode() and "Infinity" not in first.decode() and json.loads(first)["other"] is None
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([first, line if isinstance(line, bytes) else line.encode(), second]))
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["nats_per_token"] == float("inf")
