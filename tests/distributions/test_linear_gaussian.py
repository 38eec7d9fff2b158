"""Linear-Gaussian conditionals at concrete values against torch's Gaussians; noise that is never written out."""

import pyro.distributions as dist
import pytest
import torch

from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.distributions.linear_gaussian import LinearEmission, LinearGaussian
from pplseq.distributions.noise import DiagonalMinusLowRank, DiagonalNoise, FullNoise

close = torch.testing.assert_close
H, N, B = 3, 5, 4


def spd(n):
    root = torch.randn(n, n, dtype=torch.float64)
    return root @ root.T / n + torch.eye(n, dtype=torch.float64) / 2


def low_rank(n=N, h=2):
    return DiagonalMinusLowRank(
        torch.rand(n, dtype=torch.float64) + 1, 0.4 * torch.randn(n, h, dtype=torch.float64), 0.5 * spd(h)
    )


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


NOISES = {
    "full": lambda: spd(N),
    "diagonal": lambda: torch.rand(N, dtype=torch.float64) + 0.5,
    "low rank": low_rank,
    "by row": lambda: torch.stack([spd(N) for _ in range(B)]),
    "diagonal by row": lambda: DiagonalNoise(torch.rand(B, N, dtype=torch.float64) + 0.5),
}


@pytest.fixture(params=NOISES)
def noise(request):
    return NOISES[request.param]()


def written_out(noise):
    if isinstance(noise, torch.Tensor):
        return torch.diag(noise) if noise.dim() == 1 else noise
    return noise.covariance


def test_density(noise):
    x, A, c = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((B, H), (N, H), (N,)))
    W, u = torch.randn(N, 2, dtype=torch.float64), torch.randn(B, 2, dtype=torch.float64)
    value = torch.randn(B, N, dtype=torch.float64, requires_grad=True)
    found = LinearGaussian(x, A, noise, c, inputs=(W, u))
    expected = dist.MultivariateNormal(x @ A.T + c + u @ W.T, written_out(noise))
    assert found.batch_shape == (B,) and found.event_shape == (N,)
    close(found.log_prob(value), expected.log_prob(value))
    for mine, theirs in zip(
        torch.autograd.grad(found.log_prob(value).sum(), (x, A, c, value)),
        torch.autograd.grad(expected.log_prob(value).sum(), (x, A, c, value)),
        strict=True,
    ):
        close(mine, theirs)


def test_evidence_is_the_density_as_a_function_of_the_state(noise):
    M = torch.randn(N, H, dtype=torch.float64)
    residual, x = torch.randn(B, N, dtype=torch.float64), torch.randn(B, H, dtype=torch.float64)
    emission = LinearEmission(M, LinearGaussian(x, M, noise).noise)
    evidence = emission.evidence(residual)
    quadratic = (x.unsqueeze(-2) @ evidence.matrix @ x.unsqueeze(-1)).flatten()
    found = evidence.constant + (evidence.vector * x).sum(-1) - quadratic / 2
    close(found, dist.MultivariateNormal(x @ M.T, written_out(noise)).log_prob(residual))


def test_draws_have_the_covariance(noise):
    x, A = torch.randn(B, H, dtype=torch.float64), torch.randn(N, H, dtype=torch.float64)
    draws = LinearGaussian(x, A, noise).sample((40_000,))
    assert draws.shape == (40_000, B, N)
    expected = written_out(noise).expand(B, N, N)
    for row in range(B):
        error = (torch.cov(draws[:, row].T) - expected[row]).abs().max() / expected[row].diagonal().max()
        assert error < 0.05
        assert (draws[:, row].mean(0) - A @ x[row]).abs().max() < 0.05


def test_singular_noise_can_be_drawn():
    covariance = torch.zeros(2, 2, dtype=torch.float64)
    covariance[0, 0] = 1
    draws = LinearGaussian(None, None, covariance, torch.tensor([0.0, 3.0]).double()).sample((10,))
    assert (draws[:, 1] == 3).all() and draws[:, 0].std() > 0.1
    with pytest.raises(ValueError, match="noise must be positive definite"):
        LinearGaussian(None, None, covariance).log_prob(torch.zeros(2, dtype=torch.float64))


def test_low_rank_determinant_and_inverse():
    noise = low_rank(7, 3)
    close(noise.log_determinant, torch.linalg.slogdet(noise.covariance)[1])
    close(noise.solve(torch.eye(7, dtype=torch.float64)), torch.linalg.inv(noise.covariance))


def test_a_belief_gives_the_predictive_distribution():
    m, P, A, Q = torch.randn(B, H, dtype=torch.float64), spd(H), torch.randn(N, H, dtype=torch.float64), spd(N)
    found, value = LinearGaussian(GaussianBelief(m, P), A, Q), torch.randn(B, N, dtype=torch.float64)
    close(found.log_prob(value), dist.MultivariateNormal(m @ A.T, A @ P @ A.T + Q).log_prob(value))


def test_expand_is_lazy_and_right():
    fn = LinearGaussian(torch.randn(H, dtype=torch.float64), torch.randn(N, H, dtype=torch.float64), spd(N))
    wide = fn.expand((2, B))
    assert wide.batch_shape == (2, B) and wide.sample().shape == (2, B, N) and wide.A is fn.A
    value = torch.randn(N, dtype=torch.float64)
    close(wide.log_prob(value.expand(2, B, N)), fn.log_prob(value).expand(2, B))


def test_predict(noise):
    M, m, P = torch.randn(N, H, dtype=torch.float64), torch.randn(B, H, dtype=torch.float64), spd(H)
    emission = LinearEmission(M, LinearGaussian(m, M, noise).noise)
    mean, covariance = emission.predict(m, P)
    close(mean, m @ M.T)
    close(covariance, M @ P @ M.T + written_out(noise))


x, A = torch.zeros(B, H), torch.zeros(N, H)
BAD = {
    "A is no matrix": (lambda: LinearGaussian(x, torch.zeros(3), torch.eye(3)), ValueError, "A must be a matrix"),
    "A does not fit": (lambda: LinearGaussian(x, torch.zeros(N, 2), torch.eye(N)), ValueError, r"\(n, h\) with h = 3"),
    "noise of another size": (lambda: LinearGaussian(x, A, torch.eye(2)), ValueError, "noise must have size 5"),
    "noise is a number": (lambda: LinearGaussian(x, A, 1.0), TypeError, "noise must be a covariance"),
    "noise is no square": (lambda: LinearGaussian(x, A, torch.zeros(2, 5)), ValueError, "DiagonalNoise"),
    "offset": (lambda: LinearGaussian(x, A, torch.eye(N), torch.zeros(2)), ValueError, "offset must be"),
    "inputs": (
        lambda: LinearGaussian(x, A, torch.eye(N), inputs=(torch.zeros(N, 2), torch.zeros(B, 3))), ValueError, "inputs must be",
    ),
    "x": (lambda: LinearGaussian(3, A, torch.eye(N)), TypeError, "x must be a state"),
    "low rank shapes": (
        lambda: DiagonalMinusLowRank(torch.ones(3), torch.ones(2, 2), torch.eye(2)), ValueError, r"diagonal \(n,\)",
    ),
    "low rank not definite": (
        lambda: DiagonalMinusLowRank(torch.ones(3), torch.ones(3, 1), torch.eye(1)), ValueError, "must be positive definite",
    ),
    "middle not definite": (
        lambda: DiagonalMinusLowRank(torch.ones(3), torch.ones(3, 1), -torch.eye(1)), ValueError, "middle must be positive",
    ),
    "indefinite": (lambda: FullNoise(-torch.eye(2)).factor, ValueError, "smallest eigenvalue is -1"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case):
    make, error, message = BAD[case]
    with pytest.raises(error, match=message):
        make()
