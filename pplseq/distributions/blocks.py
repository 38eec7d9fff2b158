"""Which states belong to which block, in rectangular form: the index arithmetic of block-sparse chains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.drawing import drawn


class Places(NamedTuple):
    """Which cells of an (M, width) table are states. inside: (M, width). filled: the same, None where all are. cells: (N,)."""

    width: int
    inside: Tensor
    filled: Tensor | None
    cells: Tensor

    @classmethod
    def of(cls, sizes: Tensor, width: int, device) -> Places:
        """Of sizes (M,) that are on the CPU."""
        inside = torch.arange(width) < sizes.unsqueeze(-1)
        cells = inside.reshape(-1).nonzero().squeeze(-1).to(device)
        there = inside.to(device)
        return cls(width, there, None if bool(inside.all()) else there, cells)


class BlockLayout:
    """States arranged in blocks, as (M, K) tables padded where blocks are uneven.

    Two numberings: a state's global id 0..Z-1 (what users see), and its local number 0..N-1 among the states kept here
    (N < Z under state dropout). Without dropout the two agree.

    Attributes:
        num_blocks: M. width: K, the states of the largest block. num_states: Z. num_kept: N.
        state_ids: (M, K) global ids; a padded slot repeats the block's first id.
        slots: (M, K) local numbers, padded likewise. filled: (M, K) False at padded slots; None if there is none.
        kept_ids: (N,) global ids by local number. block_of_kept: (N,).
    """

    def __init__(self, state_ids: Tensor, sizes: Tensor, num_states: int, places: Places | None = None):
        self.state_ids, self.num_states, self.sizes = state_ids, num_states, sizes
        self.num_blocks, self.width = state_ids.shape
        device = state_ids.device
        places = Places.of(sizes, self.width, device) if places is None else places
        self.filled, self._dropped = places.filled, {}
        if self.filled is None:
            self.kept_ids = state_ids.reshape(-1)
            self.slots = torch.arange(state_ids.numel(), device=device).view_as(state_ids)
            self.block_of_kept = torch.arange(self.num_blocks, device=device).repeat_interleave(self.width)
        else:
            self.kept_ids = state_ids.reshape(-1)[places.cells]
            numbers = self.filled.reshape(-1).cumsum(0).sub_(1).view_as(state_ids)
            self.slots = torch.where(self.filled, numbers, numbers[:, :1])
            self.block_of_kept = places.cells // self.width
        self.num_kept = len(self.kept_ids)

    @classmethod
    def from_sizes(cls, sizes: Sequence[int] | Tensor, device=None) -> BlockLayout:
        """Blocks of the given sizes over consecutive states."""
        sizes = torch.as_tensor(sizes).cpu()
        if sizes.dim() != 1 or len(sizes) == 0 or int(sizes.min()) < 1:
            raise ValueError(f"states_per_block must be a list of positive counts, got {checks.shown(sizes.tolist())}")
        width, first = int(sizes.max()), sizes.cumsum(0) - sizes
        slot = torch.arange(width)
        ids = torch.where(slot < sizes.unsqueeze(-1), first.unsqueeze(-1) + slot, first.unsqueeze(-1))
        return cls(ids.to(device), sizes, int(sizes.sum()))

    @property
    def complete(self) -> bool:
        """Whether every state is kept (no dropout)."""
        return self.num_kept == self.num_states

    @property
    def first_kept(self) -> Tensor:
        """(M,) local number of each block's first kept state."""
        return self.slots[:, 0]

    def dropped(self, rate: float) -> BlockLayout:
        """Keep exactly (1 - rate) K states of each block (at least one), drawn without replacement; the same in every row.

        Source: Chiu and Rush (2020), section 4, state dropout.
        """
        if not 0 <= rate < 1:
            raise ValueError(f"state_dropout must be in [0, 1), got {rate}")
        if rate == 0:
            return self
        device = self.state_ids.device
        if rate not in self._dropped:  # how many are kept is the same in every step, and known without the device
            keep = ((1 - rate) * self.sizes).round().clamp_min(1).to(self.sizes.dtype)
            self._dropped = {rate: (keep, Places.of(keep, int(keep.max()), device))}
        keep, places = self._dropped[rate]
        with drawn():
            score = torch.rand(self.state_ids.shape, device=device)
        if self.filled is not None:
            score = score.masked_fill_(~self.filled, 2.0)
        order = score.argsort(-1)[:, : places.width]
        kept = places.inside
        # kept states in rising order, padding behind them
        order = torch.where(kept, order, self.width).sort(-1).values
        order = torch.where(kept, order, order[:, :1])
        return BlockLayout(self.state_ids.gather(-1, order), keep, self.num_states, places)

    def local_numbers(self) -> Tensor:
        """(Z,) local number by global id; -1 for a dropped state."""
        numbers = torch.full((self.num_states,), -1, device=self.state_ids.device)
        numbers[self.kept_ids] = torch.arange(self.num_kept, device=self.state_ids.device)
        return numbers

    def block_of_state(self) -> Tensor:
        """(Z,) block by global id; -1 for a dropped state."""
        blocks = torch.full((self.num_states,), -1, device=self.state_ids.device)
        blocks[self.kept_ids] = self.block_of_kept
        return blocks

    def of_blocks(self, values: Tensor, blocks: Tensor) -> Tensor:
        """(..., K, *F) values of the states of blocks (...), from (N, *F) by local number."""
        if self.filled is not None:
            slots = self.slots[blocks].reshape(-1)
            return values.index_select(0, slots).view(*blocks.shape, self.width, *values.shape[1:])
        # whole blocks at once: far fewer, longer rows to gather, and to add up in the backward
        by_block = values.reshape(self.num_blocks, -1)
        return by_block.index_select(0, blocks.reshape(-1)).view(*blocks.shape, self.width, *values.shape[1:])

    def scatter(self, values: Tensor, fill: float) -> Tensor:
        """(..., N) values of kept states -> (..., Z), ``fill`` at dropped ones."""
        if self.complete:
            return values
        full = values.new_full((*values.shape[:-1], self.num_states), fill)
        return full.index_copy(-1, self.kept_ids, values)


def share_states(num_states: int, weight) -> Tensor:
    """(M,) whole numbers of states, at least one each, that sum to num_states in proportion to weight (M,).

    Raises:
        ValueError: for fewer states than blocks.
    """
    weight = torch.as_tensor(weight, dtype=torch.float64)
    if num_states < len(weight):
        raise ValueError(f"num_states must be at least the number of blocks ({len(weight)}), got {num_states}")
    exact = weight / weight.sum() * (num_states - len(weight))
    sizes = exact.floor().long()
    # largest remainders get what is left
    order = (exact - sizes).argsort(descending=True, stable=True)
    sizes[order[: num_states - len(weight) - int(sizes.sum())]] += 1
    return sizes + 1


def block_sizes(
    num_words: int, num_states: int, blocks: Tensor, states_per_block: Sequence[int] | None = None
) -> Tensor:
    """(M,) states of each block: as they are given, or num_states / M each.

    Args:
        blocks: (V,) block of each word. states_per_block: (M,) sizes that sum to num_states.

    Raises:
        ValueError: blocks that do not cover the words, have holes, or do not share the states evenly.
    """
    if blocks.shape != (num_words,):
        raise ValueError(
            f"blocks must cover the vocabulary: expected one block for each of {num_words} words, got shape "
            f"{tuple(blocks.shape)}"
        )
    if int(blocks.min()) < 0:
        raise ValueError(f"blocks must be numbered from 0, got {int(blocks.min())} for word {int(blocks.argmin())}")
    num_blocks = int(blocks.max()) + 1
    if num_blocks > num_words:
        raise ValueError(f"blocks: more blocks ({num_blocks}) than words ({num_words})")
    empty = (torch.bincount(blocks, minlength=num_blocks) == 0).nonzero().flatten()
    if len(empty):
        raise ValueError(f"blocks: no word in block {empty[:5].tolist()}; number the blocks without holes")
    if states_per_block is None:
        if num_states % num_blocks:
            down, up = num_states // num_blocks * num_blocks, -(-num_states // num_blocks) * num_blocks
            near = f"{up}" if down == 0 else f"{down} or {up}"
            raise ValueError(
                f"num_states must be a multiple of the number of blocks ({num_blocks}), got {num_states}; use {near}, or "
                "give states_per_block"
            )
        return torch.full((num_blocks,), num_states // num_blocks)
    sizes = torch.as_tensor(states_per_block)
    if sizes.shape != (num_blocks,) or int(sizes.min()) < 1 or int(sizes.sum()) != num_states:
        raise ValueError(
            f"states_per_block must be {num_blocks} positive counts that sum to num_states = {num_states}, got "
            f"{len(sizes)} that sum to {int(sizes.sum())}"
        )
    return sizes


class WordGroups:
    """Words by block in a few padded rectangles, blocks of similar size together, at most 2x padding.

    Args:
        block_of_word: (V,).
        num_blocks: M.
    """

    def __init__(self, block_of_word: Tensor, num_blocks: int):
        device, block_of_word = block_of_word.device, block_of_word.cpu()
        self.block_of_word = block_of_word  # on the CPU, wherever the words are
        sizes = torch.bincount(block_of_word, minlength=num_blocks)
        order = block_of_word.argsort(stable=True)
        first = sizes.cumsum(0) - sizes
        ceiling = sizes.clamp_min(16).to(torch.float64).log2().ceil()
        blocks, words, filled, self._shapes = [], [], [], []
        for level in ceiling.unique():
            some = ((ceiling == level) & (sizes > 0)).nonzero().squeeze(-1)
            if len(some) == 0:
                continue
            slot = torch.arange(int(sizes[some].max()))
            inside = slot < sizes[some].unsqueeze(-1)
            start = first[some].unsqueeze(-1)
            blocks.append(some)
            words.append(order[torch.where(inside, start + slot, start)].reshape(-1))
            filled.append(inside)
            self._shapes.append(inside.shape)
        self.blocks, self.words = torch.cat(blocks).to(device), torch.cat(words).to(device)
        self._padding = [(~inside).unsqueeze(-1).to(device) for inside in filled]
        cells = torch.cat([inside.reshape(-1) for inside in filled]).nonzero().squeeze(-1)
        self._cell_of_word = torch.empty_like(cells)
        self._cell_of_word[torch.cat(words)[cells]] = cells
        self._cell_of_word = self._cell_of_word.to(device)

    def products(self, states: Tensor, words: Tensor, bias: Tensor) -> list[Tensor]:
        """Scores [(m, W, K)] = words . states + bias from (M, K, D) states, (V, D) words and (V,) biases."""
        # one gather for all groups: the backward of a gather fills a gradient of the whole table
        states = states.index_select(0, self.blocks)
        words, bias = words.index_select(0, self.words), bias.index_select(0, self.words)
        groups = zip(self._split(states, 0), self._split(words, 1), self._split(bias, 1), strict=True)
        scores = []
        for (count, width), (of_states, of_words, of_bias) in zip(self._shapes, groups, strict=True):
            of_words = of_words.view(count, width, -1)
            scores.append(torch.baddbmm(of_bias.view(count, width, 1), of_words, of_states.transpose(1, 2)))
        return scores

    def rows(self, table: Tensor) -> list[Tensor]:
        """[(m, W, K)] from a (V, K) table of scores."""
        parts = self._split(table.index_select(0, self.words), 1)
        return [part.view(*shape, -1) for part, shape in zip(parts, self._shapes, strict=True)]

    def _split(self, value: Tensor, by_word: int):
        return value.split([count * (width if by_word else 1) for count, width in self._shapes])

    def masked(self, scores: list[Tensor]) -> list[Tensor]:
        """The same, -inf in the place of words that are none."""
        return [score.masked_fill(padding, -float("inf")) for score, padding in zip(scores, self._padding, strict=True)]

    def by_word(self, rows: list[Tensor]) -> Tensor:
        """(V, K) from [(m, W, K)]."""
        return torch.cat([row.flatten(0, 1) for row in rows]).index_select(0, self._cell_of_word)

    def by_block(self, parts: list[Tensor]) -> Tensor:
        """(M, ...) from a number [(m, ...)] of each block."""
        return torch.cat(parts).index_select(0, self.blocks.argsort())

    def log_softmax(self, scores: list[Tensor]) -> Tensor:
        """(V, K) log p(word | slot of its block): each slot's scores normalised over the words of its block."""
        return self.by_word([torch.log_softmax(score, 1) for score in self.masked(scores)])
