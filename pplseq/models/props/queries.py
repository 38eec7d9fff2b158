"""Questions to PROPS beyond those of a chain: fixed-lag smoothing, membership of tokens, comparison of two models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.discrete.dense import DenseChain
from pplseq.kernels.log_semiring import log_matmul


class Membership(NamedTuple):
    """(B, T) of every token: P(z_t is a perturbation), its log-odds against the sources, and anomalies, nats.

    anomaly: -log p(x_t | past); source_anomaly, perturbation_anomaly: the same given that z_t is a source, or a perturbation,
    state. 0 at padded steps; anomalies are 0 where a token is missing.
    """

    perturbation: Tensor
    log_odds: Tensor
    anomaly: Tensor
    source_anomaly: Tensor
    perturbation_anomaly: Tensor


def fixed_lag_smooth(chain: Chain, lag: int) -> Tensor:
    """p(z_t | x_1..x_{t+lag}), (*B, T, K), 0 at padded steps: what is known ``lag`` tokens later.

        p(z_t | x_1..x_{t+L}) prop. to p(z_t | x_1..x_t) b_t^L(z_t),  b_t^L = A (e_{t+1} * b_{t+1}^{L-1}),  b^0 = 1

    Args:
        chain: of a model with one transition matrix. lag: L; 0 is the filter, T - 1 the full posterior.

    Raises:
        ValueError: for a negative lag, or matrices that change with time.

    Cost: O(T L K^2), all steps at once.
    """
    if lag < 0:
        raise ValueError(f"lag must not be negative, got {lag}")
    filtered, factors = chain.filtered_states().probs.movedim(-2, 0).log(), chain.factors
    if not factors.shared:
        raise ValueError("chain: fixed-lag smoothing takes one transition matrix for all steps")
    emit, valid = factors.emit.detach(), factors.valid
    back = torch.zeros_like(emit)
    for _ in range(min(lag, chain.num_steps - 1)):
        ahead = log_matmul((emit[1:] + back[1:]).unsqueeze(-2), factors.pair.detach().mT).squeeze(-2)
        if valid is not None:  # nothing comes behind a row's last token
            ahead = torch.where(valid[1:].unsqueeze(-1), ahead, 0.0)
        back = torch.cat([ahead, torch.zeros_like(back[:1])])
    probs = (filtered + back).softmax(-1)
    return (probs if valid is None else probs.masked_fill(~valid.unsqueeze(-1), 0.0)).movedim(0, -2)


def membership(chain: DenseChain, num_sources: int, smoothed: bool = False) -> Membership:
    """Whether tokens came from sources or from perturbations.

    Args:
        chain: of a :class:`~pplseq.models.props.program.PROPS`. num_sources: K_s.
        smoothed: given the whole sequence, instead of the tokens so far.
    """
    tokens = chain.token_log_probs()
    prior, emit = chain.predicted_states().probs.log(), chain.factors.emit.detach().movedim(0, -2)
    state = chain.marginals().probs.log() if smoothed else (prior + emit).log_softmax(-1)
    joint = prior + emit
    by_source, by_own = (torch.logsumexp(state[..., part], -1) for part in _parts(num_sources))
    anomalies = [
        torch.logsumexp(prior[..., part], -1) - torch.logsumexp(joint[..., part], -1) for part in _parts(num_sources)
    ]
    values = [by_own.exp(), by_own - by_source, -tokens, *anomalies]
    valid = chain.factors.valid
    return Membership(*(value if valid is None else value.masked_fill(~valid.movedim(0, -1), 0.0) for value in values))


def _parts(num_sources: int) -> tuple[slice, slice]:
    return slice(num_sources), slice(num_sources, None)


def sharpened(probs: np.ndarray, sharpness: float) -> np.ndarray:
    """(V,) p^sharpness over its sum.

    Above 1 likely words get more: the mean probability of the words that come rises towards the share of words that are guessed
    right, which is what counts where words are suggested; perplexity, and what probabilities are for, are best near 1.

    Args:
        probs: (V,) probabilities. sharpness: above 0.
    """
    sharpness = checks.positive("sharpness", sharpness)
    powers = (np.asarray(probs) / np.max(probs)) ** sharpness  # which cannot all underflow
    return powers / powers.sum()


def log_likelihood_ratio(first, second, ys: Iterable, learn: bool = True) -> np.ndarray:
    """(T,) log p_first(y_t | past) - log p_second(y_t | past) of every token of a stream, nats.

    Args:
        first, second: :class:`~pplseq.models.props.learner.PROPSLearner`, which read the stream on the way; or sources
            (``predict``, ``observe``). learn: False keeps the learners' parameters as they are.
    """
    return np.array([_read(first, y, learn) - _read(second, y, learn) for y in ys])


def _read(model, y, learn: bool) -> float:
    """log p(y | past), and y is read."""
    if hasattr(model, "learn_one"):
        return (model.learn_one(y) if learn else model.follow_one(y)).log_prob
    if hasattr(model, "log_prob_of"):
        value = float(model.log_prob_of(y))
    else:
        with np.errstate(divide="ignore"):
            value = float(np.log(model.predict()[y]))
    model.observe(y)
    return value
