"""Paths through chains against enumeration; what a scan repairs, and what it leaves alone."""

import itertools
import math
from contextlib import nullcontext

import pytest
import torch
from support.grids import grid

from pplseq.kernels import compiled, path_scan, scan

F64 = torch.float64
close = torch.testing.assert_close
T, B, K = 5, 3, 4


@pytest.fixture(autouse=True, params=["loops", "torch"])
def operations(request):
    with compiled.twins_only() if request.param == "torch" else nullcontext():
        yield


def random_factors(shape_of_pair, scale=1.0, rows=(B,), steps=T, **options):
    init, pair, emit = (torch.randn(s, dtype=F64) * scale for s in ((*rows, K), shape_of_pair, (steps, *rows, K)))
    return dict(init=init, pair=pair, emit=emit, **options)


def ragged(steps=T, rows=B):
    lengths = torch.tensor([steps, 0, 2])[:rows]
    return torch.arange(steps).unsqueeze(-1) < lengths


def make(kind, scale):
    valid = ragged()
    restart = torch.rand(T, B) < 0.4
    restart_to = torch.randn(K, dtype=F64).log_softmax(-1)
    return {
        "a matrix a step, ragged": lambda: random_factors((T - 1, B, K, K), scale, valid=valid),
        "shared": lambda: random_factors((K, K), scale, shared=True),
        "shared, ragged": lambda: random_factors((K, K), scale, shared=True, valid=valid),
        "shared by row, ragged": lambda: random_factors((B, K, K), scale, shared=True, valid=valid),
        "restarts": lambda: random_factors((K, K), scale, shared=True, restart=restart, restart_to=restart_to),
        "restarts, ragged": lambda: random_factors(
            (K, K), scale, shared=True, restart=restart, restart_to=restart_to, valid=valid
        ),
        "one step": lambda: random_factors((0, B, K, K), scale, steps=1),
    }[kind]()


@pytest.mark.parametrize("kind", ["a matrix a step, ragged", "shared, ragged", "restarts"])
def test_the_repair_is_needed_and_done(kind):
    small, large = make(kind, 1.0), make(kind, 300.0)
    assert scan.StepMatrices(small["pair"], small.get("shared", False)).safe
    assert not scan.StepMatrices(large["pair"], large.get("shared", False)).safe


def test_minus_infinity_everywhere_is_no_nan():
    init, emit = torch.zeros(2, K, dtype=F64), torch.zeros(3, 2, K, dtype=F64)
    emit[1, 0] = -math.inf
    matrix = torch.full((K, K), -math.inf, dtype=F64, requires_grad=True)
    open_matrix = torch.zeros(K, K, dtype=F64, requires_grad=True)
    for pair in (matrix, open_matrix):
        result = scan.chain_log_prob(init, pair, emit, None, True)
        assert torch.isneginf(result.log_prob[0]) and not result.filtered.isnan().any()
        (gradient,) = torch.autograd.grad(result.log_prob.sum(), pair)
        assert not gradient.isnan().any()


def all_scores(f, row):
    """{path: log p(path, x)} of one row."""
    steps = len(f["emit"]) if "valid" not in f else int(f["valid"][:, row].sum())
    scores = {}
    for path in itertools.product(range(K), repeat=steps):
        score = 0.0
        for t, z in enumerate(path):
            matrix = f["pair"] if f.get("shared") else f["pair"][t - 1, row] if t else None
            if matrix is not None and matrix.dim() == 3:
                matrix = matrix[row]
            score += float(f["emit"][t, row, z])
            if t == 0:
                score += float(f["init"].expand(B, K)[row, z])
            elif f.get("restart") is not None and f["restart"][t, row]:
                score += float(f["restart_to"][z])
            else:
                score += float(matrix[path[t - 1], z])
        scores[path] = score
    return scores


def matrices_of(f):
    return scan.StepMatrices(f["pair"].clone(), f.get("shared", False), f.get("restart"), f.get("restart_to"))


PATH_KINDS = ["a matrix a step, ragged", "shared", "shared by row, ragged", "restarts, ragged", "one step"]


@grid({"max_cells": [path_scan.MAX_CELLS, 2 * B * K, 1], "kind": PATH_KINDS})
def test_best_paths(kind, max_cells, monkeypatch):
    monkeypatch.setattr(path_scan, "MAX_CELLS", max_cells)
    f = make(kind, 1.0)
    valid = f.get("valid")
    path, log_prob = path_scan.viterbi_pass(f["init"], matrices_of(f), f["emit"], valid)
    paths, log_probs = path_scan.k_best_pass(f["init"], matrices_of(f), f["emit"], valid, 3)
    for row in range(B):
        scores = all_scores(f, row)
        best = sorted(scores, key=scores.get, reverse=True)[:3]
        steps = len(best[0])
        assert tuple(path[:steps, row].tolist()) == best[0]
        assert log_prob[row].item() == pytest.approx(scores[best[0]])
        for rank, some in enumerate(best):
            assert tuple(paths[rank, :steps, row].tolist()) == some
            assert log_probs[rank, row].item() == pytest.approx(scores[some])


@pytest.mark.parametrize("kind", PATH_KINDS)
def test_samples(kind):
    f = make(kind, 1.0)
    valid = f.get("valid")
    forward = scan.forward_pass(f["init"], matrices_of(f), f["emit"], valid)
    samples = path_scan.sample_pass(matrices_of(f), forward.filtered, valid, 2000)
    for row in range(B):
        scores = all_scores(f, row)
        total = torch.logsumexp(torch.tensor(list(scores.values())), 0)
        expected = torch.zeros(len(next(iter(scores))), K)
        for path, score in scores.items():
            for t, z in enumerate(path):
                expected[t, z] += math.exp(score - total)
        found = torch.nn.functional.one_hot(samples[:, : len(expected), row], K).float().mean(0)
        assert ((found - expected).abs() <= 5 * (expected * (1 - expected) / 2000).clamp_min(0).sqrt() + 1e-3).all()


def test_a_state_of_probability_zero_is_never_drawn():
    log_weight = torch.tensor([-math.inf, 0.0, -math.inf, -800.0]).expand(1000, 4)
    assert set(path_scan.sample_log(log_weight).tolist()) == {1}
    assert set(path_scan.sample_log(torch.tensor([-1e30, -1e30, -math.inf]).expand(1000, 3)).tolist()) <= {0, 1}


def test_log_normalise():
    score = torch.tensor([[0.0, math.log(3.0)], [-math.inf, -math.inf]])
    normalised, total = scan.log_normalise(score)
    close(normalised[0].exp(), torch.tensor([0.25, 0.75]))
    assert torch.isneginf(normalised[1]).all() and torch.isneginf(total[1])


def test_no_two_gradients_share_their_memory():
    init, pair, emit = (torch.randn(shape, dtype=F64, requires_grad=True) for shape in ((B, K), (K, K), (T, B, K)))
    scan.chain_log_prob(init, pair, emit, shared=True).log_prob.sum().backward()
    before = emit.grad.clone()
    init.grad.zero_()  # as clipping and optimizers change them, in place
    assert torch.equal(emit.grad, before)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_loops_and_twins_draw_the_same_paths(ragged, shared):
    """By the same numbers: a loop that is compiled in between changes nothing."""
    from pplseq.kernels import compiled

    torch.manual_seed(3)
    steps, rows, states = 9, 5, 4
    pair = torch.randn(*(() if shared else (steps - 1, rows)), states, states, dtype=torch.float64).log_softmax(-1)
    emit = torch.randn(steps, rows, states, dtype=torch.float64)
    emit[2, 1, :3] = -torch.inf
    valid = torch.arange(steps).unsqueeze(-1) < torch.tensor([9, 9, 4, 1, 7]) if ragged else None
    init, drawn = torch.randn(states, dtype=torch.float64).log_softmax(-1), []
    for way in (compiled.always, compiled.twins_only):
        with way(), torch.no_grad():
            matrices = scan.StepMatrices(pair, shared)
            forward = scan.forward_pass(init.expand(rows, states), matrices, emit, valid)
            torch.manual_seed(0)
            drawn.append(path_scan.sample_pass(matrices, forward.filtered, valid, 50))
    kept = torch.ones(steps, rows, dtype=torch.bool) if valid is None else valid
    assert torch.equal(drawn[0][:, kept], drawn[1][:, kept])
