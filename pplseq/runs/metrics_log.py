"""`metrics.jsonl`: one JSON object a line, flushed as written, cut back to the checkpoint when a run resumes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class MetricsLog:
    """The record of a run.

    Args:
        path: the file; created with its folder.
        last_step: when resuming, the step of the checkpoint. Lines after it (written by a process that died before its
            next checkpoint) are dropped, since those steps are about to be taken again. None starts an empty file.
    """

    def __init__(self, path: str | Path, last_step: int | None = None) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.records = [] if last_step is None else [r for r in read_metrics(self.path) if r["step"] <= last_step]
        new = self.path.with_name(f".{self.path.name}.new")
        new.write_text("".join(json.dumps(record) + "\n" for record in self.records), encoding="utf-8")
        os.replace(new, self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; on disk when this returns (as far as the operating system's buffer)."""
        self.records.append(record)
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl`; an absent file has none, and a last line cut short by a crash is left out."""
    path = Path(path)
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records
