"""Clusters of sequences: a mixture of HMMs, which is one HMM whose states never leave their cluster."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pplseq.infer.fit.em import Batch
from pplseq.models.hmm.program import HMM
from pplseq.models.parts.emissions import kmeans
from pplseq.models.regimes import ClusterQueries


class MixtureHMM(ClusterQueries, HMM):
    """Sequences of several kinds, each kind an HMM: p(x) = sum_c weights[c] p(x | cluster c).

    The clusters' states are those of one HMM whose moves stay within a cluster, so that memberships are exact and everything
    that an :class:`~pplseq.models.hmm.program.HMM` does (EM, gradients, NUTS, priors, restarts, criteria, missing values,
    forecasts) is done for mixtures. State s of cluster c has the number c Z + s.

    Args:
        num_clusters: C. num_states: Z, of each cluster. num_words, num_features, emission, ...: as of
            :class:`~pplseq.models.hmm.program.HMM`; ``graph`` and ``start_states`` are what makes the clusters.

    Raises:
        ValueError: for sizes or options that do not fit together.

    Example::

        model = MixtureHMM(3, 2, num_features=1).fit(sequences, num_restarts=5, seed=0)
        model.predict(sequences)  # (B,) the cluster of each

    Source: P. Smyth (1997), Clustering sequences with hidden Markov models, NIPS 9. Cost: that of an HMM of C Z states.
    """

    name = "mixture_hmm"
    _has_loops = True

    def __init__(self, num_clusters: int, num_states: int, num_words: int | None = None, **options: Any):
        graph = self._graph(num_clusters, num_states, options, ("graph", "start_states", "transition"))
        super().__init__(num_clusters * num_states, num_words, graph=graph, **options)
        self.num_clusters = num_clusters
        own = {name: value for name, value in self._config.items() if name != "graph"}
        self._config = {"num_clusters": num_clusters} | own | {"num_states": num_states}

    # ---------------------------------------------------------------- clusters
    @property
    def weights(self) -> Tensor:
        """(C,) how probable each cluster is."""
        return self._by_cluster(self.initial).sum(-1)

    def component(self, cluster: int) -> HMM:
        """The HMM of one cluster, a copy."""
        return self._component(cluster, HMM)

    # ---------------------------------------------------------------- fit
    def initialize(self, batch: Batch, how: str = "") -> None:
        """Clusters of sequences whose observations are alike, in which the states of each start."""
        super().initialize(batch, how)
        if self.num_clusters == 1 or batch.states is not None or self._rows is not None:
            return
        x, seen = self.emissions.observed(batch.x)
        seen = seen & batch.valid
        told = seen.any(1)
        if int(told.sum()) < 2 * self.num_clusters:
            return
        of = kmeans(self._features(x[told], seen[told]), self.num_clusters, assign=True)
        size, known = self._config["num_states"], self._known_of(batch) if batch.emission_noises is None else None
        for cluster in range(self.num_clusters):
            rows = of == cluster
            if int(seen[told][rows].sum()) > size:
                states = list(range(cluster * size, (cluster + 1) * size))
                beside = {} if known is None else {"known": known[told][rows]}
                self.emissions.initialize(x[told][rows], seen[told][rows], which=states, **beside)

    def _features(self, x: Tensor, seen: Tensor) -> Tensor:
        """(B, F) of each sequence: square roots of the shares of its words, or means and log deviations of its numbers."""
        if self.num_words is not None:
            counts = torch.zeros(len(x), self.num_words, dtype=torch.float64, device=x.device)
            counts.scatter_add_(1, x.clamp_min(0), seen.double())
            return (counts / counts.sum(1, keepdim=True)).sqrt()
        numbers = x.double().nan_to_num()
        there = seen.unsqueeze(-1) & ~x.isnan()
        count = there.sum(1).clamp_min(1)
        mean = (numbers * there).sum(1) / count
        square = ((numbers - mean.unsqueeze(1)).square() * there).sum(1) / count
        found = torch.cat([mean, square.clamp_min(1e-12).log() / 2], 1)
        return (found - found.mean(0)) / found.std(0).clamp_min(1e-9)
