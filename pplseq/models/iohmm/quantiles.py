"""What states of an input-output HMM put out: expected numbers, and distribution functions for the intervals of forecasts."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from pplseq.distributions.conditional import BernoulliEmission
from pplseq.distributions.dense import CategoricalEmission, GaussianEmission
from pplseq.distributions.state import Emission
from pplseq.infer.discrete.mixtures import StateMixture, gaussian_cdf
from pplseq.infer.forecasts import Forecast
from pplseq.models.iohmm.networks import GaussianNoise
from pplseq.models.parts.quantiles import column_functions
from pplseq.models.parts.responses import ResponseEmission


def emission_means(emission: Emission) -> Tensor:
    """(*b, Z, V or D) expected outputs of each state: probabilities of words or of ones, or means."""
    if isinstance(emission, CategoricalEmission):
        return emission.log_probs.exp()
    if isinstance(emission, BernoulliEmission):
        return torch.sigmoid(emission.logits)
    if isinstance(emission, ResponseEmission):
        return emission.moments[0]
    return cast(GaussianEmission, emission).loc


def with_quantiles(
    found: Forecast, emission: Emission, noise: Any, shape: tuple[int, ...], here: Any = ...
) -> Forecast:
    """A forecast with what its intervals need; as it was for words and bits.

    Args:
        emission: of every step, or of all. noise: of the model. shape: (B, T, Z) of all steps. here: which are foretold.

    Raises:
        ImportError: without scipy, where a column is negative binomial or binomial.
    """
    if found.means is None or found.covariances is None:
        return found
    if isinstance(emission, ResponseEmission):
        # parameters of the states of each step that is foretold
        each = {name: value.expand(*shape, value.shape[-1])[here] for name, value in emission.parameters.items()}
        functions = column_functions(emission.make(each), found.means.device)
        if functions is None:
            return found
        cdf, whole = functions
    elif isinstance(noise, GaussianNoise):
        deviations = noise.covariances().detach().diagonal(dim1=-2, dim2=-1).sqrt()
        cdf, whole = gaussian_cdf(emission_means(emission).expand(*shape, -1)[here], deviations), None
    else:
        return found
    variances, weights = found.covariances.diagonal(dim1=-2, dim2=-1), found.state_log_probs.exp()
    return found._replace(quantiles=StateMixture(weights, cdf, found.means, variances, whole))
