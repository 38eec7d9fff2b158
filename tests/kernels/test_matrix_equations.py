"""Riccati, Stein and Lyapunov equations by doubling against scipy."""

import numpy as np
import pytest
import torch
from scipy import linalg

from pplseq.kernels.matrix_equations import (
    SteinEquation,
    clip_eigenvalues,
    predicted_covariance,
    spectral_radius,
    stationary_covariance,
)


def system(h, seed=0, radius=0.97):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(h, h))
    a *= radius / spectral_radius(torch.from_numpy(a))
    root, noise = rng.normal(size=(2, h, h))
    return [torch.from_numpy(m) for m in (a, root @ root.T, noise @ noise.T + 0.1 * np.eye(h))]


@pytest.mark.parametrize("h", [1, 2, 7, 24])
@pytest.mark.parametrize("radius", [0.3, 0.97, 0.9999])
def test_riccati_equals_scipy(h, radius):
    a, information, noise = system(h, radius=radius)
    found = predicted_covariance(a, noise, information)
    expected = linalg.solve_discrete_are(a.T, np.linalg.cholesky(information), noise, np.eye(h))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * abs(expected).max())
    np.testing.assert_array_equal(found, found.T)


def test_riccati_without_evidence_is_lyapunov():
    a, _, noise = system(5, radius=0.9)
    found = predicted_covariance(a, noise, torch.zeros(5, 5).double())
    np.testing.assert_allclose(found, stationary_covariance(a, noise), rtol=1e-10)


@pytest.mark.parametrize("h", [1, 2, 7, 24])
def test_lyapunov_equals_scipy(h):
    a, _, noise = system(h)
    expected = linalg.solve_discrete_lyapunov(a, noise)
    np.testing.assert_allclose(stationary_covariance(a, noise), expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_stein_of_oblong_constant_solves_its_equation():
    left, right = system(4, 1)[0], system(3, 2)[0]
    constant = torch.from_numpy(np.random.default_rng(3).normal(size=(4, 3)))
    found = SteinEquation(left, right).solve(constant)
    np.testing.assert_allclose(left @ found @ right + constant, found, rtol=0, atol=1e-11)


def test_zero_dynamics():
    noise = torch.diag(torch.tensor([2.0, 3.0]))
    assert stationary_covariance(torch.zeros(2, 2), noise).equal(noise)
    assert predicted_covariance(torch.zeros(2, 2), noise, torch.eye(2)).equal(noise)


def test_unstable_and_bad_matrices_are_refused():
    identity = torch.eye(2)
    with pytest.raises(ValueError, match="spectral radius is 1.5.*stable matrix"):
        stationary_covariance(1.5 * identity, identity)
    with pytest.raises(ValueError, match="Riccati equation has no solution"):
        predicted_covariance(1.1 * identity, identity, 0 * identity)
    with pytest.raises(ValueError, match="product is below 1"):
        SteinEquation(2 * identity, identity)
    with pytest.raises(ValueError, match="finite numbers"):
        stationary_covariance(torch.full((2, 2), torch.nan), identity)


def test_clipping_moves_only_large_eigenvalues():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(3, 3))
    matrix = vectors @ np.diag([1.4, -0.7, 0.2]) @ np.linalg.inv(vectors)
    clipped = clip_eigenvalues(torch.from_numpy(matrix), 0.9)
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(clipped).real), [-0.7, 0.2, 0.9], atol=1e-12)
    same = torch.from_numpy(matrix)
    assert clip_eigenvalues(same, 1.5) is same
    rotation = 1.2 * np.array([[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]])
    np.testing.assert_allclose(clip_eigenvalues(torch.from_numpy(rotation), 0.6), rotation / 2, atol=1e-12)


def test_clipping_a_matrix_without_eigenvectors_scales_it():
    jordan = np.array([[1.2, 1.0], [0.0, 1.2]])
    np.testing.assert_allclose(clip_eigenvalues(torch.from_numpy(jordan), 0.9), 0.75 * jordan, rtol=1e-6)
