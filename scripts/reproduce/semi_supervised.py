"""Few tagged sentences of UD English-EWT and many without tags: accuracy beside that of the tagged sentences alone.

    python scripts/reproduce/semi_supervised.py --sizes 50 100 500
    python scripts/reproduce/semi_supervised.py --part dev --sizes 100 --untagged 2000        # for a look; another file

Tagged sentences are drawn from train by a seed; all others of train lose their tags. `hmm` and `latent` see those
alone, `partly-tagged` (EM) and `semi-supervised` (self-training that is checked on held-out parts of the tagged sentences) all.
Adds its rows to results/semi_supervised.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))
from record import data_folder, record  # noqa: E402

ALONE = ("hmm", "latent")  # which take no sentences without tags
BOTH = ("partly-tagged", "semi-supervised")


def run_one(system: str, tagged, untagged, test) -> dict:
    """Accuracy of a system, its seconds, and what it warned of."""
    from pplseq.data.columns import TaggedSentence
    from pplseq.models.taggers.scores import score_tags
    from pplseq.recipes.taggers.systems import make_tagger

    text = list(tagged)
    if system in BOTH:
        text += [TaggedSentence(s.words, (None,) * len(s.words)) for s in untagged]
    began = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tagger = make_tagger(system).fit(text)
    seconds = time.process_time() - began
    accuracy = score_tags(test, tagger.tag([s.words for s in test])).accuracy
    row = {"accuracy": round(accuracy, 4), "train_cpu_seconds": round(seconds, 1)}
    return row | ({"warned": [str(found.message) for found in caught]} if caught else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[50, 100, 500, 1000, 5000], help="tagged sentences")
    parser.add_argument("--systems", nargs="+", choices=(*ALONE, *BOTH), default=(*ALONE, *BOTH))
    parser.add_argument("--untagged", type=int, help="sentences without tags; default: all others")
    parser.add_argument("--part", choices=("dev", "test"), default="test", help="which part is scored")
    parser.add_argument("--seed", type=int, default=0, help="of the tagged sentences")
    options = parser.parse_args()

    import torch

    from pplseq.data.columns import read_conllu

    torch.set_num_threads(1)
    folder = data_folder() / "ud_english_ewt"
    train, test = (list(read_conllu(folder / f"en_ewt-ud-{part}.conllu", tag="upos")) for part in ("train", options.part))
    random.Random(options.seed).shuffle(train)
    stem = "semi_supervised" + ("" if options.part == "test" else f"_{options.part}")
    path = ROOT / "results" / f"{stem}.json"
    for size in options.sizes:
        for system in options.systems:
            tagged, untagged = train[:size], train[size:][: options.untagged]
            row = run_one(system, tagged, untagged, test) | ({"untagged": len(untagged)} if system in BOTH else {})
            print(size, system, json.dumps(row), flush=True)
            results = json.loads(path.read_text())["results"] if path.is_file() else {}
            results.setdefault(str(size), {})[system] = row
            record(
                stem, results, folder=".", part=options.part, seed=options.seed,
                protocol="UD English-EWT, universal tags, gold tokens; tagged sentences drawn from train, the others without "
                "their tags; processor seconds of one core; rows of several runs",
            )  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
