"""Models with the random parameters that they were made with: as good as any to compare two ways of computing at."""

import pytest

from pplseq.models.estimator import Estimator

CHECK = Estimator._check_fitted


@pytest.fixture(scope="module", autouse=True)
def random_parameters_will_do():
    """For a conftest: models answer with the parameters that they were made with, without being fitted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Estimator, "_check_fitted", lambda self: None)
        yield


@pytest.fixture
def ask_fitted_models_only(monkeypatch):
    """In spite of it: models that were not fitted refuse to answer, as they do for users."""
    monkeypatch.setattr(Estimator, "_check_fitted", CHECK)
