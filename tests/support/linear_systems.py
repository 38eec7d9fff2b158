"""Linear-Gaussian systems, and programs of them that KalmanCollapse must understand."""

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine

from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.infer.programs.markov import markov
from support.oracles.gaussian import GaussianSequence, kalman_loop

close = torch.testing.assert_close
B, T, N = 3, 7, 4
LENGTHS = torch.tensor([7, 1, 4])


def spd(n, scale=1.0):
    root = torch.randn(n, n, dtype=torch.float64)
    return scale * (root @ root.T / n + torch.eye(n, dtype=torch.float64) / 2)


class System:
    """Parameters that ask for gradients, and observations."""

    def __init__(self, h=2, seed=0):
        torch.manual_seed(seed)
        A = torch.randn(h, h, dtype=torch.float64)
        self.A = 0.8 * A / torch.linalg.eigvals(A).abs().max()
        self.C, self.Q, self.D = torch.randn(N, h, dtype=torch.float64), spd(h, 0.5), spd(N)
        self.m, self.P = torch.randn(h, dtype=torch.float64), spd(h)
        self.a, self.c = torch.randn(h, dtype=torch.float64), torch.randn(N, dtype=torch.float64)
        self.y = torch.randn(B, T, N, dtype=torch.float64)
        self.parameters = [self.A, self.C, self.Q, self.D, self.m, self.P, self.a, self.c]
        for value in self.parameters:
            value.requires_grad_()

    def truth(self, lengths=None, missing=None, y=None):
        """(B,) log p(y) by the dense loop, row by row."""
        y, result = self.y if y is None else y, []
        for row in range(len(y)):
            n = y.shape[1] if lengths is None else int(lengths[row])
            seen = [y[row, t] if missing is None or not missing[row, t] else None for t in range(n)]
            many = [self.C] * n, [self.D] * n, [self.c] * n
            result.append(
                kalman_loop(
                    GaussianSequence(
                        self.m, self.P, [self.A] * (n - 1), [self.Q] * (n - 1), [self.a] * (n - 1), *many, seen
                    )
                ).log_prob
            )
        return torch.stack(result)

    def same(self, found, expected):
        """Values and gradients of two (B,) log-likelihoods."""
        close(found, expected)
        weight = torch.arange(1.0, len(found) + 1, dtype=torch.float64)
        mine = torch.autograd.grad((found * weight).sum(), self.parameters, retain_graph=True, allow_unused=True)
        theirs = torch.autograd.grad((expected * weight).sum(), self.parameters, retain_graph=True, allow_unused=True)
        for left, right, of in zip(mine, theirs, self.parameters, strict=True):
            left, right = (torch.zeros_like(of) if g is None else g for g in (left, right))
            if left.dim() == 2 and left.shape[0] == left.shape[1] and of is not self.A:
                left, right = left + left.T, right + right.T  # of covariances only the symmetric part is defined
            close(left, right, rtol=1e-7, atol=1e-9)


def lazy(s, y, lengths=None, loop=markov, missing=None):
    x = None
    with pyro.plate("rows", len(y), dim=-1):
        for t in loop(range(y.shape[1])):
            with poutine.mask(mask=True if lengths is None else t < lengths):
                if x is None:
                    x = pyro.sample(f"z_{t}", LinearGaussian(None, None, s.P, s.m))
                else:
                    x = pyro.sample(f"z_{t}", LinearGaussian(x, s.A, s.Q, s.a))
                with poutine.mask(mask=True if missing is None else ~missing[:, t]):
                    pyro.sample(f"x_{t}", LinearGaussian(x, s.C, s.D, s.c), obs=y[:, t])


def plain(s, y, lengths=None, loop=markov, missing=None):
    x = None
    with pyro.plate("rows", len(y), dim=-1):
        for t in loop(range(y.shape[1])):
            with poutine.mask(mask=True if lengths is None else t < lengths):
                if x is None:
                    x = pyro.sample(f"z_{t}", dist.MultivariateNormal(s.m, s.P), infer={"collapse": True})
                else:
                    x = pyro.sample(f"z_{t}", dist.MultivariateNormal(x @ s.A.T + s.a, s.Q))
                with poutine.mask(mask=True if missing is None else ~missing[:, t]):
                    pyro.sample(f"x_{t}", dist.MultivariateNormal(s.c + x @ s.C.T, s.D), obs=y[:, t])


def collapse(program, *args, **options):
    handler = KalmanCollapse(**options)
    with poutine.trace() as trace, handler:
        program(*args)
    return handler.chains["z_0"].log_prob(), trace.trace
