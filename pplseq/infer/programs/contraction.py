"""Generic contraction of discrete sites, for structures that are no first-order chain: factorial HMMs, second-order chains,
trees, coupled chains. It is exact for any program whose discrete sites can be enumerated, at sizes where a table over the
cliques of the program fits; first-order chains of any length and size belong to
:class:`~pplseq.infer.programs.blocked_enum.BlockedEnum`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import opt_einsum
import torch
from pyro import poutine
from pyro.ops.einsum.adjoint import require_backward
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pplseq import checks
from pplseq.distributions.drawing import seeded
from pplseq.distributions.state import StateCategorical
from pplseq.infer.programs.factors.elimination import choose_states, eliminate
from pplseq.infer.programs.factors.enumeration import Enumeration
from pplseq.threads import one_at_a_time

MODES = ("log_prob", "map", "sample")
BACKENDS = {mode: f"pyro.ops.einsum.torch_{name}" for mode, name in zip(MODES, ("log", "map", "sample"), strict=True)}
PYRO_DIMS, PYRO_BACKWARD = "_pyro_dims", "_pyro_backward"  # attributes by which Pyro's backends talk to us
MAX_DIMS = 64  # of a torch tensor
EVENT_DIMS = 2  # kept free for rows of tables and matrices of parameters


class Contraction(NamedTuple):
    """What came of it.

    log_prob: (*B,) over the plates that all discrete sites share, left to right: log p(x); for "map" max_z log p(z, x), nats.
    states: {site: its value, over the plates of that site}: the joint arg max or a joint posterior draw; None for "log_prob".
        -1 where a site is masked.
    """

    log_prob: Tensor
    states: dict[str, Tensor] | None = None


@dataclass
class _Variable:
    """An enumerated site: its letter in equations, its plates, its values (K,) and where it is masked (over its plates)."""

    name: str
    symbol: str
    plates: str
    values: Tensor
    mask: Tensor | None


@dataclass(eq=False)
class _Factor:
    """A table of log-values whose dimensions are the letters of its plates, then of its variables."""

    value: Tensor
    plates: str
    variables: str

    @property
    def dims(self) -> str:
        return self.plates + self.variables


@dataclass
class _Step:
    """Variables that were eliminated together: the factors that held them, and the plates of all of these."""

    variables: list[str]
    factors: list[_Factor]
    plates: str


@one_at_a_time
def contract_states(model: Callable, *args, mode: str = "log_prob", **kwargs) -> Contraction:
    """Sums out, maximises over or samples all unobserved discrete sites of a program, jointly and exactly.

        log p(x) = log sum_z prod_f exp(factor_f),   one factor a site, each over the sites that it depends on

    Args:
        model: a program in which every unobserved site has an enumerable distribution (``poutine.condition`` the others).
            Plates must be nested in each other; observed sites that touch no discrete site are left out.
        mode: "log_prob" (differentiable), "map" (most probable joint states) or "sample" (a joint posterior draw).

    Returns:
        :class:`Contraction`.

    A loop written with ``pyro.markov`` may have any length.

    Raises:
        ValueError: for another mode, no discrete site, a continuous latent site, more than 60 sites outside of ``pyro.markov``,
            crossing plates, or an unmasked site that depends on a masked one.

    Cost: exponential in the program's tree width (as found by ``opt_einsum``), linear in its length for chains and trees.
        Zeros become the smallest finite number inside, and the table of a clique is scaled by its maxima only, so
        logits that differ by hundreds of nats within one clique may underflow: this is no numerical oracle for those.

    Source: Obermeyer et al. (2019), Tensor variable elimination for plated factor graphs.
    """
    checks.choice("mode", mode, MODES)
    program = getattr(model, "model", model)
    nesting, long = _look_ahead(program, args, kwargs)
    if long:
        return _along_time(program, args, kwargs, mode, nesting)
    collector = _Collector(nesting)
    with torch.set_grad_enabled(torch.is_grad_enabled() and mode == "log_prob"), poutine.block(), collector:
        program(*args, **kwargs)
        log_prob, steps = _eliminate(collector.factors, collector.variables, mode)
        states = None if mode == "log_prob" else _choose(steps, collector.variables, mode)
    return Contraction(log_prob * collector.scale, states)


# ------------------------------------------------------------------------------------------------ the program
def _look_ahead(program: Callable, args, kwargs) -> tuple[int, bool]:
    """How many dimensions plates take, and whether there are more sites than dimensions; raises where the program cannot be
    contracted."""
    with seeded(0), torch.no_grad(), poutine.block(), poutine.trace() as trace:
        program(*args, **kwargs)
    nodes: list[Any] = list(trace.trace.nodes.values())
    sites = [msg for msg in nodes if msg["type"] == "sample"]
    frames = [frame for msg in sites for frame in msg["cond_indep_stack"] if frame.vectorized]
    nesting = max((-frame.dim for frame in frames), default=0)
    latent = [msg for msg in sites if not msg["is_observed"] and not site_is_subsample(msg)]
    continuous = [msg["name"] for msg in latent if not getattr(msg["fn"], "has_enumerate_support", False)]
    if continuous:
        raise ValueError(
            f"sites {', '.join(continuous)} are latent and cannot be enumerated; set them with "
            "pyro.poutine.condition(model, data={...}), or learn them with TraceEnum_ELBO and a guide"
        )
    if not latent:
        raise ValueError("model: there is no unobserved discrete site to contract; use poutine.trace(...).log_prob_sum()")
    room = MAX_DIMS - EVENT_DIMS - nesting
    alone = [m for m in latent if m["infer"].get("_markov_scope") is None or isinstance(m["fn"], StateCategorical)]
    if len(alone) > room:
        raise ValueError(
            f"model: {len(alone)} unobserved discrete sites outside of pyro.markov, {alone[0]['name']!r} among them, but each "
            f"takes a dimension of its own and a tensor has {MAX_DIMS}, so that at most {room} can be contracted; write loops "
            "as `for t in pyro.markov(range(T))`, which uses dimensions again, or use BlockedEnum for chains of pplseq's words"
        )
    return nesting, len(latent) > room


# ------------------------------------------------------------------------------------------------ long programs
def _along_time(program: Callable, args, kwargs, mode: str, nesting: int) -> Contraction:
    """A program with more sites than a tensor has dimensions, whose loops are ``pyro.markov``'s: eliminated along time."""
    enumeration = Enumeration(-1 - nesting)
    marked = poutine.infer_config(program, lambda site: {"enumerate": "parallel"})
    with torch.set_grad_enabled(torch.is_grad_enabled() and mode == "log_prob"), poutine.block(), enumeration:
        marked(*args, **kwargs)
        found = eliminate(enumeration, maximise=mode == "map", draw=mode == "sample")
        states = None if mode == "log_prob" else choose_states(enumeration, sample=mode == "sample")
    common = frozenset.intersection(*(variable.plates for variable in enumeration.every))
    dims = sorted(dim for dim, _ in common)
    total = torch.zeros(())
    for root in found.roots:
        value = root.log_sum
        assert value is not None, "roots have one"
        gone = [d for d in range(-nesting, 0) if d not in dims]
        total = total + (value.sum(gone) if gone else value) * root.scale
    if states is not None:
        states = _over_own_plates(enumeration, states)
    return Contraction(total, states)


def _over_own_plates(enumeration: Enumeration, states: dict[str, Tensor]) -> dict[str, Tensor]:
    """Values over the plates of their sites alone, -1 where masked."""
    found = {}
    for site in enumeration.sites:
        if site.own is None:
            continue
        value, mask = states[site.own.name], site.mask
        if mask is not None and mask is not True:
            value = value.masked_fill(~torch.as_tensor(mask, device=value.device), -1)
        dims = {frame.dim for frame in site.frames}
        found[site.own.name] = value.squeeze([d for d in range(-value.dim(), 0) if d not in dims])
    return found


class _Collector(Messenger):
    """Gives every unobserved discrete site all its values in a dimension of its own, and collects the factors."""

    def __init__(self, nesting: int):
        super().__init__()
        self.nesting = nesting
        self.variables: dict[str, _Variable] = {}
        self.factors: list[_Factor] = []
        self.scale: float | Tensor = 1.0
        self._plates: dict[str, str] = {}
        self._order: list[_Variable] = []

    def _plate_symbols(self, msg) -> tuple[list, str]:
        """A site's vectorised plates from left to right, and their letters."""
        frames = sorted((frame for frame in msg["cond_indep_stack"] if frame.vectorized), key=lambda frame: frame.dim)
        # letters from the far end, so that those of plates and of variables never meet
        symbols = [self._plates.setdefault(frame.name, opt_einsum.get_symbol(1000 + len(self._plates))) for frame in frames]
        return frames, "".join(symbols)

    def _pyro_sample(self, msg):
        if msg["is_observed"] or msg["done"] or site_is_subsample(msg):
            return
        values = msg["fn"].enumerate_support(expand=False)
        values = values.reshape(values.shape[0], *(1,) * (self.nesting + len(self._order)))
        msg["value"], msg["done"] = values, True
        frames, plates = self._plate_symbols(msg)
        mask = None
        said = msg["mask"]  # one that depends on discrete sites is no padding
        if said is not None and said is not True and not (isinstance(said, Tensor) and said.dim() > self.nesting):
            mask = self._over_plates(torch.as_tensor(said, device=values.device), frames)
        symbol = opt_einsum.get_symbol(len(self._order))
        variable = _Variable(msg["name"], symbol, plates, values.reshape(-1), mask)
        self._order.append(variable)
        self.variables[symbol] = variable

    def _pyro_post_sample(self, msg):
        if site_is_subsample(msg):
            return
        fn, own = msg["fn"], next((v for v in self._order if v.name == msg["name"]), None)
        score, mask = fn.log_prob(msg["value"]), msg["mask"]
        if isinstance(mask, Tensor) and mask.dim() > self.nesting:  # it depends on discrete sites, too
            score = score if own is not None else torch.where(mask, score, 0.0)
            mask = None
        scale = msg["scale"]
        if isinstance(scale, Tensor) and scale.dim() > self.nesting:
            raise ValueError(
                f"site {msg['name']!r}: a scale may not depend on a discrete site, got shape {tuple(scale.shape)}; write "
                "pyro.factor(name, scale * law.log_prob(value))"
            )
        if own is None and score.dim() <= self.nesting:
            return  # touches no discrete site
        self._take_scale(msg)
        frames, plates = self._plate_symbols(msg)
        value, variables = self._pack(score, frames)
        if mask is not None and mask is not True:
            mask = self._over_plates(torch.as_tensor(mask, device=value.device), frames)
            mask = mask.reshape(*mask.shape, *(1,) * len(variables))
            nothing = torch.zeros_like(value)
            if own is not None:  # a masked state is padding: one value, so that it sums and maximises to one
                place = len(plates) + variables.index(own.symbol)
                rest = torch.arange(1, value.shape[place], device=value.device)
                nothing = nothing.index_fill(place, rest, -torch.inf)
            value = torch.where(mask, value, nothing)
        self._check_masked(msg, mask if isinstance(mask, Tensor) else None, plates, variables)
        self.factors.append(_Factor(value, plates, variables))

    def _take_scale(self, msg) -> None:
        scale = msg["scale"]
        if self.factors and scale is not self.scale and bool(torch.as_tensor(scale != self.scale).any()):
            raise ValueError(f"site {msg['name']!r}: all sites must have the same scale, {self.scale}; got {scale}")
        self.scale = scale

    def _over_plates(self, value: Tensor, frames) -> Tensor:
        """The plate dimensions of a tensor, from left to right, at their full sizes."""
        value = value.reshape((1,) * (self.nesting - value.dim()) + tuple(value.shape))
        sizes = [1] * self.nesting
        for frame in frames:
            sizes[frame.dim] = frame.size
        return value.expand(sizes).reshape([frame.size for frame in frames])

    def _pack(self, score: Tensor, frames) -> tuple[Tensor, str]:
        """(plates..., variables...) without the dimensions that a score does not depend on, and the variables' letters."""
        deepest = score.dim() - self.nesting - 1
        score = score.reshape((1,) * (self.nesting - score.dim()) + tuple(score.shape))
        sizes = list(score.shape)
        for frame in frames:
            sizes[frame.dim] = frame.size
        score = score.expand(sizes)
        places = [score.dim() + frame.dim for frame in frames]
        symbols = ""
        for number, variable in enumerate(self._order[: deepest + 1]):
            place = score.dim() - self.nesting - 1 - number
            # a site with one value shows in the rank only
            if score.shape[place] > 1 or (number == deepest and len(variable.values) == 1):
                places.append(place)
                symbols += variable.symbol
        rest = [place for place in range(score.dim()) if place not in places]
        return score.permute(*places, *rest).reshape([score.shape[place] for place in places]), symbols

    def _check_masked(self, msg, mask: Tensor | None, plates: str, variables: str) -> None:
        for symbol in variables:
            variable = self.variables[symbol]
            if variable.mask is None or variable.name == msg["name"]:
                continue
            hidden = ~_spread(variable.mask, variable.plates, plates)
            if mask is not None:
                hidden = hidden & mask.reshape(mask.shape[: len(plates)])
            if bool(hidden.any()):
                raise ValueError(
                    f"site {msg['name']!r} depends on {variable.name!r} where that is masked; a masked state is padding, so "
                    "mask what depends on it too"
                )


def _spread(value: Tensor, have: str, want: str) -> Tensor:
    """A tensor over plates ``have`` with dimensions of size one where ``want`` has more of them."""
    value = value.permute([have.index(plate) for plate in want if plate in have])
    sizes = iter(value.shape)
    return value.reshape([next(sizes) if plate in have else 1 for plate in want])


# ------------------------------------------------------------------------------------------------ elimination
def _contract(factors: list[_Factor], output: str, backend: str, choose: bool = False):
    """The semiring product of factors, summed (or maximised) down to ``output``; with the operands that it was made from."""
    operands = []
    for factor in factors:
        operand = factor.value[...]
        setattr(operand, PYRO_DIMS, factor.dims)
        if choose:
            require_backward(operand)
        operands.append(operand)
    present = set().union(*(factor.dims for factor in factors))
    output = "".join(symbol for symbol in output if symbol in present)
    equation = ",".join(factor.dims for factor in factors) + "->" + output
    contract: Callable[..., Tensor] = opt_einsum.contract  # which takes Pyro's backends too
    return contract(equation, *operands, backend=backend), operands, output


def _sum_plates(factor: _Factor, keep: str) -> _Factor:
    """Rows of a plate that its variables do not live in are independent observations: their log-values add up."""
    extra = [k for k, plate in enumerate(factor.plates) if plate not in keep]
    value = factor.value.sum(extra) if extra else factor.value
    return _Factor(value, "".join(plate for plate in factor.plates if plate in keep), factor.variables)


def _deepest(symbols: str, variables: dict[str, _Variable]) -> str:
    """The plates of the innermost of some variables, in which all others' plates must lie."""
    inner = max((variables[s].plates for s in symbols), key=len)
    for symbol in symbols:
        if not set(variables[symbol].plates) <= set(inner):
            names = " and ".join(sorted(variables[s].name for s in symbols)[:4])
            raise ValueError(f"sites {names} meet in one site but lie in crossing plates; plates must be nested")
    return inner


def _components(symbols: list[str], factors: list[_Factor]) -> list[tuple[list[str], list[_Factor]]]:
    """Variables that meet in factors, together with these."""
    group = {symbol: {symbol} for symbol in symbols}
    for factor in factors:
        met = [group[s] for s in factor.variables if s in group]
        joined = set().union(*met) if met else set()
        for symbol in joined:
            group[symbol] = joined
    found, seen = [], set()
    for symbol in symbols:
        if symbol not in seen:
            seen |= group[symbol]
            some = sorted(group[symbol], key=symbols.index)
            found.append((some, [f for f in factors if set(f.variables) & group[symbol]]))
    return found


def _eliminate(factors: list[_Factor], variables: dict[str, _Variable], mode: str) -> tuple[Tensor, list[_Step]]:
    """log_prob over the plates that all variables share, and what was done, innermost plates first."""
    backend = BACKENDS["map" if mode == "map" else "log_prob"]
    pending = [_sum_plates(factor, _deepest(factor.variables, variables)) for factor in factors]
    steps, roots = [], []
    for plates in sorted({v.plates for v in variables.values()}, key=len, reverse=True):
        local = [v.symbol for v in variables.values() if v.plates == plates]
        for some, touching in _components(local, pending):
            pending = [factor for factor in pending if factor not in touching]
            outer = "".join(sorted(set().union(*(f.variables for f in touching)) - set(some)))
            value, _, output = _contract(touching, plates + outer, backend)
            steps.append(_Step(some, touching, plates))
            message = _Factor(_infinite(value), plates, output[len(plates) :])
            if outer:
                pending.append(_sum_plates(message, _deepest(outer, variables)))
            else:
                roots.append(message)
    common = "".join(p for p in roots[0].plates if all(p in v.plates for v in variables.values()))
    first, *more = (_sum_plates(root, common).value for root in roots)
    return sum(more, start=first), steps


def _infinite(value: Tensor) -> Tensor:
    """Zero probabilities come out of the semiring as the smallest finite number, or a sum with it."""
    return torch.where(value < torch.finfo(value.dtype).min / 4, -torch.inf, value)


# ------------------------------------------------------------------------------------------------ states
def _choose(steps: list[_Step], variables: dict[str, _Variable], mode: str) -> dict[str, Tensor]:
    """Values of all variables: outermost plates first, each step given what was chosen before."""
    chosen: dict[str, Tensor] = {}
    for step in reversed(steps):
        given = [_given(factor, chosen, variables) for factor in step.factors]
        result, operands, _ = _contract(given, step.plates, BACKENDS[mode], choose=True)
        getattr(result, PYRO_BACKWARD)()
        for symbol in step.variables:
            operand = next(o for o in operands if symbol in getattr(o, PYRO_DIMS))
            found = operand._pyro_backward_result
            index = found[found._pyro_sample_dims.index(symbol)]
            have = found._pyro_dims[1:]
            sizes = [given[0].value.shape[given[0].plates.index(p)] for p in step.plates]
            chosen[symbol] = _spread(index, have, step.plates).expand(sizes)
    states = {}
    for variable in variables.values():
        value = variable.values[chosen[variable.symbol]]
        states[variable.name] = value if variable.mask is None else value.masked_fill(~variable.mask, -1)
    return states


def _given(factor: _Factor, chosen: dict[str, Tensor], variables: dict[str, _Variable]) -> _Factor:
    """A factor at the values that were chosen for its outer variables."""
    value, left = factor.value, factor.variables
    for symbol in factor.variables:
        if symbol in chosen:
            place = len(factor.plates) + left.index(symbol)
            index = _spread(chosen[symbol], variables[symbol].plates, factor.plates)
            index = index.reshape(*index.shape, *(1,) * len(left))
            shape = [1 if k == place else size for k, size in enumerate(value.shape)]
            value = value.gather(place, index.expand(shape)).squeeze(place)
            left = left.replace(symbol, "")
    return _Factor(value, factor.plates, left)
