"""A simple recurrent language model on Penn Treebank, started at random and from a linear dynamical system.

    python scripts/reproduce/lds_rnn.py                    # 200 units, about an hour on one core
    python scripts/reproduce/lds_rnn.py --units 300        # the paper's size, about half as long again
    python scripts/reproduce/lds_rnn.py --report           # figures of the runs that are there, no training

Trains both with the same schedule on the same text (a run that was stopped goes on where it was), and writes
results/lds_rnn.json and results/lds_rnn.png: validation perplexity against epoch, final validation and test perplexity.
Corpora are found through PPLSEQ_DATA.

Protocol: the text is one sequence, `<eos>` a word like any other; validation and test are single sequences too, with the
state carried from line to line; every token counts. Both starts have the unigram log-probabilities as output biases, so
that they differ in the recurrent part only. The LDS is trained on the same text's lag counts, over line ends too; how its
filter becomes a sigmoid network (offsets, scales, one gain fitted on training text) stands in `RNN.from_linear`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from record import ROOT, data_folder, record  # noqa: E402

PAPER = {"random": {"valid": 130.6, "test": 124.0, "epochs": 17}, "lds": {"valid": 128.1, "test": 122.8, "epochs": 12}}


def one_sequence(text):
    """The text as a single line, so that lags run over line ends as the network does."""
    import numpy as np

    return replace(text, line_starts=np.array([0, text.num_tokens]), article_starts=np.array([0, 1]))


def linear_filter(text, options):
    """Weights of an LDS's steady filter as a linear network (`rnn_weights`), and what it took."""
    from pplseq.data.lag_counts import LagCounts
    from pplseq.models.text_lds.program import TextLDS

    counts = LagCounts.from_text(one_sequence(text), options.max_lag)
    model = TextLDS.from_counts(
        counts,
        options.units,
        pseudo_counts=options.pseudo_counts,
        max_iterations=options.iterations,
        restricted_iterations=options.restricted_iterations,
        seed=options.seed,
    )
    facts = {
        "pseudo_counts": options.pseudo_counts,
        "restricted_iterations": options.restricted_iterations,
        "iterations": options.iterations,
        "form": options.form,
        "scale": options.scale,
        "gain_per_token": model.history.records[-1]["gain_per_token"],
    }
    return model.rnn_weights(options.form), facts


def train(start: str, corpus, options) -> dict:
    """Train one network or go on with it; its figures."""
    from pplseq.baselines import RNN, SGDSettings

    lr = options.lds_lr if start == "lds" and options.lds_lr else options.lr
    settings = SGDSettings(
        lr=lr,
        batch_size=options.batch_size,
        segment_length=options.segment_length,
        epochs=options.epochs,
        precision=options.precision,
    )
    folder = options.runs / f"rnn_{start}_{options.units}{options.label}"
    resume = (folder / "last").is_dir()
    model, more = RNN(corpus.vocabulary, options.units, seed=options.seed).set_unigram(corpus.train), {}
    if start == "lds" and not resume:
        started = time.perf_counter()
        weights, more = linear_filter(corpus.train, options)
        model = RNN.from_linear(
            weights["recurrent"],
            weights["input"],
            weights["output"],
            corpus.train,
            probs=weights["bias"],
            scale=options.scale,
        )
        more["start_seconds"] = round(time.perf_counter() - started, 1)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lds.json").write_text(json.dumps(more))
    if not options.report:
        model.fit(
            corpus.train,
            corpus.valid,
            settings=settings,
            folder=folder,
            resume=resume,
            on_record=lambda r: show(start, r),
        )
    return figures(start, corpus, folder, settings)


def figures(start: str, corpus, folder: Path, settings) -> dict:
    """What a run's folder says, and the perplexities of its best model."""
    from pplseq.baselines import RNN
    from pplseq.runs.metrics_log import read_metrics

    best = RNN.load(folder / "best")
    epochs = [
        {k: v for k, v in row.items() if k not in ("kind", "nats_per_token")}
        for row in read_metrics(folder / "metrics.jsonl")
    ]
    lds = folder / "lds.json"
    return {
        "start": start,
        "units": best.hidden_size,
        "valid_perplexity": round(best.perplexity(corpus.valid), 2),
        "test_perplexity": round(best.perplexity(corpus.test), 2),
        "best_epoch": min(epochs, key=lambda row: row["perplexity"])["epoch"],
        "settings": asdict(settings),
        "paper": PAPER[start],
        "lds": json.loads(lds.read_text()) if lds.is_file() else None,
        "epochs": epochs,
    }


def show(start: str, row: dict) -> None:
    print(start, "  ".join(f"{k} {v:.5g}" for k, v in row.items() if isinstance(v, int | float)), flush=True)


def plot(results: list[dict], path: Path) -> None:
    """Validation perplexity against epoch, one line a start."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.4), layout="constrained")
    for row in results:
        epochs = [e for e in row["epochs"] if math.isfinite(e["perplexity"])]
        name = {"random": "random start", "lds": "LDS start"}[row["start"]]
        axes.plot([e["epoch"] for e in epochs], [e["perplexity"] for e in epochs], marker=".", label=name)
    axes.set(
        xlabel="epochs", ylabel="validation perplexity", yscale="log", title=f"RNN, {results[0]['units']} units, PTB"
    )
    axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", choices=["random", "lds", "both"], default="both")
    parser.add_argument("--units", type=int, default=200, help="hidden units; the paper has 300")
    parser.add_argument("--lr", type=float, default=1.6, help="initial learning rate")
    parser.add_argument("--lds-lr", type=float, help="another one for the LDS start (default: the same)")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--segment-length", type=int, default=8, help="steps of back-propagation")
    parser.add_argument("--epochs", type=int, default=40, help="at most; the schedule ends before")
    parser.add_argument(
        "--precision", choices=["full", "bfloat16"], default="bfloat16", help="of the softmax in training"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pseudo-counts", type=float, default=50.0, help="of the LDS")
    parser.add_argument("--restricted-iterations", type=int, default=60, help="of EM in the identified subspace")
    parser.add_argument("--iterations", type=int, default=5, help="of EM on all words; many overfit, as the paper says")
    parser.add_argument("--max-lag", type=int, default=7)
    parser.add_argument("--form", choices=["predictor", "filtered"], default="predictor")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="standard deviation of what goes into a sigmoid at the start"
    )
    parser.add_argument("--corpus", default="ptb", help="its folder under PPLSEQ_DATA")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where the runs' folders stand")
    parser.add_argument("--label", default="", help="added to the names of runs and results")
    parser.add_argument("--report", action="store_true", help="no training: figures of what is there")
    options = parser.parse_args()

    import torch

    from pplseq.data import load_corpus

    torch.set_num_threads(options.threads)
    corpus = load_corpus(data_folder() / options.corpus)
    starts = ["random", "lds"] if options.start == "both" else [options.start]
    if options.report:
        starts = [s for s in starts if (options.runs / f"rnn_{s}_{options.units}{options.label}" / "best").is_dir()]
    results = [train(start, corpus, options) for start in starts]
    if not results:
        sys.exit(f"no runs with {options.units} units under {options.runs}")
    for row in results:
        print(
            "  ".join(
                f"{k} {v}"
                for k, v in row.items()
                if k in ("start", "valid_perplexity", "test_perplexity", "best_epoch")
            )
        )
    name = f"lds_rnn{options.label}" + ("" if len(results) == 2 else f"_{results[0]['start']}")
    path = record(name, results, folder=".", protocol="one sequence, state carried over lines; every token counted")
    plot(results, path.with_suffix(".png"))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
