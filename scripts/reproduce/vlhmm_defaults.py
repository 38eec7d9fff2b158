"""Which settings train a very large HMM best in a short time on one core: curves on Penn Treebank, at equal processor time.

    python scripts/reproduce/vlhmm_defaults.py [--seconds 60] [--num-states 4096] [--runs runs] [--variants ...]

Each variant differs from the base in what its name says, has the same seed and the same processor seconds of learning
(clustering and validation are not counted; the learning rate falls by that clock), and is judged on the validation text alone.
Rows go to results/vlhmm_defaults.json: [processor seconds, step, epochs, training perplexity since the last row (with dropout),
validation perplexity, carried; that of the averaged weights, if any]. A table goes to vlhmm_defaults.md. Variants that are
there are not made again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from record import ROOT, data_folder, record  # noqa: E402

from pplseq import checks  # noqa: E402
from pplseq.data.batches import StreamBatches  # noqa: E402
from pplseq.data.text import load_corpus  # noqa: E402
from pplseq.kernels.precision import matmul_precision  # noqa: E402
from pplseq.models import VLHMM  # noqa: E402
from pplseq.models.vlhmm.counts import start_from_counts  # noqa: E402
from pplseq.models.vlhmm.fit import cached_clusters, lay_out  # noqa: E402
from pplseq.runs.evaluation import score_text  # noqa: E402
from pplseq.runs.memory import keep_freed_memory  # noqa: E402
from pplseq.runs.settings import TrainSettings  # noqa: E402
from pplseq.runs.training import GradientTraining  # noqa: E402

BASE: dict[str, Any] = {
    "batch_size": 64, "lr": 0.006, "decay": 0.6, "state_dropout": 0.5, "final_dropout": None, "hidden_size": 128,
    "weight_decay": 0.0, "warm_up": 0, "average": None, "constant": False, "start": "random",
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "start from counts": {"start": "counts"},
    "batch 16, lr .003": {"batch_size": 16, "lr": 0.003},
    "no dropout": {"state_dropout": 0.0},
    "width 256": {"hidden_size": 256},
    "dropout .5 to 0": {"final_dropout": 0.0},
    "constant rate, averaged": {"constant": True, "average": 0.99},
    "lr .01": {"lr": 0.01},
    "batch 16, lr .006": {"batch_size": 16},
    "fall over all of the time": {"decay": 1.0},
    "warm-up of 100 steps": {"warm_up": 100},
    "lr .003": {"lr": 0.003},
    "dropout .25": {"state_dropout": 0.25},
    "dropout .1": {"state_dropout": 0.1},
    "dropout .25 to 0": {"state_dropout": 0.25, "final_dropout": 0.0},
}
VALIDATIONS = 4
BLOCKS = 128


def curve(chosen: dict[str, Any], options: argparse.Namespace, corpus: Any, clusters: Any) -> list[list[float]]:
    """The rows of one variant."""
    torch.manual_seed(0)
    names = ("hidden_size", "state_dropout")
    model = VLHMM(
        num_states=options.num_states, transition="hierarchical", shared_layer=True, **{name: chosen[name] for name in names}
    )
    lay_out(model, corpus.vocabulary, clusters)
    model.vocabulary = corpus.vocabulary
    if chosen["start"] == "counts":
        start_from_counts(model, corpus.train)
    settings = TrainSettings(
        epochs=10_000, log_interval=10**9, max_time=options.seconds, schedule="time", decay=chosen["decay"], lr=chosen["lr"],
        weight_decay=chosen["weight_decay"], final_dropout=chosen["final_dropout"],
    )  # fmt: skip
    training = GradientTraining(model, StreamBatches(corpus.train, chosen["batch_size"], 32), None, settings)
    average = None
    if chosen["average"] is not None:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(chosen["average"]))
    used, rows, progress = 0.0, [], training.progress
    training.clock = lambda: 0.0 if chosen["constant"] else used
    while used < options.seconds:
        before = time.process_time()
        training.ended()  # begins the next epoch where one is over
        warm = min(1.0, (progress.step + 1) / chosen["warm_up"]) if chosen["warm_up"] else 1.0
        training.settings = replace(settings, lr=warm * settings.lr)
        with checks.trusted(), matmul_precision("auto"):
            training.step()
        if average is not None:
            average.update_parameters(model)
        used += time.process_time() - before
        if used >= options.seconds * (len(rows) + 1) / VALIDATIONS:
            found = [evaluated(kind, corpus) for kind in (model, average and average.module) if kind is not None]
            epochs = progress.epoch + progress.position / training.num_steps
            learned = math.exp(progress.window_nats / progress.window_tokens)
            progress.window_nats, progress.window_tokens = 0.0, 0
            rows.append([round(used, 1), progress.step, round(epochs, 2), round(learned, 1), *found])
            print(rows[-1], flush=True)
            model.train()
    return rows


def evaluated(model: VLHMM, corpus: Any) -> float:
    """Validation perplexity, carried."""
    return round(score_text(model.eval(), corpus.valid, "carried").perplexity, 2)


def table(entries: list[dict[str, Any]]) -> str:
    """The last validations as Markdown."""
    lines = []
    for entry in entries:
        halfway, last = entry["curve"][len(entry["curve"]) // 2 - 1], entry["curve"][-1]
        size = f"{entry['states']:,} | {entry['seconds']:g}"
        what = f"{entry['name']} | {size} | {last[2]:.1f} | {last[3]:.0f} | {min(halfway[4:]):.1f} | {last[4]:.1f}"
        lines.append(f"| {what}{f' ({last[5]:.1f} averaged)' if len(last) > 5 else ''} |")
    head = [
        "# Settings of the very large HMM at equal processor time",
        "",
        "Penn Treebank, processor seconds of one core, `--transition hierarchical --shared-layer`, 128 Brown blocks; base:",
        "batch 64, learning rate .006 that falls over the last 60 % of the time, state dropout .5, width 128. Perplexity",
        "of the validation text, carried; curves: `vlhmm_defaults.json`.",
        "",
        "| variant | states | seconds | epochs | train, with dropout | validation at half time | validation at the end |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *lines]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--num-states", type=int, default=4096)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    corpus = load_corpus(data_folder() / "ptb")
    clusters = cached_clusters(options.runs / "vlhmm_defaults", corpus.train, "brown", BLOCKS)
    path = ROOT / "results" / "vlhmm_defaults.json"
    for name in options.variants:
        entries = json.loads(path.read_text())["results"] if path.exists() else []
        key = {"name": name, "states": options.num_states, "seconds": options.seconds}
        if any(key.items() <= entry.items() for entry in entries):
            continue
        print(name, flush=True)
        rows = curve(BASE | VARIANTS[name], options, corpus, clusters)
        load = [round(value, 2) for value in os.getloadavg()]
        entries.append({**key, **BASE, **VARIANTS[name], "curve": rows, "load_average": load})
        record("vlhmm_defaults", entries, folder=".")
        note = path.with_suffix(".md")
        read = note.read_text(encoding="utf-8").partition("\nRead:") if note.exists() else ("", "", "")
        note.write_text(table(entries) + "".join(read[1:]), encoding="utf-8")  # what a person wrote below the table stays


if __name__ == "__main__":
    main()
