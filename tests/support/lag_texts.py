"""Small texts with known dynamics, and their counts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from pplseq.models.text_lds.horizon import count_pairs
from pplseq.models.text_lds.lag_covariances import LagCovariances
from pplseq.models.text_lds.steady_state import TextParameters


def counts_of(sequences, num_words, max_lag=7):
    """What LagCovariances reads of LagCounts."""
    return SimpleNamespace(
        vocabulary=SimpleNamespace(words=[f"w{i}" for i in range(num_words)]),
        counts=np.bincount(np.concatenate(sequences), minlength=num_words),
        lags=count_pairs(sequences, num_words, max_lag),
    )


def covariances(sequences, num_words, pseudo_counts=0.0, max_lag=7, **options):
    return LagCovariances.from_counts(counts_of(sequences, num_words, max_lag), pseudo_counts, **options)


def hmm_tables(num_states=4, num_words=40, seed=0, stay=0.5):
    """A transition matrix that keeps a state's successor with probability `stay`, and words of their own per state."""
    rng = np.random.default_rng(seed)
    cycle = np.eye(num_states)[np.roll(np.arange(num_states), -1)]
    transition = stay * cycle + (1 - stay) * rng.dirichlet(np.ones(num_states), size=num_states)
    emission = 0.9 * np.kron(np.eye(num_states), np.ones(num_words // num_states) / (num_words // num_states))
    return transition, emission + 0.1 / num_words


def hmm_text(transition, emission, num_tokens, seed=0):
    """Word ids of one long text."""
    rng = np.random.default_rng(seed)
    steps, draws = transition.cumsum(1), rng.random((2, num_tokens))
    states = np.zeros(num_tokens, dtype=np.int64)
    rows = [row.tolist() for row in steps]
    state, last = 0, len(rows) - 1
    for t, draw in enumerate(draws[0].tolist()):
        row, state = rows[state], 0
        while state < last and draw > row[state]:
            state += 1
        states[t] = state
    words = (draws[1][:, None] > emission.cumsum(1)[states]).sum(1)
    return np.minimum(words, emission.shape[1] - 1)


def random_parameters(unit, num_states, seed=0, radius=0.8, largest=0.6):
    """A model whose C is orthogonal to u and whose D is positive definite by a margin."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(num_states, num_states))
    a *= radius / np.abs(np.linalg.eigvals(a)).max()
    emission = rng.normal(size=(len(unit), num_states))
    emission -= np.outer(unit, unit @ emission)
    root = rng.normal(size=(num_states, num_states))
    reduction = root @ root.T + np.eye(num_states)
    size = np.linalg.eigvalsh(emission @ reduction @ emission.T)[-1]
    noise = rng.normal(size=(num_states, num_states))
    return TextParameters(
        a, emission * np.sqrt(largest / size), noise @ noise.T / num_states + 0.1 * np.eye(num_states), reduction
    )


def dense_noise(parameters, unit):
    """D (V, V)."""
    return np.eye(len(unit)) - np.outer(unit, unit) - parameters.emission @ parameters.reduction @ parameters.emission.T


def complement(unit):
    """Orthonormal basis (V, V - 1) of what is orthogonal to u."""
    return np.linalg.svd(unit[None])[2][1:].T


def dense(counts):
    return np.stack([matrix.toarray() for matrix in counts.lags])


def drawn_lines(seed=0, num_lines=50, num_words=7, longest=12):
    rng = np.random.default_rng(seed)
    # a skewed law, so that a cut has something to cut
    chances = rng.dirichlet(np.full(num_words, 0.5))
    return [[f"w{i}" for i in rng.choice(num_words, p=chances, size=rng.integers(0, longest))] for _ in range(num_lines)]
