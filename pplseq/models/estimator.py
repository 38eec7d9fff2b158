"""The verbs that models share: fit, score, filter, smooth, decode, predict_next, forecast, sample, on whole data sets."""

from __future__ import annotations

import contextlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from pplseq import checks, notebooks
from pplseq.data.text import Text
from pplseq.data.text_parts import TextFiles
from pplseq.distributions.drawing import seeded
from pplseq.distributions.state import MISSING, Belief
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.discrete.results import MissingWords, StateMarginals
from pplseq.infer.fit.em import Batch
from pplseq.infer.fit.held import frozen, restored, scatter
from pplseq.infer.forecasts import Forecast
from pplseq.models.base import AT_POINT, AT_TEST, GOES_ON, SequenceModel, first_parameter, in_training, said
from pplseq.models.batch import (
    as_given,
    holds_words,
    in_ids,
    is_batch,
    padded_states,
    split_rows,
    to_batch,
    with_ends,
    without_empty_rows,
)
from pplseq.models.diagnostics.residuals import DiagnosticQueries
from pplseq.models.fitted import HeldParameters, mean_the_same, told_bounds, told_parameters
from pplseq.models.fitting import (
    about_run,
    batches_of_text,
    check_options,
    fit_best,
    goes_by_lines,
    held_out_data,
    num_steps_of,
    on_cluster,
    parts_of_files,
    rows_of_part,
    run_fit,
    start_anew,
)
from pplseq.models.forms import is_table
from pplseq.models.information import Summary, criterion, observed_tokens, summarize
from pplseq.models.online.reader import Chains, Filter, Online
from pplseq.models.state_labels import StateOrder, named
from pplseq.runs.progress import recorder
from pplseq.threads import alone, undisturbed


class Paths(NamedTuple):
    """The most probable paths of states; see :meth:`Estimator.n_best`.

    states: (B, n, T), or a list of (n, T_i). log_probs: (B, n) log p(path | x), nats.
    """

    states: Any
    log_probs: Tensor

    def _repr_html_(self) -> str | None:
        """For notebooks."""
        if len(scores := self.log_probs[0].tolist()) > notebooks.MOST_COLUMNS:
            return None
        steps = (row for row in self.states[0].T.tolist() if any(state not in (MISSING, None) for state in row))
        return notebooks.first_of("Most probable paths", len(self.states), [f"log p {each:.4g}" for each in scores], steps)


class Sample(NamedTuple):
    """Sequences drawn from a model.

    x: (B, T) words or (B, T, D) vectors. states: (B, T), by name where they have names, or (B, T, h) where they are Gaussian.
    words: x in the words of the model's vocabulary, where it has one.
    """

    x: Tensor
    states: Any
    words: list[list[str]] | None = None

    def _repr_html_(self) -> str | None:
        """For notebooks."""
        parts = {"state": self.states[0], "x": self.x[0]}
        columns = {name: part[:, None] if part.ndim == 1 else part for name, part in parts.items()}
        names = [f"{name}{k}" if part.shape[-1] > 1 else name for name, part in columns.items() for k in range(part.shape[-1])]
        if len(names) > notebooks.MOST_COLUMNS:
            return None
        rows = (a + b for a, b in zip(*(part.tolist() for part in columns.values()), strict=True))
        if self.words is not None:
            rows = ([*row[:-1], word] for row, word in zip(rows, self.words[0], strict=False))  # behind an end nothing
        return notebooks.first_of("Drawn", len(self.x), names, rows)


class Estimator(DiagnosticQueries, StateOrder, HeldParameters, SequenceModel):
    """A model that is fitted to data sets and answers questions about them.

    x is, everywhere, a list of sequences of any lengths (lists, arrays or tensors: (T_i,) words or (T_i, D) vectors), or
    one padded array or tensor (B, T) or (B, T, D) with ``lengths`` (B,), or one of the other forms that
    :mod:`pplseq.models.forms` reads: frames, one sequence alone, several one behind the other. Missing words are -1, missing
    vectors rows of NaN.
    A model with a ``vocabulary`` also takes sentences, strings or lists of words where None is missing; no ``<eos>`` is added.
    Results come back as lists where x was one. ``known`` is what else a model takes with its sequences: ``states`` of
    models with discrete states (negative where unknown), ``inputs`` of models that have some.

    What a model offers to be fitted by its ``methods`` says :class:`~pplseq.infer.fit.fittable.Fittable`.
    """

    history: Any = None  # of the last fit: a FitHistory, or the History of a training run

    # ---------------------------------------------------------------- data
    @property
    def reference(self) -> Tensor:
        """An empty tensor of the model's type and device; reading a parameter by name would tell Pyro that it is used."""
        own = first_parameter(self)
        return (torch.empty(0) if own is None else own).detach().new_empty(0)

    def _as_batch(self, x, lengths=None, *, states=None) -> Batch:
        """x, its lengths and observed states as tensors of the model's type and device.

        Raises:
            TypeError, ValueError: for what is no such data; says where and what to do.
        """
        if lengths is states is None and is_batch(x, self.num_features is None, first_parameter(self)):
            self._check_observations(x)
            return Batch(x)
        states = self._states_in_form(states, x, lengths)
        x, lengths = self._in_form(x, lengths)
        x = in_ids(x, self.vocabulary)
        batch = to_batch(x, lengths, words=self.num_features is None, reference=self.reference)
        self._check_rows(batch.x, batch.lengths)
        return batch if states is None else batch._replace(states=padded_states(states, x, batch, self._num_observable_states))

    def _as_text(self, x, lengths, known: Mapping[str, Any]) -> tuple[Any, Any]:
        """Sentences as the lines of a corpus, which end in ``<eos>``, where a text is learned from or scored; else as it came.

        What is known of single steps is about the words that are there: beside it no step is added.
        """
        vocabulary = self.vocabulary
        if known or vocabulary is None or vocabulary.eos_id is None or isinstance(x, (Tensor, Text)):
            return x, lengths
        rows, ends = self._in_form(x, lengths)
        return (with_ends(rows, vocabulary), None) if holds_words(rows) or holds_words(x) else (x, lengths)

    def _results_like(self, x, **known) -> Any:
        """The data in whose form results come back."""
        return self._in_form(x)[0] if isinstance(x, (list, tuple, Text)) else x

    # ---------------------------------------------------------------- fit
    @undisturbed
    def fit(
        self,
        x,
        lengths=None,
        *,
        validation: Any = None,
        method: str | None = None,
        batch_size: int | None = None,
        early_stop: int | None = None,
        warm_start: bool = False,
        initialization: str | None = None,
        num_restarts: int = 1,
        seed: int | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
        max_time: float | None = None,
        fixed: str | Sequence[str] | Mapping[str, Any] = (),
        bounds: Mapping[str, Any] | None = None,
        progress: bool = False,
        on_record: Callable[[dict[str, Any]], None] | None = None,
        **options,
    ) -> Self:
        """Fits the parameters to data; ``history`` says afterwards how it went.

        Args:
            x, lengths: the sequences; see the class. Of "em" and words also a :class:`~pplseq.data.text_parts.TextFiles`, read
                a part at a time; the first part then says where the fit starts.
            validation: held-out data, of "em" and "sgd": like x, or a mapping from arguments of :meth:`score` to what they
                take, ``{"x": ..., "inputs": ...}``. They are scored after every iteration of "em" and every 20 steps of "sgd",
                and the model ends with the parameters that were best on them, those of ``history.best_iteration``;
                ``history.validations`` has them all. Of several starts one goes on, chosen as without them.
            method: one of ``methods``, by default the first: "em" (with priors: maximum a posteriori), "sgd" (Adam) or
                "lbfgs" on the same objective, "svi" (needs priors; ``history.guide``), "nuts" (needs priors;
                ``history.samples``). After the last two the parameters hold the guide's median, or the most probable draw.
            batch_size: sequences at a time; None for all (of a ``Text`` in batch EM: some thousand words). In EM it bounds the
                memory and changes nothing else, unless ``step_size`` is given.
            early_stop: stop after so many scores of held-out data in a row without a new best.
            warm_start: start from the parameters as they are, instead of anew from the data.
            initialization: how to start anew, one of ``starts``, by default the first.
            num_restarts: starts; after every 10 iterations of EM (of L-BFGS of models without) the worse half is dropped, until
                one is left (two of a switching regression, which are both fitted to the end).
            seed: makes the fit repeatable; None draws from torch's generator.
            folder: of a run: checkpoints ``last/`` and ``best/``, and ``metrics.jsonl``. Ctrl-C and SIGTERM leave a checkpoint
                of "em" and "sgd"; of the other methods the folder gets the model when they are done.
            resume: go on where the run in the folder stopped, to the numbers it would have come to. Data, ``fixed`` and options
                must be the same; of "em" and "sgd" more iterations or steps, or a smaller tolerance, may be asked for.
            max_time: seconds, over all resumptions, of "em" and "sgd".
            fixed: parameters that keep the values that were set or fitted, by the names of ``set_parameters``; or a mapping
                from names to masks, True where an entry is held, in the shape of the parameter: of probabilities the rest of a
                row is shared out among the others. Parameters whose ``requires_grad`` is False are held as well; none that is
                held counts in ``num_free_parameters``.
            bounds: by the same names pairs (low, high) between which values stay, each a number, None for no bound, or an array
                that broadcasts to the parameter: ``{"transition": (0.01, None), "covariance": (None, 3)}``. Of "em", "sgd" and
                "lbfgs". Means and covariances that are full matrices have bounds by gradients, the second none. Or of all
                states together: "equal" for values that they share, "increasing" or "decreasing" from state to state:
                ``{"loc": "increasing", "covariance": "equal"}``.
            progress: show a bar. on_record: called with every record: of an iteration of "em", of some steps of "sgd", of the
                end of other methods.
            **options: ``device``, to which the model moves first; ``began``, ``time.monotonic()`` when the time of ``max_time``
                began (None: now); what is ``known`` with the sequences (observed states make the fit supervised, or partly so);
                options of :func:`~pplseq.infer.fit.em.expectation_maximization` (max_iterations, tolerance, step_size;
                ``cluster``, an address as of :func:`pplseq.runs.cluster.connected`, whose workers do the E-steps) or in
                :mod:`pplseq.infer.fit.gradients` (num_steps, lr, guide, num_samples, ...).

        Returns:
            The model itself.

        Raises:
            ValueError, TypeError: for bad data or options.
        """
        method = self.methods[0] if method is None else checks.choice("method", method, self.methods)
        drawn = self._random_parameters
        if "device" in options:
            self.to(checks.device(options.pop("device")))
        began = options.pop("began", None)
        known = {name: options.pop(name) for name in checks.signature(type(self)._as_batch).parameters if name in options}
        check_options(self, method, options)
        checks.count("num_restarts", num_restarts)
        if initialization is not None and not self.starts:
            raise ValueError(
                f"initialization: {type(self).__name__} starts in one way; leave it out, got {checks.shown(initialization)}"
            )
        how = () if initialization is None else (checks.choice("initialization", initialization, self.starts),)
        self._check_method(method)
        warm_start, resume = checks.flag("warm_start", warm_start), checks.flag("resume", resume)
        if num_restarts > 1 and warm_start:
            raise ValueError(f"num_restarts: a warm start has one starting point; got {num_restarts}")
        beside = [known.get("trials"), known.get("exposure")]
        with self._naming(x, warm_start or resume, known.get("inputs"), known.get("states"), beside):
            by_lines = goes_by_lines(x, method, options, lengths, batch_size, *known.values())
            in_parts = isinstance(x, TextFiles) or by_lines and (warm_start or resume)  # whole it says where to start
            batch = None if in_parts else self._as_batch(*self._as_text(x, lengths, known), **known)
            held_out = held_out_data(self, x, method, validation, early_stop)
        if batch is not None:
            self._check_data(batch)
        if method != "em" or in_training(self):  # a model that was fitted or loaded before is at test, without dropout
            self.train(method != "em")
        with seeded(seed), on_cluster(options) as options, contextlib.ExitStack() as stack:
            cluster = options.get("cluster")
            if by_lines:
                batches: Any = batches_of_text(self, x)
                batch = batch or batches[0]
            elif batch is None:
                alone = dict(lengths=lengths, batch_size=batch_size, step_size=options.get("step_size"), **known)
                batches = parts_of_files(self, x, method, alone, cluster)
                batch = next(batches[0].batches(self))
            else:
                batches = split_rows(batch, rows_of_part(batch) if cluster and batch_size is None else batch_size)
            alone, starts = folder is max_time is held_out is None and not resume, []
            holds = self._held_by(fixed)
            self._take_units(batch, warm_start or resume, holds)
            bounds = {} if bounds is None else bounds
            boxes = self._bounds_by(bounds, method)
            stack.enter_context(self._keeping(holds, method, () if resume else drawn, boxes))  # a run that goes on sets all
            self._bounds = told_bounds(bounds)
            stack.enter_context(self._saying_why(batch))
            if not (warm_start or resume):
                finalists, num_starts = self._finalists if alone else 1, max(num_restarts, self._least_starts)
                ways = [how or self._turns[k % len(self._turns) :][:1] if self._turns else how for k in range(num_starts)]
                begin = [partial(self._begin, batch, *way) for way in ways]
                starts = start_anew(self, batches, begin, cluster, finalists)
            record = stack.enter_context(recorder(progress, on_record, num_steps_of(method, options)))
            if alone:
                history = fit_best(self, batches, method, options, starts, record)
            else:
                about = {} if folder is None else about_run(self, x, batch, batches, holds, boxes, held_out)
                if method != "em":  # of which batches are only its memory
                    about["batch_size"] = batch_size
                limits: dict[str, Any] = {"folder": folder, "resume": resume, "max_time": max_time, "early_stop": early_stop}
                history = run_fit(
                    self, batches, method, options, **limits, held_out=held_out, about=about, on_record=record, began=began
                )
        vars(self)["history"] = history  # no submodule, though it may hold a guide
        vars(self)["is_fitted"] = True
        words = x.vocabulary if isinstance(x, (Text, TextFiles)) else None
        if self.vocabulary is None and words is not None and self.num_words == len(words):
            self.vocabulary = words
        # as a loaded model is; queries need not change it and change it back
        return self.eval() if method != "em" or self.training else self

    @contextlib.contextmanager
    def _saying_why(self, batch: Batch) -> Iterator[None]:
        try:
            yield
        except ArithmeticError as error:
            if not (why := self._why_no_number(batch)):
                raise
            raise type(error)(f"{why}: {error}") from error

    def _begin(self, batch: Batch, *how: str) -> None:
        """A start, in which what is held is what it was."""
        with restored(self):
            self.initialize(batch, *how)
            scatter(self._slots.values())

    def log_joint(self, x: Tensor, lengths: Tensor | None = None, *, share: float = 1.0, **known) -> Tensor:
        """log p(x) summed over rows plus ``share`` of the log prior, nats; differentiable in the parameters."""
        checks.number("share", share)

        def by_program() -> Any:
            with poutine.block():
                self(x, lengths, **known)
            return vars(self).pop("_chains").popitem()[1]

        with said(AT_POINT):
            chain: Any = self._direct_chain(x, lengths, **known)
            chain = alone(by_program) if chain is None else chain
        return chain.log_prob().sum() + float(share) * self.log_prior()

    # ---------------------------------------------------------------- likelihood
    def posterior(self, x, lengths=None, start=None, **known):
        """The chain of observations at the point estimate, without dropout and gradients.

        Args:
            x, lengths, **known: the sequences; see the class.
            start: the belief that the previous segment ended with, or None.
        """
        if isinstance(x, (list, tuple, np.ndarray, Text)) or is_table(x):
            batch = self._as_batch(x, lengths, **known)
            x, lengths, known = batch.x, batch.lengths, batch.known
        return super().posterior(x, lengths, start, **known)

    def _posterior(self, x, lengths, **known) -> tuple[Batch, Any]:
        self._check_fitted()
        before = GOES_ON.get()
        if before is lengths is None and not known and (chain := self._chain_by_loops(x)) is not None:
            return Batch(x), chain
        self._check_names(known)
        batch = self._as_batch(x, lengths, **known)
        chain = self._chain_of_rows(batch) if before is None else None
        if chain is not None:
            return batch, chain
        # a batch made here was looked at; those of subclasses have parts that only their programs look at
        looked = checks.TRUSTED.set(checks.TRUSTED.get() or type(self)._as_batch is Estimator._as_batch)
        try:
            return batch, self.posterior(batch.x, batch.lengths, **(batch.known | (before or {})))
        finally:
            checks.TRUSTED.reset(looked)

    def _check_names(self, known: dict[str, Any]) -> None:
        """Raises TypeError for arguments by names that this model does not know; says which it knows."""
        names = list(checks.signature(type(self)._as_batch).parameters)[3:] if known else []
        for name in known:
            if name not in names:
                takes = checks.nearest(name, ["x", "lengths", *names])
                raise TypeError(f"{type(self).__name__}: no argument {name!r} beside the data.{takes}")

    def score(self, x, lengths=None, *, per_token: bool = False, **known) -> float:
        """log p(x), nats, summed over sequences (as hmmlearn's), -inf where one is impossible; or the mean over tokens.

        Of sentences (strings, or lists of words) the ``<eos>`` behind each counts as a token, as it does in a corpus, where the
        model's vocabulary has it and nothing is ``known`` of single steps: exp(-score(x, per_token=True)) is the perplexity
        either way. Ids in a list or tensor are scored as they are.

        Raises:
            ValueError: where nothing at all was observed, whose 0 nats would say nothing of the model.
        """
        per_token = checks.flag("per_token", per_token)
        x, lengths = self._as_text(x, lengths, known)
        batch, chain = self._posterior(x, lengths, **known)
        if batch.states is None and not getattr(chain, "is_whole", False) and not observed_tokens(self, batch):
            raise ValueError("x: every observation is missing (NaN, or -1), so there is nothing to score")
        total = getattr(chain, "total_log_prob", None)  # where a tensor would cost more than the number
        with chain.unchecked() if isinstance(chain, Chain) else contextlib.nullcontext():
            value = float(chain.log_prob().detach().sum(dtype=torch.float64)) if total is None else total()
        if value == -math.inf and (why := self._new_words(x, batch)):
            warnings.warn(why, RuntimeWarning, stacklevel=2)
        return value / batch.num_tokens if per_token else value

    def _new_words(self, x: Any, batch: Batch) -> str:
        """What to say of words that are new to the vocabulary and therefore impossible; "" where it is not they."""
        vocabulary = self.vocabulary
        unknown = None if vocabulary is None else vocabulary.unknown_id
        if vocabulary is None or unknown is None or not bool((batch.x == unknown).any()):
            return ""
        if float(self.log_prob(batch.x.new_full((1, 1), unknown))) > -math.inf:
            return ""
        words = (word for row in x for word in (self._split(row) if isinstance(row, str) else row)) if holds_words(x) else ()
        new = [*dict.fromkeys(word for word in words if word is not None and word not in vocabulary)]
        named = f"the words {checks.shown(new[:5])} are new, and" if new else "words that are new"
        return (
            f"x: {named} read as {vocabulary.unknown!r}, which the model has never seen: its probability is 0, and the score "
            f"-inf. Make the vocabulary of the training text with min_count=2, so that rare words of it become "
            f"{vocabulary.unknown!r}, or fit with priors (priors=True), which give every word a probability"
        )

    def _criterion_terms(self, batch: Batch, log_prob: float) -> tuple[float, int]:
        """What the criteria below are made of, given log p(x): a log-likelihood, and how many parameters were learned."""
        return log_prob, self.num_free_parameters

    def aic(self, x, lengths=None, **known) -> float:
        """Akaike's criterion, -2 log p(x) + 2 parameters: lower is better."""
        return criterion(self, x, lengths, known, lambda _: 2.0)

    def bic(self, x, lengths=None, **known) -> float:
        """The Bayesian criterion, -2 log p(x) + parameters * log(tokens), tokens that are seen and no lags: lower is better."""
        return criterion(self, x, lengths, known, math.log)

    def estimates(self) -> dict[str, Tensor]:
        """The parameters that :meth:`summary` is about, by name, as functions of those that are learned."""
        return dict(self.named_parameters())

    def _at_bounds(self, batch: Batch) -> dict[str, float]:
        """Which of :meth:`estimates` stand at a bound of what they may be, and the bound: they have no standard error."""
        return {}

    def summary(self, x, lengths=None, **known) -> Summary:
        """Estimates, standard errors from the observed information, and criteria; printed, a table.

        Args:
            x, lengths, **known: what the model was fitted to; see :func:`~pplseq.models.information.summarize`.
        """
        self._check_names(known)
        self._check_fitted()
        return summarize(self, self._as_batch(*self._as_text(x, lengths, known), **known))

    # ---------------------------------------------------------------- states
    def filter(self, x, lengths=None, **known) -> StateMarginals:
        """p(z_t | x_1..x_t) at each step, (B, T, K) probabilities of the states in ``ids``, None for all; 0 at padded steps.

        Of models with regimes these are of regimes, (B, T, R). ``.frame()`` is the same as a table with their names.
        """
        return self._by_state(self._posterior(x, lengths, **known)[1].filtered_states(), x, lengths, known)

    def smooth(self, x, lengths=None, **known) -> StateMarginals:
        """p(z_t | x_1..x_T) at each step; see :meth:`filter`."""
        return self._by_state(self._posterior(x, lengths, **known)[1].marginals(), x, lengths, known)

    def _by_state(self, states: StateMarginals, x, lengths, known: Mapping[str, Any]) -> StateMarginals:
        like = self._results_like(x, **known)
        ids, told = None if states.ids is None else as_given(states.ids, like), self._told_of_rows(x, lengths)
        return states._replace(ids=ids, probs=as_given(states.probs, like), names=self.state_names, **told)

    def decode(self, x, lengths=None, **known):
        """The most probable path of each sequence (Viterbi): (B, T) states, -1 at padded steps, or a list of (T_i,).

        Of states that have names (``state_names``) arrays of these, None at padded steps.
        """
        path = as_given(self._posterior(x, lengths, **known)[1].viterbi()[0], self._results_like(x, **known))
        return named(path, self.state_names)

    def n_best(self, x, n: int, lengths=None, **known) -> Paths:
        """The n most probable paths of states of each sequence, best first.

        Of models with regimes these are paths of their states, told by regimes, of which some may be the same.

        Returns:
            ``states`` (B, n, T), or a list of (n, T_i), -1 at padded steps and of paths that there are not; ``log_probs``
            (B, n), log p(path | x), nats, -inf where there are fewer than n paths. States that have names are told by these.

        Cost: n times that of :meth:`decode`, in time and memory.
        """
        paths, log_probs = self._best_paths(x, checks.count("n", n), lengths, known)
        return Paths(named(paths, self.state_names), log_probs)

    def _best_paths(self, x, n: int, lengths, known) -> tuple[Any, Tensor]:
        chain = self._posterior(x, lengths, **known)[1]
        states, log_probs = chain.k_best(n)
        states = states.masked_fill(torch.isneginf(log_probs).unsqueeze(-1), MISSING)  # there are no more
        given = as_given(states.movedim(0, -1), self._results_like(x, **known))
        paths = [row.mT for row in given] if isinstance(given, list) else given.mT
        return paths, (log_probs - chain.log_prob()).mT

    def entropy(self, x, lengths=None, **known) -> Tensor:
        """(B,) entropy of the path of states given each sequence, p(z_1..z_T | x), nats.

        Of Gaussian states the differential entropy, -inf where some of the path is certain, as wherever noise is singular.
        """
        return self._posterior(x, lengths, **known)[1].entropy()

    def token_log_probs(self, x, lengths=None, **known):
        """log p(x_t | x_1..x_{t-1}) of each step, (B, T) nats, or a list of (T_i,); 0 at padded and missing steps, so that a
        row adds up to its log-probability. Sentences get no ``<eos>`` here, as :meth:`score` gives them."""
        return as_given(self._posterior(x, lengths, **known)[1].token_log_probs(), self._results_like(x, **known))

    def sample_states(self, x, num_samples: int = 1, lengths=None, *, seed: int | None = None, **known):
        """(S, B, T) paths of states (of models with regimes of these) drawn from their exact posterior, -1 at padded steps; by
        name where they have names, and then None. Lists are padded."""
        checks.count("num_samples", num_samples)
        with seeded(seed):
            return self._named_states(self._posterior(x, lengths, **known)[1].sample(num_samples))

    # ---------------------------------------------------------------- what comes next
    def predict_next(self, x, lengths=None, **known) -> Forecast:
        """What comes behind each row: p(z_{T+1} | x) and p(x_{T+1} | x), (B, Z) and (B, V), nats; of vectors, moments.

        Args:
            x, lengths: the past; a row may be empty, and what comes is then the first step.
        """
        return self.forecast(x, 1, lengths, **known).step(0)

    @torch.no_grad()
    def forecast(self, x, num_steps: int | None = None, lengths=None, **known) -> Forecast:
        """What comes in the next K = num_steps steps, exactly: p(z_{T+k} | x) and p(x_{T+k} | x), k = 1..K.

        Args:
            x, lengths: the past; a row may be empty.

        Returns:
            As :meth:`predict_next`, with an axis of steps: (B, K, Z), (B, K, V), for vectors means (B, K, D), covariances
            (B, K, D, D) and ``intervals(level)``, two of (B, K, D).
        """
        num_steps = checks.steps_ahead(x, num_steps)
        return self._labelled(self._observations_of(*self._states_ahead(x, num_steps, lengths, **known)), x, lengths, num_steps)

    def _states_ahead(self, x, num_steps: int, lengths=None, **known) -> tuple[Tensor, Any]:
        """(B, K, Z) log p(z_{T+k} | x), k = 1..K, and the emission of the chain behind x."""
        known |= {name: self._states_in_form(value, x, lengths) for name, value in known.items() if name == "states"}
        x, lengths = self._in_form(x, lengths)
        x, lengths, empty = without_empty_rows(in_ids(x, self.vocabulary), lengths, self.num_features, self._word_of_none)
        chain = self._posterior(x, lengths, **known)[1]
        belief = chain.filtered()
        states = [chain.next_after(belief).state_log_probs]
        if empty is not None:
            empty = empty.to(states[0].device).unsqueeze(-1)
            states[0] = torch.where(empty, chain.next_after(None).state_log_probs, states[0])
        unseen = None if belief.last_observation is None else torch.full_like(belief.last_observation, MISSING)
        for _ in range(num_steps - 1):
            states.append(chain.next_after(Belief(None, states[-1], unseen)).state_log_probs)
        return torch.stack(states, 1), chain.emission

    def _observations_of(self, states: Tensor, emission) -> Forecast:
        """What is observed of states distributed as given, (..., Z) nats."""
        return Forecast(states, emission.word_log_prob(states))

    def infill(self, x, lengths=None, **known) -> MissingWords:
        """p(x_t | all that was seen) of every missing word, exactly, in the order of rows and steps.

        Raises:
            ValueError: no word is missing, or x are vectors.
        """
        if self.num_features is not None:
            raise ValueError("infill is about missing words; of vectors, ask smooth for the states and their emissions")
        return self._posterior(x, lengths, **known)[1].missing_words().in_order()

    @torch.no_grad()
    def sample(self, num_steps: int | None = None, num_sequences: int = 1, *, seed: int | None = None, **known) -> Sample:
        """Sequences drawn from the model.

        Args:
            num_steps, num_sequences: T and B. seed: makes the draw repeatable; None draws from torch's generator.
            **known: what the program takes besides; inputs are (B, T, U), or (T, U) or a frame for all sequences, and say T
                where it is left out.
        """
        self._check_fitted()
        if "lengths" in known:
            raise TypeError("lengths: all sequences that are drawn have num_steps steps; leave it out, and cut them afterwards")
        if known.get("inputs") is not None:
            known["inputs"], num_steps = self._inputs_to_draw(known["inputs"], num_sequences, num_steps)
        num_steps = checks.count("num_steps", num_steps)
        with seeded(seed):
            states, x = self.draws(num_sequences=num_sequences, num_steps=num_steps, **known)
        known = None if self.vocabulary is None else self.vocabulary.words
        words = None if known is None else [[known[word] for word in row] for row in x.tolist()]
        return Sample(x, self._named_states(states), words)

    def _inputs_to_draw(self, inputs: Any, num_sequences: int, num_steps: int | None) -> tuple[Any, Any]:
        """Inputs of sequences that are drawn, in the form that the program takes, and how many steps these are."""
        return inputs, num_steps

    def draws(self, **known) -> tuple[Tensor, Tensor]:
        """States and observations (B, T, ...), as :meth:`_direct_draw`; by running the program where that has to be."""
        with said(AT_POINT, AT_TEST):
            found = self._direct_draw(**known)
            return alone(lambda: self._by_program(**known)) if found is None else found

    def _by_program(self, **known) -> tuple[Tensor, Tensor]:
        training = self.training
        self.eval()
        try:
            with poutine.block():
                sites: Any = dict(poutine.trace(self.model).get_trace(**known).nodes)
        finally:
            self.train(training)
        steps = [name[2:] for name in sites if name.startswith("x_")]  # in their order
        states, x = (torch.stack([sites[f"{name}_{t}"]["value"] for t in steps], 1) for name in "zx")
        return states, x

    def online(self, saved: str | Path | None = None) -> Online:
        """Reads a sequence step by step, as it comes; see :class:`~pplseq.models.online.reader.Online`.

        Args:
            saved: what ``Online.save`` wrote, to go on from there; None to begin a sequence.
        """
        return Online(self, saved)

    def _reader(self) -> Filter:
        return Chains(self)

    # ---------------------------------------------------------------- arguments
    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as scikit-learn has them: ``type(model)(**model.get_params())`` is built alike."""
        told, own = dict(self.config), inspect.signature(type(self).__init__).parameters.values()
        return told | {one.name: one.default for one in own if one.name not in told and one.default is not one.empty}

    def set_params(self, **params) -> Self:
        """Builds the model anew with other arguments; its parameters stay where all of them keep their shapes and mean what
        they meant: where ``estimates`` stay.

        Raises:
            ValueError: for arguments that there are not, or that the constructor refuses.
        """
        known = self.get_params()
        if unknown := [name for name in params if name not in known]:
            raise ValueError(f"no argument {unknown[0]!r} of {type(self).__name__}.{checks.nearest(unknown[0], known)}")
        built = type(self)(**(known | params))  # raises before anything has changed
        if next(self.parameters(), None) is not None:
            built.to(self.reference.device)
            if "dtype" not in params:
                built.to(self.reference.dtype)
        kept, new = self.state_dict(), {name: value.clone() for name, value in built.state_dict().items()}
        same = {n: v.shape for n, v in kept.items()} == {n: v.shape for n, v in new.items()}
        if same:
            built.load_state_dict(kept)
            if not (same := mean_the_same(self, built)):
                built.load_state_dict(new)
        if same:
            vars(built)["history"], built.is_fitted = self.history, self.is_fitted
            built.fixed_parameters, built._fixed_entries = self.fixed_parameters, self._fixed_entries
            built._bounds = self._bounds
            for name in frozen(self):
                built.get_parameter(name).requires_grad_(False)
        built._take_names(self)
        built.train(self.training)
        vars(self).clear()
        vars(self).update(vars(built))
        return self

    def _repr_html_(self) -> str:
        """For notebooks."""
        return notebooks.parameters(repr(self), told_parameters(self) if self.__sklearn_is_fitted__() else {})

    def __repr__(self) -> str:
        defaults = {}
        for base in reversed(type(self).__mro__[:-1]):
            defaults |= {p.name: p.default for p in inspect.signature(base.__init__).parameters.values()}
        shown = [
            f"{name}={_short(value)}"
            for name, value in self.get_params().items()
            if value is not None and value != defaults.get(name)
        ]
        state = "not fitted"
        if self.is_fitted:
            method = getattr(self.history, "method", None)  # a model that was loaded has no history
            state = "fitted" if method is None else f"fitted by {method}"
        return f"{type(self).__name__}({', '.join(shown)}): {self.num_free_parameters} free parameters, {state}"


def _short(value) -> str:
    if isinstance(value, Tensor):
        return f"<{'x'.join(map(str, value.shape))} tensor>"
    text = repr(value)
    return text if len(text) <= 60 else f"<{type(value).__name__} of {len(value)}>" if hasattr(value, "__len__") else "..."
