"""The same models in dynamax (JAX), which runs in an interpreter of its own where this one has no JAX:

DYNAMAX_PYTHON=/an/environment/bin/python pytest tests/peers/test_dynamax.py -m slow
"""

import itertools
import json
import os
import subprocess
import sys

import pyro
import pytest
import torch
from support.path_truth import PathTruth

from pplseq.distributions.dense import CategoricalEmission, DenseTransition, GaussianEmission, StepTransition
from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.infer.programs.markov import markov

close = torch.testing.assert_close
F64 = torch.float64
pytestmark = pytest.mark.slow

DISCRETE = """
from dynamax.hidden_markov_model import hmm_filter, hmm_posterior_mode, hmm_two_filter_smoother
start, matrix, scores = (np.array(given[name]) for name in ("start", "matrix", "scores"))
two = hmm_two_filter_smoother(start, matrix, scores)
found = {
    "log_prob": two.marginal_loglik, "filtered": hmm_filter(start, matrix, scores).filtered_probs,
    "smoothed": two.smoothed_probs, "path": hmm_posterior_mode(start, matrix, scores),
    "gradient": jax.grad(lambda table: hmm_filter(start, jax.nn.softmax(table, 1), scores).marginal_loglik)(np.log(matrix)),
}
"""
FIXED_LAG = """
from dynamax.hidden_markov_model import hmm_fixed_lag_smoother
start, matrix, scores = (np.array(given[name]) for name in ("start", "matrix", "scores"))
windows = given["windows"]
found = {str(w): hmm_fixed_lag_smoother(start, matrix, jnp.array(scores), int(w)).smoothed_probs for w in windows}
"""
GAUSSIAN = """
from dynamax.linear_gaussian_ssm import lgssm_smoother, LinearGaussianSSM
A, C, Q, R, mean, cov, y = (np.array(given[name]) for name in ("A", "C", "Q", "R", "mean", "cov", "y"))
model = LinearGaussianSSM(len(A), len(C), has_dynamics_bias=False, has_emissions_bias=False)
params, _ = model.initialize(
    jax.random.PRNGKey(0), initial_mean=jnp.array(mean), initial_covariance=jnp.array(cov), dynamics_weights=jnp.array(A),
    dynamics_covariance=jnp.array(Q), emission_weights=jnp.array(C), emission_covariance=jnp.array(R))
each = [lgssm_smoother(params, jnp.array(row)) for row in y]
found = {
    "log_prob": jnp.stack([one.marginal_loglik for one in each]), "means": jnp.stack([one.smoothed_means for one in each]),
    "covs": jnp.stack([one.smoothed_covariances for one in each]),
    "gradient": jax.grad(lambda A: sum(
        lgssm_smoother(params._replace(dynamics=params.dynamics._replace(weights=A)), jnp.array(row)).marginal_loglik
        for row in y))(jnp.array(A)),
}
"""
FRAME = """
import json, sys, warnings
warnings.simplefilter("ignore")
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import numpy as np
given = json.load(sys.stdin)
{}
print(json.dumps({{name: np.asarray(value).tolist() for name, value in found.items()}}))
"""


def ask(script: str, **given) -> dict:
    """What a script says about these numbers in dynamax's interpreter: name -> tensor."""
    python = os.environ.get("DYNAMAX_PYTHON")
    if python is None:
        pytest.importorskip("dynamax")
        python = sys.executable
    text = json.dumps({name: value.tolist() for name, value in given.items()})
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([python, "-c", FRAME.format(script)], input=text, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    return {name: torch.tensor(value, dtype=None if name == "path" else F64) for name, value in answers.items()}


def draw(*shape):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("kind", ["words", "vectors"])
def test_chains(kind):
    start, scores = draw(4).softmax(-1), draw(4, 4).requires_grad_()
    transition = DenseTransition(start.log(), scores.log_softmax(-1))
    if kind == "words":
        emission, x = CategoricalEmission.from_probs(draw(4, 6).softmax(-1)), torch.arange(11) % 6
    else:
        emission, x = GaussianEmission(draw(4, 2), draw(4, 2).exp()), draw(11, 2)
    chain = build_chain(transition, emission, x.unsqueeze(1))
    matrix = scores.detach().softmax(-1)
    found = ask(DISCRETE, start=start, matrix=matrix, scores=chain.factors.emit[:, 0].detach())
    log_prob = chain.log_prob()[0]
    close(log_prob, found["log_prob"])
    close(torch.autograd.grad(log_prob, scores)[0], found["gradient"])
    close(chain.filtered_states().probs[0], found["filtered"])
    close(chain.marginals().probs[0], found["smoothed"])
    assert chain.viterbi()[0][0].tolist() == found["path"].tolist()


class Scores:
    """Log-likelihoods (T, Z) of observations that are numbers of steps."""

    event_shape, batch_shape, num_states = torch.Size(), torch.Size(), 3

    def __init__(self, scores):
        self.scores = scores

    def log_likelihood(self, obs):
        return self.scores[obs]


@pytest.mark.parametrize("by_step", [False, True])
@pytest.mark.parametrize("shift", [0.0, -800.0])
def test_fixed_lag(by_step, shift):
    """Both against all paths. dynamax (1.0.3) answers p(z_u | y_1..y_t) for every u of a window of W steps that ends at t: a
    lag of W - 1, where its documentation calls W the lag; a window of one step (filtering) is an IndexError.

    Where they differ the paths say that dynamax is wrong: its window multiplies ``exp(log_likelihoods)`` as they are, neither
    less their largest nor scaled again from step to step, so that with log-likelihoods of -800 (an observation of some hundred
    numbers; of -400 from three steps on) all but the last entry of the window are 0 and sum to 0 where a posterior sums to 1.
    A constant on all log-likelihoods of a step changes no posterior. :meth:`fixed_lag` is right at both.
    """
    steps, size = 6, 3
    time, start, scores = torch.arange(steps).unsqueeze(1), draw(size).softmax(-1), draw(steps, size)
    matrix = draw(steps - 1, size, size).softmax(-1) if by_step else draw(size, size).softmax(-1)
    emission = Scores(scores + shift)
    if by_step:
        transition = StepTransition(start.log(), lambda t: matrix.log()[t - 1], size, input_dims=0)
        chain = build_chain(transition, emission, time, inputs=time)
    else:
        chain = build_chain(DenseTransition(start.log(), matrix.log()), emission, time)
    matrices = matrix if by_step else matrix.expand(steps - 1, -1, -1)
    windows = torch.tensor([2, 3, 5])
    found = ask(FIXED_LAG, start=start, matrix=matrix, scores=scores + shift, windows=windows)
    for window in windows.tolist():
        ours = chain.fixed_lag(window - 1).probs[0]
        theirs = found[str(window)]
        for t, u in itertools.product(range(steps), range(steps)):
            if not t - window < u <= t:
                continue
            truth = PathTruth(start.log(), matrices.log(), scores).prefix(t + 1).marginals()[u]
            if u == t - window + 1 or t == steps - 1:
                close(ours[u], truth)
            there = theirs[t, u - t + window - 1]
            if float(there.sum()) > 0.5 or not shift:  # else: see above
                close(there, truth)


def test_linear_systems():
    h, n = 3, 2
    A, C, mean, y = (0.5 * draw(h, h)).requires_grad_(), draw(n, h), draw(h), draw(2, 9, n)
    Q, R, cov = (root @ root.mT + torch.eye(len(root), dtype=F64) for root in (draw(h, h), draw(n, n), draw(h, h + 1)))
    with KalmanCollapse() as posterior, pyro.plate("rows", 2):
        x = None
        for t in markov(range(9)):
            x = pyro.sample(f"x_{t}", LinearGaussian(None, A, cov, mean) if x is None else LinearGaussian(x, A, Q))
            pyro.sample(f"y_{t}", LinearGaussian(x, C, R), obs=y[:, t])
    chain = posterior.chains["x_0"]
    log_prob, smoothed = chain.log_prob(), chain.smoothed_states()
    found = ask(GAUSSIAN, A=A.detach(), C=C, Q=Q, R=R, mean=mean, cov=cov, y=y)
    close(log_prob, found["log_prob"])
    close(torch.autograd.grad(log_prob.sum(), A)[0], found["gradient"])
    close(smoothed.means, found["means"])
    close(smoothed.covariances.dense(), found["covs"])
