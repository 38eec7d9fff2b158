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
import sys

import numpy as np
from peers import Worker, answer_turns, ratios, take_turns

B, T, V = 64, 256, 100
OPERATIONS = ("em", "posterior", "viterbi", "score")
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
def digest(operation: str, value, num_states: int) -> list[float]:
    """A few numbers by which results are compared."""
    if operation == "score":
        return [float(value)]
    value = np.asarray(value, dtype=np.float64)
    if operation == "viterbi":  # paths of equal probability may differ: their likelihood may not
        initial, matrix, words, x = problem(num_states)
        z = value.astype(int)
        score = np.log(initial[z[:, 0]]).sum() + np.log(matrix[z[:, :-1], z[:, 1:]]).sum() + np.log(words[z, x]).sum()
        return [float(score)]
    weight = np.random.default_rng(1).standard_normal(value.shape)
    return [float(value.sum()), float((weight * value).sum())]


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
        runs = LIBRARIES[library](int(num_states), variant)
        return answer_turns(runs, lambda operation, value: digest(operation, value, int(num_states)))
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
        workers = {
            name: Worker(python[library], __file__, library, variant, num_states)
            for name, (library, variant) in CONTENDERS.items()
            if library not in absent
        }
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
