"""The likelihood of a semi-Markov model as the sum over all ways to cut a row into segments: what chains are compared with."""

import math

import torch


def duration_probs(kind, values, steps):
    """(R, steps) p(D = 1..steps) of what `estimates` calls "duration", differentiable; "explicit" ones and "poisson" ones up to
    3, phases two."""
    if kind in ("explicit", "poisson"):
        probs = values if kind == "explicit" else torch.stack(
            [values**more / math.factorial(more) for more in range(3)], -1
        )  # fmt: skip
        probs = probs / probs.sum(-1, keepdim=True)
        return torch.cat([probs, probs.new_zeros(len(probs), steps)], -1)[:, :steps]
    phases = 1 if kind == "geometric" else 2
    return torch.stack(
        [math.comb(d - 1, phases - 1) * (1 - values) ** phases * values ** (d - phases) if d >= phases else 0 * values
         for d in range(1, steps + 1)], -1
    )  # fmt: skip


def sum_over_segmentations(start, move, probs, density):
    """log p(x) of a row of densities (T, R), whose last segment may go on: start (R,), move (R, R), probs (R, T)."""
    steps = len(density)

    def rest(regime, first):
        """p(x[first:]) of a regime that begins at first."""
        total = 0.0
        for length in range(1, steps - first + 1):
            seen = density[first : first + length, regime].prod()
            if first + length == steps:
                longer = 1 - probs[regime, : length - 1].sum()
                total = total + seen * longer
            else:
                after = sum(move[regime, k] * rest(k, first + length) for k in range(len(start)) if k != regime)
                total = total + seen * probs[regime, length - 1] * after
        return total

    return sum(start[k] * rest(k, 0) for k in range(len(start))).log()
