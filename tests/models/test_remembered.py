"""What parameters imply is remembered, never longer than they stay, and the short way to a chain leads where the long does."""

import copy
import math
import pickle

import pyro
import pytest
import torch
from pyro.nn import PyroSample

from pplseq.kernels.parallel.time_scan import parallel_in_time
from pplseq.models import HMM
from pplseq.models.remembered import Remembered, plain_parameters


def long_way(model, x):
    """The chain by the way that all programs take."""
    return model.posterior(x)


def words(num_states=3, seed=0, dtype="float64"):
    torch.manual_seed(seed)
    model = HMM(num_states, 5, dtype=dtype)
    model.is_fitted = True
    return model


def joint(model, x):
    return float(model.log_joint(x).detach())


def check(model, x):
    batch, short = model._posterior(x, None)
    assert model._chain_of_rows(batch) is not None
    chain = long_way(model, x)
    torch.testing.assert_close(short.log_prob(), chain.log_prob(), rtol=1e-14, atol=1e-13)
    torch.testing.assert_close(short.marginals().probs, chain.marginals().probs)
    torch.testing.assert_close(short.filtered_states().probs, chain.filtered_states().probs)
    assert torch.equal(short.viterbi()[0], chain.viterbi()[0])
    torch.testing.assert_close(short.expected_counts().transition, chain.expected_counts().transition)
    torch.testing.assert_close(short.next().word_log_probs, chain.next().word_log_probs)
    assert math.isclose(model.score(x), float(chain.log_prob().sum(dtype=torch.float64)), rel_tol=1e-14)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("num_states", "rows", "steps"), [(3, 1, 7), (1, 2, 5), (4, 3, 2), (5, 1, 40)])
def test_the_short_way_is_the_long_one(num_states, rows, steps, dtype):
    check(words(num_states, dtype=dtype), torch.randint(5, (rows, steps)))


@pytest.mark.parametrize("covariance", ["diag", "full", "tied", "spherical"])
def test_of_vectors(covariance):
    torch.manual_seed(1)
    model = HMM(3, num_features=2, covariance=covariance)
    model.is_fitted = True
    x = torch.randn(2, 6, 2, dtype=torch.float64)
    batch, short = model._posterior(x, None)
    assert model._chain_of_rows(batch) is not None
    torch.testing.assert_close(short.log_prob(), long_way(model, x).log_prob(), rtol=1e-14, atol=1e-13)
    torch.testing.assert_close(model.smooth(x).probs, long_way(model, x).marginals().probs)


def test_of_rows_parallel_in_time():
    model, x = words(), torch.randint(5, (2, 9))
    with parallel_in_time():
        batch, short = model._posterior(x, None)
        assert model._chain_of_rows(batch) is not None and short.in_parallel
        torch.testing.assert_close(short.log_prob(), long_way(model, x).log_prob())
    assert not model._posterior(x, None)[1].in_parallel


def test_of_one_step():
    model = words()
    assert math.isclose(model.score(torch.tensor([[2]])), float(long_way(model, torch.tensor([[2]])).log_prob()), rel_tol=1e-14)


def test_zeros_and_tiny_probabilities():
    model = words(2)
    model.set_parameters(
        initial=[1, 0], transition=[[1 - 1e-300, 1e-300], [0, 1]],
        emission=[[1, 0, 0, 0, 0], [1e-300, 0.5, 0.5, 0, 0]],
    )  # fmt: skip
    with torch.no_grad():
        model.transition_logits[0, 1] = -300 * math.log(10)
    check(model, torch.tensor([[0, 0, 1, 2], [0, 1, 1, 0]]))
    assert model.score(torch.tensor([[0, 0], [1, 1]])) == -math.inf
    for ask in (model.smooth, model.decode):
        with pytest.raises(ValueError, match="row 1, step 0: observation 1 is impossible"):
            ask(torch.tensor([[0, 0], [1, 1]]))


@pytest.mark.parametrize("x", [torch.tensor([[0, -1, 2]]), [[0, 1], [2]]])
def test_gaps_and_ragged_rows_are_remembered_too(x):
    model = words()
    assert model._chain_of_rows(model._as_batch(x)) is not None
    batch = model._as_batch(x)
    assert math.isclose(model.score(x), float(model.posterior(batch.x, batch.lengths).log_prob().sum()), rel_tol=1e-12)


def test_what_has_its_own_way_keeps_it():
    class Sharper(HMM):
        def specs(self):
            transition, emission = super().specs()
            return type(transition)(transition.initial, (3 * transition.matrix).log_softmax(-1)), emission

    torch.manual_seed(0)
    model, x = Sharper(3, 5), torch.randint(5, (1, 9))
    model.is_fitted = True
    assert model.score(x) == pytest.approx(joint(model, x), rel=1e-12)
    plain = words()
    before, specs = plain.score(x), words(seed=5).specs()
    plain.specs = lambda: specs
    assert plain.score(x) == pytest.approx(words(seed=5).score(x), rel=1e-12) != before


def step(model):
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    (-model.log_joint(torch.tensor([[1, 2, 3]]))).backward()
    optimizer.step()


def replace(model):
    logits = 2 * model.transition_logits.detach()
    del model.transition_logits
    model.transition_logits = logits


def write(name):
    def change(model):
        model.get_parameter(name).data[0, 0] += 1.0

    return change


CHANGES = {
    "in place": lambda model: model.transition_logits.detach().mul_(2),
    ".data": write("transition_logits"),
    ".data of the emissions": write("emissions.logits"),
    "another tensor's memory": lambda model: setattr(model.transition_logits, "data", 2 * model.transition_logits.data),
    "numpy": lambda model: model.transition_logits.detach().numpy().__imul__(2),
    "an optimiser": step,
    "a state dict": lambda model: model.load_state_dict(words(seed=7).state_dict()),
    "set_parameters": lambda model: model.set_parameters(initial=[0.1, 0.1, 0.8]),
    "precision": lambda model: model.float(),
    "a parameter": lambda model: setattr(model, "transition_logits", torch.nn.Parameter(torch.eye(3).double())),
    "a tensor in its place": replace,
    "a fit": lambda model: model.fit([[1, 2, 3, 4, 0, 0, 1]], warm_start=True, max_iterations=2),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen(change):
    model, x = words(), torch.tensor([[1, 2, 3, 0, 4, 4]])
    before = model.score(x)
    assert model.score(x) == before
    CHANGES[change](model)
    after = model.score(x)
    assert after != before
    assert after == pytest.approx(joint(model, x), rel=1e-6)
    if change == "a tensor in its place":  # whose numbers stand where none are looked for
        model.transition_logits.mul_(2)
        assert model.score(x) == pytest.approx(joint(model, x), rel=1e-12) != after


def test_a_buffer_is_seen_too():
    torch.manual_seed(0)
    model, x = HMM(3, 5, ties=[0, 1, 0]), torch.tensor([[1, 2, 3, 0, 4, 4]])
    model.is_fitted = True
    before = model.score(x)
    model._rows = torch.tensor([0, 1, 1])
    assert model.score(x) == pytest.approx(joint(model, x), rel=1e-12) != before


def test_copies_see_their_own_parameters():
    model, x = words(), torch.tensor([[1, 2, 3, 0, 4, 4]])
    before = model.score(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.score(x) == before
        other.transition_logits.data.mul_(2)
        assert other.score(x) != before == model.score(x)


@pytest.mark.parametrize("emission", ["gaussian", "mixture", "normal"])
def test_memory_that_was_a_parameter_once_changes_nothing(emission):
    torch.manual_seed(2)
    model = HMM(2, num_features=1, emission=emission)
    model.load_state_dict(model.state_dict())
    x = torch.randn(1, 6, 1, dtype=torch.float64)
    before, old = model.score(x), list(model.parameters())
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    with torch.no_grad():
        for value in old:
            value += 1.0
    assert model.score(x) == before == pytest.approx(joint(model, x), rel=1e-12)


def test_many_parameter_sets_at_once_are_those_of_each():
    model, x = words(), torch.tensor([[1, 2, 3, 0], [4, 4, 1, 2]])
    stacked = {name: torch.stack([p, 2 * p]).detach() for name, p in model.named_parameters()}

    def together(own):
        with torch.nn.utils.stateless._reparametrize_module(model, own):
            return model.specs()[1].log_probs

    model.score(x)
    with torch.no_grad():
        found = torch.func.vmap(together)(stacked)
    for k in range(2):
        wanted = stacked["emissions.logits"][k].log_softmax(-1)
        torch.testing.assert_close(found[k], wanted)


def test_parameters_that_are_no_numbers_still_raise():
    model, x = words(), torch.tensor([[1, 2, 3]])
    model.score(x)
    model.transition_logits.data[0, 0] = torch.nan
    for _ in range(2):
        with pytest.raises(ValueError, match="matrix must hold log-probabilities"):
            model.score(x)


def test_rows_that_sum_to_nothing_are_checked_again():
    model = words()
    with pyro.validation_enabled(False):
        model.transition_logits.data[0] = torch.nan
        model.posterior(torch.tensor([[1, 2, 3]]))
    with pytest.raises(ValueError, match="matrix must hold log-probabilities"):
        model.score(torch.tensor([[1, 2, 3]]))


def test_gradients_and_draws_are_not_remembered():
    model = words()
    remembered = Remembered(plain_parameters(model)[0])
    calls = []
    compute = lambda: calls.append(1)  # noqa: E731
    for _ in range(2):
        remembered.get(model, compute)
    assert len(calls) == 2
    with torch.no_grad():
        for _ in range(2):
            remembered.get(model, compute)
    assert len(calls) == 3
    model.transition_logits = PyroSample(pyro.distributions.Normal(torch.zeros(3, 3), 1.0).to_event(2))
    with torch.no_grad():
        for _ in range(2):
            remembered.get(model, compute)
    assert len(calls) == 5


def test_what_is_in_training_is_again_afterwards():
    model, x = words(), torch.tensor([[1, -1, 3]])
    model.train()
    model.emissions.eval()
    model.smooth(x)
    assert model.training and not model.emissions.training
