"""Runs of missing tokens, against matrix powers and against every way to fill them in."""

import itertools

import pytest
import torch
from support.grids import grid
from support.tiny_families import FAMILIES

from pplseq.distributions.state import MISSING
from pplseq.infer.discrete import gap_sums as gaps
from pplseq.infer.discrete.gap_sums import Gaps
from pplseq.models.vlhmm.program import VLHMM

F64 = torch.float64
close = torch.testing.assert_close


def test_where_the_seen_words_are():
    seen = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    lengths = torch.tensor([5, 4, 2, 3, 5])
    found = Gaps.of(seen.T, lengths)
    assert found.num_seen.tolist() == [3, 1, 2, 0, 5]
    assert found.trailing.tolist() == [1, 1, 0, 3, 0]
    assert found.lengths.tolist() == lengths.tolist()
    expected = [([0, 2, 3], [0, 1, 0]), ([2], [2]), ([0, 1], [0, 0]), ([], []), (range(5), [0] * 5)]
    for row, (times, before) in enumerate(expected):
        count = len(before)
        assert found.time[:count, row].tolist() == list(times)
        assert found.before[:count, row].tolist() == before


def test_no_seen_word_at_all():
    found = Gaps.of(torch.zeros(3, 2, dtype=torch.bool), torch.tensor([3, 0]))
    assert found.time.shape == (1, 2) and found.num_seen.tolist() == [0, 0] and found.trailing.tolist() == [3, 0]


@pytest.mark.parametrize("family", ["UnevenBlocks", "Table", "Reset"])
@pytest.mark.parametrize("maximum", [False, True])
def test_factors_over_gaps_are_matrix_powers(family, maximum):
    family = FAMILIES[family](seed=1)
    transition, _ = family.specs()
    layout = family.layout
    lengths = torch.tensor([1, 3, 1, 2])
    previous, following = torch.tensor([0, 1, 2, 0]), torch.tensor([2, 0, 0, 1])
    words = torch.tensor([family.reset_id if family.reset_id is not None else 0, 2, 4, 0])
    got = gaps.gap_pairs(transition, previous, following, words, lengths, maximum)
    unseen = family.matrix(torch.tensor(MISSING))

    def product(a, b):
        both = a.unsqueeze(-1) + b
        return both.amax(-2) if maximum else both.logsumexp(-2)

    for row, length in enumerate(lengths.tolist()):
        matrix = family.matrix(words[row])  # out of the last seen word
        for _ in range(length):
            matrix = product(matrix, unseen)
        from_ids, to_ids = layout.state_ids[previous[row]], layout.state_ids[following[row]]
        close(got[row], matrix[from_ids][:, to_ids])


def test_factors_behind_leading_gaps():
    family = FAMILIES["UnevenBlocks"](seed=1)
    transition, _ = family.specs()
    initial = torch.randn(3, 6, dtype=F64).log_softmax(-1)
    lengths, block = torch.tensor([2, 1, 2]), torch.tensor([0, 1, 2])
    got = gaps.gap_initial(transition, initial, block, lengths)
    matrix = family.matrix(None).exp()
    for row, length in enumerate(lengths.tolist()):
        expected = (initial[row].exp() @ torch.linalg.matrix_power(matrix, length)).log()
        close(got[row], expected[family.layout.state_ids[block[row]]])


@grid({"reset_id": [None, 2], "parameterization": ["independent", "factored", "scalar"]})
def test_the_likelihood_sums_over_every_way_to_fill_gaps(parameterization, reset_id):
    blocks = torch.tensor([0, 0, 1, 1])  # the reset word shares its block
    model = VLHMM(
        5, num_words=4, blocks=blocks, hidden_size=4, parameterization=parameterization, reset_id=reset_id,
        states_per_block=[2, 3],
        init_scale=1.0,
    ).double()  # fmt: skip
    rows = [[0, -1, 2, -1, -1], [-1, -1, 1, 2, 3], [2, -1, 2, -1, 0], [-1, -1, -1, 0, 0], [2, 3, -1, 1, 0]]
    x, lengths = torch.tensor(rows), torch.tensor([5, 5, 5, 3, 4])
    model(x, lengths)
    chain = model.chain
    got = chain.log_prob()
    fillings, owner = [], []
    for b, row in enumerate(rows):
        gap_steps = [t for t in range(int(lengths[b])) if row[t] < 0]
        for filling in itertools.product(range(4), repeat=len(gap_steps)):
            full = list(row)
            for t, word in zip(gap_steps, filling, strict=True):
                full[t] = word
            fillings.append([max(word, 0) for word in full])
            owner.append(b)
    owner = torch.tensor(owner)
    model(torch.tensor(fillings), lengths[owner])
    each = model.chain.log_prob()
    expected = torch.stack([each[owner == b].logsumexp(0) for b in range(len(rows))])
    close(got, expected)
    weight, parameters = torch.linspace(1, 2, len(rows), dtype=F64), list(model.parameters())
    close(
        torch.autograd.grad((got * weight).sum(), parameters),
        torch.autograd.grad((expected * weight).sum(), parameters),
    )
    # and the belief behind them
    last = model.posterior(torch.tensor(fillings), lengths[owner]).filtered().dense(5)
    posterior = (each.detach() - expected.detach()[owner]).exp()
    belief = torch.zeros(len(rows), 5, dtype=F64).index_add(0, owner, posterior.unsqueeze(-1) * last.exp())
    close(chain.filtered().dense(5).exp(), belief)


def test_long_gaps():
    model = VLHMM(6, num_words=4, blocks=torch.tensor([0, 0, 1, 1]), hidden_size=4, init_scale=1.0).double()
    x = torch.full((1, 60), MISSING)
    x[0, 0], x[0, -1] = 1, 2
    with torch.no_grad():
        transition, emission = model.specs()
        matrix = transition.log_matrix().exp()
        first = transition.initial_log_prob().exp() * emission.log_likelihood(torch.tensor(1)).exp()
        last = emission.log_likelihood(torch.tensor(2)).exp()
        expected = (first @ torch.linalg.matrix_power(matrix, 59) @ last).log()
    close(model.log_prob(x)[0], expected)
