"""Every query of one row by enumeration of all its paths: the truth that chains are tested against."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from support.oracles.discrete import enumerate_paths


class PathTruth:
    """Every query of one row, from the list of all its paths.

    Args:
        initial: (Z,). matrices: (T-1, Z, Z). emit: (T, Z). T may be 0.
    """

    def __init__(self, initial: Tensor, matrices: Tensor, emit: Tensor):
        self.initial, self.matrices, self.emit = initial, matrices, emit
        self.num_steps, self.num_states = emit.shape
        if self.num_steps:
            self.paths, self.scores = enumerate_paths(initial, matrices, emit)
        else:
            self.paths, self.scores = torch.zeros(1, 0, dtype=torch.long), emit.new_zeros(1)

    def prefix(self, steps: int) -> PathTruth:
        return PathTruth(self.initial, self.matrices[: max(0, steps - 1)], self.emit[:steps])

    @cached_property
    def log_prob(self) -> Tensor:
        possible = self.scores[torch.isfinite(self.scores)]
        return torch.logsumexp(possible, 0) if len(possible) else self.scores.max()

    @cached_property
    def probs(self) -> Tensor:
        """(Z^T,) posterior of each path."""
        return (self.scores - self.log_prob).exp().detach()

    def token_log_probs(self) -> Tensor:
        cumulative = torch.stack([self.prefix(t).log_prob for t in range(self.num_steps + 1)])
        return cumulative.diff().detach()

    def marginals(self) -> Tensor:
        """(T, Z)."""
        result = self.emit.new_zeros(self.num_steps, self.num_states)
        return result.scatter_add(1, self.paths.T, self.probs.expand(self.num_steps, -1)).detach()

    def pair_marginals(self) -> Tensor:
        """(T-1, Z, Z)."""
        result = self.emit.new_zeros(max(0, self.num_steps - 1), self.num_states**2).detach()
        for t in range(1, self.num_steps):
            result[t - 1].index_add_(0, self.paths[:, t - 1] * self.num_states + self.paths[:, t], self.probs)
        return result.view(-1, self.num_states, self.num_states)

    def filtered(self) -> Tensor:
        """(Z,) log p(z_T | x)."""
        return self.marginals()[-1].log()

    def entropy(self) -> Tensor:
        return torch.special.entr(self.probs).sum()

    def score_of(self, path) -> Tensor:
        """log p(path, x)."""
        found = (self.paths == torch.as_tensor(path)).all(-1)
        assert int(found.sum()) == 1, f"not a path: {path}"
        return self.scores[found][0].detach()
