"""Hierarchical transitions against their whole matrix, written down by the definition."""

import math

import pytest
import torch

from pplseq.distributions.blocks import BlockLayout
from pplseq.distributions.hierarchical import HierarchicalTables, HierarchicalTransition

F64 = torch.float64
D = 4
close = torch.testing.assert_close
CASES = {
    "even": ([2, 2, 2], 0.0), "uneven": ([2, 3, 1], 0.0), "dropout": ([4, 4, 4], 0.5), "uneven dropout": ([4, 2, 3], 0.5),
    "one block": ([6], 0.0), "one state a block": ([1, 1, 1], 0.0), "one state": ([1], 0.0),
}  # fmt: skip


@pytest.fixture(params=[(kind, case) for kind in ("features", "tables") for case in CASES], ids=" ".join)
def given(request):
    """(transition, (N, N) its log matrix by hand, (Z, N) the same from all states)."""
    kind, case = request.param
    sizes, rate = CASES[case]
    layout = BlockLayout.from_sizes(sizes).dropped(rate)
    num_blocks, num_states = len(sizes), sum(sizes)
    initial = torch.randn(layout.num_kept, dtype=F64).log_softmax(0)
    if kind == "features":
        out, into = torch.randn(2, num_states, D, dtype=F64)
        weight, bias = torch.randn(num_blocks, D, dtype=F64), torch.randn(num_blocks, dtype=F64)
        scores, blocks = out @ into.T, out @ weight.T + bias
        ids = layout.kept_ids
        transition = HierarchicalTransition(layout, initial, out[ids], into[ids], weight, bias, out_of=lambda ids: out[ids])
    else:
        scores, blocks = torch.randn(num_states, num_states, dtype=F64), torch.randn(num_states, num_blocks, dtype=F64)
        transition = HierarchicalTables(layout, initial, scores, blocks)
    block = torch.arange(num_blocks).repeat_interleave(torch.tensor(sizes))
    kept = torch.zeros(num_states, dtype=torch.bool)
    kept[layout.kept_ids] = True
    matrix = torch.full((num_states, num_states), -math.inf, dtype=F64)
    for b in range(num_blocks):
        inner = scores.masked_fill(~kept, -math.inf)[:, block == b].log_softmax(-1)
        matrix[:, block == b] = inner + blocks.log_softmax(-1)[:, b : b + 1]
    outside = matrix[:, layout.kept_ids]
    return transition, outside[layout.kept_ids], outside


def test_the_whole_matrix(given):
    transition, matrix, _ = given
    close(matrix.exp().sum(-1), torch.ones(len(matrix), dtype=F64))
    every = torch.arange(len(matrix))
    close(transition.log_matrix(), matrix)
    close(transition.columns(every), matrix)
    close(torch.cat([transition.columns(tile) for tile in every.split(2)], -1), matrix)
    close(transition.wide_forward(matrix[:1]), torch.logsumexp(matrix[0].unsqueeze(-1) + matrix, 0, keepdim=True))


def test_columns_by_tiles(given, monkeypatch):
    transition, matrix, outside = given
    monkeypatch.setattr("pplseq.distributions.hierarchical.WIDE_CELLS", 2 * len(matrix))
    tiles = transition.column_tiles()
    assert torch.cat(tiles).tolist() == list(range(len(matrix)))
    for some in (*tiles, torch.randperm(len(matrix))[:3]):
        scaled, top = transition.scaled_columns(some)
        close(scaled.log() + top.unsqueeze(-1), matrix[:, some])
        with torch.no_grad():
            close(transition.columns(some), matrix[:, some])


def test_gradients_of_columns():
    layout = BlockLayout.from_sizes([2, 3])
    given = [torch.randn(size, dtype=F64, requires_grad=True) for size in ((5, D), (5, D), (2, D), (2,))]
    out, into, weight, bias = given
    transition = HierarchicalTransition(layout, torch.zeros(5, dtype=F64), *given)
    ours = torch.cat([transition.columns(tile) for tile in torch.arange(5).split(2)], -1)  # normalised once
    inner, blocks = out @ into.T, (out @ weight.T + bias).log_softmax(-1)
    parts = [inner[:, :2].log_softmax(-1) + blocks[:, :1], inner[:, 2:].log_softmax(-1) + blocks[:, 1:]]
    truth, value = torch.cat(parts, -1), torch.randn(5, 5, dtype=F64)
    close(torch.autograd.grad((ours * value).sum(), given), torch.autograd.grad((truth * value).sum(), given))


def test_some_states(given):
    transition, matrix, outside = given
    count = len(matrix)
    rows, following = torch.randint(count, (2, 3, 2))
    close(transition.wide_rows(rows), matrix[rows])
    close(transition.rows_between(rows, following), matrix[rows, following])
    shuffled = torch.randperm(count)  # as many as there are states, in another order
    close(transition.scores(rows, shuffled.expand(3, -1)), matrix[rows][..., shuffled])
    ids = torch.randint(len(outside), (3, 2))
    close(transition.outside_rows(ids, following), outside[ids.unsqueeze(-1), following.unsqueeze(-2)])


def test_pairs_of_blocks(given):
    transition, matrix, _ = given
    layout = transition.layout
    previous, block = torch.randint(layout.num_blocks, (2, 7))
    pairs = transition.pairs(previous, block)
    filled = torch.ones(layout.slots.shape, dtype=torch.bool) if layout.filled is None else layout.filled
    for pair, a, b in zip(pairs, previous, block, strict=True):
        expected = matrix[layout.slots[a][filled[a]]][:, layout.slots[b][filled[b]]]
        close(pair[filled[a]][:, filled[b]], expected)
