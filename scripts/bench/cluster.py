"""Counting and EM on the workers of a Dask cluster on this machine, beside one process: time, memory, and equal numbers.

    OMP_NUM_THREADS=1 python scripts/bench/cluster.py [--megabytes 105] [--data FOLDER]

The text is that of the books (Gutenberg, 18 million words), unpacked; it is read from --data, else PPLSEQ_DATA, else
../shared/data beside the repository. Wall seconds and processor seconds (of the head and of all workers) stand side by side; on
a machine with as many cores as workers, and nothing else to do, the wall seconds tell. The growth of a part's counts with its
size, and the cost of adding two up, are what scripts/bench/cluster_plan.py reckons with.
"""

import argparse
import lzma
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from record import data_folder, record

BOOKS = "gutenberg/gutenberg.train.txt.xz"
MAX_LAG, MAX_VOCABULARY, PART_BYTES = 7, 200_000, 1 << 25
EM_STATES, EM_TOKENS, EM_ITERATIONS = 32, 100_000, 4


def peak_megabytes():
    """Of this process alone."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def clock(work, client=None):
    """(what it gives, {wall and processor seconds, of workers too})."""

    def workers():
        return 0.0 if client is None else sum(client.run(time.process_time).values())

    began = time.perf_counter(), time.process_time(), workers()
    result = work()
    ended = time.perf_counter(), time.process_time(), workers()
    names = ("wall_seconds", "processor_seconds", "processor_seconds_of_workers")
    return result, {name: round(b - a, 2) for name, a, b in zip(names, began, ended, strict=True)}


def counting(path, workers, folder):
    """Counts of the books in a folder, by one process or on a cluster."""
    from pplseq.data.lag_files import load_counts, save_counts
    from pplseq.data.lag_streaming import count_lags
    from pplseq.recipes.counting import count_on
    from pplseq.runs.cluster import connected

    place, words = Path(folder) / f"counts{workers}", {"max_vocabulary": MAX_VOCABULARY}
    if not workers:
        place, times = clock(lambda: save_counts(count_lags(path, MAX_LAG, folder=folder, **words), place))
        return load_counts(place), times
    with connected(f"local:{workers}") as cluster:
        cluster.each(len, [([],)] * workers)  # pplseq is loaded there
        place, times = clock(lambda: count_on(cluster, path, MAX_LAG, place, part_bytes=PART_BYTES, **words), cluster.client)
        times["peak_megabytes_of_a_worker"] = round(max(cluster.client.run(peak_megabytes).values()))
    return load_counts(place), times


def em(path, workers):
    """EM of a hidden Markov model of the first 2,000 words of a text, others by their number's remainder; a line a row."""
    import pplseq
    from pplseq.data.text import read_text
    from pplseq.runs.cluster import connected

    rows = [row % 2000 for row in read_text(path).lines() if len(row) > 1]
    ends = np.cumsum([len(row) for row in rows])
    rows = rows[: int(np.searchsorted(ends, EM_TOKENS))]
    how = dict(seed=0, max_iterations=EM_ITERATIONS, tolerance=0.0, batch_size=1000)

    def fit(cluster=None):
        return pplseq.HMM(EM_STATES, num_words=2000).fit(rows, **how, cluster=cluster).history.log_likelihoods

    if not workers:
        return clock(fit)
    with connected(f"local:{workers}") as cluster:
        return clock(lambda: fit(cluster), cluster.client)


def growth(path, vocabulary):
    """Entries of the counts of 1, 2, 4, ... parts, and the seconds to add two halves up."""
    from pplseq.data.lag_counts import LagCounts
    from pplseq.data.lag_streaming import count_lags
    from pplseq.data.text_parts import files_of, parts_of

    counts = [count_lags(part.stream(), MAX_LAG, vocabulary=vocabulary) for part in parts_of(files_of(path), "line", 1 << 22)]
    rows = []
    while len(counts) > 1:
        pairs = list(zip(counts[::2], counts[1::2], strict=False))
        began = time.process_time()
        counts = [LagCounts.merge(*pair) for pair in pairs]
        seconds = (time.process_time() - began) / len(counts)
        entries = float(np.mean([sum(matrix.nnz for matrix in each.lags) for each in counts]))
        tokens = float(np.mean([each.num_tokens for each in counts]))
        rows.append({"tokens": round(tokens), "entries": round(entries), "seconds_to_add": round(seconds, 4)})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--megabytes", type=float, default=200.0, help="of the text, at most")
    arguments = parser.parse_args()
    results, load = {}, os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "books.txt"
        with lzma.open((arguments.data or data_folder()) / BOOKS) as books:
            text = books.read(int(arguments.megabytes * 1e6))
        path.write_bytes(text[: text.rindex(b"\n") + 1])
        one = None
        for workers in (0, 1, 2):
            counts, times = counting(path, workers, folder)
            one = counts if one is None else one
            assert counts == one, "the counts differ"
            results[f"counting, {workers or 'no'} workers"] = times
            print(workers, times, flush=True)
        likelihoods = None
        small = Path(folder) / "small.txt"
        small.write_bytes(text[: text.index(b"\n", 6 * EM_TOKENS) + 1])
        for workers in (0, 1, 2):
            found, times = em(small, workers)
            likelihoods = found if likelihoods is None else likelihoods
            np.testing.assert_allclose(found, likelihoods, rtol=1e-10)
            results[f"EM, {workers or 'no'} workers"] = times
            print(workers, times, flush=True)
        grown = growth(path, one.vocabulary)
        header = {"tokens": one.num_tokens, "bytes": path.stat().st_size, "words": one.num_words}
    record(
        "cluster", results, text=header, growth=grown, max_lag=MAX_LAG, part_bytes=PART_BYTES, load=load,
        em={"states": EM_STATES, "tokens": EM_TOKENS, "iterations": EM_ITERATIONS}, threads=os.environ.get("OMP_NUM_THREADS"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
