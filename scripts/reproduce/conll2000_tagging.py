"""Taggers on CoNLL-2000 with the Penn Treebank's tags, and the LDS paper's table 2, right half: does a lexicalised tagger
gain from token embeddings of an LDS, or from the posteriors of a VL-HMM?

    python scripts/reproduce/conll2000_tagging.py --lds runs/lds_pos/LDS/best --word2vec runs/lds_pos/VECTORS.npy
    python scripts/reproduce/conll2000_tagging.py --systems crf crf+vlhmm --vlhmm runs/ptb/best
    python scripts/reproduce/conll2000_tagging.py --held-out --column-scale 0.3          # a tenth of train in place of test
    python scripts/reproduce/conll2000_tagging.py --systems "latent-product clusters=FILE" "crfsuite c1=0 c2=0.05"
    python scripts/reproduce/conll2000_tagging.py --systems "crf l2=null"            # as `pplseq train tagger` has it

The LDS and the vectors are those that scripts/reproduce/lds_pos.py leaves in its --cache, the VL-HMM one that `pplseq train`
(or scripts/reproduce/vlhmm.py) leaves. Trained on CoNLL-2000 train (sections 15-18 of the treebank), tested on its test
(section 20); the paper trains on sections 0-18. A VL-HMM of the treebank's usual language modelling text has seen the words
of sections 0-20, test included, though not their tags; that text has no punctuation and no capitals. It is part of what the
clusters of scripts/reproduce/unlabelled_text.py were found in. Adds its rows to results/conll2000_tagging.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))
from record import data_folder, record  # noqa: E402

COLUMNS = {
    "lds": "token embeddings of the LDS",
    "lds-filtered": "the same, of words to the left only",
    "word2vec": "word2vec vectors of types",
    "vlhmm": "posteriors of a VL-HMM's states",
}
FEATURED = ("crf", *(f"crf+{name}" for name in COLUMNS), "memm", *(f"memm+{name}" for name in COLUMNS))
PAPER = {"crf": 97.28, "crf+lds": 97.32, "crf+word2vec": 97.35}
NUMBER = re.compile(r"[0-9][0-9.,:/-]*")


class LanguageModellingForms:
    """Words as in the treebank's language modelling text: lower case, N for numbers, no punctuation (None)."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def __call__(self, word: str) -> str | None:
        if NUMBER.fullmatch(word):
            return "N"
        word = word.lower()
        return word if word in self.vocabulary or any(c.isalnum() for c in word) else None


def column_source(name: str, options):
    """What computes the real-valued features of a name; None where its model was not given."""
    import numpy as np

    from pplseq import load
    from pplseq.data import Vocabulary
    from pplseq.data.vocabulary import WordForms
    from pplseq.models.taggers.columns import EmbeddingColumns, PosteriorColumns, TypeColumns

    if name.startswith("lds") and options.lds:
        model = load(options.lds)
        kind = "filtered" if name == "lds-filtered" else "smoothed"
        return EmbeddingColumns(model, model.vocabulary, WordForms(digits="NUM"), kind)
    if name == "word2vec" and options.word2vec:
        vocabulary = Vocabulary.load(Path(options.lds or options.word2vec.parent) / "vocab.txt")
        return TypeColumns(np.load(options.word2vec), vocabulary, WordForms(digits="NUM"))
    if name == "vlhmm" and options.vlhmm:
        model = load(options.vlhmm)
        return PosteriorColumns(model, model.vocabulary, LanguageModellingForms(model.vocabulary))
    return None


def make(system: str, options):
    """A tagger by its name here, else by its name in `pplseq tag`, and options as `--set` takes them, quoted as in a shell."""
    from pplseq.models import CRFTagger, MEMMTagger
    from pplseq.models.taggers.weights import CRFSettings
    from pplseq.recipes.taggers.systems import make_tagger, parse_settings

    if system not in FEATURED:
        name, *settings = shlex.split(system)
        return make_tagger(name, **parse_settings(tuple(settings)))
    kind, _, name = system.partition("+")
    columns = column_source(name, options) if name else None
    settings = CRFSettings(l2=options.l2, tolerance=options.tolerance)
    scale = 1.0 if columns is None or columns.sparse else options.column_scale
    return (CRFTagger if kind == "crf" else MEMMTagger)(columns=columns, column_scale=scale, settings=settings)


def run_one(system: str, train, test, options):
    """One row of the table, and the scores."""
    from pplseq.models.taggers.scores import score_tags, training_words

    tagger = make(system, options)
    started = time.perf_counter(), time.process_time()
    tagger.fit(train)
    seconds = time.perf_counter() - started[0], time.process_time() - started[1]
    started = time.process_time()
    found = tagger.tag([sentence.words for sentence in test])
    tagging = time.process_time() - started
    known = training_words(train)
    scores = score_tags(test, found, known)
    row = {
        "accuracy": round(100 * scores.accuracy, 2),
        "known": round(100 * scores.known_words.accuracy, 2),
        "unknown": round(100 * scores.unknown_words.accuracy, 2),
        "sentences": round(100 * scores.sentences.accuracy, 2),
        "paper": PAPER.get(system),
        "training_seconds": round(seconds[0], 1),
        "training_cpu_seconds": round(seconds[1], 1),
        "tagging_cpu_seconds": round(tagging, 2),
    }
    if getattr(tagger, "history", None):
        row["loss"] = round(tagger.history[-1], 1)
    return row, scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--systems", nargs="+", metavar="NAME",
        help=f"of {', '.join(FEATURED)}, and those of `pplseq tag`; default: crf with all columns whose models are given",
    )  # fmt: skip
    parser.add_argument("--lds", type=Path, help="folder of a text_lds")
    parser.add_argument(
        "--word2vec", type=Path, help=".npy of vectors, for the words of vocab.txt in --lds or beside it"
    )
    parser.add_argument("--vlhmm", type=Path, help="folder of a vlhmm")
    parser.add_argument("--l2", type=float, default=0.5, help="penalty of CRF and MEMM")
    parser.add_argument(
        "--tolerance", type=float, default=1e-4, help="relative gain in ten iterations that ends training"
    )
    parser.add_argument("--column-scale", type=float, default=0.3, help="standard deviation of dense columns")
    parser.add_argument("--held-out", action="store_true", help="train on nine tenths of train and test on the tenth")
    parser.add_argument("--max-sentences", type=int, help="of train; for a look")
    parser.add_argument("--label", default="", help="added to the name of the results")
    options = parser.parse_args()

    import torch

    from pplseq.data import read_columns
    from pplseq.models.taggers.scores import mcnemar

    torch.set_num_threads(1)
    folder = data_folder() / "conll2000"
    train, test = (list(read_columns(folder / f"{part}.txt")) for part in ("train", "test"))
    if options.held_out:
        train, test = [s for i, s in enumerate(train) if i % 10 != 9], train[9::10]
    train = train[: options.max_sentences]
    given = [name for name in COLUMNS if getattr(options, name.partition("-")[0])]
    systems = options.systems or ["crf", *(f"crf+{name}" for name in given)]
    for system in systems:
        name = system.partition("+")[2] if system in FEATURED or " " not in system else ""
        if name and name not in given:
            parser.error(
                f"{system}: give --{name.partition('-')[0]}" if name in COLUMNS else f"{system}: no such columns"
            )
    path = ROOT / "results" / f"conll2000_tagging{options.label}{'_held_out' if options.held_out else ''}.json"
    results = json.loads(path.read_text())["results"] if path.is_file() else {}
    settings = {
        "l2": options.l2,
        "tolerance": options.tolerance,
        "column_scale": options.column_scale,
        "held_out": options.held_out,
        "max_sentences": options.max_sentences,
    }
    parts = "nine tenths of CoNLL-2000 train to the tenth" if options.held_out else "CoNLL-2000 train to test"
    scores = {}
    for system in systems:
        results[system], scores[system] = run_one(system, train, test, options)
        if system in FEATURED and "+" in system and (plain := scores.get(system.partition("+")[0])) is not None:
            results[system]["p_against_plain"] = float(f"{mcnemar(scores[system], plain).p_value:.2g}")
        if system in FEATURED:
            results[system] |= {"l2": options.l2, "columns": COLUMNS.get(system.partition("+")[2])}
            if "+" in system and not system.endswith("vlhmm"):
                results[system]["column_scale"] = options.column_scale
        print(system, results[system], flush=True)
        record(
            path.stem, results, folder=".", settings=settings,
            protocol=f"{parts}, Penn Treebank tags, one core; rows of several runs of this script",
        )  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
