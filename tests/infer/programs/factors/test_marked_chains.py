"""Chains of marked sites: every answer against Pyro's own, or against all paths."""

import functools
import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from support.marked_programs import F64, LENGTHS, MARKED, PROGRAMS, B, K, T, notes, table

from pplseq.infer.programs.blocked_enum import BlockedEnum, no_guide
from pplseq.infer.programs.factors.chains import MarkedChain


def chains_of(name, **options):
    pyro.clear_param_store()
    with poutine.block(), torch.no_grad(), BlockedEnum(max_plate_nesting=2, **options) as posterior:
        PROGRAMS[name](notes())
    return posterior.chains


def log_joint(program, values):
    """(B,) of one value for all rows at every site."""
    data = {site: torch.full((B, 1), value) for site, value in values.items()}
    trace = poutine.trace(pyro.condition(program, data=data)).get_trace(notes())
    trace.compute_log_prob()
    sites = [n["log_prob"] for n in trace.nodes.values() if n["type"] == "sample" and n["name"][:2] in ("x_", "y_")]
    return sum(site.reshape(B, -1).sum(-1) for site in sites)


@functools.cache
def all_paths(name):
    """(K^T, T), and how likely each is in each row."""
    pyro.clear_param_store()
    paths = torch.tensor(list(itertools.product(range(K), repeat=T)))
    with torch.no_grad():
        return paths, torch.stack([log_joint(PROGRAMS[name], {f"x_{t}": int(p[t]) for t in range(T)}) for p in paths])


@pytest.mark.parametrize(("name", "factor"), [("hmm", True), ("hmm", False), ("autoregressive", True)])
def test_answers_are_those_of_all_paths(name, factor):
    paths, scores = all_paths(name)
    chain = chains_of(name, factor=factor)["x_0"]
    for row in range(B):
        length = int(LENGTHS[row])
        seen = (paths[:, length:] == 0).all(-1)  # one path of each prefix
        some, score = paths[seen], scores[seen, row]
        law = score.softmax(0)
        torch.testing.assert_close(chain.log_prob()[row, 0], score.logsumexp(0))
        expected = torch.stack([torch.stack([law[some[:, t] == k].sum() for k in range(K)]) for t in range(length)])
        torch.testing.assert_close(chain.marginal("x_0")[row, 0, :length], expected)
        assert not chain.marginal("x_0")[row, 0, length:].any()
        best, best_score = chain.viterbi()
        assert torch.equal(best[row, 0, :length], some[score.argmax()][:length]) and (best[row, 0, length:] == -1).all()
        torch.testing.assert_close(best_score[row, 0], score.max())
        top, at = score.topk(min(3, len(score)))
        k_best = chain.k_best(3)
        torch.testing.assert_close(k_best[1][: len(top), row, 0], top)
        assert torch.equal(k_best[0][: len(top), row, 0, :length], some[at][:, :length])
        torch.testing.assert_close(chain.entropy()[row, 0], -(law * law.log()).sum())
    last = LENGTHS.clamp(max=T) - 1
    filtered = chain.filtered_marginal("x_0")[torch.arange(B), 0, last]
    torch.testing.assert_close(filtered, chain.marginal("x_0")[torch.arange(B), 0, last])
    with pytest.raises(TypeError, match="nothing that says what comes behind it"):
        chain.next()
    with pytest.raises(ValueError, match="expected the first site of one of the chain's variables, \\['x_0'\\]"):
        chain.marginal("x_1")


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
@pytest.mark.parametrize("name", ["factorial", "coupled", "bernoulli_states", "one_hot_states"])
def test_single_variables_of_joint_chains(name):
    chains = chains_of(name)
    elbo = TraceEnum_ELBO(max_plate_nesting=2)
    for first, chain in chains.items():
        assert isinstance(chain, MarkedChain)
        if name == "one_hot_states":
            continue
        wanted = elbo.compute_marginals(PROGRAMS[name], no_guide, notes())
        for t in range(T):
            site = f"{first[:2]}{t}"
            law = wanted[site].enumerate_support(False)
            expected = torch.stack([wanted[site].log_prob(v).exp() for v in law.flatten()], -1)
            found = chain.marginal(first)[..., t, :]
            seen = LENGTHS > t
            torch.testing.assert_close(found.reshape(B, -1)[seen], expected.detach().reshape(B, -1)[seen])
    joint = next(iter(chains.values()))
    paths = joint.sample(4)
    values = joint.values(paths)
    assert set(values) == {site for some in joint.sites for site in some} and paths.shape[0] == 4
    assert all(value.shape[: 1 + len(joint.batch_shape)] == (4, *joint.batch_shape) for value in values.values())


def test_what_is_no_chain_has_none():
    for name in ("third_order", "switched", "loop"):
        with pytest.raises(KeyError, match="'x_0' is no chain's first site; found"):
            chains_of(name)["x_0"]
    assert chains_of("switched")["kind"].marginal("kind").shape == (1, 2)  # given everything that hangs on it


def test_gradients_reach_the_program():
    pyro.clear_param_store()
    with poutine.block(), BlockedEnum(max_plate_nesting=2) as posterior:
        PROGRAMS["hmm"](notes())
    leaves = list(pyro.get_param_store()._params.values())
    found = torch.autograd.grad(posterior.chains["x_0"].log_prob().sum(), leaves)
    loss = TraceEnum_ELBO(max_plate_nesting=2).differentiable_loss(PROGRAMS["hmm"], no_guide, notes())
    for one, other in zip(found, torch.autograd.grad(loss, leaves), strict=True):
        torch.testing.assert_close(one, -other)


def test_masks_that_are_no_padding_are_refused():
    def program():
        with pyro.plate("rows", 2, dim=-1):
            x = 0
            for t in pyro.markov(range(3)):
                with poutine.mask(mask=torch.tensor([t != 1, True])):
                    x = pyro.sample(f"x_{t}", dist.Categorical(table("trans", K, K)[x]), infer=MARKED)
                    pyro.sample(f"y_{t}", dist.Normal(x.to(F64), 1.0), obs=torch.ones(2, dtype=F64))

    with poutine.block(), BlockedEnum() as posterior:
        program()
    with pytest.raises(ValueError, match="padding must come behind each row"):
        posterior.chains["x_0"].marginals()
