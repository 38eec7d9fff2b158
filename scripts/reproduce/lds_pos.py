"""Part-of-speech tagging with a local classifier on token embeddings: the paper's table 2, its three local columns.

    python scripts/reproduce/lds_pos.py                                      # hours: all features, 200 dimensions
    python scripts/reproduce/lds_pos.py --num-states 50 --max-lines 20000 --vocabulary-size 20000      # minutes, for a look
    python scripts/reproduce/lds_pos.py --features word2vec ssid em          # some of FEATURES only

Embeddings are learned from Project Gutenberg books and the untagged words of CoNLL-2000 train and UD English EWT train;
the classifier from CoNLL-2000 train, a tenth of whose sentences are held out to choose its epoch; tested on CoNLL-2000
test. Text, counts, models and vectors are kept in --cache and used again. Writes results/lds_pos.json.

Many pseudo-counts make better parameters, but hide rare words from the filter; embeddings therefore keep a share of them
only (--embedding-share, chosen on the held-out sentences; 1 is the model as it was learned, as are the results with labels).

The classifier, as the paper's, sees one token's embedding and nothing else: two layers, 25 hidden units (tanh). Punctuation
and the commonest words that have one tag nearly always (--direct of them) get their majority tag and are left out of its
training. Differences from the paper: its embeddings saw 1 B words of newswire and its tagger all of PTB train, ours 23 M
words, mostly of nineteenth-century novels, and a quarter of PTB train (sections 15-18; section 20 is the test).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from record import ROOT, data_folder, peak_gigabytes, record  # noqa: E402

FEATURES = {
    "em": "LDS, EM from restricted EM: tokens",
    "em-filtered": "the same, filtered: no words to the right",
    "em-types": "the same: types",
    "em-steady": "the same, tokens by the steady state alone",
    "ssid": "LDS, subspace identification only (paper's realisation): tokens",
    "restricted": "LDS, restricted EM only: tokens",
    "em-from-ssid": "LDS, EM from the paper's realisation: tokens",
    "em-from-random": "LDS, EM from a random start: tokens",
    "word2vec": "word2vec CBOW: types",
}
PAPER = {
    "universal": {"word2vec": 95.00, "ssid": 89.26, "em": 96.44},
    "ptb": {"word2vec": 92.58, "ssid": 83.00, "em": 94.30},
}


class Classifier:
    """tags = argmax W2 tanh(W1 x + b1) + b2 on standardised x, trained by Adam; the epoch best on held-out tokens is kept."""

    def __init__(self, num_units: int = 25, epochs: int = 30, batch_size: int = 256, lr: float = 3e-3, seed: int = 0):
        self.num_units, self.epochs, self.batch_size, self.lr, self.seed = num_units, epochs, batch_size, lr, seed

    def fit(self, x, y, dev_x, dev_y, num_tags: int) -> Classifier:
        """x: (N, h) float32; y: (N,) tag numbers; dev_x, dev_y: held out."""
        import torch

        torch.manual_seed(self.seed)
        self.mean, self.scale = x.mean(0), x.std(0) + 1e-8
        self.net = torch.nn.Sequential(
            torch.nn.Linear(x.shape[1], self.num_units), torch.nn.Tanh(), torch.nn.Linear(self.num_units, num_tags)
        )
        optimizer = torch.optim.Adam(self.net.parameters(), lr=self.lr)
        steps = self.epochs * -(-len(x) // self.batch_size)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=steps)
        x, y = torch.from_numpy((x - self.mean) / self.scale), torch.from_numpy(y)
        best, self.dev_accuracy = None, -1.0
        for _ in range(self.epochs):
            for rows in torch.randperm(len(x)).split(self.batch_size):
                loss = torch.nn.functional.cross_entropy(self.net(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            accuracy = float((self.predict(dev_x) == dev_y).mean())
            if accuracy > self.dev_accuracy:
                best, self.dev_accuracy = {k: v.clone() for k, v in self.net.state_dict().items()}, accuracy
        self.net.load_state_dict(best)
        return self

    def predict(self, x):
        """(N,) tag numbers."""
        import torch

        with torch.no_grad():
            return self.net(torch.from_numpy((x - self.mean) / self.scale)).argmax(1).numpy()


def direct_tags(words, tags, num_common: int) -> tuple[dict[str, str], set[str]]:
    """The majority tag of words that need no classifier: no letter or digit in them, or among the `num_common` commonest
    of those that have one tag in at least 99.5 % of their places; and which these common words are."""
    from collections import Counter, defaultdict

    counts: dict[str, Counter] = defaultdict(Counter)
    for word, tag in zip(words.tolist(), tags.tolist(), strict=True):
        counts[word][tag] += 1
    majority = {word: seen.most_common(1)[0] for word, seen in counts.items()}
    punctuation = {word for word in counts if not any(letter.isalnum() for letter in word)}
    ranked = sorted(counts.keys() - punctuation, key=lambda word: (-counts[word].total(), word))
    sure = [word for word in ranked if majority[word][1] >= 0.995 * counts[word].total()]
    common = set(sure[:num_common])
    return {word: majority[word][0] for word in punctuation | common}, common


def evaluate(embed, train, test, tagset: str, options) -> dict:
    """Accuracy on test of a classifier trained on train, both `TaggedText`; `embed(text)` gives (N, h), `<eos>` included."""
    import numpy as np

    from pplseq.data.columns import to_universal

    features = [np.ascontiguousarray(embed(part.text)[part.real], dtype=np.float32) for part in (train, test)]
    tags = [part.tags[part.real] for part in (train, test)]
    if tagset == "universal":
        tags = [np.array(to_universal(part)) for part in tags]
    words = [part.words[part.real] for part in (train, test)]
    # Which sentence each token stands in; every tenth is held out.
    line = np.repeat(np.arange(train.text.num_lines), train.text.lengths)[train.real]
    dev = line % 10 == 9
    direct, common = direct_tags(words[0][~dev], tags[0][~dev], options.direct)
    names = sorted(set(tags[0].tolist()))
    number = {name: i for i, name in enumerate(names)}
    y = [np.array([number.get(tag, -1) for tag in part]) for part in tags]
    open_ = [~np.isin(part, list(direct)) for part in words]
    x = features[0]
    fitted = Classifier(epochs=options.epochs, seed=options.seed).fit(
        x[~dev & open_[0]], y[0][~dev & open_[0]], x[dev & open_[0]], y[0][dev & open_[0]], len(names)
    )

    def correct(features, words, y, left):
        found = np.array([number[direct[w]] if w in direct else -1 for w in words.tolist()])
        found[left] = fitted.predict(features[left])
        return found == y

    right = correct(features[1], words[1], y[1], open_[1])
    known = np.isin(words[1], words[0])
    in_vocabulary = (test.text.tokens != test.text.vocabulary.unknown_id)[test.real]
    return {
        "accuracy": percent(right),
        "dev_accuracy": percent(correct(x[dev], words[0][dev], y[0][dev], open_[0][dev])),
        "classified_accuracy": percent(right[open_[1]]),
        "unseen_in_tagged_text_accuracy": percent(right[~known]),
        "out_of_vocabulary_accuracy": percent(right[~in_vocabulary]),
        "direct_share": percent(~open_[1]),
        "direct_words": " ".join(sorted(common)),
        "right": right,
    }


def percent(which) -> float | None:
    """Share of True in percent; None of nothing."""
    return round(100 * float(which.mean()), 2) if len(which) else None


def sign_test(one, other) -> float:
    """p of the exact two-sided binomial test on the tokens that only one of two taggers gets right."""
    from scipy.stats import binomtest

    wins, losses = int((one & ~other).sum()), int((~one & other).sum())
    return binomtest(wins, wins + losses).pvalue if wins + losses else 1.0


def table(results: dict[str, dict]) -> str:
    """Accuracies beside the paper's."""
    lines = [f"{'features':72}{'PTB':>8}{'paper':>8}{'univ.':>8}{'paper':>8}"]
    for name, row in results.items():
        cells = []
        for tagset in ("ptb", "universal"):
            paper = PAPER[tagset].get(name)
            cells += [f"{row[tagset]['accuracy']:8.2f}", f"{paper:8.2f}" if paper else " " * 8]
        lines.append(f"{FEATURES[name]:72}" + "".join(cells))
    return "\n".join(lines)


def run(options) -> dict:
    """All asked-for features, one after the other."""
    from tagging_models import embedders
    from tagging_text import encoded, tagged

    data = data_folder()
    text = encoded(data, options.cache, options.vocabulary_size, options.min_count, options.max_lines)
    train, test = (tagged(data / "conll2000" / f"{name}.txt", text.vocabulary) for name in ("train", "test"))
    if options.max_sentences:
        train = train.first(options.max_sentences)
    facts = {
        "training_tokens": text.num_tokens,
        "vocabulary_size": len(text.vocabulary),
        "test_out_of_vocabulary": percent(test.text.tokens[test.real] == text.vocabulary.unknown_id),
    }
    print(facts, flush=True)
    results = {}
    for name, embed, more in embedders(options.features, text, options, train.text):
        started = time.perf_counter()
        results[name] = {t: evaluate(embed, train, test, t, options) for t in ("ptb", "universal")}
        results[name] |= {
            "features": FEATURES[name],
            **more,
            "tagging_seconds": round(time.perf_counter() - started, 1),
        }
        print(name, *(results[name][t]["accuracy"] for t in ("ptb", "universal")), more, flush=True)
    for row in results.values():
        for tagset in ("ptb", "universal"):
            if "em" in results and row is not results["em"]:
                row[tagset]["p_against_em"] = sign_test(row[tagset]["right"], results["em"][tagset]["right"])
    for row in results.values():
        for tagset in ("ptb", "universal"):
            row[tagset].pop("right")
    return {"text": facts, "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--features", nargs="+", choices=FEATURES, default=list(FEATURES), metavar="NAME", help=" ".join(FEATURES)
    )
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "runs" / "lds_pos", help="text, counts, models and vectors"
    )
    parser.add_argument("--num-states", type=int, default=200, help="h, dimensions of all embeddings")
    parser.add_argument("--vocabulary-size", type=int, default=200_000)
    parser.add_argument("--min-count", type=int, default=2, help="rarer words are the unknown word")
    parser.add_argument("--pseudo-counts", type=float, default=1000.0)
    parser.add_argument(
        "--embedding-share", type=float, default=0.005, help="of the pseudo-counts that embeddings keep; 1: all of them"
    )
    parser.add_argument("--iterations", type=int, default=30, help="of EM")
    parser.add_argument(
        "--dtype", choices=["float64", "float32"], default="float32", help="of what has the vocabulary's size"
    )
    parser.add_argument("--run-label", default="", help="added to the names of models in the cache")
    parser.add_argument("--max-lag", type=int, default=7)
    parser.add_argument("--blocks", type=int, default=4, help="block rows of the Hankel matrix")
    parser.add_argument("--window", type=int, default=3, help="of word2vec")
    parser.add_argument("--word2vec-epochs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30, help="of the classifier")
    parser.add_argument("--direct", type=int, default=20, help="common words tagged directly")
    parser.add_argument("--max-lines", type=int, help="paragraphs of Gutenberg; default: all")
    parser.add_argument("--max-sentences", type=int, help="of tagged training text; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--label", default="", help="added to the name of the results")
    options = parser.parse_args()

    import torch

    torch.set_num_threads(options.threads)
    found = run(options)
    print(table(found["results"]))
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items() if k != "cache"}
    record(
        f"lds_pos{options.label}",
        found["results"],
        folder=".",
        settings=settings,
        text=found["text"],
        paper=PAPER,
        peak_gigabytes=round(peak_gigabytes(), 2),
        protocol="CoNLL-2000 train to test; accuracy over all tokens, punctuation and directly tagged words included",
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
