"""Chains on a CPU through the compiled loops: see :mod:`pplseq.kernels.chain_loops` and :mod:`pplseq.kernels.path_loops`.

Shapes: init (N, K), log (K, K), (N', K, K) or (T-1, N, K, K) of [from, to], emit (T, N, K), valid (T, N) or None, all logarithms.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels import compiled

CELLS = 1 << 13  # numbers of one piece of time: with its messages it stays in a core's own cache
POINTERS = 1 << 22  # back pointers kept at a time
REAL = (torch.float64, torch.float32)


class Links(NamedTuple):
    """Which log matrix each step of each row takes: number first[n] + (t - 1) * stride of the table leads into step t."""

    table: Tensor  # (M, K, K)
    first: Tensor  # (N,)
    stride: int


class Kept(NamedTuple):
    """What the pass backward needs of the pass forward."""

    links: Links
    lengths: np.ndarray
    carry: np.ndarray
    in_logs: np.ndarray


def applies(log: Tensor, emit: Tensor) -> bool:
    """Whether there are loops for such a chain here."""
    return emit.device.type == "cpu" and emit.dtype in REAL and log.dtype in REAL and emit.numel() > 0 and compiled.available()


def links_of(log: Tensor, shared: bool, batch: torch.Size) -> Links:
    """The links of a chain with rows (*batch): one matrix for all, one for some batch dimensions, or one a step and row."""
    num_states, num_rows = log.shape[-1], batch.numel()
    if not shared:
        table = log.reshape(-1, num_states, num_states).contiguous()
        if not len(table):  # a single step
            table = torch.zeros(1, num_states, num_states, dtype=log.dtype)
        return Links(table, torch.arange(num_rows), num_rows)
    table = log.reshape(-1, num_states, num_states).contiguous().double()
    number = torch.arange(len(table)).reshape(log.shape[:-2]).expand(batch).reshape(-1)
    return Links(table, number.contiguous(), 0)


def array(value: Tensor) -> np.ndarray:
    return value.detach().contiguous().numpy()


def lengths_of(valid: Tensor | None, emit: Tensor) -> np.ndarray:
    if valid is None:
        return np.full(emit.shape[1], emit.shape[0])
    return valid.sum(0).numpy()


def forward_pass(
    init: Tensor, links: Links, emit: Tensor, valid: Tensor | None, messages: bool = False
) -> tuple[Tensor, Tensor | None, Kept]:
    """log p(x_t | x_<t) (T, N), 0 at padded steps; log p(z_t | x_<=t) (T, N, K) if asked for; and what :func:`smooth` needs."""
    from pplseq.kernels import chain_loops

    num_steps, num_rows, num_states = emit.shape
    piece = min(num_steps, max(32, CELLS // num_states))
    num_pieces = -(-num_steps // piece)
    starts, emissions, lengths = array(init.double()), array(emit), lengths_of(valid, emit)
    carry, in_logs = np.empty((num_pieces + 1, num_rows, num_states)), np.zeros((num_pieces, num_rows), np.bool_)
    steps = torch.empty(num_steps, num_rows, dtype=torch.float64)
    found = emit.new_empty(emit.shape if messages else (0, 1, 1))
    table, first, out, kept = array(links.table), array(links.first), found.numpy(), steps.numpy()

    def run(part: int, begin: int, end: int) -> None:
        chain_loops.forward(
            begin, end, starts, table, first, links.stride, emissions, lengths, piece, carry, in_logs, kept, out
        )  # fmt: skip

    compiled.by_rows(run, num_rows, emit.numel() * num_states)
    return steps, found if messages else None, Kept(links, lengths, carry, in_logs)


def smooth(
    kept: Kept, emit: Tensor, scale: Tensor | None = None, single: bool = True, pairs: bool = True
) -> tuple[Tensor | None, Tensor | None]:
    """p(z_t | x) (T, N, K), 0 at padded steps; and p(z_t, z_{t+1} | x) (T-1, N, K, K), or where matrices are shared its sums over
    the steps and rows of each (M, K, K). Both are multiplied by ``scale`` (N,) by row."""
    from pplseq.kernels import chain_loops

    num_steps, num_rows, num_states = emit.shape
    piece = min(num_steps, max(32, CELLS // num_states))
    links, emissions = kept.links, array(emit)
    work = emit.numel() * num_states
    parts, shared = compiled.num_parts(num_rows, work), links.stride == 0
    weight = np.ones(num_rows) if scale is None else array(scale.double())
    posterior = emit.new_empty(emit.shape if single else (0, 1, 1))
    table, first, out = array(links.table), array(links.first), posterior.numpy()
    size = links.table.shape
    sums = torch.zeros(parts, *size, dtype=torch.float64) if pairs and shared else torch.zeros(parts, 0, 1, 1).double()
    if pairs and not shared:  # each step and row has entries of its own
        apart = torch.zeros((1, *size), dtype=links.table.dtype).expand(parts, *size)
    else:
        apart = torch.zeros_like(sums)
    into, beside = sums.numpy(), [part.numpy() for part in apart]

    def run(part: int, begin: int, end: int) -> None:
        chain_loops.smooth(
            begin, end, table, first, links.stride, emissions, kept.lengths, piece, kept.carry, kept.in_logs, weight,
            out, into[part], beside[part],
        )  # fmt: skip

    compiled.by_rows(run, num_rows, 4 * work)
    total = None
    if pairs and shared:
        top = links.table.amax((-1, -2), keepdim=True).clamp_min(torch.finfo(torch.float64).min)
        total = (sums.sum(0) * (links.table - top).exp()).add_(apart.sum(0)).to(emit.dtype)
    elif pairs:
        total = apart[0][: (num_steps - 1) * num_rows].reshape(num_steps - 1, num_rows, num_states, num_states)
    return posterior if single else None, total


def viterbi_pass(init: Tensor, links: Links, emit: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The most probable paths (T, N) and log p(path, x) (N,)."""
    from pplseq.kernels import path_loops

    num_steps, num_rows, num_states = emit.shape
    piece = min(num_steps, max(32, POINTERS // num_states))
    starts, emissions, lengths = array(init.double()), array(emit), lengths_of(valid, emit)
    table, first = array(links.table), array(links.first)
    path = torch.empty(num_steps, num_rows, dtype=torch.int64)
    log_prob = torch.empty(num_rows, dtype=torch.float64)
    paths, scores = path.numpy(), log_prob.numpy()

    def run(part: int, begin: int, end: int) -> None:
        boundary = np.empty((-(-num_steps // piece), num_states))
        path_loops.viterbi(
            begin, end, starts, table, first, links.stride, emissions, lengths, piece, boundary, paths, scores
        )  # fmt: skip

    compiled.by_rows(run, num_rows, emit.numel() * num_states)
    return path, log_prob.to(emit.dtype)


def sample_pass(links: Links, filtered: Tensor, valid: Tensor | None, num_samples: int) -> Tensor:
    """Posterior paths (S, T, N) by backward sampling from log p(z_t | x_<=t) (T, N, K)."""
    from pplseq.kernels import path_loops

    num_steps, num_rows, num_states = filtered.shape
    uniform = torch.rand(num_samples, num_steps, num_rows, dtype=torch.float64).numpy()
    paths = torch.empty(num_samples, num_steps, num_rows, dtype=torch.int64)
    messages, lengths = array(filtered), lengths_of(valid, filtered)
    table, first, out = array(links.table), array(links.first), paths.numpy()

    def run(part: int, begin: int, end: int) -> None:
        path_loops.sample(begin, end, table, first, links.stride, messages, lengths, uniform, out)

    compiled.by_rows(run, num_rows, num_samples * filtered.numel())
    return paths
