"""Dense HMMs over rows of 5 to 200 words in pplseq and hmmlearn, for :mod:`peers`: a list of arrays, and padded with lengths.

Whole calls as a user makes them, each library from the form that it takes: hmmlearn has rows one behind the other.
"""

from __future__ import annotations

from functools import partial

import hmm_peers
import numpy as np

OPERATIONS = tuple(f"{question}, {form}" for question in ("em", "posterior", "viterbi", "score") for form in ("list", "padded"))
VARIANTS = {"pplseq": [""], "hmmlearn": ["log", "scaling"]}


def problem(num_states: int, shape: tuple[int, int]):
    """Tables, and rows as a list; shape: how many, and the steps of the longest."""
    *tables, x = hmm_peers.problem(num_states, shape)
    lengths = np.random.default_rng(2).permutation(np.linspace(5, shape[1], shape[0]).round().astype(int))
    return *tables, [row[:length].copy() for row, length in zip(x, lengths, strict=True)]


def shape_of(operation: str, num_states: int, shape: tuple[int, int]) -> tuple[int, float]:
    """Rows, and their mean number of steps."""
    rows = problem(num_states, shape)[-1]
    return len(rows), sum(map(len, rows)) / len(rows)


def pplseq_runs(num_states: int, variant: str, shape: tuple[int, int]) -> dict:
    import torch

    from pplseq.models import HMM

    torch.set_num_threads(1)
    initial, matrix, words, rows = problem(num_states, shape)
    model, learner = (HMM(num_states, hmm_peers.V) for _ in range(2))
    for each in (model, learner):
        each.set_parameters(initial=initial, transition=matrix, emission=words)
    lengths = np.array(list(map(len, rows)))
    padded = np.zeros((len(rows), lengths.max()), np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.concatenate(rows)

    def em(*x):
        learner.set_parameters(initial=initial, transition=matrix, emission=words)
        learner.fit(*x, warm_start=True, max_iterations=1)
        return learner.emission.numpy()

    questions = {"em": em, "posterior": model.predict_proba, "viterbi": model.predict, "score": model.score}
    forms = {"list": (rows,), "padded": (padded, lengths)}
    return {f"{name}, {form}": partial(ask, *x) for name, ask in questions.items() for form, x in forms.items()}


def hmmlearn_runs(num_states: int, variant: str, shape: tuple[int, int]) -> dict:
    import logging

    from hmmlearn.hmm import CategoricalHMM

    logging.disable(logging.WARNING)
    initial, matrix, words, rows = problem(num_states, shape)
    options = dict(implementation=variant, n_features=hmm_peers.V, n_iter=1, tol=-np.inf, init_params="", params="ste")
    model, learner = (CategoricalHMM(num_states, **options) for _ in range(2))
    x, lengths = np.concatenate(rows)[:, None], list(map(len, rows))

    def reset(hmm):
        hmm.startprob_, hmm.transmat_, hmm.emissionprob_ = initial.copy(), matrix.copy(), words.copy()

    def em(x, lengths):
        reset(learner)
        learner.fit(x, lengths)
        return learner.emissionprob_

    reset(model)
    questions = {"em": em, "posterior": model.predict_proba, "viterbi": model.predict, "score": model.score}
    return {name: partial(questions[name.split(",")[0]], x, lengths) for name in OPERATIONS}


LIBRARIES = {"pplseq": pplseq_runs, "hmmlearn": hmmlearn_runs}


def digest(operation: str, value, num_states: int, shape: tuple[int, int]) -> list[float]:
    """A few numbers by which results are compared."""
    question, rows = operation.split(",")[0], problem(num_states, shape)[-1]
    if question == "score":
        return [float(value)]
    if question != "em":  # rows one behind the other
        if isinstance(value, list):
            value = np.concatenate([np.asarray(row) for row in value])
        elif len(value := np.asarray(value)) == len(rows):
            value = np.concatenate([found[: len(row)] for found, row in zip(value, rows, strict=True)])
    if question == "viterbi":  # paths of equal probability may differ: their likelihood may not
        tables, ends = map(np.log, problem(num_states, shape)[:3]), np.cumsum(list(map(len, rows)))[:-1]
        initial, matrix, words = tables
        paths = zip(np.split(value.astype(int), ends), rows, strict=True)
        return [float(sum(initial[z[0]] + matrix[z[:-1], z[1:]].sum() + words[z, x].sum() for z, x in paths))]
    weight = np.random.default_rng(1).standard_normal(value.shape)
    return [float(value.sum()), float((weight * value).sum())]
