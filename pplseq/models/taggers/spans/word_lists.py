"""Lists about words for taggers: clusters of words, and gazetteers (names of people, places, ...)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pplseq.data.sources import read_lines
from pplseq.data.vocabulary import split_words
from pplseq.threads import once


def read_clusters(path: str | Path) -> dict[str, str]:
    """word -> path of a file of `path word` or `path word count` lines, as `pplseq cluster` and Brown's program write them.

    Raises:
        FileNotFoundError, ValueError: no such file; a line that is none, by its number.
    """
    found = {}
    for number, parts in enumerate(read_lines(path), start=1):
        if not parts:
            continue
        if len(parts) not in (2, 3) or not set(parts[0]) <= {"0", "1"}:
            raise ValueError(
                f"{path}, line {number}: expected a path of bits and a word (and perhaps its count), got "
                f"{' '.join(parts)[:80]!r}"
            )
        found[parts[1]] = parts[0]
    if not found:
        raise ValueError(f"{path}: no words; expected lines of a path of bits and a word")
    return found


def read_gazetteers(paths: Iterable[str | Path]) -> dict[str, list[str]]:
    """Names by the files' names without their endings; a name a line, its words between spaces."""
    if isinstance(paths, str | Path):
        raise TypeError(f"gazetteers: expected a list of files, got {str(paths)!r}")
    found = {Path(path).name.partition(".")[0]: [" ".join(parts) for parts in read_lines(path) if parts] for path in paths}
    for name, names in found.items():
        if not names:
            raise ValueError(f"gazetteers: {name} has no names")
    return found


class Gazetteers:
    """Finds names in sentences.

    Args:
        lists: names, words between spaces, by what they are lists of; case counts.
    """

    def __init__(self, lists: Mapping[str, Sequence[str]]):
        self.lists = {name: list(names) for name, names in lists.items()}

    @once
    def _known(self) -> dict[str, dict[tuple[str, ...], str]]:
        """First word -> the names that begin with it, and the lists they are in."""
        found: dict[str, dict[tuple[str, ...], str]] = {}
        for name, names in self.lists.items():
            for words in {tuple(split_words(text)) for text in names} - {()}:
                beginning = found.setdefault(words[0], {})
                beginning[words] = "+".join(filter(None, (beginning.get(words), name)))
        return found

    def of_sentence(self, words: Sequence[str]) -> list[str | None]:
        """Of each word B- or I- and the lists of the name that it is in: from left to right the longest one; None of others."""
        found: list[str | None] = [None] * len(words)
        place = 0
        while place < len(words):
            beginning = self._known.get(words[place], {})
            fitting = [name for name in beginning if tuple(words[place : place + len(name)]) == name]
            longest = max(fitting, key=len, default=())
            for i in range(len(longest)):
                found[place + i] = f"{'I' if i else 'B'}-{beginning[longest]}"
            place += max(len(longest), 1)
        return found
