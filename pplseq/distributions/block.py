"""Block-sparse transitions and emissions: a word opens only the states of its block, so nothing is ever Z x Z."""

from __future__ import annotations

import math
from collections.abc import Callable

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from pplseq import checks
from pplseq.distributions.blocks import BlockLayout
from pplseq.distributions.state import MISSING, Belief, Emission, Transition
from pplseq.kernels.log_semiring import in_float32, log1mexp, log_matmul, logsumexp, streamed_log_norm

CACHED_WIDTH = 64  # from this many states a block, evaluation keeps the transition blocks it has computed
PAIR_CACHE_BYTES = 5 << 28  # 1.25 GiB of them at most
WIDE_CELLS = 1 << 24  # cells of one tile of transition rows when a missing token opens all states


class BlockTransition(Transition):
    """p(z' | z) = softmax over all kept z' of score(z, z'), normalised by streaming over tiles.

    Subclasses say where scores come from (:class:`EmbeddingTransition`, :class:`TableTransition`).

    Args:
        layout: states by block.
        initial: (N,) log p(z_1) over kept states.
        reset_id: word after which the next state is drawn from ``initial`` again; None for never. Programs then pass
            ``inputs``, the previous word of each row (``MISSING`` if unknown, any other id for a normal step).
        emission: the emission of the same model; a missing word may have been the reset word, with p(reset word | z).
    """

    def __init__(
        self, layout: BlockLayout, initial: Tensor, reset_id: int | None = None, emission: BlockEmission | None = None
    ):
        if reset_id is not None and emission is None:
            raise ValueError("emission: a transition with a reset_id needs the model's BlockEmission, got None")
        self.layout, self.initial = layout, in_float32(initial)
        self.reset_id, self.emission = reset_id, emission
        self.num_states, self.device = layout.num_states, initial.device
        self._log_norm: Tensor | None = None
        self._rows_done: Tensor | None = None
        self._with_grad = False
        self._pairs: dict[int, Tensor] = {}

    # ---- what a subclass provides
    def scores(self, previous: Tensor, following: Tensor) -> Tensor:
        """(..., P, Q) unnormalised scores between local numbers (..., P) and (..., Q)."""
        raise NotImplementedError

    def block_scores(self, previous_block: Tensor, block: Tensor) -> Tensor:
        """(..., K, K) unnormalised scores between the states of two blocks (...)."""
        return self.scores(self.layout.slots[previous_block], self.layout.slots[block])

    def scores_from_all(self, following: Tensor) -> Tensor:
        """(N, Q) scores from all kept states into local numbers (Q,)."""
        raise NotImplementedError

    def row_log_norm(self, rows: Tensor) -> Tensor:
        """(R,) log normalisers of the rows with local numbers (R,)."""
        raise NotImplementedError

    def outside_rows(self, ids: Tensor, following: Tensor) -> Tensor:
        """(R, P, Q) normalised log p(following | ids) from global ids (R, P) that need not be kept, to local (R, Q)."""
        raise NotImplementedError

    def outside_rows_of_block(self, ids: Tensor, block: Tensor) -> Tensor:
        """(R, P, K) the same into the states of one block (R,) each."""
        return self.outside_rows(ids, self.layout.slots[block])

    # ---- normalisers
    def log_norm(self, blocks: Tensor | None = None) -> Tensor:
        """(N,) row normalisers, nats; valid at least for the rows of ``blocks`` (all if None). Computed once per object."""
        # one that was computed without gradients does not serve where they are wanted
        with_grad = torch.is_grad_enabled()
        if self.device.type != "cpu":  # which rows are missing is not asked of a device that computes meanwhile
            if self._log_norm is None or (with_grad and not self._with_grad):
                every = torch.arange(self.layout.num_kept, device=self.device)
                self._log_norm, self._with_grad = self.row_log_norm(every), with_grad
            return self._log_norm
        if blocks is None or len(blocks) * 5 >= self.layout.num_blocks * 4:
            wanted = torch.ones(self.layout.num_blocks, dtype=torch.bool, device=self.device)
        else:
            wanted = torch.zeros(self.layout.num_blocks, dtype=torch.bool, device=self.device)
            wanted[blocks] = True
        norm, done = self._log_norm, self._rows_done
        if norm is None or done is None or (with_grad and not self._with_grad):
            norm, done = self.initial.new_zeros(self.layout.num_kept), torch.zeros_like(wanted)
        missing = wanted & ~done
        if not bool(missing.any()):
            return norm
        if bool(missing.all()):
            norm = self.row_log_norm(torch.arange(self.layout.num_kept, device=self.device))
        else:
            rows = missing[self.layout.block_of_kept].nonzero().squeeze(-1)
            norm = norm.index_copy(0, rows, self.row_log_norm(rows))
        self._log_norm, self._rows_done, self._with_grad = norm, done | wanted, with_grad
        return norm

    # ---- block pairs: the fast path
    def initial_log_prob(self) -> Tensor:
        """(N,) log p(z_1) over kept states."""
        return self.initial

    def initial_of(self, block: Tensor) -> Tensor:
        """(..., K) log p(z_1) of the states of a block (...)."""
        return self.layout.of_blocks(self.initial, block)

    def pairs(self, previous_block: Tensor, block: Tensor, previous_word: Tensor | None = None) -> Tensor:
        """(..., K, K) log p(z_t | z_{t-1}) between the states of two blocks (...); padded rows and columns are meaningless.

        Args:
            previous_word: (...) the word at t-1, needed where the model resets.
        """
        here = self.device.type == "cpu"
        if here and not torch.is_grad_enabled() and self.layout.width >= CACHED_WIDTH:
            pair = self._cached_pairs(previous_block, block)
        else:
            pair = self._plain_pairs(previous_block, block)
        if self.reset_id is None or previous_word is None:
            return pair
        return self._after(previous_word, pair, self.layout.slots[previous_block], self.initial_of(block))

    def _plain_pairs(self, previous_block: Tensor, block: Tensor) -> Tensor:
        blocks = previous_block.unique() if self.device.type == "cpu" else None
        log_norm = self.layout.of_blocks(self.log_norm(blocks), previous_block)
        return self.block_scores(previous_block, block).sub_(log_norm.unsqueeze(-1))

    def _cached_pairs(self, previous_block: Tensor, block: Tensor) -> Tensor:
        """The same at test: text uses few of the M^2 pairs of blocks (PTB's test set half of them), and those often."""
        keys = (previous_block * self.layout.num_blocks + block).reshape(-1)
        new = torch.tensor([k for k in keys.unique().tolist() if k not in self._pairs], device=keys.device)
        fresh = {}
        if len(new):
            made = self._plain_pairs(new // self.layout.num_blocks, new % self.layout.num_blocks)
            fresh = dict(zip(new.tolist(), made, strict=True))
            room = PAIR_CACHE_BYTES // (made[0].numel() * made.element_size()) - len(self._pairs)
            self._pairs.update((key, fresh[key].clone()) for key in list(fresh)[: max(0, room)])
        every = [self._pairs[key] if key in self._pairs else fresh[key] for key in keys.tolist()]
        return torch.stack(every).view(*block.shape, self.layout.width, self.layout.width)

    def _after(self, word: Tensor | None, rows: Tensor, previous: Tensor, initial: Tensor) -> Tensor:
        """Rows (..., P, Q) out of states ``previous`` (..., P), given the word (...) seen there.

        After the reset word every row is ``initial`` (..., Q). An unseen word may have been the reset word: the row is
        then the mixture of a reset and a normal step, weighted by p(reset word | z).
        """
        if self.reset_id is None or word is None:
            return rows
        word, initial = word[..., None, None], initial.unsqueeze(-2)
        missing = word == MISSING
        if not checks.WHOLE.get() and bool(missing.any()):
            assert self.emission is not None, "a transition with a reset word has an emission: see __init__"
            reset = self.emission.log_prob_of(self.reset_id)[previous].unsqueeze(-1)
            go_on, again = rows + log1mexp(reset), reset + initial
            mixed = logsumexp(torch.stack([go_on, again.expand_as(go_on)]), 0)  # logaddexp has no second derivative at -inf
            rows = torch.where(missing, mixed, rows)
        return torch.where(word == self.reset_id, initial, rows)

    def belief_step(self, belief: Belief, block: Tensor, previous_word: Tensor | None = None) -> Tensor:
        """(B, K) log p(z_1 in block | belief one step earlier).

        Source: Chiu and Rush (2020); under dropout the rows lead from the last segment's kept states to this one's.
        """
        following = self.layout.slots[block]
        word = belief.last_observation if previous_word is None else previous_word
        if belief.ids is None:
            step = self._step_from_all(belief.log_probs, following, word)
        else:
            rows = self.outside_rows_of_block(belief.ids, block)
            if self.layout.complete:
                rows = self._after(word, rows, belief.ids, self.initial[following])
            step = logsumexp(belief.log_probs.unsqueeze(-1) + rows, -2)
        if self.reset_id is None or word is None:
            return step
        return torch.where((word == self.reset_id).unsqueeze(-1), self.initial[following], step)

    def _step_from_all(self, message: Tensor, following: Tensor, word: Tensor | None) -> Tensor:
        """(B, Q) log p(z_t = following) from log-probabilities (B, Z) over all states, given the words (B,) seen there."""
        every = torch.arange(self.num_states, device=self.device)
        if not self.layout.complete:
            rows = self.outside_rows(every.expand(len(following), -1), following)
            return logsumexp(message.unsqueeze(-1) + rows, -2)
        step = max(1, WIDE_CELLS // (self.layout.num_kept * following.shape[-1]))
        parts = []
        for some in torch.arange(len(following), device=self.device).split(step):
            to = following[some]
            columns = self.columns(to.reshape(-1), unseen=False).view(-1, *to.shape).movedim(0, 1)  # (b, N, Q)
            columns = self._after(None if word is None else word[some], columns, every, self.initial[to])
            parts.append(log_matmul(message[some].unsqueeze(-2), columns).squeeze(-2))
        return torch.cat(parts)

    # ---- wide steps: a missing token opens all states
    def wide_rows(self, previous: Tensor, previous_word: Tensor | None = None) -> Tensor:
        """(R, P, N) log p(z_t | z_{t-1} = previous), local numbers (R, P), over all kept states."""
        every = torch.arange(self.layout.num_kept, device=self.device)
        log_norm = self.log_norm(self.layout.block_of_kept[previous].unique())  # all rows cost Z^2 h
        rows = self.scores(previous, every.expand(*previous.shape[:-1], -1)) - log_norm[previous].unsqueeze(-1)
        return self._after(previous_word, rows, previous, self.initial)

    def rows_between(self, previous: Tensor, following: Tensor) -> Tensor:
        """(...) log p(z_t = following | z_{t-1} = previous) of a normal step, local numbers (...)."""
        pair = self.scores(previous.unsqueeze(-1), following.unsqueeze(-1)).squeeze(-1).squeeze(-1)
        return pair - self.log_norm()[previous]

    def columns(self, following: Tensor, unseen: bool = True) -> Tensor:
        """(N, Q) log p(z_t = following | z_{t-1}) from all kept states, whose word was not seen (and may have reset)."""
        columns = self.scores_from_all(following) - self.log_norm().unsqueeze(-1)
        if self.reset_id is None or not unseen:
            return columns
        every = torch.arange(self.layout.num_kept, device=self.device)
        return self._after(torch.tensor(MISSING, device=self.device), columns, every, self.initial[following])

    @torch.no_grad()
    def scaled_columns(self, following: Tensor) -> tuple[Tensor, Tensor]:
        """(N, Q) exp(columns - top), and (N,) the top of each row; behind a word that does not reset, without gradients."""
        log = self.columns(following, unseen=False)
        top = log.amax(-1).clamp_min(torch.finfo(log.dtype).min)
        return log.sub_(top.unsqueeze(-1)).exp_(), top

    def column_tiles(self) -> tuple[Tensor, ...]:
        """Tiles of local numbers such that ``columns`` of one tile stays below ``WIDE_CELLS`` cells."""
        size = max(1, WIDE_CELLS // self.layout.num_kept)
        return torch.arange(self.layout.num_kept, device=self.device).split(size)

    def wide_forward(self, message: Tensor, unseen: bool = True) -> Tensor:
        """(R, N) log sum_i exp(message_i) A_ij from all states to all states, by tiles: never N x N at once."""
        return torch.cat([log_matmul(message, self.columns(tile, unseen)) for tile in self.column_tiles()], -1)

    def wide_backward(self, message: Tensor) -> Tensor:
        """(R, N) log sum_j A_ij exp(message_j), by tiles."""
        parts = [log_matmul(message[:, tile], self.columns(tile).T) for tile in self.column_tiles()]
        return torch.logsumexp(torch.stack(parts), 0)

    # ---- the generic path
    def rows(self, previous, inputs=None):
        if previous is None:
            return self.layout.scatter(self.initial, -math.inf)
        every = torch.arange(self.layout.num_kept, device=self.device)
        if self.layout.complete:
            local = previous
        else:
            # under dropout a state that is not kept is never entered: give it any row
            local = self.layout.local_numbers()[previous].clamp_min(0)
        if local.numel() < self.layout.num_kept:  # sampling: a row for each sequence
            rows = torch.log_softmax(self.scores(local.unsqueeze(-1), every).squeeze(-2), -1)
        else:  # enumeration: every row, many times
            rows = torch.log_softmax(self.scores(every, every), -1)[local]
        if self.reset_id is not None and inputs is not None:
            batch = torch.broadcast_shapes(local.shape, inputs.shape)
            rows = rows.expand(*batch, -1).unsqueeze(-2)
            local, inputs = local.expand(batch).unsqueeze(-1), inputs.expand(batch)
            rows = self._after(inputs, rows, local, self.initial).squeeze(-2)
        return self.layout.scatter(rows, -math.inf)

    def log_matrix(self) -> Tensor:
        """(N, N) the whole matrix: for one block, or sizes at which it is small."""
        every = torch.arange(self.layout.num_kept, device=self.device)
        return self.scores(every, every) - self.log_norm().unsqueeze(-1)


class EmbeddingTransition(BlockTransition):
    """score(z, z') = out_z . into_z'.

    Args:
        out, into: (N, D) features of leaving and entering the kept states.
        out_of: function of global ids (R,) -> (R, D) leaving features, for beliefs over states that are not kept.
        product_dtype: type of the normaliser's products (bfloat16 for speed in training on a GPU).

    Source: Chiu and Rush (2020), equation 4.
    """

    def __init__(
        self,
        layout: BlockLayout,
        initial: Tensor,
        out: Tensor,
        into: Tensor,
        *,
        out_of: Callable[[Tensor], Tensor] | None = None,
        product_dtype: torch.dtype | None = None,
        reset_id: int | None = None,
        emission: BlockEmission | None = None,
    ):
        super().__init__(layout, initial, reset_id, emission)
        self.out, self.into, self.out_of, self.product_dtype = in_float32(out), in_float32(into), out_of, product_dtype

    def scores(self, previous, following):
        return self.out[previous] @ self.into[following].transpose(-1, -2)

    def block_scores(self, previous_block, block):
        out = self.layout.of_blocks(self.out, previous_block)
        return out @ self.layout.of_blocks(self.into, block).transpose(-1, -2)

    def scores_from_all(self, following):
        return self.out @ self.into[following].T

    def row_log_norm(self, rows):
        out = self.out if len(rows) == len(self.out) else self.out[rows]
        return streamed_log_norm(out, self.into, self.product_dtype)

    def outside_rows(self, ids, following):
        if self.layout.complete:
            out, log_norm = self.out[ids], self.log_norm()[ids]
        else:
            assert self.out_of is not None, "states left out need their own features: see __init__"
            out = self.out_of(ids.reshape(-1))
            log_norm = streamed_log_norm(out, self.into, self.product_dtype).view(ids.shape)
            out = out.view(*ids.shape, -1)
        return out @ self.into[following].transpose(-1, -2) - log_norm.unsqueeze(-1)


class TableTransition(BlockTransition):
    """score(z, z') = table[z, z'], a free Z x Z parameter (the paper's scalar parameterisation).

    Args:
        table: (Z, Z) scores between global ids, [from, to].
    """

    def __init__(self, layout, initial, table, *, reset_id=None, emission=None):
        super().__init__(layout, initial, reset_id, emission)
        self.table = in_float32(table)

    def scores(self, previous, following):
        ids = self.layout.kept_ids
        return self.table[ids[previous].unsqueeze(-1), ids[following].unsqueeze(-2)]

    def scores_from_all(self, following):
        ids = self.layout.kept_ids
        return self.table[ids.unsqueeze(-1), ids[following]]

    def _kept_columns(self, ids):
        rows = self.table[ids]
        return rows if self.layout.complete else rows[..., self.layout.kept_ids]

    def row_log_norm(self, rows):
        ids = self.layout.kept_ids[rows]
        if not torch.is_grad_enabled():
            return torch.cat([self._kept_columns(part).logsumexp(-1) for part in ids.split(1024)])
        return self._kept_columns(ids).logsumexp(-1)

    def outside_rows(self, ids, following):
        log_norm = self._kept_columns(ids).logsumexp(-1)
        target = self.layout.kept_ids[following]
        return self.table[ids.unsqueeze(-1), target.unsqueeze(-2)] - log_norm.unsqueeze(-1)


class BlockEmission(Emission):
    """p(x | z) over the words of z's block only.

    Args:
        layout: states by block.
        block_of_word: (V,).
        word_log_probs: (V, K) log p(word | slot of its block); see :meth:`~pplseq.distributions.blocks.WordGroups.log_softmax`.
    """

    def __init__(self, layout: BlockLayout, block_of_word: Tensor, word_log_probs: Tensor):
        self.layout, self.block_of_word = layout, block_of_word
        if layout.filled is not None:  # a padded slot is no state
            word_log_probs = word_log_probs.masked_fill(~layout.filled[block_of_word], -math.inf)
        self.word_log_probs = in_float32(word_log_probs)
        self.num_states, self.num_words = layout.num_states, len(block_of_word)
        self.support_constraint = constraints.integer_interval(0, self.num_words - 1)

    def support(self, obs: Tensor) -> Tensor:
        """(...) the block that a word opens."""
        return self.block_of_word[obs]

    def log_prob_at(self, obs: Tensor) -> Tensor:
        """(..., K) log p(obs | each state of its block)."""
        return self.word_log_probs.index_select(0, obs.reshape(-1)).view(*obs.shape, -1)

    def log_prob_of(self, word: int) -> Tensor:
        """(N,) log p(word | z) for every kept state."""
        block = self.block_of_word[word]
        full = self.word_log_probs.new_full((self.layout.num_kept,), -math.inf)
        slots = self.layout.slots[block]
        if self.layout.filled is not None:
            filled = self.layout.filled[block]
            return full.index_copy(0, slots[filled], self.word_log_probs[word][filled])
        return full.index_copy(0, slots, self.word_log_probs[word])

    def word_rows(self, state: Tensor) -> Tensor:
        """(..., V) log p(x | z) over all words for kept states with local numbers (...)."""
        block = self.layout.block_of_kept[state]
        slot = state - self.layout.first_kept[block]
        return self.word_log_probs.T[slot].masked_fill(self.block_of_word != block.unsqueeze(-1), -math.inf)

    def word_log_prob(self, state_log_prob: Tensor) -> Tensor:
        """(*B, V) log p(x) for states (*B, Z) distributed as given: log sum_z p(z) p(x | z), block by block."""
        prior = state_log_prob[..., self.layout.state_ids]  # (*B, M, K)
        parts = []
        for row in prior.flatten(0, -3) if prior.dim() > 2 else [prior]:  # a (V, K) table per row, not (B, V, K)
            parts.append(torch.logsumexp(row[self.block_of_word] + self.word_log_probs, -1))
        return torch.stack(parts).view(*state_log_prob.shape[:-1], -1)

    def log_likelihood(self, obs):
        block = self.support(obs)
        full = self.word_log_probs.new_full((*obs.shape, self.layout.num_kept), -math.inf)
        slots = self.layout.slots[block]
        if self.layout.filled is None:
            full = full.scatter(-1, slots, self.log_prob_at(obs))
        else:
            full = full.scatter_reduce(-1, slots, self.log_prob_at(obs), "amax")
        return self.layout.scatter(full, -math.inf)

    def distribution(self, state):
        local = self.layout.local_numbers()[state]
        rows = self.word_rows(local.clamp_min(0))
        # a dropped state is never entered: any distribution will do
        return dist.Categorical(logits=torch.where((local < 0).unsqueeze(-1), 0.0, rows), validate_args=False)
