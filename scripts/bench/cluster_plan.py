"""A trillion words on a thousand workers, reckoned from what was measured: results/cluster_plan.md.

    python scripts/bench/cluster_plan.py        (after scripts/bench/cluster.py)

A simulation of the parts (drawn slow machines, workers that die) and of the sum by ranges (sizes by the measured growth law,
the network, the storage), not a measurement.
"""

import heapq
import json
import math
from dataclasses import dataclass

import numpy as np
from record import ROOT

ENTRY_BYTES = 12  # an int64 count and an int32 column
STORED_BYTES = 8  # on the disk, counts below 2^32
RANGE_BYTES = 1 << 28  # of pplseq.recipes.count_ranges


@dataclass(frozen=True)
class Costs:
    """Of the work and of the machines.

    Args:
        seconds_per_byte: of a core, to read and count. scale, power: entries of the counts of n tokens are scale * n ** power.
        most_entries: V^2 a lag. seconds_per_entry: to add two counts up, of the entries of both.
        bytes_per_token: of text. storage, network: bytes a second, of all workers together and of one.
        slowness: standard deviation of the logarithm of a part's time. failures_per_hour: of a worker.
    """

    seconds_per_byte: float
    scale: float
    power: float
    most_entries: float
    seconds_per_entry: float
    bytes_per_token: float
    storage: float = 20e9
    network: float = 1.25e9
    slowness: float = 0.25
    failures_per_hour: float = 0.01

    def entries(self, tokens: float) -> float:
        """Of all lags, of so many tokens."""
        return min(self.scale * tokens**self.power, self.most_entries)


def count_parts(costs: Costs, num_parts: int, part_bytes: float, workers: int, seed: int = 0) -> dict:
    """Seconds until the last part is counted, each free worker taking the next one; a worker that dies loses its part."""
    generator = np.random.default_rng(seed)
    each = part_bytes * max(costs.seconds_per_byte, workers / costs.storage)
    times = each * np.exp(generator.normal(0, costs.slowness, num_parts))
    lost = 0
    free = [0.0] * workers
    heapq.heapify(free)
    for time in times.tolist():
        begin = heapq.heappop(free)
        while generator.random() < -math.expm1(-costs.failures_per_hour * time / 3600):
            begin, lost = begin + time * generator.random() + 60, lost + 1  # a new worker comes within a minute
        heapq.heappush(free, begin + time)
    busy = float(times.sum())
    return {"seconds": max(free), "lost": lost, "busy": busy / (max(free) * workers)}


def add_up(costs: Costs, num_parts: int, tokens: float, workers: int) -> dict:
    """The sum by ranges of words: what parts write and ranges read, and the seconds of all that.

    A range is added up as parts come, two of a size first; all ranges take about the same time.
    """
    size, pairs = tokens / num_parts, costs.entries(tokens)
    written = num_parts * costs.entries(size)
    ranges = math.ceil(min(written, costs.most_entries) * ENTRY_BYTES / RANGE_BYTES)
    added, count = 0.0, num_parts
    while count > 1:
        count, before, size = count / 2, costs.entries(size), size * 2
        added += 2 * before * count
    at_once = min(workers, ranges)
    link = min(costs.storage, at_once * costs.network)
    moved = written * STORED_BYTES / min(costs.storage, workers * costs.network) + (written + pairs) * STORED_BYTES / link
    rounds = math.ceil(ranges / at_once) * at_once / ranges  # the last ranges leave workers idle
    return {
        "seconds": moved + added * costs.seconds_per_entry / at_once * rounds, "moved": moved, "ranges": ranges,
        "terabytes": written * STORED_BYTES / 1e12, "gigabytes": pairs * ENTRY_BYTES / 1e9,
    }  # fmt: skip


def measured(path) -> tuple[Costs, dict]:
    """Costs from the figures of scripts/bench/cluster.py."""
    found = json.loads(path.read_text())
    tokens, entries, seconds = (np.array([row[k] for row in found["growth"]], dtype=float) for k in
                                ("tokens", "entries", "seconds_to_add"))  # fmt: skip
    power, log_scale = np.polyfit(np.log(tokens), np.log(entries), 1)
    one = found["results"]["counting, 1 workers"]
    text = found["text"]
    return Costs(
        seconds_per_byte=one["processor_seconds_of_workers"] / text["bytes"], scale=math.exp(log_scale), power=float(power),
        most_entries=float(found["max_lag"]) * text["words"] ** 2,
        seconds_per_entry=float(np.median(seconds[1:] / (2 * entries[:-1]))),
        bytes_per_token=text["bytes"] / text["tokens"],
    ), found  # fmt: skip


def against_one(results: dict) -> dict[str, float]:
    """Wall seconds of one process and of one and two workers, and how much more processor time workers take."""
    runs = [results[f"counting, {workers} workers"] for workers in ("no", 1, 2)]
    wall = dict(zip(("one", "first", "second"), (run["wall_seconds"] for run in runs), strict=True))
    spent = runs[2]["processor_seconds"] + runs[2]["processor_seconds_of_workers"]
    return wall | {"factor": spent / runs[0]["processor_seconds"]}


def duration(seconds: float) -> str:
    """As people read it."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def main():
    costs, found = measured(ROOT / "results" / "bench" / "cluster.json")
    rows = []
    for tokens, workers, part_bytes in (
        (1e9, 10, 64e6), (1e10, 100, 64e6), (1e11, 100, 256e6), (1e11, 1000, 256e6), (1e12, 1000, 64e6), (1e12, 1000, 1e9),
    ):  # fmt: skip
        num_parts = math.ceil(tokens * costs.bytes_per_token / part_bytes)
        counted = count_parts(costs, num_parts, part_bytes, workers)
        added = add_up(costs, num_parts, tokens, workers)
        seconds = counted["seconds"] + added["seconds"]
        rows.append(
            f"| {tokens:.0e} | {workers:,} | {num_parts:,} of {part_bytes / 1e6:,.0f} MB | {duration(counted['seconds'])} | "
            f"{counted['lost']} | {counted['busy']:.0%} | {added['terabytes']:,.2f} TB | {duration(added['seconds'])} | "
            f"{added['moved'] / added['seconds']:.0%} | {added['gigabytes']:,.0f} GB in {added['ranges']:,} ranges | "
            f"{seconds * workers / 3600:,.0f} |"
        )
    text = TEXT.format(
        rows="\n".join(rows), c=costs, found=found, mb=1e-6 / costs.seconds_per_byte,
        ns=costs.seconds_per_entry * 1e9, range_mb=RANGE_BYTES / 1e6, limit=costs.most_entries * ENTRY_BYTES / 1e9,
        **against_one(found["results"]),
    )  # fmt: skip
    (ROOT / "results" / "cluster_plan.md").write_text(text)
    print(text)


TEXT = """# A trillion words on a thousand workers: what to expect

**Reckoned, not measured**: a simulation by `python scripts/bench/cluster_plan.py` from the figures of one machine
(`results/bench/cluster.json`, commit {found[commit]}, {found[date]}). A worker is one core.

What was measured: a core reads and counts {mb:.1f} MB of text a second (words, then pairs at
{found[max_lag]} lags, and their sum); the counts of n tokens have {c.scale:.1f} n^{c.power:.3f} entries; adding two counts
up costs {ns:.0f} ns an entry. What is assumed: storage gives 20 GB a second to all workers together, a network link 1.25 GB a
second; the logarithm of a part's time has a standard deviation of {c.slowness}; a worker dies once in 100 hours, and
another comes within a minute.

One process counts the {found[text][tokens]:,} words and writes their counts in {one:.0f} s, one worker in {first:.0f}, two in
{second:.0f}, on a machine whose two cores a training and tests used as well: on a cluster parts are written, read and added
up, which costs {factor:.2f} times the processor's time.

## Counting (`pplseq count --max-lag {found[max_lag]} --cluster`), vocabulary of {found[text][words]:,} words

| words | workers | parts | counting | parts lost | busy | written | adding up | of it, storage | the sum | core hours |
|---|---|---|---|---|---|---|---|---|---|---|
{rows}

**Where the bottleneck is.** Parts share nothing: a straggler costs one part's time at the end, a dead worker one part. The sum
is added up by ranges of words of {range_mb:.0f} MB each, by all workers at once; a worker holds a range, and nobody the
sum, which grows until every pair of words has been seen ({limit:,.0f} GB at the most). What is left is the storage: the
parts' counts are written once and read once. Larger parts have fewer pairs (`--part-bytes`), as do a smaller
`--max-vocabulary` and fewer lags; and they make larger reads, as a range has its share of every part. By a tree with one
root, as it was before, the same sum took 3.9 hours, and a machine with memory for all of it.

The vocabulary comes first, of words that are numbered as the text is read; its sums are dictionaries of the words seen.
They are bounded by the number of different strings, which in raw text from the web never ends: a vocabulary made from a
sample (`--vocabulary FILE`) saves that.

## EM (`fit(..., cluster=)`)

The statistics of a hidden Markov model of K states and V words are K^2 + K V numbers, whatever the text: 1,024 states
and 50,000 words are 0.4 GB in float64, ten levels of them a second or two each on the links assumed, an iteration. So
an iteration is bound by the E-steps, as long as a worker's share takes longer than half a minute. Of data in memory the
head sends each part once, and holds them all itself; of files (`TextFiles`) the workers read a part at a time, in
every iteration, and nobody holds the text.

## Training by gradients

Many machines train by `torchrun` (docs/tutorials/scaling.md), not by this.
"""

if __name__ == "__main__":
    main()
