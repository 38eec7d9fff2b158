"""Systems of which numbers are known or equal: patterns, the M-step beside a search, gradients, and statsmodels' numbers."""

import numpy as np
import pytest
import torch
from support.grids import grid

from pplseq import LDS, load
from pplseq.models import ConstrainedLDS
from pplseq.models.lds.constrained import constrained_step
from pplseq.models.lds.patterns import CovariancePattern, Pattern
from pplseq.models.lds.statistics import Regression, residual_scatter

F64 = torch.float64
close = torch.testing.assert_close
LENGTHS = torch.tensor([9, 1, 6, 8])


def spd(n):
    root = torch.randn(n, n, dtype=F64)
    return root @ root.T / n + 0.2 * torch.eye(n, dtype=F64)


def data(n=2, seed=0):
    torch.manual_seed(seed)
    x = torch.randn(4, 9, n, dtype=F64).cumsum(1)
    x[0, 2], x[2, 3, 0] = torch.nan, torch.nan
    return x


# ------------------------------------------------------------------------------------------------ patterns
def test_numbers_names_and_gaps():
    pattern = Pattern("transition", [["a", 1, None], [0.5, "a", float("nan")]], (2, 3))
    assert pattern.names == ["a", "[0, 2]", "[1, 2]"]
    filled = pattern.filled(torch.tensor([7.0, 8.0, 9.0]).double())
    assert filled.tolist() == [[7.0, 1.0, 8.0], [0.5, 7.0, 9.0]]
    assert Pattern("transition", pattern.as_config(), (2, 3)).filled(torch.tensor([7.0, 8.0, 9.0]).double()).equal(filled)
    close(pattern.average(torch.tensor([[1.0, 0, 3], [0, 2, 4]]).double()), torch.tensor([1.5, 3, 4]).double())
    with pytest.raises(ValueError, match=r"transition: by its pattern \[0, 1\] is known to be 1, got 2"):
        pattern.check(filled + torch.tensor([[0, 1.0, 0], [0, 0, 0]]))
    with pytest.raises(ValueError, match=r"\[0, 0\] equals others named 'a'"):
        pattern.check(filled + torch.tensor([[1.0, 0, 0], [0, 0, 0]]))


COVARIANCES = {
    "free": "free", "diagonal": "diagonal", "scalar": "scalar", "one variance for two": [["a", 0, 0], [0, "a", 0], [0, 0, "b"]],
    "a list": ["a", "a", None], "a block and a known variance": [[None, None, 0], [None, None, 0], [0, 0, 2.0]],
    "one variance and one covariance": [["v", "c", "c"], ["c", "v", "c"], ["c", "c", "v"]],
    "a state without noise": [["a", 0, 0], [0, 0, 0], [0, 0, "b"]],
    "known but for one": [[1.0, 0.5, 0], [0.5, 1.0, 0], [0, 0, "b"]],
}  # fmt: skip


@pytest.mark.parametrize("given", COVARIANCES.values(), ids=COVARIANCES)
def test_covariances_are_reached_and_their_most_likely_one_is_an_average(given):
    """Beside a search along the gradient: of all matrices of the pattern none is likelier than the one in closed form."""
    torch.manual_seed(0)
    pattern = CovariancePattern("state_noise", given, 3)
    raw = torch.randn(len(pattern.names), dtype=F64)
    value = pattern.matrix(raw)
    pattern.check(value)
    close(pattern.raw(value), raw)
    some, sample = pattern.moving, spd(3)
    found, floored = pattern.nearest(sample, 0.0, value)
    assert not floored and pattern.check(found) is found
    assert torch.equal(found[~some][:, ~some], pattern.known[~some][:, ~some])

    def likelihood(matrix):
        matrix = matrix[some][:, some]
        return -matrix.logdet() - torch.linalg.solve(matrix, sample[some][:, some]).trace()

    at = pattern.raw(found).requires_grad_()
    (slope,) = torch.autograd.grad(likelihood(pattern.matrix(at)), at)
    assert slope.abs().max() < 1e-10
    for _ in range(20):
        assert likelihood(pattern.matrix(at.detach() + 0.1 * torch.randn_like(at))) <= likelihood(found)
    low, floored = pattern.nearest(1e-6 * sample, 1e9, 0.5 * torch.eye(3, dtype=F64))  # the floor is lowered to what it was
    assert floored and float(torch.linalg.eigvalsh(low[some][:, some])[0]) == pytest.approx(0.5)
    pattern.check(low)


@pytest.mark.parametrize(
    "given, message",
    [
        ([["a", "b"], ["c", "a"]], "must be symmetric"),
        ([["a", "c", 0], ["c", "b", "c"], [0, "c", "a"]], "not closed under products"),
        ([[1.0, "c"], ["c", "v"]], "known numbers other than 0 in a block with free ones"),
        ([[0.0, "c"], ["c", "v"]], "not closed under products"),
        ([[-1.0, 0], [0, "v"]], "smallest eigenvalue is -1"),
        ([["a", 0]], r"must have shape \(2, 2\), got \(1, 2\)"), ([["a"], [0, 1]], "rows of one length"),
        ("tied", "must be one of free, diagonal, scalar"), ([[float("inf"), 0], [0, "v"]], "must be finite"),
    ],
)  # fmt: skip
def test_what_is_no_pattern_of_a_covariance(given, message):
    with pytest.raises(ValueError, match=f"state_noise.*{message}|{message}"):
        CovariancePattern("state_noise", given, len(given) if len(given) == 3 and not isinstance(given, str) else 2)


@pytest.mark.parametrize("singular", [False, True])
def test_the_step_of_weights_is_the_maximum_along_equal_entries(singular):
    torch.manual_seed(1)
    rows, target = torch.randn(30, 3, dtype=F64), torch.randn(30, 2, dtype=F64)
    weights, noise, ridge = torch.randn(2, 3, dtype=F64), spd(2), torch.tensor([0.5, 0.0, 2.0], dtype=F64)
    if singular:
        noise[1], noise[:, 1] = 0.0, 0.0
    error = target - rows @ weights.T
    part = Regression(torch.tensor(30.0), rows.T @ rows, error.T @ rows, error.T @ error)
    index = torch.tensor([[0, -1, 1], [2, 1, -1]])
    step = constrained_step(weights, noise, part, index, ridge)
    precision = torch.linalg.pinv(noise)

    def loss(free):
        moved = torch.where(index < 0, 0.0, free[index.clamp_min(0)])
        pulled = weights + moved
        return (precision * (residual_scatter(part, moved) + (pulled * ridge) @ pulled.T)).sum()

    free = torch.stack([step[0, 0], step[0, 2], step[1, 0]]).requires_grad_()
    close(torch.where(index < 0, 0.0, free.detach()[index.clamp_min(0)]), step)
    (slope,) = torch.autograd.grad(loss(free), free)
    assert slope.abs().max() < 1e-9 and (not singular or float(step[1, 0]) == 0.0)


# ------------------------------------------------------------------------------------------------ systems
PATTERNS = {
    "nothing": {},
    "ties and zeros": dict(
        transition=[["a", 0.2], [0, "a"]], emission=[[1, "b"], [0, 1]], state_noise="scalar", emission_noise="diagonal",
        emission_offset=["c", "c"], initial_mean=[0.0, None],
    ),
    "all but noises known": dict(
        transition=[[1, 1], [0, 0.9]], emission="identity", transition_offset="zero", emission_offset="zero",
        state_noise=[["v", "c"], ["c", "v"]], emission_noise=["r", 0.5], initial_mean="zero", initial_covariance="identity",
    ),
}  # fmt: skip


@pytest.mark.parametrize("patterns", PATTERNS.values(), ids=PATTERNS)
def test_likelihoods_and_gradients_are_those_of_the_system_without_patterns(patterns):
    model, x = ConstrainedLDS(2, 2, patterns), data()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    values = {name: getattr(model.values, name) for name in model.patterns}
    plain = LDS(2, 2).set_parameters(**values)
    assert model.score(x, LENGTHS) == pytest.approx(plain.score(x, LENGTHS), rel=1e-10)
    total, free = model.log_joint(x, LENGTHS), [parameter for parameter in model.parameters() if parameter.numel()]
    for parameter, slope in zip(free, torch.autograd.grad(total, free), strict=True):
        for k in range(parameter.numel()):
            sides = []
            for shift in (1e-5, -1e-5):
                with torch.no_grad():
                    parameter[k] += shift
                    sides.append(float(model.log_joint(x, LENGTHS)))
                    parameter[k] -= shift
            assert float(slope[k]) == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-5, abs=1e-5)
    again = ConstrainedLDS(2, 2, patterns).set_parameters(**values)
    close(again.log_joint(x, LENGTHS), total)


@grid({
    "options": [{}, dict(state_prior=dict(count=3.0, strength=2.0), emission_prior=dict(strength=1.0))],
    "patterns": PATTERNS.values(),
})
def test_em_never_falls_and_keeps_patterns(patterns, options):
    x = data(seed=1)
    model = ConstrainedLDS(2, 2, patterns, **options)
    model.fit(x, LENGTHS, max_iterations=10, tolerance=0.0, acceleration=0)
    assert (np.diff(model.history.log_posteriors) > -1e-8).all()
    for name, pattern in model.patterns.items():
        value = getattr(model.values, name)
        pattern.check(torch.diag(value) if name == "emission_noise" and value.dim() == 1 else value)


def test_em_ends_where_gradients_end_and_what_is_fixed_stays():
    patterns = {name: PATTERNS["ties and zeros"][name] for name in ("transition", "emission", "state_noise", "emission_noise")}
    patterns |= dict(initial_mean="zero", initial_covariance="identity")
    true = dict(transition=[[0.7, 0.2], [0, 0.7]], emission=[[1, -0.6], [0, 1]], state_noise=[0.5, 0.5])
    true |= dict(emission_noise=[0.3, 0.1])
    x = ConstrainedLDS(2, 2, patterns, offsets="none").set_parameters(**true).sample(80, 2, seed=0).x
    models = [ConstrainedLDS(2, 2, patterns, offsets="none").set_parameters(**true) for _ in range(2)]
    for model, how in zip(models, (dict(method="em", max_iterations=60, tolerance=1e-9), dict(method="lbfgs")), strict=True):
        model.fit(x, **how)
    first, second = ({name: float(value.detach()) for name, value in model.estimates().items()} for model in models)
    assert first == pytest.approx(second, rel=2e-3) and list(first)[:2] == ["transition a", "emission b"]
    assert models[0].score(x) == pytest.approx(models[1].score(x), abs=1e-4)
    before = models[0].emission.detach().clone()
    models[0].fit(x[:, :30], fixed="emission", max_iterations=3)
    assert torch.equal(models[0].emission, before) and first["transition a"] != float(models[0].transition[0, 0].detach())


def test_two_levels_with_one_variance_are_statsmodels_numbers():
    """MLEModel with an identity for design and transition, state_cov = q I, obs_cov = diag(r), diffuse; statsmodels 0.14."""
    random = np.random.default_rng(0)
    level = np.cumsum(0.5 * random.normal(size=(120, 2)), 0)
    x = level + random.normal(size=(120, 2)) * [1.0, 0.6]
    x[5], x[10, 1] = np.nan, np.nan
    patterns = dict(transition="identity", emission="identity", state_noise="scalar", emission_noise="diagonal")
    for method in ("em", "lbfgs"):
        model = ConstrainedLDS(2, 2, patterns, offsets="none", initial="diffuse")
        model.fit(x, method=method, **(dict(max_iterations=100, tolerance=1e-9) if method == "em" else {}))
        assert model.score(x) == pytest.approx(-366.5285259065, abs=1e-6)
        found = model.summary(x)
        assert found.estimates.tolist() == pytest.approx([0.27444652, 1.03447553, 0.45636809], rel=1e-4)
        assert model.num_free_parameters == 3 and found.names[0] == "state_noise scalar"


def test_a_known_regression_and_inputs_enter():
    torch.manual_seed(0)
    inputs = torch.randn(3, 40, 2, dtype=F64)
    x = (inputs @ torch.tensor([2.0, 2.0]).double()).unsqueeze(-1) + 0.1 * torch.randn(3, 40, 1).double()
    patterns = dict(emission_inputs=[["b", "b"]], transition="scalar", state_noise=[[0.01]], emission=[[1]])
    model = ConstrainedLDS(1, 1, patterns, num_inputs=2, inputs_to="emission", offsets="none").fit(x, inputs=inputs)
    assert model.emission_inputs.detach().flatten().tolist() == pytest.approx([2.0, 2.0], abs=0.05)
    assert float(model.state_noise.detach()) == pytest.approx(0.01)
    ahead = model.forecast(x, 2, inputs=inputs, future_inputs=torch.ones(2, 2))
    assert ahead.means.shape == (3, 2, 1) and ahead.intervals()[0].shape == (3, 2, 1)


def test_folders_copies_and_what_does_not_fit(tmp_path):
    patterns = PATTERNS["ties and zeros"]
    model, x = ConstrainedLDS(2, 2, patterns).fit(data(), LENGTHS, max_iterations=2), data()
    again = load(model.save(tmp_path / "model"))
    assert again.config == model.config and again.score(x, LENGTHS) == model.score(x, LENGTHS)
    tensor = ConstrainedLDS(2, 2, {"transition": torch.tensor([[1.0, torch.nan], [0.0, 1.0]])})
    assert tensor.config["patterns"] == {"transition": [[1.0, "[0, 1]"], [0.0, 1.0]]}
    with pytest.raises(ValueError, match="emission: by its pattern"):
        model.set_parameters(emission=torch.zeros(2, 2))
    with pytest.raises(ValueError, match="emission_noise must be positive definite where it is free"):
        model.set_parameters(emission_noise=[1.0, 0.0])
    with pytest.raises(ValueError, match="patterns: this model has no 'transitions'"):
        ConstrainedLDS(2, 2, {"transitions": "identity"})
    with pytest.raises(ValueError, match="method: with initial='stationary'"):
        ConstrainedLDS(2, 2, {"transition": "scalar"}, initial="stationary").fit(x, LENGTHS)
    slow = ConstrainedLDS(2, 2, {"transition": "scalar"}, initial="stationary").fit(x, LENGTHS, method="sgd", num_steps=2)
    assert slow.transition[0, 1] == 0
    with pytest.raises(ValueError, match="every number is known"):
        known = dict(transition="identity", emission="identity", state_noise="identity", emission_noise="identity")
        ConstrainedLDS(2, 2, known, offsets="none", initial="diffuse").fit(x)


def test_a_number_of_rows_with_noise_and_without():
    patterns = {"transition": [["a", 0], [0, "a"]], "state_noise": [["s", 0], [0, 0]], "emission": "identity"}
    model = ConstrainedLDS(2, 2, patterns)
    x = torch.randn(1, 8, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="transition has a number in a row with noise and in one without"):
        model.fit(x, method="em")
    model.fit(x, method="lbfgs", num_steps=2)
