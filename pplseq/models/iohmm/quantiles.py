"""What states of an input-output HMM put out: expected numbers, and distribution functions for the intervals of forecasts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from pplseq.distributions.conditional import BernoulliEmission
from pplseq.distributions.dense import CategoricalEmission, GaussianEmission
from pplseq.distributions.state import Emission
from pplseq.infer.discrete.mixtures import StateMixture, gaussian_cdf
from pplseq.infer.discrete.results import NextDistribution
from pplseq.models.hmm.quantiles import distribution_function
from pplseq.models.iohmm.networks import GaussianNoise
from pplseq.models.iohmm.responses import ResponseEmission


def emission_means(emission: Emission) -> Tensor:
    """(*b, Z, V or D) expected outputs of each state: probabilities of words or of ones, or means."""
    if isinstance(emission, CategoricalEmission):
        return emission.log_probs.exp()
    if isinstance(emission, BernoulliEmission):
        return torch.sigmoid(emission.logits)
    if isinstance(emission, ResponseEmission):
        return emission.means
    return cast(GaussianEmission, emission).loc


def with_quantiles(
    found: NextDistribution, emission: Emission, noise: Any, shape: tuple[int, ...], here: Any = ...
) -> NextDistribution:
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
        cdf, whole = response_functions(ResponseEmission(emission.columns, **each))
    elif isinstance(noise, GaussianNoise):
        deviations = noise.covariances().detach().diagonal(dim1=-2, dim2=-1).sqrt()
        cdf, whole = gaussian_cdf(emission_means(emission).expand(*shape, -1)[here], deviations), None
    else:
        return found
    variances, weights = found.covariances.diagonal(dim1=-2, dim2=-1), found.state_log_probs.exp()
    return found._replace(quantiles=StateMixture(weights, cdf, found.means, variances, whole))


def response_functions(emission: ResponseEmission) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Distribution functions (..., K) -> (..., Z, K) of columns, each class of a categorical one a number 0 or 1; and (K,)
    which are whole numbers."""
    parts = emission.make(emission.parameters).parts
    columns = emission.columns.columns
    functions = [
        None if column.family == "categorical" else distribution_function(part)
        for column, (_, part, _) in zip(columns, parts, strict=True)
    ]
    means = emission.means.detach().double()

    whole = torch.zeros(emission.columns.width, dtype=torch.bool, device=means.device)
    for column, (_, part, _) in zip(columns, parts, strict=True):
        whole[column.predictors] = bool(getattr(part.support, "is_discrete", False))
    return partial(_by_column, [(column.predictors, own) for column, own in zip(columns, functions, strict=True)], means), whole


def _by_column(functions: list[tuple[slice, Any]], means: Tensor, x: Tensor) -> Tensor:
    found = torch.empty_like(means)
    for places, function in functions:
        at = x[..., places].unsqueeze(-2)
        if function is None:  # a class or not: P(0) = 1 - p
            found[..., places] = torch.where(at < 0, 0.0, torch.where(at < 1, 1 - means[..., places], 1.0))
        else:
            found[..., places] = function(at)
    return found
