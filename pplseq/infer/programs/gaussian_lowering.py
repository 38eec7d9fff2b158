"""From what a program recorded about a Gaussian chain to the chain itself."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from pplseq.distributions.gaussian_types import Evidence, GaussianBelief, LinearEvidence
from pplseq.distributions.linear_gaussian import LinearEmission
from pplseq.distributions.noise import Noise, same_noise, same_tensor
from pplseq.distributions.state import broadcast_shapes
from pplseq.distributions.timed import Timed, all_steps
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain
from pplseq.infer.gaussian.diffuse import gaussian_chain
from pplseq.infer.programs.gaussian_sites import SiteEmission, shared
from pplseq.infer.programs.markov import as_mask, plate_shape, says, stack_steps


class GivesEvidence(Protocol):
    """What an observation is given by: it says what data tell about the state."""

    def evidence(self, value: Tensor, /) -> Evidence | LinearEvidence:
        """log p(value | x) as a function of the state x."""
        ...


@dataclass
class Observation:
    """One observation of a step."""

    name: str
    emission: GivesEvidence
    data: Tensor | None
    mask: Tensor | bool | None
    event: torch.Size
    site: object  # the distribution
    offset: Tensor | None  # taken off the data already


@dataclass
class Step:
    """What the program said about one step (or, vectorised, about all steps but the first)."""

    name: str
    parent: int | None
    shape: torch.Size
    matrix: Tensor | None  # None at the first step
    noise: Noise | None
    offset: Tensor | None
    mask: Tensor | bool | None
    span: int | None
    observations: list[Observation] = field(default_factory=list)


@dataclass
class Recording:
    """One chain while the program runs."""

    name: str
    start: GaussianBelief
    frames: tuple
    scale: float | Tensor
    zero: Tensor
    steps: list[Step] = field(default_factory=list)


def chain_steps(recording: Recording) -> list[Step]:
    """The steps of the chain. Sites that were not observed and that nothing depends on may be missing observations."""
    steps = recording.steps
    has_child = {step.parent for step in steps}
    path = [0]
    for index in range(1, len(steps)):
        is_leaf = index not in has_child and not steps[index].observations
        if is_leaf and _looks_observed(recording, steps, index):
            continue
        if steps[index].parent != path[-1]:
            _raise_not_markov(steps[index], recording)
        path.append(index)
    return [steps[index] for index in path]


def _looks_observed(recording: Recording, steps: list[Step], index: int) -> bool:
    """Whether an unobserved leaf is a missing observation and no last state."""
    leaf = steps[index]
    assert leaf.parent is not None and leaf.matrix is not None, "only a chain's first step has neither"
    parent = steps[leaf.parent]
    stem, before = _stem(leaf.name), _stem(parent.name)  # "x" of "x_7": sites of one kind have one
    if stem == before:
        return False
    if stem in {_stem(o.name) for step in steps for o in step.observations}:
        return True
    if parent.parent is not None and before == _stem(steps[parent.parent].name):
        return True  # states are called otherwise
    if any(step.parent == leaf.parent for step in steps[index + 1 :]) or leaf.matrix.shape[-2] != len(recording.zero):
        return True  # its state goes on without it, or it has not the size of a state
    emissions = [o.emission for step in steps for o in step.observations if isinstance(o.emission, LinearEmission)]
    return any(same_tensor(leaf.matrix, emission.matrix) for emission in emissions)


def _stem(name: str) -> str:
    return re.sub(r"[_\d:]+$", "", name)


def _raise_not_markov(step: Step, recording: Recording) -> None:
    raise ValueError(
        f"site {step.name!r} does not follow the last state of its chain, {recording.name!r}; chains must be first-order Markov"
    )


def lower(recording: Recording, steps: list[Step], tol: float | None) -> GaussianChain:
    """The chain of what a program said at its steps; ``tol`` as for :class:`~pplseq.infer.gaussian.chain.GaussianChain`."""
    shapes = [step.shape for step in steps]
    batch = plate_shape(recording.frames, broadcast_shapes(*shapes))
    stack = functools.partial(stack_steps, steps, batch)
    device = recording.zero.device
    valid = None
    if any(says(step.mask) for step in steps):
        valid = stack(lambda s: as_mask(s.mask, True, device))
    evidence, seen, emission = _evidence(recording, steps, batch)
    shape = evidence.shape[1:]
    start = GaussianBelief(recording.start.mean.expand(*shape, -1), shared(recording.start.covariance, 2))
    if valid is not None:
        valid = valid.expand(-1, *shape)
    return gaussian_chain(
        start, _dynamics(recording, steps, batch), evidence, valid=valid, seen=seen, tol=tol, emission=emission
    )


def _dynamics(recording: Recording, steps: list[Step], batch: torch.Size) -> Dynamics:
    if len(steps) == 1:
        identity = torch.eye(len(recording.zero), dtype=recording.zero.dtype, device=recording.zero.device)
        return Dynamics(identity, identity, None)
    moves = steps[1:]
    matrix, noise = moves[0].matrix, moves[0].noise
    assert matrix is not None and noise is not None, "only a chain's first step has neither"
    if matrix.dim() > 2 or isinstance(matrix, Timed) or not all(same_tensor(step.matrix, matrix) for step in moves):
        matrix = _stack_matrices(moves, batch, lambda s: s.matrix)
    covariance, same = noise.covariance, all(step.noise is not None and same_noise(step.noise, noise) for step in moves)
    if same and not noise.batch_shape and not isinstance(covariance, Timed):
        pass
    else:
        covariance = _stack_matrices(moves, batch, lambda s: s.noise.covariance)
    offset = None
    if any(step.offset is not None for step in moves):
        offset = moves[0].offset
        one = offset is not None and offset.dim() == 1 and not isinstance(offset, Timed)
        if not one or not all(same_tensor(step.offset, offset) for step in moves):
            like = next(step.offset for step in moves if step.offset is not None)
            offset = stack_steps(moves, batch, lambda s: s.offset, event=recording.zero.shape, like=like)
    return Dynamics(matrix, covariance, offset)


def _stack_matrices(steps: list[Step], batch: torch.Size, part) -> Tensor:
    """(T, n, h), or (T, *B, n, h) where rows differ."""
    values = [part(step) for step in steps]
    if all(value.dim() == 2 and step.span is None for step, value in zip(steps, values, strict=True)):
        return torch.stack(values)
    event = values[0].shape[-2:]
    full = stack_steps(steps, batch, part, event=event, like=values[0])
    return _of_all_rows(full) if full.shape[1:-2].numel() == 1 or not _expanded(full) else full.flatten(1, -3)[:, 0]


def _expanded(full: Tensor) -> bool:
    return all(full.stride(d) == 0 or full.shape[d] == 1 for d in range(1, full.dim() - 2))


def _evidence(recording: Recording, steps: list[Step], batch: torch.Size):
    """Evidence (T, *B) about the states, where it was seen (None: everywhere), and what forecasts use."""
    streams = max(len(step.observations) for step in steps)
    if streams == 0:
        zero, shape = recording.zero, broadcast_shapes(batch, *(step.shape for step in steps))
        num_steps = sum(step.span or 1 for step in steps)
        size = len(zero)
        nothing = Evidence(
            zero.new_zeros(num_steps, *shape, size), zero.new_zeros(size, size), zero.new_zeros(num_steps, *shape)
        )
        return nothing, None, None
    parts = [_stream(recording, steps, batch, k) for k in range(streams)]
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(evidence, LinearEvidence) and evidence.extra is None for evidence, _, _ in parts):
        pieces: list[Any] = [evidence for evidence, _, _ in parts]
        return side_by_side(pieces, [seen for _, seen, _ in parts]), None, None
    shape = broadcast_shapes(*(evidence.shape[1:] for evidence, _, _ in parts))
    by_row = any(seen is not None or evidence.matrix.dim() > 3 for evidence, seen, _ in parts)
    told: list[Evidence] = []
    for evidence, seen, _ in parts:
        kinds = isinstance(evidence, LinearEvidence) and evidence.which is not None
        evidence = Evidence(*evidence)
        part = evidence.matrix.expand(*evidence.shape, *evidence.matrix.shape[-2:]) if kinds else evidence.matrix
        if by_row and part.dim() == 3:  # (T, h, h): its rows stand behind time
            part = part.reshape(len(part), *(1,) * len(shape), *part.shape[-2:])
        if seen is not None:
            part = torch.where(seen[..., None, None], part, 0.0)
            evidence = Evidence(
                torch.where(seen.unsqueeze(-1), evidence.vector, 0.0), part, torch.where(seen, evidence.constant, 0.0)
            )
        told.append(evidence._replace(matrix=part))
    first, *more = told
    vector, matrix, constant = (
        functools.reduce(torch.add, (getattr(part, name) for part in more), getattr(first, name))
        for name in Evidence._fields
    )
    if matrix.dim() > 3:
        matrix = matrix.expand(len(vector), *shape, *matrix.shape[-2:])
    return Evidence(vector, matrix, constant), None, None


def side_by_side(parts: list[LinearEvidence], seen: list[Tensor | None]) -> LinearEvidence:
    """Numbers (T, *B, n_k) of one state, each where they were seen (T, *B), as numbers (T, *B, n) of which some are missing."""
    shape = broadcast_shapes(*(part.shape for part in parts))
    residual = torch.cat([part.residual.expand(*shape, -1) for part in parts], -1)
    columns = []
    for part, mask in zip(parts, seen, strict=True):
        kind = (
            torch.zeros(shape, dtype=torch.long, device=residual.device)
            if part.which is None
            else part.which.expand(shape)
        )
        columns.append(kind if mask is None else torch.where(mask, kind, -1))  # -1: nothing
    kinds = torch.stack(columns, -1)
    kinds, which = torch.unique(kinds.reshape(-1, len(parts)), dim=0, return_inverse=True)
    loadings, noises, observed = [], [], []
    for part, kind in zip(parts, kinds.T, strict=True):
        own = part.tables()
        of_kind = [None if table is None else table[kind.clamp_min(0) if len(table) > 1 else 0 * kind] for table in own]
        loadings.append(of_kind[0])
        noises.append(of_kind[1])
        there = (kind >= 0).unsqueeze(-1).expand(-1, part.residual.shape[-1])
        observed.append(there if of_kind[2] is None else there & of_kind[2])
    size = residual.shape[-1]
    noise, start = noises[0].new_zeros(len(kinds), size, size), 0
    for part in noises:
        stop = start + part.shape[-1]
        pad = (start, size - stop, start, size - stop)
        noise, start = noise + torch.nn.functional.pad(part, pad), stop
    tables = torch.cat(loadings, 1), noise
    if all(len(part.tables()[0]) == 1 and len(part.tables()[1]) == 1 for part in parts):
        tables = tables[0][0], tables[1][0]  # only what is seen differs
    return LinearEvidence(residual, *tables, which.reshape(shape), torch.cat(observed, -1))


def _stream(recording: Recording, steps: list[Step], batch: torch.Size, k: int):
    """The k-th observation of every step, as evidence (T, *B)."""
    device = recording.zero.device
    given = [step.observations[k] if k < len(step.observations) else None for step in steps]
    by_step = {id(step): o for step, o in zip(steps, given, strict=True)}
    first = next(o for o in given if o is not None)
    seen = None
    if any(o is None or o.data is None or says(o.mask) for o in given):

        def was_seen(step):
            o = by_step[id(step)]
            return as_mask(None if o is None else o.mask, o is not None and o.data is not None, device)

        seen = stack_steps(steps, batch, was_seen)
    data = [o.data for o in given if o is not None and o.data is not None]
    like = data[0] if data else recording.zero.new_zeros(first.event)
    emission = first.emission
    timed = getattr(emission, "timed", False)
    if not timed and all(o is None or _same_emission(o.emission, emission) for o in given):
        stacked = stack_steps(
            steps, batch, lambda s: getattr(by_step[id(s)], "data", None), event=first.event, like=like
        )
        evidence = emission.evidence(_without_missing(stacked, seen))
        if not isinstance(evidence, LinearEvidence):
            matrix = evidence.matrix
            if isinstance(emission, LinearEmission) and matrix.dim() > 2:  # one of each row, for all steps
                size = matrix.shape[-1]
                evidence = evidence._replace(matrix=matrix.expand(*evidence.shape, size, size))
            elif matrix.dim() > 3:
                evidence = evidence._replace(matrix=_of_all_rows(matrix))
    else:
        evidence = _by_step(steps, by_step, batch, recording)
    shape = evidence.shape[1:]
    return evidence, None if seen is None else seen.expand(-1, *shape), _prediction(steps, by_step, batch)


def _prediction(steps: list[Step], by_step: dict, batch: torch.Size) -> SiteEmission:
    """What observations look like, at all steps and behind the end; or, where they change, at the chain's own steps only."""
    given = [o for o in by_step.values() if o is not None]
    first = given[0]
    if not isinstance(first.emission, LinearEmission):
        predicts = getattr(first.site, "predicts_like", None)
        same = (
            all(predicts(o.site) for o in given)
            if predicts
            else all(_same_emission(o.emission, first.emission) for o in given)
        )
        return SiteEmission(first.site, changes=not same)
    if not all(_same_emission(o.emission, first.emission) for o in given):
        return SiteEmission(first.emission, changes=True)
    if all(same_tensor(o.offset, first.offset) for o in given):
        return SiteEmission(first.emission, first.offset)
    like = next(o.offset for o in given if o.offset is not None)
    offset = stack_steps(
        steps, batch, lambda s: None if by_step[id(s)] is None else by_step[id(s)].offset, event=first.event, like=like
    )
    return SiteEmission(first.emission, offset, changes=True)


def _without_missing(data: Tensor, seen: Tensor | None) -> Tensor:
    """Data with zeros where nothing was seen: NaN times zero would be NaN, in gradients too."""
    if seen is None or not data.is_floating_point():
        return data
    return torch.where(seen.reshape(*seen.shape, *(1,) * (data.dim() - seen.dim())), data, 0.0)


def _of_all_rows(matrix: Tensor) -> Tensor:
    """(T, h, h) of a matrix (T, 1, .., 1, h, h) that is the same for all rows."""
    return matrix.flatten(1, -3)[:, 0] if matrix.dim() > 3 and matrix.shape[1:-2].numel() == 1 else matrix


def _same_emission(left, right) -> bool:
    if isinstance(left, LinearEmission):
        return left.same(right)
    return type(left) is type(right) and left.emission is right.emission


def _evidence_of(emission, data: Tensor, rows: int) -> Evidence | LinearEvidence:
    """What one observation says; with :class:`Timed` parts where it stands for many steps that differ."""
    if not isinstance(data, Timed) and not getattr(emission, "timed", False):
        return emission.evidence(data)
    if getattr(emission, "timed", False):
        emission = emission.of_all_steps(rows)
    found = emission.evidence(all_steps(data, 1, rows))
    if isinstance(found, LinearEvidence):
        which = None if found.which is None else Timed.of(found.which)
        return LinearEvidence(Timed.of(found.residual), found.loadings, found.noise, which, found.observed)
    found = Evidence(*found)
    # time is in front of all rows: of a matrix that is the same for some, too
    lead = rows + 1
    matrix = found.matrix if found.matrix.dim() < lead + 2 else Timed.of(found.matrix)
    return Evidence(Timed.of(found.vector), matrix, Timed.of(found.constant))


def _by_step(steps, by_step, batch: torch.Size, recording: Recording) -> Evidence | LinearEvidence:
    """Evidence of emissions that change from step to step."""
    size = len(recording.zero)
    parts: dict[int, Evidence | LinearEvidence | None] = {}
    for step in steps:
        o = by_step[id(step)]
        if o is None or o.data is None:
            parts[id(step)] = None
            continue
        mask = None if not says(o.mask) else torch.as_tensor(o.mask)
        parts[id(step)] = _evidence_of(o.emission, _without_missing(o.data, mask), len(step.shape))
    like = recording.zero
    said: list[Any] = [part for part in parts.values() if part is not None]
    if all(isinstance(part, LinearEvidence) for part in said) and len({part.residual.shape[-1] for part in said}) == 1:
        return _numbers_by_step(steps, parts, batch, said)
    parts = {key: None if part is None else Evidence(*part) for key, part in parts.items()}

    def part(name):
        return lambda s: None if parts[id(s)] is None else getattr(parts[id(s)], name)

    vector = stack_steps(steps, batch, part("vector"), event=(size,), like=like.new_zeros(size))
    constant = stack_steps(steps, batch, part("constant"), event=(), like=like.new_zeros(()))
    matrix = stack_steps(steps, torch.Size(), part("matrix"), event=(size, size), like=like.new_zeros(size, size))
    matrix = _of_all_rows(matrix)
    if matrix.dim() > 3:
        shape, rows = vector.shape[1:-1], matrix.shape[1:-2]  # of fewer plates, perhaps: these stand behind time
        matrix = matrix.reshape(len(matrix), *(1,) * (len(shape) - len(rows)), *rows, size, size)
        matrix = matrix.expand(len(vector), *shape, size, size)
    return Evidence(vector, matrix, constant)


def _numbers_by_step(steps, parts: dict, batch: torch.Size, said: list[LinearEvidence]) -> LinearEvidence:
    """Numbers whose loadings and noise change from step to step."""
    n, h = said[0].residual.shape[-1], said[0].loadings.shape[-1]
    loadings, noises, observed, which = [], [], [], {}
    for step in steps:
        part = parts[id(step)]
        if part is None:
            continue
        own = part.tables()
        kinds = max(len(table) for table in own if table is not None)
        first = sum(map(len, loadings))
        which[id(step)] = first + (
            torch.zeros((), dtype=torch.long, device=part.residual.device) if part.which is None else part.which
        )
        loadings.append(own[0].expand(kinds, n, h))
        noises.append(own[1].expand(kinds, n, n))
        everything = torch.ones(1, n, dtype=torch.bool, device=part.residual.device)
        observed.append((everything if own[2] is None else own[2]).expand(kinds, n))

    def residual(s):
        return None if parts[id(s)] is None else parts[id(s)].residual

    like = said[0].residual
    numbers = stack_steps(steps, batch, residual, event=(n,), like=like)
    kind = stack_steps(
        steps, batch, lambda s: which.get(id(s)), like=torch.zeros((), dtype=torch.long, device=like.device)
    )
    return LinearEvidence(
        numbers, torch.cat(loadings), torch.cat(noises), kind.expand(numbers.shape[:-1]), torch.cat(observed)
    )
