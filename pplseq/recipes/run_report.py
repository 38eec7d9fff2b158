"""The report on a run of any kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from pplseq.files import goes_through, write_text
from pplseq.report.run import render_run_page
from pplseq.runs.metrics_log import read_metrics


def report(folder: Path, facts: dict[str, Any], settings: Any) -> Iterator[Path]:
    """Writes the page of facts, and of the records of a run."""
    path, records = page_path(folder, settings.out), []
    with contextlib.suppress(OSError, UnicodeDecodeError):
        records = read_metrics(folder / "metrics.jsonl")
    data = str(facts.get("data", ""))
    name = PurePath(data).name if "/" in data and not data.startswith("hf:") else data
    write_text(path, render_run_page(f"{facts['model']} on {name}" if name else facts["model"], facts, records))
    yield path


def page_path(folder: Path, out: Path | None) -> Path:
    """Where the page goes: a file that is named, or report.html in a folder."""
    if out is None:
        return folder / "report.html"
    if goes_through(out) or (out.suffix.lower() in (".html", ".htm") and not out.is_dir()):
        return out
    if out.suffix and not out.is_dir():
        raise ValueError(f"--out must be FILE.html or a folder, got {str(out)!r}")
    return out / "report.html"
