"""A conditional random field over tags in pplseq and crfsuite, on the same features, for :mod:`peers`.

Universal parts of speech of UD English-EWT below PPLSEQ_DATA: a size is the number of sentences, the first of the training
part, that both learn from, with the same penalty and until they stop. "train" is that, "tag" tags the development part, and
"alone" one sentence of it that comes by itself. Steps are words.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np

OPERATIONS = ("tag", "alone", "train")
VARIANTS = {"pplseq": [""], "pycrfsuite": [""]}
TOLERANCE = 5e-3  # of the share of right tags: optimisers stop at different places
ALONE = 20  # words of the sentence that is tagged alone


@functools.cache
def problem(size: int):
    """Sentences to learn from, those to tag, and one of so many words."""
    from record import data_folder

    from pplseq.data.columns import read_conllu

    folder = data_folder() / "ud_english_ewt"
    train, dev = (read_conllu(folder / f"en_ewt-ud-{part}.conllu", tag="upos") for part in ("train", "dev"))
    dev = list(dev)
    return list(itertools.islice(train, size)), dev, next(sentence for sentence in dev if len(sentence.words) == ALONE)


def shape_of(operation: str, size: int, shape: tuple[int, int]) -> tuple[int, int]:
    """Rows and steps of the table's line: all words as one row."""
    train, dev, alone = problem(size)
    return 1, sum(len(sentence.words) for sentence in {"train": train, "tag": dev, "alone": [alone]}[operation])


def runs(make, size: int) -> dict:
    train, dev, alone = problem(size)
    learned = functools.cache(lambda: make().fit(train))
    words = [sentence.words for sentence in dev]
    return {
        "train": lambda: make().fit(train),
        "tag": lambda: learned().tag(words),
        "alone": lambda: learned().tag([alone.words]),
    }


def pplseq_runs(size: int, variant: str, shape: tuple[int, int]) -> dict:
    import torch

    from pplseq.models.taggers.conditional import CRFTagger

    torch.set_num_threads(1)
    return runs(lambda: CRFTagger(l2=1.0), size)


def crfsuite_runs(size: int, variant: str, shape: tuple[int, int]) -> dict:
    from pplseq.baselines.crfsuite_tagger import CRFSuiteTagger

    return runs(lambda: CRFSuiteTagger(l2=1.0, max_iterations=300), size)


LIBRARIES = {"pplseq": pplseq_runs, "pycrfsuite": crfsuite_runs}


def digest(operation: str, value, size: int, shape: tuple[int, int]) -> list[float]:
    """How large a share of the tags is right; of a sentence alone, on which optima may differ, how many tags there are."""
    if operation == "alone":
        return [float(len(value[0]))]
    dev = problem(size)[1]
    found = value.tag([sentence.words for sentence in dev]) if operation == "train" else value
    right = [a == b for tags, sentence in zip(found, dev, strict=True) for a, b in zip(tags, sentence.tags, strict=True)]
    return [float(np.mean(right))]
