"""What Python is told of the units of a run on a table, which commands take care of."""

import warnings

import numpy as np
import pytest
from support.commands import pplseq

from pplseq.loading import load


@pytest.mark.parametrize("kind", ["lds", "iohmm"])
def test_units_of_a_table_are_named(kind, tmp_path):
    table, run = tmp_path / "t.csv", tmp_path / kind
    rows = np.random.default_rng(0).normal(size=(40, 2)) * (1, 100) + (0, 1000)
    table.write_text("a,b\n" + "\n".join(f"{a},{b}" for a, b in rows) + "\n")
    options = "--num-states 1 --seed 0".split()
    options += ["--outputs", "a,b"] if kind == "lds" else ["--outputs", "a", "--inputs", "b", "--mealy"]
    for raw in ([], ["--raw"]):
        pplseq("train", kind, table, *options, *raw, "--out", run / str(len(raw)))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load(run / str(len(raw)))
        said = [str(warning.message) for warning in caught if "standardized columns" in str(warning.message)]
        assert len(said) == (not raw) and all("(b - 10" in text or "(b - 9" in text for text in said)
