"""One case for every recursion over a chain of states: what it says, against one step after the other in log space.

A way is a class that inherits :class:`ChainRecursion`; all tests of the case run for it. What it does not give is not asked.
"""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pplseq.kernels import path_scan, scan
from support.dense_chains import F64, ragged, random_chain
from support.grids import grid

F32 = torch.float32
LINKS = ["shared", "shared by some rows", "a matrix a step"]


class Factors(NamedTuple):
    """Those of :mod:`pplseq.kernels.scan`."""

    init: Tensor
    pair: Tensor
    emit: Tensor
    valid: Tensor | None = None
    shared: bool = True
    restart: Tensor | None = None
    restart_to: Tensor | None = None

    @property
    def rows(self) -> torch.Size:
        return self.emit.shape[1:-1]


def chain(links, num_steps, rows, num_states, scale=1.0, holes=0.0, dtype=F64, shortest=None) -> Factors:
    """A random one; links "restarts": one matrix, and steps that begin afresh. shortest: ragged rows, None for full ones."""
    kind = "shared" if links == "restarts" else links
    factors = Factors(*random_chain(kind, num_steps, rows, num_states, scale, holes, dtype), shared=kind != LINKS[2])
    if shortest is not None:
        factors = factors._replace(valid=ragged(num_steps, rows, shortest))
    if links != "restarts":
        return factors
    to = (scale * torch.randn(num_states, dtype=dtype)).log_softmax(-1)
    return factors._replace(restart=torch.rand(num_steps, *rows) < 0.3, restart_to=to)


def log_sum(x: Tensor, dim: int) -> Tensor:
    """logsumexp, with gradients 0 where all is impossible."""
    top = x.detach().amax(dim, keepdim=True).clamp_min(torch.finfo(x.dtype).min)
    total = (x - top).exp().sum(dim)
    possible = total != 0
    return torch.where(possible, total.where(possible, 1.0).log() + top.squeeze(dim), -math.inf)


def matrix_into(f: Factors, t: int) -> Tensor:
    matrix = f.pair if f.shared else f.pair[t - 1]
    if f.restart is None:
        return matrix
    return torch.where(f.restart[t][..., None, None], f.restart_to.unsqueeze(-2), matrix)


def one_by_one(f: Factors) -> dict[str, Tensor]:
    """log p(x), log p(x_t | x_<t), and log p(z_t | x_<=t) of all steps and of the last."""
    steps, filtered = [], []
    for t in range(len(f.emit)):
        score = f.init if t == 0 else log_sum(filtered[-1].unsqueeze(-1) + matrix_into(f, t), -2)
        score = score + f.emit[t]
        step = log_sum(score, -1)
        score = score - step.clamp_min(torch.finfo(step.dtype).min).unsqueeze(-1)
        if f.valid is not None:
            step = step.where(f.valid[t], 0.0)
            score = score if t == 0 else score.where(f.valid[t].unsqueeze(-1), filtered[-1])
        steps.append(step)
        filtered.append(score)
    return {"log_prob": sum(steps), "steps": torch.stack(steps), "filtered": torch.stack(filtered), "last": filtered[-1]}


def best_paths(f: Factors) -> dict[str, Tensor]:
    """The best path and its score; behind a row's end its last state again."""
    score, pointers = f.init + f.emit[0], []
    if f.valid is not None:
        score = score.where(f.valid[0].unsqueeze(-1), 0.0)
    for t in range(1, len(f.emit)):
        best, pointer = (score.unsqueeze(-1) + matrix_into(f, t)).max(-2)
        best = best + f.emit[t]
        if f.valid is not None:
            keep = f.valid[t].unsqueeze(-1)
            best, pointer = best.where(keep, score), pointer.where(keep, torch.arange(score.shape[-1]))
        score = best
        pointers.append(pointer)
    best, state = score.max(-1)
    path = [state]
    for pointer in reversed(pointers):
        path.append(pointer.gather(-1, path[-1].unsqueeze(-1)).squeeze(-1))
    return {"best": best, "path": torch.stack(path[::-1])}


DIFFERENTIABLE = ("init", "pair", "emit", "restart_to")


def weights(f: Factors) -> Tensor:
    """None is 0."""
    return torch.linspace(-1.0, 2.3, f.rows.numel()).to(f.emit).reshape(f.rows)


def leaves_of(f: Factors) -> tuple[Factors, list[Tensor], list[str]]:
    names = [name for name in DIFFERENTIABLE if getattr(f, name) is not None]
    leaves = [getattr(f, name).detach().clone().requires_grad_() for name in names]
    return f._replace(**dict(zip(names, leaves, strict=True))), leaves, names


def derivatives(log_prob, f: Factors) -> dict[str, Tensor]:
    """Of weighted rows, which are possible."""
    given, leaves, names = leaves_of(f)
    value = log_prob(given)
    total = (value.where(value.detach() > -math.inf, 0.0) * weights(f)).sum()
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return {
        f"d {name}": torch.zeros_like(leaf) if slope is None else slope
        for name, leaf, slope in zip(names, leaves, found, strict=True)
    }


def curvature(log_prob, f: Factors) -> list[Tensor]:
    """Second derivatives in some direction; everything mixes."""
    given, leaves, _ = leaves_of(f)
    slopes = torch.autograd.grad((log_prob(given) * weights(f)).sum(), leaves, create_graph=True, allow_unused=True)
    parts = [(s * torch.linspace(-1, 2 + k, s.numel()).to(s).view_as(s)).sum() for k, s in enumerate(slopes) if s is not None]
    found = torch.autograd.grad(sum(parts), leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if part is None else part for leaf, part in zip(leaves, found, strict=True)]


_wanted: dict[tuple, dict[str, Tensor]] = {}


class ChainRecursion:
    """Inherited by each way to run a chain."""

    links: tuple[str, ...] = ("shared", "shared by some rows", "a matrix a step", "restarts")
    differentiable = True
    two_orders = True  # of derivatives
    whole_types = (F64, F32)

    def chain(self, *args, **options) -> Factors:
        """One at random, of those that the way runs."""
        return chain(*args, **options)

    def dense(self, f: Factors) -> Factors:
        """What stands for it in the reference, differentiable."""
        return f

    def wanted(self, f: Factors) -> dict[str, Tensor]:
        """What it is compared with, in double precision; made once of factors that the same test has in several classes."""
        way = None if type(self).dense is ChainRecursion.dense else type(self)
        parts = ((part.numpy().tobytes(), part.shape, part.dtype) if isinstance(part, Tensor) else part for part in f)
        if (key := (way, *parts)) not in _wanted:
            f = Factors(*(part.double() if isinstance(part, Tensor) and part.is_floating_point() else part for part in f))
            found = one_by_one(self.dense(f)) | best_paths(self.dense(f))
            found |= derivatives(lambda g: one_by_one(self.dense(g))["log_prob"], f)
            found["states"], found["pairs"] = found["d emit"] / weights(f).unsqueeze(-1), found["d pair"]
            log_prob = found["log_prob"].where(found["log_prob"] > -math.inf, 0.0)
            found["entropy"] = (log_prob * weights(f)).sum() - sum(
                (found[f"d {name}"] * getattr(f, name).where(found[f"d {name}"] != 0, 0.0)).sum() for name in leaves_of(f)[2]
            )  # log p(x) less the expected log p(z, x)
            _wanted[key] = found
        return _wanted[key]

    def log_prob(self, f: Factors) -> Tensor:
        """(*B,), differentiable if the way is."""
        raise NotImplementedError

    def answers(self, f: Factors) -> dict[str, Tensor]:
        """What it gives of "log_prob", "steps", "filtered", "last", "states" (p(z_t | x)), "pairs" (as "d pair"), "best",
        "path" and "entropy" (of rows, weighted as their log p(x), in sum)."""
        raise NotImplementedError

    @staticmethod
    def expected(f: Factors) -> Tensor:
        return one_by_one(f)["log_prob"]

    def compare(self, f: Factors, tolerance=1e-9) -> dict[str, Tensor]:
        found = self.answers(f)
        if self.differentiable:
            found |= derivatives(self.log_prob, f)
        wanted = self.wanted(f)
        possible = wanted["log_prob"] > -math.inf
        if f.restart is not None and not bool(possible.all()):  # behind what is impossible, rows begin afresh and count
            found.pop("pairs", None)
        stepping = possible if f.valid is None else possible & f.valid[0]
        exact = {"rtol": tolerance, "atol": tolerance}
        for name, value in found.items():
            expected = wanted[name]
            if name in ("filtered", "path", "steps", "states"):  # of a row without steps, and of an impossible one, anything
                value, expected = value[:, stepping], expected[:, stepping]
            if name == "last":
                value, expected = value[stepping], expected[stepping]
            if name in ("filtered", "last"):
                value, expected = value.exp(), expected.exp()
            expected = expected.to(value.dtype)
            torch.testing.assert_close(value, expected, **exact, msg=lambda m, name=name: f"{name}: {m}")
        return found

    @pytest.fixture(autouse=True)
    def fitting(self, request):
        links = request.node.callspec.params.get("links") if hasattr(request.node, "callspec") else None
        if links is not None and links not in self.links:
            pytest.skip(f"no chains with links: {links}")

    @grid({
        "num_steps, rows, num_states": [
            (1, (2,), 3), (2, (1,), 2), (7, (1,), 1), (70, (2, 3), 5), (66, (3,), 8), (33, (1,), 9), (23, (3,), 17),
        ],
        "links": [*LINKS, "restarts"],
    })  # fmt: skip
    def test_shapes(self, links, num_steps, rows, num_states):
        for shortest in (None, 0):
            self.compare(self.chain(links, num_steps, rows, num_states, shortest=shortest))

    @grid({"scale, holes": [(1.0, 0.5), (40.0, 0.3), (400.0, 0.0), (400.0, 0.3)], "links": [*LINKS, "restarts"]})
    def test_zeros_and_numbers_of_every_size(self, links, scale, holes):
        for shortest in (None, 0, 1):
            self.compare(self.chain(links, 80, (3,), 4, scale, holes, shortest=shortest), 1e-8)

    @pytest.mark.parametrize("links", LINKS)
    def test_factors_that_are_no_probabilities(self, links):
        """Messages under matrices of ones would be 24^300 without bounds."""
        f = self.chain(links, 300, (2,), 24)
        self.compare(f._replace(pair=f.pair.masked_fill(f.pair > -math.inf, 0.0), emit=f.emit * 0.01), 1e-8)
        f = self.chain(links, 40, (3,), 4, shortest=0)
        self.compare(f._replace(init=f.init + 40.0, pair=f.pair + 20 * torch.randn(4, 1, dtype=F64), emit=f.emit + 200.0))

    def test_a_state_of_1e_300_that_decides_in_the_end(self):
        init = torch.tensor([[0.0, math.log(1e-300)]], dtype=F64)
        pair = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]], dtype=F64)
        emit = torch.zeros(200, 1, 2, dtype=F64)
        emit[50:100, 0, 1] = -10.0  # 1e-217 on top of it
        emit[-1, 0, 0] = -math.inf
        found = self.compare(Factors(init, pair, emit))
        torch.testing.assert_close(found["log_prob"], torch.tensor([math.log(1e-300) - 500.0], dtype=F64))

    @pytest.mark.parametrize("links", ["shared", "a matrix a step"])
    @grid({"by": ["an emission", "a transition"], "dtype": [F64, F32]})
    def test_what_is_1e_348_times_less_likely_decides_in_the_end(self, by, links, dtype):
        if dtype not in self.whole_types:
            return
        far, shared = by == "a transition", links == "shared"
        init = torch.tensor([[0.0, -math.inf] if far else [0.0, 0.0]], dtype=F64)
        pair = torch.tensor([[0.0, -800.0 if far else -math.inf], [-math.inf, 0.0]], dtype=F64)
        emit = torch.zeros(10, 1, 2, dtype=F64)
        emit[3, 0, 1] = 0.0 if far else -800.0
        emit[5:9, 0, 0] = -250.0
        f = Factors(init.to(dtype), pair.expand(9 if not shared else 1, 1, 2, 2).to(dtype), emit.to(dtype), None, shared)
        found = self.compare(f._replace(pair=f.pair[0, 0]) if shared else f, 1e-9 if dtype == F64 else 1e-4)
        wanted = torch.tensor([-800.0 + (math.log(5) if far else 0.0)], dtype=dtype)  # steps in which to go over
        torch.testing.assert_close(found["log_prob"], wanted)

    @pytest.mark.parametrize("links", [*LINKS, "restarts"])
    def test_numbers_of_four_bytes(self, links):
        if F32 in self.whole_types:
            found = self.compare(self.chain(links, 100, (4,), 6, 2.0, dtype=F32, shortest=0), 2e-3)
            assert all(value.dtype in (F32, torch.int64) for value in found.values())

    @pytest.mark.parametrize("links", [*LINKS, "restarts"])
    def test_an_impossible_row_spoils_no_other(self, links):
        f = self.chain(links, 12, (3,), 4)
        f.emit[5, 1] = -math.inf
        found = self.compare(f)
        assert torch.isneginf(found["log_prob"]).tolist() == [False, True, False]
        assert not any(value.isnan().any() for name, value in found.items() if name.startswith("d "))

    def test_a_start_of_all_rows(self):
        f = self.chain("shared", 5, (3,), 4)
        self.compare(f._replace(init=f.init[0]))

    @pytest.mark.parametrize("links", [*LINKS, "restarts"])
    def test_second_derivatives(self, links):
        if self.two_orders and self.differentiable:
            f = self.chain(links, 5, (3,), 4, shortest=1)
            wanted = curvature(lambda g: one_by_one(self.dense(g))["log_prob"], f)
            for found, value in zip(curvature(self.log_prob, f), wanted, strict=True):
                torch.testing.assert_close(found, value)


def matrices_of(f: Factors) -> scan.StepMatrices:
    return scan.StepMatrices(f.pair, f.shared, f.restart, f.restart_to)


class ByScans(ChainRecursion):
    def log_prob(self, f):
        return scan.chain_log_prob(*f).log_prob

    def answers(self, f):
        result, matrices = scan.chain_log_prob(*f), matrices_of(f)
        states, pairs = scan.smooth(matrices, f.emit, result, f.valid, weights(f))
        path, best = path_scan.viterbi_pass(f.init.expand(f.emit.shape[1:]), matrices, f.emit, f.valid)
        return {
            "log_prob": result.log_prob, "steps": result.step_log_prob, "filtered": result.filtered, "states": states,
            "pairs": pairs, "best": best, "path": path, "last": result.last,
        }  # fmt: skip
