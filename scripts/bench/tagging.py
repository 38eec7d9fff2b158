"""Seconds of training and tokens a second of tagging: the library's taggers against NLTK's and crfsuite, in the same run.

    OMP_NUM_THREADS=1 python scripts/bench/tagging.py [--systems hmm nltk-tnt] [--column xpos] [--repeat 3]
    OMP_NUM_THREADS=1 python scripts/bench/tagging.py --spans
    OMP_NUM_THREADS=1 python scripts/bench/tagging.py --penalty

UD English-EWT below PPLSEQ_DATA, gold tokens: trained on train, tagging test. One thread, processor seconds, so that other work
on the machine does not count. All systems are trained first, then tag the text in turn: "first" is the first time, with all
caches empty, "tokens_per_second" the median of the later ones. "sentence_milliseconds" is for sentences of dev handed over one
at a time. crfsuite's tagging includes its features, which the library makes as strings in Python. No speed is reported of
taggers that are one method but do not agree, or that tag worse than they are known to.

--spans: chunks of CoNLL-2000 with the given parts of speech, by the system `spans` and by crfsuite with the same features,
penalty and number of iterations: nine tenths of its training part to learn from, the last one to tag. "ready" is crfsuite
alone, its features made and converted before. Written to another file.

--penalty: `crf` and `spans` as they are, which choose their penalty, against crfsuite as it is, which has one: the first 3,000
sentences and all of EWT, judged on dev, and the first 900 of CoNLL-2000's training part, judged on its last 1,500.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

from record import ROOT, data_folder, record

SYSTEMS = ("hmm", "tnt", "enhanced", "latent", "nltk-tnt", "nltk-perceptron", "crfsuite")
SAME = {("tnt", "nltk-tnt"): 0.001}  # by how much the accuracies may differ: ties and rounding
LEAST = {"hmm": 0.91, "tnt": 0.92, "enhanced": 0.92, "latent": 0.93, "nltk-perceptron": 0.925, "crfsuite": 0.935}
SPANS, SPANS_LEAST, SPANS_DIFFER = {"l2": 1.0, "max_iterations": 60}, 0.93, 0.005  # F1
PROMISED = {"hmm": {"tokens_per_second": 50_000}, "latent": {"train_seconds": 60}}


def train_all(systems, train):
    """Taggers, and the processor seconds of their training."""
    from pplseq.recipes.taggers.systems import make_tagger

    taggers, times = {}, {}
    for name in systems:
        tagger = make_tagger(name)
        started = time.process_time()
        tagger.fit(train)
        taggers[name], times[name] = tagger, time.process_time() - started
        print(f"{name}: trained in {times[name]:.1f} s", flush=True)
    return taggers, times


def tag_in_turn(taggers, words, repeat: int):
    """Tags of each tagger, and the processor seconds of every turn."""
    tags, times = {}, {name: [] for name in taggers}
    for _ in range(repeat + 1):
        for name, tagger in taggers.items():
            started = time.process_time()
            tags[name] = tagger.tag(words)
            times[name].append(time.process_time() - started)
    return tags, times


def milliseconds_each(tagger, words) -> float:
    """Median over sentences that come one at a time."""
    times = []
    for sentence in words:
        started = time.process_time()
        tagger.tag([sentence])
        times.append(time.process_time() - started)
    return 1e3 * statistics.median(times)


def spans(options) -> dict[str, dict]:
    """Rows of two taggers of chunks."""
    import pycrfsuite

    from pplseq.baselines.crfsuite_tagger import CRFSuiteTagger
    from pplseq.data.tagged import read_tagged
    from pplseq.models.taggers.spans.scores import score_spans
    from pplseq.recipes.taggers.systems import make_tagger

    text = list(read_tagged(data_folder() / "conll2000" / "train.txt", "columns", 2, word_columns=[1]))
    train, held_out = [s for i, s in enumerate(text) if i % 10 != 9], text[9::10]
    ours = make_tagger("spans", word_columns=[1], l2=SPANS["l2"], max_iterations=SPANS["max_iterations"])
    taggers = {"spans": ours, "crfsuite": CRFSuiteTagger(templates=ours.features.templates, **SPANS)}
    train_seconds = {}
    for name, tagger in taggers.items():
        started = time.process_time()
        tagger.fit(train)
        train_seconds[name] = time.process_time() - started
        print(f"{name}: trained in {train_seconds[name]:.1f} s", flush=True)
    words = [sentence.words for sentence in held_out]
    tags, times = tag_in_turn(taggers, words, options.repeat)
    ready, times["ready"] = [pycrfsuite.ItemSequence(rows) for rows in taggers["crfsuite"]._strings(words)], []
    for _ in range(options.repeat + 1):
        started = time.process_time()
        for items in ready:
            taggers["crfsuite"]._tagger.tag(items)
        times["ready"].append(time.process_time() - started)
    f1 = {name: score_spans(held_out, found).overall.f1 for name, found in tags.items()}
    if abs(f1["spans"] - f1["crfsuite"]) > SPANS_DIFFER or min(f1.values()) < SPANS_LEAST:
        sys.exit(f"F1 {f1}: expected at least {SPANS_LEAST} and much the same; no speed is reported")
    num_tokens = sum(map(len, words))
    rows = {
        name: {
            "f1": round(f1[name], 4),
            "train_seconds": round(train_seconds[name], 2),
            "tokens_per_second_first": round(num_tokens / times[name][0]),
            "tokens_per_second": round(num_tokens / statistics.median(times[name][1:] or times[name])),
            "sentence_milliseconds": round(milliseconds_each(taggers[name], words[: options.sentences]), 2),
        }
        for name in taggers
    }
    rows["crfsuite"]["tokens_per_second_ready"] = round(num_tokens / statistics.median(times["ready"]))
    return rows


def penalty() -> dict[str, dict]:
    """Rows of taggers that choose their penalty, beside crfsuite's."""
    from pplseq.data.columns import read_conllu
    from pplseq.data.tagged import read_tagged
    from pplseq.models.taggers.scores import score_tags, training_words

    ewt = data_folder() / "ud_english_ewt"
    train, dev = (list(read_conllu(ewt / f"en_ewt-ud-{part}.conllu")) for part in ("train", "dev"))
    chunks = list(read_tagged(data_folder() / "conll2000" / "train.txt", "columns", 2))
    train_all(("crf",), train[:200])  # what is compiled and loaded once
    rows = {}
    for name, text, held_out in (("crf", train[:3000], dev), ("spans", chunks[:900], chunks[-1500:]), ("crf", train, dev)):
        taggers, seconds = train_all((name, "crfsuite"), text)
        for system, tagger in taggers.items():
            found = score_tags(held_out, tagger.tag([s.words for s in held_out]), training_words(text))
            row = {"l2": tagger.l2, "accuracy": round(found.accuracy, 4), "train_seconds": round(seconds[system], 1)}
            rows.setdefault(f"{name}, {len(text):,} sentences", {})[system] = row
    return rows


def check(accuracy: dict[str, float]) -> None:
    """Ends the program where a system is not what it should be."""
    for name, least in LEAST.items():
        if accuracy.get(name, 1.0) < least:
            sys.exit(f"{name} tags {accuracy[name]:.4f} right, expected {least} or more; no speed is reported")
    for (one, other), tolerance in SAME.items():
        if one in accuracy and other in accuracy and abs(accuracy[one] - accuracy[other]) > tolerance:
            sys.exit(
                f"{one} {accuracy[one]:.4f} and {other} {accuracy[other]:.4f} are one method; no speed is reported"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, metavar="NAME", help="of `pplseq tag`")
    parser.add_argument("--column", choices=("upos", "xpos"), default="upos", help="of tags")
    parser.add_argument("--repeat", type=int, default=3, help="turns after the first")
    parser.add_argument("--sentences", type=int, default=100, help="that come one at a time")
    parser.add_argument("--spans", action="store_true", help="chunks of CoNLL-2000 instead")
    parser.add_argument("--penalty", action="store_true", help="training with the choice of the penalty instead")
    options = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    if options.penalty:
        rows = penalty()
        print(json.dumps(rows, indent=1))
        record("tagging_penalty", rows, protocol="one thread, processor seconds; all else as it is without options")
        return
    if options.spans:
        rows = spans(options)
        print(json.dumps(rows, indent=1))
        record("tagging_spans", rows, protocol="CoNLL-2000, a tenth of train, one thread, processor seconds", **SPANS)
        return

    from pplseq.data.columns import read_conllu
    from pplseq.models.taggers.scores import score_tags, training_words
    from pplseq.report.tag_tables import plain_table

    folder: Path = data_folder() / "ud_english_ewt"
    train, dev, test = (
        list(read_conllu(folder / f"en_ewt-ud-{part}.conllu", tag=options.column)) for part in ("train", "dev", "test")
    )
    words = [sentence.words for sentence in test]
    single = [sentence.words for sentence in dev[: options.sentences]]
    num_tokens = sum(map(len, words))
    taggers, train_seconds = train_all(options.systems, train)
    tags, times = tag_in_turn(taggers, words, options.repeat)
    each = {name: milliseconds_each(tagger, single) for name, tagger in taggers.items()}
    known = training_words(train)
    accuracy = {name: score_tags(test, found, known).accuracy for name, found in tags.items()}
    check(accuracy)
    rows = {
        name: {
            "accuracy": round(accuracy[name], 4),
            "train_seconds": round(train_seconds[name], 2),
            "tokens_per_second_first": round(num_tokens / times[name][0]),
            "tokens_per_second": round(num_tokens / statistics.median(times[name][1:] or times[name])),
            "sentence_milliseconds": round(each[name], 2),
        }
        for name in taggers
    }
    head = ("system", "accuracy", "train s", "tokens/s first", "tokens/s", "ms a sentence")
    print(plain_table(head, [[name, *(f"{v:,}" for v in row.values())] for name, row in rows.items()], "lrrrrr"))
    path = ROOT / "results" / "bench" / "tagging.json"
    results = json.loads(path.read_text())["results"] if path.is_file() else {}
    results[options.column] = rows
    record(
        "tagging", results, promised=PROMISED, num_tokens={"train": sum(len(s.words) for s in train), "test": num_tokens},
        protocol="UD English-EWT, one thread, processor seconds; all systems of a column of tags in one run",
    )  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
