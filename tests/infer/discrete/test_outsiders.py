"""The same chains in other people's libraries: hmmlearn, and Pyro's DiscreteHMM and infer_discrete."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from hmmlearn import hmm
from pyro.infer import config_enumerate, infer_discrete
from pyro.poutine import trace
from support.tiny_programs import F64, Tables, program, words

from pplseq.distributions.dense import CategoricalEmission, DenseTransition, GaussianEmission
from pplseq.infer.discrete.build import build_chain

close = torch.testing.assert_close
Z, V, T = 4, 6, 30


def tables():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, dtype=F64).mul(2).softmax(-1) for s in ((Z,), (Z, Z), (Z, V))]


@pytest.fixture
def discrete():
    start, matrix, emit = tables()
    x = torch.randint(V, (T, 3), generator=torch.Generator().manual_seed(1))
    peer = hmm.CategoricalHMM(Z)
    peer.startprob_, peer.transmat_, peer.emissionprob_ = (table.numpy() for table in (start, matrix, emit))
    return build_chain(DenseTransition.from_probs(start, matrix), CategoricalEmission.from_probs(emit), x), peer, x


def test_hmmlearn_on_words(discrete):
    chain, peer, x = discrete
    for row in range(3):
        column = x[:, row : row + 1].numpy()
        assert chain.log_prob()[row].item() == pytest.approx(peer.score(column))
        np.testing.assert_allclose(chain.marginals().probs[row], peer.predict_proba(column), atol=1e-8)
        log_prob, path = peer.decode(column)
        assert chain.viterbi()[1][row].item() == pytest.approx(log_prob)
        np.testing.assert_array_equal(chain.viterbi()[0][row], path)


def test_hmmlearn_on_vectors():
    start, matrix, _ = tables()
    generator = torch.Generator().manual_seed(2)
    loc = torch.randn(Z, 2, generator=generator, dtype=F64) * 2
    root = torch.randn(Z, 2, 2, generator=generator, dtype=F64)
    covariance = root @ root.mT + torch.eye(2, dtype=F64)
    y = torch.randn(T, 1, 2, generator=generator, dtype=F64) * 2
    emission = GaussianEmission(loc, scale_tril=torch.linalg.cholesky(covariance))
    chain = build_chain(DenseTransition.from_probs(start, matrix), emission, y)
    peer = hmm.GaussianHMM(Z, covariance_type="full")
    peer.startprob_, peer.transmat_, peer.means_, peer.covars_ = (
        value.numpy() for value in (start, matrix, loc, covariance)
    )
    assert chain.log_prob()[0].item() == pytest.approx(peer.score(y[:, 0].numpy()))
    np.testing.assert_allclose(chain.marginals().probs[0], peer.predict_proba(y[:, 0].numpy()), atol=1e-8)
    np.testing.assert_array_equal(chain.viterbi()[0][0], peer.predict(y[:, 0].numpy()))


def test_pyros_discrete_hmm(discrete):
    # there a transition comes before the first emission: its start is ours one step back
    start, matrix, emit = tables()
    x = discrete[2]
    site = dist.DiscreteHMM(start.log(), matrix.log(), dist.Categorical(emit), duration=T)
    ours = DenseTransition.from_probs(start @ matrix, matrix)
    chain = build_chain(ours, CategoricalEmission.from_probs(emit), x)
    close(chain.log_prob(), site.log_prob(x.T))
    # its filter is that of the last state
    close(chain.filtered().log_probs, site.filter(x.T).logits)


def test_pyros_discrete_inference():
    specs, x = Tables().specs(), words(2, 4)
    chain = build_chain(*specs, x.T)
    decode = infer_discrete(config_enumerate(program), first_available_dim=-2, temperature=0)
    best = trace(decode).get_trace(x, specs)
    path = torch.stack([best.nodes[f"z_{t}"]["value"] for t in range(4)], 1)
    assert torch.equal(path, chain.viterbi()[0])
