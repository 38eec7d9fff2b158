"""Perplexity against the number of states, after figure 3 of Chiu and Rush (2020), and against time, on Penn Treebank.

    python scripts/reproduce/vlhmm_figure.py        # results/vlhmm_states.png

Every run of scripts/reproduce/vlhmm.py whose figures are in results/ is a point, and those of the queue vlhmm_states.txt, which
differ in states and topics alone, are two lines; needs matplotlib (extra `plot`).
"""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "results"
PAPER = {1 << 14: 136.0, 1 << 15: 125.0}  # validation, carried; 2^15 has 115.8 on test
FIVE_GRAM = 148.0
SHAPES = {"softmax": "s", "hierarchical": "o", "hierarchical, topics": "*"}


def runs() -> list[Path]:
    """Files of runs on Penn Treebank, but those of :func:`by_states`."""
    return [path for path in sorted(RESULTS.glob("vlhmm_ptb_*.json")) if "_states_topics_" not in path.stem]


def states_of(path: Path) -> int:
    return int(path.stem.split("_")[2])


def by_states(topics: int) -> list[tuple[int, float]]:
    """(states, validation perplexity) of runs of as many epochs."""
    found = sorted(RESULTS.glob(f"vlhmm_ptb_*_better_clusters_states_topics_{topics}.json"), key=states_of)
    values = [json.loads(path.read_text(encoding="utf-8"))["results"]["valid_carried"] for path in found]
    return [(states_of(path), value) for path, value in zip(found, values, strict=True)]


def points() -> list[tuple[int, float, str, str]]:
    """(states, validation perplexity, transition, name) of every run on Penn Treebank."""
    found = []
    for path in runs():
        entry = json.loads(path.read_text(encoding="utf-8"))
        command, words = entry["command"].split(), entry["train_command"].split()
        states = int(command[command.index("--num-states") + 1])
        if "--transition" in words:
            transition = words[words.index("--transition") + 1]
        else:  # what goes on with another run is hierarchical
            transition = "softmax" if words[0] == "pplseq" else "hierarchical"
        transition += ", topics" * ("--num-topics" in words)
        found.append((states, entry["results"]["valid_carried"], transition, path.stem.removeprefix("vlhmm_ptb_")))
    return found


def curves() -> list[tuple[str, list[float], list[float]]]:
    """(name, minutes, validation perplexities) of every run on Penn Treebank that kept its validations."""
    found = []
    for path in runs():
        rows = json.loads(path.read_text(encoding="utf-8")).get("training", {}).get("validations")
        if rows:
            name = path.stem.removeprefix("vlhmm_ptb_")
            found.append((name, [row["seconds"] / 60 for row in rows], [row["perplexity"] for row in rows]))
    return found


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (axes, over_time) = pyplot.subplots(1, 2, figsize=(14, 4.6), layout="constrained")
    axes.plot(list(PAPER), list(PAPER.values()), "k--^", label="paper, one softmax, GPU")
    for transition, shape in SHAPES.items():
        some = [(states, value) for states, value, kind, _ in points() if kind == transition]
        if some:
            axes.plot(*zip(*some, strict=True), shape, label=f"pplseq, {transition}, CPU")
    for topics, line in ((1, "-"), (8, "--")):
        if some := by_states(topics):
            name = f"pplseq, five epochs, {topics} topic{'s' * (topics > 1)}"
            axes.plot(*zip(*some, strict=True), f"{line}o", color="tab:purple", markersize=3, label=name)
    axes.axhline(FIVE_GRAM, color="grey", linewidth=1, label="Kneser-Ney 5-gram")
    axes.set(xscale="log", xlabel="states", ylabel="validation perplexity, carried", title="Penn Treebank")
    axes.set_xscale("log", base=2)
    axes.legend()
    colours, lines = pyplot.get_cmap("tab10").colors, ("-", "--", ":")
    for k, (name, minutes, values) in enumerate(curves()):
        over_time.plot(minutes, values, lines[k // len(colours) % len(lines)], color=colours[k % len(colours)], label=name)
    over_time.axhline(FIVE_GRAM, color="grey", linewidth=1)
    over_time.set(xscale="log", xlabel="minutes of this run", ylabel="validation perplexity, carried", ylim=(110, 260))
    over_time.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(RESULTS / "vlhmm_states.png", dpi=120)
    print(f"wrote {RESULTS.name}/vlhmm_states.png")


if __name__ == "__main__":
    main()
