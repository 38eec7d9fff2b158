"""The front that users of scikit-learn and hmmlearn know: fit, score, predict, predict_proba, sample, on whole data sets."""

from __future__ import annotations

import copy
import math
import warnings

import pyro
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.ragged import pad_sequences
from pplseq.infer.fit.em import Batch, FitHistory, expectation_maximization
from pplseq.infer.fit.gradients import fit_variationally, maximize_by_gradient, sample_parameters
from pplseq.models.front import Front

METHODS = ("em", "sgd", "svi", "nuts")
RACE_ITERATIONS = 10  # of EM, after which the worse half of several starts is dropped
BEST_OF = 100  # draws of NUTS among which the point estimate is looked for


class Estimator(Front):
    """Mixed into a :class:`~pplseq.models.base.SequenceModel` with priors and closed-form M-steps (``HMM``)."""

    history: FitHistory | None

    def as_batch(self, x, lengths=None, states=None) -> Batch:
        """x, its lengths and observed states as tensors of the model's type and device.

        Raises:
            TypeError, ValueError: for what is no such data; says where and what to do.
        """
        batch = super().as_batch(x, lengths)
        if states is None:
            return batch
        states = (
            pad_sequences(states, fill=-1, name="states")[0]
            if isinstance(x, (list, tuple))
            else torch.as_tensor(states)
        )
        if states.shape != batch.x.shape[:2]:
            raise ValueError(f"states must cover x, {tuple(batch.x.shape[:2])}, got {tuple(states.shape)}")
        if states.dtype.is_floating_point or int(states.max()) >= self.num_states:
            raise ValueError(f"states must be integers below {self.num_states} (negative: unknown), got {states.max()}")
        return batch._replace(states=states.long().to(batch.x.device))

    # ---------------------------------------------------------------- fit
    def fit(
        self,
        x,
        lengths=None,
        *,
        states=None,
        method: str = "em",
        batch_size: int | None = None,
        warm_start: bool = False,
        num_restarts: int = 1,
        seed: int | None = None,
        **options,
    ):
        """Fits the parameters to data; ``history`` says afterwards how it went.

        Args:
            x, lengths: the sequences; see the class.
            states: observed states like x, negative where unknown: (semi-)supervised fitting.
            method: "em" (with priors: maximum a posteriori), "sgd" (Adam on the same objective), "svi" (needs priors;
                ``history.guide``) or "nuts" (needs priors; ``history.samples``). After the last two the parameters hold
                the guide's median, or the most probable draw.
            batch_size: sequences at a time; None for all. In EM it bounds the memory and changes nothing else, unless
                ``step_size`` is given.
            warm_start: start from the parameters as they are, instead of anew from the data.
            num_restarts: starts; after every 10 iterations of EM the worse half is dropped, until one is left.
            seed: makes the fit repeatable; None draws from torch's generator.
            **options: of :func:`~pplseq.infer.fit.em.expectation_maximization` (max_iterations, tolerance, step_size) or of
                the functions in :mod:`pplseq.infer.fit.gradients` (num_steps, learning_rate, guide, num_samples, ...).

        Returns:
            The model itself.

        Raises:
            ValueError, TypeError: for bad data or options.
        """
        checks.choice("method", method, METHODS)
        if method in ("svi", "nuts") and self.priors is None:
            raise ValueError(f"method {method!r} needs priors: make the model with priors=True, or with Priors(...)")
        if method == "em":
            self._check_mode()
        batch = self.as_batch(x, lengths, states)
        batches = self._split(batch, batch_size)
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            self._start(batch, batches, warm_start, num_restarts)
            if method == "em":
                history = expectation_maximization(self, batches, **options)
            elif method == "sgd":
                history = maximize_by_gradient(self, batches, **options)
            elif method == "svi":
                history = fit_variationally(self, batches, initial=self.sites(), **options)
                with pyro.get_param_store().scope():  # a guide's median puts its parameters there
                    self._set(self.from_sites(history.guide.median()))
            else:
                history = sample_parameters(self, batch, initial=self.sites(), **options)
                history.samples = self.from_sites(history.samples)
                self._set(self._best_draw(history.samples, batches))
        self.__dict__["history"] = history  # no submodule, though it may hold a guide
        return self

    def _check_mode(self) -> None:
        if self.priors is None:
            return
        tables = self.priors.concentrations(self.num_states, self.num_words, next(self.parameters()))
        for name, value in tables.items():
            if bool((value < 1).any()):
                raise ValueError(
                    f"priors: with a concentration below 1 ({name}) the posterior density has no maximum, so method='em' "
                    "cannot find one; use 'svi' or 'nuts', or a concentration of at least 1"
                )

    def _start(self, batch: Batch, batches: list[Batch], warm_start: bool, num_restarts: int) -> None:
        if warm_start:
            if num_restarts > 1:
                raise ValueError("num_restarts: a warm start has one starting point; give one of the two")
            return
        starts = []
        for _ in range(num_restarts):
            self.initialize(batch)
            starts.append(copy.deepcopy(self.state_dict()))
        while len(starts) > 1:  # after every few iterations the worse half is dropped
            values = []
            for start in starts:
                self.load_state_dict(start)
                with warnings.catch_warnings():  # what is remarkable is said of the start that wins
                    warnings.simplefilter("ignore", RuntimeWarning)
                    history = expectation_maximization(self, batches, max_iterations=RACE_ITERATIONS)
                values.append(history.log_posteriors[-1])
                start.update(copy.deepcopy(self.state_dict()))
            order = sorted(range(len(starts)), key=values.__getitem__, reverse=True)
            starts = [starts[k] for k in order[: len(starts) // 2]]
        self.load_state_dict(starts[0])

    def _set(self, values: dict[str, Tensor]) -> None:
        self.set_parameters(**{name: value.detach() for name, value in values.items()})

    def _best_draw(self, samples: dict[str, Tensor], batches: list[Batch]) -> dict[str, Tensor]:
        num_draws = len(next(iter(samples.values())))
        best, best_value = None, -math.inf
        for index in torch.linspace(0, num_draws - 1, min(num_draws, BEST_OF)).long().tolist():
            draw = {name: value[index] for name, value in samples.items()}
            self._set(draw)
            value = float(self.log_prior().detach())
            for part in batches:
                value += float(self.posterior(part.x, part.lengths, **part.known).log_prob().sum())
            if value > best_value:
                best, best_value = draw, value
        return best

    # ---------------------------------------------------------------- queries
    def predict(self, x, lengths=None):
        """The most probable path of each sequence (Viterbi): (B, T) states, -1 at padded steps, or a list of (T_i,)."""
        _, chain = self._posterior(x, lengths)
        return self._give(chain.viterbi()[0], x)

    def predict_proba(self, x, lengths=None):
        """p(z_t | x): (B, T, Z), 0 at padded steps, or a list of (T_i, Z)."""
        _, chain = self._posterior(x, lengths)
        return self._give(chain.marginals().dense(self.num_states), x)
