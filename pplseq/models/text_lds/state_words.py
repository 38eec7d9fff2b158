"""What a linear dynamical system's transition turns into what: its singular vectors, and the words they stand for.

Source: D. Belanger and S. Kakade (2015), A Linear Dynamical System Model for Text, ICML: section 7.1, table 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from pplseq import checks

RANKINGS = ("lift", "probability")


class SingularPair(NamedTuple):
    """A direction of the state, and the one that the transition turns it into, as ids of the words most likely there.

    value: singular value. right, left: ids before and after, best first. right_opposite, left_opposite: ids at the other ends
    of the two directions, which the transition turns into each other as well.
    """

    value: float
    right: np.ndarray
    left: np.ndarray
    right_opposite: np.ndarray
    left_opposite: np.ndarray


@torch.no_grad()
def singular_pairs(
    model: Any, num_pairs: int = 10, num_words: int = 5, *, ranking: str = "lift", most_frequent: int | None = None
) -> list[SingularPair]:
    """The singular vectors of A in the basis of the state where Q = I, largest singular value first.

    Args:
        model: a :class:`~pplseq.models.text_lds.program.TextLDS`.
        num_pairs: how many, at most h.
        num_words: words listed a direction.
        ranking: "lift" ranks words by how much more probable a direction makes them, p(i | z) / mu_i; "probability" by the
            change p(i | z) - mu_i itself, which favours frequent words.
        most_frequent: leave out all but that many most frequent words.
    """
    checks.choice("ranking", ranking, RANKINGS)
    if num_pairs < 1 or num_words < 1 or (most_frequent is not None and most_frequent < 1):
        raise ValueError("num_pairs, num_words and most_frequent must be at least 1")
    emission = model.word_emission(torch.float64)
    root = torch.linalg.cholesky(model.state_noise.double())
    transition = torch.linalg.solve_triangular(root, model.transition.double() @ root, upper=False)
    left, values, right = torch.linalg.svd(transition)
    table = emission.matrix @ root
    table = table / emission.unit.unsqueeze(1) if ranking == "lift" else table * emission.unit.unsqueeze(1)
    candidates = emission.probs.argsort(descending=True, stable=True)[:most_frequent]
    table, found = table[candidates], []
    size = min(num_words, len(candidates))
    for k in range(min(num_pairs, len(values))):
        scores = table @ torch.stack([right[k], left[:, k]], 1)
        ends = [candidates[(sign * column).topk(size).indices].cpu().numpy() for sign in (1, -1) for column in scores.T]
        # a pair's sign is free: the end that says more comes first
        if (scores.amax(0) / scores.norm(dim=0)).sum() < (-scores.amin(0) / scores.norm(dim=0)).sum() * (1 - 1e-9):
            ends = ends[2:] + ends[:2]
        found.append(SingularPair(float(values[k]), *ends))
    return found
