"""Parameters of collapsed programs: SVI, HMC and NUTS, mini-batches, and what a program must not carry along."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import HMC, MCMC, NUTS, SVI, Trace_ELBO
from pyro.nn import PyroModule, PyroParam, PyroSample
from support.linear_systems import LENGTHS, B, N, System, T, close, collapse, lazy

from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.infer.programs.blocked_enum import no_guide
from pplseq.infer.programs.kalman_collapse import KalmanCollapse, TraceKalman_ELBO
from pplseq.infer.programs.markov import markov
from pplseq.infer.programs.states import check_vectorizable
from pplseq.models.lds.program import LDS

F64 = torch.float64


class Model(PyroModule):
    def __init__(self):
        super().__init__()
        self.A = PyroParam(0.5 * torch.eye(2, dtype=torch.float64))
        self.noise = PyroParam(torch.ones(2, dtype=torch.float64), torch.distributions.constraints.positive)

    def forward(self, y):
        x, eye = None, torch.eye(2, dtype=torch.float64)
        with pyro.plate("rows", len(y), dim=-1):
            for t in markov(range(y.shape[1])):
                fn = LinearGaussian(None, None, eye) if x is None else LinearGaussian(x, self.A, eye)
                x = pyro.sample(f"z_{t}", fn)
                pyro.sample(f"x_{t}", LinearGaussian(x, eye, self.noise), obs=y[:, t])


@pytest.mark.parametrize("outside", [True, False])
def test_svi_trains_the_parameters_of_a_module(outside):
    pyro.clear_param_store()
    torch.manual_seed(0)
    model, y = Model(), torch.randn(5, 6, 2, dtype=torch.float64)
    program, elbo = (KalmanCollapse()(model), Trace_ELBO()) if outside else (model, TraceKalman_ELBO())
    svi = SVI(program, no_guide, pyro.optim.Adam({"lr": 0.05}), elbo)
    losses = [svi.step(y) for _ in range(10)]
    assert losses[-1] < losses[0] - 0.1
    assert (model.A - 0.5 * torch.eye(2)).abs().max() > 0.05 and (model.noise - 1).abs().max() > 0.05


def test_hmc_over_parameters():
    s = System(2)
    y = s.y.detach()

    def program():
        scale = pyro.sample("scale", dist.LogNormal(torch.zeros((), dtype=torch.float64), 1.0))
        x, eye = None, torch.eye(2, dtype=torch.float64)
        with pyro.plate("rows", B, dim=-1):
            for t in markov(range(T)):
                fn = LinearGaussian(None, None, eye) if x is None else LinearGaussian(x, s.A.detach(), scale * eye)
                x = pyro.sample(f"z_{t}", fn)
                pyro.sample(f"x_{t}", LinearGaussian(x, s.C.detach(), s.D.detach()), obs=y[:, t])

    kernel = HMC(KalmanCollapse()(program), step_size=0.1, num_steps=2, jit_compile=False)
    kernel.setup(0)
    value = torch.tensor(0.3, dtype=torch.float64)
    exact = System(2)
    for name in ("A", "C", "D"):
        setattr(exact, name, getattr(s, name).detach())
    zero = torch.zeros(2, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    exact.m, exact.P, exact.a, exact.c = zero[0], torch.eye(2, dtype=torch.float64), zero[0], zero[1]
    exact.Q = value.exp() * torch.eye(2, dtype=torch.float64)
    # of log(scale): its density is the normal one
    expected = exact.truth(y=y).sum() + dist.Normal(0.0, 1.0).log_prob(value)
    close(-kernel.potential_fn({"scale": value}), expected)
    pyro.set_rng_seed(0)
    kernel = HMC(KalmanCollapse()(program), step_size=0.1, num_steps=2)
    mcmc = pyro.infer.MCMC(kernel, num_samples=5, warmup_steps=2, disable_progbar=True)
    mcmc.run()
    assert torch.isfinite(mcmc.get_samples()["scale"]).all()


@pytest.mark.parametrize("vectorize", [True, False])
def test_mini_batches_have_the_gradient_of_all_on_average(vectorize):
    """Rows of all lengths, some observations missing; each mini-batch of one row counts three times."""
    s = System(2)
    missing = torch.zeros(B, T, dtype=torch.bool)
    missing[0, 2:4] = missing[2, 0] = True

    def program(chosen):
        x = None
        with pyro.plate("rows", B, subsample=chosen, dim=-1) as rows:
            for t in markov(range(T)):
                with poutine.mask(mask=t < LENGTHS[rows]):
                    fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a)
                    x = pyro.sample(f"z_{t}", fn)
                    with poutine.mask(mask=~missing[rows, t]):
                        pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=s.y[rows, t])

    elbo, found = TraceKalman_ELBO(vectorize=vectorize), []
    for rows in (torch.arange(B), *torch.arange(B).split(1)):
        value = elbo.differentiable_loss(program, no_guide, rows)
        found.append((value, torch.autograd.grad(value, s.parameters)))
    whole, parts = found[0], found[1:]
    close(sum(value for value, _ in parts) / B, whole[0])
    for i, gradient in enumerate(whole[1]):
        close(sum(gradients[i] for _, gradients in parts) / B, gradient)
    close(-whole[0], s.truth(LENGTHS, missing).sum())


@pytest.mark.parametrize("vectorize", [True, False])
def test_nuts_walks_on_the_exact_posterior(vectorize):
    """Its potential energy and gradient, of a matrix and a scale, with rows of all lengths and missing observations."""
    s = System(2)
    missing = torch.zeros(B, T, dtype=torch.bool)
    missing[0, 1:3] = missing[2, 3] = True
    fixed = System(2)
    for name in ("C", "Q", "D", "m", "P", "a", "c", "y"):
        setattr(fixed, name, getattr(s, name).detach())
    prior = dist.Normal(torch.zeros(2, 2, dtype=F64), 1.0).to_event(2)
    noise = dist.LogNormal(torch.zeros((), dtype=F64), 1.0)

    def program():
        fixed.A = pyro.sample("A", prior)
        fixed.Q = pyro.sample("noise", noise) * torch.eye(2, dtype=F64)
        lazy(fixed, fixed.y, LENGTHS, markov, missing)

    kernel = NUTS(KalmanCollapse(vectorize=vectorize)(program), max_tree_depth=3)
    kernel.setup(0)
    point = {"A": s.A.detach().clone().requires_grad_(), "noise": torch.tensor(-0.3, dtype=F64, requires_grad=True)}
    mine = kernel.potential_fn(point)
    fixed.A, fixed.Q = point["A"], point["noise"].exp() * torch.eye(2, dtype=F64)
    theirs = -fixed.truth(LENGTHS, missing).sum() - prior.log_prob(point["A"])
    theirs = theirs - dist.Normal(0.0, 1.0).log_prob(point["noise"])  # of its logarithm
    close(mine, theirs)
    leaves = list(point.values())
    close(torch.autograd.grad(mine, leaves), torch.autograd.grad(theirs, leaves))
    chain = MCMC(NUTS(KalmanCollapse(vectorize=vectorize)(program), max_tree_depth=3), 3, 2, disable_progbar=True)
    chain.run()
    draws = chain.get_samples()
    assert draws["A"].shape == (3, 2, 2) and torch.isfinite(draws["A"]).all() and draws["A"].std() > 0


@pytest.mark.slow
def test_nuts_over_a_parameter_of_an_lds():
    """Its draws have the mean and deviation of the posterior, which is one-dimensional and can be added up."""
    model = LDS(1, 1, offsets="none").set_parameters(
        transition=[[0.8]], emission=[[1.0]], state_noise=[[0.5]], emission_noise=[0.3], initial_covariance=[[1.0]]
    )
    x, *_ = model.sample(20, 3, seed=0)
    x[0, 3:6] = torch.nan
    lengths = torch.tensor([20, 12, 1])
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    grid = torch.linspace(-0.2, 1.6, 181, dtype=F64)
    weights = []
    for value in grid:
        model.set_parameters(transition=value.view(1, 1))
        weights.append(model.log_prob(x, lengths).sum() + dist.Normal(0.0, 1.0).log_prob(value))
    weights = torch.stack(weights).softmax(0)
    mean = float((weights * grid).sum())
    deviation = float((weights * (grid - mean) ** 2).sum().sqrt())
    del model.transition
    model.transition = PyroSample(dist.Normal(torch.zeros(1, 1, dtype=F64), 1.0).to_event(2))
    chain = MCMC(NUTS(model), num_samples=300, warmup_steps=100, disable_progbar=True)
    chain.run(x, lengths)
    draws = chain.get_samples()["transition"].flatten()
    assert float(draws.mean()) == pytest.approx(mean, abs=0.3 * deviation)
    assert float(draws.std()) == pytest.approx(deviation, rel=0.3)


def test_no_graph_is_kept_alive():
    import gc
    import weakref

    s = System(2)
    gc.collect()
    gc.disable()
    try:
        handler = KalmanCollapse(vectorize=False)
        with handler:
            lazy(s, s.y)
        watched = weakref.ref(handler.chains["z_0"])
        handler.chains.clear()
        assert watched() is None
    finally:
        gc.enable()


KEPT = []


def keep():
    KEPT.append(1.0)


def kept():
    return sum(KEPT)


def test_what_is_carried_goes_step_by_step_or_is_found_out():
    s = System(2)
    check_vectorizable(lazy, s, s.y)

    def carries(y, kind="a variable", vectorize=True):
        x, shift = None, torch.zeros((), dtype=torch.float64)
        KEPT.clear()
        with pyro.plate("rows", len(y), dim=-1):
            for t in markov(range(T), vectorize=vectorize):
                mean = s.a + shift + kept()
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, mean)
                x = pyro.sample(f"z_{t}", fn)
                pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[:, t])
                if kind == "a variable":
                    shift = shift + 1
                elif kind == "in place":
                    shift += 1
                else:
                    keep()  # where the loop does not see it

    found = []
    for kind in ("a variable", "in place"):
        for vectorize in (True, False):
            with KalmanCollapse() as handler:
                carries(s.y, kind, vectorize)
            found.append(handler.chains["z_0"].log_prob())
        check_vectorizable(carries, s.y, kind)
    for value in found[1:]:
        close(value, found[0])
    with pytest.raises(ValueError, match="carries more than the hidden state"):
        check_vectorizable(carries, s.y, "elsewhere")


def test_second_derivatives():
    s = System(2)

    def value(truth, A, C, root):
        s.A, s.C, s.D = A, C, root @ root.T + torch.eye(len(root), dtype=F64)
        return s.truth(LENGTHS).sum() if truth else collapse(lazy, s, s.y, LENGTHS, markov)[0].sum()

    at = tuple(part.detach().clone() for part in (s.A, s.C, s.D))
    found, expected = (torch.autograd.functional.hessian(lambda *v, t=t: value(t, *v), at) for t in (False, True))
    for row, wanted in zip(found, expected, strict=True):
        for block, right in zip(row, wanted, strict=True):
            close(block, right)
