"""Words in blocks: Brown clusters of a text, and random blocks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tqdm.auto import tqdm

from pplseq import checks
from pplseq.data.brown import Bigrams, merge_blocks, merge_words
from pplseq.data.clusters import Clusters, join_paths, read_paths, write_paths
from pplseq.data.exchange import exchange_words
from pplseq.data.lag_counts import LagCounts

__all__ = [
    "Clusters", "average_mutual_information", "brown_clusters", "clusters_from_counts", "read_paths", "uniform_clusters",
    "write_paths",
]  # fmt: skip


def brown_clusters(
    tokens: np.ndarray,
    num_words: int,
    num_clusters: int,
    *,
    line_starts: np.ndarray | None = None,
    eos_id: int | None = None,
    own_block: Sequence[int] = (),
    window: int | None = None,
    exchange_passes: int = 0,
    progress: bool = False,
) -> Clusters:
    """Cluster words so that neighbouring blocks share as much mutual information as a greedy search finds.

        I = sum_ij p_ij log2(p_ij / (p_i. p_.j)),    p_ij = share of the bigrams that go from block i to block j

    Args:
        tokens: (N,) word ids.
        num_words: V.
        num_clusters: blocks to make, blocks of single words included; 1 <= num_clusters <= V.
        line_starts: (num_lines + 1,) positions in `tokens` where lines start, N at the end. Given, the last word of a
            line and the first of the next are no bigram. The default is one stream of words across the line ends: so
            count the usual programs, and the published clusters of PTB (1.3346 bits; 1.4187 within lines).
        eos_id: end-of-line word to cluster *without*: it is cut out of the text before bigrams are counted, and gets a
            block of its own. To have it counted as the neighbour it is, leave this None and name it in `own_block`.
        own_block: ids of words that each get a block of their own, with which nothing merges.
        window: clusters kept while words come in, merged down to `num_clusters` afterwards. Default: `num_clusters`.
            A larger one makes a finer tree, but it lost mutual information where it was tried (PTB: 0.4 % at twice the
            default).
        exchange_passes: passes over the vocabulary afterwards that move each word to the block where it leaves the
            most mutual information (PTB, 128 blocks: 1.335 bits, 1.376 after three passes). 0: plain Brown clusters.
        progress: show a progress bar.

    Returns:
        Clusters. Words that are not in `tokens` join the block of the rarest words, if there are blocks enough for the
        others. Same input, same clusters: ties go by falling frequency, then by id.

    Raises:
        TypeError: `tokens` or a number is not made of whole numbers.
        ValueError: no tokens, a token outside 0..V-1, no block or more blocks than words, or `line_starts` that
            do not fit.

    Cost: O(V K m) logarithms and O(V K^2) comparisons, with K = window and m neighbouring clusters a word on average;
        memory about 40 N + 100 K^2 bytes. PTB (N = 0.9 M, V = 10,000) at 128 blocks takes 3 s on one core.

    Source: Brown et al. (1992), "Class-Based n-gram Models of Natural Language", section 3; Liang (2005); the exchange
        is that of Martin, Liermann and Ney (1998).
    """
    num_words = _whole_number("num_words", num_words)
    tokens = _token_array(tokens, num_words)
    own = [*own_block, *([] if eos_id is None else [eos_id])]
    for name, ids in (("own_block", own_block), ("eos_id", [] if eos_id is None else [eos_id])):
        _check_words(name, ids, num_words)
    _check_numbers(num_words, num_clusters, own, window, exchange_passes)
    first, second = _neighbours(tokens, line_starts, eos_id)
    return _clustered(
        Bigrams(first, second, num_words), np.bincount(tokens, minlength=num_words), num_clusters, own_block=own, window=window,
        exchange_passes=exchange_passes, progress=progress,
    )  # fmt: skip


def clusters_from_counts(
    counts: LagCounts,
    num_clusters: int,
    *,
    own_block: Sequence[int] = (),
    window: int | None = None,
    exchange_passes: int = 0,
    progress: bool = False,
) -> Clusters:
    """:func:`brown_clusters` of a text of which only counts are at hand, made in parts or on a cluster (`pplseq count`).

    Args:
        counts: words and pairs one place apart; further pairs do not matter. Pairs are within lines, or within articles, so
            of lines the clusters are those of ``brown_clusters(..., line_starts=...)``.
        num_clusters, own_block, window, exchange_passes, progress: as there, also for what is raised.
    """
    num_words = counts.num_words
    _check_words("own_block", own_block, num_words)
    _check_numbers(num_words, num_clusters, own_block, window, exchange_passes)
    pairs = counts.lags[0].tocoo()  # a row is the later word
    later, earlier = (np.asarray(index, dtype=np.int64) for index in (pairs.row, pairs.col))
    return _clustered(
        Bigrams(earlier, later, num_words, pairs.data), counts.counts, num_clusters, own_block=own_block, window=window,
        exchange_passes=exchange_passes, progress=progress,
    )  # fmt: skip


def _check_words(name: str, ids: Sequence[int], num_words: int) -> None:
    for word in ids:
        if not 0 <= _whole_number(name, word) < num_words:
            raise ValueError(f"{name}: expected a word id in 0..{num_words - 1}, got {word}")


def _check_numbers(
    num_words: int, num_clusters: int, own_block: Sequence[int], window: int | None, exchange_passes: int
) -> None:
    num_clusters = _whole_number("num_clusters", num_clusters)
    checks.count("num_clusters", num_clusters)
    if num_clusters > num_words:
        raise ValueError(
            f"num_clusters: expected at most one block a word, got {num_clusters} blocks for {num_words} words; ask "
            "for fewer blocks"
        )
    if window is not None and _whole_number("window", window) < num_clusters:
        raise ValueError(f"window: expected at least num_clusters = {num_clusters}, got {window}")
    if _whole_number("exchange_passes", exchange_passes) < 0:
        raise ValueError(f"exchange_passes: expected 0 or more, got {exchange_passes}")
    num_own = len(set(own_block))
    if num_clusters < num_own + (num_own < num_words):
        raise ValueError(
            f"num_clusters: {num_own} words have a block of their own and the others need one, got {num_clusters}; ask "
            f"for at least {num_own + (num_own < num_words)}"
        )


def _clustered(
    bigrams: Bigrams, counts: np.ndarray, num_clusters: int, *, own_block: Sequence[int], window: int | None,
    exchange_passes: int, progress: bool,
) -> Clusters:  # fmt: skip
    num_words = bigrams.num_words
    own = np.zeros(num_words, dtype=bool)
    own[list(own_block)] = True
    window = min(num_clusters if window is None else window, num_words)
    order = np.lexsort((np.arange(num_words), -counts, ~own))
    unseen = order[window:][counts[order[window:]] == 0]
    order = order[: num_words - len(unseen)]
    total = len(order) * (1 + exchange_passes)
    with tqdm(total=total, desc="Brown clusters", unit="word", disable=not progress) as bar:
        block = merge_words(bigrams, order, num_clusters, window=window, own=own, step=bar.update)
        if len(unseen):
            open_blocks = np.setdiff1d(block[order], block[own])
            block[unseen] = min(open_blocks, key=lambda number: counts[block == number].mean())
        for _ in range(exchange_passes):
            if not exchange_words(bigrams, order, block, own=own, step=bar.update):
                break

    open_blocks, own_blocks = np.setdiff1d(block, block[own]), np.unique(block[own])
    between = bigrams.between_blocks(block, num_clusters)[np.ix_(open_blocks, open_blocks)]
    names = join_paths(merge_blocks(between, bigrams.tolerance), len(own_blocks))
    path = dict(zip([*open_blocks.tolist(), *own_blocks.tolist()], names, strict=True))
    clusters = Clusters(tuple(path[number] for number in block.tolist()), counts)
    number = clusters.block_of_word
    table = bigrams.between_blocks(number, num_clusters)
    first, second = np.nonzero(table)
    information = Bigrams(first, second, num_clusters, table[first, second]).mutual_information()
    return replace(clusters, mutual_information=information)


def average_mutual_information(
    tokens: np.ndarray, block_of_word: np.ndarray, *, line_starts: np.ndarray | None = None, eos_id: int | None = None
) -> float:
    """Average mutual information of neighbouring blocks, in bits.

        I = sum_ij p_ij log2(p_ij / (p_i. p_.j))

    Args:
        tokens: (N,) word ids.
        block_of_word: (V,) block of each word.
        line_starts, eos_id: as in `brown_clusters`: by default bigrams cross line ends.

    Returns:
        I >= 0 in bits; 0 for a text without bigrams.

    Raises:
        TypeError, ValueError: as in `brown_clusters`.
    """
    block_of_word = np.asarray(block_of_word)
    if block_of_word.ndim != 1 or block_of_word.dtype.kind not in "iu":
        raise TypeError(
            "block_of_word: expected a 1-dimensional array of whole numbers, got "
            f"{block_of_word.dtype} of shape {block_of_word.shape}"
        )
    if block_of_word.size and block_of_word.min() < 0:
        raise ValueError(f"block_of_word: expected block numbers from 0, got {block_of_word.min()}")
    block_of_word = block_of_word.astype(np.int64, copy=False)
    first, second = _neighbours(_token_array(tokens, len(block_of_word)), line_starts, eos_id)
    return Bigrams(block_of_word[first], block_of_word[second], int(block_of_word.max()) + 1).mutual_information()


def uniform_clusters(counts: np.ndarray | int, num_blocks: int, seed: int = 0) -> Clusters:
    """Spread words evenly over blocks at random: sizes differ by one at most.

    Args:
        counts: (V,) word counts, kept in the result; or V.
        num_blocks: M <= V.
        seed: the same seed gives the same blocks.

    Raises:
        ValueError: no block, or more blocks than words.
    """
    if isinstance(counts, int) or np.ndim(counts) == 0:
        counts = np.zeros(_whole_number("counts", counts), dtype=np.int64)
    num_words = len(counts)
    if not 1 <= _whole_number("num_blocks", num_blocks) <= num_words:
        raise ValueError(f"num_blocks: expected 1 to {num_words} (the number of words), got {num_blocks}")
    names = join_paths([], num_blocks)
    paths = np.empty(num_words, dtype=object)
    order = np.random.default_rng(checks.seed("seed", seed)).permutation(num_words)
    paths[order] = [names[i % num_blocks] for i in range(num_words)]
    return Clusters(tuple(paths), counts)


def _neighbours(tokens, line_starts, eos_id) -> tuple[np.ndarray, np.ndarray]:
    """First and second words of all bigrams."""
    if line_starts is None:
        line = None
    else:
        line_starts = np.asarray(line_starts)
        rising = line_starts.ndim == 1 and line_starts.dtype.kind in "iu" and (np.diff(line_starts) >= 0).all()
        if not (rising and len(line_starts) > 1 and line_starts[0] == 0 and line_starts[-1] == len(tokens)):
            raise ValueError(
                f"line_starts: expected rising positions from 0 to N = {len(tokens)}, got shape {line_starts.shape}"
                + (f" from {line_starts.flat[0]} to {line_starts.flat[-1]}" if line_starts.size else "")
            )
        line = np.repeat(np.arange(len(line_starts) - 1), np.diff(line_starts))
    if eos_id is not None:
        kept = tokens != eos_id
        tokens, line = tokens[kept], None if line is None else line[kept]
    first, second = tokens[:-1], tokens[1:]
    if line is not None:
        inside = line[:-1] == line[1:]
        first, second = first[inside], second[inside]
    return first, second


def _token_array(tokens, num_words: int) -> np.ndarray:
    tokens = np.asarray(tokens)
    if tokens.size == 0:
        raise ValueError("tokens: expected at least one token, got none")
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise TypeError(
            "tokens: expected a 1-dimensional array of whole numbers (word ids), got "
            f"{tokens.dtype} of shape {tokens.shape}"
        )
    if tokens.min() < 0 or tokens.max() >= num_words:
        position = int(np.argmax((tokens < 0) | (tokens >= num_words)))
        raise ValueError(
            f"tokens: expected word ids in 0..{num_words - 1}, got {tokens[position]} at position {position}; "
            "num_words must be the size of the vocabulary that encoded the text"
        )
    return tokens.astype(np.int64, copy=False)


def _whole_number(name: str, value) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, got {checks.shown(value)}") from None
