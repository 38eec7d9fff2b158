"""Every way to run a Gaussian chain, by one case."""

import pytest
from support.gaussian_recursions import EVERY, PRECISE, GaussianRecursion
from support.tiny_gaussians import tiny_case

from pplseq.infer.gaussian.parallel import ParallelChain
from pplseq.kernels import compiled, linear_recursion
from pplseq.kernels.gaussian import compiled_kalman, kalman_means

LONG = tuple(one for one in EVERY if "long" in one)
needs_numba = pytest.mark.skipif(not compiled.available(), reason="numba is not installed")


class TestInformation(GaussianRecursion):
    """Observations as what they say of the state."""

    situations = tuple(one for one in EVERY if one not in PRECISE)

    def chain(self, case, **options):
        return case.chain(**options)


class TestInParallel(GaussianRecursion):
    situations = tuple(one for one in EVERY if one not in PRECISE)

    def chain(self, case, **options):
        return case.chain(kind=ParallelChain, numbers=True, **options)


class TestNumbers(GaussianRecursion):
    """Observed numbers as they are, by tensor operations."""

    @pytest.fixture(autouse=True)
    def operations(self):
        with compiled.twins_only():
            yield

    def chain(self, case, **options):
        return case.chain(numbers=True, **options)


class TestNumbersByPieces(TestNumbers):
    """All steps with one gain at once, a step of a row or so at a time."""

    situations = ("plain", "ragged", "offset", "step offset", "one step", "gaps of all", "full noise", *LONG, *PRECISE)

    @pytest.fixture(autouse=True)
    def pieces(self, monkeypatch):
        monkeypatch.setattr(kalman_means, "PIECE", 1)
        monkeypatch.setattr(linear_recursion, "SHORT", 3)

    def test_means_of_all_rows_share_gains(self):
        assert self.chain(tiny_case("long offset"), gradients=False).shares_gains


@needs_numba
class TestLoops(TestNumbers):
    @pytest.fixture(autouse=True)
    def operations(self):
        with compiled.always():
            yield


@needs_numba
class TestLoopsThatAreNeverSteady(TestLoops):
    situations = ("plain", "ragged gaps", "own starts", "partly seen ragged gaps", *LONG)

    @pytest.fixture(autouse=True)
    def little_room(self, monkeypatch):
        monkeypatch.setattr(compiled_kalman, "FIRST_ROOM", 2)  # nodes at first
        monkeypatch.setattr(compiled_kalman, "FIRST_NUMBERS", 1)

    def chain(self, case, **options):
        return super().chain(case, tol=0.0, **options)


@needs_numba
class TestLoopsOfACoarseTolerance(TestLoops):
    situations, tolerance = LONG, 1e-3

    def chain(self, case, **options):
        return super().chain(case, tol=1e-5, **options)


@needs_numba
class TestLoopsOverCovariancesAlone(TestLoops):
    """Of states too large for loops over means."""

    situations = (
        "plain", "ragged", "ragged gaps", "step offset", "own starts", "one step", "full noise", "many states", *LONG, *PRECISE
    )  # fmt: skip

    @pytest.fixture(autouse=True)
    def large(self, monkeypatch):
        monkeypatch.setattr(compiled_kalman, "pays", lambda residual, first: False)
