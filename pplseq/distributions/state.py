"""The words a program is written in: symbolic states, carried beliefs and lazy conditional distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, constraints

from pplseq import checks


def broadcast_shapes(*shapes: torch.Size) -> torch.Size:
    """torch.broadcast_shapes, fast where all shapes are equal or empty (which it is a hundred times per batch)."""
    longest = max(shapes, key=len)
    if all(shape == longest or not shape for shape in shapes):
        return longest
    return torch.broadcast_shapes(*shapes)


def inside(support: constraints.Constraint, event_shape: tuple[int, ...] = ()) -> Tensor:
    """A point of a support that is at none of its ends, where densities and their gradients are finite."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    try:
        return torch.distributions.transform_to(support)(torch.zeros(event_shape))
    except NotImplementedError:  # of what is discrete
        return torch.full(event_shape, float(getattr(support, "lower_bound", 0)))


def looks() -> bool:
    """Whether numbers are checked: as Pyro's switch says, but in :func:`pplseq.checks.trusted`."""
    return bool(Distribution._validate_args) and not checks.TRUSTED.get()


class Conditional(TorchDistribution):
    """A distribution whose arguments are checked by who makes it, so that Pyro need not."""

    @property
    def arg_constraints(self):
        return {}


MISSING = -1
"""The word id that stands for a missing token."""


class StateVar:
    """The value of a discrete state site under ``BlockedEnum``: it knows which step of which chain it is, and no number.

    Pass it to a transition or an emission. Anything that would need its value raises TypeError.
    """

    __slots__ = ("chain", "index", "shape")

    def __init__(self, chain, index: int, shape: torch.Size):
        self.chain, self.index, self.shape = chain, index, torch.Size(shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None):
        return self.shape if dim is None else self.shape[dim]

    def __repr__(self) -> str:
        return f"StateVar(site={self.chain.name!r}, step={self.index}, shape={tuple(self.shape)})"

    def _refuse(self, operation: str):
        raise TypeError(
            f"a hidden state under BlockedEnum has no value, so it cannot be used {operation}; pass it to a transition "
            "or an emission, or mark its site infer={'support': ids} to have its values enumerated as a tensor"
        )

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        state = next(a for a in _flatten((args, kwargs or {})) if isinstance(a, StateVar))
        state._refuse(f"in tensor code ({getattr(func, '__name__', func)})")

    __hash__ = object.__hash__


def _flatten(value):
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flatten(item)
    else:
        yield value


def _refusing(name: str):
    def method(self, *args, **kwargs):
        self._refuse(f"as a number ({name})")

    return method


# without these `z == 3` would be False and `if z:` True, silently
_NUMBER_METHODS = """eq ne lt le gt ge bool int float complex index len iter contains getitem setitem add radd sub rsub mul
rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg pos abs invert and rand or ror xor rxor matmul rmatmul
array""".split()
for _name in _NUMBER_METHODS:
    setattr(StateVar, f"__{_name}__", _refusing(f"__{_name}__"))


class Belief(NamedTuple):
    """The filtered state at the end of a segment: what the next segment starts from.

    ids: (*B, K) the states it covers, or None for all Z states in their order. log_probs: (*B, K or Z) log p(z | x so far).
    last_observation: (*B,) the last word, where a transition depends on it (``MISSING`` if it was missing).
    """

    ids: Tensor | None
    log_probs: Tensor
    last_observation: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        return self.log_probs.shape[:-1]

    def map(self, change: Callable[[Tensor], Tensor]) -> Belief:
        """A belief of the parts of this one, changed; those that are None stay None."""
        ids, last = (None if part is None else change(part) for part in (self.ids, self.last_observation))
        return Belief(ids, change(self.log_probs), last)

    def detach(self) -> Belief:
        """The same belief without its history of gradients."""
        return self._replace(log_probs=self.log_probs.detach())

    def to(self, *args, **kwargs) -> Belief:
        """The belief on another device."""
        return self.map(lambda value: value.to(*args, **kwargs))

    def dense(self, num_states: int) -> Tensor:
        """(*B, Z) log-probabilities over all states."""
        if self.ids is None:
            return self.log_probs
        full = self.log_probs.new_full((*self.shape, num_states), -math.inf)
        # amax, since padded slots repeat a real id with log-probability -inf
        return full.scatter_reduce(-1, self.ids, self.log_probs, "amax")


def take_rows(table: Tensor, index: Tensor) -> Tensor:
    """table[..., index, :]: rows of a (*b, N, M) table for a (*B,) index, with b and B broadcast against each other."""
    if table.dim() == 2:
        return table[index]
    batch = broadcast_shapes(table.shape[:-2], index.shape)
    index = index.expand(batch)[..., None, None].expand(*batch, 1, table.shape[-1])
    return table.expand(*batch, *table.shape[-2:]).gather(-2, index).squeeze(-2)


def gather_last(rows: Tensor, value: Tensor) -> Tensor:
    """rows[..., value] with batch shapes broadcast."""
    shape = broadcast_shapes(rows.shape[:-1], value.shape)
    return rows.expand(*shape, rows.shape[-1]).gather(-1, value.expand(shape).unsqueeze(-1)).squeeze(-1)


def _rows_of(inputs: Tensor | None, input_dims: int) -> torch.Size:
    """The sequences' own shape in one step's inputs."""
    return torch.Size() if inputs is None else inputs.shape[: inputs.dim() - input_dims]


class StateCategorical(Conditional):
    """p(z_t | z_{t-1}[, inputs_t]) as (transition, previous state): nothing is computed until somebody asks.

    ``BlockedEnum`` asks the transition for a whole chain at once. Pyro's own machinery (forward sampling, parallel
    enumeration) asks for full rows, which is meant for small state spaces.
    """

    has_enumerate_support = True

    def __init__(self, transition, previous=None, inputs: Tensor | None = None, batch_shape=None):
        self.transition, self.previous, self.inputs = transition, previous, inputs
        if batch_shape is None:
            parts = [transition.batch_shape, _rows_of(inputs, transition.input_dims)]
            if previous is not None:
                parts.append(torch.Size(previous.shape))
            batch_shape = broadcast_shapes(*parts)
        super().__init__(torch.Size(batch_shape), torch.Size(), validate_args=False)

    @property
    def support(self):
        return constraints.integer_interval(0, self.transition.num_states - 1)

    def expand(self, batch_shape, _instance=None):
        shape = broadcast_shapes(self.batch_shape, torch.Size(batch_shape))
        return StateCategorical(self.transition, self.previous, self.inputs, shape)

    def enumerate_support(self, expand=True):
        values = torch.arange(self.transition.num_states, device=self.transition.device)
        values = values.reshape((-1,) + (1,) * len(self.batch_shape))
        return values.expand((-1, *self.batch_shape)) if expand else values

    def rows(self) -> Tensor:
        """(*batch_shape, Z) log-probabilities of the next state."""
        if isinstance(self.previous, Belief):
            belief, num_states = self.previous, self.transition.num_states
            ids = belief.ids
            if ids is None:
                ids = torch.arange(num_states, device=belief.log_probs.device).expand(belief.log_probs.shape)
            inputs = self.inputs
            if inputs is not None:
                inputs = inputs.unsqueeze(-1 - self.transition.input_dims)
            rows = self.transition.rows(ids, inputs)
            rows = torch.logsumexp(belief.log_probs.unsqueeze(-1) + rows, -2)
        else:
            rows = self.transition.rows(self.previous, self.inputs)
        return rows.expand(*broadcast_shapes(self.batch_shape, rows.shape[:-1]), rows.shape[-1])

    def sample(self, sample_shape=()):
        return torch.distributions.Categorical(logits=self.rows(), validate_args=False).sample(torch.Size(sample_shape))

    def log_prob(self, value):
        return gather_last(self.rows(), value)


class StateEmission(Conditional):
    """p(x_t | z_t[, inputs_t]) as (emission, state); see :class:`StateCategorical`."""

    def __init__(self, emission, state, inputs: Tensor | None = None, batch_shape=None):
        self.emission, self.state, self.inputs = emission, state, inputs
        if batch_shape is None:
            rows = _rows_of(inputs, getattr(emission, "input_dims", 0))
            batch_shape = broadcast_shapes(torch.Size(state.shape), emission.batch_shape, rows)
        super().__init__(torch.Size(batch_shape), emission.event_shape, validate_args=False)

    @property
    def support(self):
        return self.emission.support_constraint

    def expand(self, batch_shape, _instance=None):
        shape = broadcast_shapes(self.batch_shape, torch.Size(batch_shape))
        return StateEmission(self.emission, self.state, self.inputs, shape)

    def _distribution(self):
        given = () if self.inputs is None else (self.inputs,)
        base = self.emission.distribution(self.state, *given)
        return base.expand(broadcast_shapes(base.batch_shape, self.batch_shape))

    def sample(self, sample_shape=()):
        return self._distribution().sample(torch.Size(sample_shape))

    def log_prob(self, value):
        return self._distribution().log_prob(value)


class Transition:
    """What every transition offers. Calling it gives a lazy distribution for ``pyro.sample``.

    Attributes:
        num_states: Z.
        batch_shape: shape of a batch of parameter sets (outer enumeration, a plate of parameters); () for one set.
        input_dims: trailing dimensions of ``inputs`` that belong to one step (0 for a word, 1 for a feature vector).
    """

    num_states: int
    batch_shape: torch.Size = torch.Size()
    input_dims: int = 0
    device: torch.device

    def __call__(self, previous=None, inputs: Tensor | None = None) -> StateCategorical:
        """p(z_t | z_{t-1} = previous[, inputs]); the start distribution for None, one step on for a Belief."""
        if isinstance(previous, int):
            previous = torch.tensor(previous, device=self.device)
        return StateCategorical(self, previous, inputs)

    @classmethod
    def stationary(cls, *args, **kwargs) -> Transition:
        """One that starts in its stationary distribution, of those transitions that have one of their own.

        Raises:
            TypeError: of all others.
        """
        raise TypeError(
            f"{cls.__name__}.stationary: a start of its own have DenseTransition and SecondOrderTransition; for few states and "
            "one matrix for all steps give initial=stationary_log_probs(transition.rows(torch.arange(Z))), from "
            "pplseq.distributions.stationary"
        )

    def initial_log_prob(self) -> Tensor:
        """(*b, Z) log p(z_1)."""
        raise NotImplementedError

    def rows(self, previous: Tensor | None, inputs: Tensor | None = None) -> Tensor:
        """(*B, Z) log p(z_t | z_{t-1} = previous), the generic path: meant for small Z."""
        raise NotImplementedError


class Emission:
    """What every emission offers: ``emission(z)`` for ``pyro.sample`` and likelihoods of observations under all states.

    One that depends on inputs besides the state is called as ``emission(z, inputs=v[:, t])``, and its other methods get the
    inputs as a last argument.

    Attributes:
        takes_inputs: whether it does.
        input_dims: trailing dimensions of ``inputs`` that belong to one step (0 for a symbol, 1 for a feature vector).
        num_words, word_log_prob: V, and (*B, V) log p(x) for states (*B, Z) distributed as given; of emissions of words.
    """

    num_states: int
    num_words: int
    word_log_prob: Callable[..., Tensor]
    batch_shape: torch.Size = torch.Size()
    event_shape: torch.Size = torch.Size()
    support_constraint: constraints.Constraint = constraints.real
    takes_inputs: bool = False
    input_dims: int = 0

    def __call__(self, state, inputs: Tensor | None = None) -> StateEmission:
        """p(x_t | z_t = state[, inputs]) for ``pyro.sample``.

        Raises:
            ValueError: for inputs to an emission that takes none, or none to one that does.
        """
        if (inputs is not None) != self.takes_inputs:
            expected = "inputs=v[:, t]" if self.takes_inputs else "no inputs"
            got = None if inputs is None else tuple(inputs.shape)
            raise ValueError(f"inputs: {type(self).__name__} takes {expected} at every step, got {got}")
        return StateEmission(self, state, inputs)

    def harmless(self) -> Tensor:
        """An observation that stands where there is none and no other is known: its density is masked, and has a gradient."""
        return inside(self.support_constraint, tuple(self.event_shape))

    def log_likelihood(self, obs: Tensor, *inputs: Any, **named: Any) -> Tensor:
        """(*B, Z) log p(obs | z) for every z, nats."""
        raise NotImplementedError

    def distribution(self, state: Tensor, *inputs: Any, **named: Any) -> TorchDistribution:
        """p(x | z = state) as an ordinary distribution of batch shape (*B,)."""
        raise NotImplementedError
