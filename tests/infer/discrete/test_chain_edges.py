"""Chains at the edges: extreme numbers, impossible rows, batches of parameters, gradients, wrong arguments."""

import math

import pytest
import torch
from support.grids import grid
from support.oracles.discrete import forward_loop
from support.tiny_chains import SITUATIONS, Case, case
from support.tiny_families import FAMILIES

from pplseq.distributions.dense import CategoricalEmission, DenseTransition, GaussianEmission, StepTransition
from pplseq.distributions.state import Belief, Emission
from pplseq.infer.discrete.build import build_chain

close = torch.testing.assert_close


@grid({
    "situation": ["plain", "missing and ragged", "hidden words", "start"],
    "family": sorted(set(FAMILIES) - {"Gaussian", "Forbidden", "ForbiddenBlocks"}),
}, times=2)
def test_extreme_logits_in_float32(family, situation):
    kind = FAMILIES[family]
    start = situation == "start"
    exact = Case(kind(seed=3, scale=50.0), SITUATIONS[situation], start)
    rough = Case(kind(seed=3, scale=50.0, dtype=torch.float32), SITUATIONS[situation], start)
    rough.obs = exact.obs
    if exact.states is not None:
        rough.states = exact.states
    rough.inputs = rough.family.inputs(rough.obs, rough.seen, rough.start)
    chain, expected = rough.chain(), torch.stack([t.log_prob for t in exact.truths])
    assert chain.log_prob().dtype == torch.float32
    close(chain.log_prob(), expected.float(), rtol=1e-5, atol=1e-3)
    close(chain.viterbi()[1], torch.stack([t.scores.max() for t in exact.truths]).float(), rtol=1e-5, atol=1e-3)
    marginals = chain.marginals().dense(kind().num_states)
    got = torch.autograd.grad(chain.log_prob().sum(), rough.family.parameters, allow_unused=True)
    wanted = torch.autograd.grad(expected.sum(), exact.family.parameters, allow_unused=True)
    for a, b in zip(got, wanted, strict=True):
        if a is not None or b is not None:
            close(a, b.float(), rtol=1e-3, atol=1e-2)
    for row, truth in enumerate(exact.truths):
        close(marginals[row, : truth.num_steps], truth.marginals().float(), rtol=1e-3, atol=1e-3)


def test_long_chains_in_float32_keep_their_precision():
    generator = torch.Generator().manual_seed(0)
    start, table, emit = (torch.randn(*s, generator=generator, dtype=torch.float64).log_softmax(-1)
                          for s in ((4,), (4, 4), (4, 6)))  # fmt: skip
    x = torch.randint(6, (2000, 1), generator=generator)
    chain = build_chain(DenseTransition(start.float(), table.float()), CategoricalEmission(emit.float()), x)
    exact = forward_loop(start, table.expand(1999, 4, 4), emit.T[x[:, 0]])
    close(chain.log_prob()[0].double(), exact, rtol=1e-6, atol=1e-3)


def test_an_impossible_row_is_named():
    transition = DenseTransition.from_probs(torch.tensor([1.0, 0.0]), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    emission = CategoricalEmission.from_probs(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    x = torch.tensor([[0, 1, 0], [0, 1, 1]]).T
    with pytest.raises(ValueError, match=r"row 1, step 2: observation 1 is impossible"):
        build_chain(transition, emission, x).log_prob()
    unchecked = build_chain(transition, emission, x, check=False)
    close(unchecked.log_prob(), torch.tensor([0.0, -math.inf]))


def test_an_impossible_row_leaves_the_gradients_of_others_alone():
    tables = [torch.tensor([0.3, 0.7]), torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([[1.0, 0.0], [0.5, 0.5]])]
    for x in (torch.tensor([[0, 1], [1, 1]]).T, torch.tensor([[0, 1]]).T):
        start, table, emit = (t.clone().requires_grad_() for t in tables)
        states = torch.tensor([[-1, 1], [0, 0]]).T[:, : x.shape[1]]
        emission = CategoricalEmission(emit.clamp_min(1e-30).log())
        chain = build_chain(DenseTransition(start.log(), table.log()), emission, x, states=states, check=False)
        chain.log_prob()[0].backward()
        assert all(torch.isfinite(value.grad).all() for value in (start, table, emit))


def test_parameters_in_a_batch():
    generator = torch.Generator().manual_seed(0)
    start, table, emit = (torch.randn(3, 1, *s, generator=generator, dtype=torch.float64).log_softmax(-1)
                          for s in ((4,), (4, 4), (4, 5)))  # fmt: skip
    x = torch.randint(5, (3, 2), generator=generator)
    valid = torch.tensor([[True, True, True], [True, True, False]]).T
    chain = build_chain(DenseTransition(start, table), CategoricalEmission(emit), x, valid=valid)
    assert chain.log_prob().shape == (3, 2)
    for c in range(3):
        one = build_chain(DenseTransition(start[c, 0], table[c, 0]), CategoricalEmission(emit[c, 0]), x, valid=valid)
        close(chain.log_prob()[c], one.log_prob())
        close(chain.marginals().probs[c], one.marginals().probs)
        close(chain.viterbi()[0][c], one.viterbi()[0])
        close(chain.entropy()[c], one.entropy())
        close(chain.filtered().log_probs[c], one.filtered().log_probs)
        close(chain.k_best(2)[1][:, c], one.k_best(2)[1])
        close(chain.next().word_log_probs[c], one.next().word_log_probs)
    assert chain.sample(2).shape == (2, 3, 2, 3)  # samples, parameter sets, rows, steps


def test_full_covariances():
    generator = torch.Generator().manual_seed(0)
    loc, tril = torch.randn(3, 2, generator=generator), torch.randn(3, 2, 2, generator=generator).tril()
    tril.diagonal(dim1=-2, dim2=-1).abs_().add_(0.5)
    obs = torch.randn(4, 5, 2, generator=generator)
    result = GaussianEmission(loc, scale_tril=tril).log_likelihood(obs)
    for z in range(3):
        expected = torch.distributions.MultivariateNormal(loc[z], scale_tril=tril[z]).log_prob(obs)
        close(result[..., z], expected)


def test_missing_observations_may_be_nan():
    loc = torch.randn(3, 2, requires_grad=True)
    start, table = torch.zeros(3).log_softmax(-1), torch.zeros(3, 3).log_softmax(-1)
    obs = torch.randn(4, 2, 2)
    obs[1, 0] = float("nan")
    seen = ~obs.isnan().any(-1)
    chain = build_chain(DenseTransition(start, table), GaussianEmission(loc, torch.ones(3, 2)), obs, seen=seen)
    chain.log_prob().sum().backward()
    assert torch.isfinite(chain.log_prob()).all() and torch.isfinite(loc.grad).all()


def simple():
    return DenseTransition(torch.zeros(2).log_softmax(-1), torch.zeros(2, 2).log_softmax(-1)), CategoricalEmission(
        torch.zeros(2, 3).log_softmax(-1)
    )


def test_wrong_arguments_are_refused():
    transition, emission = simple()
    x = torch.zeros(3, 1, dtype=torch.long)
    with pytest.raises(ValueError, match="at least one step"):
        build_chain(transition, emission, x[:0])
    with pytest.raises(ValueError, match="padding must come behind"):
        build_chain(transition, emission, x, valid=torch.tensor([[True, False, True]]).T)
    with pytest.raises(ValueError, match="k must be at least 1"):
        build_chain(transition, emission, x).k_best(0)
    with pytest.raises(ValueError, match="row without any step"):
        build_chain(transition, emission, x, valid=torch.zeros(3, 1, dtype=torch.bool)).filtered()
    with pytest.raises(TypeError, match="SecondOrderTransition or BlockTransition"):
        build_chain(object(), emission, x)
    with pytest.raises(ValueError, match="D = 2"):
        build_chain(transition, GaussianEmission(torch.zeros(2, 2), torch.ones(2, 2)), torch.zeros(3, 1, 3)).log_prob()
    step = StepTransition(torch.zeros(2), lambda u: torch.zeros(*u.shape[:-1], 2, 2), 2)
    with pytest.raises((ValueError, TypeError), match="inputs"):
        build_chain(step, emission, x).log_prob()


def test_all_true_masks_cost_nothing():
    transition, emission = simple()
    x = torch.zeros(3, 2, dtype=torch.long)
    ones = torch.ones(3, 2, dtype=torch.bool)
    chain = build_chain(transition, emission, x, valid=ones, seen=ones)
    assert chain.valid is None and chain.seen is None


QUERIES = {
    "marginals": lambda c: c.marginals(),
    "pair_marginals": lambda c: c.pair_marginals(),
    "expected_counts": lambda c: c.expected_counts(),
    "entropy": lambda c: c.entropy(),
    "viterbi": lambda c: c.viterbi(),
    "k_best": lambda c: c.k_best(2),
    "sample": lambda c: c.sample(),
    "filtered": lambda c: c.filtered(),
    "next": lambda c: c.next(),
    "token_log_probs": lambda c: c.token_log_probs(),
}


@grid({"family, situation": [("Dense", "ragged"), ("UnevenBlocks", "ragged"), ("Reset", "missing")], "first": QUERIES})
def test_a_query_before_log_prob_costs_no_gradients(first, family, situation):
    c = case(family, situation)
    chain = c.chain()
    result = QUERIES[first](chain)
    leaves = result if isinstance(result, tuple) else (result,)
    assert not any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
    wanted = torch.autograd.grad(c.chain().log_prob().sum(), c.family.parameters)
    close(torch.autograd.grad(chain.log_prob().sum(), c.family.parameters), wanted)


@grid({"situation": ["plain", "missing"], "family": FAMILIES})
def test_specs_used_without_gradients_before_have_them_later(family, situation):
    c = case(family, situation)
    specs = c.family.specs()
    options = dict(valid=c.valid, seen=c.seen, inputs=c.inputs)
    with torch.no_grad():
        build_chain(*specs, c.obs, **options).log_prob()
    got = torch.autograd.grad(build_chain(*specs, c.obs, **options).log_prob().sum(), c.family.parameters, allow_unused=True)
    wanted = torch.autograd.grad(c.chain().log_prob().sum(), c.family.parameters, allow_unused=True)
    for a, b in zip(got, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            close(a, b)


def test_no_gradient_flows_into_a_filtered_belief():
    c = case("Dense", "plain")
    belief = c.chain().filtered()
    assert isinstance(belief, Belief) and not belief.log_probs.requires_grad


def test_an_emission_needs_only_two_methods():
    class Poisson(Emission):
        num_states = 3

        def log_likelihood(self, obs):
            return torch.distributions.Poisson(torch.tensor([1.0, 4.0, 9.0])).log_prob(obs.unsqueeze(-1))

    transition = DenseTransition(torch.zeros(3).log_softmax(-1), torch.zeros(3, 3).log_softmax(-1))
    chain = build_chain(transition, Poisson(), torch.tensor([[0.0], [3.0]]))
    assert chain.next().word_log_probs is None
    assert chain.viterbi()[0][0].tolist() == [0, 1]
