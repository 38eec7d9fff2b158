"""Chains of any matrices on a CPU through compiled loops: sums by :mod:`pplseq.kernels.chain.piece_loops`, paths by ``loops``.

Factors are those of :mod:`pplseq.kernels.scan`; ``log`` are its log matrices, one (*b, K, K) or one a step (T-1, *B, K, K).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels import compiled
from pplseq.kernels.chain import call
from pplseq.kernels.compiled import array

WORTH = 4.0  # seconds of the scans for which both passes are compiled
CELLS = 1 << 13  # numbers of one piece of time: with its messages it stays in a core's own cache
TOGETHER = 1 << 12  # numbers of matrices, where every step has its own, that are made together
MOST_STATES = 1 << 16
# states up to which loops are the faster way: of rows alone, of this many and more rows, and where rows have their own matrices
MOST_ALONE, MOST_IN_BATCH, BATCH, MOST_OWN = 192, 48, 8, 64
REAL = (torch.float64, torch.float32)


class Links(NamedTuple):
    """Which log matrix each step of each row takes: number first[n] + (t - 1) * stride of the table leads into step t."""

    table: np.ndarray  # (M, K, K)
    first: np.ndarray  # (N,)
    stride: int


class Kept(NamedTuple):
    """What the pass backward needs of the pass forward."""

    links: Links
    emit: Tensor  # (T, *B, K)
    lengths: np.ndarray  # (N,)
    carry: np.ndarray  # (P + 1, N, K) log beliefs between pieces
    in_logs: np.ndarray  # (P, N)
    shape: torch.Size  # of the log matrices


def applies(log: Tensor, emit: Tensor) -> bool:
    """Whether there are loops for such a chain here."""
    if emit.device.type != "cpu" or emit.dtype not in REAL or log.dtype not in REAL or not emit.numel():
        return False
    return emit.shape[-1] <= MOST_STATES and compiled.available()


def pays(log: Tensor, emit: Tensor) -> bool:
    """Whether loops do a chain's sums, in the place of the scans."""
    num_steps, num_rows, num_states = emit.shape[0], emit.shape[1:-1].numel(), emit.shape[-1]
    work = num_steps, 2 * num_steps * num_rows * num_states**2
    return gains(log, emit) and compiled.pays("kernels.chain.piece_loops.forward", *work, worth=WORTH)


def gains(log: Tensor, emit: Tensor) -> bool:
    """Whether sums run faster in loops than as one product of matrices a step, which gains by many rows and many states."""
    num_states, num_rows = emit.shape[-1], emit.shape[1:-1].numel()
    if log.dim() == 2:
        most = MOST_IN_BATCH if num_rows >= BATCH else MOST_ALONE
    else:
        most = MOST_OWN
    return num_states <= most and applies(log, emit)


def links_of(log: Tensor, shared: bool, batch: torch.Size) -> Links:
    """The links of a chain with rows (*batch): one matrix for all, one for some batch dimensions, or one a step and row."""
    num_states, num_rows = log.shape[-1], batch.numel()
    table = array(log).reshape(-1, num_states, num_states)
    if not shared:
        if not len(table):  # a single step
            table = np.zeros((1, num_states, num_states), table.dtype)
        return Links(table, np.arange(num_rows), num_rows)
    table = table.astype(np.float64, copy=False)
    if log.dim() == 2:
        return Links(table, np.zeros(num_rows, np.int64), 0)
    number = np.broadcast_to(np.arange(len(table)).reshape(log.shape[:-2]), batch)
    return Links(table, np.array(number.reshape(-1)), 0)  # a copy: loops would be compiled again for what is read-only


def lengths_of(valid: Tensor | None, emit: Tensor) -> np.ndarray:
    num_rows = emit.shape[1:-1].numel()
    if valid is None:
        return np.full(num_rows, emit.shape[0])
    return valid.reshape(len(valid), num_rows).sum(0).numpy()


def as_rows(emit: Tensor) -> np.ndarray:
    """(T, N, K), double precision: loops are compiled once, for both."""
    return array(emit).reshape(emit.shape[0], emit.shape[1:-1].numel(), emit.shape[-1]).astype(np.float64, copy=False)


def piece_length(num_steps: int, num_states: int) -> int:
    return min(num_steps, max(32, CELLS // num_states))


def _in_piece(kept: Kept) -> tuple[int, np.ndarray, np.ndarray]:
    """How many matrices there is room for, the steps of a piece, and which matrix leads into each, as the loops take them."""
    num_steps, *_, num_states = kept.emit.shape
    index = np.arange(piece_length(num_steps, num_states)).reshape(1, -1)
    group = max(1, min(index.size, TOGETHER // num_states**2)) if kept.links.stride else 1
    return group, index, index % group


def num_pieces(num_steps: int, num_states: int) -> int:
    """How many pieces so many steps are cut into."""
    return -(-num_steps // piece_length(num_steps, num_states))


def forward_pass(
    init: Tensor, log: Tensor, shared: bool, emit: Tensor, valid: Tensor | None
) -> tuple[Tensor, Kept]:
    """log p(x_t | x_<t) (T, *B) in float64, 0 at padded steps; and what the functions below need."""
    links = links_of(log, shared, emit.shape[1:-1])
    return forward_along(init, links, emit, lengths_of(valid, emit), log.shape)


def forward_along(init: Tensor, links: Links, emit: Tensor, lengths: np.ndarray, shape: torch.Size) -> tuple[Tensor, Kept]:
    """:func:`forward_pass` with links of one's own; ``shape`` is that in which sums of pairs come back."""
    from pplseq.kernels.chain import piece_loops

    num_steps, *batch, num_states = emit.shape
    starts = starts_of(init, batch)
    pieces, num_rows = num_pieces(num_steps, num_states), len(starts)
    carry, in_logs = np.empty((pieces + 1, num_rows, num_states)), np.zeros((pieces, num_rows), np.bool_)
    kept = Kept(links, emit.detach(), lengths, carry, in_logs, shape)
    steps, emissions = np.empty((num_steps, num_rows)), as_rows(emit)
    _filter(piece_loops.forward, starts, kept, emissions, steps, np.empty((0, 1, 1)))
    return torch.from_numpy(steps).reshape(num_steps, *batch), kept


def starts_of(init: Tensor, batch: Sequence[int]) -> np.ndarray:
    """(N, K), double precision."""
    found = array(init).astype(np.float64, copy=False)
    rows = math.prod(batch)
    if found.size != rows * found.shape[-1]:
        found = np.ascontiguousarray(np.broadcast_to(found, (*batch, found.shape[-1])))
    return found.reshape(rows, found.shape[-1])


def _filter(loop, starts: np.ndarray, kept: Kept, emissions: np.ndarray, steps: np.ndarray, out: np.ndarray) -> None:
    links, (group, index, moves) = kept.links, _in_piece(kept)

    def run(part: int, begin: int, end: int) -> None:
        loop(
            begin, end, starts, *links, group, emissions, kept.lengths, index, moves, kept.carry, kept.in_logs, steps, out
        )  # fmt: skip

    compiled.by_rows(run, len(starts), emissions.size * emissions.shape[-1])


def messages(kept: Kept) -> Tensor:
    """log p(z_t | x_<=t) (T, N, K), over padded steps the last one, by another pass forward."""
    from pplseq.kernels.chain import piece_loops

    again, emissions = kept._replace(carry=kept.carry.copy(), in_logs=kept.in_logs.copy()), as_rows(kept.emit)
    found, starts, steps = np.empty(emissions.shape), kept.carry[0].copy(), np.empty(emissions.shape[:2])
    _filter(piece_loops.forward, starts, again, emissions, steps, found)
    return torch.from_numpy(found).to(kept.emit.dtype)


def last_message(kept: Kept) -> Tensor:
    """log p(z_T | x) (N, K) of each row's own last step; of a row without steps the start."""
    return carried(kept).to(kept.emit.dtype)


def carried(kept: Kept) -> Tensor:
    """:func:`last_message` in float64."""
    pieces = -(-kept.lengths // piece_length(kept.emit.shape[0], kept.emit.shape[-1]))
    return torch.from_numpy(kept.carry[pieces, np.arange(len(pieces))])


def smooth(
    kept: Kept, weight: Tensor | None, *, scaled_states: bool = True, pairs: bool = True
) -> tuple[Tensor, Tensor | None]:
    """p(z_t | x) (T, *B, K), 0 at padded steps; and p(z_t, z_{t+1} | x) in the shape of the log matrices, so that shared ones
    get sums over steps and rows. Both are multiplied by ``weight`` (*B,) by row, None for 1, the states unless
    ``scaled_states`` is False.
    """
    from pplseq.kernels.chain import piece_loops

    links, emissions, (group, index, moves) = kept.links, as_rows(kept.emit), _in_piece(kept)
    num_rows, work, shared = len(kept.lengths), 4 * kept.emit.numel() * kept.emit.shape[-1], kept.links.stride == 0
    parts = compiled.num_parts(num_rows, work)
    weights = np.ones(num_rows) if weight is None else array(weight.reshape(-1).double())
    shown = weights if scaled_states else np.ones(num_rows)
    table, out = links.table, np.empty(emissions.shape)
    nothing = np.zeros((0, 1, 1), table.dtype)
    sums = np.zeros((parts, *table.shape)) if pairs and shared else np.zeros((parts, 0, 1, 1))
    # without a matrix for all, a step and row has its own entries
    apart = np.zeros((parts if shared else 1, *table.shape), table.dtype) if pairs else None

    def run(part: int, begin: int, end: int) -> None:
        beside = nothing if apart is None else apart[part if shared else 0]
        piece_loops.smooth(
            begin, end, *links, group, emissions, kept.lengths, index, moves, kept.carry, kept.in_logs, weights, shown, out,
            sums[part], beside,
        )  # fmt: skip

    compiled.by_rows(run, num_rows, work)
    posterior = torch.from_numpy(out).to(kept.emit.dtype)
    if apart is None:
        return posterior.reshape(kept.emit.shape), None
    if shared:
        top = table.max((-1, -2), keepdims=True).clip(np.finfo(np.float64).min) + math.log(table.shape[-1])  # as in the loop
        found = sums.sum(0) * np.exp(table - top) + apart.sum(0)
    else:
        found = apart[0]
    number = torch.Size(kept.shape).numel()  # a single step has no matrix
    found = torch.from_numpy(found).reshape(-1)[:number].reshape(kept.shape)
    return posterior.reshape(kept.emit.shape), found.to(kept.emit.dtype)


def viterbi_pass(
    init: Tensor, log: Tensor, shared: bool, emit: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The most probable paths (T, *B) and log p(path, x) (*B,)."""
    batch = emit.shape[1:-1]
    starts = init.expand(*batch, emit.shape[-1]).reshape(-1, emit.shape[-1])
    paths, scores, _ = viterbi_along(starts, links_of(log, shared, batch), emit, lengths_of(valid, emit))
    return paths.reshape(-1, *batch), scores.to(emit.dtype).reshape(batch)


def viterbi_along(init: Tensor, links: Links, emit: Tensor, lengths: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`viterbi_pass` with links of one's own, as (T, N) and (N,) float64; and how good the best path to each last state
    is, relative to the best of all, (N, K) float64, which means nothing of rows without steps."""
    emissions, starts = as_rows(emit), array(init.double())
    index, final = np.arange(emissions[..., 0].size).reshape(emissions.shape[:2]).T.copy(), np.zeros(starts.shape)
    given = starts, links.table, links.first, links.stride, emissions.reshape(-1, emissions.shape[-1])
    paths, scores = call.viterbi(*given, call.Rows(index, lengths), True, final)
    return torch.from_numpy(paths.T), torch.from_numpy(scores), torch.from_numpy(final)


def sample_pass(log: Tensor, shared: bool, filtered: Tensor, valid: Tensor | None, uniform: Tensor) -> Tensor:
    """Posterior paths (S, T, *B) by backward sampling from log p(z_t | x_<=t) (T, *B, K), by ``uniform`` (S, T, *B)."""
    from pplseq.kernels.chain import loops

    num_steps, *batch, _ = filtered.shape
    links, lengths, messages = links_of(log, shared, torch.Size(batch)), lengths_of(valid, filtered), as_rows(filtered)
    drawn, num_samples = array(uniform).reshape(len(uniform), num_steps, -1), len(uniform)
    table, first, out = links.table, links.first, np.empty(drawn.shape, np.int64)

    def run(part: int, begin: int, end: int) -> None:
        loops.sample(begin, end, table, first, links.stride, messages, lengths, drawn, out)

    compiled.by_rows(run, len(lengths), num_samples * filtered.numel())
    return torch.from_numpy(out).reshape(num_samples, num_steps, *batch)
