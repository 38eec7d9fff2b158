"""What the words are that a latent tagger's training text lacks, and what was tried to tag them better, all on held-out text:
UD English-EWT (universal and Penn Treebank tags, the development part) and CoNLL-2000 (a tenth of train).

    python scripts/reproduce/unknown_words.py
    python scripts/reproduce/unknown_words.py --corpora ewt-upos --clusters runs/unlabelled_c400.paths

A corpus's tagger is trained once, as what is tried changes what it makes of words alone. Accuracy of all words, and of unknown
ones. Adds to results/unknown_words.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))
from record import data_folder, record  # noqa: E402

TRIED = {
    "default": {},
    **{f"form_count={count:g}": {"form_count": count} for count in (0.5, 2.0)},
    **{f"case_count={count:g}": {"case_count": count} for count in (0.0, 1.0, 2.0)},
    **{f"transition_count={count:g}": {"transition_count": count} for count in (5.0, 50.0, 100.0)},
}
FORMS = {
    **{f"forms of words up to {count} times": {"max_count": count} for count in (3, 30, 1000)},
    **{f"forms, l2={l2}": {"l2": l2} for l2 in (0.1, 0.5)},
    "forms, features of one word": {"min_feature_count": 1},
    "forms, types": {"count_power": 0.0},
}


def corpus(name: str):
    """Sentences to learn from and to ask about."""
    from pplseq.data.columns import read_columns, read_conllu

    if name == "conll2000":
        text = list(read_columns(data_folder() / "conll2000" / "train.txt"))
        return [s for i, s in enumerate(text) if i % 10 != 9], text[9::10]
    folder, tag = data_folder() / "ud_english_ewt", name.partition("-")[2]
    return tuple(list(read_conllu(folder / f"en_ewt-ud-{part}.conllu", tag=tag)) for part in ("train", "dev"))


def kinds(sentences, found, known) -> dict:
    """Unknown words and errors by what they look like, and the pairs of tags that are taken for each other most."""

    def kind(word: str, first: bool) -> str:
        if word.lower() in known:
            return "known in lower case"
        if any(c.isdigit() for c in word):
            return "digits"
        if word.islower():
            return "lower case"
        return ("first word, " if first else "") + ("capital" if word[:1].isupper() else "other")

    number, errors, pairs = Counter(), Counter(), Counter()
    for sentence, tags in zip(sentences, found, strict=True):
        for i, (word, gold, tag) in enumerate(zip(*sentence, tags, strict=True)):
            if word not in known:
                number[kind(word, i == 0)] += 1
                errors[kind(word, i == 0)] += gold != tag
                pairs[gold, tag] += gold != tag
    table = {name: {"words": count, "errors": errors[name]} for name, count in number.most_common()}
    return {"kinds": table, "gold and tag": [[*pair, count] for pair, count in pairs.most_common(8)]}


def results_of(name: str, clusters: str | None) -> dict:
    """All rows of a corpus."""
    import torch

    from pplseq.models import LatentTagger
    from pplseq.models.taggers.rare_words import FormModel
    from pplseq.models.taggers.scores import score_tags, training_words

    train, held_out = corpus(name)
    options = {} if clusters is None else {"clusters": clusters, "transition_count": 50, "case_count": 1}
    learned = LatentTagger(**options).fit(train)
    known, words = training_words(train), [sentence.words for sentence in held_out]
    # what set_counts was called with: expected counts of symbols, and the model of forms
    given = learned.tags, learned.words, learned._of_symbol, learned._counts, learned._sizes
    word_tags = torch.zeros(len(learned.words), len(learned.tags), dtype=torch.float64)
    at, totals = tuple(learned._of_symbol[:-1].T), learned._counts.emission[:-1].sum(-1)
    word_tags.index_put_(at, totals.double(), accumulate=True)

    def row(settings: dict, forms) -> dict[str, float]:
        found = LatentTagger(**{**options, **settings}).set_counts(*given, forms).tag(words)
        scores = score_tags(held_out, found, known)
        return {"all": round(scores.accuracy, 4), "unknown": round(scores.unknown_words.accuracy, 4)}

    rows = {what: row(settings, learned.forms) for what, settings in TRIED.items()}
    for what, settings in FORMS.items():
        more = {"max_count": 10, "l2": 0.2, "clusters": learned.settings.clusters, **settings}
        rows[what] = row({}, FormModel.fit(learned.words, word_tags, **more))
    for what, one in rows.items():
        print(name, what, one, flush=True)
    return {
        "unknown words": kinds(held_out, learned.tag(words), known.known),
        "tried": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", nargs="+", default=("ewt-upos", "ewt-xpos", "conll2000"), metavar="NAME")
    parser.add_argument("--clusters", help="of words, of `pplseq cluster`")
    options = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    path = ROOT / "results" / "unknown_words.json"
    for name in options.corpora:
        rows = results_of(name, options.clusters)
        results = json.loads(path.read_text())["results"] if path.is_file() else {}
        results[name if options.clusters is None else f"{name} {Path(options.clusters).name}"] = rows
        record("unknown_words", results, folder=".", protocol="latent tagger, gold tokens, held-out text; rows of several runs")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
