"""The exchange algorithm: words move between blocks, one at a time, as long as mutual information grows.

Brown's merges are greedy and never taken back; moving single words afterwards finds what they missed.

Source: Martin, Liermann and Ney (1998), "Algorithms for bigram and trigram word clustering", section 2.
"""

from collections.abc import Callable

import numpy as np

from pplseq.data.brown import Bigrams, xlogx


class BlockCounts:
    """Bigrams between K blocks, from which words are taken out and put back.

    counts:         (K, K) bigrams from block to block; `transposed` is its transpose
    first, second:  (K,) how often a word of the block stands first, second in any bigram
    """

    def __init__(self, bigrams: Bigrams, block_of_word: np.ndarray, num_blocks: int):
        self.counts = bigrams.between_blocks(block_of_word, num_blocks)
        self.transposed = self.counts.T.copy()
        self.first, self.second = self.counts.sum(axis=1), self.counts.sum(axis=0)

    def add(self, block: int, to: np.ndarray, fro: np.ndarray, within: float, sign: int = 1) -> None:
        """Put a word into a block, or with sign = -1 take it out.

        Args:
            block: the block.
            to, fro: (K,) bigrams from the word to the blocks and from the blocks to it, the word itself in none.
            within: bigrams of the word with itself.
            sign: 1 or -1.
        """
        for table, row, column in ((self.counts, to, fro), (self.transposed, fro, to)):
            table[block] += sign * row
            table[:, block] += sign * column
            table[block, block] += sign * within
        self.first[block] += sign * (to.sum() + within)
        self.second[block] += sign * (fro.sum() + within)

    def losses(self, to: np.ndarray, fro: np.ndarray, within: float) -> np.ndarray:
        """(K,) loss of merging a word that is in no block into each block, up to what is the same for all blocks.

        In nats times bigrams: one row of a `brown.MergeTable`.
        """
        word_first, word_second = to.sum() + within, fro.sum() + within
        losses = xlogx(self.first + word_first) - xlogx(self.first)
        losses += xlogx(self.second + word_second) - xlogx(self.second)
        for x, table in ((to, self.transposed), (fro, self.counts)):
            near = np.flatnonzero(x)
            others = table[near]
            losses += (xlogx(others) - xlogx(others + x[near, None])).sum(axis=0)
        inside = self.counts.diagonal()
        losses += xlogx(to + inside) + xlogx(fro + inside) - xlogx(inside) - xlogx(inside + to + fro + within)
        return losses


def exchange_words(
    bigrams: Bigrams,
    order: np.ndarray,
    block_of_word: np.ndarray,
    *,
    own: np.ndarray,
    step: Callable[[], object] = lambda: None,
) -> int:
    """Move each word in turn to the block where it leaves the most mutual information: one pass over the words.

    Args:
        bigrams: the counts.
        order: word ids in the order of their turns.
        block_of_word: (V,) block of each word; changed in place.
        own: (V,) bool, words with a block of their own, who stay there alone. The last word of a block stays, too.
        step: called once a word.

    Returns:
        How many words moved. The mutual information never falls.

    Cost: O(V K m) for words with m neighbouring blocks on average.
    """
    num_blocks = int(block_of_word.max()) + 1
    blocks = BlockCounts(bigrams, block_of_word, num_blocks)
    sizes = np.bincount(block_of_word, minlength=num_blocks)
    closed = block_of_word[own]
    num_moved = 0
    for word in order:
        step()
        source = int(block_of_word[word])
        if sizes[source] == 1:
            continue
        block_of_word[word] = num_blocks  # in none of them
        to, fro = bigrams.neighbours(word, block_of_word, num_blocks + 1)
        word_counts = to[:num_blocks], fro[:num_blocks], float(to[num_blocks])
        blocks.add(source, *word_counts, sign=-1)
        losses = blocks.losses(*word_counts)
        losses[closed] = np.inf
        target = int(losses.argmin())
        if losses[target] >= losses[source] - bigrams.tolerance:
            target = source
        blocks.add(target, *word_counts)
        block_of_word[word] = target
        sizes[source] -= 1
        sizes[target] += 1
        num_moved += int(target != source)
    return num_moved
