"""What all models share: the program run under their messenger, posteriors, folders on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

import pyro
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.state import MISSING, Belief, Emission, Transition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.kernels.precision import exact_products
from pplseq.threads import alone

if TYPE_CHECKING:
    from pplseq.data.clusters import Clusters
    from pplseq.data.vocabulary import Vocabulary
    from pplseq.infer.fit.em import Batch
    from pplseq.infer.gaussian.chain import GaussianChain


class NoChain(RuntimeError, AttributeError):
    """A model was asked for the chain of its last call before it was called."""


class Sizes(TypedDict, total=False):
    """How much is generated, or how much data stand for.

    num_sequences, num_steps: of what is generated where no observations are given.
    num_total: sequences that the given ones stand for: the log-likelihood of a mini-batch is scaled up to them.
    """

    num_sequences: int | None
    num_steps: int | None
    num_total: int | None


class Given:
    """Lets a program be written as its story; a model makes one with :meth:`~pplseq.models.base.SequenceModel.given`.

    A step t is an integer, or what :func:`pplseq.markov` yields for all steps at once.

    Args:
        shape: (B, T).
        x: (B, T[, n]) the observations as they were given, or None to generate.
        values: x with something harmless where it is missing, or None to generate.
        observed: (B, T), or (B, T, n) where vectors may be seen in part: False where x is missing.
        lengths: (B,) valid steps of each row, or None for all.
        states: (B, T) known states, negative where unknown, or None.
        num_total: sequences that the B rows stand for, or None.

    Attributes:
        inputs: (B, T[, U]) what the program depends on besides, or None.
        first: (B,) the observation before the first one, for a program whose steps depend on the one before; or None.

    Example::

        given = self.given(x, lengths, start, states=states, **sizes)
        transition, emission = self.specs()
        z = start
        with given.plate:
            for t in markov(given.steps):
                with given.valid(t):
                    z = pyro.sample(f"z_{t}", transition(z), obs=given.state(t))
                    with given.seen(t):
                        pyro.sample(f"x_{t}", emission(z), obs=given.value(t))
    """

    def __init__(
        self,
        shape: tuple[int, int],
        x: Tensor | None = None,
        values: Tensor | None = None,
        observed: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        states: Tensor | None = None,
        num_total: int | None = None,
    ):
        self.shape, self.x, self.lengths, self.states, self.num_total = shape, x, lengths, states, num_total
        self.inputs: Tensor | None = None
        self.first: Tensor | None = None
        self._values, self._before = values, None
        self._seen, self._observed = observed, None
        if checks.WHOLE.get():
            self._seen = None
        elif observed is not None and observed.dim() > 2:
            self._seen = observed.any(-1)
            self._observed = observed if bool((self._seen & ~observed.all(-1)).any()) else None
        if self._seen is not None and bool(self._seen.all()):
            self._seen = None  # a mask that says nothing is left out

    @property
    def generates(self) -> bool:
        """Whether observations are drawn instead of given."""
        return self.x is None

    @property
    def missing(self) -> Tensor | None:
        """(B, T) where nothing was observed; None where something was everywhere."""
        return None if self._seen is None else ~self._seen

    @property
    def plate(self) -> pyro.plate:
        """The plate of the sequences."""
        rows = self.shape[0]
        if self.num_total in (None, rows):
            return pyro.plate("sequences", rows, dim=-1)
        return pyro.plate("sequences", self.num_total, subsample=torch.arange(rows), dim=-1)

    @property
    def steps(self) -> range:
        return range(self.shape[1])

    def is_step(self, t) -> Tensor | None:
        """(B,) whether a row has step t; None where all have."""
        return None if self.lengths is None else t < self.lengths

    def is_seen(self, t) -> Tensor | None:
        """(B,) whether there is an observation; None where there is one everywhere."""
        return None if self._seen is None else self._seen[:, t]

    def valid(self, t):
        """A context in which padded steps are masked: neither their state nor their observation counts."""
        return _masked(self.is_step(t))

    def seen(self, t):
        """A context in which missing observations are masked."""
        return _masked(self.is_seen(t))

    def state(self, t) -> Tensor | None:
        """(B,) known states, negative where unknown; None where none is known."""
        return None if self.states is None else self.states[:, t]

    def value(self, t) -> Tensor | None:
        """(B[, n]) the observation, anything where it is missing; None to generate it."""
        return None if self._values is None else self._values[:, t]

    def coordinates(self, t) -> Tensor | None:
        """(B, n) which coordinates of a vector are observed; None where every vector is seen whole or not at all."""
        return None if self._observed is None else self._observed[:, t]

    def input(self, t) -> Tensor | None:
        """(B[, U]) the input of a step."""
        return None if self.inputs is None else self.inputs[:, t]

    def before(self, t, generated: Tensor | None = None) -> Tensor | None:
        """(B,) the observation before step t, or what the program has ``generated`` last; None where nothing depends on it."""
        if self.first is None:
            return None
        if self.x is None:
            return self.first if generated is None else generated
        if self._before is None:
            self._before = torch.cat([self.first.unsqueeze(1), self.x[:, :-1]], 1)
        return self._before[:, t]

    def chain(self, transition, emission, start: Belief | None = None, inputs=None, emission_inputs=None) -> Chain:
        """The chain that a program like the example leaves under its messenger; inputs: (B, T[, U]) of both, or None."""
        valid = None
        if self.lengths is not None:
            valid = torch.arange(self.shape[1], device=self.lengths.device).unsqueeze(-1) < self.lengths
        parts = self._values, self._seen, self.states, inputs, emission_inputs
        obs, seen, states, inputs, emission_inputs = [None if part is None else part.transpose(0, 1) for part in parts]
        assert obs is not None, "a chain is that of observations"
        return build_chain(
            transition, emission, obs, valid=valid, seen=seen, states=states, start=start, inputs=inputs,
            emission_inputs=emission_inputs,
        )  # fmt: skip

    def draw(self, move: Callable[..., Any], emit: Callable[..., Any], start: Any = None) -> tuple[Tensor, Tensor]:
        """States and observations (B, T, ...), as a program like the example draws them; nothing of Pyro is asked.

        Args:
            move: (state before, step, observation before) -> the distribution of the state. emit: (state, step, observation
                before) -> that of the observation. start: what stands for the state before the first one.
        """
        z, x, found = start, None, []
        for t in self.steps:
            known = self.state(t)
            now = move(z, t, x).expand(self.shape[:1]).sample() if known is None else known
            z, x = now, emit(now, t, x).expand(self.shape[:1]).sample()
            found.append((z, x))
        states, observations = (torch.stack(parts, 1) for parts in zip(*found, strict=True))
        return states, observations


def one_chain(program):
    """Marks a ``model()`` that is the example of :class:`Given`, so that its chain can be built without running it.

    Each step draws z_t by one transition, which may depend on ``given.before(t)``, and x_t by one emission, which may depend on
    ``given.input(t)``. A subclass with a program of its own loses the mark, as the mark is the function's; so does what
    ``functools.wraps`` makes of it, which only copies the mark.
    """
    program.one_chain = program
    return program


def first_parameter(module: nn.Module) -> Tensor | None:
    """The first of a module's parameters, if any; reading one by name would tell Pyro that it is used."""
    for own in module._parameters.values():  # the generators of torch cost more than a small answer
        if own is not None:
            return own
    for part in module._modules.values():
        if part is not None and (own := first_parameter(part)) is not None:
            return own
    return None


def in_training(module: nn.Module) -> list[nn.Module]:
    """The module and its parts, as far as they are in training."""
    return [part for part in module.modules() if part.training]


def _looks_at_mode(part: nn.Module) -> bool:
    """Whether a part may do something else in training: parts of this library ask :attr:`SequenceModel._is_learning`."""
    kind, forward = type(part), getattr(type(part).forward, "__code__", None)
    if kind.__module__.startswith("pplseq."):
        return False
    return not kind.__module__.startswith(("torch.nn.", "pyro.nn.")) or forward is None or "training" in forward.co_names


def _set_mode(part: nn.Module, training: bool) -> None:
    """Sets whether a part alone is in training."""
    if type(part).train is nn.Module.train:
        vars(part)["training"] = training
    else:
        part.train(training)


AT_POINT: ContextVar[bool] = ContextVar("parameters as they stand, instead of drawn from their priors", default=False)
AT_TEST: ContextVar[bool] = ContextVar("without dropout, for a question", default=False)
GOES_ON: ContextVar[dict[str, Any] | None] = ContextVar("what rows go on from: the belief, and what is fed back", default=None)


@contextlib.contextmanager
def said(*of: ContextVar[bool]) -> Iterator[None]:
    """A block, of this thread alone, in which these are True."""
    tokens = [(each, each.set(True)) for each in of]
    try:
        yield
    finally:
        for each, token in tokens:
            each.reset(token)


def _masked(mask: Any):
    return poutine.mask(mask=True if mask is None else mask)


class SequenceModel(checks.NamedArguments, PyroModule):
    """A generative program over sequences.

    Subclasses write :meth:`model`, the program, and :attr:`config`, what rebuilds the object. Calling the object runs the
    program under its :attr:`messenger`, which sums out the hidden states, so it can be given to ``SVI`` or an ``ELBOModule``
    as it is; the program itself, ``self.model``, can be given to any of Pyro's own handlers.
    """

    name: ClassVar[str]
    num_states: int
    num_words: int | None
    _word_of_none: ClassVar[int] = MISSING  # what is read of rows without steps, whose answers are then those of the start
    messenger: ClassVar[type] = BlockedEnum  # KalmanCollapse where states are Gaussian
    vectorize: bool = True
    vocabulary: Vocabulary | None = None  # of a model of words, saved with it
    clusters: Clusters | None = None  # of its words, where they have blocks
    specs: ClassVar[Callable[..., Any]]  # a method: transition and emission with the current parameters

    def model(self, x=None, lengths=None, start=None):
        """The generative program."""
        raise NotImplementedError

    # ---------------------------------------------------------------- what a program is given
    def _check_observations(self, x: Tensor) -> None:
        """Raises unless x holds observations of the model's kind, or marks of missing ones; here: words."""
        checks.words(x, self.num_words or 0)

    def _check_rows(self, x: Tensor, lengths: Tensor | None) -> None:
        """:meth:`_check_observations` of padded rows, whose vectors behind their ends may be anything; and of lengths."""
        inside = x
        padded = isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 3
        if padded and isinstance(lengths, Tensor) and lengths.shape == x.shape[:1] and bool((lengths > 0).any()):
            some = x[lengths > 0][:, :1]  # of a row without steps the first of others
            first = torch.where((lengths > 0)[:, None, None], x[:, :1], some[:1])
            ended = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(-1)
            inside = torch.where(ended.unsqueeze(-1), first, x)
        self._check_observations(inside)
        checks.lengths(lengths, x)

    @property
    def _num_observable_states(self) -> int:
        """How many states ``states`` tells apart: those of the chain, or its regimes, of which a chain has several states."""
        return self.num_states

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x with something harmless where it is missing, and where it is not: (B, T), or (B, T, n) of vectors seen in part."""
        return x.clamp_min(0), x != MISSING

    def _check_start(self, start, num_rows: int) -> None:
        """Raises unless start is None or a belief over the model's states."""
        checks.start(start, num_rows, self.num_states)

    def given(
        self,
        x: Tensor | None,
        lengths: Tensor | None = None,
        start=None,
        *,
        states: Tensor | None = None,
        num_sequences: int | None = None,
        num_steps: int | None = None,
        num_total: int | None = None,
    ) -> Given:
        """What the program was called with, checked: see :class:`Given`.

        The numbers inside tensors are looked at, except by loops that have looked before (:func:`pplseq.checks.trusted`).

        Raises:
            TypeError, ValueError: for what the model cannot take; says what it takes.
        """
        if x is None:
            if num_steps is None:
                raise ValueError("num_steps: say how many steps to generate when x is None")
            num_sequences = 1 if num_sequences is None else num_sequences
            shape = checks.count("num_sequences", num_sequences), checks.count("num_steps", num_steps)
            if states is not None:
                checks.shape("states", states, shape)
            values = observed = None
        else:
            if not checks.TRUSTED.get():
                for name, value in (("x", x), ("lengths", lengths), ("states", states)):
                    if isinstance(value, Tensor):
                        checks.dense(name, value)
                self._check_rows(x, lengths)
                checks.states(states, x, self._num_observable_states)
            shape = x.shape[0], x.shape[1]
            values, observed = self.observed(x)
        if not checks.TRUSTED.get():
            self._check_start(start, shape[0])
        return Given(shape, x, values, observed, lengths=lengths, states=states, num_total=num_total)

    if TYPE_CHECKING:  # without this a checker takes any name at all for a parameter
        __getattr__: ClassVar[None]  # pyright: ignore[reportIncompatibleMethodOverride]
    else:

        def __getattr__(self, name: str):
            # a property raised AttributeError, for which Python asks here: what it said is kept
            own = getattr(type(self), name, None)
            return own.fget(self) if isinstance(own, property) and own.fget is not None else super().__getattr__(name)

    @property
    def config(self) -> dict:
        """Arguments that rebuild the model, JSON-able; tensors come from the state dict."""
        raise AttributeError(f"config: a {type(self).__name__} says no arguments that rebuild it; write a property config")

    @classmethod
    def from_config(cls, config: dict, tensors: dict[str, Tensor]) -> Self:
        """The model of a saved folder, before its parameters are loaded.

        Raises:
            ValueError: for tensors of something else.
        """
        return cls(**config)

    def forward(self, *args, **kwargs):
        # the handler is entered inside the module's call: see BlockedEnum.__call__
        handler = self.messenger(vectorize=self.vectorize, factor=not AT_TEST.get())
        frozen = [parameter for parameter in self.parameters() if not parameter.requires_grad]

        def run() -> Any:
            with handler:
                return self.model(*args, **kwargs)

        result = alone(run, own_store=False)
        for parameter in frozen:  # Pyro's store has made them learn
            parameter.requires_grad_(False)
        vars(self)["_chains"] = handler.chains
        return result

    @property
    def chain(self) -> Chain:
        """The chain (a ``GaussianChain`` under ``KalmanCollapse``) of the last call.

        Raises:
            NoChain: before any call; a RuntimeError, and an AttributeError, as a model has none then.
        """
        chains = vars(self).get("_chains")
        if not chains:
            raise NoChain("no chain yet: call the model (or posterior) on observations first")
        return next(iter(chains.values()))

    @property
    def _is_learning(self) -> bool:
        """Whether it is in training, and this is no question: what is left out in training is left out."""
        return self.training and not AT_TEST.get()

    def posterior(self, x: Tensor, lengths: Tensor | None = None, start: Belief | None = None, **known) -> Chain:
        """The chain of observations under the model at test: no dropout, no gradients.

        Args:
            x: (B, T[, D]) observations; ``MISSING`` (-1) for a missing word, NaN for a missing vector.
            lengths: (B,) valid steps of each row, or None.
            start: the belief at the end of the previous segment, or None.
            **known: what else the program takes.
        """
        if x is None:
            raise checks.no_sequences("x", x)
        at = x, lengths, start
        with said(AT_POINT, AT_TEST), torch.no_grad(), exact_products():
            others = _looks_at_mode(self) or self.training and any(map(_looks_at_mode, in_training(self)))
            chain: Any = None if others else self._direct_chain(*at, **known)  # a Chain, but where a model says otherwise
            if chain is None:
                return alone(lambda: self._chain_at_test(others, *at, **known))
            chain.prepare()  # parameters are read here, without their gradients
            return chain

    def _chain_at_test(self, others: bool, *at, **known) -> Any:
        """The chain by running the program, or of a model with parts that may do something else in training: those of others
        can be told by nothing but the mode that all threads see."""
        parts = [part for part in in_training(self) if _looks_at_mode(part)]
        try:
            for part in parts:
                _set_mode(part, False)
            chain: Any = self._direct_chain(*at, **known) if others else None
            if chain is not None:
                chain.prepare()
                return chain
            with poutine.block():
                self(*at, **known)
            return vars(self).pop("_chains").popitem()[1]
        finally:
            for part in parts:
                _set_mode(part, True)

    @property
    def _is_one_chain(self) -> bool:
        """Whether a call would run a program that is marked with :func:`one_chain`, and nothing beside it."""
        program = getattr(self.model, "__func__", None)
        if not self.vectorize or program is None or getattr(program, "one_chain", None) is not program:
            return False
        if getattr(self.model, "__self__", None) is not self:  # the program of another model, lent to this one
            return False
        if self._forward_pre_hooks or self._forward_hooks or "forward" in vars(self):
            return False
        # whose program it is knows its call and its messenger; those of a subclass may do anything
        owner = next(kind for kind in type(self).__mro__ if vars(kind).get("model") is program)
        return type(self).forward is owner.forward and self.messenger is owner.messenger

    def _direct_chain(self, x: Tensor, lengths: Tensor | None = None, start=None, **known) -> Chain | GaussianChain | None:
        """The chain that :attr:`chain` is after a call, gradients included, without running the program.

        Training, EM, evaluation and all questions take this way where there is one.

        Args:
            x, lengths, start, **known: as the program takes them.

        Returns:
            None for a program that is not marked with :func:`one_chain`, and without ``vectorize``: run it.
        """
        if not self._is_one_chain:
            return None
        given = self.given(x, lengths, start, **known)
        return given.chain(*self._specs_given(given), start, given.before(slice(None)), given.inputs)

    def _direct_draw(self, **known) -> tuple[Tensor, Tensor] | None:
        """States and observations (B, T, ...) as the program draws them, without running it; None where it has to be run.

        Args:
            **known: as the program takes them, among them how much is drawn.
        """
        if not self._is_one_chain:
            return None
        given = self.given(None, **known)
        transition, emission = self._specs_given(given)
        return given.draw(
            lambda z, t, x: transition(z, inputs=given.before(t, x)), lambda z, t, x: emission(z, inputs=given.input(t))
        )

    def _chain_of_rows(self, batch: Batch) -> Any:
        """What :meth:`posterior` returns for a batch that was checked, by a shorter way; None where there is none."""
        return None

    def _chain_by_loops(self, x: Any) -> Any:
        """:meth:`_chain_of_rows` of data as they come, which are looked at here; None where anything is out of the ordinary."""
        return None

    def _specs_given(self, given: Given) -> tuple[Transition, Emission]:
        """:meth:`specs`, for a model in which they depend on what the program was called with."""
        return self.specs()

    def chain_of(self, batch: Batch) -> Any:
        """The chain of a batch that was checked, for EM; a model may have a shorter way to it than running its program."""
        with checks.trusted():
            chain = self._chain_of_rows(batch)
            return self.posterior(batch.x, batch.lengths, **batch.known) if chain is None else chain

    def log_prob(self, x: Tensor, lengths: Tensor | None = None, start: Belief | None = None, **known) -> Tensor:
        """(B,) log p(x) of each row, nats, -inf of one that is impossible; at test, as :meth:`posterior`."""
        chain: Any = self.posterior(x, lengths, start, **known)
        with chain.unchecked() if isinstance(chain, Chain) else contextlib.nullcontext():
            return chain.log_prob()

    def save(self, folder) -> Path:
        """Writes the model, its vocabulary and clusters as a folder; see :func:`pplseq.models.storage.save_model`."""
        from pplseq.models.storage import save_model

        return save_model(self, folder)

    @classmethod
    def load(cls, folder, device: str | torch.device = "cpu") -> Self:
        """Reads what :meth:`save` wrote; called on ``SequenceModel`` itself, a model of any kind.

        Raises:
            FileNotFoundError: if there is no model in the folder. ValueError: if it is damaged, or of another kind.
        """
        from pplseq.models.storage import read_model

        model = read_model(folder, device)
        if not isinstance(model, cls):
            raise ValueError(f"{folder}: holds a {type(model).__name__}, not a {cls.__name__}; pplseq.load reads any model")
        return model
