"""Kills, full disks, damaged files and odd lines by the thousand, added up in results/faults.json.

    python scripts/reproduce/faults.py kills --number 1000
    python scripts/reproduce/faults.py full                    # at every operation that writes, of every command
    python scripts/reproduce/faults.py damages --number 5000
    python scripts/reproduce/faults.py lines --number 100000

A call goes on where the last one stopped: its draws begin with the number of those that the file counts, and what it finds is
added. `commits` says of each command with which code it was tried, `operations` how many of its operations write; those that a
full disk is tried at are drawn, none twice, so that a part of them stands for all. `--new` counts from nothing, `--again
NAME,...` these commands (after something was mended), `--only NAME,...` leaves out the others, `--seconds` ends a call early.
What is done, and what counts as wrong, is said by tests/faults/ and by the files of tests/support/ that hold it. TMPDIR on a
file system in memory makes it much faster.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "bench"), str(ROOT / "tests")]
from record import command_line, git, record  # noqa: E402

FILE = ROOT / "results" / "faults.json"
GOALS = {"kills": 1000, "damages": 5000, "lines": 100_000}
LINES = 500  # asked about at a time
ONLY: set[str] = set()  # names of commands that are killed, or whose disk is full; all where there are none
OPERATIONS: dict[str, int] = {}  # that write, by command
Found = tuple[str, int, str | None]  # of what, how many trials, and what is wrong


def commands(place: Path) -> tuple[dict, dict, dict]:
    """(what trains, learns or counts; what writes files alone; the data)."""
    from support.faulty_disk import command, import_everything, warm
    from support.small_runs import small_runs, small_writers, write_data

    import_everything()
    (place / "data").mkdir()
    data, counts = write_data(place / "data"), place / "data" / "counts"
    warm(command("count", data["text.txt"], "--max-lag", 4, "--out", counts))
    runs = small_runs(data, counts)
    for name in ("vlhmm", "lds", "iohmm", "strings", "tagger"):
        (place / "runs" / name).mkdir(parents=True)
        warm(runs[name](place / "runs" / name))
    return runs, small_writers(data, place / "runs"), data


def every_command(place: Path) -> dict[str, tuple]:
    """name -> (call, whether it writes files alone)."""
    runs, writers, _ = commands(place)
    found = {name: (begin, False) for name, begin in runs.items()}
    found |= {f"{name} (files)": (begin, True) for name, begin in writers.items()}
    return {name: call for name, call in found.items() if not ONLY or name in ONLY}


def kills(place: Path, number: int, done: Counter) -> Iterator[Found]:
    """A command after the other is killed at an operation drawn among those that write."""
    from support.faulty_disk import Kills

    found = every_command(place)
    for name, (begin, replaces) in found.items():
        if (left := math.ceil(number / len(found)) - done[name]) > 0:
            trials = Kills(place / name, begin, seed=done[name], replaces=replaces)
            for _ in range(left):
                yield name, 1, trials.kill()


def full(place: Path, number: int, done: Counter) -> Iterator[Found]:
    """The disk is full from each operation on that writes."""
    from support.faulty_disk import Kills

    for name, (begin, replaces) in sorted(every_command(place).items(), key=lambda item: not item[1][1]):  # short ones first
        trials = Kills(place / name, begin, replaces=replaces)
        OPERATIONS[name] = trials.num_operations
        for at in random.Random(name).sample(range(1, trials.num_operations + 1), trials.num_operations)[done[name] :]:
            yield name, 1, trials.fill(at)


def damages(place: Path, number: int, done: Counter) -> Iterator[Found]:
    """A file of a stored folder is damaged, and the folder is read."""
    from support.damaged import Damages, stored, stored_runs

    runs, _, data = commands(place)
    folders = {**stored(place), **stored_runs(place / "stored", data, runs)}
    for name, (folder, ask) in folders.items():
        trials = Damages(folder, ask, place / "broken", seed=done[name])
        for _ in range(math.ceil(number / len(folders)) - done[name]):
            yield name, 1, trials.damage()


def lines(place: Path, number: int, done: Counter) -> Iterator[Found]:
    """Odd lines are asked about, tagged and learned from."""
    from support.odd_lines import a_line, askers

    runs, _, data = commands(place)
    draw, found = random.Random(done.total()), askers(place / "asked", runs, data)
    for name, ask in found.items():
        if ONLY and name not in ONLY:
            continue
        for _ in range(math.ceil((number / len(found) - done[name]) / LINES)):
            asked, wrong = [a_line(draw) for _ in range(LINES)], None
            try:
                ask(asked)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            yield name, LINES, wrong


def results() -> dict:
    """What was counted so far, by part."""
    return json.loads(FILE.read_text())["results"] if FILE.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["kills", "full", "damages", "lines"])
    parser.add_argument("--number", type=int, help="of trials in all; default: the goal")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so many")
    parser.add_argument("--new", action="store_true", help="count from nothing")
    parser.add_argument("--again", default="", help="commands that are counted from nothing, the others staying as they are")
    parser.add_argument("--only", default="", help="these commands or questions, and no others")
    options = parser.parse_args()
    ONLY.update(name for name in options.only.split(",") if name)
    before = {} if options.new else results().get(options.part, {})
    again = [name for name in options.again.split(",") if name]
    counts = Counter({name: count for name, count in before.get("of", {}).items() if name not in again})
    began_with = set(counts)
    wrong = [found for found in before.get("wrong", []) if found.partition(": ")[0] not in again]
    commits = before.get("commits", {name: f"{before['commit']} or before" for name in counts})
    began, commit, processor = time.monotonic(), git("rev-parse", "--short", "HEAD"), sum(os.times()[:4])

    def save() -> None:
        found = results()  # to which other parts may have been added meanwhile
        found[options.part] = {
            "trials": counts.total(), "wrong": wrong, "of": dict(counts), "commits": commits,
            "command": command_line(["scripts/reproduce/faults.py", *sys.argv[1:]]),
            **({"operations": {**before.get("operations", {}), **OPERATIONS}} if options.part == "full" else {}),
            "processor_seconds": round(before.get("processor_seconds", 0) + sum(os.times()[:4]) - processor, 1),
        }  # fmt: skip
        record("faults", found, folder="", goals=GOALS)

    number, saved = options.number or GOALS.get(options.part, 0), began
    with tempfile.TemporaryDirectory() as folder:
        for name, size, found in globals()[options.part](Path(folder), number, Counter(counts)):
            counts[name] += size
            if commit not in commits.get(name, ""):
                commits[name] = f"{commits[name]}, {commit}" if name in commits and name in began_with else commit
            if found is not None:
                print(f"{name}: {found}", flush=True)
                wrong.append(f"{name}: {found[:300]}")
            if time.monotonic() - saved > 60:
                save()
                saved = time.monotonic()
            if time.monotonic() - began > options.seconds:
                break
    save()
    print(f"{options.part}: {counts.total():,} trials, {len(wrong):,} wrong")


if __name__ == "__main__":
    main()
