"""400 restarts of EM as one batch: input-output HMMs of 5 states on Tomita's strings, against single fits and peers.

EM runs a fixed number of iterations from random starts. Three tasks, each on what a peer can do:

* labels: Tomita's training strings, one label at the end of each; lookup tables for transitions. Against the same fits one by
  one.
* prefixes: a label at every symbol, transitions by softmax regression on the symbol. Against the package IOHMM (PyPI),
  timed over 5 iterations and scaled up to as many as ours.
* symbols: a hidden Markov model of symbols, which has no inputs, on strings of one length. Against dynamax (JAX): its own
  ``fit_em`` one by one (it compiles at every call), and its E- and M-steps in a compiled loop written for this, one by one and
  under ``vmap``.

Results are compared before any time is told: restarts in a batch with the same fits alone, likelihoods of the peers with ours
under the peer's parameters. Times are those of the processor, one thread. Peers may live in environments of their own: name
their interpreters.

    python scripts/bench/iohmm_restarts.py [--dynamax-python PATH] [--iohmm-python PATH]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time

import numpy as np
from turns import Worker, answer_turns

STATES, RESTARTS, ITERATIONS, LENGTH = 5, 400, 50, 12
GRAMMARS = (1, 2, 3, 4, 5, 6, 7)
PEER_ITERATIONS = 5  # of the package IOHMM
FITS = {"fit_em": 3, "compiled": 20, "vmap": RESTARTS}  # how dynamax is called, and for how many restarts


def strings(grammar: int, shortest: int = 1):
    """Training strings and labels as lists of ints; no import of torch, for peers' interpreters."""
    import importlib.util
    from pathlib import Path

    path = Path(__file__).resolve().parents[2] / "pplseq" / "data" / "tomita.py"
    spec = importlib.util.spec_from_file_location("tomita", path)
    module = sys.modules["tomita"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    chosen = module.tomita(grammar)
    kept = [(s, label) for s, label in zip(chosen.strings, chosen.labels, strict=True) if len(s) >= shortest]
    prefixes = [[int(chosen.accepts(s[: k + 1])) for k in range(len(s))] for s, _ in kept]
    return [[int(c) for c in s] for s, _ in kept], [int(label) for _, label in kept], prefixes


def symbols_of_one_length() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (40, LENGTH))


def hmm_starts(restarts: int):
    rng = np.random.default_rng(1)
    return (
        rng.dirichlet(np.ones(STATES), restarts), rng.dirichlet(np.ones(STATES), (restarts, STATES)),
        rng.dirichlet(np.ones(2), (restarts, STATES)),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ ours
def problem(task: str, grammar: int | None = None):
    """(a RestartProblem, its number of packed steps)."""
    import torch

    from pplseq.models import IOHMM
    from pplseq.models.iohmm.fit import restart_problem

    if task == "symbols":
        model = IOHMM(STATES, num_symbols={"transition": 1}, num_outputs=2)
        x = torch.from_numpy(symbols_of_one_length())
        batch = model._as_batch(x, inputs={"transition": torch.zeros_like(x)})
    else:
        x, labels, prefixes = strings(grammar, shortest=2 if task == "prefixes" else 1)
        if task == "labels":
            model = IOHMM(STATES, num_symbols=2, num_outputs=2, initial="transition")
            batch = model._as_batch(labels, inputs=x)
        else:
            model = IOHMM(STATES, num_inputs=1, num_outputs=2)
            batch = model._as_batch(prefixes, inputs=[[[float(c)] for c in s] for s in x])
    return restart_problem(model, batch)


def cpu_seconds(run, repeat: int = 3) -> float:
    """Median processor time."""
    run()
    times = []
    for _ in range(repeat):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def batch_against_loop(task: str, grammar: int | None, singles: int) -> dict:
    """Milliseconds a restart of the batch, and of fits one by one; ends the program where they disagree."""
    import torch

    from pplseq.models.iohmm.restarts.em import EMRun
    from pplseq.models.iohmm.restarts.history import RestartBlock
    from pplseq.models.iohmm.restarts.problem import take
    from pplseq.models.iohmm.restarts.starts import draw_parameters

    torch.set_num_threads(1)
    torch.manual_seed(0)
    ours = problem(task, grammar)
    start = draw_parameters(ours, [RestartBlock(RESTARTS)])
    options = dict(max_iterations=ITERATIONS, tolerance=-np.inf)
    together = EMRun(ours, start, **options).run()
    alone = []

    def loop():
        alone.clear()
        for restart in range(singles):
            alone.append(EMRun(ours, take(start, torch.tensor([restart])), **options).run().log_likelihoods[0])

    looped = cpu_seconds(loop, repeat=1) / singles
    batched = cpu_seconds(lambda: EMRun(ours, start, **options).run()) / RESTARTS
    kept = ~torch.tensor([r in together.fell for r in range(singles)])
    # iterated regressions stop at a threshold: what rounding makes of one more step is small, but larger than rounding
    tolerance = 1e-6 if task == "prefixes" else 1e-8
    if not torch.allclose(
        torch.stack(alone)[kept], together.log_likelihoods[:singles][kept], rtol=tolerance, atol=tolerance
    ):
        raise SystemExit(f"{task} {grammar}: restarts in a batch differ from the same fits alone; no speed is reported")
    return {"steps": ours.num_steps, "batch": 1e3 * batched, "one by one": 1e3 * looped}


def likelihood_of_tables(task: str, grammar: int | None, initial, transition, emission) -> float:
    """Our log-likelihood under a peer's tables: (Z,), (L, Z, Z), (Z, V) log-probabilities."""
    import torch

    from pplseq.kernels.restart_scan import log_prob

    ours = problem(task, grammar)
    pair = torch.tensor(transition, dtype=torch.float64)
    if ours.rows.values is not None:  # the distinct inputs, and a one
        pair = pair[ours.rows.values[:, 0].long()]
    words = torch.tensor(emission, dtype=torch.float64)[:, ours.seen.x].masked_fill(~ours.seen.known, 0.0)
    tables = (
        torch.tensor(initial, dtype=torch.float64)[:, None, None],
        pair.movedim(0, -1).unsqueeze(-1),
        words.unsqueeze(-1),
    )
    return float(log_prob(*tables, ours.lattice).sum())


# ------------------------------------------------------------------------------------------------ peers
def iohmm_runs(grammar: int) -> dict:
    import warnings

    warnings.filterwarnings("ignore")
    import pandas
    from IOHMM import CrossEntropyMNL, DiscreteMNL, UnSupervisedIOHMM

    x, _, prefixes = strings(grammar, shortest=2)  # it cannot take a sequence of one step
    frames = [pandas.DataFrame({"u": s, "y": y}) for s, y in zip(x, prefixes, strict=True)]

    def fit():
        np.random.seed(0)
        model = UnSupervisedIOHMM(num_states=STATES, max_EM_iter=PEER_ITERATIONS, EM_tol=0.0)
        model.set_models(
            model_emissions=[DiscreteMNL(solver="lbfgs")], model_transition=CrossEntropyMNL(solver="lbfgs"),
            model_initial=CrossEntropyMNL(solver="lbfgs"),
        )  # fmt: skip
        model.set_inputs(covariates_initial=[], covariates_transition=["u"], covariates_emissions=[[]])
        model.set_outputs([["y"]])
        model.set_data(frames)
        model.train()
        return model

    return {"fit": fit}


def iohmm_digest(operation: str, model) -> list:
    model.E_step()  # the likelihoods of its last parameters
    nothing, symbols = np.zeros((1, 0)), np.array([[0.0], [1.0]])
    return [
        float(np.sum(model.log_likelihoods)), model.model_initial.predict_log_proba(nothing)[0].tolist(),
        np.stack([t.predict_log_proba(symbols) for t in model.model_transition], 1).tolist(),
        [e[0].predict_log_proba(nothing)[0].tolist() for e in model.model_emissions],
    ]  # fmt: skip


def dynamax_runs(_grammar: int) -> dict:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import CategoricalHMM

    hmm = CategoricalHMM(
        STATES,
        1,
        2,
        initial_probs_concentration=1.0,
        transition_matrix_concentration=1.0,
        emission_prior_concentration=1.0,
    )
    x = jnp.array(symbols_of_one_length())[..., None]
    starts = [jnp.array(value) for value in hmm_starts(RESTARTS)]

    blank, properties = hmm.initialize(  # it checks values, which a traced function has not
        initial_probs=starts[0][0], transition_matrix=starts[1][0], emission_probs=starts[2][0][:, None]
    )

    def fit(initial, matrix, words):
        parameters = blank._replace(
            initial=blank.initial._replace(probs=initial),
            transitions=blank.transitions._replace(transition_matrix=matrix),
            emissions=blank.emissions._replace(probs=words[:, None]),
        )
        state = hmm.initialize_m_step_state(parameters, properties)

        def step(carry, _):
            parameters, state = carry
            expected, log_probs = jax.vmap(lambda row: hmm.e_step(parameters, row))(x)
            return hmm.m_step(parameters, properties, expected, state), log_probs.sum()

        return jax.lax.scan(step, (parameters, state), None, length=ITERATIONS)[1]

    def own_fit(k: int):
        parameters, properties = hmm.initialize(
            initial_probs=starts[0][k], transition_matrix=starts[1][k], emission_probs=starts[2][k][:, None]
        )
        found = hmm.fit_em(parameters, properties, x, num_iters=ITERATIONS, verbose=False)[1]
        return np.asarray(found) - float(hmm.log_prior(parameters))  # of flat priors: a constant

    one, many = jax.jit(fit), jax.jit(jax.vmap(fit))
    return {
        "fit_em": lambda: np.stack([own_fit(k) for k in range(FITS["fit_em"])]),
        "vmap": lambda: np.asarray(many(*starts)),
        "compiled": lambda: np.stack(
            [np.asarray(one(*(value[k] for value in starts))) for k in range(FITS["compiled"])]
        ),
    }


def dynamax_digest(operation: str, value) -> list[float]:
    return value[:20, -1].tolist()  # log-likelihoods that the last iteration began with


PEERS = {"iohmm": (iohmm_runs, iohmm_digest), "dynamax": (dynamax_runs, dynamax_digest)}


def labels(_python: str):
    for grammar in GRAMMARS:
        times = batch_against_loop("labels", grammar, singles=10)
        yield {"task": "labels", "grammar": grammar, "milliseconds a restart": times}


def against_iohmm(python: str):
    for grammar in (4,):
        worker = Worker(python, __file__, "iohmm", grammar)
        found = [worker.run("fit") for _ in range(3)]
        worker.close()
        value, initial, transition, emission = found[0]["digest"]
        ours = likelihood_of_tables("prefixes", grammar, initial, transition, emission)
        if not np.isclose(value, ours, rtol=1e-8):
            raise SystemExit(
                f"IOHMM says log p = {value}, pplseq {ours} under the same parameters; no speed is reported"
            )
        own = batch_against_loop("prefixes", grammar, singles=4)
        peer = 1e3 * statistics.median(each["seconds"] for each in found) * ITERATIONS / PEER_ITERATIONS
        yield {"task": "prefixes", "grammar": grammar, "milliseconds a restart": own | {"IOHMM": peer}}


def against_dynamax(python: str):
    import torch

    from pplseq.models.iohmm.restarts.em import EMRun

    torch.set_num_threads(1)
    ours = problem("symbols")
    initial, matrix, words = (torch.from_numpy(value).log() for value in hmm_starts(RESTARTS))
    start = {
        "initial": {"logits": initial.T}, "transition": {"logits": matrix.permute(1, 2, 0).unsqueeze(0)},
        "emission": {"logits": words.permute(1, 2, 0)},
    }  # fmt: skip
    together = EMRun(ours, start, max_iterations=ITERATIONS, tolerance=-np.inf).run()
    worker = Worker(python, __file__, "dynamax", 0)
    times = {}
    for operation, count in FITS.items():
        answers = [worker.run(operation) for _ in range(3)][1:]  # the first compiles
        found = answers[0]["digest"]
        if not np.allclose(found, together.trace[ITERATIONS - 1, : len(found)], rtol=1e-7):
            raise SystemExit(f"dynamax ({operation}) and pplseq reach different likelihoods; no speed is reported")
        times[f"dynamax {operation}"] = 1e3 * statistics.median(each["seconds"] for each in answers) / count
    worker.close()
    own = batch_against_loop("symbols", None, singles=10)
    yield {"task": "symbols", "grammar": None, "milliseconds a restart": own | times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dynamax-python", default=os.environ.get("DYNAMAX_PYTHON"), metavar="PATH",
                        help="interpreter of an environment with dynamax")  # fmt: skip
    parser.add_argument("--iohmm-python", default=os.environ.get("IOHMM_PYTHON"), metavar="PATH",
                        help="interpreter of an environment with IOHMM (scikit-learn below 1.7)")  # fmt: skip
    parser.add_argument("--tasks", default="labels,prefixes,symbols")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        runs, digest = PEERS[options.worker[0]]
        return answer_turns(runs(int(options.worker[1])), digest)
    from record import record

    tasks, rows = options.tasks.split(","), []
    for task, compare, python in (
        ("labels", labels, sys.executable), ("prefixes", against_iohmm, options.iohmm_python),
        ("symbols", against_dynamax, options.dynamax_python),
    ):  # fmt: skip
        if task not in tasks:
            continue
        if python is None:
            print(f"{task}: no interpreter with the peer named, left out", file=sys.stderr)
            continue
        for row in compare(python):
            times = row["milliseconds a restart"]
            row["steps"] = times.pop("steps")
            row["over the batch"] = {k: round(v / times["batch"], 1) for k, v in times.items() if k != "batch"}
            row["milliseconds a restart"] = {k: round(v, 4) for k, v in times.items()}
            print(json.dumps(row), flush=True)
            rows.append(row)
    sys.argv = [a if a not in (options.dynamax_python, options.iohmm_python) else "PATH" for a in sys.argv]
    if len(tasks) < 3:
        return
    settings = dict(states=STATES, restarts=RESTARTS, iterations=ITERATIONS, threads=1)
    record("iohmm_restarts", rows, **settings, iterations_timed_of_IOHMM=PEER_ITERATIONS)  # scaled up to as many


if __name__ == "__main__":
    main()
