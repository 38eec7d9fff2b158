"""The symbol that stands for all steps but the first."""

import gc
import math
import sys

import pyro
import pytest
import torch
from pyro import poutine
from support.grids import grid
from support.oracles.discrete import generic_log_prob
from support.tiny_programs import F64, Tables, program, traced_log_prob, words

from pplseq.distributions.timed import Timed
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.loop_body import first_value
from pplseq.infer.programs.markov import TimeIndex, markov
from pplseq.models import HMM

close = torch.testing.assert_close
T = TimeIndex(1, 4)


def same(timed, steps):
    return isinstance(timed, Timed) and torch.equal(timed.steps, steps) and timed.shape == steps.shape[1:]


def test_indexing():
    x, y = torch.arange(20).view(2, 10), torch.arange(60).view(2, 3, 10)
    assert same(x[:, T], x[:, 1:4].T)
    assert same(x.T[T], x[:, 1:4].T)
    assert same(x[..., T], x[:, 1:4].T)
    assert same(y[:, :, T], y[:, :, 1:4].movedim(-1, 0))
    assert same(y[..., T], y[:, :, 1:4].movedim(-1, 0))
    assert same(y.movedim(-1, 1)[:, T], y[:, :, 1:4].movedim(-1, 0))
    assert same(y.movedim(-1, 1)[:, T, :], y[:, :, 1:4].movedim(-1, 0))
    assert same(x[:, T - 1], x[:, 0:3].T)
    assert same(x[:, T + 1], x[:, 2:5].T)
    assert same(x[:, 1 + T], x[:, 2:5].T)


def test_other_slices_count():
    y = torch.arange(60).view(2, 10, 3)
    assert same(y[:, T, 1:], y[:, 1:4, 1:].movedim(1, 0))
    assert same(y[:1, T], y[:1, 1:4].movedim(1, 0))
    assert same(y.movedim(1, -1)[:, :2, T], y[:, 1:4, :2].movedim(1, 0))


def test_integers_and_row_numbers_count():
    y, rows = torch.arange(60).view(2, 10, 3), torch.tensor([1, 0, 1])
    assert same(y[:, T, 2], y[:, 1:4, 2].T)
    assert same(y[1, T], y[1, 1:4])
    assert same(y[1, T, -1], y[1, 1:4, -1])
    assert same(y[rows, T], y[rows, 1:4].movedim(1, 0))
    assert same(y[..., T, 0], y[:, 1:4, 0].T)


def test_comparisons():
    lengths, steps = torch.tensor([1, 2, 5]), torch.tensor([[1], [2], [3]])
    assert same(T < lengths, steps < lengths)
    assert same(lengths > T, steps < lengths)
    assert same(T >= lengths, steps >= lengths)
    assert same(lengths <= T, steps >= lengths)
    assert same(T == lengths, steps == lengths)
    assert same(lengths != T, steps != lengths)
    assert same(T < torch.tensor(2), torch.tensor([True, False, False]))
    grid = lengths.view(3, 1)
    assert same(T < grid, steps.unsqueeze(-1) < grid)


def test_names_and_length():
    assert f"z_{T}" == "z_1:4" and "z_" + str(T) == "z_1:4" and len(T) == 3 and "TimeIndex(1, 4)" == repr(T)


MISUSES = {
    "if t == 2": lambda t: 1 if t == 2 else 0,
    "if t % 2": lambda t: 1 if t % 2 else 0,
    "bool with 0": lambda t: bool(t - 1),
    "t + text": lambda t: t + "1",
    "a format": lambda t: f"{t:02d}",
    "int": lambda t: int(t),
    "float": lambda t: float(t),
    "a list": lambda t: [1, 2, 3][t],
    "range": lambda t: range(t),
    "x[t, None]": lambda t: torch.zeros(5, 5)[t, None],
    "x[t, mask]": lambda t: torch.zeros(5, 5)[t, torch.tensor([True, False, True, True, False])],
    "x[t, tensor, tensor]": lambda t: torch.zeros(5, 5, 5)[t, torch.tensor([0, 1]), torch.tensor([0, 1])],
    "x[t, t]": lambda t: torch.zeros(5, 5)[t, t],
    "sin": lambda t: math.sin(t),
    "torch.sin": lambda t: torch.sin(t),
    "x[t] = 0": lambda t: torch.zeros(5).__setitem__(t, 0.0),
}


@pytest.mark.parametrize("use", MISUSES)
def test_misuse_raises(use):
    with pytest.raises(TypeError):
        MISUSES[use](T)


NUMBERS = {
    "scaled": lambda t: 0.1 * t, "and back": lambda t: t / 3, "shifted": lambda t: t + 0.5, "less": lambda t: 1.5 - t,
    "from the end": lambda t: 4 - t, "parity": lambda t: t % 2, "half": lambda t: t // 2, "power": lambda t: 0.5**t,
    "square": lambda t: t**2, "minus": lambda t: -t, "two": lambda t: (t + 1) * t, "difference": lambda t: t - (t - 1),
    "first": lambda t: t == 0, "later": lambda t: t > 0, "late": lambda t: t >= 2, "odd": lambda t: t % 2 == 1,
    "an if": lambda t: 1.0 if t > 0 else 2.0, "true": lambda t: 3 if t else 4, "tail": lambda t: 2.0 - (t - 4) ** 2 / 7,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_the_step(name):
    """Alone, as an index, and beside tensors, whose type they take as Python's numbers do."""
    of, table = NUMBERS[name], torch.arange(10.0).reshape(5, 2)
    uses = [lambda n: n, lambda n: torch.ones(2) * n, lambda n: n + torch.ones(1, 2, dtype=torch.float64)]
    if isinstance(of(1), int) and name != "difference":
        uses += [lambda n: table[n % 5], lambda n: table.T[:, n % 5], lambda n: table[..., n % 5, 1]]
        uses += [lambda n: n * torch.ones(2).int()]
    for use in uses:
        found = use(of(T))
        expected = [torch.as_tensor(use(of(t))) for t in (1, 2, 3)]
        steps = found.steps if isinstance(found, Timed) else torch.as_tensor(found).expand(3, *expected[0].shape)
        if use is not uses[0]:
            assert steps.dtype == expected[0].dtype
        for k in range(3):
            torch.testing.assert_close(steps[k], expected[k], rtol=1e-7, atol=1e-7, check_dtype=False)


@pytest.mark.parametrize("index", [TimeIndex(1, 6), TimeIndex(-1, 2)])
def test_out_of_range(index):
    with pytest.raises(IndexError, match="out of range"):
        torch.zeros(2, 5)[:, index]


def test_markov_outside_is_pyros():
    assert list(markov(range(4))) == [0, 1, 2, 3]
    x, specs = words(), Tables().specs()
    trace = poutine.trace(poutine.condition(program, {f"z_{t}": torch.tensor(0) for t in range(4)})).get_trace(x, specs)
    assert [name for name in trace.nodes if name.startswith("z_")] == ["z_0", "z_1", "z_2", "z_3"]
    assert torch.isfinite(generic_log_prob(program, x, specs))


@pytest.mark.parametrize(
    "steps, expected",
    [
        (range(4), ["0", "1:4"]),
        (range(2), ["0", "1:2"]),
        (range(1), ["0"]),
        (range(0), []),
        (range(3, 6), ["3", "4:6"]),
        (range(0, 4, 2), ["0", "2"]),
        ([0, 1, 2], ["0", "1", "2"]),
    ],
)
def test_when_it_is_vectorised(steps, expected):
    with BlockedEnum():
        assert [f"{t}," for t in markov(steps)] == [f"{t}," for t in expected]
        assert [str(t) for t in markov(steps, vectorize=False)] == [str(t) for t in steps]
        assert [str(t) for t in markov(steps, history=2)] == [str(t) for t in steps]
    with BlockedEnum(vectorize=False):
        assert [f"{t}" for t in markov(steps)] == [str(t) for t in steps]


def test_leaving_the_loop_early_leaves_no_trace():
    handler = BlockedEnum()
    with handler:
        for t in markov(range(5)):
            if isinstance(t, TimeIndex):
                break
        del t
        assert handler.time_index is None
    with pytest.raises(RuntimeError), handler:
        for t in markov(range(5)):
            if isinstance(t, TimeIndex):
                raise RuntimeError
    with handler:
        assert handler.time_index is None


# ------------------------------------------------------------------------------------------------ what all rows share
@grid({"nesting": [1, 2], "steps": [4, 5]})
def test_values_that_all_rows_share(steps, nesting):
    tables, x = Tables(), words(3, steps)
    transition, emission = tables.step_specs()
    u, length = torch.randn(steps, 2, dtype=F64), torch.tensor(3)
    rows = x if nesting == 1 else x.expand(2, *x.shape)

    def inputs(own):
        z = None
        with pyro.plate("outer", 2, dim=-2) if nesting == 2 else poutine.scale(scale=1.0):
            with pyro.plate("sequences", 3, dim=-1):
                for t in markov(range(steps)):
                    with poutine.mask(mask=True), poutine.mask(mask=t < length):
                        z = pyro.sample(f"z_{t}", transition(z, inputs=u[t]))
                        pyro.sample(f"x_{t}", emission(z), obs=rows[..., t] if own else x[0][t])

    for own in (True, False):
        expected = generic_log_prob(inputs, own, max_plate_nesting=nesting)
        for vectorize in (True, False):
            close(traced_log_prob(inputs, own, vectorize=vectorize)[0], expected)


# ------------------------------------------------------------------------------------------------ work a step
def calls_of_a_gradient(model, x) -> int:
    """Functions entered, of Python and of C, by the likelihood and its gradient; what differs with the length of x grows
    with it.
    """
    counts = {"call": 0, "c_call": 0}

    def count(_, event, __):
        if event in counts:
            counts[event] += 1

    gc.disable()  # finalizers of what other tests left would be counted
    sys.setprofile(count)
    try:
        model.log_joint(x).sum().backward()
    finally:
        sys.setprofile(None)
        gc.enable()
    return sum(counts.values())


def test_a_vectorised_loop_does_no_python_work_a_step():
    model = HMM(3, 5)
    x = torch.arange(4000).remainder(5).unsqueeze(0)
    for size in (40, 4000):  # what is compiled or kept at the first call
        calls_of_a_gradient(model, x[:, :size])
    short, long = (calls_of_a_gradient(model, x[:, :size]) for size in (40, 4000))
    assert long - short < 200, f"{short} calls for 40 steps, {long} for 4000"


NAMES = ["z_3", "z_03", "z_7", "z_5", "z_12", "z_-1", "z_3_3", "z_3_4", "y_4", "zz_4", "z_4_", "z+_4", "z_", "z_x", "é4 4"]


@pytest.mark.parametrize("steps", [range(1, 9), range(-2, 4), range(4, 5), range(10, 20)])
@pytest.mark.parametrize("parts", [["z_", ""], ["z_", "_", ""], ["z+_", ""], ["z_3"], ["q"], ["é", " ", ""], ["z_", "_4"]])
def test_the_first_value_of_a_step_is_found_without_going_through_the_steps(parts, steps):
    for names in (NAMES, NAMES[::-1], NAMES[3:8], []):
        one_by_one = [str(t).join(parts) for t in steps]
        assert first_value(dict.fromkeys(names), parts, steps) == next((name for name in one_by_one if name in names), None)
