"""Long-range dependency: strings of random 0s and 1s are classified by the symbol seen L steps before the end, L to 1,000.

    python scripts/reproduce/long_range.py
    python scripts/reproduce/long_range.py --parts networks --network-seconds 60
    python scripts/reproduce/long_range.py --lengths 10 100 --seeds 50 --name look      # for a look; kept in another file

The class symbol comes first and is followed by L to L + 2 others. 40 such strings and the empty one (rejected) are all there is
to learn from; what was learnt is tested on 1,000 others. Automata of 3 states are learnt by EM of three kinds:

    flat    every transition allowed, first tables from Dirichlet(1), whose states forget within a few symbols
    sharp   every transition allowed, first tables from Dirichlet(0.03), nearly deterministic
    latch   Dirichlet(1), but the first state has to be left and all others keep: the graph of one who knows that something is
            to be remembered, but not what

Shares are those of restarts whose automaton labels all 41 strings right: after EM, after EM and repairs, and after repairs of
the first tables, without any EM. Accuracy and exactness are those of the most frequent language among these restarts.

For comparison a tanh RNN and an LSTM of 16 units learn by gradients (Adam, batches of 32, gradients clipped at 1) from fresh
strings for some seconds: one setting, not tuned; the LSTM's forget gates start open, with a bias of 3. Seconds are those of the
processor, one thread. Rows are kept in results/long_range.json one by one.

Source: Bengio, Simard and Frasconi, Learning long-term dependencies with gradient descent is difficult (1994); Bengio and
Frasconi, An input output HMM architecture (1995), sections 1 and 6.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))
from record import command_line, git, record  # noqa: E402

NUM_STRINGS, NUM_TEST = 40, 1000
NUM_STATES = 3  # of the smallest automaton: nothing read, a 0 first, a 1 first
LANGUAGE = "1[01]*"
KINDS = {"flat": 1.0, "sharp": 0.03, "latch": 1.0}  # concentration of the first tables
UNITS, BATCH = 16, 32
FORGET_BIAS = 3.0
NETWORKS = ("rnn", "lstm")
PARTS = ("automata", "networks")


def draw_strings(number: int, length: int, seed: int) -> tuple[list[str], list[bool]]:
    """Strings whose class is the first symbol, of three lengths so that counting symbols does not help."""
    generator = random.Random(seed)
    strings = ["".join(generator.choices("01", k=length + generator.choice((1, 2, 3)))) for _ in range(number)]
    return strings, [string[0] == "1" for string in strings]


def learn_automata(length: int, options) -> dict:
    """Shares of restarts, and the most frequent language of each kind on other strings."""
    import numpy as np
    import torch

    from pplseq.models.automata.automaton import Automaton, distinct_automata
    from pplseq.models.automata.em import draw_tables, fit_tables
    from pplseq.models.automata.learner import hardened
    from pplseq.models.automata.prefix_tree import PrefixTree
    from pplseq.models.automata.repair import num_right, repair
    from pplseq.models.iohmm.restarts.history import RestartBlock

    strings, labels = draw_strings(NUM_STRINGS, length, seed=length)
    tree = PrefixTree.grow([*strings, ""], [*labels, False])
    test = draw_strings(NUM_TEST, length, seed=length + 1)
    language = Automaton.from_regex(LANGUAGE, "01")
    every = torch.ones(options.seeds, dtype=torch.bool)

    def score(tables) -> dict:
        """The share of consistent restarts, and how right their most frequent language is."""
        consistent = num_right(tree, tables) == len(tree.end)
        row = {"share": float(consistent.double().mean())}
        if consistent.any():
            automaton = distinct_automata(hardened(tables.restarts(consistent), tree.symbols))[0].automaton
            right = [automaton.accepts(string) == label for string, label in zip(*test, strict=True)]
            row |= {"accuracy": sum(right) / NUM_TEST, "exact": automaton.equals(language)}
        return row

    found = {}
    for kind, concentration in KINDS.items():
        blocks = (RestartBlock(options.seeds, concentration, fixed_start=True),)
        first = draw_tables(blocks, NUM_STATES, 2, 2, np.random.default_rng([length, len(found)]))
        if kind == "latch":
            first = latched(first)
        started = time.process_time()
        fitted, _ = fit_tables(tree, first, options.iterations)
        seconds = time.process_time() - started
        found[kind] = {"em": score(fitted) | {"seconds": seconds}}
        if kind != "latch":  # repairs know no graph
            started = time.process_time()
            repaired = repair(tree, fitted, every)
            seconds += time.process_time() - started
            found[kind]["em_and_repair"] = score(repaired) | {"seconds": seconds}
            found[kind]["repair_alone"] = score(repair(tree, first, every))
    return found


def latched(tables):
    """The same, with transitions from the first state to the others only, and from each of these to itself only."""
    import torch

    graph = torch.eye(NUM_STATES, dtype=tables.start.dtype)
    graph[0] = 1.0 - graph[0]
    transition = tables.transition * graph.unsqueeze(-1)
    return tables._replace(transition=transition / transition.sum(2, keepdim=True))


def train_network(kind: str, length: int, seconds: float) -> dict:
    """Accuracy of a recurrent network on other strings."""
    import torch
    from torch import nn

    torch.manual_seed(length)
    recurrent = {"rnn": nn.RNN, "lstm": nn.LSTM}[kind](2, UNITS, batch_first=True)
    read = nn.Linear(UNITS, 1)
    if kind == "lstm":  # with torch's start it learns not even 10 steps
        with torch.no_grad():
            recurrent.bias_ih_l0[UNITS : 2 * UNITS], recurrent.bias_hh_l0[UNITS : 2 * UNITS] = FORGET_BIAS, 0.0
    parameters = [*recurrent.parameters(), *read.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)

    def logits(bits):
        states, _ = recurrent(nn.functional.one_hot(bits, 2).float())
        return read(states[:, -1]).squeeze(-1)

    started, num_steps = time.process_time(), 0
    while time.process_time() - started < seconds:
        num_steps += 1
        bits = torch.randint(2, (BATCH, length + int(torch.randint(1, 4, ()))))
        loss = nn.functional.binary_cross_entropy_with_logits(logits(bits), bits[:, 0].float())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    seconds = time.process_time() - started
    with torch.no_grad():
        bits = torch.randint(2, (NUM_TEST, length + 1))
        accuracy = float(((logits(bits) > 0) == (bits[:, 0] > 0)).float().mean())
    return {"accuracy": accuracy, "steps": num_steps, "seconds": seconds}


def table(results: dict) -> str:
    """The results as markdown."""
    lines = [["L", "learner", "share of restarts", "accuracy", "exact", "seconds"], ["---"] * 6]
    for length, row in results.items():
        ways = {f"{kind}, {way.replace('_', ' ')}": own for kind in KINDS for way, own in row.get(kind, {}).items()}
        for name, own in (ways | {name: row[name] for name in NETWORKS if name in row}).items():
            shown = [f"{own[key]:.3f}" if key in own else "-" for key in ("share", "accuracy")]
            lines.append(
                [length, name, *shown, own.get("exact", "-"), f"{own['seconds']:.1f}" if "seconds" in own else "-"]
            )
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs="+", type=int, default=(10, 30, 100, 300, 1000), help="L")
    parser.add_argument("--seeds", type=int, default=200, help="restarts of each kind")
    parser.add_argument("--iterations", type=int, default=30, help="of EM")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--network-seconds", type=float, default=20.0, help="of training each network")
    parser.add_argument("--name", default="long_range", help="of the file in results")
    options = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    path = ROOT / "results" / f"{options.name}.json"
    results = json.loads(path.read_text())["results"] if path.is_file() else {}
    for length in options.lengths:
        row = results.setdefault(str(length), {})
        origin = {"commit": git("rev-parse", "--short", "HEAD"), "command": command_line(sys.argv)}
        if "automata" in options.parts:
            row |= learn_automata(length, options)
        if "networks" in options.parts:
            row |= {kind: train_network(kind, length, options.network_seconds) for kind in NETWORKS}
        row["origin"] = row.get("origin", {}) | {part: origin for part in options.parts}
        print(length, json.dumps(row), flush=True)
        protocol = "class: the symbol seen L steps before; 40 strings and the empty one; see the script's text"
        record(options.name, results, folder=".", protocol=protocol)
    print("\n" + table(results))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
