"""A seeded block draws what torch draws after ``manual_seed``, and neither reads nor sets torch's generator."""

import threading

import pyro.distributions as dist
import pytest
import torch
from torch import nn
from torch.nn import functional

from pplseq.distributions.drawing import CPU, drawn, generators, random_state, rewind, seeded, set_random_state, undrawn
from pplseq.models import HMM

HALF = torch.full((3,), 0.5, dtype=torch.float64)
LAWS = [
    dist.Normal(HALF, HALF), dist.StudentT(6 * HALF), dist.Gamma(HALF, HALF), dist.Beta(HALF, HALF), dist.Dirichlet(HALF),
    dist.Poisson(9 * HALF), dist.Binomial(9, HALF), dist.Bernoulli(HALF), dist.Categorical(HALF), dist.VonMises(HALF, HALF),
    dist.NegativeBinomial(5 * HALF, HALF), dist.Exponential(HALF), dist.Laplace(HALF, HALF), dist.Cauchy(HALF, HALF),
    dist.Geometric(HALF), dist.MultivariateNormal(HALF, torch.eye(3).double()), dist.Uniform(0 * HALF, HALF),
    dist.Gumbel(HALF, HALF), dist.Multinomial(5, HALF), dist.LKJCholesky(3, 1.0), dist.Stable(3 * HALF, 0 * HALF),
]  # fmt: skip
ONES = torch.ones(9)
DRAWS = {
    "rand": lambda: torch.rand(2), "randn": lambda: torch.randn(2, 2), "like": lambda: torch.randn_like(ONES),
    "integers": lambda: torch.randint(9, (3,)), "order": lambda: torch.randperm(9), "normal": lambda: torch.normal(ONES),
    "in place": lambda: torch.empty(3).uniform_(), "bits": lambda: torch.empty(3, dtype=torch.int64).random_(-(2**63), None),
    "linear": lambda: nn.Linear(3, 4).weight, "recurrent": lambda: nn.GRU(3, 4).weight_hh_l0,
    "orthogonal": lambda: nn.init.orthogonal_(torch.empty(3, 3)), "xavier": lambda: nn.init.xavier_normal_(torch.empty(3, 3)),
    "dropout": lambda: functional.dropout(ONES), "none left out": lambda: functional.dropout(ONES, 0.0),
    "of channels": lambda: functional.dropout1d(ONES[None, :, None]),
    "alpha": lambda: functional.alpha_dropout(ONES, training=True),
    "layers": lambda: nn.LSTM(2, 2, 2, dropout=0.5)(torch.ones(3, 2))[0], "gumbel": lambda: functional.gumbel_softmax(ONES, -1),
}  # fmt: skip
ALL = DRAWS | {type(law).__name__: lambda law=law: law.sample((4,)) for law in LAWS}


@pytest.mark.parametrize("name", ALL)
def test_as_after_a_seed(name):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        wanted = ALL[name](), torch.rand(2)
    before = torch.get_rng_state()
    with seeded(3):
        found = ALL[name](), torch.rand(2)  # what is drawn next, too
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_blocks_in_blocks():
    with seeded(3):
        first, same = torch.rand(1), random_state(CPU)
        with seeded(3), seeded(None):
            assert torch.equal(torch.rand(1), first)
        second = torch.rand(1)
        set_random_state(CPU, same)
        assert torch.equal(torch.rand(1), second)
    block = seeded(3)  # entered again it goes on
    with block:
        assert torch.equal(torch.rand(1), first)
    with block:
        assert torch.equal(torch.rand(1), second)
    state = random_state(CPU)
    third = torch.rand(1)
    set_random_state(CPU, state)
    assert torch.equal(torch.rand(1), third)
    with seeded(3):
        begin = generators()
        assert torch.equal(torch.rand(1), first)
        rewind(begin)
        assert torch.equal(torch.rand(1), first)
    for seed, error in ((-1, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="seed"):
            seeded(seed)


def test_where_there_are_no_numbers():
    with seeded(3):
        first = torch.rand(1)
        with torch.device("meta"):
            assert torch.rand(2).is_meta and nn.Linear(2, 2).weight.is_meta
        assert functional.dropout(torch.ones(2, device="meta")).is_meta
        second = torch.rand(1)
    with seeded(3):
        assert torch.equal(torch.rand(1), first) and torch.equal(torch.rand(1), second)


def test_of_this_thread_alone():
    found = []
    with seeded(3):
        torch.manual_seed(5)
        other = threading.Thread(target=lambda: found.append(torch.rand(1)))
        other.start()
        other.join()
    torch.manual_seed(5)
    assert torch.equal(found[0], torch.rand(1))


def test_a_block_that_draws_nothing_is_not_looked_at():
    class Own(HMM):
        pass

    modes = torch._C._len_torch_function_stack
    with seeded(3):
        first = torch.rand(1)
    with seeded(3):
        with undrawn():
            assert modes() == 0
        with undrawn(Own(2, 3)):  # of which nobody knows
            assert modes() == 1
        assert modes() == 1
    with seeded(3), pytest.raises(ZeroDivisionError), undrawn():
        1 / 0  # noqa: B018
    assert modes() == 0
    with seeded(3):
        with undrawn(), drawn():
            assert modes() == 1
        assert torch.equal(torch.rand(1), first)
