"""Generic contraction against enumeration of all joint states, and against chains."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.grids import grid
from support.tiny_programs import F64, Tables, program, words

from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.programs.contraction import MODES, contract_states
from pplseq.models.vlhmm.program import VLHMM

close = torch.testing.assert_close


def table(*shape):
    return torch.randn(*shape, dtype=F64).log_softmax(-1)


def factorial(x, tables, steps=3):
    """Two chains, of 2 and 3 states, that say a word together."""
    one, two, emit = tables
    a = b = None
    for t in range(steps):
        a = pyro.sample(f"a_{t}", dist.Categorical(logits=one[0] if a is None else one[1][a]))
        b = pyro.sample(f"b_{t}", dist.Categorical(logits=two[0] if b is None else two[1][b]))
        pyro.sample(f"x_{t}", dist.Categorical(logits=emit[a, b]), obs=x[t])


def factorial_tables():
    return (table(2), table(2, 2)), (table(3), table(3, 3)), table(2, 3, 4)


def second_order(x, tables, steps=4):
    """z_t depends on the two states before."""
    start, following, matrix, emit = tables
    states = []
    for t in range(steps):
        law = (start, following[states[-1]] if t else None, matrix[states[-2], states[-1]] if t > 1 else None)[min(t, 2)]
        states.append(pyro.sample(f"z_{t}", dist.Categorical(logits=law)))
        pyro.sample(f"x_{t}", dist.Categorical(logits=emit[states[-1]]), obs=x[t])


def second_order_tables():
    return table(3), table(3, 3), table(3, 3, 3), table(3, 4)


PARENTS = [None, 0, 0, 1, 1, 2]


def tree(x, tables, steps=5):
    """A hidden Markov tree."""
    start, matrix, emit = tables
    states = []
    for t, parent in enumerate(PARENTS[:steps]):
        law = start if parent is None else matrix[states[parent]]
        states.append(pyro.sample(f"z_{t}", dist.Categorical(logits=law)))
        pyro.sample(f"x_{t}", dist.Categorical(logits=emit[states[-1]]), obs=x[t])


def tree_tables():
    return table(2), table(2, 2), table(2, 4)


def skip_chain(x, tables, steps=4):
    """A loop: the last state depends on the first as well; one latent is a Bernoulli, one has a single value."""
    start, matrix, emit = tables
    first = z = pyro.sample("z_0", dist.Categorical(logits=start))
    pyro.sample("only", dist.Categorical(torch.ones(1, dtype=F64)))
    for t in range(1, steps):
        z = pyro.sample(f"z_{t}", dist.Categorical(logits=matrix[z]))
        pyro.sample(f"x_{t}", dist.Categorical(logits=emit[z]), obs=x[t])
    same = pyro.sample("same", dist.Bernoulli(torch.where(first == z, 0.9, 0.2).to(F64)))
    pyro.sample("y", dist.Normal(same, torch.tensor(0.7, dtype=F64)), obs=torch.tensor(0.4, dtype=F64))


PROGRAMS = {
    "factorial": (factorial, factorial_tables),
    "second order": (second_order, second_order_tables),
    "tree": (tree, tree_tables),
    "skip chain": (skip_chain, tree_tables),
}


@pytest.fixture(params=PROGRAMS)
def odd(request):
    model, tables = PROGRAMS[request.param]
    torch.manual_seed(3)
    return model, torch.tensor([0, 3, 1, 1, 2, 0]), tables()


def leaves(tables):
    return [leaf for part in tables for leaf in (part if isinstance(part, tuple) else (part,))]


def every_state(model, *args):
    """{(values of all discrete sites): log p(z, x)} and the sites' names, by running the program once for each."""
    with torch.no_grad():
        sites = poutine.trace(model).get_trace(*args).nodes.values()
    supports = {
        m["name"]: m["fn"].enumerate_support().reshape(-1)
        for m in sites
        if m["type"] == "sample" and not m["is_observed"]
    }
    scores = {}
    for values in itertools.product(*supports.values()):
        fixed = poutine.condition(model, dict(zip(supports, values, strict=True)))
        scores[tuple(v.item() for v in values)] = poutine.trace(fixed).get_trace(*args).log_prob_sum()
    return scores, list(supports)


def test_log_prob_and_its_gradient(odd):
    model, x, tables = odd
    for leaf in leaves(tables):
        leaf.requires_grad_()
    scores, _ = every_state(model, x, tables)
    expected = torch.stack(list(scores.values())).logsumexp(0)
    result = contract_states(model, x, tables)
    assert result.states is None and result.log_prob.shape == ()
    close(result.log_prob, expected)
    wanted = torch.autograd.grad(expected, leaves(tables), allow_unused=True)
    for got, want in zip(torch.autograd.grad(result.log_prob, leaves(tables), allow_unused=True), wanted, strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            close(got, want)


def test_map(odd):
    model, x, tables = odd
    scores, names = every_state(model, x, tables)
    best = max(scores, key=scores.get)
    result = contract_states(model, x, tables, mode="map")
    assert list(result.states) == names
    assert tuple(value.item() for value in result.states.values()) == best
    close(result.log_prob, scores[best])


def test_sample(odd):
    model, x, tables = odd
    scores, names = every_state(model, x, tables)
    probs = torch.stack(list(scores.values())).softmax(0)

    def copies():
        with pyro.plate("copies", 400):
            model(x, tables)

    states = contract_states(copies, mode="sample").states
    draws = torch.stack([states[name].to(F64) for name in names], -1)
    assert draws.shape == (400, len(names))
    every = torch.tensor(list(scores), dtype=F64)
    index = (draws.unsqueeze(1) == every).all(-1).to(F64).argmax(-1)
    assert torch.equal(every[index], draws)
    # single sites and pairs of them, within 5 standard errors
    for i, j in itertools.combinations_with_replacement(range(len(names)), 2):
        for values in every[:, [i, j]].unique(dim=0):
            prob = probs[(every[:, [i, j]] == values).all(-1)].sum()
            frequency = (draws[:, [i, j]] == values).all(-1).to(F64).mean()
            assert (frequency - prob).abs() <= 5 * (prob * (1 - prob) / 400).clamp_min(0).sqrt() + 3e-3


# ------------------------------------------------------------------------------------------------ chains and plates
@grid({"lazy": [True, False], "lengths": [None, torch.tensor([4, 0, 2])]})
def test_a_chain(lazy, lengths):
    tables, x = Tables(), words()
    valid = None if lengths is None else torch.arange(4).unsqueeze(-1) < lengths
    chain = build_chain(*tables.specs(), x.T, valid=valid)

    def in_tensors(x, specs, lengths):
        start, matrix, emit = specs[0].initial, specs[0].matrix, specs[1].log_probs
        z = None
        with pyro.plate("sequences", len(x), dim=-1):
            for t in range(x.shape[1]):
                with poutine.mask(mask=True if lengths is None else t < lengths):
                    z = pyro.sample(f"z_{t}", dist.Categorical(logits=start if z is None else matrix[z]))
                    pyro.sample(f"x_{t}", dist.Categorical(logits=emit[z]), obs=x[:, t])

    model = program if lazy else in_tensors
    result = contract_states(model, x, tables.specs(), lengths=lengths)
    close(result.log_prob, chain.log_prob())
    close(tables.gradients(result.log_prob.sum())[:3], tables.gradients(chain.log_prob().sum())[:3])
    best = contract_states(model, x, tables.specs(), lengths=lengths, mode="map")
    close(best.log_prob, chain.viterbi()[1])
    paths = torch.stack([best.states[f"z_{t}"] for t in range(4)], 1)
    assert torch.equal(paths, chain.viterbi()[0])
    drawn = contract_states(model, x, tables.specs(), lengths=lengths, mode="sample")
    close(drawn.log_prob, chain.log_prob().detach())
    assert torch.equal(torch.stack([drawn.states[f"z_{t}"] for t in range(4)], 1) >= 0, paths >= 0)


def test_a_model():
    model = VLHMM(4, num_words=4, blocks=torch.tensor([0, 0, 1, 1]), hidden_size=4, reset_id=1).double().eval()
    x, lengths = torch.tensor([[0, 1, 3, -1], [2, 2, 1, 0]]), torch.tensor([4, 3])
    close(contract_states(model, x, lengths).log_prob, model.log_prob(x, lengths))


def test_samples_in_a_plate():
    tables, x = Tables(), words(1, 3).expand(800, 3)
    states = contract_states(program, x, tables.specs(), mode="sample").states
    drawn = torch.stack([states[f"z_{t}"] for t in range(3)])
    chain = build_chain(*tables.specs(), x[:1].T)
    single = torch.nn.functional.one_hot(drawn, 3).to(F64).mean(1)
    assert ((single - chain.marginals().probs[0]).abs() < 5 * 0.5 / math.sqrt(800)).all()
    pairs = torch.nn.functional.one_hot(drawn[:-1] * 3 + drawn[1:], 9).to(F64).mean(1)
    assert ((pairs.view(2, 3, 3) - chain.pair_marginals().probs[0]).abs() < 5 * 0.5 / math.sqrt(800)).all()


def test_subsampled_plates_scale():
    tables, x = Tables(), words(6)

    def subsampled(x):
        with pyro.plate("sequences", 6, subsample=torch.tensor([1, 4])) as rows:
            pyro.sample("x", dist.Categorical(logits=tables.logs()[2][pyro.sample("z", Categorical(0.5))]), obs=x[rows, 0])

    def Categorical(p):  # noqa: N802
        return dist.Categorical(torch.tensor([p, 1 - p, 0.0], dtype=F64))

    emit = tables.logs()[2].exp()
    expected = 3 * (0.5 * emit[0] + 0.5 * emit[1])[x[[1, 4], 0]].log()
    close(contract_states(subsampled, x).log_prob, expected)


def nested(y, tables):
    """A class for each document, a state for each of its sentences, and words in a deeper plate."""
    start, matrix, emit = tables
    documents, sentences, length = y.shape
    with pyro.plate("documents", documents, dim=-3):
        c = pyro.sample("c", dist.Categorical(logits=start))
        with pyro.plate("sentences", sentences, dim=-2):
            z = pyro.sample("z", dist.Categorical(logits=matrix[c]))
            with pyro.plate("words", length, dim=-1):
                pyro.sample("y", dist.Categorical(logits=emit[z]), obs=y)


def test_nested_plates():
    torch.manual_seed(5)
    start, matrix, emit = tables = table(2), table(2, 3), table(3, 4)
    y = torch.randint(4, (3, 2, 4))
    sentence = emit.T[y].sum(2)  # (documents, sentences, z)
    joint = (sentence.unsqueeze(-2) + matrix).logsumexp(-1).sum(1) + start  # (documents, c)
    close(contract_states(nested, y, tables).log_prob, joint.logsumexp(-1))
    best = contract_states(nested, y, tables, mode="map")
    inner = sentence.unsqueeze(-2) + matrix
    outer = inner.amax(-1).sum(1) + start
    close(best.log_prob, outer.amax(-1))
    c = best.states["c"]
    assert c.shape == (3,) and best.states["z"].shape == (3, 2)
    assert torch.equal(c, outer.argmax(-1))
    expected = inner.argmax(-1).gather(-1, c.view(3, 1, 1).expand(3, 2, 1)).squeeze(-1)
    assert torch.equal(best.states["z"], expected)
    drawn = contract_states(nested, y[:1].expand(500, 2, 4), tables, mode="sample").states
    c, z = drawn["c"], drawn["z"]
    frequency = torch.nn.functional.one_hot(c, 2).to(F64).mean(0)
    assert ((frequency - joint[0].softmax(-1)).abs() < 5 * 0.5 / math.sqrt(500)).all()
    for value in range(2):  # the inner states given the outer one
        given = torch.nn.functional.one_hot(z[c == value], 3).to(F64).mean(0)
        probs = inner[0, :, value].softmax(-1)
        assert ((given - probs).abs() < 5 * 0.5 / math.sqrt(int((c == value).sum()))).all()


def test_a_state_for_all_rows():
    # one class outside of the plate of its observations
    x = words(5, 1)[:, 0]
    start, emit = table(2), table(2, 4)

    def model(x):
        c = pyro.sample("c", dist.Categorical(logits=start))
        with pyro.plate("rows", 5):
            pyro.sample("x", dist.Categorical(logits=emit[c]), obs=x)

    close(contract_states(model, x).log_prob, (start + emit[:, x].sum(-1)).logsumexp(0))


def test_what_touches_no_state_is_left_out():
    tables, x = Tables(), words()

    def model(x):
        pyro.sample("rate", dist.Exponential(1.0), obs=torch.tensor(2.0))
        program(x, tables.specs())

    close(contract_states(model, x).log_prob, build_chain(*tables.specs(), x.T).log_prob())


def test_impossible_observations():
    start, emit = torch.tensor([1.0, 0.0], dtype=F64).log(), torch.eye(2, dtype=F64).log()

    def model(x):
        z = pyro.sample("z", dist.Categorical(logits=start))
        pyro.sample("x", dist.Categorical(logits=emit[z]), obs=x)

    close(contract_states(model, torch.tensor(0)).log_prob, torch.zeros((), dtype=F64))
    assert contract_states(model, torch.tensor(1)).log_prob == -math.inf
    assert contract_states(model, torch.tensor(1), mode="map").log_prob == -math.inf


def test_as_many_sites_as_there_are_dimensions():
    tables, x = Tables(), words(2, 61)
    close(contract_states(program, x, tables.specs()).log_prob, build_chain(*tables.specs(), x.T).log_prob())
    with pytest.raises(ValueError, match="70 unobserved discrete sites .* at most 61 can be contracted.*BlockedEnum"):
        contract_states(program, words(2, 70), tables.specs())


# ------------------------------------------------------------------------------------------------ refusals
def test_unknown_mode():
    with pytest.raises(ValueError, match=f"mode must be one of {', '.join(MODES)}"):
        contract_states(program, words(), Tables().specs(), mode="mean")


def test_continuous_latents_are_refused():
    def model():
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        z = pyro.sample("z", dist.Categorical(torch.ones(2)))
        pyro.sample("x", dist.Normal(loc + z, 1.0), obs=torch.tensor(1.0))

    with pytest.raises(ValueError, match="sites loc are latent and cannot be enumerated.*condition"):
        contract_states(model)
    fixed = contract_states(poutine.condition(model, {"loc": torch.tensor(0.5)}))
    parts = [dist.Normal(loc, 1.0).log_prob(torch.tensor(1.0)) + math.log(0.5) for loc in (0.5, 1.5)]
    close(fixed.log_prob, torch.stack(parts).logsumexp(0))


def test_nothing_to_contract():
    with pytest.raises(ValueError, match="no unobserved discrete site"):
        contract_states(lambda: pyro.sample("x", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0)))


def test_crossing_plates_are_refused():
    def model():
        with pyro.plate("rows", 2, dim=-2):
            a = pyro.sample("a", dist.Categorical(torch.ones(2)))
        with pyro.plate("columns", 3, dim=-1):
            b = pyro.sample("b", dist.Categorical(torch.ones(2)))
        with pyro.plate("rows_", 2, dim=-2), pyro.plate("columns_", 3, dim=-1):
            pyro.sample("x", dist.Normal((a + b).float(), 1.0), obs=torch.zeros(2, 3))

    with pytest.raises(ValueError, match="plates"):
        contract_states(model)


def test_an_unmasked_child_of_a_masked_state_is_refused():
    transition, emission = Tables().specs()

    def model(x):
        with pyro.plate("rows", 3):
            with poutine.mask(mask=torch.tensor([True, False, True])):
                z = pyro.sample("z_0", transition(None))
            pyro.sample("x_0", emission(z), obs=x)

    with pytest.raises(ValueError, match="'x_0' depends on 'z_0' where that is masked"):
        contract_states(model, words()[:, 0])


def test_different_scales_are_refused():
    transition, emission = Tables().specs()

    def model(x):
        z = pyro.sample("z_0", transition(None))
        with poutine.scale(scale=0.5):
            pyro.sample("x_0", emission(z), obs=x)

    with pytest.raises(ValueError, match="'x_0': all sites must have the same scale, 1.0; got 0.5"):
        contract_states(model, torch.tensor(0))


def test_the_state_of_randomness_is_left_alone_by_the_first_look():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    contract_states(program, words(), Tables().specs())
    assert torch.equal(torch.rand(1), expected)


def test_mixtures_of_chains():
    tables, x = Tables(batch=(2,)), words(3, 3)
    transition, emission = tables.specs()

    def mixture(x):
        with pyro.plate("rows", len(x)):
            c = pyro.sample("c", dist.Categorical(torch.tensor([0.3, 0.7], dtype=F64)))
            z = None
            for t in range(x.shape[1]):
                logits = transition.initial[c] if z is None else transition.matrix[c, z]
                z = pyro.sample(f"z_{t}", dist.Categorical(logits=logits))
                pyro.sample(f"x_{t}", dist.Categorical(logits=emission.log_probs[c, z]), obs=x[:, t])

    parts = []
    for c, weight in enumerate((0.3, 0.7)):
        specs = DenseTransition(transition.initial[c], transition.matrix[c]), CategoricalEmission(emission.log_probs[c])
        parts.append(build_chain(*specs, x.T).log_prob() + math.log(weight))
    close(contract_states(mixture, x).log_prob, torch.stack(parts).logsumexp(0))
