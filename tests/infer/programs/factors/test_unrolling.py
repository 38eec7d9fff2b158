"""Marked sites under ``pplseq.markov``: the body runs twice, for the first step and for all others, with the same result."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyro.ops.indexing import Vindex
from support.grids import grid
from support.marked_programs import F64, LENGTHS, MARKED, B, D, K, T, notes, table

from pplseq.infer.programs.blocked_enum import BlockedEnum, no_guide
from pplseq.infer.programs.elbo import TraceBlockedEnum_ELBO
from pplseq.infer.programs.markov import markov
from pplseq.infer.programs.states import check_vectorizable, infer_states

BEFORE = torch.cat([torch.zeros(B, 1, D, dtype=F64), notes()[:, :-1]], 1).long()
RUNS: list = []


def rows():
    return pyro.plate("rows", B, dim=-2)


def seen(t):
    return poutine.mask(mask=(t < LENGTHS).unsqueeze(-1))


def ran(t):
    """Counts a run of a body, where the loop does not see it."""
    RUNS.append(t)


def hmm(loop, y):
    trans, emit = table("trans", K, K), table("emit", K, D, event=0)
    tones = pyro.plate("tones", D, dim=-1)
    with rows() as row:
        x = 0
        for t in loop(range(T)):
            ran(t)
            with seen(t):
                x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
                with tones:
                    pyro.sample(f"y_{t}", dist.Bernoulli(emit[x.squeeze(-1)]), obs=y[row, t])


def autoregressive(loop, y):
    """The table of the last notes, and a plate named by the step."""
    trans, emit = table("trans", K, K), table("emit", K, 2, D, event=0)
    with rows():
        x = 0
        for t in loop(range(T)):
            ran(t)
            with seen(t):
                x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
                with pyro.plate(f"tones_{t}", D, dim=-1) as tone:
                    pyro.sample(f"y_{t}", dist.Bernoulli(emit[x, BEFORE[:, t], tone]), obs=y[:, t])


def coupled(loop, y):
    one, two, emit = table("one", K, 2, K), table("two", K, 2, K, 2), table("emit", K, 2, D, event=0)
    w = x = torch.tensor(0)
    with rows():
        for t in loop(range(T)):
            ran(t)
            new = pyro.sample(f"w_{t}", dist.Categorical(Vindex(one)[w, x]), infer=MARKED)
            x = pyro.sample(f"x_{t}", dist.Categorical(Vindex(two)[w, x, new]), infer=MARKED)
            w = new
            with pyro.plate(f"tones_{t}", D, dim=-1) as tone, seen(t):
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[w, x, tone]), obs=y[:, t])


def with_inputs(loop, y):
    """Matrices that the data choose, numbers of every step, a state for all steps, two kinds of data."""
    trans, kinds, rate = table("trans", K, 2, K), table("kinds", 2), 0.2 + table("rate", K, event=0)
    loc = pyro.param("loc", lambda: torch.randn(2, K, dtype=F64))
    slope = pyro.param("slope", lambda: torch.randn((), dtype=F64))
    with pyro.plate("rows", B, dim=-1):
        kind = pyro.sample("kind", dist.Categorical(kinds), infer=MARKED)
        x = torch.tensor(0)
        for t in loop(range(T)):
            ran(t)
            x = pyro.sample(f"x_{t}", dist.Categorical(Vindex(trans)[x, BEFORE[:, t, 0]]), infer=MARKED)
            pyro.sample(f"n_{t}", dist.Poisson(rate[x]), obs=y[:, t].sum(-1))
            with poutine.mask(mask=t < LENGTHS):
                law = dist.Normal(Vindex(loc)[kind, x].unsqueeze(-1) + slope * y[:, t] - 0.1 * t, 1.0)
                pyro.sample(f"y_{t}", law.to_event(1), obs=y[:, t].cumsum(-1))


def network(loop, y):
    """Logits of a network, of no table's; one mask of rows, one of single tones."""
    trans, of_state, out = table("trans", K, K), table("of_state", K, 6, event=0), table("out", 6, D, event=0)
    single = notes().flip(-1) > 0
    tones, other = pyro.plate("tones", D, dim=-1), pyro.plate("other", D, dim=-1)
    with rows():
        x = 0
        for t in loop(range(T)):
            ran(t)
            with seen(t):
                x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
                hidden = of_state[x.squeeze(-1)] + y[:, t] @ out.T
                with tones:
                    pyro.sample(f"y_{t}", dist.Bernoulli(logits=hidden.relu() @ (out - 0.5)), obs=y[:, t])
                with other, poutine.mask(mask=single[:, t]):
                    pyro.sample(f"z_{t}", dist.Bernoulli(logits=hidden.tanh() @ (out - 0.2)), obs=1 - y[:, t])


def coupled_network(loop, y):
    one, two, out = table("one", K, K), table("two", 2, 2), table("out", 3, D, event=0)
    w, x = torch.tensor(0), torch.tensor(0)
    with rows():
        for t in loop(range(T)):
            ran(t)
            w = pyro.sample(f"w_{t}", dist.Categorical(one[w]), infer=MARKED)
            x = pyro.sample(f"x_{t}", dist.Categorical(two[x]), infer=MARKED)
            with pyro.plate(f"tones_{t}", D, dim=-1):
                logits = (w * out[0] + y[:, t]).sin() + x * w * out[1] - (1 - 0.5 * x) * y[:, t].roll(1, -1) * out[2]
                pyro.sample(f"y_{t}", dist.Bernoulli(logits=logits), obs=y[:, t])


PROGRAMS = [hmm, autoregressive, coupled, with_inputs, network, coupled_network]


def loss_and_gradients(program, loop, y):
    pyro.clear_param_store()
    pyro.set_rng_seed(3)
    RUNS.clear()
    loss = TraceBlockedEnum_ELBO(max_plate_nesting=2).loss_and_grads(lambda y: program(loop, y), no_guide, y)
    return loss, {name: leaf.grad for name, leaf in pyro.get_param_store()._params.items()}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_same_as_step_by_step(program):
    expected, wanted = loss_and_gradients(program, pyro.markov, notes())
    assert len(RUNS) == T
    loss, found = loss_and_gradients(program, markov, notes())
    assert len(RUNS) == 2
    assert loss == pytest.approx(expected, rel=1e-12) and found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-10 * float(gradient.abs().max()), msg=name)
    check_vectorizable(lambda y: program(markov, y), notes())


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
@grid({"loop": [markov, pyro.markov], "program": [network, coupled_network]})
def test_networks_as_by_pyro(program, loop):
    found = loss_and_gradients(program, loop, notes())
    elbo = TraceEnum_ELBO(max_plate_nesting=2, strict_enumeration_warning=False)
    pyro.clear_param_store()
    loss = elbo.loss_and_grads(lambda y: program(pyro.markov, y), no_guide, notes())
    assert found[0] == pytest.approx(loss, rel=1e-10)
    for name, leaf in pyro.get_param_store()._params.items():
        torch.testing.assert_close(found[1][name], leaf.grad, rtol=1e-9, atol=1e-10 * float(leaf.grad.abs().max()), msg=name)


def log_prob(program, y):
    pyro.clear_param_store()
    return poutine.trace(BlockedEnum()(program)).get_trace(y).log_prob_sum()


def test_two_steps_and_states_that_are_asked_for():
    y = notes()[:, :2]

    def program(y, loop=markov):
        trans, emit = table("trans", K, K), table("emit", K, D, event=0)
        with pyro.plate("rows", B, dim=-1):
            x = 0
            for t in loop(range(y.shape[1])):
                x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[x]).to_event(1), obs=y[:, t])

    torch.testing.assert_close(log_prob(program, y), log_prob(lambda y: program(y, pyro.markov), y))
    fixed = {"x_1": torch.tensor([1, 0, 2])}
    expected = log_prob(pyro.condition(lambda y: program(y, pyro.markov), data=fixed), y)
    torch.testing.assert_close(log_prob(pyro.condition(program, data=fixed), y), expected)
    found, wanted = (poutine.trace(infer_states(p)).get_trace(y) for p in (program, lambda y: program(y, pyro.markov)))
    assert all(torch.equal(found.nodes[n]["value"], wanted.nodes[n]["value"]) for n in ("x_0", "x_1"))


def test_what_a_body_carries_runs_step_by_step():
    def program(y, kind):
        trans, emit = table("trans", 2, 2), table("emit", 2, D, event=0)
        x, last, rows = 0, torch.zeros(B, D, dtype=F64), pyro.plate("rows", B, dim=-1)
        for t in helper(range(T)) if kind == "generator" else markov(range(T)):
            ran(t)
            with rows:
                if kind == "bernoulli":
                    x = pyro.sample(f"x_{t}", dist.Bernoulli(trans[x][..., 1]), infer=MARKED).long()
                else:
                    x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[x] * (1 - 0.5 * last)).to_event(1), obs=y[:, t])
            if kind == "carried":
                last = y[:, t]

    def helper(steps):
        yield from (t for t in markov(steps))

    for kind in ("bernoulli", "carried", "generator"):
        RUNS.clear()
        log_prob(lambda y, kind=kind: program(y, kind), notes())
        assert len(RUNS) == T, kind


def test_steps_that_do_not_look_back_alike_are_refused():
    def program(y, kind, markov=markov):
        trans, emit = table("trans", K, K), table("emit", K, D, event=0)
        w = x = before = 0
        with pyro.plate("rows", B, dim=-1):
            for t in markov(range(T)):
                old = x  # which nobody reads after the loop
                w = pyro.sample(f"w_{t}", dist.Categorical(trans[w]), infer=MARKED)
                x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[x] * emit[w]).to_event(1), obs=y[:, t])
                if kind == "swapped":
                    w, x = x, w
                elif kind == "two back":
                    before = old
        return before

    with pytest.raises(ValueError, match="variable 'before' holds the state 'x_0'"):
        log_prob(lambda y: program(y, "two back"), notes())
    swapped = [log_prob(lambda y, loop=loop: program(y, "swapped", loop), notes()) for loop in (markov, pyro.markov)]
    torch.testing.assert_close(*swapped)

    def other_names(y):
        with pyro.plate("rows", B, dim=-1):
            x = 0
            for t in markov(range(T)):
                name = f"x_{t}" if f"{t}" == "0" else f"z_{t}"
                x = pyro.sample(name, dist.Categorical(table("trans", K, K)[x]), infer=MARKED)
                pyro.sample(f"y_{t}", dist.Bernoulli(table("emit", K, D, event=0)[x]).to_event(1), obs=y[:, t])

    with pytest.raises(ValueError, match="site 'z_1:5' of a vectorised loop was not in its first step"):
        log_prob(other_names, notes())


def test_logits_chosen_by_data_of_every_step():
    """A table's axis behind the indices are its values: Pyro's validation asks for the numbers of all steps."""
    words, bits = (3 * torch.rand(B, T, D, dtype=F64)).long(), notes().long()

    def model(loop):
        trans, emit = table("trans", K, K), pyro.param("words", lambda: torch.randn(K, 2, 3, dtype=F64))
        tones = pyro.plate("tones", D, dim=-1)
        with rows() as row:
            x = 0
            for t in loop(range(T)):
                with seen(t):
                    x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
                    with tones:
                        pyro.sample(f"y_{t}", dist.Categorical(logits=emit[x, bits[row, t]]), obs=words[row, t])

    losses = [TraceBlockedEnum_ELBO(max_plate_nesting=2).loss(model, no_guide, loop) for loop in (markov, pyro.markov)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_what_cannot_be_said_for_all_steps_goes_step_by_step():
    """Numbers in names (which Python wants as numbers), and what only the bound finds out when it happens."""
    trans = torch.tensor([[0.8, 0.2], [0.3, 0.7]], dtype=F64)

    def percent(loop, y):
        with pyro.plate("rows", B):
            x = torch.tensor(0)
            for t in loop(range(T)):
                x = pyro.sample("x_%d" % t, dist.Categorical(trans[x]), infer=MARKED)  # noqa: UP031
                pyro.sample("y_%02d" % t, dist.Bernoulli(trans[x, 0]), obs=y[:, t, 0])  # noqa: UP031

    def format_spec(loop, y):
        with pyro.plate("rows", B):
            x = torch.tensor(0)
            for t in loop(range(T)):
                x = pyro.sample(f"x_{t:02d}", dist.Categorical(trans[x]), infer=MARKED)
                pyro.sample(f"y_{t:02d}", dist.Bernoulli(trans[x, 0]), obs=y[:, t, 0])

    def table_of_rows_and_steps(loop, y):
        tables = torch.linspace(0.1, 0.9, B * T * 2, dtype=F64).reshape(B, T, 2)
        with pyro.plate("rows", B) as row:
            x = torch.tensor(0)
            for t in loop(range(T)):
                x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
                pyro.sample(f"y_{t}", dist.Bernoulli(Vindex(tables)[row, t, x]), obs=y[:, t, 0])

    y = notes()
    for program in (percent, format_spec, table_of_rows_and_steps):
        wanted = TraceEnum_ELBO(max_plate_nesting=1).loss(program, lambda *a: None, pyro.markov, y)
        elbo = TraceBlockedEnum_ELBO(max_plate_nesting=1)
        for _ in range(2):
            assert elbo.loss(program, lambda *a: None, markov, y) == pytest.approx(wanted), program.__name__
        if program is table_of_rows_and_steps:
            with pytest.raises(TypeError, match=r"vectorize=False"), BlockedEnum():
                program(markov, y)
        else:
            with BlockedEnum() as posterior:
                program(markov, y)
            assert len(next(iter(posterior.chains.values())).sites) == T

    def fails(y):
        for t in markov(range(T)):
            x = pyro.sample(f"x_{t}", dist.Categorical(trans[0]), infer=MARKED)
            pyro.sample(f"y_{t}", dist.Bernoulli(trans[x, 0]), obs=y[0, t, 0])
        raise KeyError("of its own")

    with pytest.raises(KeyError, match="^'of its own'$"):
        BlockedEnum()(lambda: fails(y))()
