"""What a loop's body carries from step to step besides hidden states is seen: the loop goes on step by step, or is refused."""

from collections import deque
from itertools import islice

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from support.tiny_programs import F64

from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.markov import markov

STEPS = 9
Y = torch.linspace(-1.0, 2.0, STEPS, dtype=F64).sin() * 3
MOVES = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=F64)
LOC = torch.tensor([0.0, 2.0], dtype=F64)
COUNT = 0
CALLS = []


def step(t, z, y, shift=0.0):
    """The state of a step, and its observation."""
    CALLS.append(t)
    probs = torch.full((2,), 0.5, dtype=F64) if z is None else MOVES[z]
    z = pyro.sample(f"z_{t}", dist.Categorical(probs), infer={"enumerate": "parallel"})
    pyro.sample(f"y_{t}", dist.Normal(LOC[z] + shift, 1.0), obs=y)
    return z


def plain(loop):
    z = None
    for t in loop(range(STEPS)):
        z = step(t, z, Y[t])


def from_the_step_before(loop):
    z = None
    for t in loop(range(STEPS)):
        shift = 0.5 * last if t > 0 else 0.0  # noqa: F821
        z = step(t, z, Y[t], shift)
        last = Y[t]  # noqa: F841


def zipped(loop):
    z = None
    for t, y in zip(loop(range(STEPS)), Y, strict=True):
        z = step(t, z, y)


def pairs(loop):
    z = None
    for pair in zip(loop(range(STEPS)), Y, strict=True):
        z = step(pair[0], z, pair[1])


def enumerated(loop):
    z = None
    for k, t in enumerate(loop(range(STEPS))):
        z = step(t, z, Y[t], 0.1 * k)


def iterator(loop):
    z, rows = None, iter(Y)
    for t in loop(range(STEPS)):
        z = step(t, z, next(rows))


def generator(loop):
    z, rows = None, (y for y in Y)
    for t in loop(range(STEPS)):
        z = step(t, z, next(rows))


def taken_from_a_list(loop):
    z, rows = None, list(Y)
    for t in loop(range(STEPS)):
        z = step(t, z, rows.pop(0))


def taken_from_a_queue(loop):
    z, rows = None, deque(Y)
    for t in loop(range(STEPS)):
        z = step(t, z, rows.popleft())


def length_of_a_list(loop):
    z, states = None, []
    for t in loop(range(STEPS)):
        z = step(t, z, Y[t], 0.1 * len(states))
        states.append(z)


def flag_of_text(loop):
    z, flag = None, "a"
    for t in loop(range(STEPS)):
        z = step(t, z, Y[t], 0.5 if flag == "a" else 0.0)
        flag = "b" if flag == "a" else "a"


def array(loop):
    z, shift = None, np.zeros(1)
    for t in loop(range(STEPS)):
        z = step(t, z, Y[t], float(shift[0]))
        shift += 0.1


def global_variable(loop):
    global COUNT
    z, COUNT = None, 0
    for t in loop(range(STEPS)):
        z = step(t, z, Y[t], 0.1 * COUNT)
        COUNT += 1


class Counter:
    value = 0


def attribute(loop):
    z, counter = None, Counter()
    for t in loop(range(STEPS)):
        z = step(t, z, Y[t], 0.1 * counter.value)
        counter.value += 1


def loop_of_another_function(loop):
    def steps():
        for t in loop(range(STEPS)):  # noqa: UP028
            yield t

    z, k = None, 0
    for t in steps():
        z = step(t, z, Y[t], 0.1 * k)
        k += 1


def states_in_a_list(loop):
    states = [None]
    for t in loop(range(STEPS)):
        states.append(step(t, states[-1], Y[t]))


def number_of_the_first_step(loop):
    z = None
    for t in loop(range(STEPS)):
        if t == 0:
            base = 0.3  # set in the first step, and read in all
        z = step(t, z, Y[t], base)


CARRYING = [
    from_the_step_before, zipped, pairs, enumerated, iterator, generator, taken_from_a_list, taken_from_a_queue,
    length_of_a_list, flag_of_text, array, global_variable, attribute, loop_of_another_function,
]  # fmt: skip


def oracle(model):
    return torch.tensor(-TraceEnum_ELBO(max_plate_nesting=0).loss(lambda: model(pyro.markov), lambda: None), dtype=F64)


def log_prob(model):
    return pyro.poutine.trace(BlockedEnum()(model)).get_trace(markov).log_prob_sum()


@pytest.mark.parametrize("model", CARRYING, ids=lambda model: model.__name__)
def test_what_a_body_carries_is_seen(model):
    expected = oracle(model)
    torch.testing.assert_close(log_prob(model), expected)


@pytest.mark.parametrize("model", [plain, states_in_a_list, number_of_the_first_step], ids=lambda model: model.__name__)
def test_a_body_that_carries_states_alone_runs_twice(model):
    expected = oracle(model)
    CALLS.clear()
    torch.testing.assert_close(log_prob(model), expected)
    assert len(CALLS) == 2


def test_the_text_of_many_steps_is_no_number():
    def model(loop):
        z = None
        for t in loop(range(STEPS)):
            z = step(str(t), z, Y[t], 0.5 if str(t).endswith("3") else 0.0)

    with pytest.raises(TypeError, match="goes into names alone"):
        log_prob(model)


def nested(loop):
    z, kept = None, {"shifts": []}
    for t in loop(range(STEPS)):
        z = step(t, z, Y[t], sum(kept["shifts"]))
        kept["shifts"].append(0.1)


def object_of_its_own(loop):
    z, counter = None, Counter()
    counter.shifts = []
    for t in loop(range(STEPS)):
        z = step(t, z, Y[t], sum(counter.shifts))
        counter.shifts.append(0.1)


SHIFTS = []


def global_list(loop):
    z = None
    SHIFTS.clear()
    for t in loop(range(STEPS)):
        z = step(t, z, Y[t], sum(SHIFTS))
        SHIFTS.append(0.1)


LEVEL = 0.0


def raise_level():
    global LEVEL
    LEVEL += 0.1


def global_number_of_a_function(loop):
    global LEVEL
    z, LEVEL = None, 0.0
    for t in loop(range(STEPS)):
        z = step(t, z, Y[t], LEVEL)
        raise_level()


def large_array(loop):
    z, shifts = None, np.zeros(20_000)
    for t in loop(range(STEPS)):
        z = step(t, z, Y[t], shifts[0])
        shifts[0] += 0.1


def random_numbers(loop):
    torch.manual_seed(0)
    z = None
    for t in loop(range(STEPS)):
        z = step(t, z, Y[t], torch.rand((), dtype=F64))


def part_of_the_loop(loop):
    z = None
    for t in islice(loop(range(STEPS)), 3):
        z = step(t, z, Y[t])


@pytest.mark.parametrize(
    "model",
    [nested, object_of_its_own, global_list, global_number_of_a_function, large_array, random_numbers, part_of_the_loop],
    ids=lambda model: model.__name__,
)  # fmt: skip
def test_what_stands_in_other_things_is_seen(model):
    torch.testing.assert_close(log_prob(model), oracle(model))


@pytest.mark.parametrize("shift", [
    lambda t: 0.5 if t in {2, 3} else 0.0, lambda t: {3: 0.5}.get(t, 0.0), lambda t: {"3": 0.5}.get(str(t), 0.0),
    lambda t: {"3": 0.5}.get(f"{t}", 0.0), lambda t: 0.5 if f"{t}" == "3" else 0.0,
])  # fmt: skip
def test_many_steps_are_no_key(shift):
    def model(loop):
        z = None
        for t in loop(range(STEPS)):
            z = step(t, z, Y[t], shift(t))

    with pytest.raises(TypeError, match="stands for many steps.*vectorize=False"):
        log_prob(model)


def test_states_are_stored_by_step():
    def model(loop):
        z, states = None, {}
        for t in loop(range(STEPS)):
            states[t] = states[str(t)] = states[f"z_{t}"] = z = step(t, z, Y[t])

    expected = oracle(model)
    CALLS.clear()
    torch.testing.assert_close(log_prob(model), expected)
    assert len(CALLS) == 2


def test_a_long_body_runs_twice():
    """One whose instructions take arguments of two bytes."""
    lines = "\n".join(f"        k = {k} * 2 + {k}" for k in range(300))
    source = f"def long(loop):\n    z = None\n    for t in loop(range(STEPS)):\n{lines}\n        z = step(t, z, Y[t])\n"
    names = dict(globals())
    exec(source, names)
    expected = oracle(names["long"])
    CALLS.clear()
    torch.testing.assert_close(log_prob(names["long"]), expected)
    assert len(CALLS) == 2
