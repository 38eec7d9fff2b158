"""Block-sparse chains whose states have topics: likelihood, gradient and posteriors go over distinct pairs of blocks, once for
all topics; other queries lower the pairs of all C K states."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.distributions.state import Belief
from pplseq.distributions.topics import TopicLayout, TopicTransition
from pplseq.infer.discrete.gap_sums import GAP_CELLS
from pplseq.infer.discrete.hierarchical import HierarchicalChain
from pplseq.kernels import scan
from pplseq.kernels.pair_scan import pair_chain_log_prob, plan_pairs
from pplseq.kernels.triton import pair_chain


class TopicChain(HierarchicalChain):
    """See :class:`~pplseq.infer.discrete.hierarchical.HierarchicalChain`."""

    transition: TopicTransition  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def layout(self) -> TopicLayout:
        return self.transition.layout

    @property
    def _has_pairs(self) -> bool:
        return self.layout.num_blocks > 1 and self.num_steps > 1

    def _by_topic(self, values: Tensor) -> Tensor:
        """(..., C, K) of the states of a block."""
        return values.unflatten(-1, (self.layout.num_topics, -1))

    def _over_pairs(self, emit: Tensor | None = None) -> scan.Forward | None:
        transition, layout, block = self.transition, self.layout, self._block
        keys, restart, restart_to, lift = block[:-1] * layout.num_blocks + block[1:], None, None, None
        used = None if self.valid is None else self.valid[1:]
        if transition.end_block is not None:
            restart = torch.cat([torch.zeros_like(block[:1], dtype=torch.bool), block[:-1] == transition.end_block])
            restart_to, lift = layout.base.of_blocks(transition.base_initial, block), transition.start_lifts[block]
        if pair_chain.applies(self._base_of(transition.out, None), transition.initial):
            return self._by_kernels(emit, restart, restart_to, lift)
        if restart is not None:
            needed = keys[~restart[1:]]
            if not needed.numel():
                return None
            keys = keys.masked_fill(restart[1:], int(needed[0]))  # no pair is needed there: any that is made will do
            used = ~restart[1:] if used is None else used & ~restart[1:]
        keys, pair_of = keys.unique(return_inverse=True)
        (blocks, left), (columns, entered) = self._few(keys // layout.num_blocks), self._few(keys % layout.num_blocks)
        out, into = self._base_of(transition.out, blocks), self._base_of(transition.into, columns)
        plan = plan_pairs(left, entered, pair_of, used)
        # by token, as nearly each has a pair of its own: a table of C K numbers a pair would be as large
        gates = self._gates(out, blocks, left[pair_of], (keys % layout.num_blocks)[pair_of])
        return pair_chain_log_prob(
            out, into, self._by_topic(gates), self._by_topic(self._initial(block[0])),
            self._by_topic(self._emit() if emit is None else emit), plan, valid=self.valid, restart=restart,
            restart_to=restart_to, mix=transition.mix, lift=lift, product_dtype=transition.product_dtype,
        )  # fmt: skip

    def _by_kernels(
        self, emit: Tensor | None, restart: Tensor | None, restart_to: Tensor | None, lift: Tensor | None
    ) -> scan.Forward:
        """The same on a GPU, in sizes that do not depend on which pairs there are."""
        transition, block = self.transition, self._block
        out, into = self._base_of(transition.out, None), self._base_of(transition.into, None)
        return pair_chain.topic_log_prob(
            out, into, self._by_topic(self._gates(out, None, block[:-1], block[1:])), self._by_topic(self._initial(block[0])),
            self._by_topic(self._emit() if emit is None else emit), block, valid=self.valid, restart=restart,
            restart_to=restart_to, mix=transition.mix, lift=lift, product_dtype=transition.product_dtype,
        )  # fmt: skip

    def _gates(self, out: Tensor, blocks: Tensor | None, left: Tensor, entered: Tensor) -> Tensor:
        """(T-1, B, C K) log p(block entered | state) for features (L, K, D) of blocks (L,), of which (T-1, B) are left, and
        blocks entered."""
        shape, left, entered, ids = left.shape, left.flatten(), entered.flatten(), self.layout.base.state_ids
        scores, norms = self.transition.next_blocks(out, ids if blocks is None else ids[blocks])  # (L, M, K), (L, C, K)
        parts = (scores.flatten(0, 1), left * scores.shape[1] + entered), (self.transition.block_lifts, entered), (norms, left)
        scores, lifts, norms = (table.index_select(0, which) for table, which in parts)
        return (scores.unsqueeze(-2) + lifts.unsqueeze(-1)).sub_(norms).view(*shape, -1)

    def _base_of(self, features: Tensor, blocks: Tensor | None) -> Tensor:
        base = self.layout.base
        return features.view(base.num_blocks, base.width, -1) if blocks is None else base.of_blocks(features, blocks)

    def _predict_rows(self, belief: Belief, previous_word: Tensor | None) -> Tensor:
        base = self.transition.of_one_block(belief) if self.layout.complete else None
        if base is None:
            return super()._predict_rows(belief, previous_word)
        at_once = max(1, GAP_CELLS // (base.shape[-1] * self.layout.base.num_kept))
        rows = torch.arange(len(base), device=base.device).split(at_once)
        return torch.cat([self.transition.step_to_all(belief.map(lambda part: part[some]), base[some]) for some in rows])  # noqa: B023

    def _state_probs(self) -> Tensor:
        """The gradient of log p(x) in the emissions' logarithms."""
        if self._has_pairs and not torch.is_grad_enabled():
            emit = self._emit().detach()
            with torch.enable_grad():
                forward = self._over_pairs(emit.requires_grad_())
                if forward is not None:
                    return torch.autograd.grad(forward.log_prob.sum(), emit)[0]
        return super()._state_probs()
