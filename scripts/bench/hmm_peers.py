"""Dense HMMs in pplseq, hmmlearn and dynamax, for :mod:`peers`: an EM iteration, posterior, Viterbi, likelihood, its gradient.

Whole calls as a user makes them, words of a vocabulary of 100; the gradient is that in the logits of all tables, for which
hmmlearn has nothing.
"""

from __future__ import annotations

import numpy as np

V = 100
PLAIN = 20  # iterations of EM, whose likelihood a fit is to reach
OPERATIONS = ("em", "posterior", "viterbi", "score", "gradient")
VARIANTS = {"pplseq": [""], "hmmlearn": ["log", "scaling"], "dynamax": [""]}  # hmmlearn's default is log


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
    model, learner = (HMM(num_states, V, dtype="float64") for _ in range(2))
    for each in (model, learner):
        each.set_parameters(initial=initial, transition=matrix, emission=words)
    start = [value.detach().clone() for value in learner.parameters()]

    def reset():
        with torch.no_grad():
            for parameter, value in zip(learner.parameters(), start, strict=True):
                parameter.copy_(value)

    def em():
        reset()
        learner.fit(x, warm_start=True, max_iterations=1)
        return learner.emission.numpy()

    def gradient():
        model.zero_grad()
        model.log_joint(x).backward()
        return model.transition_logits.grad.numpy()

    target = []

    def fit():
        reset()
        learner.fit(x, warm_start=True, max_iterations=PLAIN, tolerance=0.0)
        if not target:  # the first run is not timed
            target.append(learner.score(x))
        return target[0]

    return {
        "em": em,
        "fit": fit,
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

    target = []

    def fit():
        learner.n_iter = learner.monitor_.n_iter = PLAIN  # the monitor keeps what it was made with
        reset(learner)
        learner.fit(x, lengths)
        if not target:
            target.append(learner.score(x, lengths))
        return target[0]

    reset(model)
    return {
        "em": em,
        "fit": fit,
        "posterior": lambda: model.predict_proba(x, lengths).reshape(B, T, num_states),
        "viterbi": lambda: model.predict(x, lengths).reshape(B, T),
        "score": lambda: model.score(x, lengths),
    }


def dynamax_runs(num_states: int, variant: str, shape: tuple[int, int]) -> dict:
    import jax

    jax.config.update("jax_enable_x64", True)
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
        return hmm.m_step(parameters, properties, statistics_, state)

    def log_prob(logits):
        tables = [jax.nn.softmax(table, -1) for table in logits]
        emissions = jnp.log(tables[2]).T[x[..., 0]]
        return jax.vmap(lambda row: hmm_filter(tables[0], tables[1], row).marginal_loglik)(emissions).sum()

    target = []

    def fit():
        now, memory = parameters, state
        for _ in range(PLAIN):
            now, memory = em_step(now, memory)
        np.asarray(now.emissions.probs)
        if not target:  # the first run is not timed
            target.append(float(jax.vmap(lambda row: hmm.marginal_log_prob(now, row))(x).sum()))
        return target[0]

    gradient = jax.jit(jax.grad(log_prob))
    logits = [jnp.log(jnp.array(table)) for table in (initial, matrix, words)]
    posterior = jax.jit(jax.vmap(lambda row: hmm.smoother(parameters, row).smoothed_probs))
    viterbi = jax.jit(jax.vmap(lambda row: hmm.most_likely_states(parameters, row)))
    score = jax.jit(jax.vmap(lambda row: hmm.marginal_log_prob(parameters, row)))
    return {
        "em": lambda: np.asarray(em_step(parameters, state)[0].emissions.probs[:, 0]),
        "fit": fit,
        "posterior": lambda: np.asarray(posterior(x)),
        "viterbi": lambda: np.asarray(viterbi(x)),
        "score": lambda: float(score(x).sum()),
        "gradient": lambda: np.asarray(gradient(logits)[1]),
    }


LIBRARIES = {"pplseq": pplseq_runs, "hmmlearn": hmmlearn_runs, "dynamax": dynamax_runs}


# ------------------------------------------------------------------------------------------------ workers
def digest(operation: str, value, num_states: int, shape: tuple[int, int]) -> list[float]:
    """A few numbers by which results are compared."""
    if operation in ("score", "fit"):
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
