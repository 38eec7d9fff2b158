"""Draws of NUTS and SVI as ArviZ's InferenceData."""

import warnings

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    arviz = pytest.importorskip("arviz")

from pplseq import HMM  # noqa: E402
from pplseq.models import to_arviz  # noqa: E402


@pytest.fixture(scope="module")
def x():
    torch.manual_seed(0)
    return torch.cat([torch.randn(15), 4 + torch.randn(15)]).double()


def test_draws_of_nuts(x):
    model = HMM(2, num_features=1, priors=True).double()
    model.fit(x, method="nuts", num_samples=6, warmup_steps=6, seed=0, max_tree_depth=3)
    found = to_arviz(model)
    samples = model.history.samples
    assert set(found.posterior.data_vars) == set(samples)
    for name, value in samples.items():
        assert np.array_equal(found.posterior[name].values[0], value.numpy())
    assert found.posterior["transition"].shape == (1, 6, 2, 2)
    assert np.allclose(found.posterior["transition"].values.sum(-1), 1)
    assert found.sample_stats["diverging"].shape == (1, 6)
    assert found.posterior.attrs["method"] == "nuts"


def test_chains_come_apart_and_divergences_stand_where_they_were():
    from types import SimpleNamespace

    draws = torch.arange(12.0).reshape(6, 2)
    diagnostics = {"divergences": {"chain 0": [2], "chain 1": []}}
    history = SimpleNamespace(method="nuts", samples={"loc": draws}, guide=None, diagnostics=diagnostics)
    found = to_arviz(SimpleNamespace(history=history))
    assert found.posterior["loc"].values.tolist() == draws.reshape(2, 3, 2).tolist()
    assert found.sample_stats["diverging"].values.tolist() == [[False, False, True], [False] * 3]


def test_draws_of_a_guide(x):
    model = HMM(2, num_features=1, priors=True).double().fit(x, method="svi", num_steps=40, seed=0)
    found, again = (to_arviz(model, num_draws=200, seed=3) for _ in range(2))
    assert found.posterior["transition"].shape == (1, 200, 2, 2)
    assert np.array_equal(found.posterior["loc"], again.posterior["loc"])
    median = model.from_sites(model.history.guide.median())
    assert np.allclose(np.median(found.posterior["loc"].values[0], 0), median["loc"].detach().numpy(), atol=0.3)


def test_other_fits_have_no_draws(x):
    with pytest.raises(ValueError, match="got one fitted by 'em'"):
        to_arviz(HMM(2, num_features=1).fit(x, seed=0, max_iterations=1))
    with pytest.raises(ValueError, match="got one that was not fitted here"):
        to_arviz(HMM(2, num_features=1))
