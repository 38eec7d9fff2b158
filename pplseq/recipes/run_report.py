"""The report on a run of any kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from pplseq.files import goes_through, write_text
from pplseq.report.run import RunView, render_run_page
from pplseq.runs.metrics_log import read_metrics


def report(folder: Path, facts: dict[str, Any], settings: Any, view: RunView | None) -> Iterator[Path]:
    """Writes the page of facts, of the records of a run and of what there is to see of its model."""
    path, records = page_path(folder, settings.out), []
    with contextlib.suppress(OSError, UnicodeDecodeError):
        records = read_metrics(folder / "metrics.jsonl")
    if "status" in facts:  # which process it was matters to nobody who reads a page
        facts = facts | {"status": {k: v for k, v in facts["status"].items() if k not in ("pid", "host")}}
    data = str(facts.get("data", ""))
    name = PurePath(data).name if "/" in data and not data.startswith("hf:") else data
    write_text(path, render_run_page(f"{facts['model']} on {name}" if name else facts["model"], facts, records, view))
    yield path


def measured_data(given: str | None, record: Any, option: str) -> tuple[str | None, str]:
    """Which data a page measures on, and what is to be said of them: those that are named, else held-out ones of the training,
    else the training's own.

    Args:
        given: by --data. record: of the run, None of a saved model. option: the name of the setting with held-out data.
    """
    if given is not None:
        return given, f"{PurePath(given).name}, given with --data"
    if record is None:
        return None, ""
    held_out = getattr(record.settings, option)
    if held_out is not None and Path(held_out).is_file():
        return held_out, f"{PurePath(held_out).name}, the held-out data by which the training chose"
    if Path(record.data).is_file():
        return record.data, f"its own training data, {PurePath(record.data).name}: held-out data, --data FILE, would say more"
    return None, ""


def page_path(folder: Path, out: Path | None) -> Path:
    """Where the page goes: a file that is named, or report.html in a folder."""
    if out is None:
        return folder / "report.html"
    if goes_through(out) or (out.suffix.lower() in (".html", ".htm") and not out.is_dir()):
        return out
    if out.suffix and not out.is_dir():
        raise ValueError(f"--out must be FILE.html or a folder, got {str(out)!r}")
    return out / "report.html"
