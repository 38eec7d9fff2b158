"""Probabilistic sequence models as Pyro programs, with exact and fast inference at very large state spaces."""

import os
import sys

from pplseq._lazy import lazy_names


def _few_processors(root: str = "/") -> int | None:
    """How many processors the process may keep busy where its control group allows less than it sees; None elsewhere."""

    def content(*path: str) -> str:
        with open(os.path.join(root, *path), encoding="utf-8") as file:
            return file.read()

    def inside(folder: str, group: str, *names: str) -> list[str]:  # a container may see its own group as the root
        own = [folder, group] if os.path.exists(os.path.join(root, folder, group, names[0])) else [folder]
        return " ".join(content(*own, name) for name in names).split()

    try:
        groups = dict(line.split(":", 2)[1:] for line in content("proc/self/cgroup").splitlines())
        first = next((path for kinds, path in groups.items() if "cpu" in kinds.split(",")), None)  # of the first version
        if first is None:
            quota, period = inside("sys/fs/cgroup", groups[""].strip("/"), "cpu.max")
        else:
            quota, period = inside("sys/fs/cgroup/cpu", first.strip("/"), "cpu.cfs_quota_us", "cpu.cfs_period_us")
        allowed = max(1, int(quota) // int(period))
        seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return allowed if int(quota) > 0 and allowed < seen else None
    except (OSError, ValueError, KeyError):  # without a limit the quota is "max"
        return None


# OpenMP reads these when torch is imported. Threads that spin while they wait take every core, and where another program uses
# one of them, two rows of a softmax wait eight milliseconds; sleeping threads cost little. Of a container's limit on processors
# torch knows nothing: more threads than it allows are stopped together in the midst of a product.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if _few := _few_processors():
        os.environ.setdefault("OMP_NUM_THREADS", str(_few))

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
