"""Personalisation of a general language model to one writer, and to genres: the PROPS paper's second experiment.

    python scripts/reproduce/personalisation.py                        # a Kneser-Ney source, minutes on one core
    python scripts/reproduce/personalisation.py --write-text runs/wiki # the source's text, lower-cased, without punctuation
    pplseq train lstm runs/wiki --max-vocabulary 13711 --hidden-size 128 --num-layers 1 --dropout 0.2 --epochs 1 --lr 0.003 \\
        --schedule linear --deterministic --out runs/lstm_wiki     # a weak network: eight minutes on one core
    python scripts/reproduce/personalisation.py --network runs/lstm_wiki   # an LSTM source beside it
    python scripts/reproduce/personalisation.py --held-out --seeds 2       # streams that no default was chosen on
    python scripts/reproduce/personalisation.py --development --seeds 2    # the same figures of streams for choosing

The source is trained on WikiText-2. Targets are the tweets of one person in the order of time, from 15 July 2014 on (his own
words: no quoted tweets), and four genres of the English Web Treebank. As in the paper, URLs, hashtags and punctuation are
left out, and words are lower-cased; the vocabulary is the source's 13,711 most frequent words. The first 2,000 words of a
target are for learning, the next 2,000 are scored, both while all that learns goes on learning ("streaming") and with
everything as it stood after the first 2,000 words ("frozen"; counts of caches too). A tweet or sentence is a sequence:
sources start it afresh, and its end is not scored. PROPS and the streaming HMM are as they come, with their defaults; what
the others have to be told (weights of fixed mixtures, the cache's decay) is chosen on the tweets before 15 July 2014. Random
starts: mean of --seeds of them. Of a network there are also dynamic evaluation and a continuous cache over its states, both
"streaming" only.

Beside perplexity and mean probability stand what a system gained over its first source, nats, in the stream's first 20 words
and in the worst 200 words in a row of all 4,000, and the share of such stretches in which it lost.

How many settings were tried for each choice is in the results ("tried"); learned mixtures have nothing chosen. `spread` is the
standard deviation over random starts alone, not the error from having 2,000 words. Unknown words are scored, as one word.

Writes results/personalisation.json and .png; --held-out, which chooses nothing and counts all words from the first on, writes
results/personalisation_held_out.json: books, tweets of later years, a fifth genre, other documents of the four, and text of the
source's own kind, where nothing is to be gained. Its rival is the learned mixture of the same sources, and of the source and a
cache beside PROPS of the source alone. --development writes the same figures of the five targets and the tweets before them
into results/personalisation_development.json, to choose defaults by. Corpora are found through PPLSEQ_DATA.

Source: Wojnowicz and Zhao, PROPS: probabilistic personalization of black-box sequence models (2018), section VII.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "bench")]
from personal_streams import (  # noqa: E402
    BACK,
    GENRES,
    LEARN,
    SCORE,
    WINDOW,
    development_streams,
    figures,
    first_words,
    genre,
    guarded,
    held_out_streams,
    log_probs,
    mixture,
    network_log_probs,
    props,
    source_of,
    tweets,
    wiki_lines,
)
from record import record  # noqa: E402

HISTORY = (
    "Tables before this one had settings of online EM chosen on the development tweets (48 of them, an even start). The "
    "defaults of now (a start at the first source, priors of moves and first states, exponents by the number of sources, the "
    "sharpness of the continuous cache, the step of dynamic evaluation) were chosen on the development tweets, too; while they "
    "were made, all targets were looked at with the n-gram source, none but the development tweets with the network. The guard "
    "was chosen on all of them with the n-gram source, see personalisation_guards.json."
)
TRAINED = "pplseq train lstm, as the first lines of this script say"
KEPT = ("gain_of_first_20", "worst_of_first_20", "worst_window", "windows_lost")
PAPER = {"PROPS": 0.01, "streaming HMM": 0.004, "uniform": 7.2e-5}


class Bench:
    """Sources and systems on one target, with the choices made on the development target."""

    def __init__(self, sources: dict, network, vocabulary, seeds: int):
        self.sources, self.network, self.num_words = sources, network, len(vocabulary)
        self.seeds, self.chosen, self.networks = seeds, {}, {}
        self.tried: dict[str, int] = {}

    def streams(self, lines, frozen: bool) -> dict:
        """Log-probabilities of each source."""
        from pplseq.sources import OnlineNGram, UnigramCache

        decay = self.chosen.get("decay", 1.0)
        learners = {
            "cache": lambda: UnigramCache(self.num_words, decay=decay),
            "online": lambda: OnlineNGram(self.num_words),
        }
        freeze = LEARN if frozen else None
        said = {name: log_probs(make, lines) for name, make in self.sources.items()}
        if self.network is not None:  # the same in both modes, and the slowest
            if id(lines) not in self.networks:
                self.networks[id(lines)] = network_log_probs(self.network, lines)
            said |= self.networks[id(lines)]
        return said | {name: log_probs(make, lines, freeze) for name, make in learners.items()}

    def choose(self, lines) -> None:
        """Settings by the perplexity of the scored part of the development target, streaming."""
        import numpy as np

        from pplseq.sources import UnigramCache

        def best(options, run):
            return min(options, key=lambda o: np.mean([-run(o, seed)[LEARN:].mean() for seed in range(2)]))

        network, self.network = self.network, None  # which has nothing to be chosen
        said, first = self.streams(lines, False), next(iter(self.sources))
        self.network = network
        decays = {d: log_probs(lambda d=d: UnigramCache(self.num_words, decay=d), lines) for d in (1.0, 0.999, 0.995, 0.99)}
        grid = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
        pairs = list(itertools.product(decays, grid))
        decay, share = best(pairs, lambda o, _: mixture([said[first], decays[o[0]]], [1 - o[1], o[1]]))
        self.chosen |= {"decay": decay, "cache share": share}
        said["cache"] = decays[decay]
        three = [(1 - a - b, a, b) for a, b in itertools.product(grid, grid) if a + b < 0.95]
        self.chosen["shares"] = best(three, lambda o, _: mixture([said[first], said["online"], said["cache"]], o))
        self.tried = {"cache share and decay": len(pairs), "shares": len(three)}

    def table(self, lines) -> dict:
        """Figures of all systems on a target, streaming and frozen."""
        rows: dict = {}
        for mode in ("streaming", "frozen"):
            for name, values in self.systems(lines, mode == "frozen"):
                own = self.network is not None and self.first not in name and any(
                    part in name for part in (self.network.name, "continuous")
                )
                source = self.network.name if own else self.first
                rows.setdefault(name, {})[mode] = figures(values, self.said[source])
        return rows

    def systems(self, lines, frozen: bool):
        """(name, (T,) or (seeds, T) log p of every word) of each system."""
        import numpy as np

        said = self.said = self.streams(lines, frozen)
        self.first = next(iter(self.sources))

        def learned(streams, num_perturbations):
            common = dict(num_perturbations=num_perturbations, num_words=self.num_words, frozen=frozen)
            return np.stack([props(streams, lines, seed=n, **common) for n in range(self.seeds)])

        yield "uniform", np.full(sum(map(len, lines)), -np.log(self.num_words))
        yield "streaming HMM", learned([], 3)
        yield "cache", said["cache"]
        yield "online n-gram", said["online"]
        for name in [*self.sources, *([] if self.network is None else [self.network.name])]:
            own, share = said[name], self.chosen["cache share"]
            three = [own, said["online"], said["cache"]]
            yield name, own
            yield f"{name} + cache, fixed", mixture([own, said["cache"]], [1 - share, share])
            yield f"{name} + cache, learned", mixture([own, said["cache"]], frozen=frozen)
            yield f"{name} + online + cache, fixed", mixture(three, self.chosen["shares"])
            yield f"{name} + online + cache, learned", mixture(three, frozen=frozen)
            yield f"PROPS of {name}", learned([own], 2)
            yield f"PROPS of {name}, online, cache", learned(three, 1)
        if self.network is not None and not frozen:
            adaptive = [f"dynamic {self.network.name}", "continuous cache"]
            for name in adaptive:
                yield name, said[name]
            own = [said[name] for name in (self.network.name, *adaptive)]
            yield f"{self.network.name}, {', '.join(adaptive)}, learned", mixture(own)
            yield f"PROPS of {self.network.name}, {', '.join(adaptive)}", learned(own, 1)
            yield f"{self.first} and all others, learned", mixture(list(said.values()))
            yield f"PROPS of {self.first} and all others", learned(list(said.values()), 1)


def held_out(source, lines, num_words: int, seeds: int) -> dict:
    """What the defaults gained on all words of a stream over the frozen source, and over the mixture of the same sources."""
    import numpy as np

    from pplseq.models.props.guard import LEAST
    from pplseq.sources import OnlineNGram, UnigramCache

    own = log_probs(source, lines)
    online, cache = (log_probs(lambda kind=kind: kind(num_words), lines) for kind in (OnlineNGram, UnigramCache))
    rows = {}
    for name, streams, num_perturbations in (
        ("PROPS of source", [own], 2),
        ("PROPS of source, cache", [own, cache], 2),
        ("PROPS of source, cache; 1 perturbation", [own, cache], 1),
        ("PROPS of source, online, cache", [own, online, cache], 1),
        ("PROPS of source, online, cache; 2 perturbations", [own, online, cache], 2),
    ):
        common = dict(num_perturbations=num_perturbations, num_words=num_words)
        bare = np.stack([props(streams, lines, seed=seed, guard=0, **common) for seed in range(seeds)])
        values = np.stack([guarded(own, row, LEAST) for row in bare])
        rival = mixture(streams if len(streams) > 1 else [own, cache])
        gains, without = figures(values, own), figures(bare, own)
        rows[name] = {
            "words": len(own),
            "perplexity of source": round(float(np.exp(-own.mean())), 1),
            "perplexity of learned mixture": round(float(np.exp(-rival.mean())), 1),
            "perplexity": round(float(np.exp(-values.mean())), 1),
            "gain over source": round(float((values - own).sum(1).mean()), 1),
            "gain over learned mixture": round(float((values - rival).sum(1).mean()), 1),
            "worst window of mixture": figures(rival, own)["worst_window"],
        } | {name: gains[name] for name in KEPT}
        rows[name]["without guard"] = {"gain over source": round(float((bare - own).sum(1).mean()), 1)} | {
            name: without[name] for name in KEPT
        }
        print(f"{'':4}{name:48}" + "  ".join(f"{key} {value}" for key, value in rows[name].items()), flush=True)
    return rows


def show(target: str, rows: dict) -> None:
    print(f"\n{target}: words {LEARN:,} to {LEARN + SCORE:,}")
    print(f"{'':48}{'streaming':>12}{'mean p':>10}{'frozen':>12}{'mean p':>10}")
    for name, row in rows.items():
        cells = "".join(f"{r['perplexity']:12.1f}{r['mean_probability']:10.5f}" for r in row.values())
        print(f"{name:48}{cells}  {row['streaming']['gain_of_first_20']} {row['streaming']['worst_window']}", flush=True)


def plot(tables: dict, path: Path) -> None:
    """Perplexities of the main systems, a group a target."""
    import matplotlib

    matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot

    names = [name for name in next(iter(tables.values())) if name != "uniform" and "fixed" not in name]
    figure, axes = pyplot.subplots(figsize=(9, 4), layout="constrained")
    width = 0.8 / len(names)
    for n, name in enumerate(names):
        heights = [rows[name]["streaming"]["perplexity"] for rows in tables.values()]
        axes.bar(np.arange(len(tables)) + n * width, heights, width, label=name)
    axes.set(ylabel="perplexity (streaming)", yscale="log", title="Personalisation after 2,000 words")
    axes.set_xticks(np.arange(len(tables)) + 0.4, list(tables))
    axes.legend(fontsize=6, ncols=2)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=13_711, help="W, of the vocabulary")
    parser.add_argument("--order", type=int, default=5, help="of the Kneser-Ney source")
    parser.add_argument("--network", type=Path, help="run or folder of a neural source; its vocabulary is taken for all")
    parser.add_argument("--network-note", default=TRAINED, help="how the network was trained, for the record")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--held-out", action="store_true", help="streams that no default was chosen on, and all their words")
    parser.add_argument("--development", action="store_true", help="the same of streams that defaults may be chosen on")
    parser.add_argument("--write-text", type=Path, help="only write train.txt and valid.txt of the source into this folder")
    options = parser.parse_args()

    train = wiki_lines("train")
    if options.write_text:
        options.write_text.mkdir(parents=True, exist_ok=True)
        for name, lines in (("train", train), ("valid", wiki_lines("valid"))):
            text = "\n".join(" ".join(words) for words in lines) + "\n"
            (options.write_text / f"{name}.txt").write_text(text, encoding="utf-8")
        return

    from pplseq.baselines import NeuralLanguageModel
    from pplseq.data import Vocabulary

    sources: dict = {}
    if options.network:
        folder = options.network / "best" if (options.network / "best").is_dir() else options.network
        network = NeuralLanguageModel.load(folder)
        vocabulary = network.vocabulary
    else:
        vocabulary = Vocabulary.build(train, max_size=options.words)
    source = sources[f"{options.order}-gram"] = source_of("", train, vocabulary, options.order)
    if options.held_out or options.development:
        results = {}
        part = "held_out" if options.held_out else "development"
        for name, lines in (held_out_streams() if options.held_out else development_streams()).items():
            print(name)
            own = source_of(name, train, vocabulary, options.order) if name == BACK else source
            results[name] = held_out(own, first_words(lines, vocabulary), len(vocabulary), options.seeds)
        record(f"personalisation_{part}", results, folder=".", facts={"seeds": options.seeds, "window": WINDOW})
        return
    early, late = tweets()
    targets = {"tweets": late} | {name: genre(name) for name in GENRES}
    facts = {"vocabulary_size": len(vocabulary), "source_words": sum(map(len, train)), "chosen": {}}
    bench = Bench(sources, network if options.network else None, vocabulary, options.seeds)
    bench.choose(first_words(early, vocabulary))
    facts |= {"chosen": bench.chosen, "tried": bench.tried, "seeds": options.seeds, "history": HISTORY}
    if options.network:
        facts["network"] = {"name": network.name, **network.config, "note": options.network_note}
    tables = {}
    for name, lines in targets.items():
        encoded = first_words(lines, vocabulary)
        total = sum(map(len, encoded))
        if total < LEARN + SCORE:
            print(f"{name}: only {total:,} words, left out")
            continue
        tables[name] = bench.table(encoded)
        facts[f"unknown in {name}"] = round(
            sum(int((line == vocabulary.unknown_id).sum()) for line in encoded) / total, 4
        )
        show(name, tables[name])
    path = record("personalisation", tables, folder=".", facts=facts, paper_mean_probability=PAPER)
    plot(tables, path.with_suffix(".png"))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
