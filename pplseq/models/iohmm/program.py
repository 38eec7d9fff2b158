"""The input-output hidden Markov model: transitions, outputs and the start may depend on inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import pyro
import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.conditional import BernoulliEmission, ConditionalEmission, CoordinateEmission
from pplseq.distributions.dense import CategoricalEmission, DenseTransition, StepTransition
from pplseq.distributions.drawing import seeded
from pplseq.distributions.state import Belief, Emission, Transition
from pplseq.folder import whole_folder
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.fit.held import Slot, holding
from pplseq.infer.programs.markov import markov
from pplseq.models.base import Sizes, one_chain
from pplseq.models.fitted import told_bounds
from pplseq.models.fitting import held_out_data
from pplseq.models.hmm.tables import DTYPES
from pplseq.models.iohmm.data import PARTS, Inputs, IOFormat, Sight, apart
from pplseq.models.iohmm.embeddings import checked_embeddings
from pplseq.models.iohmm.fit import FITTERS, METHODS, FitPlan, fit_model, with_steps
from pplseq.models.iohmm.formulas import Formulas
from pplseq.models.iohmm.networks import GaussianNoise, WeightPriors, masked_log_softmax
from pplseq.models.iohmm.options import (
    PerPart,
    checked_names,
    feedback_parts,
    input_sources,
    make_network,
    output_columns,
    per_part,
    plain,
)
from pplseq.models.iohmm.parameters import SPREAD
from pplseq.models.iohmm.queries import IOHMMQueries
from pplseq.models.iohmm.restarts.history import RestartBlock, RestartHistory
from pplseq.models.parts.emissions import COVARIANCES
from pplseq.models.parts.family_table import as_config
from pplseq.models.parts.moves import allowed_moves, allowed_starts
from pplseq.models.parts.responses import Dispersions
from pplseq.threads import undisturbed

OUTPUTS = ("categorical", "bernoulli", "gaussian", "states")
INITIAL = ("constant", "inputs", "transition", "stationary")


class IOHMM(IOHMMQueries):
    """z_1 ~ initial(u_1),  z_t ~ transition(z_{t-1}, u_t),  x_t ~ emission(z_t, v_t).

    Of a network for transitions the rows are softmaxes over the successors that ``graph`` allows. Inputs are real vectors
    (networks are then generalised linear models, or have hidden layers) or symbols (then they are lookup tables). u and v may
    be the same inputs or different ones. A Mealy machine's outputs see inputs, a Moore machine's depend on the state alone.

    Args:
        num_states: Z.
        num_inputs: U of real inputs, for all parts that see inputs, or a mapping from "initial", "transition" and "emission"
            to that part's own; a part left out of a mapping sees none.
        num_symbols: L of symbol inputs 0..L-1, likewise. A part has one of the two.
        outputs: "categorical" (``num_outputs`` = V), "bernoulli" or "gaussian" (vectors of ``num_outputs`` = D), or "states":
            targets are the states themselves. Of generalised linear models "poisson", "negative_binomial", "binomial",
            "gamma", "exponential" or "normal", for all D columns, or a list of such (and "bernoulli", "categorical"), one a
            column, which are independent given state and input. Outputs are then (B, T, D), classes by their number.
        num_outputs: V, or D; for a list of families one a column, V of "categorical" and 1 of others (or left out).
        links: of generalised linear models, for all columns or one a column: "log" or "sqrt" of counts, "log" of "gamma" and
            "exponential", "identity" or "log" of "normal", "logit", "probit" or "cloglog"; None: the first of them.
        trials: of "binomial" outputs, of which each counts the successes.
        mealy: whether outputs see inputs.
        graph: (Z, Z) bool, [from, to], which transitions are allowed; "left_right" for those to the same state and later
            ones, starting in state 0; None for all.
        start_states: states that a sequence may start in; None for all. One of them: a fixed start.
        initial: "constant": z_1 ~ start distribution; "inputs": it depends on u_1; "transition" (the paper's): a state z_0 ~
            start distribution moves with u_1 to z_1, z_1 ~ sum_j start_j transition(j, u_1); "stationary": the distribution
            that transitions leave as it is, where no inputs drive them (``num_inputs={"emission": U}``).
        hidden: sizes of the hidden layers of networks that see inputs, or a mapping from parts to such; () for none.
        embeddings: {column of the real inputs that holds numbers of symbols: (number of symbols, dimensions)}: each network
            learns vectors that stand for the symbols; a fit gives symbols that its data lack the mean vector of the others.
        covariance: of "gaussian" outputs: "diag", "full", "tied" (one full matrix for all states) or "spherical".
        covariance_floor: smallest variance EM may give a state in any direction; None: a ten-thousandth of the outputs' own in
            each dimension, so that units do not matter.
        feedback: join the output before each step to the inputs: True, "transition" or "emission"; see
            :meth:`~pplseq.models.iohmm.data.IOFormat.join`.
        transition, emission, initial_network: torch modules of your own for a part: one step's inputs (*B, U), or symbols
            (*B,), to logits (*B, Z, Z), (*B, Z, V or D) (means of "gaussian" outputs) or (*B, Z).
        priors: :class:`~pplseq.models.iohmm.networks.WeightPriors`, a mapping of its arguments, True, or None. With priors the
            program draws weights at sites such as "transition_network.weight".
        input_names, output_names: what the summary calls them: part -> names of its inputs; names of columns of outputs.
        formulas: :class:`~pplseq.models.iohmm.formulas.Formulas`, by which fits and questions read data frames, saved too.
        state_names: what the states are called, as of :class:`~pplseq.models.hmm.program.HMM`.
        dtype: "float64" (what EM and NUTS want) or "float32".

    Raises:
        ValueError: for sizes or options that do not fit together, or a graph with a dead end.

    Example::

        model = IOHMM(3, num_inputs=2, outputs="gaussian", num_outputs=1)
        model.fit(x, inputs=inputs, num_restarts=10)
        model.one_step(x, inputs=inputs).outputs

    Source: Y. Bengio and P. Frasconi (1995), An input output HMM architecture, sections 2 and 3.
    """

    emission_network: Any
    transition_network: Any
    initial_network: Any
    name = "iohmm"
    methods = METHODS
    _has_loops = True  # not of classes that inherit from it, which may have changed anything
    num_words = None

    def __init__(
        self,
        num_states: int,
        *,
        num_inputs: PerPart = None,
        num_symbols: PerPart = None,
        outputs: str | Sequence[str] = "categorical",
        num_outputs: int | Sequence[int | None] | None = None,
        links: str | Sequence[str | None] | None = None,
        trials: int | None = None,
        mealy: bool = False,
        graph: Tensor | str | None = None,
        start_states: Sequence[int] | None = None,
        initial: str = "constant",
        hidden: Sequence[int] | Mapping[str, Sequence[int]] = (),
        embeddings: Mapping[int, tuple[int, int]] | Sequence[Sequence[int]] | None = None,
        covariance: str = "diag",
        covariance_floor: float | None = None,
        feedback: bool | str = False,
        transition: nn.Module | None = None,
        emission: nn.Module | None = None,
        initial_network: nn.Module | None = None,
        priors: WeightPriors | Mapping | bool | None = None,
        input_names: Mapping[str, Sequence[str]] | None = None,
        output_names: Sequence[str] | None = None,
        formulas: Formulas | Mapping[str, Any] | None = None,
        state_names: Sequence[str] | None = None,
        dtype: str = "float64",
    ):
        super().__init__()
        self.num_states = checks.count("num_states", num_states)
        checks.fits("num_states", 4.0 * num_states**2, "choose fewer states")
        self.columns = output_columns(outputs, num_outputs, links, trials)
        self.outputs = "columns" if self.columns else checks.choice("outputs", outputs, OUTPUTS)
        self.initial = checks.choice("initial", initial, INITIAL)
        self.covariance = checks.choice("covariance", covariance, COVARIANCES)
        real = DTYPES[checks.choice("dtype", dtype, DTYPES)]
        if outputs == "states":
            told = num_states if num_outputs is None else checks.count("num_outputs", num_outputs)
            if told != num_states or mealy or emission is not None:
                raise ValueError("outputs='states': targets are the states; leave num_outputs, mealy and emission out")
            num_outputs = num_states
        if num_outputs is None and not self.columns:
            raise ValueError(f"num_outputs: say how many symbols, or dimensions, {outputs} outputs have; got None")
        self.num_outputs = len(self.columns) if self.columns else checks.count("num_outputs", num_outputs)
        self.mealy = bool(mealy)
        floor = covariance_floor
        self.covariance_floor = None if floor is None else float(checks.positive("covariance_floor", floor))
        self.priors = WeightPriors.of(priors)
        if initial == "stationary" and (start_states is not None or graph is not None or initial_network is not None):
            given = "start_states, graph and initial_network"
            raise ValueError(f"initial: a stationary start follows from transitions that are all allowed; leave {given} out")
        self.sources = input_sources(initial, self.mealy, num_inputs, num_symbols)
        sizes = {part: source[1] for part, source in self.sources.items() if source is not None and source[0] == "vectors"}
        self.embeddings = checked_embeddings(embeddings, sizes)
        self.input_names = checked_names("input_names", input_names, sizes)
        of_outputs = None if output_names is None else {"outputs": output_names}
        self.output_names = checked_names("output_names", of_outputs, {"outputs": self.num_outputs}).get("outputs")
        self.formulas = None if (own := Formulas.of(formulas)) is None else own.copy()
        self.feedback = feedback_parts(self.outputs, self.sources, feedback, self.columns)
        if graph == "left_right" and start_states is None:
            start_states = [0]
        self.register_buffer("graph", allowed_moves(graph, self.num_states), persistent=False)
        self.register_buffer("start_states", allowed_starts(start_states, self.num_states), persistent=False)
        own = {"initial": initial_network, "transition": transition, "emission": emission}
        self._own = [part for part in PARTS if own[part] is not None]
        hidden = {part: tuple(sizes) for part, sizes in per_part("hidden", hidden, Sequence).items()}
        shapes = {
            "initial": (self.num_states,), "transition": (self.num_states, self.num_states),
            "emission": (self.num_states, self.columns.width if self.columns else self.num_outputs),
        }  # fmt: skip
        form = self._format_like(torch.empty(0))
        for part, shape in shapes.items():
            network = None
            if (part != "emission" or outputs != "states") and (part != "initial" or initial != "stationary"):
                network = make_network(part, form.source(part), shape, hidden.get(part, ()), own[part], real, self.embeddings)
                if own[part] is None:
                    network.randomise(SPREAD)
            self.add_module(f"{part}_network", network)
        self.noise: GaussianNoise | Dispersions | None = None
        if self.columns:
            self.noise = Dispersions(self.num_states, self.columns, real)
        elif outputs == "gaussian":
            self.noise = GaussianNoise(self.num_states, self.num_outputs, covariance, real)
        self._config = dict(
            num_states=self.num_states, num_inputs=plain(num_inputs), num_symbols=plain(num_symbols),
            outputs=as_config(outputs), num_outputs=None if outputs == "states" else as_config(num_outputs), mealy=self.mealy,
            graph=None if self.graph is None else self.graph.tolist(),
            start_states=None if start_states is None else [int(state) for state in start_states], initial=initial,
            hidden={part: list(sizes) for part, sizes in hidden.items() if sizes}, covariance=covariance,
            covariance_floor=self.covariance_floor, feedback=feedback, links=as_config(links), trials=trials,
            input_names=self.input_names or None, output_names=self.output_names,
            embeddings=[[column, *sizes] for column, sizes in self.embeddings.items()] or None,
        )  # fmt: skip
        self._name_states(state_names)
        if not self._own:
            self.drawn()

    @property
    def format(self) -> IOFormat:
        return self._format_like(self.reference)

    def _format_like(self, reference: Tensor) -> IOFormat:
        sizes = self.outputs, self.num_outputs, self.num_states
        return IOFormat(*sizes, self.sources, self.feedback, reference, self.columns, self.embeddings)

    def _check_observations(self, x: Tensor) -> None:
        self.format.check(x)

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.format.observed(x)

    # ---------------------------------------------------------------- folders
    @property
    def config(self):
        dtype = next(name for name, value in DTYPES.items() if value == self.reference.dtype)
        options = {"priors": self.priors, "formulas": self.formulas}
        known = {"dtype": dtype} | {name: None if own is None else own.as_config() for name, own in options.items()}
        return self._config | known | ({"own_networks": self._own} if self._own else {})

    @classmethod
    def from_config(cls, config: dict, tensors: dict[str, Tensor]) -> IOHMM:
        if config.get("own_networks"):
            raise ValueError(
                f"this model has {', '.join(config['own_networks'])} networks of its user's, which a folder does not hold; "
                "build the model as it was built and call its load_weights(folder)"
            )
        return cls(**config)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        named = {"initial": "initial_network", "transition": "transition", "emission": "emission"}
        own = {named[part]: getattr(self.network(part), "module", self.network(part)) for part in self._own}
        known = {name: value for name, value in self.config.items() if name != "own_networks"}
        return known | {"hidden": known["hidden"] or ()} | own

    def load_weights(self, folder) -> IOHMM:
        """Reads the parameters of a folder that a model built the same way saved; for networks of your own."""
        from pplseq.models.storage import MODEL, check_finite

        header, tensors, *_ = MODEL.read(folder)
        check_finite(tensors, folder)
        if header.get("model") != self.name or header.get("config") != self.config:
            raise ValueError(
                f"{folder}: holds a model built in another way; build this one with its options: {header.get('config')}"
            )
        self.load_state_dict(tensors)
        return self

    # ---------------------------------------------------------------- the program
    def specs(self, first: Tensor | None = None, *, partly: bool = False, sized: bool = False) -> tuple[Transition, Emission]:
        """Transition and emission: of the module's parameters, or with priors drawn at their sites.

        Args:
            first: (B[, U]) inputs of the start distribution, where it sees some.
            partly: whether some vectors lack some of their dimensions. sized: whether trials or exposures of steps are told.
        """
        weights, network = self._draw_weights(), self.network("transition")
        move = network.prepare(weights["transition_network"], lambda x: masked_log_softmax(x, self.graph))
        if self.initial == "stationary":
            transition = DenseTransition.stationary(move())
            return transition, self._emission(weights, partly, sized)
        prepare = self.network("initial").prepare
        start = prepare(weights["initial_network"], lambda x: masked_log_softmax(x, self.start_states))(first)
        if network.kind == "constant":
            transition = DenseTransition(start, move())
        else:
            transition = StepTransition(start, move, self.num_states, network.input_dims, self.reference.device)
        return transition, self._emission(weights, partly, sized)

    def _emission(self, weights: Mapping[str, Mapping[str, Tensor]], partly: bool, sized: bool) -> Emission:
        if self.outputs == "states":  # the target is the state
            return CategoricalEmission(torch.eye(self.num_states).to(self.reference).log())
        network, noise = self.network("emission"), self.noise

        def build(logits: Tensor, *sizes: Tensor) -> Emission:
            if self.outputs == "categorical":
                return CategoricalEmission(logits)
            emission = BernoulliEmission(logits) if noise is None else noise.emission(logits, weights["noise"], *sizes)
            return CoordinateEmission(emission) if partly else emission

        scale = (lambda x: torch.log_softmax(x, -1)) if self.outputs == "categorical" else (lambda x: x)
        output = network.prepare(weights["emission_network"], scale)
        if sized:
            symbols = network.kind != "constant" and not network.input_dims

            def build_sized(both: Tensor) -> Emission:
                seen, sizes = apart(both, self.num_outputs, symbols)
                return build(output() if network.kind == "constant" else output(seen), sizes)

            return ConditionalEmission(build_sized, self.num_states, event_shape=(self.num_outputs,))
        if network.kind == "constant":
            return build(output())
        support = BernoulliEmission.support_constraint if self.outputs == "bernoulli" else None
        words, event = (self.num_outputs, ()) if self.format.discrete else (None, (self.num_outputs,))
        return ConditionalEmission(
            lambda v: build(output(v)), self.num_states, input_dims=network.input_dims, support=support, num_words=words,
            event_shape=event,
        )  # fmt: skip

    @one_chain
    def model(
        self,
        x: Tensor | None = None,
        lengths: Tensor | None = None,
        start: Belief | None = None,
        *,
        inputs: Inputs = None,
        states: Tensor | None = None,
        previous: Tensor | None = None,
        **sizes: Unpack[Sizes],
    ):
        """The generative program.

        Args:
            x: (B, T) integers, ``MISSING`` (-1) where there is no target, or (B, T, D) vectors, NaN in dimensions that
                have none; None to generate as many as the inputs or sizes say.
            lengths: (B,) valid steps, or None for all.
            start: the belief that the previous segment ended with.
            inputs: (B, T, U), (B, T), or a mapping from parts to such.
            states: (B, T) observed states, negative where unknown.
            previous: (B[, D]) the outputs before the first step, where they are fed back and known.
            **sizes: how much to generate, or what a mini-batch stands for: :class:`~pplseq.models.base.Sizes`.
        """
        given, see, (transition, emission), z = self._told(x, lengths, start, inputs, states, previous, sizes)
        before = None
        with given.plate:
            for t in markov(given.steps, vectorize=not see.feeding):
                with given.valid(t):
                    u, v = see("transition", t, before), see("emission", t, before)
                    z = pyro.sample(f"z_{t}", transition(z, inputs=u), obs=given.state(t))
                    with given.seen(t):
                        before = pyro.sample(f"x_{t}", emission(z, inputs=v), obs=given.value(t))
        return x

    def _told(self, x, lengths, start, inputs, states, previous, sizes):
        """What the program was called with, what its networks see, the two specs, and the belief before the first step."""
        if x is None and inputs is not None:  # they say how much is generated
            rows = next(iter(self.format.check_inputs(inputs, None, lengths).values())).shape
            sizes = sizes | {"num_sequences": rows[0], "num_steps": rows[1]}
        if start is not None and self.feedback and previous is None:
            raise ValueError(
                "start: a row that goes on needs the output before it, which is fed back: previous=; or give the whole row"
            )
        given = self.given(x, lengths, start, states=states, **sizes)
        see = Sight(self.format, given, inputs, previous)
        transition, emission = self.specs(
            see.first, partly=x is not None and self.format.partly_missing(x), sized=see.sizes is not None
        )
        if start is None and self.initial == "transition":
            start = Belief(None, transition.initial_log_prob().expand(given.shape[0], self.num_states))
        return given, see, (transition, emission), start

    def _direct_chain(self, x, lengths=None, start=None, *, inputs=None, states=None, previous=None, **sizes) -> Chain | None:
        if not self._is_one_chain:
            return None
        given, see, specs, start = self._told(x, lengths, start, inputs, states, previous, sizes)
        seen = (see(part, slice(None), None) for part in ("transition", "emission"))
        return given.chain(*specs, start, *seen)

    def _direct_draw(self, *, start=None, inputs=None, states=None, previous=None, **sizes) -> tuple[Tensor, Tensor] | None:
        if not self._is_one_chain:
            return None
        given, see, (transition, emission), z = self._told(None, None, start, inputs, states, previous, sizes)
        return given.draw(
            lambda z, t, x: transition(z, inputs=see("transition", t, x)),
            lambda z, t, x: emission(z, inputs=see("emission", t, x)),
            z,
        )

    # ---------------------------------------------------------------- fit
    @undisturbed
    def fit(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, lengths=None, *, inputs=None, states=None, method: str | None = None,
        num_restarts: int | RestartBlock | Sequence[RestartBlock | Mapping] = 1, select: str = "likelihood",
        validation: Any = None, early_stop: int | None = None, warm_start: bool = False,
        batch_size: int | None = None, seed: int | None = None, folder: str | Path | None = None,
        resume: bool = False, max_time: float | None = None, progress: bool = False,
        on_record: Callable[[dict[str, Any]], None] | None = None, cluster: Any = None, fixed: str | Sequence[str] = (),
        bounds: Mapping[str, Any] | None = None, trials=None, exposure=None, **options,
    ) -> Self:  # fmt: skip
        """Fits the parameters to data; ``history`` says afterwards how it went, ``history.restarts`` of every restart.

        Args:
            x, lengths, inputs: the data; targets may be missing anywhere, or given at the last step only.
            states: observed states like x, negative where unknown.
            method: "em" (exact for tables, generalised linear models and Gaussians, a few gradient steps an iteration for
                networks with layers; with priors: maximum a posteriori), "gem" (gradient steps for all), "sgd" (Adam, on
                mini-batches of ``batch_size`` sequences), or, with priors, "svi" (``history.guide``) and "nuts"
                (``history.samples``).
            num_restarts: how many random starts; or :class:`RestartBlock` (or mappings of its arguments), one a block of
                starts with settings of its own. All are fitted as one batch.
            select: which one the model keeps: "likelihood", "validation", "bic" or "smallest_consistent"; see
                :func:`~pplseq.models.iohmm.restarts.choice.choose_restart`. To choose among sizes see :meth:`fit_sizes`.
            validation, early_stop: see :meth:`~pplseq.models.estimator.Estimator.fit`; of "gem" too. Every restart keeps its
                parameters of the iteration that was best on held-out data, and stops by itself; ``select`` is among these, and
                ``history`` is of the restart that it chose.
            warm_start: start from the parameters as they are; then there is one start.
            batch_size: sequences of a mini-batch of "sgd", "svi"; None for all.
            seed: makes the fit repeatable; None draws from torch's generator.
            folder: of a run: checkpoints ``last/`` and ``best/``, and ``metrics.jsonl``; Ctrl-C and SIGTERM leave a checkpoint.
            resume: go on where the run in the folder stopped, to the numbers it would have come to; give the same arguments.
            max_time: seconds, over all resumptions; the choice is then among what the restarts have come to, and
                ``history.reason`` is "max_time". progress: show a bar. on_record: called with the record of every iteration.
            cluster: an address as of :func:`pplseq.runs.cluster.connected`, whose workers fit the restarts of "em" and "gem".
            fixed: parts that keep their parameters: "initial", "transition", "emission", "noise" (covariances, dispersions).
                Those none of whose parameters has ``requires_grad`` are held as well; what is held is not in
                ``num_free_parameters``.
            bounds: of weights of networks, by their names among ``named_parameters()``, pairs (low, high) between which they
                stay in a fit by "sgd", as of effects whose sign is known. Each end a number, None for no bound, or an array
                that broadcasts to the weight, such as [[0.0], [-inf]] for one input and the constant behind it:
                {"emission_network.weight": ([[0.0], [-inf]], None)}.
            trials, exposure: of each step, of "binomial" columns, and of "poisson" and "negative_binomial" ones (those with
                zeros of their own too): (B, T), (T,) or lists as x is one, or a number.
            **options: ``device``, to which the model moves first; max_iterations (100) and tolerance (1e-5 nats per step) of
                "em" and "gem"; num_steps and lr of "sgd" and "svi"; those of
                :func:`~pplseq.infer.fit.gradients.fit_variationally` and ``sample_parameters``.

        Returns:
            The model itself.

        Raises:
            ValueError, TypeError: for bad data or options; ArithmeticError where every restart collapsed.

        Warns:
            RuntimeWarning: where the likelihood of restarts broke, about empty states and floors of the chosen one, and about
                inputs far from 0 or from deviation 1 where the fit depends on their units: all but EM's formulas do.
        """
        warm_start, resume = checks.flag("warm_start", warm_start), checks.flag("resume", resume)
        self.to(checks.device(options.pop("device", self.reference.device)))
        plan = FitPlan.of(self, METHODS[0] if method is None else method, num_restarts, select, warm_start, batch_size, options)
        if validation is None and select == "validation":
            raise ValueError("validation: select='validation' needs held-out data; got None")
        boxes = self._bounds_by({} if bounds is None else bounds, plan.method)
        plan = plan._replace(folder=folder, resume=resume, max_time=max_time, cluster=cluster, boxes=boxes)
        plan = plan._replace(early_stop=early_stop, progress=checks.flag("progress", progress), on_record=on_record)
        with self._naming(x, bool(warm_start or resume), inputs, states, [trials, exposure]):
            self._sized_by = self._sized_by if warm_start or resume else None
            sizes = {name: value for name, value in (("trials", trials), ("exposure", exposure)) if value is not None}
            batch = with_steps(self._as_batch(x, lengths, states=states, inputs=inputs, **sizes))
            self._sized_by = tuple(sizes) or None
            held_out = held_out_data(self, x, plan.method, validation, early_stop, FITTERS)
        parts = {name.removesuffix("_network"): part for name, part in self.parts.items()}
        names = [fixed] if isinstance(fixed, str) else list(fixed)
        if unknown := [name for name in names if name not in parts]:
            raise ValueError(f"fixed: no part {str(unknown[0])[:40]!r}.{checks.nearest(str(unknown[0]), parts)}")
        if isinstance(fixed, Mapping) and not all(mask is True for mask in fixed.values()):
            raise ValueError("fixed: an IOHMM holds parts whole, {name: True}")
        if both := [name for name in boxes if name.partition("_network")[0] in names]:
            raise ValueError(f"bounds: {both[0]!r} is of a part that is held; leave it out, or the part out of fixed=")
        if not resume:
            self._check_set([(name, own) for name in names for own in parts[name].parameters()], self._random_parameters)
        if held_out is not None and not resume:
            held_out.check()
        with seeded(seed), holding([(Slot(own), None) for name in names for own in parts[name].parameters()]):
            self.fixed_parameters, self._bounds = frozenset(names), told_bounds(bounds or {})
            self.train(plan.method == "svi")  # where steps draw dropout; those of restarts say themselves when they do
            vars(self)["history"] = fit_model(self, batch, held_out, plan)  # no submodule, though it may hold a guide
        self.is_fitted = True
        return self.eval()

    @classmethod
    def fit_sizes(
        cls, sizes: Sequence[int], x, lengths=None, *, model: Mapping, select: str = "bic",
        folder: str | Path | None = None, resume: bool = False, **fit,
    ) -> IOHMM:  # fmt: skip
        """Models of several sizes, of which the best is kept: by BIC, validation data, or the smallest that is consistent.

        Args:
            sizes: numbers of states; for "smallest_consistent" they are tried in this order until one is consistent.
            x, lengths: the data. model: options of the model beside ``num_states``. select, **fit: see :meth:`fit`.
            folder: of a run for each size, ``folder/3`` and the like; with ``resume`` those that are there are gone on with.

        Returns:
            The fitted model; its ``history.sizes`` holds (size, score) of every size tried.

        Raises:
            ValueError: for "likelihood", which larger models always win, and for no sizes.
        """
        if select == "likelihood":
            raise ValueError("select: the likelihood grows with the size; use 'bic', 'validation' or 'smallest_consistent'")
        if not len(sizes):
            raise ValueError("sizes must hold at least one number of states, got none")
        fitted: list[tuple[IOHMM, RestartHistory]] = []
        for size in sizes:
            run = {}
            if folder is not None:
                place = Path(folder) / str(size)
                run = {"folder": place, "resume": resume and whole_folder(place / "last").exists()}
            candidate = cls(size, **model).fit(x, lengths, select=select, **run, **fit)
            if not isinstance(candidate.history, RestartHistory):
                raise ValueError("method: only those with restarts compare sizes: 'em', 'gem' or 'sgd'")
            fitted.append((candidate, candidate.history))
            if select == "smallest_consistent" and candidate.history.restarts.score == 1:
                break
        best, history = max(fitted, key=lambda one: one[1].restarts.score)
        history.sizes = [(one.num_states, each.restarts.score) for one, each in fitted]
        return best
