"""Clusters of sequences that inputs drive: a mixture of IOHMMs, which is one IOHMM whose states never leave their cluster."""

from __future__ import annotations

from typing import Any

from pplseq.models.iohmm.program import IOHMM
from pplseq.models.regimes import ClusterQueries


class MixtureIOHMM(ClusterQueries, IOHMM):
    """Sequences of several kinds, each kind an IOHMM: p(x | u) = sum_c p(cluster c) p(x | u, cluster c).

    The clusters' states are those of one IOHMM whose moves stay within a cluster, so that memberships are exact and all that an
    :class:`~pplseq.models.iohmm.program.IOHMM` does is done for mixtures. State s of cluster c has the number c Z + s. Networks
    with hidden layers share these. Likelihoods of mixtures have many maxima: fit with ``num_restarts=10`` or more.

    Args:
        num_clusters: C. num_states: Z, of each cluster. num_inputs, outputs, ...: as of
            :class:`~pplseq.models.iohmm.program.IOHMM`; ``graph`` and ``start_states`` are what makes the clusters.

    Raises:
        ValueError: for sizes or options that do not fit together.

    Example::

        model = MixtureIOHMM(2, 1, num_inputs=1, outputs="normal", mealy=True).fit(x, inputs=inputs, num_restarts=10, seed=0)
        model.predict(x, inputs=inputs)  # (B,) the cluster of each sequence

    Source: P. Smyth (1997), Clustering sequences with hidden Markov models, NIPS 9. Cost: that of an IOHMM of C Z states.
    """

    name = "mixture_iohmm"
    _has_loops = True

    def __init__(self, num_clusters: int, num_states: int, **options: Any):
        graph = self._graph(num_clusters, num_states, options, ("graph", "start_states", "transition", "initial_network"))
        if options.get("initial") == "stationary":
            raise ValueError("initial: clusters that never meet have no stationary start; choose another one, or leave it out")
        super().__init__(num_clusters * num_states, graph=graph, **options)
        self.num_clusters = num_clusters
        own = {name: value for name, value in self._config.items() if name != "graph"}
        self._config = {"num_clusters": num_clusters} | own | {"num_states": num_states}

    def component(self, cluster: int) -> IOHMM:
        """The IOHMM of one cluster, a copy."""
        return self._component(cluster, IOHMM)
