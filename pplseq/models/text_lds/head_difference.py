"""How much the exact start of a sentence matters, against the paper's steady-state passes.

Source: D. Belanger and S. Kakade (2015), A Linear Dynamical System Model for Text, ICML: section 3.1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels.matrix_equations import filtered_covariance, predicted_covariance


class HeadDifference(NamedTuple):
    """How far steady-state passes are from the exact ones on given sentences; both begin with the mean zero.

    filtered, smoothed: (T,) root mean square difference of the means at each step, relative to that of the exact means.
    log_prob: nats a token, exact minus steady.
    decay: see :func:`filter_decay`: by how much a step shrinks the difference, in the end.
    """

    filtered: np.ndarray
    smoothed: np.ndarray
    log_prob: float
    decay: float


def head_difference(model: Any, x: Tensor, lengths: Tensor | None = None) -> HeadDifference:
    """Compares the stationary prior, exact from the first word on, with the filter's steady covariance as prior.

    Args:
        model: a :class:`~pplseq.models.text_lds.program.TextLDS`.
        x: (B, T) word ids, -1 for a missing word. lengths: (B,).
    """
    exact, steady = (model.posterior(x, lengths, initial=name) for name in ("stationary", "steady"))
    steps = torch.arange(x.shape[1], device=x.device)
    valid = (steps < (x.shape[1] if lengths is None else lengths.unsqueeze(1))).expand(x.shape)
    differences = []
    for states in ("filtered_states", "smoothed_states"):
        means, others = (getattr(chain, states)().means for chain in (exact, steady))
        error, size = ((value.square().sum(-1) * valid).sum(0).double() for value in (means - others, means))
        differences.append((error / size.clamp_min(torch.finfo(size.dtype).tiny)).sqrt().cpu().numpy())
    num_seen = int((valid & (x >= 0)).sum())
    log_prob = float((exact.log_prob() - steady.log_prob()).sum()) / max(num_seen, 1)
    return HeadDifference(differences[0], differences[1], log_prob, filter_decay(model))


@torch.no_grad()
def filter_decay(model: Any) -> float:
    """Spectral radius of (I - K C) A: what one more word leaves of the past's influence."""
    transition, information = model.transition.double(), model.word_emission(torch.float64).information
    predicted = predicted_covariance(transition, model.state_noise.double(), information)
    filtered = filtered_covariance(predicted, information)
    return float(torch.linalg.eigvals(transition - filtered @ information @ transition).abs().max())
