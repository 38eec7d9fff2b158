"""The index arithmetic of blocks."""

import math

import pytest
import torch

from pplseq.distributions.blocks import BlockLayout, WordGroups, share_states

F64 = torch.float64
close = torch.testing.assert_close


def test_even_blocks():
    layout = BlockLayout.from_sizes([2, 2, 2])
    assert layout.state_ids.tolist() == [[0, 1], [2, 3], [4, 5]] and layout.filled is None and layout.complete
    assert (layout.num_blocks, layout.width, layout.num_states, layout.num_kept) == (3, 2, 6, 6)
    assert layout.block_of_kept.tolist() == [0, 0, 1, 1, 2, 2]


def test_uneven_blocks():
    layout = BlockLayout.from_sizes([1, 3, 2])
    assert layout.state_ids.tolist() == [[0, 0, 0], [1, 2, 3], [4, 5, 4]]
    assert layout.filled.tolist() == [[True, False, False], [True, True, True], [True, True, False]]
    assert layout.kept_ids.tolist() == list(range(6)) and layout.slots.tolist() == layout.state_ids.tolist()
    assert layout.first_kept.tolist() == [0, 1, 4]
    assert layout.block_of_state().tolist() == [0, 1, 1, 1, 2, 2]
    values = torch.arange(6.0)
    assert layout.of_blocks(values, torch.tensor([[2], [0]])).tolist() == [[[4.0, 5.0, 4.0]], [[0.0, 0.0, 0.0]]]


@pytest.mark.parametrize("sizes", [[], [0, 1], [2, -1], [[1, 2]]])
def test_bad_sizes(sizes):
    with pytest.raises(ValueError, match="positive counts"):
        BlockLayout.from_sizes(sizes)


@pytest.mark.parametrize("sizes", [[4, 4, 4], [5, 1, 2, 8], [1, 1], [7]])
@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5, 0.9])
def test_dropout_keeps_exactly_its_share_of_each_block(sizes, rate):
    full = BlockLayout.from_sizes(sizes)
    for _ in range(5):
        layout = full.dropped(rate)
        kept = torch.bincount(full.block_of_state()[layout.kept_ids], minlength=len(sizes))
        assert kept.tolist() == [max(1, round((1 - rate) * size)) for size in sizes]
        assert layout.num_states == full.num_states and layout.num_kept == int(kept.sum())
        assert layout.kept_ids.tolist() == sorted(set(layout.kept_ids.tolist()))
        # both numberings agree
        local = layout.local_numbers()
        assert torch.equal(local[layout.kept_ids], torch.arange(layout.num_kept))
        assert int((local < 0).sum()) == full.num_states - layout.num_kept
        assert torch.equal(layout.kept_ids[layout.slots], layout.state_ids)
        values = torch.randn(layout.num_kept, 2)
        blocks = torch.tensor([0, len(sizes) - 1])
        assert torch.equal(layout.of_blocks(values, blocks), values[layout.slots[blocks]])
        scattered = layout.scatter(values.T, -math.inf)
        assert torch.equal(scattered[:, layout.kept_ids], values.T)
        assert (torch.isneginf(scattered).sum(-1) == full.num_states - layout.num_kept).all()


def test_dropout_draws_every_state_equally():
    full = BlockLayout.from_sizes([4, 2])
    counts = torch.zeros(6)
    for _ in range(600):
        counts[full.dropped(0.5).kept_ids] += 1
    assert ((counts / 600 - 0.5).abs() < 5 * 0.5 / math.sqrt(600)).all()


def test_bad_rates():
    for rate in (-0.1, 1.0, 2.0):
        with pytest.raises(ValueError, match="state_dropout"):
            BlockLayout.from_sizes([2]).dropped(rate)


@pytest.mark.parametrize("num_blocks, num_words", [(1, 7), (3, 50), (5, 5), (4, 200)])
def test_word_groups(num_blocks, num_words):
    generator = torch.Generator().manual_seed(num_words)
    skew = torch.rand(num_words, generator=generator).pow(3)
    block_of_word = torch.cat([torch.arange(num_blocks), (skew * num_blocks).long()[num_blocks:]])
    groups, width, size = WordGroups(block_of_word, num_blocks), 3, 4
    states = torch.randn(num_blocks, width, size, generator=generator, dtype=F64)
    words = torch.randn(num_words, size, generator=generator, dtype=F64)
    bias = torch.randn(num_words, generator=generator, dtype=F64)
    table = groups.log_softmax(groups.products(states, words, bias))
    assert table.shape == (num_words, width)
    score = torch.einsum("vd,vkd->vk", words, states[block_of_word]) + bias.unsqueeze(-1)
    for block in range(num_blocks):
        of_block = block_of_word == block
        close(table[of_block], score[of_block].log_softmax(0))
    close(groups.log_softmax(groups.rows(score)), table)


def test_a_block_without_words():
    groups = WordGroups(torch.tensor([0, 2, 2]), 3)
    table = groups.log_softmax(groups.rows(torch.zeros(3, 2)))
    close(table.exp(), torch.tensor([[1.0, 1.0], [0.5, 0.5], [0.5, 0.5]]))


def test_sharing_states_among_blocks():
    for total, weight in ((10, [1, 1, 8]), (7, [5.0, 0.0, 0.1]), (3, [1, 2, 3]), (100, [3, 3, 3])):
        sizes = share_states(total, weight)
        assert int(sizes.sum()) == total and int(sizes.min()) >= 1
        exact = torch.tensor(weight, dtype=F64) / sum(weight) * (total - len(weight)) + 1
        assert ((sizes - exact).abs() < 1).all()
    with pytest.raises(ValueError, match="at least the number of blocks"):
        share_states(2, [1, 1, 1])
