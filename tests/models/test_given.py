"""What a program is given: masks, gaps, mini-batches, the word before, and what is refused."""

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer.util import is_validation_enabled

from pplseq import checks
from pplseq.distributions.state import MISSING, Belief
from pplseq.models import HMM, LDS, VLHMM, TextLDS
from pplseq.models.base import Given
from pplseq.threads import alone

close = torch.testing.assert_close
NAN = float("nan")
X = torch.tensor([[1, MISSING, 0], [2, 1, MISSING]])


def masks(given):
    """Which sites count at each step: (T,) of pairs (state, observation) of (B,) masks."""
    rows = []
    for t in given.steps:
        with pyro.plate("rows", given.shape[0], dim=-1), poutine.trace() as trace:
            with given.valid(t):
                pyro.sample("z", pyro.distributions.Normal(0.0, 1.0))
                with given.seen(t):
                    pyro.sample("x", pyro.distributions.Normal(0.0, 1.0), obs=torch.zeros(given.shape[0]))
        sites = trace.trace.nodes
        rows.append([torch.as_tensor(sites[name]["mask"]).expand(given.shape[0]).tolist() for name in "zx"])
    return rows


def test_padding_masks_both_sites_and_gaps_the_observation_only():
    given = Given((2, 3), X, X.clamp_min(0), X != MISSING, lengths=torch.tensor([3, 2]))
    assert masks(given) == [[[True, True], [True, True]], [[True, True], [False, True]], [[True, False], [True, False]]]
    assert torch.equal(given.missing, X == MISSING) and not given.generates
    assert given.value(1).tolist() == [0, 1] and given.state(0) is None and given.input(0) is None


def test_vectors_seen_in_part():
    x = torch.tensor([[[1.0, NAN], [NAN, NAN]]])
    given = Given((1, 2), x, x.nan_to_num(0.0), ~x.isnan())
    assert given.coordinates(0).tolist() == [[True, False]] and given.missing.tolist() == [[False, True]]
    whole = Given((1, 2), x, x.nan_to_num(0.0), torch.tensor([[[True, True], [False, False]]]))
    assert whole.coordinates(0) is None and whole.missing.tolist() == [[False, True]]


def test_the_observation_before():
    given = Given((2, 3), X, X.clamp_min(0), X != MISSING)
    assert given.before(1, X[:, 0]) is None  # nothing depends on it
    given.first = torch.tensor([7, 8])
    assert [given.before(t).tolist() for t in given.steps] == [[7, 8], [1, 2], [MISSING, 1]]
    drawn = Given((2, 3))
    drawn.first = given.first
    assert drawn.generates and drawn.before(0).tolist() == [7, 8]
    assert drawn.before(1, torch.tensor([5, 6])).tolist() == [5, 6]


@pytest.mark.parametrize(
    "model, x",
    [
        (HMM(3, 4), torch.tensor([[1, 3], [2, 0]])),
        (VLHMM(4, num_words=4, hidden_size=4), torch.tensor([[1, 3], [2, 0]])),
        (LDS(2, 2), torch.randn(2, 2, 2).double()),
        (TextLDS(2, num_words=4), torch.tensor([[1, 3], [2, 0]])),
    ],
)
def test_a_mini_batch_stands_for_all(model, x):
    model.eval()
    with poutine.trace() as trace, poutine.block(hide_types=["param"]):
        model(x, num_total=6)
    total = sum(site["log_prob_sum"] for site in _computed(trace))
    close(total, 3 * model.log_prob(x).sum().to(total))


def _computed(trace):
    trace.trace.compute_log_prob()
    return [site for site in trace.trace.nodes.values() if site["type"] == "sample"]


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda m: m.model(), ValueError, "num_steps: say how many steps"),
        (lambda m: m.model(num_steps=0), ValueError, "num_steps must be at least 1"),
        (lambda m: m.model(num_steps=2.0), TypeError, "num_steps must be a whole number"),
        (lambda m: m.model(X, torch.tensor([4, 1])), ValueError, "lengths must lie in 0..3"),
        (lambda m: m.model(X, start=torch.zeros(2, 3)), TypeError, "start must be a Belief"),
        (lambda m: m.model(X, start=Belief(None, torch.zeros(1, 3))), ValueError, "one row for each of the 2 rows"),
        (lambda m: m.model(X, states=torch.zeros(2, 2).long()), ValueError, r"states must have shape \(2, 3\)"),
        (lambda m: m.model(X, states=X + 2), ValueError, "ids below 3"),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(HMM(3, 4))


def test_what_cannot_be_is_refused_whatever_pyro_validates():
    words, vectors = HMM(2, 3), LDS(1, 2)
    with pyro.validation_enabled(False):
        for x in (torch.tensor([[0, 3]]), torch.tensor([[0, -2]])):
            with pytest.raises(ValueError, match="x must hold ids 0..2"):
                words.log_prob(x)
        with pytest.raises(ValueError, match="lengths must lie in 0..2"):
            words.log_prob(torch.tensor([[0, 1]]), torch.tensor([3]))
        with pytest.raises(ValueError, match="the belief comes from another model"):
            words.posterior(torch.tensor([[0, 1]]), start=Belief(None, torch.zeros(1, 5).log_softmax(-1)))
        with pytest.raises(ValueError, match="x must be finite"):
            vectors.log_prob(torch.full((1, 2, 2), torch.inf))


def test_no_sequences_are_not_one():
    with pytest.raises(ValueError, match="num_sequences must be at least 1, got 0"):
        HMM(2, 3).sample(4, 0)


def test_a_loop_that_has_looked_is_trusted():
    with checks.trusted():
        assert checks.TRUSTED.get() and is_validation_enabled()  # which is that of all threads
        HMM(2, 3).log_prob(torch.tensor([[0, -2]]))
        assert not alone(is_validation_enabled)
    assert not checks.TRUSTED.get() and is_validation_enabled()


def test_what_a_query_does_not_know_is_named():
    model = HMM(3, num_words=6)
    x = np.array([[0, 1, 2], [5, 4, 3]])
    assert model.log_prob(x).shape == (2,)  # arrays as everywhere
    with pytest.raises(TypeError, match="HMM: no argument 'state' beside the data. Did you mean 'states'?"):
        model.score(x, state=x)
    with pytest.raises(ValueError, match="max_time must be 0 or more"):
        model.fit(x, max_time=-1)
    with pytest.raises(ValueError, match="HMM starts in one way"):
        model.fit(x, initialization="random")
