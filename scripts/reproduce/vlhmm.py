"""Perplexities of very large HMMs on Penn Treebank and WikiText-2, with the paper's ablations as variants.

    python scripts/reproduce/vlhmm.py ptb --num-states 4096                          # two CPU cores: hours
    python scripts/reproduce/vlhmm.py ptb --num-states 65536 --variant better-clusters -- --transition hierarchical \\
        --num-blocks 512 --hidden-size 128 --shared-layer --batch-size 64 --lr 0.006 --schedule time --max-time 86m
    python scripts/reproduce/vlhmm.py ptb --num-states 32768 --device cuda           # the paper's size
    python scripts/reproduce/vlhmm.py wikitext2 --num-states 32768 --device cuda
    python scripts/reproduce/vlhmm.py ptb --num-states 4096 --variant no-reset       # one of VARIANTS below
    python scripts/reproduce/vlhmm.py --queue scripts/reproduce/vlhmm_series.txt # one run after the other

A queue is a file with the arguments of a run on each line; those whose figures are in results/ are passed over: the same
command goes on with a queue that was stopped. Of WikiText-2 no test text is at hand: its validation text is split in two halves
of whole articles, the first of which plays validation (all choices are made on it), the second test. Of Gutenberg the first
100,000 words of the validation text play validation, the next 200,000 test; --max-vocabulary is for `pplseq train`.

A run that was stopped goes on where it was when the command is given again. At its end the best weights are evaluated on
validation and test, under both protocols, alone and mixed with a Kneser-Ney 5-gram of the corpus's own training text (the
weight is that which is best on validation), and the figures go to results/. Corpora are found through PPLSEQ_DATA. Further
options behind `--` go to `pplseq train`; behind `--resume-with` those that a run was given anew when it was resumed.
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

BOOK_TOKENS = (100_000, 200_000)  # of Gutenberg's validation text that play validation and, behind them, test
TRAIN_TOKENS = 80_000  # of the training text that are scored: about as many as the held-out texts have
# rows of the paper's tables 2 and 3, and what this library adds
VARIANTS = {
    "base": [],
    "no-reset": ["--no-reset"],
    "no-dropout": ["--state-dropout", "0"],
    "factored": ["--parameterization", "factored"],
    "scalar": ["--parameterization", "scalar"],
    "uniform-blocks": ["--blocks", "uniform"],
    "no-blocks": ["--blocks", "none", "--state-dropout", "0"],
    "4-blocks": ["--num-blocks", "4", "--state-dropout", "0"],
    "8-blocks": ["--num-blocks", "8", "--state-dropout", "0"],
    "32-blocks": ["--num-blocks", "32"],
    "64-blocks": ["--num-blocks", "64"],
    "untied": ["--untied"],
    "xavier": ["--initialization", "xavier"],
    "uneven-blocks": ["--block-sizes", "frequency"],
    "better-clusters": ["--exchange-passes", "3"],
    "authors": ["--parameterization", "factored", "--no-eos-block", "--init-scale", "1", "--lr", "0.01"],
}


def corpus_folder(corpus: str, runs: Path) -> Path:
    """Where the texts of a corpus are; of WikiText-2 a folder beside the runs, with its validation text in two halves."""
    source = data_folder() / corpus
    if corpus == "gutenberg":
        return books_folder(source, runs / "gutenberg_parts")
    if corpus != "wikitext2":
        return source
    halves = runs / "wikitext2_halves"
    halves.mkdir(parents=True, exist_ok=True)
    lines = (source / "wiki.valid.tokens").read_text(encoding="utf-8").splitlines(keepends=True)
    starts = [k for k, line in enumerate(lines) if line.startswith(" = ") and not line.startswith(" = =")]
    sizes = np.cumsum([len(line.split()) + 1 for line in lines])
    middle = min(starts, key=lambda k: abs(sizes[k] - sizes[-1] / 2))
    for name, part in (("valid", lines[:middle]), ("test", lines[middle:])):
        (halves / f"wiki.{name}.tokens").write_text("".join(part), encoding="utf-8")
    (halves / "wiki.train.tokens").write_bytes((source / "wiki.train.tokens").read_bytes())
    return halves


def books_folder(source: Path, parts: Path) -> Path:
    """Gutenberg, its validation text in two parts."""
    parts.mkdir(parents=True, exist_ok=True)
    lines = (source / "gutenberg.valid.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    cuts = np.searchsorted(np.cumsum([len(line.split()) + 1 for line in lines]), np.cumsum(BOOK_TOKENS)).tolist()
    for name, part in (("valid", lines[: cuts[0]]), ("test", lines[cuts[0] : cuts[1]])):
        (parts / f"gutenberg.{name}.txt").write_text("".join(part), encoding="utf-8")
    train = parts / "gutenberg.train.txt.xz"
    if not train.exists():
        train.write_bytes((source / train.name).read_bytes())
    return parts


def train(options, run: Path) -> list[str]:
    """Trains or resumes; returns the command of a fresh start."""
    source = str(options.text or corpus_folder(options.corpus, run.parent))
    flags = ["--num-states", str(options.num_states), *VARIANTS[options.variant], *options.train]
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
    name = {"wikitext2": "runs/wikitext2_halves", "gutenberg": "runs/gutenberg_parts"}.get(options.corpus)
    name = name or f"$PPLSEQ_DATA/{options.corpus}"
    name = f"runs/{options.text.name}" if options.text else name
    return ["pplseq", "train", "vlhmm", name, *flags, "--out", f"runs/{run.name}"]


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
    corpus = load_corpus(corpus_folder(options.corpus, run.parent), vocabulary=vocabulary)
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
        figures[f"{name}_5-gram"] = round(five_gram.perplexity(text), 3)
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


def carry(queue: Path) -> None:
    """Makes the runs of a queue that have no figures yet, in order; one that fails does not keep the next ones from running."""
    failed = []
    for line in queue.read_text(encoding="utf-8").splitlines():
        arguments = shlex.split(line, comments=True)
        if not arguments:
            continue
        if (ROOT / "results" / f"vlhmm_{name_of(parse(arguments))}.json").exists():
            print(f"done: {line}", flush=True)
        elif code := subprocess.run([sys.executable, __file__, *arguments]).returncode:
            if code in (-2, -15, 130, 143):  # stopped from outside: so is the queue
                sys.exit(f"stopped in: {line}\nThe same command goes on there.")
            failed.append(line)
    if failed:
        sys.exit("failed:\n" + "\n".join(failed))


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of a run; what stands behind ``--`` is for `pplseq train`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["ptb", "wikitext2", "gutenberg"])
    parser.add_argument("--num-states", type=int, default=1 << 15)
    parser.add_argument("--variant", choices=VARIANTS, default="base")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--label", default="", help="added to the name of the run and of its figures")
    parser.add_argument("--run", type=Path, help="folder of the run (default: runs/<corpus>_<states>_<variant>)")
    parser.add_argument(
        "--text", type=Path, help="train on this folder's text (drawn_text.py), which has the corpus's vocabulary"
    )
    parser.add_argument("--resume-with", default="", help="options given anew to a run that is resumed, in quotes")
    parser.add_argument("--evaluate-only", action="store_true", help="the run is there; only evaluate it")
    parser.add_argument("--trained-by", help="the command by which the run that is only evaluated was made, if another one")
    rest: list[str] = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, rest = arguments[:cut], arguments[cut + 1 :]
    options = parser.parse_args(arguments)
    options.train = rest
    return options


def name_of(options: argparse.Namespace) -> str:
    """Of a run's folder and of its figures."""
    name = f"{options.corpus}_{options.num_states}_{options.variant.replace('-', '_')}"
    return f"{name}_{options.label}" if options.label else name


def main() -> None:
    if sys.argv[1:2] == ["--queue"] and len(sys.argv) == 3:
        carry(Path(sys.argv[2]))
        return
    options = parse(sys.argv[1:])
    name = name_of(options)
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
        train_command=options.trained_by
        or shlex.join(command).replace(f"'$PPLSEQ_DATA/{options.corpus}'", f"$PPLSEQ_DATA/{options.corpus}"),
        resumed_with=options.resume_with or None,
        training={"last": rows[-1] if rows else None, "seconds_of_this_call": training_seconds, "validations": rows},
        evaluation_seconds={key: round(value, 1) for key, value in evaluation_seconds.items()},
        load_average=[round(value, 2) for value in os.getloadavg()],
        kneser_ney=five_gram,
    )


if __name__ == "__main__":
    main()
