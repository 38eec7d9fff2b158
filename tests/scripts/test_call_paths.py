"""How far a reader has to walk through one step: ceilings that only fall.

Exceptions: kernels/twice.py made 12 files 13, and compiled loops 16, a third of the calls; those of small Gaussian states 17
of 12, half of the calls; extrapolated EM steps of an LDS, of which a fit needs a fifth to a third, 19 and 730 calls of 490.
"""

from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
CEILINGS = {"vlhmm": (16, 180), "lds": (19, 750)}  # files of pplseq, Python calls in them


@pytest.mark.parametrize("what", CEILINGS)
def test_steps_stay_short(what, monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    import call_paths

    found = call_paths.MEASURED[what]()
    files, calls = CEILINGS[what]
    assert 0 < found["files"] <= files, f"{what}: {sorted(found['by_file'])}"
    assert 0 < found["calls"] <= calls, f"{what}: {found['calls']} calls, {found['by_file']}"
