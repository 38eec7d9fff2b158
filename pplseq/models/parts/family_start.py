"""Where families without a start of their own begin: each state is fitted to a cluster of the data.

Both steps are the same in any unit: clusters are found in numbers that have none, and the fit goes by Newton's method.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.distributions import constraints

from pplseq.models.parts.emissions import kmeans
from pplseq.models.parts.families import Family

TRIALS, STEPS = 1 << 14, 40  # starts of a fit, of which the best is climbed from, and steps
ROWS = 500  # of a cluster, which say enough of where to begin
FAR = 3.0  # spreads from the median beyond which a number is as good as there: one of a heavy tail is no cluster
SMALLEST = 1e-6  # of the steepest direction: along flatter ones nothing is known


def clusters(columns: Sequence[Tensor], num_states: int, seen: Tensor | None = None) -> Tensor:
    """(N,) which of Z clusters each row is in, by :func:`~pplseq.models.parts.emissions.kmeans`.

    Args:
        columns: numbers (N,) without gaps, of each column. seen: (B, T) the N steps that they are of: clusters are then of the
            means and mean deviations over some steps around each; None: of the numbers themselves.
    """
    rows = torch.stack([_without_unit(column) for column in columns], -1)
    if seen is not None:
        half = int(torch.randint(1, 5, ()))
        means = _around(rows, seen, half)
        rows = torch.cat([means, _around((rows - means).abs(), seen, half)], -1)
    return kmeans(rows, num_states, assign=True)


def _around(rows: Tensor, seen: Tensor, half: int) -> Tensor:
    """(N, D) means of rows over the seen steps of their sequence that are at most so far away."""
    wide = rows.new_zeros(*seen.shape, rows.shape[-1] + 1)
    wide[seen] = torch.cat([rows, torch.ones_like(rows[:, :1])], -1)
    total = torch.nn.functional.avg_pool1d(wide.mT, 2 * half + 1, stride=1, padding=half).mT[seen]
    return total[:, :-1] / total[:, -1:]


def _without_unit(column: Tensor) -> Tensor:
    """Logarithms of what is positive, log odds of shares, about their median and in their spread."""
    if bool((column > 0).all()):
        column = torch.special.logit(column) if bool((column < 1).all()) else column.log()
    column = column - column.median()
    spread = column.abs().median()
    spread = spread if float(spread) > 0 else column.abs().mean()
    return (column / spread.clamp_min(torch.finfo(column.dtype).tiny)).clamp(-FAR, FAR)


@torch.no_grad()
def fit_family(family: Family, rows: Tensor) -> dict[str, Tensor]:
    """Parameters of a family at numbers (N,), the likeliest ones or near them."""
    rows = rows[torch.randperm(len(rows))[:ROWS].to(rows.device)].double()

    def value(raw: Tensor) -> Tensor:
        """(...) mean log-likelihood of parameters (..., P), -inf where there is none."""
        parts = raw.unsqueeze(-1).unbind(-2)
        own = {name: family.parameters[name].value(part) for name, part in zip(family.parameters, parts, strict=True)}
        return family.make(**own).log_prob(rows).mean(-1)

    options = [_guesses(parameter.constraint, rows) for parameter in family.parameters.values()]
    raws = [p.unconstrained(torch.stack(o)) for p, o in zip(family.parameters.values(), options, strict=True)]
    while max(map(len, raws)) > 1 and torch.Size(map(len, raws)).numel() > TRIALS:
        longest = max(range(len(raws)), key=lambda place: len(raws[place]))
        raws[longest] = raws[longest][::2]
    tried = torch.cartesian_prod(*raws).reshape(-1, len(raws))
    tried = tried[tried.isfinite().all(-1)]
    values = torch.cat([value(part) for part in tried.split(256)]).nan_to_num(-torch.inf, posinf=-torch.inf)
    raw = climb(value, tried[values.argmax()])
    return {name: p.value(raw[place]) for place, (name, p) in enumerate(family.parameters.items())}


def _guesses(constraint: constraints.Constraint, rows: Tensor) -> list[Tensor]:
    """What a parameter may be at numbers (N,): a location, scale, rate, or a shape."""
    mean, median, spread = rows.mean(), rows.median(), rows.std(correction=0)
    spread = torch.where(spread > 0, spread, mean.abs().clamp_min(1e-12))
    one = torch.ones_like(mean)
    shapes = [one * number for number in (0.3, 0.6, 1.0, 2.0, 4.0, 8.0, 20.0)]
    if constraint is constraints.unit_interval:
        return [one * number for number in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9)]
    logs = rows.log() if bool((rows > 0).all()) else None
    if constraint is constraints.real:
        odds = [torch.special.logit(mean)] if 0 < float(mean) < 1 else []
        of_logs = [] if logs is None else [logs.mean(), logs.median()]
        return [0 * one, mean, median, *of_logs, *odds, *(-shape for shape in shapes)]
    size, inner = rows.abs().mean(), (rows - median).abs().median()
    sizes = [part for part in (size, spread, inner, rows.abs().median()) if float(part) > 0]
    if logs is not None:
        spread_of_logs = logs.std(correction=0).clamp_min(1e-6)
        sizes += [spread_of_logs, 1 / spread_of_logs, rows.min(), logs.mean().exp()]
    ratio = (mean / spread).square().clamp(1e-6, 1e6)
    sizes += [ratio, (mean / spread.square()).abs().clamp_min(1e-12)]
    if 0 < float(rows.min()) and float(rows.max()) < 1:
        number = (mean * (1 - mean) / spread.square() - 1).clamp_min(1e-3)
        sizes += [mean * number, (1 - mean) * number]
    return [*shapes, *(part for size in sizes for part in (size, 1 / size))]


def climb(value: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """(P,) near a maximum of a function, by Newton's method where it bends down and along its slope where it does not."""
    best = float(value(at))
    for _ in range(STEPS):
        with torch.enable_grad():
            here = at.detach().requires_grad_()
            slope = torch.autograd.grad(value(here), here, create_graph=True)[0]
            curved = [one for one in slope if one.requires_grad]
            rows = [torch.autograd.grad(one, here, retain_graph=True, allow_unused=True)[0] for one in curved]
        slope = slope.detach()
        if len(rows) < len(at) or not bool(slope.isfinite().all()):
            return at
        bend = torch.stack([torch.zeros_like(at) if row is None else row for row in rows]).detach()
        if not bool(bend.isfinite().all()):
            return at
        unit = bend.diagonal().abs()
        unit = torch.where(unit > 0, unit, 1.0).rsqrt()
        values, vectors = torch.linalg.eigh(-unit * bend * unit.unsqueeze(-1))
        values = values.abs().clamp_min(SMALLEST)
        step = unit * (vectors @ ((vectors.T @ (unit * slope)) / values))
        step = step.where(bend.diagonal() != 0, 0.0)
        for share in _shares():
            there = float(value(at + share * step))
            if there > best:
                break
        else:
            return at
        at, gain, best = at + share * step, there - best, there
        if gain < 1e-9:
            return at
    return at


def _shares() -> Iterator[float]:
    return itertools.accumulate(itertools.repeat(0.5, 12), lambda share, half: share * half, initial=1.0)
