"""The hidden Markov model learned on a stream: PROPS without a source."""

from __future__ import annotations

from pplseq.models.props.program import PROPS


class StreamingHMM(PROPS):
    """A hidden Markov model with a transition matrix, learned one token at a time by online EM.

    Args:
        num_states: K.
        num_words: V, for words 0..V-1. num_features: D, for vectors. Give exactly one of the two.
        **options: of :class:`~pplseq.models.props.program.PROPS` (initial, transition, covariance, dtype, seed, ...).

    Source: O. Cappé (2011), Online EM algorithm for hidden Markov models.
    """

    name = "streaming_hmm"

    def __init__(self, num_states: int, num_words: int | None = None, **options):
        if "num_sources" in options or "num_perturbations" in options:
            raise ValueError("num_sources: a StreamingHMM has none; use PROPS")
        super().__init__(num_words, num_sources=0, num_perturbations=num_states, **options)

    @property
    def config(self):
        config = super().config
        del config["num_sources"]
        config["num_states"] = config.pop("num_perturbations")
        return config
