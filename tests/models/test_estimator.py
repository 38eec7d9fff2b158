"""Arguments of models: what set_params keeps, builds anew, and refuses; what a model says of itself."""

import pytest
import torch

from pplseq.models import ARHMM, HMM, MixtureHMM, MixtureIOHMM, SemiMarkovHMM, StreamingHMM, SwitchingRegression

X = [[0, 1, 2, 3], [3, 2, 1, 0, 0]]
close = torch.testing.assert_close


def fitted(**options):
    return HMM(3, 4, **options).fit(X, seed=0, max_iterations=3)


def test_arguments_that_change_no_shape_keep_the_parameters():
    model = fitted()
    before = model.transition
    assert model.set_params(covariance_floor=0.5, priors={"transition": 2.0}) is model
    assert model.get_params()["covariance_floor"] == 0.5 and model.priors.transition == 2.0
    assert torch.equal(model.transition, before) and model.is_fitted and "fitted by em" in repr(model)


def test_other_sizes_are_another_model():
    model = fitted()
    model.set_params(num_states=5)
    assert model.num_states == 5 and model.transition.shape == (5, 5)
    assert not model.is_fitted and model.history is None and "not fitted" in repr(model)
    model.fit(X, max_iterations=2)
    assert model.is_fitted and model.decode(X)[0].shape == (4,)


@pytest.mark.parametrize(
    ("model", "other"),
    [
        (SemiMarkovHMM(2, 4, duration="geometric"), dict(duration="poisson", max_duration=3)),
        (SwitchingRegression(2, duration="poisson", max_duration=3), dict(duration="geometric", max_duration=None)),
        (ARHMM(2, 1, duration="geometric"), dict(duration="poisson", max_duration=3)),
        (MixtureHMM(2, 2, 4), dict(num_clusters=4, num_states=1)),
        (MixtureIOHMM(2, 2, num_inputs=1, num_outputs=3), dict(num_clusters=4, num_states=1)),
    ],
)
def test_numbers_that_would_mean_something_else_do_not_stay(model, other):
    """Though they have the same shapes."""
    model.is_fitted = True
    model.set_params(**other)
    assert not model.is_fitted and model.get_params().items() >= other.items()
    assert SwitchingRegression(2).set_params(duration="explicit", max_duration=4).num_states == 8


def test_the_type_stays_unless_it_is_given():
    model = fitted().float()
    assert model.set_params(num_states=4).transition.dtype == torch.float32
    assert model.set_params(dtype="float64").transition.dtype == torch.float64


def test_what_is_refused_changes_nothing():
    model = fitted()
    before = model.score(X)
    for wrong, message in ((dict(num_states=0), "num_states must be at least 1"), (dict(covarance="full"), "'covariance'")):
        with pytest.raises(ValueError, match=message):
            model.set_params(**wrong)
    assert model.score(X) == before and model.is_fitted


def test_a_model_says_what_it_is():
    assert repr(HMM(3, 4)) == "HMM(num_states=3, num_words=4): 17 free parameters, not fitted"
    assert repr(HMM(2, num_features=2, covariance="full")).startswith("HMM(num_states=2, num_features=2, covariance='full')")
    assert repr(StreamingHMM(3, 4)).startswith("StreamingHMM(num_words=4, num_states=3)")
    assert "priors=<dict of 10>" in repr(HMM(3, 4, priors=True))


def test_criteria_prefer_the_smaller_of_two_equal_models():
    small, large = HMM(1, 4), HMM(3, 4)
    table = torch.full((1, 4), 0.25)
    small.set_parameters(emission=table)
    large.set_parameters(emission=table.expand(3, 4))
    close(torch.tensor(small.score(X)), torch.tensor(large.score(X)))
    assert small.bic(X) < large.bic(X) and small.aic(X) < large.aic(X)
