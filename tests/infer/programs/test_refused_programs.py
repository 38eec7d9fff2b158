"""Programs and uses of states that the messenger must refuse, with what to do instead."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.tiny_programs import F64, Tables, program, traced_log_prob, words

from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.distributions.state import Belief
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.infer.programs.markov import markov

close = torch.testing.assert_close


def run(model, *args, **kwargs):
    with BlockedEnum():
        model(*args, **kwargs)


def test_branching_programs_are_refused():
    transition, emission = Tables().specs()

    def tree(x):
        root = pyro.sample("z_0", transition(None))
        for t in (1, 2):
            z = pyro.sample(f"z_{t}", transition(root))
            pyro.sample(f"x_{t}", emission(z), obs=x[t])

    with pytest.raises(ValueError, match="'z_2' does not follow the last state of its chain.*contraction"):
        run(tree, words(1)[0])


def test_steps_of_two_are_two_chains():
    specs, x = Tables().specs(), words(1)[0]

    def by_two(x):
        states = [None, None]
        for t in pyro.markov(range(4), history=2):
            states.append(pyro.sample(f"z_{t}", specs[0](states[-2])))
            pyro.sample(f"x_{t}", specs[1](states[-1]), obs=x[t])

    got, handler = traced_log_prob(by_two, x)
    assert list(handler.chains) == ["z_0", "z_1"]
    close(got, build_chain(*specs, x.view(2, 2)).log_prob().sum())


def test_mixed_specs_are_refused():
    def changing(x):
        z, emission = None, Tables().specs()[1]
        for t in pyro.markov(range(3)):
            transition = Tables(seed=t).specs()[0]
            z = pyro.sample(f"z_{t}", transition(z))
            pyro.sample(f"x_{t}", emission(z), obs=x[t])

    with pytest.raises(ValueError, match="make them once before"):
        run(changing, words(1)[0])


def test_two_observations_of_one_state_are_refused():
    transition, emission = Tables().specs()

    def twice(x):
        z = pyro.sample("z_0", transition(None))
        pyro.sample("x_0", emission(z), obs=x[0])
        pyro.sample("y_0", emission(z), obs=x[1])

    with pytest.raises(ValueError, match="'y_0' is a second observation of state 'z_0'"):
        run(twice, words(1)[0])


def test_an_observation_in_a_deeper_plate_is_refused():
    transition, emission = Tables().specs()

    def several(x):
        z = None
        with pyro.plate("sequences", 3, dim=-1):
            for t in pyro.markov(range(2)):
                z = pyro.sample(f"z_{t}", transition(z))
                with pyro.plate(f"tones_{t}", 2, dim=-2):
                    pyro.sample(f"x_{t}", emission(z), obs=x)

    with pytest.raises(ValueError, match="'x_0' must lie in the same plates"):
        run(several, torch.zeros(2, 3, dtype=torch.long))


def test_a_scale_on_some_sites_is_refused():
    transition, emission = Tables().specs()

    def scaled(x):
        z = pyro.sample("z_0", transition(None))
        with poutine.scale(scale=0.5):
            pyro.sample("x_0", emission(z), obs=x)

    with pytest.raises(ValueError, match="'x_0' must have the scale of its chain, 1.0, got 0.5"):
        run(scaled, torch.tensor(0))


@pytest.mark.parametrize("vectorize", [True, False])
def test_an_observation_behind_the_loop(vectorize):
    transition, emission = Tables().specs()

    def label(y):
        z = None
        with pyro.plate("sequences", len(y), dim=-1):
            for t in markov(range(3)):
                z = pyro.sample(f"z_{t}", transition(z))
            pyro.sample("y", emission(z), obs=y)

    y = torch.tensor([1, 3])
    if vectorize:
        with pytest.raises(ValueError, match="'y' observes a state of a vectorised loop outside of that loop"):
            traced_log_prob(label, y)
        return
    start, table, emit = Tables().logs()
    last = start.exp() @ table.exp() @ table.exp() @ emit.exp()
    close(traced_log_prob(label, y, vectorize=False)[0], last[y].log().sum())


def test_a_chain_without_observations_is_refused():
    transition, _ = Tables().specs()
    with pytest.raises(ValueError, match="no emission site"):
        run(lambda: pyro.sample("z_0", transition(None)))


@pytest.mark.parametrize("known", [2, torch.tensor(2), torch.tensor([2, 0, 1])])
def test_a_chain_may_start_behind_a_state_that_is_known(known):
    transition, emission = Tables().specs()

    def behind(x):
        z = known
        with pyro.plate("sequences", 3, dim=-1):
            for t in markov(range(4)):
                z = pyro.sample(f"z_{t}", transition(z))
                pyro.sample(f"x_{t}", emission(z), obs=x[:, t])

    start = torch.full((3, 3), -torch.inf, dtype=F64)
    start[torch.arange(3), known] = 0.0
    expected = build_chain(transition, emission, words().T, start=Belief(None, start)).log_prob()
    close(traced_log_prob(behind, words())[0], expected.sum())
    with pytest.raises(ValueError, match="no emission site"):
        run(lambda: pyro.sample("z_1", transition(torch.tensor(0))))


def test_inputs_at_some_steps_only_are_refused():
    transition, emission = Tables().step_specs()

    def sometimes(x):
        z, u = None, torch.zeros(2, dtype=F64)
        for t in pyro.markov(range(3)):
            z = pyro.sample(f"z_{t}", transition(z, inputs=u if t < 2 else None))
            pyro.sample(f"x_{t}", emission(z), obs=x[t])

    with pytest.raises(ValueError, match="inputs are given at some steps"):
        run(sometimes, words(1)[0])


def test_an_impossible_word_is_named():
    transition = DenseTransition(torch.zeros(2).log_softmax(-1), torch.zeros(2, 2).log_softmax(-1))
    emission = CategoricalEmission.from_probs(torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]))
    x = torch.tensor([[0, 1, 0], [1, 0, 2]])
    with pytest.raises(ValueError, match="row 1, step 2: observation 2"):
        run(program, x, (transition, emission))
    unchecked = BlockedEnum(check=False)
    with unchecked:
        program(x, (transition, emission))
    assert torch.isneginf(unchecked.chains["z_0"].log_prob()).tolist() == [False, True]


def test_an_error_in_the_program_comes_through():
    handler = BlockedEnum()
    with pytest.raises(RuntimeError, match="mine"), handler:
        pyro.sample("z_0", Tables().specs()[0](None))
        raise RuntimeError("mine")
    with handler:  # and the handler works again
        program(words(), Tables().specs())
    assert list(handler.chains) == ["z_0"]


NUMBERS = {
    "==": lambda z: z == 3,
    "!=": lambda z: z != 3,
    "<": lambda z: z < 3,
    "bool": lambda z: bool(z),
    "if": lambda z: 1 if z else 0,
    "index": lambda z: [1, 2, 3][z],
    "tensor index": lambda z: torch.zeros(3)[z],
    "tensor index among others": lambda z: torch.zeros(3, 3)[z, :],
    "mixed index": lambda z: torch.zeros(3, 3)[..., z],
    "int": lambda z: int(z),
    "float": lambda z: float(z),
    "len": lambda z: len(z),
    "iterate": lambda z: list(z),
    "in": lambda z: 3 in [z],
    "z + 1": lambda z: z + 1,
    "1 - z": lambda z: 1 - z,
    "z * tensor": lambda z: z * torch.ones(3),
    "tensor * z": lambda z: torch.ones(3) * z,
    "torch.stack": lambda z: torch.stack([z, z]),
    "torch.where": lambda z: torch.where(torch.tensor(True), z, torch.zeros(())),
    "gather": lambda z: torch.zeros(3).gather(0, z),
    "one_hot": lambda z: torch.nn.functional.one_hot(z, 3),
    "embedding": lambda z: torch.nn.functional.embedding(z, torch.zeros(3, 2)),
    "torch.tensor": lambda z: torch.tensor(z),
    "numpy": lambda z: np.asarray(z),
    "z[0]": lambda z: z[0],
    "range": lambda z: range(z),
    "Categorical": lambda z: dist.Categorical(torch.ones(3, 3)[z]),
    "Vindex": lambda z: pyro.ops.indexing.Vindex(torch.ones(3, 3))[z],
}


@pytest.mark.parametrize("use", NUMBERS)
def test_a_state_is_no_number(use):
    transition, emission = Tables().specs()

    def model():
        z = pyro.sample("z_0", transition(None))
        NUMBERS[use](z)

    with pytest.raises(TypeError, match="hidden state under BlockedEnum has no value"):
        run(model)


def test_a_state_is_a_key_and_prints():
    with poutine.block(), BlockedEnum():
        transition, emission = Tables().specs()
        z = pyro.sample("z_0", transition(None))
        pyro.sample("x_0", emission(z), obs=torch.tensor(1))
        assert {z: 1}[z] == 1 and "z_0" in repr(z) and z.dim() == 0 and z.size() == ()


def test_the_name_of_no_chain_tells_how_one_starts():
    def unmarked():
        pyro.sample("x_0", dist.MultivariateNormal(torch.zeros(2), torch.eye(2)))

    with KalmanCollapse() as posterior:
        unmarked()
    with pytest.raises(KeyError, match="'x_0' is no chain's first site; found none. A chain starts at .*collapse"):
        posterior.chains["x_0"]
