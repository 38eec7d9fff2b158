"""Streams to personalise a language model to, and systems that read them: what the scripts beside this one share.

Texts are lower-cased words without URLs, hashtags and punctuation; corpora are found through PPLSEQ_DATA.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from record import data_folder  # noqa: E402

WORD = re.compile(r"'?[a-z]+|\d+(?:[.,]\d+)*")
LEFT_OUT = re.compile(r"https?://\S+|#\S+|&amp;|@-@|<unk>")
SINCE = "2014-07-15"
GENRES = ("email", "reviews", "newsgroup", "answers")
LEARN, SCORE, WINDOW = 2000, 2000, 200
BACK, HELD_BACK = "wiki, held back", 100  # paragraphs
BOOKS = ("BY MRS. LANG", "By Honore De Balzac", "BY CAPTAIN WILLIAM DAMPIER.", "By Fyodor Dostoyevsky")  # their second lines
LATER = ("2015-03", "2016-01", "2016-09")


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
    """Streams that defaults may be chosen on: the targets of the paper's experiment, the tweets before those, newspaper, and
    the end of the text that the source is trained on (:func:`source_of` leaves it out)."""
    early, late = tweets()
    journal = (data_folder() / "ptb" / "ptb.train.txt").read_text(encoding="utf-8").splitlines()[:400]
    streams = {"tweets": late, "tweets before": early} | {name: genre(name) for name in GENRES}
    streams["journal"] = [words for line in journal if (words := words_of(line))]
    return streams | {BACK: wiki_lines("train")[-HELD_BACK:]}


def source_of(name: str, train: list[list[str]], vocabulary, order: int = 5):
    """What makes a Kneser-Ney source of the training text; for the stream that ends it, of the text before that one."""
    from pplseq.baselines import KneserNey
    from pplseq.data import Text
    from pplseq.sources import NGramSource

    lines = train[:-HELD_BACK] if name == BACK else train
    model = KneserNey(order).fit(Text.from_lines(lines, vocabulary))
    return lambda: NGramSource(model)


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


def props(streams, lines, *, num_perturbations: int, num_words: int, seed: int, frozen=False, guard=None, **options):
    """(T,) log p of every word by PROPS over sources with these log-probabilities, (T,) each; none: a streaming HMM.

    Args:
        guard: least weight of the first source; None for the library's, 0 for none.
    """
    import numpy as np

    from pplseq.models import PROPS, StreamingHMM
    from pplseq.models.props.guard import LEAST
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
    least = LEAST if guard is None else guard
    return guarded(streams[0], np.array(values), least) if streams and least else np.array(values)


def guarded(source, values, least: float, **options):
    """(T,) log p of every word by a source and what was learned beside it, under a guard."""
    import numpy as np

    from pplseq.models.props.guard import SourceGuard

    guard = SourceGuard(least, **options)
    return np.array([guard.take(a, b) for a, b in zip(source.tolist(), values.tolist(), strict=True)])


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
        "worst_of_first_20": round(float(gains[:, 1:21].min(1).mean()), 2),
        "worst_window": round(float(windows.min()), 2),
        "windows_lost": round(float((windows < -1e-9).mean()), 4),
    }
