"""Goes on with a VLHMM that was trained on drawn text (drawn_text.py), on the true text alone, whose words it has.

    python scripts/reproduce/vlhmm_on_true_text.py ptb runs/ptb_65536_better_clusters_drawn_75m --max-time 390 \\
        --threads 2 --out runs/NAME
    python scripts/reproduce/vlhmm.py ptb --num-states 65536 --variant better-clusters --label LABEL --run runs/NAME \\
        --evaluate-only --trained-by "python scripts/reproduce/vlhmm_on_true_text.py ..."

The second command writes the figures.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from record import data_folder  # noqa: E402

from pplseq.data.text import load_corpus  # noqa: E402
from pplseq.models import VLHMM  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["ptb"])
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-time", type=float, default=480.0, help="seconds")
    parser.add_argument("--lr", type=float, default=0.0015)
    parser.add_argument("--state-dropout", type=float, default=0.5)
    parser.add_argument("--feature-dropout", type=float, default=0.1)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = VLHMM.load(options.run / "best")
    model.state_dropout, model.feature_dropout = options.state_dropout, options.feature_dropout
    corpus = load_corpus(data_folder() / options.corpus, vocabulary=model.vocabulary)
    model.fit(
        corpus, warm_start=True, folder=options.out, seed=0, progress=True, max_time=options.max_time, lr=options.lr,
        batch_size=64, weight_decay=options.weight_decay, schedule="time", epochs=1000, validate_per_epoch=1,
    )  # fmt: skip


if __name__ == "__main__":
    main()
