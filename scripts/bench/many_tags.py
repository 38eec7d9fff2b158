"""Taggers of many tags: seconds, megabytes and accuracy of trigrams and of latent taggers on hundreds of tags.

    OMP_NUM_THREADS=1 python scripts/bench/many_tags.py [--num-tags 500] [--systems enhanced "latent num_substates=4"]
    OMP_NUM_THREADS=1 python scripts/bench/many_tags.py --column upos,feats --num-tags 321 --systems latent --sentences 50

The tags of UD English-EWT below PPLSEQ_DATA are its universal tags with features and relations to the head, of which the
NUM_TAGS - 1 most frequent stay and all others are one: as many as the Brown corpus has (466), in text that is here. Each system
trains on train and tags dev, or the first SENTENCES of it, in a process of its own, whose peak resident memory counts;
processor seconds of one thread. Rows are added to results/bench/many_tags.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter

from record import ROOT, data_folder, git, record

PROMISED = {"seconds": 60, "peak_megabytes": 1000}


def texts(column: str, num_tags: int):
    """Train and dev with so many tags."""
    from pplseq.data.columns import TaggedSentence
    from pplseq.data.tagged import read_tagged

    folder = data_folder() / "ud_english_ewt"
    train, dev = (read_tagged(folder / f"en_ewt-ud-{part}.conllu", column=column) for part in ("train", "dev"))
    counts = Counter(tag for sentence in train for tag in sentence.tags)
    kept = {tag for tag, _ in counts.most_common(num_tags - 1)}
    return tuple(
        [TaggedSentence(words, tuple(tag if tag in kept else "other" for tag in tags)) for words, tags in part]
        for part in (train, dev)
    )


def run_one(system: str, column: str, num_tags: int, num_sentences: int | None) -> dict:
    """A row of the table."""
    from pplseq.models.taggers.scores import score_tags
    from pplseq.recipes.taggers.systems import make_tagger, parse_settings

    train, dev = texts(column, num_tags)
    dev = dev[:num_sentences]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    name, *settings = system.split()
    started = time.process_time()
    tagger = make_tagger(name, **parse_settings(tuple(settings))).fit(train)
    trained = time.process_time()
    found = tagger.tag([sentence.words for sentence in dev])
    tagged = time.process_time()
    scores = score_tags(dev, found)
    return {
        "column": column,
        "tags": len(tagger.tags),
        "sentences_tagged": len(dev),
        "states": len(tagger.tag_of_state()),
        "accuracy": round(scores.accuracy, 4),
        "train_seconds": round(trained - started, 1),
        "tag_seconds": round(tagged - trained, 1),
        "tokens_per_second": round(scores.num_tokens / (tagged - trained)),
        "peak_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        "megabytes_before": round(before),
        "commit": git("rev-parse", "--short", "HEAD"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--column", default="upos,feats,deprel", help="of the tags")
    parser.add_argument("--num-tags", type=int, default=500)
    parser.add_argument("--sentences", type=int, help="of dev that are tagged; default: all")
    parser.add_argument("--systems", nargs="+", default=["enhanced", "tnt", "hmm", "latent num_substates=4"])
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a system, in a process of its own
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(options.one, options.column, options.num_tags, options.sentences)))
        return
    path = ROOT / "results" / "bench" / "many_tags.json"
    results = json.loads(path.read_text())["results"] if path.is_file() else {}
    for system in options.systems:
        done = subprocess.run([sys.executable, *sys.argv, "--one", system], capture_output=True, text=True)
        row = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr.splitlines()[-1:]}
        results[f"{system}, {options.num_tags} tags"] = row
        print(system, row, flush=True)
        record("many_tags", results, promised=PROMISED)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
