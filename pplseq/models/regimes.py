"""Queries of models whose chain has several states for one regime, its history or how long it still lasts; and of models whose
states never leave their cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.infer.discrete.results import StateMarginals
from pplseq.models.batch import as_given
from pplseq.models.estimator import Estimator
from pplseq.models.parts.protocols import Moves
from pplseq.models.state_labels import matching, named


class RegimeQueries(Estimator):
    """Answers about R regimes instead of the N states of the chain.

    Attributes:
        num_regimes: R. regime_of: (N,) the regime of each state. moves: of the chain.
    """

    num_regimes: int
    regime_of: Tensor
    moves: Moves

    @property
    def durations(self) -> Tensor:
        """How long regimes last: (R, M) p(D = 1..M) of "explicit" and "poisson" durations; (R,) means of others."""
        return self.moves.durations

    @property
    def _num_observable_states(self) -> int:
        return self.num_regimes

    def regimes(self, probs: Tensor) -> Tensor:
        """(..., R) probabilities of (..., N) those of states."""
        probs = checks.numbers("probs", probs)
        if probs.shape[-1:] != self.regime_of.shape or not torch.is_floating_point(probs):
            raise ValueError(f"probs must be floating-point and end in N = {len(self.regime_of)}, got {checks.shown(probs)}")
        return probs.new_zeros(*probs.shape[:-1], self.num_regimes).index_add_(-1, self.regime_of, probs)

    def _by_state(self, states: StateMarginals, x, lengths, known: Mapping[str, Any]) -> StateMarginals:
        return super()._by_state(states._replace(ids=None, probs=self.regimes(states.probs)), x, lengths, known)

    def decode(self, x, lengths=None, **known):
        """The regimes of the most probable path of states, (B, T), -1 at padded steps."""
        path = self._posterior(x, lengths, **known)[1].viterbi()[0]
        return named(as_given(self._regime(path), self._results_like(x, **known)), self.state_names)

    def _best_paths(self, x, n: int, lengths, known) -> tuple[Any, Tensor]:
        paths, log_probs = super()._best_paths(x, n, lengths, known)
        return [self._regime(path) for path in paths] if isinstance(paths, list) else self._regime(paths), log_probs

    def _regime(self, path: Tensor) -> Tensor:
        return torch.where(path < 0, path, self.regime_of[path])

    def _named_states(self, states: Tensor) -> Any:
        return super()._named_states(self._regime(states))


class ClusterQueries(Estimator):
    """A mixture of C models of Z states each, as one model of C Z states whose moves stay within a cluster: state s of cluster
    c has the number c Z + s.

    Attributes:
        num_clusters: C.
    """

    num_clusters: int

    @classmethod
    def _graph(cls, num_clusters: int, num_states: int, options: dict[str, Any], made: Sequence[str]) -> Tensor | None:
        """(C Z, C Z) bool, which moves there are, None for all; and takes what the clusters make from the options.

        Raises:
            ValueError: for sizes that are none, and options that clusters make.
        """
        clusters, states = checks.count("num_clusters", num_clusters), checks.count("num_states", num_states)
        for name in made:
            if options.pop(name, None) is not None:
                raise ValueError(f"{name}: what moves there are makes the clusters of a {cls.__name__}; leave it out")
        checks.fits("num_clusters", 4.0 * (clusters * states) ** 2, "choose fewer clusters, or states")
        of = torch.arange(clusters * states) // states
        return None if clusters == 1 else of.unsqueeze(1) == of

    def predict_proba(self, x, lengths=None, **known) -> Tensor:
        """(B, C) p(cluster | sequence), exactly.

        Raises:
            ValueError: for a sequence without steps.
        """
        batch, chain = self._posterior(x, lengths, **known)
        if batch.lengths is not None and bool((batch.lengths == 0).any()):
            raise ValueError(f"x: sequence {int((batch.lengths == 0).long().argmax())} is empty; leave it out")
        return self._by_cluster(chain.marginals().probs[:, 0]).sum(-1)

    def predict(self, x, lengths=None, **known) -> Tensor:
        """(B,) the most probable cluster of each sequence; states are told by ``decode`` and ``smooth``."""
        return self.predict_proba(x, lengths, **known).argmax(-1)

    def _check_order(self, order: Sequence[int]) -> None:
        size = self.num_states // self.num_clusters
        for first in range(0, len(order), size):
            some = [*order[first : first + size]]
            if len({state // size for state in some}) > 1:
                raise ValueError(
                    f"order: the {size} states of a cluster stay together, got {checks.shown(some)} in the place of cluster "
                    f"{first // size}"
                )

    def _in_order(self, sums: Tensor, weights: Tensor) -> list[int]:
        within, of = self._by_cluster(sums / weights).argsort(dim=-1, stable=True), self._by_cluster(sums).sum(-1)
        clusters = (of / self._by_cluster(weights).sum(-1)).argsort(stable=True)
        return (clusters.unsqueeze(-1) * within.shape[-1] + within[clusters]).flatten().tolist()

    def _matched(self, together: np.ndarray, other: Any) -> list[int]:
        if getattr(other, "num_clusters", None) != self.num_clusters:
            raise ValueError(f"other: expected a mixture of {self.num_clusters} clusters, got {checks.shown(other)}")
        clusters, size = self.num_clusters, self.num_states // self.num_clusters
        blocks = together.reshape(clusters, size, clusters, size)
        pairs = [[matching(blocks[one, :, two]) for two in range(clusters)] for one in range(clusters)]
        values = [[blocks[one, range(size), two, pairs[one][two]].sum() for two in range(clusters)] for one in range(clusters)]
        return [two * size + state for one, two in enumerate(matching(np.array(values))) for state in pairs[one][two]]

    def _by_cluster(self, probs: Tensor) -> Tensor:
        return probs.unflatten(-1, (self.num_clusters, -1))

    def _component(self, cluster: int, kind: type[Any]) -> Any:
        """The model of one cluster, a copy."""
        if checks.count("cluster", cluster, 0) >= self.num_clusters:
            raise ValueError(f"cluster must be in 0..{self.num_clusters - 1}, got {checks.shown(cluster)}")
        config = {name: value for name, value in self.config.items() if name != "num_clusters"}
        if config.get("own_networks"):
            raise ValueError("component: a network of your own is that of all clusters; ask memberships of the mixture")
        size = config["num_states"]
        names = None if self.state_names is None else self.state_names[cluster * size : (cluster + 1) * size]
        if config.get("state_names") is not None:
            config["state_names"] = names
        if config.get("ties") is not None:
            raise ValueError("component: states of several clusters share emissions (ties); ask memberships of the mixture")
        found = kind(**config).to(self.reference)
        kept = found.state_dict()
        for name, value in self.state_dict().items():
            for dim, many in enumerate(kept[name].shape):
                if value.shape[dim] != many:  # else it is shared by all states
                    value = value.narrow(dim, cluster * many, many)
            kept[name] = value
        found.load_state_dict(kept)
        found._take_names(self)
        found.state_names, found.is_fitted = names, self.is_fitted
        return found
