"""How far a reader has to walk through one step: ceilings that only fall (kernels/twice.py once made 12 files 13)."""

from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
CEILINGS = {"vlhmm": (13, 480), "lds": (12, 1_000)}  # files of pplseq, Python calls in them


@pytest.mark.parametrize("what", CEILINGS)
def test_steps_stay_short(what, monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    import call_paths

    found = call_paths.MEASURED[what]()
    files, calls = CEILINGS[what]
    assert 0 < found["files"] <= files, f"{what}: {sorted(found['by_file'])}"
    assert 0 < found["calls"] <= calls, f"{what}: {found['calls']} calls, {found['by_file']}"
