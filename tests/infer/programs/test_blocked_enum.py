"""The messenger: recorded, vectorised, one site and Pyro's own enumeration say the same."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.grids import grid
from support.oracles.discrete import generic_log_prob, program_log_prob
from support.tiny_programs import F64, Tables, program, traced_log_prob, words

from pplseq.distributions.dense import GaussianEmission
from pplseq.distributions.state import Belief
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.programs.block_hmm import BlockHMM
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.markov import markov
from pplseq.models.vlhmm.program import VLHMM

close = torch.testing.assert_close


def equal_with_gradients(tables, values):
    first, *others = values
    gradients = tables.gradients(first)
    for other in others:
        close(other, first)
        for a, b in zip(tables.gradients(other), gradients, strict=True):
            if a is not None or b is not None:
                close(torch.zeros_like(b) if a is None else a, torch.zeros_like(a) if b is None else b)


SITUATIONS = {
    "plain": dict(),
    "ragged": dict(lengths=torch.tensor([4, 1, 2])),
    "empty row": dict(lengths=torch.tensor([4, 0, 2])),
    "missing": dict(seen=torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()),
    "missing and ragged": dict(
        seen=torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 1, 0]]).bool(), lengths=torch.tensor([4, 3, 2])
    ),
    "start": dict(
        start=Belief(None, torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.25, 0.25]], dtype=F64).log())
    ),
    "one step": dict(num_steps=1),
    "two steps": dict(num_steps=2),
}


@grid({"situation": SITUATIONS, "loop": [markov, pyro.markov]})
def test_all_forms_agree(situation, loop):
    options, tables, x = SITUATIONS[situation], Tables(), words()
    specs = tables.specs()
    values = [
        traced_log_prob(program, x, specs, loop=loop, vectorize=vectorize, **options)[0] for vectorize in (True, False)
    ]
    values.append(generic_log_prob(program, x, specs, loop=loop, **options))
    if "seen" not in options:
        steps = options.get("num_steps", x.shape[1])
        site = BlockHMM(*specs, num_steps=steps, lengths=options.get("lengths"), start=options.get("start"))
        values.append(site.log_prob(x[:, :steps]).sum())
    equal_with_gradients(tables, values)


@pytest.mark.parametrize("situation", ["plain", "ragged", "missing", "one step", "two steps"])
def test_a_matrix_a_step(situation):
    options, tables, x = SITUATIONS[situation], Tables(), words()
    specs = tables.step_specs()
    u = torch.randn(*x.shape, 2, dtype=F64)
    values = [
        traced_log_prob(program, x, specs, inputs=u, vectorize=vectorize, **options)[0] for vectorize in (True, False)
    ]
    values.append(generic_log_prob(program, x, specs, inputs=u, **options))
    equal_with_gradients(tables, values)


@grid({"lengths": [None, torch.tensor([5, 2, 1])], "reset_id": [None, 2]})
def test_block_sparse_programs(reset_id, lengths):
    model = VLHMM(
        6, num_words=5, blocks=torch.tensor([0, 0, 1, 1, 1]), hidden_size=4, reset_id=reset_id, init_scale=1.0
    ).double()
    x = torch.tensor([[0, 2, 1, -1, -1], [2, 4, 2, 0, 0], [-1, 1, 2, 3, 3]])
    values = [traced_log_prob(model.model, x, lengths, vectorize=vectorize)[0] for vectorize in (True, False)]
    values += [generic_log_prob(model, x, lengths), model.posterior(x, lengths).log_prob().sum()]
    close(values[1:], values[:1] * 3)
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad(value, parameters, allow_unused=True) for value in values[:3]]
    close(gradients[1], gradients[0])
    close(gradients[2], gradients[0])


def test_missing_by_obs_none():
    specs, x = Tables().specs(), words(2, 4)

    def with_gaps(x, missing):
        z, (transition, emission) = None, specs
        with pyro.plate("sequences", len(x), dim=-1):
            for t in pyro.markov(range(x.shape[1])):
                z = pyro.sample(f"z_{t}", transition(z))
                pyro.sample(f"x_{t}", emission(z), obs=None if t in missing else x[:, t])

    seen = torch.tensor([[True, False, True, False]]).expand(2, 4)
    close(traced_log_prob(with_gaps, x, (1, 3))[0], traced_log_prob(program, x, specs, seen=seen)[0])
    close(traced_log_prob(with_gaps, x, (0, 1, 2, 3))[0], torch.zeros((), dtype=F64))


def test_missing_by_obs_mask():
    specs, x = Tables().specs(), words(2, 4)
    seen = torch.tensor([[True, False, True, False], [True, True, False, True]])

    def with_gaps(x):
        z, (transition, emission) = None, specs
        with pyro.plate("sequences", len(x), dim=-1):
            for t in pyro.markov(range(x.shape[1])):
                z = pyro.sample(f"z_{t}", transition(z))
                pyro.sample(f"x_{t}", emission(z), obs=x[:, t], obs_mask=seen[:, t])

    close(traced_log_prob(with_gaps, x)[0], traced_log_prob(program, x, specs, seen=seen)[0])


@pytest.mark.parametrize("vectorize", [True, False])
def test_observed_states(vectorize):
    specs, x = Tables().specs(), words()
    states = torch.tensor([[0, 1, 2, 0], [2, 2, 2, 1], [1, 0, 0, 0]])
    log_prob, handler = traced_log_prob(program, x, specs, states=states, vectorize=vectorize)
    close(log_prob, program_log_prob(lambda: program(x, specs, states=states)))
    assert torch.equal(handler.chains["z_0"].viterbi()[0], states)
    partly = torch.tensor([[0, -1, 2, -1], [-1, -1, -1, -1], [1, 0, 0, 0]])
    log_prob, handler = traced_log_prob(program, x, specs, states=partly, vectorize=vectorize)
    expected = build_chain(*specs, x.T, states=partly.T)
    close(log_prob, expected.log_prob().sum())


def test_some_states_are_observed_by_their_site():
    specs, x = Tables().specs(), words()
    value = torch.tensor([2, 0, 1])
    got = traced_log_prob(poutine.condition(program, {"z_2": value}), x, specs, loop=pyro.markov)[0]
    states = torch.full((4, 3), -1)
    states[2] = value
    close(got, build_chain(*specs, x.T, states=states).log_prob().sum())


def test_subsampled_plates_scale():
    tables, x = Tables(), words(6)
    transition, emission = tables.specs()

    def subsampled(x, size=None, index=None):
        with pyro.plate("sequences", len(x), subsample_size=size, subsample=index, dim=-1) as rows:
            z = None
            for t in markov(range(x.shape[1])):
                z = pyro.sample(f"z_{t}", transition(z))
                pyro.sample(f"x_{t}", emission(z), obs=x[rows, t] if isinstance(t, int) else x[rows][:, t])

    index = torch.tensor([4, 1])
    expected = build_chain(transition, emission, x[index].T).log_prob().sum() * 3
    for vectorize in (True, False):
        close(traced_log_prob(subsampled, x, 2, index, vectorize=vectorize)[0], expected)
    close(generic_log_prob(subsampled, x, 2, index), expected)
    assert torch.isfinite(traced_log_prob(subsampled, x, 2)[0])


@pytest.mark.parametrize("vectorize", [True, False])
def test_nested_plates(vectorize):
    tables = Tables()
    transition, emission = tables.specs()
    x = torch.randint(4, (2, 3, 4))
    lengths = torch.tensor([[4, 1, 2], [3, 4, 0]])

    def nested(x):
        z = None
        with pyro.plate("documents", 2, dim=-2), pyro.plate("sequences", 3, dim=-1):
            for t in markov(range(x.shape[-1])):
                with poutine.mask(mask=t < lengths):
                    z = pyro.sample(f"z_{t}", transition(z))
                    pyro.sample(f"x_{t}", emission(z), obs=x[..., t])

    got, handler = traced_log_prob(nested, x, vectorize=vectorize)
    flat = build_chain(transition, emission, x.flatten(0, 1).T, valid=torch.arange(4).unsqueeze(-1) < lengths.flatten())
    close(got, flat.log_prob().sum())
    chain = handler.chains["z_0"]
    assert chain.log_prob().shape == (2, 3) and chain.viterbi()[0].shape == (2, 3, 4)
    close(chain.marginals().probs.flatten(0, 1), flat.marginals().probs)
    equal_with_gradients(tables, [got, generic_log_prob(nested, x, max_plate_nesting=2)])


def test_scale_around_a_program():
    specs, x = Tables().specs(), words()
    once = traced_log_prob(program, x, specs)[0]
    close(traced_log_prob(poutine.scale(program, 0.5), x, specs)[0], 0.5 * once)
    inside = poutine.trace(poutine.scale(BlockedEnum()(program), 0.5)).get_trace(x, specs).log_prob_sum()
    close(inside, 0.5 * once)


def test_chains_in_a_sequential_plate_and_two_chains():
    specs, x = Tables().specs(), words(2, 3)

    def separate(x):
        transition, emission = specs
        for i in pyro.plate("sequences", len(x)):
            z = None
            for t in pyro.markov(range(x.shape[1])):
                z = pyro.sample(f"z_{i}_{t}", transition(z))
                pyro.sample(f"x_{i}_{t}", emission(z), obs=x[i, t])

    got, handler = traced_log_prob(separate, x)
    close(got, traced_log_prob(program, x, specs)[0])
    assert list(handler.chains) == ["z_0_0", "z_1_0"]


def test_interleaved_chains():
    specs, other, x = Tables().specs(), Tables(seed=1).specs(), words()

    def both(x):
        z = w = None
        with pyro.plate("sequences", len(x), dim=-1):
            for t in markov(range(x.shape[1])):
                z = pyro.sample(f"z_{t}", specs[0](z))
                w = pyro.sample(f"w_{t}", other[0](w))
                pyro.sample(f"x_{t}", specs[1](z), obs=x[:, t])
                pyro.sample(f"y_{t}", other[1](w), obs=x[:, t])

    expected = traced_log_prob(program, x, specs)[0] + traced_log_prob(program, x, other)[0]
    for vectorize in (True, False):
        close(traced_log_prob(both, x, vectorize=vectorize)[0], expected)


def test_gaussian_observations_without_a_plate():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(5, 2, generator=generator, dtype=F64)
    emission = GaussianEmission(torch.randn(3, 2, dtype=F64), torch.ones(3, 2, dtype=F64))
    transition, _ = Tables().specs()

    def one_row(y):
        z = None
        for t in markov(range(len(y))):
            z = pyro.sample(f"z_{t}", transition(z))
            pyro.sample(f"y_{t}", emission(z), obs=y[t])

    expected = build_chain(transition, emission, y).log_prob()
    for vectorize in (True, False):
        close(traced_log_prob(one_row, y, vectorize=vectorize)[0], expected)
    close(generic_log_prob(one_row, y, max_plate_nesting=0), expected)


def test_ordinary_sites_live_beside_chains():
    def model(x, y):
        scale = pyro.sample("scale", dist.LogNormal(torch.tensor(0.0, dtype=F64), 1.0))
        pyro.sample("y", dist.Normal(0.0, scale), obs=y)
        program(x, Tables().specs())

    trace = poutine.trace(BlockedEnum()(model)).get_trace(words(), torch.tensor(0.3))
    sites = [name for name, site in trace.nodes.items() if site["type"] == "sample"]
    assert sites == ["scale", "y", "sequences", "z_0__chain"] or set(sites) == {"scale", "y", "z_0__chain"}
    assert not any(name.startswith("x_") for name in trace.nodes), "recorded sites must stay hidden"
