"""Weighted regressions, many at once: maxima, monotone steps, and each problem as if it were alone."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from support.grids import grid
from torch.testing import assert_close

from pplseq.kernels import compiled
from pplseq.models.iohmm.restarts.networks import distinct
from pplseq.models.iohmm.restarts.regressions import (
    bernoulli_regression,
    linear_regression,
    residual_covariance,
    softmax_objective,
    softmax_regression,
)

N, F, K, P = 40, 3, 4, 6


def data():
    torch.manual_seed(0)
    features = torch.cat([torch.randn(N, F - 1, dtype=torch.float64), torch.ones(N, 1, dtype=torch.float64)], -1)
    return features, torch.rand(P, N, K, dtype=torch.float64) ** 3, torch.randn(P, F, K, dtype=torch.float64)


@grid({"ridge": [0.0, 0.7], "newton_size": [320, 0]})
def test_the_gradient_vanishes_at_the_maximum(ridge, newton_size):
    features, counts, start = data()
    found = softmax_regression(
        features, counts, start, ridge=ridge, max_iterations=200, tolerance=1e-14, newton_size=newton_size
    )
    weights = found.weights.requires_grad_()
    objective = softmax_objective(features, counts, weights, ridge=ridge)
    (gradient,) = torch.autograd.grad(objective.sum(), weights)
    assert float(gradient.abs().max()) < 1e-5
    assert_close(objective.detach(), found.objective)
    assert bool((found.objective > softmax_objective(features, counts, start, ridge=ridge)).all())
    assert bool(found.converged.all())


@pytest.mark.parametrize("newton_size", [320, 0])
def test_every_step_goes_up_also_from_far_away(newton_size):
    features, counts, start = data()
    weights, value = 30 * start, softmax_objective(features, counts, 30 * start)
    for _ in range(6):
        found = softmax_regression(features, counts, weights, max_iterations=1, newton_size=newton_size)
        assert bool((found.objective >= value).all())
        weights, value = found.weights, found.objective


def test_each_problem_as_if_it_were_alone():
    features, counts, start = data()
    forbidden = torch.zeros(P, K, dtype=torch.bool)
    forbidden[0, 1] = forbidden[3, 0] = forbidden[3, 2] = True
    counts = counts.masked_fill(forbidden.unsqueeze(1), 0.0)
    counts[4] = 0.0
    precise = dict(tolerance=1e-14, max_iterations=100)
    together = softmax_regression(features, counts, start, forbidden=forbidden, **precise)
    for problem in range(P):
        one = slice(problem, problem + 1)
        alone = softmax_regression(features, counts[one], start[one], forbidden=forbidden[one], **precise)
        assert_close(together.weights[one], alone.weights, rtol=1e-7, atol=1e-8)
    assert_close(together.weights[4], start[4])  # nothing to go by
    probs = (features @ together.weights).masked_fill(forbidden.unsqueeze(1), -torch.inf).softmax(-1)
    assert_close((features.T @ counts)[:4], (features.T @ (counts.sum(-1, keepdim=True) * probs))[:4], rtol=1e-4, atol=1e-4)


def test_as_scikit_learn():
    features, counts, start = data()
    found = softmax_regression(features, counts[:1], start[:1] * 0, ridge=2.0, tolerance=1e-14, max_iterations=100)
    peer = LogisticRegression(C=1 / 2.0, fit_intercept=False, tol=1e-10, max_iter=1000)
    rows = features.repeat_interleave(K, 0).numpy()
    peer.fit(rows, torch.arange(K).repeat(N).numpy(), sample_weight=counts[0].flatten().numpy())
    assert_close(found.weights[0].T, torch.from_numpy(peer.coef_), rtol=1e-4, atol=1e-5)


def test_separable_data_stay_finite():
    features = torch.tensor([[-1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    counts = torch.eye(2, dtype=torch.float64).unsqueeze(0)
    weights, value = torch.zeros(1, 2, 2, dtype=torch.float64), -torch.inf
    for _ in range(30):
        found = softmax_regression(features, counts, weights)
        assert bool(found.weights.isfinite().all()) and float(found.objective) >= value
        weights, value = found.weights, float(found.objective)
    assert value > -1e-6


def test_bits_are_two_classes():
    features, counts, start = data()
    ones, zeros = counts[..., 0], counts[..., 1]
    found = bernoulli_regression(features, ones, zeros, start[..., 0], ridge=0.5, tolerance=1e-14, max_iterations=100)
    weights = found.weights.requires_grad_()
    logits = weights @ features.T
    value = ones * torch.nn.functional.logsigmoid(logits) + zeros * torch.nn.functional.logsigmoid(-logits)
    (gradient,) = torch.autograd.grad(value.sum() - 0.5 * (weights**2).sum() / 2, weights)
    assert float(gradient.abs().max()) < 1e-6


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_least_squares(ridge):
    features, counts, _ = data()
    weight, targets = counts[..., 0].clone(), torch.randn(N, 2, dtype=torch.float64)
    weight[2] = 0.0
    previous = torch.randn(P, F, 2, dtype=torch.float64)
    found = linear_regression(features, targets, weight, ridge=ridge, previous=previous)
    for problem in (0, 1, 3):
        root = weight[problem].sqrt().unsqueeze(-1)
        more = ridge**0.5 * torch.eye(F, dtype=torch.float64)
        rows = torch.cat([root * features, more]), torch.cat([root * targets, torch.zeros(F, 2, dtype=torch.float64)])
        assert_close(found[problem], torch.linalg.lstsq(*rows).solution, rtol=1e-8, atol=1e-8)
    assert_close(found[2], previous[2])


@pytest.mark.parametrize("covariance", ["diag", "full", "tied", "spherical"])
def test_covariances(covariance):
    torch.manual_seed(1)
    residual, weight = torch.randn(4, N, 2, dtype=torch.float64), torch.rand(4, N, dtype=torch.float64)
    weight[3] = 0.0
    residual[1] *= 1e-6
    found, floored = residual_covariance(residual, weight, covariance, 1e-3, group=2)
    own = torch.stack([torch.cov(r.T, aweights=w, correction=0) for r, w in zip(residual[:3], weight[:3], strict=True)])
    means = (weight.unsqueeze(-1) * residual).sum(1)[:3] / weight.sum(1)[:3, None]
    own = own + means.unsqueeze(-1) * means.unsqueeze(-2)  # about zero
    if covariance == "tied":
        share = weight[:2].sum(1) / weight[:2].sum()
        assert_close(found[0], (share[:, None, None] * own[:2]).sum(0))
        assert_close(found[0], found[1])
        assert_close(found[2], own[2])
        assert not bool(floored.any())
        return
    assert bool(floored[1]) and not bool(floored[0])
    assert_close(found[1], 1e-3 * torch.eye(2, dtype=torch.float64))
    assert bool(found[3].isnan().any())
    expected = {"full": own[0], "diag": torch.diag(own[0].diagonal())}
    expected["spherical"] = own[0].diagonal().mean() * torch.eye(2, dtype=torch.float64)
    assert_close(found[0], expected[covariance])


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "classes"), [(1000, 2), (1537, 3), (1024, 1)])
def test_loops_are_as_tensors(ridge, rows, classes):
    """Long data, with a class that is forbidden, a problem without counts, and starts from far away."""
    torch.manual_seed(1)
    features = torch.cat([torch.randn(rows, 2, dtype=torch.float64), torch.ones(rows, 1, dtype=torch.float64)], -1)
    counts, start = torch.rand(4, rows, classes, dtype=torch.float64), torch.randn(4, 3, classes, dtype=torch.float64)
    counts[..., 0] *= features[:, 0].exp()
    counts[2], start[3] = 0.0, 40 * start[3]
    forbidden = torch.zeros(4, classes, dtype=torch.bool)
    forbidden[1, -1] = classes > 1
    counts = counts.masked_fill(forbidden.unsqueeze(1), 0.0)
    found = softmax_regression(features, counts, start, forbidden=forbidden, ridge=ridge, tolerance=1e-12)
    with compiled.twins_only():
        slow = softmax_regression(features, counts, start, forbidden=forbidden, ridge=ridge, tolerance=1e-12)
    keep = ~forbidden.unsqueeze(1).expand_as(start)
    assert_close(found.weights[keep], slow.weights[keep], rtol=1e-6, atol=1e-6)
    assert_close(found.objective, slow.objective)
    assert_close(found.objective, softmax_objective(features, counts, found.weights, forbidden, ridge))
    assert bool((found.objective >= softmax_objective(features, counts, start, forbidden, ridge)).all())
    assert bool(found.converged.all()) and bool(slow.converged.all())


@pytest.mark.parametrize("shape", [(7, 1), (200, 2), (1, 1), (5, 0)])
def test_distinct_rows_are_counted_before_they_are_looked_for(shape):
    torch.manual_seed(0)
    for values in (torch.randn(shape, dtype=torch.float64), torch.randint(0, 2, shape).double(), torch.zeros(shape)):
        values[: shape[0] // 4] = torch.nan
        for given in (values, values.T.contiguous().T):  # columns one behind the other
            rows, index = distinct(given)
            if index is None:
                assert rows is given and 2 * len(torch.unique(given, dim=0)) > len(given)
            else:
                torch.testing.assert_close(rows[index], given, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("ridge", [0.0, 0.5])
@pytest.mark.parametrize("count", [300, 1200])  # by tensor operations, and by compiled loops
def test_units_of_features_do_not_matter(count, ridge):
    torch.manual_seed(3)
    features = torch.cat([torch.randn(count, 2), torch.ones(count, 1)], 1).double()
    truth = torch.randn(3, 3).double()
    counts = torch.distributions.OneHotCategorical(logits=features @ truth).sample().unsqueeze(0)
    precise = dict(tolerance=1e-13, max_iterations=100)
    zeros, ridge = torch.zeros(1, 3, 3).double(), torch.full((3,), ridge).double()
    expected = softmax_regression(features, counts, zeros, ridge=ridge, **precise)
    for unit in (1e-9, 1e9):
        units = torch.tensor([unit, 1 / unit, 1.0]).double()
        found = softmax_regression(features * units, counts, zeros, ridge=ridge * units**2, **precise)
        assert_close(found.objective, expected.objective, rtol=1e-9, atol=0.0)
        assert_close(found.weights[0] * units[:, None], expected.weights[0], rtol=1e-4, atol=1e-4)
