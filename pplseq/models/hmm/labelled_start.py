"""Where a fit starts of which some states are observed: labelled states from their steps, the others from what is left."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.models.parts.protocols import Emissions

ROUNDS = 10  # of EM of the other states on what is left, as a mixture
LEAST = 0.1  # of a step, which is what all data weigh beside the steps of a state: no state is a point
UNLIKE = 0.05  # of a state's own steps: steps that are less probable than these under all labelled states are of others


@torch.no_grad()
def start_from_labels(emissions: Emissions, x: Tensor, seen: Tensor, labels: Tensor, sizes: Tensor | None = None) -> None:
    """Sets emissions that have started from all of the data.

    Args:
        emissions: a table of an HMM, of E states. x: (B, T[, D]) without gaps. seen: (B, T) where something was observed.
            labels: (B, T) numbers of their states, negative where unknown. sizes: (B, T, D) trials and exposures, or None.
    """
    known = labels[seen & (labels >= 0)].unique().tolist()
    if not known:
        return
    told, beside = ({}, None) if sizes is None else ({"known": sizes}, sizes[seen])
    for state in known:
        emissions.initialize(x, seen & (labels == state), [state], **told)
    own, has_em = labels[seen], emissions.has_em  # of those without, each start was a fit
    weight = torch.zeros(len(own), emissions.num_states, dtype=torch.float64, device=own.device)
    weight[:, known] = LEAST / len(own)
    weight[own >= 0, own[own >= 0]] += 1
    if has_em:
        emissions.maximize(emissions.statistics(x[seen], weight, beside), None)
    others = [state for state in range(emissions.num_states) if state not in known]
    if not others:
        return
    rest = _rest(emissions, x, seen, labels, known, sizes)
    emissions.initialize(x, rest, others, **told)
    for _ in range(ROUNDS if has_em else 0):
        shares = torch.softmax(emissions.spec(beside).log_likelihood(x[seen])[:, others].double(), -1).nan_to_num(0.0)
        weight[:, others] = torch.where(rest[seen].unsqueeze(-1), shares, LEAST / len(own))
        emissions.maximize(emissions.statistics(x[seen], weight, beside), None)


def _rest(emissions: Emissions, x: Tensor, seen: Tensor, labels: Tensor, known: list[int], sizes: Tensor | None) -> Tensor:
    """(B, T) steps without a label that no labelled state explains as it does its own; all of them where these are too few."""
    free = seen & (labels < 0)
    density = emissions.spec(sizes).log_likelihood(x)[..., known]
    for place, state in enumerate(known):
        least = density[..., place][seen & (labels == state)].double().quantile(UNLIKE)
        density[..., place] -= least.to(density)
    rest = free & (density < 0).all(-1)
    least = (emissions.num_states - len(known)) * getattr(emissions, "num_components", 1)
    return next((part for part in (rest, free) if int(part.sum()) >= 4 * least), seen)


def moves_of_labels(labels: Tensor, num_states: int) -> tuple[Tensor, Tensor]:
    """Numbers of rows (Z,) that begin in each state, and of moves (Z, Z) from each to each, as far as labels (B, T) say."""
    first, before, after = labels[:, 0], labels[:, :-1].flatten(), labels[:, 1:].flatten()
    pairs = (before * num_states + after)[(before >= 0) & (after >= 0)]
    moves = torch.bincount(pairs, minlength=num_states**2).reshape(num_states, num_states)
    return torch.bincount(first[first >= 0], minlength=num_states).double(), moves.double()
