"""Densities by compiled loops against their twin in torch, and against torch's own distributions."""

import pytest
import torch

from pplseq.distributions.dense import GaussianEmission
from pplseq.kernels import compiled
from pplseq.kernels.gaussian import normal_densities

F64 = torch.float64
pytestmark = [
    pytest.mark.skipif(not compiled.available(), reason="there are no compiled loops here"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),  # torch's own forward derivatives
]


def numbers(N, K, D, dtype=F64, seed=0):
    random = torch.Generator().manual_seed(seed)
    x, loc = (torch.randn(*shape, generator=random, dtype=F64) for shape in ((N, D), (K, D)))
    scale = torch.rand(K, D, generator=random, dtype=F64) + 0.1
    return [part.to(dtype).requires_grad_() for part in (x, loc, scale)]


@pytest.mark.parametrize("dtype, close", [(F64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("N, K, D", [(1, 1, 1), (7, 3, 2), (1000, 1, 1), (333, 16, 1), (65, 5, 9)])
def test_values_and_gradients_are_the_twins(N, K, D, dtype, close):
    parts = numbers(N, K, D, dtype)
    weight = torch.randn(N, K, generator=torch.Generator().manual_seed(1), dtype=F64).to(dtype)
    found, wanted = normal_densities.log_densities(*parts), normal_densities.readable(*parts)
    torch.testing.assert_close(found, wanted, atol=close, rtol=close)
    gradients = [torch.autograd.grad((weight * value).sum(), parts) for value in (found, wanted)]
    for one, other in zip(*gradients, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, atol=close * N, rtol=close)


def test_far_from_zero_no_digit_is_lost():
    x, loc, scale = numbers(50, 3, 2)
    near = normal_densities.log_densities(x, loc, scale)
    shift = 2.0**40  # which the numbers below have room for
    x, loc = ((part.detach() * 2**10).round() / 2**10 for part in (x, loc))
    near, far = (normal_densities.log_densities(x + by, loc + by, scale) for by in (0.0, shift))
    assert torch.equal(near, far)


def test_differentiable_twice_and_under_transforms():
    parts = numbers(4, 3, 2)
    assert torch.autograd.gradgradcheck(normal_densities.log_densities, parts)
    x, loc, scale = (part.detach() for part in parts)

    def total(loc):
        return normal_densities.log_densities(x, loc, scale).sum()

    wanted = torch.func.grad(lambda loc: normal_densities.readable(x, loc, scale).sum())(loc)
    torch.testing.assert_close(torch.func.grad(total)(loc), wanted)
    torch.testing.assert_close(torch.func.hessian(total)(loc), torch.autograd.functional.hessian(total, loc))


@pytest.mark.parametrize("shape", [(5000,), (3, 700), (1, 4096)])
def test_an_emission_of_many_vectors_is_torchs(shape, monkeypatch):
    x, loc, scale = numbers(1, 4, 2)
    obs = torch.randn(*shape, 4, generator=torch.Generator().manual_seed(2), dtype=F64)[..., ::2]
    used = []
    real = normal_densities.log_densities
    monkeypatch.setattr(normal_densities, "log_densities", lambda *parts: used.append(1) or real(*parts))
    found = GaussianEmission(loc, scale).log_likelihood(obs)
    wanted = torch.distributions.Normal(loc, scale).log_prob(obs.unsqueeze(-2)).sum(-1)
    assert used
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(value.sum(), (loc, scale)) for value in (found, wanted)))


def test_tangents_take_the_twins_way():
    _, loc, scale = (part.detach() for part in numbers(1, 4, 1))
    obs = torch.randn(5000, 1, dtype=F64)
    with torch.autograd.forward_ad.dual_level():
        moved = torch.autograd.forward_ad.make_dual(loc, torch.ones_like(loc))
        value = GaussianEmission(moved, scale).log_likelihood(obs)
        tangent = torch.autograd.forward_ad.unpack_dual(value).tangent
    torch.testing.assert_close(tangent, ((obs - loc.T) / scale.T**2))
