"""What a checker of types tells a user's program."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import torch
import pplseq
from pplseq import HMM

model = HMM(3, emission="gaussian")
model.fit(torch.zeros(10)).score(torch.zeros(5))
model.fitt(torch.zeros(10))  # wrong
model.decode(torch.zeros(5)).nothing  # wrong
pplseq.LDS(2)  # wrong
pplseq.VLHM  # wrong
"""


@pytest.mark.slow
def test_a_name_that_no_model_has_is_an_error(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(tmp_path / "program.py")]
    found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["generalDiagnostics"]
    wrong = [number for number, line in enumerate(PROGRAM.splitlines()) if line.endswith("# wrong")]
    assert {each["range"]["start"]["line"] for each in found if each["severity"] == "error"} == set(wrong), found
