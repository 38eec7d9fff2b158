"""Block-sparse chains with hierarchical transitions: each distinct pair of blocks of a batch is made once."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.hierarchical import HierarchicalTables, HierarchicalTransition
from pplseq.distributions.state import MISSING
from pplseq.infer.discrete.block import BlockChain
from pplseq.kernels import scan
from pplseq.kernels.pair_scan import normalised_gates, pair_chain_log_prob, pair_gates, plan_pairs
from pplseq.kernels.triton import pair_chain
from pplseq.threads import once

GATE_CELLS = 1 << 26  # scores of the next block for all states, up to which a device makes all of them at once


class HierarchicalChain(BlockChain):
    """See :class:`BlockChain`. Likelihood and gradient go over distinct pairs of blocks; other queries lower a pair a step."""

    transition: HierarchicalTransition  # pyright: ignore[reportIncompatibleVariableOverride]

    @once
    def _forward(self) -> scan.Forward:
        forward = self._over_pairs() if self._has_pairs else None
        return super()._forward if forward is None else forward

    def prepare(self) -> None:
        if self._has_pairs:
            _ = self._forward  # a matrix a step is made for the queries that need it only
        else:
            super().prepare()

    @property
    def _has_pairs(self) -> bool:
        if isinstance(self.transition, HierarchicalTables) or self.layout.num_blocks == 1 or self.num_steps == 1:
            return False
        # a word before that was not seen may have been the reset word: a mixture a row
        if self.transition.reset_id is None or self.inputs is None or checks.WHOLE.get():
            return True
        return not bool((self.inputs[1:] == MISSING).any())

    def _over_pairs(self) -> scan.Forward | None:
        transition, layout, block = self.transition, self.layout, self._block
        restart = restart_to = None
        if transition.reset_id is not None and self.inputs is not None:
            restart, restart_to = self.inputs == transition.reset_id, transition.initial_of(block)
        if pair_chain.applies(self._of_blocks(transition.out, None), transition.initial):
            return self._on_device(restart, restart_to)
        keys = block[:-1] * layout.num_blocks + block[1:]
        if restart is not None:  # no pair is needed where the state is drawn afresh: any that is made will do
            needed = keys[~restart[1:]]
            if not needed.numel():
                return None
            keys = keys.masked_fill(restart[1:], int(needed[0]))
        keys, pair_of = keys.unique(return_inverse=True)
        left, entered = keys // layout.num_blocks, keys % layout.num_blocks
        # rows of the blocks left only, columns of the blocks entered only
        (blocks, left), (columns, entered_at) = self._few(left), self._few(entered)
        used = None if restart is None else ~restart[1:]
        if self.valid is not None:
            used = self.valid[1:] if used is None else used & self.valid[1:]
        out = self._of_blocks(transition.out, blocks)
        plan = plan_pairs(left, entered_at, pair_of, used)
        table = out, transition.block_weight, transition.block_bias, plan, entered
        if torch.is_grad_enabled():
            gates = pair_gates(*table, transition.product_dtype)
        else:
            gates = normalised_gates(*table, transition.block_norms(blocks))
        return pair_chain_log_prob(
            out,
            self._of_blocks(transition.into, columns),
            gates.index_select(0, pair_of.flatten()).view(*pair_of.shape, -1),
            self._initial(self._block[0]),
            self._emit(),
            plan,
            filled=None if layout.filled is None else layout.filled[entered],
            valid=self.valid,
            restart=restart,
            restart_to=restart_to,
            product_dtype=transition.product_dtype,
        )

    def _on_device(self, restart: Tensor | None, restart_to: Tensor | None) -> scan.Forward:
        """The same by kernels of a GPU, in sizes that do not depend on which pairs there are."""
        transition, layout, block = self.transition, self.layout, self._block
        out, into = (self._of_blocks(features, None) for features in (transition.out, transition.into))
        if out.shape[0] * layout.num_states <= GATE_CELLS:
            logits = out @ transition.block_weight.T + transition.block_bias  # (M, K, M)
            gate = torch.log_softmax(logits, -1).transpose(1, 2)[block[:-1], block[1:]]
        else:
            leaving, norm = out[block[:-1]], transition.block_log_norm(out)[block[:-1]]
            logits = (leaving @ transition.block_weight[block[1:]].unsqueeze(-1)).squeeze(-1)
            gate = logits + transition.block_bias[block[1:]].unsqueeze(-1) - norm
        return pair_chain.chain_log_prob(
            out, into, gate, self._initial(block[0]), self._emit(), block, filled=layout.filled, valid=self.valid,
            restart=restart, restart_to=restart_to, product_dtype=transition.product_dtype,
        )  # fmt: skip

    def _few(self, blocks: Tensor) -> tuple[Tensor | None, Tensor]:
        """The distinct ones of blocks (P,), and which each is; None and the blocks themselves where most of all occur."""
        distinct, which = blocks.unique(return_inverse=True)
        most = 4 * len(distinct) > 3 * self.layout.num_blocks
        return (None, blocks) if most else (distinct, which)

    def _of_blocks(self, features: Tensor, blocks: Tensor | None) -> Tensor:
        """(L, K, D) features of blocks; of all, without a copy where they stand in order, for None."""
        layout = self.layout
        if blocks is not None:
            return layout.of_blocks(features, blocks)
        if layout.filled is None:
            return features.view(layout.num_blocks, layout.width, -1)
        return layout.of_blocks(features, torch.arange(layout.num_blocks, device=features.device))
