"""Dense HMMs of 8, 64 and 512 states against hmmlearn and dynamax: one EM iteration, posterior, Viterbi, likelihood.

64 sequences of 256 words, a vocabulary of 100, one thread each, whole calls as a user makes them. Each library works in a
process of its own, and they take turns run by run, so that a machine that drifts slows all of them. Times are those of
the processor, all threads together: other work on a shared machine does not count. Results are compared first. dynamax
may live in another environment (it brings jax): name its interpreter.

    python scripts/bench/hmm_peers.py [--sizes 8,64,512] [--dynamax-python PATH]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np

B, T, V = 64, 256, 100
OPERATIONS = ("em", "posterior", "viterbi", "score")
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
ONE_THREAD["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
# name -> (library, variant); ratios compare numbers of one precision
CONTENDERS = {
    "pplseq float64": ("pplseq", "float64"),
    "pplseq float32": ("pplseq", "float32"),
    "hmmlearn log": ("hmmlearn", "log"),  # its default; float64
    "hmmlearn scaling": ("hmmlearn", "scaling"),
    "dynamax float64": ("dynamax", "float64"),
    "dynamax float32": ("dynamax", "float32"),
}


def problem(num_states: int):
    rng = np.random.default_rng(0)
    initial, matrix = rng.dirichlet(np.ones(num_states)), rng.dirichlet(np.ones(num_states), num_states)
    return initial, matrix, rng.dirichlet(np.ones(V), num_states), rng.integers(0, V, (B, T))


# ------------------------------------------------------------------------------------------------ what each library runs
def pplseq_runs(num_states: int, variant: str) -> dict:
    import torch

    from pplseq.models import HMM

    torch.set_num_threads(1)
    initial, matrix, words, x = problem(num_states)
    x = torch.from_numpy(x)
    model, learner = (HMM(num_states, V, dtype=variant) for _ in range(2))
    for each in (model, learner):
        each.set_parameters(initial=initial, transition=matrix, emission=words)
    start = {name: value.clone() for name, value in learner.state_dict().items()}

    def em():
        learner.load_state_dict(start)
        learner.fit(x, warm_start=True, max_iterations=1)
        return learner.emission.numpy()

    return {
        "em": em,
        "posterior": lambda: model.predict_proba(x).numpy(),
        "viterbi": lambda: model.predict(x).numpy(),
        "score": lambda: model.score(x),
    }


def hmmlearn_runs(num_states: int, variant: str) -> dict:
    import logging

    from hmmlearn.hmm import CategoricalHMM

    logging.disable(logging.WARNING)
    initial, matrix, words, x = problem(num_states)
    x, lengths = x.reshape(-1, 1), [T] * B
    options = dict(implementation=variant, n_features=V, n_iter=1, tol=-np.inf, init_params="", params="ste")
    model, learner = (CategoricalHMM(num_states, **options) for _ in range(2))

    def reset(hmm):
        hmm.startprob_, hmm.transmat_, hmm.emissionprob_ = initial.copy(), matrix.copy(), words.copy()

    def em():
        reset(learner)
        learner.fit(x, lengths)
        return learner.emissionprob_

    reset(model)
    return {
        "em": em,
        "posterior": lambda: model.predict_proba(x, lengths).reshape(B, T, num_states),
        "viterbi": lambda: model.predict(x, lengths).reshape(B, T),
        "score": lambda: model.score(x, lengths),
    }


def dynamax_runs(num_states: int, variant: str) -> dict:
    import jax

    jax.config.update("jax_enable_x64", variant == "float64")
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import CategoricalHMM

    initial, matrix, words, x = problem(num_states)
    # its priors' default concentration of 1.1 belongs to its EM iteration; 1 makes it the peers' maximum likelihood
    hmm = CategoricalHMM(
        num_states, 1, V, initial_probs_concentration=1.0, transition_matrix_concentration=1.0,
        emission_prior_concentration=1.0,
    )  # fmt: skip
    parameters, properties = hmm.initialize(
        initial_probs=jnp.array(initial), transition_matrix=jnp.array(matrix), emission_probs=jnp.array(words)[:, None]
    )
    x = jnp.array(x)[..., None]
    state = hmm.initialize_m_step_state(parameters, properties)

    @jax.jit
    def em_step(parameters, state):
        statistics_, _ = jax.vmap(lambda row: hmm.e_step(parameters, row))(x)
        return hmm.m_step(parameters, properties, statistics_, state)[0].emissions.probs[:, 0]

    posterior = jax.jit(jax.vmap(lambda row: hmm.smoother(parameters, row).smoothed_probs))
    viterbi = jax.jit(jax.vmap(lambda row: hmm.most_likely_states(parameters, row)))
    score = jax.jit(jax.vmap(lambda row: hmm.marginal_log_prob(parameters, row)))
    return {
        "em": lambda: np.asarray(em_step(parameters, state)),
        "posterior": lambda: np.asarray(posterior(x)),
        "viterbi": lambda: np.asarray(viterbi(x)),
        "score": lambda: float(score(x).sum()),
    }


LIBRARIES = {"pplseq": pplseq_runs, "hmmlearn": hmmlearn_runs, "dynamax": dynamax_runs}


# ------------------------------------------------------------------------------------------------ workers
def digest(operation: str, value) -> list[float]:
    """A few numbers by which results are compared."""
    if operation == "score":
        return [float(value)]
    value = np.asarray(value, dtype=np.float64)
    if operation == "viterbi":  # paths of equal probability may differ: their likelihood may not
        initial, matrix, words, x = problem(int(os.environ["BENCH_STATES"]))
        z = value.astype(int)
        score = np.log(initial[z[:, 0]]).sum() + np.log(matrix[z[:, :-1], z[:, 1:]]).sum() + np.log(words[z, x]).sum()
        return [float(score)]
    weight = np.random.default_rng(1).standard_normal(value.shape)
    return [float(value.sum()), float((weight * value).sum())]


def work(library: str, variant: str, num_states: int) -> None:
    """Runs an operation for every line on standard input; answers with its seconds and a digest of its result."""
    runs = LIBRARIES[library](num_states, variant)
    for line in sys.stdin:
        operation, repeat = line.split()
        for _ in range(int(repeat)):  # the last of several counts: the first finds caches full of the others' work
            start = time.process_time()
            value = runs[operation]()
            seconds = time.process_time() - start
        print(json.dumps({"seconds": seconds, "digest": digest(operation, value)}), flush=True)


class Worker:
    def __init__(self, python: str, name: str, num_states: int):
        library, variant = CONTENDERS[name]
        self.process = subprocess.Popen(
            [python, __file__, "--worker", library, variant, str(num_states)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **ONE_THREAD, "BENCH_STATES": str(num_states)},
        )  # fmt: skip

    def run(self, operation: str, repeat: int = 1) -> dict:
        print(operation, repeat, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def take_turns(workers: dict[str, Worker], operation: str, patience: float) -> dict[str, float]:
    """Median CPU seconds of each; slow ones run until ``patience`` seconds are used, at least once."""
    times: dict[str, list[float]] = {name: [] for name in workers}
    digests = {}
    for name, worker in workers.items():  # warm-up, compilation included; it counts only if it leaves no patience
        answer = worker.run(operation)
        digests[name], times[name] = answer["digest"], [answer["seconds"]]
    reference = digests["pplseq float64"]
    for name, found in digests.items():
        tolerance = 1e-6 if "float32" not in name else 2e-3
        if not np.allclose(found, reference, rtol=tolerance, atol=tolerance * abs(reference[0])):
            raise SystemExit(f"{operation}: {name} gives {found}, pplseq {reference}; no speed is reported")
    left = {name: patience if seconds[0] < patience else 0.0 for name, seconds in times.items()}
    for _ in range(15):
        for name, worker in workers.items():
            if left[name] > 0:
                repeat = 3 if times[name][-1] < 1 else 1
                times[name].append(worker.run(operation, repeat)["seconds"])
                left[name] -= repeat * times[name][-1]
    return {name: statistics.median(values[1:] or values) for name, values in times.items()}


def ratios(times: dict[str, float]) -> dict[str, float]:
    """How many times pplseq's time each peer takes, in the peer's precision."""
    result = {}
    for name, seconds in times.items():
        if not name.startswith("pplseq"):
            own = times["pplseq float32" if "float32" in name else "pplseq float64"]
            result[name] = round(seconds / own, 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="8,64,512")
    parser.add_argument("--dynamax-python", default=os.environ.get("DYNAMAX_PYTHON"), metavar="PATH",
                        help="interpreter of an environment with dynamax")  # fmt: skip
    parser.add_argument("--patience", type=float, default=30.0, help="CPU seconds for one library and operation")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        library, variant, num_states = options.worker
        return work(library, variant, int(num_states))
    from record import record

    python = {"pplseq": sys.executable, "hmmlearn": sys.executable, "dynamax": options.dynamax_python}
    if python["dynamax"] is None and importlib.util.find_spec("dynamax"):
        python["dynamax"] = sys.executable
    absent = {library for library, path in python.items() if path is None}
    if importlib.util.find_spec("hmmlearn") is None:
        absent.add("hmmlearn")
    for library in absent:
        print(f"{library}: not installed here, left out", file=sys.stderr)
    rows = []
    for num_states in map(int, options.sizes.split(",")):
        workers = {n: Worker(python[lib], n, num_states) for n, (lib, _) in CONTENDERS.items() if lib not in absent}
        for operation in OPERATIONS:
            times = take_turns(workers, operation, options.patience)
            row = {"states": num_states, "operation": operation}
            row |= {"cpu milliseconds": {name: round(1e3 * value, 3) for name, value in times.items()}}
            row |= {"peer over pplseq": ratios(times)}
            print(json.dumps(row), flush=True)
            rows.append(row)
        for worker in workers.values():
            worker.close()
    sys.argv = [a if a != options.dynamax_python else "PATH" for a in sys.argv]  # no machine's paths in results
    record("hmm_peers", rows, sequences=B, steps=T, words=V, threads=1)


if __name__ == "__main__":
    main()
