"""Several observations of one state, with matrices of each step or row and gaps of their own, against the textbook."""

import contextlib
import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.linear_systems import B, System, close
from support.oracles.gaussian import GaussianSequence, kalman_loop

from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.infer.programs.markov import markov

F64 = torch.float64
KINDS = ("one", "steps", "rows", "steps and rows")


def matrices(kind, num_steps, seed):
    """What the program takes at a step, and (B, T, n, h) of all steps and rows."""
    shape = {"one": (1, 1), "steps": (1, num_steps), "rows": (B, 1), "steps and rows": (B, num_steps)}[kind]
    values = torch.randn(*shape, 2, 2, generator=torch.Generator().manual_seed(seed), dtype=F64)
    take = {
        "one": lambda t: values[0, 0], "steps": lambda t: values[0][t], "rows": lambda t: values[:, 0],
        "steps and rows": lambda t: values[:, t],
    }[kind]  # fmt: skip
    return take, values.expand(B, num_steps, 2, 2)


@pytest.mark.parametrize(
    ("first", "second", "num_steps"),
    [*((first, second, 7) for first in KINDS for second in KINDS), *((kind, kind, B) for kind in KINDS)],
)
def test_two_observations_of_a_state(first, second, num_steps):
    s = System(2)
    takes, wholes = zip(matrices(first, num_steps, 1), matrices(second, num_steps, 2), strict=True)
    missing = torch.rand(2, B, num_steps, generator=torch.Generator().manual_seed(0)) > 0.6
    halves = s.y[:, :num_steps, :2], s.y[:, :num_steps, 2:]
    eye = torch.eye(2, dtype=F64)

    def program(gaps):
        x = None
        with pyro.plate("rows", B, dim=-1):
            for t in markov(range(num_steps)):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn)
                for k in (0, 1):
                    with poutine.mask(mask=~missing[k, :, t] if gaps[k] else True):
                        pyro.sample(f"x{k}_{t}", LinearGaussian(x, takes[k](t), eye), obs=halves[k][:, t])

    for gaps in itertools.product((False, True), repeat=2):
        rows = []
        for row in range(B):
            here = [[k for k in (0, 1) if not (gaps[k] and missing[k, row, t])] for t in range(num_steps)]
            emissions, values = (
                [torch.cat([part[k][row, t] for k in seen]) if seen else None for t, seen in enumerate(here)]
                for part in (wholes, halves)
            )
            noises = [torch.eye(2 * len(seen), dtype=F64) for seen in here]
            zeros = [torch.zeros(2 * len(seen), dtype=F64) for seen in here]
            moves = [s.A] * (num_steps - 1), [s.Q] * (num_steps - 1), [s.a] * (num_steps - 1)
            rows.append(kalman_loop(GaussianSequence(s.m, s.P, *moves, emissions, noises, zeros, values)).log_prob)
        for vectorize in (True, False):
            with KalmanCollapse(vectorize=vectorize) as handler:
                program(gaps)
            close(handler.chains["z_0"].log_prob(), torch.stack(rows))


@pytest.mark.parametrize("vectorize", [True, False])
def test_variances_of_the_inner_of_two_plates_change_with_time(vectorize):
    s, num_steps, outer = System(2), 4, 2
    C, scale = s.y.new_ones(3, 2).cumsum(0), s.y[:, :num_steps, :3].square() + 0.5
    y = torch.stack([s.y[:, :num_steps, :3], 1 - s.y[:, :num_steps, :3]])

    def chain(values, noise, plates):
        handler, x = KalmanCollapse(vectorize=vectorize), None
        with handler, contextlib.ExitStack() as stack:
            for k, size in enumerate(plates):
                stack.enter_context(pyro.plate(f"rows_{k}", size, dim=k - len(plates)))
            for t in markov(range(num_steps)):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn)
                seen = dist.Normal(x @ C.T, noise[..., t, :]).to_event(1)
                pyro.sample(f"x_{t}", seen, obs=values[..., t, :])
        return handler.chains["z_0"].log_prob()

    expected = [[chain(y[i, j], scale[j], ()) for j in range(B)] for i in range(outer)]
    close(chain(y, scale, (outer, B)), torch.stack([torch.stack(row) for row in expected]))


def test_a_missing_observation_among_matrices_that_change_and_no_plates():
    s, num_steps, missing = System(2), 4, 2
    takes, whole = matrices("steps", num_steps, 1)
    y, eye = s.y[0, :num_steps, :2], torch.eye(2, dtype=F64)
    x = None
    with KalmanCollapse() as handler:
        for t in range(num_steps):
            fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
            x = pyro.sample(f"z_{t}", fn)
            pyro.sample(f"x_{t}", LinearGaussian(x, takes(t), eye), obs=None if t == missing else y[t])
    moves = [s.A] * (num_steps - 1), [s.Q] * (num_steps - 1), [s.a] * (num_steps - 1)
    seen = [None if t == missing else t for t in range(num_steps)]
    emissions, values = ([None if t is None else part[t] for t in seen] for part in (whole[0], y))
    noises, zeros = [eye] * num_steps, [torch.zeros(2, dtype=F64)] * num_steps
    truth = kalman_loop(GaussianSequence(s.m, s.P, *moves, emissions, noises, zeros, values)).log_prob
    close(handler.chains["z_0"].log_prob(), truth)
