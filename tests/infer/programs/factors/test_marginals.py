"""Posterior marginals and draws of marked sites, against Pyro's own and against all paths."""

import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.infer.inspect import get_model_relations
from pyro.ops.indexing import Vindex
from support.grids import grid
from support.marked_programs import F64, MARKED, PROGRAMS, notes, table

import pplseq
from pplseq.infer.programs.blocked_enum import BlockedEnum, no_guide
from pplseq.infer.programs.elbo import TraceBlockedEnum_ELBO

Y = torch.tensor([[0.2, 1.5, -0.3], [-1.0, 0.8, -0.9]], dtype=F64)


def mixture(moves, means, loop=pplseq.markov):
    """Each sequence is of one class, whose chain it follows."""
    with pyro.plate("rows", len(Y), dim=-1):
        c = pyro.sample("c", dist.Categorical(torch.tensor([0.4, 0.6], dtype=F64)), infer=MARKED)
        z = torch.tensor(0)
        for t in loop(range(Y.shape[1])):
            z = pyro.sample(f"z_{t}", dist.Categorical(Vindex(moves)[c, z]), infer=MARKED)
            pyro.sample(f"y_{t}", dist.Normal(Vindex(means)[c, z], 1.0), obs=Y[:, t])


MOVES = torch.tensor([[[0.8, 0.2], [0.3, 0.7]], [[0.1, 0.9], [0.9, 0.1]]], dtype=F64)
MEANS = torch.tensor([[-1.0, 1.0], [-0.5, 0.5]], dtype=F64)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ("discrete_hmm", "counts_and_words")])
def test_marginals_are_pyro_s(name):
    pyro.clear_param_store()
    found = {}
    for nesting in (2, None):
        elbo = TraceBlockedEnum_ELBO() if nesting is None else TraceBlockedEnum_ELBO(max_plate_nesting=nesting)
        found[nesting] = elbo.compute_marginals(PROGRAMS[name], no_guide, notes())
        drawn = poutine.trace(elbo.sample_posterior).get_trace(PROGRAMS[name], no_guide, notes())
        assert found[nesting].keys() <= drawn.nodes.keys()
    wanted = TraceEnum_ELBO(max_plate_nesting=2).compute_marginals(PROGRAMS[name], no_guide, notes())
    for got in found.values():
        assert list(got) == list(wanted) and all(type(got[site]) is type(wanted[site]) for site in got)
        torch.testing.assert_close(*({site: law.probs for site, law in laws.items()} for laws in (got, wanted)))


def by_hand(moves, means):
    """(rows, C, z_0, .., z_T-1) p(class, path | y)"""
    with torch.no_grad():
        total = []
        for values in itertools.product((0, 1), repeat=1 + Y.shape[1]):
            data = dict(zip(["c", *(f"z_{t}" for t in range(Y.shape[1]))], map(torch.tensor, values), strict=True))
            trace = poutine.trace(poutine.condition(mixture, data=data)).get_trace(moves, means, range_of_steps)
            trace.compute_log_prob()
            sites = [site for site in trace.nodes.values() if site["type"] == "sample" and site["name"] != "rows"]
            total.append(sum(site["log_prob"] for site in sites))
    return torch.stack(total, -1).softmax(-1).reshape(len(Y), *(2,) * (1 + Y.shape[1]))


def range_of_steps(steps):
    return steps


@grid({"moves": [MOVES, MOVES[[0, 0]], torch.eye(2, dtype=F64).expand(2, 2, 2)], "loop": [pyro.markov, pplseq.markov]})
def test_classes_of_chains(loop, moves):
    joint = by_hand(moves, MEANS)
    found = TraceBlockedEnum_ELBO(max_plate_nesting=1).compute_marginals(mixture, no_guide, moves, MEANS, loop)
    for place, site in enumerate(["c", "z_0", "z_1", "z_2"]):
        others = [d for d in range(1, joint.dim()) if d != 1 + place]
        torch.testing.assert_close(found[site].probs, joint.sum(others), msg=lambda m, site=site: f"{site}: {m}")


def test_marginals_have_gradients():
    means = MEANS.clone().requires_grad_()

    def share(means):
        return TraceBlockedEnum_ELBO(max_plate_nesting=1).compute_marginals(mixture, no_guide, MOVES, means)["c"].probs[0, 0]

    (found,) = torch.autograd.grad(share(means), means)
    with torch.no_grad():
        for place in itertools.product(range(2), repeat=2):
            step = torch.zeros_like(MEANS)
            step[place] = 1e-5
            rise = (share(MEANS + step) - share(MEANS - step)) / 2e-5
            assert float(found[place]) == pytest.approx(float(rise), rel=1e-6, abs=1e-9)


def test_draws_have_the_posterior_s_frequencies():
    joint = by_hand(MOVES, MEANS)
    pyro.set_rng_seed(0)
    elbo, counts, number = TraceBlockedEnum_ELBO(max_plate_nesting=1), torch.zeros_like(joint), 100
    for _ in range(number):
        drawn = poutine.trace(elbo.sample_posterior).get_trace(mixture, no_guide, MOVES, MEANS).nodes
        for row in range(len(Y)):
            counts[row, *(int(drawn[site]["value"][row]) for site in ("c", "z_0", "z_1", "z_2"))] += 1
    assert float((counts / number - joint).abs().max()) < 4 * 0.5 / number**0.5


def test_guides_and_what_is_refused():
    def model():
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        x = pyro.sample("x", dist.Categorical(table("one", 2)), infer=MARKED)
        n = pyro.sample("n", dist.Binomial(2, probs=torch.tensor(0.3, dtype=F64)), infer=MARKED)
        pyro.sample("y", dist.Normal(x + n + shift, 1.0), obs=Y[0, 0])
        return x

    pyro.clear_param_store()
    guide, elbo = AutoDelta(poutine.block(model, expose=["shift"])), TraceBlockedEnum_ELBO(max_plate_nesting=0)
    found = elbo.compute_marginals(model, guide)
    value = guide()["shift"].detach()
    scores = torch.stack([dist.Normal(float(k) + value, 1.0).log_prob(Y[0, 0]) for k in range(4)])
    numbers = dist.Binomial(2, probs=torch.tensor(0.3, dtype=F64)).log_prob(torch.arange(3.0))
    weights = table("one", 2).unsqueeze(-1) * numbers.exp()
    joint = weights * scores.exp()[torch.arange(2).unsqueeze(-1) + torch.arange(3)]
    torch.testing.assert_close(found["x"].probs, joint.sum(1) / joint.sum())
    torch.testing.assert_close(found["n"].probs, joint.sum(0) / joint.sum())
    assert elbo.sample_posterior(model, guide).shape == ()

    def enumerates():
        pyro.sample("shift", dist.Delta(torch.zeros(())))
        pyro.sample("x", dist.Categorical(table("one", 2)), infer=MARKED)

    for ask in ("compute_marginals", "sample_posterior"):
        with pytest.raises(NotImplementedError, match="not compatible with guide enumeration"):
            getattr(TraceBlockedEnum_ELBO(max_plate_nesting=0), ask)(model, enumerates)
        with pytest.raises(NotImplementedError, match="one particle, got num_particles=2"):
            getattr(TraceBlockedEnum_ELBO(num_particles=2), ask)(model, guide)

    def impossible():
        x = pyro.sample("x", dist.Categorical(torch.ones(2)), infer=MARKED)
        pyro.sample("y", dist.Categorical(logits=torch.tensor([[0.0, -torch.inf]] * 2)[x]), obs=torch.tensor(1))

    with pytest.raises(ValueError, match=r"site 'x': what was observed is impossible|is impossible"):
        TraceBlockedEnum_ELBO().compute_marginals(impossible, no_guide)
    assert TraceBlockedEnum_ELBO().compute_marginals(lambda: None, no_guide) == {}
    with BlockedEnum() as posterior:
        mixture(MOVES, MEANS)
    with pytest.raises(KeyError, match="compute_marginals"):
        posterior.chains["z_0"]


def test_pictures_show_the_program():
    """``pyro.render_model``: handlers let it see all sites and what they depend on."""
    for handler in (None, BlockedEnum()):
        program = mixture if handler is None else handler(mixture)
        found = get_model_relations(program, (MOVES, MEANS))["sample_sample"]
        assert found["z_0"] == ["c"] and set(found["z_1"]) == {"c", "z_0"} and set(found["y_2"]) == {"c", "z_2"}
