"""Perplexities of very large HMMs on Penn Treebank and WikiText-2, with the paper's ablations as variants.

    python scripts/reproduce/vlhmm.py ptb --states 4096                          # two CPU cores: hours
    python scripts/reproduce/vlhmm.py ptb --states 65536 --variant better-clusters -- --transition hierarchical \\
        --num-blocks 512 --hidden 128 --shared-layer --batch-size 64 --lr 0.006 --schedule time --max-time 86m
    python scripts/reproduce/vlhmm.py ptb --states 32768 --device cuda           # the paper's size
    python scripts/reproduce/vlhmm.py wikitext2 --states 32768 --device cuda
    python scripts/reproduce/vlhmm.py ptb --states 4096 --variant no-reset       # one of VARIANTS below

A run that was stopped goes on where it was when the command is given again. At its end the best weights are evaluated on
validation and test, under both protocols, alone and mixed with a Kneser-Ney 5-gram (the weight is that which is best on
validation), and the figures go to results/. Corpora are found through PPLSEQ_DATA. Further options behind `--` go to `pplseq
train`; behind `--resume-with` those that a run was given anew when it was resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from record import ROOT, data_folder, record  # noqa: E402

TRAIN_TOKENS = 80_000  # of the training text that are scored: about as many as the held-out texts have
# rows of the paper's tables 2 and 3, and what this library adds
VARIANTS = {
    "base": [],
    "no-reset": ["--no-reset"],
    "no-dropout": ["--dropout", "0"],
    "factored": ["--parameterization", "factored"],
    "scalar": ["--parameterization", "scalar"],
    "uniform-blocks": ["--blocks", "uniform"],
    "no-blocks": ["--blocks", "none", "--dropout", "0"],
    "4-blocks": ["--num-blocks", "4", "--dropout", "0"],
    "8-blocks": ["--num-blocks", "8", "--dropout", "0"],
    "32-blocks": ["--num-blocks", "32"],
    "64-blocks": ["--num-blocks", "64"],
    "untied": ["--untied"],
    "xavier": ["--init", "xavier"],
    "uneven-blocks": ["--block-sizes", "frequency"],
    "better-clusters": ["--exchange-passes", "3"],
    "authors": ["--parameterization", "factored", "--no-eos-block", "--init-scale", "1", "--lr", "0.01"],
}


def train(options, run: Path) -> list[str]:
    """Trains or resumes; returns the command of a fresh start."""
    source = str(data_folder() / options.corpus)
    flags = ["--states", str(options.states), *VARIANTS[options.variant], *options.train]
    if options.corpus == "wikitext2":
        flags = ["--shuffle", "article", *flags]
    flags += ["--device", options.device]
    fresh = ["pplseq", "train", "vlhmm", source, *flags, "--out", str(run)]
    program = [sys.executable, "-c", "from pplseq.cli import main; main()"]
    if not options.evaluate_only:
        resumed = ["train", "--resume", str(run), *shlex.split(options.resume_with)]
        arguments = resumed if (run / "last").is_dir() else fresh[1:]
        code = subprocess.run([*program, *arguments]).returncode
        if code:
            sys.exit(code)
    return ["pplseq", "train", "vlhmm", f"$PPLSEQ_DATA/{options.corpus}", *flags, "--out", f"runs/{run.name}"]


def evaluate(options, run: Path) -> dict:
    """Perplexities of the best weights; with the end-of-sentence reset switched at evaluation too."""
    import torch

    from pplseq.baselines import KneserNey
    from pplseq.data.text import load_corpus
    from pplseq.models import VLHMM
    from pplseq.runs.evaluation import score_text

    if options.threads:
        torch.set_num_threads(options.threads)
    model = VLHMM.load(run / "best", device=options.device)
    vocabulary = model.vocabulary
    corpus = load_corpus(data_folder() / options.corpus, vocabulary=vocabulary)
    figures: dict = {}
    five_gram, mixed = KneserNey(5).fit(corpus.train), {}
    for name in ("valid", "test"):
        text = getattr(corpus, name)
        if text is None:
            continue
        for protocol in ("carried", "sentence"):
            score = score_text(model, text, protocol)
            figures[f"{name}_{protocol}"] = round(score.perplexity, 3)
            mixed[name, protocol] = score.token_log_probs, five_gram.log_prob(text)
        print(name, figures, flush=True)
    for protocol in ("carried", "sentence"):
        weight = min(np.linspace(0, 1, 101), key=lambda w: mixture(*mixed["valid", protocol], w))
        figures[f"5-gram_weight_{protocol}"] = round(float(weight), 2)
        for name in ("valid", "test"):
            if (name, protocol) in mixed:
                figures[f"{name}_{protocol}_with_5-gram"] = round(mixture(*mixed[name, protocol], weight), 3)
    piece = replace(corpus.train, tokens=corpus.train.tokens[:TRAIN_TOKENS])
    figures[f"train_carried_first_{TRAIN_TOKENS}_tokens"] = round(score_text(model, piece, "carried").perplexity, 3)
    print(figures, flush=True)
    trained_with = model.reset_id
    model.reset_id = vocabulary.eos_id if trained_with is None else None
    model._cached_specs = None
    key = f"valid_carried_evaluated_{'without' if trained_with is not None else 'with'}_reset"
    figures[key] = round(score_text(model, corpus.valid, "carried").perplexity, 3)
    return figures


def mixture(ours, theirs, weight: float) -> float:
    """Perplexity of weight times their probabilities and the rest ours, from log-probabilities by token."""
    with np.errstate(divide="ignore"):
        return float(np.exp(-np.mean(np.logaddexp(np.log1p(-weight) + ours, np.log(weight) + theirs))))


def history(run: Path) -> list[dict]:
    """Validation perplexity by epoch and time."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    keep = ("step", "epoch", "seconds", "lr")
    return [
        {**{k: row[k] for k in keep}, "perplexity": round(row["perplexity"], 3)} for row in rows if row["kind"] == "validation"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["ptb", "wikitext2"])
    parser.add_argument("--states", type=int, default=1 << 15)
    parser.add_argument("--variant", choices=VARIANTS, default="base")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--label", default="", help="added to the name of the run and of its figures")
    parser.add_argument("--run", type=Path, help="folder of the run (default: runs/<corpus>_<states>_<variant>)")
    parser.add_argument("--resume-with", default="", help="options given anew to a run that is resumed, in quotes")
    parser.add_argument("--evaluate-only", action="store_true", help="the run is there; only evaluate it")
    arguments, rest = sys.argv[1:], []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, rest = arguments[:cut], arguments[cut + 1 :]
    options = parser.parse_args(arguments)
    options.train = rest
    name = f"{options.corpus}_{options.states}_{options.variant.replace('-', '_')}"
    name += f"_{options.label}" if options.label else ""
    run = options.run or ROOT / "runs" / name
    command = train(options, run)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    training_seconds = {"processor": round(used.ru_utime + used.ru_stime, 1)} if not options.evaluate_only else {}
    began, clock = time.perf_counter(), time.process_time()
    figures = evaluate(options, run)
    evaluation_seconds = {"wall": time.perf_counter() - began, "processor": time.process_time() - clock}
    rows = history(run)
    baselines = json.loads((ROOT / "results" / "kneser_ney.json").read_text())["results"]
    five_gram = [row for row in baselines if row["corpus"] == options.corpus and row["order"] == 5]
    record(
        f"vlhmm_{name}",
        figures,
        folder=".",
        train_command=shlex.join(command).replace(f"'$PPLSEQ_DATA/{options.corpus}'", f"$PPLSEQ_DATA/{options.corpus}"),
        resumed_with=options.resume_with or None,
        training={"last": rows[-1], "seconds_of_this_call": training_seconds, "validations": rows},
        evaluation_seconds={key: round(value, 1) for key, value in evaluation_seconds.items()},
        load_average=[round(value, 2) for value in os.getloadavg()],
        kneser_ney=five_gram,
    )


if __name__ == "__main__":
    main()
