"""Libraries against each other, each in a process of its own, in turn: a machine that drifts slows all of them.

Times are those of the processor, all threads together: other work on a shared machine does not count. Results are
compared before any time is reported.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
ONE_THREAD["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def answer_turns(runs: dict[str, Callable], digest: Callable[[str, object], list[float]]) -> None:
    """The worker's side: runs an operation for every line on standard input; answers with its seconds and a digest."""
    for line in sys.stdin:
        operation, repeat = line.rsplit(maxsplit=1)
        for _ in range(int(repeat)):  # the last of several counts: the first finds caches full of the others' work
            start = time.process_time()
            value = runs[operation]()
            seconds = time.process_time() - start
        print(json.dumps({"seconds": seconds, "digest": digest(operation, value)}), flush=True)


class Worker:
    """A process that runs ``script --worker ARGUMENTS`` under an interpreter."""

    def __init__(self, python: str, script: str, *arguments):
        self.process = subprocess.Popen(
            [python, script, "--worker", *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **ONE_THREAD},
        )  # fmt: skip

    def run(self, operation: str, repeat: int = 1) -> dict:
        print(operation, repeat, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def compare(digests: dict[str, list[float]], operation: str, reference: str) -> None:
    """Ends the program if a library's result is not the reference's."""
    expected = digests[reference]
    for name, found in digests.items():
        tolerance = 1e-6 if "float32" not in name else 2e-3
        if not np.allclose(found, expected, rtol=tolerance, atol=tolerance * abs(expected[0])):
            raise SystemExit(f"{operation}: {name} gives {found}, {reference} {expected}; no speed is reported")


def take_turns(
    workers: dict[str, Worker], operation: str, patience: float, reference: str | None = "pplseq float64"
) -> dict[str, float]:
    """Median CPU seconds of each; slow ones run until ``patience`` seconds are used, at least once."""
    times: dict[str, list[float]] = {name: [] for name in workers}
    digests = {}
    for name, worker in workers.items():  # warm-up, compilation included; it counts only if it leaves no patience
        answer = worker.run(operation)
        digests[name], times[name] = answer["digest"], [answer["seconds"]]
    if reference is not None:
        compare(digests, operation, reference)
    left = {name: patience if seconds[0] < patience else 0.0 for name, seconds in times.items()}
    for _ in range(15):
        for name, worker in workers.items():
            if left[name] > 0:
                repeat = 3 if times[name][-1] < 1 else 1
                times[name].append(worker.run(operation, repeat)["seconds"])
                left[name] -= repeat * times[name][-1]
    return {name: statistics.median(values[1:] or values) for name, values in times.items()}


def ratios(times: dict[str, float]) -> dict[str, float]:
    """How many times pplseq's time each peer takes, in the peer's precision."""
    result = {}
    for name, seconds in times.items():
        if not name.startswith("pplseq"):
            own = times["pplseq float32" if "float32" in name else "pplseq float64"]
            result[name] = round(seconds / own, 2)
    return result
