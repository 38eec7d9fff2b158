"""Expectation-maximisation: the loop, batch and stepwise, and its acceleration."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from pplseq import checks, notebooks
from pplseq.distributions.drawing import undrawn

if TYPE_CHECKING:
    from pplseq.infer.fit.fittable import Fittable

Statistics = dict[str, Tensor]  # expected sufficient statistics: sums over tokens, so they add up over batches

NOTHING = 1e-10  # expected visits below which nothing is known
LOST = 1e-12  # of the mean square: variances below are errors of rounding
ROUNDED = (64 * 2.2e-16) ** 2  # of the mean square about zero: data that vary by less are one number, rounded
# a fall of the objective by more than this share of it is no rounding
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5}

FARTHEST = 0.5  # units of a coordinate ahead of M; variances that all but vanish at one stride would hold EM there
COLLINEAR = 1e-4  # singular values of the changes, in the share of the largest, that say nothing
FAILURES = (ValueError, ArithmeticError, torch.linalg.LinAlgError)  # pyright: ignore[reportPrivateImportUsage]


class Batch(NamedTuple):
    """Rows that go through one E-step together."""

    x: Tensor  # (B, T[, D])
    lengths: Tensor | None = None  # (B,)
    states: Tensor | None = None  # (B, T) observed states, negative where unknown
    inputs: Any = None  # (B, T, U), or a mapping from parts of a model to such
    source_log_probs: Tensor | None = None  # (B, T, K_s[, V]) what sources say of the observations
    # of linear dynamical systems, (B, T, ...): known matrices of single steps, and what is added to noises and offsets
    transitions: Tensor | None = None
    emissions: Tensor | None = None
    state_noises: Tensor | None = None
    emission_noises: Tensor | None = None
    transition_offsets: Tensor | None = None
    emission_offsets: Tensor | None = None
    trials: Tensor | None = None  # (B, T, D) of binomial columns; of Poisson's:
    exposure: Tensor | None = None
    gaps: Tensor | None = None  # (B, T) times between steps, of models whose moves have a continuous form

    @property
    def known(self) -> dict[str, Any]:
        """What a model's program takes beside x and lengths."""
        return {name: value for name, value in zip(self._fields[2:], self[2:], strict=True) if value is not None}

    @property
    def of_steps(self) -> bool:
        """Whether matrices, noises or offsets of single steps come with the data."""
        return any(part is not None for part in self[5:])

    @property
    def valid(self) -> Tensor:
        """(B, T) bool: steps that are no padding."""
        shape, device = self.x.shape[:2], self.x.device
        if self.lengths is None:
            return torch.ones(shape, dtype=torch.bool, device=device)
        return torch.arange(shape[1], device=device) < self.lengths.unsqueeze(-1)

    @property
    def num_tokens(self) -> int:
        return self.x.shape[0] * self.x.shape[1] if self.lengths is None else int(self.lengths.sum())


class Part(Protocol):
    """Data that are read when their turn comes, and forgotten after it."""

    num_tokens: int

    def batches(self, model: Any) -> Iterable[Batch]:
        """The data, as batches for a model."""
        ...


class Workers(Protocol):
    """What spreads E-steps over other processes: :class:`pplseq.runs.cluster.Cluster`."""

    def expectation_of(self, model: Any, batches: Sequence[Batch | Part]) -> Callable[[], tuple[Statistics, float]]:
        """An E-step over all batches, at the parameters that the model has when it is called."""
        ...


class StepSize(NamedTuple):
    """Stepwise EM's weight of the k-th batch (from 0): (k + offset)^-exponent.

    Source: O. Cappé and E. Moulines (2009), On-line expectation-maximization algorithm for latent data models, eq. 18;
    the offset as in P. Liang and D. Klein (2009), Online EM for unsupervised models.
    """

    exponent: float = 0.7
    offset: float = 2.0

    def at(self, step: int) -> float:
        return (step + self.offset) ** -self.exponent


@dataclass
class FitHistory:
    """What happened in a fit.

    log_likelihoods: nats, at the parameters that each iteration began with (stepwise: summed over a pass, while they
        move). log_posteriors: the same plus the log prior. num_tokens: they are sums over so many.
    """

    method: str
    num_tokens: int = 0
    log_likelihoods: list[float] = field(default_factory=list)
    log_posteriors: list[float] = field(default_factory=list)
    converged: bool = False
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of gradient methods, nats per token
    # (iteration, or step; nats per token) of held-out data, at the parameters that it left
    validations: list[tuple[int, float]] = field(default_factory=list)
    guide: Any = None  # of SVI
    samples: dict[str, Tensor] | None = None  # of NUTS
    diagnostics: dict | None = None  # of NUTS
    run: Any = None  # of a fit that is a run (a folder, validation, a limit of time): its pplseq.runs.settings.History

    @property
    def num_iterations(self) -> int:
        return max(len(self.log_likelihoods), len(self.losses))

    @property
    def best_iteration(self) -> int | None:
        """The iteration (from 1), or step, that left the parameters that are best on held-out data; None without such data,
        or where they are impossible under all."""
        best = min(self.validations, key=lambda one: one[1], default=(None, math.inf))
        return best[0] if best[1] < math.inf else None

    def _repr_html_(self) -> str:
        """For notebooks."""
        told = {"log-likelihood": self.log_likelihoods, "log posterior": self.log_posteriors, "loss": self.losses}
        if self.log_posteriors == self.log_likelihoods:  # without priors
            del told["log posterior"]
        columns = {name: values for name, values in told.items() if values and len(values) == self.num_iterations}
        rows = zip(range(1, self.num_iterations + 1), *columns.values(), strict=True)
        return notebooks.table(f"{self.method}: {self.reason or 'not ended'}", ["iteration", *columns], rows)

    def note(self, remarks: Sequence[str]) -> None:
        self.notes += [remark for remark in remarks if remark not in self.notes]


def expectation_maximization(
    model: Fittable,
    batches: Sequence[Batch | Part],
    *,
    max_iterations: int = 100,
    tolerance: float = 1e-5,
    step_size: StepSize | float | None = None,
    acceleration: int = 5,
    cluster: Workers | None = None,
    on_iteration: Callable[[FitHistory], None] | None = None,
) -> FitHistory:
    """Maximises the likelihood (with priors: the posterior density) of a model's parameters.

        batch:     theta <- argmax  E[log p(z, x | theta) | x, theta_old] + log p(theta)
        stepwise:  s <- (1 - eta_k) s + eta_k s(batch k),  theta <- argmax given s, after every batch

    Args:
        model: see :class:`~pplseq.infer.fit.fittable.Fittable`.
        batches: what an iteration goes through; sizes only bound the memory unless ``step_size`` is given. A :class:`Part` is
            read anew in every pass.
        max_iterations: passes over the data.
        tolerance: stop when a pass gains less than this, nats per token.
        step_size: None for batch EM; a :class:`StepSize`, or its exponent in (0.5, 1], for stepwise EM.
        acceleration: how many iterations batch EM extrapolates from, of models that have ``_em_coordinates()``; it then ends
            when two passes in a row gain less than the tolerance. 0: plain EM. See :class:`Acceleration`.
        cluster: whose workers do the E-steps of batch EM, a batch each; None: this process.
        on_iteration: called with the history after every pass.

    Returns:
        The history. After batch EM without convergence the parameters are one M-step ahead of its last entry.

    Raises:
        ValueError: for impossible data (names the row) or options out of range; ArithmeticError if the objective is NaN.

    Warns:
        RuntimeWarning: if batch EM's objective falls by more than rounding (the better parameters are kept and the fit
            stops), and about states that are empty or whose covariance collapsed.
    """
    if not batches:
        raise ValueError("batches: nothing to fit, got none")
    checks.count("max_iterations", max_iterations)
    checks.positive("tolerance", tolerance, zero=True)
    if isinstance(step_size, (int, float)):
        step_size = StepSize(float(step_size))
    if step_size is not None:
        checks.share("step_size: the exponent", step_size.exponent, "(0.5, 1]")
    history = FitHistory("em", sum(batch.num_tokens for batch in batches))
    if cluster is not None and step_size is not None:
        raise ValueError("cluster: stepwise EM goes from batch to batch in one process; leave step_size or cluster out")
    ahead = accelerated(model, acceleration)
    if max_iterations == 1:
        ahead = None  # which has nothing to extrapolate from
    plain = batch_iteration(model, batches, acceleration=ahead, cluster=cluster)
    iterate = plain if step_size is None else _stepwise_iteration(model, batches, step_size)
    for _ in range(max_iterations):
        if iterate(history, tolerance):
            break
        if on_iteration is not None:
            on_iteration(history)
    else:
        history.reason = f"max_iterations = {max_iterations} reached"
    for note in history.notes:
        warnings.warn(note, RuntimeWarning, stacklevel=3)
    return history


class Acceleration:
    """Fewer iterations: steps extrapolated from the last few.

    EM is a map M of the parameters whose fixed point is wanted, and near it nearly linear. Anderson's acceleration finds, among
    the affine combinations of the last iterates, the one whose change M(theta) - theta is smallest, and goes on from the same
    combination of their images. The map's own image is kept for where this loses.

    Args:
        model: one that has ``_em_coordinates()``. depth: how many differences of iterates are combined.

    Attributes:
        memory: "iterates" and "images", each (k, P), k <= depth + 1, and "ahead.NAME", the parameters of the point that was
            extrapolated from them; what a checkpoint holds.

    Source: D. G. Anderson (1965), Iterative procedures for nonlinear integral equations; H. F. Walker and P. Ni (2011),
    Anderson acceleration for fixed-point iterations, eq. 2.3.
    """

    def __init__(self, model: Any, depth: int = 5):
        self.model, self.depth = model, depth
        self.memory: dict[str, Tensor] = {}
        self.here: dict[str, Tensor] = {}  # parameters of M of the last iterate

    def keep(self, iterate: Tensor) -> None:
        """Remembers the iterate whose image M(iterate) the model stands at, and extrapolates."""
        image, units = self.model._em_coordinates()
        pairs: dict[str, Tensor] = {"iterates": iterate, "images": image}
        for name, value in pairs.items():
            known, last = self.memory.get(name), value.unsqueeze(0)
            self.memory[name] = last if known is None else torch.cat([known, last])[-self.depth - 1 :]
        images = self.memory["images"]
        if len(images) < 2:
            return
        changes = (images - self.memory["iterates"]) / units
        weights = changes[-1] @ torch.linalg.pinv(changes.diff(dim=0), rtol=COLLINEAR)
        ahead = -weights @ images.diff(dim=0)
        ahead = ahead * (FARTHEST / (ahead / units).abs().amax().clamp_min(FARTHEST))
        here = self._parameters()
        try:
            self.model._set_em_coordinates(images[-1] + ahead)
            self.memory |= {f"ahead.{name}": value for name, value in self._parameters().items()}
        except FAILURES:
            self.memory.clear()
        self._put(here)

    def go_ahead(self) -> bool:
        """Moves the model to the extrapolated point, which may lose; whether there is one."""
        ahead = {name.removeprefix("ahead."): value for name, value in self.memory.items() if name.startswith("ahead.")}
        if ahead:
            self.here = self._parameters()
            self._put(ahead)
        return bool(ahead)

    def fall_back(self) -> None:
        """Back to M of the last iterate; what was known is forgotten."""
        self._put(self.here)
        self.memory.clear()

    def _parameters(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.model.named_parameters()}

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        for name, value in self.model.named_parameters():
            value.copy_(values[name])


def accelerated(model: Fittable, depth: int) -> Acceleration | None:
    """The acceleration of a model's EM, where it has one."""
    depth = checks.count("acceleration", depth, 0)
    return Acceleration(model, depth) if depth and model._em_coordinates() is not None else None


def total_expectation(model: Fittable, batches: Iterable[Batch | Part]) -> tuple[Statistics, float]:
    """The sum of :func:`expectation` over batches."""
    total: Statistics = {}
    log_likelihood = 0.0
    for batch in batches:
        statistics, log_prob = expectation(model, batch)
        total = statistics if not total else {name: total[name] + value for name, value in statistics.items()}
        log_likelihood += log_prob
    return total, log_likelihood


def expectation(model: Fittable, batch: Batch | Part) -> tuple[Statistics, float]:
    """The E-step on one batch: expected statistics, and the log-likelihood in nats.

    Raises:
        ArithmeticError: for a log-likelihood that is NaN.
    """
    if not isinstance(batch, Batch):
        return total_expectation(model, batch.batches(model))
    if (found := model._expectation_by_loops(batch)) is not None:
        return found
    chain = model.chain_of(batch)
    log_prob = float(chain.log_prob().detach().sum(dtype=torch.float64))
    if math.isnan(log_prob):
        raise ArithmeticError("the log-likelihood is NaN; check the parameters and x for NaN and infinite values")
    return model.expected_statistics(chain, batch), log_prob


def _record(history: FitHistory, model: Fittable, log_likelihood: float) -> float | None:
    """Appends to the history; returns the gain over the entry before."""
    history.log_likelihoods.append(log_likelihood)
    history.log_posteriors.append(log_likelihood + float(model.log_prior().detach()))
    if len(history.log_posteriors) == 1:
        return None
    return history.log_posteriors[-1] - history.log_posteriors[-2]


def advice(dtype: torch.dtype, batches: Iterable[Batch | Part]) -> str:
    """What to do where an objective fell by more than rounding: a more exact type, unless columns of one value are why."""
    rows = [part.x.flatten(0, -2) for part in batches if isinstance(part, Batch) and part.x.is_floating_point()]
    if rows:
        low = torch.stack([row.nan_to_num(torch.inf).amin(0) for row in rows]).amin(0)
        high = torch.stack([row.nan_to_num(-torch.inf).amax(0) for row in rows]).amax(0)
        if columns := (low == high).nonzero().flatten().tolist():
            return f"; columns {columns} of x (from 0) hold one value only, leave them out"
    return "; use float64" if dtype != torch.float64 else "; give x in units in which its columns have similar spreads"


def _stopped(history: FitHistory, reason: str, converged: bool) -> bool:
    history.reason, history.converged = reason, converged
    return True


def batch_iteration(
    model: Any, batches: Sequence[Batch | Part], before: dict[str, Tensor] | None = None,
    acceleration: Acceleration | None = None, cluster: Workers | None = None,
) -> Callable[[FitHistory, float], bool]:
    """A function (history, tolerance) that makes one iteration of batch EM; True where it ended without an M-step, with the
    reason in the history.

    Args:
        before: is kept up to date with the parameters that the last entry of the history is about; what was in it goes on.
        acceleration: of a model that has one.
        cluster: whose workers do the E-steps.
    """
    before = {} if before is None else before

    expect = partial(total_expectation, model, batches) if cluster is None else cluster.expectation_of(model, batches)

    def expect_ahead(least: float) -> tuple[Statistics, float]:
        """Where the parameters are extrapolated, and the objective there is not what it was: from M's own."""
        assert acceleration is not None
        try:
            found = expect()
            if found[1] + float(model.log_prior().detach()) >= least:
                return found
        except FAILURES:
            pass
        acceleration.fall_back()
        return expect()

    def iterate(history: FitHistory, tolerance: float) -> bool:
        with undrawn(model):
            return go_on(history, tolerance)

    def go_on(history: FitHistory, tolerance: float) -> bool:
        # not before: a fit that ends here stands at an M-step, which never loses
        ahead = acceleration is not None and acceleration.go_ahead()
        total, log_likelihood = expect_ahead(history.log_posteriors[-1]) if ahead else expect()
        gain = _record(history, model, log_likelihood)
        if gain is not None:
            previous = history.log_posteriors[-2]
            dtype = next(iter(before.values())).dtype
            if gain < -ROUNDING.get(dtype, ROUNDING[torch.float32]) * max(1.0, abs(previous)):
                model.load_state_dict(before)
                history.log_likelihoods.pop()
                history.log_posteriors.pop()
                history.note([f"EM's objective fell from {previous:.9g} to {previous + gain:.9g} nats in iteration "
                              f"{history.num_iterations}: the parameters before are kept{advice(dtype, batches)}"])  # fmt: skip
                return _stopped(history, "the objective fell", False)
            # one step may gain little by chance where steps are extrapolated
            last = [gain] if acceleration is None else np.diff(history.log_posteriors[-3:])
            if max(last) <= tolerance * history.num_tokens and (acceleration is None or len(last) > 1):
                return _stopped(history, f"gain of {gain / history.num_tokens:.3g} nats per token", True)
        before.update({name: value.clone() for name, value in model.state_dict().items()})
        here = None if acceleration is None else model._em_coordinates()[0]
        history.note(model.maximize(total))
        if acceleration is not None:
            assert here is not None
            acceleration.keep(here)
        return False

    return iterate


def _stepwise_iteration(model, batches, step_size: StepSize):
    state = {"step": 0, "average": None}

    def iterate(history: FitHistory, tolerance: float) -> bool:
        average = state["average"]
        if average is None:
            num_sequences = sum(batch.x.shape[0] for batch in batches)
            average = model._implied_statistics(num_sequences, history.num_tokens)
        log_likelihood = 0.0
        for index in torch.randperm(len(batches)).tolist():
            statistics, log_prob = expectation(model, batches[index])
            log_likelihood += log_prob
            # as if all batches were like this one, so that priors weigh what they weigh in batch EM, and a small batch little
            eta = step_size.at(state["step"])
            average = {name: torch.lerp(average[name], value * len(batches), eta) for name, value in statistics.items()}
            history.note(model.maximize(average))
            state["step"] += 1
        state["average"] = average
        gain = _record(history, model, log_likelihood)
        if gain is not None and gain <= tolerance * history.num_tokens:
            return _stopped(history, f"gain of {gain / history.num_tokens:.3g} nats per token", True)
        return False

    return iterate


# ------------------------------------------------------------------------------------------------ floors of M-steps
def least_variances(count: Tensor, first: Tensor, second: Tensor, share: float, about: Tensor | float = 0.0) -> Tensor:
    """(D,) a share of the variances of vectors, from their number, their sum (D,) and that of their squares (D,).

    Columns of one value get what rounding makes of them, or the share itself if they are zero.

    Args:
        about: (D,) what the sums were taken about: near the means they lose no digits, however far from zero the data lie.
    """
    count = count.clamp_min(NOTHING)
    mean, square = first / count, second / count
    whole = square + about * (about + 2 * mean)  # about zero
    variance = square - mean.square()
    variance = torch.where(variance > ROUNDED * whole, variance.maximum(LOST * square), LOST * whole)
    return share * torch.where(whole > 0, variance, 1.0)


def floor_eigenvalues(covariance: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """The covariance with eigenvalues of at least ``floor``: the likeliest one under that constraint."""
    covariance = (covariance + covariance.mT) / 2
    values, vectors = torch.linalg.eigh(covariance)
    floored = (values < floor).any(-1)
    raised = (vectors * values.clamp_min(floor).unsqueeze(-2)) @ vectors.mT
    return torch.where(floored[..., None, None], (raised + raised.mT) / 2, covariance), floored
