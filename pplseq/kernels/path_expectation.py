"""Expectations over the paths of a chain, differentiable: entropies and divergences without the cancellation of large sums."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.kernels.log_semiring import log_matmul, logsumexp


def _sum_all(score: Tensor, width: int) -> Tensor:
    """The log of the sum over all states, kept finite."""
    return logsumexp(score.flatten(score.dim() - width), -1).clamp_min(torch.finfo(score.dtype).min)


def _widened(value: Tensor, width: int) -> Tensor:
    return value.reshape(*value.shape, *(1,) * width)


def conditional(filtered: Tensor, pair: Tensor, over: int) -> tuple[Tensor, Tensor]:
    """log p(z_{t-1} | z_t, x_<t) from the filtered messages before, (..., K, 1) over the dimension ``over`` of ``pair``, and
    log p(z_t | x_<t), which it is divided by."""
    score = filtered.unsqueeze(-1) + pair
    total = logsumexp(score, over)
    return score - total.clamp_min(torch.finfo(score.dtype).min).unsqueeze(over), total


def path_cost(own: Tensor, inner: Tensor, others: Tensor | None, cross: bool) -> Tensor:
    """p (inner + cost), p = exp(own), summands of an expectation: the cost of a step is -own where there are no others, else
    own - others or (cross) -others, of log-probabilities; what is impossible costs nothing, whatever it would cost."""
    possible = own > -torch.inf
    cost = inner.expand_as(own)
    if not (cross and others is not None):
        known = torch.where(possible, own, 0.0)
        cost = cost - known if others is None else cost + known
    cost = cost if others is None else cost - torch.where(possible, others, 0.0)
    return own.exp() * torch.where(possible, cost, 0.0)


def path_divergence(
    filtered: Tensor, pair: Tensor, shared: bool, valid: Tensor | None, other: tuple[Tensor, Tensor, bool] | None, cross: bool,
    width: int = 1,
) -> Tensor:  # fmt: skip
    """(*B,) E_p[-log p(z | x)] of the paths of a chain, or with another chain q E_p[log p - log q] or (cross) E_p[-log q].

        D_t(j) = sum_i p(i | j, x_<=t) (D_{t-1}(i) + cost(i, j)),   p(i | j, x_<=t) in proportion to filtered_{t-1}(i) A_ij,

    with the cost log p(i | j), log q(i | j) or their difference, and that of the last state at the end.

    Args:
        filtered: (T, *B, *K) log p(z_t | x_<=t); pair: (T-1, *B, *K, K), or (*b, *K, K) where shared; valid: (T, *B) or None.
        other: the same (filtered, pair, shared) of q, or None. cross: whether to leave out log p.
        width: dimensions of a state, as for :func:`~pplseq.kernels.scan.filtered_twin`.

    Cost: T K^2 a row. Source: D. Hernando, V. Crespi, G. Cybenko (2005), Efficient computation of the hidden Markov model
    entropy for a given observation sequence.
    """
    over = -1 - width

    def behind(filtered, pair, shared, t):
        return conditional(filtered[t - 1], pair if shared else pair[t - 1], over)[0]

    inner = torch.zeros_like(filtered[0])
    for t in range(1, len(filtered)):
        own = behind(filtered, pair, shared, t)
        others = None if other is None else behind(*other, t)
        new = path_cost(own, inner.unsqueeze(-1), others, cross).sum(over)
        inner = new if valid is None else torch.where(_widened(valid[t], width), new, inner)
    last = filtered[-1]
    value = path_cost(last, inner, None if other is None else other[0][-1], cross).flatten(last.dim() - width).sum(-1)
    return value if valid is None else torch.where(valid[0], value, 0.0)


def fixed_lag(
    filtered: Tensor, pair: Tensor, shared: bool, emit: Tensor, valid: Tensor | None, lag: int, width: int = 1
) -> Tensor:
    """(T, *B, *K) p(z_t | x_1..x_{t+lag}), 0 at padded steps: all steps together, ``lag`` products of K^2 a step and row."""
    beta = torch.zeros_like(emit)
    for _ in range(min(lag, len(emit) - 1)):
        ahead = emit[1:] + beta[1:]
        matrices = pair if shared else pair[: len(ahead)]
        if width == 1:
            step = log_matmul(ahead.unsqueeze(-2), matrices.mT).squeeze(-2)
        else:
            step = logsumexp(ahead.unsqueeze(-1 - width) + matrices, -1)
        top = step.amax(tuple(range(-width, 0)), keepdim=True)
        step = step - top.clamp_min(torch.finfo(step.dtype).min)
        if valid is not None:
            step = torch.where(_widened(valid[1:], width), step, 0.0)
        beta = torch.cat([step, torch.zeros_like(beta[-1:])])
    total = filtered + beta
    probs = (total - _widened(_sum_all(total, width), width)).exp()
    return probs if valid is None else probs * _widened(valid, width)
