"""Hierarchical transitions of block-sparse chains: draw the next block, then the state in it; no sum over all states."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pplseq.distributions.block import WIDE_CELLS, BlockEmission, BlockTransition
from pplseq.distributions.blocks import BlockLayout
from pplseq.kernels.log_semiring import streamed_log_norm


class HierarchicalTransition(BlockTransition):
    """p(z' | z) = p(b' | z) p(z' | z, b'), where b' is the block of z'; both are softmaxes, over M blocks and over K states.

        p(b' | z)     = softmax over blocks of              out_z . block_weight_b' + block_bias_b'
        p(z' | z, b') = softmax over the kept states of b'  out_z . into_z'

    A seen word names its block, so a token costs one K x K softmax and K entries of p(b' | z): no normaliser over all
    states, in training or at test. State dropout closes states within their blocks and leaves p(b' | z) as it is.

    Args:
        layout: states by block.
        initial: (N,) log p(z_1) over kept states.
        out, into: (N, D) features of leaving and entering the kept states.
        block_weight: (M, D). block_bias: (M,).
        out_of: function of global ids (R,) -> (R, D) leaving features, for beliefs over states that are not kept.
        product_dtype: type of the products between distinct pairs of blocks (bfloat16 for speed in training).
        reset_id, emission: as for :class:`~pplseq.distributions.block.BlockTransition`.

    Cost: K^2 D + K M D a token; a step to all states K Z D behind a word, Z^2 D between two words that were not seen, as every
        entry is needed then.

    Source: J. Goodman (2001), Classes for fast maximum entropy training, equation 3, of words; here of states.
    """

    def __init__(
        self,
        layout: BlockLayout,
        initial: Tensor,
        out: Tensor,
        into: Tensor,
        block_weight: Tensor,
        block_bias: Tensor,
        *,
        out_of: Callable[[Tensor], Tensor] | None = None,
        product_dtype: torch.dtype | None = None,
        reset_id: int | None = None,
        emission: BlockEmission | None = None,
    ):
        super().__init__(layout, initial, reset_id, emission)
        self.out, self.into, self.out_of, self.product_dtype = out, into, out_of, product_dtype
        self.block_weight, self.block_bias = block_weight, block_bias
        self._block_norm: Tensor | None = None

    # ---------------------------------------------------------------- the two softmaxes
    def leaving(self, rows: Tensor) -> Tensor:
        """(..., D) what the scores of kept states with local numbers (...) are made of."""
        return self.out[rows]

    def leaving_blocks(self, blocks: Tensor) -> Tensor:
        """(..., K, D) the same for all states of blocks (...)."""
        return self.layout.of_blocks(self.out, blocks)

    def leaving_outside(self, ids: Tensor) -> Tensor:
        """(..., D) the same for global ids (...) that need not be kept."""
        if self.layout.complete or self.out_of is None:
            return self.leaving(self.layout.local_numbers()[ids])
        if self.device.type != "cpu":  # how many there are would have to be asked
            return self.out_of(ids.reshape(-1)).view(*ids.shape, -1)
        distinct, which = ids.reshape(-1).unique(return_inverse=True)  # rows whose words share a block share its states
        return self.out_of(distinct).index_select(0, which).view(*ids.shape, -1)

    def inner_scores(self, leaving: Tensor, blocks: Tensor) -> Tensor:
        """(*b, P, U, K) scores of the states of blocks (*b, U), from leaving features (*b, P, D)."""
        into = self.layout.of_blocks(self.into, blocks)
        scores = leaving @ into.flatten(-3, -2).transpose(-1, -2)
        return scores.view(*scores.shape[:-1], blocks.shape[-1], self.layout.width)

    def block_log_probs(self, leaving: Tensor, blocks: Tensor) -> Tensor:
        """(*b, P, U) log p(block | state) of blocks (*b, U), from leaving features (*b, P, D)."""
        norm = self.block_log_norm(leaving)
        logits = leaving @ self.block_weight[blocks].transpose(-1, -2) + self.block_bias[blocks].unsqueeze(-2)
        return logits - norm.unsqueeze(-1)

    def block_log_norm(self, leaving: Tensor) -> Tensor:
        """(...) log normalisers of p(block | state), from leaving features (..., D)."""
        ones = leaving.new_ones(*leaving.shape[:-1], 1)
        norm = streamed_log_norm(
            torch.cat([leaving, ones], -1).flatten(0, -2),
            torch.cat([self.block_weight, self.block_bias.unsqueeze(-1)], -1),
        )
        return norm.view(leaving.shape[:-1])

    @torch.no_grad()
    def block_norms(self, blocks: Tensor | None) -> Tensor:
        """(L, K) log normalisers of p(b' | z) for all states of distinct blocks (L,), of all blocks for None; no gradients.

        Each is computed once per object: texts of an evaluation come to the same blocks again and again.
        """
        layout = self.layout
        every = torch.arange(layout.num_blocks, device=self.device)
        if self._block_norm is None:
            self._block_norm = self.initial.new_full((layout.num_blocks, layout.width), math.nan)
        blocks = every if blocks is None else blocks
        missing = blocks[self._block_norm[blocks, 0].isnan()]
        for some in missing.split(max(1, WIDE_CELLS // (layout.width * layout.num_blocks))):
            scores = self.leaving_blocks(some) @ self.block_weight.T
            self._block_norm[some] = torch.logsumexp(scores.add_(self.block_bias), -1)
        return self._block_norm[blocks]

    def log_probs(self, leaving: Tensor, blocks: Tensor) -> Tensor:
        """(*b, P, U, K) log p(z' | z) of the states of blocks (*b, U); -inf at padded slots."""
        scores = self.inner_scores(leaving, blocks)
        if self.layout.filled is not None:
            scores = scores.masked_fill(~self.layout.filled[blocks].unsqueeze(-3), -math.inf)
        return torch.log_softmax(scores, -1) + self.block_log_probs(leaving, blocks).unsqueeze(-1)

    # ---------------------------------------------------------------- what the chains ask for
    def _of_states(self, leaving: Tensor, following: Tensor) -> Tensor:
        """(*b, P, Q) log p(z' | z) of local numbers (*b, Q), from leaving features (*b, P, D)."""
        layout = self.layout
        every = torch.arange(layout.num_kept, device=self.device)
        if following.shape[-1] == layout.num_kept and bool((following == every).all()):  # each block once
            blocks = torch.arange(layout.num_blocks, device=self.device)
            wide = self.log_probs(leaving, blocks.expand(*following.shape[:-1], -1)).flatten(-2)
            if layout.filled is None:
                return wide
            return wide[..., layout.filled.flatten()]
        block = layout.block_of_kept[following]
        slot = following - layout.first_kept[block]
        if bool((block == block[..., :1]).all()):  # the states of one block, the usual case
            wide = self.log_probs(leaving, block[..., :1]).squeeze(-2)
            return wide.gather(-1, slot.unsqueeze(-2).expand(*wide.shape[:-1], -1))
        wide = self.log_probs(leaving, block)
        return wide.gather(-1, slot[..., None, :, None].expand(*wide.shape[:-1], 1)).squeeze(-1)

    def scores(self, previous, following):
        return self._of_states(self.leaving(previous), following)

    def block_scores(self, previous_block, block):
        return self.log_probs(self.leaving_blocks(previous_block), block.unsqueeze(-1)).squeeze(-2)

    def scores_from_all(self, following):
        inner, gates, pick = self._parts_from_all(following)
        return pick(torch.log_softmax(inner, -1) + gates.unsqueeze(-1))

    @torch.no_grad()
    def scaled_columns(self, following):
        inner, gates, pick = self._parts_from_all(following)
        top = gates.amax(-1)
        probs = torch.softmax(inner, -1).mul_((gates - top.unsqueeze(-1)).exp_().unsqueeze(-1))
        return pick(probs), top

    def _parts_from_all(self, following: Tensor) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
        """From all kept states: (N, U, K) scores within the U blocks of local numbers (Q,), -inf at padded slots, (N, U) log
        p(block | state), and what picks (N, Q) out of (N, U, K)."""
        layout = self.layout
        leaving = self.leaving(torch.arange(layout.num_kept, device=self.device))
        block = layout.block_of_kept[following]
        blocks, which = block.unique(return_inverse=True)
        inner, gates = self.inner_scores(leaving, blocks), self.gates_from_all(leaving, blocks)
        slot = following - layout.first_kept[block]
        if layout.filled is not None:
            inner = inner.masked_fill(~layout.filled[blocks], -math.inf)
        elif torch.equal(following, layout.slots[blocks].reshape(-1)):  # whole blocks: nothing is gathered
            return inner, gates, lambda wide: wide.flatten(-2)
        return inner, gates, lambda wide: wide[:, which, slot]

    def gates_from_all(self, leaving: Tensor, blocks: Tensor) -> Tensor:
        """(N, U) log p(block | state) of blocks (U,) from all kept states, whose normalisers are computed once per object.

        With gradients nothing is kept: tiles may be computed again on the way back, and must then be what they were.
        """
        if torch.is_grad_enabled():
            norm = self.block_log_norm(leaving)
        else:
            norm = self.block_norms(None)
            norm = norm.flatten() if self.layout.filled is None else norm[self.layout.filled]
        return leaving @ self.block_weight[blocks].T + (self.block_bias[blocks] - norm.unsqueeze(-1))

    def column_tiles(self):
        """Tiles of whole blocks, so that no block is normalised for two of them."""
        layout = self.layout
        count = max(1, WIDE_CELLS // (layout.num_kept * layout.width))
        every = torch.arange(layout.num_kept, device=self.device)
        return every.split([int(part.sum()) for part in layout.sizes.cpu().split(count)])

    def row_log_norm(self, rows):
        return self.initial.new_zeros(len(rows))  # the scores are normalised

    def outside_rows(self, ids, following):
        return self._of_states(self.leaving_outside(ids), following)

    def outside_rows_of_block(self, ids, block):
        rows = self.log_probs(self.leaving_outside(ids), block.unsqueeze(-1)).squeeze(-2)
        if self.layout.filled is None:
            return rows
        return rows.gather(-1, self._slots_of(block).unsqueeze(-2).expand(rows.shape))

    def _slots_of(self, block: Tensor) -> Tensor:
        """(..., K) places in a block, a padded one as the first."""
        return self.layout.slots[block] - self.layout.first_kept[block].unsqueeze(-1)

    def _plain_pairs(self, previous_block, block):
        return self.block_scores(previous_block, block)


class HierarchicalTables(HierarchicalTransition):
    """The same with free scores in the place of features (the paper's scalar parameterisation).

    Args:
        table: (Z, Z) scores of states within their blocks, by global ids, [from, to].
        block_table: (Z, M) scores of blocks.
    """

    def __init__(self, layout, initial, table, block_table, *, reset_id=None, emission=None):
        nothing = table.new_empty(0)
        super().__init__(layout, initial, nothing, nothing, nothing, nothing, reset_id=reset_id, emission=emission)
        self.table, self.block_table = table, block_table

    # a state's "leaving feature" is its global id, of which the tables are asked
    def leaving(self, rows):
        return self.layout.kept_ids[rows].unsqueeze(-1)

    def leaving_blocks(self, blocks):
        return self.layout.kept_ids[self.layout.slots[blocks]].unsqueeze(-1)

    def leaving_outside(self, ids):
        return ids.unsqueeze(-1)

    def inner_scores(self, leaving, blocks):
        into = self.layout.state_ids[blocks]  # (*b, U, K)
        return self.table[leaving.unsqueeze(-1), into.unsqueeze(-3)]

    def gates_from_all(self, leaving, blocks):
        return self.block_log_probs(leaving, blocks)

    def block_log_probs(self, leaving, blocks):
        ids = leaving.squeeze(-1)
        return torch.log_softmax(self.block_table[ids], -1).gather(-1, blocks.unsqueeze(-2).expand(*ids.shape, -1))
