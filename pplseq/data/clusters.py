"""A partition of the vocabulary into blocks, and the `paths` files that hold one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pplseq import checks
from pplseq.data.vocabulary import Vocabulary
from pplseq.folder import check_sum


@dataclass(frozen=True, eq=False, repr=False)
class Clusters:
    """A partition of the vocabulary into blocks, each named by a bit string: its way from the root of a binary tree.

    Args:
        paths: (V,) bit string of each word; words with the same path make a block. Cutting all paths to the same
            length gives a coarser partition.
        counts: (V,) how often each word stands in the text the clusters come from; 0 where unknown.
        mutual_information: average mutual information of neighbouring blocks in that text, in bits; None if unknown.
        num_ignored: words of a `paths` file that the vocabulary does not have.

    Attributes:
        block_of_word: (V,) int64, blocks are numbered in the sorted order of their paths.
        num_blocks: M.

    Raises:
        ValueError: a path that is no bit string, or as many counts as words are not given.
    """

    paths: tuple[str, ...]
    counts: np.ndarray
    mutual_information: float | None = None
    num_ignored: int = 0
    block_of_word: np.ndarray = field(init=False)
    num_blocks: int = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "paths", tuple(self.paths))
        object.__setattr__(self, "counts", np.asarray(self.counts, dtype=np.int64))
        if not self.paths:
            raise ValueError("paths: expected a bit string for each word of the vocabulary, got none")
        if self.counts.shape != (len(self.paths),):
            raise ValueError(f"counts: expected shape ({len(self.paths)},), a number a word, got {self.counts.shape}")
        names = sorted(set(self.paths))
        for name in names:
            if not is_path(name):
                raise ValueError(f"paths: expected strings of the digits 0 and 1, got {name!r}")
        block = {name: number for number, name in enumerate(names)}
        object.__setattr__(self, "num_blocks", len(names))
        object.__setattr__(self, "block_of_word", np.array([block[path] for path in self.paths], dtype=np.int64))

    @property
    def sizes(self) -> np.ndarray:
        """(num_blocks,) words in each block."""
        return np.bincount(self.block_of_word, minlength=self.num_blocks)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        known = self.mutual_information is not None
        information = f", mutual information {self.mutual_information:.4f} bits" if known else ""
        blocks = f"{self.num_blocks} block{'s' if self.num_blocks > 1 else ''} of {self.sizes.min()}"
        return f"Clusters({len(self)} words in {blocks} to {self.sizes.max()}{information})"


def is_path(text: str) -> bool:
    return bool(text) and not text.strip("01")


def join_paths(paths: list[str], num_lone: int) -> list[str]:
    """Names of the blocks of a tree (`paths`), then of `num_lone` more beside it: under 1, the tree under 0.

    Without a tree, codes of equal length; a single block is 0.
    """
    width = max(num_lone - 1, 0).bit_length()
    codes = [f"{i:b}".zfill(width) if width else "" for i in range(num_lone)]
    if not paths:
        return [code or "0" for code in codes]
    if not codes:
        return [path or "0" for path in paths]
    return ["0" + path for path in paths] + ["1" + code for code in codes]


def write_paths(path: str | Path, clusters: Clusters, vocabulary: Vocabulary) -> None:
    """Write `bitpath<TAB>word<TAB>count` lines, sorted by path, then by falling count.

    Raises:
        ValueError: the vocabulary and the clusters differ in size.
    """
    if len(vocabulary) != len(clusters):
        raise ValueError(
            f"clusters: expected a path for each of the {len(vocabulary)} words of the vocabulary, got {len(clusters)}"
        )
    rows = sorted(zip(clusters.paths, (-clusters.counts).tolist(), range(len(clusters)), vocabulary.words, strict=True))
    text = "".join(f"{bits}\t{word}\t{-count}\n" for bits, count, _, word in rows)
    Path(path).write_bytes(text.encode())


def read_paths(path: str | Path, vocabulary: Vocabulary, *, missing: str = "error") -> Clusters:
    """Read a file of `bitpath<TAB>word<TAB>count` lines, as word clustering programs write it.

    Args:
        path: the file.
        vocabulary: the words to place. Other words of the file are left out; `Clusters.num_ignored` tells how many.
        missing: what to do with words that the file lacks (the published clusters of PTB lack `<eos>`): "error"; "own"
            gives each a block of its own (the tree of the file goes under 0, the new blocks under 1); "rarest" puts
            them in the block whose words have the smallest mean count.

    Returns:
        Clusters with the counts of the file, 0 for missing words.

    Raises:
        ValueError: a malformed line, a word that stands twice, a word of the vocabulary that the file lacks, or no word
            of the vocabulary at all; with the line or the words. FolderError: not what `path.sha256` says, where that is.
    """
    check_sum(Path(path))
    if missing not in ("error", "own", "rarest"):
        raise ValueError(f"missing: expected 'error', 'own' or 'rarest', got {missing!r}")
    index = {word: number for number, word in enumerate(vocabulary.words)}
    paths: list[str | None] = [None] * len(index)
    counts = np.zeros(len(index), dtype=np.int64)
    line_of_word: dict[str, int] = {}
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            bits, word, count = _parse_line(line, f"{path}, line {number}")
            if word in line_of_word:
                raise ValueError(
                    f"{path}, line {number}: the word {checks.shown(word)} stands already in line {line_of_word[word]}"
                )
            line_of_word[word] = number
            if word in index:
                paths[index[word]], counts[index[word]] = bits, count
    if not line_of_word:
        raise ValueError(f"{path}: the file is empty; expected lines of bitpath<TAB>word<TAB>count")
    absent = [number for number, bits in enumerate(paths) if bits is None]
    if len(absent) == len(paths):
        raise ValueError(
            f"{path}: none of the {len(line_of_word)} words of the file is in the vocabulary ({len(paths)} words); "
            "these are clusters of another text"
        )
    if absent and missing == "error":
        names = ", ".join(repr(vocabulary.words[i]) for i in absent[:5]) + (", ..." if len(absent) > 5 else "")
        raise ValueError(
            f"{path}: {len(absent)} of the {len(paths)} words of the vocabulary are not in the file: {names}; cluster "
            "this vocabulary anew, or place them with missing='own' or missing='rarest'"
        )
    if absent and missing == "own":
        names = sorted({bits for bits in paths if bits is not None})
        renamed = join_paths(names, len(absent))
        new_name = dict(zip(names, renamed[: len(names)], strict=True))
        lone = iter(renamed[len(names) :])
        paths = [next(lone) if bits is None else new_name[bits] for bits in paths]
    elif absent:
        known = np.array([bits or "" for bits in paths])
        rarest = min(sorted(set(known.tolist()) - {""}), key=lambda bits: counts[known == bits].mean())
        paths = [rarest if bits is None else bits for bits in paths]
    num_ignored = len(line_of_word) - (len(paths) - len(absent))
    return Clusters(tuple(paths), counts, num_ignored=num_ignored)  # pyright: ignore[reportArgumentType]


def _parse_line(line: bytes, place: str) -> tuple[str, str, int]:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{place}: byte {error.start} of the line is not UTF-8 text") from error
    fields = text.split("\t")
    if len(fields) != 3 or not fields[1]:
        raise ValueError(f"{place}: expected bitpath<TAB>word<TAB>count, got {text[:80]!r}")
    bits, word, count = fields
    if not is_path(bits):
        raise ValueError(f"{place}: expected a path of the digits 0 and 1, got {bits[:80]!r}")
    if not (count.isascii() and count.isdigit()):
        raise ValueError(f"{place}: expected a count, a whole number, after the word {checks.shown(word)}, got {count[:80]!r}")
    return bits, word, int(count)
