"""Long dense chains, some steps at a time, against the same chains as a whole: emissions, segments, what is noticed."""

import math

import pytest
import torch
from support.grids import grid

from pplseq.distributions.columns import MixtureEmission, SharedEmission
from pplseq.distributions.dense import CategoricalEmission, DenseTransition, GaussianEmission
from pplseq.distributions.state import Belief
from pplseq.infer.discrete import build, long
from pplseq.infer.discrete.dense import DenseChain
from pplseq.kernels import compiled, long_scan
from pplseq.kernels.chain import piece_call
from pplseq.models import HMM

pytestmark = pytest.mark.skipif(not compiled.available(), reason="numba is not installed")
F64, F32 = torch.float64, torch.float32
close = torch.testing.assert_close


@pytest.fixture(autouse=True)
def segments_of_a_few_steps(monkeypatch):
    monkeypatch.setattr(long, "LONG", 0)
    monkeypatch.setattr(long_scan, "SEGMENT", 600)
    monkeypatch.setattr(piece_call, "CELLS", 64)


def emission_of(kind, leaves):
    if kind == "words":
        return CategoricalEmission(leaves["words"].log_softmax(-1))
    if kind == "gaussian":
        return GaussianEmission(leaves["loc"], leaves["scale"].exp())
    if kind == "mixture":
        components = GaussianEmission(leaves["loc"], leaves["scale"].exp())
        return MixtureEmission(leaves["weights"].log_softmax(-1), components)
    return SharedEmission(CategoricalEmission(leaves["words"][:2].log_softmax(-1)), torch.arange(len(leaves["initial"])) % 2)


def leaves_of(kind, num_states, dtype=F64):
    size = num_states * 2 if kind == "mixture" else num_states
    shapes = {"initial": (num_states,), "matrix": (num_states, num_states)}
    shapes |= {"words": (max(2, num_states), 5)} if kind in ("words", "shared") else {"loc": (size, 2), "scale": (size, 2)}
    shapes |= {"weights": (num_states, 2)} if kind == "mixture" else {}
    leaves = {name: torch.randn(shape, dtype=dtype) for name, shape in shapes.items()}
    if kind == "words":
        leaves["words"] = leaves["words"][:num_states]
    return leaves


def answers(make, kind, leaves, obs, **options):
    """All that long chains compute in segments."""
    leaves = {name: value.clone().requires_grad_() for name, value in leaves.items()}
    transition = DenseTransition(leaves["initial"].log_softmax(-1), leaves["matrix"].log_softmax(-1))
    chain = make(transition, emission_of(kind, leaves), obs, **options)
    log_prob = chain.log_prob()
    weight = torch.linspace(-1.0, 2.0, log_prob.numel()).to(log_prob).reshape(log_prob.shape)
    found = torch.autograd.grad((log_prob * weight).sum(), list(leaves.values()), allow_unused=True)
    counts, (paths, best), zero = chain.expected_counts(), chain.viterbi(), torch.zeros(())
    return type(chain), {
        "log_prob": log_prob.detach(), "steps": chain.token_log_probs(), "states": chain.marginals().probs,
        "starts": counts.start, "moves": counts.transition, "visits": counts.occupancy, "paths": paths, "best": best,
        "last": chain.filtered().log_probs.exp(), "filtered": chain.filtered_states().probs,
        **{f"d {name}": zero if g is None else g for name, g in zip(leaves, found, strict=True)},
    }  # fmt: skip


def compare(kind, leaves, obs, tolerance=1e-9, **options):
    family, found = answers(build.build_chain, kind, leaves, obs, **options)
    assert family is long.LongDenseChain
    for name, wanted in answers(DenseChain, kind, leaves, obs, **options)[1].items():
        close(found[name], wanted, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")
    return found


def observed(kind, num_steps, rows, dtype=F64):
    if kind in ("words", "shared"):
        return torch.randint(5, (num_steps, *rows))
    return torch.randn(num_steps, *rows, 2, dtype=dtype)


def ragged(num_steps, rows):
    lengths = torch.randint(1, num_steps + 1, rows)
    lengths.view(-1)[0] = num_steps
    return torch.arange(num_steps).view(-1, *(1 for _ in rows)) < lengths


@grid({
    "num_steps, rows, num_states": [(2, (1,), 3), (130, (1,), 1), (101, (2, 2), 5), (70, (3,), 17)],
    "kind": ["words", "gaussian", "mixture", "shared"],
})
def test_every_emission_and_size(kind, num_steps, rows, num_states):
    obs, leaves = observed(kind, num_steps, rows), leaves_of(kind, num_states)
    compare(kind, leaves, obs)
    compare(kind, leaves, obs, valid=ragged(num_steps, rows), seen=torch.rand(num_steps, *rows) < 0.7)


@pytest.mark.parametrize("segment", [1, 7, 64, 10_000])
def test_segments_of_every_length(segment, monkeypatch):
    monkeypatch.setattr(long_scan, "SEGMENT", segment)
    leaves, start = leaves_of("words", 4), Belief(None, torch.randn(2, 4, dtype=F64).log_softmax(-1))
    states = torch.randint(-6, 4, (40, 2)).clamp_min(-1)
    compare("words", leaves, observed("words", 40, (2,)), start=start, states=states, valid=ragged(40, (2,)))


def test_numbers_of_four_bytes():
    found = compare("gaussian", leaves_of("gaussian", 5, F32), observed("gaussian", 200, (2,), F32), tolerance=1e-3)
    assert all(value.dtype == F32 for name, value in found.items() if name not in ("paths",))


def test_an_impossible_step_is_named():
    leaves = leaves_of("words", 3)
    leaves["words"][:, 2] = -math.inf
    obs = torch.zeros(100, 2, dtype=torch.int64)
    obs[70, 1] = 2
    with pytest.raises(ValueError, match=r"row 1, step 70: observation 2 is impossible"):
        answers(build.build_chain, "words", leaves, obs)


def test_second_derivatives_are_those_of_the_twin():
    leaves, obs = leaves_of("gaussian", 2), observed("gaussian", 9, (1,))

    def hessian(make):
        loc = leaves["loc"].clone().requires_grad_()
        transition = DenseTransition(leaves["initial"].log_softmax(-1), leaves["matrix"].log_softmax(-1))
        log_prob = make(transition, GaussianEmission(loc, leaves["scale"].exp()), obs).log_prob().sum()
        (first,) = torch.autograd.grad(log_prob, loc, create_graph=True)
        return torch.stack([torch.autograd.grad(g, loc, retain_graph=True)[0] for g in first.flatten()])

    close(hessian(build.build_chain), hessian(DenseChain))


def test_an_emission_with_hidden_parameters_is_not_cut():
    weight = torch.ones((), dtype=F64, requires_grad=True)

    class Scaled(GaussianEmission):
        def log_likelihood(self, obs):
            return weight * super().log_likelihood(obs)

    leaves, obs = leaves_of("gaussian", 3), observed("gaussian", 50, (1,))
    transition = DenseTransition(leaves["initial"].log_softmax(-1), leaves["matrix"].log_softmax(-1))
    chain = build.build_chain(transition, Scaled(leaves["loc"], leaves["scale"].exp()), obs)
    assert type(chain) is DenseChain
    chain.log_prob().sum().backward()
    assert weight.grad is not None and float(weight.grad) != 0


def test_parameters_that_changed_before_the_backward_are_noticed():
    loc = torch.randn(3, 2, dtype=F64, requires_grad=True)
    leaves = leaves_of("gaussian", 3)
    transition = DenseTransition(leaves["initial"].log_softmax(-1), leaves["matrix"].log_softmax(-1))
    emission = GaussianEmission(loc, leaves["scale"].exp())
    log_prob = build.build_chain(transition, emission, observed("gaussian", 60, (1,))).log_prob().sum()
    with torch.no_grad():
        loc += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        log_prob.backward()


def test_a_model_fits_and_answers_alike(monkeypatch):
    x = torch.randn(1, 300, 1, dtype=F64)
    x[0, 40:45] = math.nan

    def fitted():
        model = HMM(3, num_features=1).fit(x, max_iterations=3, seed=0)
        return *model.state_dict().values(), model.predict(x), model.predict_proba(x)

    found = fitted()
    monkeypatch.setattr(long, "LONG", 1 << 22)
    for got, wanted in zip(found, fitted(), strict=True):
        close(got, wanted)
