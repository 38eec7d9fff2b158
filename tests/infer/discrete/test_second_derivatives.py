"""Second derivatives of every chain, against those of an enumeration of all paths; ``torch.func``; and what is refused."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import JitTrace_ELBO
from pyro.infer.autoguide import AutoLaplaceApproximation
from support.tiny_chains import COMMON, SITUATIONS, Case, cases
from support.tiny_families import FAMILIES

from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.programs.blocked_enum import BlockedEnum, no_guide
from pplseq.infer.programs.linear_chain import LinearChain
from pplseq.infer.programs.markov import markov
from pplseq.kernels.log_semiring import log_norm_reference, streamed_log_norm
from pplseq.kernels.pair_scan import (
    pair_chain_log_prob,
    pair_gates,
    pair_gates_reference,
    pair_matrices_reference,
    plan_pairs,
)
from pplseq.kernels.scan import chain_log_prob, forward_twin

close = torch.testing.assert_close
F64 = torch.float64
pytestmark = pytest.mark.filterwarnings(r"ignore:.torch.jit:DeprecationWarning")
SHORT = [parameter for parameter in cases() if parameter.values[1] in (*COMMON, "one step")]


def curvature(value, parameters):
    """The product of the Hessian with a fixed direction, and with another one of the gradient: everything mixes."""
    first = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True)
    total = 0.0
    for k, grad in enumerate(first):
        if grad is not None and grad.requires_grad:
            total = total + (grad * torch.linspace(-1, 2 + k, grad.numel(), dtype=grad.dtype).view_as(grad)).sum()
    second = torch.autograd.grad(total, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, second, strict=True)]


@pytest.mark.parametrize("family, situation", SHORT)
def test_every_chain(family, situation):
    start = {"start and empty rows": True}.get(situation, False)
    c = Case(FAMILIES[family](seed=7), SITUATIONS[situation], start)
    expected = torch.stack([truth.log_prob for truth in c.truths])
    if not expected.requires_grad:
        return
    weight = torch.linspace(0.5, 2.0, len(expected), dtype=expected.dtype)
    parameters = c.family.parameters
    got = curvature((c.chain().log_prob() * weight).sum(), parameters)
    for a, b in zip(got, curvature((expected * weight).sum(), parameters), strict=True):
        close(a, b)


def factors(steps=4, rows=3, size=3):
    generator = torch.Generator().manual_seed(1)
    shapes = (size,), (size, size), (steps, rows, size)
    init, pair, emit = (torch.randn(s, generator=generator, dtype=F64).log_softmax(-1) for s in shapes)
    return init, pair, emit, torch.arange(steps).unsqueeze(-1) < torch.tensor([4, 1, 2])


def test_a_norm_has_the_derivatives_of_differences():
    out, into = (torch.randn(4, 2, dtype=F64, requires_grad=True) for _ in range(2))
    torch.autograd.gradgradcheck(streamed_log_norm, (out, into))
    close(streamed_log_norm(out, into), log_norm_reference(out, into))


def test_pairs_of_blocks():
    """Gates and inner softmaxes of distinct pairs, over rows that restart, with a padded slot."""
    left, entered = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
    filled = torch.tensor([[True, True, True], [True, True, False], [True, True, False]])
    init, _, emit, valid = factors()
    pair_of, restart = torch.randint(3, (3, 3)), torch.rand(4, 3) < 0.4
    plan = plan_pairs(left, entered, pair_of, ~restart[1:])
    parameters = [torch.randn(s, dtype=F64, requires_grad=True) for s in ((2, 3, 2), (2, 3, 2), (3, 2), (3,), (4, 3, 3))]

    def fast(out, into, weight, bias, to):
        gate = pair_gates(out, weight, bias, plan, entered)[pair_of]
        more = dict(filled=filled, valid=valid, restart=restart, restart_to=to)
        return pair_chain_log_prob(out, into, gate, init, emit, plan, **more).log_prob.square().sum()

    def slow(out, into, weight, bias, to):
        gate = pair_gates_reference(out, weight, bias, plan, entered)[pair_of]
        matrices = pair_matrices_reference(out, into, gate, plan, filled)
        matrices = torch.where(restart[1:][..., None, None], to[1:].unsqueeze(-2), matrices)
        return forward_twin(init, matrices, emit, valid, False, None, None)[0].square().sum()

    for a, b in zip(curvature(fast(*parameters), parameters), curvature(slow(*parameters), parameters), strict=True):
        close(a, b)


def test_conditional_random_fields():
    scores, pair = torch.randn(2, 4, 3, dtype=F64), torch.randn(3, 3, dtype=F64)
    lengths, path = torch.tensor([4, 2]), torch.tensor([[0, -1, 2, 1], [2, 0, -1, -1]])

    def log_prob(scores, pair):
        return LinearChain(scores, pair, lengths).log_prob(path).sum()

    found = torch.autograd.functional.hessian(log_prob, (scores, pair))
    expected = torch.func.hessian(log_prob, argnums=(0, 1))(scores, pair)
    close(found, expected)
    assert (found[0][0].reshape(24, 24).diagonal() != 0).sum() > 6


# ------------------------------------------------------------------------------------------------ transforms
def log_prob(logits, x, **options):
    start, table, emit = (part.log_softmax(-1) for part in logits)
    chain = build_chain(DenseTransition(start, table), CategoricalEmission(emit), x, **options)
    return chain.log_prob().sum()


def logits(*batch):
    return tuple(torch.randn(*batch, *s, dtype=F64) for s in ((3,), (3, 3), (3, 4)))


def test_functions_of_functions():
    x = torch.randint(4, (5, 2))
    values = logits()
    leaves = [v.clone().requires_grad_() for v in values]
    expected = torch.autograd.grad(log_prob(leaves, x), leaves)
    close(torch.func.grad(lambda v: log_prob(v, x))(values), expected)
    hessian = torch.autograd.functional.hessian(lambda *v: log_prob(v, x), values)
    close(torch.func.hessian(lambda v: log_prob(v, x))(values), hessian)
    flat = torch.autograd.functional.hessian(lambda v: log_prob((values[0], v, values[2]), x), values[1])
    difference = torch.zeros(9, 9, dtype=F64)
    for k, step in enumerate(1e-5 * torch.eye(9, dtype=F64).view(9, 3, 3)):
        up, down = (torch.func.grad(lambda v: log_prob((values[0], v, values[2]), x))(values[1] + s) for s in (step, -step))
        difference[k] = (up - down).flatten() / 2e-5
    close(flat.reshape(9, 9), difference, rtol=1e-6, atol=1e-7)


def test_many_parameters_at_once():
    x, values = torch.randint(4, (5, 2)), logits(4)
    each = torch.func.vmap(lambda v: log_prob(v, x))(values)
    by_one = torch.stack([log_prob([v[k] for v in values], x) for k in range(4)])
    close(each, by_one)
    scores = torch.func.vmap(torch.func.grad(lambda v: log_prob(v, x)))(values)
    close(scores[1][2], torch.func.grad(lambda v: log_prob(v, x))([v[2] for v in values])[1])


# ------------------------------------------------------------------------------------------------ programs
def hmm(x, prior=3.0):
    stay = pyro.sample("stay", dist.Normal(torch.zeros((), dtype=F64), prior))
    p = torch.sigmoid(torch.stack([stay, -stay]))
    matrix = torch.stack([p, p.flip(0)]).log()
    transition = DenseTransition(torch.full((2,), 0.5, dtype=F64).log(), matrix)
    emission = CategoricalEmission(torch.tensor([[0.8, 0.2], [0.3, 0.7]], dtype=F64).log())
    z = None
    with pyro.plate("rows", len(x), dim=-1):
        for t in markov(range(x.shape[1])):
            z = pyro.sample(f"z_{t}", transition(z))
            pyro.sample(f"x_{t}", emission(z), obs=x[:, t])


def test_the_width_of_a_laplace_approximation():
    x = torch.randint(2, (3, 9), generator=torch.Generator().manual_seed(3))
    guide = AutoLaplaceApproximation(BlockedEnum()(hmm))
    guide(x)
    with torch.no_grad():
        guide.loc.fill_(0.4)
    normal = guide.laplace_approximation(x)
    width = (normal.scale * normal.scale_tril.squeeze(0)).squeeze()

    def joint(stay):
        model = pyro.poutine.condition(BlockedEnum()(hmm), {"stay": stay})
        return pyro.poutine.trace(model).get_trace(x).log_prob_sum()

    at, h = torch.tensor(0.4, dtype=F64), 1e-3
    second = (joint(at + h) - 2 * joint(at) + joint(at - h)) / h**2
    close(width, (-second).rsqrt().to(width.dtype), rtol=1e-4, atol=1e-6)


def test_jit_is_refused_by_name():
    x = torch.randint(2, (3, 4))
    with pytest.raises(NotImplementedError, match="JitTrace_ELBO"):
        model = pyro.poutine.condition(hmm, {"stay": torch.tensor(0.1, dtype=F64)})
        JitTrace_ELBO().loss_and_grads(BlockedEnum()(model), no_guide, x)
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace"):
        torch.jit.trace(lambda *v: chain_log_prob(*v, None, True).log_prob, factors()[:3])
