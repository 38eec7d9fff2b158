"""Several VLHMMs of the same words as one HMM: the union of their states, with the model drawn anew at some ends of sentences.

    python scripts/reproduce/vlhmm_union.py ptb runs/FIRST runs/SECOND --threads 2 --label LABEL

The state of the union is (which model, state in it). The text begins in model k with probability w_k; within a sentence a
state goes on as its model has it; where <eos> resets the state, the model stays with probability s and is drawn from w
otherwise. So this is an HMM of as many states as the models have together, and the likelihood of a whole text, one sequence
of all its sentences, is exact: what the models say of the words of a sentence, weighed by how probable each is behind the
words before. s is the best on validation with even weights, of `STAYS`; then w, of a grid. Writes
results/vlhmm_union_LABEL.json.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "bench")]
from record import data_folder, record  # noqa: E402
from vlhmm import mixture  # noqa: E402

from pplseq.baselines import KneserNey  # noqa: E402
from pplseq.data.text import load_corpus  # noqa: E402
from pplseq.models import VLHMM  # noqa: E402
from pplseq.runs.evaluation import score_text  # noqa: E402

STAYS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98)


def of_union(log_probs: np.ndarray, ends: np.ndarray, weights: np.ndarray, stay: float) -> np.ndarray:
    """(N,) log p(x_n | x_1..x_{n-1}) under the union of K models.

    Args:
        log_probs: (K, N) the same under each model alone, whose state starts afresh behind every end.
        ends: (N,) whether a token is the end of a sentence.
        weights: (K,) of the models at the start, and where one is drawn anew; they sum to 1.
        stay: how probable it is that the model stays at an end.
    """
    with np.errstate(divide="ignore"):
        first, keep, change = np.log(weights), np.log(stay), np.log1p(-stay)
        result, belief = np.empty(log_probs.shape[1]), first
        for n, end in enumerate(ends.tolist()):
            joint = belief + log_probs[:, n]
            result[n] = total = np.logaddexp.reduce(joint)
            if np.isfinite(total):  # behind what all models forbid, the models are as probable as before
                belief = joint - total
            if end:
                belief = np.logaddexp(keep + belief, change + first)
    return result


def simplex(parts: int, models: int):
    """All weights that are multiples of 1 / parts."""
    for cuts in itertools.combinations(range(parts + models - 1), models - 1):
        yield np.diff([-1, *cuts, parts + models - 1]).astype(float) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["ptb"])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--label", required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    began = time.perf_counter()
    scores: dict[str, list[np.ndarray]] = {"valid": [], "test": []}
    alone: list[dict[str, float]] = []
    texts = {}
    states, words = 0, None
    for run in options.runs:
        model = VLHMM.load(run / "best")
        states += model.num_states
        if model.reset_id != model.vocabulary.eos_id:
            raise SystemExit(f"{run}: a model without a reset at <eos> is no part of a union")
        if words is not None and set(model.vocabulary.words) != words:
            raise SystemExit(f"{run}: its words are not those of {options.runs[0]}; a union is of models of the same words")
        words = set(model.vocabulary.words)
        corpus = load_corpus(data_folder() / options.corpus, vocabulary=model.vocabulary)
        figures = {}
        for name, kept in scores.items():
            texts[name] = getattr(corpus, name)
            kept.append(score_text(model, texts[name], "sentence").token_log_probs)
            figures[name] = round(float(np.exp(-kept[-1].mean())), 3)
        alone.append({"states": model.num_states} | figures)
        print(run, figures, flush=True)
    stacked = {name: np.stack(kept) for name, kept in scores.items()}
    # models may number their words differently, log-probabilities stand in the order of the text
    ends = {name: text.tokens == corpus.vocabulary.eos_id for name, text in texts.items()}
    parts = 10 if len(options.runs) < 4 else 4
    every = [w / parts for w in simplex(parts, len(options.runs))]

    def valid(weights: np.ndarray, stay: float) -> float:
        return -of_union(stacked["valid"], ends["valid"], weights, stay).mean()

    even = np.full(len(options.runs), 1 / len(options.runs))
    stay = min(STAYS, key=lambda s: valid(even, s))
    weights = min(every, key=lambda w: valid(w, stay))
    results = {"runs": alone, "states": states, "weights": weights.tolist(), "stay": stay}
    five_gram = KneserNey(5).fit(corpus.train)
    ours = {name: of_union(stacked[name], ends[name], weights, stay) for name in stacked}
    theirs = {name: five_gram.log_prob(texts[name]) for name in texts}
    share = min(np.linspace(0, 1, 101), key=lambda w: mixture(ours["valid"], theirs["valid"], w))
    results["5-gram_weight"] = round(float(share), 2)
    for name in ours:
        results[name] = round(mixture(ours[name], theirs[name], 0.0), 3)
        results[f"{name}_with_5-gram"] = round(mixture(ours[name], theirs[name], share), 3)
    print(results)
    record(f"vlhmm_union_{options.label}", results, folder=".", seconds=round(time.perf_counter() - began, 1))


if __name__ == "__main__":
    main()
