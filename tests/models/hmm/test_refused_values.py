"""Numbers and shapes that an HMM cannot mean: too large, of another unit, fitting by accident; each is told by its argument."""

import math
import warnings

import numpy as np
import pytest
import torch

from pplseq import ARHMM, HMM, VLHMM, MixtureHMM, SemiMarkovHMM
from pplseq.checks import NotFittedError
from pplseq.infer.fit.em import Batch, advice
from pplseq.models import ProductMoves

X = np.random.default_rng(0).normal(size=(40, 2))


def test_angles_in_degrees():
    model = HMM(1, emission="von_mises").set_parameters(initial=[1.0])
    with pytest.warns(UserWarning, match=r"x: von_mises takes angles in radians, .* numpy.deg2rad\(x\); got 350"):
        model.score([10.0, 350.0, 20.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isfinite(model.score([0.1, -2 * math.pi, 7.0, math.nan]))


def test_numbers_too_large_to_be_squared():
    for model in (HMM(2, num_features=2), HMM(2, num_features=2, emission="normal")):
        with pytest.raises(ValueError, match="x: numbers too large to be squared in float64, as .*; give them in other"):
            model.fit(X * 1e200)
    with pytest.raises(ValueError, match="too large to be squared in float32"):
        HMM(2, num_features=2, dtype="float32").fit(X * 1e25)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loc": [0.0, 1.0]}, r"loc must have shape \(2, 2\), got \(2,\)"),
        ({"loc": [[0.0, 1.0]]}, r"loc must have shape \(2, 2\), got \(1, 2\)"),
        ({"covariance": [1.0, 2.0]}, r"covariance must have shape \(2, 2\), got \(2,\)"),
        ({"precision": [[1.0], [2.0]]}, r"precision must have shape \(2, 2\), got \(2, 1\)"),
    ],
)
def test_shapes_that_fit_by_accident(given, message):
    model = HMM(2, num_features=2).set_parameters(loc=[[0.0, 1.0], [2.0, 3.0]])
    with pytest.raises(ValueError, match=message):
        model.set_parameters(**given)
    assert model.loc.tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_a_number_a_state_where_there_is_one_column():
    model = HMM(2, num_features=1).set_parameters(loc=[0.0, 1.0], covariance=[4.0, 9.0])
    assert model.loc.tolist() == [[0.0], [1.0]]
    assert model.emissions.covariances().flatten().tolist() == pytest.approx([4.0, 9.0])
    counts = HMM(2, num_features=2, emission="poisson")
    assert counts.set_parameters(rate=3.0).emissions.values()["rate"].flatten().tolist() == pytest.approx([3.0] * 4)
    with pytest.raises(ValueError, match=r"rate must have shape \(2, 2\), got \(2,\)"):  # of states, or of columns
        counts.set_parameters(rate=[1.0, 2.0])


def test_families_in_a_dict():
    with pytest.raises(TypeError, match=r"emission: expected a family, or a list .* got a dict; write emission=\['poisson'\]"):
        HMM(2, emission={"calls": "poisson"})


def test_advice_where_an_objective_fell():
    column = torch.tensor([[1.0, 3.0], [2.0, 3.0], [math.nan, 3.0]])
    batches = [Batch(column[None].double()), Batch(column[None, :2].double() + torch.tensor([1.0, 0.0]))]
    assert advice(torch.float64, batches) == "; columns [1] of x (from 0) hold one value only, leave them out"
    assert advice(torch.float64, batches[:1])[:12] == "; columns [1"
    assert "float64" not in advice(torch.float64, [Batch(batches[0].x[..., :1])])
    assert advice(torch.float32, [Batch(torch.zeros(1, 3).long())]) == "; use float64"


def test_a_model_without_words_says_so_and_no_more():
    with pytest.raises(NotFittedError) as found:
        VLHMM(num_states=4).sample(3)
    assert str(found.value).endswith("or make it with num_words and blocks")


@pytest.mark.parametrize(
    "make",
    [
        lambda: HMM(2, num_features=2, covariance="full"), lambda: HMM(2, num_features=1), lambda: HMM(2, 3),
        lambda: HMM(2, emission="gamma", num_features=1), lambda: MixtureHMM(2, 1, num_features=1),
        lambda: HMM(num_words=3, transition=ProductMoves(2, 2)), lambda: ARHMM(2, 1, order=1),
        *(lambda d=d: SemiMarkovHMM(2, num_features=1, **d) for d in (
            {"max_duration": 3}, {"duration": "poisson", "max_duration": 3}, {"duration": "geometric"},
        )),
    ],
)  # fmt: skip
def test_what_is_no_number_is_no_parameter(make):
    """Of any table, and none of what was given beside it is taken."""
    model = make()
    values = {name: value.detach().clone().double().contiguous() for name, value in model.estimates().items()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for name, value in values.items():
        wrong = value.clone()
        wrong.view(-1)[-1] = math.nan
        with pytest.raises(ValueError, match=name.rstrip("s")):
            model.set_parameters(**{**values, name: wrong})
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["covariance", "precision"])
@pytest.mark.parametrize("matrix, message", [([[1, 2], [2, 1]], "eigenvalue is -1"), ([[1, 0.5], [0, 1]], "symmetric")])
def test_matrices_that_are_no_covariances(name, matrix, message):
    model = HMM(2, num_features=2, covariance="full")
    with pytest.raises(ValueError, match=f"{name} must be .*{message}"):
        model.set_parameters(loc=[[9.0, 9.0], [9.0, 9.0]], **{name: [matrix] * 2})
    assert not bool((model.loc == 9).any())


def test_rates_of_durations_are_above_0():
    model = SemiMarkovHMM(2, num_features=1, duration="poisson", max_duration=3)
    with pytest.raises(ValueError, match=r"duration must hold rates above 0 of shape \(2,\), got \[0.0, 1.0\]"):
        model.set_parameters(duration=[0.0, 1.0])
