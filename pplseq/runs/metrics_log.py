"""`metrics.jsonl`: one JSON object a line, flushed as written, cut back to the checkpoint when a run resumes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pplseq.files import json_line, write_text


class MetricsLog:
    """The record of a run.

    Args:
        path: the file; created with its folder. None keeps the records in memory.
        last_step: when resuming, the step of the checkpoint. Lines after it (written by a process that died before its
            next checkpoint) are dropped, since those steps are about to be taken again. None starts an empty file.
        validation_due: that of this step is about to be made again, too.
    """

    def __init__(self, path: str | Path | None, last_step: int | None = None, validation_due: bool = False) -> None:
        self.records: list[dict[str, Any]] = []
        self._file = None
        if path is None:
            return
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if last_step is not None:
            self.records = [
                record
                for record in read_metrics(path)
                if record["step"] < last_step + (record["kind"] == "train" or not validation_due)
            ]
        write_text(path, "".join(json_line(record) + "\n" for record in self.records))
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; on disk when this returns (as far as the operating system's buffer)."""
        self.records.append(record)
        if self._file is not None:
            self._file.write(json_line(record) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl`; an absent file has none, and a line that is damaged or cut short is left out.

    What was infinite, null in the file, is so again.
    """
    path = Path(path)
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int) and isinstance(record.get("kind"), str):
            infinite = {name: math.inf for name in ("nats_per_token", "perplexity") if record.get(name, 0.0) is None}
            records.append(record | infinite)
    return records
