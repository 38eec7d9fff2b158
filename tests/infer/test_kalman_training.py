"""Parameters of collapsed programs: SVI, HMC and NUTS, mini-batches, and what a program must not carry along."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from linear_systems import B, N, System, T, close, lazy
from pyro.infer import HMC, SVI, Trace_ELBO
from pyro.nn import PyroModule, PyroParam

from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.infer.elbo import TraceKalman_ELBO, no_guide
from pplseq.infer.kalman_collapse import KalmanCollapse
from pplseq.infer.state_inference import check_vectorizable
from pplseq.infer.time_index import markov


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


def test_check_vectorizable_finds_what_is_carried():
    s = System(2)
    check_vectorizable(lazy, s, s.y)

    def carries(y):
        x, shift = None, torch.zeros((), dtype=torch.float64)
        with pyro.plate("rows", len(y), dim=-1):
            for t in markov(range(T)):
                fn = LinearGaussian(None, None, s.P, s.m) if x is None else LinearGaussian(x, s.A, s.Q, s.a + shift)
                x = pyro.sample(f"z_{t}", fn)
                pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[:, t])
                shift = shift + 1

    with pytest.raises(ValueError, match="carries more than the hidden state"):
        check_vectorizable(carries, s.y)
