"""The neural language models that papers compare with, trained by `pplseq train` on Penn Treebank, WikiText-2 or Gutenberg.

    python scripts/reproduce/neural_baselines.py ptb lstm                 # 24 epochs, an hour on one core
    python scripts/reproduce/neural_baselines.py ptb ff                   # 16 epochs, an hour and a half
    python scripts/reproduce/neural_baselines.py ptb lstm -- --epochs 40 --device cuda
    python scripts/reproduce/neural_baselines.py ptb lstm --evaluate-only
    python scripts/reproduce/neural_baselines.py gutenberg lstm -- --max-time 62m   # for the hour of vlhmm.py gutenberg

Adds a row to results/neural_baselines.json: perplexities of validation and test text, carried (the text as one sequence in
16 streams) and sentence by sentence, beside the paper's (Chiu and Rush, 2020, table 1), and the training command. A run that
was stopped is continued. What stands behind -- goes to `pplseq train`. Corpora are found through PPLSEQ_DATA.

Sizes, dropout and learning rate are the paper's (its appendix A); the learning rate falls linearly to zero over the epochs,
products of the softmax are in bfloat16 while training, and the feed-forward network takes batches of 32 x 32 instead of
128 x 64, because few epochs need more steps. Of Gutenberg validation and test text are those of vlhmm.py, its vocabulary too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from record import ROOT, record  # noqa: E402
from vlhmm import corpus_folder  # noqa: E402

PAPER = {
    ("ptb", "ff"): {"valid": 159.9, "test": 152.0},
    ("ptb", "lstm"): {"valid": 93.6, "test": 88.8},
    ("ptb", "hmm-rnn"): {"valid": 142.3},
    ("wikitext2", "ff"): {"valid": 210.9, "test": 195.0},
    ("wikitext2", "lstm"): {"valid": 124.5, "test": 117.5},
}
SCHEDULE = ["--schedule", "linear", "--validate-per-epoch", "1", "--normalizer-dtype", "bfloat16"]
BOOKS = ["--max-vocabulary", "30000", "--epochs", "1", "--schedule", "time", "--normalizer-dtype", "bfloat16"]
SETTINGS = {
    "lstm": ["--epochs", "24", *SCHEDULE],
    "ff": ["--epochs", "16", "--batch-size", "32", *SCHEDULE],
    "rnn": ["--epochs", "10", *SCHEDULE],
    "hmm-rnn": ["--epochs", "12", "--batch-size", "64", *SCHEDULE],
}


def train(options, run: Path) -> list[str]:
    """Trains, or goes on; the command as a user would type it."""
    flags = [*(BOOKS if options.corpus == "gutenberg" else SETTINGS[options.kind]), *options.train]
    if not options.evaluate_only:
        there = (run / "last").exists()
        what = ["--resume", run] if there else [options.kind, corpus_folder(options.corpus, run.parent), "--out", run, *flags]
        subprocess.run(["pplseq", "train", *map(str, what)], check=True)
    return ["pplseq", "train", options.kind, f"$PPLSEQ_DATA/{options.corpus}", *flags, "--out", f"runs/{run.name}"]


def evaluate(options, run: Path) -> dict:
    """Perplexities of the best weights."""
    from pplseq.baselines import NeuralLanguageModel
    from pplseq.data.text import load_corpus
    from pplseq.runs.evaluation import score_text
    from pplseq.runs.metrics_log import read_metrics

    model = NeuralLanguageModel.load(run / "best")
    corpus = load_corpus(corpus_folder(options.corpus, run.parent), vocabulary=model.vocabulary)
    texts = {name: text for name in ("valid", "test") if (text := getattr(corpus, name)) is not None}
    figures = {
        f"{name}_{protocol}": round(score_text(model, text, protocol).perplexity, 2)
        for name, text in texts.items()
        for protocol in ("carried", "sentence")
    }
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)  # of the training in this call
    checks = [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "validation"]
    return {
        **figures,
        "paper": PAPER.get((options.corpus, options.kind)),
        "weights": sum(weight.numel() for weight in model.parameters()),
        "seconds": checks[-1]["seconds"],
        "processor_seconds": round(spent.ru_utime + spent.ru_stime, 1),
        "epochs": [{"epoch": row["epoch"], "perplexity": round(row["perplexity"], 2)} for row in checks],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["ptb", "wikitext2", "gutenberg"])
    parser.add_argument("kind", choices=list(SETTINGS))
    parser.add_argument("--run", type=Path, help="folder of the run (default: runs/KIND_CORPUS)")
    parser.add_argument("--evaluate-only", action="store_true", help="the run is there; only evaluate it")
    arguments, more = sys.argv[1:], []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, more = arguments[:cut], arguments[cut + 1 :]
    options = parser.parse_args(arguments)
    options.train = more
    run = options.run or ROOT / "runs" / f"{options.kind}_{options.corpus}"
    command = train(options, run)
    row = {
        "corpus": options.corpus,
        "model": options.kind,
        **evaluate(options, run),
        "train_command": shlex.join(command).replace(
            f"'$PPLSEQ_DATA/{options.corpus}'", f"$PPLSEQ_DATA/{options.corpus}"
        ),
    }
    print({name: value for name, value in row.items() if name != "epochs"})
    path = ROOT / "results" / "neural_baselines.json"
    rows = json.loads(path.read_text())["results"] if path.exists() else []
    rows = [old for old in rows if (old["corpus"], old["model"]) != (row["corpus"], row["model"])]
    record("neural_baselines", sorted([*rows, row], key=lambda r: (r["corpus"], r["model"])), folder=".")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
