"""Linear dynamical systems in pplseq, dynamax, statsmodels, pykalman and pyro, for :mod:`peers`.

Whole calls as a user makes them, of a model that exists: log-likelihood, smoothed means, the likelihood's gradient in the
matrices, and an iteration of EM. pyro's GaussianHMM has the likelihood and its gradient only; statsmodels no batches and no
exact EM: its rows run one after the other, as do pykalman's.

    python scripts/bench/kalman_peers.py [--repeat 5]

is a fit as a whole: the local level of the Nile's flow in its own units (Durbin and Koopman 2012, section 2.10: variances
15099 and 1469), by EM, L-BFGS and StructuralModel beside statsmodels' UnobservedComponents, in turn. Times are the
processor's, minima, from the making of the model on. Writes ``results/bench/nile.json``.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings

import numpy as np
from record import record

OPERATIONS = ("score", "smooth", "gradient", "em")
PLAIN = 20  # iterations of EM, whose likelihood a fit is to reach
VARIANTS = {"pplseq": [""], "dynamax": [""], "statsmodels": [""], "pykalman": [""], "pyro": [""]}


def problem(size: tuple[int, int], shape: tuple[int, int]):
    """A stable system of h states and n numbers, and (B, T, n) observations drawn from it."""
    rng, (h, n), (B, T) = np.random.default_rng(0), size, shape
    rotation = np.linalg.qr(rng.standard_normal((h, h)))[0]
    A = rotation @ np.diag(rng.uniform(0.2, 0.9, h)) @ rotation.T
    C = rng.standard_normal((n, h)) / np.sqrt(h)
    Q, D, P1 = 0.5 * np.eye(h), np.diag(rng.uniform(0.5, 1.5, n)), np.eye(h)
    x, y = rng.standard_normal((B, h)), np.empty((B, T, n))
    for t in range(T):
        if t:
            x = x @ A.T + np.sqrt(0.5) * rng.standard_normal((B, h))
        y[:, t] = x @ C.T + rng.standard_normal((B, n)) * np.sqrt(np.diag(D))
    return A, C, Q, D, P1, y


def pplseq_runs(size: tuple[int, int], variant: str, shape: tuple[int, int]) -> dict:
    import torch

    from pplseq.models import LDS

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)
    A, C, Q, D, P1, y = problem(size, shape)
    x = torch.from_numpy(y)
    model, learner = (LDS(*size, offsets="none") for _ in range(2))
    for each in (model, learner):
        each.set_parameters(
            transition=A, state_noise=Q, emission=C, emission_noise=D, initial_mean=np.zeros(size[0]), initial_covariance=P1
        )
    start = [(parameter.data, parameter.detach().clone()) for parameter in learner.parameters()]

    def begin():  # the other libraries' parameters are arguments, which EM leaves as they are
        for parameter, first in start:
            parameter.copy_(first)

    def gradient():
        model.zero_grad()
        model.log_joint(x).backward()
        return model.transition.grad.numpy(), model.emission.grad.numpy()

    def em():
        begin()
        learner.fit(x, warm_start=True, max_iterations=1, tolerance=0.0)
        return learner.transition.detach().numpy(), learner.emission.detach().numpy()

    needed = []

    def fit_for(iterations: int, **options):
        begin()
        return learner.fit(x, warm_start=True, max_iterations=iterations, tolerance=0.0, **options).history.log_likelihoods

    def fit():
        if not needed:  # the first run is not timed
            target = fit_for(PLAIN + 1, acceleration=0)[PLAIN]
            reached = [value >= target - 1e-9 * abs(target) for value in fit_for(PLAIN + 1)]
            needed.extend([reached.index(True), target])
        fit_for(needed[0])
        return needed[1]

    return {
        "fit": fit,
        "score": lambda: model.score(x),
        "smooth": lambda: model.transform(x).numpy(),
        "gradient": gradient,
        "em": em,
    }


def dynamax_runs(size: tuple[int, int], variant: str, shape: tuple[int, int]) -> dict:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from dynamax.linear_gaussian_ssm import LinearGaussianSSM
    from dynamax.linear_gaussian_ssm.inference import lgssm_filter, lgssm_smoother

    A, C, Q, D, P1, y = problem(size, shape)
    ssm = LinearGaussianSSM(*size, has_dynamics_bias=False, has_emissions_bias=False)
    parameters, properties = ssm.initialize(
        initial_mean=jnp.zeros(size[0]), initial_covariance=jnp.array(P1), dynamics_weights=jnp.array(A),
        dynamics_covariance=jnp.array(Q), emission_weights=jnp.array(C), emission_covariance=jnp.array(D),
    )  # fmt: skip
    y = jnp.array(y)

    def over(run):  # for one sequence vmap would only be in the way
        return jax.vmap(run) if shape[0] > 1 else lambda rows: jax.tree.map(lambda leaf: leaf[None], run(rows[0]))

    def log_prob(matrices, rows):
        dynamics = parameters.dynamics._replace(weights=matrices[0])
        changed = parameters._replace(dynamics=dynamics, emissions=parameters.emissions._replace(weights=matrices[1]))
        return over(lambda row: lgssm_filter(changed, row).marginal_loglik)(rows).sum()

    score, gradient = jax.jit(log_prob), jax.jit(jax.grad(log_prob))
    smooth = jax.jit(over(lambda row: lgssm_smoother(parameters, row).smoothed_means))
    matrices = parameters.dynamics.weights, parameters.emissions.weights

    @jax.jit
    def em_step(now, state):
        statistics, log_probs = jax.vmap(lambda row: ssm.e_step(now, row))(y)
        return *ssm.m_step(now, properties, statistics, state), log_probs.sum()

    def em():
        now, state = parameters, ssm.initialize_m_step_state(parameters, properties)
        now = em_step(now, state)[0]
        return np.asarray(now.dynamics.weights), np.asarray(now.emissions.weights)

    target = []

    def fit():
        now, state = parameters, ssm.initialize_m_step_state(parameters, properties)
        for _ in range(PLAIN):
            now, state, _ = em_step(now, state)
        np.asarray(now.dynamics.weights)
        if not target:  # the first run is not timed
            target.append(float(em_step(now, state)[2]))
        return target[0]

    return {
        "fit": fit,
        "score": lambda: float(score(matrices, y)),
        "smooth": lambda: np.asarray(smooth(y)),
        "gradient": lambda: [np.asarray(part) for part in gradient(matrices, y)],
        "em": em,
    }


def statsmodels_runs(size: tuple[int, int], variant: str, shape: tuple[int, int]) -> dict:
    from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

    (h, n), (A, C, Q, D, P1, y) = size, problem(size, shape)
    models = []
    for row in y:
        model = KalmanSmoother(n, h, k_posdef=h, design=C, obs_cov=D, transition=A, selection=np.eye(h), state_cov=Q)
        model.bind(np.ascontiguousarray(row))
        model.initialize_known(np.zeros(h), P1)
        models.append(model)
    return {
        "score": lambda: sum(float(model.loglike()) for model in models),
        "smooth": lambda: np.stack([model.smooth().smoothed_state.T for model in models]),
    }


def pykalman_runs(size: tuple[int, int], variant: str, shape: tuple[int, int]) -> dict:
    from pykalman import KalmanFilter

    (h, n), (A, C, Q, D, P1, y) = size, problem(size, shape)
    model = KalmanFilter(A, C, Q, D, np.zeros(h), np.zeros(n), np.zeros(h), P1)
    return {
        "score": lambda: sum(model.loglikelihood(row) for row in y),
        "smooth": lambda: np.stack([model.smooth(row)[0] for row in y]),
    }


def pyro_runs(size: tuple[int, int], variant: str, shape: tuple[int, int]) -> dict:
    import pyro.distributions as dist
    import torch

    torch.set_num_threads(1)
    h, n = size
    A, C, Q, D, P1, y = (torch.as_tensor(part) for part in problem(size, shape))
    # its first transition precedes the first observation: the prior before it, such that P1 comes out
    inverse = torch.linalg.inv(A)
    before = inverse @ (P1 - Q) @ inverse.T
    A, C = A.requires_grad_(), C.requires_grad_()

    def log_prob():
        hmm = dist.GaussianHMM(
            dist.MultivariateNormal(torch.zeros(h).double(), (before + before.T) / 2), A.T,
            dist.MultivariateNormal(torch.zeros(h).double(), Q), C.T,
            dist.Normal(torch.zeros(n).double(), D.diagonal().sqrt()).to_event(1), duration=shape[1],
        )  # fmt: skip
        return hmm.log_prob(y).sum()

    def score():
        with torch.no_grad():
            return float(log_prob())

    return {"score": score}  # its gradient in A is another one: the prior above holds for this A alone


LIBRARIES = {
    "pplseq": pplseq_runs, "dynamax": dynamax_runs, "statsmodels": statsmodels_runs, "pykalman": pykalman_runs,
    "pyro": pyro_runs,
}  # fmt: skip


def digest(operation: str, value, size: tuple[int, int], shape: tuple[int, int]) -> list[float]:
    """A few numbers by which results are compared."""
    if operation in ("score", "fit"):
        return [float(value)]
    parts = [np.asarray(part, dtype=np.float64) for part in (value if isinstance(value, (tuple, list)) else [value])]
    if operation == "em":  # the coordinates of states stay, as both start from the same
        parts = [parts[1] @ parts[0]]
    return [float((np.random.default_rng(1).standard_normal(part.shape) * part).sum()) for part in parts]


# ------------------------------------------------------------------------------------------------ one fit: the Nile
BOOK = {"noise": 15099.0, "level": 1469.1}
NEAR = 0.005  # share by which each variance may be off
MOST = 20.0  # times statsmodels' seconds, at most


def nile_fits() -> dict:
    """name -> a call that fits a new model and gives the variances of noise and level."""
    from statsmodels.datasets import nile
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    from pplseq.models import LDS, StructuralModel

    flow = nile.load().data["volume"].to_numpy(dtype=float)
    x, held = flow[None, :, None], ("transition", "emission")

    def level(state_noise, emission_noise, **options):
        return LDS(1, 1, offsets="none", **options).set_parameters(
            transition=[[1.0]], emission=[[1.0]], state_noise=[[state_noise]], emission_noise=[[emission_noise]]
        )

    def variances(model):
        return model.emission_noise.item(), model.state_noise.item()

    def diffuse(method):  # half of the variance each
        return variances(level(x.var() / 2, x.var() / 2, initial="diffuse").fit(x, method=method, fixed=held))

    def wide():
        model = level(1.0, 1.0).set_parameters(initial_mean=[0.0], initial_covariance=[[1e7]])
        return variances(model.fit(x, method="lbfgs", fixed=(*held, "initial_mean", "initial_covariance")))

    def structural():
        return variances(StructuralModel().fit(flow))

    def peer(**options):
        model = UnobservedComponents(flow, "llevel", use_exact_diffuse=True)
        return tuple(model.fit(disp=0, **options).params)

    return {
        "statsmodels": peer,
        "statsmodels, tolerances of 1e-12": lambda: peer(pgtol=1e-12, factr=10.0),
        "pplseq, EM": lambda: diffuse("em"),
        "pplseq, L-BFGS": lambda: diffuse("lbfgs"),
        "pplseq, L-BFGS from variances of 1": wide,
        "pplseq, StructuralModel": structural,
    }


def measure_nile(repeat: int) -> list[dict]:
    fits = nile_fits()
    found, seconds = {name: fit() for name, fit in fits.items()}, {name: [] for name in fits}
    for _ in range(repeat):
        for name, fit in fits.items():
            begin = time.process_time()
            fit()
            seconds[name].append(time.process_time() - begin)
    least = {name: min(times) for name, times in seconds.items()}
    rows = []
    for name, (noise, level) in found.items():
        off = max(abs(noise / BOOK["noise"] - 1), abs(level / BOOK["level"] - 1))
        row = {"fit": name, "noise": round(float(noise), 2), "level": round(float(level), 2), "off": round(float(off), 5)}
        row |= {"processor_seconds": round(least[name], 5), "of_statsmodels": round(least[name] / least["statsmodels"], 2)}
        print(row, flush=True)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows, load = measure_nile(options.repeat), round(os.getloadavg()[0], 1)
    record("nile", rows, book=BOOK, goal_off=NEAR, goal_of_statsmodels=MOST, threads=1, load=load)


if __name__ == "__main__":
    main()
