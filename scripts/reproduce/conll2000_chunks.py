"""Chunking on CoNLL-2000: F1 of whole chunks as conlleval counts it, of the CRF that keeps to the scheme of its tags.

    python scripts/reproduce/conll2000_chunks.py
    python scripts/reproduce/conll2000_chunks.py --held-out --l2 0.3 1 --spans bioes      # a tenth of train in place of test
    python scripts/reproduce/conll2000_chunks.py --held-out --window 3
    python scripts/reproduce/conll2000_chunks.py --held-out --states runs/vlhmm           # a run of `pplseq train vlhmm`

The given part-of-speech tags are features beside the words. Trained on CoNLL-2000 train (sections 15-18 of the treebank),
tested on its test (section 20); settings are chosen on held-out sentences of train. --window is how many
words (and parts of speech) on each side are looked at; the library's own templates have 2. The row of states is of a run
of `pplseq train vlhmm TEXT --num-states 4096 --min-count 3 --max-time 6m --threads 1`, TEXT the first 3.3 million words that
scripts/reproduce/unlabelled_text.py writes. Adds its rows to results/conll2000_chunks.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))
from record import data_folder, record  # noqa: E402

WINDOW = 2  # places on each side that the library's templates look at


def templates_of(window: int) -> tuple[str, ...]:
    """The library's templates, with words and parts of speech from so many places on each side."""
    from pplseq.models.taggers.features import DEFAULT_TEMPLATES

    if window < WINDOW:  # those of words; those of parts of speech are of the library's window
        far = {f"lower[{sign * place}]" for place in range(window + 1, WINDOW + 1) for sign in (-1, 1)}
        return tuple(text for text in DEFAULT_TEMPLATES if text not in far)
    more = []
    for place in range(WINDOW + 1, window + 1):
        more += [f"{name}[{sign * place}]" for name in ("lower", "column1") for sign in (-1, 1)]
        more += [f"column1[-{place}]|column1[{1 - place}]", f"column1[{place - 1}]|column1[{place}]"]
    return (*DEFAULT_TEMPLATES, *more)


def run_one(train, test, **settings) -> dict:
    """A row: scores of chunks and seconds."""
    from pplseq.models.taggers.spans.scores import score_spans
    from pplseq.recipes.taggers.systems import make_tagger

    tagger = make_tagger("spans", word_columns=[1], **settings)
    began = time.process_time(), time.perf_counter()
    tagger.fit(train)
    seconds = time.process_time() - began[0], time.perf_counter() - began[1]
    began = time.process_time()
    found = tagger.tag([sentence.words for sentence in test])
    tagging = time.process_time() - began
    scores = score_spans(test, found)
    return {
        **{name: round(100 * getattr(scores.overall, name), 2) for name in ("f1", "precision", "recall")},
        "kinds": {kind: round(100 * score.f1, 2) for kind, score in scores.by_kind.items() if score.num_gold},
        "training_cpu_seconds": round(seconds[0], 1),
        "training_seconds": round(seconds[1], 1),
        "tokens_per_cpu_second": round(sum(len(sentence.words) for sentence in test) / tagging),
        "loss": [round(value, 1) for value in tagger.history[-1:]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--l2", type=float, nargs="+", default=[1.0], help="penalties")
    parser.add_argument("--spans", nargs="+", default=["bio"], choices=("bio", "bioes"), help="schemes to learn in")
    parser.add_argument("--window", type=int, nargs="+", default=[WINDOW], help="places on each side that are looked at")
    parser.add_argument("--states", type=Path, help="a run whose probabilities of states are features")
    parser.add_argument("--clusters", type=Path, help="file of word clusters, `path word count` a line")
    parser.add_argument("--tolerance", type=float, default=3e-4, help="relative gain in ten iterations that ends training")
    parser.add_argument("--max-iterations", type=int, default=130, help="of L-BFGS")
    parser.add_argument("--held-out", action="store_true", help="train on nine tenths of train and test on the tenth")
    parser.add_argument("--max-sentences", type=int, help="of train; for a look")
    options = parser.parse_args()

    import torch

    from pplseq.data.tagged import read_tagged

    torch.set_num_threads(1)
    folder = data_folder() / "conll2000"
    train, test = (
        list(read_tagged(folder / f"{part}.txt", "columns", 2, word_columns=[1])) for part in ("train", "test")
    )
    if options.held_out:
        train, test = [s for i, s in enumerate(train) if i % 10 != 9], train[9::10]
    train = train[: options.max_sentences]
    stem = "conll2000_chunks" + ("_held_out" if options.held_out else "")
    path = ROOT / "results" / f"{stem}.json"
    parts = "nine tenths of CoNLL-2000 train to the tenth" if options.held_out else "CoNLL-2000 train to test"
    for spans, l2, window in itertools.product(options.spans, options.l2, options.window):
        settings = {"tolerance": options.tolerance, "max_iterations": options.max_iterations, "clusters": options.clusters}
        settings["templates"] = templates_of(window)
        if options.states is not None:
            settings["states"] = str(options.states)
        row = run_one(train, test, spans=spans, l2=l2, **settings)
        results = json.loads(path.read_text())["results"] if path.is_file() else {}
        name = f"spans={spans} l2={l2:g}"
        name += "" if window == WINDOW else f" window={window}"
        name += "" if options.states is None else f" states={options.states.name}"
        name += "" if options.clusters is None else f" clusters={options.clusters.name}"
        name += "" if options.max_sentences is None else f" sentences={len(train)}"
        results[name] = row
        print(name, json.dumps(row), flush=True)
        record(
            stem, results, folder=".", tolerance=options.tolerance, max_iterations=options.max_iterations,
            protocol=f"{parts}, given parts of speech, F1 of conlleval, one core; rows of several runs",
        )  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
