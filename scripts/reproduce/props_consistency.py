"""Consistency of online EM for PROPS: the divergence of estimated from true models falls as the stream grows.

    python scripts/reproduce/props_consistency.py [--repetitions 5] [--holdout 20000] [--no-record]

One source and two perturbations. At every step the source predicts f_t ~ Dirichlet(1, ..., 1) over W words. A model learns
from T tokens of a true model; a hold-out stream of the same true model is then scored by both, with the source's
predictions disturbed, Dirichlet(100 f_t). The divergence D(true, estimate) is the mean difference of their log-probabilities
per token (Juang and Rabiner 1985), with its Monte-Carlo standard error; D(estimate, true) is measured on a stream of the
estimate, and their mean is the symmetrised form. All lengths T of a repetition are beginnings of one stream. Estimates are
the last parameters ("plain"), those of the mean statistics ("averaged"), and these with a Dirichlet prior of one token a word.

Writes results/props_consistency.json and .png; --no-record prints only.

Source: M. Wojnowicz and X. Zhao (2018), PROPS, section VI and figure 2.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from pplseq.models import PROPS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from record import ROOT, record  # noqa: E402

LENGTHS = [100 * 2**k for k in range(7)]
SIZES = [10 * 2**k for k in range(5)]
ROWS = 20  # streams that a hold-out sample is made of
DISTURBANCE = 100.0
# the last parameters; those of the mean statistics; the same with a Dirichlet prior of one token a word instead of smoothing,
# and steps that fall faster (the prior's weight is that beside all tokens, so the statistics should hold most of them)
ESTIMATES = ("plain", "averaged", "averaged, prior")
PRIOR = {"smoothing": 0.0, "exponent": 0.8}


def true_model(num_words: int, random: np.random.Generator) -> PROPS:
    """Transitions and emissions drawn evenly."""
    return PROPS(num_words, num_sources=1, num_perturbations=2, seed=0).set_parameters(
        initial=np.ones(3) / 3,
        transition=random.dirichlet(np.ones(3), 3),
        emission=random.dirichlet(np.ones(num_words), 2),
    )


def draw(model: PROPS, rows: int, steps: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Words (rows, steps) of the model and the source's predictions (rows, steps, W)."""
    source = random.dirichlet(np.ones(model.num_words), (rows, steps))
    initial, transition, emission = (v.numpy() for v in (model.initial, model.transition, model.emission))
    words = np.empty((rows, steps), dtype=np.int64)
    state = random.choice(3, rows, p=initial)
    for t in range(steps):
        if t:
            state = (random.random((rows, 1)) > transition[state].cumsum(1)).sum(1).clip(max=2)
        probs = np.where((state == 0)[:, None], source[:, t], emission[np.maximum(state - 1, 0)])
        words[:, t] = (random.random((rows, 1)) > probs.cumsum(1)).sum(1).clip(max=model.num_words - 1)
    return words, source


def holdout(model: PROPS, num_tokens: int, random: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Words (rows, steps) and the log-probabilities (rows, steps, 1) that a disturbed source gives to them."""
    words, source = draw(model, ROWS, num_tokens // ROWS, random)
    disturbed = random.standard_gamma(DISTURBANCE * source)  # a Dirichlet, before it is normalised
    probs = np.take_along_axis(disturbed, words[..., None], 2) / disturbed.sum(-1, keepdims=True)
    return torch.as_tensor(words), torch.as_tensor(np.maximum(probs, 1e-300)).log()


def divergence(first: PROPS, second: PROPS, sample) -> tuple[float, float]:
    """D(first, second) on a sample of the first, nats per token, and its standard error (from means of 20 streams)."""
    words, source = sample
    gaps = sum(
        sign * model.posterior(words, source_log_probs=source).token_log_probs()
        for sign, model in ((1, first), (-1, second))
    )
    means = gaps.mean(1)
    return float(means.mean()), float(means.std() / len(means) ** 0.5)


def repetition(num_words: int, seed: int, num_holdout: int, options: dict) -> dict[int, dict]:
    """T -> divergences of the three estimates in :data:`ESTIMATES`."""
    random = np.random.default_rng((seed, num_words))
    truth = true_model(num_words, random)
    words, source = draw(truth, 1, LENGTHS[-1], random)
    logs = np.log(np.take_along_axis(source[0], words[0][:, None], 1))
    sample = holdout(truth, num_holdout, random)
    even = [1 / 3] * 3  # the paper's start; the library's begins at the source
    model = PROPS(num_words, num_sources=1, num_perturbations=2, initial=even, transition=[even] * 3, seed=seed)
    constant = model.start(averaging="recent", **options)
    prior = model.start(averaging="recent", **options | PRIOR, prior_tokens=float(num_words))
    estimates = {"plain": (constant, False), "averaged": (constant, True), "averaged, prior": (prior, True)}
    result = {}
    for t in range(LENGTHS[-1]):
        for stream in (constant, prior):
            stream.step(int(words[0, t]), logs[t])
        if t + 1 not in LENGTHS:
            continue
        result[t + 1] = {}
        for name, (stream, averaged) in estimates.items():
            found = stream.parameters(averaged=averaged)
            estimate = PROPS(num_words, num_sources=1, num_perturbations=2).set_parameters(
                initial=found.initial, transition=found.transition, emission=found.emission
            )
            there, error = divergence(truth, estimate, sample)
            back, back_error = divergence(estimate, truth, holdout(estimate, num_holdout, random))
            result[t + 1][name] = {
                "D": there, "standard_error": error, "D_back": back, "symmetrised": (there + back) / 2,
                "symmetrised_error": (error**2 + back_error**2) ** 0.5 / 2,
            }  # fmt: skip
    return result


def summary(runs: list[dict]) -> dict[str, float]:
    """Means over repetitions; ``standard_error`` is the Monte-Carlo one, ``spread`` that between repetitions."""
    values = {name: np.array([run[name] for run in runs]) for name in runs[0]}
    result = {name: float(values[name].mean()) for name in ("D", "D_back", "symmetrised")}
    for name in ("standard_error", "symmetrised_error"):
        result[name] = float((values[name] ** 2).sum() ** 0.5 / len(runs))
    result["spread"] = float(values["D"].std(ddof=1) / len(runs) ** 0.5) if len(runs) > 1 else 0.0
    return {name: round(value, 5) for name, value in result.items()}


def plot(results: dict, path: Path) -> None:
    """Divergence against the length of the stream, one line a vocabulary size, as the paper's figure 2."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), sharey=True, layout="constrained")
    for axis, name in zip(axes, ESTIMATES, strict=True):
        for shade, (size, by_length) in zip(np.linspace(0.25, 0.95, len(results)), results.items(), strict=True):
            lengths = [int(t) for t in by_length]
            cells = [by_length[t][name] for t in by_length]
            mean, spread = (np.array([cell[key] for cell in cells]) for key in ("D", "spread"))
            axis.errorbar(
                lengths, mean, spread, color=pyplot.cm.Blues(shade), marker="o", ms=3, lw=1.2, label=f"W = {size}"
            )
        axis.set(xscale="log", yscale="log", xlabel="tokens learned from, T", title=name)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("divergence, nats per token")
    axes[0].legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
    print(f"wrote {path.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--holdout", type=int, default=20_000, help="tokens of a hold-out stream")
    parser.add_argument("--exponent", type=float, default=0.6, help="of the step size")
    parser.add_argument("--smoothing", type=float, default=0.05, help="pseudo-count of a state's words together")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of words W")
    parser.add_argument("--no-record", action="store_true", help="print only")
    arguments = parser.parse_args()
    options = {"exponent": arguments.exponent, "smoothing": arguments.smoothing}
    options |= {"initial_prior": None, "transition_prior": 0.0}  # as in the paper
    results = {}
    print(f"divergence D per token, T = {LENGTHS}: {' -> '.join(ESTIMATES)}")
    for size in arguments.sizes:
        runs = [repetition(size, seed, arguments.holdout, options) for seed in range(arguments.repetitions)]
        results[str(size)] = {
            str(t): {name: summary([run[t][name] for run in runs]) for name in ESTIMATES} for t in LENGTHS
        }
        cells = [[results[str(size)][str(t)][name]["D"] for name in ESTIMATES] for t in LENGTHS]
        row = "  ".join(" -> ".join(f"{value:.3f}" for value in cell) for cell in cells)
        print(f"W = {size:4}:  {row}", flush=True)
    if not arguments.no_record:
        settings = options | {
            "averaged, prior": PRIOR | {"prior_tokens": "W"},
            "repetitions": arguments.repetitions,
            "holdout": arguments.holdout,
            "lengths": LENGTHS,
        }
        record("props_consistency", results, folder="", settings=settings)
        plot(results, ROOT / "results" / "props_consistency.png")


if __name__ == "__main__":
    main()
