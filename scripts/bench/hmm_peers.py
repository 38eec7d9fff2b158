"""Dense HMMs against hmmlearn and dynamax: an EM iteration, posterior, Viterbi, likelihood, and the likelihood's gradient.

64 sequences of 256 words (or ``--shape``), a vocabulary of 100, one thread each, whole calls as a user makes them; the gradient
is that in the logits of all tables, for which hmmlearn has nothing. Each library works in a
process of its own, and they take turns run by run, so that a machine that drifts slows all of them. Times are those of
the processor, all threads together: other work on a shared machine does not count. Results are compared first. dynamax
may live in another environment (it brings jax): name its interpreter.

    python scripts/bench/hmm_peers.py [--sizes 8,64,512] [--shape 64x256] [--dynamax-python PATH]

One shape after the other makes the page ``results/bench/peers.md`` and its picture, rows where a peer wins first.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys

import numpy as np
from peers import Worker, answer_turns, ratios, take_turns

V = 100
OPERATIONS = ("em", "posterior", "viterbi", "score", "gradient")
# name -> (library, variant); ratios compare numbers of one precision
CONTENDERS = {
    "pplseq float64": ("pplseq", "float64"),
    "pplseq float32": ("pplseq", "float32"),
    "hmmlearn log": ("hmmlearn", "log"),  # its default; float64
    "hmmlearn scaling": ("hmmlearn", "scaling"),
    "dynamax float64": ("dynamax", "float64"),
    "dynamax float32": ("dynamax", "float32"),
}


def problem(num_states: int, shape: tuple[int, int]):
    rng = np.random.default_rng(0)
    initial, matrix = rng.dirichlet(np.ones(num_states)), rng.dirichlet(np.ones(num_states), num_states)
    return initial, matrix, rng.dirichlet(np.ones(V), num_states), rng.integers(0, V, shape)


# ------------------------------------------------------------------------------------------------ what each library runs
def pplseq_runs(num_states: int, variant: str, shape: tuple[int, int]) -> dict:
    import torch

    from pplseq.models import HMM

    torch.set_num_threads(1)
    initial, matrix, words, x = problem(num_states, shape)
    x = torch.from_numpy(x)
    model, learner = (HMM(num_states, V, dtype=variant) for _ in range(2))
    for each in (model, learner):
        each.set_parameters(initial=initial, transition=matrix, emission=words)
    start = {name: value.clone() for name, value in learner.state_dict().items()}

    def em():
        learner.load_state_dict(start)
        learner.fit(x, warm_start=True, max_iterations=1)
        return learner.emission.numpy()

    def gradient():
        model.zero_grad()
        model.log_joint(x).backward()
        return model.transition_logits.grad.numpy()

    return {
        "em": em,
        "posterior": lambda: model.predict_proba(x).numpy(),
        "viterbi": lambda: model.predict(x).numpy(),
        "score": lambda: model.score(x),
        "gradient": gradient,
    }


def hmmlearn_runs(num_states: int, variant: str, shape: tuple[int, int]) -> dict:
    import logging

    from hmmlearn.hmm import CategoricalHMM

    logging.disable(logging.WARNING)
    initial, matrix, words, x = problem(num_states, shape)
    B, T = shape
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


def dynamax_runs(num_states: int, variant: str, shape: tuple[int, int]) -> dict:
    import jax

    jax.config.update("jax_enable_x64", variant == "float64")
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import CategoricalHMM, hmm_filter

    initial, matrix, words, x = problem(num_states, shape)
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

    def log_prob(logits):
        tables = [jax.nn.softmax(table, -1) for table in logits]
        emissions = jnp.log(tables[2]).T[x[..., 0]]
        return jax.vmap(lambda row: hmm_filter(tables[0], tables[1], row).marginal_loglik)(emissions).sum()

    gradient = jax.jit(jax.grad(log_prob))
    logits = [jnp.log(jnp.array(table)) for table in (initial, matrix, words)]
    posterior = jax.jit(jax.vmap(lambda row: hmm.smoother(parameters, row).smoothed_probs))
    viterbi = jax.jit(jax.vmap(lambda row: hmm.most_likely_states(parameters, row)))
    score = jax.jit(jax.vmap(lambda row: hmm.marginal_log_prob(parameters, row)))
    return {
        "em": lambda: np.asarray(em_step(parameters, state)),
        "posterior": lambda: np.asarray(posterior(x)),
        "viterbi": lambda: np.asarray(viterbi(x)),
        "score": lambda: float(score(x).sum()),
        "gradient": lambda: np.asarray(gradient(logits)[1]),
    }


LIBRARIES = {"pplseq": pplseq_runs, "hmmlearn": hmmlearn_runs, "dynamax": dynamax_runs}


# ------------------------------------------------------------------------------------------------ workers
def digest(operation: str, value, num_states: int, shape: tuple[int, int]) -> list[float]:
    """A few numbers by which results are compared."""
    if operation == "score":
        return [float(value)]
    value = np.asarray(value, dtype=np.float64)
    if operation == "viterbi":  # paths of equal probability may differ: their likelihood may not
        initial, matrix, words, x = problem(num_states, shape)
        z = value.astype(int)
        score = np.log(initial[z[:, 0]]).sum() + np.log(matrix[z[:, :-1], z[:, 1:]]).sum() + np.log(words[z, x]).sum()
        return [float(score)]
    weight = np.random.default_rng(1).standard_normal(value.shape)
    if operation == "gradient":  # each row sums to zero
        return [float((weight * value).sum())]
    return [float(value.sum()), float((weight * value).sum())]


def shape_of(text: str) -> tuple[int, int]:
    """Rows and steps."""
    rows, steps = text.split("x")
    return int(rows), int(steps)


def write_page() -> None:
    """results/bench/peers.md and peers.png from all shapes that were measured."""
    from record import ROOT

    folder, lines, points = ROOT / "results" / "bench", [], {}
    for path in sorted(folder.glob("hmm_peers*.json")):
        entry = json.loads(path.read_text())
        size = entry["sequences"] * entry["steps"]
        for row in entry["results"]:
            times = row["cpu milliseconds"].items()
            micros = {name: 1e3 * value / size for name, value in times if "float32" not in name}
            own, (peer, best) = micros.pop("pplseq float64"), min(micros.items(), key=lambda item: item[1])
            shape = f"{entry['sequences']} x {entry['steps']}"
            cells = [row["operation"], row["states"], shape, f"{own:.3f}", f"{best:.3f} ({peer})", f"{best / own:.1f}"]
            lines.append((best / own, "| " + " | ".join(map(str, cells)) + " |"))
            points.setdefault(row["operation"], []).append((row["states"], own, best))
    head = (
        "# Hidden Markov models against their peers\n\n"
        "Processor time of a whole call in microseconds a step, float64, one thread; results were compared first.\n"
        "A ratio below 1: the peer wins. Rows by ratio. Made by `scripts/bench/hmm_peers.py`, a shape at a time;\n"
        "machine, commit and date stand in `hmm_peers*.json`.\n\n"
        "| | states | rows x steps | pplseq | best peer | peer over pplseq |\n|---|---|---|---|---|---|\n"
    )
    page = head + "\n".join(line for _, line in sorted(lines)) + "\n\n![time against states](peers.png)\n"
    (folder / "peers.md").write_text(page)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(points), figsize=(3 * len(points), 3), sharey=True)
    for axis, (operation, found) in zip(axes, points.items(), strict=True):
        states, own, best = zip(*sorted(found), strict=True)
        axis.loglog(states, own, "o", label="pplseq")
        axis.loglog(states, best, "x", label="best peer")
        axis.set(title=operation, xlabel="states")
    axes[0].set_ylabel("microseconds a step")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(folder / "peers.png", dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="8,64,512")
    parser.add_argument("--shape", default="64x256", metavar="ROWSxSTEPS")
    parser.add_argument("--dynamax-python", default=os.environ.get("DYNAMAX_PYTHON"), metavar="PATH",
                        help="interpreter of an environment with dynamax")  # fmt: skip
    parser.add_argument("--patience", type=float, default=30.0, help="CPU seconds for one library and operation")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        library, variant, num_states, shape = options.worker
        shape = shape_of(shape)
        runs = LIBRARIES[library](int(num_states), variant, shape)
        return answer_turns(runs, lambda operation, value: digest(operation, value, int(num_states), shape))
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
            name: Worker(python[library], __file__, library, variant, num_states, options.shape)
            for name, (library, variant) in CONTENDERS.items()
            if library not in absent
        }
        for operation in OPERATIONS:
            able = {name: worker for name, worker in workers.items() if operation != "gradient" or "hmmlearn" not in name}
            times = take_turns(able, operation, options.patience)
            row = {"states": num_states, "operation": operation}
            row |= {"cpu milliseconds": {name: round(1e3 * value, 3) for name, value in times.items()}}
            row |= {"peer over pplseq": ratios(times)}
            print(json.dumps(row), flush=True)
            rows.append(row)
        for worker in workers.values():
            worker.close()
    sys.argv = [a if a != options.dynamax_python else "PATH" for a in sys.argv]  # no machine's paths in results
    rows_, steps = shape_of(options.shape)
    name = "hmm_peers" if options.shape == "64x256" else f"hmm_peers_{options.shape}"
    record(name, rows, sequences=rows_, steps=steps, words=V, threads=1)
    write_page()


if __name__ == "__main__":
    main()
