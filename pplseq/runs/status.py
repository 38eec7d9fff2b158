"""What a run's folder says of where the run stands, whichever training it is of."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from pplseq.files import goes_through, is_held, write_text
from pplseq.folder import FolderError, sealed, unsealed
from pplseq.runs.provenance import code_version, today

STATUS, LOCK = "status.json", ".lock"
SAID = {"status": str, "reason?": str, "step?": int, "seconds?": float, "num_records?": int, "host?": str}
UNFINISHED = ("stopped", "died", "failed")


def say_status(
    folder: Path, status: str, reason: str = "", step: int = 0, seconds: float = 0.0, num_records: int | None = None
) -> None:
    """Write `status.json`; a disk that does not take it is no reason to end.

    Args:
        num_records: lines of `metrics.jsonl`, where no more will be written.
    """
    said: dict[str, Any] = {"status": status, "reason": reason, "step": step, "seconds": round(seconds, 1)}
    said |= {} if num_records is None else {"num_records": num_records}
    said |= {"day": today(), "version": code_version()}
    said |= {"pid": os.getpid(), "host": socket.gethostname()}
    with contextlib.suppress(OSError):  # a full disk is told where something is lost
        if goes_through(folder / STATUS):  # a pipe, for whose reader one would wait
            (folder / STATUS).unlink()
        write_text(folder / STATUS, sealed(said))


def run_status(folder: str | Path) -> dict[str, Any]:
    """What `status.json` of a run's folder says: status, reason, step, seconds, num_records of its metrics, day,
    version, pid, host.

    Its status is "running", "stopped" (by a signal: resume it), "finished" (see reason), "failed" (see reason), "died" (the
    process ended without a word: resume it), "absent", or "damaged": the file is not what was written.
    """
    path = Path(folder) / STATUS
    try:
        status = unsealed(path, "", SAID)
    except OSError:
        return {"status": "absent"}
    except FolderError:
        return {"status": "damaged"}
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
    if status["status"] == "damaged":
        again = f"`pplseq train --resume {folder}` finds out and writes it anew"
        return f"{folder}/{STATUS} is damaged, so it is not known whether the training came to its end; {again}"
    if status["status"] in UNFINISHED:
        why = f" ({status['reason']})" if status.get("reason") not in ("", None, "signal") else ""
        how = _VERBS[status["status"]]
        return f"{folder} is not finished: it {how}{where}{why}; go on with `pplseq train --resume {folder}`"
    return None


_VERBS = {"stopped": "was stopped", "died": "was killed", "failed": "failed"}
