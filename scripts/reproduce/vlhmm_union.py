"""Several VLHMMs of the same words as one HMM: the union of their states, with the model drawn anew at some ends of sentences.

    python scripts/reproduce/vlhmm_union.py ptb runs/FIRST runs/SECOND --threads 2 --label LABEL

The state of the union is (which model, its topic, state in it). The text begins in model k with probability w_k; within a
sentence a state goes on as its model has it; where <eos> resets the state, the model stays with probability s and is drawn from
w otherwise, and the topic stays with probability r or is drawn anew, by the mean of the models' probabilities: all start from
the same topics of the text, so that one topic is the same in all. (Models once learned r from lines that were
shuffled, which say nothing of it.)
So this is an HMM of as many states as the models have together, and the likelihood of a whole text, one sequence of all its
sentences, is exact: what the models say of the words of a sentence, weighed by how probable each is behind the words before.
s and r are the best on validation with even weights, of `STAYS`; then w, of a grid. Beside it stands what the union comes to
where no model is kept (s = 0), and where r is what was learned. Writes results/vlhmm_union_LABEL.json.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "bench")]
from record import data_folder, record  # noqa: E402
from vlhmm import mixture  # noqa: E402

from pplseq import checks  # noqa: E402
from pplseq.baselines import KneserNey  # noqa: E402
from pplseq.data.batches import SentenceBatches  # noqa: E402
from pplseq.data.text import load_corpus  # noqa: E402
from pplseq.models import VLHMM  # noqa: E402

STAYS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98)
TOKENS = 512  # that are scored at once


def by_topic(model: VLHMM, text) -> np.ndarray:
    """(C, N) log p(x_n | the words before it in its sentence, topic), nats."""
    places, count = replace(text, tokens=np.arange(text.num_tokens)), model.num_topics
    found = np.empty((count, text.num_tokens))
    prior = model.topic_prior.detach().clone() if count > 1 else None
    with torch.no_grad(), checks.trusted():
        if prior is not None:
            model.topic_prior.zero_()
        for batch in SentenceBatches(places, TOKENS):
            x = torch.from_numpy(text.tokens[batch.x.numpy()].astype(np.int64))
            chain = model.posterior(x, lengths=batch.lengths)
            until = chain.token_log_probs().double().cumsum(-1).unsqueeze(1)  # (B, 1, T)
            if count > 1:  # p(x_1..t | c) = p(x_1..t) p(c | x_1..t) / p(c)
                topics = chain.filtered_states().probs.unflatten(-1, (count, -1)).sum(-1, dtype=torch.float64)
                until = until + topics.transpose(1, 2).log() + math.log(count)
            step = until.diff(dim=-1, prepend=torch.zeros_like(until[..., :1]))
            step[step.isnan()] = 0.0  # behind words that ruled the topic out
            real = torch.arange(x.shape[1]) < batch.lengths.unsqueeze(-1)
            found[:, batch.x[real].numpy()] = step.transpose(0, 1)[:, real].numpy()
        if prior is not None:
            model.topic_prior.copy_(prior)
    return found


def topic_moves(models: list[VLHMM]) -> tuple[np.ndarray, float]:
    """(C,) probabilities of topics that are drawn, and that of a topic's staying: the mean of the models'."""
    if models[0].num_topics == 1:
        return np.ones(1), 1.0
    with torch.no_grad():
        priors = torch.stack([model.topic_prior.double().softmax(-1) for model in models]).mean(0)
        return priors.numpy(), float(torch.stack([model.topic_kept.double().sigmoid() for model in models]).mean())


def of_union(
    log_probs: np.ndarray, ends: np.ndarray, weights: np.ndarray, stay: float, topics: np.ndarray, kept: float
) -> np.ndarray:
    """(N,) log p(x_n | x_1..x_{n-1}) under the union of K models of C topics.

    Args:
        log_probs: (K, C, N) the same under each model and topic alone, of the words before in the sentence.
        ends: (N,) whether a token is the end of a sentence.
        weights: (K,) of the models at the start, and where one is drawn anew; they sum to 1.
        stay: how probable it is that the model stays at an end.
        topics: (C,) of the topics at the start, and where one is drawn anew. kept: how probable it is that one stays.
    """
    with np.errstate(divide="ignore"):
        weights, topics = np.log(weights)[:, None], np.log(topics)
        stay, change, kept, drawn = np.log(stay), np.log1p(-stay), np.log(kept), np.log1p(-kept)
        result, belief = np.empty(log_probs.shape[-1]), weights + topics
        for n, end in enumerate(ends.tolist()):
            joint = belief + log_probs[..., n]
            result[n] = total = np.logaddexp.reduce(joint, None)
            if np.isfinite(total):  # behind what all models forbid, they are as probable as before
                belief = joint - total
            if end:
                belief = np.logaddexp(stay + belief, change + weights + np.logaddexp.reduce(belief, 0))
                belief = np.logaddexp(kept + belief, drawn + topics + np.logaddexp.reduce(belief, 1)[:, None])
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
    texts, ends, models = {}, {}, list[VLHMM]()
    words = None
    for run in options.runs:
        models.append(model := VLHMM.load(run / "best"))
        if model.num_topics != models[0].num_topics:
            count = f"{model.num_topics} topics, {models[0].num_topics} in {options.runs[0]}"
            raise SystemExit(f"{run}: {count}; a union is of models of the same topics")
        if model.reset_id != model.vocabulary.eos_id:
            raise SystemExit(f"{run}: a model without a reset at <eos> is no part of a union")
        if words is not None and set(model.vocabulary.words) != words:
            raise SystemExit(f"{run}: its words are not those of {options.runs[0]}; a union is of models of the same words")
        words = set(model.vocabulary.words)
        corpus = load_corpus(data_folder() / options.corpus, vocabulary=model.vocabulary)
        figures = {}
        for name, kept in scores.items():
            texts[name] = getattr(corpus, name)
            kept.append(by_topic(model, texts[name]))
            ends[name] = texts[name].tokens == corpus.vocabulary.eos_id
            one = of_union(kept[-1][None], ends[name], np.ones(1), 1.0, *topic_moves([model]))
            figures[name] = round(float(np.exp(-one.mean())), 3)
        alone.append({"states": model.num_states} | figures)
        print(run, figures, flush=True)
    stacked = {name: np.stack(kept) for name, kept in scores.items()}
    # models may number their words differently, log-probabilities stand in the order of the text
    moves = topic_moves(models)
    parts = 10 if len(options.runs) < 4 else 4
    every = [w / parts for w in simplex(parts, len(options.runs))]

    def valid(weights: np.ndarray, stay: float, kept: float) -> float:
        return -of_union(stacked["valid"], ends["valid"], weights, stay, moves[0], kept).mean()

    even = np.full(len(options.runs), 1 / len(options.runs))
    keeps = (moves[1], *STAYS[1:]) if models[0].num_topics > 1 else (1.0,)
    stay, kept = min(itertools.product(STAYS, keeps), key=lambda both: valid(even, both[0], both[1]))
    weights = min(every, key=lambda w: valid(w, stay, kept))
    states = sum(model.num_states for model in models)
    results = {"runs": alone, "states": states, "weights": weights.tolist(), "stay": stay, "topic_kept": round(kept, 4)}
    others = {"without_stay": (0.0, kept), "with_the_topic_kept_that_was_learned": (stay, moves[1])}
    for name, both in others.items():
        results[f"valid_of_even_weights_{name}"] = round(float(np.exp(valid(even, *both))), 3)
    five_gram = KneserNey(5).fit(corpus.train)
    ours = {name: of_union(stacked[name], ends[name], weights, stay, moves[0], kept) for name in stacked}
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
