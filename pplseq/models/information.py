"""Standard errors from the observed information, and the table of a fitted model's parameters."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pplseq import checks, notebooks
from pplseq.models.base import AT_TEST, said

if TYPE_CHECKING:
    from pplseq.infer.fit.em import Batch
    from pplseq.models.estimator import Estimator

SMALLEST = 1e-9  # of the largest eigenvalue: directions in which the likelihood is flat, as a shift of logits


STANDS = 1e-8  # of a direction, in which what is held does not move
LEAST = 1e-20  # information that is none, in any unit: an error of 1e10; of logits at their bound rounding leaves less


class Summary(NamedTuple):
    """Estimates of a model's parameters; printed, a table.

    names: of single numbers, as "mean[0]". estimates, errors: (P,) and their standard errors, NaN where there is none.
    covariance: (P, P) of the estimates. log_likelihood: nats. aic, bic: the criteria. num_tokens: observations.
    """

    names: list[str]
    estimates: Tensor
    errors: Tensor
    covariance: Tensor
    log_likelihood: float
    aic: float
    bic: float
    num_tokens: int
    title: str
    bounds: dict[str, float] = {}  # noqa: RUF012  # of those that stand at a bound of what they may be: which
    unidentified: tuple[str, ...] = ()  # names of those that other values of others make up for
    note: str = ""  # why
    fixed: tuple[str, ...] = ()  # names of those that the fit was told to keep

    def intervals(self, level: float = 0.95) -> Tensor:
        """(P, 2) Wald intervals."""
        half = math.sqrt(2) * torch.erfinv(torch.tensor(level, dtype=torch.float64)) * self.errors
        return torch.stack([self.estimates - half, self.estimates + half], -1)

    _repr_html_ = notebooks.lines

    def __str__(self) -> str:
        width = max(10, *(len(name) for name in self.names))
        head = f"log-likelihood {self.log_likelihood:.3f}   AIC {self.aic:.3f}   BIC {self.bic:.3f}   n = {self.num_tokens}"
        lines = [self.title, head, "-" * (width + 62)]
        lines.append(f"{'':{width}} {'estimate':>12} {'std. error':>12} {'z':>9} {'P>|z|':>7} {'95% interval':>19}")
        for name, value, error, (low, high) in zip(
            self.names, self.estimates.tolist(), self.errors.tolist(), self.intervals().tolist(), strict=True
        ):
            if name in self.fixed:
                lines.append(f"{name:{width}} {value:12.5g}   fixed in the fit: no standard error")
                continue
            if name in self.bounds:
                lines.append(f"{name:{width}} {value:12.5g}   at its bound {self.bounds[name]:g}: no standard error")
                continue
            if math.isnan(error):
                why = "not identified, see below" if name in self.unidentified else "the information is not positive"
                lines.append(f"{name:{width}} {value:12.5g}   no standard error: {why}")
                continue
            z = value / error if error > 0 else math.nan
            p = math.erfc(abs(z) / math.sqrt(2))
            lines.append(f"{name:{width}} {value:12.5g} {error:12.4g} {z:9.3f} {p:7.3f} {low:9.4g} {high:9.4g}")
        return "\n".join(lines + [self.note] * bool(self.unidentified))


def summarize(model: Estimator, batch: Batch) -> Summary:
    """Estimates with standard errors: the inverse of minus the second derivatives of log p(x) + log prior, by the delta method.

    Args:
        model: fitted; ``estimates()`` says what its parameters are.
        batch: the data it was fitted to.

    Warns:
        RuntimeWarning: where a parameter is at its bound, at which it is held for the others; and where the information is not
            positive, as the model is at no maximum.

    Source: B. Efron and D. V. Hinkley (1978), Assessing the accuracy of the maximum likelihood estimator, Biometrika 65(3).
    Raises:
        ValueError: for more parameters than this machine has memory for the second derivatives of.

    Cost: the exact second derivatives, one backward pass through a graph of gradients for each of P parameters.
    """
    raw = [parameter for parameter in model.parameters() if parameter.requires_grad]
    number = sum(parameter.numel() for parameter in raw)
    few = f"standard errors of {number} weights need as many rows of second derivatives; score, aic and bic need none"
    checks.fits("summary", 3 * 8.0 * number**2, few)  # second derivatives, their eigenvectors and what they are multiplied to
    used = torch.cat([parameter.detach().isfinite().flatten() for parameter in raw])  # fixed zeros are no parameters
    with said(AT_TEST):
        value = model.log_joint(batch.x, batch.lengths, **batch.known)
    gradient, second = _second(value, raw, used)
    information = -second
    names, flat, hidden, fixed, ends = [], [], [], [], []
    free, note = model._unidentified()
    deviations = _deviations(information, used, raw)
    probs, others = model._at_told_bounds(deviations)
    dropped = torch.cat([others.get(id(part), torch.zeros_like(part, dtype=torch.bool)).flatten() for part in raw])[used]
    for name, value in model.estimates().items():
        places = itertools.product(*(range(size) for size in value.shape))
        names += [model._entry_name(name, place, value.shape) for place in places]
        hidden += [name.partition("[")[0] in free] * value.numel()
        fixed += model._held_estimate(name, value).flatten().tolist()
        ends += model._of_entries(name, value, probs).flatten().tolist()
        flat.append(value.flatten())
    estimates = torch.cat(flat)
    slopes = [
        _flat(torch.autograd.grad(value, raw, retain_graph=True, allow_unused=True), raw)[used] for value in estimates
    ]
    jacobian = torch.stack(slopes).nan_to_num(0.0)
    together = _shared(model, raw, deviations)[used].unique(return_inverse=True)[1]
    pool = None
    if len(together) and int(together.max()) + 1 < len(together):  # what states share is one number
        pool = torch.nn.functional.one_hot(together).to(information)
        information, jacobian, dropped = pool.T @ information @ pool, jacobian @ pool, pool.T[:, dropped].any(1)
    ends = torch.tensor(ends).to(dropped) | ((jacobian[:, dropped] != 0).any(1) & (jacobian[:, ~dropped] == 0).all(1))
    kept = {name for name, out in zip(names, fixed, strict=True) if out}
    bounds = {name: value for name, value, out in zip(names, estimates.tolist(), ends.tolist(), strict=True) if out}
    bounds = {name: bound for name, bound in (bounds | model._at_bounds(batch)).items() if name not in kept}
    stands = [out or name in bounds for name, out in zip(names, fixed, strict=True)]
    held = torch.tensor(stands, device=information.device)
    # the likelihood rises towards a bound, so that its curvature there says nothing, nor does it where the fit did not look for
    # a maximum; the others are as if these stood
    free = (jacobian[held] == 0).all(0) | ((jacobian[held] != 0).sum(1, keepdim=True) > 1).any(0)
    free = free & ~dropped
    jacobian, information = jacobian[:, free], information[free][:, free]
    # a parameter that is an estimate as it is has a unit, which must not make it seem to be known less; others have none
    own = (jacobian == 1).any(0) & ((jacobian != 0).sum(0) == 1) & (information.diagonal() > LEAST)
    unit = information.diagonal().rsqrt().where(own, 1.0)
    information, jacobian = unit * information * unit.unsqueeze(-1), jacobian * unit
    still = held & (jacobian != 0).any(1)
    if bool(still.any()):  # functions of several numbers, as a probability of its row's logits: these move, it stays
        size = jacobian[still].norm(dim=1)
        found = torch.linalg.svd(jacobian[still] / size.unsqueeze(-1))
        rank = int((found.S > STANDS).sum())
        slope = (gradient if pool is None else gradient @ pool)[free] * unit
        prices = (found.U[:, :rank] / found.S[:rank]) @ (found.Vh[:rank] @ slope) / size  # Lagrange's, as it rises there
        bent = _second((estimates[still] * prices).sum(), raw, used)[1]
        bent = bent if pool is None else pool.T @ bent @ pool
        information = information + unit * bent[free][:, free] * unit.unsqueeze(-1)
        moves, size = found.Vh[rank:], jacobian.norm(dim=1, keepdim=True)
        information, jacobian = moves @ information @ moves.T, jacobian @ moves.T
        jacobian = jacobian.where(jacobian.norm(dim=1, keepdim=True) > STANDS * size, 0.0)  # what held ones leave no choice
    values, vectors = torch.linalg.eigh(information)
    known = values > SMALLEST * values.abs().sum()
    inverse = torch.where(known, 1 / values.where(known, 1.0), 0.0)
    jacobian = jacobian @ vectors
    covariance = (jacobian * inverse) @ jacobian.T
    # directions in which nothing is known, or the likelihood still rises, as towards a bound: an estimate that depends on one
    # is lost, unless the direction, known as well as it is curved, would add hardly anything to its variance
    scale, shares = jacobian.square().sum(-1, keepdim=True).clamp_min(1e-300), jacobian.square()[:, ~known]
    added = shares / values[~known].abs().clamp_min(1e-300)
    lost = ((shares > 1e-6 * scale) & (added > 0.01 * covariance.diagonal().unsqueeze(-1))).any(-1)
    unknown = torch.tensor(hidden, device=lost.device)
    lost = lost & ~unknown & ~held
    errors = torch.where(lost | held | unknown, torch.nan, covariance.diagonal().clamp_min(0).sqrt())
    if bool(lost.any()):
        which = ", ".join(name for name, gone in zip(names, lost.tolist(), strict=True) if gone)
        warnings.warn(
            f"no standard errors of {which}: the information is not positive there; fit to the end (method='lbfgs'), or a "
            "parameter is at its bound",
            RuntimeWarning,
            stacklevel=3,
        )
    if bounds:
        which = ", ".join(f"{name} is at its bound {bound:g}" for name, bound in bounds.items())
        warnings.warn(
            f"{which}: no standard error; those of the others are as if it were known", RuntimeWarning, stacklevel=3
        )
    total = float(model.log_prob(batch.x, batch.lengths, **batch.known).sum())
    tokens, (comparable, count) = observed_tokens(model, batch), (math.nan, 0)
    with contextlib.suppress(ValueError):  # rows that say too little for criteria may say enough for estimates
        comparable, count = model._criterion_terms(batch, total)
    return Summary(
        names, estimates.detach(), errors, covariance, total, 2 * count - 2 * comparable,
        count * math.log(tokens) - 2 * comparable, tokens, repr(model), bounds,
        tuple(name for name, out in zip(names, hidden, strict=True) if out), note,
        tuple(name for name, out in zip(names, fixed, strict=True) if out),
    )  # fmt: skip


def criterion(model: Estimator, x: Any, lengths: Any, known: dict[str, Any], price: Callable[[int], float]) -> float:
    """-2 log p(x) and the price of each parameter, given the number of tokens."""
    x, lengths = model._as_text(x, lengths, known)
    own, batch = model.score(x, lengths, **known), model._as_batch(x, lengths, **known)
    log_prob, count = model._criterion_terms(batch, own)
    return count * price(observed_tokens(model, batch)) - 2 * log_prob


def observed_tokens(model: Estimator, batch: Batch) -> int:
    """The number of steps of which something was seen and is explained: without gaps, and numbers given as lags."""
    return int(observed_steps(model, batch).sum())


def observed_steps(model: Estimator, batch: Batch) -> Tensor:
    """(B, T) which they are."""
    seen = model.observed(batch.x)[1]
    seen = seen.any(-1) if seen.dim() > 2 else seen
    seen = seen & batch.valid
    return seen


@torch.no_grad()
def _shared(model: Estimator, raw: Sequence[Tensor], deviations: dict[int, Tensor]) -> Tensor:
    """(P,) numbers of raw parameters, that of the first state in the place of those that states share, be it as their order
    allows no more."""
    slots, first, found = model._slots, 0, []
    names = {id(slots[name].raw): name for name in model.shared_parameters if name in slots}
    ordered = {id(slots[name].raw) for name in model._ordered_parameters}
    for parameter in raw:
        own = torch.arange(first, first + parameter.numel(), device=parameter.device).reshape(parameter.shape)
        if id(parameter) in names:
            own = own[:1].expand_as(own)
        elif id(parameter) in ordered:
            near = 0.01 * deviations[id(parameter)]
            for state, same in enumerate(parameter.diff(dim=0).abs() <= near[1:].minimum(near[:-1]), 1):
                own[state] = torch.where(same, own[state - 1], own[state])
        found.append(own.flatten())
        first += parameter.numel()
    return torch.cat(found)


def _second(value: Tensor, raw: Sequence[Tensor], used: Tensor) -> tuple[Tensor, Tensor]:
    """First (P,) and second (P, P) derivatives by the raw numbers that are used."""
    slopes = _flat(torch.autograd.grad(value, raw, create_graph=True, allow_unused=True), raw)
    if not slopes.requires_grad:  # a line
        return slopes[used], slopes.new_zeros(int(used.sum()), int(used.sum()))
    rows = [_flat(torch.autograd.grad(slope, raw, retain_graph=True, allow_unused=True), raw) for slope in slopes]
    second = torch.stack(rows)[used][:, used].detach()
    return slopes.detach()[used], (second + second.T) / 2


def _deviations(information: Tensor, used: Tensor, raw: Sequence[Tensor]) -> dict[int, Tensor]:
    """By id of each parameter the deviations of its numbers, were all others known; 0 where nothing tells them."""
    curve = information.new_zeros(len(used)).index_put((used,), information.diagonal())
    parts = curve.clamp_min(LEAST).rsqrt().where(curve > LEAST, 0.0).split([parameter.numel() for parameter in raw])
    return {id(parameter): part.reshape(parameter.shape) for parameter, part in zip(raw, parts, strict=True)}


def _flat(gradients, like: Sequence[Tensor]) -> Tensor:
    pairs = zip(gradients, like, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])
