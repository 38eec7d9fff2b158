"""What a run's folder says of where the run stands, whichever training it is of."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

from pplseq.files import is_held, json_line, write_text

STATUS, LOCK = "status.json", ".lock"
UNFINISHED = ("stopped", "died", "failed")


def say_status(folder: Path, status: str, reason: str = "", step: int = 0, seconds: float = 0.0) -> None:
    """Write `status.json`; a disk that does not take it is no reason to end."""
    said: dict[str, Any] = {"status": status, "reason": reason, "step": step, "seconds": round(seconds, 1)}
    said |= {"pid": os.getpid(), "host": socket.gethostname()}
    with contextlib.suppress(OSError):  # a full disk is told where something is lost
        write_text(folder / STATUS, json_line(said) + "\n")


def run_status(folder: str | Path) -> dict[str, Any]:
    """What `status.json` of a run's folder says: status, reason, step, seconds, pid, host.

    Its status is "running", "stopped" (by a signal: resume it), "finished" (see reason), "failed" (see reason), "died" (the
    process ended without a word: resume it) or "absent".
    """
    path = Path(folder) / STATUS
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {"status": "absent"}
    if not isinstance(status, dict) or not isinstance(status.get("status"), str):
        return {"status": "absent"}
    here = status.get("host") == socket.gethostname()
    if status["status"] == "running" and here and not is_held(Path(folder) / LOCK):
        status["status"] = "died"
    return status


def unfinished(folder: str | Path) -> str | None:
    """What to say where somebody uses a run that has not come to its end; None where it has, or is no run."""
    status = run_status(folder)
    where = f" at step {status['step']:,}" if isinstance(status.get("step"), int) and status["step"] else ""
    if status["status"] == "running":
        return f"{folder} is still in training{where}; this is its best checkpoint so far"
    if status["status"] in UNFINISHED:
        why = f" ({status['reason']})" if status.get("reason") not in ("", None, "signal") else ""
        how = _VERBS[status["status"]]
        return f"{folder} is not finished: it {how}{where}{why}; go on with `pplseq train --resume {folder}`"
    return None


_VERBS = {"stopped": "was stopped", "died": "was killed", "failed": "failed"}
