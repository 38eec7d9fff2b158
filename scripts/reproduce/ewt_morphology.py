"""Morphology of UD English-EWT as the CoNLL 2018 shared task scores it: F1 of UPOS, XPOS, UFeats, AllTags and lemmas on gold
tokens and on raw text, there also of tokens, words and sentences.

    python scripts/reproduce/ewt_morphology.py --systems morphology "morphology num_substates=8"     # development part
    python scripts/reproduce/ewt_morphology.py --part test --systems "morphology num_substates=8"    # of the one chosen there
    python scripts/reproduce/ewt_morphology.py --table                                               # what there is

A system is a name of `pplseq tag` for several columns, and behind it options as `--set` takes them; it learns the four columns
of train. The splitter of raw text learns from train too, as `pplseq tag splitter` does. Raw text is that of the treebank, with
one space where it has a space and a blank line between paragraphs, as in the shared task. What was found is written as CoNLL-U
and scored as `pplseq tag score` does. Models are kept in --runs, and found there again, so that a part more is no training
more; rows are kept in results/ewt_morphology.json. Seconds are those of the processor, one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))
from record import data_folder, git, record  # noqa: E402

METRICS = ("tokens", "sentences", "words", "upos", "xpos", "ufeats", "alltags", "lemmas")
# the model english-ewt of UDPipe 1.2 for the treebank of release 2.5, per cent, as the README of "Universal Dependencies 2.5
# Models for UDPipe" (Straka and Strakova 2019, hdl.handle.net/11234/1-3131) has them; other sentences than those of 2.16
PUBLISHED = {
    "gold tokens": {"upos": 94.4, "xpos": 93.9, "ufeats": 95.4, "alltags": 92.5, "lemmas": 96.4},
    "raw text": {
        "words": 98.9, "sentences": 77.4, "upos": 93.3, "xpos": 92.8, "ufeats": 94.2, "alltags": 91.3, "lemmas": 95.5,
    },
}  # fmt: skip


def treebank(part: str) -> Path:
    return data_folder() / "ud_english_ewt" / f"en_ewt-ud-{part}.conllu"


def run_folder(runs: Path, name: str) -> Path:
    return runs / re.sub(r"[^\w.=+-]+", "_", name)


def trained_splitter(runs: Path) -> Path:
    """The folder of the splitter."""
    from pplseq.recipes.taggers.tagging import train_splitter

    folder = run_folder(runs, "splitter")
    if not folder.is_dir():
        train_splitter(str(treebank("train")), folder)
    return folder


def trained_tagger(system: str, runs: Path):
    """A tagger of a name and options, as it is loaded, and what its training took."""
    from pplseq.data.tagged import read_tagged
    from pplseq.models.taggers.morphology.tagger import COLUMNS
    from pplseq.recipes.taggers.systems import load_tagger, parse_settings, train_tagger

    folder = run_folder(runs, system)
    facts = folder.with_name(f"{folder.name}.json")
    if not facts.is_file():
        name, *settings = system.split()
        train = read_tagged(treebank("train"), column=",".join(COLUMNS))
        started = time.process_time()
        saved, summary = train_tagger(name, train, folder=folder, **parse_settings(tuple(settings)))
        facts.write_text(json.dumps({"train_seconds": time.process_time() - started, "tags": summary["tags"]}))
    return load_tagger(folder), json.loads(facts.read_text())


def scored(gold: Path, sentences, tags) -> dict[str, float]:
    """F1 of all metrics of sentences, as they were read, with other tags."""
    from pplseq.data.columns import TaggedSentence
    from pplseq.data.tagged import write_tagged
    from pplseq.recipes.taggers.tagging import raw_scores

    found = [TaggedSentence(sentence.words, row) for sentence, row in zip(sentences, tags, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.conllu"
        write_tagged(path, found, source=sentences)
        return {name: score.f1 for name, score in raw_scores(str(gold), str(path)).items()}


def run_one(system: str, part: str, runs: Path) -> dict:
    """A row of the table."""
    from pplseq.data.tagged import read_tagged
    from pplseq.models.taggers.raw_text.treebank import raw_text, read_paragraphs
    from pplseq.recipes.taggers.tagging import read_raw

    splitter = trained_splitter(runs)
    saved, row = trained_tagger(system, runs)
    gold = treebank(part)
    sentences = read_tagged(gold, column=saved.column)
    started = time.process_time()
    tags = saved.tagger.tag([sentence.words for sentence in sentences])
    row["tokens_per_second"] = sum(map(len, tags)) / (time.process_time() - started)
    row["gold tokens"] = scored(gold, sentences, tags)

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n\n".join(raw_text(paragraph) for paragraph in read_paragraphs(gold)) + "\n")
        found = read_raw(str(text), splitter, saved, on_error="raise")
        row["raw text"] = scored(gold, found, saved.tagger.tag([sentence.words for sentence in found]))
    return {**row, "commit": git("rev-parse", "--short", "HEAD")}


def table(rows: dict[str, dict]) -> str:
    """All rows of a part, in per cent."""
    from pplseq.report.tag_tables import plain_table

    lines = [
        [name, mode, *(f"{100 * row[mode][metric]:.2f}" if metric in row[mode] else "" for metric in METRICS)]
        for name, row in rows.items()
        for mode in PUBLISHED
    ]
    return plain_table(("system", "text", *METRICS), lines, "ll" + "r" * len(METRICS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", metavar="SYSTEM", default=["morphology"])
    parser.add_argument("--part", choices=("dev", "test"), default="dev", help="which part is scored")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "ewt_morphology", help="where models are kept")
    parser.add_argument("--table", action="store_true", help="only print what there is")
    options = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    path = ROOT / "results" / "ewt_morphology.json"
    results = json.loads(path.read_text())["results"] if path.is_file() else {"dev": {}, "test": {}}
    for system in () if options.table else options.systems:
        row = run_one(system, options.part, options.runs)
        print(options.part, system, json.dumps(row), flush=True)
        results[options.part][system] = row
        record(
            path.stem, results, folder=".", published_udpipe_1_2_on_ud_2_5_per_cent=PUBLISHED,
            protocol="UD English-EWT 2.16, trained on train alone, F1 as the CoNLL 2018 shared task defines it; chosen on dev",
        )  # fmt: skip
    for part, rows in results.items():
        if rows:
            print(f"\n{part}\n{table(rows)}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
