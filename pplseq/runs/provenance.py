"""When and by which code something was written."""

from __future__ import annotations

import functools
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from pplseq import __version__


def today() -> str:
    """The day in UTC, 2026-01-31; that of SOURCE_DATE_EPOCH where it is set, as for builds that give the same bytes."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    return (datetime.fromtimestamp(int(epoch), UTC) if epoch.isdecimal() else datetime.now(UTC)).strftime("%Y-%m-%d")


@functools.cache
def code_version() -> str:
    """The version of pplseq; of a checkout also the commit, with a + where files of the package were changed since."""
    version, root = __version__, Path(__file__).parents[2]
    if not (root / ".git").exists():
        return version
    commit = _git(root, "rev-parse", "--short", "HEAD")
    changed = "+" if commit and _git(root, "status", "--porcelain", "pplseq") else ""
    return f"{version}, commit {commit}{changed}" if commit else version


def _git(root: Path, *arguments: str) -> str:
    """What git prints; empty where there is no git, or it does not answer."""
    command = ["git", "-C", str(root), "--no-optional-locks", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
