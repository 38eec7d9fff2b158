"""Parts the texts of a corpus by topic, for models of a topic each that vlhmm_union.py makes one HMM of.

    python scripts/reproduce/topics.py ptb --topics 3
    python scripts/reproduce/vlhmm_on_true_text.py ptb runs/RUN --text runs/ptb_topic_0 --out runs/RUN_0 ...

Pieces of successive lines are drawn from a mixture of unigram models (Nigam, McCallum, Thrun, Mitchell 2000, section 3), fitted
by EM to the training text with words that are neither frequent everywhere nor rare. Writes runs/<corpus>_topic_<k>, of training
and validation text; there is no test text in it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from record import ROOT, data_folder  # noqa: E402


def counts_of(pieces: list[list[str]], number: dict[str, int]) -> np.ndarray:
    """(pieces, words) how often each word is in each piece of lines."""
    counts = np.zeros((len(pieces), len(number)))
    for row, lines in zip(counts, pieces, strict=True):
        for word in " ".join(lines).split():
            if word in number:
                row[number[word]] += 1
    return counts


def fit(counts: np.ndarray, topics: int, seed: int = 0, *, iterations: int = 60, restarts: int = 20):
    """(log shares (K,), log tables (K, words)) of the mixture of unigram models that is the most likely of several fits."""
    random, best = np.random.default_rng(seed), (-np.inf, np.empty(0), np.empty(0))
    for _ in range(restarts):
        belief = np.eye(topics)[random.integers(topics, size=len(counts))]
        for _ in range(iterations):
            share = np.log(belief.mean(0) + 1e-9)
            table = belief.T @ counts + 0.1
            table = np.log(table / table.sum(1, keepdims=True))
            joint = counts @ table.T + share
            total = np.logaddexp.reduce(joint, 1)
            belief = np.exp(joint - total[:, None])
        if total.sum() > best[0]:
            best = total.sum(), share, table
    return best[1], best[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["ptb"])
    parser.add_argument("--topics", type=int, default=3)
    parser.add_argument("--lines", type=int, default=15, help="of a piece")
    parser.add_argument("--out", type=Path, default=ROOT / "runs")
    options = parser.parse_args()
    pieces = {}
    for name in ("train", "valid"):
        path = data_folder() / options.corpus / f"{options.corpus}.{name}.txt"
        lines = path.read_text(encoding="utf-8").splitlines()
        pieces[name] = [lines[k : k + options.lines] for k in range(0, len(lines), options.lines)]
    words = sorted({word for lines in pieces["train"] for line in lines for word in line.split()})
    number = {word: k for k, word in enumerate(words)}
    counts = counts_of(pieces["train"], number)
    spread = (counts > 0).mean(0)
    number = {words[k]: n for n, k in enumerate(np.flatnonzero((spread < 0.25) & (counts.sum(0) >= 10)))}
    for folder in options.out.glob(f"{options.corpus}_topic_*"):
        for path in folder.glob(f"{options.corpus}.*.txt"):  # of another number of topics
            path.unlink()
    share, table = fit(counts_of(pieces["train"], number), options.topics)
    telling = table - np.logaddexp.reduce(table + share[:, None], 0)
    for k, row in enumerate(telling * np.exp(table)):
        print(k, f"{np.exp(share[k]):.2f}", *(list(number)[w] for w in row.argsort()[::-1][:15]))
    for name, some in pieces.items():
        topic = (counts_of(some, number) @ table.T + share).argmax(1)
        for k in range(options.topics):
            folder = options.out / f"{options.corpus}_topic_{k}"
            folder.mkdir(parents=True, exist_ok=True)
            chosen = [line for lines, which in zip(some, topic, strict=True) if which == k for line in lines]
            (folder / f"{options.corpus}.{name}.txt").write_text("".join(f"{line}\n" for line in chosen), encoding="utf-8")


if __name__ == "__main__":
    main()
