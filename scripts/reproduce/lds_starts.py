"""Where EM for a linear dynamical system of text may start: subspace identification, realised in several ways, or at random."""

from __future__ import annotations

import numpy as np

from pplseq.kernels.matrix_equations import stationary_covariance
from pplseq.models.text_lds.lag_covariances import LagCovariances
from pplseq.models.text_lds.realisation import MARGIN, realise
from pplseq.models.text_lds.steady_state import TextParameters, gram, largest_reduction, on_arrays
from pplseq.models.text_lds.subspace import Identification

STARTS = ("paper", "line_search", "restricted", "random")


def start_parameters(how: str, identification: Identification, cov: LagCovariances, *, seed: int = 0, **options):
    """Parameters by one of STARTS; `options` of `realise`."""
    if how == "random":
        return random_parameters(cov, realise(identification, cov, "paper").parameters, seed)
    return realise(identification, cov, how, **options).parameters


def random_parameters(cov: LagCovariances, like: TextParameters, seed: int = 0) -> TextParameters:
    """Gaussian A and C with the length scales of `like`, as the paper chose them: A has its root mean square (and is made
    stable), C its Frobenius norm; Q = I and D = Psi_0 - C Sigma C' with the stationary Sigma, C scaled down if D needs it."""
    rng = np.random.default_rng(seed)
    size = like.num_states
    transition = rng.normal(size=(size, size)) * np.sqrt(np.mean(like.transition**2))
    transition *= min(1.0, 0.98 / np.abs(np.linalg.eigvals(transition)).max())
    emission = cov.project(rng.normal(size=(cov.size, size)).astype(cov.dtype))
    emission *= emission.dtype.type(np.linalg.norm(like.emission) / np.linalg.norm(emission))
    stationary = on_arrays(stationary_covariance, transition, np.eye(size))
    parameters = TextParameters(transition, emission, np.eye(size), stationary)
    largest = largest_reduction(gram(emission, emission), stationary)
    return parameters.scaled(min(1.0, np.sqrt(MARGIN / largest)))
