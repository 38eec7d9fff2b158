"""States with a topic that lasts over sentences: a block-sparse chain in C copies that share all their scores.

The hidden state is (c, z). Inside a sentence the topic c stays; behind the block that ends sentences it is kept with
probability rho or drawn anew from a prior, and z is drawn from the start. Words and next blocks are softmaxes in which a topic
adds a number of its own to each score, so that both normalisers are products of exponentials: no score is computed for a topic.

    p(x | c, z)  = exp(w_x . emit_z + a_xc) / sum over the words of z's block
    p(b | c, z)  = exp(w_b . out_z + g_bc) / sum over blocks; of one softmax over all states exp(w_b . out_z) is the sum of
                   exp(out_z . into_z') over the states z' of b
    p(c', z' | c, z) = [c' = c] p(b' | c, z) p(z' | z, b')
                     = (rho [c' = c] + (1 - rho) prior_c') p(z' | c')    behind the end of a sentence
    p(z | c)     = exp(start_z + h_bc) / sum over all states    at the start and there

Source: A. Gruber, M. Rosen-Zvi and Y. Weiss (2007), Hidden topic Markov models, AISTATS; here with many states inside a topic.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import constraints

from pplseq import checks
from pplseq.distributions.block import BlockEmission, BlockTransition
from pplseq.distributions.blocks import BlockLayout, Places, WordGroups
from pplseq.distributions.hierarchical import HierarchicalTransition
from pplseq.distributions.state import Belief
from pplseq.kernels.log_semiring import log_matmul, logsumexp, streamed_log_norm
from pplseq.kernels.triton import launch
from pplseq.threads import once


def log_sum_of_both(scores: Tensor, own: Tensor) -> Tensor:
    """(..., C, P) log sum_b exp(scores_bp + own_bc) of scores (..., B, P) and own (..., B, C): one product."""
    if not (torch.is_grad_enabled() and scores.is_cuda):
        return log_matmul(own.mT, scores)
    # a step of training that is captured as a graph cannot ask which entries are small
    top, most = scores.amax(-2, keepdim=True).detach(), own.amax(-2, keepdim=True).detach()
    return ((own - most).exp().mT @ (scores - top).exp()).log() + (top + most.mT)


class TopicLayout(BlockLayout):
    """The C copies of the kept states of blocks of one size, those of a topic behind each other within a block.

    State (c, z), z the k-th state of block b, has the global id (b C + c) K + k.

    Attributes:
        base: the layout of a single copy. num_topics: C. base_width: its states of a block.
    """

    def __init__(self, base: BlockLayout, num_topics: int):
        if base.filled is not None:
            raise ValueError("states_per_block: topics are for blocks of one size")
        self.base, self.num_topics, self.base_width = base, num_topics, base.width
        full = base.num_states // base.num_blocks
        block = torch.arange(base.num_blocks, device=base.state_ids.device).view(-1, 1, 1)
        topic = torch.arange(num_topics, device=block.device).view(-1, 1)
        ids = base.state_ids.unsqueeze(1) + (block * (num_topics - 1) + topic) * full
        ids = ids.flatten(1)
        every = Places(ids.shape[1], torch.ones_like(ids, dtype=torch.bool), None, torch.arange(ids.numel(), device=ids.device))
        super().__init__(ids, base.sizes * num_topics, base.num_states * num_topics, every)
        self._full = full

    def of_global(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Topics and base states of global ids."""
        return ids // self._full % self.num_topics, ids // (self._full * self.num_topics) * self._full + ids % self._full

    def block_of_global(self, ids: Tensor) -> Tensor:
        """Blocks of global ids, kept or not."""
        return ids // (self._full * self.num_topics)

    def of_local(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Topics and base local numbers of local numbers."""
        wide = self.base_width * self.num_topics
        return rows // self.base_width % self.num_topics, rows // wide * self.base_width + rows % self.base_width


class TopicEmission(BlockEmission):
    """p(x | c, z) over the words of z's block. A word of which the topic was seen, too, is V (1 + c) + x.

    Args:
        layout: of all topics. block_of_word: (V,).
        scores: (V, K) of words by the base states of their blocks. lifts: (V, C) a. norms: (M, C, K); see :func:`topic_norms`.
    """

    def __init__(self, layout: TopicLayout, block_of_word: Tensor, scores: Tensor, lifts: Tensor, norms: Tensor):
        self.layout, self.block_of_word = layout, block_of_word
        self.scores, self.lifts, self.norms = scores, lifts, norms
        self.num_states, self.num_words = layout.num_states, len(block_of_word)
        self.support_constraint = constraints.integer_interval(0, self.num_words * (1 + layout.num_topics) - 1)

    @once
    def word_log_probs(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(V, C K), of all words: made where a question is about words that were not seen."""
        return self.log_prob_at(torch.arange(self.num_words, device=self.block_of_word.device))

    def support(self, obs):
        return super().support(obs % self.num_words)

    def log_prob_at(self, obs: Tensor) -> Tensor:
        words, seen = obs.reshape(-1) % self.num_words, (obs.reshape(-1, 1) // self.num_words) - 1
        scores, lifts = (table.index_select(0, words) for table in (self.scores, self.lifts))
        norms = self.norms.index_select(0, self.block_of_word[words])
        others = (seen >= 0) & (seen != torch.arange(lifts.shape[-1], device=lifts.device))
        lifts = lifts.masked_fill(others, -math.inf)
        return (scores.unsqueeze(-2) + lifts.unsqueeze(-1)).sub_(norms).view(*obs.shape, -1)


def topic_norms(words: WordGroups, scores: list[Tensor], lifts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (V, K) by word, lifts, and normalisers (M, C, K) of words within their blocks: what an emission is made of.

    Args:
        scores: from :meth:`~pplseq.distributions.blocks.WordGroups.products`. lifts: (V, C).
    """
    norms = [log_sum_of_both(*both) for both in zip(words.masked(scores), words.rows(lifts), strict=True)]
    return words.by_word(scores), lifts, words.by_block(norms)


class TopicTransition(HierarchicalTransition):
    """See the module's head.

    Args:
        layout: of all topics. initial: (N / C,) scores of base states at the start, normalised. prior: (C,) log p(c_1).
        mix: (C, C) log p(c' | c) behind the end of a sentence, finite. end_block: whose states end a sentence, or None.
        block_lifts: (M, C) g. start_lifts: (M, C) h.
        out, into, block_weight, block_bias, out_of, product_dtype: of base states, as for
            :class:`~pplseq.distributions.hierarchical.HierarchicalTransition`; without weights and biases of blocks it is one
            softmax over all states, of which each is normalised once for all topics.

    What it gives as rows, columns and pairs is that of an HMM of C Z states; chains that know topics go over base states.
    """

    layout: TopicLayout

    def __init__(
        self, layout: TopicLayout, initial: Tensor, prior: Tensor, mix: Tensor, end_block: int | None, block_lifts: Tensor,
        start_lifts: Tensor, out: Tensor, into: Tensor, block_weight: Tensor | None = None, block_bias: Tensor | None = None, *,
        out_of: Callable[[Tensor], Tensor] | None = None, product_dtype: torch.dtype | None = None,
    ):  # fmt: skip
        topics, base = layout.of_local(torch.arange(layout.num_kept, device=initial.device))
        of_blocks = initial.view(layout.num_blocks, -1).logsumexp(-1, keepdim=True)
        start_lifts = start_lifts - log_sum_of_both(of_blocks, start_lifts).squeeze(-1)
        first = (prior + start_lifts)[layout.block_of_kept, topics] + initial[base]
        weight, bias = out[:0] if block_weight is None else block_weight, out[:0, 0] if block_bias is None else block_bias
        super().__init__(layout, first, out, into, weight, bias, out_of=out_of, product_dtype=product_dtype)
        self.is_hierarchical = block_weight is not None
        self.base_initial, self.start_lifts, self.mix = initial, start_lifts, mix
        self.end_block, self.block_lifts = end_block, block_lifts

    # ---------------------------------------------------------------- of base states
    def next_scores(self, leaving: Tensor, ids: Tensor) -> Tensor:
        """(..., M) scores of the next block, from leaving features (..., D) of base states with global ids (...)."""
        if self.is_hierarchical:
            return leaving @ self.block_weight.T + self.block_bias
        if torch.is_grad_enabled() or not self.layout.complete:
            return self._sums(leaving)
        return self._sums_of_all[ids]  # of each state once for all questions

    def _sums(self, leaving: Tensor) -> Tensor:
        """(..., M) log of the summed exponentials of a state's scores of the states of a block, by tiles."""
        rows, blocks = leaving.flatten(0, -2), self.into.split(self.layout.base_width)
        sums = [streamed_log_norm(rows, into, self.product_dtype) for into in blocks]
        return torch.stack(sums, -1).view(*leaving.shape[:-1], -1)

    @once
    def _sums_of_all(self) -> Tensor:
        """(Z, M), of all base states in the order of their ids."""
        return self._sums(self.out)

    def next_blocks(self, leaving: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (..., M, P) of the next block, and their normalisers (..., C, P); (..., P, D) and (..., P) as above."""
        scores = self.next_scores(leaving, ids).mT
        return scores, log_sum_of_both(scores, self.block_lifts)

    def base_rows(self, leaving: Tensor, ids: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        """(B, P, K) log p(z' | z, b') and (B, C, P) log p(b' | c, z) of blocks (B,), from (B, P, D) and (B, P) as above."""
        inner = torch.log_softmax(leaving @ self.layout.base.of_blocks(self.into, block).transpose(-1, -2), -1)
        scores, norms = self.next_blocks(leaving, ids)
        entered = scores[torch.arange(len(block), device=block.device), block].unsqueeze(-2)
        return inner, entered + self.block_lifts[block].unsqueeze(-1) - norms

    def of_one_block(self, belief: Belief) -> Tensor | None:
        """Global ids (B, K) of the base states of a belief's blocks, (B, C, K) being its own; None where it is over others."""
        layout, ids, count = self.layout, belief.ids, self.layout.num_topics
        if ids is None or ids.shape[-1] % count:
            return None
        topics, base = (part.view(len(ids), count, -1) for part in layout.of_global(ids))
        if not checks.WHOLE.get():  # else it is what a text behind which nothing was missing has left
            every = torch.arange(count, device=ids.device).view(-1, 1)
            if not bool((topics == every).all()) or not bool((base == base[:, :1]).all()):
                return None
        return base[:, 0]

    def step_to_all(self, belief: Belief, base: Tensor) -> Tensor:
        """(B, N) log p(z_t) one step behind a belief over the states of one block, from what :meth:`of_one_block` says."""
        layout, rows = self.layout, len(base)
        message, leaving = belief.log_probs.view(rows, layout.num_topics, -1), self._base_outside(base)
        every = torch.arange(layout.num_blocks, device=base.device)
        scores, norms = self.next_blocks(leaving, base)  # (B, M, K), (B, C, K)
        inner = torch.einsum("bkd,mjd->bkmj", leaving, layout.base.of_blocks(self.into, every)).log_softmax(-1)
        inner = (inner + scores.mT.unsqueeze(-1)).flatten(-2)
        step = log_matmul(message - norms, inner).view(rows, layout.num_topics, layout.num_blocks, -1)
        step = step.transpose(1, 2) + self.block_lifts.unsqueeze(-1)
        if self.end_block is not None:
            afresh = self._mixed(message).view(rows, 1, -1, 1)
            ended = layout.block_of_global(belief.ids[:, :1, None, None]) == self.end_block  # pyright: ignore
            afresh = afresh + self.start_lifts.unsqueeze(-1) + layout.base.of_blocks(self.base_initial, every).unsqueeze(1)
            step = torch.where(ended, afresh, step)
        return step.flatten(1)

    def belief_step(self, belief: Belief, block: Tensor, previous_word: Tensor | None = None) -> Tensor:
        """See :meth:`~pplseq.distributions.block.BlockTransition.belief_step`: over base states where it is of one block."""
        layout, ids, base = self.layout, belief.ids, self.of_one_block(belief)
        if ids is None or base is None:
            return super().belief_step(belief, block, previous_word)
        leaving = self._base_outside(base)
        inner, gates = self.base_rows(leaving, base, block)
        message = belief.log_probs.view(len(ids), layout.num_topics, -1)
        if launch.serve(message, inner):  # a GPU is not asked which entries are small
            step = logsumexp((message + gates).unsqueeze(-1) + inner.unsqueeze(-3), -2)
        else:
            step = log_matmul(message + gates, inner)
        if self.end_block is not None:
            afresh = self._mixed(message) + self.start_lifts[block]
            afresh = afresh.unsqueeze(-1) + layout.base.of_blocks(self.base_initial, block).unsqueeze(-2)
            ended = layout.block_of_global(ids[:, :1, None]) == self.end_block
            step = torch.where(ended, afresh, step)
        return step.flatten(-2)

    def _mixed(self, message: Tensor) -> Tensor:
        """(B, C) log p(topic) behind the end of a sentence, from log p(topic, state) (B, C, K) there."""
        return logsumexp(logsumexp(message, -1).unsqueeze(-1) + self.mix, -2)

    def _base_outside(self, ids: Tensor) -> Tensor:
        """(..., D) leaving features of base states with global ids."""
        if self.layout.complete or self.out_of is None:
            return self.out[self.layout.base.local_numbers()[ids]]
        return self.out_of(ids.reshape(-1)).view(*ids.shape, -1)

    # ---------------------------------------------------------------- of all states: features with the topic beside them
    def _marked(self, features: Tensor, ids: Tensor, topics: Tensor, blocks: Tensor) -> Tensor:
        """Features of base states with their ids, topics and blocks (...), all that log_probs asks of them."""
        own = torch.nn.functional.one_hot(topics, self.layout.num_topics).to(features)
        ended = torch.zeros_like(blocks, dtype=torch.bool) if self.end_block is None else blocks == self.end_block
        parts = [features, own, ended.unsqueeze(-1).to(features)]
        return torch.cat(parts if self.is_hierarchical else [*parts, self.next_scores(features, ids)], -1)

    def leaving(self, rows):
        topics, base = self.layout.of_local(rows)
        return self._marked(self.out[base], self.layout.base.kept_ids[base], topics, self.layout.block_of_kept[rows])

    def leaving_blocks(self, blocks):
        return self.leaving(self.layout.slots[blocks])

    def leaving_outside(self, ids):
        topics, base = self.layout.of_global(ids)
        return self._marked(self._base_outside(base), base, topics, self.layout.block_of_global(ids))

    def log_probs(self, leaving, blocks):
        layout, count = self.layout, self.layout.num_topics
        width = self.out.shape[-1]
        features, own, ended, scores = leaving.split([width, count, 1, leaving.shape[-1] - width - count - 1], -1)
        into = layout.base.of_blocks(self.into, blocks)  # (*b, U, K, D)
        inner = features @ into.flatten(-3, -2).transpose(-1, -2)
        inner = torch.log_softmax(inner.view(*inner.shape[:-1], *into.shape[-3:-1]), -1)  # (*b, P, U, K)
        if self.is_hierarchical:
            scores = features @ self.block_weight.T + self.block_bias
        logits = scores + own @ self.block_lifts.T  # (*b, P, M)
        index = blocks.unsqueeze(-2).expand(*logits.shape[:-1], -1)
        gates = torch.log_softmax(logits, -1).gather(-1, index)  # (*b, P, U)
        stay = (inner + gates.unsqueeze(-1)).unsqueeze(-2)
        stay = stay.masked_fill(own[..., None, :, None] == 0, -math.inf)  # (*b, P, U, C, K)
        if self.end_block is None:
            return stay.flatten(-2)
        mixed = (own @ self.mix).unsqueeze(-2) + self.start_lifts[blocks].unsqueeze(-3)  # (*b, P, U, C)
        afresh = mixed.unsqueeze(-1) + layout.base.of_blocks(self.base_initial, blocks).unsqueeze(-2).unsqueeze(-4)
        return torch.where(ended[..., None, None] > 0, afresh, stay).flatten(-2)

    def scores_from_all(self, following):
        layout = self.layout
        every = torch.arange(layout.num_kept, device=self.device)
        block = layout.block_of_kept[following]
        blocks, which = block.unique(return_inverse=True)
        return self.log_probs(self.leaving(every), blocks)[:, which, following - layout.first_kept[block]]

    scaled_columns = BlockTransition.scaled_columns
