"""Kalman filter and smoother against dynamax, pyro's GaussianHMM, pykalman and statsmodels: tokens a second.

Latent size h = 50 and 200, 50 observed numbers a step, one thread each, whole calls as a user makes them: from
observations and parameters to the log-likelihood and filtered means (filter) or smoothed means (smoother). A batch of 1,024
sentences of 32 steps, and one long sequence; libraries that need minutes for that many steps get fewer, and all are
reported as tokens a second. Each library works in a process of its own, in turn; before any speed is reported, the
log-likelihood and all means of a small problem must agree. GaussianHMM gives the log-likelihood only: its filter returns
the last state alone. Memory is what the process grows by, for one long sequence of twice the length against once.

    python scripts/bench/kalman_peers.py [--sizes 50,200] [--peers-python PATH]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import sys

import numpy as np
from peers import Worker, answer_turns, take_turns

N = 50  # observed numbers a step
CHECK, BATCH = (3, 20), (1024, 32)  # sequences, steps
OPERATIONS = ("filter batch", "smooth batch", "filter long", "smooth long")
# name -> (library, variant)
CONTENDERS = {
    "pplseq float64": ("pplseq", "float64"),
    "pplseq float32": ("pplseq", "float32"),
    "dynamax float64": ("dynamax", "float64"),
    "dynamax float32": ("dynamax", "float32"),
    "pyro float64": ("pyro", "float64"),
    "pyro float32": ("pyro", "float32"),
    "pykalman float64": ("pykalman", "float64"),
    "statsmodels float64": ("statsmodels", "float64"),
}
# (sequences, steps) of a batch, steps of the long sequence: what takes seconds, not minutes
SIZES = {
    "pplseq": (BATCH, 65536),
    "dynamax": (BATCH, 2048),
    "pyro": ((16, 32), 512),
    "pykalman": ((4, 32), 128),
    "statsmodels": ((8, 32), 256),
}


def problem(h: int, shape: tuple[int, int]):
    """A stable system, its stationary-like prior, and (B, T, n) observations drawn from it."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.standard_normal((h, h)))[0]
    A = rotation @ np.diag(rng.uniform(0.2, 0.9, h)) @ rotation.T
    C = rng.standard_normal((N, h)) / np.sqrt(h)
    Q, D, P1 = 0.5 * np.eye(h), np.diag(rng.uniform(0.5, 1.5, N)), np.eye(h)
    B, T = shape
    x, y = rng.standard_normal((B, h)), np.empty((B, T, N))
    for t in range(T):
        if t:
            x = x @ A.T + np.sqrt(0.5) * rng.standard_normal((B, h))
        y[:, t] = x @ C.T + rng.standard_normal((B, N)) * np.sqrt(np.diag(D))
    return A, C, Q, D, P1, y


# ------------------------------------------------------------------------------------------------ what each library runs
def pplseq_runs(h: int, variant: str):
    import torch

    from pplseq.distributions.gaussian_types import GaussianBelief
    from pplseq.distributions.linear_gaussian import LinearEmission
    from pplseq.distributions.noise import DiagonalNoise
    from pplseq.infer.gaussian.chain import Dynamics, GaussianChain

    torch.set_num_threads(1)
    dtype = getattr(torch, variant)

    def make(shape):
        A, C, Q, D, P1, y = (torch.as_tensor(a, dtype=dtype) for a in problem(h, shape))
        y = y.transpose(0, 1).contiguous()  # time first
        start, dynamics = GaussianBelief(torch.zeros(h, dtype=dtype), P1), Dynamics(A, Q, None)

        def chain():
            return GaussianChain(start, dynamics, LinearEmission(C, DiagonalNoise(D.diagonal())).evidence(y))

        def filter_():
            with torch.no_grad():
                c = chain()
                return c.log_prob().sum(), c.filtered_states().means

        def smooth():
            with torch.no_grad():
                c = chain()
                return c.log_prob().sum(), c.smoothed_states().means

        return filter_, smooth

    return make


def dynamax_runs(h: int, variant: str):
    import jax

    jax.config.update("jax_enable_x64", variant == "float64")
    import jax.numpy as jnp
    from dynamax.linear_gaussian_ssm import LinearGaussianSSM
    from dynamax.linear_gaussian_ssm.inference import lgssm_filter, lgssm_smoother

    def make(shape):
        A, C, Q, D, P1, y = problem(h, shape)
        parameters, _ = LinearGaussianSSM(h, N).initialize(
            initial_mean=jnp.zeros(h), initial_covariance=jnp.array(P1), dynamics_weights=jnp.array(A),
            dynamics_covariance=jnp.array(Q), emission_weights=jnp.array(C), emission_covariance=jnp.array(D),
        )  # fmt: skip
        y = jnp.array(y)
        # for one sequence vmap would only be in the way
        over = jax.vmap if shape[0] > 1 else (lambda f: lambda y: jax.tree.map(lambda a: a[None], f(y[0])))

        def filter_one(row):
            post = lgssm_filter(parameters, row)
            return post.marginal_loglik, post.filtered_means

        def smooth_one(row):
            post = lgssm_smoother(parameters, row)
            return post.marginal_loglik, post.smoothed_means

        run_filter, run_smooth = jax.jit(over(filter_one)), jax.jit(over(smooth_one))

        def take(run):
            log_prob, means = jax.block_until_ready(run(y))
            return log_prob.sum(), means

        return lambda: take(run_filter), lambda: take(run_smooth)

    return make


def pyro_runs(h: int, variant: str):
    import pyro.distributions as dist
    import torch

    torch.set_num_threads(1)
    dtype = getattr(torch, variant)

    def make(shape):
        A, C, Q, D, P1, y = (torch.as_tensor(a, dtype=dtype) for a in problem(h, shape))
        # its first transition precedes the first observation: the prior before it, such that P1 comes out
        inverse = torch.linalg.inv(A)
        before = inverse @ (P1 - Q) @ inverse.T
        before = (before + before.T) / 2

        def filter_():
            with torch.no_grad():
                hmm = dist.GaussianHMM(
                    dist.MultivariateNormal(torch.zeros(h, dtype=dtype), before), A.T,
                    dist.MultivariateNormal(torch.zeros(h, dtype=dtype), Q), C.T,
                    dist.Normal(torch.zeros(N, dtype=dtype), D.diagonal().sqrt()).to_event(1), duration=shape[1],
                )  # fmt: skip
                return hmm.log_prob(y).sum(), None

        return filter_, None

    return make


def pykalman_runs(h: int, variant: str):
    from pykalman import KalmanFilter

    def make(shape):
        A, C, Q, D, P1, y = problem(h, shape)
        model = KalmanFilter(A, C, Q, D, np.zeros(h), np.zeros(N), np.zeros(h), P1)

        def run(method):
            return None, np.stack([getattr(model, method)(row)[0] for row in y])

        return lambda: run("filter"), lambda: run("smooth")

    return make


def statsmodels_runs(h: int, variant: str):
    from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

    def make(shape):
        A, C, Q, D, P1, y = problem(h, shape)

        def run(method):
            log_prob, means = 0.0, []
            for row in y:
                model = KalmanSmoother(
                    N, h, k_posdef=h, design=C, obs_cov=D, transition=A, selection=np.eye(h), state_cov=Q
                )
                model.bind(np.ascontiguousarray(row))
                model.initialize_known(np.zeros(h), P1)
                result = getattr(model, method)()
                log_prob += result.llf
                means.append((result.filtered_state if method == "filter" else result.smoothed_state).T)
            return log_prob, np.stack(means)

        return lambda: run("filter"), lambda: run("smooth")

    return make


LIBRARIES = {
    "pplseq": pplseq_runs,
    "dynamax": dynamax_runs,
    "pyro": pyro_runs,
    "pykalman": pykalman_runs,
    "statsmodels": statsmodels_runs,
}


# ------------------------------------------------------------------------------------------------ workers
def digest(operation: str, value) -> list[float]:
    """The log-likelihood and two projections of all means; nothing for what is only timed."""
    if not operation.startswith("check"):
        return []
    log_prob, means = value
    numbers = [float("nan") if log_prob is None else float(log_prob)]
    if means is not None:
        means = np.asarray(means, dtype=np.float64)
        numbers += [float(means.sum()), float((np.random.default_rng(1).standard_normal(means.shape) * means).sum())]
    return numbers


def work(library: str, variant: str, h: int) -> None:
    make = LIBRARIES[library](h, variant)
    batch, steps = SIZES[library]
    runs = {}
    for name, shape in (("check", CHECK), ("batch", batch), ("long", (1, steps))):
        filter_, smooth = make(shape)
        runs |= {f"{name} filter" if name == "check" else f"filter {name}": filter_}
        runs |= {f"{name} smooth" if name == "check" else f"smooth {name}": smooth}
    if smooth is not None:  # growth of the peak from a sequence to one twice as long

        def memory():
            peaks = []
            for factor in (1, 2, 4):
                make((1, factor * steps))[1]()
                peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
            return 1024 * (peaks[2] - peaks[1]) / (2 * steps), None

        runs["memory"] = memory
    answer_turns(runs, lambda operation, value: [value[0]] if operation == "memory" else digest(operation, value))


def agree(found: list[float], expected: list[float], tolerance: float) -> bool:
    pairs = [(a, b) for a, b in zip(found, expected, strict=False) if a == a]
    return bool(pairs) and all(abs(a - b) <= tolerance * max(1.0, abs(b)) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="50,200")
    parser.add_argument("--peers-python", default=os.environ.get("PEERS_PYTHON"), metavar="PATH",
                        help="interpreter of an environment with dynamax, pykalman and statsmodels")  # fmt: skip
    parser.add_argument("--patience", type=float, default=20.0, help="CPU seconds for one library and operation")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        library, variant, h = options.worker
        return work(library, variant, int(h))
    from record import record

    python = {}
    for library in LIBRARIES:
        own = library in ("pplseq", "pyro") or importlib.util.find_spec(library) is not None
        python[library] = sys.executable if own else options.peers_python
        if python[library] is None:
            print(f"{library}: not installed here, left out", file=sys.stderr)
    rows = []
    for h in map(int, options.sizes.split(",")):
        workers = {
            name: Worker(python[library], __file__, library, variant, h)
            for name, (library, variant) in CONTENDERS.items()
            if python[library] is not None
        }
        for operation in ("check filter", "check smooth"):
            asked = {name: w for name, w in workers.items() if "smooth" not in operation or not name.startswith("pyro")}
            found = {name: worker.run(operation)["digest"] for name, worker in asked.items()}
            for name, numbers in found.items():
                if not agree(numbers, found["pplseq float64"], 1e-6 if "64" in name else 5e-3):
                    raise SystemExit(f"{operation}: {name} gives {numbers}, not {found['pplseq float64']}")
        for operation in OPERATIONS:
            asked = {name: w for name, w in workers.items() if "smooth" not in operation or not name.startswith("pyro")}
            times = take_turns(asked, operation, options.patience, reference=None)
            speed = {}
            for name, seconds in times.items():
                (B, T), steps = SIZES[CONTENDERS[name][0]]
                speed[name] = (B * T if "batch" in operation else steps) / seconds
            row = {"h": h, "operation": operation, "tokens a second": {k: round(v) for k, v in speed.items()}}
            row["pplseq over peer"] = {
                name: round(speed["pplseq " + name.split()[1]] / value, 1)
                for name, value in speed.items()
                if not name.startswith("pplseq")
            }
            print(json.dumps(row), flush=True)
            rows.append(row)
        memory = {
            name: round(worker.run("memory")["digest"][0])
            for name, worker in workers.items()
            if not name.startswith(("pyro", "pykalman"))
        }
        rows.append({"h": h, "operation": "smooth long", "bytes a token": memory})
        print(json.dumps(rows[-1]), flush=True)
        for worker in workers.values():
            worker.close()
    sys.argv = [a if a != options.peers_python else "PATH" for a in sys.argv]  # no machine's paths in results
    record("kalman_peers", rows, observed=N, batch=BATCH, threads=1, steps={k: v for k, v in SIZES.items()})


if __name__ == "__main__":
    main()
