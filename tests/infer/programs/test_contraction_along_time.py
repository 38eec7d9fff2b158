"""Contraction along time: no limit of length for loops of pyro.markov, against a recursion by hand."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.tiny_programs import F64

from pplseq.infer.programs.contraction import contract_states

close = torch.testing.assert_close


def long_tables():
    generator = torch.Generator().manual_seed(5)
    shapes = {"first": (3,), "trans": (3, 3), "leaf": (3, 2), "twig": (2, 2), "tie": (3, 3), "word": (2, 4)}
    tables = {name: torch.randn(shape, generator=generator, dtype=F64).log_softmax(-1) for name, shape in shapes.items()}
    return {name: table.requires_grad_() for name, table in tables.items()}


def long_program(x, lengths, tables, ring):
    """A tree: a chain each of whose states has a leaf with a twig of its own, which says a word; a ring ties the last state of
    each row to the first."""
    with pyro.plate("rows", len(x), dim=-1):
        first = z = pyro.sample("z_0", dist.Categorical(logits=tables["first"]))
        for t in pyro.markov(range(1, x.shape[1] + 1)):
            with poutine.mask(mask=t <= lengths):
                z = pyro.sample(f"z_{t}", dist.Categorical(logits=tables["trans"][z]))
                leaf = pyro.sample(f"leaf_{t}", dist.Categorical(logits=tables["leaf"][z]))
                twig = pyro.sample(f"twig_{t}", dist.Categorical(logits=tables["twig"][leaf]))
                pyro.sample(f"x_{t}", dist.Categorical(logits=tables["word"][twig]), obs=x[:, t - 1])
            if ring:
                with poutine.mask(mask=t == lengths):
                    pyro.factor(f"tie_{t}", tables["tie"][first, z])


def by_hand(x, lengths, tables, ring, best):
    tables = {name: table if name == "tie" else table.log_softmax(-1) for name, table in tables.items()}
    total = (lambda v, d: v.amax(d)) if best else torch.logsumexp
    hangs = total(tables["twig"].unsqueeze(-1) + tables["word"], 1)  # (leaf, word)
    hangs = total(tables["leaf"].unsqueeze(-1) + hangs, 1)  # (state, word)
    results = []
    for row, length in enumerate(lengths.tolist()):
        message = tables["first"].diag_embed().masked_fill(~torch.eye(3, dtype=torch.bool), -torch.inf)  # (first, now)
        message = message.clamp_min(-1e6)
        for t in range(length):
            message = total(message.unsqueeze(-1) + tables["trans"], 1) + hangs[:, x[row, t]]
        results.append(total((message + tables["tie"] if ring else message).flatten(), 0))
    return torch.stack(results)


@pytest.mark.parametrize("ring", [False, True], ids=["tree", "ring"])
@pytest.mark.parametrize("steps", [30, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_limit_of_length_for_loops_of_pyro(steps, ring):
    generator = torch.Generator().manual_seed(1)
    x, lengths = torch.randint(4, (2, steps), generator=generator), torch.tensor([steps, steps - 7])
    tables = long_tables()
    found = contract_states(long_program, x, lengths, tables, ring)
    expected = by_hand(x, lengths, tables, ring, best=False)
    close(found.log_prob, expected)
    leaves = [tables[name] for name in ("first", "trans", "leaf", "twig", "word")]
    for one, other in zip(*(torch.autograd.grad(v.sum(), leaves) for v in (found.log_prob, expected)), strict=True):
        close(one, other)
    best = contract_states(long_program, x, lengths, tables, ring, mode="map")
    close(best.log_prob, by_hand(x, lengths, tables, ring, best=True).detach())
    values = best.states
    assert values is not None and values[f"z_{steps}"].tolist()[1] == -1 and values["z_0"].shape == (2,)
    data = {name: value.clamp_min(0) for name, value in values.items()}
    trace = poutine.trace(poutine.condition(long_program, data=data)).get_trace(x, lengths, tables, ring)
    close(trace.log_prob_sum().detach(), best.log_prob.sum())
    drawn = contract_states(long_program, x, lengths, tables, ring, mode="sample").states
    assert drawn is not None and set(drawn) == set(values) and int(drawn["z_1"].min()) >= 0
