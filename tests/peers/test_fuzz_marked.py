"""Random programs with marked sites against the sum over all assignments: losses, gradients, Hessians, best states.

The seed is an option of the environment: PPLSEQ_FUZZ_SEED=7 pytest tests/peers/test_fuzz_marked.py -m "slow or not slow"
"""

import os

import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from support.random_marked import Marked

from pplseq.infer import TraceBlockedEnum_ELBO
from pplseq.infer.programs.states import infer_states

F64 = torch.float64
SEED = int(os.environ.get("PPLSEQ_FUZZ_SEED", "0"))
PIECE, QUICK, ALL = 20, 20, 2000


def derivatives(value, leaves):
    """The gradient, and the Hessian times a direction."""
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves] * 2
    first = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True)
    first = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, first, strict=True)]
    along = sum((g * torch.linspace(-1, 1 + k, g.numel(), dtype=F64).view_as(g)).sum() for k, g in enumerate(first))
    second = [None] * len(leaves)
    if along.requires_grad:
        second = torch.autograd.grad(along, leaves, allow_unused=True)
    return first + [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, second, strict=True)]


def check(seed):
    program = Marked(seed)
    what = f"seed {seed}: {program}"
    expected = program.truth()
    elbo = TraceBlockedEnum_ELBO(max_plate_nesting=2)
    if not bool(expected.isfinite()):
        try:
            found = elbo.loss(program.model, program.guide)
        except ValueError as error:
            assert "impossible" in str(error) or "NaN" in str(error), what
            return
        assert float(found) == float(expected.detach()), what
        return
    found = elbo.differentiable_loss(program.model, program.guide)
    torch.testing.assert_close(found.squeeze(), expected, msg=lambda m: f"{what}\n{m}")
    pairs = zip(derivatives(found, program.leaves), derivatives(expected, program.leaves), strict=True)
    for k, (got, wanted) in enumerate(pairs):
        torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-8, msg=lambda m, k=k: f"{what}, derivative {k}\n{m}")
    alone = program.kind == "one hot" and program.sizes[0] == 1  # whose values Pyro's enumeration squeezes
    if seed % 5 == 0 and program.loop != "pplseq" and not alone:  # an oracle's own oracle
        peer = TraceEnum_ELBO(max_plate_nesting=2, strict_enumeration_warning=False)
        wanted = peer.differentiable_loss(program.model, program.guide)
        torch.testing.assert_close(torch.as_tensor(wanted, dtype=F64), expected, msg=lambda m: f"{what}, Pyro\n{m}")
    if seed % 3 == 0 and program.lengths is None and not program.latent:
        best_states(program, what)


def best_states(program, what):
    with torch.no_grad():
        total, kinds = program.joint()
        best = (kinds + total.amax(1).sum(-1)).max()
        chosen = poutine.trace(infer_states(program.model)).get_trace()
        states = {name: chosen.nodes[name]["value"] for name in program.assignments()}
        with poutine.trace() as tracer, poutine.condition(data=states):
            program.model()
        score = tracer.trace.log_prob_sum() / program.scale
        torch.testing.assert_close(score, best, msg=lambda m: f"{what}, best states\n{m}")


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
@pytest.mark.parametrize(
    "first", [pytest.param(k, marks=() if k < QUICK else pytest.mark.slow) for k in range(0, ALL, PIECE)]
)
def test_random_programs(first):
    for seed in range(first, first + PIECE):
        check(100_000 * SEED + seed)
