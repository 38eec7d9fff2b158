"""Memory and time of rows of a million steps: what a call takes beyond its data, each question in a process of its own.

    python scripts/bench/long_rows.py [--steps 1000000] [--states 16]

The peak is that of the process's resident size during the call (Linux; torch's own memory is seen by no tracer of Python) less
what was resident when it began, data included; results count as taken. "factors" are calls of the kernels, on a chain whose
emissions are given. Times are the processor's, one thread. Writes ``results/bench/long_rows.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

from record import record
from turns import ONE_THREAD

KINDS = ("words", "gaussian", "factors")
QUESTIONS = {"score": "likelihood", "gradient": "forward and backward", "posterior": "(T, K) result", "viterbi": "best path"}
PROMISED = {"gradient": 150, "viterbi": 100}  # MB


def model_calls(kind: str, num_states: int) -> tuple[Callable, dict[str, Callable]]:
    """Data of so many steps, and what is asked."""
    import torch

    from pplseq.models import HMM

    torch.manual_seed(0)
    model = HMM(num_states, 100) if kind == "words" else HMM(num_states, num_features=1)
    model.load_state_dict(model.state_dict())  # its random numbers are meant

    def data(num_steps: int):
        if kind == "words":
            return torch.randint(100, (1, num_steps))
        return torch.randn(1, num_steps, 1, dtype=torch.float64)

    def gradient(x):
        model.zero_grad()
        model.log_joint(x).backward()

    return data, {"score": model.score, "gradient": gradient, "posterior": model.predict_proba, "viterbi": model.predict}


def factor_calls(num_states: int) -> tuple[Callable, dict[str, Callable]]:
    """The same of a chain in numbers, whose gradient in the emissions is a result."""
    import torch

    from pplseq.kernels import path_scan, scan

    def data(num_steps: int):
        tables = [torch.randn(*shape, dtype=torch.float64).log_softmax(-1) for shape in ((1, num_states), (num_states,) * 2)]
        return *tables, torch.randn(num_steps, 1, num_states, dtype=torch.float64)

    def forward(factors):
        init, log, emit = factors
        return scan.chain_log_prob(init, log, emit, None, True)

    def gradient(factors):
        factors = [factor.requires_grad_() for factor in factors]
        return torch.autograd.grad(forward(factors).log_prob.sum(), factors)

    def posterior(factors):
        return scan.smooth(scan.StepMatrices(factors[1], True), factors[2], forward(factors), None, pairs=False)[0]

    def viterbi(factors):
        return path_scan.viterbi_pass(factors[0], scan.StepMatrices(factors[1], True), factors[2], None)

    return data, {"score": forward, "gradient": gradient, "posterior": posterior, "viterbi": viterbi}


def resident(what: str = "VmRSS") -> float:
    """Megabytes that the process has in memory, or VmHWM, the most since its start or :func:`resident_since_now`."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(what)) * 1024 / 1e6


def resident_since_now() -> float:
    """What is resident; the most so far is forgotten, which compiling loops may have needed more than they will."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return resident()


def measure(kind: str, question: str, num_steps: int, num_states: int) -> dict:
    """In this process: peak and time of one call, after a small one that compiles the loops."""
    data, calls = factor_calls(num_states) if kind == "factors" else model_calls(kind, num_states)
    ask, x = calls[question], data(num_steps)
    ask(data(200))
    before = resident_since_now()
    start = time.process_time()
    result = ask(x)
    seconds = time.process_time() - start
    peak = resident("VmHWM") - before
    del result
    again = []
    for _ in range(2):  # pages are there now
        start = time.process_time()
        ask(x)
        again.append(time.process_time() - start)
    return {"peak MB": round(peak, 1), "us a step": round(1e6 * min(seconds, *again) / num_steps, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--states", type=int, default=16)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        import torch

        torch.set_num_threads(1)
        print(json.dumps(measure(*options.worker, options.steps, options.states)))
        return
    sizes = ["--steps", str(options.steps), "--states", str(options.states)]
    rows = []
    for kind in KINDS:
        for question in QUESTIONS:
            command = [sys.executable, __file__, *sizes, "--worker", kind, question]
            answer = subprocess.run(command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, check=True)
            rows.append({"kind": kind, "question": question, **json.loads(answer.stdout.splitlines()[-1])})
            print(json.dumps(rows[-1]), flush=True)
    more = {"threads": 1, "load": os.getloadavg()[0], "promised MB": PROMISED}
    record("long_rows", rows, steps=options.steps, states=options.states, **more)


if __name__ == "__main__":
    main()
