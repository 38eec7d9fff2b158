"""Fitting a linear dynamical system to whole data sets: checks of what comes in, EM, gradients."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from pplseq import checks
from pplseq.data.ragged import pad_sequences
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.infer.fit.em import Batch, FitHistory, Statistics, expectation_maximization
from pplseq.infer.fit.gradients import maximize_by_gradient, maximize_by_lbfgs
from pplseq.models.batch import split_rows
from pplseq.models.estimator import Estimator
from pplseq.models.lds import statistics as lds_em
from pplseq.models.lds.parameters import stationary_mean
from pplseq.models.lds.start import guess_parameters

FITTERS = {"em": expectation_maximization, "sgd": maximize_by_gradient, "lbfgs": maximize_by_lbfgs}
SCALES = {"state_noise": "state_scale", "emission_noise": "emission_scale", "initial_covariance": "initial_scale"}
REGRESSIONS = ("transition", "emission")


class LDSFitting(Estimator):
    """Mixed into :class:`~pplseq.models.lds.program.LDS`: the data set's door, EM and gradients."""

    history: FitHistory | None

    # ---------------------------------------------------------------- data
    def as_batch(self, x, lengths=None, inputs=None) -> Batch:
        """x, its lengths and inputs as tensors of the model's type and device; see :class:`Estimator`."""
        batch = super().as_batch(x, lengths)
        checks.lengths(batch.lengths, batch.x)
        if inputs is None:
            self.check_inputs(None, batch.x.shape[:2], batch.lengths)
            return batch
        if isinstance(x, (list, tuple)):
            inputs, own = pad_sequences(inputs, event_dims=1, name="inputs")
            wanted = torch.tensor([len(row) for row in x])
            if len(own) != len(wanted) or bool((own != wanted).any()):
                raise ValueError(
                    f"inputs must have a row for each step of each sequence of x, lengths {wanted.tolist()}; got "
                    f"{own.tolist()}"
                )
        else:
            inputs = torch.as_tensor(np.asarray(inputs) if not isinstance(inputs, Tensor) else inputs)
        inputs = inputs.to(batch.x)
        return batch._replace(inputs=self.check_inputs(inputs, batch.x.shape[:2], batch.lengths))

    def check_observations(self, x: Tensor) -> None:
        expected = f"a floating-point tensor (B, T, n) with n = {self.num_features}"
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(f"x must be {expected}, got {x.dtype if isinstance(x, Tensor) else type(x).__name__}")
        if x.dim() != 3 or x.shape[-1] != self.num_features:
            raise ValueError(f"x must be {expected}, got shape {tuple(x.shape)}")
        if 0 in x.shape:
            raise ValueError(f"x must hold at least one row and one step, got shape {tuple(x.shape)}")
        if bool(x.isinf().any()):
            raise ValueError("x must be finite (NaN marks what is missing), got infinite values")

    def check_inputs(self, inputs: Tensor | None, shape, lengths: Tensor | None) -> Tensor | None:
        """The inputs, zero at padded steps; raises unless they are (B, T, U) and finite at the valid ones."""
        if not self.num_inputs:
            if inputs is not None:
                raise ValueError("inputs: this model takes none; make it with num_inputs=...")
            return None
        expected = f"(B, T, U) = {(*shape, self.num_inputs)}"
        if inputs is None:
            raise ValueError(f"inputs must be given, {expected}: the model has num_inputs={self.num_inputs}")
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            what = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
            raise TypeError(f"inputs must be a floating-point tensor {expected}, got {what}")
        if inputs.shape != (*shape, self.num_inputs):
            raise ValueError(f"inputs must have shape {expected}, got {tuple(inputs.shape)}")
        if lengths is not None:
            inputs = inputs.where(_valid(shape, lengths, inputs.device).unsqueeze(-1), 0.0)
        if not bool(inputs.isfinite().all()):
            raise ValueError("inputs must be finite: fill missing ones (only observations may be NaN)")
        return inputs

    def check_start(self, start: GaussianBelief | None, num_rows: int) -> None:
        checks.gaussian_start(start, num_rows, self.num_states)

    @staticmethod
    def _matrices(name: str, value: Tensor | None, size, shape) -> Tensor | None:
        """(B or 1, T, *size) per-step matrices."""
        if value is None:
            return None
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor of shape {(*shape, *size)}, got {type(value).__name__}")
        if value.shape not in ((*shape, *size), (shape[1], *size)):
            raise ValueError(
                f"{name} must have shape {(*shape, *size)} or, for all rows, {(shape[1], *size)}; got {tuple(value.shape)}"
            )
        return value if value.dim() == 4 else value.unsqueeze(0)

    # ---------------------------------------------------------------- fit
    def fit(
        self, x, lengths=None, *, inputs=None, method: str = "em", batch_size: int | None = None, warm_start: bool = False,
        initialization: str = "subspace", fixed: Sequence[str] = (), seed: int | None = None, **options,
    ):  # fmt: skip
        """Fits the parameters to data; ``history`` says afterwards how it went.

        Args:
            x, lengths: the sequences; see :class:`~pplseq.models.estimator.Estimator`. inputs: (T_i, U) for each, or (B, T, U).
            method: "em" (exact; with priors: maximum a posteriori), "sgd" (Adam) or "lbfgs" on the same objective.
            batch_size: sequences at a time; None for all. In EM it bounds the memory and changes nothing else.
            warm_start: start from the parameters as they are, instead of anew from the data.
            initialization: how to start anew; see :func:`~pplseq.models.lds.start.guess_parameters`.
            fixed: names of parameters, as in :meth:`set_parameters`, that keep their values. With "transition" or
                "emission" among them the fit is a warm start: they say in which coordinates states are.
            seed: makes the fit repeatable; None draws from torch's generator.
            **options: max_iterations and tolerance (nats per step) of EM; num_steps and learning_rate of gradients.

        Returns:
            The model itself.

        Raises:
            ValueError, TypeError: for bad data or options, and too little data.
        """
        if method not in FITTERS:
            raise ValueError(f"method must be one of {', '.join(FITTERS)}; got {method!r}")
        if method == "em" and options.get("step_size") is not None:
            raise ValueError("step_size: stepwise EM is for models of words; an LDS takes batch EM, 'sgd' or 'lbfgs'")
        parameters = inspect.signature(FITTERS[method]).parameters.values()
        known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "step_size"]
        if unknown := sorted(options.keys() - {*known, "step_size"}):
            raise TypeError(
                f"LDS.fit with method {method!r} has no option {', '.join(map(repr, unknown))}; it takes {', '.join(known)}"
            )
        fixed = self._check_fixed(fixed)
        batch = self.as_batch(x, lengths, inputs)
        self._check_enough(batch)
        batches = split_rows(batch, batch_size)
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            with self._holding(fixed):
                if not warm_start and not {"transition", "emission"} & fixed:
                    self.initialize(batch, initialization)
                history = FITTERS[method](self, batches, **options)
        self.__dict__["history"] = history
        return self

    def _parameter_of(self, name: str) -> Tensor | None:
        return getattr(self, SCALES.get(name, name), None)

    def _check_fixed(self, fixed: Sequence[str]) -> set[str]:
        fixed = {fixed} if isinstance(fixed, str) else set(fixed)
        places = [f"{kind}{rest}" for kind in REGRESSIONS for rest in ("", "_offset", "_inputs")]
        names = [name for name in (*places, *SCALES, "initial_mean") if self._parameter_of(name) is not None]
        if not fixed <= set(names):
            raise ValueError(
                f"fixed: {', '.join(sorted(fixed - set(names)))} are no parameters of this model; it has {', '.join(names)}"
            )
        return fixed

    @contextlib.contextmanager
    def _holding(self, fixed: set[str]):
        """Parameters that keep their values inside the block."""
        self.__dict__["_held"] = frozenset(fixed)
        for name in fixed:
            self._parameter_of(name).requires_grad_(False)
        try:
            yield
        finally:
            self.__dict__["_held"] = frozenset()
            for name in fixed:
                self._parameter_of(name).requires_grad_(True)

    def _check_enough(self, batch: Batch) -> None:
        valid = _valid(batch.x.shape[:2], batch.lengths, batch.x.device)
        seen = int((~batch.x.isnan()).any(-1)[valid].sum())
        if seen <= self.num_states or not bool(valid[:, 1:].any()):
            raise ValueError(
                f"x must hold more than num_states = {self.num_states} observed vectors, and a sequence of at least two "
                f"steps, to fit the model; got {seen} in sequences of at most {int(valid.sum(1).max())} steps"
            )
        observed = ~batch.x.isnan() & valid.unsqueeze(-1)
        never = (~observed.any(0).any(0)).nonzero().flatten().tolist()
        if never:
            raise ValueError(
                f"x: columns {never} (from 0) are never observed, so nothing can be learned of them; leave them out"
            )
        low = batch.x.where(observed, torch.inf).amin((0, 1))
        high = batch.x.where(observed, -torch.inf).amax((0, 1))
        if bool((low == high).all()):
            raise ValueError("x must vary to fit the model, but every column holds one value only")

    def initialize(self, batch: Batch, how: str = "subspace") -> None:
        """Parameters guessed from the data: where a fit starts."""
        valid = _valid(batch.x.shape[:2], batch.lengths, batch.x.device)
        x = batch.x.nan_to_num(0.0)
        with torch.no_grad():
            extras = [self._extras(kind, x, batch.inputs) for kind in REGRESSIONS]
            guess = guess_parameters(x, ~batch.x.isnan(), valid, self.num_states, *extras, how)
            self._set_weights("transition", guess.transition)
            self._set_weights("emission", guess.emission)
            self._set_covariance("state_noise", guess.state_noise)
            self._set_covariance("emission_noise", guess.emission_noise)
            if self.initial == "learned" and "initial_mean" not in self._held:
                self.initial_mean.copy_(guess.initial_mean)
            self._set_covariance("initial_covariance", guess.initial_covariance)

    @property
    def _held(self) -> frozenset[str]:
        return self.__dict__.get("_held", frozenset())

    def _columns(self, kind: str) -> list[tuple[str, Tensor]]:
        """The parameters that make up a regression's weights, (size, columns) each."""
        names = [name for name in (kind, f"{kind}_offset", f"{kind}_inputs") if getattr(self, name) is not None]
        return [(name, getattr(self, name)) for name in names]

    def _weights(self, kind: str) -> Tensor:
        """(n, k) the regression's weights: matrix, offset, inputs."""
        return torch.cat([v.unsqueeze(-1) if v.dim() == 1 else v for _, v in self._columns(kind)], -1).detach()

    def _set_weights(self, kind: str, weights: Tensor) -> None:
        column = 0
        for name, value in self._columns(kind):
            width = 1 if value.dim() == 1 else value.shape[-1]
            if name not in self._held:
                value.copy_(weights[:, column : column + width].reshape(value.shape))
            column += width

    def _set_covariance(self, name: str, covariance: Tensor) -> None:
        target = self._parameter_of(name)
        if target is not None and name not in self._held:
            if target.dim() == 1:
                covariance = torch.diag(covariance.diagonal())
            target.copy_(self._scale(name, covariance, target))

    def _extras(self, kind: str, x: Tensor, inputs: Tensor | None) -> Tensor:
        """(B, T, k - h) what beside the state is regressed on: ones for the offset, inputs."""
        parts = [x.new_empty(*x.shape[:2], 0)]
        if getattr(self, f"{kind}_offset") is not None:
            parts.append(x.new_ones(*x.shape[:2], 1))
        if getattr(self, f"{kind}_inputs") is not None:
            parts.append(inputs)
        return torch.cat(parts, -1)

    # ---------------------------------------------------------------- what EM asks for (see pplseq.infer.fit.em)
    @torch.no_grad()
    def expected_statistics(self, chain, batch: Batch) -> Statistics:
        """Sums over steps of the three regressions; see :mod:`pplseq.models.lds.statistics`."""
        smoothed, lag_one = chain.smoothed_states(), chain.lag_one_covariances()
        x, valid = batch.x, _valid(batch.x.shape[:2], batch.lengths, batch.x.device)
        extras = [self._extras(kind, x, batch.inputs) for kind in REGRESSIONS]
        weights = [self._weights(kind) for kind in REGRESSIONS]
        means, covariances = smoothed.means, smoothed.covariances
        parts = {
            "transition": lds_em.transition_statistics(means, covariances, lag_one, valid, weights[0], extras[0]),
            "emission": lds_em.emission_statistics(
                means, covariances, x.nan_to_num(0.0), ~x.isnan(), valid, weights[1], extras[1], self._emission_noise
            ),
        }
        statistics = {f"{kind}_{name}": v for kind, part in parts.items() for name, v in part._asdict().items()}
        begun = valid[:, 0]
        only_first = torch.zeros_like(valid)
        only_first[:, 0] = begun
        first = means[begun, 0]
        return statistics | {
            "num_sequences": begun.sum().to(means),
            "first_mean": first.sum(0),
            "first_second": first.T @ first + covariances.total(only_first),
        }

    @torch.no_grad()
    def maximize(self, statistics: Statistics) -> list[str]:
        """The M-step; returns which noises met ``noise_floor``."""
        held, notes = self._held, []
        for kind, noise_name, prior in (
            ("transition", "state_noise", self.state_prior), ("emission", "emission_noise", self.emission_prior),
        ):  # fmt: skip
            part = lds_em.Regression(*(statistics[f"{kind}_{name}"] for name in lds_em.Regression._fields))
            widths = [(name, 1 if v.dim() == 1 else v.shape[-1]) for name, v in self._columns(kind)]
            free, shrunk = (
                torch.tensor([flag(name) for name, width in widths for _ in range(width)], device=part.moment.device)
                for flag in (lambda name: name not in held, lambda name: not name.endswith("_offset"))
            )
            options = dict(
                free=free, shrunk=shrunk, prior=prior, floor=self.noise_floor, hold_noise=noise_name in held,
                diagonal=self._parameter_of(noise_name).dim() == 1,
            )  # fmt: skip
            arguments = self._weights(kind), getattr(self, noise_name).detach(), part
            if kind == "transition" and self.initial == "stationary":
                weights, noise, floored = self._stationary_mode(arguments, statistics, options)
            else:
                weights, noise, floored = lds_em.regression_mode(*arguments, **options)
            self._set_weights(kind, weights)
            self._set_covariance(noise_name, noise)
            if floored:
                notes.append(
                    f"{noise_name} met its floor of {self.noise_floor:g} in some direction: fewer states or diagonal noise, a "
                    "prior, or a larger noise_floor may fit better"
                )
        if self.initial == "learned":
            count = statistics["num_sequences"]
            if "initial_mean" not in held:
                self.initial_mean.copy_(statistics["first_mean"] / count)
            about = torch.outer(statistics["first_mean"], self.initial_mean)
            scatter = statistics["first_second"] - about - about.T + count * torch.outer(*[self.initial_mean] * 2)
            floor = lds_em.floored_covariance(scatter / count, self.noise_floor, False)[0]
            self._set_covariance("initial_covariance", floor)
        return notes

    def _stationary_mode(self, arguments, statistics, options):
        h, count = self.num_states, statistics["num_sequences"]
        offset = self.transition_offset is not None
        mean = statistics["first_mean"] / count
        spread = statistics["first_second"] - count * torch.outer(mean, mean)

        def first_mean(weights):
            return stationary_mean(weights[:, :h], weights[:, h] if offset else None)

        return lds_em.stationary_mode(*arguments, mean, spread, count, first_mean, **options)

    def log_prior(self) -> Tensor:
        """log density of the parameters under the priors, nats, up to a constant; 0 without priors."""
        total = self.reference.new_zeros(())
        for kind, noise, prior in (
            ("transition", self.state_noise, self.state_prior), ("emission", self.emission_noise, self.emission_prior),
        ):  # fmt: skip
            if prior.count or prior.strength:
                columns = self._columns(kind)
                weights = torch.cat([v for name, v in columns if not name.endswith("_offset")], -1)
                total = total + prior.log_prob(weights, noise, torch.ones_like(weights[0], dtype=torch.bool))
        return total

    def log_joint(self, x, lengths=None, *, inputs=None, share: float = 1.0) -> Tensor:
        """log p(x) summed over rows plus ``share`` of the log prior, nats; differentiable in the parameters."""
        with self._at_point(), poutine.block():
            self(x, lengths, inputs=inputs)
        return self.chain.log_prob().sum() + share * self.log_prior()


def _valid(shape, lengths: Tensor | None, device) -> Tensor:
    """(B, T) bool: steps that are no padding."""
    if lengths is None:
        return torch.ones(shape, dtype=torch.bool, device=device)
    return torch.arange(shape[1], device=device) < lengths.unsqueeze(-1)
