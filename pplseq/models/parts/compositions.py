"""Families of several columns that go together: shares of a whole, "dirichlet", and counts with a total, "multinomial"."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pplseq.distributions.compositions import Shares, TotalCounts, log_rest, log_shares
from pplseq.infer.fit.closed_forms import dirichlet_mode
from pplseq.infer.fit.em import Statistics
from pplseq.models.parts.emissions import KMEANS_ROWS, kmeans
from pplseq.models.parts.families import LARGEST, NEWTON_STEPS, POSITIVE, TINY, WHOLE, Family, Parameters, Probabilities

JOINT = ("dirichlet", "multinomial")
ROUNDED = 1e-5  # what shares that were written down may miss of 1
FIXED_POINTS = 300  # steps, each of which raises the likelihood
MOST_SURE = 1e3  # the largest total concentration of a start


@dataclass(frozen=True, eq=False)
class JointFamily(Family):
    """A distribution of vectors (d,), whose statistics and start take rows (N, d) in part NaN; a row has one weight.

    Args:
        fits: rows (B, T, d) -> where they do not fit together (B, T), and what to say of that.
    """

    fits: Callable[[Tensor], tuple[Tensor, str]] = lambda rows: (torch.zeros(rows.shape[:-1], dtype=torch.bool), "")
    size: int = 2

    def check_rows(self, rows: Tensor, columns: Sequence[int]) -> None:
        """Raises ValueError where columns of x, rows (B, T, d), do not fit together."""
        bad, what = self.fits(rows)
        if bool(bad.any()):
            row, step = bad.nonzero()[0].tolist()
            raise ValueError(
                f"x: columns {list(columns)} must {what} ({self.called}); row {row}, step {step} holds "
                f"{[float(f'{value:.6g}') for value in rows[row, step].tolist()[:8]]}"
            )

    def __reduce_ex__(self, protocol: Any) -> Any:
        return joint_family, (self.called, self.size)


@functools.cache
def joint_family(name: str, size: int) -> JointFamily:
    """A family of so many columns by its name in :data:`JOINT`.

    Raises:
        ValueError: for fewer than two columns.
    """
    if size < 2:
        raise ValueError(
            f"emission: {name!r} is of columns that go together, at least 2, and there is {size}; give num_features=, or as "
            f"many {name!r} in the list as there are"
        )
    if name == "dirichlet":
        return JointFamily(
            lambda concentration: Shares(concentration), {"concentration": POSITIVE}, _share_statistics, _share_update,
            _share_start, (
                lambda column: (column > 0) & (column < 1),
                "shares above 0 and below 1, as one of 0 has no density: add a little to each share and divide by their sum, "
                "or leave out a column that is mostly 0",
            ), fill=1 / size, called=name, fits=_share_fits, size=size,
        )  # fmt: skip
    return JointFamily(
        lambda probs, trials: TotalCounts(probs, trials if trials.dim() == 0 else trials[..., :1]),
        {"probs": Probabilities(num_levels=size)}, _count_statistics,
        lambda s, p: {"probs": dirichlet_mode(s["counts"], None, p["probs"].double().log()).exp()}, _count_start, WHOLE,
        called=name, sized="trials", fits=_count_fits, size=size,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ shares
def _share_fits(rows: Tensor) -> tuple[Tensor, str]:
    missing, total = rows.isnan(), rows.double().nan_to_num(0.0).sum(-1)
    partly = missing.any(-1) & ~missing.all(-1)
    wrong = (~missing.any(-1) & ((total - 1).abs() > ROUNDED)) | (partly & (total >= 1))
    return wrong, "sum to 1, and to less where some are missing: divide each row by its sum"


def _share_statistics(obs: Tensor, weight: Tensor, p: Parameters) -> Statistics:
    """Expected sums of log shares. What is left for missing ones is split among them as Dirichlet of their concentrations."""
    row, missing = weight.amax(-1), obs.isnan()
    logs = row.T @ log_shares(obs)
    partly = (missing.any(-1) & ~missing.all(-1)).nonzero().squeeze(-1)
    if len(partly):
        own, gone = p["concentration"].double(), missing[partly].to(logs)
        split = torch.digamma((gone @ own.T).clamp_min(TINY))  # (n, Z)
        each = log_rest(obs[partly])[:, None, None] + torch.digamma(own) - split.unsqueeze(-1)
        logs = logs + torch.einsum("nz,nd,nzd->zd", row[partly], gone, each)
    return {"weight": row.sum(0).unsqueeze(-1), "log": logs}


def _share_update(s: Statistics, p: Parameters) -> dict[str, Tensor]:
    mean_log = s["log"] / s["weight"].clamp_min(TINY)
    within: Any = p.get("within concentration")
    return {"concentration": likeliest_concentration(mean_log, p["concentration"].double(), within)}


def likeliest_concentration(mean_log: Tensor, start: Tensor, within: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """(Z, d) concentrations a at most a million that maximise lgamma(sum a) - sum lgamma(a) + sum a mean_log of each row.

    Newton's method, where the Hessian is q = -trigamma(a) on the diagonal and z = trigamma(sum a) everywhere, so that the step
    is (b - g) / q with the gradient g and b = sum(g / q) / (1 / z + sum(1 / q)). Where concentrations end at the largest or
    within bounds, by the fixed point digamma(a) = digamma(sum a) + mean_log, each of whose steps is the maximum
    of a bound that is a sum over columns, so that numbers beyond their ends move onto them.

    Args:
        mean_log: (Z, d) weighted means of log shares. start: (Z, d). within: from concentrations to those that are allowed.

    Never ends below where it started.

    Source: T. P. Minka (2000), Estimating a Dirichlet distribution, section 1.
    """

    def value(a: Tensor) -> Tensor:
        return torch.lgamma(a.sum(-1, keepdim=True)) - (torch.lgamma(a) - a * mean_log).sum(-1, keepdim=True)

    a = start.clamp(TINY, LARGEST)
    trust = torch.ones_like(a[..., :1])
    for _ in range(2 * NEWTON_STEPS):
        total = a.sum(-1, keepdim=True)
        slope = torch.digamma(total) - torch.digamma(a) + mean_log
        bend = -torch.polygamma(1, a)
        shared = (slope / bend).sum(-1, keepdim=True) / (1 / torch.polygamma(1, total) + (1 / bend).sum(-1, keepdim=True))
        step = (shared - slope) / bend
        room = torch.where(step < 0, -0.9 * a / step, torch.inf).amin(-1, keepdim=True)  # so that all stay positive
        step = (room.clamp_max(1.0) * trust * step).nan_to_num(0.0)
        better = (value(a + step) >= value(a)) & ((a + step).amax(-1, keepdim=True) < 10 * LARGEST)
        a = torch.where(better, a + step, a)
        trust = torch.where(better, (2 * trust).clamp_max(1.0), trust / 4)
        if not bool((step.abs() > 1e-12 * a).any()):
            break
    over = a.amax(-1, keepdim=True) > LARGEST
    a = torch.where(over, a * (LARGEST / a.amax(-1, keepdim=True)), a)
    if within is None and not bool(over.any()):
        return a
    if within is not None:
        inside = within(a)
        a = torch.where(value(inside) >= value(start), inside, start)
    for _ in range(FIXED_POINTS):
        new = _inverse_digamma(torch.digamma(a.sum(-1, keepdim=True)) + mean_log).clamp(TINY, LARGEST)
        new = torch.where(over, new, a) if within is None else within(new)
        moved = ((new - a).abs() > 1e-11 * a).any()
        a = new
        if not bool(moved):
            break
    return a


def _inverse_digamma(y: Tensor) -> Tensor:
    """By Newton's method, from a start that is near on both sides: Minka (2000), appendix C."""
    x = torch.where(y >= -2.22, y.exp() + 0.5, -1 / (y - torch.digamma(torch.ones_like(y))))
    for _ in range(6):
        x = x - (torch.digamma(x) - y) / torch.polygamma(1, x)
    return x


def _share_start(rows: Tensor, states: int) -> dict[str, Tensor]:
    """Means of clusters of log ratios, with one total concentration that their spread tells."""
    overall = rows.nanmean(0)
    gone = torch.where(rows.isnan(), overall, 0.0)
    rows = torch.where(rows.isnan(), gone / gone.sum(-1, keepdim=True) * (1 - rows.nansum(-1, keepdim=True)), rows)
    logs = rows.log()
    means, own = _clustered(rows, logs - logs.mean(-1, keepdim=True), states)
    variance, left = (rows - means[own]).square().mean(0).sum(), (means * (1 - means)).sum(-1).mean()
    total = (left / variance.clamp_min(TINY) - 1).clamp(1.0, MOST_SURE)
    means = means.clamp_min(1e-4)
    return {"concentration": total * means / means.sum(-1, keepdim=True)}


def _clustered(rows: Tensor, features: Tensor, states: int) -> tuple[Tensor, Tensor]:
    """(Z, d) means of clusters of rows by their features, and (N,) the cluster of each; of an empty one all rows' mean."""
    some = torch.randperm(len(rows))[:KMEANS_ROWS].to(rows.device)
    centres = kmeans(features[some], states)
    own = torch.cdist(features, centres).argmin(-1)
    count = torch.bincount(own, minlength=states).to(rows).unsqueeze(-1)
    total = rows.new_zeros(states, rows.shape[-1]).index_add_(0, own, rows)
    return torch.where(count > 0, total / count.clamp_min(1.0), rows.mean(0)), own


# ------------------------------------------------------------------------------------------------ counts
def _count_fits(rows: Tensor) -> tuple[Tensor, str]:
    missing = rows.isnan()
    return missing.any(-1) & ~missing.all(-1), "all be there or all be missing, as a total is unknown where a count is missing"


def _count_statistics(obs: Tensor, weight: Tensor, _: Parameters) -> Statistics:
    row = weight.amax(-1)
    return {"weight": row.sum(0).unsqueeze(-1), "counts": row.T @ obs.nan_to_num(0.0)}


def _count_start(rows: Tensor, states: int) -> dict[str, Tensor]:
    """Shares of clusters of rows."""
    told = rows[rows.sum(-1) > 0]
    if not len(told):
        return {"probs": rows.new_full((states, rows.shape[-1]), 1 / rows.shape[-1])}
    shares = told / told.sum(-1, keepdim=True)
    means, _ = _clustered(shares, shares.sqrt(), states)
    least = 0.1 / told.sum()
    return {"probs": (means + least) / (means + least).sum(-1, keepdim=True)}
