"""Chains with hierarchical transitions: the way over distinct pairs against a matrix a step, and against the dense HMM."""

import pytest
import torch
from support.grids import grid
from support.vlhmm_models import LENGTHS, X, make, tables_by_hand

from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.distributions.state import MISSING
from pplseq.infer.discrete.block import BlockChain
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.hierarchical import HierarchicalChain

close = torch.testing.assert_close
VALID = torch.arange(X.shape[1]).unsqueeze(-1) < LENGTHS  # time first, as chains take it


def both(model, **options):
    """The chain of the family, and one that lowers a matrix a step."""
    transition, emission = model.specs()
    inputs = None
    if model.reset_id is not None:
        inputs = torch.cat([torch.full((1, len(X)), MISSING - 1), X.T[:-1]])
    return [kind(transition, emission, X.T, inputs=inputs, **options) for kind in (build_chain, BlockChain)]


@grid({
    "dropout": [0.0, 0.5],
    "valid": [None, VALID],
    "option": ["independent", "factored", "temperature", "uneven", "reset", "one state a block"],
})
def test_the_way_over_pairs(option, valid, dropout):
    model = make(f"hierarchical, {option}", state_dropout=dropout).train()
    fast, slow = both(model, valid=valid)
    assert isinstance(fast, HierarchicalChain) and fast._over_pairs() is not None
    fast.prepare()
    assert "factors" not in fast.__dict__  # no matrix a step was made
    close(fast.log_prob(), slow.log_prob())
    close(fast.token_log_probs(), slow.token_log_probs())
    close(fast.filtered().log_probs, slow.filtered().log_probs)
    parameters = list(model.parameters())
    weight = torch.randn(len(X), dtype=torch.float64)
    totals = ((chain.log_prob() * weight).sum() for chain in (fast, slow))
    grads = (torch.autograd.grad(total, parameters, allow_unused=True, retain_graph=True) for total in totals)
    for parameter, a, b in zip(parameters, *grads, strict=True):
        zero = torch.zeros_like(parameter)
        close(zero if a is None else a, zero if b is None else b)


@pytest.mark.parametrize("option", ["independent", "uneven", "reset", "one state a block"])
def test_without_gradients_normalisers_are_kept(option):
    model = make(f"hierarchical, {option}").eval()
    wanted = both(model)[1].log_prob().detach()
    with torch.no_grad():
        for rows in ([0], [1, 2], [0, 1, 2]):
            transition, emission = model.specs()
            inputs = None
            if model.reset_id is not None:
                inputs = torch.cat([torch.full((1, len(X)), MISSING - 1), X.T[:-1]])[:, rows]
            chain = HierarchicalChain(transition, emission, X.T[:, rows], inputs=inputs)
            close(chain._over_pairs().log_prob, wanted[rows])
    assert model.specs()[0]._block_norm is None  # parameters may have changed since


@pytest.mark.parametrize("option", ["independent", "reset"])
def test_segments_go_on(option):
    model = make(f"hierarchical, {option}").eval()
    whole = model.posterior(X)
    first = model.posterior(X[:, :2])
    second = model.posterior(X[:, 2:], start=first.filtered())
    close(first.log_prob() + second.log_prob(), whole.log_prob())


def test_every_query_is_that_of_the_dense_hmm():
    model = make("hierarchical, uneven").eval()
    initial, matrix, emission = tables_by_hand(model)
    missing = X.clone()
    missing[0, 1] = missing[1, 2] = missing[1, 3] = MISSING
    for x in (X, missing):
        seen = (x >= 0).T
        chain = model.posterior(x, LENGTHS)
        dense = build_chain(
            DenseTransition(initial, matrix), CategoricalEmission(emission), x.T.clamp_min(0), valid=VALID,
            seen=None if bool(seen.all()) else seen,
        )  # fmt: skip
        close(chain.log_prob(), dense.log_prob())
        close(chain.marginals().dense(6), dense.marginals().dense(6))
        close(chain.viterbi()[1], dense.viterbi()[1])
        close(chain.entropy(), dense.entropy())
        close(chain.next().word_log_probs, dense.next().word_log_probs)
        counts, expected = chain.expected_counts(), dense.expected_counts()
        close(counts.occupancy, expected.occupancy)
    close(chain.missing_words()[1].exp(), dense.missing_words()[1].exp())


def test_a_row_that_would_lose_digits_goes_through_log_space():
    model = make("hierarchical, independent").float()
    with torch.no_grad():  # states of one word all but exclude the next block
        model.block_score.weight.zero_()
        model.block_score.bias.copy_(torch.tensor([0.0, -95.0, 0.0]))
    transition, emission = model.specs()
    x = torch.tensor([[0, 1, 0]])
    chain = build_chain(transition, emission, x.T)
    assert chain._over_pairs() is None
    got = chain.log_prob()
    transition, emission = model.double().specs()
    close(got, BlockChain(transition, emission, x.T).log_prob().float(), rtol=1e-5, atol=0)
