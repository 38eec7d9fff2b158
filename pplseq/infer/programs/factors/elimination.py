"""Eliminates the enumerated sites of a program: innermost plates first, one scan along time for what hangs together."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pplseq.infer.programs.factors import scan
from pplseq.infer.programs.factors.enumeration import Enumeration, Variable
from pplseq.infer.programs.factors.lowering import lower
from pplseq.infer.programs.factors.tables import Stack, Table, make_tables
from pplseq.kernels.scan import chain_log_prob

MAX_CELLS = 1 << 26  # of one table, rows included


@dataclass(eq=False)
class Component:
    """Variables that hang together, in the plates that all of them share.

    log_sum: (*plates,) log of the sum over all of them and all that hangs on them; None where a component outside takes it up.
    """

    variables: list[Variable]
    kept: tuple[Variable, ...]
    tables: list[Table]
    problem: scan.Problem
    shape: tuple[int, ...]  # sizes of the plate dimensions
    frames: tuple
    scale: float | Tensor
    log_sum: Tensor | None = None

    @property
    def name(self) -> str:
        return self.variables[0].name

    def rows(self, value: Tensor, lead: int = 0) -> Tensor:
        """(*lead, R or 1, *variables) of tables (*lead, *plates, *variables) over this component's plates."""
        first, plates, states = value.shape[:lead], value.shape[lead:][: len(self.shape)], value.shape[lead + len(self.shape) :]
        if all(size == 1 for size in plates):
            return value.reshape(*first, 1, *states)
        return value.expand(*first, *self.shape, *states).reshape(*first, -1, *states)

    def stacks(self) -> list[tuple[Tensor, list[int]]]:
        """Tables of one shape together, and their places."""
        found: dict[int, tuple[Stack, list[int]]] = {}
        for place, table in enumerate(self.tables):
            found.setdefault(id(table.stack), (table.stack, []))[1].append(place)
        result = []
        for stack, places in found.values():
            values, index = stack.values, [self.tables[place].place for place in places]
            if len(values) == 1:
                values = values.expand(len(places), *values.shape[1:])
            elif index != list(range(len(values))):
                values = values[torch.tensor(index, device=values.device)]
            result.append((self.rows(values, 1), places))
        return result


@dataclass
class Elimination:
    """All components, innermost first; the roots are those whose ``log_sum`` goes into the program's density."""

    components: list[Component] = field(default_factory=list)
    roots: list[Component] = field(default_factory=list)


def eliminate(
    enumeration: Enumeration, *, maximise: bool = False, draw: bool = False, tables: list[Table] | None = None
) -> Elimination:
    """Sums (or maximises) over everything that was enumerated.

    Args:
        maximise, draw: what :func:`choose_states` is to find; masked states then take one value.
        tables: what is summed in the place of the tables of all sites.

    Raises:
        ValueError: for crossing plates, different scales, or tables that are too large; names the sites.
    """
    nesting = enumeration.nesting
    enumeration.memo.check_unchanged()
    pending = make_tables(enumeration.sites, nesting, padding=maximise or draw) if tables is None else tables
    variables = enumeration.every
    found = Elimination()
    sizes = _plate_sizes(enumeration)
    for plates in sorted({v.plates for v in variables}, key=len, reverse=True):
        local = [v for v in variables if v.plates == plates]
        for some, touching in _components(local, pending):
            taken = set(map(id, touching))
            pending = [table for table in pending if id(table) not in taken]
            component = _component(some, touching, plates, sizes, nesting)
            found.components.append(component)
            if maximise:
                values = [component.rows(table.value) for table in touching]
                value = scan.log_messages(component.problem, values, maximise=True)[-1]
            else:
                stacks = component.stacks()
                chain = lower(component.problem, stacks)
                if chain is None:
                    value = scan.log_sum(component.problem, stacks)
                else:
                    value = chain_log_prob(*chain).log_prob
            value = value.expand(component.problem.rows, *value.shape[1:])
            value = value.reshape((*component.shape, *value.shape[1:]))  # of no plate: ()
            if component.kept:
                pending.append(_outer(component, value, sizes, nesting))
            else:
                component.log_sum = value
                found.roots.append(component)
    return found


def _plate_sizes(enumeration: Enumeration) -> dict[tuple, int]:
    return {(f.dim, f.name): f.size for site in enumeration.sites for f in site.frames}


def _components(local: list[Variable], tables: list[Table]):
    """Variables that meet in tables, in order, with these tables."""
    group = {v.number: v.number for v in local}

    def root(number: int) -> int:
        while group[number] != number:
            group[number] = group[group[number]]
            number = group[number]
        return number

    touched = []
    for table in tables:
        numbers = [v.number for v in table.variables if v.number in group]
        touched.append(numbers)
        for number in numbers[1:]:
            group[root(number)] = root(numbers[0])
    members: dict[int, list[Variable]] = {}
    for variable in local:
        members.setdefault(root(variable.number), []).append(variable)
    own: dict[int, list[Table]] = {number: [] for number in members}
    for table, numbers in zip(tables, touched, strict=True):
        if numbers:
            own[root(numbers[0])].append(table)
    return [(members[number], own[number]) for number in members]


def _component(some: list[Variable], tables: list[Table], plates: frozenset, sizes, nesting: int) -> Component:
    inner = {v.number for v in some}
    for table in tables:
        for variable in table.variables:
            if not variable.plates <= plates:
                raise ValueError(
                    f"sites {variable.name!r} and {some[0].name!r} meet in site {table.site.name if table.site else '?'!r} but "
                    "lie in crossing plates; plates must be nested, or one of them a loop"
                )
    kept = sorted({v for t in tables for v in t.variables if v.number not in inner}, key=lambda v: v.number)
    numbers = [tuple(v.number for v in table.variables) for table in tables]
    size = {v.number: v.size for v in (*some, *kept)}
    shape = [1] * nesting
    for plate in plates:
        shape[plate[0]] = sizes[plate]
    rows = 1
    for length in shape:
        rows *= length
    outer = tuple(v.number for v in kept)
    moves = scan.plan([v.number for v in some], outer, numbers)
    cells, at = scan.largest(moves, size)
    if cells * rows > MAX_CELLS:
        moves = scan.plan(_narrow_order(some, numbers), outer, numbers)
        cells, at = scan.largest(moves, size)
    if cells * rows > MAX_CELLS:
        names = {v.number: v.name for v in (*some, *kept)}
        raise ValueError(
            f"sites {', '.join(repr(names[n]) for n in at)} would have to be enumerated together: a table of {cells} cells in "
            f"{rows} rows. Put pyro.markov around a loop over time, a plate around independent parts, write a large state "
            "space with pplseq's transitions, or let a guide sample some of these sites"
        )
    scale = _scale(some, tables)
    problem = scan.Problem(moves, numbers, size, rows)
    return Component(some, tuple(kept), tables, problem, tuple(shape), some[0].frames, scale)


def _scale(some: list[Variable], tables: list[Table]):
    scale = None
    for table in tables:
        if table.site is None:
            continue
        other = table.site.scale
        if isinstance(other, Tensor) and other.dim():
            raise ValueError(
                f"site {table.site.name!r}: enumerated sites take a scalar poutine.scale, got shape {tuple(other.shape)}; "
                "write an observation's own weight as pyro.factor(name, weight * law.log_prob(value))"
            )
        if scale is not None and other is not scale and float(other) != float(scale):
            raise ValueError(
                f"site {table.site.name!r} has scale {float(other)}, but {some[0].name!r}, with which it hangs together, has "
                f"{float(scale)}; put poutine.scale (or the subsampled plate) around both"
            )
        scale = other if scale is None else scale
    return 1.0 if scale is None else scale


def _narrow_order(some: list[Variable], tables: list[tuple[int, ...]]) -> list[int]:
    """An order in which few variables are open at a time: always the one that opens the fewest others."""
    neighbours: dict[int, set[int]] = {v.number: set() for v in some}
    for numbers in tables:
        inside = [n for n in numbers if n in neighbours]
        for number in inside:
            neighbours[number].update(n for n in inside if n != number)
    order: list[int] = []
    done: set[int] = set()
    border: set[int] = set()
    left = dict(neighbours)
    while left:
        choice = min(border or left, key=lambda n: (len(neighbours[n] - done - border), n))
        order.append(choice)
        done.add(choice)
        border.discard(choice)
        border.update(neighbours[choice] - done)
        del left[choice]
    return order


def _outer(component: Component, value: Tensor, sizes, nesting: int) -> Table:
    """A component's message to the outer variables that it hangs on: rows of plates that these do not have are summed."""
    plates = frozenset().union(*(v.plates for v in component.kept))
    kept = {dim for dim, _ in plates}
    extra = [dim for dim in range(nesting) if component.shape[dim] > 1 and dim - nesting not in kept]
    if extra:
        value = value.sum(extra, keepdim=True)
    return Table(Stack(value.unsqueeze(0)), 0, component.kept, plates, component.tables[0].site)


# ------------------------------------------------------------------------------------------------ states
def marginals(enumeration: Enumeration) -> dict[str, Tensor]:
    """Site -> (*plates, K) p(value | everything observed) of all enumerated sites, over the plates of the site.

    They are the derivatives of the log of the sum in log-weights of the values; where these have gradients, marginals have.
    """
    nesting, sizes = enumeration.nesting, _plate_sizes(enumeration)
    groups: dict[tuple, list[Variable]] = {}
    for variable in enumeration.every:
        groups.setdefault((variable.plates, variable.size), []).append(variable)
    weights, more = [], []
    tables = make_tables(enumeration.sites, nesting)
    like = sum((table.stack.values.new_zeros(()) for table in tables), start=torch.zeros((), dtype=torch.float32))
    with torch.enable_grad():
        for (plates, size), some in groups.items():
            shape = [1] * nesting
            for plate in plates:
                shape[plate[0]] = sizes[plate]
            weights.append(like.new_zeros(len(some), *shape, size, requires_grad=True))
            stack = Stack(weights[-1])
            more += [Table(stack, place, (variable,), plates) for place, variable in enumerate(some)]
        roots = eliminate(enumeration, tables=[*tables, *more]).roots
        sums = []
        for root in roots:
            assert root.log_sum is not None, "roots have one"
            if not bool(root.log_sum.isfinite().all()):
                raise ValueError(f"site {root.name!r}: what was observed is impossible, so its values have no posterior")
            sums.append(root.log_sum.sum())
        total = torch.stack(sums).sum()
    found = torch.autograd.grad(total, weights, create_graph=torch.is_grad_enabled())
    result = {}
    for probs, (plates, _), some in zip(found, groups, groups.values(), strict=True):
        depth = max((-dim for dim, _ in plates), default=0)
        probs = probs.reshape(len(some), *probs.shape[1 + nesting - depth :])
        result |= {variable.name: value for variable, value in zip(some, probs.unbind(0), strict=True)}
    return {variable.name: result[variable.name] for variable in enumeration.every}


def choose_states(enumeration: Enumeration, *, sample: bool) -> dict[str, Tensor]:
    """The jointly most probable values of all enumerated sites, or a draw from their posterior: site -> its value.

    Values have the shape of the sites' plates and events; masked states hold their first value.
    """
    found = eliminate(enumeration, maximise=not sample, draw=sample)
    nesting = enumeration.nesting
    chosen: dict[int, Tensor] = {}  # number -> (*plates) with size 1 where the variable has no plate
    for component in reversed(found.components):
        rows = component.problem.rows
        given = {v.number: chosen[v.number].expand(component.shape).reshape(-1) for v in component.kept}
        values = [component.rows(table.value) for table in component.tables]
        places = scan.choose(component.problem, values, given, sample)
        for variable in component.variables:
            chosen[variable.number] = places[variable.number].expand(rows).reshape(component.shape)
    states = {}
    for variable in enumeration.every:
        depth = max((-dim for dim, _ in variable.plates), default=0)
        place = chosen[variable.number]
        place = place.reshape(place.shape[nesting - depth :])
        states[variable.name] = variable.values[place]
    return states
