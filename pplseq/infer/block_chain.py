"""Block-sparse chains: a seen word opens the K states of its block, a missing one all of them."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from pplseq.distributions.block import BlockTransition
from pplseq.distributions.dense import CategoricalEmission, DenseTransition, StepTransition
from pplseq.distributions.state import MISSING, Belief
from pplseq.infer import gaps as gap
from pplseq.infer.chain import Chain, DenseChain, ExpectedCounts, Factors, MissingWords, PairMarginals, StateMarginals
from pplseq.infer.kernels import scan
from pplseq.infer.kernels.log_semiring import logsumexp

DENSE_STATES = 2048  # up to here a query that needs Z x Z may build it


class BlockChain(Chain):
    """See :class:`~pplseq.infer.chain.Chain`. Words are ids; ``inputs`` are the previous words where the model resets."""

    transition: BlockTransition

    def __init__(self, transition, emission, obs, *, inputs=None, **options):
        super().__init__(transition, emission, obs, inputs=inputs, **options)
        self.full_batch = self.batch_shape
        if len(self.batch_shape) != 1:  # the code below thinks in T x B
            self.batch_shape = torch.Size([self.batch_shape.numel()])
            for name in ("obs", "valid", "seen", "states", "inputs"):
                value = getattr(self, name)
                if value is not None:
                    value = value.expand(self.num_steps, *self.full_batch)
                    setattr(self, name, value.reshape(self.num_steps, -1))
            if self.start is not None:
                parts = (None if p is None else p.reshape(-1, *p.shape[len(self.full_batch) :]) for p in self.start)
                self.start = Belief(*parts)

    def _unflatten(self, value: Tensor, dim: int) -> Tensor:
        """The batch dimension ``dim`` back to its full shape."""
        if len(self.full_batch) == 1:
            return value
        return value.reshape(*value.shape[:dim], *self.full_batch, *value.shape[dim + 1 :])

    # ---------------------------------------------------------------- lowering
    @property
    def layout(self):
        return self.transition.layout

    @cached_property
    def _block(self) -> Tensor:
        """(T, B) the block open at each step (of the observed state, where there is one)."""
        block = self.emission.support(self.obs if self.seen is None else self.obs.where(self.narrow, 0))
        if self.states is not None:
            known = self.states >= 0
            own = self.layout.block_of_state()[self.states.clamp_min(0)]
            block = torch.where(known & (own >= 0), own, block)
        return block

    @cached_property
    def narrow(self) -> Tensor:
        """(T, B) steps that open one block: a word or a state was seen."""
        seen = self.seen if self.seen is not None else torch.ones_like(self.obs, dtype=torch.bool)
        if self.states is not None:
            seen = seen | (self.states >= 0)
        return seen if self.valid is None else seen & self.valid

    @cached_property
    def gaps(self) -> gap.Gaps | None:
        """Where tokens are missing; None if nowhere."""
        if self.seen is None:
            return None
        valid = torch.ones_like(self.narrow) if self.valid is None else self.valid
        if bool((self.narrow == valid).all()):
            return None
        return gap.Gaps.of(self.narrow, valid.sum(0))

    def _at_seen(self, value: Tensor) -> Tensor:
        """(T, B, ...) -> (S, B, ...) at the seen steps of each row."""
        if self.gaps is None:
            return value
        index = self.gaps.time.reshape(*self.gaps.time.shape, *(1,) * (value.dim() - 2))
        return value.gather(0, index.expand(*self.gaps.time.shape, *value.shape[2:]))

    def _emit(self) -> Tensor:
        """(S, B, K) at seen steps."""
        block = self._block
        obs = self.obs if self.seen is None else self.obs.where(self.narrow, 0)
        emit = self.emission.log_prob_at(obs)
        if self.states is None:
            return self._at_seen(emit)
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
        return self._at_seen(emit.masked_fill(closed, -torch.inf))

    def _first_predicted(self, rows: Tensor) -> Tensor:
        """(R, N) distribution of the first step of the given rows."""
        if self.start is None:
            return self.transition.initial_log_prob().expand(len(rows), -1)
        start = Belief(*(None if part is None else part[rows] for part in self.start))
        return self._predict_rows(start, None if self.inputs is None else self.inputs[0, rows])

    def _lower(self, maximum: bool = False) -> Factors:
        if self.layout.num_blocks == 1 and self.gaps is None:
            return self._lower_single_block()
        transition, gaps = self.transition, self.gaps
        emit, block = self._emit(), self._at_seen(self._block)
        valid = self.valid
        if gaps is not None:
            slot = torch.arange(len(emit), device=emit.device).unsqueeze(-1)
            valid = slot < gaps.count
        # the word before each seen step, then where a direct pair of blocks is meant
        before = None if self.inputs is None else self.inputs
        direct = None if before is None else self._at_seen(before)[1:]
        # rows of every block that is ever left (the normaliser is shared by all steps)
        if len(block) > 1:
            pair = transition.pairs(block[:-1], block[1:], direct)
        else:
            width = self.layout.width
            pair = emit.new_zeros(0, *emit.shape[1:-1], width, width)
        if self.start is None:
            init = transition.initial_of(block[0])
        else:
            init = transition.belief_step(self.start, block[0], None if before is None else before[0])
        if gaps is not None:
            init, pair = self._bridge(init, pair, block, before, maximum)
            # a row of nothing but missing tokens has no seen step: its slot is padding
        return Factors(init, pair, emit, valid)

    def _bridge(self, init, pair, block, before, maximum):
        """Factors over gaps in place of direct ones."""
        gaps = self.gaps
        live = torch.arange(len(block), device=block.device).unsqueeze(-1) < gaps.count
        step, row = ((gaps.before > 0) & live).nonzero(as_tuple=True)
        first, inner = step == 0, step > 0
        if bool(first.any()):
            rows = row[first]
            through = gap.gap_initial(
                self.transition, self._first_predicted(rows), block[0, rows], gaps.before[0, rows], maximum
            )
            init = init.index_copy(0, rows, through)
        if bool(inner.any()):
            step, row = step[inner], row[inner]
            word = None
            if before is not None:  # the word before the first missing step of the gap
                word = before[gaps.time[step - 1, row] + 1, row]
            through = gap.gap_pairs(
                self.transition, block[step - 1, row], block[step, row], word, gaps.before[step, row], maximum
            )
            pair = pair.index_put((step - 1, row), through)
        return init, pair

    def _lower_single_block(self) -> Factors:
        """One block is a dense chain; resets are a restart of the scan, not a matrix a step."""
        transition = self.transition
        init = transition.initial_log_prob()
        if self.start is not None:
            init = transition.belief_step(self.start, self._block[0], None if self.inputs is None else self.inputs[0])
        restart = restart_to = None
        if transition.reset_id is not None and self.inputs is not None:
            if bool((self.inputs[1:] == MISSING).any()):
                pair = transition.pairs(self._block[:-1], self._block[1:], self.inputs[1:])
                return Factors(init, pair, self._emit(), self.valid)
            restart, restart_to = self.inputs == transition.reset_id, transition.initial_log_prob()
        return Factors(init, transition.log_matrix(), self._emit(), self.valid, True, restart, restart_to)

    # ---------------------------------------------------------------- results by state
    def _original_step(self, step, row):
        return step if self.gaps is None else int(self.gaps.time[(step, *row)])

    def log_prob(self):
        return self._unflatten(super().log_prob(), 0)

    def token_log_probs(self):
        steps = super().token_log_probs()
        if self.gaps is not None:
            full = steps.new_zeros(self.num_steps, *self.batch_shape)
            steps = full.scatter_add(0, self.gaps.time, steps)  # padded slots add 0
        return self._unflatten(steps, 1)

    def filtered(self):
        if self.gaps is None:
            belief = self._filtered_narrow()
        else:
            belief = self._filtered_wide()
        if self.transition.reset_id is not None:
            belief = belief._replace(last_observation=self._last_word())
        return Belief(*(None if part is None else self._unflatten(part, 0) for part in belief))

    def _last_step(self) -> Tensor:
        if self.valid is None:
            return self.obs.new_full(self.batch_shape, self.num_steps - 1)
        return self.valid.sum(0).sub(1).clamp_min(0)

    def _last_word(self) -> Tensor:
        last = self._last_step().unsqueeze(0)
        word = self.obs.gather(0, last).squeeze(0)
        if self.seen is not None:
            word = word.where(self.seen.gather(0, last).squeeze(0), MISSING)
        if self.valid is not None and self.start is not None and self.start.last_observation is not None:
            word = word.where(self.valid[0], self.start.last_observation)
        return word

    def _filtered_narrow(self) -> Belief:
        log_probs = self._possible().filtered[-1].detach()
        last = self._last_step().unsqueeze(0)
        ids = self.layout.state_ids[self._block.gather(0, last).squeeze(0)]
        if self.valid is None or bool(self.valid[0].all()):
            return Belief(ids, log_probs)
        full = Belief(ids, log_probs).dense(self.layout.num_states)
        return Belief(None, self._keep_start(full, ~self.valid[0]))

    def _filtered_wide(self) -> Belief:
        """With missing tokens some row may end on one: the belief then covers all states."""
        forward, gaps, layout = self._possible(), self.gaps, self.layout
        if not bool((gaps.trailing > 0).any()) and bool((gaps.count > 0).all()):
            block = self._at_seen(self._block).gather(0, (gaps.count - 1).unsqueeze(0)).squeeze(0)
            return Belief(layout.state_ids[block], forward.filtered[-1].detach())
        empty = gaps.lengths == 0
        last = (gaps.count - 1).clamp_min(0).unsqueeze(0)
        block = self._at_seen(self._block).gather(0, last).squeeze(0)
        full = Belief(layout.state_ids[block], forward.filtered[-1].detach()).dense(layout.num_states)
        full = full.clone()
        for rows, message in self._trailing_messages():
            full[rows] = layout.scatter(message, -torch.inf)
        return Belief(None, self._keep_start(full, empty).detach())

    def _trailing_messages(self):
        """(rows, (R, N) message at the last step) for rows that end on missing tokens."""
        for run in self._runs(trailing_only=True):
            message = run.enter
            for _ in range(run.length - 1):
                message = self.transition.wide_forward(message)
            yield run.row, scan.log_normalise(message)[0]

    @torch.no_grad()
    def _runs(self, trailing_only: bool = False):
        """All gaps by equal length, with the messages at their ends."""
        gaps, transition, block = self.gaps, self.transition, self._at_seen(self._block)
        filtered = self._forward.filtered.detach()
        behind = None if trailing_only else self.factors.emit.detach() + self._beta
        for step, row, length, trailing in self._gap_groups(trailing_only):
            enter = self._first_predicted(row).clone()
            inner = step > 0
            if bool(inner.any()):
                at, rows = step[inner] - 1, row[inner]
                wide = transition.wide_rows(self.layout.slots[block[at, rows]], self._word_after(at, rows))
                enter[inner] = torch.logsumexp(filtered[at, rows].unsqueeze(-1) + wide, -2)
            leave, leave_reset = torch.zeros_like(enter), torch.zeros_like(enter[:, 0])
            if not trailing:
                slots = self.layout.slots[block[step, row]]
                columns = transition.columns(slots.reshape(-1)).view(-1, *slots.shape).movedim(1, 0)
                leave = torch.logsumexp(columns + behind[step, row].unsqueeze(1), -1)
                leave_reset = torch.logsumexp(transition.initial_of(block[step, row]) + behind[step, row], -1)
            yield gap.Run(row, gaps_first(gaps, step, row, trailing), length, enter, leave, leave_reset)

    def _word_after(self, step: Tensor, row: Tensor) -> Tensor | None:
        """The input of the step behind the given seen steps."""
        return None if self.inputs is None else self.inputs[self.gaps.time[step, row] + 1, row]

    def _gap_groups(self, trailing_only: bool = False):
        """(slot, row, length, trailing) of all gaps in groups of equal length; slot = the seen step behind the gap."""
        gaps = self.gaps
        groups = [(gaps.count, torch.arange(len(gaps.count), device=gaps.count.device), gaps.trailing, True)]
        if not trailing_only:
            live = torch.arange(len(gaps.before), device=gaps.count.device).unsqueeze(-1) < gaps.count
            step, row = ((gaps.before > 0) & live).nonzero(as_tuple=True)
            groups.append((step, row, gaps.before[step, row], False))
        for step, row, lengths, trailing in groups:
            for length in lengths[lengths > 0].unique().tolist():
                for part in (lengths == length).nonzero().squeeze(-1).split(self._rows_at_once):
                    yield step[part], row[part], length, trailing

    @property
    def _rows_at_once(self) -> int:
        return max(1, gap.GAP_CELLS // (self.layout.width * self.layout.num_kept))

    # ---------------------------------------------------------------- smoothing
    def _ids(self) -> Tensor:
        return self.layout.state_ids[self._block]

    @torch.no_grad()
    def marginals(self):
        probs = scan.state_posterior(self._possible().filtered, self._beta, self.factors.valid)
        if self.gaps is None:
            return StateMarginals(self._unflatten(self._ids(), 1), self._unflatten(probs, 1))
        width = probs.shape[-1]
        index = self.gaps.time.unsqueeze(-1).expand(*self.gaps.time.shape, width)
        full = probs.new_zeros(self.num_steps, *self.batch_shape, width).scatter_add(0, index, probs)
        steps, wide = [], []
        for run in self._runs():
            inside = gap.run_marginals(self.transition, run)
            time = run.first + torch.arange(run.length, device=probs.device).unsqueeze(-1)
            steps.append(torch.stack([time, run.row.expand_as(time)], -1).reshape(-1, 2))
            wide.append(self.layout.scatter(inside.reshape(-1, inside.shape[-1]), 0.0))
        if len(self.full_batch) != 1:
            raise ValueError("marginals with missing tokens need one batch dimension; flatten the plates")
        return StateMarginals(self._ids(), full, torch.cat(steps), torch.cat(wide))

    @torch.no_grad()
    def missing_words(self):
        if self.states is not None:
            raise ValueError("missing_words: not offered beside observed states; leave the states out")
        if self.gaps is None:
            return super().missing_words()
        self._possible()
        steps, words = [], []
        for run in self._runs():
            inside = gap.run_words(self.transition, self.emission, run)
            time = run.first + torch.arange(run.length, device=inside.device).unsqueeze(-1)
            steps.append(torch.stack([time, run.row.expand_as(time)], -1).reshape(-1, 2))
            words.append(inside.reshape(-1, inside.shape[-1]))
        return MissingWords(torch.cat(steps), torch.cat(words)).in_order()

    def _word_given_path(self, paths, steps):
        time, row = steps.T
        local = self.layout.local_numbers()
        state = local[paths[:, time, row]]
        words = self.emission.word_rows(state)  # (S, R, V)
        reset_id = self.transition.reset_id
        if reset_id is None:
            return words
        # the state behind tells whether the word was the reset word
        last = time + 1 >= (self.num_steps if self.valid is None else self.valid.sum(0)[row])
        following = local[paths[:, (time + 1).clamp(max=self.num_steps - 1), row].clamp_min(0)]
        normal = self.transition.rows_between(state, following)
        reset = self.transition.initial_log_prob()[following]
        shift = torch.where(last, 0.0, normal).unsqueeze(-1).expand_as(words).clone()
        shift[..., reset_id] = torch.where(last, 0.0, reset)
        return words + shift

    def _dense_twin(self, query: str) -> DenseChain:
        """The same chain over all states, for queries that need pairs of states around missing tokens."""
        transition = self.transition
        if self.layout.num_kept > DENSE_STATES or not self.layout.complete:
            raise ValueError(
                f"{query}: with missing tokens it needs all pairs of states, which is offered up to {DENSE_STATES} states "
                f"(no dropout), got {self.layout.num_kept}; fill the gaps first with viterbi() or sample()"
            )
        words = torch.arange(self.emission.num_words, device=self.obs.device)
        emission = CategoricalEmission(self.emission.log_likelihood(words).T)
        options = dict(valid=self.valid, seen=self.seen, states=self.states, start=self.start, check=self.check)
        obs = self.obs if self.seen is None else self.obs.where(self.seen, 0)
        if self.inputs is None or transition.reset_id is None:
            dense = DenseTransition(transition.initial_log_prob(), transition.log_matrix())
            return DenseChain(dense, emission, obs, **options)
        every = torch.arange(transition.num_states, device=obs.device)

        def matrices(words):
            return transition.rows(every.expand(*words.shape, -1), words.unsqueeze(-1))

        dense = StepTransition(transition.initial_log_prob(), matrices, transition.num_states, input_dims=0)
        return DenseChain(dense, emission, obs, inputs=self.inputs, **options)

    @torch.no_grad()
    def pair_marginals(self):
        if self.gaps is not None:
            return self._dense_twin("pair_marginals").pair_marginals()
        probs = super().pair_marginals().probs
        return PairMarginals(self._unflatten(self._ids(), 1), self._unflatten(probs, 1))

    def entropy(self):
        if self.gaps is not None:
            return self._dense_twin("entropy").entropy()
        return super().entropy()

    @torch.no_grad()
    def expected_counts(self):
        if self.gaps is not None:
            return self._dense_twin("expected_counts").expected_counts()
        marginals, pair = self.marginals(), self.pair_marginals().probs
        pair = pair.reshape(-1, *pair.shape[-2:])
        ids, probs = self._ids(), marginals.probs.reshape(self.num_steps, -1, self.layout.width)
        visits = probs.new_zeros(self.layout.num_states)
        occupancy = visits.index_add(0, ids.reshape(-1), probs.reshape(-1))
        start = visits if self.start is not None else visits.index_add(0, ids[0].reshape(-1), probs[0].reshape(-1))
        blocks = torch.stack([self._block[:-1].reshape(-1), self._block[1:].reshape(-1)], -1)
        if self.valid is not None:
            used = self.valid[1:].reshape(-1)
            blocks, pair = blocks[used], pair[used]
        block_pairs, which = blocks.unique(dim=0, return_inverse=True)
        transition = pair.new_zeros(len(block_pairs), *pair.shape[1:]).index_add(0, which, pair)
        return ExpectedCounts(start, transition, block_pairs, occupancy, marginals)

    # ---------------------------------------------------------------- paths
    def _paths(self, position):
        """Positions in blocks (..., S, B) -> global ids (..., T, *B)."""
        ids = self.layout.state_ids[self._at_seen(self._block)].expand(*position.shape, -1)
        ids = ids.gather(-1, position.unsqueeze(-1)).squeeze(-1)
        if self.gaps is None:
            ids = super()._paths(ids)
            return self._unflatten(ids, ids.dim() - 1)
        live = torch.arange(len(self.gaps.time), device=ids.device).unsqueeze(-1) < self.gaps.count
        paths = ids.new_full((*ids.shape[:-2], self.num_steps, ids.shape[-1]), -1)
        time = self.gaps.time.expand(ids.shape)
        # padded slots repeat the last seen time: amax keeps the id that is already there
        return paths.scatter_reduce(-2, time, ids.masked_fill(~live, -1), "amax")

    @torch.no_grad()
    def _fill_paths(self, paths: Tensor, maximum: bool) -> Tensor:
        """States at missing steps, given those at seen ones: (S, T, B)."""
        transition = self.transition
        local = self.layout.local_numbers()
        for step, row, length, trailing in self._gap_groups():
            first, inner = gaps_first(self.gaps, step, row, trailing), step > 0
            at, rows = step[inner] - 1, row[inner]
            word = self._word_after(at, rows)
            for some in paths.split(max(1, self._rows_at_once // len(row))):  # views: filled in place
                samples = len(some)
                enter = self._first_predicted(row).expand(samples, -1, -1).clone()
                if len(at):
                    state = local[some[:, self.gaps.time[at, rows], rows]].reshape(-1, 1)
                    words = None if word is None else word.repeat(samples)
                    enter[:, inner] = transition.wide_rows(state, words).view(samples, len(at), -1)
                enter = enter.flatten(0, 1)
                leave = torch.zeros_like(enter)
                if not trailing:
                    leave = transition.columns(local[some[:, first + length, row]].reshape(-1)).T
                run = gap.Run(row.repeat(samples), first, length, enter, leave)
                inside = self.layout.kept_ids[gap.run_paths(transition, run, maximum)]
                time = first + torch.arange(length, device=paths.device).unsqueeze(-1)
                some[:, time, row.expand_as(time)] = inside.view(length, samples, -1).movedim(1, 0)
        return paths

    @torch.no_grad()
    def viterbi(self):
        if self.gaps is None:
            path, log_prob = super().viterbi()
            return path, self._unflatten(log_prob, 0)
        self._possible()
        f = self._lower(maximum=True)
        f = f._replace(emit=self._with_best_continuation(f.emit))
        matrices = scan.StepMatrices(f.pair, f.shared)
        position, log_prob = scan.viterbi_pass(f.init, matrices, f.emit, f.valid)
        path = self._fill_paths(self._paths(position).unsqueeze(0), maximum=True).squeeze(0)
        for row in (self.gaps.count == 0).nonzero():
            log_prob[row] = self._prior_log_prob(path[:, row], row)
        return path, log_prob

    def _with_best_continuation(self, emit: Tensor) -> Tensor:
        """Adds to each row's last seen step the log-probability of the best states over its trailing missing steps."""
        emit = emit.clone()
        block = self._at_seen(self._block)
        for step, row, length, _ in self._gap_groups(trailing_only=True):
            some = step > 0
            if bool(some.any()):
                at, rows = step[some] - 1, row[some]
                wide = self.transition.wide_rows(self.layout.slots[block[at, rows]], self._word_after(at, rows))
                lengths = torch.full_like(rows, length)
                emit[at, rows] += gap.trailing_maximum(self.transition, wide, lengths)
        return emit

    def _prior_log_prob(self, path: Tensor, row: Tensor) -> Tensor:
        """(1,) log p(path) of a row of missing tokens only."""
        length = int(self.gaps.lengths[row])
        local = self.layout.local_numbers()[path[:length, 0]]
        total = self._first_predicted(row)[0, local[:1]] if length else self.transition.initial.new_zeros(1)
        missing = torch.tensor([MISSING], device=path.device) if self.inputs is not None else None
        for previous, state in zip(local[:-1], local[1:], strict=True):
            total = total + self.transition.wide_rows(previous.view(1, 1), missing)[0, 0, state]
        return total

    @torch.no_grad()
    def sample(self, num_samples=1):
        paths = super().sample(num_samples)
        return paths if self.gaps is None else self._fill_paths(paths, maximum=False)

    @torch.no_grad()
    def k_best(self, k):
        if self.gaps is not None:
            return self._dense_twin("k_best").k_best(k)
        paths, log_prob = super().k_best(k)
        return paths, self._unflatten(log_prob, 1)

    # ---------------------------------------------------------------- prediction
    def _predict(self, belief, inputs):
        flat = Belief(*(None if p is None else p.reshape(-1, *p.shape[len(self.full_batch) :]) for p in belief))
        states = self._predict_rows(flat, inputs)
        return self._unflatten(self.layout.scatter(states, -torch.inf), 0)

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
            at_once = max(1, gap.GAP_CELLS // (ids.shape[-1] * self.layout.num_kept))
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


def gaps_first(gaps: gap.Gaps, step: Tensor, row: Tensor, trailing: bool) -> Tensor:
    """(R,) first missing step of gaps before seen step ``step`` (or behind the last one)."""
    if trailing:
        return gaps.lengths[row] - gaps.trailing[row]
    return gaps.time[step, row] - gaps.before[step, row]
