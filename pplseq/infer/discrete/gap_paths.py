"""Expectations over the paths of block-sparse chains with missing words: differentiable, of one chain or two, with a fixed lag.

A seen word opens the K states of its block, a missing one all N, so a step has rows of two widths. Steps are gone through one
by one, each width of rows by itself; a table between all states is made in tiles, and again in the backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pplseq import checks
from pplseq.infer.discrete.block import BlockChain
from pplseq.infer.discrete.chain import query
from pplseq.infer.discrete.results import StateMarginals
from pplseq.kernels.log_semiring import log_matmul, logsumexp
from pplseq.kernels.path_expectation import conditional, path_cost

TABLE_CELLS = 1 << 22  # cells of a table that is held at once


class Front(NamedTuple):
    """The rows of one width at a step. rows: (r,). wide: whether all N states are open to them, else K. messages: of each
    chain (r, K | N) log p(z_t | x_<=t). inner: (r, K | N) what was expected of the path so far, by its last state."""

    rows: Tensor
    wide: bool
    messages: tuple[Tensor, ...]
    inner: Tensor


class GapPaths(BlockChain):
    """What a chain with missing words tells about its paths; see :class:`~pplseq.infer.discrete.chain.Chain`."""

    two_widths = True

    # ---------------------------------------------------------------- the chain as steps of two widths
    def _first_predicted(self, rows: Tensor) -> Tensor:
        """(R, N) distribution of the first step of the given rows."""
        if self.start is None:
            return self.transition.initial_log_prob().expand(len(rows), -1)
        start = self.start.map(lambda part: part[rows])
        return self._predict_rows(start, None if self.inputs is None else self.inputs[0, rows])

    def _move(self, t: int, rows: Tensor, wide: tuple[bool, bool], tile: Tensor) -> Tensor:
        """(r | 1, P, Q) log p(z_t | z_{t-1}) of rows, from and into blocks, or all states (of these: a tile)."""
        transition, slots = self.transition, self.layout.slots
        word = None if self.inputs is None else self.inputs[t, rows]
        if wide == (False, False):
            return transition.pairs(self._block[t - 1, rows], self._block[t, rows], word)
        if wide == (False, True):
            return transition.wide_rows(slots[self._block[t - 1, rows]], word)[..., tile]
        if wide == (True, False):
            following = slots[self._block[t, rows]]
            return transition.columns(following.reshape(-1)).view(-1, *following.shape).movedim(1, 0)
        return transition.columns(tile).unsqueeze(0)

    def _tables(self, count: int, wide: tuple[bool, bool]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Which of so many rows, and which columns in turn, are few enough for a table."""
        layout, device = self.layout, self.obs.device
        width = layout.num_kept if wide[0] else layout.width
        every = torch.arange(layout.num_kept if wide[1] else layout.width, device=device)
        tiles = [*every.split(max(1, TABLE_CELLS // width))] if wide == (True, True) else [every]
        for some in torch.arange(count, device=device).split(max(1, TABLE_CELLS // (width * len(tiles[0])))):
            yield some, tiles

    def _rows_at(self, t: int, wide: bool) -> Tensor:
        open_ = ~self.narrow[t] if wide else self.narrow[t]
        return (open_ if self.valid is None else open_ & self.valid[t]).nonzero().squeeze(-1)

    def _begin(self, rows: Tensor, wide: bool) -> Tensor:
        """(r, K | N) log p(z_1), before the first word is seen."""
        return self._first_predicted(rows) if wide else self._initial(self._block[0])[rows]

    def _said(self, emit: Tensor, t: int, rows: Tensor, wide: bool, like: Tensor) -> Tensor:
        """(r, K | N) log p(x_t | z_t); a missing word says nothing."""
        return torch.zeros_like(like) if wide else emit[t, rows]

    @staticmethod
    def _members(front: Front, rows: Tensor) -> Tensor:
        """(k,) places in a front of those of its rows that are among ``rows``."""
        return torch.isin(front.rows, rows).nonzero().squeeze(-1)

    def _fronts(
        self, other: GapPaths | None = None, cross: bool = False, expect: bool = False, shifts: list[Tensor] | None = None
    ) -> Iterator[tuple[list[Front], Tensor]]:
        """The fronts of each step, and (r,) log p(x_t | x_<t) of all their rows in one; differentiable.

        Args:
            other, cross: see :func:`~pplseq.kernels.path_expectation.path_divergence`. expect: whether ``inner`` is wanted.
            shifts: where to put zeros that are added to the scores of each front, to be differentiated by.
        """
        chains: list[GapPaths] = [self] if other is None else [self, other]
        emits = [chain._emit() for chain in chains]
        for chain in chains:
            chain.transition.log_norm()  # once, and not again in the backward
        fronts: list[Front] = []
        for t in range(self.num_steps):
            new, totals = [], []
            for wide in (False, True):
                rows = self._rows_at(t, wide)
                if not len(rows):
                    continue
                if t == 0:
                    scores = [chain._begin(rows, wide) for chain in chains]
                    inner = torch.zeros_like(scores[0])
                else:
                    moved = [(f.rows[at], self._advance(chains, f, at, t, wide, cross, expect)) for f in fronts
                             if len(at := self._members(f, rows))]  # fmt: skip
                    rows = torch.cat([some for some, _ in moved])
                    *scores, inner = (torch.cat(parts) for parts in zip(*(parts for _, parts in moved), strict=True))
                scores = [s + c._said(e, t, rows, wide, s) for s, c, e in zip(scores, chains, emits, strict=True)]
                if shifts is not None:
                    shifts.append(torch.zeros_like(scores[0], requires_grad=True))
                    scores[0] = scores[0] + shifts[-1]
                sums = [logsumexp(score, -1) for score in scores]
                least = torch.finfo(sums[0].dtype).min
                normal = [s - total.clamp_min(least).unsqueeze(-1) for s, total in zip(scores, sums, strict=True)]
                new.append(Front(rows, wide, tuple(normal), inner))
                totals.append(sums[0])
            fronts = new
            yield fronts, torch.cat(totals) if totals else emits[0].new_zeros(0)

    def _advance(
        self, chains: list[GapPaths], front: Front, at: Tensor, t: int, wide: bool, cross: bool, expect: bool
    ) -> list[Tensor]:
        """Predicted scores of each chain, and what is expected, of some rows of a front one step on: each (r, K | N)."""
        kinds, rows = (front.wide, wide), front.rows[at]

        def step(some: Tensor, tile: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            *messages, inner = values
            tables = [chain._move(t, rows[some], kinds, tile) for chain in chains]
            if not expect:
                sums = [_through(message, table) for message, table in zip(messages, tables, strict=True)]
                return *sums, torch.zeros_like(sums[0])
            both = [conditional(message, table, -2) for message, table in zip(messages, tables, strict=True)]
            own, theirs = both[0][0], both[1][0] if len(both) > 1 else None
            inner = path_cost(own, inner.unsqueeze(-1), theirs, cross).sum(-2)
            return *(total for _, total in both), inner

        whole = []
        for some, tiles in self._tables(len(at), kinds):
            values = [value[at[some]] for value in (*front.messages, front.inner)]
            wanted = torch.is_grad_enabled()
            parts = [
                checkpoint(step, some, tile, *values, use_reentrant=False) if wanted else step(some, tile, *values)
                for tile in tiles
            ]
            whole.append([torch.cat(tiled, -1) for tiled in zip(*parts, strict=True)])
        return [torch.cat(rows_of) for rows_of in zip(*whole, strict=True)]

    # ---------------------------------------------------------------- answers
    def _states(self, probs: Tensor, t: int, front: Front) -> Tensor:
        """(r, Z) from the states that are open to a front."""
        if front.wide:
            return self.layout.scatter(probs, 0.0)
        ids = self.layout.state_ids[self._block[t, front.rows]]
        return probs.new_zeros(len(probs), self.layout.num_states).scatter_add(-1, ids, probs)

    def differentiable_marginals(self) -> Tensor:
        """(*B, T, Z) p(z_t | x) over all states, since a missing word opens them all; 0 at padded steps; gradients flow.
        Cost: N^2 a missing step and row, in tiles that are made again in the backward."""
        self._possible()
        wanted, shifts, places = torch.is_grad_enabled(), [], []
        value = torch.zeros((), dtype=self._emit().dtype, device=self.obs.device)
        with torch.enable_grad():
            for t, (fronts, totals) in enumerate(self._fronts(shifts=shifts)):
                places += [(t, front) for front in fronts]
                value = value + totals.sum()
            found = torch.autograd.grad(value, shifts, create_graph=wanted)
        full = found[0].new_zeros(self.num_steps, *self.batch_shape, self.layout.num_states)
        for (t, front), probs in zip(places, found, strict=True):
            full = full.index_put((torch.tensor(t, device=full.device), front.rows), self._states(probs, t, front))
        return self._batch_first(full, event=1)

    def _divergence(self, other: Any, cross: bool):
        self._possible()
        if other is not None:
            self._check_beside(other)
            other._possible()
        lengths = self.valid.sum(0) if self.valid is not None else None
        ends = [torch.zeros(0, dtype=torch.long, device=self.obs.device)]
        values = [self.transition.initial_log_prob().new_zeros(0)]
        for t, (fronts, _) in enumerate(self._fronts(other, cross, expect=True)):
            for front in fronts:
                last = torch.full_like(front.rows, t == self.num_steps - 1, dtype=torch.bool)
                last = last if lengths is None else lengths[front.rows] == t + 1
                own, *theirs = (message[last] for message in front.messages)
                ends.append(front.rows[last])
                values.append(path_cost(own, front.inner[last], theirs[0] if theirs else None, cross).sum(-1))
        value = torch.cat(values)
        return self._unflatten(value.new_zeros(self.batch_shape).index_put((torch.cat(ends),), value))

    def _check_beside(self, other) -> None:
        super()._check_beside(other)
        pairs = [(self.narrow, other.narrow), (self._block.where(self.narrow, 0), other._block.where(other.narrow, 0))]
        pairs += [(getattr(self.layout, name), getattr(other.layout, name)) for name in ("state_ids", "kept_ids")]
        alike = all(torch.equal(a, b) for a, b in pairs) and (self.valid is None) == (other.valid is None)
        if not alike or (self.valid is not None and not torch.equal(self.valid, other.valid)):
            raise self._unlike(other)

    @query
    def fixed_lag(self, lag: int) -> StateMarginals:
        """p(z_t | x_1..x_{t+lag}) in the form of :meth:`marginals`. Cost: lag N^2 a missing step and row."""
        if len(self.full_batch) != 1:
            raise ValueError("fixed_lag with missing tokens needs one batch dimension; flatten the plates")
        lag, emit = checks.count("lag", lag, 0), self._emit()
        steps = [fronts for fronts, _ in self._fronts()]
        betas = [[torch.zeros_like(front.messages[0]) for front in fronts] for fronts in steps]
        for _ in range(min(lag, self.num_steps - 1)):
            ahead = [
                [beta + self._said(emit, t, f.rows, f.wide, beta) for f, beta in zip(fronts, betas[t], strict=True)]
                for t, fronts in enumerate(steps)
            ]
            betas = [[self._retreat(t, front, steps, ahead) for front in fronts] for t, fronts in enumerate(steps)]
        full = emit.new_zeros(self.num_steps, *self.batch_shape, self.layout.width)
        places = [emit.new_zeros(0, 2, dtype=torch.long)]
        wide_probs = [emit.new_zeros(0, self.layout.num_states)]
        for t, fronts in enumerate(steps):
            for front, beta in zip(fronts, betas[t], strict=True):
                probs = (front.messages[0] + beta).softmax(-1)
                if front.wide:
                    places.append(torch.stack([front.rows, torch.full_like(front.rows, t)], -1))
                    wide_probs.append(self._states(probs, t, front))
                else:
                    full[t, front.rows] = probs
        return self._by_state(full)._replace(wide_places=torch.cat(places), wide_probs=torch.cat(wide_probs))

    def _retreat(self, t: int, front: Front, steps: list[list[Front]], ahead: list[list[Tensor]]) -> Tensor:
        """(r, K | N) log p(what is ahead | z_t) up to a constant a row, from scores (r, K | N) one step ahead."""
        beta = torch.zeros_like(front.messages[0])
        for following, score in zip(steps[t + 1], ahead[t + 1], strict=True) if t + 1 < len(steps) else ():
            at = self._members(front, following.rows)
            if not len(at):
                continue
            place = {row: k for k, row in enumerate(following.rows.tolist())}
            there = torch.tensor([place[row] for row in front.rows[at].tolist()], dtype=torch.long, device=at.device)
            kinds = (front.wide, following.wide)
            for some, tiles in self._tables(len(at), kinds):
                rows, message = front.rows[at[some]], score[there[some]]
                parts = [_through(message[:, tile], self._move(t + 1, rows, kinds, tile).mT) for tile in tiles]
                total = logsumexp(torch.stack(parts), 0)
                beta[at[some]] = total - total.amax(-1, keepdim=True).clamp_min(torch.finfo(total.dtype).min)
        return beta


def _through(message: Tensor, table: Tensor) -> Tensor:
    """(r, Q) log sum_p exp(message_p + table_pq) of messages (r, P) and tables (r | 1, P, Q)."""
    if len(table) == 1:
        return log_matmul(message, table[0])
    return log_matmul(message.unsqueeze(-2), table).squeeze(-2)
