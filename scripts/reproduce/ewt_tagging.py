"""All taggers on UD English-EWT, universal and Penn Treebank tags: accuracy of all, known and unknown words, time of training,
speed of tagging.

    python scripts/reproduce/ewt_tagging.py
    python scripts/reproduce/ewt_tagging.py --systems latent "latent num_substates=32" --columns upos --again
    python scripts/reproduce/ewt_tagging.py --part dev --max-sentences 2000           # for a look; kept in another file
    python scripts/reproduce/ewt_tagging.py --part dev --systems latent --runs runs/ewt_tagging   # trained once for both parts
    python scripts/reproduce/ewt_tagging.py --table                                   # what there is, nothing is trained

A system is a name of `pplseq tag`, and behind it options as `--set` takes them, quoted as in a shell. Tokens are the gold ones.
Rows are kept in results/ewt_tagging.json one by one, and those that are there are not made again; a system that fails has none,
and the exit code is then 1. Times are those of the
processor, on one core, so that other work on the machine does not count. With --runs, trained taggers are kept there and found
again, members of a product (`product members='["latent", "crf l2=0.1"]'`) one by one; rows made of those have the times of the
training. `unsupervised` is scored many-to-one, each state called by its most frequent tag in the scored text;
`semi-supervised` and `partly-tagged` learn from the tags of every tenth sentence and the words of all.
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
from record import data_folder, git, record  # noqa: E402

COLUMNS = ("upos", "xpos")
LABELLED = 10  # of so many sentences, one has tags for semi-supervised systems
HEAD = ("system", "all", "known", "unknown", "sentences", "V", "train s", "tokens/s")


def default_systems() -> list[str]:
    """Those of `pplseq tag compare`, and those that learn without all tags."""
    from pplseq.recipes.taggers.systems import COMPARED, SYSTEMS

    return [*COMPARED, *(name for name, system in SYSTEMS.items() if system.untagged and name not in COMPARED)]


def parts_of(system: str) -> tuple[str, dict]:
    """Name and options."""
    from pplseq.recipes.taggers.systems import parse_settings

    name, *settings = shlex.split(system)
    return name, parse_settings(tuple(settings))


def make(system: str):
    """A tagger from a name and options."""
    from pplseq.recipes.taggers.systems import make_tagger

    name, settings = parts_of(system)
    return make_tagger(name, **settings)


def training_text(system: str, train):
    """What a system may see of the training text."""
    from pplseq.data.columns import TaggedSentence

    if parts_of(system)[0] not in ("semi-supervised", "partly-tagged"):
        return train
    return [s if i % LABELLED == 0 else TaggedSentence(s.words, (None,) * len(s.words)) for i, s in enumerate(train)]


def trained(system: str, train, runs: Path | None = None):
    """A trained tagger and the times of its training; kept in a folder of `runs`, and found there again. Members of a product
    are kept one by one, so that products of the same ones are no training more."""
    from pplseq.models import ProductOfTaggers
    from pplseq.recipes.taggers.systems import load_tagger

    name, settings = parts_of(system)
    if runs is not None and name == "product" and set(settings) == {"members"}:
        models, rows = zip(*(trained(member, train, runs) for member in settings["members"]), strict=True)
        return ProductOfTaggers.of(models), {key: sum(row[key] for row in rows) for key in rows[0]}
    folder = None if runs is None else runs / re.sub(r"[^\w.=+-]+", "_", system)
    facts = None if folder is None else folder.with_name(f"{folder.name}.json")
    if facts is not None and facts.is_file():
        return load_tagger(folder).tagger, json.loads(facts.read_text())
    tagger = make(system)
    seen = training_text(system, train)
    started = time.perf_counter(), time.process_time()
    tagger.fit(seen)
    row = {"train_seconds": time.process_time() - started[1], "train_wall_seconds": time.perf_counter() - started[0]}
    if facts is not None:
        tagger.save(folder)
        facts.write_text(json.dumps(row))
    return tagger, row


def run_one(system: str, train, test, runs: Path | None = None) -> dict:
    """A row of the table; runs: where taggers of this training text are kept."""
    from pplseq.models.taggers.clusters import names_of_clusters, score_clusters
    from pplseq.models.taggers.scores import score_tags, training_words

    tagger, row = trained(system, train, runs)
    words = [sentence.words for sentence in test]
    started = time.process_time()
    found = tagger.tag(words)
    seconds = time.process_time() - started
    if parts_of(system)[0] == "unsupervised":
        row["clusters"] = score_clusters(test, found)._asdict()
        names = names_of_clusters(test, found)
        found = [tuple(names[state] for state in path) for path in found]
    scores = score_tags(test, found, training_words(train))
    return {
        "accuracy": scores.accuracy,
        "known": scores.known_words.accuracy,
        "unknown": scores.unknown_words.accuracy,
        "ambiguous": scores.ambiguous_words.accuracy,
        "sentences": scores.sentences.accuracy,
        **row,
        "tokens_per_second": scores.num_tokens / max(seconds, 1e-9),
        "commit": git("rev-parse", "--short", "HEAD"),
    }


def read_rows(path: Path) -> dict[str, dict[str, dict]]:
    """Column -> system -> row of a file, empty where there is none."""
    results: dict[str, dict[str, dict]] = {column: {} for column in COLUMNS}
    return results | (json.loads(path.read_text())["results"] if path.is_file() else {})


def table(rows: dict[str, dict]) -> str:
    """Rows of one column of tags, as text."""
    from pplseq.report.tag_tables import plain_table

    lines, failed = [], []
    for name, row in rows.items():
        if "error" in row:
            failed.append(f"{name} failed: {row['error']}")
            continue
        shares = [f"{row[key]:.4f}" for key in ("accuracy", "known", "unknown", "sentences")]
        v_measure = f"{row['clusters']['v_measure']:.4f}" if "clusters" in row else ""
        lines.append([name, *shares, v_measure, f"{row['train_seconds']:.1f}", f"{row['tokens_per_second']:,.0f}"])
    return "\n".join([plain_table(HEAD, lines, "l" + "r" * (len(HEAD) - 1)), *failed])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", metavar="SYSTEM", help="default: all")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS, help="of tags")
    parser.add_argument("--part", choices=("dev", "test"), default="test", help="which part is scored")
    parser.add_argument("--max-sentences", type=int, help="of train; for a look")
    parser.add_argument("--runs", type=Path, help="keep trained taggers here, and take those that are here")
    parser.add_argument("--again", action="store_true", help="make the rows again that are there")
    parser.add_argument("--table", action="store_true", help="only print what there is")
    options = parser.parse_args()

    import torch

    from pplseq.data.columns import read_conllu

    torch.set_num_threads(1)
    stem = "ewt_tagging" + ("" if options.part == "test" else f"_{options.part}")
    stem += "" if options.max_sentences is None else f"_{options.max_sentences}"
    path = ROOT / "results" / f"{stem}.json"
    results = read_rows(path)
    systems = [] if options.table else options.systems or default_systems()
    failed = []
    for column in options.columns if systems else ():
        folder = data_folder() / "ud_english_ewt"
        train, test = (
            list(read_conllu(folder / f"en_ewt-ud-{part}.conllu", tag=column)) for part in ("train", options.part)
        )
        train = train[: options.max_sentences]
        runs = options.runs and options.runs / f"{column}{'' if options.max_sentences is None else options.max_sentences}"
        for system in systems:
            if not options.again and "error" not in results[column].get(system, {"error": ""}):
                continue
            print(column, system, "...", flush=True)
            try:
                row = run_one(system, train, test, runs)
            except Exception as error:  # whatever it is, it must not lose the other systems' rows, nor become one
                failed.append(f"{column} {system} failed: {type(error).__name__}: {error}")
                print(failed[-1], file=sys.stderr, flush=True)
                continue
            print(column, system, json.dumps(row), flush=True)
            results = read_rows(path)  # another run may have added rows meanwhile
            results[column][system] = row
            record(
                stem, results, folder=".", max_sentences=options.max_sentences, part=options.part,
                protocol="UD English-EWT, gold tokens, trained on train; processor seconds of one core; rows of several runs",
            )  # fmt: skip
    for column, rows in results.items():
        if rows:
            print(f"\n{column.upper()}\n{table(rows)}")
    if failed:
        sys.exit("\n".join(["no rows of what failed:", *failed]))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
