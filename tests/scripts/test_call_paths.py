"""How far a reader has to walk through one step: ceilings that only fall.

The goals were 10 files of a VLHMM step, and 12 files and 1,000 calls of an EM iteration of an LDS. What is above them bought
speed: derivatives of every order (kernels/twice.py), compiled loops (three files, a third of the calls before) and layers in
bfloat16 (two files, four calls; half the time of a step where the processor has such products) of a VLHMM, whose parameters are
also read through a function that keeps what a property without an answer says (eleven calls); compiled
loops of small Gaussian states (four files) and extrapolated steps, of which a fit needs a fifth to a third, of an LDS.
"""

from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
CEILINGS = {"vlhmm": (20, 222), "lds": (16, 545)}  # files of pplseq, Python calls in them


@pytest.mark.parametrize("what", CEILINGS)
def test_steps_stay_short(what, monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    import call_paths

    found = call_paths.MEASURED[what]()
    files, calls = CEILINGS[what]
    assert 0 < found["files"] <= files, f"{what}: {sorted(found['by_file'])}"
    assert 0 < found["calls"] <= calls, f"{what}: {found['calls']} calls, {found['by_file']}"
