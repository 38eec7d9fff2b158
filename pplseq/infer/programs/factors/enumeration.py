"""Runs a program with its marked sites enumerated by Pyro, and records what depends on them instead of letting it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

from pplseq.distributions.state import StateCategorical, StateEmission, StateVar
from pplseq.infer.programs.factors.lookups import Memo, StateValue
from pplseq.infer.programs.markov import plates_of

PLATE_DIMS = 8  # room for plates where nobody says how many there are


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
    a vectorised loop, the site of all its steps and this one's place among them.
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
            msg["infer"]["enumerate"] = "parallel"
            super()._pyro_sample(msg)
            self._record_variable(msg)
        else:
            infer, msg["infer"] = msg["infer"], {**msg["infer"], "enumerate": None}
            super()._pyro_sample(msg)
            msg["infer"] = infer
            self._record_dependent(msg, given=outside is not None)

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

    def _variables(self, msg, shape: torch.Size) -> dict[int, Variable]:
        """The enumerated dimensions of a tensor at a site, from right to left."""
        ids = self._param_dims[msg["name"]]
        found = {}
        for dim in range(-1 - self.nesting, -1 - len(shape), -1):
            if shape[dim] > 1:
                if dim not in ids or ids[dim] not in self.variables:
                    raise ValueError(
                        f"site {msg['name']!r}: its distribution has shape {tuple(shape)}, of which dimension {dim} belongs to "
                        "no plate and to no enumerated site that is in reach: pyro.markov hands dimensions out again, so a "
                        "site may depend on no more than `history` steps before it; write pyro.markov(..., history=n)"
                    )
                found[dim] = self.variables[ids[dim]]
        return found

    def _record(self, msg, variables: dict[int, Variable], own: Variable | None = None) -> None:
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
        self.sites.append(Site(msg["name"], msg["fn"], msg["value"], *place, variables, own))
        msg["done"] = msg["stop"] = True  # hidden from everything outside

    def _record_variable(self, msg: Any) -> None:
        infer, fn, value = msg["infer"], msg["fn"], msg["value"]
        if value.dim() < fn.event_dim:  # Pyro squeezes the events of a support of one value too
            value = msg["value"] = value.reshape(fn.event_shape)
        dim = infer["_enumerate_dim"]
        number = infer["_dim_to_id"][dim]
        values = value.reshape(-1, *fn.event_shape)
        variables = self._variables(msg, fn.batch_shape)
        variable = Variable(len(self.every), msg["name"], dim, values, plates_of(msg))
        self.every.append(variable)
        self.variables[number] = variable
        self._record(msg, {**variables, dim: variable}, variable)
        if type(fn) is dist.Categorical and value.is_contiguous():
            msg["value"] = StateValue.of(value, self.memo, variable)

    def _record_dependent(self, msg, given: bool) -> None:
        fn, shape = msg["fn"], msg["fn"].batch_shape
        if isinstance(msg["value"], Tensor):
            value = msg["value"].shape[: msg["value"].dim() - len(fn.event_shape)]
            shape = torch.broadcast_shapes(shape, value) if len(value) > self.nesting else shape
        if len(shape) <= self.nesting:
            return
        variables = self._variables(msg, shape)
        if not variables:
            return
        if given:
            raise GuideSite(msg["name"])
        if not msg["is_observed"]:
            names = ", ".join(repr(variable.name) for variable in variables.values())
            raise ValueError(
                f"site {msg['name']!r} is not observed and depends on the enumerated sites {names}: observe it, give it a "
                'value (a guide, pyro.condition), mark it infer={"enumerate": "parallel"} if its support is finite, or leave '
                "it out where it is missing"
            )
        self._record(msg, variables)
