"""Learning: SVI, ELBOModule, guides, NUTS, and a further enumerated site around the chains."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.infer.mcmc.util import initialize_model
from pyro.nn import PyroModule
from support.grids import grid
from support.oracles.discrete import generic_log_prob
from support.tiny_programs import F64, SmallHMM, Tables, mixture, program, words

from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.programs.blocked_enum import BlockedEnum, no_guide
from pplseq.infer.programs.elbo import TraceBlockedEnum_ELBO
from pplseq.models.vlhmm.program import VLHMM

close = torch.testing.assert_close


def adam(lr=0.05):
    return pyro.optim.Adam({"lr": lr})


# ------------------------------------------------------------------------------------------------ parameters
class Inside(PyroModule):
    """The messenger entered inside the module's own call, as SequenceModel does."""

    def __init__(self, lazy):
        super().__init__()
        self.inner = SmallHMM(lazy=lazy)

    def forward(self, x):
        with BlockedEnum():
            self.inner(x)


def wrapped(how, lazy):
    """(module, program for SVI, the ELBO) with the messenger at different places."""
    if how == "inside":
        module = Inside(lazy)
        return module, module, Trace_ELBO()
    module = SmallHMM(lazy=lazy)
    if how == "outside":
        return module, BlockedEnum()(module), Trace_ELBO()
    if how == "elbo":
        return module, module, TraceBlockedEnum_ELBO()
    if how == "a function that calls it":
        return module, BlockedEnum()(lambda x: module(x)), Trace_ELBO()
    raise KeyError(how)


@grid({"how": ["inside", "outside", "elbo"], "lazy": [False, True]})
def test_svi_trains_the_parameters_of_a_module(how, lazy):
    module, model, elbo = wrapped(how, lazy)
    x = words(6, 5)
    before = {name: value.clone() for name, value in module.named_parameters()}
    with poutine.trace(param_only=True) as trace:
        elbo.differentiable_loss(model, no_guide, x)
    names = {name for name, node in trace.trace.nodes.items() if node["type"] == "param"}
    prefix = "inner." if how == "inside" else ""
    assert names == {f"{prefix}{name}" for name in ("start", "table", "emit")}
    svi = SVI(model, no_guide, adam(), elbo)
    losses = [svi.step(x) for _ in range(30)]
    assert set(pyro.get_param_store()) == names
    for name, value in module.named_parameters():
        assert not torch.equal(value, before[name]), f"{name} was never trained"
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("how", ["inside", "outside", "elbo"])
def test_all_ways_in_give_the_same_loss(how):
    x = words(6, 5)
    _, model, elbo = wrapped(how, False)
    expected = -generic_log_prob(SmallHMM(), x)
    close(elbo.differentiable_loss(model, no_guide, x), expected)


@pytest.mark.parametrize("vectorize", [True, False])
def test_elbo_module_with_torch_optim(vectorize):
    module, x = SmallHMM(), words(6, 5)
    elbo = TraceBlockedEnum_ELBO(vectorize=vectorize)(module, no_guide)
    assert {name.split(".", 1)[1] for name, _ in elbo.named_parameters()} == {n for n, _ in module.named_parameters()}
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = elbo(x)
        loss.backward()
        assert all(p.grad is not None for p in module.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.5


def test_a_sequence_model_needs_no_messenger_around_it():
    model, x = VLHMM(4, num_words=4, blocks=torch.tensor([0, 0, 1, 1]), hidden_size=4).double(), words(3, 5)
    losses = [elbo(model, no_guide)(x) for elbo in (Trace_ELBO(), TraceBlockedEnum_ELBO())]
    close(losses[0], losses[1])
    close(losses[0], -model.log_prob(x).sum())
    svi = SVI(model, no_guide, adam(), Trace_ELBO())
    before = model.state_dict()["start_score.weight"].clone()
    svi.step(x)
    assert not torch.equal(model.state_dict()["start_score.weight"], before)


def test_several_particles():
    specs, x = Tables().specs(), words()
    once = TraceBlockedEnum_ELBO().loss(program, no_guide, x, specs)
    assert TraceBlockedEnum_ELBO(num_particles=2).loss(program, no_guide, x, specs) == pytest.approx(once)


# ------------------------------------------------------------------------------------------------ latent parameters
def bayesian(x, num_states=2, num_words=4):
    """Dirichlet priors on every row."""
    ones = torch.ones(num_states, dtype=F64)
    start = pyro.sample("start", dist.Dirichlet(ones))
    with pyro.plate("states", num_states):
        table = pyro.sample("table", dist.Dirichlet(2 * ones))
        emit = pyro.sample("emit", dist.Dirichlet(torch.ones(num_words, dtype=F64)))
    program(x, (DenseTransition.from_probs(start, table), CategoricalEmission.from_probs(emit)))


def log_joint(x, start, table, emit):
    chain = build_chain(DenseTransition.from_probs(start, table), CategoricalEmission.from_probs(emit), x.T)
    prior = dist.Dirichlet(torch.ones_like(start)).log_prob(start)
    prior = prior + dist.Dirichlet(2 * torch.ones_like(table)).log_prob(table).sum()
    return prior + dist.Dirichlet(torch.ones_like(emit)).log_prob(emit).sum() + chain.log_prob().sum()


def test_point_estimates():
    x, guide = words(4, 5), AutoDelta(poutine.block(bayesian, expose=["start", "table", "emit"]))
    model = poutine.block(BlockedEnum()(bayesian), hide_fn=lambda site: False)
    svi = SVI(model, guide, adam(), Trace_ELBO())
    guide(x)
    values = guide.median(x)
    assert svi.evaluate_loss(x) == pytest.approx(-log_joint(x, **values).item())
    losses = [svi.step(x) for _ in range(20)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("elbo", [TraceBlockedEnum_ELBO(), TraceBlockedEnum_ELBO(vectorize=False)])
def test_a_continuous_latent_with_an_autoguide(elbo):
    x = words(8, 6)

    def model(x):
        temperature = pyro.sample("temperature", dist.LogNormal(torch.tensor(0.0, dtype=F64), 1.0))
        start, table, emit = Tables().logs()
        program(x, (DenseTransition(start, table), CategoricalEmission((emit / temperature).log_softmax(-1))))

    guide = AutoNormal(poutine.block(model, expose=["temperature"]))
    svi = SVI(model, guide, adam(0.02), elbo)
    first = sum(svi.step(x) for _ in range(5))
    for _ in range(40):
        svi.step(x)
    assert sum(svi.step(x) for _ in range(5)) < first
    assert set(pyro.get_param_store()) == {"AutoNormal.locs.temperature", "AutoNormal.scales.temperature"}


def test_nuts_over_parameters():
    x = words(4, 5)
    model = BlockedEnum()(bayesian)
    start, potential, transforms, _ = initialize_model(model, model_args=(x,))
    values = {name: transforms[name].inv(value) for name, value in start.items()}
    jacobian = sum(transforms[n].log_abs_det_jacobian(values[n], start[n]).sum() for n in values)
    # the potential is that of the unconstrained parameters
    close(potential(start), -log_joint(x, **values) + jacobian)
    pyro.set_rng_seed(1)
    mcmc = MCMC(NUTS(model, max_tree_depth=3), num_samples=6, warmup_steps=6, disable_progbar=True)
    mcmc.run(x)
    samples = mcmc.get_samples()
    assert samples["table"].shape == (6, 2, 2) and torch.isfinite(samples["table"]).all()
    assert len(samples["start"].unique(dim=0)) > 1


# ------------------------------------------------------------------------------------------------ outer enumeration
def mixture_by_hand(x, tables):
    """log p(x) of each row: log sum_c p(c) p(x | c)."""
    transition, emission = tables
    parts = []
    for c, weight in enumerate((0.3, 0.7)):
        chain = build_chain(
            DenseTransition(transition.initial[c], transition.matrix[c]), CategoricalEmission(emission.log_probs[c]), x.T
        )
        parts.append(chain.log_prob() + torch.tensor(weight, dtype=F64).log())
    return torch.logsumexp(torch.stack(parts), 0).sum()


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_a_mixture_of_hmms(vectorize, steps):
    tables, x = Tables(batch=(2,)), words(3, steps)
    model = BlockedEnum(vectorize=vectorize)(mixture)
    loss = TraceEnum_ELBO(max_plate_nesting=1).differentiable_loss(model, no_guide, x, tables.specs())
    expected = mixture_by_hand(x, tables.specs())
    close(-loss, expected)
    for got, wanted in zip(tables.gradients(-loss)[:3], tables.gradients(expected)[:3], strict=True):
        if wanted is not None:
            close(torch.zeros_like(wanted) if got is None else got, wanted)


def test_a_row_may_be_impossible_under_one_component():
    x = torch.tensor([[0, 0, 0], [1, 1, 0]])
    start, table = torch.full((2, 2), 0.5, dtype=F64), torch.full((2, 2, 2), 0.5, dtype=F64)
    emit = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [0.2, 0.8]]], dtype=F64)
    tables = DenseTransition.from_probs(start, table), CategoricalEmission.from_probs(emit)
    loss = TraceEnum_ELBO(max_plate_nesting=1).loss(BlockedEnum()(mixture), no_guide, x, tables)
    expected = (0.3 + 0.7 * 0.35**3) * 0.7 * 0.65**2 * 0.35
    assert -loss == pytest.approx(torch.tensor(expected).log().item(), rel=1e-5)
    with pytest.raises(ValueError, match="row 1, step 0"):
        nothing = CategoricalEmission.from_probs(emit[:1].expand(2, -1, -1))
        TraceEnum_ELBO(max_plate_nesting=1).loss(BlockedEnum()(mixture), no_guide, x, (tables[0], nothing))
