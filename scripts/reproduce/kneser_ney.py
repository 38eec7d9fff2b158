"""Perplexities of Kneser-Ney n-gram models on Penn Treebank and WikiText-2, written as JSON.

    python scripts/reproduce/kneser_ney.py

Every token counts, `<unk>` and `<eos>` included; every line (blank ones too) starts from <s>. Corpora stand in
$PPLSEQ_DATA, else in ../shared/data beside the repository: folders `ptb` and `wikitext2`; a missing one is left out.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np

from pplseq.baselines import KneserNey
from pplseq.data import load_corpus

REPOSITORY = Path(__file__).parents[2]
# With KenLM's lmplz, order -> (validation, test); None: not measured.
KENLM = {
    "ptb": {2: (199.02, 185.70), 3: (157.77, 148.28), 4: (149.90, 142.72), 5: (148.01, 141.19)},
    "wikitext2": {5: (234.86, 220.14)},
}


def measure(folder: Path, order: int) -> dict:
    """Fit one model and score the held-out texts of its corpus."""
    corpus = load_corpus(folder)
    started = time.perf_counter()
    model = KneserNey(order).fit(corpus.train)
    fitted = time.perf_counter()
    perplexities = {
        f"{split}_perplexity": model.perplexity(text)
        for split, text in (("valid", corpus.valid), ("test", corpus.test))
        if text is not None
    }
    scored = time.perf_counter()
    valid, test = KENLM.get(folder.name, {}).get(order, (None, None))
    return {
        "corpus": folder.name,
        "order": order,
        **perplexities,
        "kenlm_valid_perplexity": valid,
        "kenlm_test_perplexity": test,
        "train_tokens": corpus.train.num_tokens,
        "types": len(corpus.vocabulary),
        "ngrams": sum(model.num_ngrams),
        "fit_seconds": round(fitted - started, 3),
        "score_seconds": round(scored - fitted, 3),
    }


def machine() -> dict:
    """What the times depend on."""
    cpuinfo = Path("/proc/cpuinfo")
    names = (
        [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")] if cpuinfo.exists() else []
    )
    return {
        "cpu": names[0].split(":", 1)[1].strip() if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def commit() -> str | None:
    """The repository's commit, None outside a repository."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


@click.command(help=__doc__.split("\n")[0])
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(os.environ.get("PPLSEQ_DATA", REPOSITORY.parent / "shared" / "data")),
    help="Folder of corpora.",
)
@click.option("--corpus", "corpora", multiple=True, default=("ptb", "wikitext2"), show_default=True, help="Its folder.")
@click.option("--order", "orders", multiple=True, type=int, default=(2, 3, 4, 5), show_default=True)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), default=REPOSITORY / "results" / "kneser_ney.json"
)
def main(data: Path, corpora: tuple[str, ...], orders: tuple[int, ...], output: Path) -> None:
    results = []
    for name in corpora:
        if not (data / name).is_dir():
            click.echo(f"{name}: no such folder under the corpora's folder, left out")
            continue
        for order in orders:
            results.append(measure(data / name, order))
            click.echo("  ".join(f"{key} {value}" for key, value in results[-1].items() if value is not None))
    if not results:
        raise click.ClickException(
            f"none of {', '.join(corpora)} found; set PPLSEQ_DATA or --data to the corpora's folder"
        )
    report = {
        "command": shlex.join(["python", "scripts/reproduce/kneser_ney.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "protocol": "per sentence: every line starts from <s>; <unk> and <eos> counted; blank lines kept",
        "results": results,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
