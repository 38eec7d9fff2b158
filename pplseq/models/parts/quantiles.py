"""Distribution functions of what states emit, for the intervals of forecasts and for residuals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pplseq.distributions.columns import ColumnEmission, Columns, MixtureEmission, SharedEmission
from pplseq.distributions.compositions import JointColumns
from pplseq.distributions.conditional import BernoulliEmission, CoordinateEmission
from pplseq.distributions.dense import CategoricalEmission, GaussianEmission
from pplseq.distributions.state import Emission
from pplseq.distributions.zeros import WithZeros
from pplseq.infer.discrete.mixtures import Quantiles, StateMixture, gaussian_cdf
from pplseq.models.parts.emissions import GaussianTable, mixture_moments
from pplseq.models.parts.family_table import FamilyTable, MixtureTable

Function = Callable[[Tensor], Tensor]


def state_moments(
    emissions: Any, weights: Tensor, known: Tensor | None = None
) -> tuple[Tensor, Tensor, Quantiles | None]:
    """Means (B, K, D) and covariances (B, K, D, D) of vectors whose states have weights (B, K, Z), and what knows the
    distribution of each of their numbers: None for columns that are angles or whose distribution function is not known.

    Args:
        known: (B, K, D, D) covariances that are added to those of Gaussians, or (B, K, D) numbers of trials and exposures of
            families, of each step; None for none.

    Raises:
        ImportError: without scipy, where a column is Student's t, beta, binomial or negative binomial.
    """
    moments = emissions.moments(known) if isinstance(emissions, FamilyTable) else emissions.moments()
    means, covariances = mixture_moments(weights, *moments)
    if known is not None and isinstance(emissions, GaussianTable):
        covariances = covariances + known
    return means, covariances, _quantiles(emissions, weights, known, means, covariances.diagonal(dim1=-2, dim2=-1))


def _quantiles(
    emissions: Any, weights: Tensor, known: Tensor | None, means: Tensor, variances: Tensor
) -> Quantiles | None:
    if isinstance(emissions, GaussianTable):
        each = emissions.covariances().detach().diagonal(dim1=-2, dim2=-1)
        if known is not None:
            each = each + known.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
        return StateMixture(weights, gaussian_cdf(emissions.loc.detach(), each.sqrt()), means, variances)
    if isinstance(emissions, MixtureTable):
        shares = emissions.log_weights.detach().double().softmax(-1)
        parts = emissions.gaussians
        each = gaussian_cdf(parts.loc.detach(), parts.covariances().detach().diagonal(dim1=-2, dim2=-1).sqrt())
        return StateMixture(weights, partial(_mixed, each, shares), means, variances)
    emission = emissions.spec(known)
    found = column_functions(emission.make(emission.parameters), weights.device)
    return None if found is None else StateMixture(weights, found[0], means, variances, found[1])


def column_functions(made: Columns, device: torch.device) -> tuple[Function, Tensor] | None:
    """Distribution functions (..., K) -> (..., Z, K) of columns, each level of a column of levels a number 0 or 1; and (K,)
    which are whole numbers. None where one is not known."""
    functions, places = [], made.places
    whole = torch.zeros(sum(map(len, places)), dtype=torch.bool, device=device)
    for (_, part, _), place in zip(made.parts, places, strict=True):
        levels = isinstance(part, dist.Categorical)
        function = partial(_bernoulli, part.probs.detach().double().squeeze(-2)) if levels else distribution_function(part)
        if function is None:
            return None
        functions.append((place, function))
        whole[place] = bool(getattr(part.support, "is_discrete", False))
    return partial(_by_column, functions, made.batch_shape[-1]), whole


def value_functions(emission: Emission) -> Function | None:
    """P(X <= x) of what each state emits, numbers (*B, D) -> (*B, Z, D), of words and levels in the order of their numbers;
    None where one is not known.

    Args:
        emission: of batch shape () or (*B,).
    """
    if isinstance(emission, SharedEmission):
        base = value_functions(emission.base)
        return None if base is None else partial(_shared, base, emission.rows)
    if isinstance(emission, CoordinateEmission):
        return value_functions(emission.base)
    if isinstance(emission, CategoricalEmission):
        return partial(_by_word, _cumulated(emission.log_probs.detach().double().exp()))
    if isinstance(emission, BernoulliEmission):
        return partial(_at_states, partial(_bernoulli, torch.sigmoid(emission.logits.detach().double())))
    if isinstance(emission, GaussianEmission):
        return gaussian_cdf(emission.loc.detach(), _deviations(emission))
    if isinstance(emission, MixtureEmission):
        each = gaussian_cdf(emission.components.loc.detach(), _deviations(emission.components))
        return partial(_mixed, each, emission.log_weights.detach().double().softmax(-1))
    if not isinstance(emission, ColumnEmission):
        return None
    made = emission.make(emission.parameters)
    functions = []
    for columns, part, _ in made.parts:
        levels = isinstance(part, dist.Categorical)
        function = partial(_by_level, _cumulated(part.probs.detach().double())) if levels else distribution_function(part)
        if function is None:
            return None
        functions.append((list(columns), function))
    return partial(_by_column, functions, made.batch_shape[-1])


def _deviations(emission: GaussianEmission) -> Tensor:
    if emission.scale is not None:
        return emission.scale.detach()
    assert emission.scale_tril is not None, "one of the two"
    return emission.scale_tril.detach().square().sum(-1).sqrt()


def _cumulated(probs: Tensor) -> Tensor:
    """(..., 1 + V): the probability of less than each word, and of all."""
    return torch.nn.functional.pad(probs.cumsum(-1), (1, 0))


def _by_level(table: Tensor, x: Tensor) -> Tensor:
    place = (x.floor() + 1).clamp(0, table.shape[-1] - 1).long()
    shape = torch.broadcast_shapes(table.shape[:-1], place.shape)
    return table.expand(*shape, -1).gather(-1, place.expand(shape).unsqueeze(-1)).squeeze(-1)


def _by_word(table: Tensor, x: Tensor) -> Tensor:
    return _by_level(table, x).unsqueeze(-1)


def _at_states(function: Function, x: Tensor) -> Tensor:
    return function(x.unsqueeze(-2))


def _shared(base: Function, rows: Tensor, x: Tensor) -> Tensor:
    return base(x)[..., rows, :]


def _mixed(each: Function, shares: Tensor, x: Tensor) -> Tensor:
    return (each(x).unflatten(-2, shares.shape) * shares.unsqueeze(-1)).sum(-2)


def _by_column(functions: list[tuple[list[int], Any]], num_states: int, x: Tensor) -> Tensor:
    found = x.new_empty(*x.shape[:-1], num_states, x.shape[-1])
    for which, function in functions:
        found[..., which] = function(x[..., which].unsqueeze(-2))
    return found


def distribution_function(part: TorchDistribution) -> Function | None:
    """P(X <= x) of numbers, in double precision; None for what has none, or none that is known."""
    if isinstance(part, JointColumns):
        single = part.marginals()
        return None if single is None else distribution_function(single)
    values = {name: getattr(part, name).detach().double() for name in part.arg_constraints if name in vars(part)}
    if isinstance(part, dist.VonMises):
        return None
    if isinstance(part, WithZeros):
        base = distribution_function(part.base)
        numbers = (each.detach().double() for each in (part.gate, part.share(), part.log_none.exp()))
        return None if base is None else partial(_with_zeros, base, part.hurdle, *numbers)
    if isinstance(part, dist.Poisson):
        return partial(_poisson, values["rate"])
    if isinstance(part, dist.Bernoulli):
        return partial(_bernoulli, part.probs.detach().double())
    if isinstance(part, dist.NegativeBinomial):
        return partial(_negative_binomial, values["total_count"], torch.sigmoid(-part.logits.detach().double()))
    if isinstance(part, dist.Binomial):
        return partial(_binomial, values["total_count"], part.probs.detach().double())
    if isinstance(part, dist.Beta):
        return partial(_beta, part.concentration1.detach().double(), part.concentration0.detach().double())
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


def _beta(one: Tensor, zero: Tensor, x: Tensor) -> Tensor:
    found = _special().betainc(one.numpy(force=True), zero.numpy(force=True), x.clamp(0.0, 1.0).numpy(force=True))
    return torch.as_tensor(found).to(x)


def _student(values: dict[str, Tensor], x: Tensor) -> Tensor:
    units = ((x - values["loc"]) / values["scale"]).numpy(force=True)
    return torch.as_tensor(_special().stdtr(values["df"].numpy(force=True), units)).to(x)


def _with_zeros(base: Function, hurdle: bool, gate: Tensor, share: Tensor, none: Tensor, x: Tensor) -> Tensor:
    below = (base(x) - none).clamp_min(0.0) if hurdle else base(x)
    return share * below + torch.where(x >= 0, gate, 0.0)


def _given(part: TorchDistribution, lowest: Tensor, x: Tensor) -> Tensor:
    return torch.where(x < lowest, 0.0, part.cdf(x.maximum(lowest.to(x))).detach().to(x))


def _special() -> Any:
    try:
        from scipy import special
    except ImportError as error:
        raise ImportError('intervals of these emissions need scipy: pip install "pplseq[text]"') from error
    return special
