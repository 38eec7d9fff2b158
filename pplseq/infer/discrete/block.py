"""Block-sparse chains: a seen word opens the K states of its block, a missing one all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.distributions.block import BlockEmission, BlockTransition
from pplseq.distributions.state import MISSING, Belief
from pplseq.infer.discrete.chain import Chain, query
from pplseq.infer.discrete.gap_sums import GAP_CELLS
from pplseq.infer.discrete.results import ExpectedCounts, Factors
from pplseq.kernels import scan
from pplseq.kernels.log_semiring import logsumexp
from pplseq.threads import once


class BlockChain(Chain):
    """See :class:`Chain`. Words are ids; ``inputs`` are the previous words where the model resets."""

    transition: BlockTransition
    emission: BlockEmission

    def __init__(self, transition, emission, obs, *, inputs=None, **options):
        super().__init__(transition, emission, obs, inputs=inputs, **options)
        if len(self.batch_shape) != 1:  # the code below thinks in T x B
            self.batch_shape = torch.Size([self.batch_shape.numel()])
            for name in ("obs", "valid", "seen", "states", "inputs"):
                value = getattr(self, name)
                if value is not None:
                    value = value.expand(self.num_steps, *self.full_batch)
                    setattr(self, name, value.reshape(self.num_steps, -1))
            if self.start is not None:
                self.start = self.start.map(self._flat)

    def _flat(self, value: Tensor) -> Tensor:
        """(*B, ...) -> (R, ...)"""
        return value.reshape(-1, *value.shape[len(self.full_batch) :])

    # ---------------------------------------------------------------- lowering
    @property
    def layout(self):
        return self.transition.layout

    @once
    def _block(self) -> Tensor:
        """(T, B) the block open at each step (of the observed state, where there is one)."""
        block = self.emission.support(self.obs if self.seen is None else self.obs.where(self.narrow, 0))
        if self.states is not None:
            known = self.states >= 0
            own = self.layout.block_of_state()[self.states.clamp_min(0)]
            block = torch.where(known & (own >= 0), own, block)
        return block

    @once
    def narrow(self) -> Tensor:
        """(T, B) steps that open one block: a word or a state was seen."""
        seen = self.seen if self.seen is not None else torch.ones_like(self.obs, dtype=torch.bool)
        if self.states is not None:
            seen = seen | (self.states >= 0)
        return seen if self.valid is None else seen & self.valid

    @property
    def has_gaps(self) -> bool:
        """Whether some step opens all states; see :class:`~pplseq.infer.discrete.gap.GapChain`."""
        if self.seen is None:
            return False
        return bool((~self.narrow if self.valid is None else self.valid & ~self.narrow).any())

    def _emit(self) -> Tensor:
        """(T, B, K), 0 at missing words."""
        block = self._block
        obs = self.obs if self.seen is None else self.obs.where(self.narrow, 0)
        emit = self.emission.log_prob_at(obs)
        if self.states is None:
            return emit
        # an observed state leaves one slot open; its word must belong to its block
        known = self.states >= 0
        local = self.layout.local_numbers()[self.states.clamp_min(0)]
        slot = self.layout.slots[block] == local.unsqueeze(-1)
        if self.layout.filled is not None:
            slot = slot & self.layout.filled[block]
        right_block = self.emission.support(obs) == block
        if self.seen is not None:
            emit = torch.where(self.seen.unsqueeze(-1), emit, 0.0)
            right_block = right_block | ~self.seen
        closed = known.unsqueeze(-1) & ~(slot & right_block.unsqueeze(-1))
        return emit.masked_fill(closed, -torch.inf)

    def _lower(self) -> Factors:
        if self.layout.num_blocks == 1:
            return self._lower_single_block()
        emit = self._emit()
        init, pair = self._init_and_pairs(emit, self._block, self.inputs)
        return Factors(init, pair, emit, self.valid)

    def _init_and_pairs(self, emit: Tensor, block: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """Factors into the first step and between the others, given the blocks and the words before each step."""
        if len(block) > 1:
            pair = self.transition.pairs(block[:-1], block[1:], None if before is None else before[1:])
        else:
            pair = emit.new_zeros(0, block.shape[1], self.layout.width, self.layout.width)
        return self._initial(block[0]), pair

    def _initial(self, block: Tensor) -> Tensor:
        """(B, K) log p(z_1) of the states of blocks (B,), before the first word is seen."""
        if self.start is None:
            return self.transition.initial_of(block)
        return self.transition.belief_step(self.start, block, None if self.inputs is None else self.inputs[0])

    def _lower_single_block(self) -> Factors:
        """One block is a dense chain; resets are a restart of the scan, not a matrix a step."""
        transition = self.transition
        init = transition.initial_log_prob() if self.start is None else self._initial(self._block[0])
        restart = restart_to = None
        if transition.reset_id is not None and self.inputs is not None:
            if bool((self.inputs[1:] == MISSING).any()):
                pair = transition.pairs(self._block[:-1], self._block[1:], self.inputs[1:])
                return Factors(init, pair, self._emit(), self.valid)
            restart, restart_to = self.inputs == transition.reset_id, transition.initial_log_prob()
        return Factors(init, transition.log_matrix(), self._emit(), self.valid, True, restart, restart_to)

    # ---------------------------------------------------------------- results by state
    def filtered(self):
        belief = self._filtered()
        if self.transition.reset_id is not None:
            belief = belief._replace(last_observation=self._last_word())
        return belief if self.full_batch == self.batch_shape else belief.map(self._unflatten)

    def _last_step(self) -> Tensor:
        if self.valid is None:
            return self.obs.new_full(self.batch_shape, self.num_steps - 1)
        return self.valid.sum(0).sub(1).clamp_min(0)

    def _last_word(self) -> Tensor:
        last = self._last_step().unsqueeze(0)
        word = self.obs.gather(0, last).squeeze(0)
        if self.seen is not None:
            word = word.where(self.seen.gather(0, last).squeeze(0), MISSING)
        if self.valid is not None and self.start is not None:  # rows without steps
            before = self.start.last_observation
            word = word.where(self.valid[0], MISSING - 1 if before is None else before)
        return word

    def _filtered(self) -> Belief:
        log_probs = self._possible().last.detach()
        last = self._last_step().unsqueeze(0)
        ids = self.layout.state_ids[self._block.gather(0, last).squeeze(0)]
        if self.valid is None or bool(self.valid[0].all()):
            return Belief(ids, log_probs)
        full = Belief(ids, log_probs).dense(self.layout.num_states)
        return Belief(None, self._keep_start(full, ~self.valid[0]))

    # ---------------------------------------------------------------- smoothing
    def _ids(self) -> Tensor:
        return self.layout.state_ids[self._block]

    def _state_probs(self):
        return scan.state_posterior(self._possible().filtered, self._beta, self.factors.valid)

    def missing_words(self):
        if self.states is not None:
            raise ValueError("missing_words: not offered beside observed states; leave the states out")
        return super().missing_words()

    def _word_given_path(self, paths, places):
        row, time = places.T
        local = self.layout.local_numbers()
        state = local[paths[:, row, time]]
        words = self.emission.word_rows(state)  # (S, R, V)
        reset_id = self.transition.reset_id
        if reset_id is None:
            return words
        # the state behind tells whether the word was the reset word
        last = time + 1 >= (self.num_steps if self.valid is None else self.valid.sum(0)[row])
        following = local[paths[:, row, (time + 1).clamp(max=self.num_steps - 1)].clamp_min(0)]
        normal = self.transition.rows_between(state, following)
        reset = self.transition.initial_log_prob()[following]
        shift = torch.where(last, 0.0, normal).unsqueeze(-1).expand_as(words).clone()
        shift[..., reset_id] = torch.where(last, 0.0, reset)
        return words + shift

    @query
    def expected_counts(self):
        probs, ids, pair = self._state_probs(), self._ids(), self._pair_probs().flatten(0, 1)
        visits = probs.new_zeros(self.layout.num_states)
        occupancy = visits.index_add(0, ids.reshape(-1), probs.reshape(-1))
        start = visits if self.start is not None else visits.index_add(0, ids[0].reshape(-1), probs[0].reshape(-1))
        blocks = torch.stack([self._block[:-1].reshape(-1), self._block[1:].reshape(-1)], -1)
        if self.valid is not None:
            used = self.valid[1:].reshape(-1)
            blocks, pair = blocks[used], pair[used]
        block_pairs, which = blocks.unique(dim=0, return_inverse=True)
        transition = pair.new_zeros(len(block_pairs), *pair.shape[1:]).index_add(0, which, pair)
        return ExpectedCounts(start, transition, block_pairs, occupancy, self._by_state(probs))

    # ---------------------------------------------------------------- prediction
    def _predict(self, belief, inputs):
        states = self._predict_rows(belief.map(self._flat), inputs)
        return self._unflatten(self.layout.scatter(states, -torch.inf))

    def _predict_rows(self, belief: Belief, previous_word: Tensor | None) -> Tensor:
        """(B, N) distribution of the step behind a belief."""
        transition = self.transition
        word = belief.last_observation if previous_word is None else previous_word
        if belief.ids is None and self.layout.complete:
            step = transition.wide_forward(belief.log_probs)
            if transition.reset_id is not None and (word is None or bool((word != MISSING).any())):
                # a belief over all states whose word was seen: an ordinary step, no perhaps-reset
                seen = transition.wide_forward(belief.log_probs, unseen=False)
                step = seen if word is None else torch.where((word == MISSING).unsqueeze(-1), step, seen)
        else:
            ids = belief.ids
            if ids is None:
                ids = torch.arange(self.layout.num_states, device=self.obs.device).expand(belief.log_probs.shape)
            every = torch.arange(self.layout.num_kept, device=ids.device)
            parts = []
            at_once = max(1, GAP_CELLS // (ids.shape[-1] * self.layout.num_kept))
            for rows in torch.arange(len(ids), device=ids.device).split(at_once):
                if self.layout.complete:
                    wide = transition.wide_rows(ids[rows], None if word is None else word[rows])
                else:
                    wide = transition.outside_rows(ids[rows], every.expand(len(rows), -1))
                parts.append(logsumexp(belief.log_probs[rows].unsqueeze(-1) + wide, -2))
            step = torch.cat(parts)
        if transition.reset_id is None or word is None:
            return step
        return torch.where((word == transition.reset_id).unsqueeze(-1), transition.initial_log_prob(), step)
