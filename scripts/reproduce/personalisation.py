"""Personalisation of a general language model to one writer, and to genres: the PROPS paper's second experiment.

    python scripts/reproduce/personalisation.py                        # a Kneser-Ney source, minutes on one core
    python scripts/reproduce/personalisation.py --write-text runs/wiki # the source's text, lower-cased, without punctuation
    pplseq train lstm runs/wiki --max-vocabulary 13711 --epochs 5 --out runs/lstm_wiki
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
import csv
import itertools
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from record import data_folder, record  # noqa: E402

WORD = re.compile(r"'?[a-z]+|\d+(?:[.,]\d+)*")
LEFT_OUT = re.compile(r"https?://\S+|#\S+|&amp;|@-@|<unk>")
SINCE = "2014-07-15"
GENRES = ("email", "reviews", "newsgroup", "answers")
LEARN, SCORE, WINDOW = 2000, 2000, 200
HISTORY = (
    "Tables before this one had settings of online EM chosen on the development tweets (48 of them, an even start). The "
    "defaults of now (a start at the first source, priors of moves and first states, exponents by the number of sources, the "
    "sharpness of the continuous cache, the step of dynamic evaluation) were chosen on the development tweets, too; while they "
    "were made, all targets were looked at with the n-gram source, none but the development tweets with the network."
)
BOOKS = ("BY MRS. LANG", "By Honore De Balzac", "BY CAPTAIN WILLIAM DAMPIER.", "By Fyodor Dostoyevsky")  # their second lines
LATER = ("2015-03", "2016-01", "2016-09")
PAPER = {"PROPS": 0.01, "streaming HMM": 0.004, "uniform": 7.2e-5}


def words_of(line: str) -> list[str]:
    """Lower-cased words, a clitic ('s, 't) by itself, as WikiText writes them."""
    # WikiText's unknown words stay unknown words; its @-@ joins parts of a word
    return [w if w != "unkword" else "<unk>" for w in WORD.findall(LEFT_OUT.sub(_keep, line.lower().replace("’", "'")))]


def _keep(match) -> str:
    return " unkword " if match.group() == "<unk>" else " "


def wiki_lines(name: str) -> list[list[str]]:
    """Paragraphs of WikiText-2 as lists of words; no headings."""
    lines = (data_folder() / "wikitext2" / f"wiki.{name}.tokens").read_text(encoding="utf-8").splitlines()
    return [words for line in lines if not line.strip().startswith("=") and (words := words_of(line))]


def tweets(since: str = SINCE) -> tuple[list[list[str]], list[list[str]]]:
    """(tweets before a day, those from then on), oldest first, as lists of words."""
    path = next((data_folder() / "trump_tweets").glob("*.tsv"))
    with path.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file, delimiter="\t"), key=lambda row: (row["created_at"], row["status_id"]))
    own = [row for row in rows if not row["text"].lstrip(" .").startswith(('"@', "“@", "RT @"))]
    parts = ([row["text"] for row in own if (row["created_at"] >= since) == late] for late in (False, True))
    return tuple([words for text in part if (words := words_of(text))] for part in parts)


def genre(name: str, *parts: str) -> list[list[str]]:
    """Sentences of one genre of the treebank's parts, by default the training part, in their order."""
    lines, wanted = [], False
    paths = [next((data_folder() / "ud_english_ewt").glob(f"*{part}.conllu")) for part in parts or ("train",)]
    for line in "\n".join(path.read_text(encoding="utf-8") for path in paths).splitlines():
        if line.startswith("# newdoc id = "):
            wanted = line.removeprefix("# newdoc id = ").startswith(name)
        elif wanted and line.startswith("# text = ") and (words := words_of(line.removeprefix("# text = "))):
            lines.append(words)
    return lines


def book(author: str) -> list[list[str]]:
    """Paragraphs of a book of the Gutenberg validation part, behind the line that names its author."""
    lines = next((data_folder() / "gutenberg").glob("*valid*")).read_text(encoding="utf-8").splitlines()
    return [words for line in lines[lines.index(author) + 1 :] if (words := words_of(line))]


def held_out_streams() -> dict[str, list[list[str]]]:
    """Streams that nobody looked at while defaults were chosen."""
    streams = {f"book {author.rstrip('.').split()[-1].title()}": book(author) for author in BOOKS}
    streams |= {f"tweets from {month}": tweets(month)[1] for month in LATER} | {"weblog": genre("weblog")}
    return streams | {f"{name}, others": genre(name, "dev", "test") for name in GENRES} | {"wiki": wiki_lines("valid")}


def development_streams() -> dict[str, list[list[str]]]:
    """Streams that defaults may be chosen on: the targets of the paper's experiment, and the tweets before those."""
    early, late = tweets()
    return {"tweets": late, "tweets before": early} | {name: genre(name) for name in GENRES}


def first_words(lines: list[list[str]], vocabulary) -> list:
    """The first LEARN + SCORE words, encoded, line by line."""
    left, encoded = LEARN + SCORE, []
    for line in lines:
        if left <= 0:
            break
        encoded.append(vocabulary.encode(line[:left]))
        left -= len(encoded[-1])
    return encoded


def log_probs(make, lines, freeze: int | None = None):
    """(T,) log p of every word by a source that observes as it goes.

    Args:
        make: gives a fresh source.
        freeze: words after which the source's counts stay: each line is then predicted by a copy of it.
    """
    import copy

    import numpy as np

    source, values, position = make(), [], 0
    for line in lines:
        source.reset()
        for y in line.tolist():
            if freeze is not None and position == freeze:
                source = copy.deepcopy(source)
                source.frozen = True
            values.append(source.log_prob_of(y))
            (source.observe if not getattr(source, "frozen", False) else _context_only(source))(y)
            position += 1
    return np.array(values)


def _context_only(source):
    """How a source whose counts stay reads on."""
    from pplseq.sources import OnlineNGram, UnigramCache

    if isinstance(source, UnigramCache):
        return lambda y: None
    if isinstance(source, OnlineNGram):
        return source._context.append
    return source.observe


def network_log_probs(model, lines) -> dict:
    """(T,) log p of every word by a network: as it is, dynamic, and by a continuous cache over its states."""
    import numpy as np

    from pplseq.sources import ContinuousCache, DynamicEvaluation, TorchLanguageModelSource

    base = TorchLanguageModelSource(model)
    sources = {model.name: base, f"dynamic {model.name}": DynamicEvaluation(model), "continuous cache": ContinuousCache(base)}
    values = []
    for line in lines:
        for source in sources.values():
            source.reset()
        for y in line.tolist():
            values.append([source.log_prob_of(y) for source in sources.values()])
            for source in sources.values():
                source.observe(y)
    return dict(zip(sources, np.array(values).T, strict=True))


def props(streams, lines, *, num_perturbations: int, num_words: int, seed: int, frozen: bool = False, **options):
    """(T,) log p of every word by PROPS over sources with these log-probabilities, (T,) each; none: a streaming HMM."""
    import numpy as np

    from pplseq.models import PROPS, StreamingHMM
    from pplseq.models.props.learner import default_exponent

    if streams:
        model = PROPS(num_words=num_words, num_sources=len(streams), num_perturbations=num_perturbations, seed=seed)
    else:
        model = StreamingHMM(num_states=num_perturbations, num_words=num_words, seed=seed)
    state, values = model.start(**{"exponent": default_exponent(len(streams))} | options), []
    said = np.stack(streams, 1) if streams else np.zeros((sum(map(len, lines)), 0))
    for line in lines:
        state.new_sequence()
        for y in line.tolist():
            t = len(values)
            state, info = model.step(state, y, said[t], learn=not (frozen and t >= LEARN))
            values.append(info.log_prob)
    return np.array(values)


def mixture(streams, weights=None, *, exponent: float = 0.8, frozen: bool = False):
    """(T,) log p of a mixture of sources: of fixed weights, or learned by online EM from equal ones."""
    import numpy as np

    probs = np.exp(np.stack(streams, 1))
    if weights is not None:
        return np.log(probs @ np.asarray(weights))
    weights, values = np.full(probs.shape[1], 1 / probs.shape[1]), []
    for t, row in enumerate(probs):
        joint = weights * row
        values.append(np.log(joint.sum()))
        if not (frozen and t >= LEARN):
            weights = weights + (t + 2) ** -exponent * (joint / joint.sum() - weights)
    return np.array(values)


def figures(values, source) -> dict:
    """Perplexity and mean probability of the scored words, and gains over a source."""
    import numpy as np

    values = np.atleast_2d(values)
    scored = values[:, LEARN : LEARN + SCORE]
    perplexities = np.exp(-scored.mean(1))
    gains = np.cumsum(np.pad(values - source, ((0, 0), (1, 0))), 1)
    windows = gains[:, WINDOW:] - gains[:, :-WINDOW]
    return {
        "perplexity": round(float(perplexities.mean()), 1),
        "spread": round(float(perplexities.std()), 1),
        "mean_probability": round(float(np.exp(scored).mean()), 5),
        "gain_of_first_20": round(float(gains[:, 20].mean()), 2),
        "worst_window": round(float(windows.min()), 2),
        "windows_lost": round(float((windows < -1e-9).mean()), 4),
    }


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
        values = np.stack([props(streams, lines, seed=seed, **common) for seed in range(seeds)])
        rival = mixture(streams if len(streams) > 1 else [own, cache])
        gains = figures(values, own)
        rows[name] = {
            "words": len(own),
            "perplexity of source": round(float(np.exp(-own.mean())), 1),
            "perplexity of learned mixture": round(float(np.exp(-rival.mean())), 1),
            "perplexity": round(float(np.exp(-values.mean())), 1),
            "gain over source": round(float((values - own).sum(1).mean()), 1),
            "gain over learned mixture": round(float((values - rival).sum(1).mean()), 1),
            "worst window of mixture": figures(rival, own)["worst_window"],
        } | {name: gains[name] for name in ("gain_of_first_20", "worst_window", "windows_lost")}
        print(f"{'':4}{name:48}" + "  ".join(f"{key} {value:,}" for key, value in rows[name].items()), flush=True)
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
    parser.add_argument("--network-note", help="how the network was trained, for the record")
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

    from pplseq.baselines import KneserNey, NeuralLanguageModel
    from pplseq.data import Text, Vocabulary
    from pplseq.sources import NGramSource

    sources: dict = {}
    if options.network:
        folder = options.network / "best" if (options.network / "best").is_dir() else options.network
        network = NeuralLanguageModel.load(folder)
        vocabulary = network.vocabulary
    else:
        vocabulary = Vocabulary.build(train, max_size=options.words)
    ngram = KneserNey(options.order).fit(Text.from_lines(train, vocabulary))
    sources[f"{options.order}-gram"] = lambda: NGramSource(ngram)
    if options.held_out or options.development:
        results, (source,) = {}, sources.values()
        part = "held_out" if options.held_out else "development"
        for name, lines in (held_out_streams() if options.held_out else development_streams()).items():
            print(name)
            results[name] = held_out(source, first_words(lines, vocabulary), len(vocabulary), options.seeds)
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
