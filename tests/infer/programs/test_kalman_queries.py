"""Every question to a chain that KalmanCollapse found, in programs of every form, against the textbook row by row."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.grids import grid
from support.linear_systems import B, N, System, T, close, lazy, plain
from support.oracles.gaussian import GaussianSequence, joint_posterior, kalman_loop

from pplseq.distributions.linear_gaussian import LinearEmission, LinearGaussian
from pplseq.distributions.noise import DiagonalNoise, FullNoise
from pplseq.distributions.partly_observed import PartlyObserved
from pplseq.infer.gaussian.chain import Dynamics
from pplseq.infer.gaussian.queries import draw_states
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.infer.programs.markov import markov

F64 = torch.float64
AHEAD = 3
LENGTHS = torch.tensor([T, 1, 4])
MASKS = {"whole": (False, False), "ragged": (True, False), "missing": (False, True), "both": (True, True)}
both_forms = pytest.mark.parametrize("vectorize", [True, False], ids=["vectorised", "recorded"])


def chain_of(program, *arguments, vectorize=True, **options):
    handler = KalmanCollapse(vectorize=vectorize, **options)
    with handler:
        program(*arguments)
    (chain,) = handler.chains.values()
    return chain


def data(s, missing):
    y = s.y.detach().clone()
    if missing:
        y[0, 2:4] = y[1, 0] = y[2, 3] = y[0, -1] = torch.nan
    return y


def sequence(s, y, length, more=0):
    """A row and steps behind its end."""
    total = length + more
    observations = [None if t >= length or y[t].isnan().any() else y[t] for t in range(total)]
    moves = [s.A] * (total - 1), [s.Q] * (total - 1), [s.a] * (total - 1)
    return GaussianSequence(s.m, s.P, *moves, [s.C] * total, [s.D] * total, [s.c] * total, observations)


@both_forms
@grid({"program": [lazy, plain], "masks": MASKS}, times=2)
def test_every_query(program, masks, vectorize):
    s = System(2)
    ragged, missing = MASKS[masks]
    y, lengths = data(s, missing), LENGTHS if ragged else torch.full((B,), T)
    gaps = y.isnan().any(-1) if missing else None
    chain = chain_of(program, s, y, LENGTHS if ragged else None, markov, gaps, vectorize=vectorize)
    assert chain.dynamics.matrix.dim() == chain.evidence.matrix.dim() == chain.dynamics.noise.dim() == 2
    log_prob, tokens, lag_one, belief = (
        chain.log_prob(), chain.token_log_probs(), chain.lag_one_covariances().dense(), chain.filtered()
    )  # fmt: skip
    states = {name: getattr(chain, f"{name}_states")() for name in ("predicted", "filtered", "smoothed")}
    forecast, innovations = chain.forecast(AHEAD), chain.innovations(y)
    means = draw_states(chain, torch.zeros(1, T, B, 2, dtype=F64))[0]
    roots = draw_states(chain, torch.eye(2 * T, dtype=F64).view(-1, T, 1, 2).expand(-1, -1, B, -1)) - means
    assert chain.sample(4, seed=0).shape == (4, B, T, 2)
    covariances = belief.covariance.expand(B, 2, 2)
    ahead = [c.view(-1, AHEAD, *c.shape[-2:]).expand(B, -1, -1, -1) for c in (forecast[1], forecast[3])]
    spreads = innovations.covariances.dense()
    for row, length in enumerate(lengths.tolist()):
        truth = kalman_loop(sequence(s, y[row], length))
        close(log_prob[row], truth.log_prob)
        close(tokens[row, :length], truth.token_log_probs)
        for name, found in states.items():
            close(found.means[row, :length], getattr(truth, name)[0])
            close(found.covariances.dense()[row, :length], getattr(truth, name)[1])
        close(lag_one[row, : length - 1], truth.lag_one)
        close((belief.mean[row], covariances[row]), (truth.filtered[0][-1], truth.filtered[1][-1]))
        close(means[:length, row], truth.smoothed[0])
        root = roots[:, :length, row].reshape(2 * T, -1)
        close(root.T @ root, joint_posterior(sequence(s, y[row], length))[2], rtol=1e-6, atol=1e-8)
        later = [part[length:] for part in kalman_loop(sequence(s, y[row], length, AHEAD)).predicted]
        close((forecast.state_means[row], ahead[0][row]), (later[0], later[1]))
        close(forecast.means[row], later[0] @ s.C.T + s.c)
        close(ahead[1][row], s.C @ later[1] @ s.C.T + s.D)
        for t in range(T):
            if t < length and not y[row, t].isnan().any():
                close(innovations.values[row, t], y[row, t] - s.C @ truth.predicted[0][t] - s.c)
                close(spreads[row, t], s.C @ truth.predicted[1][t] @ s.C.T + s.D)
            else:
                assert not innovations.values[row, t].any() and not spreads[row, t].any()


@both_forms
def test_queries_are_differentiable(vectorize):
    s = System(2)
    y = data(s, True)
    chain = chain_of(lazy, s, y, LENGTHS, markov, y.isnan().any(-1), vectorize=vectorize)
    mine, theirs = [], []
    for row, length in enumerate(LENGTHS.tolist()):
        truth = kalman_loop(sequence(s, y[row], length))
        mine.append(chain.smoothed_states().means[row, :length].sin().sum())
        mine.append(chain.smoothed_states().covariances.dense()[row, :length].sin().sum())
        theirs += [part.sin().sum() for part in truth.smoothed]
    s.same(torch.stack(mine), torch.stack(theirs))


# ------------------------------------------------------------------------------------------------ plates
@both_forms
def test_plates_and_subsampling(vectorize):
    """A chain in two plates, of which one is a mini-batch: its rows are those of the rows alone."""
    s = System(2)
    y = torch.stack([s.y, s.y + 1]).detach()  # (groups, rows, T, N)
    lengths = torch.tensor([[T, 1, 4], [2, 0, T]])

    def program(y, size):
        with pyro.plate("groups", 2, dim=-2), pyro.plate("rows", B, subsample_size=size, dim=-1) as rows:
            chosen.append(rows)
            x = None
            for t in markov(range(T)):
                with poutine.mask(mask=t < lengths[:, rows]):
                    fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                    x = pyro.sample(f"z_{t}", fn)
                    pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[:, rows, t])

    for size in (None, 2):
        chosen = []
        chain = chain_of(program, y, size, vectorize=vectorize)
        (rows,) = chosen
        assert chain.batch_shape == (2, len(rows))
        states, covariances = chain.smoothed_states().means, chain.smoothed_states().covariances.dense()
        forecast, values = chain.forecast(2), chain.innovations(y[:, rows]).values
        assert chain.sample(3).shape == (3, 2, len(rows), T, 2)
        assert forecast.means.shape == (2, len(rows), 2, N) and values.shape == (2, len(rows), T, N)
        for group in range(2):
            one = chain_of(lazy, s, y[group, rows], lengths[group, rows], vectorize=vectorize)
            close(chain.log_prob()[group], one.log_prob())
            close(states[group], one.smoothed_states().means)
            close(covariances[group], one.smoothed_states().covariances.dense())
            close(chain.filtered().mean[group], one.filtered().mean)
            close(forecast.means[group], one.forecast(2).means)
            close(values[group], one.innovations(y[group, rows]).values)


# ------------------------------------------------------------------------------------------------ the steady state
@both_forms
@pytest.mark.parametrize("program", [lazy, plain])
def test_programs_reach_the_steady_state(program, vectorize):
    s = System(2)
    y = torch.randn(2, 120, N, dtype=F64)
    chain = chain_of(program, s, y, vectorize=vectorize)
    assert 2 < chain.steady_step < 100 and len(chain.smoothed_states().covariances.table) < 150
    assert chain_of(program, s, y, vectorize=vectorize, tol=0.0).steady_step is None
    coarse = chain_of(program, s, y, vectorize=vectorize, tol=1e-3)
    assert coarse.steady_step < chain.steady_step
    close(coarse.log_prob(), chain.log_prob(), rtol=1e-3, atol=1e-2)
    close(chain_of(program, s, y, vectorize=vectorize, tol=0.0).log_prob(), chain.log_prob())


NORMALS = {
    "covariance": lambda s, roots: dict(covariance_matrix=s.D),
    "root": lambda s, roots: dict(scale_tril=roots[0]),
    "precision": lambda s, roots: dict(precision_matrix=roots[1]),
}


@both_forms
@pytest.mark.parametrize("kind", [*NORMALS, "scale", "number"])
def test_steps_that_share_their_noise_are_seen_to(kind, vectorize):
    """However it is given, and with its gradient."""
    s = System(2)
    root = torch.linalg.cholesky(s.D.detach()).requires_grad_()
    precision = torch.linalg.inv(s.D.detach()).requires_grad_()
    scale = (torch.rand(N, dtype=F64) + 0.5).requires_grad_()
    noise = {"scale": torch.diag(scale**2), "number": 0.25 * torch.eye(N, dtype=F64)}.get(kind, s.D)

    def program(y, shared=True):
        x = None
        with pyro.plate("rows", B, dim=-1):
            for t in markov(range(T)):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn)
                mean = x @ s.C.T + s.c
                if kind in ("scale", "number"):
                    site = dist.Normal(mean, scale if kind == "scale" else 0.5).to_event(1)
                else:
                    site = dist.MultivariateNormal(mean, **NORMALS[kind](s, (root, precision)))
                pyro.sample(f"x_{t}", site if shared else LinearGaussian(x, s.C, noise, s.c), obs=y[:, t])

    mine, theirs = (chain_of(program, s.y, shared, vectorize=vectorize) for shared in (True, False))
    assert mine.evidence.matrix.dim() == 2
    close(mine.log_prob(), theirs.log_prob())
    close(mine.forecast(2).covariances, theirs.forecast(2).covariances)
    leaf = {"covariance": s.D, "root": root, "precision": precision, "scale": scale}.get(kind, s.C)
    found = torch.autograd.grad(mine.log_prob().sum(), leaf)[0]
    wanted = {"root": lambda g: ((g + g.T) @ root).tril(), "scale": lambda g: g}.get(kind)
    if kind in ("covariance", "scale", "number"):
        expected = torch.autograd.grad(theirs.log_prob().sum(), leaf)[0]
        symmetric = (lambda g: g + g.T) if kind == "covariance" else (lambda g: g)
        close(symmetric(found), symmetric(expected))
    elif kind == "root":
        gradient = torch.autograd.grad(theirs.log_prob().sum(), s.D)[0]
        close(found.tril(), wanted(gradient))


@both_forms
def test_equal_parameters_of_two_steps_are_two(vectorize):
    """Each must get its own gradient."""
    s = System(2)
    moves = [s.A.detach().clone().requires_grad_() for _ in range(T)]

    def program(y):
        x = None
        with pyro.plate("rows", B, dim=-1):
            for t in range(T):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, moves[t], s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn)
                pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[:, t])

    total = chain_of(program, s.y, vectorize=vectorize).log_prob().sum()
    each = torch.autograd.grad(total, moves[1:])
    expected = torch.autograd.grad(chain_of(lazy, s, s.y).log_prob().sum(), s.A)[0]
    close(sum(each), expected)
    assert all(float(gradient.abs().max()) > 0 for gradient in each)


# ------------------------------------------------------------------------------------------------ what changes
@both_forms
@pytest.mark.parametrize("which", ["offsets", "inputs", "code"])
def test_observations_with_offsets_of_each_step(which, vectorize):
    s = System(2)
    W, u = torch.randn(N, 2, dtype=F64), torch.randn(B, T, 2, dtype=F64)

    def program(y):
        x = None
        with pyro.plate("rows", B, dim=-1):
            for t in markov(range(T)):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn)
                site = {
                    "offsets": lambda: LinearGaussian(x, s.C, s.D, (u @ W.T)[:, t]),
                    "inputs": lambda: LinearGaussian(x, s.C, s.D, inputs=(W, u[:, t])),
                    "code": lambda: dist.MultivariateNormal(x @ s.C.T + (u @ W.T)[:, t], s.D),
                }[which]()
                pyro.sample(f"x_{t}", site, obs=y[:, t])

    chain = chain_of(program, s.y, vectorize=vectorize)
    values, spreads = chain.innovations(s.y)
    close(values, s.y - u @ W.T - chain.predicted_states().means @ s.C.T)
    log_probs = dist.MultivariateNormal(torch.zeros(N, dtype=F64), spreads.dense()).log_prob(values)
    close(log_probs, chain.token_log_probs())
    with pytest.raises(
        ValueError, match="observations change from step to step, and behind the end they are not known"
    ):
        chain.forecast(2)
    ahead = chain.forecast(2, emission=LinearEmission(s.C, FullNoise(s.D)))
    close(ahead.means, ahead.state_means @ s.C.T)


@both_forms
def test_matrices_of_each_step(vectorize):
    s = System(2)
    A, C = s.A.detach() * torch.rand(T, 1, 1, dtype=F64), s.C.detach() * torch.rand(T, 1, 1, dtype=F64)

    def program(y):
        x = None
        with pyro.plate("rows", B, dim=-1):
            for t in markov(range(T)):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, A[t], s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn)
                pyro.sample(f"x_{t}", LinearGaussian(x, C[t], s.D, s.c), obs=y[:, t])

    chain = chain_of(program, s.y, vectorize=vectorize)
    with pytest.raises(ValueError, match="dynamics change from step to step"):
        chain.forecast(2)
    with pytest.raises(ValueError, match="observations change from step to step"):
        chain.forecast(2, dynamics=Dynamics(A[0], s.Q))
    with pytest.raises(ValueError, match="evidence.matrix changes from step to step"):
        chain.innovations(s.y)
    assert (
        chain.forecast(2, dynamics=Dynamics(A[0], s.Q), emission=LinearEmission(C[0], FullNoise(s.D))).means.shape[1]
        == 2
    )


@both_forms
@grid({"num_steps": [B, T], "which": ["A", "C", "Q", "D", "P", "A and C"]}, times=2)
def test_matrices_of_each_row(num_steps, which, vectorize):
    """As many rows as steps, and other numbers: each is a system of its own."""
    s = System(2)
    factor = torch.tensor([0.5, 0.8, 1.0], dtype=F64).view(B, 1, 1)
    own = {name: getattr(s, name) * factor if name in which.split() else getattr(s, name) for name in "ACQDP"}
    y = s.y[:, :num_steps]

    def program(y):
        x = None
        with pyro.plate("rows", B, dim=-1):
            for t in markov(range(num_steps)):
                if x is None:
                    x = pyro.sample(f"z_{t}", dist.MultivariateNormal(s.m, own["P"]), infer={"collapse": True})
                else:
                    x = pyro.sample(f"z_{t}", LinearGaussian(x, own["A"], own["Q"], s.a))
                pyro.sample(f"x_{t}", LinearGaussian(x, own["C"], own["D"], s.c), obs=y[:, t])

    chain = chain_of(program, y, vectorize=vectorize)
    wanted, ahead = [], []
    for row in range(B):
        A, C, Q, D, P = (own[name][row] if own[name].dim() == 3 else own[name] for name in "ACQDP")
        n = num_steps + 1
        moves = [A] * num_steps, [Q] * num_steps, [s.a] * num_steps
        truth = kalman_loop(GaussianSequence(s.m, P, *moves, [C] * n, [D] * n, [s.c] * n, [*y[row], None]))
        wanted.append(truth.log_prob)
        ahead.append((C @ truth.predicted[0][-1] + s.c, C @ truth.predicted[1][-1] @ C.T + D))
    s.same(chain.log_prob(), torch.stack(wanted))
    dynamics = Dynamics(own["A"].expand(1, B, 2, 2), own["Q"].expand(1, B, 2, 2), s.a)
    found = chain.forecast(1, dynamics=dynamics)
    close(
        (found.means[:, 0], found.covariances[..., 0, :, :].expand(B, N, N)),
        tuple(torch.stack(part) for part in zip(*ahead, strict=True)),
    )


@both_forms
@pytest.mark.parametrize("driven", [False, True])
def test_forecasts_of_partly_observed_vectors(driven, vectorize):
    s = System(2)
    observed = torch.rand(B, T, N) > 0.3
    variances, inputs = torch.rand(N, dtype=F64) + 0.5, torch.randn(B, T, 2, dtype=F64)
    W = torch.randn(N, 2, dtype=F64)

    def program(y):
        x = None
        with pyro.plate("rows", B, dim=-1):
            for t in markov(range(T)):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                x = pyro.sample(f"z_{t}", fn)
                more = (W, inputs[:, t]) if driven else None
                site = PartlyObserved(x, s.C, variances, s.c, more, observed=observed[:, t])
                pyro.sample(f"x_{t}", site, obs=y[:, t])

    chain = chain_of(program, s.y, vectorize=vectorize)
    if driven:
        with pytest.raises(ValueError, match="observations change from step to step"):
            chain.forecast(2)
        return
    found = chain.forecast(2)
    wanted = chain.forecast(2, emission=LinearEmission(s.C, DiagonalNoise(variances)))
    close((found.means, found.covariances), (wanted.means + s.c, wanted.covariances))
