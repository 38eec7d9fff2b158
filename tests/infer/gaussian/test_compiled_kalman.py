"""The compiled Kalman loops against their twins in torch: every answer, and the gradients in everything."""

import pytest
import torch

from pplseq.distributions.gaussian_types import GaussianBelief, LinearEvidence
from pplseq.infer.gaussian import likelihood
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain
from pplseq.kernels import compiled
from pplseq.kernels.gaussian import compiled_kalman
from pplseq.kernels.kalman import symmetric

pytestmark = pytest.mark.skipif(not compiled.available(), reason="no numba here")
PLAIN = dict(ragged=False, gaps=False, partly=False, own=False, dtype=torch.float64, noise=1.0, offset=None, tol=None)
CASES = {
    "whole rows": {},
    "ragged": dict(ragged=True),
    "gaps": dict(ragged=True, gaps=True, offset="shared"),
    "partly seen": dict(ragged=True, gaps=True, partly=True),
    "starts of their own": dict(ragged=True, gaps=True, own=True, offset="by step"),
    "precise": dict(gaps=True, noise=1e-10),
    "exact": dict(noise=0.0),
    "float32": dict(ragged=True, gaps=True, partly=True, dtype=torch.float32, offset="shared"),
    "coarse": dict(offset="shared", tol=1e-4),
    "never steady": dict(ragged=True, gaps=True, tol=0.0),
}
SIZES = [  # h, n, T, R
    (1, 1, 1, 1), (2, 1, 30, 3), (4, 2, 25, 18), (3, 5, 25, 9), (9, 3, 40, 1), (17, 4, 20, 5), (8, 11, 20, 5),
]  # fmt: skip
WIDE = SIZES[-2]  # of products by tiles
GRID = [(sizes, case) for sizes in SIZES for case in CASES if case == "partly seen" or sizes in (SIZES[2], WIDE)]


def chain_of(h, n, T, R, *, ragged, gaps, partly, own, dtype, noise, offset, tol):
    """Tensors, and what makes a chain of them."""
    generator = torch.Generator().manual_seed(T + R)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    matrix, states = draw(h, h), draw(h, h)
    matrix = 0.95 * matrix / torch.linalg.eigvals(matrix).abs().max()
    start, spread = draw(*((R,) if own else ()), h, h), draw(n, n)
    valid = seen = which = patterns = None
    if ragged:
        lengths = torch.randint(0, T + 1, (R,), generator=generator)
        lengths[0] = T
        valid = torch.arange(T)[:, None] < lengths
    if gaps:
        seen = torch.rand(T, R, generator=generator) > 0.2
    if partly:
        patterns, which = torch.rand(3, n, generator=generator) > 0.4, torch.randint(3, (T, R), generator=generator)
        patterns[0] = True
    shift = {None: None, "shared": draw(h), "by step": draw(T - 1, R, h)}[offset]
    parts = [draw(R, h), start @ start.mT, matrix, states @ states.mT / h, shift, draw(T, R, n), draw(n, h)]
    parts.append((spread @ spread.mT + torch.eye(n)) * noise)
    parts = [None if part is None else part.to(dtype) for part in parts]

    def make(parts):
        mean, covariance, matrix, noise, shift, numbers, loadings, spread = parts
        evidence = LinearEvidence(numbers, loadings, spread, which, patterns)
        dynamics = Dynamics(matrix, noise, shift)
        return GaussianChain(GaussianBelief(mean, covariance), dynamics, evidence, valid=valid, seen=seen, tol=tol)

    return parts, make


def answers(chain) -> dict:
    smoothed, filtered, ends = chain.smoothed_states(), chain.filtered_states(), chain.filtered()
    return {
        "log_prob": chain.log_prob(), "token_log_probs": chain.token_log_probs(),
        "filtered means": filtered.means, "filtered covariances": filtered.covariances.dense(),
        "smoothed means": smoothed.means, "smoothed covariances": smoothed.covariances.dense(),
        "lag one": chain.lag_one_covariances().dense(), "last": ends.mean,
    }  # fmt: skip


@pytest.mark.parametrize(("sizes", "case"), GRID, ids=str)
def test_answers_and_gradients_are_those_of_the_twin(sizes, case):
    options = PLAIN | CASES[case]
    parts, make = chain_of(*sizes, **options)
    weight = torch.linspace(0.5, -1.5, sizes[3], dtype=options["dtype"])

    def everything():
        with torch.no_grad():
            found = answers(make(parts))
        given = [None if part is None else part.clone().requires_grad_() for part in parts]
        (make(given).log_prob() * weight).sum().backward()
        for k, (name, part) in enumerate(zip(("mean", "P", "A", "Q", "offset", "y", "M", "D"), given, strict=True)):
            if part is not None and part.numel():
                grad = torch.zeros_like(part) if part.grad is None else part.grad
                found[f"gradient in {name}"] = symmetric(grad) if k in (1, 3, 7) else grad
        return found

    found = everything()
    with compiled.twins_only():
        expected = everything()
    close = 1e-8 if options["dtype"] == torch.float64 else 1e-4
    close = {"precise": 1e-5, "coarse": 1e-3}.get(case, close)
    for name, value in expected.items():
        if value.numel():
            torch.testing.assert_close(found[name], value, rtol=0, atol=close * (1e-3 + float(value.abs().max())))


def test_states_known_exactly():
    parts, make = chain_of(3, 2, 20, 2, **PLAIN)
    parts[1], parts[3] = torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)
    found = answers(make(parts))
    with compiled.twins_only():
        expected = answers(make(parts))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_more_nodes_than_there_is_room_for_at_first():
    parts, make = chain_of(2, 1, 300, 3, **PLAIN | dict(ragged=True, gaps=True, tol=0.0))
    found = answers(make(parts))
    with compiled.twins_only():
        expected = answers(make(parts))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_exact_observation_of_what_is_known_has_no_density():
    parts, make = chain_of(2, 2, 5, 1, **PLAIN)
    parts[6] = torch.ones(2, 2, dtype=torch.float64)
    parts[7] = torch.zeros(2, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="no density"):
        make(parts).log_prob()


def test_second_derivatives_are_those_of_the_twin():
    parts, make = chain_of(2, 1, 6, 2, **PLAIN)

    def hessian():
        def log_prob(matrix):
            return make([*parts[:2], matrix, *parts[3:]]).log_prob().sum()

        return torch.autograd.functional.hessian(log_prob, parts[2])

    found = hessian()
    with compiled.twins_only():
        expected = hessian()
    assert float(expected.abs().max()) > 0.1
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("case", ["whole rows", "precise", "exact", "coarse"])
def test_gradients_of_states_too_large_for_loops_over_means(case, monkeypatch):
    """They come from the smoother all the same."""
    parts, make = chain_of(4, 2, 30, 5, **PLAIN | CASES[case] | dict(gaps=False))

    def gradients():
        given = [None if part is None else part.clone().requires_grad_() for part in parts]
        (make(given).log_prob() * torch.linspace(0.5, -1.5, 5)).sum().backward()
        found = [part.grad for part in given if part is not None]
        return [symmetric(part) if k in (1, 3, len(found) - 1) else part for k, part in enumerate(found)]

    monkeypatch.setattr(compiled_kalman, "pays", lambda residual, first: False)
    asked = []
    monkeypatch.setattr(likelihood, "_smoothed", lambda chain, of=likelihood._smoothed: asked.append(1) or of(chain))
    found = gradients()
    assert asked
    monkeypatch.setattr(likelihood, "row_log_probs", lambda chain: None)
    for got, value in zip(found, gradients(), strict=True):
        close = {"precise": 1e-5, "coarse": 1e-3}.get(case, 1e-8)
        torch.testing.assert_close(got, value, rtol=0, atol=close * (1e-3 + float(value.abs().max())))


def test_rows_of_other_ends_too_large_for_loops_over_means(monkeypatch):
    parts, make = chain_of(3, 2, 20, 6, **PLAIN | dict(ragged=True, offset="by step"))

    def gradients():
        given = [part.clone().requires_grad_() for part in parts]
        make(given).log_prob().sum().backward()
        return [symmetric(part.grad) if k in (1, 3, 7) else part.grad for k, part in enumerate(given)]

    monkeypatch.setattr(compiled_kalman, "pays", lambda residual, first: False)
    found = gradients()
    with compiled.twins_only():
        monkeypatch.setattr(likelihood, "row_log_probs", lambda chain: None)
        expected = gradients()
    for got, value in zip(found, expected, strict=True):
        torch.testing.assert_close(got, value, rtol=1e-8, atol=1e-8)
