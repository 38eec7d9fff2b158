"""Tomita's seven languages: the paper's protocol beside its table, and a thousand restarts as one batch, with RPNI beside them.

    python scripts/reproduce/tomita.py
    python scripts/reproduce/tomita.py --parts repair --grammars 3 --first-draw 20 --name tomita_fresh
    python scripts/reproduce/tomita.py --table                    # the tables of what there is

Part `paper` (Bengio and Frasconi 1995, section 5): of each size n = 2 to 8, 20 trials of EM on Tomita's strings, Moore, every
transition allowed, labels given after the last symbol; tables and the start are drawn from Dirichlet(1) and all learnt, 300
iterations. A trial converges if every training string is labelled right. n* is the size whose converged trials label most of 20
random strings right on average, the smaller one of equals. Scores are those of converged trials on all 8,191 strings of length
<= 12, as networks (more than a half accepts); "exact" is the share of them whose hardened automaton has the language. All of it
is repeated with other seeds and strings: "best perfect" says in how many runs the best trial was.

Part `recipe`: AutomatonLearner(repair=False, merging=False), 1,000 restarts as one batch, the smallest consistent size. Every
draw is a run of its own, with other first tables and other validation strings; 20 and 50 strings choose from the same run.
Part `repair` is the same from the same first tables with repair=True, which is the learner's default. As choosing costs
nothing, each run also chooses by 200 further draws of validation strings (columns "further draws"). Seconds are those of the
processor, all sizes together, so that other work on the machine does not count; wall times are in the JSON.

EM alone missed the third language in one of the first 20 runs, and repairs were added after that; so results/tomita_fresh.json
has 20 runs of that language with seeds that were never used before.

Random strings are uniform over the 8,191. Rows are kept in results/tomita.json one by one, tables in results/tomita.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "bench"), str(ROOT / "examples")]
from record import command_line, git, record  # noqa: E402

PARTS = ("rpni", "paper", "recipe", "repair")
MAX_LENGTH = 12
SIZES = range(2, 9)
TRIALS = 20
VALIDATION = (20, 50)
FURTHER_DRAWS = 200
# Table 1: n*, states of the smallest automaton, convergence, average, worst and best accuracy, the best of Watrous and Kuhn
PAPER = {
    1: (2, 2, 0.600, 1.000, 1.000, 1.000, 1.000),
    2: (8, 3, 0.800, 0.965, 0.834, 1.000, 1.000),
    3: (7, 5, 0.150, 0.867, 0.775, 1.000, 0.783),
    4: (4, 4, 0.100, 1.000, 1.000, 1.000, 0.609),
    5: (4, 4, 0.100, 1.000, 1.000, 1.000, 0.668),
    6: (3, 3, 0.350, 1.000, 1.000, 1.000, 0.462),
    7: (3, 5, 0.450, 0.856, 0.815, 1.000, 0.557),
}
PAPER_HEAD = (
    "grammar", "n*", "paper", "convergence", "paper", "average", "paper", "worst", "paper", "best", "paper", "balanced",
    "exact", "best perfect",
)  # fmt: skip
REPEATED_HEAD = (
    "grammar",
    "n*, how often",
    "convergence",
    "average accuracy",
    "best perfect",
    "convergence at the paper's n*",
)
RECIPE_HEAD = (
    "grammar", "draws", "seeds", "exact, 20 strings", "exact, 50 strings", "further draws, 20", "further draws, 50",
    "languages", "right seeds, least", "processor s, most", "RPNI exact", "RPNI accuracy", "RPNI balanced",
)  # fmt: skip


def balanced_accuracy(predicted, truth) -> float:
    """The mean of the shares of right answers among strings of the language and among the others."""
    return float(predicted[truth].sum() / truth.sum() + (~predicted[~truth]).sum() / (~truth).sum()) / 2


def draw_seed(number: int, draw: int, part: int) -> int:
    """A seed of its own for each grammar, draw and use."""
    return (draw * 10 + number) * 10 + part


# ------------------------------------------------------------------------------------------------ the paper's protocol
def paper_part(grammar, options) -> dict:
    """The protocol's first run, and what became of it in all runs; the trials of all runs are one batch for each size."""
    import numpy as np
    import torch

    from pplseq.data.tomita import random_strings
    from pplseq.models.automata.em import SymbolTables, draw_tables, fit_tables
    from pplseq.models.automata.prefix_tree import PrefixTree
    from pplseq.models.iohmm.restarts.history import RestartBlock

    started = time.perf_counter()
    training = PrefixTree.grow(grammar.strings, grammar.labels)
    labels = torch.tensor(grammar.labels)
    validation = []
    for draw in range(options.draws):
        first_seed = draw_seed(grammar.number, options.first_draw + draw, 0)
        strings = random_strings(VALIDATION[0], MAX_LENGTH, seed=first_seed)
        wanted = torch.tensor([grammar.accepts(string) for string in strings])
        validation.append((PrefixTree.grow(strings, symbols="01"), wanted))
    sizes: list[list[tuple]] = [[] for _ in range(options.draws)]
    for size in SIZES:
        first = []
        for draw in range(options.draws):
            generator = np.random.default_rng([draw_seed(grammar.number, options.first_draw + draw, 1), size])
            first.append(draw_tables((RestartBlock(options.trials),), size, 2, 2, generator))
        joined = SymbolTables(*(torch.cat(tables, -1) for tables in zip(*first, strict=True)))
        joined, _ = fit_tables(training, joined, options.iterations)
        for draw, (tree, wanted) in enumerate(validation):
            tables = joined.restarts(slice(draw * options.trials, (draw + 1) * options.trials))
            converged = (accepted(training, tables) == labels.unsqueeze(-1)).all(0)
            right = (accepted(tree, tables) == wanted.unsqueeze(-1)).double().mean(0)
            score = float(right[converged].mean()) if converged.any() else -1.0
            sizes[draw].append((score, size, converged, tables))
    runs = [score_run(grammar, own) for own in sizes]
    n = str(PAPER[grammar.number][0])
    return {
        "first": runs[0],
        "repetitions": {
            "runs": len(runs),
            "best_perfect": statistics.fmean(run.get("best") == 1.0 for run in runs),
            "average": statistics.fmean(run.get("average", 0.0) for run in runs),
            "convergence": statistics.fmean(run["convergence"] for run in runs),
            "convergence_at_the_papers_n": statistics.fmean(run["convergence_of_sizes"][n] for run in runs),
            "n": sorted(run["n"] for run in runs),
        },
        "seconds": time.perf_counter() - started,
    }


def score_run(grammar, sizes: list[tuple]) -> dict:
    """n* of one run, and its converged trials on all strings."""
    import torch

    from pplseq.data.tomita import all_strings
    from pplseq.models.automata.automaton import Automaton
    from pplseq.models.automata.learner import hardened
    from pplseq.models.automata.prefix_tree import PrefixTree

    _, size, converged, tables = max(sizes, key=lambda found: (found[0], -found[1]))
    row = {
        "n": size,
        "convergence": float(converged.double().mean()),
        "convergence_of_sizes": {str(n): float(kept.double().mean()) for _, n, kept, _ in sizes},
    }
    if converged.any():
        strings = all_strings(MAX_LENGTH)
        truth = torch.tensor([grammar.accepts(string) for string in strings])
        kept = tables.restarts(converged.nonzero().squeeze(-1))
        predicted = accepted(PrefixTree.grow(strings, symbols="01"), kept)
        accuracy = (predicted == truth.unsqueeze(-1)).double().mean(0)
        language = Automaton.from_regex(grammar.regex, "01")
        row |= {
            "average": float(accuracy.mean()),
            "worst": float(accuracy.min()),
            "best": float(accuracy.max()),
            "balanced": statistics.fmean(balanced_accuracy(column, truth) for column in predicted.T),
            "exact": statistics.fmean(automaton.equals(language) for automaton in hardened(kept, "01")),
        }
    return row


def accepted(tree, tables):
    """(B, R) whether each network gives more than a half to accepting each string."""
    from pplseq.models.automata.em import label_probabilities

    return label_probabilities(tree, tables)[:, 1] > 0.5


# ------------------------------------------------------------------------------------------------ the recipe
def recipe_part(grammar, options, *, repair: bool) -> dict:
    """Independent runs of a thousand restarts, each with validation strings of its own."""
    from dataclasses import replace

    from pplseq.data.tomita import random_strings
    from pplseq.models.automata.automaton import Automaton
    from pplseq.models.automata.learner import RECIPE, AutomatonLearner

    language = Automaton.from_regex(grammar.regex, "01")
    blocks = [replace(block, num_restarts=options.seeds // len(RECIPE)) for block in RECIPE]
    seconds, processor, sizes, languages, right_seeds = [], [], [], [], []
    exact: dict[int, list[bool]] = {number: [] for number in VALIDATION}
    further: dict[int, list[bool]] = {number: [] for number in VALIDATION}
    alone = []
    for draw in range(options.first_draw, options.first_draw + options.draws):
        seed = draw_seed(grammar.number, draw, 2)
        learner = AutomatonLearner(blocks=blocks, max_iterations=options.iterations, seed=seed, repair=repair, merging=False)
        started = time.perf_counter(), time.process_time()
        found = learner.fit(grammar.strings, grammar.labels)
        seconds.append(time.perf_counter() - started[0])
        processor.append(time.process_time() - started[1])
        right = [candidate.automaton.equals(language) for candidate in found.candidates]
        sizes.append(found.sizes[-1].num_states)
        languages.append(len(right))
        right_seeds.append(sum(c.num_found for c, same in zip(found.candidates, right, strict=True) if same))
        alone.append(right[0])
        for number in VALIDATION:
            for again in range(1 + FURTHER_DRAWS):
                seed = draw_seed(grammar.number, draw, 3) * 1000 + number * 100_000_000 + again
                strings = random_strings(number, MAX_LENGTH, seed=seed)
                choice = found.choose(strings, [grammar.accepts(string) for string in strings])
                (further if again else exact)[number].append(right[choice.chosen])
    return {
        "draws": options.draws,
        "seeds": options.seeds,
        "exact": {str(number): statistics.fmean(found) for number, found in exact.items()},
        "exact_further_draws": {str(number): statistics.fmean(found) for number, found in further.items()},
        "exact_without_validation": statistics.fmean(alone),
        "n": sizes,
        "languages": languages,
        "right_seeds": right_seeds,
        "seconds": {
            "processor_mean": statistics.fmean(processor),
            "processor_most": max(processor),
            "wall_mean": statistics.fmean(seconds),
            "wall_most": max(seconds),
        },
    }


def rpni_part(grammar) -> dict:
    """RPNI on the same strings."""
    import numpy as np
    from rpni import rpni

    from pplseq.data.tomita import all_strings
    from pplseq.models.automata.automaton import Automaton

    try:
        started = time.perf_counter()
        automaton = rpni(grammar.strings, grammar.labels)
    except ImportError as error:
        return {"error": str(error)}
    seconds = time.perf_counter() - started
    strings = all_strings(MAX_LENGTH)
    truth = np.array([grammar.accepts(string) for string in strings])
    predicted = np.array([automaton.accepts(string) for string in strings])
    return {
        "exact": automaton.equals(Automaton.from_regex(grammar.regex, "01")),
        "accuracy": float((predicted == truth).mean()),
        "balanced": balanced_accuracy(predicted, truth),
        "states": automaton.num_states,
        "seconds": seconds,
    }


# ------------------------------------------------------------------------------------------------ tables
def markdown(head, rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def tables(results: dict) -> str:
    """The results as markdown."""
    parts = []
    rows = []
    for number, row in sorted(results["paper"].items()):
        first, repeated, paper = row["first"], row["repetitions"], PAPER[int(number)]
        cells = [number, first["n"], paper[0], f"{first['convergence']:.3f}", f"{paper[2]:.3f}"]
        for name, theirs in zip(("average", "worst", "best"), paper[3:6], strict=True):
            cells += [f"{first[name]:.3f}" if name in first else "-", f"{theirs:.3f}"]
        cells += [f"{first[name]:.3f}" if name in first else "-" for name in ("balanced", "exact")]
        rows.append([*cells, f"{repeated['best_perfect']:.2f} of {repeated['runs']}"])
    if rows:
        parts.append("The paper's protocol, first run, beside the paper's table\n\n" + markdown(PAPER_HEAD, rows))
        rows = []
        for number, row in sorted(results["paper"].items()):
            repeated = row["repetitions"]
            sizes = ", ".join(f"{n} ({repeated['n'].count(n)})" for n in sorted(set(repeated["n"])))
            shares = [
                repeated[name] for name in ("convergence", "average", "best_perfect", "convergence_at_the_papers_n")
            ]
            rows.append([number, sizes, *(f"{share:.3f}" for share in shares)])
        parts.append("All runs of the protocol\n\n" + markdown(REPEATED_HEAD, rows))
    found = [(part, seeds, rows) for part in ("recipe", "repair") for seeds, rows in results[part].items()]
    for part, seeds, grammars in found:
        rows = []
        for number, row in sorted(grammars.items()):
            rpni = results["rpni"].get(number, {})
            rows.append([
                number, row["draws"], seeds, *(f"{row['exact'][str(k)]:.2f}" for k in VALIDATION),
                *(f"{row['exact_further_draws'][str(k)]:.4f}" for k in VALIDATION),
                f"{min(row['languages'])} to {max(row['languages'])}", min(row["right_seeds"]),
                f"{row['seconds']['processor_most']:.1f}",
                rpni.get("exact", "-"), *(f"{rpni[k]:.3f}" if k in rpni else "-" for k in ("accuracy", "balanced")),
            ])  # fmt: skip
        title = f"{seeds} restarts as one batch" + (", automata repaired" if part == "repair" else ", EM alone")
        parts.append(f"{title}\n\n" + markdown(RECIPE_HEAD, rows))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--grammars", nargs="+", type=int, choices=sorted(PAPER), default=sorted(PAPER))
    parser.add_argument("--draws", type=int, default=20, help="runs of either part")
    parser.add_argument("--first-draw", type=int, default=0, help="number of the first run; others have other seeds")
    parser.add_argument("--trials", type=int, default=TRIALS, help="of the paper's protocol, for each size")
    parser.add_argument("--seeds", type=int, default=1000, help="of the recipe")
    parser.add_argument("--iterations", type=int, default=300, help="of EM")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="tomita", help="of the file in results")
    parser.add_argument("--table", action="store_true", help="only make the tables of what there is")
    options = parser.parse_args()

    import torch

    from pplseq.data.tomita import tomita

    torch.set_num_threads(options.threads)
    path = ROOT / "results" / f"{options.name}.json"
    results = {part: {} for part in PARTS}
    if path.is_file():
        results |= json.loads(path.read_text())["results"]
    origin = {
        "commit": git("rev-parse", "--short", "HEAD"),
        "command": command_line(sys.argv),
        "threads": options.threads,
    }
    for number in () if options.table else options.grammars:
        grammar = tomita(number)
        for part in options.parts:
            if part == "paper":
                row = results["paper"][str(number)] = paper_part(grammar, options) | origin
            elif part in ("recipe", "repair"):
                row = results[part].setdefault(str(options.seeds), {})[str(number)] = (
                    recipe_part(grammar, options, repair=part == "repair") | origin
                )
            else:
                row = results["rpni"][str(number)] = rpni_part(grammar) | origin
            print(number, part, json.dumps(row), flush=True)
        protocol = "Tomita's training strings; tested on all 8,191 strings of length <= 12; see the script's text"
        record(options.name, results, folder=".", protocol=protocol)
    path.with_suffix(".md").write_text(tables(results) + "\n")
    print("\n" + tables(results))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
