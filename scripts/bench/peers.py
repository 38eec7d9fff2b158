"""Small and large HMMs, linear dynamical systems, regimes and taggers against their peers, in one run.

Each library works in a process of its own, one thread, and they take turns run by run, so that a machine that drifts slows
all of them. Times are those of the processor: other work on a shared machine does not count. They are minima of several
runs, of whole calls as a user makes them, after all results were compared. Some peers may live in another environment (dynamax
brings jax): name its interpreter.

    python scripts/bench/peers.py [--groups small long ...] [--only hmm|ragged|lds|iohmm|crf] [--peers-python PATH]

Rows are measured by groups, as all of them together take an hour: those of other groups stay as they were, each with the
commit and the load of its own run. Writes ``results/bench/peers.json``, and from it the page ``peers.md``, rows where a peer
wins first, and the picture.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys

import hmm_peers
import kalman_peers
import numpy as np
import ragged_peers
import regime_peers
import tagging_peers
from turns import Worker, answer_turns

SUITES = {"hmm": hmm_peers, "ragged": ragged_peers, "lds": kalman_peers, "iohmm": regime_peers, "crf": tagging_peers}
# sizes (K, or h and n) and shapes (rows, steps)
GROUPS = {
    "small": {
        "hmm": [(2, (1, 10)), (2, (1, 100)), (4, (1, 100))],
        "lds": [((1, 1), (1, 10)), ((4, 2), (1, 100))],
    },
    "long": {
        "hmm": [(4, (1, 10_000)), (16, (1, 10_000)), (64, (1, 2_000)), (4, (1, 1_000_000)), (16, (1, 100_000))],
        "lds": [((4, 2), (1, 5_000)), ((2, 1), (1, 100_000)), ((8, 4), (1, 1_000)), ((16, 4), (1, 1_000))],
    },
    "rows": {
        "hmm": [(4, (64, 100)), (16, (64, 100)), (64, (64, 100)), (2, (1_024, 10))],
        "lds": [((4, 2), (256, 100)), ((16, 4), (64, 100)), ((50, 10), (256, 100)), ((1, 1), (1_024, 100))],
    },
    "large": {
        "hmm": [(128, (16, 100)), (128, (1, 2_000)), (256, (16, 100)), (512, (1, 500)), (512, (4, 100))],
        "lds": [((100, 10), (16, 100)), ((200, 20), (16, 100)), ((4, 2), (1_024, 100)), ((16, 4), (1_024, 100))],
    },
    "ragged": {"ragged": [(2, (200, 200)), (4, (200, 200)), (16, (200, 200))]},
    "regimes": {"iohmm": [(2, (1, 1_000)), (2, (1, 100_000))]},
    "tagging": {"crf": [(2_000, (1, 1))]},  # its suite says how many words each line is about
}
# EM to the likelihood that so many plain iterations reach
FITS = {"hmm": [(4, (64, 100)), (16, (1, 10_000))], "lds": [((4, 2), (1, 5_000)), ((4, 2), (64, 100))]}
SLOW = {"pykalman": 2_000, "statsmodels": 30_000, "pyro": 30_000}  # steps in all that such a library is asked for, at most
TOLERANCE = 1e-6
ROUNDS = 7


# ------------------------------------------------------------------------------------------------ the worker's side
class Work(dict):
    """The runs of a library, by "suite variant size shape operation", made when first asked for."""

    def __init__(self, library: str):
        super().__init__()
        self.library = library

    def parse(self, line: str):
        suite, variant, size, shape, operation = json.loads(line)
        size = tuple(size) if isinstance(size, list) else size
        return SUITES[suite], variant, size, tuple(shape), operation

    def __missing__(self, line: str):
        suite, variant, size, shape, operation = self.parse(line)
        self.clear()  # of another case, with its data
        for name, run in suite.LIBRARIES[self.library](size, variant, shape).items():
            self[json.dumps([*json.loads(line)[:-1], name])] = run
        return self[line]

    def digest(self, line: str, value) -> list[float]:
        suite, _, size, shape, operation = self.parse(line)
        return suite.digest(operation, value, size, shape)


# what a library has nothing for
LACKS = {
    "hmm": {"hmmlearn": {"gradient"}},
    "lds": {
        "statsmodels": {"gradient", "em", "fit"}, "pykalman": {"gradient", "em", "fit"},
        "pyro": {"smooth", "gradient", "em", "fit"},
    },
}  # fmt: skip


# ------------------------------------------------------------------------------------------------ one row of the table
def measure(workers: dict[str, Worker], suite: str, size, shape, operation: str, patience: float) -> dict:
    """Seconds of each library's fastest run; ends the program where results differ."""
    asked = {}
    for library, variants in SUITES[suite].VARIANTS.items():
        too_slow = suite == "lds" and shape[0] * shape[1] > SLOW.get(library, np.inf)
        if library in workers and operation not in LACKS.get(suite, {}).get(library, ()) and not too_slow:
            for variant in variants:
                name = f"{library} {variant}".strip()
                asked[name] = workers[library], json.dumps([suite, variant, size, shape, operation])
    times: dict[str, float] = {}
    digests, used = {}, dict.fromkeys(asked, 0.0)
    for turn in range(ROUNDS + 1):
        for name, (worker, line) in asked.items():
            if used[name] > patience:
                continue
            repeat = 1 if turn == 0 or times.get(name, 0) > 0.3 else 5
            answer = worker.run(line, repeat)
            if turn == 0:  # compilation included
                digests[name] = answer["digest"]
            else:
                used[name] += answer["seconds"] * repeat
                times[name] = min(times.get(name, np.inf), answer["seconds"])
    for name, found in list(digests.items()):
        if not np.isfinite(found).all() and name != "pplseq":
            print(f"{suite} {size} {shape} {operation}: {name} gives {found}, left out", file=sys.stderr)
            del times[name]
            continue
        tolerance = getattr(SUITES[suite], "TOLERANCE", TOLERANCE)
        close = np.allclose(found, digests["pplseq"], rtol=tolerance, atol=tolerance * abs(digests["pplseq"][0]))
        if not close:
            raise SystemExit(f"{suite} {size} {shape} {operation}: {name} gives {found}, pplseq {digests['pplseq']}")
    return times


# ------------------------------------------------------------------------------------------------ the page
NAMES = {"hmm": "HMM", "ragged": "HMM, ragged", "lds": "LDS", "iohmm": "IOHMM", "crf": "CRF"}
SIZES = {"hmm": "K = {}", "ragged": "K = {}", "lds": "h = {}, n = {}", "iohmm": "K = {}", "crf": "{:,} sentences"}


def write_page() -> None:
    """results/bench/peers.md and peers.png from the last run."""
    from record import ROOT

    folder = ROOT / "results" / "bench"
    entry = json.loads((folder / "peers.json").read_text())
    lines, points, commits = [], {}, sorted({row["commit"] for row in entry["results"]})
    for row in entry["results"]:
        seconds = dict(row["processor seconds"])
        own = seconds.pop("pplseq")
        if not seconds:  # no peer could do it
            continue
        peer, best = min(seconds.items(), key=lambda item: item[1])
        rows, steps = row["shape"]
        size = SIZES[row["suite"]].format(*(row["size"] if isinstance(row["size"], list) else [row["size"]]))
        unit = 1e6 / (rows * steps)
        others = ", ".join(f"{name} {value * unit:.3g}" for name, value in sorted(seconds.items(), key=lambda item: item[1]))
        cells = [NAMES[row["suite"]], row["operation"], size, f"{rows} x {steps:,}", f"{own * unit:.3g}", others]
        lines.append((best / own, "| " + " | ".join([*cells, f"{best / own:.2g}"]) + " |"))
        states = row["size"][0] if isinstance(row["size"], list) else row["size"]
        points.setdefault((row["suite"], row["operation"]), []).append((states, own * unit, best * unit))
    machine, loads = entry["machine"], [row["load"] for row in entry["results"]]
    processors = " and ".join(sorted({row["processor"] for row in entry["results"]}))
    behind = sum(ratio < 1 for ratio, _ in lines)
    page = (
        "# Against other libraries\n\n"
        "Processor time of a whole call in microseconds a step and row (em: an iteration; fit: EM to the likelihood that\n"
        "20 plain iterations reach; train: all of it, by word), float64, one thread, the\n"
        "fastest of several runs in turn; results were compared first. The last column: how many times ours the best peer\n"
        f"takes; below 1 the peer wins. Rows by that ratio: {behind} of {len(lines)} are below 1.\n\n"
        f"`{entry['command']}`, by groups, commits {', '.join(commits)}, {entry['date']}, {processors},\n"
        f"load {min(loads):.0f} to {max(loads):.0f} on {machine['cores']} cores, Python {machine['python']}, torch "
        f"{machine['torch']}.\n\n"
        "| | | size | rows x steps | pplseq | peers | peer / pplseq |\n|---|---|---|---|---|---|---|\n"
    )
    page += "\n".join(line for _, line in sorted(lines)) + "\n\n![time against size](peers.png)\n"
    (folder / "peers.md").write_text(page)
    draw(points, folder / "peers.png")


def draw(points: dict, path) -> None:
    """Log-log, time against size: a panel for each question."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = (len(points) + 1) // 2
    figure, axes = pyplot.subplots(2, columns, figsize=(2.6 * columns, 5), squeeze=False)
    for axis in axes.flat[len(points) :]:
        axis.axis("off")
    for axis, ((suite, operation), found) in zip(axes.flat, points.items(), strict=False):
        states, own, best = zip(*sorted(found), strict=True)
        axis.loglog(states, own, "o", label="pplseq", mfc="none")
        axis.loglog(states, best, "x", label="best peer")
        axis.set(title=f"{NAMES[suite]} {operation}", xlabel=SIZES[suite].split(" =")[0].removeprefix("{:,} "))
    for row in axes:
        row[0].set_ylabel("microseconds a step")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", nargs="+", choices=[*GROUPS, "fit"], default=[*GROUPS, "fit"], help="of sizes")
    parser.add_argument("--only", choices=SUITES, help="one kind of model")
    parser.add_argument("--peers-python", default=os.environ.get("PEERS_PYTHON"), metavar="PATH",
                        help="interpreter of an environment with the peers that are not installed here")  # fmt: skip
    parser.add_argument("--patience", type=float, default=2.0, help="processor seconds for one library and row")
    parser.add_argument("--page", action="store_true", help="write the page of the last run again")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work = Work(options.worker)
        return answer_turns(work, work.digest)
    if options.page:
        return write_page()
    from record import git

    suites = [options.only] if options.only else list(SUITES)
    workers = {}
    for library in dict.fromkeys(library for suite in suites for library in SUITES[suite].LIBRARIES):
        own = library in ("pplseq", "pyro") or importlib.util.find_spec(library) is not None
        python = sys.executable if own else options.peers_python
        if python is None or not has(python, library):
            print(f"{library}: not installed here, left out", file=sys.stderr)
        else:
            workers[library] = Worker(python, __file__, library)
    for group in options.groups:
        for suite in suites:
            cases = (FITS if group == "fit" else GROUPS[group]).get(suite, ())
            for size, shape in cases:
                rows = []
                for operation in ["fit"] if group == "fit" else SUITES[suite].OPERATIONS:
                    seconds = measure(workers, suite, size, shape, operation, options.patience)
                    shown = SUITES[suite].shape_of(operation, size, shape) if hasattr(SUITES[suite], "shape_of") else shape
                    row = {"suite": suite, "operation": operation, "size": size, "shape": shown, "group": group}
                    row |= {"commit": git("rev-parse", "--short", "HEAD"), "load": round(os.getloadavg()[0], 1)}
                    row["processor seconds"] = {name: float(f"{value:.4g}") for name, value in seconds.items()}
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                keep(rows, options.peers_python)
    for worker in workers.values():
        worker.close()
    write_page()


def has(python: str, library: str) -> bool:
    """Whether an interpreter knows a library."""
    ask = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({library!r}) is None)"
    return subprocess.run([python, "-c", ask]).returncode == 0


def keep(rows: list[dict], private: str | None) -> None:
    """Puts rows into peers.json, in the place of those of the same case; a run that is stopped leaves what it has."""
    from record import ROOT, machine, record

    path = ROOT / "results" / "bench" / "peers.json"
    rows = json.loads(json.dumps(rows))  # tuples as lists
    names = ("suite", "operation", "size", "shape")
    new = [[row[name] for name in names] for row in rows]
    entry = json.loads(path.read_text()) if path.exists() else {"results": []}
    of_run = {name: entry.get(name) for name in ("commit", "load")}  # of rows that do not say
    of_run["processor"] = entry.get("machine", {}).get("processor")
    rows = [row | {"processor": machine()["processor"]} for row in rows]
    old = [of_run | row for row in entry["results"] if [row[name] for name in names] not in new]
    sys.argv = [a if a != private else "PATH" for a in sys.argv]  # no machine's paths in results
    record("peers", old + rows, threads=1)


if __name__ == "__main__":
    main()
