"""The input-output hidden Markov model: transitions, outputs and the start may depend on inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import pyro
import torch
from pyro import poutine
from torch import Tensor, nn

from pplseq.distributions.conditional import BernoulliEmission, ConditionalEmission, CoordinateEmission
from pplseq.distributions.dense import CategoricalEmission, DenseTransition, Emission, StepTransition, Transition
from pplseq.distributions.state import Belief
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.programs.markov import markov
from pplseq.models.base import SequenceModel
from pplseq.models.given import Sizes
from pplseq.models.hmm.emissions import COVARIANCES, like
from pplseq.models.hmm.program import DTYPES
from pplseq.models.iohmm.data import PARTS, Inputs, IOData, Sight
from pplseq.models.iohmm.fit import IOHMMFitting
from pplseq.models.iohmm.networks import GaussianNoise, WeightPriors, masked_log_softmax
from pplseq.models.iohmm.options import (
    PerPart,
    allowed_moves,
    allowed_starts,
    check_count,
    feedback_parts,
    input_sources,
    make_network,
    per_part,
    plain,
)
from pplseq.models.iohmm.parameters import SPREAD, IOParameters
from pplseq.models.iohmm.queries import IOHMMQueries

OUTPUTS = ("categorical", "bernoulli", "gaussian", "states")
INITIAL = ("constant", "inputs", "transition")


class IOHMM(IOHMMFitting, IOHMMQueries, IOParameters, IOData, SequenceModel):
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
            targets are the states themselves.
        mealy: whether outputs see inputs.
        graph: (Z, Z) bool, [from, to], which transitions are allowed; "left_right" for those to the same state and later
            ones, starting in state 0; None for all.
        start_states: states that a sequence may start in; None for all. One of them: a fixed start.
        initial: "constant": z_1 ~ start distribution; "inputs": it depends on u_1; "transition" (the paper's): a state z_0 ~
            start distribution moves with u_1 to z_1, z_1 ~ sum_j start_j transition(j, u_1).
        hidden: sizes of the hidden layers of networks that see inputs, or a mapping from parts to such; () for none.
        covariance: of "gaussian" outputs: "diag", "full", "tied" (one full matrix for all states) or "spherical".
        covariance_floor: smallest variance EM may give a state in any direction.
        feedback: join the output before each step to the inputs: True, "transition" or "emission"; see
            :meth:`~pplseq.models.iohmm.data.IOData.join`.
        transition, emission, initial_network: torch modules of your own for a part: one step's inputs (*B, U), or symbols
            (*B,), to logits (*B, Z, Z), (*B, Z, V or D) (means of "gaussian" outputs) or (*B, Z).
        priors: :class:`~pplseq.models.iohmm.networks.WeightPriors`, a mapping of its arguments, True, or None. With priors the
            program draws weights at sites such as "transition_network.weight".
        dtype: "float64" (what EM and NUTS want) or "float32".

    Raises:
        ValueError: for sizes or options that do not fit together, or a graph with a dead end.

    Example::

        model = IOHMM(3, num_inputs=2, outputs="gaussian", num_outputs=1)
        model.fit(outputs, inputs, method="em")
        model.predictive(outputs, inputs).outputs

    Source: Y. Bengio and P. Frasconi (1995), An input output HMM architecture, sections 2 and 3.
    """

    name = "iohmm"
    num_words = None

    def __init__(
        self,
        num_states: int,
        *,
        num_inputs: PerPart = None,
        num_symbols: PerPart = None,
        outputs: str = "categorical",
        num_outputs: int | None = None,
        mealy: bool = False,
        graph: Tensor | str | None = None,
        start_states: Sequence[int] | None = None,
        initial: str = "constant",
        hidden: Sequence[int] | Mapping[str, Sequence[int]] = (),
        covariance: str = "diag",
        covariance_floor: float = 1e-3,
        feedback: bool | str = False,
        transition: nn.Module | None = None,
        emission: nn.Module | None = None,
        initial_network: nn.Module | None = None,
        priors: WeightPriors | Mapping | bool | None = None,
        dtype: str = "float64",
    ):
        super().__init__()
        check_count("num_states", num_states)
        for option, value, choices in (
            ("outputs", outputs, OUTPUTS), ("initial", initial, INITIAL), ("covariance", covariance, COVARIANCES),
            ("dtype", dtype, tuple(DTYPES)),
        ):  # fmt: skip
            if value not in choices:
                raise ValueError(f"{option} must be one of {', '.join(choices)}; got {value!r}")
        if outputs == "states":
            if num_outputs not in (None, num_states) or mealy or emission is not None:
                raise ValueError("outputs='states': targets are the states; leave num_outputs, mealy and emission out")
            num_outputs = num_states
        if num_outputs is None:
            raise ValueError(f"num_outputs: say how many symbols, or dimensions, {outputs} outputs have; got None")
        check_count("num_outputs", num_outputs)
        if not covariance_floor > 0:
            raise ValueError(f"covariance_floor must be positive, got {covariance_floor}")
        self.num_states, self.num_outputs, self.outputs = int(num_states), int(num_outputs), outputs
        self.mealy, self.initial, self.covariance = bool(mealy), initial, covariance
        self.covariance_floor = float(covariance_floor)
        self.priors = WeightPriors.of(priors)
        self.sources = input_sources(initial, self.mealy, num_inputs, num_symbols)
        self.feedback = feedback_parts(outputs, self.sources, feedback)
        if graph == "left_right" and start_states is None:
            start_states = [0]
        self.register_buffer("graph", allowed_moves(graph, self.num_states), persistent=False)
        self.register_buffer("start_states", allowed_starts(start_states, self.num_states), persistent=False)
        own = {"initial": initial_network, "transition": transition, "emission": emission}
        self._own = [part for part in PARTS if own[part] is not None]
        hidden = {part: tuple(sizes) for part, sizes in per_part("hidden", hidden, Sequence).items()}
        shapes = {
            "initial": (self.num_states,), "transition": (self.num_states, self.num_states),
            "emission": (self.num_states, self.num_outputs),
        }  # fmt: skip
        real = DTYPES[dtype]
        for part, shape in shapes.items():
            network = None
            if part != "emission" or outputs != "states":
                source = self.sources[part]
                source = self.joined_source(source) if part in self.feedback else source
                network = make_network(part, source, shape, hidden.get(part, ()), own[part], real)
                if own[part] is None:
                    network.randomise(SPREAD)
            self.add_module(f"{part}_network", network)
        self.noise = (
            GaussianNoise(self.num_states, self.num_outputs, covariance, real) if outputs == "gaussian" else None
        )
        self._config = dict(
            num_states=self.num_states, num_inputs=plain(num_inputs), num_symbols=plain(num_symbols), outputs=outputs,
            num_outputs=None if outputs == "states" else self.num_outputs, mealy=self.mealy,
            graph=None if self.graph is None else self.graph.tolist(),
            start_states=None if start_states is None else [int(state) for state in start_states], initial=initial,
            hidden={part: list(sizes) for part, sizes in hidden.items()}, covariance=covariance,
            covariance_floor=self.covariance_floor, feedback=feedback,
        )  # fmt: skip
        self.__dict__["history"] = None  # of the last fit

    @property
    def config(self):
        dtype = next(name for name, value in DTYPES.items() if value == self.reference.dtype)
        priors = None if self.priors is None else self.priors.as_config()
        return self._config | {"dtype": dtype, "priors": priors} | ({"own_networks": self._own} if self._own else {})

    @classmethod
    def from_config(cls, config: dict, tensors: dict[str, Tensor]) -> IOHMM:
        """The model of a saved folder, before its parameters are loaded."""
        if config.get("own_networks"):
            raise ValueError(
                f"this model has {', '.join(config['own_networks'])} networks of its user's, which a folder does not hold; "
                "build the model as it was built and call its load_weights(folder)"
            )
        config = dict(config)
        graph = config.pop("graph")
        return cls(**config, graph=None if graph is None else torch.tensor(graph))

    def load_weights(self, folder) -> IOHMM:
        """Reads the parameters of a folder that a model built the same way saved; for networks of your own."""
        from pplseq.models.storage import MODEL

        header, tensors, *_ = MODEL.read(folder)
        if header.get("model") != self.name or header.get("config") != self.config:
            raise ValueError(
                f"{folder}: holds a model built in another way; build this one with its options: {header.get('config')}"
            )
        self.load_state_dict(tensors)
        return self

    @property
    def reference(self) -> Tensor:
        """An empty tensor of the model's type and device."""
        return like(self)

    # ---------------------------------------------------------------- the program
    def specs(self, first: Tensor | None = None, *, partly: bool = False) -> tuple[Transition, Emission]:
        """Transition and emission: of the module's parameters, or with priors drawn at their sites.

        Args:
            first: (B[, U]) inputs of the start distribution, where it sees some.
            partly: whether some vectors lack some of their dimensions.
        """
        weights, networks = self._weights(), self._networks()
        network = networks["initial_network"]
        start = network.prepare(weights["initial_network"], lambda x: masked_log_softmax(x, self.start_states))(first)
        network = networks["transition_network"]
        move = network.prepare(weights["transition_network"], lambda x: masked_log_softmax(x, self.graph))
        if network.kind == "constant":
            transition = DenseTransition(start, move())
        else:
            transition = StepTransition(start, move, self.num_states, network.input_dims, self.reference.device)
        if self.outputs == "states":  # the target is the state
            return transition, CategoricalEmission(torch.eye(self.num_states).to(self.reference).log())
        network = networks["emission_network"]

        def build(logits: Tensor) -> Emission:
            if self.outputs == "categorical":
                return CategoricalEmission(logits)
            bits = self.outputs == "bernoulli"
            emission = BernoulliEmission(logits) if bits else networks["noise"].emission(logits, weights["noise"])
            return CoordinateEmission(emission) if partly else emission

        scale = (lambda x: torch.log_softmax(x, -1)) if self.outputs == "categorical" else (lambda x: x)
        output = network.prepare(weights["emission_network"], scale)
        if network.kind == "constant":
            return transition, build(output())
        event = dict(num_words=self.num_outputs) if self.discrete else dict(event_shape=(self.num_outputs,))
        support = BernoulliEmission.support_constraint if self.outputs == "bernoulli" else None
        emission = ConditionalEmission(
            lambda v: build(output(v)), self.num_states, input_dims=network.input_dims, support=support, **event
        )
        return transition, emission

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
            **sizes: how much to generate, or what a mini-batch stands for: :class:`~pplseq.models.given.Sizes`.
        """
        if x is None and inputs is not None:  # they say how much is generated
            rows = next(iter(self.check_inputs(inputs, None, lengths).values())).shape
            sizes = sizes | {"num_sequences": rows[0], "num_steps": rows[1]}
        given = self.given(x, lengths, start, states=states, **sizes)
        see = Sight(self, given, inputs, previous)
        transition, emission = self.specs(see.first, partly=x is not None and self.partly_missing(x))
        z, before = start, None
        if start is None and self.initial == "transition":
            z = Belief(None, transition.initial_log_prob().expand(given.shape[0], self.num_states))
        with given.plate:
            for t in markov(given.steps, vectorize=not see.feeding):
                with given.valid(t):
                    u, v = see("transition", t, before), see("emission", t, before)
                    z = pyro.sample(f"z_{t}", transition(z, inputs=u), obs=given.state(t))
                    with given.seen(t):
                        before = pyro.sample(f"x_{t}", emission(z, inputs=v), obs=given.value(t))
        return x

    def posterior(
        self, x: Tensor, lengths: Tensor | None = None, start: Belief | None = None, *, inputs: Inputs = None, **options
    ) -> Chain:
        """The chain of observations at the point estimate; arguments as for :meth:`model`."""
        with self._at_point():
            return super().posterior(x, lengths, start, inputs=inputs, **options)

    def log_prob(
        self, x: Tensor, lengths: Tensor | None = None, start: Belief | None = None, *, inputs: Inputs = None, **options
    ) -> Tensor:
        """(B,) log p(x | inputs) of each row, nats, at the point estimate; arguments as for :meth:`model`."""
        return self.posterior(x, lengths, start, inputs=inputs, **options).log_prob()

    def log_joint(
        self, x: Tensor, lengths: Tensor | None = None, *, inputs: Inputs = None, states=None, share: float = 1.0
    ) -> Tensor:
        """log p(x | inputs) summed over rows plus ``share`` of the log prior, nats; differentiable in the weights.

        Its gradient is that of the expected complete-data log-likelihood (Fisher's identity): a step along it is the
        generalised EM step of networks whose M-step has no closed form.
        """
        with self._at_point(), poutine.block():
            self(x, lengths, inputs=inputs, states=states)
        # with its graph, a chain left behind would stand in the way of copies of the model
        chain = self.__dict__.pop("_chains").popitem()[1]
        return chain.log_prob().sum() + share * self.log_prior()
