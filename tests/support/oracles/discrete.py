"""Slow, readable truths that the fast paths are tested against."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate
from torch import Tensor

from pplseq.infer.programs.blocked_enum import no_guide


def generic_log_prob(model: Callable, *args, max_plate_nesting: int = 1, **kwargs) -> Tensor:
    """log p(x) summed over rows, by Pyro's own parallel enumeration of the same program; differentiable.

    Cost: T Z^2 a row with a large constant; meant for tiny state spaces.
    """
    program = config_enumerate(getattr(model, "model", model), "parallel")
    return -TraceEnum_ELBO(max_plate_nesting=max_plate_nesting).differentiable_loss(program, no_guide, *args, **kwargs)


def enumerate_paths(initial: Tensor, matrices: Tensor, emit: Tensor) -> tuple[Tensor, Tensor]:
    """Every path of one sequence and its log p(path, x).

    Args:
        initial: (Z,) log p(z_1). matrices: (T-1, Z, Z). emit: (T, Z) log p(x_t | z_t).

    Returns:
        paths (Z^T, T) and log-probabilities (Z^T,).
    """
    steps, num_states = emit.shape
    paths = torch.tensor(list(itertools.product(range(num_states), repeat=steps)))
    score = initial[paths[:, 0]] + emit[0, paths[:, 0]]
    for t in range(1, steps):
        score = score + matrices[t - 1, paths[:, t - 1], paths[:, t]] + emit[t, paths[:, t]]
    return paths, score


def forward_loop(initial: Tensor, matrices: Tensor, emit: Tensor) -> Tensor:
    """log p(x) of one sequence by the forward recursion, written to be read; arguments as above."""
    message = initial + emit[0]
    for t in range(1, len(emit)):
        message = torch.logsumexp(message.unsqueeze(-1) + matrices[t - 1], 0) + emit[t]
    return torch.logsumexp(message, 0)


def program_log_prob(model: Callable, *args, **kwargs) -> Tensor:
    """log p(z, x) of one run of a program whose states are all set (conditioned or replayed)."""
    trace = poutine.trace(getattr(model, "model", model)).get_trace(*args, **kwargs)
    return torch.as_tensor(trace.log_prob_sum())
