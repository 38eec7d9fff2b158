"""PROPS: a hidden Markov model some of whose states are pinned to black-box sequence models."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Unpack

import pyro
import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.dense import DenseTransition
from pplseq.distributions.drawing import seeded
from pplseq.distributions.pinned import PinnedEmission, pinned_tables
from pplseq.distributions.state import Belief
from pplseq.infer.fit.em import Batch
from pplseq.infer.forecasts import Forecast
from pplseq.infer.programs.markov import markov
from pplseq.models.base import Given, Sizes, one_chain
from pplseq.models.hmm.tables import DTYPES, StateTables
from pplseq.models.row_labels import check_rows_together
from pplseq.models.steps import as_tensor

SOURCE_SHARE = 0.9  # chosen on held-out WikiText-2 and Gutenberg streams: `source_share` of :class:`PROPS`


def first_states(num_sources: int, num_perturbations: int, source_share: float) -> list[float]:
    """(K,) probabilities of states before anything was learned: the sources' share, and the perturbations' rest.

    Sources behind the first have together what perturbations have, at most half of the sources' share: the first is the one
    that knows something, others (a cache, counts of the stream) have yet to see it.
    """
    checks.share("source_share", source_share, "(0, 1)")
    size = num_sources + num_perturbations
    if not num_sources:
        return [1 / size] * size
    own = (1 - source_share) / num_perturbations
    others = min(1 - source_share, source_share / 2) / max(num_sources - 1, 1)
    first = source_share - others * (num_sources - 1)
    return [first] + [others] * (num_sources - 1) + [own] * num_perturbations


class PROPS(StateTables):
    """z_1 ~ initial, z_t | z_{t-1} ~ transition[z_{t-1}], x_t | past, z_t ~ a source's prediction, or own emission[z_t].

    States 0..K_s-1 are pinned to the sources: their emissions are what black-box models predict from the tokens so far, and
    are never trained. States K_s..K-1 are perturbations with emissions of their own. :meth:`start` and :meth:`step` learn
    on a stream, one token at a time; as a Pyro program the model gives filter, smoothing, Viterbi paths, samples and SVI on
    whole sequences, with what the sources gave to their tokens as ``source_log_probs``.

    Args:
        num_words: V, for words 0..V-1. num_features: D, for vectors. Give exactly one of the two.
        num_sources: K_s. num_perturbations: K_p.
        initial: (K,) probabilities of a sequence's first state, sources first; None for `source_share`. A stream learns on from
            them, see ``initial_prior`` of :class:`~pplseq.models.props.settings.OnlineEM`.
        transition: (K, K) probabilities [from, to]; None for `source_share`.
        source_share: the probability of the sources together in the first state and at every move, where these are not given:
            at first a stream is what its sources, and most of all the first of them, say. 1 - share is what perturbations
            begin with, and again the sources behind the first; with little they cost little and learn later. Without sources
            all is even.
        covariance: of vectors: "diag" or "full".
        covariance_floor: added to variances by online EM.
        dtype: "float64" or "float32".
        seed: of the first emissions, which must differ between perturbations; None draws from torch's generator.

    Raises:
        ValueError: for sizes or options that do not fit together.

    Source: M. Wojnowicz and X. Zhao (2018), PROPS: Probabilistic personalization of black-box sequence models.
    """

    name = "props"

    def __init__(
        self,
        num_words: int | None = None,
        *,
        num_features: int | None = None,
        num_sources: int = 1,
        num_perturbations: int = 2,
        initial=None,
        transition=None,
        source_share: float = SOURCE_SHARE,
        covariance: str = "diag",
        covariance_floor: float = 1e-3,
        dtype: str = "float64",
        seed: int | None = None,
    ):
        num_sources = checks.count("num_sources", num_sources, 0)
        num_perturbations = checks.count("num_perturbations", num_perturbations)
        super().__init__(
            num_sources + num_perturbations, num_words, num_features, covariance, covariance_floor, dtype,
            kinds=("diag", "full"),
        )  # fmt: skip
        self.num_sources, self.num_perturbations = num_sources, num_perturbations
        self._config |= {"num_sources": num_sources, "num_perturbations": num_perturbations}
        real, size = DTYPES[dtype], self.num_states
        self.initial_logits = nn.Parameter(torch.zeros(size, dtype=real))
        self.transition_logits = nn.Parameter(torch.zeros(size, size, dtype=real))
        with seeded(seed):
            self.emissions = self._make_emissions(num_perturbations, real)
        row = first_states(num_sources, num_perturbations, source_share)
        initial, transition = (row if initial is None else initial), ([row] * size if transition is None else transition)
        self.set_parameters(initial=initial, transition=transition)

    # ---------------------------------------------------------------- parameters
    @torch.no_grad()
    def set_parameters(self, *, initial=None, transition=None, emission=None, loc=None, covariances=None):
        """Sets tables from probabilities (zeros forbid), means and covariances (K_p, D, D); returns the model."""
        self._set_tables(initial=initial, transition=transition, emission=emission)
        if loc is not None or covariances is not None:
            if self.num_words is not None:
                raise ValueError("loc, covariances: they are of vectors, and this is a model of words; give emission")
            shape = self.loc.shape
            loc = self.loc if loc is None else checks.numbers("loc", loc).to(self.loc)
            spread = self.covariances if covariances is None else checks.numbers("covariances", covariances).to(self.loc)
            if loc.shape != shape or spread.shape != (*shape, shape[-1]):
                raise ValueError(
                    f"loc, covariances must have shapes {tuple(shape)} and {(*shape, shape[-1])}, got {tuple(loc.shape)} and "
                    f"{tuple(spread.shape)}"
                )
            full = self._config["covariance"] == "full"
            self.emissions.set_values(loc=loc, covariance=spread if full else spread.diagonal(dim1=1, dim2=2))
        return self

    # ---------------------------------------------------------------- the program
    def given(self, x, lengths=None, start=None, *, source_log_probs: Tensor | None = None, **known) -> Given:
        given = super().given(x, lengths, start, **known)
        given.inputs = self._source_log_probs(source_log_probs, given)
        return given

    def _specs_given(self, given: Given):
        return self.specs(tables=given.inputs is not None and given.inputs.dim() == 4)

    def _source_log_probs(self, value: Tensor | None, given: Given) -> Tensor | None:
        shape = given.shape
        if self.num_sources == 0:
            if value is not None and 0 not in value.shape:
                raise ValueError(f"source_log_probs: this model has no source, got shape {tuple(value.shape)}")
            return None
        expected = f"(B, T, K_s) = {(*shape, self.num_sources)} of the observed tokens"
        if self.num_words is not None:
            expected += f", or (B, T, K_s, V) = {(*shape, self.num_sources, self.num_words)} of all words"
        if not isinstance(value, Tensor):
            raise TypeError(f"source_log_probs must be a tensor {expected}, got {type(value).__name__}")
        sizes: list[tuple[int | None, ...]] = [(*shape, self.num_sources, self.num_words)]
        if not given.generates:
            sizes.append((*shape, self.num_sources))
        if tuple(value.shape) not in sizes:
            raise ValueError(f"source_log_probs must have shape {expected}, got {tuple(value.shape)}")
        if value.dim() == 3 and given.missing is not None:  # anything may stand where nothing was seen
            return value.masked_fill(given.missing.unsqueeze(-1), 0.0)
        return value

    @one_chain
    def model(
        self,
        x: Tensor | None = None,
        lengths: Tensor | None = None,
        start: Belief | None = None,
        *,
        source_log_probs: Tensor | None = None,
        states: Tensor | None = None,
        **sizes: Unpack[Sizes],
    ):
        """The generative program.

        Args:
            x: (B, T) words, ``MISSING`` (-1) for a missing one, or (B, T, D) vectors, NaN for a missing one; None to
                generate.
            lengths: (B,) valid steps, or None for all.
            start: the belief that the previous segment ended with.
            source_log_probs: (B, T, K_s) log f^k(x_t | past) of what was observed, not read where x is missing; or
                (B, T, K_s, V) of all words, which generating and filling gaps need.
            states: (B, T) observed states, sources first, negative where unknown.
            **sizes: how much to generate, or what a mini-batch stands for: :class:`~pplseq.models.base.Sizes`.
        """
        given = self.given(x, lengths, start, states=states, source_log_probs=source_log_probs, **sizes)
        transition, emission = self._specs_given(given)
        z = start
        with given.plate:
            for t in markov(given.steps):
                with given.valid(t):
                    z = pyro.sample(f"z_{t}", transition(z), obs=given.state(t))
                    with given.seen(t):
                        pyro.sample(f"x_{t}", emission(z, inputs=given.input(t)), obs=given.value(t))
        return x

    def specs(self, tables: bool = False):
        """Transition and emission; tables: whether sources give the probabilities of all words."""
        transition = DenseTransition(
            torch.log_softmax(self.initial_logits, -1), torch.log_softmax(self.transition_logits, -1)
        )
        own: Any = self.emissions.spec()
        if self.num_sources == 0:
            return transition, own
        return transition, pinned_tables(own, self.num_sources) if tables else PinnedEmission(own, self.num_sources)

    def _as_batch(self, x, lengths=None, *, states=None, source_log_probs=None) -> Batch:
        batch = super()._as_batch(x, lengths, states=states)
        if source_log_probs is None:
            return batch
        check_rows_together(x, source_log_probs, "source_log_probs")
        if isinstance(x, (list, tuple)):
            rows = [as_tensor(row) for row in source_log_probs]
            even = 0.0 if rows[0].dim() < 3 else -math.log(rows[0].shape[-1])  # of padded steps, read by nobody
            source_log_probs = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=even)
        return batch._replace(source_log_probs=torch.as_tensor(source_log_probs).to(self.reference))

    def forecast(self, x, num_steps: int | None = None, lengths=None, **known) -> Forecast:
        if self.num_sources:
            raise NotImplementedError(
                "forecast, predict_next: what comes depends on what the sources will say; a PROPSLearner asks them"
            )
        return super().forecast(x, num_steps, lengths, **known)

    # ---------------------------------------------------------------- streams
    def start(self, num_users: int | None = None, *, device=None, **options):
        """An empty stream with the model's parameters as they stand.

        Args:
            num_users: None for one user (numpy, a ``StreamState``), B for a batch in step (torch, a ``BatchStream``).
            device: of a batch.
            **options: of :class:`~pplseq.models.props.settings.OnlineEM`: exponent, step_size, warm_up, smoothing, averaging,
                window (of a batch 64 where none is given), ...

        Raises:
            ValueError: for options out of range, and for a batch over vectors.
        """
        from pplseq.models.props.online_em import start_stream
        from pplseq.models.props.settings import OnlineEM

        settings = OnlineEM(**options)
        settings = replace(settings, fixed=(*settings.fixed, *self._frozen_parts()))
        if num_users is not None:
            from pplseq.models.props.online_batch import BatchStream

            if self.num_words is None:
                raise ValueError(
                    "num_users: a batch of users learns words only; start a stream for each user of vectors"
                )
            tables = (self.initial, self.transition, self.emission)
            initial, transition, emission = (table.to(device or table.device) for table in tables)
            return BatchStream(initial, transition, emission, num_users, settings, window=options.get("window", 64))
        tables = {"initial": self.initial, "transition": self.transition}
        if self.num_words is not None:
            tables["emission"] = self.emission
        else:
            tables |= {"loc": self.loc, "covariances": self.covariances}
        tables = {name: value.double().cpu().numpy() for name, value in tables.items()}
        full, floor = self._config["covariance"] == "full", self._config["covariance_floor"]
        return start_stream(**tables, full=full, floor=floor, options=settings)

    def _frozen_parts(self) -> list[str]:
        """Names, as streams have them, of what is frozen by hand."""
        moves = {"initial": [self.initial_logits], "transition": [self.transition_logits]}
        parts = moves | {"emission": [slot.raw for slot in self.emissions.slots.values()]}
        still = {name: {not raw.requires_grad for raw in part} for name, part in parts.items()}
        if len(still["emission"]) > 1:
            raise ValueError(
                "requires_grad: a stream holds means and covariances together, and only some of them are frozen; freeze all, "
                "or none"
            )
        return [name for name, whole in still.items() if whole == {True}]

    def step(self, state, y, source_log_probs=(), learn: bool = True):
        """One token, of a user or (B,) of a batch: (state, info); ``state`` is changed in place.

        Arguments as for :meth:`~pplseq.models.props.online_em.StreamState.step`.
        """
        return state, state.step(y, source_log_probs, learn)

    def _set_stream(self, state) -> PROPS:
        """Takes over the parameters that a user's stream has learned (their means, where it averages); returns the model."""
        found = state.parameters()
        if self.num_words is not None:
            return self.set_parameters(initial=found.initial, transition=found.transition, emission=found.emission)
        return self.set_parameters(
            initial=found.initial, transition=found.transition, loc=found.loc, covariances=found.covariances
        )


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
