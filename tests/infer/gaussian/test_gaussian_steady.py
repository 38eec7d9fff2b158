"""The steady state of Gaussian chains: no approximation by default, reported, and never a covariance for each step."""

import dataclasses

import pyro.distributions as dist
import pytest
import torch
from support.grids import grid
from support.oracles.gaussian import kalman_loop
from support.tiny_gaussians import chain_of, system, tiny_case

from pplseq.infer.gaussian.chain import Dynamics, GaussianChain

close = torch.testing.assert_close
F64 = torch.float64
T = 90


def long_case(situation, num_steps=T):
    """Rows of all lengths, gaps in the transient and in the steady state, short behind one another and up to the end."""
    case = tiny_case(situation.replace(" late", ""), num_steps)
    lengths, seen = case.lengths, case.seen
    if "ragged" in situation:
        lengths = torch.tensor([num_steps, num_steps - 20, num_steps - 21, 0, 9])
    if "late" in situation:
        seen = torch.ones(num_steps, 5, dtype=torch.bool)
        seen[40, 0] = seen[40:42, 1] = seen[40:45, 2] = seen[43, 2] = seen[-4:, 3] = seen[50, 0] = False
    return dataclasses.replace(case, lengths=lengths, seen=seen)


LONG = ("plain", "ragged", "gaps", "ragged gaps", "ragged gaps late", "gaps late", "own starts", "known start",
        "singular noise", "offset", "step offset", "one state", "no memory", "known rows")  # fmt: skip


def answers(chain):
    smoothed, lag_one = chain.smoothed_states(), chain.lag_one_covariances()
    return {
        "log_prob": chain.log_prob(),
        "token_log_probs": chain.token_log_probs(),
        "predicted": chain.predicted_states().means,
        "filtered": chain.filtered_states().covariances.dense(),
        "belief": chain.filtered().mean,
        "smoothed": smoothed.means,
        "smoothed covariances": smoothed.covariances.dense(),
        "lag-one covariances": lag_one.dense(),
        "totals": smoothed.covariances.total() + lag_one.total(),
        "forecast": chain.forecast(2).state_covariances if chain.flat.offset is None else smoothed.means,
    }


@pytest.mark.parametrize("situation", LONG)
def test_the_steady_state_is_exact_by_default(situation):
    """Values and gradients are those of a chain that never takes it."""
    case = long_case(situation)
    found = []
    for options in ({}, {"tol": 0.0}):
        chain = case.chain(**options)
        values = answers(chain)
        generator = torch.Generator().manual_seed(0)
        total = sum((v * torch.randn(v.shape, generator=generator, dtype=F64)).sum() for v in values.values())
        found.append((values, torch.autograd.grad(total, case.parameters)))
        assert (chain.steady_step is None) == (options != {}), chain.steady_step
    close(found[0][0], found[1][0], rtol=1e-9, atol=1e-11)
    close(found[0][1], found[1][1], rtol=1e-7, atol=1e-8)


def test_one_long_sequence():
    """Whose means go in blocks."""
    case = tiny_case("one row missing", 700)
    case = dataclasses.replace(case, seen=torch.rand(700, 1) > 0.01)
    chain, truth = case.chain(), kalman_loop(case.sequence(0))
    close(chain.log_prob()[0], truth.log_prob)
    close(chain.smoothed_states().means[0], truth.smoothed[0])
    mine, theirs = (torch.autograd.grad(v, case.parameters[:4]) for v in (chain.log_prob()[0], truth.log_prob))
    close(mine, theirs, rtol=1e-7, atol=1e-8)


# ------------------------------------------------------------------------------------------------ when it is reached
def test_the_steady_covariance_solves_the_riccati_equation():
    linalg = pytest.importorskip("scipy.linalg")
    for h, n in ((1, 1), (3, 2), (2, 5)):
        matrix, noise, emission, spread = parts = system(h, n)
        chain = chain_of(parts, torch.randn(200, 2, n, dtype=F64))
        wanted = torch.from_numpy(
            linalg.solve_discrete_are(*(m.numpy() for m in (matrix.T, emission.T, noise, spread)))
        )
        step = chain.steady_step
        predicted = chain.predicted_states().covariances
        close(predicted.at(step), wanted, rtol=1e-10, atol=1e-12)
        assert (predicted.at(step // 2) - wanted).abs().max() > 1e-9
        # what all later observations say, N = Lam W + (A W)' N (A W), is a discrete Lyapunov equation
        information = emission.T @ torch.linalg.solve(spread, emission)
        carry = torch.linalg.inv(torch.eye(h, dtype=F64) + wanted @ information)
        loop = (matrix @ carry).numpy()
        later = torch.from_numpy(linalg.solve_discrete_lyapunov(loop.T, (information @ carry).numpy()))
        close(chain.smoothed_states().covariances.at(100), wanted - wanted @ later @ wanted, rtol=1e-10, atol=1e-12)


def test_when_the_steady_state_is_reported():
    parts = system()
    y = torch.randn(150, 3, 2, dtype=F64)
    chain = chain_of(parts, y)
    step = chain.steady_step
    assert 5 < step < 60 and chain.num_steps == 150
    predicted = chain.predicted_states().covariances
    assert torch.equal(predicted.at(step), predicted.at(-1)) and not torch.equal(
        predicted.at(step - 1), predicted.at(-1)
    )
    coarse = [chain_of(parts, y, tol=tol).steady_step for tol in (1e-2, 1e-4, 1e-8)]
    assert coarse == sorted(coarse) and 0 < coarse[0] < coarse[-1] < step
    assert chain_of(parts, y, tol=0.0).steady_step is None
    assert chain_of(parts, y[:5]).steady_step is None
    assert chain_of(parts, y, covariance=predicted.at(-1)).steady_step == 0
    # the rest of a row's padding does not count as a gap, and a gap delays it
    valid = torch.arange(150).unsqueeze(1) < torch.tensor([150, 3, 70])
    assert chain_of(parts, y, valid=valid).steady_step == step
    seen = torch.ones(150, 3, dtype=torch.bool)
    seen[4, 1] = False
    assert step < chain_of(parts, y, seen=seen).steady_step <= step + 8
    changing = Dynamics(parts[0].expand(149, 3, 3), parts[1])
    assert GaussianChain(chain.start, changing, chain.evidence).steady_step is None


def test_a_coarse_tolerance_is_an_approximation_of_its_size():
    parts, y = system(radius=0.95), torch.randn(100, 2, 2, dtype=F64)
    exact = chain_of(parts, y, tol=0.0)
    errors = []
    for tol in (1e-1, 1e-3, 1e-6):
        chain = chain_of(parts, y, tol=tol)
        difference = chain.predicted_states().covariances.dense() - exact.predicted_states().covariances.dense()
        errors.append(float(difference.abs().max()))
        close(chain.log_prob(), exact.log_prob(), rtol=10 * tol, atol=100 * tol)
    assert errors[0] > errors[1] > errors[2] > 1e-12 and errors[2] < 1e-5


@grid({"known": [False, True], "radius": [0.8, 1e-9, 0.0]})
def test_a_start_in_the_steady_state_keeps_its_gradient(radius, known):
    """Nothing changes from step to step, but what moves the start moves all that follows, or nothing at all."""
    parts, y = system(radius=radius or 1), torch.randn(60, 2, 2, dtype=F64)
    parts = [0 * parts[0] if radius == 0 else parts[0], 0 * parts[1] if known else parts[1], *parts[2:]]
    start = 0 * parts[1] if known else chain_of(parts, y).predicted_states().covariances.at(-1).clone()
    grads = []
    for options in ({}, {"tol": 0.0}):
        leaves = [p.clone().requires_grad_() for p in (*parts, start)]
        chain = chain_of(leaves[:4], y, leaves[4], **options)
        total = chain.log_prob().sum() + chain.smoothed_states().covariances.total().sum()
        grads.append(torch.autograd.grad(total, leaves))
    close(*grads, rtol=1e-9, atol=1e-9)


def test_slow_chains_in_single_precision():
    """Changes of a step are lost in single precision long before the covariance has arrived: they add up."""
    one = torch.ones(1, 1, dtype=F64)
    parts, y = (one, 1e-3 * one, one, one), torch.randn(600, 1, 1, dtype=F64)
    exact = chain_of(parts, y, tol=0.0).smoothed_states().covariances.dense()
    single = chain_of([p.float() for p in parts], y.float())
    assert 20 < single.steady_step < 500
    close(single.smoothed_states().covariances.dense().double(), exact, rtol=3e-6, atol=0)


# ------------------------------------------------------------------------------------------------ storage
def sizes(chain):
    states = chain.predicted_states(), chain.filtered_states(), chain.smoothed_states()
    return [len(s.covariances.table) for s in states] + [len(chain.lag_one_covariances().table)]


def test_covariances_are_not_stored_for_each_step():
    parts, y = system(), torch.randn(3000, 4, 2, dtype=F64)
    whole = chain_of(parts, y)
    assert max(sizes(whole)) < 120 and max(sizes(chain_of(parts, y[:1500]))) == max(sizes(whole))
    # rows that end in the steady state share how they end
    lengths = torch.tensor([3000, 2000, 1500, 2999])
    assert max(sizes(chain_of(parts, y, valid=torch.arange(3000).unsqueeze(1) < lengths))) <= max(sizes(whole))
    # gaps cost what it takes to forget them, but all of one size are the same
    seen = torch.ones(3000, 4, dtype=torch.bool)
    seen[200:2800:200] = False
    one_gap = seen.clone()
    one_gap[400:] = True
    assert max(sizes(chain_of(parts, y, seen=seen))) <= max(sizes(chain_of(parts, y, seen=one_gap))) + 2


@pytest.mark.parametrize("gap", [False, True])
def test_nothing_of_a_matrix_a_step_is_kept_for_the_gradient(gap):
    h, n, num_steps, rows = 8, 2, 1000, 2
    parts = [p.requires_grad_() for p in system(h, n)]
    y = torch.randn(num_steps, rows, n, dtype=F64)
    seen = torch.ones(num_steps, rows, dtype=torch.bool)
    seen[500, 0] = not gap
    largest = []

    def keep(tensor):
        largest.append(tensor.untyped_storage().nbytes() // tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        chain = chain_of(parts, y, seen=seen)
        total = chain.log_prob().sum() + chain.smoothed_states().means.sum()
        total = total + chain.smoothed_states().covariances.total().sum() + chain.lag_one_covariances().total().sum()
    total.backward()
    per_step = num_steps * rows * h
    assert per_step <= max(largest) <= 2 * per_step < per_step * h / 2


# ------------------------------------------------------------------------------------------------ Pyro's own
@pytest.mark.parametrize(("h", "n"), [(1, 1), (3, 2), (2, 4)])
def test_pyros_gaussian_hmm(h, n):
    """Which moves before its first observation: a start of ours is what one move makes of a start of theirs."""
    parts = [p.requires_grad_() for p in system(h, n)]
    matrix, noise, emission, spread = parts
    root, mean = torch.randn(h, h, dtype=F64), torch.randn(h, dtype=F64).requires_grad_()
    covariance = (root @ root.T).requires_grad_()
    y = torch.randn(50, 3, n, dtype=F64)
    normal = dist.MultivariateNormal
    peer = dist.GaussianHMM(
        normal(mean, covariance), matrix.T, normal(torch.zeros(h, dtype=F64), noise), emission.T,
        normal(torch.zeros(n, dtype=F64), spread), duration=50,
    )  # fmt: skip
    chain = chain_of(parts, y, matrix @ covariance @ matrix.T + noise, (matrix @ mean).expand(3, h))
    mine, theirs = chain.log_prob(), peer.log_prob(y.transpose(0, 1))
    close(mine, theirs)
    leaves = [*parts, mean, covariance]
    found = [list(torch.autograd.grad(v.sum(), leaves)) for v in (mine, theirs)]
    for grads in found:  # of covariances only the symmetric part is defined
        for i in (1, 3, 5):
            grads[i] = grads[i] + grads[i].T
    close(*found, rtol=1e-6, atol=1e-7)
    last = peer.filter(y.transpose(0, 1))
    belief = chain.filtered()
    close(belief.mean, last.loc)
    close(belief.covariance.expand(3, h, h), last.covariance_matrix)
