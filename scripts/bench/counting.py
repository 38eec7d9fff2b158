"""Time and memory of counting word pairs at 7 lags, reading included, beside a Python loop and scipy's COO matrices.

    OMP_NUM_THREADS=1 taskset -c 0 python scripts/bench/counting.py [--data FOLDER]

The texts are read from --data, else PPLSEQ_DATA, else ../shared/data beside the repository. Every run has a fresh
process; of three, the median time is kept. All three ways count the same pairs of the same file with the same vocabulary,
and their numbers are compared. The peers run on the Penn Treebank and on the first million words of the books; all of the
books is counted by pplseq alone, from the packed file, once with a given vocabulary and once with one made on the way.
"""

import argparse
import json
import lzma
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from record import ROOT, record

MAX_LAG, MAX_VOCABULARY = 7, 200_000
BOOKS, TREEBANK = "gutenberg/gutenberg.train.txt.xz", "ptb/ptb.train.txt"
PROMISED = 1e6  # tokens a second and lag on one core


def count_pplseq(path, vocabulary):
    import scipy.sparse  # noqa: F401 (loaded before the clock starts, as for the peers)

    from pplseq.data.lag_streaming import count_lags

    options = {"max_vocabulary": MAX_VOCABULARY} if vocabulary is None else {"vocabulary": vocabulary}
    began = time.perf_counter()
    counts = count_lags(path, MAX_LAG, **options)
    return time.perf_counter() - began, counts.num_tokens, [int(matrix.nnz) for matrix in counts.lags]


def read_ids(path, vocabulary):
    index, unknown, eos = vocabulary.index, vocabulary.unknown_id, vocabulary.eos_id
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            yield [index.get(word, unknown) for word in line.split()] + [eos]


def count_python(path, vocabulary):
    """A Counter of pairs for each lag."""
    began, num_tokens = time.perf_counter(), 0
    pairs = [Counter() for _ in range(MAX_LAG)]
    for ids in read_ids(path, vocabulary):
        num_tokens += len(ids)
        for lag in range(1, MAX_LAG + 1):
            pairs[lag - 1].update(zip(ids[lag:], ids[:-lag], strict=True))
    return time.perf_counter() - began, num_tokens, [len(counter) for counter in pairs]


def count_coo(path, vocabulary):
    """scipy's way: all pairs of a lag as a COO matrix of ones, duplicates added by tocsr."""
    import numpy as np
    from scipy.sparse import coo_array

    began = time.perf_counter()
    lines = list(read_ids(path, vocabulary))
    tokens = np.array([word for ids in lines for word in ids])
    line = np.repeat(np.arange(len(lines)), [len(ids) for ids in lines])
    entries = []
    for lag in range(1, MAX_LAG + 1):
        same = line[lag:] == line[:-lag]
        later, earlier = tokens[lag:][same], tokens[:-lag][same]
        shape = (len(vocabulary), len(vocabulary))
        matrix = coo_array((np.ones(len(later), dtype=np.int64), (later, earlier)), shape=shape).tocsr()
        matrix.sum_duplicates()
        entries.append(int(matrix.nnz))
    return time.perf_counter() - began, len(tokens), entries


WAYS = {"pplseq": count_pplseq, "python loop": count_python, "scipy coo": count_coo}


def peak_kilobytes():
    """Of this process alone; what getrusage tells begins with the peak of the parent."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def child(way, path, words):
    from pplseq.data import Vocabulary

    vocabulary = Vocabulary.load(words) if words else None
    before = peak_kilobytes()
    seconds, num_tokens, entries = WAYS[way](path, vocabulary)
    print(json.dumps({"seconds": seconds, "num_tokens": num_tokens, "num_entries": entries,
                      "peak_megabytes": peak_kilobytes() / 1024, "before_megabytes": before / 1024}))  # fmt: skip


def measure(way, path, words, repeat=3):
    command = [sys.executable, __file__, "--child", way, str(path), str(words or "")]
    runs = []
    for _ in range(repeat):
        runs.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    result = {**runs[0], "seconds": round(statistics.median(run["seconds"] for run in runs), 3)}
    result |= {name: round(result[name]) for name in ("peak_megabytes", "before_megabytes")}
    result["tokens_per_second_and_lag"] = round(result["num_tokens"] * MAX_LAG / result["seconds"])
    print(f"{way:12} {Path(path).name:28} {result}", flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PPLSEQ_DATA", ROOT.parent / "shared" / "data")))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(*arguments.child)

    from pplseq.data.lag_streaming import count_lags

    results = {}
    with tempfile.TemporaryDirectory() as folder:
        part, num_words = Path(folder) / "books.txt", 0
        with lzma.open(arguments.data / BOOKS, "rt", encoding="utf-8", newline="\n") as books, open(part, "w") as file:
            for line in books:
                num_words += len(line.split())
                file.write(line)
                if num_words >= 1_000_000:
                    break
        texts = {"penn treebank": arguments.data / TREEBANK, "first million words of the books": part}
        for name, path in texts.items():
            words = Path(folder) / "words.txt"
            count_lags(path, 1, max_vocabulary=MAX_VOCABULARY).vocabulary.save(words)
            ways = {way: measure(way, path, words) for way in WAYS}
            numbers = [(way["num_tokens"], way["num_entries"]) for way in ways.values()]
            assert all(number == numbers[0] for number in numbers), numbers
            ways["pplseq, vocabulary made on the way"] = measure("pplseq", path, None)
            results[name] = ways
        words = Path(folder) / "words.txt"
        count_lags(arguments.data / BOOKS, 1, max_vocabulary=MAX_VOCABULARY).vocabulary.save(words)
        results["all books, packed (.xz)"] = {
            "pplseq": measure("pplseq", arguments.data / BOOKS, words),
            "pplseq, vocabulary made on the way": measure("pplseq", arguments.data / BOOKS, None),
        }
    record(
        "counting",
        results,
        max_lag=MAX_LAG,
        max_vocabulary=MAX_VOCABULARY,
        threads=os.environ.get("OMP_NUM_THREADS"),
        cores_used=len(os.sched_getaffinity(0)),
        promised={"tokens_per_second_and_lag": PROMISED},
    )


if __name__ == "__main__":
    main()
