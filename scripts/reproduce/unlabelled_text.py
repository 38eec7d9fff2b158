"""Text without tags, a sentence a line in the words of the Penn Treebank, for clusters and embeddings that taggers look at: UD
English-EWT train, CoNLL-2000 train, PTB and WikiText-2 train, tweets, and the first paragraphs of Project Gutenberg.

    python scripts/reproduce/unlabelled_text.py runs/unlabelled.txt --paragraphs 120000
    pplseq cluster runs/unlabelled.txt --num-clusters 400 --min-count 3 --out runs/unlabelled_c400.paths
    pplseq count runs/unlabelled.txt --max-lag 7 --min-count 3 --digits NUM --out runs/counts
    pplseq train text-lds runs/counts --num-states 100 --pseudo-counts 50 --max-iterations 0 --dtype float32 --out runs/lds100
    python scripts/reproduce/ewt_tagging.py --part dev --systems "latent clusters=runs/unlabelled_c400.paths"

No tag is looked at, and nothing of the development and test parts of EWT. PTB train holds the words, though not the tags, of
section 20, which is CoNLL-2000's test, in lower case and without punctuation.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "bench"), str(ROOT / "scripts" / "reproduce")]
from record import data_folder  # noqa: E402

JOINED = re.compile(r" @([-,.])@ ")  # as WikiText writes 1,000 and well-known
SENTENCE_END = re.compile(r"(?<= [.!?]) (?!['\")])")


def sentences(data: Path, num_paragraphs: int) -> Iterator[list[str]]:
    """Of all texts in turn."""
    from treebank_words import treebank_sentences

    from pplseq.data import read_columns, read_conllu
    from pplseq.data.sources import read_lines

    for sentence in read_conllu(data / "ud_english_ewt" / "en_ewt-ud-train.conllu"):
        yield list(sentence.words)
    for sentence in read_columns(data / "conll2000" / "train.txt"):
        yield list(sentence.words)
    yield from read_lines(data / "ptb" / "ptb.train.txt")
    for line in read_lines(data / "wikitext2" / "wiki.train.tokens"):
        if line and line[0] != "=":
            text = JOINED.sub(r"\1", " ".join(line)).replace("<unk>", "<UNK>")
            yield from (part.split() for part in SENTENCE_END.split(text))
    with next((data / "trump_tweets").glob("*.tsv")).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            yield from treebank_sentences(row["text"].replace("\n", " "))
    for line in islice(read_lines(next((data / "gutenberg").glob("*train*"))), num_paragraphs):
        yield from treebank_sentences(" ".join(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--paragraphs", type=int, default=120_000, help="of Project Gutenberg")
    options = parser.parse_args()

    from pplseq.files import new_file

    number = 0
    with new_file(options.out) as new, Path(new).open("w", encoding="utf-8") as file:
        for sentence in sentences(data_folder(), options.paragraphs):
            if sentence:
                file.write(" ".join("_".join(word.split()) for word in sentence) + "\n")
                number += len(sentence)
    print(f"{number:,} words in {options.out}")


if __name__ == "__main__":
    main()
