"""The very large HMM: its tables by hand, state dropout, carried beliefs, caches, generation, wrong arguments."""

import math

import pytest
import torch
from support.oracles.discrete import enumerate_paths
from support.vlhmm_models import LENGTHS, OPTIONS, X, log_prob_by_hand, make, tables_by_hand

from pplseq.models import VLHMM
from pplseq.models.vlhmm.layers import dropout

F64 = torch.float64
close = torch.testing.assert_close
every_option = pytest.mark.parametrize("option", OPTIONS)


@every_option
def test_the_likelihood_and_its_gradient(option):
    model = make(option)
    model(X, LENGTHS)
    got = model.chain.log_prob()
    tables = tables_by_hand(model)
    expected = torch.stack([log_prob_by_hand(model, tables, row[:n]) for row, n in zip(X, LENGTHS, strict=True)])
    close(got, expected)
    parameters = list(model.parameters())
    # a parameter without influence (the bias of a start score) has gradient zero
    got = torch.autograd.grad(got.sum(), parameters, allow_unused=True)
    wanted = torch.autograd.grad(expected.sum(), parameters, allow_unused=True)
    for (name, parameter), a, b in zip(model.named_parameters(), got, wanted, strict=True):
        zero = torch.zeros_like(parameter)
        close(zero if a is None else a, zero if b is None else b, msg=lambda m, name=name: f"{name}: {m}")


@every_option
def test_the_tables(option):
    model = make(option).eval()
    initial, matrix, emission = tables_by_hand(model)
    with torch.no_grad():
        transition, words = model.specs()
        close(transition.initial_log_prob(), initial)
        close(transition.log_matrix(), matrix)
        close(words.log_likelihood(torch.arange(6)).T, emission)
        close(emission.exp().sum(-1), torch.ones(model.num_states, dtype=F64))


@pytest.mark.parametrize("option", ["untied", "hierarchical, uneven"])
def test_features_left_out(option):
    plain, model = make(option), make(option, feature_dropout=0.5)
    close(model.eval().log_prob(X, LENGTHS), plain.eval().log_prob(X, LENGTHS))
    (whole, words), (transition, emission) = plain.train().specs(), model.train().specs()
    share = transition.out / whole.out
    close(share, torch.where(share > 1, 2.0, 0.0).double())
    assert 0 < (share > 1).double().mean() < 1
    close(transition.initial, whole.initial)
    close(transition.log_matrix().exp().sum(-1), torch.ones(6, dtype=F64))
    table = emission.log_likelihood(torch.arange(6))
    close(table.exp().sum(0), torch.ones(6, dtype=F64))
    assert not torch.allclose(table, words.log_likelihood(torch.arange(6)))


@pytest.mark.parametrize("share", [2.0**-8, 0.05, 0.9])
def test_a_share_is_left_out(share):
    x = torch.rand(999, 1001, dtype=F64).add_(0.5).requires_grad_()
    thin = dropout(x, share, True)
    (grad,) = torch.autograd.grad(thin.sum(), x)
    close(thin, x * grad)
    scale = 1 / (1 - round(share * 2**16) / 2**16)
    assert set(grad.unique().tolist()) == {0.0, scale}
    out = (grad == 0).double().flatten()

    def close_to(found, expected, numbers):  # within five standard deviations, and the rounding of the share
        assert abs(found - expected) < 5 * (expected * (1 - expected) / numbers) ** 0.5 + 2.0**-17

    close_to(out.mean(), share, len(out))
    for k in range(4):  # of the four pieces of a number
        close_to(out[k::4].mean(), share, len(out) / 4)
    close_to((out[1:] * out[:-1]).mean(), share**2, len(out) / 3)
    assert dropout(x, share, False) is x and dropout(x, 0.0, True).equal(x) and not dropout(x, 1.0, True).any()


def test_float32_is_near():
    exact = make("uneven").eval()
    rough = make("uneven").float().eval()
    close(rough.log_prob(X, LENGTHS), exact.log_prob(X, LENGTHS).float(), rtol=1e-5, atol=1e-5)
    close(rough.log_prob(X.int(), LENGTHS), rough.log_prob(X, LENGTHS))


def test_sizes_of_the_paper():
    # 2^15 states, 128 blocks, 10,000 words, h = 256
    blocks = torch.arange(10_000) % 128
    factored = VLHMM(2**15, num_words=10_000, blocks=blocks, parameterization="factored")
    independent = VLHMM(2**15, num_words=10_000, blocks=blocks)
    millions = [sum(p.numel() for p in model.parameters()) / 1e6 for model in (factored, independent)]
    assert millions == pytest.approx([7.2, 11.4], abs=0.06)


# ------------------------------------------------------------------------------------------------ dropout
def kept_states(model):
    layout = model.chain.transition.layout
    return torch.zeros(model.num_states, dtype=torch.bool).index_fill_(0, layout.kept_ids, True)


@pytest.mark.parametrize("rate, kept", [(0.5, [2, 2, 2]), (0.25, [3, 3, 3]), (0.9, [1, 1, 1])])
def test_dropout_keeps_its_share_of_every_block(rate, kept):
    model = make(num_states=12, state_dropout=rate)
    sets = []
    for _ in range(5):
        model(X)
        assert kept_states(model).view(3, 4).sum(-1).tolist() == kept
        sets.append(tuple(kept_states(model).tolist()))
    assert len(set(sets)) > 1, "the same states every time"


@pytest.mark.parametrize("option", ["independent", "uneven", "factored", "scalar", "reset", "uneven, scalar"])
def test_dropout_is_the_likelihood_over_the_kept_states(option):
    model = make(option, state_dropout=0.5)
    model(X, LENGTHS)
    tables = tables_by_hand(model, kept_states(model))
    tables = (*tables[:2], tables[2].masked_fill(~kept_states(model).unsqueeze(-1), -math.inf))
    expected = torch.stack([log_prob_by_hand(model, tables, row[:n]) for row, n in zip(X, LENGTHS, strict=True)])
    close(model.chain.log_prob(), expected)
    parameters = list(model.parameters())
    for a, b in zip(
        torch.autograd.grad(model.chain.log_prob().sum(), parameters, allow_unused=True),
        torch.autograd.grad(expected.sum(), parameters, allow_unused=True),
        strict=True,
    ):
        if a is not None or b is not None:
            close(a, b)


@pytest.mark.parametrize("option", ["independent", "uneven", "factored", "scalar", "reset", "no blocks", "reset, no blocks"])
def test_a_belief_carried_between_dropout_sets(option):
    model = make(option, state_dropout=0.5)
    model(X[:, :2])
    first, belief = kept_states(model), model.chain.filtered().detach()
    before = tables_by_hand(model, first)
    model(X[:, 2:], None, belief)
    second = kept_states(model)
    after = tables_by_hand(model, second)
    after = (*after[:2], after[2].masked_fill(~second.unsqueeze(-1), -math.inf))
    expected = []
    for row in X:
        x, last = row[:2], int(row[1])
        matrix = before[0].expand_as(before[1]) if int(x[0]) == model.reset_id else before[1]
        emit = before[2].T[x].masked_fill(~first, -math.inf)
        paths, scores = enumerate_paths(before[0], matrix.unsqueeze(0), emit)
        belief = torch.stack([scores[paths[:, 1] == z].exp().sum() for z in range(model.num_states)])
        belief = (belief / belief.sum()).detach()
        into = torch.full_like(after[0], -math.inf)
        into[second] = (belief @ after[1].exp())[second].log()
        into = after[0] if last == model.reset_id else into
        expected.append(log_prob_by_hand(model, after, row[2:], into))
    expected = torch.stack(expected)
    close(model.chain.log_prob(), expected)
    parameters = list(model.parameters())
    for (name, _), a, b in zip(
        model.named_parameters(),
        torch.autograd.grad(model.chain.log_prob().sum(), parameters, allow_unused=True),
        torch.autograd.grad(expected.sum(), parameters, allow_unused=True),
        strict=True,
    ):
        if a is not None and b is not None:
            close(a, b, msg=lambda m, name=name: f"{name}: {m}")


def test_no_dropout_at_test():
    model = make(state_dropout=0.5)
    assert model.training
    close(model.log_prob(X), make().log_prob(X))
    assert model.training, "posterior leaves the mode as it was"
    assert bool(model.posterior(X).transition.layout.complete)


# ------------------------------------------------------------------------------------------------ segments
@pytest.mark.parametrize("option", ["uneven", "reset", "reset, no blocks"])
def test_segments_are_one_chain(option):
    model = make(option).eval()
    x = torch.tensor([[0, 3, -1, 5, 1, 3], [3, -1, -1, 0, 2, 2], [5, 1, 3, 3, -1, -1]])
    whole = model.posterior(x)
    for cut in range(1, 6):
        first = model.posterior(x[:, :cut])
        second = model.posterior(x[:, cut:], start=first.filtered())
        close(first.log_prob() + second.log_prob(), whole.log_prob())
        close(second.filtered().dense(6), whole.filtered().dense(6))
        close(second.next().word_log_probs, whole.next().word_log_probs)


def test_a_reset_forgets():
    model = make("reset").eval()
    ends = torch.tensor([[0, 1, 3], [5, 4, 3]])
    words = model.posterior(ends).next().word_log_probs
    initial, _, emission = tables_by_hand(model)
    close(words.exp(), (initial.exp() @ emission.exp()).expand(2, -1).detach())
    assert not torch.allclose(*make().eval().posterior(ends).next().word_log_probs)
