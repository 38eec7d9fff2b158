"""Chains of product transitions beside those of the matrix that their tables multiply out to."""

import math

import pytest
import torch
from support.grids import grid

from pplseq.distributions import Belief, CategoricalEmission, DenseTransition, ProductTransition
from pplseq.distributions.product import shapes_of
from pplseq.infer.discrete.build import build_chain

F64 = torch.float64
close = torch.testing.assert_close
VALID = torch.arange(5).unsqueeze(-1) < torch.tensor([5, 1, 3])


def multiplied_out(sizes, tables):
    """(Z, Z), slowly: each move as a matrix between all states."""
    states = torch.cartesian_prod(*map(torch.arange, sizes)).tolist()
    total = torch.eye(len(states), dtype=F64)
    for number, table in enumerate(tables):
        place, step = len(sizes) - 1 - number, torch.zeros(len(states), len(states), dtype=F64)
        others = [size for k, size in enumerate(sizes) if k != place]
        for a, before in enumerate(states):
            for b, after in enumerate(states):
                rest = [value for k, value in enumerate(before) if k != place]
                if rest == [value for k, value in enumerate(after) if k != place]:
                    block = 0
                    for size, value in zip(others, rest, strict=True):
                        block = block * size + value
                    step[a, b] = table[block, before[place], after[place]].exp()
        total = total @ step
    return total


def made(sizes, zeros=False, dtype=F64, spread=1.0):
    torch.manual_seed(len(sizes) + zeros)
    raw = [spread * torch.randn(shape, dtype=F64) for shape in shapes_of(sizes)]
    if zeros:
        raw = [one.masked_fill((torch.rand_like(one) < 0.3) & ~torch.eye(one.shape[-1]).bool(), -math.inf) for one in raw]
    raw = [*raw, spread * torch.randn(math.prod(sizes), dtype=F64), spread * torch.randn(math.prod(sizes), 4, dtype=F64)]
    raw = [one.to(dtype).requires_grad_() for one in raw]
    *tables, initial, words = [one.log_softmax(-1) for one in raw]
    product = ProductTransition(sizes, initial, tables)
    return raw, product, CategoricalEmission(words)


OPTIONS = {
    "whole": {},
    "padded": {"valid": VALID},
    "gaps": {"valid": VALID, "seen": torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0], [1, 1, 1], [0, 1, 1]]).bool()},
    "one step": {},
    "carried on": {"start": True},
    "some states": {"states": torch.tensor([[-1, -1, 0], [1, -1, -1], [-1, -1, -1], [0, -1, -1], [-1, -1, -1]])},
}


@pytest.mark.parametrize("sizes", [(2, 3), (1, 4), (4, 1), (2, 1, 3), (2, 3, 2)])
def test_rows_are_those_of_the_tables_multiplied_out(sizes):
    _, product, _ = made(sizes, zeros=True)
    wanted = multiplied_out(sizes, [table.detach() for table in product.tables])
    close(product.rows(torch.arange(len(wanted))).exp(), wanted)
    message = torch.randn(len(wanted), 3, dtype=F64)
    close(product.steps.forward(message).exp(), wanted.T @ message.exp())
    close(product.steps.backward(message).exp(), wanted @ message.exp())
    close(product.steps.best_backward(message), (wanted.log().unsqueeze(-1) + message).amax(1))


@grid({"sizes, zeros": [((2, 3), False), ((3, 2), True), ((1, 4), False), ((2, 2, 3), True)], "form": OPTIONS}, times=2)
def test_every_answer_is_that_of_the_matrix(sizes, zeros, form):
    raw, product, emission = made(sizes, zeros)
    dense = DenseTransition(product.initial, product.rows(torch.arange(product.num_states)))
    steps, options = 1 if form == "one step" else 5, dict(OPTIONS[form])
    obs = torch.randint(4, (steps, 3), generator=torch.Generator().manual_seed(0))
    if "start" in options:
        options["start"] = Belief(None, torch.randn(3, product.num_states, dtype=F64).log_softmax(-1))
    chain, other = (build_chain(one, emission, obs, **options) for one in (product, dense))
    weight = torch.tensor([0.5, 2.0, 1.0], dtype=F64)
    found, wanted = (one.log_prob() for one in (chain, other))
    close(found, wanted)
    for one, theirs in zip(*(torch.autograd.grad((v * weight).sum(), raw, retain_graph=True, materialize_grads=True)
                             for v in (found, wanted)), strict=True):  # fmt: skip
        close(one, theirs)
    for ask in ("marginals", "filtered_states", "predicted_states", "pair_marginals"):
        close(getattr(chain, ask)().probs, getattr(other, ask)().probs)
    for ask in ("entropy", "token_log_probs", "differentiable_marginals", "differentiable_entropy"):
        close(getattr(chain, ask)(), getattr(other, ask)())
    close(chain.fixed_lag(1).probs, other.fixed_lag(1).probs)
    close(chain.cross_entropy(other), other.differentiable_entropy())
    close(chain.next().word_log_probs, other.next().word_log_probs)
    close(chain.filtered().log_probs, other.filtered().log_probs)
    (path, best), (paths, several) = chain.viterbi(), chain.k_best(4)
    close(best, other.viterbi()[1])
    close(several, other.k_best(4)[1])
    assert torch.equal(path, other.viterbi()[0]) and torch.equal(path, paths[0])
    assert len({tuple(one) for one in paths[:, 0].tolist()}) == len(paths)
    if "seen" in options:
        close(chain.missing_words().log_probs, other.missing_words().log_probs)
        assert chain.sample_words(2).shape == (2, 3, 5)


def test_a_row_without_steps_has_no_entropy():
    _, product, emission = made((2, 3))
    valid = torch.arange(5).unsqueeze(-1) < torch.tensor([5, 0, 3])
    chain = build_chain(product, emission, torch.zeros(5, 3, dtype=torch.int64), valid=valid)
    dense = build_chain(DenseTransition(product.initial, product.rows(torch.arange(6))), emission, chain.obs, valid=valid)
    assert chain.entropy()[1] == 0
    close(chain.entropy(), dense.entropy())


def test_expected_counts_are_derivatives():
    raw, product, emission = made((3, 2, 2), zeros=True)
    chain = build_chain(product, emission, torch.randint(4, (5, 3)), valid=VALID)
    counts, wanted = chain.expected_counts(), torch.autograd.grad(chain.log_prob().sum(), [*product.tables, product.initial])
    for count, one in zip((*counts.transition, counts.start), wanted, strict=True):
        close(count, one)


def test_samples_have_the_posterior():
    _, product, emission = made((2, 3), zeros=True)
    chain = build_chain(product, emission, torch.randint(4, (5, 3)), valid=VALID)
    torch.manual_seed(0)
    drawn = chain.sample(4000)
    assert bool(((drawn == -1) == ~VALID.T).all())
    shares = torch.nn.functional.one_hot(drawn.clamp_min(0), 6).double().mean(0) * VALID.T.unsqueeze(-1)
    assert (shares - chain.marginals().probs).abs().max() < 5 * 0.5 / math.sqrt(4000)  # five standard errors
    pairs = torch.nn.functional.one_hot(drawn[:, 0, 1] * 6 + drawn[:, 0, 2], 36).double().mean(0).view(6, 6)
    assert (pairs - chain.pair_marginals().probs[0, 1]).abs().max() < 5 * 0.5 / math.sqrt(4000)


@pytest.mark.parametrize("spread", [30.0, 100.0])
def test_single_precision_where_probabilities_underflow(spread):
    """Peaks between which there is hardly a way: what a product of probabilities loses is made in log space."""
    raw, product, emission = made((3, 4), dtype=torch.float32, spread=spread)
    obs = torch.randint(4, (6, 8), generator=torch.Generator().manual_seed(1))
    *tables, initial, words = [one.detach().double().log_softmax(-1) for one in raw]
    exact = ProductTransition((3, 4), initial, tables)
    dense = DenseTransition(initial, exact.rows(torch.arange(12)))
    chain, other = build_chain(product, emission, obs), build_chain(dense, CategoricalEmission(words), obs)
    close(chain.log_prob().double(), other.log_prob(), rtol=1e-5, atol=0)
    close(chain.marginals().probs.double(), other.marginals().probs, rtol=0, atol=2e-5 * spread)
    wanted = build_chain(exact, CategoricalEmission(words), obs).expected_counts()
    for count, exactly in zip(chain.expected_counts().transition, wanted.transition, strict=True):
        close(count.double(), exactly, rtol=0, atol=2e-4 * spread)
    close(chain.entropy().double(), other.entropy(), rtol=0, atol=1e-3 * spread)


@pytest.mark.parametrize(
    "sizes, initial, tables, message",
    [
        ((2, 3), torch.zeros(5), [torch.zeros(2, 3, 3), torch.zeros(3, 2, 2)], "have shapes"),
        ((2, 3), torch.zeros(6), [torch.zeros(3, 2, 2), torch.zeros(2, 3, 3)], "have shapes"),
        ((2, 2), torch.full((4,), -math.log(4)), [torch.zeros(2, 2, 2)] * 2, "sum to one"),
    ],
)
def test_tables_that_do_not_fit(sizes, initial, tables, message):
    with pytest.raises(ValueError, match=message):
        ProductTransition(sizes, initial, tables)
