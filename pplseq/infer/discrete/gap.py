"""Block-sparse chains with missing tokens: a missing token opens all states.

Runs of missing tokens are summed out before the scan (see :mod:`pplseq.infer.discrete.gap_sums`), so the chain that is
scanned holds the seen steps only, S of them at most; here its results are put back in their places, and the states and
words inside the runs are found from the messages at both ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pplseq.distributions.dense import CategoricalEmission, DenseTransition, StepTransition
from pplseq.distributions.state import MISSING, Belief
from pplseq.infer.discrete import gap_sums as gap
from pplseq.infer.discrete.chain import query
from pplseq.infer.discrete.dense import DenseChain
from pplseq.infer.discrete.gap_paths import GapPaths
from pplseq.infer.discrete.results import Factors, MissingWords, PairMarginals, StateMarginals
from pplseq.kernels import path_scan, scan
from pplseq.threads import once

DENSE_STATES = 2048  # up to here a query that needs Z x Z may build it


class GapChain(GapPaths):
    """See :class:`~pplseq.infer.discrete.chain.Chain`; made by ``build_chain`` where a token is missing."""

    @once
    def gaps(self) -> gap.Gaps:
        """Where tokens are missing."""
        valid = torch.ones_like(self.narrow) if self.valid is None else self.valid
        return gap.Gaps.of(self.narrow, valid.sum(0))

    def _at_seen(self, value: Tensor) -> Tensor:
        """(T, B, ...) -> (S, B, ...) at the seen steps of each row."""
        index = self.gaps.time.reshape(*self.gaps.time.shape, *(1,) * (value.dim() - 2))
        return value.gather(0, index.expand(*self.gaps.time.shape, *value.shape[2:]))

    @once
    def _seen_block(self) -> Tensor:
        return self._at_seen(self._block)

    @once
    def _live(self) -> Tensor:
        """(S, B) False at slots behind a row's last seen step."""
        return torch.arange(len(self.gaps.time), device=self.obs.device).unsqueeze(-1) < self.gaps.num_seen

    # ---------------------------------------------------------------- lowering
    def _lower(self, maximum: bool = False) -> Factors:
        transition, emit, block = self.transition, self._at_seen(self._emit()), self._seen_block
        before = None if self.inputs is None else self._at_seen(self.inputs)
        init, pair = self._init_and_pairs(emit, block, before)
        step, row = ((self.gaps.before > 0) & self._live).nonzero(as_tuple=True)
        first, inner = step == 0, step > 0
        if bool(first.any()):
            rows = row[first]
            through = gap.gap_initial(
                transition, self._first_predicted(rows), block[0, rows], self.gaps.before[0, rows], maximum
            )
            init = init.index_copy(0, rows, through)
        if bool(inner.any()):
            step, row = step[inner], row[inner]
            word, lengths = self._word_after(step - 1, row), self.gaps.before[step, row]
            through = gap.gap_pairs(transition, block[step - 1, row], block[step, row], word, lengths, maximum)
            pair = pair.index_put((step - 1, row), through)
        # a row of nothing but missing tokens has no seen step: its one slot is padding
        return Factors(init, pair, emit, self._live)

    def _word_after(self, step: Tensor, row: Tensor) -> Tensor | None:
        """The input of the step behind the given seen steps."""
        return None if self.inputs is None else self.inputs[self.gaps.time[step, row] + 1, row]

    def _gap_groups(self, trailing_only: bool = False):
        """(slot, row, length, trailing) of all gaps in groups of equal length; slot = the seen step behind the gap."""
        gaps = self.gaps
        groups = [(gaps.num_seen, torch.arange(len(gaps.num_seen), device=gaps.num_seen.device), gaps.trailing, True)]
        if not trailing_only:
            step, row = ((gaps.before > 0) & self._live).nonzero(as_tuple=True)
            groups.append((step, row, gaps.before[step, row], False))
        for step, row, lengths, trailing in groups:
            for length in lengths[lengths > 0].unique().tolist():
                for part in (lengths == length).nonzero().squeeze(-1).split(self._rows_a_part):
                    yield step[part], row[part], length, trailing

    @property
    def _rows_a_part(self) -> int:
        return max(1, gap.GAP_CELLS // (self.layout.width * self.layout.num_kept))

    @torch.no_grad()
    def _runs(self, trailing_only: bool = False):
        """All gaps by equal length, with the messages at their ends."""
        gaps, transition, block = self.gaps, self.transition, self._seen_block
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
            if behind is not None and not trailing:
                slots = self.layout.slots[block[step, row]]
                columns = transition.columns(slots.reshape(-1)).view(-1, *slots.shape).movedim(1, 0)
                leave = torch.logsumexp(columns + behind[step, row].unsqueeze(1), -1)
                leave_reset = torch.logsumexp(transition.initial_of(block[step, row]) + behind[step, row], -1)
            yield gap.Run(row, gaps_first(gaps, step, row, trailing), length, enter, leave, leave_reset)

    # ---------------------------------------------------------------- likelihood and filtering
    def _original_step(self, step, row):
        return int(self.gaps.time[(step, *row)])

    def _step_log_probs(self):
        steps = self._possible().step_log_prob
        full = steps.new_zeros(self.num_steps, *self.batch_shape)
        return full.scatter_add(0, self.gaps.time, steps)  # padded slots add 0

    @query
    def filtered_states(self):
        filtered = self._possible().filtered.exp() * self._live.unsqueeze(-1)

        def inside(run):
            return torch.stack([message.softmax(-1) for message in gap.messages_before(self.transition, run)])

        return self._with_gaps("filtered_states", filtered, inside)

    def _filtered(self) -> Belief:
        """With missing tokens some row may end on one: the belief then covers all states."""
        forward, gaps, layout = self._possible(), self.gaps, self.layout
        if not bool((gaps.trailing > 0).any()) and bool((gaps.num_seen > 0).all()):
            block = self._seen_block.gather(0, (gaps.num_seen - 1).unsqueeze(0)).squeeze(0)
            return Belief(layout.state_ids[block], forward.filtered[-1].detach())
        empty = gaps.lengths == 0
        last = (gaps.num_seen - 1).clamp_min(0).unsqueeze(0)
        block = self._seen_block.gather(0, last).squeeze(0)
        full = Belief(layout.state_ids[block], forward.filtered[-1].detach()).dense(layout.num_states)
        full = full.clone()
        for rows, message in self._trailing_messages():
            full[rows] = layout.scatter(message, -torch.inf)
        return Belief(None, self._keep_start(full, empty).detach())

    def _trailing_messages(self):
        """(rows, (R, N) message at the last step) for rows that end on missing tokens."""
        for run in self._runs(trailing_only=True):
            yield run.row, scan.log_normalise(gap.messages_before(self.transition, run)[-1])[0]

    # ---------------------------------------------------------------- smoothing
    def _places_of(self, run: gap.Run) -> Tensor:
        """(length * R, 2) row and step of every missing token in a batch of runs."""
        time = run.first + torch.arange(run.length, device=run.row.device).unsqueeze(-1)
        return torch.stack([run.row.expand_as(time), time], -1).reshape(-1, 2)

    def _with_gaps(self, query: str, probs: Tensor, inside: Callable[[gap.Run], Tensor]) -> StateMarginals:
        """From (S, B, K) at seen steps, and (length, R, N) at those inside a batch of runs."""
        if len(self.full_batch) != 1:
            raise ValueError(f"{query} with missing tokens needs one batch dimension; flatten the plates")
        index = self.gaps.time.unsqueeze(-1).expand(probs.shape)
        full = probs.new_zeros(self.num_steps, *probs.shape[1:]).scatter_add(0, index, probs)
        runs = list(self._runs())
        wide = torch.cat([self.layout.scatter(inside(run).flatten(0, 1), 0.0) for run in runs])
        places = torch.cat([self._places_of(run) for run in runs])
        return self._by_state(full)._replace(wide_places=places, wide_probs=wide)

    @query
    def marginals(self):
        return self._with_gaps("marginals", self._state_probs(), lambda run: gap.run_marginals(self.transition, run))

    @query
    def missing_words(self):
        if self.states is not None:
            return super().missing_words()
        self._missing_places()
        runs = list(self._runs())
        words = [gap.run_words(self.transition, self.emission, run).flatten(0, 1) for run in runs]
        return MissingWords(torch.cat([self._places_of(run) for run in runs]), torch.cat(words)).in_order()

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
        options: dict[str, Any] = {name: getattr(self, name) for name in ("valid", "seen", "states", "start", "check")}
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
        return PairMarginals(None, self._unflatten(self._dense_twin("pair_marginals").pair_marginals().probs))

    @query
    def entropy(self):
        return self.differentiable_entropy()

    @torch.no_grad()
    def expected_counts(self):
        return self._dense_twin("expected_counts").expected_counts()

    @torch.no_grad()
    def k_best(self, k):
        paths, log_prob = self._dense_twin("k_best").k_best(k)
        return self._unflatten(paths, 1), self._unflatten(log_prob, 1)

    # ---------------------------------------------------------------- paths
    def _paths(self, position):
        """Positions in blocks (..., S, B) -> global ids (..., T, B), -1 at missing and padded steps."""
        ids = self.layout.state_ids[self._seen_block].expand(*position.shape, -1)
        ids = ids.gather(-1, position.unsqueeze(-1)).squeeze(-1).masked_fill(~self._live, -1)
        paths = ids.new_full((*ids.shape[:-2], self.num_steps, ids.shape[-1]), -1)
        # padded slots repeat the last seen time: amax keeps the id that is already there
        return paths.scatter_reduce(-2, self.gaps.time.expand(ids.shape), ids, "amax")

    @torch.no_grad()
    def _fill_paths(self, paths: Tensor, maximum: bool) -> Tensor:
        """States at missing steps, given those at seen ones: (S, T, B)."""
        transition = self.transition
        local = self.layout.local_numbers()
        for step, row, length, trailing in self._gap_groups():
            first, inner = gaps_first(self.gaps, step, row, trailing), step > 0
            at, rows = step[inner] - 1, row[inner]
            word = self._word_after(at, rows)
            for some in paths.split(max(1, self._rows_a_part // len(row))):  # views: filled in place
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

    @query
    def viterbi(self):
        return super().viterbi()  # its steps in gaps are found from the forward pass

    def _best_path(self):
        f = self._lower(maximum=True)
        f = f._replace(emit=self._with_best_continuation(f.emit))
        position, log_prob = path_scan.viterbi_pass(f.init, scan.StepMatrices(f.pair, f.shared), f.emit, f.valid)
        path = self._fill_paths(self._paths(position).unsqueeze(0), maximum=True).squeeze(0)
        for row in (self.gaps.num_seen == 0).nonzero():
            log_prob[row] = self._prior_log_prob(path[:, row], row)
        return path, log_prob

    def _draw_paths(self, num_samples):
        return self._fill_paths(super()._draw_paths(num_samples), maximum=False)

    def _with_best_continuation(self, emit: Tensor) -> Tensor:
        """Adds to each row's last seen step the log-probability of the best states over its trailing missing steps."""
        emit = emit.clone()
        block = self._seen_block
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


def gaps_first(gaps: gap.Gaps, step: Tensor, row: Tensor, trailing: bool) -> Tensor:
    """(R,) first missing step of gaps before seen step ``step`` (or behind the last one)."""
    if trailing:
        return gaps.lengths[row] - gaps.trailing[row]
    return gaps.time[step, row] - gaps.before[step, row]
