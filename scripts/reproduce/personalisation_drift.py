"""Streams that become other ones: falling steps, constant steps, and a detector that moves the falling step back.

    python scripts/reproduce/personalisation_drift.py

Two kinds of streams made of real text, and one that is drawn. Letters: of one person's tweets, of which from letter 6,001 on
every letter stands for another one (an exchange drawn anew for each seed), learned by a streaming HMM of eight states. Words:
2,000 of one stream of development, then 2,000 of another (tweets, newspaper, email, a newsgroup), by PROPS of a Kneser-Ney
source of WikiText-2 alone, and with counts and a cache of the stream beside it, which nobody tells of the shift either. Drawn:
6,000 of 30 words from one distribution, then from another, by one state. And the same without a shift, where a detector can
only do harm.

Of every system the perplexity of the second half before the shift, of the first 500 tokens behind it and of the rest, means and
standard deviations over seeds (random starts, and for letters parts of the text and exchanges too), and the detector's alarms
a stream, where one is right with a shift and none without. The detector is as it comes; what it hears, its threshold and slack,
and the step that it goes back to were chosen on streams like these, among four detectors and three steps.

Writes results/personalisation_drift.json. Corpora are found through PPLSEQ_DATA.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "bench")]
from personal_streams import development_streams, first_words, log_probs, source_of, tweets, wiki_lines  # noqa: E402
from record import record  # noqa: E402

NUM_WORDS, LETTERS, BEHIND = 13_711, 6000, 500
SYSTEMS: dict = {
    "exponent .6": {"exponent": 0.6},
    "exponent .8": {"exponent": 0.8},
    "step size .01": {"step_size": 0.01},
    "exponent .6, detector": {"exponent": 0.6, "drift": True},
    "exponent .8, detector": {"exponent": 0.8, "drift": True},
}
PAIRS = (("tweets", "journal"), ("journal", "tweets before"), ("email", "newsgroup"))


class Replayed:
    """A source that says again what it said: (T,) log p of the words of a stream."""

    def __init__(self, values, num_words: int):
        self.values, self.num_words, self.place = values, num_words, 0

    def log_prob_of(self, y: int) -> float:
        return float(self.values[self.place])

    def predict(self):
        raise NotImplementedError("only the words of the stream are known")

    def observe(self, y: int) -> None:
        self.place += 1

    def reset(self) -> None:
        pass


def letters(size: int, seed: int):
    """(N,) letters and spaces of tweets from some place on, 0 to 26."""
    import numpy as np

    text = " ".join(" ".join(words) for words in tweets()[0])
    ids = np.array([ord(c) - 96 if "a" <= c <= "z" else 0 for c in text])
    start = int(np.random.default_rng(seed).integers(len(ids) - size))
    return ids[start : start + size]


def drawn(size: int, seed: int, shifted: bool):
    """(2 N,) words 0 to 29 of two distributions, or of one."""
    import numpy as np

    random = np.random.default_rng(seed)
    first, second = random.dirichlet(np.full(30, 0.1), 2)
    return np.r_[random.choice(30, size, p=first), random.choice(30, size, p=second if shifted else first)]


def exchanged(ids, seed: int):
    """The letters of a text, exchanged; the space stays."""
    import numpy as np

    return np.r_[0, 1 + np.random.default_rng((seed, 1)).permutation(26)][ids]


def learned(lines, said, num_words: int, seed: int, **options):
    """(T,) log p of a stream, and the detector's alarms; without sources by one state for drawn words, eight for letters."""
    import numpy as np

    from pplseq.models import PROPSLearner

    own = {0: 8 if num_words == 27 else 1, 1: 2}.get(len(said), 1)
    sources = [Replayed(values, num_words) for values in said]
    learner, values, alarms = PROPSLearner(sources, num_words, num_perturbations=own, seed=seed, **options), [], 0
    for line in lines:
        learner.new_sequence()
        for y in line.tolist():
            values.append(learner.learn_one(y).log_prob)
            alarms += learner.detector is not None and learner.detector.drift_detected
    return np.array(values), alarms


def figures(runs, shift: int) -> dict:
    """Means and standard deviations over seeds."""
    import numpy as np

    parts = {
        "before": slice(shift // 2, shift),
        "first behind": slice(shift, shift + BEHIND),
        "later": slice(shift + BEHIND, None),
    }
    found = {name: np.exp([-values[part].mean() for values, _ in runs]) for name, part in parts.items()}
    row: dict = {name: [round(float(v.mean()), 2), round(float(v.std(ddof=1)), 2)] for name, v in found.items()}
    return row | {"alarms": round(float(np.mean([alarms for _, alarms in runs])), 2)}


def table(make, num_words: int, shift: int, seeds: int) -> dict:
    """Figures of all systems; `make` gives lines and sources' log-probabilities for a seed."""
    rows = {}
    for name, options in SYSTEMS.items():
        rows[name] = figures([learned(*make(seed), num_words, seed, **options) for seed in range(seeds)], shift)
        print(f"    {name:24}" + "  ".join(f"{key} {value}" for key, value in rows[name].items()), flush=True)
    return rows


def main() -> None:
    import numpy as np

    from pplseq.data import Vocabulary
    from pplseq.sources import OnlineNGram, UnigramCache

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    results: dict = {}
    for shifted in (True, False):

        def make(seed, shifted=shifted):
            ids = letters(2 * LETTERS, seed)
            return [np.r_[ids[:LETTERS], exchanged(ids[LETTERS:], seed) if shifted else ids[LETTERS:]]], []

        def draw(seed, shifted=shifted):
            return [drawn(LETTERS, seed, shifted)], []

        for name, maker, size in (("letters, exchanged", make, 27), ("drawn words, drawn otherwise", draw, 30)):
            name = f"{name} from the middle on" if shifted else f"{name.partition(',')[0]} without a shift"
            print(name)
            results[name] = table(maker, size, LETTERS, seeds)
    train = wiki_lines("train")
    vocabulary = Vocabulary.build(train, max_size=NUM_WORDS)
    source, size, streams = source_of("", train, vocabulary), len(vocabulary), development_streams()
    for first, second in (*PAIRS, ("tweets", None)):
        before = first_words(streams[first], vocabulary)
        lines, shift = before, 2000
        if second is not None:
            lines = [*_cut(before, shift), *_cut(first_words(streams[second], vocabulary), shift)]
        makers = (source, lambda: OnlineNGram(size), lambda: UnigramCache(size))
        said = [log_probs(make, lines) for make in makers]
        for kind, some in (("source", said[:1]), ("source, online, cache", said)):
            name = f"words, {first}{f' then {second}' if second else ' without a shift'}: PROPS of {kind}"
            print(name)
            results[name] = table(lambda seed, lines=lines, some=some: (lines, some), size, shift, seeds)
    record(
        "personalisation_drift", results, folder=".", facts={"seeds": seeds, "letters": 2 * LETTERS, "behind": BEHIND}
    )


def _cut(lines, size: int) -> list:
    """The first lines, so many words."""
    ends = itertools.accumulate(map(len, lines))
    return [line[: size - (end - len(line))] for line, end in zip(lines, ends, strict=True) if end - len(line) < size]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
