"""What a constraint costs: a word of the backward table by states D of the automaton, beside D steps taken one by one.

    python scripts/bench/constraints.py                 # 2^12 and 2^15 states, one softmax and hierarchical
    python scripts/bench/constraints.py --states 512    # something quick
    python scripts/bench/constraints.py --states 32768 --transitions hierarchical

What earlier runs measured of other models stays in the file, and says which run it is of. Models have random parameters (times
do not depend on them) and automata random moves, so that all D states are live at every word. The peer is the same recursion
with a product of its own for each state of the automaton, compared before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
from record import ROOT, record

from pplseq.infer.discrete.constrained.build import constrain
from pplseq.infer.discrete.constrained.moves import WordMoves
from pplseq.infer.discrete.constrained.steps import TiledSteps
from pplseq.infer.discrete.constrained.table import BackwardTable
from pplseq.infer.discrete.constrained.words import ClassEmission
from pplseq.models import VLHMM

CLASSES, WORDS, SAMPLES = 8, 10_000, 16


class Clock:
    """Wall and processor seconds of a block."""

    def __enter__(self) -> Clock:
        self.began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error) -> None:
        self.wall, self.processor = time.perf_counter() - self.began[0], time.process_time() - self.began[1]

    def shared(self, by: int, name: str) -> dict[str, float]:
        """Of each of so many."""
        return {f"{name}_seconds": round(self.wall / by, 4), f"{name}_processor_seconds": round(self.processor / by, 4)}


def model_of(states: int, transition: str, hidden: int):
    torch.manual_seed(0)
    blocks = torch.arange(WORDS) % (states // 32)
    return VLHMM(states, num_words=WORDS, blocks=blocks, hidden_size=hidden, transition=transition).eval()


def automaton(size: int) -> WordMoves:
    """One of random moves, half of whose states accept; a class holds most words."""
    generator = torch.Generator().manual_seed(size)
    classes = torch.randint(CLASSES, (WORDS,), generator=generator) * (torch.rand(WORDS, generator=generator) < 0.02)
    moves = torch.randint(size, (size, CLASSES), generator=generator)
    accepting = torch.rand(size, generator=generator) < 0.5
    return WordMoves.of(classes, moves, accepting | (torch.arange(size) == 0))


def one_by_one(steps: TiledSteps, weight: torch.Tensor) -> torch.Tensor:
    return torch.cat([steps.backward(row) for row in weight.split(1)])


@torch.no_grad()
def measured(states: int, transition: str, hidden: int, sizes: list[int], words: int, kept_bytes: float, peer_up_to: int):
    model = model_of(states, transition, hidden)
    specs = model.specs()
    steps = TiledSteps(specs[0], kept_bytes)
    about = {"states": states, "transition": transition, "hidden": hidden, "kept_bytes": int(kept_bytes)}
    stop = torch.full((words + 1,), -torch.inf)
    stop[-1] = 0.0
    with Clock() as clock:
        free = steps.backward(specs[0].initial.unsqueeze(0))  # what is kept is made here
    about |= clock.shared(1, "first_step")
    with Clock() as clock:
        for _ in range(words - 1):
            free = steps.backward(free)
    about |= clock.shared(max(1, words - 1), "free_step")
    behind = torch.full((1, states), -torch.inf)
    behind[0, :32] = 0.0  # one block
    with Clock() as clock:
        steps.forward(behind)
    about |= clock.shared(1, "step_behind_a_word")
    rows = []
    for size in sizes:
        moves = automaton(size)
        emission = ClassEmission(specs[1], moves)
        starts = torch.arange(size)
        with Clock() as clock:
            table = BackwardTable(steps, emission, moves, stop, starts)
        row = {"automaton_states": size} | clock.shared(words - 1, "table_word")  # one step less than words
        if size <= peer_up_to:
            weight = table.weights(1, starts)
            fast = steps.backward(weight)
            with Clock() as clock:
                slow = one_by_one(steps, weight)
            torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)
            row |= clock.shared(1, "one_by_one_word")
        with Clock() as clock:
            chain = constrain(*specs, moves, words, kept_bytes=kept_bytes)
            chain.steps, chain.__dict__["_table"] = steps, table
            drawn = chain.sample(SAMPLES)
        assert bool(moves.accepting[moves.run(drawn.words[:, 0])].all()), "all that is drawn satisfies the constraint"
        row |= clock.shared(words * SAMPLES, "drawn_token") | {"product_matrix_bytes": 4 * (size * states) ** 2}
        rows.append(row)
        print(about, row, flush=True)
    return about | {"automata": rows}


def earlier(name: str) -> list[dict]:
    """What is in the file, with the run each result is of."""
    path = ROOT / "results" / "bench" / f"{name}.json"
    if not path.exists():
        return []
    whole = json.loads(path.read_text())
    run = {key: whole[key] for key in ("command", "commit", "date", "load")}
    return [{"run": run} | result for result in whole["results"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--states", type=int, nargs="*", default=[1 << 12, 1 << 15])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--transitions", nargs="*", default=["softmax", "hierarchical"])
    parser.add_argument("--name", default="constraints")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    results = earlier(options.name)
    for states in options.states:
        large = states > 1 << 13
        for transition in options.transitions:
            sizes, words, peer = ([1, 16, 64], 2, 0) if large else ([1, 4, 16, 64, 256], 8, 64)
            found = measured(states, transition, options.hidden, sizes, words, 0 if large else 1 << 30, peer)
            which = states, transition, options.hidden
            results = [old for old in results if (old["states"], old["transition"], old["hidden"]) != which] + [found]
            load = os.getloadavg() if hasattr(os, "getloadavg") else None
            record(options.name, results, threads=torch.get_num_threads(), load=load, words=WORDS)


if __name__ == "__main__":
    main()
