"""What the summary of an LDS tells: what coordinates of the states leave open, and standard errors of what they do not."""

import math
import warnings

import numpy as np
import pytest
import torch

from pplseq import LDS
from pplseq.models import ConstrainedLDS
from pplseq.models.lds.queries import coordinate_names, written_estimates


def system(seed=0, steps=25):
    """Two states that turn, seen three ways."""
    random = np.random.default_rng(seed)
    turn = 0.9 * np.array([[math.cos(0.7), -math.sin(0.7)], [math.sin(0.7), math.cos(0.7)]])
    emission = np.array([[1.0, 0.2], [-0.3, 1.0], [0.5, 0.5]])
    z, rows = random.normal(size=2), []
    for _ in range(steps):
        rows.append(emission @ z + 2 + 0.4 * random.normal(size=3))
        z = turn @ z + random.normal(size=2)
    return np.array(rows)


def test_errors_of_what_is_identified_are_those_of_the_model_with_fixed_coordinates():
    torch.manual_seed(0)
    x = system()
    options = dict(offsets="emission", initial="stationary")
    model = LDS(2, 3, **options).fit(x, max_iterations=40)
    model.fit(x, method="lbfgs", warm_start=True, num_steps=200, tolerance=1e-10)
    m = model.emission.detach()[:2]  # states M z are then what the first two columns see
    fixed = ConstrainedLDS(2, 3, {"emission": [[1, 0], [0, 1], [None, None]]}, **options)
    values = {"transition": m @ model.transition @ m.inverse(), "emission": model.emission @ m.inverse()}
    noise = m @ model.state_noise @ m.T
    values |= {"state_noise": (noise + noise.T) / 2, "emission_noise": model.emission_noise}
    fixed.set_parameters(emission_offset=model.emission_offset.detach(), **{k: v.detach() for k, v in values.items()})
    assert fixed.score(x) == pytest.approx(model.score(x), rel=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        free, known = model.summary(x), fixed.summary(x)
    errors = dict(zip(free.names, free.errors.tolist(), strict=True))
    truth = dict(zip(known.names, known.errors.tolist(), strict=True))
    same = [(f"emission_offset[{i}]", f"emission_offset [{i}]") for i in range(3)]
    same += [(f"emission_noise[{i}][{j}]", f"emission_noise [{j}, {i}]") for i in range(3) for j in range(i + 1)]
    for one, other in same:
        assert errors[one] == pytest.approx(truth[other], rel=2e-3), one
    assert 0.7 == pytest.approx(float(free.estimates[free.names.index("eigenvalue[0] angle")]), abs=0.2)
    assert 0 < errors["eigenvalue[0] modulus"] < 0.1
    hidden = {name for name in free.names if name.split("[")[0] in ("transition", "emission", "state_noise")}
    assert set(free.unidentified) == hidden == {name for name in errors if math.isnan(errors[name])} and len(hidden) == 13
    assert "emission[2][1]" in str(free) and str(free).count("not identified, see below") == 13
    assert str(free).endswith("emission=[[1], [None]] for example.") and "not identified" not in str(known)


def test_parameters_are_named_as_they_are_written():
    model = LDS(1, 2, num_inputs=1, state_noise="diagonal", emission_noise="diagonal")
    found = written_estimates(model)
    assert list(found) == [
        "transition", "transition_offset", "transition_inputs", "emission", "emission_offset", "emission_inputs",
        "initial_mean", "state_noise[0][0]", "emission_noise[0][0]", "emission_noise[1][1]", "initial_covariance[0][0]",
    ]  # fmt: skip
    assert "emission_offset" in coordinate_names(model) and "transition" not in coordinate_names(model)
    assert "emission_offset" not in coordinate_names(LDS(1, 2, offsets="emission"))
    assert not coordinate_names(LDS(2, 2, state_prior={"count": 1.0}))
    model.set_parameters(emission_noise=[0.3, 0.5], initial_covariance=[2.0])
    found = written_estimates(model)["emission_noise[1][1]"]
    assert float(found.detach()) == pytest.approx(0.5) and found.requires_grad


@pytest.mark.parametrize(("matrix", "expected"), [
    ([[0.5, 0.0], [0.0, -0.9]], {"eigenvalue[0]": -0.9, "eigenvalue[1]": 0.5}),
    ([[0.0, -0.5], [0.5, 0.0]], {"eigenvalue[0] modulus": 0.5, "eigenvalue[0] angle": math.pi / 2}),
    ([[1.0, 1.0], [0.0, 1.0]], {}),  # twice the same: they have no derivatives
    ([[0.0, 0.0], [0.0, 0.0]], {}),
])  # fmt: skip
def test_eigenvalues_of_the_transition(matrix, expected):
    model = LDS(2, 1).set_parameters(transition=matrix)
    found = {name: float(value.detach()) for name, value in written_estimates(model).items() if name.startswith("eigenvalue")}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("offsets", ["none", "both"])
def test_what_a_fit_kept_is_said_to_be_fixed_and_not_unidentified(offsets):
    rng = np.random.default_rng(0)
    x = [0.3 * rng.normal(size=(15, 1)).cumsum(0) + rng.normal(size=(15, 1))]
    kept = ["transition", "emission"]
    values = dict(transition=[[1.0, 1.0], [0.0, 0.8]], emission=[[1.0, 0.0]])
    model = LDS(2, 1, offsets=offsets).set_parameters(**values)
    told = model.fit(x, fixed=kept, max_iterations=5).summary
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fit that is not at its end
        summary, before = told(x), str(model.fit(x, warm_start=True, max_iterations=1).summary(x))
    lines = {line.split("  ")[0]: line for line in str(summary).splitlines()}
    names = [f"{name}[{i}][{j}]" for name, rows in (("transition", 2), ("emission", 1)) for i in range(rows) for j in range(2)]
    for name in [*names, "eigenvalue[0]", "eigenvalue[1]"]:
        assert "fixed in the fit" in next(line for key, line in lines.items() if key.startswith(name)), name
    free = {"transition_offset[0]", "transition_offset[1]", "emission_offset[0]", "initial_mean[0]", "initial_mean[1]"}
    assert set(summary.unidentified) == (free if offsets == "both" else set())  # a shift of the states, if there are offsets
    assert "fixed in the fit" not in before and "not identified" in before  # the next fit kept nothing


def test_errors_beside_fixed_parameters_are_those_where_they_are_known():
    rng = np.random.default_rng(1)
    x = [0.5 * rng.normal(size=(40, 1)).cumsum(0) + rng.normal(size=(40, 1))]
    model = LDS(1, 1, offsets="none", initial="diffuse").set_parameters(transition=[[1.0]], emission=[[1.0]])
    found = model.fit(x, fixed=["transition", "emission"], method="lbfgs").summary(x)
    patterns = dict(transition=[[1.0]], emission=[[1.0]])
    known = ConstrainedLDS(1, 1, patterns, offsets="none", initial="diffuse").fit(x, method="lbfgs").summary(x)
    for name in ("state_noise[0][0]", "emission_noise[0][0]"):
        error, (other,) = found.errors[found.names.index(name)], known.errors[[n.startswith(name[:8]) for n in known.names]]
        assert float(error) == pytest.approx(float(other), rel=1e-3)
    patterns = {"transition": [["a"]], "emission": [[1.0]]}
    named = ConstrainedLDS(1, 1, patterns, offsets="none").set_parameters(transition=[[0.9]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert named.fit(x, fixed="transition", max_iterations=3).summary(x).fixed == ("transition a",)
