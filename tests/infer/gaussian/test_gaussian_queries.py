"""Posterior draws, forecasts, innovations and tables of covariances of Gaussian chains, exactly: no tolerance of sampling."""

import pytest
import torch
from support.oracles.gaussian import joint_posterior, kalman_loop
from support.tiny_gaussians import SITUATIONS, chain_of, system, tiny_case

from pplseq.distributions.linear_gaussian import LinearEmission
from pplseq.distributions.noise import DiagonalNoise, FullNoise
from pplseq.infer.gaussian.chain import Dynamics
from pplseq.infer.gaussian.queries import draw_states
from pplseq.infer.gaussian.results import StepCovariances

close = torch.testing.assert_close
F64 = torch.float64
every_situation = pytest.mark.parametrize("situation", SITUATIONS)


# ------------------------------------------------------------------------------------------------ posterior draws
@every_situation
def test_draws_are_the_posterior(situation):
    """A draw is affine in its noise: with none it is the mean, and unit noises give a root of the joint covariance."""
    case = tiny_case(situation, gradients=False)
    chain, (num_steps, rows), h = case.chain(), case.observations.shape[:2], case.mean.shape[-1]
    units = torch.eye(num_steps * h, dtype=F64).view(-1, num_steps, 1, h).expand(-1, -1, rows, -1)
    means = draw_states(chain, torch.zeros(1, num_steps, rows, h, dtype=F64))[0]
    close(means.transpose(0, 1), chain.smoothed_states().means)
    roots = draw_states(chain, units) - means
    for row, length in enumerate(case.lengths.tolist()):
        assert not roots[:, length:, row].any()
        if length > 0:
            root = roots[:, :length, row].reshape(len(roots), -1)
            close(root.T @ root, joint_posterior(case.sequence(row))[2], rtol=1e-6, atol=1e-7)


def test_samples_have_the_moments_of_the_posterior():
    case = tiny_case("ragged gaps", gradients=False)
    chain, num = case.chain(), 20_000
    draws = chain.sample(num, seed=0)
    states, lag_one = chain.smoothed_states(), chain.lag_one_covariances().dense()
    centred = draws - states.means
    covariances = torch.einsum("srti,srtj->rtij", centred, centred) / num
    behind = torch.einsum("srti,srtj->rtij", centred[:, :, 1:], centred[:, :, :-1]) / num
    deviations = states.covariances.dense().diagonal(dim1=-2, dim2=-1).sqrt()
    assert bool((centred.mean(0).abs() <= 5 * deviations / num**0.5 + 1e-12).all())
    scale = deviations.unsqueeze(-1) * deviations.unsqueeze(-2)
    assert bool(((covariances - states.covariances.dense()).abs() <= 7 * scale / num**0.5 + 1e-12).all())
    scale = deviations[:, 1:].unsqueeze(-1) * deviations[:, :-1].unsqueeze(-2)
    assert bool(((behind - lag_one).abs() <= 7 * scale / num**0.5 + 1e-12).all())


def test_seeds_of_draws():
    case = tiny_case("ragged")
    chain = case.chain()
    first = chain.sample(2, seed=1)
    assert first.shape == (2, 5, 9, 3) and not first.requires_grad
    assert torch.equal(first, chain.sample(2, seed=1)) and not torch.equal(first, chain.sample(2, seed=2))
    torch.manual_seed(0)
    again = chain.sample()
    torch.manual_seed(0)
    assert torch.equal(again, chain.sample(1)) and not torch.equal(again, chain.sample(1))
    assert torch.isfinite(case.chain(gradients=False, dtype=torch.float32).sample(3)).all()
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        chain.sample(0)


# ------------------------------------------------------------------------------------------------ forecasts
def emission_of(case):
    return LinearEmission(case.emission, DiagonalNoise(case.variances))


def continued(case, row, k, dynamics=None):
    """The row with k unobserved steps behind its end: predicted states, and what is observed of them."""
    length = int(case.lengths[row])
    sequence = case.sequence(row) if length else tiny_row(case, row)
    zero = torch.zeros(case.mean.shape[-1], dtype=F64)
    own = dynamics or Dynamics(case.matrix, case.noise, case.offset)
    matrix, noise = (m.expand(k, *m.shape[-2:]) if m.dim() == 2 else m for m in own[:2])
    matrix, noise = (m if m.dim() == 3 else m[:, row] for m in (matrix, noise))
    offset = zero if own.offset is None else own.offset
    offset = offset.expand(k, -1) if offset.dim() == 1 else offset[:, row]
    more = sequence._replace(
        matrix=[*sequence.matrix, *matrix][-(length + k - 1) :], noise=[*sequence.noise, *noise][-(length + k - 1) :],
        offset=[*sequence.offset, *offset][-(length + k - 1) :], emission=[*sequence.emission, *[case.emission] * k],
        emission_noise=[*sequence.emission_noise, *[torch.diag(case.variances)] * k],
        emission_offset=[*sequence.emission_offset, *[torch.zeros_like(case.variances)] * k],
        observations=[*sequence.observations, *[None] * k],
    )  # fmt: skip
    if length == 0:  # the start is what is known before the first step behind it
        more = more._replace(
            mean=matrix[0] @ sequence.mean + offset[0],
            covariance=matrix[0] @ sequence.covariance @ matrix[0].T + noise[0],
        )
    means, covariances = kalman_loop(more).predicted
    return means[length:], covariances[length:]


def tiny_row(case, row):
    """A sequence without a step, as far as there is one."""
    covariance = case.covariance if case.root.dim() == 2 else case.covariance[row]
    return type(case.sequence(0))(case.mean[row], covariance, [], [], [], [], [], [], [])


def same_forecast(case, found, dynamics=None):
    rows, k, h = found.state_means.shape
    wanted = [continued(case, row, k, dynamics) for row in range(rows)]
    means, covariances = (torch.stack(part) for part in zip(*wanted, strict=True))
    shared = found.state_covariances.dim() == 3
    state_covariances = (
        found.state_covariances.expand(rows, -1, -1, -1) if shared else found.state_covariances
    )
    mine, theirs = [found.state_means, state_covariances], [means, covariances]
    if found.means is not None:
        n = len(case.variances)
        mine += [found.means, found.covariances.view(-1, k, n, n).expand(rows, -1, -1, -1)]
        spread = case.emission @ covariances @ case.emission.T + torch.diag(case.variances)
        theirs += [means @ case.emission.T, spread]
    close(mine, theirs)
    grads = []
    for values in (mine, theirs):
        generator = torch.Generator().manual_seed(0)
        total = sum((v * torch.randn(v.shape, generator=generator, dtype=F64)).sum() for v in values)
        grads.append(torch.autograd.grad(total, case.parameters, allow_unused=True, retain_graph=True))
    for mine, theirs, parameter in zip(*grads, case.parameters, strict=True):
        zero = torch.zeros_like(parameter)
        close(zero if mine is None else mine, zero if theirs is None else theirs, rtol=1e-6, atol=1e-8)


STANDING = [s for s in SITUATIONS if "changing" not in s and "step" not in s and "by row" not in s]


@pytest.mark.parametrize("situation", [*STANDING, "one step"])
def test_forecasts(situation):
    case = tiny_case(situation)
    found = case.chain(emission=emission_of(case)).forecast(4)
    same_forecast(case, found)
    alone = case.chain().forecast(4)
    assert alone.means is None and alone.covariances is None
    close(alone[:2], found[:2])
    close(case.chain().forecast(4, emission=emission_of(case))[2:], found[2:])


@pytest.mark.parametrize("situation", ["changing", "changing missing", "step offset", "ragged"])
def test_forecasts_under_other_dynamics(situation):
    case, k = tiny_case(situation), 3
    torch.manual_seed(0)
    A, root, offset = (
        torch.randn(k, 5, 3, 3, dtype=F64),
        torch.randn(k, 3, 3, dtype=F64),
        torch.randn(k, 5, 3, dtype=F64),
    )
    chain = case.chain(emission=emission_of(case))
    for dynamics in (
        Dynamics(A[0, 0], root[0] @ root[0].T), Dynamics(A[:, 0], root @ root.mT), Dynamics(A, root @ root.mT, offset),
        Dynamics(A[0, 0], root[0] @ root[0].T, offset[0, 0]),
    ):  # fmt: skip
        same_forecast(case, chain.forecast(k, dynamics=dynamics), dynamics)
    if situation != "ragged":
        with pytest.raises(ValueError, match=r"behind the end they are not known; give forecast\(num_steps, dynamics="):
            chain.forecast(k)
    with pytest.raises(ValueError, match=r"dynamics.matrix must be \(h, h\), \(num_steps, h, h\)"):
        chain.forecast(k, dynamics=Dynamics(A[:2, 0], root @ root.mT))
    with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
        chain.forecast(0)


# ------------------------------------------------------------------------------------------------ innovations
def test_innovations_are_white():
    """They are linear in the observations: one row for each unit observation gives the matrix of that, exactly."""
    matrix, noise, emission, spread = parts = system(h=3, n=2)
    num_steps, n, h = 7, 2, 3
    size = num_steps * n
    y = torch.cat([torch.zeros(1, size, dtype=F64), torch.eye(size, dtype=F64)]).view(size + 1, num_steps, n)
    chain = chain_of(parts, y.transpose(0, 1), emission=LinearEmission(emission, FullNoise(spread)))
    found = chain.innovations(y)
    whitening = (found.values[1:] - found.values[:1]).reshape(size, size)  # [unit, innovation]
    covariance = torch.eye(h, dtype=F64)
    states = torch.zeros(num_steps, h, num_steps, h, dtype=F64)
    for t in range(num_steps):  # Cov(x_s, x_t)
        across = covariance
        for s in range(t, num_steps):
            states[s, :, t], states[t, :, s] = across, across.T
            across = matrix @ across
        covariance = matrix @ covariance @ matrix.T + noise
    look = torch.block_diag(*[emission] * num_steps)
    of_y = look @ states.view(num_steps * h, -1) @ look.T + torch.block_diag(*[spread] * num_steps)
    close(whitening.T @ of_y @ whitening, torch.block_diag(*found.covariances.dense()[0]))


@pytest.mark.parametrize("situation", ["plain", "ragged gaps", "offset", "own starts", "one state", "more features"])
def test_innovations_make_up_the_likelihood(situation):
    case = tiny_case(situation)
    chain = case.chain(emission=emission_of(case))
    values, covariances = chain.innovations(case.observations.transpose(0, 1))
    used = (case.valid if case.seen is None else case.valid & case.seen).T
    dense = covariances.dense()
    assert not values[~used].any() and not dense[~used].any()
    log_probs = torch.distributions.MultivariateNormal(torch.zeros_like(values[used]), dense[used]).log_prob(
        values[used]
    )
    close(log_probs, chain.token_log_probs()[used])
    pair = log_probs, chain.token_log_probs()[used]
    grads = [torch.autograd.grad(v.sin().sum(), case.parameters, retain_graph=True) for v in pair]
    close(*grads, rtol=1e-6, atol=1e-8)


def test_innovations_that_cannot_be_had():
    case = tiny_case("plain")
    with pytest.raises(ValueError, match="emission: innovations need one"):
        case.chain().innovations(case.observations)
    with pytest.raises(ValueError, match=r"observations must be \(\*B, T, n\) = \(5, 9, 2\), got \(9, 5, 3\)"):
        case.chain(emission=emission_of(case)).innovations(torch.zeros(9, 5, 3, dtype=F64))
    for situation in ("evidence by step", "evidence by row"):
        case = tiny_case(situation)
        with pytest.raises(ValueError, match="evidence.matrix changes from step to step"):
            case.chain(emission=emission_of(case)).innovations(case.observations)


def test_an_emission_without_covariances():
    class OfMeans:
        def predict(self, mean, covariance):
            return 2 * mean, None

    case = tiny_case("ragged")
    chain = case.chain(emission=OfMeans())
    close(chain.forecast(2).means, 2 * chain.forecast(2).state_means)
    assert (
        chain.forecast(2).covariances is None and chain.innovations(torch.zeros(5, 9, 3, dtype=F64)).covariances is None
    )


# ------------------------------------------------------------------------------------------------ tables of covariances
def test_tables_of_covariances():
    table = torch.randn(4, 2, 2, dtype=F64)
    by_row = torch.randint(0, 4, (6, 6), generator=torch.Generator().manual_seed(0))
    valid = torch.arange(6).unsqueeze(1) < torch.tensor([6, 0, 1, 3, 6, 2])
    for index in (torch.tensor([0, 1, 3, 3, 3, 2]), by_row):
        for mask in (None, valid):
            covariances = StepCovariances(table, index, torch.Size((2, 3)), mask)
            wide = index.unsqueeze(1).expand(6, 6) if index.dim() == 1 else index
            full = table[wide] if mask is None else table[wide] * mask[..., None, None]
            dense = covariances.dense()
            close(dense, full.transpose(0, 1).reshape(2, 3, 6, 2, 2))
            assert len(covariances) == 6 and len(covariances.table) == 4
            close(covariances.total(), full.sum((0, 1)))
            for step in (0, 2, -1):
                shape = (2, 2) if index.dim() == 1 else (2, 3, 2, 2)
                close(covariances.at(step), table[index[step]].view(shape))
            weights = torch.rand(2, 3, 6, dtype=F64)
            close(covariances.total(weights), (weights[..., None, None] * dense).sum((0, 1, 2)))
            some = weights > 0.4
            close(covariances.total(some), (some[..., None, None] * dense).sum((0, 1, 2)))
            steps = torch.tensor([True, False, True, True, False, False]).view(1, 1, 6)
            close(covariances.total(steps), dense[:, :, steps.flatten()].sum((0, 1, 2)))
            for wrong in (weights[..., :5], weights[0], torch.ones(6), torch.ones(3, 6)):  # no guess what its dimensions are
                with pytest.raises(ValueError, match=r"mask must be \(\*B, T\) = \(2, 3, 6\)"):
                    covariances.total(wrong)
