"""Perplexity and mean probability: why what lowers the one may lower the other, on the targets of personalisation.py.

    python scripts/reproduce/personalisation_mean_probability.py

The paper reports the mean probability of words, mean p(x_t). It is linear in p: of all mixtures of fixed weights the best is
one of the sources alone, and of all predictions the best is to be sure of the likeliest word, whatever becomes of the others.
So sharper predictions p^g / sum p^g score higher, up to the share of words that are guessed right (g to infinity), while
perplexity, which is what a probability is for, has its best near g = 1. Per target and system (the source, counts and cache of
the stream alone, their best fixed mixture for either score, PROPS of the three under the library's defaults): perplexity and
mean probability of the second 2,000 words, streaming, at several g; the share of the mean that comes from words above .2.

Writes results/personalisation_mean_probability.json. Corpora are found through PPLSEQ_DATA.

Source: Wojnowicz and Zhao, PROPS (2018), section VII, for the score.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "bench")]
from personal_streams import GENRES, LEARN, first_words, genre, source_of, tweets, wiki_lines  # noqa: E402
from record import record  # noqa: E402

NUM_WORDS = 13_711
SHARPNESS = (0.8, 1.0, 1.1, 1.2, 1.5, 2.0, 4.0)
GRID = [n / 10 for n in range(11)]


def scores(logs) -> dict:
    """Perplexity, mean probability, and what words above .2 have of it."""
    import numpy as np

    probs = np.exp(logs)
    return {
        "perplexity": round(float(np.exp(-np.mean(logs))), 1),
        "mean_probability": round(float(probs.mean()), 5),
        "from_above_.2": round(float(probs[probs > 0.2].sum() / probs.sum()), 3),
    }


def read(sources: dict, lines, num_words: int):
    """{name: (T,) log p} of sources, and {name: (T, G) log p} of the first of them and of PROPS, by sharpness."""
    import numpy as np

    from pplseq.models import PROPSLearner

    learner = PROPSLearner(list(sources.values()), num_words, num_perturbations=1, seed=0)
    said: dict = {name: [] for name in sources}
    sharp: dict = {"source": [], "PROPS": []}
    powers, guessed, position = np.array(SHARPNESS)[:, None], {"source": [], "PROPS": []}, 0
    for line in lines:
        learner.new_sequence()
        for y in line.tolist():
            if position >= LEARN:
                for name, source in sources.items():
                    said[name].append(source.log_prob_of(y))
                for name, probs in (("source", sources["source"].predict()), ("PROPS", learner.predict_proba_one())):
                    logs = powers * np.log(np.maximum(probs, 1e-300))
                    top = logs.max(1, keepdims=True)
                    sharp[name].append(logs[:, y] - top[:, 0] - np.log(np.exp(logs - top).sum(1)))
                    guessed[name].append(int(probs.argmax()) == y)
            learner.learn_one(y)
            position += 1
    return (
        {name: np.array(v) for name, v in said.items()},
        {name: np.array(v) for name, v in sharp.items()},
        {name: round(float(np.mean(v)), 5) for name, v in guessed.items()},
    )


def main() -> None:
    import numpy as np

    from pplseq.data import Vocabulary
    from pplseq.sources import OnlineNGram, UnigramCache

    train = wiki_lines("train")
    vocabulary = Vocabulary.build(train, max_size=NUM_WORDS)
    size, make = len(vocabulary), source_of("", train, vocabulary)
    results: dict = {}
    for target, words in ({"tweets": tweets()[1]} | {name: genre(name) for name in GENRES}).items():
        sources = {"source": make(), "online": OnlineNGram(size), "cache": UnigramCache(size)}
        said, sharp, guessed = read(sources, first_words(words, vocabulary), size)
        rows = results[target] = {name: scores(values) for name, values in said.items()}
        table = np.exp(np.stack(list(said.values()), 1))
        weights = [(a, b, 1 - a - b) for a in GRID for b in GRID if a + b <= 1 + 1e-9]
        mixed = [np.log(table @ np.maximum(w, 0)) for w in weights]
        for score in ("perplexity", "mean_probability"):
            best = (min if score == "perplexity" else max)(range(len(weights)), key=lambda n: scores(mixed[n])[score])
            chosen = [round(float(w), 1) for w in weights[best]]
            rows[f"fixed mixture, best {score} afterwards"] = scores(mixed[best]) | {"weights": chosen}
        for name, values in sharp.items():
            for n, power in enumerate(SHARPNESS):
                rows[f"{name}, sharpness {power}"] = scores(values[:, n])
            rows[f"{name}, guessed right"] = {"share": guessed[name]}
        print(target)
        for name, row in rows.items():
            print(f"    {name:48}" + "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    record("personalisation_mean_probability", results, folder=".")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
