"""Texts that scripts/reproduce/topics.py parts by topic."""

import numpy as np
import pytest
from support.scripts import load_script


@pytest.fixture(scope="module")
def script():
    return load_script("reproduce/topics.py")


def test_pieces_of_a_topic_come_together(script):
    random = np.random.default_rng(0)
    of_topic = random.integers(2, size=60)
    tables = np.array([[0.4, 0.4, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4]])
    counts = np.stack([random.multinomial(40, tables[k]) for k in of_topic]).astype(float)
    share, table = script.fit(counts, 2)
    found = (counts @ table.T + share).argmax(1)
    assert (found == of_topic).all() or (found == 1 - of_topic).all()
    np.testing.assert_allclose(np.exp(table).sum(1), 1)
    np.testing.assert_allclose(np.sort(np.exp(share)), np.sort(np.bincount(of_topic) / 60), atol=1e-6)


def test_texts_are_parted_and_older_parts_removed(script, tmp_path, monkeypatch):
    (tmp_path / "ptb").mkdir()
    text = {}
    for name, pairs in (("train", 8), ("valid", 2)):  # of pieces; words of more than a quarter of all tell nothing
        words = [f"{word}{pair // 2}" for pair in range(pairs) for word in ("bond", "film") for _ in range(15)]
        text[name] = [f"the {word} said {word}" for word in words]
        (tmp_path / "ptb" / f"ptb.{name}.txt").write_text("".join(f" {line} \n" for line in text[name]))
    monkeypatch.setenv("PPLSEQ_DATA", str(tmp_path))
    for topics in (3, 2):
        monkeypatch.setattr("sys.argv", ["topics.py", "ptb", "--topics", str(topics), "--out", str(tmp_path / "runs")])
        script.main()
        for name, lines in text.items():
            parts = sorted((tmp_path / "runs").glob(f"ptb_topic_*/ptb.{name}.txt"))
            assert len(parts) == topics
            assert sorted(line.strip() for part in parts for line in part.read_text().splitlines()) == sorted(lines)
