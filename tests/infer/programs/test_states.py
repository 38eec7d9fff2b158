"""States at the program's own sites, and the check of the vectorised form."""

import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.oracles.discrete import generic_log_prob, program_log_prob
from support.tiny_programs import F64, SmallHMM, Tables, program, traced_log_prob, words

from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.markov import markov
from pplseq.infer.programs.states import check_vectorizable, infer_states
from pplseq.models.vlhmm.program import VLHMM

close = torch.testing.assert_close


def states_of(trace, steps):
    return torch.stack([trace.nodes[f"z_{t}"]["value"] for t in range(steps)], -1)


@pytest.mark.parametrize("loop", [markov, pyro.markov], ids=["pplseq.markov", "pyro.markov"])
def test_best_states(loop):
    specs, x = Tables().specs(), words(3, 4)
    lengths = torch.tensor([4, 0, 2])
    trace = poutine.trace(infer_states(program)).get_trace(x, specs, lengths=lengths, loop=loop)
    paths, _ = build_chain(*specs, x.T, valid=torch.arange(4).unsqueeze(-1) < lengths).viterbi()
    assert torch.equal(states_of(trace, 4), paths)


def test_best_states_have_the_best_joint_probability():
    specs, x = Tables().specs(), words(2, 3)
    trace = poutine.trace(infer_states(program)).get_trace(x, specs)
    best = trace.log_prob_sum()
    for path in itertools.product(range(3), repeat=3):
        fixed = poutine.condition(program, {f"z_{t}": torch.tensor([z, z]) for t, z in enumerate(path)})
        assert program_log_prob(fixed, x, specs) <= best + 1e-9


def test_sampled_states():
    specs, x = Tables().specs(), words(1, 3)
    chain = build_chain(*specs, x.T)
    sample = infer_states(program, mode="sample")
    drawn = torch.stack([states_of(poutine.trace(sample).get_trace(x, specs), 3)[0] for _ in range(400)])
    frequency = torch.nn.functional.one_hot(drawn, 3).double().mean(0)
    assert ((frequency - chain.marginals().probs[0]).abs() < 5 * 0.5 / 20).all()
    assert len({tuple(path) for path in drawn.tolist()}) > 1


def test_unknown_mode():
    with pytest.raises(ValueError, match="mode must be one of"):
        infer_states(program, mode="median")


def test_modules_and_models():
    x = words(3, 4)
    trace = poutine.trace(infer_states(SmallHMM())).get_trace(x)
    assert states_of(trace, 4).shape == (3, 4)
    model = VLHMM(4, num_words=4, blocks=torch.tensor([0, 0, 1, 1]), hidden_size=4).double().eval()
    x = torch.tensor([[0, 3, -1, 1], [2, 2, 0, 0]])
    trace = poutine.trace(infer_states(model)).get_trace(x, torch.tensor([4, 2]))
    assert torch.equal(states_of(trace, 4), model.posterior(x, torch.tensor([4, 2])).viterbi()[0])


def test_states_belong_to_the_other_latent_values_of_the_same_run():
    # with another draw of `shift` the inferred states would be other ones
    start, table = torch.zeros(2, dtype=F64).log_softmax(-1), torch.eye(2, dtype=F64).mul(0.8).add(0.1).log()

    def model(x):
        with pyro.plate("shifts", 1):
            flip = pyro.sample("flip", dist.Bernoulli(torch.tensor([0.5], dtype=F64)))
        emit = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=F64)
        emit = torch.where(flip.bool(), emit.flip(0), emit)
        program(x, (DenseTransition(start, table), CategoricalEmission(emit.log())))

    x = torch.tensor([[0, 0, 1, 1]])
    for _ in range(10):
        trace = poutine.trace(infer_states(model)).get_trace(x)
        states = states_of(trace, 4)[0]
        assert torch.equal(states, 1 - x[0] if bool(trace.nodes["flip"]["value"]) else x[0])


def test_states_of_a_subsample_belong_to_its_rows():
    uniform, x = torch.full((4,), 0.25, dtype=F64), words(20, 4)
    emission = CategoricalEmission.from_probs(torch.eye(4, dtype=F64) * 0.6 + 0.1)  # so that the best state is the word
    specs = DenseTransition.from_probs(uniform, uniform.expand(4, 4)), emission

    def subsampled(x):
        with pyro.plate("sequences", len(x), subsample_size=3, dim=-1) as rows:
            z = None
            for t in markov(range(x.shape[1])):
                z = pyro.sample(f"z_{t}", specs[0](z))
                pyro.sample(f"x_{t}", specs[1](z), obs=x[rows][:, t])

    trace = poutine.trace(infer_states(subsampled)).get_trace(x)
    rows = trace.nodes["sequences"]["value"]
    assert torch.equal(states_of(trace, 4), x[rows])


# ------------------------------------------------------------------------------------------------ vectorizable or not
def test_a_plain_program_is_vectorizable():
    check_vectorizable(program, words(), Tables().specs(), lengths=torch.tensor([4, 1, 3]))
    check_vectorizable(SmallHMM(), words())
    model = VLHMM(4, num_words=4, blocks=torch.tensor([0, 0, 1, 1]), hidden_size=4, state_dropout=0.5, reset_id=1)
    check_vectorizable(model, torch.tensor([[0, -1, 1, 2], [1, 1, 2, 0]]), torch.tensor([4, 3]))


KINDS = ["a running sum", "an earlier observation", "a sum in place", "a list", "a count", "a site", "a factor", "nothing"]


def carries_more(x, kind):
    """Programs whose body carries something else than the state from step to step."""
    transition, emission = Tables().step_specs()
    plain, _ = Tables().specs()
    z, seen_before, count, Outside.before = None, torch.zeros(len(x), dtype=F64), 0, torch.zeros(len(x), dtype=F64)
    sums = [seen_before]
    with pyro.plate("sequences", len(x), dim=-1):
        for t in markov(range(x.shape[1])):
            if kind in ("nothing", "a site", "a factor"):
                z = pyro.sample(f"z_{t}", plain(z))
            else:
                u = {"a list": sums[-1], "elsewhere": Outside.before, "a count": 0.1 * x[:, count]}.get(kind, seen_before)
                z = pyro.sample(f"z_{t}", transition(z, inputs=torch.stack([u, u], -1).to(F64)))
            y = pyro.sample(f"x_{t}", emission(z), obs=x[:, t])
            if kind == "a running sum":
                seen_before = seen_before + y
            elif kind == "an earlier observation":
                seen_before = y.to(F64)
            elif kind == "a sum in place":
                seen_before += y
            elif kind == "a list":
                sums.append(y.to(F64))
            elif kind == "a count":
                count += 1
            elif kind == "elsewhere":
                Outside.keep(y.to(F64))
            elif kind == "a site":
                pyro.sample(f"w_{t}", dist.Normal(0.0, 1.0), obs=x[:, t].to(F64))
            elif kind == "a factor":
                pyro.factor(f"f_{t}", x[:, t].to(F64))


class Outside:
    """Something that a body can change where nobody sees it."""

    sites = 0
    before = torch.zeros(3, dtype=F64)

    @classmethod
    def keep(cls, y):
        cls.before = y

    @classmethod
    def count(cls):
        cls.sites += 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_carries_more_goes_step_by_step(kind):
    x = words(3, 5)
    expected = generic_log_prob(carries_more, x, kind)
    for vectorize in (True, False):
        close(traced_log_prob(carries_more, x, kind, vectorize=vectorize)[0], expected)
    check_vectorizable(carries_more, x, kind)


def test_what_nobody_sees_is_found_out():
    x = words(3, 5)
    with pytest.raises(ValueError, match="vectorize=False"):
        check_vectorizable(carries_more, x, "elsewhere")

    def often(x):
        carries_more(x, "nothing")
        Outside.sites = 0
        for _ in markov(range(5)):
            Outside.count()
        pyro.factor("f", torch.tensor(float(Outside.sites)))

    with pytest.raises(ValueError, match="site 'f' has another log-probability"):
        check_vectorizable(often, x)


def test_the_check_leaves_no_trace():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with poutine.trace() as trace:
        check_vectorizable(program, words(), Tables().specs())
    assert torch.equal(torch.rand(2), expected)
    assert not trace.trace.nodes


def test_a_handler_shows_its_chains():
    handler = BlockedEnum()
    with poutine.block(), handler:
        program(words(), Tables().specs())
    assert list(handler.chains) == ["z_0"] and handler.state_names["z_0"] == ["z_0", "z_1:4"]
