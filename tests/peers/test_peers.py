"""The same models in other libraries: likelihoods, posteriors, best paths."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import multivariate_normal

from pplseq.distributions.dense import CategoricalEmission, DenseTransition, GaussianEmission
from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.infer.programs.markov import markov

close = torch.testing.assert_close
F64 = torch.float64
LENGTHS = [7, 1, 4]


def draw(*shape):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(sum(shape)))


def tables():
    return draw(3).softmax(-1), draw(3, 3).softmax(-1), draw(3, 5).softmax(-1)


def rows(*event):
    generator = torch.Generator().manual_seed(2)
    return [draw(n, *event) if event else torch.randint(5, (n,), generator=generator) for n in LENGTHS]


def batch(sequences, emission):
    x = torch.nn.utils.rnn.pad_sequence(sequences)
    valid = torch.arange(len(x)).unsqueeze(-1) < torch.tensor(LENGTHS)
    start, matrix, _ = tables()
    return build_chain(DenseTransition.from_probs(start, matrix), emission, x, valid=valid)


def same_as_hmmlearn(model, chain, sequences):
    start, matrix, _ = tables()
    model.startprob_, model.transmat_ = start.numpy(), matrix.numpy()
    probs, (paths, best) = chain.marginals().probs, chain.viterbi()
    for k, sequence in enumerate(sequences):
        x = sequence.numpy().reshape(len(sequence), -1)
        log_prob, posterior = model.score_samples(x)
        close(chain.log_prob()[k], torch.tensor(log_prob, dtype=F64))
        close(probs[k, : len(x)], torch.tensor(posterior))
        score, path = model.decode(x)
        close(best[k], torch.tensor(score, dtype=F64))
        assert paths[k, : len(x)].tolist() == list(path)


def test_hmmlearn_words():
    hmm = pytest.importorskip("hmmlearn.hmm")
    model = hmm.CategoricalHMM(3, n_features=5)
    model.emissionprob_ = tables()[2].numpy()
    same_as_hmmlearn(model, batch(rows(), CategoricalEmission.from_probs(tables()[2])), rows())


def test_hmmlearn_vectors():
    hmm = pytest.importorskip("hmmlearn.hmm")
    model, loc, scale = hmm.GaussianHMM(3, "diag"), draw(3, 2), draw(3, 2).exp()
    model.n_features, model.means_, model.covars_ = 2, loc.numpy(), scale.square().numpy()
    same_as_hmmlearn(model, batch(rows(2), GaussianEmission(loc, scale)), rows(2))


def test_pyros_discrete_hmm():
    start, matrix, words = tables()
    x = torch.stack([row.repeat(7)[:7] for row in rows()])
    peer = dist.DiscreteHMM(start.log(), matrix.log(), dist.Categorical(words), duration=7)
    # its first state is drawn one step before the first observation
    first = (start.log().unsqueeze(-1) + matrix.log()).logsumexp(0)
    chain = build_chain(DenseTransition(first, matrix.log()), CategoricalEmission.from_probs(words), x.T)
    close(chain.log_prob(), peer.log_prob(x))


def linear_system():
    A, C = 0.6 * torch.eye(2, dtype=F64) + 0.1 * draw(2, 2), draw(3, 2)
    Q, R = (root @ root.mT + torch.eye(len(root), dtype=F64) for root in (draw(2, 2), draw(3, 3)))
    return A, C, Q, R


def kalman(y):
    A, C, Q, R = linear_system()
    with KalmanCollapse() as posterior:
        x = None
        for t in markov(range(len(y))):
            x = pyro.sample(f"x_{t}", LinearGaussian(x, A, Q))
            pyro.sample(f"y_{t}", LinearGaussian(x, C, R), obs=y[t])
    return posterior.chains["x_0"]


def test_the_joint_normal_of_scipy():
    y, (A, C, Q, R) = draw(5, 3), linear_system()
    steps, covariance = len(y), Q
    joint = torch.zeros(5, 3, 5, 3, dtype=F64)
    for s in range(steps):
        between = covariance
        for t in range(s, steps):
            joint[t, :, s] = C @ between @ C.T + (R if s == t else 0)
            joint[s, :, t] = joint[t, :, s].T
            between = A @ between
        covariance = A @ covariance @ A.T + Q
    expected = multivariate_normal.logpdf(y.flatten().numpy(), cov=joint.reshape(15, 15).numpy())
    close(kalman(y).log_prob().sum(), torch.tensor(expected, dtype=F64))


def test_pyros_gaussian_hmm():
    y, (A, C, Q, R) = draw(5, 3), linear_system()
    zero = torch.zeros(2, dtype=F64)
    # its first state is drawn one step before the first observation: one step of Q from nothing
    start = dist.MultivariateNormal(zero, 1e-10 * torch.eye(2, dtype=F64))
    move, see = (dist.MultivariateNormal(torch.zeros(len(n), dtype=F64), n) for n in (Q, R))
    peer = dist.GaussianHMM(start, A.T, move, C.T, see, duration=5)
    close(kalman(y).log_prob().sum(), peer.log_prob(y), rtol=1e-7, atol=1e-7)


def test_statsmodels():
    space = pytest.importorskip("statsmodels.tsa.statespace.mlemodel")
    y, (A, C, Q, R) = draw(9, 3), linear_system()
    model = space.MLEModel(y.numpy(), k_states=2, k_posdef=2)
    for name, value in (("transition", A), ("design", C), ("state_cov", Q), ("obs_cov", R)):
        model[name] = value.numpy()
    model["selection"] = np.eye(2)
    model.ssm.initialize_known(np.zeros(2), Q.numpy())
    close(kalman(y).log_prob().sum(), torch.tensor(model.ssm.loglike(), dtype=F64))


@pytest.mark.slow
def test_pykalman():
    peer = pytest.importorskip("pykalman")
    y, (A, C, Q, R) = draw(9, 3), linear_system()
    model = peer.KalmanFilter(A.numpy(), C.numpy(), Q.numpy(), R.numpy(), np.zeros(2), np.zeros(3), np.zeros(2), Q.numpy())
    close(kalman(y).log_prob().sum(), torch.tensor(model.loglikelihood(y.numpy()), dtype=F64))
    close(kalman(y).smoothed_states().means.reshape(9, 2), torch.tensor(model.smooth(y.numpy())[0]))
