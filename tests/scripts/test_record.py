"""What results say of the command that made them."""

import json
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_commands_can_be_typed(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "bench"))
    import record

    script = "scripts/reproduce/ewt_tagging.py"
    system = "product members='[\"latent\", \"crf l2=0.1\"]'"
    line = record.command_line([str(ROOT / script), "--systems", system, "--runs", str(ROOT / "runs"), "--python", "/far/off"])
    assert shlex.split(line) == ["python", script, "--systems", system, "--runs", "runs", "--python", "PATH/off"]
    line = record.command_line([str(ROOT / script), "--runs", "../runs/some", "--cache", "/far/runs/lds", "--data", "../texts"])
    assert shlex.split(line)[2:] == ["--runs", "runs/some", "--cache", "runs/lds", "--data", "PATH/texts"]
    sys.modules.pop("record")


def test_commands_of_results_are_there():
    for path in (ROOT / "results").rglob("*.json"):
        found = json.loads(path.read_text())
        if isinstance(found, dict) and "command" in found and "scripts/" in found["command"]:
            words = shlex.split(found["command"])
            assert not any(word.startswith(("..", "/")) for word in words), f"{path.name}: a path that no reader has"
            script = next(word for word in words if "scripts/" in word)
            if script == "scripts/reproduce/vlhmm_union.py":  # which a model with topics made needless: the commit has it
                assert found["commit"], path.name
                continue
            assert "__main__" in (ROOT / script).read_text() or script.endswith(".sh"), f"{path.name}: {script} does not run"
