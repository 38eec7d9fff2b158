"""Pages that `pplseq report` writes about runs, made at the build for the gallery."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

TRAININGS = {  # page -> what is trained, in a folder with the files that `_data` writes
    "language": "vlhmm builtin:python --num-states 512 --num-blocks 32 --epochs 1",
    "tagger": "tagger tagged.txt --system hmm --format word_tag",
    "regimes": "iohmm returns.csv --outputs return --num-states 2",
}


def _data(folder: Path) -> None:
    """A table of two regimes, and a text of which some words have two tags."""
    draw, state = random.Random(1), 0
    rows = ["return"]
    for _ in range(300):
        state = 1 - state if draw.random() < 0.04 else state
        rows.append(f"{draw.gauss((0.05, -0.2)[state], (0.6, 2.2)[state]):.3f}")
    (folder / "returns.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    words = {"D": ["the", "a"], "N": ["dog", "run", "walk", "song"], "V": ["run", "walk", "sings", "ends"]}
    lines = [" ".join(f"{draw.choice(words[tag])}_{tag}" for tag in "DNVDN"[: draw.choice((3, 5))]) for _ in range(300)]
    (folder / "tagged.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def reports() -> dict[str, str]:
    """Name of a page -> its HTML."""
    found = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _data(folder)
        for name, training in TRAININGS.items():
            for arguments in (["train", *training.split(), "--out", f"runs/{name}"], ["report", f"runs/{name}"]):
                program = [sys.executable, "-m", "pplseq", *arguments]
                subprocess.run(program, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            found[f"reports/{name}.html"] = (folder / "runs" / name / "report.html").read_text(encoding="utf-8")
    return found
