"""Seconds of learning a linear dynamical system from lag counts: an EM iteration, its dependence on the text's length, scale.

    OMP_NUM_THREADS=1 python scripts/bench/asos.py [--counts FOLDER] [--iterations 3] [--skip-large]

Four cases. "length": texts of 1 and 10 million tokens of one generator, and the shorter one ten times over. "words 4000":
Penn Treebank's 4,000 most frequent words, 32 states, 7 lags. "check": the likelihood that EM sees against the filter's on
the same text. "words 200000": 200 states on the counts in FOLDER (made with `pplseq count` where it does not exist, from
the Gutenberg text below PPLSEQ_DATA). Everything on one thread except the last, which takes --threads.
"""

import argparse
import itertools
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from record import data_folder, peak_gigabytes, record, seconds

from pplseq.data.lag_counts import LagCounts
from pplseq.data.lag_files import load_counts
from pplseq.models.text_lds.asos import asos_statistics, maximize
from pplseq.models.text_lds.asos_em import fit_asos
from pplseq.models.text_lds.horizon import count_pairs, horizon_check
from pplseq.models.text_lds.lag_covariances import LagCovariances
from pplseq.models.text_lds.realisation import realise
from pplseq.models.text_lds.steady_state import SteadyState
from pplseq.models.text_lds.subspace import subspace_identification

NUM_STATES, MAX_LAG, LINE = 32, 7, 25
PROMISED = {"iteration_seconds": 0.1, "restricted_iteration_seconds": 0.005, "gigabytes": 24}


def generated_lines(num_tokens: int, num_words: int = 4000, num_classes: int = 40, seed: int = 0) -> np.ndarray:
    """(lines, 25) words of a hidden Markov model whose classes have Zipfian words."""
    rng = np.random.default_rng(seed)
    transition = rng.dirichlet(np.full(num_classes, 0.1), size=num_classes).cumsum(1)
    zipf = 1 / np.arange(1, num_words + 1)
    weights = zipf * rng.gamma(0.1, size=(num_classes, num_words))
    emission = (weights / weights.sum(1, keepdims=True)).cumsum(1)
    rng = np.random.default_rng((seed, num_tokens))
    num_lines = num_tokens // LINE
    words = np.empty((num_lines, LINE), dtype=np.int32)
    states = rng.integers(num_classes, size=num_lines)
    for t in range(LINE):
        draws = rng.random((2, num_lines))
        for state in range(num_classes):
            here = states == state
            words[here, t] = np.searchsorted(emission[state], draws[0, here]).clip(max=num_words - 1)
        following = (draws[1][:, None] > transition[states]).sum(1)
        states = following.clip(max=num_classes - 1)
    return words


def iteration(cov, parameters, repeat: int) -> float:
    """Median seconds of an E-step and an M-step."""

    def run():
        updated, emission_gram, _ = maximize(asos_statistics(parameters, cov), cov)
        SteadyState(updated, emission_gram=emission_gram)

    return seconds(run, repeat=repeat, warmup=1)


def measure(cov, repeat: int, num_states: int = NUM_STATES) -> dict:
    """A start, an EM iteration and one in the subspace."""
    identification = subspace_identification(cov, num_states)
    start = realise(identification, cov, "restricted", max_iterations=60)
    records = start.fit.history
    return {
        "pairs_stored": cov.num_pairs_stored,
        "iteration_seconds": iteration(cov, start.parameters, repeat),
        "restricted_iteration_seconds": (records[-1].seconds - records[0].seconds) / (len(records) - 1),
    }


def length_case(repeat: int) -> dict:
    results = {}
    for name, num_tokens in (("1x", 1_000_000), ("10x", 10_000_000)):
        lines = generated_lines(num_tokens)
        counts = SimpleNamespace(
            vocabulary=None, counts=np.bincount(lines.ravel(), minlength=4000), lags=count_pairs(lines, 4000, MAX_LAG)
        )
        results[name] = {"num_tokens": lines.size, **measure(LagCovariances.from_counts(counts, 50.0), repeat)}
        if name == "1x":
            counts = SimpleNamespace(
                vocabulary=None, counts=10 * counts.counts, lags=tuple(10 * matrix for matrix in counts.lags)
            )
            results["1x repeated 10 times"] = {
                "num_tokens": 10 * lines.size, **measure(LagCovariances.from_counts(counts, 50.0), repeat)
            }  # fmt: skip
    first = results["1x"]
    for entry in results.values():
        entry["slope"] = (entry["iteration_seconds"] / first["iteration_seconds"] - 1) / 9  # 1 if linear in the length
        entry["seconds_per_million_pairs"] = 1e6 * entry["iteration_seconds"] / entry["pairs_stored"]
    return results


def penn_treebank(folder: Path) -> LagCounts:
    from pplseq.data.text import load_corpus

    return LagCounts.from_text(load_corpus(folder / "ptb").train, MAX_LAG)


def words_case(counts: LagCounts, repeat: int) -> dict:
    return {
        name: measure(LagCovariances.from_counts(counts.cut(4000), 50.0, dtype=dtype), repeat)
        for name, dtype in (("float64", np.float64), ("float32", np.float32))
    }


def check_case(counts: LagCounts, folder: Path) -> dict:
    from pplseq.data.text import load_corpus

    lines = list(itertools.islice(load_corpus(folder / "ptb").train.lines(), 4000))
    results = {}
    for pseudo_counts in (50.0, 1000.0):
        cov = LagCovariances.from_counts(counts, pseudo_counts)
        identification = subspace_identification(cov, NUM_STATES)
        entry = {}
        for how in ("paper", "line_search", "restricted"):
            start = realise(identification, cov, how)
            fit = fit_asos(cov, start.parameters, max_iterations=29, tolerance=0.0)
            entry[how] = {"start": fit.history[0].gain, "after 29": fit.history[-1].gain}
        entry["restricted"]["check"] = horizon_check(fit.parameters, cov, lines, tolerance=np.inf)._asdict()
        results[f"{pseudo_counts:g} pseudo-counts"] = entry
    return results


def large_case(folder: Path, num_states: int, max_iterations: int, threads: int) -> dict:
    if not (folder / "counts.json").exists():
        source = data_folder() / "gutenberg" / "gutenberg.train.txt.xz"
        command = ["count", str(source), "--max-lag", str(MAX_LAG), "--max-vocabulary", "200000", "--out", str(folder)]
        subprocess.run([sys.executable, "-m", "pplseq", *command, "--digits", "NUM"], check=True)
    counts = load_counts(folder)
    results = {"num_words": counts.num_words, "num_tokens": counts.num_tokens, "num_states": num_states}
    results["threads"] = threads
    clock = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        results[name] = time.perf_counter() - clock
        print(name, round(results[name], 2), "s;", round(peak_gigabytes(), 2), "GB so far", flush=True)
        clock = time.perf_counter()

    cov = LagCovariances.from_counts(counts, 50.0, dtype=np.float32, num_threads=threads)
    del counts
    results["pairs_stored"] = cov.num_pairs_stored
    lap("covariances_seconds")
    identification = subspace_identification(cov, num_states)
    lap("subspace_seconds")
    start = realise(identification, cov, "restricted", max_iterations=30)
    lap("restricted_seconds")
    results["restricted_iteration_seconds"] = results["restricted_seconds"] / (len(start.fit.history) - 1)
    del identification
    fit = fit_asos(cov, start.parameters, max_iterations=max_iterations, tolerance=0.0)
    lap("em_seconds")
    times = [entry.seconds for entry in fit.history]
    results["iteration_seconds"] = float(np.median(np.diff(times)))
    results["gains"] = [entry.gain for entry in fit.history]
    results["gigabytes"] = peak_gigabytes()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--counts", type=Path, default=Path("gutenberg_counts"), help="folder of counts, made if absent"
    )
    parser.add_argument("--num-states", type=int, default=200, help="states of the large case")
    parser.add_argument("--iterations", type=int, default=3, help="EM iterations of the large case")
    parser.add_argument("--threads", type=int, default=2, help="threads of the large case")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--skip-large", action="store_true")
    parser.add_argument("--name", default="asos", help="of the result file")
    options = parser.parse_args()
    folder = data_folder()
    counts = penn_treebank(folder)
    results = {"words 4000": words_case(counts, options.repeat)}
    print(results, flush=True)
    results["length"] = length_case(options.repeat)
    print(results["length"], flush=True)
    results["check"] = check_case(counts, folder)
    print(results["check"], flush=True)
    del counts
    if not options.skip_large:
        results["words 200000"] = large_case(options.counts, options.num_states, options.iterations, options.threads)
    record(options.name, results, promised=PROMISED)


if __name__ == "__main__":
    main()
