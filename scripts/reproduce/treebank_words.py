"""Plain English text as sentences of Penn Treebank words, so that a tagged corpus and books share a vocabulary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

ABBREVIATIONS = (
    "Mr Mrs Ms Dr St Mt Messrs Mme Mlle Prof Rev Capt Col Gen Lieut Lt Sergt Maj Hon Esq Jr Sr Gov Sen Rep Co Corp Inc Ltd "
    "No Vol vol vols ch p pp cf viz vs Jan Feb Mar Apr Aug Sept Oct Nov Dec"
)
_CLITICS = "s|S|re|ve|ll|d|m"
_TOKEN = re.compile(
    rf"""
      ``|''|-{{2,}}|\.{{3,}}                                  # quotes, dashes, ellipses
    | (?:[^\W\d_]\.){{2,}}                                    # U.S.
    | (?:(?<!\w)(?:{"|".join(ABBREVIATIONS.split())}|[A-HJ-Z]))\.  # Mr. and initials; a lone I ends a sentence oftener
    | \d+(?:[.,:/]\d+)+                                       # 1,000
    | [^\W_]+?(?=n't\b)|n't\b                                 # do + n't
    | '(?:{_CLITICS})\b
    | [^\W_]+(?:(?:[-&/]|'(?!(?:{_CLITICS}|t)\b))[^\W_]+)*    # words, near-record, o'clock
    | \S
    """,
    re.VERBOSE,
)
_CURLY = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "—": " -- ", "–": "-", "_": " ", "…": " ... "})
_OPENING = re.compile(r"""(?:(?<=[\s(\[-])|^)"(?=\S)""")
_CLOSING = {"''", "'", ")", "]"}


def treebank_sentences(line: str) -> Iterator[list[str]]:
    """Sentences of a paragraph, words split as in the Penn Treebank (`do n't`, `Mary 's`, quotes as `` and '').

    A sentence ends after `.`, `!` or `?` and the closing quotes and brackets that follow.
    """
    line = _OPENING.sub("`` ", line.translate(_CURLY)).replace('"', " '' ")
    sentence: list[str] = []
    ended = False
    for token in _TOKEN.findall(line):
        if ended and token not in _CLOSING:
            yield sentence
            sentence, ended = [], False
        sentence.append(token)
        ended = ended or token in (".", "!", "?")
    if sentence:
        yield sentence


def alternate_quotes(words: Iterable[str]) -> list[str]:
    """Straight double quotes of a sentence as `` and '' in turn."""
    found, opened = [], False
    for word in words:
        if word == '"':
            word, opened = ("''" if opened else "``"), not opened
        found.append(word)
    return found
