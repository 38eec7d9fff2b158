"""Observed numbers, brought to the size of states or not: equal beliefs, log-probabilities and gradients."""

import pytest
import torch
from support.grids import grid

from pplseq.distributions.gaussian_types import Evidence, GaussianBelief, LinearEvidence
from pplseq.distributions.linear_gaussian import LinearEmission
from pplseq.distributions.noise import DiagonalNoise, FullNoise
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain
from pplseq.kernels import kalman
from pplseq.kernels.gaussian import kalman_means

F64 = torch.float64


def normal(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def psd(size, seed, dtype=F64):
    root = normal(size, size, seed=seed)
    return (root @ root.T / size + 0.1 * torch.eye(size, dtype=F64)).to(dtype)


def parts(T, B, h, n, offset=None, full=False, dtype=F64):
    matrix = normal(h, h, seed=1)
    numbers = {
        "mean": normal(B, h, seed=2),
        "covariance": psd(h, 3),
        "A": 0.9 * matrix / torch.linalg.matrix_norm(matrix, 2),
        "Q": psd(h, 4),
        "C": normal(n, h, seed=5),
        "D": psd(n, 6) if full else normal(n, seed=6).exp(),
        "y": normal(T, B, n, seed=7),
    }
    if offset:
        numbers["offset"] = normal(*((h,) if offset == "one" else (T - 1, B, h)), seed=8)
    return {name: value.to(dtype) for name, value in numbers.items()}


def chains(p, **options):
    """The chain, and its twin with evidence written out."""
    emission = LinearEmission(p["C"], (FullNoise if p["D"].dim() == 2 else DiagonalNoise)(p["D"]))
    evidence = emission.evidence(p["y"])
    assert isinstance(evidence, LinearEvidence)
    start, dynamics = GaussianBelief(p["mean"], p["covariance"]), Dynamics(p["A"], p["Q"], p.get("offset"))
    return tuple(GaussianChain(start, dynamics, e, **options) for e in (evidence, Evidence(*evidence)))


def answers(chain):
    smoothed = chain.smoothed_states()
    return {
        "log_prob": chain.log_prob(),
        "token_log_probs": chain.token_log_probs(),
        "filtered": chain.filtered_states().means,
        "filtered covariances": chain.filtered_states().covariances.dense(),
        "predicted": chain.predicted_states().means,
        "smoothed": smoothed.means,
        "smoothed covariances": smoothed.covariances.dense(),
        "lag one": chain.lag_one_covariances().dense(),
        "last": chain.filtered().mean,
    }


def same(found, expected, rtol=1e-8, atol=1e-9):
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def masks(name, T, B):
    if name == "ragged":
        lengths = torch.arange(B) * T // max(B, 1) + 1
        return {"valid": torch.arange(T).unsqueeze(1) < lengths.clamp(max=T)}
    if name == "gaps":
        seen = torch.ones(T, B, dtype=torch.bool)
        seen[T // 2 : T // 2 + 3] = False
        return {"seen": seen}
    if name == "own gaps":
        return {"seen": normal(T, B, seed=9) > -0.5}
    return {}


@pytest.mark.parametrize("mask", ["none", "ragged", "gaps", "own gaps"])
@pytest.mark.parametrize(
    ("T", "B", "h", "n", "full", "offset"),
    [(9, 5, 4, 2, True, None), (9, 5, 4, 2, True, "one"), (9, 5, 4, 2, True, "steps"), (700, 2, 3, 3, False, "steps"),
     (600, 1, 4, 1, True, "one")],
)  # fmt: skip
def test_numbers_as_they_are_or_written_out(T, B, h, n, full, offset, mask):
    with torch.no_grad():
        mine, twin = chains(parts(T, B, h, n, offset, full), **masks(mask, T, B))
        assert mine.shares_gains == (mask != "own gaps" or B == 1) and not twin.shares_gains
        same(answers(mine), answers(twin))


@pytest.mark.parametrize("piece", [1, 1000, 2**17])
def test_rows_and_steps_in_pieces(piece, monkeypatch):
    monkeypatch.setattr(kalman_means, "PIECE", piece)
    for T, B in ((5, 150), (1, 3), (400, 3)):
        mine, twin = chains(parts(T, B, 4, 3, "steps" if T > 1 else None), **masks("ragged", T, B))
        same(answers(mine), answers(twin))


@grid({"n, mask": [(1, "ragged"), (2, "own gaps"), (4, "gaps")], "full": [False, True]})
def test_gradients(n, mask, full):
    p = {name: value.requires_grad_() for name, value in parts(40, 3, 4, n, "one", full).items()}
    results = []
    for chain in chains(p, **masks(mask, 40, 3), tol=0):
        assert not chain.shares_gains
        found = answers(chain)
        weights = {name: normal(*value.shape, seed=10) for name, value in found.items()}
        total = sum((weights[name] * value).sum() for name, value in found.items())
        results.append((found, torch.autograd.grad(total, list(p.values()), retain_graph=True)))
    same(results[0][0], results[1][0])
    for name, mine, twin in zip(p, *(gradients for _, gradients in results), strict=True):
        if name in ("covariance", "Q", "D") and mine.dim() == 2:  # of symmetric matrices
            mine, twin = mine + mine.T, twin + twin.T
        torch.testing.assert_close(mine, twin, rtol=1e-7, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}")


def test_single_precision():
    mine, twin = chains(parts(300, 2, 5, 3, "one", dtype=torch.float32))
    same(answers(mine), answers(twin), rtol=1e-4, atol=1e-4)


def test_states_known_at_the_start_and_without_noise():
    p = parts(20, 3, 4, 2)
    p["covariance"], p["Q"] = torch.zeros(4, 4, dtype=F64), torch.diag(torch.tensor([1.0, 0, 0, 0], dtype=F64))
    mine, twin = chains(p)
    same(answers(mine), answers(twin))


def test_gradients_are_asked_for_when_states_are():
    """Covariances made later have, or have not, the gradients of when the states were asked for."""
    p = parts(6, 2, 3, 2)
    p["A"].requires_grad_()
    chain = chains(p)[0]
    with torch.no_grad():
        without = chain.filtered_states()
    states = chain.smoothed_states()
    with torch.no_grad():
        assert states.covariances.table.requires_grad and states.means.requires_grad
    assert not without.covariances.table.requires_grad and not without.means.requires_grad


def test_precise_observations_lose_no_digits():
    """Noise of 1e-14 beside states of size 1: Joseph's form keeps what the short one loses."""
    predicted = psd(4, 1).unsqueeze(0)
    loadings, noise = 1e7 * normal(4, 4, seed=2).unsqueeze(0), torch.eye(4, dtype=F64).unsqueeze(0)
    exact = torch.linalg.inv(torch.linalg.inv(predicted) + loadings.mT @ loadings)
    errors = {}
    for careful in (False, True):
        found = kalman.update_by_numbers(predicted, loadings, noise, careful=careful).filtered
        errors[careful] = float((found - exact).norm() / exact.norm())
    assert errors[True] < 1e-8 and errors[True] < 1e-3 * errors[False]


def test_what_does_not_fit_is_named():
    p = parts(4, 2, 3, 2)
    start, dynamics = GaussianBelief(p["mean"], p["covariance"]), Dynamics(p["A"], p["Q"], None)
    evidence = LinearEmission(p["C"], DiagonalNoise(p["D"])).evidence(p["y"])
    whole = (evidence.residual, evidence.loadings, evidence.noise)
    wrong = {
        "evidence: loadings": (evidence.residual[..., :1], *whole[1:]),
        "evidence.residual must be": (torch.zeros(2, dtype=F64), *whole[1:]),
        "evidence.residual: a chain needs": (evidence.residual[:0], *whole[1:]),
        "evidence.residual: row 1, step 2": (evidence.residual.clone().index_put_((torch.tensor(2), torch.tensor(1)), F64_NAN),
                                             *whole[1:]),
        "evidence.loadings must be finite": (whole[0], evidence.loadings * torch.nan, *whole[2:]),
        "must agree in": (torch.zeros(4, 5, 2, dtype=F64), *whole[1:]),
    }  # fmt: skip
    for message, numbers in wrong.items():
        with pytest.raises(ValueError, match=message):
            GaussianChain(start, dynamics, LinearEvidence(*numbers))
    with pytest.raises(TypeError, match=r"evidence.loadings is torch.float32, but evidence.residual is torch.float64"):
        GaussianChain(start, dynamics, LinearEvidence(whole[0], whole[1].float(), *whole[2:]))
    with pytest.raises(TypeError, match=r"start.covariance is torch.float64, but start.mean is torch.float32"):
        GaussianChain(start._replace(mean=start.mean.float()), dynamics, LinearEvidence(*whole))


F64_NAN = torch.tensor(float("nan"), dtype=F64)
