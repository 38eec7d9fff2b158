"""Growing a VLHMM: every state becomes several near-copies of itself, and one softmax over states the hierarchy of two.

A split by near-copies (Petrov et al. 2006, Learning accurate, compact, and interpretable tree annotation, section 2.1, of
grammars) leaves the likelihood as it is but for the noise that lets the copies part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.block import BlockTransition
from pplseq.distributions.topics import TopicTransition
from pplseq.models.base import AT_TEST, said

RIDGE = 1e-3  # penalty of least squares, in squares of features: those of a normalised layer are about 1
ROWS_AT_ONCE = 1 << 24  # cells of the scores between states that are held at once


def split(model: Any, factor: int, *, noise: float = 0.01, transition: str | None = None, state_dropout: float | None = None):
    """A model whose states are `factor` near-copies of the states of another one, in the same blocks of words.

    Args:
        model: a :class:`~pplseq.models.vlhmm.program.VLHMM` with words.
        factor: states that a state becomes; 1 changes the transition alone.
        noise: by which copies differ, as a share of the standard deviation of their table.
        transition: of the new model; that of the old one for None. From "softmax" to "hierarchical" the states of a block keep
            their shares, and p(block | state) is fitted by least squares to that of the softmax (scalar tables: exactly).
        state_dropout: of the new model; that of the old one for None.

    Returns:
        A new model, fitted as the old one is, with its vocabulary and clusters.

    Raises:
        ValueError, TypeError: for a factor below 1, a transition that there is none, or hierarchical to softmax.

    Cost: factor Z h numbers; from softmax to hierarchical Z^2 h flops once.
    """
    checks.count("factor", factor)
    checks.positive("noise", noise, zero=True)
    model._check_words_known()
    config, old = model.config, model.config["transition"]
    transition = transition or old
    if old == "hierarchical" and transition == "softmax":
        raise ValueError("transition: a hierarchical model does not become one softmax over states; leave transition out")
    config |= {"num_states": factor * model.config["num_states"], "transition": transition}
    if state_dropout is not None:
        config["state_dropout"] = state_dropout
    if config["states_per_block"] is not None:
        config["states_per_block"] = [factor * size for size in config["states_per_block"]]
    new = type(model)(blocks=model.block_of_word.cpu(), **config).to(next(model.parameters()))
    given = dict(model.named_parameters())
    with torch.no_grad():
        if transition != old:
            given |= _block_scores(model)
        for name, parameter in new.named_parameters():
            value = given[name]
            dims = [dim for dim, (a, b) in enumerate(zip(value.shape, parameter.shape, strict=True)) if a != b]
            for dim in dims:
                value = value.repeat_interleave(factor, dim)
            parameter.copy_(value)
            if dims:
                parameter.add_(torch.randn_like(parameter), alpha=noise * float(value.std(correction=0)))
    new.vocabulary, new.clusters, new.is_fitted = model.vocabulary, getattr(model, "clusters", None), model.is_fitted
    return new.train(model.training)


def _block_scores(model: Any) -> dict[str, Tensor]:
    """Parameters of p(block | state) that come next to those of a softmax over states."""
    with said(AT_TEST):
        spec: BlockTransition = model.specs()[0]
    layout, parts = spec.layout, []
    if isinstance(spec, TopicTransition):  # what topics add to scores of blocks stays
        ids = spec.layout.base.kept_ids
        scores = (spec.next_scores(spec.out[rows], rows) for rows in ids.split(max(1, ROWS_AT_ONCE // len(ids))))
        return fit_block_scores(model, torch.cat([part.log_softmax(-1) for part in scores]))
    every = torch.arange(layout.num_kept, device=spec.device)
    for rows in every.split(max(1, ROWS_AT_ONCE // layout.num_kept)):
        scores = spec.scores(rows, every)[:, layout.slots]  # (r, M, K)
        if layout.filled is not None:
            scores = scores.masked_fill(~layout.filled, -torch.inf)
        parts.append(torch.logsumexp(scores, -1).log_softmax(-1))
    return fit_block_scores(model, torch.cat(parts))


def fit_block_scores(model: Any, wanted: Tensor, ridge: float = RIDGE) -> dict[str, Tensor]:
    """Parameters whose p(block | state) comes next to (Z, M) log-probabilities, by least squares; scalar tables: exactly."""
    temperature = model.config["temperature"]
    if model.config["parameterization"] == "scalar":
        return {"block_table": wanted * temperature}
    with said(AT_TEST):
        out = model.specs()[0].out
    weight, bias = least_squares(out, wanted, ridge)
    return {"block_score.weight": weight, "block_score.bias": bias}


def least_squares(features: Tensor, wanted: Tensor, ridge: float = RIDGE) -> tuple[Tensor, Tensor]:
    """Weight (M, D) and bias (M,) of the linear layer that takes features (N, D) next to (N, M), of small weights."""
    x, y = features.double(), wanted.double()
    means = x.mean(0), y.mean(0)
    x, y = x - means[0], y - means[1]
    # features that never vary, or vary together, would else get weights of any size, which a step of training throws about
    penalty = ridge * len(x) * torch.eye(x.shape[1]).to(x)
    weight = torch.linalg.solve(x.T @ x + penalty, x.T @ y).T
    return weight.to(features), (means[1] - weight @ means[0]).to(features)
