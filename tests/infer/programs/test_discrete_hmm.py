"""Pyro's DiscreteHMM under our ELBO: its own log_prob is the slow twin."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.grids import grid

from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.discrete_hmm import ChainDiscreteHMM

F64 = torch.float64
B, T, K, D = 3, 6, 4, 5


def random(*shape):
    seed = sum(size * 7**k for k, size in enumerate(shape))
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).requires_grad_()


def assert_same(law, value, leaves):
    mine = ChainDiscreteHMM.of(law)
    found, wanted = mine.log_prob(value), law.log_prob(value)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    weight = torch.linspace(1, 2, found.numel(), dtype=F64).reshape(found.shape)
    pairs = zip(*(torch.autograd.grad(x, leaves, weight, retain_graph=True) for x in (found, wanted)), strict=True)
    for got, expected in pairs:
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


PREFIX = torch.arange(T) < torch.tensor([[6], [1], [4]])
GAPS = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0]]).bool()


@grid({
    "steps, rows": [((), ()), ((1,), ()), ((T,), ()), ((1,), (B,)), ((T,), (B,))],
    "mask": [None, PREFIX, GAPS, False],
})
def test_vectors_of_bits(mask, steps, rows):
    start, trans, logits = random(*rows, K), random(*rows, *steps, K, K), random(B, T, K, D)
    law = dist.Bernoulli(logits=logits).to_event(1)
    if mask is not None:
        law = law.mask(mask.unsqueeze(-1) if isinstance(mask, torch.Tensor) else mask)
    value = (random(B, T, D) > 0.3).to(F64)
    leaves = [start, trans] if mask is False else [start, trans, logits]
    assert_same(dist.DiscreteHMM(start, trans, law), value, leaves)


@pytest.mark.parametrize("kind", ["words", "normal", "shared", "by state"])
def test_other_observations(kind):
    start, trans, table = random(K), random(K, K), random(K, D)
    if kind == "words":
        law, value = dist.Categorical(logits=table), torch.arange(B * T).reshape(B, T) % D
    elif kind == "normal":
        law, value = dist.Normal(table[:, 0], 0.7), random(B, T).detach()
    elif kind == "shared":  # logits of no row of their own
        law, value = dist.Bernoulli(logits=table).to_event(1), (random(B, T, D) > 0).to(F64)
    else:  # a mask of single states
        law, value = dist.Bernoulli(logits=table.expand(B, T, K, D)).to_event(1), (random(B, T, D) > 0).to(F64)
        law = law.mask(random(B, T, K) > 0)
    assert_same(dist.DiscreteHMM(start, trans, law, duration=T), value, [start, trans, table])


def test_single_steps_and_states():
    for num_steps, num_states in ((1, K), (T, 1), (1, 1)):
        start, trans, logits = random(num_states), random(num_states, num_states), random(B, num_steps, num_states, 1)
        law = dist.DiscreteHMM(start, trans, dist.Bernoulli(logits=logits).to_event(1))
        assert_same(law, (random(B, num_steps, 1) > 0).to(F64), [start, trans, logits])


def test_impossible_starts_and_second_derivatives():
    start = torch.tensor([0.0, *[-torch.inf] * (K - 1)], dtype=F64)
    trans, logits, value = random(K, K), random(B, T, K, D), (random(B, T, D) > 0).to(F64)
    law = dist.DiscreteHMM(start, trans, dist.Bernoulli(logits=logits).to_event(1))
    assert_same(law, value, [trans, logits])

    def total(own, kind):
        law = dist.DiscreteHMM(start, own, dist.Bernoulli(logits=logits.detach()[:1, :3]).to_event(1))
        return kind(law).log_prob(value[:1, :3]).sum()

    kinds = ChainDiscreteHMM.of, lambda law: law
    one, two = (torch.autograd.functional.hessian(lambda x, k=kind: total(x, k), trans) for kind in kinds)
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)


def test_values_between_zero_and_one():
    """Refused as by Pyro; where the program switched that off, what Pyro makes of them."""
    half = torch.full((B, T, D), 0.5, dtype=F64)
    law = dist.DiscreteHMM(random(K), random(K, K), dist.Bernoulli(logits=random(B, T, K, D)).to_event(1))
    with pytest.raises(ValueError, match="within the support"):
        ChainDiscreteHMM.of(law).log_prob(half)
    inner = dist.Bernoulli(logits=random(B, T, K, D), validate_args=False)
    inner = dist.Independent(inner, 1, validate_args=False)
    law = dist.DiscreteHMM(random(K), random(K, K), inner, validate_args=False)
    torch.testing.assert_close(ChainDiscreteHMM.of(law).log_prob(half), law.log_prob(half))


def test_in_a_program():
    def model(y):
        with pyro.plate("rows", B, dim=-1):
            law = dist.Bernoulli(logits=random(B, T, K, D)).to_event(1)
            return pyro.sample("y", dist.DiscreteHMM(random(K), random(K, K), law), obs=y)

    y = (random(B, T, D) > 0).to(F64)
    expected = poutine.trace(model).get_trace(y).log_prob_sum()
    found = poutine.trace(BlockedEnum()(model)).get_trace(y)
    assert type(found.nodes["y"]["fn"]) is ChainDiscreteHMM
    torch.testing.assert_close(found.log_prob_sum(), expected)
