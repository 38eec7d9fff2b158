"""Goes on with a VLHMM that was trained on drawn text (drawn_text.py), on the true text alone, whose words it has.

    python scripts/reproduce/vlhmm_on_true_text.py ptb runs/ptb_65536_better_clusters_drawn_75m --max-time 390 \\
        --threads 2 --out runs/NAME
    python scripts/reproduce/vlhmm.py ptb --num-states 65536 --variant better-clusters --label LABEL --run runs/NAME \\
        --evaluate-only --trained-by "python scripts/reproduce/vlhmm_on_true_text.py ..."

The second command writes the figures. With --text it goes on on more drawn text, in other batches, than the run it starts from.
With --average the run's best model is the mean of the one that it starts from and the best: M. Wortsman and others (2022),
Robust fine-tuning of zero-shot models, CVPR.
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
from pplseq.runs.memory import keep_freed_memory  # noqa: E402


def with_settings(model: VLHMM, **settings) -> VLHMM:
    """A model of float32 with the same parameters and other settings, such as its dropout."""
    other = VLHMM(**model.get_params() | settings)
    other.load_state_dict(model.state_dict())
    other.vocabulary, other.clusters = model.vocabulary, model.clusters
    return other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["ptb"])
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text", type=Path, help="a folder of drawn text, or of a topic (default: the corpus)")
    parser.add_argument("--max-time", type=float, default=480.0, help="seconds")
    parser.add_argument("--lr", type=float, default=0.0015)
    parser.add_argument("--decay", type=float, default=0.6, help="last share of the time in which the learning rate falls")
    parser.add_argument("--state-dropout", type=float, default=0.5)
    parser.add_argument("--final-dropout", type=float, help="of states, at the end (default: as at the beginning)")
    parser.add_argument("--feature-dropout", type=float, default=0.1)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--normalizer-dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--segment-length", type=int, default=32)
    parser.add_argument("--validate-per-epoch", type=int, default=1)
    parser.add_argument("--average", action="store_true", help="in the end, the parameters at the start and the best ones")
    parser.add_argument("--resume", action="store_true", help="a run in --out that was stopped, or has more time now")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.average and options.resume:  # whose best model may be a mean already
        parser.error("--average is of a run in one go; leave --resume out")
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    model = with_settings(
        VLHMM.load(options.run / "best"), state_dropout=options.state_dropout, feature_dropout=options.feature_dropout,
        normalizer_dtype=options.normalizer_dtype,
    )  # fmt: skip
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    corpus = load_corpus(options.text or data_folder() / options.corpus, vocabulary=model.vocabulary)
    model.fit(
        corpus, warm_start=True, folder=options.out, resume=options.resume, seed=0, progress=True,
        max_time=options.max_time, lr=options.lr, decay=options.decay, final_dropout=options.final_dropout,
        batch_size=options.batch_size, segment_length=options.segment_length, weight_decay=options.weight_decay,
        schedule="time", epochs=1000, validate_per_epoch=options.validate_per_epoch, log_interval=50,
    )  # fmt: skip
    if options.average:
        with torch.no_grad():
            for name, value in model.named_parameters():
                if name != "topic_kept":  # which only lines in their order tell
                    value.lerp_(before[name], 0.5)
        model.save(options.out / "best")


if __name__ == "__main__":
    main()
