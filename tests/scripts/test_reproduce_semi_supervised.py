"""The table of semi-supervised tagging, on made-up sentences."""

import json
import sys
from pathlib import Path

from support.tagged_toy import tagged_sentences

from pplseq.data.tagged import write_tagged

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_rows_with_and_without_untagged_sentences(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(SCRIPTS / "reproduce"), str(SCRIPTS / "bench"), *sys.path])
    import record
    import semi_supervised

    (tmp_path / "ud_english_ewt").mkdir()
    for part, number in (("train", 30), ("test", 10)):
        write_tagged(tmp_path / "ud_english_ewt" / f"en_ewt-ud-{part}.conllu", tagged_sentences(number))
    monkeypatch.setenv("PPLSEQ_DATA", str(tmp_path))
    for module in (semi_supervised, record):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    for systems in (["hmm"], ["partly-tagged"]):
        monkeypatch.setattr(sys, "argv", ["script", "--sizes", "5", "--untagged", "20", "--systems", *systems])
        semi_supervised.main()
    rows = json.loads((tmp_path / "results" / "semi_supervised.json").read_text())["results"]["5"]
    assert set(rows) == {"hmm", "partly-tagged"} and all(0 < row["accuracy"] <= 1 for row in rows.values())
    assert rows["partly-tagged"]["untagged"] == 20 and "untagged" not in rows["hmm"]
