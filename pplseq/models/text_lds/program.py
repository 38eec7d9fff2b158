"""The linear dynamical system for text.

Source: D. Belanger and S. Kakade (2015), A Linear Dynamical System Model for Text, ICML.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pyro
import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.drawing import seeded
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.distributions.word_gaussian import MEASURES, WordEmission, check_probs
from pplseq.infer.fit.em import Batch
from pplseq.infer.fit.held import frozen
from pplseq.infer.gaussian.chain import GaussianChain
from pplseq.infer.programs.kalman_collapse import collapsed
from pplseq.infer.programs.markov import markov
from pplseq.models.base import Sizes, one_chain
from pplseq.models.constrained import FROM_VOCABULARY, up_to_end
from pplseq.models.estimator import Sample
from pplseq.models.forms import Form
from pplseq.models.gaussian import GaussianEstimator
from pplseq.models.information import Summary, observed_tokens
from pplseq.models.text_lds.embeddings import TokenEmbedder, embed_tokens, text_moments
from pplseq.models.text_lds.fit import BLOCKS, FitSettings, as_counts, fit_counts
from pplseq.models.text_lds.head_difference import HeadDifference, head_difference
from pplseq.models.text_lds.next_word import NextWords, forecast_words, sample_words
from pplseq.models.text_lds.parameters import expected_moments, free_parameters, rewritten, start_covariance, word_forms
from pplseq.models.text_lds.rnn_export import rnn_weights
from pplseq.models.texts import held_out_text
from pplseq.threads import undisturbed

if TYPE_CHECKING:
    from pplseq.data.vocabulary import WordForms

INITIAL = ("stationary", "steady")


class TextLDS(GaussianEstimator):
    """A chain of h-dimensional Gaussian states, each of which emits a word as a whitened one-hot vector.

        z_1 ~ N(0, P),  z_t ~ N(A z_{t-1}, Q),  w_t ~ N(C z_t, D),  w_t = diag(mu)^-1/2 (e_{x_t} - mu)

    P is the stationary covariance, P = A P A' + Q, and D = I - mu^1/2 mu^1/2' - C M C'. Parameters are free of constraints:
    any values of them give a stable A, and proper Q and D, so that gradients may go where they like. (``transition_weight``
    and ``noise_weight`` are A and Q in the basis of the state where P = I, up to a common factor; ``basis`` leads back.)

    Args:
        num_words: V.
        num_states: h, at most V - 1.
        probs: (V,) mu, positive; None: all words equally probable.
        initial: prior of the first state. "stationary": exact from the first word on. "steady": the covariance that the
            filter tends to, as in the paper, whose passes are then the same at every step.
        forms: how words are rewritten before they are looked up in the vocabulary (lower-casing, digits).
        measure: what densities of words refer to; see :class:`~pplseq.distributions.word_gaussian.WordEmission`. The
            default "iid" makes every log-probability the gain, in nats, over words without context.
        embedding_share: r in (0, 1], the share of the learning's pseudo-counts kappa that embeddings keep. A word that was
            seen n times tells of the state (n + kappa) / (n + r kappa) times what the model lets it tell, as if embedded
            with r kappa pseudo-counts: many of them make better parameters, but hide rare words. Set it with
            :meth:`set_embedding_share`, which also takes the moments that whiten from a text. It changes no probability.
        dtype: of the parameters; None: torch's default.

    Raises:
        ValueError: for sizes or options that do not fit.
    """

    mixture_weight: Tensor
    filtered_moment: Tensor
    second_moment: Tensor
    shrinkage: Tensor
    probs: Tensor
    unigram: Tensor
    basis: Tensor
    name = "text_lds"
    num_words: int

    _scores_word_vectors = True

    def __init__(
        self,
        num_states: int,
        *,
        num_words: int,
        probs: Tensor | None = None,
        initial: str = "stationary",
        measure: str = "iid",
        forms: WordForms | Mapping[str, Any] | None = None,
        embedding_share: float = 1.0,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        checks.count("num_words", num_words, 2)
        if not checks.count("num_states", num_states) < num_words:
            raise ValueError(
                f"num_states must be in 1..num_words - 1 (words have V - 1 dimensions), got {num_states} with {num_words} "
                "words"
            )
        checks.choice("initial", initial, INITIAL)
        checks.choice("measure", measure, MEASURES)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        mu = torch.full((num_words,), 1 / num_words, dtype=dtype) if probs is None else checks.numbers("probs", probs)
        mu: Tensor = checks.shape("probs", mu.to(dtype), (num_words,))
        check_probs(mu)
        self.num_words = num_words  # pyright: ignore[reportIncompatibleVariableOverride]
        self.num_states, self.initial, self.measure = num_states, initial, measure
        self.forms = word_forms(forms)
        self.embedding_share = checks.share("embedding_share", embedding_share, "(0, 1]")
        self._cached: tuple | None = None
        identity = torch.eye(num_states, dtype=dtype)
        # a state that half remembers, and words that say a little about it
        rotation = torch.linalg.qr(torch.randn(num_states, num_states, dtype=dtype))[0]
        # contiguous: SVI would train the contiguous copy that Pyro's parameter store makes of any other
        self.transition_weight = nn.Parameter((0.5 * rotation).contiguous())
        self.noise_weight = nn.Parameter(0.75**0.5 * identity)
        self.emission = nn.Parameter(0.3 * torch.randn(num_words, num_states, dtype=dtype) * mu.sqrt().unsqueeze(1))
        self.precision_factor = nn.Parameter(0.5 * identity)
        self.register_buffer("probs", mu.clone())
        self.register_buffer("basis", identity.clone())
        self.register_buffer("second_moment", identity.clone())
        self.register_buffer("filtered_moment", identity.clone())
        self.register_buffer("mixture_weight", torch.tensor(0.5, dtype=dtype))
        self.register_buffer("unigram", mu.clone())
        self.register_buffer("shrinkage", torch.tensor(1.0, dtype=dtype))
        self._set_moments()
        self.drawn()

    # ---------------------------------------------------------------- parameters
    @property
    def transition(self) -> Tensor:
        """(h, h) A; its spectral radius is below 1."""
        factor = self._joint_factor()
        inner = torch.linalg.solve_triangular(factor, self.transition_weight, upper=False)
        return torch.linalg.solve(self.basis.T, (self.basis @ inner).T).T

    @property
    def state_noise(self) -> Tensor:
        """(h, h) Q."""
        root = self.basis @ torch.linalg.solve_triangular(self._joint_factor(), self.noise_weight, upper=False)
        return root @ root.T

    def _joint_factor(self) -> Tensor:
        # with X X' + Y Y' = L L', L^-1 X and L^-1 Y have A A' + Q = I: the stationary covariance is I by construction
        x, y = self.transition_weight, self.noise_weight
        return torch.linalg.cholesky(x @ x.T + y @ y.T)

    @property
    def stationary_covariance(self) -> Tensor:
        """(h, h) P = A P A' + Q."""
        return self.basis @ self.basis.T

    @property
    def reduction(self) -> Tensor:
        """(h, h) M, where the words' noise is D = I - mu^1/2 mu^1/2' - C M C'."""
        return self.word_emission().reduction

    @property
    def start_covariance(self) -> Tensor:
        """(h, h) covariance of z_1 under ``initial``."""
        return self._start_covariance(self.initial)

    def _start_covariance(self, initial: str) -> Tensor:
        checks.choice("initial", initial, INITIAL)
        information = self.word_emission().information
        return start_covariance(initial, self.transition, self.state_noise, information, self.stationary_covariance)

    def word_emission(self, dtype: torch.dtype | None = None) -> WordEmission:
        """p(w | z) with the current parameters; at test it is made once for given parameters."""
        if self._is_learning or torch.is_grad_enabled():
            self._cached = None
            return self._build_emission(dtype)
        tensors, cached = (self.probs, self.emission, self.precision_factor), self._cached
        version = (dtype, *((value.data_ptr(), value._version) for value in tensors))
        if cached is None or cached[0] != version:
            cached = self._cached = version, self._build_emission(dtype)
        return cached[1]

    def _build_emission(self, dtype: torch.dtype | None) -> WordEmission:
        factor, matrix, probs = (v.to(dtype or v.dtype) for v in (self.precision_factor, self.emission, self.probs))
        return WordEmission(probs, matrix, factor @ factor.T, measure=self.measure)

    @torch.no_grad()
    def set_parameters(
        self, transition=None, emission=None, state_noise=None, reduction=None, *, probs=None, second_moment=None,
        filtered_moment=None,
    ) -> TextLDS:  # fmt: skip
        """Sets A, C, Q, M as they are usually written; what is None stays.

        Args:
            transition, state_noise, reduction: (h, h). emission: (V, h), whitened.
            probs: (V,) mu.
            second_moment, filtered_moment: (h, h) mean of x x' over the smoothed and filtered means of a text, which
                whiten embeddings; None: what the model itself expects.

        Raises:
            ValueError: for wrong shapes, an unstable A, or Q or D that are not positive definite.
        """
        square = (self.num_states, self.num_states)
        given = {}
        for name, value, shape in (
            ("transition", transition, square), ("emission", emission, (self.num_words, self.num_states)),
            ("state_noise", state_noise, square), ("reduction", reduction, square), ("probs", probs, (self.num_words,)),
            ("second_moment", second_moment, square), ("filtered_moment", filtered_moment, square),
        ):  # fmt: skip
            if value is not None:
                value = checks.numbers(name, value).to(device=self.basis.device, dtype=torch.float64)
                given[name] = checks.finite(name, checks.shape(name, value, shape))
        names = ("transition", "state_noise", "emission", "reduction", "probs")
        now = {name: given[name] if name in given else getattr(self, name).double() for name in names}
        check_probs(now["probs"])
        free = free_parameters(*(now[name] for name in names))
        for name, value in free._asdict().items():
            getattr(self, name).copy_(value)
        if "probs" in given:
            self.probs.copy_(now["probs"])
            self.set_unigram(now["probs"])
        self._set_moments(given.get("second_moment"), given.get("filtered_moment"))
        return self

    @torch.no_grad()
    def _set_moments(self, second_moment: Tensor | None = None, filtered_moment: Tensor | None = None) -> None:
        """Sets what whitens embeddings; None: the value the model expects, P minus the posterior covariance."""
        dynamics = self.transition.double(), self.state_noise.double(), self.word_emission(torch.float64).information
        expected = expected_moments(*dynamics, self.stationary_covariance.double())
        self.second_moment.copy_(expected[0] if second_moment is None else second_moment)
        self.filtered_moment.copy_(expected[1] if filtered_moment is None else filtered_moment)

    @torch.no_grad()
    def set_unigram(self, unigram, shrinkage: float = 1.0) -> None:
        """Sets what next-word probabilities are made of beside the model.

        Args:
            unigram: (V,) word probabilities of the text itself, positive, where ``probs`` hold pseudo-counts.
            shrinkage: alpha = T / (T + kappa V), the share of the text among words and pseudo-counts, in (0, 1].
        """
        unigram = torch.as_tensor(unigram).to(self.unigram)
        if unigram.shape != self.unigram.shape or not 0 < shrinkage <= 1:
            what = f"{tuple(unigram.shape)} and {shrinkage}"
            raise ValueError(f"unigram must be (V,) = ({self.num_words},) and shrinkage in (0, 1], got {what}")
        check_probs(unigram)
        self.unigram.copy_(unigram)
        self.shrinkage.fill_(shrinkage)

    # ---------------------------------------------------------------- the program
    @one_chain
    def model(
        self,
        x: Tensor | None = None,
        lengths: Tensor | None = None,
        start: GaussianBelief | None = None,
        *,
        initial: str | None = None,
        **sizes: Unpack[Sizes],
    ):
        """The generative program.

        Args:
            x: (B, T) word ids, ``MISSING`` (-1) for a missing word; None to generate words as whitened vectors (V,): the
                model's words are Gaussian.
            lengths: (B,) valid steps, or None for all.
            start: the belief that the previous segment ended with.
            initial: another prior of the first state than the model's own.
            **sizes: how much to generate, or what a mini-batch stands for: :class:`~pplseq.models.base.Sizes`.
        """
        given = self.given(x, lengths, start, **sizes)
        transition, emission = self.specs(start, initial)
        z = start
        with given.plate:
            for t in markov(given.steps):
                with given.valid(t):
                    z = pyro.sample(f"z_{t}", transition(z))
                    with given.seen(t):
                        pyro.sample(f"x_{t}", emission(z), obs=given.value(t))
        return x

    def specs(self, start: GaussianBelief | None = None, initial: str | None = None):
        """The distributions of the next state, a function of the one before, and of what is observed of a state."""
        matrix, noise = self.transition, self.state_noise
        first = self._start_covariance(initial or self.initial) if start is None else None
        return (lambda z: LinearGaussian(z, matrix, first if z is None else noise)), self.word_emission()

    def _direct_chain(self, x, lengths=None, start=None, *, initial=None, num_total=None) -> GaussianChain | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not self._is_one_chain or num_total is not None:
            return None
        transition, emission = self.specs(start, initial)
        return collapsed(self.given(x, lengths, start), lambda z, t: transition(z), lambda z, t: emission(z), start)

    def _as_batch(self, x, lengths=None, *, states=None) -> Batch:
        if states is not None:
            raise ValueError("states: those of a linear dynamical system cannot be given")
        return super()._as_batch(x, lengths)

    def _in_form(self, x: Any, lengths: Any = None) -> Form:
        """As of other models of words, with words rewritten by `forms`."""
        rows, ends = super()._in_form(x, lengths)
        return rewritten(rows, self.forms, self.vocabulary), ends

    def _split(self, text: str) -> list[str]:
        return super()._split(text.lower() if self.forms.lower else text)  # before there are bytes

    # ---------------------------------------------------------------- embeddings
    def set_embedding_share(self, share: float, x, lengths=None) -> TextLDS:
        """Sets ``embedding_share`` and, by :meth:`estimate_moments` of a text x, what whitens the new embeddings."""
        self.embedding_share = checks.share("embedding_share", share, "(0, 1]")
        self.estimate_moments(x, lengths)
        return self

    def estimate_moments(self, x, lengths=None) -> None:
        """Sets what whitens embeddings from a text's own posterior means: after gradient training, or for other text."""
        self._set_moments(*text_moments(self, x, lengths))

    def embed_tokens(self, x, lengths=None, *, kind: str = "smoothed", normalize: bool = True, dtype: str = "float32"):
        """Embeddings of tokens in their sentences; see :func:`pplseq.models.text_lds.embeddings.embed_tokens`."""
        return embed_tokens(self, x, lengths, kind=kind, normalize=normalize, dtype=dtype)

    def type_embeddings(self, *, kind: str = "smoothed", normalize: bool = True) -> np.ndarray:
        """(V, h) embeddings of word types: the filter's response to the word alone, in the coordinates of the tokens."""
        return TokenEmbedder(self, kind=kind, normalize=normalize).types()

    # ---------------------------------------------------------------- use
    @torch.no_grad()
    def summary(self, x, lengths=None, **known) -> Summary:
        """How long the states remember: |eigenvalue| of A, largest first, and the criteria of a text x; printed, a table.

        There are no standard errors: the fit matches covariances of words and ends at no maximum of the likelihood, and the
        states have no basis of their own in which single weights would mean something.
        """
        x, lengths = self._as_text(x, lengths, known)
        total = self.score(x, lengths, **known)
        memory = torch.linalg.eigvals(self.transition.double()).abs().sort(descending=True).values
        tokens, count = observed_tokens(self, self._as_batch(x, lengths)), self.num_free_parameters
        unknown = torch.full_like(memory, torch.nan)
        return Summary(
            [f"memory[{k}]" for k in range(len(memory))], memory, unknown, torch.diag(unknown), total, 2 * count - 2 * total,
            count * math.log(tokens) - 2 * total, tokens, repr(self),
        )  # fmt: skip

    def head_difference(self, x: Tensor, lengths: Tensor | None = None) -> HeadDifference:
        """How far the paper's steady-state passes are from the exact ones on these sentences."""
        return head_difference(self, x, lengths)

    def predict_next(self, x, lengths=None) -> NextWords:  # pyright: ignore[reportIncompatibleMethodOverride]
        """p(next word | x) of each row, which may be empty, (B, V) nats, and the moments of its state; see :meth:`forecast`."""
        return NextWords(*(value[:, 0] for value in self.forecast(x, 1, lengths)))

    @torch.no_grad()
    def forecast(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, num_steps: int, lengths=None
    ) -> NextWords:
        """p(w_{T+k} | x), k = 1..K, as :func:`~pplseq.models.text_lds.next_word.word_probs` makes probabilities of means.

        Args:
            x, lengths: the words so far; a row may be empty. num_steps: K.

        Returns:
            (B, K, V) nats; means (B, K, h) and covariances (B, K, h, h) of the states behind them.
        """
        self._check_fitted()
        return forecast_words(self, x, checks.count("num_steps", num_steps), lengths)

    @torch.no_grad()
    def sample(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, num_steps: int, num_sequences: int = 1, *, seed: int | None = None, end: str | int | None = FROM_VOCABULARY,
        **known,
    ) -> Sample:  # fmt: skip
        """Words drawn one by one from :meth:`predict_next`, and the filtered means (B, T, h) of the states behind them.

        Args:
            num_steps, num_sequences, seed, end: as of :meth:`VLHMM.sample <pplseq.models.constrained.Constrainable.sample>`.
        """
        self._check_fitted()
        counts = checks.count("num_steps", num_steps), checks.count("num_sequences", num_sequences)
        with seeded(seed):
            x, states = sample_words(self, *counts, **known)
        words = None if self.vocabulary is None else [self.vocabulary.decode(row) for row in x.tolist()]
        return up_to_end(self, Sample(x, states, words), end)

    def draws(self, **known) -> tuple[Tensor, Tensor]:
        """Filtered means (B, T, h) of the states, and words (B, T), as :meth:`sample` draws them."""
        x, states = sample_words(self, **known)
        return states, x

    def rnn_weights(self, form: str = "predictor", **options) -> dict[str, np.ndarray]:
        """The steady filter as a linear recurrent network; see :func:`pplseq.models.text_lds.rnn_export.rnn_weights`."""
        return rnn_weights(self, form, **options)

    @property
    def config(self):
        names = ("num_words", "num_states", "initial", "measure", "embedding_share")
        return {name: getattr(self, name) for name in names} | {"forms": asdict(self.forms)}

    @classmethod
    def from_config(cls, config: dict, tensors: dict[str, Tensor]) -> TextLDS:
        if "emission" not in tensors or "probs" not in tensors:
            raise ValueError(
                "model.safetensors: no emission and probs in it, so this is not a text_lds; was it saved by pplseq?"
            )
        return cls(dtype=tensors["emission"].dtype, **config)

    @classmethod
    def from_parameters(
        cls, parameters: Any, probs, *, moments=(None, None), dtype=torch.float64, **options
    ) -> TextLDS:
        """The model with parameters A, C, Q and M.

        Args:
            parameters: a :class:`~pplseq.models.text_lds.steady_state.TextParameters` (or anything with its attributes
                transition, emission, state_noise, reduction).
            probs: (V,) mu.
            moments: second moments (h, h) of smoothed and of filtered means; None: the model's own.
            options: of the constructor.
        """
        num_words, num_states = parameters.emission.shape
        model = cls(num_states, num_words=num_words, probs=torch.as_tensor(probs), dtype=dtype, **options)
        return model.set_parameters(
            parameters.transition, parameters.emission, parameters.state_noise, parameters.reduction,
            second_moment=moments[0], filtered_moment=moments[1],
        ).eval()  # fmt: skip

    # ---------------------------------------------------------------- fit
    @undisturbed
    def fit(
        self, x, lengths=None, *, validation=None, folder=None, resume: bool = False, seed: int | None = None,
        initial: Any = None, progress: bool = False, on_record: Callable[[dict[str, Any]], None] | None = None,
        began: float | None = None,
        fixed: Any = (), **settings,
    ) -> TextLDS:  # fmt: skip
        """Fits the parameters to a text, of which only counts of word pairs matter; ``history`` says how it went.

        Args:
            x: the :class:`~pplseq.data.lag_counts.LagCounts` of a text, a :class:`~pplseq.data.text.Text`, a
                :class:`~pplseq.data.text.Corpus`; word ids in any form that models take; or sentences, strings or lists of
                words, also as a column of a frame: in the words of the model's ``vocabulary``, or all their words and ``<eos>``
                become that.
            validation: other text, like x, whose likelihood decides which parameters are best.
            folder: gets metrics.jsonl and the model folders last/ and best/; an interrupted fit goes on with ``resume``.
            seed: of the randomised decomposition; None is 0.
            initial: :class:`~pplseq.models.text_lds.steady_state.TextParameters` to start EM from, instead of identifying
                some. progress: show a bar. on_record: called with every record. began: `time.monotonic()` from which max_time
                counts; None is now.
            fixed: of other models; here nothing can be held.
            **settings: of :class:`~pplseq.models.text_lds.fit.FitSettings`: pseudo_counts, max_iterations, start, ...;
                the model takes their dtype.

        Returns:
            The model itself.

        Raises:
            ValueError, NonFiniteLoss: see :func:`~pplseq.models.text_lds.fit.fit_counts`.
        """
        if still := fixed or frozen(self):
            raise ValueError(
                f"fixed: TextLDS.fit learns transition, emission, noises and the basis of the state together, and keeps none: "
                f"expected nothing held (also by requires_grad_(False)), got {checks.shown(still)}; go on from given "
                "parameters with initial=, or descend on -log_joint(x) with an optimizer over what may move"
            )
        checks.no_bounds("TextLDS.fit", settings, "go on from given parameters with initial=, or take an LDS, which has bounds")
        known = FitSettings.__dataclass_fields__
        if unknown := [name for name in settings if name not in known]:
            why = " It is fitted on the CPU." if unknown[0] == "device" else checks.nearest(unknown[0], known)
            raise TypeError(f"TextLDS.fit has no option {unknown[0]!r}.{why}")
        chosen = FitSettings(self.num_states, seed=seed or 0, **settings)
        max_lag = 2 * (chosen.blocks or BLOCKS) - 1
        about: dict[str, Any] = dict(num_words=self.num_words, max_lag=max_lag, forms=self.forms)
        counts = as_counts(x, lengths, vocabulary=self.vocabulary, **about)
        if validation is not None:
            about |= dict(vocabulary=self.vocabulary or counts.vocabulary, name="validation")
        other = None if validation is None else as_counts(held_out_text("validation", validation), **about)
        model, self.history = fit_counts(
            self, counts, chosen, validation=other, folder=folder, resume=resume, initial=initial, progress=progress,
            on_record=on_record, began=began,
        )  # fmt: skip
        self.to(model.emission.dtype).load_state_dict(model.state_dict())
        self.forms, self.embedding_share, self.is_fitted = model.forms, model.embedding_share, True
        names = counts.vocabulary
        if self.vocabulary is None and names.words != tuple(map(str, range(len(names)))):  # those of ids are no words
            self.vocabulary = names
        return self.eval()

    @classmethod
    def from_counts(cls, counts: Any, num_states: int, **options) -> TextLDS:
        """A model of num_states states, fitted to the counts of a text; options of :meth:`fit`."""
        return cls(num_states, num_words=counts.num_words).fit(counts, **options)
