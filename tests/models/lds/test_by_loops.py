"""What compiled loops answer at once: the values, gradients and statistics of EM that the way over a chain gives."""

import copy
import warnings

import pytest
import torch
from support.grids import grid

from pplseq.infer.fit.em import Batch
from pplseq.kernels import compiled
from pplseq.kernels.gaussian import systems
from pplseq.models import LDS
from pplseq.models.estimator import Estimator
from pplseq.models.lds import array_em, by_loops
from pplseq.models.lds.fit import chain_of, e_step

pytestmark = pytest.mark.skipif(not compiled.available(), reason="no numba here")
CASES = {  # h, n, rows, steps, options
    "one number": (1, 1, 1, 1, {}),
    "one state": (1, 1, 1, 10, {}),
    "one step": (3, 2, 4, 1, {}),
    "diagonal, more numbers than states": (3, 5, 7, 30, {"state_noise": "diagonal", "emission_noise": "diagonal"}),
    "more rows than lanes": (2, 1, 130, 17, {"offsets": "none"}),
    "two steps": (5, 3, 2, 2, {}),
    "long": (4, 2, 3, 400, {}),
    "tiles": (10, 3, 11, 30, {}),
    "tiles, more numbers than states": (9, 13, 70, 12, {"offsets": "none", "emission_noise": "diagonal"}),
    "single": (3, 2, 4, 20, {"dtype": "float32"}),
}


def system(h, n, rows, steps, options):
    torch.manual_seed(h + n)
    model = LDS(h, n, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model, (3 + torch.randn(rows, steps, n)).to(model.reference)


GAPS = ("none", "vectors", "numbers", "first and last", "a row", "single precision")
LENGTHS = {"one": lambda rows, steps: None, "all": lambda rows, steps: torch.full((rows,), steps),
           "two": lambda rows, steps: torch.arange(rows) % 2 * (steps // 2) + (steps + 1) // 2,
           "many": lambda rows, steps: 1 + 7 * torch.arange(rows) % steps}  # fmt: skip


def with_gaps(x, which, lengths=None):
    """The same with NaN; behind ends of rows, too."""
    generator, x = torch.Generator().manual_seed(1), x.clone()
    share = torch.rand(x.shape, generator=generator)
    if which in ("vectors", "first and last", "single precision"):
        x[share[..., 0] < 0.2] = torch.nan
    if which == "numbers":
        x[share < 0.2] = torch.nan
    if which == "first and last":
        x[:, 0], x[::2, -1] = torch.nan, torch.nan
    if which == "a row":
        x[-1] = torch.nan
    if lengths is not None:
        x[torch.arange(x.shape[1]) >= lengths[:, None]] = torch.nan
    if bool(x.isnan().all()):
        x[0, 0] = 1.0
    return x.float() if which == "single precision" else x


def value_and_gradients(log_joint, model):
    model.zero_grad()
    value = log_joint(share=0.5)
    (3 * value).backward()
    return {"value": value.detach()} | {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def compare(found, expected, close):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape and found[name].dtype == value.dtype
        torch.testing.assert_close(found[name], value, rtol=0, atol=close * (1e-2 + float(value.detach().abs().max())))


def check(model, x, close=1e-10, lengths=None):
    own = value_and_gradients(lambda **options: model.log_joint(x, lengths, **options), model)
    compare(own, value_and_gradients(lambda **options: Estimator.log_joint(model, x, lengths, **options), model), close)
    with torch.no_grad():
        values, batch = model.values, Batch(x, lengths)
        found, log_prob = model._expectation_by_loops(batch)
        chain = chain_of(values, batch)
        assert log_prob == pytest.approx(float(chain.log_prob().sum(dtype=torch.float64)), rel=close)
        compare(found, e_step(values, chain, batch), close)


@pytest.mark.parametrize("case", CASES)
def test_values_gradients_and_statistics(case):
    check(*system(*CASES[case]), close=1e-4 if case == "single" else 1e-10)


SIZES = [
    (1, 1, 3, 9, {}), (3, 5, 7, 12, {}), (4, 2, 70, 8, {"offsets": "none", "emission_noise": "diagonal"}),
    (2, 3, 1, 30, {"state_noise": "diagonal"}), (17, 2, 5, 6, {}),
]  # fmt: skip


@grid({"gaps": GAPS, "ends": LENGTHS, "size": SIZES}, times=2)
def test_gaps_and_ends(gaps, ends, size, monkeypatch):
    model, x = system(*size[:4], size[4] | ({"dtype": "float32"} if gaps == "single precision" else {}))
    lengths = LENGTHS[ends](*size[2:4])
    x = with_gaps(x, gaps, lengths)
    check(model, x, 1e-4 if gaps == "single precision" else 1e-9, lengths)
    if gaps == "single precision":
        return
    chain = model.posterior(x, lengths)
    with monkeypatch.context() as patch:
        patch.setattr(Estimator, "_posterior", None)  # nothing but loops
        scores = [model.score(x, lengths, per_token=by_token) for by_token in (False, True)]
        means = model.transform(x, lengths)
    expected, tokens = float(chain.log_prob().sum()), x.shape[0] * x.shape[1] if lengths is None else int(lengths.sum())
    assert scores == pytest.approx([expected, expected / tokens], rel=1e-11)
    torch.testing.assert_close(means, chain.smoothed_states().means, rtol=1e-9, atol=1e-9)


def test_more_covariances_than_there_is_room_for_at_first():
    model, x = system(2, 1, 2, 700, {"offsets": "none"})  # a slow random walk, seen badly
    model.set_parameters(transition=torch.eye(2), state_noise=1e-6 * torch.eye(2), emission_noise=[[1e3]])
    check(model, x, close=1e-9)


def test_precise_observations_of_many_states():
    model, x = system(9, 3, 4, 10, {})
    model.set_parameters(emission_noise=1e-9 * torch.eye(3))
    check(model, x, close=1e-6)
    model, x = system(2, 12, 4, 10, {})
    model.set_parameters(emission_noise=1e-5 * torch.eye(12))
    assert model._expectation_by_loops(Batch(x)) is not None
    model.set_parameters(emission_noise=1e-8 * torch.eye(12))  # whose digits the chain keeps, of fewer numbers
    assert model._expectation_by_loops(Batch(x)) is None and model._expectation_by_loops(Batch(with_gaps(x, "numbers"))) is None
    assert model.log_joint(x) == Estimator.log_joint(model, x)


def test_large_states_go_by_loops_where_threads_are_few():
    threads = torch.get_num_threads()
    try:
        for number, largest in {1: 256, 2: 256, 3: 64}.items():
            torch.set_num_threads(number)
            assert systems.applies((1, 10, 2), largest, True) and not systems.applies((1, 10, 2), largest + 1, True)
    finally:
        torch.set_num_threads(threads)


def test_precise_observations_and_states_known_exactly():
    model, x = system(4, 2, 2, 12, {})
    model.set_parameters(emission_noise=1e-9 * torch.eye(2))
    check(model, x, close=1e-6)
    model.set_parameters(emission_noise=torch.eye(2), state_noise=torch.zeros(4, 4), initial_covariance=torch.zeros(4, 4))
    with torch.no_grad():
        assert model.log_joint(x) == pytest.approx(float(Estimator.log_joint(model, x)), rel=1e-12)


def test_a_prior_counts():
    model, x = system(2, 2, 3, 8, {"state_prior": {"count": 3.0}, "emission_prior": {"strength": 2.0}})
    check(model, x)


def test_second_derivatives():
    model, x = system(2, 1, 2, 6, {})

    def penalty(log_joint):
        gradients = torch.autograd.grad(log_joint(x), model.parameters(), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in gradients), model.parameters())

    expected = penalty(lambda x: Estimator.log_joint(model, x))
    for found, value in zip(penalty(model.log_joint), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("create_graph", [False, True])
def test_what_changes_before_the_gradient_is_noticed(create_graph):
    model, x = system(2, 1, 3, 9, {})
    value = model.log_joint(x)
    with torch.no_grad():
        model.transition.mul_(0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(value, list(model.parameters()), create_graph=create_graph, allow_unused=True)


def test_rows_in_several_threads(monkeypatch):
    model, x = system(2, 1, 12, 9, {})
    monkeypatch.setattr(compiled, "num_parts", lambda num_rows, work: 5)
    check(model, x)
    check(model, with_gaps(x, "numbers"), lengths=LENGTHS["many"](12, 9))


def test_data_in_any_form(monkeypatch):
    model, x = system(2, 1, 3, 9, {})
    x, lengths = with_gaps(x, "vectors"), torch.tensor([9, 4, 6])
    rows = [row[:end].numpy() for row, end in zip(x, lengths, strict=True)]
    model.is_fitted, chain = True, model.posterior(x, lengths)
    expected, means = float(chain.log_prob().sum()), chain.smoothed_states().means

    def ask():
        assert model.score(rows) == pytest.approx(expected, rel=1e-10)
        assert model.score(x.numpy(), lengths, per_token=True) == pytest.approx(expected / 19, rel=1e-10)
        for found, row, end in zip(model.transform(rows), means, lengths, strict=True):
            torch.testing.assert_close(found, row[:end])
        torch.testing.assert_close(model.transform(x.numpy(), lengths), means)

    with monkeypatch.context() as patch:
        patch.setattr(Estimator, "_posterior", None)  # nothing but loops
        ask()
    with compiled.twins_only():
        ask()


@pytest.mark.parametrize("form", [lambda x: x, lambda x: x.numpy(), list])
def test_what_says_nothing_has_no_score(form):
    model, x = system(2, 1, 2, 5, {})
    with pytest.raises(ValueError, match="every observation is missing"):
        model.score(form(torch.full_like(x, torch.nan)))


class Own(LDS):
    """A system of a user."""


OTHERS = {
    "no ends": (LDS, {}, lambda model, x: model.log_joint(x, torch.tensor([5, 2, 0]))),
    "subclass": (Own, {}, lambda model, x: model.log_joint(x)),
    "stationary": (LDS, {"initial": "stationary"}, lambda model, x: model.log_joint(x)),
    "in observations": (LDS, {}, lambda model, x: model.log_joint(x.requires_grad_())),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_other_data_and_systems_take_the_long_way(kind, monkeypatch):
    family, options, ask = OTHERS[kind]
    found = []
    monkeypatch.setattr(by_loops._LogProb, "apply", lambda *args: found.append(args))
    ask(family(2, 2, **options), torch.randn(3, 5, 2, dtype=torch.float64)).backward()
    assert not found


def test_what_is_not_finite_is_named_as_ever():
    model = LDS(2, 2)
    with pytest.raises(ValueError, match="infinite"):
        model.log_joint(torch.full((1, 3, 2), torch.inf, dtype=torch.float64))
    model.transition.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        model.log_joint(torch.zeros(1, 3, 2, dtype=torch.float64))


def test_rows_without_room_take_the_long_way(monkeypatch):
    monkeypatch.setattr(systems, "MOST_CELLS", 20)
    model, x = system(2, 2, 3, 9, {})
    assert model._expectation_by_loops(Batch(x)) is None


@pytest.mark.parametrize("case", CASES)
def test_scores_and_smoothed_means_are_those_of_the_chain(case):
    model, x = system(*CASES[case])
    close = 1e-5 if case == "single" else 1e-11
    for numbers in (x, x.flip(1), x):  # covariances that are kept serve other numbers
        chain = model.posterior(numbers)
        expected, (rows, steps) = float(chain.log_prob().sum(dtype=torch.float64)), x.shape[:2]
        assert model.score(numbers) == pytest.approx(expected, rel=close)
        assert model.score(numbers, per_token=True) == pytest.approx(expected / (rows * steps), rel=close)
        means = chain.smoothed_states().means
        torch.testing.assert_close(model.transform(numbers), means, rtol=close, atol=close * float(means.abs().max()))


def test_covariances_are_kept_and_what_changes_is_noticed():
    model, x = system(3, 2, 4, 9, {})

    def expected():
        return float(model.posterior(x).log_prob().sum())

    assert model.score(x) == pytest.approx(expected(), rel=1e-12)
    kept = vars(model)["_last_system"].system
    assert model.transform(x).shape == (4, 9, 3) and vars(model)["_last_system"].system is kept
    for name, parameter in model.named_parameters():
        before = model.score(x)
        parameter.data.mul_(1.01)
        assert model.score(x) == pytest.approx(expected(), rel=1e-12), name
        assert before != model.score(x)
        assert vars(model)["_last_system"].system is not kept
    for name in ("transition", "emission", "initial_scale"):  # other memory, other strides, the same memory for less
        parameter = getattr(model, name)
        parameter.data = 1.01 * parameter.data
        assert model.score(x) == pytest.approx(expected(), rel=1e-12), name
        parameter.data = parameter.data.T.contiguous().T
        assert model.score(x) == pytest.approx(expected(), rel=1e-12), name
        parameter.data.mul_(0.99)
        assert model.score(x) == pytest.approx(expected(), rel=1e-12), name
    assert model.score(x[:, :5]) == pytest.approx(float(model.posterior(x[:, :5]).log_prob().sum()), rel=1e-12)
    assert vars(copy.deepcopy(model))["_last_system"].system is None


def test_many_covariances_are_not_kept(monkeypatch):
    monkeypatch.setattr(systems, "MOST_KEPT", 10)
    model, x = system(3, 2, 4, 9, {})
    assert model.score(x) == pytest.approx(float(model.posterior(x).log_prob().sum()), rel=1e-12)
    assert vars(model)["_last_system"].system is None


KINDS = {
    "plain": {}, "no offsets": {"offsets": "none"}, "diagonal": {"state_noise": "diagonal", "emission_noise": "diagonal"},
    "priors": {"state_prior": {"count": 3.0}, "emission_prior": {"strength": 2.0}}, "floor": {"noise_floor": 0.3},
}  # fmt: skip


@grid({"kind": KINDS, "held": [(), ("transition", "emission_noise"), ("initial_mean", "emission_offset")]})
def test_em_on_arrays_is_em_on_tensors(kind, held, monkeypatch):
    def fitted(h, n):
        torch.manual_seed(0)
        model, x = LDS(h, n, **KINDS[kind]), torch.randn(4, 30, n, dtype=torch.float64).cumsum(1)
        model.set_parameters(transition=1.01 * model.transition, emission=1.01 * model.emission)
        with torch.no_grad():
            model.initial_scale.neg_()  # another factor of the same covariance
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a floor that is met
            own = [name for name in held if kind != "no offsets" or "offset" not in name]
            return model.fit(x, warm_start=True, max_iterations=6, tolerance=0.0, fixed=own), x

    for size in ((1, 1), (3, 2), (2, 4)):
        found, x = fitted(*size)
        with monkeypatch.context() as patch:
            patch.setattr(LDS, "_has_array_em", False)
            expected, _ = fitted(*size)
            units = expected._em_coordinates()
        assert found.history.notes == expected.history.notes
        assert found.history.log_likelihoods == pytest.approx(expected.history.log_likelihoods, rel=1e-9)
        for name, value in expected.state_dict().items():
            torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-7, atol=1e-7, msg=lambda text, n=name: n + text)
        for one, other in zip(expected._em_coordinates(), units, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_coordinates_of_singular_covariances_take_the_long_way():
    model, _ = system(3, 2, 1, 2, {})
    model.set_parameters(state_noise=torch.diag(torch.tensor([1.0, 0.0, 2.0])))
    assert array_em.coordinates(model._parameters, model._free) is None
    assert all(bool(part.isfinite().all()) for part in model._em_coordinates())


def test_what_is_asked_for_is_what_the_loops_take_it_for():
    """Numbers that stand on both sides: the callers import no numba."""
    from pplseq.kernels.gaussian import mean_loops, system_loops

    for name in ("OFFSET", "FULL_NOISE", "SHIFT", "FULL_COVARIANCE"):
        assert getattr(systems, name) == getattr(system_loops, name), name
    for name in ("SUMS", "MOMENTS"):
        assert getattr(systems, name) == getattr(mean_loops, name), name
