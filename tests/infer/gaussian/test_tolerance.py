"""What ``tol`` promises: the error of the log-likelihood that an early steady state costs, in nats an observed number."""

import pytest
import torch

from pplseq.distributions.gaussian_types import GaussianBelief, LinearEvidence
from pplseq.infer.gaussian.chain import GaussianChain
from pplseq.infer.gaussian.given import Dynamics

F64 = torch.float64


@pytest.mark.parametrize("noise", [1e-4, 1e-8, 0.0])
def test_it_bounds_the_error_however_precise_the_observations_are(noise):
    """Trend and cycle of P. K. Clark (1987), The cyclical component of U.S. economic activity."""
    steps, generator = 300, torch.Generator().manual_seed(0)
    move = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1.53, -0.58], [0, 0, 1, 0]], dtype=F64)
    scale, design = torch.tensor([0.0055, 0.0002, 0.0061, 0.0], dtype=F64), torch.tensor([[1, 0, 1, 0]], dtype=F64)
    z, x = torch.zeros(4, dtype=F64), []
    for _ in range(steps):
        z = move @ z + scale * torch.randn(4, dtype=F64, generator=generator)
        x.append(design @ z)

    def log_prob(tol):
        start = GaussianBelief(torch.zeros(1, 4, dtype=F64), 100 * torch.eye(4, dtype=F64))
        evidence = LinearEvidence(torch.stack(x).unsqueeze(1), design, torch.tensor([[noise]], dtype=F64))
        return GaussianChain(start, Dynamics(move, torch.diag(scale**2), None), evidence, tol=tol).log_prob().item()

    exact = log_prob(0.0)
    assert log_prob(None) == pytest.approx(exact, rel=1e-12)
    errors = {tol: abs(log_prob(tol) - exact) / steps for tol in (1e-4, 1e-6, 1e-9)}
    assert all(error <= tol for tol, error in errors.items()) and errors[1e-4] > 0
