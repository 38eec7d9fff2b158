"""The linear dynamical system over vectors: Gaussian states that move linearly and are observed linearly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, Unpack

import pyro
import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.distributions.linear_gaussian import LinearEmission, LinearGaussian
from pplseq.distributions.noise import as_noise
from pplseq.distributions.partly_observed import PartlyObserved
from pplseq.infer.fit.em import Batch, Statistics
from pplseq.infer.gaussian.chain import GaussianChain
from pplseq.infer.programs.kalman_collapse import collapsed
from pplseq.infer.programs.markov import markov
from pplseq.models.base import Given, Sizes, one_chain
from pplseq.models.lds import array_em
from pplseq.models.lds.arguments import (
    check_controls,
    check_inputs,
    check_observations,
    control_sizes,
    controlled,
    driven_by,
    step_sizes,
    with_inputs,
)
from pplseq.models.lds.by_loops import DISTRIBUTIONS, WAYS, LoopAnswers
from pplseq.models.lds.fit import (
    EMOptions,
    above_floor,
    chain_of,
    check_enough,
    e_step,
    first_parameters,
    floors,
    from_coordinates,
    m_step,
    parameter_units,
    to_coordinates,
)
from pplseq.models.lds.parameters import SCALES, Parameters
from pplseq.models.lds.point_chain import PointChain, chain_of_batch, is_all_seen
from pplseq.models.lds.start import STARTS
from pplseq.models.lds.times import gaps_of, times_of, without_index
from pplseq.models.online.reader import Filter
from pplseq.models.online.system import System
from pplseq.models.steps import padded_steps, step_matrices, with_steps


class LDS(LoopAnswers):
    """A chain of h-dimensional Gaussian states, observed through a linear map with noise.

        z_1 ~ N(initial_mean, initial_covariance)
        z_t ~ N(transition z_{t-1} + transition_offset + transition_inputs u_t, state_noise)
        x_t ~ N(emission z_t + emission_offset + emission_inputs u_t, emission_noise)

    x_1 is seen before the first move; u_1 moves no state. Covariances are kept as triangular factors (standard deviations
    where they are diagonal), so that gradients may go where they like; ``state_noise`` and ``initial_covariance`` may be
    singular. Attributes of these names are differentiable; :meth:`set_parameters` sets them.

    Args:
        num_states: h. num_features: n, of an observation. num_inputs: U, of what drives the system, or 0.
        inputs_to, offsets: where inputs enter with weights that are learned, and where offsets are: "both", "transition",
            "emission" or "none" (of inputs: then by the ``transition_controls`` or ``emission_controls`` of steps alone).
        state_noise, emission_noise: "full" or "diagonal".
        initial: "learned", or "stationary": the distribution that the states tend to without inputs, which needs a stable
            transition: EM keeps it so; gradients may need a smaller learning rate. Or "diffuse": nothing is known of the first
            state, exactly (see :mod:`pplseq.infer.gaussian.diffuse`); such a model generates from a given ``start`` only.
        state_prior, emission_prior: a :class:`~pplseq.models.lds.statistics.RegressionPrior` of weights and noise (or a mapping
            of its arguments), for maximum a posteriori; None: maximum likelihood.
        noise_floor: smallest variance that EM may give a noise, or the first state, in any direction; None: a millionth of the
            data's own variance in each column, and of the states' for theirs, so that units do not matter.
        dtype: "float64" (what EM wants) or "float32".

    Raises:
        ValueError: for sizes or options that do not fit together.

    Example::

        model = LDS(2, 5).fit(sequences)
        means = model.transform(sequences)
        future = model.forecast(sequences, 10)

    Source: R. E. Kalman (1960), A new approach to linear filtering and prediction problems.
    """

    name = "lds"
    _is_plain = True
    methods = ("em", "sgd", "lbfgs")
    starts = STARTS
    _pinned: frozenset[str] = frozenset()  # names of parameters of which something is known beforehand

    # ---------------------------------------------------------------- the program
    @one_chain
    def model(
        self,
        x: Tensor | None = None,
        lengths: Tensor | None = None,
        start: GaussianBelief | None = None,
        inputs: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
        emissions: Tensor | None = None,
        state_noises: Tensor | None = None,
        emission_noises: Tensor | None = None,
        transition_offsets: Tensor | None = None,
        emission_offsets: Tensor | None = None,
        transition_controls: Tensor | None = None,
        emission_controls: Tensor | None = None,
        gaps: Tensor | None = None,
        **sizes: Unpack[Sizes],
    ):
        """The generative program.

        Args:
            x: (B, T, n) observations, NaN where missing (whole vectors or some of their coordinates); None to generate.
            lengths: (B,) valid steps, or None for all.
            start: the belief that the previous segment ended with.
            inputs: (B, T, U).
            transitions: (B, T, h, h) or (T, h, h) matrices of the moves into each step, in the place of ``transition``;
                the first is used after ``start`` only.
            emissions: (B, T, n, h) or (T, n, h) matrices in the place of ``emission``: a design that changes in time.
            state_noises, emission_noises: (B, T, h, h) or (T, h, h), and (B, T, n, n) or (T, n, n): known covariances that
                are added to ``state_noise`` and ``emission_noise``.
            transition_offsets, emission_offsets: (B, T, h) or (T, h), and (B, T, n) or (T, n): known vectors that are added to
                the moves into each step and to observations.
            transition_controls, emission_controls: (B, T, h, U) or (T, h, U), and (B, T, n, U) or (T, n, U): known matrices
                B_t of the inputs, B_t u_t of which is added likewise; of a part whose matrix is not learned (``inputs_to``).
            gaps: (B, T) the time that the move into each step takes, of a model that knows how it moves over any.
            **sizes: how much to generate, or what a mini-batch stands for: :class:`~pplseq.models.base.Sizes`.
        """
        added = {"state_noises": state_noises, "emission_noises": emission_noises}
        added |= {"transition_offsets": transition_offsets, "emission_offsets": emission_offsets}
        added |= {"transition_controls": transition_controls, "emission_controls": emission_controls, "gaps": gaps}
        given, (transition, emission) = self._told(x, lengths, start, inputs, transitions, emissions, added, sizes)
        z = start
        with given.plate:
            for t in markov(given.steps):
                with given.valid(t):
                    z = pyro.sample(f"z_{t}", transition(z, t))
                    with given.seen(t):
                        pyro.sample(f"x_{t}", emission(z, t), obs=given.value(t))
        return x

    def _told(self, x, lengths, start, inputs, transitions, emissions, added, sizes):
        """What the program was called with, and the two conditional distributions."""
        given = self.given(x, lengths, start, **sizes)
        given.inputs = check_inputs(inputs, given.shape, self.num_inputs, lengths)
        added = {name: value for name, value in added.items() if value is not None}
        return given, self.specs(given, start, transitions, emissions, **added)

    @property
    def _is_own_story(self) -> bool:
        """Whether the program is the class's own, and its parameters neither constrained nor drawn."""
        own = type(self)
        is_own = own.specs is LDS.specs and own.given is LDS.given and own.observed is LDS.observed
        return self._is_one_chain and is_own and not self._modules

    def _knows(self, added) -> bool:
        """Whether all of this may be known of single steps; the program says of what is not."""
        return added.keys() <= self._step_sizes.keys() | {"gaps"}

    def _direct_chain(
        self, x, lengths=None, start=None, *, inputs=None, transitions=None, emissions=None, num_total=None, **added
    ) -> GaussianChain | None:  # fmt: skip
        """The chain without running the program: but of mini-batches, and of subclasses that have a story of their own."""
        if num_total is not None or not self._is_own_story or not self._knows(added):
            return None
        of_steps = transitions is not None or emissions is not None or bool(added)
        if start is not None or of_steps or not self._is_finite:  # the distributions say what is not
            given, specs = self._told(x, lengths, start, inputs, transitions, emissions, added, {})
            return collapsed(given, *specs, start)
        given = self.given(x, lengths)
        values = self._written() if torch.is_grad_enabled() else self.values
        emission = LinearEmission(values.emission, as_noise(values.emission_noise, self.num_features))
        inputs = check_inputs(inputs, given.shape, self.num_inputs, lengths)
        return chain_of(values, Batch(x, lengths, None, inputs), emission)

    def _direct_draw(
        self, *, start=None, inputs=None, transitions=None, emissions=None, num_sequences=None, num_steps=None,
        first: GaussianBelief | None = None, **added
    ) -> tuple[Tensor, Tensor] | None:  # fmt: skip
        """As of the base class; first: what is known of the first state of each row, in the place of the model's own."""
        if not self._is_own_story or not self._knows(added):
            return None
        sizes = dict(num_sequences=num_sequences, num_steps=num_steps)
        given, (move, emit) = self._told(None, None, start, inputs, transitions, emissions, added, sizes)
        if first is None:
            return given.draw(lambda z, t, x: move(z, t), lambda z, t, x: emit(z, t), start)
        begin = LinearGaussian(None, self.transition, first.covariance, first.mean)
        return given.draw(lambda z, t, x: begin if z is None else move(z, t), lambda z, t, x: emit(z, t))

    @property
    def _is_finite(self) -> bool:
        parts = [part.detach().reshape(-1) for part in self._parameters.values() if part is not None]
        return bool(torch.cat(parts).isfinite().all())

    @torch.no_grad()
    def _chain_of_rows(self, batch: Batch) -> GaussianChain | None:
        remembered = vars(self).get("_remembered")
        if type(self) is not LDS or remembered is None or not WAYS.isdisjoint(vars(self)) or not self._is_one_chain:
            return None
        if not is_all_seen(batch):
            return None
        point = remembered.get(self, self._point)
        return None if point is None else chain_of_batch(point, batch)

    def _point(self) -> PointChain | None:
        return PointChain(self.values) if self._is_finite else None

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        observed = ~x.isnan()
        return x.nan_to_num(0.0), observed

    def specs(
        self, given: Given, start: GaussianBelief | None, transitions: Tensor | None, emissions: Tensor | None,
        gaps: Tensor | None = None, **added: Tensor,
    ):  # fmt: skip
        """Functions of (state, step): the distributions of the next state, and of what is observed of a state."""
        known = {"transitions": transitions, "emissions": emissions} | added
        check_controls(self, known, given.inputs)
        sizes = self._step_sizes.items()
        moves, designs, shaken, blurred, pushed, shifted, *controls = (
            step_matrices(name, known.get(name), size, given.shape) for name, size in sizes
        )
        pushed, shifted = (controlled(*two, given.inputs) for two in zip((pushed, shifted), controls, strict=True))
        matrix, offset, weights = self._coefficients("transition")
        loadings, emission_offset, emission_weights = self._coefficients("emission")
        state_noise, noise = self.state_noise, self._emission_noise
        pushed, shifted = driven_by(weights, given.inputs, pushed), driven_by(emission_weights, given.inputs, shifted)
        spreads = None
        if gaps is not None:
            moves, spreads = self._moves_over(gaps)
        first = None
        if start is None:
            first = self._initial_belief if torch.is_grad_enabled() else self._initial_belief.detach()

        def transition(z, t) -> LinearGaussian:
            if first is not None and z is None:
                return LinearGaussian(None, matrix, first.covariance, first.mean)
            driven = None if pushed is None else (pushed[0], pushed[1][:, t])
            spread = state_noise if spreads is None else spreads[:, t]
            spread = spread if shaken is None else spread + shaken[:, t]
            return LinearGaussian(z, matrix if moves is None else moves[:, t], spread, offset, driven)

        def emission(z, t) -> LinearGaussian | PartlyObserved:
            driven = None if shifted is None else (shifted[0], shifted[1][:, t])
            spread = noise if blurred is None else (torch.diag(noise) if noise.dim() == 1 else noise) + blurred[:, t]
            about = (z, loadings if designs is None else designs[:, t], spread, emission_offset, driven)
            observed = given.coordinates(t)
            return LinearGaussian(*about) if observed is None else PartlyObserved(*about, observed=observed)

        return transition, emission

    def _moves_over(self, gaps: Tensor) -> tuple[Tensor, Tensor]:
        """Matrices and covariances (B, T, h, h) of moves that take these times (B, T)."""
        raise ValueError(
            f"times: {type(self).__name__} moves step by step; a StructuralModel moves over any time, or give the matrices and "
            "covariances of single steps by transitions=..., state_noises=..."
        )

    @property
    def _step_sizes(self) -> dict[str, tuple[int, ...]]:
        """Of all that may be known of single steps."""
        h, n = self.num_states, self.num_features
        return step_sizes(h, n) | control_sizes(h, n, self.num_inputs)

    def _coefficients(self, kind: str) -> list[Tensor | None]:
        """Matrix, offset and weights of inputs, as they stand: without their gradients where none are wanted."""
        values = [getattr(self, name) for name in (kind, f"{kind}_offset", f"{kind}_inputs")]
        return values if torch.is_grad_enabled() else [None if v is None else v.detach() for v in values]

    # ---------------------------------------------------------------- data
    def _as_batch(
        self, x, lengths=None, *, states=None, inputs=None, transitions=None, emissions=None, state_noises=None,
        emission_noises=None, transition_offsets=None, emission_offsets=None, transition_controls=None,
        emission_controls=None, times=None,
    ) -> Batch:  # fmt: skip
        """x, its lengths and inputs, and what is known of single steps (see :meth:`model`), as tensors of the model's type and
        device; see the class of all estimators. times: of the steps, see :func:`~pplseq.models.lds.times.times_of`."""
        if states is not None:
            raise ValueError("states: those of a linear dynamical system cannot be given")
        if times is not None:
            if transitions is not None:
                raise ValueError("times: they say how states move, and so do transitions; leave one of them out")
            times, x = times_of(times, x, lengths), without_index(x)
        batch = super()._as_batch(x, lengths)
        if times is not None:
            gaps = gaps_of(times, batch)
            batch = batch._replace(gaps=gaps)
            self._moves_over(gaps[:1, :1])  # which says what has no continuous form
        of_steps = (transitions, emissions, state_noises, emission_noises, transition_offsets, emission_offsets)
        controls = {"transition_controls": transition_controls, "emission_controls": emission_controls}
        offsets = {"transition_offsets": transition_offsets, "emission_offsets": emission_offsets}
        check_controls(self, controls | offsets, inputs)
        if inputs is None and not self.num_inputs and all(part is None for part in of_steps):
            return batch
        batch = with_steps(
            batch, x, step_sizes(self.num_states, self.num_features), transitions=transitions, emissions=emissions,
            state_noises=state_noises, emission_noises=emission_noises, **offsets,
        )  # fmt: skip
        if inputs is not None:
            inputs = self._inputs_in_form(inputs, lengths, size=self.num_inputs, beside=x)
            x, _ = self._in_form(x, lengths)
        batch = with_inputs(batch, inputs, x, self.num_inputs)
        for name, value in controls.items():  # B_t u_t is an offset of its step
            if value is not None:
                value = padded_steps(name, value, batch, x, self._step_sizes[name])
                added = name.replace("controls", "offsets")
                batch = batch._replace(**{added: controlled(getattr(batch, added), value, batch.inputs)})
        return batch

    def _check_observations(self, x: Tensor) -> None:
        check_observations(x, self.num_features)

    def _check_data(self, batch: Batch) -> None:
        check_enough(batch, self.num_states)

    def _check_method(self, method: str) -> None:
        """EM sets the parameters of the class's own distributions; those of a subclass it does not know."""
        if drawn := list(self._pyro_samples):
            raise ValueError(
                f"method: {', '.join(drawn)} is drawn from a prior, and a fit to a point would see other draws at every step; "
                "infer it with a guide or NUTS (pyro.infer), or give it a value"
            )
        if method != "em" or type(self).maximize is not LDS.maximize:
            return
        kind = type(self)
        changed = [name for name in DISTRIBUTIONS if getattr(kind, name) is not getattr(LDS, name)]
        changed += [name for name in vars(self) if name in DISTRIBUTIONS]
        if changed or not self._is_own_program:
            what = f"its own {', '.join(changed)}" if changed else "a program of its own"
            raise ValueError(
                f"method: {kind.__name__} has {what}, which the closed forms of EM are not for; use method='lbfgs' or 'sgd', "
                "or give it chain_of, expected_statistics and maximize of its own"
            )
        kept = [SCALES.get(name, name) for name in Parameters._fields]
        bound = [name for name in kept if getattr(self, name, None) is not None and name not in self._parameters]
        if bound:
            raise ValueError(
                f"method: {', '.join(bound)} is constrained or drawn from a prior, and EM sets plain parameters; use "
                "method='lbfgs' or 'sgd'"
            )

    @property
    def _is_own_program(self) -> bool:
        return getattr(self.model, "__func__", None) is LDS.model and "forward" not in vars(self)

    def _check_start_of_steps(self, proper: str = "learned") -> None:
        """Raises ValueError where one step leaves a part of a diffuse start unknown: there is no reading of it alone."""
        unknown = int(self._initial_belief.covariance.diagonal(dim1=-2, dim2=-1).isinf().sum())
        if unknown > self.num_features:
            raise ValueError(
                f"initial: of a diffuse start {unknown} coordinates are unknown, and a step of {self.num_features} numbers "
                f"does not determine them; for online() make the model with a proper start, initial={proper!r}"
            )

    def _reader(self) -> Filter:
        self._check_start_of_steps()
        is_alone = type(self) is LDS and self._is_own_story and not self.num_inputs and self.initial == "learned"
        return System(self) if is_alone else super()._reader()

    # ---------------------------------------------------------------- fit
    def fit(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, lengths=None, *, fixed: Sequence[str] = (), initialization: str | None = None, warm_start: bool = False,
        num_restarts: int = 1, **options,
    ) -> Self:  # fmt: skip
        """Fits the parameters to data; see :meth:`~pplseq.models.estimator.Estimator.fit`, and beside it:

        Args:
            initialization: how to start anew: "subspace" (the default), "pca" or "random"; see
                :func:`~pplseq.models.lds.start.guess_parameters`. num_restarts: only "random" starts differ.
            fixed: names of parameters, as in :meth:`set_parameters`, that keep their values. With "transition" or
                "emission" among them the fit is a warm start: they say in which coordinates states are.
            **options: also ``inputs``, and what is known of single steps: ``transitions`` and ``emissions``, in whose place
                the parameters of these names are then fixed, ``state_noises`` and ``emission_noises``, which are added to
                the covariances that are learned, ``transition_offsets`` and ``emission_offsets``, ``transition_controls`` and
                ``emission_controls``; see :meth:`model`.

        Raises:
            ValueError: with ``initial="diffuse"`` where not both are fixed (the emission alone, with no more states than
                features): the likelihood then depends on the scale of the states, and has no maximum.
        """
        warm_start = checks.flag("warm_start", warm_start)
        checks.count("num_restarts", num_restarts)
        known = isinstance(fixed, (str, tuple, list, set, frozenset, Mapping))
        if not known or not all(isinstance(name, str) for name in fixed):
            raise TypeError(f"fixed must hold names of parameters, got {checks.shown(fixed)}")
        names = list(self._own)
        if isinstance(fixed, Mapping) and not all(mask is True for mask in fixed.values()):
            raise ValueError(
                "fixed: an LDS holds parameters whole, {name: True}; single entries are known in a "
                "ConstrainedLDS(num_states, num_features, patterns={name: [[1, None], ...]})"
            )
        asked = {fixed} if isinstance(fixed, str) else set(fixed)
        held = asked | {name for name, own in self._own.items() if not own.requires_grad}
        held |= {name for name in ("transition", "emission") if options.get(f"{name}s") is not None}
        if self.initial == "stationary" and any(options.get(name) is not None for name in ("transitions", "state_noises")):
            raise ValueError(
                "initial: a stationary start is that of one transition and noise, and transitions or state_noises are given; "
                "make the model with initial='learned' or 'diffuse'"
            )
        if not held <= set(names):
            unknown = ", ".join(sorted(held - set(names)))
            raise ValueError(f"fixed: {unknown} are no parameters of this model; it has {', '.join(names)}")
        needed = {"emission"} | ({"transition"} if self.num_states > self.num_features else set())
        if self.initial == "diffuse" and not needed <= held | self._pinned:
            raise ValueError(
                "fixed: with initial='diffuse' the likelihood depends on the scale of the states and has no maximum; fix "
                f"{' and '.join(sorted(needed))} (set_parameters, then fit(..., fixed={sorted(needed)})), or take "
                "initial='learned'"
            )
        if num_restarts != 1 and initialization != "random":
            raise ValueError(f"num_restarts: starts are alike unless initialization='random'; got {num_restarts}")
        self.held, self._replaced = frozenset(held), frozenset(held - asked)
        options |= {"initialization": initialization, "num_restarts": num_restarts, "fixed": sorted(held)}
        try:
            return super().fit(x, lengths, warm_start=warm_start or self._is_warm(held), **options)
        finally:
            self.held = self._replaced = frozenset()

    def _is_warm(self, held: set[str]) -> bool:
        return bool({"transition", "emission"} & held)

    def initialize(self, batch: Batch, how: str = "subspace") -> None:
        """Parameters guessed from the data: where a fit starts."""
        self._put(first_parameters(self.values, batch, how, self._diagonal_noises))

    # ---------------------------------------------------------------- what EM asks for (see pplseq.infer.fit.em)
    @torch.no_grad()
    def chain_of(self, batch: Batch) -> GaussianChain:
        if batch.of_steps:
            return self.posterior(batch.x, batch.lengths, **batch.known)
        return chain_of(self.values, batch)

    def expected_statistics(self, chain: GaussianChain, batch: Batch) -> Statistics:
        return e_step(self.values, chain, batch)

    def maximize(self, statistics: Statistics) -> list[str]:
        options = EMOptions(self.state_prior, self.emission_prior, self.noise_floor, self._diagonal_noises, self.held)
        if self._has_array_em:
            found, self._lowest, notes = array_em.maximize(self._parameters, statistics, options)
            self._set_arrays(found)
            return notes
        self._lowest = floors(statistics, self.noise_floor)
        parameters, notes = m_step(self.values, statistics, options, self._lowest)
        self._put(parameters)
        return notes

    def _em_coordinates(self) -> tuple[Tensor, Tensor]:
        """The parameters that a fit moves, as EM's acceleration wants them, and their units."""
        found = array_em.coordinates(self._parameters, self._free) if self._has_array_em else None
        return to_coordinates(self.values, self._free) if found is None else found

    @property
    def _has_array_em(self) -> bool:
        """Whether :mod:`pplseq.models.lds.array_em` is for this system, where it is and in its type."""
        return self.transition.dtype == torch.float64 and self.transition.device.type == "cpu" and self._is_as_it_is

    @torch.no_grad()
    def _set_arrays(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            parameter = self._parameters[name]
            assert parameter is not None, name
            parameter.copy_(torch.from_numpy(value))

    def _set_em_coordinates(self, coordinates: Tensor) -> None:
        if self._has_array_em and self._lowest:
            self._set_arrays(array_em.at_coordinates(self._parameters, self._free, coordinates.numpy(), self._lowest))
            return
        here = self.values
        self._put(above_floor(from_coordinates(here, self._free, coordinates), here, self._lowest))

    def _parameter_units(self) -> dict[str, Tensor]:
        """How much the numbers of each parameter vary, by name: what L-BFGS measures its steps in."""
        units, own = parameter_units(self.values), dict(self.named_parameters())
        diagonal = {name: unit.diagonal() for name, unit in units.items() if name in own and own[name].dim() < unit.dim()}
        diagonal |= {"emission_scale": torch.ones_like(own["emission_scale"])} if "emission_scale" in diagonal else {}
        return {name: unit for name, unit in (units | diagonal).items() if name in own}

    @property
    def _free(self) -> list[str]:
        return [name for name in self._own if name not in self.held]

    @property
    def _has_priors(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether :meth:`log_prior` is of some prior."""
        return any(prior.count or prior.strength for prior in (self.state_prior, self.emission_prior))

    def log_prior(self) -> Tensor:
        """log density of the parameters under the priors, nats, up to a constant; 0 without priors."""
        total = self.transition.new_zeros(())
        for kind, noise, prior in (
            ("transition", "state_noise", self.state_prior), ("emission", "emission_noise", self.emission_prior),
        ):  # fmt: skip
            if prior.count or prior.strength:
                parts = [v for name in (kind, f"{kind}_inputs") if (v := getattr(self, name)) is not None]
                weights = torch.cat(parts, -1)
                total = total + prior.log_prob(weights, getattr(self, noise), torch.ones_like(weights[0], dtype=torch.bool))
        return total
