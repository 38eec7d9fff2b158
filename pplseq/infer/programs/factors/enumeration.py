"""Runs a program with its marked sites enumerated by Pyro, and records what depends on them instead of letting it out."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.do_messenger import DoMessenger
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.substitute_messenger import SubstituteMessenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Distribution

from pplseq.distributions.affine import GaussianVar
from pplseq.distributions.drawing import generators, rewind
from pplseq.distributions.state import StateCategorical, StateEmission, StateVar
from pplseq.infer.programs.factors.lookups import Memo, StateValue
from pplseq.infer.programs.held import held_tensors, stack_depth
from pplseq.infer.programs.markov import plates_of

PLATE_DIMS = 8  # room for plates where nobody says how many there are
ROOM = 12  # dimensions for sites in loops, so that code that looks further back than its loop says is seen, and right
MOST_DIMS = 58  # a tensor has 64; some are for events and tables
_WINDOW = "__window"  # under this name Pyro's bookkeeping has the dimensions that are in use here


class _Use(NamedTuple):
    """Who has a dimension: number of its use; what tells the value that the program got, or None of it once nobody holds it;
    None itself for sites outside of loops, which keep theirs."""

    number: int
    value: Callable[[], Any] | None


class GuideSite(ValueError):
    """A site that is enumerated in a guide, or that depends on enumerated ones and has its value from a guide."""

    def __init__(self, name: str):
        super().__init__(
            f"site {name!r} is enumerated in the guide, or depends on enumerated sites and has its value from outside; "
            "TraceBlockedEnum_ELBO takes such guides, a handler does not"
        )


@dataclass(eq=False)
class Variable:
    """An enumerated site: its number in the order of the program, the dimension it is enumerated in, its values (K, *event)."""

    number: int
    name: str
    dim: int
    values: Tensor
    frames: tuple

    def __post_init__(self):
        self.plates = frozenset((frame.dim, frame.name) for frame in self.frames)

    @property
    def size(self) -> int:
        return len(self.values)


@dataclass(eq=False)
class Site:
    """A site that is enumerated, or that depends on one that is.

    variables: the enumerated dimensions that its log-probability may have -> variable, from right to left. whole: of a step of
    a vectorised loop, the site of all its steps and this one's place among them. score: its log-probability before masks,
    where that had to be evaluated for its shape.
    """

    name: str
    fn: Any
    value: Any
    mask: Tensor | bool | None
    scale: float | Tensor
    frames: tuple
    variables: dict[int, Variable]
    own: Variable | None = None
    whole: tuple[Site, int] | None = None
    score: Tensor | None = None


# distributions whose batch shape shows all that the ones inside depend on
_WRAPPERS = (dist.Independent, dist.MaskedDistribution, dist.ExpandedDistribution, dist.OneHotCategorical)


def _shape_tells(fn) -> bool:
    """Whether the batch shape of a distribution is that of its log-probabilities. Of mixtures, of transforms that get their
    parameters later and of classes of the program's own nothing is known before these are evaluated."""
    if type(fn) is dist.Delta:  # its log density may have any shape
        return False
    if not type(fn).__module__.startswith(("torch.distributions.", "pyro.distributions.")):
        return any(isinstance(value, StateVar | GaussianVar) for value in vars(fn).values())  # words about symbols
    for value in vars(fn).values():
        if isinstance(value, Distribution):
            if type(fn) not in _WRAPPERS or not _shape_tells(value):
                return False
        elif value is not None and not isinstance(value, (Tensor, int, float, str, tuple)):
            return False
    return True


def log_prob_shape(msg: Any, value: Any, nesting: int) -> tuple[torch.Size, Tensor | None]:
    """The shape of what a site says about the density, mask and scale included, and its log-probability where that had to be
    evaluated. Shapes that take no more than the ``nesting`` dimensions of plates are left out.

    Args:
        value: the site's; None where it is not known yet.
    """
    fn, score = msg["fn"], None
    shapes = [fn.batch_shape, *(part.shape for part in (msg["mask"], msg["scale"]) if isinstance(part, Tensor))]
    if isinstance(value, Tensor):
        shapes.append(value.shape[: value.dim() - len(fn.event_shape)])
    if not _shape_tells(fn):
        score = fn.log_prob(value) if isinstance(value, Tensor) else _of_any_value(msg["name"], fn)
        shapes += [] if score is None else [score.shape]
    wide = [shape for shape in shapes if len(shape) > nesting]
    return torch.broadcast_shapes(*wide) if wide else torch.Size(), score


def _of_any_value(name: str, fn) -> Tensor | None:
    """The log-probability of some value, as if none had been drawn; None where none can be."""
    state = generators()
    try:
        with torch.no_grad():
            return fn.log_prob(fn.sample())
    except NotImplementedError:
        return None
    except RuntimeError as error:
        raise ValueError(
            f"site {name!r} is not observed, and no value can be drawn from its {type(fn).__name__} of batch shape "
            f"{tuple(fn.batch_shape)}, as for one whose parts depend on enumerated states that this shape does not show: "
            "observe it, or leave it out where it is missing"
        ) from error
    finally:
        rewind(state)


def outside_value(name: str):
    """(handler, value) of the handler on the stack that has a value for a site, or None."""
    for handler in reversed(_PYRO_STACK):
        kind, told = type(handler), getattr(handler, "data", None)
        if issubclass(kind, ReplayMessenger):
            trace = getattr(handler, "trace", None)
            node = None if trace is None else trace.nodes.get(name)
            if node is not None and node["type"] == "sample":
                return handler, node["value"]
        elif issubclass(kind, ConditionMessenger | DoMessenger | SubstituteMessenger) and told is not None:
            values = getattr(told, "nodes", None)
            if values is not None:
                if name in values:
                    return handler, values[name]["value"]
            elif told.get(name) is not None:
                return handler, told[name]
    return None


class Enumeration(EnumMessenger):
    """``EnumMessenger`` whose sites, and all that depend on them, are recorded in ``sites`` and hidden from everything outside.

    Args:
        first_available_dim: left of all plates.
        guided: refuse marked sites that a guide has values for, whose gradients Pyro estimates in its own way.
    """

    def __init__(self, first_available_dim: int = -1 - PLATE_DIMS, guided: bool = False):
        super().__init__(first_available_dim)
        self.guided = guided
        self.nesting = -1 - first_available_dim
        self.sites: list[Site] = []
        self.variables: dict[int, Variable] = {}  # by Pyro's number of a dimension's use
        self.every: list[Variable] = []  # in the order of the program
        self.memo = Memo()
        self._uses: dict[int, _Use] = {}  # dimension -> its last use, the oldest first
        self._again: set[int] = set()  # dimensions of several uses, one after the other
        self._taken: set[int] = set()  # those that were taken from values that somebody held
        self._depth = 0  # of the stack where this was entered

    def __enter__(self):
        self._depth = stack_depth() - 2  # BlockedEnum enters this for the code that entered it
        return super().__enter__()

    def _pyro_sample(self, msg: Any):
        fn = msg["fn"]
        if msg["done"] or not isinstance(fn, TorchDistributionMixin) or site_is_subsample(msg):
            return
        if isinstance(fn, StateCategorical | StateEmission):
            self._pass_by(msg)
            return
        marked = msg["infer"].get("enumerate") in ("parallel", "sequential") and not msg["is_observed"]
        if not marked and not self.variables:
            super()._pyro_sample(msg)
            return
        scope = msg["infer"].get("_markov_scope")
        if scope is not None and msg["name"] in scope:  # an intervention inside showed it to the loop twice, which counts
            scope = {name: count // 2 for name, count in scope.items() if name != msg["name"]}
            depth = msg["infer"]["_markov_depth"] // 2
            msg["infer"] = {**msg["infer"], "_markov_scope": scope, "_markov_depth": depth}
        outside = None if msg["is_observed"] else outside_value(msg["name"])
        if self.guided and marked and outside is not None and isinstance(outside[0], ReplayMessenger):
            raise GuideSite(msg["name"])
        if outside is not None and isinstance(outside[0], ConditionMessenger | DoMessenger):
            value = torch.as_tensor(outside[1])
            msg["value"], msg["is_observed"] = value, True
            if isinstance(outside[0], DoMessenger):  # its own distribution, which nothing depends on, sums to one
                self._pass_by(msg)
                msg["done"] = msg["stop"] = True
                return
            outside = None
        if marked and outside is None and not msg["is_observed"]:
            if msg["infer"].get("num_samples") is not None:
                raise ValueError(
                    f"site {msg['name']!r} is marked with num_samples, draws in the place of its values: sums are exact "
                    "here; leave num_samples out, or use Pyro's TraceTMC_ELBO"
                )
            # values are the same in all rows: with expand=True Pyro would copy them
            msg["infer"] = {**msg["infer"], "enumerate": "parallel", "expand": False}
            self._enumerate(msg)
            self._record_variable(msg)
        else:
            infer, msg["infer"] = msg["infer"], {**msg["infer"], "enumerate": None}
            super()._pyro_sample(msg)
            msg["infer"] = infer
            self._record_dependent(msg, outside)

    def _pyro_post_sample(self, msg: Any):
        if not self.variables:
            self._value_dims[msg["name"]] = {}  # nothing is enumerated yet; Pyro would look into the value
        elif isinstance(msg["value"], Tensor) and not isinstance(msg["value"], StateVar):
            super()._pyro_post_sample(msg)

    def _pass_by(self, msg: Any) -> None:
        """Tells Pyro's bookkeeping about a site that has no enumerated dimensions."""
        if msg["infer"].get("_markov_scope") is not None:
            self._markov_depths[msg["name"]] = msg["infer"]["_markov_depth"]
        self._value_dims[msg["name"]] = {}

    def _enumerate(self, msg: Any) -> None:
        """Gives a marked site its values, in a dimension that none of the last sites has."""
        scope, in_scope = msg["infer"].get("_markov_scope"), self._in_scope(msg)
        loose = [dim for dim, use in self._uses.items() if use.value is not None]
        if scope is not None and len(loose) >= ROOM:
            free = [dim for dim in loose if dim not in in_scope]
            unheld = [dim for dim in free if (value := self._uses[dim].value) is not None and value() is None]
            if unheld:  # the state itself is gone; what was computed from it may not be
                held = {dim for value in held_tensors(self._depth) for dim in self._wide(value.shape)}
                unheld = [dim for dim in unheld if dim not in held]
            for dim in (unheld or free)[:1]:
                self._again.add(dim)
                self._taken.update(() if unheld else (dim,))
                del self._uses[dim]
        self._value_dims[_WINDOW] = {dim: use.number for dim, use in self._uses.items()}
        self._markov_depths[_WINDOW] = 0
        infer = msg["infer"] = {"_markov_depth": 0, **msg["infer"], "_markov_scope": {**(scope or {}), _WINDOW: 0}}
        super()._pyro_sample(msg)
        if infer["_enumerate_dim"] < -MOST_DIMS:
            raise ValueError(
                f"site {msg['name']!r}: more than {len(self._uses)} sites are enumerated, each in a dimension of its own, and "
                "a tensor has 64; write loops over time as `for t in pyro.markov(range(T))`, which uses dimensions again"
            )
        if scope is None:
            del infer["_markov_scope"], infer["_markov_depth"]
        else:
            infer["_markov_scope"] = scope

    def _in_scope(self, msg) -> dict[int, int]:
        """The dimensions, and numbers of their uses, that pyro.markov says a site may depend on."""
        found = {}
        for name, depth in (msg["infer"].get("_markov_scope") or {}).items():
            if self._markov_depths[name] == depth:
                found |= self._value_dims[name]
        return found

    def _wide(self, shape: torch.Size) -> list[int]:
        """The dimensions left of all plates along which a tensor of that shape runs."""
        return [dim for dim in range(-1 - self.nesting, -1 - len(shape), -1) if shape[dim] > 1]

    def _variable(self, dim: int, in_scope: dict[int, int]) -> Variable | None:
        """Whose values run along a dimension; None where that may be another site's that had it before."""
        found = self.variables.get(in_scope.get(dim, -1))
        use = self._uses.get(dim)
        if found is not None or use is None:
            return found
        is_held = use.value is None or use.value() is not None
        sure = dim not in self._again or is_held and dim not in self._taken
        return self.variables.get(use.number) if sure else None

    def _variables(self, msg, shape: torch.Size) -> dict[int, Variable]:
        """The enumerated dimensions of a tensor at a site, from right to left."""
        in_scope, found = self._in_scope(msg), {}
        for dim in self._wide(shape):
            variable = self._variable(dim, in_scope)
            if variable is None:
                raise ValueError(
                    f"site {msg['name']!r}: its log-probability has shape {tuple(shape)}, of which dimension {dim} belongs "
                    "to no plate and to no enumerated site that is in reach: pyro.markov hands dimensions out again, so in "
                    "a long loop a site may depend on no more than `history` steps before it; write pyro.markov(..., "
                    "history=n), keep the states themselves in variables, or put independent rows into a pyro.plate"
                )
            found[dim] = variable
        return found

    def _record(self, msg, variables: dict[int, Variable], score: Tensor | None, own: Variable | None = None) -> None:
        frames = plates_of(msg)
        plates = frozenset((frame.dim, frame.name) for frame in frames)
        for variable in variables.values():
            if not variable.plates <= plates:
                inner = ", ".join(sorted(repr(name) for _, name in variable.plates - plates))
                raise ValueError(
                    f"site {msg['name']!r} depends on {variable.name!r} but stands outside of its plate {inner}; move it into "
                    "that plate"
                )
        place = msg["mask"], msg["scale"], frames
        self.sites.append(Site(msg["name"], msg["fn"], msg["value"], *place, variables, own, score=score))
        msg["done"] = msg["stop"] = True  # hidden from everything outside

    def record_factor(self, name: str, log_prob: Tensor, frames: tuple, scale) -> None:
        """A factor, computed after the program, whose dimensions left of all plates are those of enumerated sites."""
        msg: Any = {"name": name, "fn": dist.Unit(log_prob), "value": log_prob.new_zeros((*log_prob.shape, 0)), "mask": None}
        variables = {}
        for dim in range(-1 - self.nesting, -1 - log_prob.dim(), -1):
            if log_prob.shape[dim] > 1:
                found = [variable for variable in self.every if variable.dim == dim]
                if len(found) != 1:
                    raise ValueError(
                        f"chain {name!r} depends on sites that are enumerated in a loop, or elsewhere; mark its states "
                        'infer={"enumerate": "parallel"} too'
                    )
                variables[dim] = found[0]
        self._record({**msg, "scale": scale, "cond_indep_stack": frames}, variables, log_prob)

    def _record_variable(self, msg: Any) -> None:
        infer, fn, value = msg["infer"], msg["fn"], msg["value"]
        if value.dim() < fn.event_dim:  # Pyro squeezes the events of a support of one value too
            value = msg["value"] = value.reshape(fn.event_shape)
        dim = infer["_enumerate_dim"]
        number = infer["_dim_to_id"][dim]
        values = value.reshape(-1, *fn.event_shape)
        shape, score = log_prob_shape(msg, value, self.nesting)
        if len(shape) >= -dim:  # its own dimension, which the parameters may have by mistake
            given = fn.batch_shape[dim] if len(fn.batch_shape) >= -dim else 1
            shape = torch.Size((*shape[:dim], given, *shape[len(shape) + dim + 1 :]))
        variables = self._variables(msg, shape)
        variable = Variable(len(self.every), msg["name"], dim, values, plates_of(msg))
        self.every.append(variable)
        self.variables[number] = variable
        self._record(msg, {**variables, dim: variable}, score, variable)
        if type(fn) is dist.Categorical and value.is_contiguous():
            msg["value"] = StateValue.of(value, self.memo, variable)
        else:
            msg["value"] = value.view(value.shape)  # which nobody holds but the program
        is_loose = infer.get("_markov_scope") is not None
        self._uses[dim] = _Use(number, weakref.ref(msg["value"]) if is_loose else None)

    def _record_dependent(self, msg, outside: tuple[Any, Any] | None) -> None:
        shape, score = log_prob_shape(msg, msg["value"] if outside is None else outside[1], self.nesting)
        variables = self._variables(msg, shape)
        if not variables:
            return
        if outside is not None:
            raise GuideSite(msg["name"])
        if not msg["is_observed"]:
            names = ", ".join(repr(variable.name) for variable in variables.values())
            raise ValueError(
                f"site {msg['name']!r} is not observed and depends on the enumerated sites {names}: observe it, give it a "
                'value (a guide, pyro.condition), mark it infer={"enumerate": "parallel"} if its support is finite, or leave '
                "it out where it is missing"
            )
        self._record(msg, variables, score)
