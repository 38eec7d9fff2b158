"""`metrics.jsonl`: one JSON object a line, flushed as written, cut back to the checkpoint when a run resumes.

The last entry of a line, "check", is the CRC-32 of the line without it, in hexadecimal.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pplseq.files import json_line, write_text
from pplseq.folder import content_of
from pplseq.runs.status import run_status

MOST_BYTES = 1 << 28  # a million records
_CHECK = re.compile(r', "check": "([0-9a-f]{8})"\}$')


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
        write_text(path, "".join(map(_line, self.records)))
        self._file = path.open("a", encoding="utf-8", newline="\n")

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; on disk when this returns (as far as the operating system's buffer)."""
        self.records.append(record)
        if self._file is not None:
            self._file.write(_line(record))
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Metrics(NamedTuple):
    """What a `metrics.jsonl` holds.

    Attributes:
        records: those of its lines that are whole. damage: which others there are; None where there are none.
    """

    records: list[dict[str, Any]]
    damage: str | None = None


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl`; an absent file has none, and a line that is damaged or cut short is left out.

    What was infinite, null in the file, is so again.
    """
    return metrics_of(path).records


def metrics_of(path: str | Path) -> Metrics:
    """The records as :func:`read_metrics` gives them, and which lines are damaged, out of their order or missing.

    The end of a line that a process was writing when it was killed is none of them.
    """
    path = Path(path)
    *lines, last = content_of(path, MOST_BYTES).decode(errors="replace").split("\n") if path.exists() else [""]
    checked = any(map(_CHECK.search, lines))
    lines += [last] if last and _record(last, checked) is not None else []  # whole but for its end
    found = [_record(line, checked) for line in lines]
    records = [record for record in found if record is not None]
    damaged = [number for number, record in enumerate(found, 1) if record is None]
    steps = [record["step"] for record in records]
    wrong = []
    if damaged:
        wrong.append(f"line{'s' * (len(damaged) > 1)} {', '.join(map(str, damaged[:10]))} damaged")
    if steps != sorted(steps):
        wrong.append("lines not in their order")
    told = run_status(path.parent).get("num_records", 0)
    if len(lines) < told:
        wrong.append(f"{told - len(lines)} of {told} lines missing")
    return Metrics(records, "; ".join(wrong) or None)


def _line(record: Mapping[str, Any]) -> str:
    line = json_line(record)
    return f'{line[:-1]}, "check": "{zlib.crc32(line.encode()):08x}"}}\n'


def _record(line: str, checked: bool) -> dict[str, Any] | None:
    """The record of a line; None where it is damaged. `checked`: it must have a check, which files of before have not."""
    check = _CHECK.search(line)
    if check is not None:
        line = line[: check.start()] + "}"
    if checked and (check is None or int(check[1], 16) != zlib.crc32(line.encode())):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int) or not isinstance(record.get("kind"), str):
        return None
    return record | {name: math.inf for name in ("nats_per_token", "perplexity") if record.get(name, 0.0) is None}
