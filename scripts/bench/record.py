"""Where benchmark figures go: JSON with the machine, the commit, the date and the command that made them."""

from __future__ import annotations

import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads distort times on shared cores

ROOT = Path(__file__).resolve().parents[2]


def git(*arguments: str) -> str:
    """What git prints; empty outside a checkout."""
    try:
        return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine() -> dict:
    """The machine and the versions that matter for speed."""
    import torch

    name = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def command_line(arguments: list[str]) -> str:
    """What to type in the repository's folder for the same run: runs are below ``runs``, wherever they were; PATH stands for a
    folder beside the repository."""
    return shlex.join(["python", *map(_in_repository, arguments)])


def _in_repository(argument: str) -> str:
    beside = argument == os.pardir or argument.startswith(os.pardir + os.sep)
    if not (os.path.isabs(argument) or beside):
        return argument
    path = Path(os.path.abspath(argument))
    if path.is_relative_to(ROOT):
        return str(path.relative_to(ROOT))
    return "/".join(path.parts[path.parts.index("runs") :]) if "runs" in path.parts else f"PATH/{path.name}"


def record(name: str, results, *, folder: str = "bench", **more) -> Path:
    """Writes results/<folder>/<name>.json and says where.

    Args:
        name: of the file. results: JSON-able figures. more: further entries (settings, promises).
    """
    path = ROOT / "results" / folder / f"{name}.json"
    entry = {
        "command": command_line(sys.argv),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "pplseq") else ""),
        "machine": machine(),
        **more,
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entry, indent=1) + "\n")
    print(f"wrote {path.relative_to(ROOT)}")
    return path


def seconds(run: Callable[[], object], *, repeat: int = 7, warmup: int = 2) -> float:
    """Median wall time of ``run()``."""
    for _ in range(warmup):
        run()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def in_turn(runs: dict[str, Callable[[], object]], *, repeat: int = 5, warmup: int = 1) -> dict[str, float]:
    """Median wall times of several functions run in turn, so that a machine that drifts slows all of them."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for k in range(warmup + repeat):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if k >= warmup:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_gigabytes() -> float:
    """The process's largest resident size so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def data_folder() -> Path:
    """The folder of real corpora; ends the program with a message where there is none."""
    folder = Path(os.environ.get("PPLSEQ_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        sys.exit(f"real corpora not found at {folder}; set PPLSEQ_DATA to their folder")
    return folder
