"""Distribution functions of what the states of an HMM emit, for the intervals of forecasts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pplseq.infer.discrete.mixtures import Quantiles, StateMixture, gaussian_cdf
from pplseq.models.hmm.emissions import CategoricalTable, GaussianTable, mixture_moments
from pplseq.models.hmm.family_table import MixtureTable

Function = Callable[[Tensor], Tensor]


def state_quantiles(emissions: Any, weights: Tensor, noises: Tensor | None = None) -> Quantiles | None:
    """What knows the distribution of each number of vectors whose states have weights (B, K, Z); None for words, and for
    columns that are angles or whose distribution function torch does not know.

    Args:
        noises: (B, K, D, D) known covariances that are added to those of Gaussians, or None.

    Raises:
        ImportError: without scipy, where a column is Student's t or negative binomial.
    """
    if isinstance(emissions, CategoricalTable):
        return None
    means, covariances = mixture_moments(weights, *emissions.moments())
    variances = covariances.diagonal(dim1=-2, dim2=-1)
    if isinstance(emissions, GaussianTable):
        each = emissions.covariances().detach().diagonal(dim1=-2, dim2=-1)
        if noises is not None:
            added = noises.diagonal(dim1=-2, dim2=-1)
            variances, each = variances + added, each + added.unsqueeze(-2)
        return StateMixture(weights, gaussian_cdf(emissions.loc.detach(), each.sqrt()), means, variances)
    if isinstance(emissions, MixtureTable):
        shares = emissions.log_weights.detach().double().softmax(-1)
        parts = emissions.gaussians
        each = gaussian_cdf(parts.loc.detach(), parts.covariances().detach().diagonal(dim1=-2, dim2=-1).sqrt())
        return StateMixture(weights, partial(_mixed, each, shares), means, variances)
    columns = emissions.spec().distribution(torch.arange(emissions.num_states, device=weights.device)).parts
    functions = [(list(which), distribution_function(part)) for which, part, _ in columns]
    if any(function is None for _, function in functions):
        return None
    whole = torch.zeros(emissions.num_features, dtype=torch.bool, device=weights.device)
    for which, part, _ in columns:
        whole[list(which)] = bool(getattr(part.support, "is_discrete", False))
    return StateMixture(weights, partial(_by_column, functions, emissions.num_states), means, variances, whole)


def _mixed(each: Function, shares: Tensor, x: Tensor) -> Tensor:
    return (each(x).unflatten(-2, shares.shape) * shares.unsqueeze(-1)).sum(-2)


def _by_column(functions: list[tuple[list[int], Any]], num_states: int, x: Tensor) -> Tensor:
    found = x.new_empty(*x.shape[:-1], num_states, x.shape[-1])
    for which, function in functions:
        found[..., which] = function(x[..., which].unsqueeze(-2))
    return found


def distribution_function(part: TorchDistribution) -> Function | None:
    """P(X <= x) of numbers, in double precision; None for what has none, or none that is known."""
    values = {name: getattr(part, name).detach().double() for name in part.arg_constraints if name in vars(part)}
    if isinstance(part, dist.VonMises):
        return None
    if isinstance(part, dist.Poisson):
        return partial(_poisson, values["rate"])
    if isinstance(part, dist.Bernoulli):
        return partial(_bernoulli, part.probs.detach().double())
    if isinstance(part, dist.NegativeBinomial):
        return partial(_negative_binomial, values["total_count"], torch.sigmoid(-part.logits.detach().double()))
    if isinstance(part, dist.Binomial):
        return partial(_binomial, values["total_count"], part.probs.detach().double())
    if isinstance(part, dist.StudentT):
        return partial(_student, values)
    if getattr(part.support, "is_discrete", False):
        return None
    lowest: Any = getattr(part.support, "lower_bound", -torch.inf)
    try:
        part.cdf(part.mean)
    except NotImplementedError:
        return None
    return partial(_given, part, torch.as_tensor(lowest).detach())


# arguments of the distribution, and numbers x -> P(X <= x): functions of a module, so that forecasts can be pickled
def _poisson(rate: Tensor, x: Tensor) -> Tensor:
    return torch.where(x < 0, 0.0, torch.special.gammaincc(x.floor().clamp_min(0) + 1, rate))


def _bernoulli(probs: Tensor, x: Tensor) -> Tensor:
    return torch.where(x < 0, 0.0, torch.where(x < 1, 1 - probs, 1.0))


def _negative_binomial(size: Tensor, share: Tensor, x: Tensor) -> Tensor:
    found = _special().betainc(size.numpy(force=True), 1 + x.floor().clamp_min(0).numpy(force=True), share.numpy(force=True))
    return torch.where(x < 0, 0.0, torch.as_tensor(found).to(x))


def _binomial(trials: Tensor, chance: Tensor, x: Tensor) -> Tensor:
    least = x.floor().clamp_min(0).numpy(force=True)
    more = (trials.numpy(force=True) - least).clip(1)  # none more: certain, below
    found = torch.as_tensor(_special().betainc(more, least + 1, 1 - chance.numpy(force=True))).to(x)
    return torch.where(x < 0, 0.0, torch.where(x >= trials, 1.0, found))


def _student(values: dict[str, Tensor], x: Tensor) -> Tensor:
    units = ((x - values["loc"]) / values["scale"]).numpy(force=True)
    return torch.as_tensor(_special().stdtr(values["df"].numpy(force=True), units)).to(x)


def _given(part: TorchDistribution, lowest: Tensor, x: Tensor) -> Tensor:
    return torch.where(x < lowest, 0.0, part.cdf(x.maximum(lowest.to(x))).detach().to(x))


def _special() -> Any:
    try:
        from scipy import special
    except ImportError as error:
        raise ImportError('intervals of these emissions need scipy: pip install "pplseq[text]"') from error
    return special
