"""What a fitted linear dynamical system tells of observations: predictions, their signal, forecasts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.infer.fit.em import Batch
from pplseq.infer.forecasts import Forecast
from pplseq.infer.gaussian.results import GaussianStates, StateMoments
from pplseq.kernels.kalman import symmetric
from pplseq.models.batch import as_given, without_empty_rows
from pplseq.models.lds.arguments import (
    check_controls,
    control_sizes,
    controlled,
    for_empty_rows,
    inputs_ahead,
    inputs_to_draw,
    one_to_come,
    step_sizes,
    to_come,
)
from pplseq.models.lds.outliers import Outliers, find_outliers, without_places
from pplseq.models.lds.parameters import LDSTensors, Parameters, RegressionPrior
from pplseq.models.row_labels import check_rows_ahead, check_rows_together
from pplseq.models.steps import as_tensor, step_matrices, steps_to_come

COVARIANCES = ("state_noise", "emission_noise", "initial_covariance")
APART = 1e-6  # of the largest eigenvalue: closer ones have no derivatives that could be trusted
NOTE = (
    "States M z + c, of any invertible M, make the same observations: what depends on their\ncoordinates is not identified and "
    "has no standard error. ConstrainedLDS fixes coordinates\nby patterns, emission=[[1], [None]] for example."
)


def next_states(
    transition: Tensor, noise: Tensor, moves: Tensor | None, last: GaussianBelief, num_steps: int,
    empty: tuple[Tensor | None, GaussianBelief],
) -> GaussianBelief:  # fmt: skip
    """Means (B, K, h) and covariances (B, K, h, h) of the K states behind the last one.

    Args:
        transition, noise: (h, h), or (B, K, h, h) of each step. moves: (h,) or (B, K, h), added to the state, or None.
        last: mean (B, h), covariance (h, h) or (B, h, h).
        empty: (B,) bool, rows that have no last state (None for none), and what their first one is, (h,) and (h, h).
    """
    none, first = empty
    mean, covariance = last.mean, last.covariance.expand(*last.mean.shape, last.mean.shape[-1])
    means, covariances = [], []
    for step in range(num_steps):
        matrix, shocks = (part if part.dim() == 2 else part[:, step] for part in (transition, noise))
        mean = (matrix @ mean.unsqueeze(-1)).squeeze(-1)
        if moves is not None:
            mean = mean + (moves if moves.dim() == 1 else moves[:, step])
        covariance = symmetric(matrix @ covariance @ matrix.mT + shocks)
        if step == 0 and none is not None:
            none = none.to(mean.device)
            mean = torch.where(none[:, None], first.mean, mean)
            covariance = torch.where(none[:, None, None], first.covariance, covariance)
        means.append(mean)
        covariances.append(covariance)
    return GaussianBelief(torch.stack(means, 1), torch.stack(covariances, 1))


class LDSQueries(LDSTensors):
    """What a linear dynamical system tells of observations. ``known``: inputs, and what is known of single steps."""

    _moves_over: Callable[[Tensor], tuple[Tensor, Tensor]]  # of a model with a continuous form
    _has_priors: bool

    def estimates(self) -> dict[str, Tensor]:
        return written_estimates(self)

    def _unidentified(self) -> tuple[frozenset[str], str]:
        return coordinate_names(self), NOTE

    def transform(self, x, lengths=None, **known):
        """(B, T, h) E[z_t | x]: smoothed means, as features for other models; the same as :meth:`decode`."""
        return self.decode(x, lengths, **known)

    def fit_transform(self, x, lengths=None, **options):
        """:meth:`fit`, then :meth:`transform` of the same data."""
        known = {name: options[name] for name in inspect.signature(self._as_batch).parameters if name in options}
        return self.fit(x, lengths, **options).transform(x, lengths, **known)

    @torch.no_grad()
    def one_step(self, x, lengths=None, **known) -> StateMoments:
        """Means (B, T, n) and covariances (B, T, n, n) of p(x_t | x_1..x_{t-1}); their errors are the innovations."""
        batch, chain = self._posterior(x, lengths, **known)
        return self._observed(chain.predicted_states(), batch, self._results_like(x, **known), noisy=True)

    def _residuals(self, batch: Batch) -> Tensor:
        chain = self.posterior(batch.x, batch.lengths, **batch.known)  # `known` of a batch has more names than questions take
        found = self._observed(chain.predicted_states(), batch, batch.x, noisy=True)
        assert isinstance(found.means, Tensor) and isinstance(found.covariances, Tensor)  # as batch.x is
        return (batch.x - found.means) / found.covariances.diagonal(dim1=-2, dim2=-1).sqrt()

    def _told_of_replicas(self, batch: Batch) -> dict[str, GaussianBelief]:
        if not self._is_wide:
            return {}
        states = self.posterior(batch.x, batch.lengths, **batch.known).smoothed_states()
        covariance = states.covariances.at(0)
        return {"first": GaussianBelief(states.means[:, 0], covariance.expand(len(batch.x), *covariance.shape[-2:]))}

    @property
    def _is_wide(self) -> bool:
        """Whether next to nothing is known of the first state before the data."""
        return self.initial == "diffuse"

    @property
    def _steps_to_settle(self) -> int:
        return self.num_states

    @torch.no_grad()
    def reconstruct(self, x, lengths=None, **known) -> StateMoments:
        """Means (B, T, n) and covariances (B, T, n, n) of emission z_t + offsets given all of x: its signal without noise.

        The covariances are of the signal alone. Where a value was missing, that of the value itself is larger by the noise of
        observation: add ``model.emission_noise`` (and a step's ``emission_noises``, where they are given).
        """
        batch, chain = self._posterior(x, lengths, **known)
        return self._observed(chain.smoothed_states(), batch, self._results_like(x, **known), noisy=False)

    @torch.no_grad()
    def outliers(self, x, lengths=None, *, level: float = 0.05, **known) -> Outliers:
        """Observed numbers that are unlikely given all the others of their row, past and future, with these parameters.

        Of a row y ~ N(m, S) the value y_i differs from its expectation given all others by [S^-1 (y - m)]_i / [S^-1]_ii, whose
        variance is 1 / [S^-1]_ii; the quotient of error and deviation is N(0, 1), and its square the likelihood ratio of an
        additive outlier there. All are found in one pass (see :mod:`pplseq.infer.gaussian.left_out`). As one outlier makes
        its neighbours look far off, and several hide each other, the largest of each row is taken as missing, and the rest
        looked at again, until none is beyond the bound; what is then within it beside all that is left comes back. Where
        several are found, this also begins with the numbers that those before them make unlikely, and the likelier set is told.
        It need not be the likeliest of all, but each number in it is unlikely given all that stay, and no other one is.

        Args:
            x, lengths, **known: the data, with gaps, inputs and times as elsewhere. level: the probability, at most, that
                anything is called an outlier in data of this model that have none: each number is tested at ``level`` by how
                many are looked at (Bonferroni). It holds for the parameters as they are; those of a fit that outliers have
                spread make fewer stand out: fit ``found.without()``, and ask again about x.

        Returns:
            :class:`~pplseq.models.lds.outliers.Outliers`: a table (``frame()``), and the data ``without()`` them. A level that
            shifts for good is no outlier: it shows as many of one sign in a row, and wants a model in which levels move.

        Raises:
            ValueError: for a level outside of (0, 1); where the noise of several columns is lost in rounding.

        Cost: a few times that of :meth:`smooth` for each outlier of the row that has most.

        Source: P. de Jong and J. Penzer (1998), Diagnosing shocks in time series, Journal of the American Statistical
        Association 93; A. C. Harvey and S. J. Koopman (1992), Diagnostic checking of unobserved-components time series models,
        Journal of Business and Economic Statistics 10(4).
        """
        checks.share("level", level, "(0, 1)")
        self._check_names(known)
        self._check_fitted()
        batch = self._as_batch(x, lengths, **known)
        places, told, number = find_outliers(self, batch, float(level))
        rest = without_places(x, lengths, places.tolist(), self.column_names, known.get("times") is None)
        about = {"num_values": number, "num_rows": len(batch.x), "column_names": self.column_names}
        return Outliers(*places.unbind(1), **told, level=level, **about, **self._told_of_rows(x, lengths), _without=rest)

    def _observed(self, states: GaussianStates, batch: Batch, like, *, noisy: bool) -> StateMoments:
        """Means (B, T, n) and covariances (B, T, n, n) of what states make, in the form of the data."""
        means, covariances = _made_of(self.values, states.means, states.covariances.dense(), batch.inputs, batch._asdict())
        if noisy:
            covariances = covariances + _sum(self.emission_noise, batch.emission_noises)
        return StateMoments(as_given(means, like), as_given(covariances, like))

    def _inputs_to_draw(self, inputs: Any, num_sequences: int, num_steps: int | None) -> tuple[Any, Any]:
        return inputs_to_draw(self, inputs, num_sequences, num_steps)

    def predict_next(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, lengths=None, *, inputs=None, next_inputs=None, **known
    ) -> Forecast:
        """p(x_{T+1} | x) of each row, which may be empty: means (B, n), covariances (B, n, n), and those of its state.

        Args:
            x, lengths, inputs: the past. next_inputs: (B, U), or (U,) for all rows: those of the step to come.
            **known: as of :meth:`forecast`, of one step: "future_transitions" (B, 1, h, h), ...
        """
        return self.forecast(x, 1, lengths, inputs=inputs, future_inputs=one_to_come(self, next_inputs), **known).step(0)

    @torch.no_grad()
    def forecast(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, num_steps: int | None = None, lengths=None, *, inputs=None, future_inputs=None, **known
    ) -> Forecast:
        """p(x_{T+1}), ..., p(x_{T+K}) given x.

        Args:
            x, lengths, inputs: the past; a row may be empty, and inputs left out where all are. num_steps: K; may be left out
                where ``future_inputs`` tell.
            future_inputs: (B, K, U), or (K, U) for all rows: those of the steps to come.
            **known: what is known of single steps of the past ("transitions", "emission_noises", ...), and, as
                "future_transitions", "future_transition_controls", ..., (B, K, ...), or (K, ...) for all rows, of those to
                come; what is known of the past must be known of these.

        Returns:
            Tensors, one row for each sequence: they all end K steps after it.

        Raises:
            ValueError: for future inputs, or what is known of the steps to come, that are missing or of another shape.
        """
        to_take, num_steps = inputs_ahead(self, x, num_steps, future_inputs, lengths)
        ahead = {name: known.pop(name) for name in list(known) if name.startswith("future_")}
        for name, value in ahead.items():
            check_rows_ahead(x, value, num_steps, name, lengths)
        for name, value in known.items():
            check_rows_together(x, value, name)
        asked, given = x, lengths
        x, lengths = self._in_form(x, lengths)
        if inputs is not None:
            inputs = self._inputs_in_form(inputs, given, size=self.num_inputs, beside=asked)
        future = to_come(to_take, len(x), num_steps, self.num_inputs, self.reference)
        inputs = for_empty_rows(inputs, x, self.num_inputs)
        x, lengths, empty = without_empty_rows(x, lengths, num_features=self.num_features)
        if empty is not None and self.initial == "diffuse":
            raise ValueError("x: a diffuse start foretells nothing, so no row may be empty")
        if inputs is None and self.num_inputs and empty is not None and bool(empty.all()):
            inputs = torch.zeros(len(x), len(x[0]), self.num_inputs)  # there are no steps yet that they could drive
        batch, chain = self._posterior(x, lengths, inputs=inputs, **known)
        matrices, gaps = (self.values.transition, self.values.state_noise), ahead.pop("future_gaps", None)
        if (gaps is None) != (batch.gaps is None):
            raise ValueError("future_times: must be given where times are, and only there, those of the steps to come")
        if gaps is not None:
            matrices = self._moves_over(gaps.to(self.reference))
        now, sizes = self.values, step_sizes(self.num_states, self.num_features)
        self._controls_ahead(ahead, known, future, len(batch.x), num_steps)
        steps = steps_to_come(ahead, batch, sizes, len(batch.x), num_steps, self.reference)
        moves = _sum(now.shift("transition", future), steps.get("transition_offsets"))
        noise = _sum(matrices[1], steps.get("state_noises"))
        states = next_states(
            steps.get("transitions", matrices[0]), noise, moves, chain.filtered(), num_steps, (empty, self._initial_belief)
        )
        means, covariances = _made_of(now, states.mean, states.covariance, future, steps)
        spread = covariances + _sum(self.emission_noise, steps.get("emission_noises"))
        found = Forecast(None, None, means, spread, state_means=states.mean, state_covariances=states.covariance)
        return self._labelled(found, asked, given, num_steps, ahead=future_inputs)

    def _controls_ahead(self, ahead: dict[str, Any], known: Mapping[str, Any], inputs, rows: int, num_steps: int) -> None:
        """Puts offsets of the steps to come, with what their inputs add, in the place of control matrices."""
        for name, size in control_sizes(self.num_states, self.num_features, self.num_inputs).items():
            value, offsets = ahead.pop(f"future_{name}", None), name.replace("controls", "offsets")
            if value is None:
                if known.get(name) is not None:
                    wanted = f"{(rows, num_steps, *size)} or {(num_steps, *size)}"
                    raise ValueError(f"future_{name}: must be given, {wanted}, as {name} of the past steps are")
                continue
            check_controls(self, {name: value}, inputs)
            value = step_matrices(f"future_{name}", as_tensor(value).to(self.reference), size, (rows, num_steps))
            given = ahead.get(f"future_{offsets}")
            if given is None and known.get(offsets) is not None:
                raise ValueError(f"future_{offsets}: must be given, as {offsets} of the past steps are")
            given = None if given is None else as_tensor(given).to(self.reference)
            ahead[f"future_{offsets}"] = controlled(given, checks.finite(f"future_{name}", value), inputs)


def _made_of(
    parameters: Parameters, means: Tensor, covariances: Tensor, inputs: Tensor | None, steps: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """Means (B, T, n) and covariances (B, T, n, n) of what states make, without noise."""
    emission = parameters.emission if steps.get("emissions") is None else steps["emissions"]
    shift = _sum(parameters.shift("emission", inputs), steps.get("emission_offsets"))
    found = (emission @ means.unsqueeze(-1)).squeeze(-1)
    return found if shift is None else found + shift, emission @ covariances @ emission.mT


def _sum(one: Any, other: Tensor | None) -> Any:
    """Of what there is."""
    return other if one is None else one if other is None else one + other


# ---------------------------------------------------------------- what a summary tells
def written_estimates(model: LDSTensors) -> dict[str, Tensor]:
    """Parameters as they are usually written, of covariances the lower triangle; and eigenvalues of the transition, which are
    the same in all coordinates; of a pair of complex ones the modulus, and the angle in radians: 2 pi / steps of a turn."""
    own = {name: getattr(model, name, None) for name in ("transition", "transition_offset", "transition_inputs")}
    eigenvalues = {} if model.num_states == 1 else _eigenvalues(model.transition)
    own |= {name: getattr(model, name, None) for name in ("emission", "emission_offset", "emission_inputs")}
    found = {name: value for name, value in own.items() if value is not None}
    covariances = {"state_noise": model.state_noise, "emission_noise": model.emission_noise}
    if model.initial == "learned":
        found["initial_mean"], covariances["initial_covariance"] = model._initial_belief
    for name in COVARIANCES:
        if name in covariances:
            found |= _triangle(name, covariances[name], diagonal=name in model._diagonal_noises)
    return found | eigenvalues


def coordinate_names(model: LDSTensors) -> frozenset[str]:
    """Which of them another choice of the states' coordinates changes: all that belong to states; none with priors, which know
    their coordinates."""
    if any(prior != RegressionPrior() for prior in (model.state_prior, model.emission_prior)):
        return frozenset()
    fixed = model._not_free
    if _are_coordinates_fixed(model):
        return frozenset({"transition_offset", "emission_offset", "initial_mean"} - fixed if _may_shift(model) else set())
    names = {"transition_offset", "transition_inputs", "emission", "state_noise", "initial_mean", "initial_covariance"}
    names |= {"transition"} if model.num_states > 1 else set()
    # a shift of the states is made up for where both parts have offsets
    return frozenset((names | ({"emission_offset"} if model.transition_offset is not None else set())) - fixed)


@torch.no_grad()
def _are_coordinates_fixed(model: LDSTensors) -> bool:
    """Whether no other states M z have the transition and emission that a fit was told to keep: they are seen in full."""
    if "emission" not in model._not_free:
        return False
    seen: list[Tensor] = [model.emission]
    if "transition" in model._not_free:
        seen += [seen[0] @ torch.linalg.matrix_power(model.transition, k) for k in range(1, model.num_states)]
    return int(torch.linalg.matrix_rank(torch.cat(seen))) == model.num_states


@torch.no_grad()
def _may_shift(model: LDSTensors) -> bool:
    """Whether free offsets make up for states z + c with some c that is not 0."""
    fixed, size = model._not_free, model.num_states
    if model.initial == "learned" and "initial_mean" in fixed:
        return False
    stays = [model.emission.new_zeros(0, size)]  # matrices whose products with c must be 0
    if model.emission_offset is None or "emission_offset" in fixed:
        stays.append(model.emission)
    if model.transition_offset is None or "transition_offset" in fixed:
        stays.append(torch.eye(size).to(model.transition) - model.transition)
    matrix = torch.cat(stays)
    return not len(matrix) or int(torch.linalg.matrix_rank(matrix)) < size


def _triangle(name: str, value: Tensor, *, diagonal: bool) -> dict[str, Tensor]:
    pairs = [(i, j) for i in range(len(value)) for j in range(i + 1) if i == j or not diagonal]
    return {f"{name}[{i}][{j}]": value[i, j] for i, j in pairs}


def _eigenvalues(matrix: Tensor) -> dict[str, Tensor]:
    """Nothing where two are nearly the same."""
    values = torch.linalg.eigvals(matrix)
    values = values[values.detach().abs().argsort(descending=True, stable=True)]
    apart = (values.detach().unsqueeze(-1) - values.detach()).abs().fill_diagonal_(torch.inf)
    if bool((apart <= APART * values.detach().abs().max()).any()):
        return {}
    found: dict[str, Tensor] = {}
    for number, value in enumerate(values[values.detach().imag >= 0]):  # of a pair, one
        real = bool(value.detach().imag == 0)
        found |= {f"eigenvalue[{number}]" if real else f"eigenvalue[{number}] modulus": value.real if real else value.abs()}
        found |= {} if real else {f"eigenvalue[{number}] angle": value.angle()}
    return found
