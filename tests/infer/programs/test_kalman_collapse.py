"""The messenger of Gaussian hidden states: every way to write a program gives the log-likelihood of the textbook filter."""

import contextlib

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.grids import grid
from support.linear_systems import LENGTHS, B, N, System, T, close, collapse, lazy, plain, spd
from support.oracles.gaussian import GaussianSequence, kalman_loop

from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.distributions.noise import DiagonalMinusLowRank
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.infer.programs.markov import markov


@pytest.fixture(params=[1, 2, 5])
def system(request):
    return System(request.param)


@grid({"lengths": [None, LENGTHS], "loop": [markov, pyro.markov, lambda r: r], "program": [lazy, plain]})
def test_a_program_has_the_likelihood_of_the_loop(system, program, loop, lengths):
    found, trace = collapse(program, system, system.y, lengths, loop)
    system.same(found, system.truth(lengths))
    factors = [name for name, site in trace.nodes.items() if site["type"] == "sample" and name != "rows"]
    assert factors == ["z_0__chain"]
    trace.compute_log_prob()
    close(trace.nodes["z_0__chain"]["log_prob"], found)


def test_steps_and_names(system):
    handler = KalmanCollapse(vectorize=False)
    with handler:
        lazy(system, system.y)
    assert handler.state_names["z_0"] == [f"z_{t}" for t in range(T)]
    assert handler.chains["z_0"].smoothed_states().means.shape == (B, T, len(system.m))


def by_mask(s, y, missing):
    x = None
    with pyro.plate("rows", len(y), dim=-1):
        for t in markov(range(y.shape[1])):
            fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
            x = pyro.sample(f"z_{t}", fn)
            pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[:, t], obs_mask=~missing[:, t])


def by_mask_around(s, y, missing):
    x = None
    with pyro.plate("rows", len(y), dim=-1):
        for t in markov(range(y.shape[1])):
            fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
            x = pyro.sample(f"z_{t}", fn)
            with poutine.mask(mask=~missing[:, t]):
                pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[:, t])


@grid({"program": [by_mask, by_mask_around], "vectorize": [True, False]})
def test_missing_observations_by_mask(system, vectorize, program):
    missing = torch.zeros(B, T, dtype=torch.bool)
    missing[0, 2:4] = missing[1, 0] = missing[2, -1] = True
    y = torch.where(missing.unsqueeze(-1), torch.nan, system.y)
    found, _ = collapse(program, system, y, missing, vectorize=vectorize)
    system.same(found, system.truth(missing=missing))


@pytest.mark.parametrize("vectorize", [True, False])
def test_nan_that_is_not_masked_is_no_missing_observation(vectorize):
    s = System(2)
    y = s.y.detach().clone()
    y[1, 3, 0] = torch.nan
    with pytest.raises(ValueError, match=r"row 1, step 3 is NaN .* \(in a program: poutine.mask around its site\)"):
        collapse(lazy, s, y, vectorize=vectorize)


@grid({"square": [False, True], "gone": [0, 3, T - 1]})
def test_unobserved_sites_are_missing_observations(gone, square):
    s = System(N if square else 2)  # square: an observation has the size of a state

    def program(y):
        x = None
        with pyro.plate("rows", len(y), dim=-1):
            for t in range(T):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn)
                pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=None if t == gone else y[:, t])

    handler = KalmanCollapse()
    with handler:
        program(s.y)
    missing = torch.zeros(B, T, dtype=torch.bool)
    missing[:, gone] = True
    s.same(handler.chains["z_0"].log_prob(), s.truth(missing=missing))
    assert handler.state_names["z_0"] == [f"z_{t}" for t in range(T)]


def test_several_observations_of_a_state_add_up(system):
    s = system

    def two(y, rest):
        x = None
        with pyro.plate("rows", len(y), dim=-1):
            for t in markov(range(T)):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn)
                pyro.sample(f"x_{t}", LinearGaussian(x, s.C[:1], s.D[:1, :1], s.c[:1]), obs=y[:, t, :1])
                with poutine.mask(mask=rest[:, t]):
                    pyro.sample(f"y_{t}", LinearGaussian(x, s.C[1:], s.D[1:, 1:], s.c[1:]), obs=y[:, t, 1:])

    block = torch.zeros_like(s.D)
    block[:1, :1] = block[1:, 1:] = 1
    everything = torch.ones(B, T, dtype=torch.bool)
    found, _ = collapse(two, s.y, everything)
    whole = System(len(s.m))
    whole.D = s.D * block
    for name in ("A", "C", "Q", "m", "P", "a", "c", "y"):
        setattr(whole, name, getattr(s, name))
    s.same(found, whole.truth())
    rest = everything.clone()
    rest[0, 3] = False
    partly, _ = collapse(two, s.y, rest)
    recorded, _ = collapse(two, s.y, rest, vectorize=False)
    close(partly, recorded)
    close(partly[1:], found[1:])
    assert (partly[0] - found[0]).abs() > 1e-3


def test_time_varying_matrices(system):
    s, h = system, len(system.m)
    factor = torch.linspace(0.5, 1.5, T, dtype=torch.float64)
    A = s.A * factor[:, None, None]
    C = s.C * factor[:, None, None].flip(0)
    Q = s.Q * factor[:, None, None]
    offsets = torch.randn(T, h, dtype=torch.float64)

    def program(y):
        x = None
        with pyro.plate("rows", len(y), dim=-1):
            for t in markov(range(T)):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, A[t], Q[t], offsets[t])
                x = pyro.sample(f"z_{t}", fn)
                pyro.sample(f"x_{t}", LinearGaussian(x, C[t], s.D, s.c), obs=y[:, t])

    rows = []
    for row in s.y:
        many = [*C], [s.D] * T, [s.c] * T, [*row]
        rows.append(kalman_loop(GaussianSequence(s.m, s.P, [*A[1:]], [*Q[1:]], [*offsets[1:]], *many)).log_prob)
    for vectorize in (True, False):
        found, _ = collapse(program, s.y, vectorize=vectorize)
        s.same(found, torch.stack(rows))


def test_inputs_are_offsets(system):
    s, U = system, 2
    W, u = torch.randn(len(s.m), U, dtype=torch.float64), torch.randn(B, T, U, dtype=torch.float64)

    def program(y, driven):
        x = None
        with pyro.plate("rows", len(y), dim=-1):
            for t in markov(range(T)):
                if x is None:
                    x = pyro.sample(f"z_{t}", LinearGaussian(None, None, s.P, s.m))
                elif driven:
                    x = pyro.sample(f"z_{t}", LinearGaussian(x, s.A, s.Q, s.a, inputs=(W, u[:, t])))
                else:
                    x = pyro.sample(f"z_{t}", LinearGaussian(x, s.A, s.Q, s.a + (u @ W.T)[:, t]))
                pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[:, t])

    rows = []
    for row, drive in zip(s.y, u @ W.T, strict=True):
        many = [s.C] * T, [s.D] * T, [s.c] * T, [*row]
        moves = [s.A] * (T - 1), [s.Q] * (T - 1), [s.a + d for d in drive[1:]]
        rows.append(kalman_loop(GaussianSequence(s.m, s.P, *moves, *many)).log_prob)
    for driven in (True, False):
        for vectorize in (True, False):
            found, _ = collapse(program, s.y, driven, vectorize=vectorize)
            s.same(found, torch.stack(rows))


def test_scalar_observations_and_plain_normals(system):
    s = system
    scale = s.D.detach().diagonal().sqrt()

    def normals(y):
        x = None
        with pyro.plate("rows", len(y), dim=-1):
            for t in markov(range(T)):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn)
                pyro.sample(f"x_{t}", dist.Normal(x @ s.C.T + s.c, scale).to_event(1), obs=y[:, t])

    def first(y):
        x = None
        with pyro.plate("rows", len(y), dim=-1):
            for t in markov(range(T)):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn)
                pyro.sample(f"x_{t}", dist.Normal(2 * x[..., 0] - 1, 0.7), obs=y[:, t, 0])

    diagonal = System(len(s.m))
    for name in ("A", "C", "Q", "m", "P", "a", "c", "y"):
        setattr(diagonal, name, getattr(s, name))
    diagonal.D = torch.diag(scale**2)
    s.same(collapse(normals, s.y)[0], diagonal.truth())
    diagonal.C = 2 * torch.eye(len(s.m), dtype=torch.float64)[:1]
    diagonal.D, diagonal.c = torch.full((1, 1), 0.49, dtype=torch.float64), -torch.ones(1, dtype=torch.float64)
    s.same(collapse(first, s.y)[0], diagonal.truth(y=s.y[..., :1]))
    s.same(collapse(first, s.y, vectorize=False)[0], diagonal.truth(y=s.y[..., :1]))


def test_low_rank_noise_is_a_covariance(system):
    s = system
    d, F = torch.rand(N, dtype=torch.float64) + 1, 0.3 * torch.randn(N, 2, dtype=torch.float64)
    M = spd(2, 0.5)

    def program(y, noise):
        x = None
        with pyro.plate("rows", len(y), dim=-1):
            for t in markov(range(T)):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn)
                pyro.sample(f"x_{t}", LinearGaussian(x, s.C, noise, s.c), obs=y[:, t])

    low, _ = collapse(program, s.y, DiagonalMinusLowRank(d, F, M))
    full, _ = collapse(program, s.y, torch.diag(d) - F @ M @ F.T)
    s.same(low, full)


def test_segments_are_one_sequence(system):
    s = system

    def segment(y, start):
        x = start
        with pyro.plate("rows", len(y), dim=-1):
            for t in markov(range(y.shape[1])):
                x = pyro.sample(f"z_{t}", LinearGaussian(x, s.A, s.Q, s.a))
                pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[:, t])

    # the state before the first one, such that the first one has the prior (m, P): by inverting the step
    whole, _ = collapse(lazy, s, s.y)
    handler = KalmanCollapse()
    with handler:
        lazy(s, s.y[:, :3])
    first = handler.chains["z_0"]
    belief = first.filtered()
    assert isinstance(belief, GaussianBelief)
    second, _ = collapse(segment, s.y[:, 3:], belief)
    s.same(first.log_prob() + second, whole)


def test_a_known_start(system):
    s, h = system, len(system.m)
    x0 = torch.randn(B, h, dtype=torch.float64)

    def program(y):
        x = x0
        with pyro.plate("rows", len(y), dim=-1):
            for t in markov(range(T)):
                x = pyro.sample(f"z_{t}", LinearGaussian(x, s.A, s.Q, s.a))
                pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[:, t])

    rows = []
    for row, start in zip(s.y, x0, strict=True):
        many = [s.C] * T, [s.D] * T, [s.c] * T, [*row]
        moves = [s.A] * (T - 1), [s.Q] * (T - 1), [s.a] * (T - 1)
        rows.append(kalman_loop(GaussianSequence(s.A @ start + s.a, s.Q, *moves, *many)).log_prob)
    s.same(collapse(program, s.y)[0], torch.stack(rows))


def test_observed_states_cut_the_chain(system):
    s, h = system, len(system.m)
    z3 = torch.randn(B, h, dtype=torch.float64)

    def program(y):
        x = None
        with pyro.plate("rows", len(y), dim=-1):
            for t in range(T):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn, obs=z3 if t == 3 else None)
                pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[:, t])

    with poutine.trace() as trace, KalmanCollapse():
        program(s.y)
    total = trace.trace.log_prob_sum()
    rows = []
    for row, z in zip(s.y, z3, strict=True):
        tight = 1e-9 * torch.eye(h, dtype=torch.float64)  # the state observed exactly: the dense loop with little noise
        C, D, c, obs = [s.C] * T, [s.D] * T, [s.c] * T, [*row]
        eye = torch.eye(h, dtype=torch.float64)
        C[3], c[3], obs[3] = torch.cat([s.C, eye]), torch.cat([s.c, 0 * z]), torch.cat([row[3], z])
        D[3] = torch.block_diag(s.D, tight)
        moves = [s.A] * (T - 1), [s.Q] * (T - 1), [s.a] * (T - 1)
        rows.append(kalman_loop(GaussianSequence(s.m, s.P, *moves, C, D, c, obs)).log_prob)
    close(total, torch.stack(rows).sum(), rtol=1e-5, atol=1e-5)


def test_plates_scale_and_subsampling(system):
    s = system
    y = torch.stack([s.y, s.y + 1, s.y - 1])  # (3, B, T, N)

    def program(y, size=None):
        with pyro.plate("groups", 3, dim=-2), pyro.plate("rows", B, subsample_size=size, dim=-1) as rows:
            x = None
            with poutine.scale(scale=0.5):
                for t in markov(range(T)):
                    fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                    x = pyro.sample(f"z_{t}", fn)
                    pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[:, rows, t])

    found, trace = collapse(program, y)
    close(found, torch.stack([s.truth(y=group) for group in y]))
    close(trace.log_prob_sum(), found.sum() / 2)
    torch.manual_seed(0)
    part, trace = collapse(program, y, 2)
    rows = trace.nodes["rows"]["value"]
    close(part, found[:, rows])
    close(trace.log_prob_sum(), found[:, rows].sum() / 2 * B / 2)


@grid({
    "num_steps": [1, 2, 4],
    "plates": [(), (("rows", 4, -1),), (("groups", 2, -2), ("rows", 3, -1)), (("groups", 2, -2),)],
    "vectorize": [True, False],
})
def test_rows_may_share_what_is_observed(plates, num_steps, vectorize):
    """No plates at all, or plates of chains that all see the same, as many rows as steps included."""
    s = System(2)
    y, numbers = s.y[0, :num_steps], torch.randn(num_steps, dtype=torch.float64)

    def program(scalar):
        x = None
        with contextlib.ExitStack() as stack:
            for name, size, dim in plates:
                stack.enter_context(pyro.plate(name, size, dim=dim))
            for t in markov(range(num_steps)):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn)
                if scalar:
                    pyro.sample(f"x_{t}", dist.Normal(x[..., 0] + 1.0, 0.5), obs=numbers[t])
                else:
                    pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[t])

    shape = tuple(size for _, size, _ in plates) + ((1,) if plates and plates[-1][2] == -2 else ())
    found = collapse(program, False, vectorize=vectorize)[0]
    close(found, s.truth(y=s.y[:1, :num_steps])[0].expand(shape))
    recorded = collapse(program, True, vectorize=False)[0]
    close(collapse(program, True, vectorize=vectorize)[0], recorded)
    assert recorded.shape == shape


def test_gaussian_hmm_agrees(system):
    s = system
    # pyro's first transition precedes its first observation
    chosen = dist.GaussianHMM(
        dist.MultivariateNormal(s.m, s.P), s.A.T, dist.MultivariateNormal(s.a, s.Q), s.C.T,
        dist.MultivariateNormal(s.c, s.D), duration=T,
    )  # fmt: skip

    def program(y):
        x = GaussianBelief(s.m, s.P)
        with pyro.plate("rows", len(y), dim=-1):
            for t in markov(range(T)):
                x = pyro.sample(f"z_{t}", LinearGaussian(x, s.A, s.Q, s.a))
                pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[:, t])

    s.same(collapse(program, s.y)[0], chosen.log_prob(s.y))


def test_forward_sampling_and_scoring_without_the_handler():
    s = System(2)
    torch.manual_seed(3)
    trace = poutine.trace(lazy).get_trace(s, s.y)
    trace.compute_log_prob()
    expected = 0
    for t in range(T):
        z = trace.nodes[f"z_{t}"]["value"]
        before = trace.nodes[f"z_{t - 1}"]["value"] if t else None
        fn = dist.MultivariateNormal(before @ s.A.T + s.a, s.Q) if t else dist.MultivariateNormal(s.m, s.P)
        expected += fn.log_prob(z).sum() + dist.MultivariateNormal(z @ s.C.T + s.c, s.D).log_prob(s.y[:, t]).sum()
    close(trace.log_prob_sum(), expected)
