"""The shortest way to an answer, of words as they come under tables that are remembered, says what the plain way says."""

import gc
import weakref

import pytest
import torch

from pplseq.infer.fit import closed_forms
from pplseq.infer.fit.em import Batch
from pplseq.kernels import compiled
from pplseq.kernels.chain import call, statistics
from pplseq.kernels.parallel.time_scan import parallel_in_time
from pplseq.models import HMM
from pplseq.models.hmm import rows as hmm_rows

SIZES = [(1, 1, 2), (2, 1, 10), (4, 3, 300), (17, 3, 9), (3, 2, 1)]


def model_and_words(num_states=3, rows=2, steps=9, **options):
    torch.manual_seed(0)
    model, x = HMM(num_states, 7, **options), torch.randint(7, (rows, steps))
    for parameter in model.parameters():  # no row of logits is normalised
        parameter.data += 0.3 * torch.randn_like(parameter)
    model.is_fitted = True
    model.score(x)  # from here on tables are remembered
    return model, x


class Own(HMM):
    pass


def test_what_is_out_of_the_ordinary_takes_another_way(monkeypatch):
    model, x = model_and_words()
    gap, beyond = x.clone(), x.clone()
    gap[1, 2], beyond[1, 2] = -1, 7
    for other in (gap, beyond, x.int(), x.tolist(), x.numpy(), x[0], x[:, :1], x[:0], x.unsqueeze(-1), x.double(), None):
        assert model._chain_by_loops(other) is None
    with pytest.raises(ValueError, match=r"x must hold ids 0..6, or -1 for a missing word; got 0..7"):
        model.score(beyond)
    for options in ({"dtype": "float32"}, {"ties": [0, 1, 1]}):
        assert model_and_words(**options)[0]._chain_by_loops(x) is None
    torch.manual_seed(0)
    own = Own(3, 7)
    own.is_fitted = True
    own.score(x)
    assert own._chain_by_loops(x) is None
    with parallel_in_time():
        assert model._chain_by_loops(x) is None
    with torch.inference_mode():
        assert model._chain_by_loops(x) is None
    with torch.autocast("cpu"):
        assert model._chain_by_loops(x) is None
    with torch.enable_grad():
        assert not model._chain_by_loops(x).log_prob().requires_grad  # as all questions
    monkeypatch.setattr(hmm_rows, "MOST_NUMBERS", x.numel() * 3 - 1)
    assert model._chain_by_loops(x) is None
    monkeypatch.undo()
    assert model._chain_by_loops(x) is not None and model._chain_by_loops(x.T.contiguous().T) is not None
    model.specs = lambda: None
    assert model._chain_by_loops(x) is None


CHANGES = {
    "a parametrization": lambda model: torch.nn.utils.parametrize.register_parametrization(
        model.emissions, "logits", torch.nn.Tanh()
    ),
    "another shape of the same memory": lambda model: setattr(model.transition_logits, "data", model.transition_logits.data.T),
    "another part": lambda model: setattr(model, "emissions", HMM(3, 7).emissions),
    "a part's parameter": lambda model: setattr(model.emissions, "logits", torch.nn.Parameter(torch.zeros(3, 7).double())),
    "a hook": lambda model: model.register_forward_hook(lambda *_: None),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_the_model_are_seen(change):
    model, x = model_and_words()
    assert model._chain_by_loops(x) is not None
    CHANGES[change](model)
    assert model._chain_by_loops(x) is None
    assert model.score(x) == pytest.approx(float(model.log_joint(x).detach()), rel=1e-12)


def test_parameters_lent_for_a_call_are_those_used():
    model, x = model_and_words()
    lent = {"transition_logits": torch.eye(3).double()}
    before = model.score(x)
    with torch.nn.utils.stateless._reparametrize_module(model, lent):
        assert model._chain_by_loops(x) is None
        inside = model.score(x)
    assert model.score(x) == before != inside


def test_what_is_remembered_keeps_no_model():
    model, x = model_and_words()
    gone = weakref.ref(model.transition_logits)
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


# ---------------------------------------------------------------------------------------------- counts and gradients
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(("num_states", "rows", "steps"), SIZES)
def test_one_call_finds_what_several_find(num_states, rows, steps, gradients):
    model, _ = model_and_words(num_states)
    x = torch.randint(7, (rows, steps))
    parameters = statistics.Words(model.initial_logits, model.transition_logits, model.emissions.logits)
    rows = call.Rows(x.numpy())
    found, value = statistics._from_words(parameters, rows, gradients)
    wanted, expected = statistics._in_steps(parameters, x, rows, gradients)
    assert value == pytest.approx(expected, rel=1e-13)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(torch.from_numpy(a), torch.from_numpy(b.copy()), rtol=1e-12, atol=1e-13)


def test_no_counts_of_what_is_no_word():
    model, x = model_and_words()
    other = x.clone()
    for number in (-2, 7):
        other[1, 3] = number
        assert model._expectation_by_loops(Batch(other)) is None
        assert model._expectation_by_loops(Batch(other, torch.tensor([9, 3]))) is not None  # behind a row's end
        with pytest.raises(ValueError, match="x must hold ids"):
            model.log_joint(other)
    for lengths in ([9], [9, 10], [9, -1]):
        with pytest.raises(ValueError, match="lengths must"):
            model.log_joint(x, torch.tensor(lengths))
    with pytest.raises(TypeError, match="lengths must hold integers"):
        model.log_joint(x, torch.tensor([9.0, 3.0]))


def test_gradients_scaled_and_many_at_once():
    model, x = model_and_words()
    logits = list(model.parameters())
    plain = torch.autograd.grad(model.log_joint(x), logits)
    scaled = torch.autograd.grad(-2.5 * model.log_joint(x), logits)
    value = model.log_joint(x)
    first = torch.autograd.grad(value, logits, retain_graph=True)
    for slope in first:
        slope.zero_()  # what is handed out is nobody else's
    again = torch.autograd.grad(value, logits, retain_graph=True)
    batch = torch.autograd.grad(value, logits, torch.tensor([1.0, 3.0]).double(), is_grads_batched=True)
    for k, slope in enumerate(plain):
        torch.testing.assert_close(scaled[k], -2.5 * slope)
        torch.testing.assert_close(again[k], slope)
        torch.testing.assert_close(batch[k], torch.stack([slope, 3 * slope]))


# ---------------------------------------------------------------------------------------------- the M-step
@pytest.mark.parametrize("shape", [(1,), (4,), (1, 1), (3, 5), (2, 3, 4)])
def test_modes_are_those_of_the_twin(shape):
    torch.manual_seed(0)
    counts, previous = torch.rand(shape).double() * 10.0 ** torch.randint(-200, 3, shape), torch.randn(shape).double()
    counts[..., 0] = 0.0
    if len(shape) > 1:
        counts[0] = 0.0  # nothing is known of these rows
        previous[0, ..., 0] = -torch.inf if shape[-1] > 1 else 0.0
    found = closed_forms.dirichlet_mode(counts, None, previous)
    assert statistics.small_modes(counts, previous) is not None
    with compiled.twins_only():
        assert statistics.small_modes(counts, previous) is None
        torch.testing.assert_close(found, closed_forms.dirichlet_mode(counts, None, previous), rtol=1e-14, atol=1e-14)


def test_modes_that_tensors_are_for():
    counts = torch.rand(2, 3).double()
    for other in (counts.float(), torch.rand(60, 60).double(), counts[:0]):
        assert statistics.small_modes(other, other) is None
    assert statistics.small_modes(counts, counts.clone().requires_grad_()) is None
    with torch.no_grad():
        assert statistics.small_modes(counts, counts.clone().requires_grad_()) is not None


def test_a_fit_moves_versions_and_leaves_no_training():
    model, x = model_and_words()
    before = model.transition_logits._version
    model.train()
    model.fit(x, warm_start=True, max_iterations=1)
    assert model.transition_logits._version > before and not model.training and not model.emissions.training


def test_counts_below_the_normal_numbers_have_shares():
    """Their sum's inverse is infinite: rows of such counts are as those of any others."""
    previous = torch.zeros(3, 3).double()
    counts = torch.tensor([[1e-320, 1e-320, 0.0], [0.0, 0.0, 0.0], [5e-324, 0.0, 0.0]]).double()
    with compiled.twins_only():
        expected = closed_forms.dirichlet_mode(counts, None, previous)
    torch.testing.assert_close(closed_forms.dirichlet_mode(counts, None, previous), expected)
    for concentration in (0.5, 0.9):  # less than nothing is not known
        with compiled.twins_only():
            expected = closed_forms.dirichlet_mode(counts[1:2], concentration, previous[:1])
        torch.testing.assert_close(closed_forms.dirichlet_mode(counts[1:2], concentration, previous[:1]), expected)
    torch.manual_seed(11)
    fitted = HMM(8, num_words=5).fit(torch.randint(5, (2, 2)), max_iterations=400, tolerance=0.0, seed=11)
    for name, parameter in fitted.named_parameters():  # logits may be -inf, nothing else is infinite
        assert not parameter.isnan().any() and not parameter.isposinf().any(), name


@pytest.mark.parametrize("shape", [(3, 0, 2), (0, 3, 2)])
def test_no_steps_or_rows_are_left_to_the_long_way(shape):
    model = HMM(3, num_features=2)
    assert not hmm_rows.are_rows(Batch(torch.zeros(shape).double()))
    with pytest.raises((ValueError, RuntimeError)):
        model.log_joint(torch.zeros(shape).double())


def test_what_is_changed_while_tables_are_computed_is_not_remembered():
    """As another thread might: the answer is of the old numbers, the next one of the new."""
    model, x = model_and_words()
    remembered, compute = model._remembered, model._point_specs
    with torch.no_grad():
        model.transition_logits.add_(torch.eye(3).double())

        def changed_meanwhile():
            found = compute()
            model.transition_logits.add_(torch.eye(3).double())
            return found

        remembered.get(model, changed_meanwhile)
    assert remembered.last() is None
    with compiled.twins_only():
        expected = float(model.posterior(x).log_prob().sum())
    assert model.score(x) == pytest.approx(expected, rel=1e-13)


def test_emissions_with_a_way_of_their_own():
    model, x = model_and_words()
    other = HMM(3, 7)
    other.is_fitted = True
    model.emissions.spec = other.emissions.spec
    with compiled.twins_only():
        expected = float(model.posterior(x, torch.full((len(x),), x.shape[1])).log_prob().sum())
    assert model._chain_by_loops(x) is None and model.score(x) == pytest.approx(expected, rel=1e-12)
