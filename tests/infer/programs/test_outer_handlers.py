"""What surrounds a chain: conditioned values, several plates, last states that look like observations."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.distributions.state import Belief
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.infer.programs.markov import markov

close = torch.testing.assert_close
I = torch.eye(2, dtype=torch.float64)
y = torch.randn(3, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def gaussian(vectorize=True, obs=False):
    x = None
    with pyro.plate("rows", 3, dim=-1):
        for t in markov(range(5), vectorize=vectorize):
            x = pyro.sample(f"x_{t}", LinearGaussian(x, 0.5 * I, I))
            pyro.sample(f"y_{t}", dist.MultivariateNormal(x @ (0.7 * I), I), obs=y[:, t] if obs else None)


def discrete(vectorize=True, obs=False):
    generator = torch.Generator().manual_seed(1)
    tables = [torch.randn(s, generator=generator, dtype=torch.float64).log_softmax(-1) for s in ((2,), (2, 2), (2, 4))]
    transition, emission, x = DenseTransition(*tables[:2]), CategoricalEmission(tables[2]), None
    words = torch.arange(15).reshape(3, 5) % 4
    with pyro.plate("rows", 3, dim=-1):
        for t in markov(range(5), vectorize=vectorize):
            x = pyro.sample(f"x_{t}", transition(x))
            pyro.sample(f"y_{t}", emission(x), obs=words[:, t] if obs else None)


@pytest.fixture(params=["gaussian", "discrete"])
def case(request):
    values = y if request.param == "gaussian" else torch.arange(15).reshape(3, 5) % 4
    handler, program = {"gaussian": (KalmanCollapse, gaussian), "discrete": (BlockedEnum, discrete)}[request.param]
    return handler, program, {f"y_{t}": values[:, t] for t in range(5)}


def test_conditioned_values_count_step_by_step(case):
    handler, program, data = case
    with handler() as observed:
        program(obs=True)
    with handler() as conditioned:
        pyro.condition(program, data=data)(vectorize=False)
    close(conditioned.chains["x_0"].log_prob(), observed.chains["x_0"].log_prob())


@pytest.mark.parametrize("name", ["y_3", "x_2"])
@pytest.mark.parametrize("obs", [False, True], ids=["hidden", "observed"])
def test_conditioned_values_are_never_passed_over(case, name, obs):
    handler, program, data = case
    value = torch.zeros(3, 2, dtype=torch.float64) if handler is KalmanCollapse else torch.tensor([1, 0, 1])
    data = {name: value}
    if name == "y_3" or handler is BlockedEnum:
        found = []
        for vectorize in (True, False):
            with handler() as posterior:
                pyro.condition(program, data=data)(vectorize, obs)
            found.append(posterior.chains["x_0"].log_prob())
        close(*found)
        with handler() as posterior:
            program(obs=obs)
        assert not torch.allclose(posterior.chains["x_0"].log_prob(), found[0])
    for vectorize in (True, False):  # a handler outside comes too late
        for outside in (poutine.condition(data=data), poutine.do(data=data)):
            with pytest.raises(ValueError, match=f"'{name}' has a value"), outside, handler():
                program(vectorize, obs)


@pytest.mark.parametrize("vectorize", [True, False])
def test_interventions_cut_a_chain(case, vectorize):
    """do(x_2 = v): the chain up to it, whose state there is not observed, and one behind a state that is known."""
    handler, program, _ = case
    value = torch.ones(3, 2, dtype=torch.float64) if handler is KalmanCollapse else torch.tensor([1, 0, 1])
    model = poutine.do(program, data={"x_2": value})
    trace = poutine.trace(handler()(model)).get_trace(vectorize, True)
    if handler is BlockedEnum:
        with handler() as posterior:
            program(vectorize, True)
        whole = posterior.chains["x_0"]
        start = torch.full((3, 2), -torch.inf, dtype=torch.float64)
        start[torch.arange(3), value] = 0.0
        cut = build_chain(whole.transition, whole.emission, whole.obs[3:], start=Belief(None, start))
        seen = whole.emission.log_probs[value, whole.obs[2]].sum()
        expected = whole.token_log_probs()[:, :2].sum() + seen + cut.log_prob().sum()
    else:
        with handler() as posterior:
            program(vectorize, True)
        before = posterior.chains["x_0"].token_log_probs()[:, :2].sum()
        mean, both = 0.5 * value, torch.zeros((), dtype=torch.float64)
        both = both + dist.MultivariateNormal(0.7 * value, I).log_prob(y[:, 2]).sum()
        cov = I
        for t in (3, 4):
            total = 0.49 * cov + I
            both = both + dist.MultivariateNormal(0.7 * mean, total).log_prob(y[:, t]).sum()
            gain = 0.7 * cov @ torch.linalg.inv(total)
            mean, cov = mean + (y[:, t] - 0.7 * mean) @ gain.T, cov - 0.7 * gain @ cov
            mean, cov = 0.5 * mean, 0.25 * cov + I
        expected = before + both
    close(trace.log_prob_sum(), expected)


def test_replayed_values_are_never_passed_over(case):
    handler, program, data = case
    trace = poutine.trace(program).get_trace(vectorize=False)
    with pytest.raises(ValueError, match="has a value in ReplayMessenger"), handler():
        poutine.replay(program, trace=trace)()


def test_an_inner_plates_covariate_is_not_taken_for_the_outer_plate():
    """With two plates of sizes T-1 and B a tensor (T-1, B) is one of the inner plate at all steps."""
    generator = torch.Generator().manual_seed(0)
    many = torch.randn(4, 3, 5, 2, dtype=torch.float64, generator=generator)
    seen, shift = (
        torch.rand(3, 5, generator=generator) < 0.6,
        torch.randn(3, 5, 2, dtype=torch.float64, generator=generator),
    )

    def program(vectorize):
        x = None
        with pyro.plate("outer", 4, dim=-2), pyro.plate("inner", 3, dim=-1):
            for t in markov(range(5), vectorize=vectorize):
                x = pyro.sample(f"x_{t}", LinearGaussian(x, 0.5 * I, I))
                with poutine.mask(mask=~seen[:, t]):
                    pyro.sample(f"y_{t}", dist.MultivariateNormal(x @ I + shift[:, t], I), obs=many[:, :, t])

    found = []
    for vectorize in (True, False):
        with KalmanCollapse() as posterior:
            program(vectorize)
        found.append(posterior.chains["x_0"].log_prob())
    assert found[0].shape == (4, 3)
    close(*found)


def test_a_last_state_that_is_not_observed_stays_a_state():
    with KalmanCollapse() as posterior:
        x = None
        for t in range(4):  # a random walk, observed as it is
            x = pyro.sample(f"x_{t}", LinearGaussian(x, I, I))
            if t < 3:
                pyro.sample(f"y_{t}", dist.MultivariateNormal(x @ I, I), obs=y[0, t])
    assert posterior.state_names["x_0"] == ["x_0", "x_1", "x_2", "x_3"]


@pytest.mark.parametrize("first_missing", [3, 0])
def test_a_last_observation_that_is_missing_is_no_state(first_missing):
    with KalmanCollapse() as posterior, pyro.plate("rows", 3):
        x = None
        for t in range(4):
            x = pyro.sample(f"x_{t}", LinearGaussian(x, 0.5 * I, I))
            pyro.sample(f"y_{t}", LinearGaussian(x, (t + 1.0) * I, I), obs=None if t >= first_missing else y[:, t])
    assert posterior.state_names["x_0"] == ["x_0", "x_1", "x_2", "x_3"]
