"""What each choice of the very large HMM is worth at a small size, beside the paper's tables 2 and 3.

    python scripts/reproduce/vlhmm_ablations.py [--num-states 4096] [--epochs 2] [--runs runs]

Each variant differs from the base in what its name says and takes as many steps; validation perplexity, carried, and the
processor seconds of its training go to results/vlhmm_ablations.json, and as a table beside the paper's to vlhmm_ablations.md.
Variants whose runs are complete are not made again; one that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1] / "bench")]
from record import ROOT, data_folder, machine, record  # noqa: E402
from vlhmm import VARIANTS, history  # noqa: E402

BASE = (
    "--transition hierarchical --num-blocks 128 --hidden-size 128 --shared-layer --batch-size 64 --lr 0.006 --schedule linear"
)
CHOSEN = (
    "base", "better-clusters", "uneven-blocks", "uniform-blocks", "no-reset", "no-dropout", "factored", "untied", "32-blocks",
    "feature-dropout", "scalar",
)  # fmt: skip
MORE = {"feature-dropout": ["--feature-dropout", "0.2"], "untied": ["--untied", "--no-shared-layer"]}
PAPER = {  # validation perplexities at the end of training: Chiu and Rush (2020), tables 2 and 3
    "base": "134 (2^14, independent embeddings)", "factored": "136 (2^14)", "no-dropout": "145 (2^14)",
    "uniform-blocks": "150 at 2^13 and 146 at 2^14, where Brown blocks have 142 and 136",
    "32-blocks": "143 (2^14, appendix D)",
    "scalar": "169",
}  # fmt: skip


def table(rows: list[dict]) -> str:
    """The rows as Markdown."""
    lines = [f"| {row['variant']} | {row['valid_carried']:.1f} | {PAPER.get(row['variant'], '')} |" for row in rows]
    sizes = {(row["states"], row["epochs"]) for row in rows}
    head = [
        "# Ablations of the very large HMM on Penn Treebank",
        "",
        "Validation perplexity, carried, of " + ", ".join(f"{z:,} states after {n} epochs" for z, n in sorted(sizes)) + ", by",
        f"`{BASE}`. The paper's models were trained to the end; differences are to be compared, not values.",
        "",
        "| variant | here | paper |",
        "|---|---|---|",
    ]
    return "\n".join([*head, *lines]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-states", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--variants", nargs="*", default=CHOSEN)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    options = parser.parse_args()
    path = ROOT / "results" / "vlhmm_ablations.json"
    rows = json.loads(path.read_text())["results"] if path.exists() else []
    for variant in options.variants:
        name = f"ablation_{options.num_states}_{options.epochs}_{variant}"
        if any(row["run"] == name for row in rows):
            continue
        flags = [*BASE.split(), *(MORE.get(variant) or VARIANTS[variant])]
        command = ["train", "vlhmm", str(data_folder() / "ptb"), "--num-states", str(options.num_states), *flags]
        command += ["--epochs", str(options.epochs), "--validate-per-epoch", "1", "--threads", "1", "--device", "cpu"]
        run = options.runs / name
        before, stopped = os.times(), (run / "last").is_dir()
        arguments = ["train", "--resume", str(run)] if stopped else [*command, "--out", str(run)]
        subprocess.run([sys.executable, "-m", "pplseq", *arguments], check=True)
        after = os.times()
        seconds = after.children_user + after.children_system - before.children_user - before.children_system
        validations = [[row["step"], row["perplexity"]] for row in history(run)]
        rows.append(
            {
                "run": name, "variant": variant, "states": options.num_states, "epochs": options.epochs,
                "valid_carried": validations[-1][1], "validations": validations, "processor_seconds": round(seconds, 1),
                "load_average": [round(value, 2) for value in os.getloadavg()], "date": time.strftime("%Y-%m-%d"),
                "options": " ".join(flags), "seconds_are_of": "the last part" if stopped else "all",
                "processor": machine()["processor"],
            }
        )  # fmt: skip
        record("vlhmm_ablations", rows, folder=".")
    note = path.with_suffix(".md")
    read = note.read_text(encoding="utf-8").partition("\nRead:") if note.exists() else ("", "", "")
    note.write_text(table(rows) + "".join(read[1:]), encoding="utf-8")  # what a person wrote below the table stays


if __name__ == "__main__":
    main()
