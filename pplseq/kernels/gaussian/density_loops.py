"""Compiled loops over the densities of many vectors under a few diagonal Gaussians. Importing this module imports numba.

:mod:`pplseq.kernels.gaussian.normal_densities` calls these loops and has their readable twin. Tables have states in their
columns, where they lie side by side: means (D, K), inverse (D, K) one over the standard deviations.
"""

from __future__ import annotations

from pplseq.kernels.compiled import jit


@jit(entry=True)
def densities(x, means, inverse, constant, out):
    """out (N, K): log-densities of vectors x (N, D); constant (K,) what each state has beside the squares."""
    size, num_states = means.shape
    for r in range(len(x)):
        for k in range(num_states):
            out[r, k] = 0
        for d in range(size):
            for k in range(num_states):
                unit = (x[r, d] - means[d, k]) * inverse[d, k]
                out[r, k] += unit * unit
        for k in range(num_states):
            out[r, k] = constant[k] - out[r, k] / 2


@jit(entry=True)
def gradients_of_vectors(x, means, inverse, grads, out):
    """out (N, D): gradients in the vectors."""
    size, num_states = means.shape
    for r in range(len(x)):
        for d in range(size):
            total = 0.0
            for k in range(num_states):
                total -= grads[r, k] * (x[r, d] - means[d, k]) * inverse[d, k] * inverse[d, k]
            out[r, d] = total
