"""The twelve universal part-of-speech tags, and the Penn Treebank's tags as them."""

from __future__ import annotations

from collections.abc import Iterable

UNIVERSAL_TAGS = ("ADJ", "ADP", "ADV", "CONJ", "DET", "NOUN", "NUM", "PRON", "PRT", "VERB", "X", ".")

_PTB_TAGS = {
    "ADJ": "JJ JJR JJS AFX",
    "ADP": "IN",
    "ADV": "RB RBR RBS WRB",
    "CONJ": "CC",
    "DET": "DT EX PDT WDT",
    "NOUN": "NN NNS NNP NNPS",
    "NUM": "CD",
    "PRON": "PRP PRP$ WP WP$",
    "PRT": "POS RP TO",
    "VERB": "MD VB VBD VBG VBN VBP VBZ",
    "X": "ADD FW GW LS SYM UH XX",
    # CoNLL-2000 writes brackets as ( and ), other releases as -LRB- and -RRB-.
    ".": "# $ '' ( ) , -LRB- -RRB- . : `` HYPH NFP",
}
PTB_TO_UNIVERSAL = {tag: universal for universal, tags in _PTB_TAGS.items() for tag in tags.split()}


def to_universal(tags: Iterable[str]) -> list[str]:
    """Penn Treebank tags as the twelve universal ones.

    Args:
        tags: of the 45 tags of the Penn Treebank, or of the newer ones of OntoNotes and the English treebanks of
            Universal Dependencies (ADD, AFX, GW, HYPH, NFP, XX). Of a compound tag (`JJ|NN`), the first counts.

    Raises:
        ValueError: naming the first tag that is none of them.

    Source: Petrov, Das and McDonald, A Universal Part-of-Speech Tagset (2011); its map en-ptb. The newer tags, which it
        does not list, are placed beside their like.
    """
    found = []
    for tag in tags:
        universal = PTB_TO_UNIVERSAL.get(tag) or PTB_TO_UNIVERSAL.get(tag.split("|")[0])
        if universal is None:
            raise ValueError(f"tags: {tag!r} is no Penn Treebank tag; expected one of {' '.join(PTB_TO_UNIVERSAL)}")
        found.append(universal)
    return found
