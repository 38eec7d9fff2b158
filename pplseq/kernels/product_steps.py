"""Chains over tuples of coordinates that move in turn: a step is a few products of batches of small matrices.

A state is a tuple (i_1, ..., i_F) of coordinates of n_1, ..., n_F values; in its number the last one runs fastest. A step moves
i_F first, then i_{F-1}, ..., then i_1, each given all others as they then stand. What is between these moves follows from the
states before and behind the step, so that a path through it all is a path of states.

Messages are laid out with rows last, (Z, N), of which a coordinate is a batch (blocks, n, N) without a copy where F = 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq.kernels import twice
from pplseq.kernels.log_semiring import log_matmul, logsumexp
from pplseq.kernels.path_scan import place_of, rescaled
from pplseq.kernels.scan import Forward, state_posterior
from pplseq.kernels.triton import moves as kernels
from pplseq.threads import once

CELLS = 1 << 24  # numbers in one temporary


class Room:
    """Memory that a loop over time uses again: new memory takes as long as the products that are written to it."""

    def __init__(self):
        self._kept: dict[object, Tensor] = {}

    def __call__(self, name: object, like: Tensor) -> Tensor:
        """(Z, N) of the kind of another message."""
        if name not in self._kept:
            self._kept[name] = like.new_empty(like.shape)
        return self._kept[name]


class Behind(NamedTuple):
    """What is behind a step: right (Z, N) in logs, times: what :meth:`ProductSteps.times` made of it over exp(top) (N,), where
    no kernels do."""

    right: Tensor
    times: list[Tensor]
    top: Tensor


class Pairs(NamedTuple):
    """Sums of pairs before and behind each move, like the tables: shares, which are still to be multiplied by these (not those
    of kernels), and far, which already are."""

    shares: tuple[Tensor, ...]
    far: dict[int, Tensor | float]


class ProductSteps:
    """One step of such a chain as a map between messages in log space. Cost: Z (n_1 + ... + n_F) a row.

    Args:
        sizes: n_1, ..., n_F.
        tables: F log-probabilities in the order of moves, that of i_F first: (Z / n, n, n), [others, from, to], the others in
            their order.
    """

    def __init__(self, sizes: Sequence[int], tables: Sequence[Tensor]):
        self.sizes, self.tables = tuple(sizes), tuple(tables)
        self.reach = math.exp(-500.0 if tables[0].dtype == torch.float64 else -60.0)

    @once
    def probs(self) -> tuple[Tensor, ...]:
        """The tables as probabilities."""
        return tuple(table.detach().exp() for table in self.tables)

    def by_kernels(self, message: Tensor) -> bool:
        """Whether a GPU's kernels move messages like this one: in log space, and the host is not asked how it went."""
        return kernels.applies(*self.tables, message)

    # ---------------------------------------------------------------- layout
    def shape(self, move: int) -> tuple[int, int, int]:
        """Of the coordinate of a move: states before it, its own, and behind it."""
        place = len(self.sizes) - 1 - move
        return math.prod(self.sizes[:place]), self.sizes[place], math.prod(self.sizes[place + 1 :])

    def blocks(self, move: int, message: Tensor) -> Tensor:
        """(blocks, n, N) from (Z, N)."""
        head, size, tail = self.shape(move)
        return message.reshape(head, size, tail, -1).transpose(1, 2).reshape(head * tail, size, -1)

    def message_of(self, move: int, blocks: Tensor) -> Tensor:
        """(Z, N) from (blocks, n, N)."""
        head, size, tail = self.shape(move)
        return blocks.reshape(head, tail, size, -1).transpose(1, 2).reshape(head * size * tail, -1)

    def in_block(self, move: int, state: Tensor) -> tuple[Tensor, Tensor]:
        """The block and the coordinate of states."""
        _, size, tail = self.shape(move)
        before, behind = state // (size * tail), state % tail
        return before * tail + behind, state // tail % size

    # ---------------------------------------------------------------- steps
    def forward(self, message: Tensor) -> Tensor:
        """(Z, N) log sum_z exp(message_z) A_zz'."""
        return self._moved(message, range(len(self.sizes)), False)

    def backward(self, message: Tensor) -> Tensor:
        """(Z, N) log sum_z' A_zz' exp(message_z')."""
        return self._moved(message, range(len(self.sizes))[::-1], True)

    def _moved(self, message: Tensor, moves: Sequence[int], back: bool) -> Tensor:
        if twice.derivatives_wanted(message, *self.tables):
            for move in moves:
                message = self.in_graph(move, message, back)
            return message
        if self.by_kernels(message):
            return self.in_logs(message, back)
        room = Room()
        scaled, top = self.scaled(message, room)
        found = self.times(scaled, room, back)[-1]
        return found.log_().add_(top) if self.keeps(found) else self.in_logs(message, back)

    def scaled(self, message: Tensor, room: Room) -> tuple[Tensor, Tensor]:
        """Probabilities over the largest of each row, and the logarithm of that, which is finite."""
        top = message.amax(0).clamp_min(torch.finfo(message.dtype).min)
        return torch.sub(message, top, out=room("scaled", message)).exp_(), top

    def times(self, probs: Tensor, room: Room, back: bool = False) -> list[Tensor]:
        """Probabilities (Z, N) before the step, between its moves, and behind it; back: from behind it."""
        every = [probs]
        for move in range(len(self.sizes))[:: -1 if back else 1]:
            every.append(self._times(move, every[-1], room, back))
        return every

    def _times(self, move: int, probs: Tensor, room: Room, back: bool = False) -> Tensor:
        table, (head, size, tail), blocks = self.probs[move], self.shape(move), self.blocks(move, probs)
        found = room(("blocks", move), probs).view(blocks.shape)
        torch.bmm(table if back else table.mT, blocks, out=found)
        if tail == 1:
            return found.view(probs.shape)
        message = room(("message", move), probs)
        message.view(head, size, tail, -1).copy_(found.view(head, tail, size, -1).transpose(1, 2))
        return message

    def keeps(self, probs: Tensor) -> bool:
        """Whether all that came out of :meth:`times`, of what had 1 for its largest, has kept its digits."""
        return not probs.numel() or bool(probs.amin() >= self.reach)  # not so if any is NaN

    def in_logs(self, message: Tensor, back: bool = False) -> Tensor:
        """A step in log space, a move at a time."""
        for move in range(len(self.sizes))[:: -1 if back else 1]:
            message = self.moved(move, message, back)
        return message

    def moved(self, move: int, message: Tensor, back: bool = False) -> Tensor:
        """A move: every result keeps its digits, those too small for a product of probabilities in log space."""
        if self.by_kernels(message):
            return kernels.moved(self.shape(move), self.tables[move].detach(), message, self.reach, back)
        score, table, log = self.blocks(move, message), self.probs[move], self.tables[move].detach()
        if not back:
            table, log = table.mT, log.mT  # [to, from]
        top = score.amax(1, keepdim=True).clamp_min(torch.finfo(score.dtype).min)
        product = torch.bmm(table, (score - top).exp_())
        small = product < self.reach
        result = product.log_().add_(top)
        if bool(small.any()):
            small &= torch.bmm((log > -math.inf).to(score), (score > -math.inf).to(score)) > 0  # others are zero, exactly
            for where in small.nonzero().split(max(1, CELLS // log.shape[-1])):
                block, to, row = where.unbind(-1)
                result[block, to, row] = torch.logsumexp(log[block, to] + score[block, :, row], -1)
        return self.message_of(move, result)

    def in_graph(self, move: int, message: Tensor, back: bool = False) -> Tensor:
        """:meth:`moved` with its graph, the readable twin."""
        table = self.tables[move]
        moved = log_matmul(self.blocks(move, message).mT, table.mT if back else table)
        return self.message_of(move, moved.mT)

    def best_backward(self, message: Tensor) -> Tensor:
        """(Z, N) max_z' log A_zz' + message_z'."""
        for move in range(len(self.sizes))[::-1]:
            score, table = self.blocks(move, message), self.tables[move].detach()
            parts = score.split(max(1, CELLS // table.numel()), -1)
            best = [(table.unsqueeze(-1) + part.unsqueeze(1)).amax(2) for part in parts]
            message = self.message_of(move, torch.cat(best, -1))
        return message

    def rows(self, state: Tensor) -> Tensor:
        """(*B, Z) log A out of states (*B,)."""
        flat = state.reshape(-1)
        found = self.tables[0].new_zeros(len(flat), 1)  # of the coordinates that have moved
        for move, table in enumerate(self.tables):
            head, size, tail = self.shape(move)
            before, own = flat // (size * tail), flat // tail % size
            part = table.view(head, tail, size, size)[before, :, own]  # (R, tail, n)
            found = (found.unsqueeze(-1) + part).mT.flatten(1)
        return found.reshape(*state.shape, -1)

    def dense(self) -> Tensor:
        """(Z, Z) the factors multiplied out, with their graph."""
        return self.rows(torch.arange(math.prod(self.sizes), device=self.tables[0].device))

    # ---------------------------------------------------------------- pairs
    def _between(self, left: Tensor, right: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Of each move the messages (Z, N) before it and behind it, from those before and behind a step."""
        last = len(self.sizes) - 1
        behind = [right]
        for move in range(last, 0, -1):
            behind.append(self.moved(move, behind[-1], back=True))
        for move in range(last + 1):
            yield move, left, behind[last - move]
            if move < last:
                left = self.moved(move, left)

    def add_pairs(
        self, pairs: Pairs, left: Tensor, behind: Behind, log_weight: Tensor, scale: Tensor, room: Room
    ) -> None:
        """Adds the pairs before and behind each move: scale_r exp(log_weight_r) exp(left + right) times the table, summed over
        rows r, of each of which log_weight makes them sum to one."""
        if self.by_kernels(left):
            for move, own, next_ in self._between(left, behind.right):
                table, counts = self.tables[move].detach(), pairs.shares[move]
                kernels.add_pairs(self.shape(move), table, own, next_, log_weight, scale, counts)
            return
        before, top = self.scaled(left, room)
        common = top + behind.top + log_weight
        # where both sides peak at states between which there is (almost) no way, what underflows in a product may be all
        far = common > -math.log(self.reach) / 2
        before.mul_(common.masked_fill(far, -math.inf).exp_().mul_(scale))
        for move, shares in enumerate(pairs.shares):
            shares.baddbmm_(self.blocks(move, before), self.blocks(move, behind.times[-2 - move]).mT)
            if move + 1 < len(self.sizes):
                before = self._times(move, before, room)
        for row in far.nonzero()[:, 0].split(max(1, CELLS // max(table.numel() for table in self.tables))):
            for move, own, next_ in self._between(left[:, row], behind.right[:, row]):
                own, next_ = self.blocks(move, own + log_weight[row]), self.blocks(move, next_)
                pair = (self.tables[move].detach().unsqueeze(-1) + own.unsqueeze(2) + next_.unsqueeze(1)).exp_()
                pairs.far[move] = pairs.far.get(move, 0.0) + pair.mul_(scale[row]).sum(-1)

    def entropy(self, left: Tensor, right: Tensor) -> Tensor:
        """(N,) entropy of a step given the state before it, under the distribution of both that is proportional to
        exp(left) A exp(right)."""
        found = left.new_zeros(left.shape[1])
        for move, before, behind in self._between(left, right):
            before, behind, table = self.blocks(move, before), self.blocks(move, behind), self.tables[move].detach()
            ahead = self.blocks(move, self.moved(move, self.message_of(move, behind), back=True))
            weight = before + ahead
            total = weight.flatten(0, 1).logsumexp(0)
            weight = (weight - total.clamp_min(torch.finfo(total.dtype).min)).exp_()  # of an impossible row 0
            for rows in torch.arange(len(found), device=left.device).split(max(1, CELLS // table.numel())):
                to = table.unsqueeze(-1) + behind[..., rows].unsqueeze(1)  # (blocks, n, n, R)
                norm = ahead[..., rows].unsqueeze(2).clamp_min(torch.finfo(left.dtype).min)
                found[rows] += (torch.special.entr((to - norm).exp_()).sum(2) * weight[..., rows]).sum((0, 1))
        return found


class EmissionSteps:
    """Log-likelihoods (T, N, Z) of which each step is made when it is asked for, by a function of a slice of steps."""

    def __init__(self, make: Callable[[slice], Tensor], num_steps: int):
        self.make, self.num_steps = make, num_steps

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, step: int) -> Tensor:
        return self.make(slice(step, step + 1))[0]


class ProductForward(Forward):
    """Of which the messages are computed when they are asked for, as they take more time than the likelihood."""

    def __init__(self, last: Tensor, totals: Tensor, args: tuple[Any, ...]):
        self.log_prob, self.step_log_prob = totals.sum(0, dtype=torch.float64).to(last.dtype), totals
        self.last_, self.args, self.in_logs, self.kept = last, args, True, None

    @once
    def messages(self) -> Tensor:
        with torch.no_grad():
            return forward_pass(*self.args).messages

    @property
    def last(self) -> Tensor:
        return self.last_.T


def forward_pass(
    init: Tensor, steps: ProductSteps, emit: Tensor | EmissionSteps, valid: Tensor | None, messages: bool = True
) -> Forward:
    """Filtering; init (N, Z), emit (T, N, Z) or what makes each step of it, valid (T, N) as in :mod:`pplseq.kernels.scan`;
    messages: whether all are kept."""
    room, like, by_kernels = Room(), init.T, steps.by_kernels(init)
    kept = init.new_empty(len(emit) if messages else 2, *like.shape)
    scaled = top = like
    totals = []
    for t in range(len(emit)):
        like = emit[t].T
        now, before, added = kept[t % len(kept)], kept[(t - 1) % len(kept)], 0.0
        if t == 0:
            moved = init.T
        elif not by_kernels and steps.keeps(moved := steps.times(scaled, room)[-1]):
            moved, added = moved.log_(), top
        else:
            moved = steps.in_logs(before)
        torch.add(moved, like, out=now)
        if valid is not None and t:  # a row that has ended stays where it was
            torch.where(valid[t], now, before - added, out=now)
        scaled, top = steps.scaled(now, room)
        total = scaled.sum(0).log_().add_(top)
        finite = total.clamp_min(torch.finfo(total.dtype).min)
        now.sub_(finite)
        top, total = top - finite, total + added
        totals.append(total if valid is None else total.where(valid[t], 0.0))
    found = torch.stack(totals)
    if not messages:
        return ProductForward(kept[(len(emit) - 1) % 2], found, (init, steps, emit, valid))
    return Forward(found.sum(0, dtype=torch.float64).to(kept.dtype), kept.mT, found)


def filtered_twin(
    init: Tensor, steps: ProductSteps, emit: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """log p(z_t | x_<=t) (T, N, Z) and log p(x_t | x_<t) (T, N), in plain torch operations, differentiable to any order."""
    if valid is not None:  # what stands behind a row's end must not reach a gradient, were it NaN
        emit = torch.where(valid.unsqueeze(-1), emit, 0.0)
    messages, totals = [], []
    for t, like in enumerate(emit):
        score = init
        if t:
            message = messages[-1].mT
            for move in range(len(steps.sizes)):
                message = steps.in_graph(move, message)
            score = message.mT
        score = score + like
        total = logsumexp(score, -1)
        score = score - total.clamp_min(torch.finfo(total.dtype).min).unsqueeze(-1)
        if valid is not None:
            total = torch.where(valid[t], total, 0.0)
            score = score if t == 0 else torch.where(valid[t].unsqueeze(-1), score, messages[-1])
        messages.append(score)
        totals.append(total)
    return torch.stack(messages), torch.stack(totals)


def _backwards(steps: ProductSteps, emit: Tensor, valid: Tensor | None) -> Iterator[tuple[int, Tensor, Behind | None]]:
    """From the last step on: t, log p(x_>t | z_t) (Z, N) up to a constant, which of a row that goes on is the top of what is
    behind the step, None at the last one."""
    room, beta = Room(), emit.new_zeros(emit.shape[2], emit.shape[1])
    yield len(emit) - 1, beta, None
    for t in range(len(emit) - 1, 0, -1):
        right = torch.add(beta, emit[t].T, out=room("right", beta))
        scaled, top = steps.scaled(right, room)
        times = [] if steps.by_kernels(right) else steps.times(scaled, room, back=True)
        new = times[-1].log_() if times and steps.keeps(times[-1]) else steps.in_logs(right, back=True).sub_(top)
        if valid is None:
            beta.copy_(new)
        else:
            torch.where(valid[t], new, beta, out=beta)
        yield t - 1, beta, Behind(right, times, top)


def smooth(
    steps: ProductSteps, emit: Tensor, forward: Forward, valid: Tensor | None, weight: Tensor | None = None, pairs: bool = True
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """p(z_t | x) (T, N, Z), 0 at padded steps, and expected moves in the shapes of the tables, weight (N,) times each row's."""
    filtered, single = forward.filtered.mT, torch.empty_like(forward.filtered.mT)
    found = Pairs(tuple(torch.zeros_like(table) for table in steps.tables) if pairs else (), {})
    scale, room = torch.ones_like(emit[0, :, 0]) if weight is None else weight, Room()
    for t, beta, behind in _backwards(steps, emit, valid):
        now, top = steps.scaled(torch.add(filtered[t], beta, out=room("joint", beta)), room)
        total = now.sum(0)
        counted = total != 0 if valid is None else (total != 0) & valid[t]  # an impossible row has no posterior and no gradient
        torch.mul(now, total.reciprocal().where(counted, 0.0), out=single[t])
        if pairs and behind is not None:
            log_weight = -(total.log() + top + behind.top)
            unused = log_weight.isinf() if valid is None else log_weight.isinf() | ~valid[t + 1]
            steps.add_pairs(found, filtered[t], behind, log_weight.masked_fill(unused, -math.inf), scale, room)
    moves = found.shares
    if not steps.by_kernels(filtered):  # which have multiplied
        moves = (shares.mul_(probs) for shares, probs in zip(found.shares, steps.probs, strict=False))
    return single.mT, tuple(own + found.far.get(move, 0.0) for move, own in enumerate(moves))


def entropy(steps: ProductSteps, emit: Tensor, forward: Forward, valid: Tensor | None) -> Tensor:
    """(N,) entropy of p(z_1..z_T | x), nats. Cost: Z n numbers a row and step beside the passes."""
    filtered, found = forward.filtered.mT, emit.new_zeros(emit.shape[1])
    for t, beta, behind in _backwards(steps, emit, valid):
        if behind is not None:
            part = steps.entropy(filtered[t], behind.right)
            found += part if valid is None else part.where(valid[t + 1], 0.0)
        if t == 0:
            part = torch.special.entr(state_posterior(filtered[0].T, beta.T, None)).sum(-1)  # of an impossible row 0
            found += part if valid is None else part.where(valid[0], 0.0)
    return found


def sample_pass(steps: ProductSteps, filtered: Tensor, valid: Tensor | None, num_samples: int) -> Tensor:
    """(S, T, N) exact posterior paths by backward sampling from filtered messages (T, N, Z), coordinate by coordinate."""
    moves = len(steps.sizes)
    uniform = torch.rand(num_samples, moves, *filtered.shape[:-1], dtype=torch.float64, device=filtered.device)
    state = place_of(filtered[-1].expand(num_samples, *filtered.shape[1:]), uniform[:, 0, -1])
    row, path = torch.arange(filtered.shape[1], device=filtered.device), [state]
    for t in range(len(filtered) - 1, 0, -1):
        before, now = [filtered[t - 1].T], state
        for move in range(moves - 1):
            before.append(steps.moved(move, before[-1]))
        for move in range(moves - 1, -1, -1):
            block, to = steps.in_block(move, now)
            table, score = steps.tables[move].detach(), steps.blocks(move, before[move])
            own = place_of(score[block, :, row] + table[block, :, to], uniform[:, move, t - 1])
            tail = steps.shape(move)[2]
            now = now + (own - to) * tail
        state = now if valid is None else torch.where(valid[t], now, state)
        path.append(state)
    return torch.stack(path[::-1], 1)


def k_best_pass(
    init: Tensor, steps: ProductSteps, emit: Tensor, valid: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """The k most probable paths: states (k, T, N) and log p(path, x) (k, N), -inf where there are fewer.

    List Viterbi, a coordinate at a time. Cost: k Z (n_1 + ... + n_F) a row, and as many pointers as Z F a row and step.
    """
    num_steps, num_rows, num_states = emit.shape
    message = emit.new_full((k, num_states, num_rows), -math.inf)
    first = init + emit[0]
    if valid is not None:  # a row without steps has one path
        nothing = torch.zeros_like(first).index_fill_(-1, torch.arange(1, num_states, device=emit.device), -math.inf)
        first = first.where(valid[0].unsqueeze(-1), nothing)
    message[0], total = first.T, emit.new_zeros(num_rows, dtype=torch.float64)
    pointers: list[list[Tensor]] = []
    for t in range(1, num_steps):
        new, taken = message, []
        for move in range(len(steps.sizes)):
            new, pointer = _best_moves(steps, move, new)
            taken.append(pointer)
        new = new + emit[t].T
        if valid is not None:
            new = torch.where(valid[t], new, message)
        message, total = rescaled(new.flatten(0, 1).T, total, (-1,))
        message = message.T.view(k, num_states, num_rows)
        pointers.append(taken)
    best, place = message.flatten(0, 1).topk(k, dim=0)
    rank, state = place // num_states, place % num_states
    row, path = torch.arange(num_rows, device=emit.device), [state]
    for t in range(num_steps - 1, 0, -1):
        before, was = state, rank
        for move in range(len(steps.sizes) - 1, -1, -1):
            pointer = pointers[t - 1][move][was, before, row].long()
            _, own = steps.in_block(move, before)
            was, from_ = pointer // steps.shape(move)[1], pointer % steps.shape(move)[1]
            before = before + (from_ - own) * steps.shape(move)[2]
        state = before if valid is None else torch.where(valid[t], before, state)
        rank = was if valid is None else torch.where(valid[t], was, rank)
        path.append(state)
    return torch.stack(path[::-1], 1), (total + best).to(emit.dtype)


def _best_moves(steps: ProductSteps, move: int, message: Tensor) -> tuple[Tensor, Tensor]:
    """The k best ways (k, Z, N) into each place behind a move, and where they come from: their rank there times n plus their
    coordinate."""
    k, table = len(message), steps.tables[move].detach()
    score = torch.stack([steps.blocks(move, part) for part in message])  # (k, blocks, n, N)
    size, rows = table.shape[-1], max(1, CELLS // (k * table[0].numel()))
    kind = torch.int16 if k * size < 1 << 15 else torch.int32
    parts = []
    for block in torch.arange(len(table), device=table.device).split(max(1, rows // message.shape[-1])):
        found = []
        for part in score[:, block].split(rows, -1):  # all ways into each: (blocks, k, from, to, N)
            ways = part.transpose(0, 1).unsqueeze(3) + table[block, None, :, :, None]
            ways = ways.flatten(1, 2)
            value, pointer = (v.unsqueeze(1) for v in ways.max(1)) if k == 1 else ways.topk(k, dim=1)
            found.append((value.transpose(0, 1), pointer.transpose(0, 1).to(kind)))
        parts.append([torch.cat(side, -1) for side in zip(*found, strict=True)])
    best, pointer = (torch.cat(side, 1) for side in zip(*parts, strict=True))
    return tuple(torch.stack([steps.message_of(move, each) for each in side]) for side in (best, pointer))  # type: ignore


class ProductLogProb(torch.autograd.Function):
    """log p(x) of each row; the backward is forward-backward (Fisher's identity), no graph over time."""

    @staticmethod
    def forward(ctx, sizes, init, emit, valid, *tables):
        steps = ProductSteps(sizes, tables)
        found = forward_pass(init, steps, emit, valid)
        ctx.save_for_backward(init, emit, valid, found.step_log_prob, found.messages, *tables)
        ctx.mark_non_differentiable(found.step_log_prob, found.messages)
        ctx.steps = steps
        return found.log_prob, found.messages, found.step_log_prob

    @staticmethod
    def backward(ctx, *grads):
        weight, (init, emit, valid, totals, messages, *tables) = grads[0], ctx.saved_tensors
        if torch.is_grad_enabled():
            args = (ctx.steps.sizes, init, emit, valid, *tables)
            return twice.gradients(lambda *a: forward_twin(*a)[0], args, weight)
        single, pairs = smooth(ctx.steps, emit, Forward(weight, messages, totals), valid, weight, any(ctx.needs_input_grad[4:]))
        single = single * weight.unsqueeze(-1)
        return None, single[0].clone(), single, None, *(pairs or [None] * len(tables))


def forward_twin(sizes, init, emit, valid, *tables) -> tuple[Tensor, Tensor, Tensor]:
    """The slow twin of :class:`ProductLogProb`; messages without a graph."""
    messages, totals = filtered_twin(init, ProductSteps(sizes, tables), emit, valid)
    return totals.sum(0, dtype=torch.float64).to(emit.dtype), messages.detach(), totals.detach()


def product_log_prob(init: Tensor, steps: ProductSteps, emit: Tensor, valid: Tensor | None) -> Forward:
    """log p(x) of each row (N,), differentiable to any order, which alone carries a gradient."""
    init = init.expand(emit.shape[1:])
    if not twice.derivatives_wanted(init, emit, *steps.tables):
        twice.refuse_jit()
        return forward_pass(init, steps, emit, valid)
    return Forward(*twice.apply(ProductLogProb, forward_twin, steps.sizes, init, emit, valid, *steps.tables))
