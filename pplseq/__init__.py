"""Probabilistic sequence models as Pyro programs, with exact and fast inference at very large state spaces."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress

from pplseq._lazy import lazy_names


def _few_processors(root: str = "/") -> int | None:
    """How many processors the process may keep busy where its control group allows less than it sees; None elsewhere."""

    def content(*path: str) -> str:
        with open(os.path.join(root, *path), encoding="utf-8") as file:
            return file.read()

    def limits(folder: str, group: str, *names: str) -> Iterator[int]:  # of the group and of those that it is in
        parts = [part for part in group.split("/") if part]
        for size in range(len(parts) + 1):  # a container may see its own group as the root
            with suppress(OSError, ValueError):  # without a limit the quota is "max", or -1
                quota, period = " ".join(content(folder, *parts[:size], name) for name in names).split()
                if int(quota) > 0:
                    yield max(1, int(quota) // int(period))

    try:
        groups = dict(line.split(":", 2)[1:] for line in content("proc/self/cgroup").splitlines())
    except (OSError, ValueError):
        return None
    first = next((path for kinds, path in groups.items() if "cpu" in kinds.split(",")), None)  # of the first version
    if first is None:
        found = limits("sys/fs/cgroup", groups.get("", ""), "cpu.max")
    else:
        found = limits("sys/fs/cgroup/cpu", first, "cpu.cfs_quota_us", "cpu.cfs_period_us")
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = min(found, default=seen)
    return allowed if allowed < seen else None


# OpenMP reads these when torch is imported. Threads that spin while they wait take every core, and where another program uses
# one of them, two rows of a softmax wait eight milliseconds; sleeping threads cost little. Of a container's limit on processors
# torch knows nothing: more threads than it allows are stopped together in the midst of a product.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if _few := _few_processors():
        os.environ.setdefault("OMP_NUM_THREADS", str(_few))

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
