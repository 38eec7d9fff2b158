"""EM for a linear dynamical system of text from several starts: likelihood against iteration, the paper's figure 2.

    python scripts/reproduce/lds_em_curves.py                                     # Penn Treebank, minutes on one core
    python scripts/reproduce/lds_em_curves.py --counts COUNTS --num-states 200        # counts written by `pplseq count`

Starts: `paper`, subspace identification realised as in the paper; `line_search`, the same with the scale of C chosen by
likelihood; `restricted`, EM in the identified subspace first (its own iterations cost next to nothing and are not drawn);
`random`, with the length scales of the paper's realisation. Each is followed for --iterations of EM
(--keep-state-noise holds Q = I, as the paper does). Likelihoods are gains in nats per token over independent Gaussian
words: of the training statistics with pseudo-counts, and of Penn Treebank's validation text. Writes
results/lds_em_curves.json and .png.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from record import data_folder, record  # noqa: E402

NAMES = {
    "paper": "SSID (paper)",
    "line_search": "SSID, scale by likelihood",
    "restricted": "SSID, restricted EM",
    "random": "random",
}


def covariances(options):
    """Covariances to learn from, and those of held-out text (or None)."""
    import numpy as np

    from pplseq.data import load_corpus
    from pplseq.data.lag_counts import LagCounts
    from pplseq.data.lag_files import load_counts
    from pplseq.models.text_lds.lag_covariances import LagCovariances

    validation = None
    if options.counts:
        counts = load_counts(options.counts)
    else:
        corpus = load_corpus(data_folder() / options.corpus)
        counts = LagCounts.from_text(corpus.train, options.max_lag)
        validation = None if corpus.valid is None else LagCounts.from_text(corpus.valid, options.max_lag)
    cov = LagCovariances.from_counts(
        counts, options.pseudo_counts, dtype=np.dtype(options.dtype), num_threads=options.threads
    )
    return cov, None if validation is None else LagCovariances.from_counts(validation, probs_from=cov)


def curve(how: str, identification, cov, validation, options) -> dict:
    """EM from one start."""
    from lds_starts import start_parameters

    from pplseq.models.text_lds.asos_em import fit_asos

    started = time.process_time()
    more = {"max_iterations": options.restricted_iterations} if how == "restricted" else {}
    initial = start_parameters(how, identification, cov, seed=options.seed, **more)
    start_seconds = time.process_time() - started
    started = time.process_time()
    fit = fit_asos(
        cov,
        initial,
        max_iterations=options.iterations,
        tolerance=0.0,
        update_state_noise=not options.keep_state_noise,
        evaluate=validation,
        patience=None,
    )
    seconds = time.process_time() - started
    print(f"{how}: {fit.history[0].gain:.4f} to {fit.history[-1].gain:.4f} nats per token", flush=True)
    return {
        "start": how,
        "start_cpu_seconds": round(start_seconds, 2),
        "cpu_seconds_per_iteration": round(seconds / len(fit.history), 4),  # held-out likelihood included
        "stop_reason": fit.stop_reason,
        "remarks": fit.remarks,
        "gain": [round(row.gain, 5) for row in fit.history],
        "held_out_gain": None if validation is None else [round(row.validation, 5) for row in fit.history],
    }


def plot(results: list[dict], path: Path) -> None:
    """Gain against iteration: training, and held-out text where there is some."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = [("gain", "training text"), ("held_out_gain", "held-out text")]
    columns = [column for column in columns if results[0][column[0]] is not None]
    figure, axes = pyplot.subplots(
        1, len(columns), figsize=(4.6 * len(columns), 3.4), layout="constrained", squeeze=False
    )
    for (key, title), panel in zip(columns, axes[0], strict=True):
        for row in results:
            panel.plot(row[key], label=NAMES[row["start"]])
        panel.set(xlabel="EM iterations", ylabel="gain, nats per token", title=title)
    axes[0, 0].legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=Path, help="a folder of lag counts instead of the corpus")
    parser.add_argument("--corpus", default="ptb", help="a folder under PPLSEQ_DATA")
    parser.add_argument("--starts", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--num-states", type=int, default=50, help="h")
    parser.add_argument("--pseudo-counts", type=float, default=50.0)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--restricted-iterations", type=int, default=150)
    parser.add_argument("--max-lag", type=int, default=7)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--keep-state-noise", action="store_true", help="Q = I throughout, the paper's partial M-step")
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--label", default="", help="added to the names of the results")
    options = parser.parse_args()

    from pplseq.models.text_lds.subspace import subspace_identification

    cov, validation = covariances(options)
    started = time.process_time()
    identification = subspace_identification(cov, options.num_states, blocks=options.blocks, seed=options.seed)
    identified = time.process_time() - started
    results = [curve(how, identification, cov, validation, options) for how in options.starts]
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    path = record(
        f"lds_em_curves{options.label}",
        results,
        folder=".",
        settings=settings,
        num_words=cov.num_words,
        identification_cpu_seconds=round(identified, 2),
    )
    plot(results, path.with_suffix(".png"))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
