"""A whole chain as one site."""

import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from support.oracles.discrete import enumerate_paths

from pplseq.distributions import Belief, BlockHMM, CategoricalEmission, DenseTransition, GaussianEmission
from pplseq.distributions.dense import StepTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.models.vlhmm.program import VLHMM

F64 = torch.float64
close = torch.testing.assert_close
Z, V, T, B = 3, 4, 5, 2


def specs(*batch):
    start, table, emit = (torch.randn(*batch, *s, dtype=F64).log_softmax(-1) for s in ((Z,), (Z, Z), (Z, V)))
    return DenseTransition(start, table), CategoricalEmission(emit)


def truth(transition, emission, row):
    matrices = transition.matrix.expand(len(row) - 1, Z, Z)
    return enumerate_paths(transition.initial, matrices, emission.log_probs.T[row])[1].logsumexp(0)


def test_log_prob():
    transition, emission = specs()
    x, lengths = torch.randint(V, (B, T)), torch.tensor([5, 2])
    site = BlockHMM(transition, emission, num_steps=T)
    assert site.batch_shape == () and site.event_shape == (T,)
    close(site.log_prob(x), torch.stack([truth(transition, emission, row) for row in x]))
    ragged = BlockHMM(transition, emission, num_steps=T, lengths=lengths)
    assert ragged.batch_shape == (B,)
    close(ragged.log_prob(x), torch.stack([truth(transition, emission, x[b, :n]) for b, n in enumerate(lengths)]))


def test_start_and_inputs():
    emission = specs()[1]
    matrices = torch.randn(V, Z, Z, dtype=F64).log_softmax(-1)
    transition = StepTransition(torch.zeros(Z, dtype=F64).log_softmax(-1), lambda u: matrices[u], Z, input_dims=0)
    x, u = torch.randint(V, (B, T)), torch.randint(V, (B, T))
    start = Belief(None, torch.randn(B, Z, dtype=F64).log_softmax(-1))
    site = BlockHMM(transition, emission, num_steps=T, inputs=u, start=start)
    close(site.log_prob(x), build_chain(transition, emission, x.T, inputs=u.T, start=start).log_prob())
    assert site.expand((B,)).sample().shape == (B, T)


def test_vector_observations():
    emission = GaussianEmission(torch.randn(Z, 2, dtype=F64), torch.ones(Z, 2, dtype=F64))
    site = BlockHMM(specs()[0], emission, num_steps=T)
    assert site.event_shape == (T, 2)
    y = site.expand((4, 3)).sample()
    assert y.shape == (4, 3, T, 2) and site.log_prob(y).shape == (4, 3)


def test_in_a_program():
    transition, emission = specs()
    x = torch.randint(V, (6, T))
    lengths = torch.tensor([5, 4, 1, 0, 5, 2])

    def model(x):
        with pyro.plate("sequences", len(x)):
            return pyro.sample("x", BlockHMM(transition, emission, num_steps=T, lengths=lengths), obs=x)

    expected = BlockHMM(transition, emission, num_steps=T, lengths=lengths).log_prob(x)
    close(poutine.trace(model).get_trace(x).log_prob_sum(), expected.sum())

    def subsampled(x):
        with pyro.plate("sequences", len(x), subsample=torch.tensor([1, 4])) as rows:
            site = BlockHMM(transition, emission, num_steps=T, lengths=lengths[rows])
            pyro.sample("x", site, obs=x[rows])

    close(poutine.trace(subsampled).get_trace(x).log_prob_sum(), 3 * expected[[1, 4]].sum())


def test_a_batch_of_parameters():
    transition, emission = specs(3, 1)
    x = torch.randint(V, (B, T))
    site = BlockHMM(transition, emission, num_steps=T)
    assert site.batch_shape == (3, 1)
    for c, row in enumerate(site.log_prob(x)):
        one = DenseTransition(transition.initial[c, 0], transition.matrix[c, 0]), CategoricalEmission(emission.log_probs[c, 0])
        close(row, BlockHMM(*one, num_steps=T).log_prob(x))


@pytest.mark.parametrize("batch", [(), (4,), (2, 4)])
def test_samples_follow_the_distribution(batch):
    transition, emission = specs()
    site = BlockHMM(transition, emission, num_steps=2).expand(batch)
    draws = site.sample((3000,))
    assert draws.shape == (3000, *batch, 2)
    number = draws.reshape(-1, 2)[:3000] @ torch.tensor([V, 1])
    every = torch.cartesian_prod(torch.arange(V), torch.arange(V))
    probs = BlockHMM(transition, emission, num_steps=2).log_prob(every).exp()
    frequency = torch.bincount(number, minlength=V * V) / len(number)
    assert ((frequency - probs).abs() < 5 * (probs * (1 - probs) / len(number)).sqrt() + 1e-3).all()


def test_learning():
    tables = [torch.nn.Parameter(torch.randn(s, dtype=F64)) for s in ((Z,), (Z, Z), (Z, V))]
    x = torch.randint(V, (8, T))

    def model(x):
        start, table, emit = (pyro.param(f"p{i}", t).log_softmax(-1) for i, t in enumerate(tables))
        with pyro.plate("sequences", len(x)):
            pyro.sample("x", BlockHMM(DenseTransition(start, table), CategoricalEmission(emit), num_steps=T), obs=x)

    svi = SVI(model, lambda x: None, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    losses = [svi.step(x) for _ in range(20)]
    assert losses[-1] < losses[0]


def test_block_sparse():
    model = VLHMM(4, num_words=4, blocks=torch.tensor([0, 0, 1, 1]), hidden_size=4).double().eval()
    x = torch.tensor([[0, 3, 2], [1, 1, 0]])
    with torch.no_grad():
        site = BlockHMM(*model.specs(), num_steps=3)
        close(site.log_prob(x), model.log_prob(x))
        assert site.chain(x).viterbi()[0].shape == (2, 3)
        assert torch.isfinite(site.log_prob(site.sample((5,)))).all()


def test_errors():
    with pytest.raises(ValueError, match="num_steps must be at least 1"):
        BlockHMM(*specs(), num_steps=0)
    with pytest.raises(ValueError, match=r"value must end in shape \(5,\)"):
        BlockHMM(*specs(), num_steps=T).log_prob(torch.zeros(2, 3, dtype=torch.long))
    closed = CategoricalEmission.from_probs(torch.tensor([[1.0, 0.0]] * Z, dtype=F64))
    with pytest.raises(ValueError, match="row 1, step 2"):
        BlockHMM(specs()[0], closed, num_steps=3).log_prob(torch.tensor([[0, 0, 0], [0, 0, 1]]))


def test_one_row_for_a_batch_of_lengths():
    site = BlockHMM(*specs(), num_steps=3, lengths=torch.tensor([1, 3]))
    x = torch.tensor([0, 1, 2])
    close(site.log_prob(x), site.log_prob(x.expand(2, 3)))


def test_no_length_has_probability_one():
    site = BlockHMM(*specs(), num_steps=3, lengths=torch.tensor([0]))
    close(site.log_prob(torch.zeros(1, 3, dtype=torch.long)), torch.zeros(1, dtype=F64))
    assert math.isfinite(site.log_prob(torch.zeros(1, 3, dtype=torch.long)).sum().item())
