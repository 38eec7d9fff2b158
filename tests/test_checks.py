"""Arguments checked in one place: what passes, and what the errors say."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from pplseq import CRFTagger, LatentTagger, TextLDS, checks, data, load, load_corpus, models
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.distributions.state import Belief


def test_what_passes_comes_back():
    assert checks.count("n", np.int64(3)) == 3 and type(checks.count("n", np.int64(3))) is int
    assert checks.count("n", 0, least=0) == 0
    assert checks.positive("x", 0.5) == 0.5 and checks.positive("x", 0, zero=True) == 0
    assert checks.share("x", 1) == 1 and checks.share("x", 0.75, "(0.5, 1]") == 0.75
    assert checks.choice("kind", "b", {"a": 1, "b": 2}) == "b"
    assert checks.shape("x", np.zeros((2, 3)), (2, 3)).shape == (2, 3)
    value = torch.tensor([1.0, -2.0])
    assert checks.finite("x", value) is value


NAN = float("nan")
REFUSED = [
    (lambda: checks.count("n", 0), ValueError, "n must be at least 1, got 0"),
    (lambda: checks.count("n", -1, least=0), ValueError, "n must be at least 0, got -1"),
    (lambda: checks.count("n", 2.0), TypeError, "n must be a whole number, got 2.0"),
    (lambda: checks.count("n", True), TypeError, "n must be a whole number, got True"),
    (lambda: checks.count("n", None), TypeError, "n must be a whole number, got None"),
    (lambda: checks.positive("x", 0), ValueError, "x must be positive, got 0"),
    (lambda: checks.positive("x", -1, zero=True), ValueError, "x must be 0 or more, got -1"),
    (lambda: checks.positive("x", NAN), ValueError, "x must be a number, got NaN"),
    (lambda: checks.positive("x", "1"), TypeError, "x must be a number, got '1'"),
    (lambda: checks.share("x", 1.5), ValueError, r"x must lie in \[0, 1\], got 1.5"),
    (lambda: checks.share("x", 1.0, "[0, 1)"), ValueError, r"x must lie in \[0, 1\), got 1.0"),
    (lambda: checks.share("x", 0.5, "(0.5, 1]"), ValueError, r"x must lie in \(0.5, 1\], got 0.5"),
    (lambda: checks.share("x", -0.1), ValueError, "got -0.1"),
    (lambda: checks.choice("kind", "gause", ["gauss", "word"]), ValueError, "gauss, word; got 'gause'. Did you mean 'gauss'"),
    (lambda: checks.choice("kind", "zzz", ["gauss", "word"]), ValueError, "kind must be one of gauss, word; got 'zzz'$"),
    (lambda: checks.choice("kind", None, ["a"]), ValueError, "kind must be one of a; got None"),
    (lambda: checks.finite("x", torch.tensor([1.0, torch.inf])), ValueError, "x must be finite"),
    (lambda: checks.finite("x", np.array([1.0, NAN])), ValueError, "x must be finite"),
    (lambda: checks.finite("x", float("inf")), ValueError, "x must be finite"),
    (lambda: checks.shape("x", torch.zeros(2), (3,)), ValueError, r"x must have shape \(3,\), got \(2,\)"),
    (lambda: checks.shape("x", [1, 2], (2,)), TypeError, "got list"),
    (lambda: checks.padding(torch.tensor([[True], [False], [True]])), ValueError, "padding must come behind"),
    (lambda: checks.start(GaussianBelief(torch.zeros(1, 2), torch.eye(2)), 1, 2), TypeError, "start must be a Belief"),
    (lambda: checks.start(Belief(None, torch.zeros(1, 3)), 2, 3), ValueError, "one row for each of the 2 rows"),
    (lambda: checks.start(Belief(None, torch.zeros(1, 3)), 1, 2), ValueError, "state 2 is not in 0..1"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, message", REFUSED)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: CRFTagger(method="sgd", seed=seed),
        lambda seed: LatentTagger(seed=seed),
        lambda seed: models.DictionaryTagger(seed=seed),
        lambda seed: models.AutomatonLearner(2, seed=seed),
        lambda seed: load_corpus("builtin:generated", seed=seed),
        lambda seed: TextLDS(1, num_words=3).fit(["a b", "b a"], seed=seed),
    ],
)
def test_seeds_are_counts(make):
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        make(-1)
    with pytest.raises(TypeError, match=r"seed must be a whole number, got 1\.5"):
        make(1.5)


@pytest.mark.parametrize("read", [load_corpus, load, data.read_text, data.Vocabulary.load])
def test_a_path_is_a_name(read):
    with pytest.raises(TypeError, match="expected the name of a f.*, got None"):
        read(None)
    with pytest.raises(TypeError, match=r"got \['a b'\]; data in memory go to fit as they are"):
        read(["a b"])


def test_large_values_are_finite():
    """A sum that overflows is no infinity among the values."""
    checks.finite("x", torch.full((4,), 3e38))
    checks.finite("x", np.full(4, 1.7e308))


def test_nearest():
    assert checks.nearest("trian", ["train", "tag"]) == " Did you mean 'train'?"
    assert checks.nearest("x", ["train", "tag"]) == " There are: train, tag"


def test_without_torch():
    """The command line checks names before anything heavy is imported."""
    code = "import sys, pplseq.checks as c; c.count('n', 1); c.choice('a', 'b', 'b'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_values_in_errors_are_cut():
    pandas = pytest.importorskip("pandas")
    long = np.arange(10_000.0)
    many = (long, long.reshape(100, 100), torch.tensor(long), pandas.Series(long), pandas.DataFrame({"a": long}), long.tolist())
    for value in (*many, "x" * 10_000, {k: k for k in range(1000)}, [[0.123456789] * 50] * 50, [long]):
        assert len(checks.shown(value)) <= 60 and "\n" not in checks.shown(value)
        for check in (checks.count, checks.number):
            with pytest.raises(TypeError) as error:
                check("name", value)
            assert len(str(error.value)) < 200
    assert [checks.shown(value) for value in (5, "a", [1, 2], None)] == ["5", "'a'", "[1, 2]", "None"]


def test_swapped_arguments_of_a_forecast():
    with pytest.raises(TypeError, match=r"the data come first; write forecast\(x, 5\), got 5 and a ndarray of shape \(100,\)"):
        checks.steps_ahead(5, np.zeros(100))
