"""Fitting an input-output HMM: many restarts as one batch, and the choice among them."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.infer.fit.em import Batch, FitHistory
from pplseq.models.batch import split_rows
from pplseq.models.fitting import HeldOut, about_data, about_fit, check_options, fit_best
from pplseq.models.iohmm.data import PARTS
from pplseq.models.iohmm.embeddings import EmbeddedNetwork
from pplseq.models.iohmm.input_units import units_note
from pplseq.models.iohmm.parameters import FLOOR, IOParameters
from pplseq.models.iohmm.restarts.choice import CHOICES, choose_restart
from pplseq.models.iohmm.restarts.cluster import fit_on
from pplseq.models.iohmm.restarts.em import EMRun
from pplseq.models.iohmm.restarts.gaussian import GaussianOutputs
from pplseq.models.iohmm.restarts.gradient import SGDRun
from pplseq.models.iohmm.restarts.history import RestartBlock, RestartHistory, RestartRun, Restarts
from pplseq.models.iohmm.restarts.networks import RestartNetwork
from pplseq.models.iohmm.restarts.outputs import BernoulliOutputs, CategoricalOutputs, Outputs, Parameters
from pplseq.models.iohmm.restarts.problem import RestartProblem
from pplseq.models.iohmm.restarts.responses import ResponseOutputs
from pplseq.models.iohmm.restarts.starts import draw_parameters
from pplseq.models.iohmm.restarts.stationary import StationaryStart
from pplseq.models.iohmm.restarts.training import RestartTraining
from pplseq.runs.fits import IMPOSSIBLE
from pplseq.runs.loop import digest, run_training
from pplseq.runs.progress import recorder

METHODS = ("em", "gem", "sgd", "svi", "nuts")
FITTERS = {"em": EMRun, "gem": EMRun, "sgd": SGDRun}
CELLS = 1 << 25  # numbers in the largest tensors of restarts that are fitted together


class FitPlan(NamedTuple):
    """How a fit goes about it; see :meth:`~pplseq.models.iohmm.program.IOHMM.fit`."""

    method: str
    blocks: list[RestartBlock]
    select: str
    warm_start: bool
    batch_size: int | None
    options: dict[str, Any]
    folder: str | Path | None = None
    resume: bool = False
    max_time: float | None = None
    progress: bool = False
    on_record: Callable[[dict[str, Any]], None] | None = None
    cluster: Any = None
    early_stop: int | None = None
    boxes: Mapping[str, tuple[Tensor, Tensor]] = {}

    @property
    def on_disk(self) -> bool:
        """Whether it is a run, with checkpoints or a limit of time."""
        return self.folder is not None or self.max_time is not None or self.resume

    def about(self, model: IOParameters, batch: Batch, validation: HeldOut | None) -> dict[str, Any]:
        """What a resumed fit must be given alike."""
        boxes = {"bounds": {name: digest(*both) for name, both in self.boxes.items()}} if self.boxes else {}
        return boxes | {
            **about_fit(model, self.method, self.options), **about_data(batch), "fixed": sorted(model._not_free),
            "num_restarts": list(map(repr, self.blocks)), "select": self.select, "batch_size": self.batch_size,
            "validation": validation and validation.about,
        }  # fmt: skip

    @classmethod
    def of(
        cls, model: IOParameters, method: str, num_restarts, select: str, warm_start: bool, batch_size: int | None,
        options: dict[str, Any],
    ) -> FitPlan:  # fmt: skip
        """A plan whose parts go together.

        Raises:
            ValueError, TypeError: where they do not.
        """
        checks.choice("method", method, METHODS)
        checks.choice("select", select, CHOICES)
        if method in ("svi", "nuts") and model.priors is None:
            raise ValueError(
                f"method {checks.shown(method)} needs priors: make the model with priors=True, or with WeightPriors(...)"
            )
        own = ("blocks", "precisions", "gradient", "boxes", "validation", "early_stop")
        check_options(model, method, options, FITTERS.get(method), own=own)
        for name, least in (("max_iterations", 1), ("num_steps", 1), ("tolerance", 0.0)):
            if name in options:
                options[name] = checks.number(name, options[name])
                if options[name] < least:
                    raise ValueError(f"{name} must be at least {least}, got {options[name]}")
        blocks = as_blocks(num_restarts)
        total = sum(block.num_restarts for block in blocks)
        if total > 1 and (warm_start or method in ("svi", "nuts")):
            why = "a warm start has one starting point" if warm_start else f"method {method!r} has one start"
            raise ValueError(f"num_restarts: {why}, got {total}")
        if method not in ("sgd", "svi") and batch_size is not None:
            raise ValueError(
                f"batch_size: mini-batches are for methods 'sgd' and 'svi'; {checks.shown(method)} sees all sequences at once"
            )
        return cls(method, blocks, select, warm_start, batch_size, options)


def fit_model(model: IOParameters, batch: Batch, validation: HeldOut | None, plan: FitPlan) -> FitHistory:
    """Leaves the model at what the fit has found."""
    told = plan.progress or plan.on_record is not None
    if plan.cluster is not None and (plan.on_disk or told or plan.method not in ("em", "gem")):
        why = "folder, max_time, progress, on_record" if plan.on_disk or told else f"method {plan.method!r}"
        raise ValueError(f"cluster: restarts of 'em' and 'gem' are fitted there, whole; leave out {why}, or cluster")
    if plan.method in ("svi", "nuts") and plan.on_disk:
        raise ValueError(f"folder, max_time: a fit by {plan.method!r} cannot be interrupted; use 'em' or 'sgd'")
    if (note := units_note(model, batch, plan.method)) is not None:  # before the fit, which may take long
        warnings.warn(note, RuntimeWarning, stacklevel=4)
    check_held(model, plan.method)
    check_modules(model)
    if plan.method in ("svi", "nuts"):
        if not plan.warm_start:
            model.initialize(batch)
        with recorder(plan.progress, plan.on_record) as record:
            return fit_best(model, split_rows(batch, plan.batch_size), plan.method, plan.options, [], record)
    with recorder(plan.progress, plan.on_record) as record:
        return fit_restarts(model, batch, validation, plan._replace(on_record=record))


def check_held(model: IOParameters, method: str) -> None:
    """Raises ValueError where a method cannot hold the parameters that are held."""
    model._check_held(method)
    own = {name.removesuffix("_network"): [*part.parameters()] for name, part in model.parts.items()}
    for part, parameters in own.items():
        if part not in model._held_parts and not all(parameter.requires_grad for parameter in parameters):
            raise ValueError(f"fixed: parameters of {part!r} are held together: fixed=[{part!r}]")
    one = len({"emission", "noise"} & model._held_parts) == 1 and any(each.numel() for each in own.get("noise", ()))
    exact = model.outputs == "gaussian" and method == "em" and RestartNetwork(model.network("emission")).exact
    if one and method != "sgd" and not (exact and model.priors is None):
        raise ValueError("fixed: of these outputs 'emission' and 'noise' are held together, or by method 'sgd'")


def check_modules(model: IOParameters) -> None:
    """Raises ValueError for modules of the user's that learn from several steps together."""
    for name, part in model.parts.items():
        for module in part.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                raise ValueError(
                    f"{name.removesuffix('_network')}: a network of your own sees one step at a time, and values of a "
                    f"{type(module).__name__} depend on the other steps; use LayerNorm"
                )


def with_steps(batch: Batch) -> Batch:
    """Without empty rows, which say nothing."""
    if batch.lengths is None or bool((batch.lengths > 0).all()):
        return batch
    keep = batch.lengths > 0
    if not bool(keep.any()):
        raise ValueError("x must hold at least one step, got empty sequences only")

    states, inputs = batch.states, batch.inputs
    if isinstance(inputs, Mapping):
        inputs = {part: value[keep] for part, value in inputs.items()}
    elif inputs is not None:
        inputs = inputs[keep]
    return Batch(batch.x[keep], batch.lengths[keep], None if states is None else states[keep], inputs)


def settle_embeddings(model: IOParameters, batch: Batch) -> None:
    """Symbols of which the batch tells a part's network nothing get the mean vector of the others."""
    inputs = model.format.network_inputs(batch.x, batch.inputs, batch.lengths)
    for part, value in inputs.items():
        if f"{part}_network" not in model.parts or not isinstance(network := model.network(part), EmbeddedNetwork):
            continue
        assert value is not None
        if value.dim() == 2:  # of the first step
            network.settle(value)
            continue
        steps = torch.arange(value.shape[1], device=value.device)
        told = steps.expand(value.shape[:2]) < (value.shape[1] if batch.lengths is None else batch.lengths.unsqueeze(-1))
        if part == "emission":
            told &= model.observed(batch.x)[1]
        elif model.config["initial"] != "transition":
            told[:, 0] = False
        network.settle(value[told])


def restart_problem(model: IOParameters, batch: Batch, networks: dict[str, Any] | None = None) -> RestartProblem:
    """Data and networks as the learning side sees them; ``networks``: of another problem of the model."""
    networks = restart_networks(model, batch) if networks is None else networks
    x, known = model.observed(batch.x)
    states = batch.states
    if model.outputs == "states":  # targets are what is known of the states
        states = torch.where(known, x, -1 if states is None else states)
        known = torch.zeros_like(known)
    rows, steps = batch.x.shape[:2]
    lengths = torch.full((rows,), steps, device=x.device) if batch.lengths is None else batch.lengths
    inputs = model.format.network_inputs(batch.x, batch.inputs, batch.lengths)
    before_first = model.config["initial"] == "transition"
    if isinstance(outputs := networks["outputs"], GaussianOutputs):
        outputs.hold_means = "emission" in model._held_parts
    return RestartProblem(
        held=model._held_parts,
        **networks, x=x, known=known, inputs=inputs, lengths=lengths, states=states, before_first=before_first
    )


def restart_networks(model: IOParameters, batch: Batch) -> dict[str, Any]:
    """Start, transitions and outputs with R sets of weights at once; variances have floors relative to those of the batch."""
    transition = RestartNetwork(model.network("transition"), model.graph)
    stationary = model.config["initial"] == "stationary"
    initial = StationaryStart(transition) if stationary else RestartNetwork(model.network("initial"), model.start_states)
    result: dict[str, Any] = {"initial": initial, "transition": transition}
    if model.outputs == "states":
        return result | {"outputs": Outputs(model.num_states)}
    network = RestartNetwork(model.network("emission"))
    if model.columns is not None:
        return result | {"outputs": ResponseOutputs(network, model.columns, model.least_variances(batch))}
    if model.outputs == "gaussian":
        covariance = model.config["covariance"]
        return result | {"outputs": GaussianOutputs(network, covariance, model.least_variances(batch))}
    return result | {"outputs": (CategoricalOutputs if model.outputs == "categorical" else BernoulliOutputs)(network)}


# ---------------------------------------------------------------- parameters
def _named(model: IOParameters) -> dict[str, dict[str, Tensor]]:
    """The parameters by part ("noise" among them)."""
    return {name.removesuffix("_network"): dict(part.named_parameters()) for name, part in model.parts.items()}


def _as_restart(model: IOParameters) -> Parameters:
    named = {"initial": {}} | _named(model)  # a stationary start has no weights
    return {p: {k: v.detach().unsqueeze(-1).clone() for k, v in w.items()} for p, w in named.items()}


@torch.no_grad()
def load_restart(model: IOParameters, parameters: Parameters, restart: int) -> None:
    """Gives the model the parameters of one restart."""
    for part, weights in _named(model).items():
        for name, value in weights.items():
            new = parameters[part][name][..., restart]
            if part == "emission" and model.outputs == "bernoulli" and name == "logits":  # logits of 0 and 1 stay finite
                new = new.clamp(*(sign * math.log(torch.finfo(new.dtype).tiny) for sign in (1, -1)))
            value.copy_(new)


# ---------------------------------------------------------------- restarts
def fit_restarts(model: IOParameters, batch: Batch, validation: HeldOut | None, plan: FitPlan) -> RestartHistory:
    """All restarts as one batch, or as few as fit into memory; the model gets the parameters of the chosen one."""
    networks = restart_networks(model, batch)
    problem = restart_problem(model, batch, networks)
    if problem.num_targets == 0 and problem.seen.states is None:
        raise ValueError("x must hold at least one target, got missing ones only")
    guesses = not (model.format.discrete or plan.warm_start) and problem.seen.states is None
    if guesses and problem.num_targets < model.num_states:  # as of an HMM
        raise ValueError(f"x: {model.num_states} states need at least as many observations, got {problem.num_targets}")
    precisions = {}
    if model.priors is not None:
        precisions = {name: getattr(model.priors, name) ** -2 for name in (*PARTS, "noise")}
    problems = [problem]
    if plan.batch_size is not None:
        problems = [restart_problem(model, part, networks) for part in split_rows(batch, plan.batch_size)]
    groups, loud = _groups(plan.blocks, problem), []
    block = torch.repeat_interleave(torch.arange(len(plan.blocks)), torch.tensor([b.num_restarts for b in plan.blocks]))
    held_out = None if validation is None else restart_problem(model, with_steps(validation.batch), networks)
    looks = {"validation": held_out, "early_stop": plan.early_stop}
    history: RestartHistory | None = None

    def draw_group(number: int) -> tuple[Parameters, list[RestartBlock]]:
        own, group = _as_restart(model), groups[number]
        if plan.warm_start:
            return own, group
        drawn = draw_parameters(problem, group)
        for part in problem.held:
            drawn[part] = {name: own[part][name].expand_as(value).clone() for name, value in drawn[part].items()}
        return drawn, group

    def begin_group(number: int) -> RestartRun:
        problem.forget()
        parameters, blocks = draw_group(number)
        common: dict[str, Any] = dict(blocks=blocks, precisions=precisions, **looks, **plan.options)
        if plan.method == "sgd":
            return SGDRun(problems, parameters, boxes=plan.boxes, **common)
        return EMRun(problem, parameters, gradient=plan.method == "gem", **common)

    def conclude(parts: Sequence[Restarts]) -> str:
        nonlocal history
        result = Restarts.join(list(parts))
        result.block = block[: len(result)]
        _check_possible(problem, result)
        free = model.num_free_parameters
        notes = choose_restart(result, problem, plan.select, validation=held_out, num_free_parameters=free)
        load_restart(model, result.parameters, result.chosen)
        if not plan.warm_start and model.priors is None:  # else earlier data, or the prior, tell of symbols that these lack
            settle_embeddings(model, batch)
        history = _history(model, plan, problem, result, notes, loud)
        return history.reason

    load = functools.partial(load_restart, model)
    if plan.cluster is not None:
        common = dict(precisions=precisions, **looks, gradient=plan.method == "gem", **plan.options)
        conclude(fit_on(plan.cluster, problem, [draw_group(number) for number in range(len(groups))], common))
        return _told(history, loud)
    training = RestartTraining(begin_group, len(groups), load, conclude, model.save, problem.num_steps)
    if plan.folder is not None:
        training.about = plan.about(model, batch, validation)
    if plan.on_disk or plan.on_record is not None:
        run_training(
            training, folder=plan.folder, resume=plan.resume, max_time=plan.max_time, on_record=plan.on_record
        )
        if not training.ended():
            training.cut()
            cast(RestartHistory, history).reason = "max_time"
    while not training.ended():
        training.step()
    return _told(history, loud)


def _told(history: RestartHistory | None, loud: list[str]) -> RestartHistory:
    for note in loud:
        warnings.warn(note, RuntimeWarning, stacklevel=6)
    return cast(RestartHistory, history)


def _check_possible(problem: RestartProblem, result: Restarts) -> None:
    """Raises where no start can explain the data: it is the data, or the graph."""
    if not bool(torch.isneginf(result.log_likelihoods).all()):
        return
    log_prob = problem.log_prob(result.parameters)
    row = int(torch.isneginf(log_prob).all(1).nonzero()[:1].sum())
    raise ValueError(
        f"x: sequence {row} has probability zero under every start; check the graph, start_states and observed states"
    )


def _history(
    model: IOParameters, plan: FitPlan, problem: RestartProblem, result: Restarts, notes: list[str], loud: list[str]
) -> RestartHistory:
    """The history of the chosen restart; what the user is warned of goes into ``loud``."""
    chosen = result.chosen
    history = RestartHistory(plan.method, problem.num_steps, restarts=result)
    trace, objectives = result.trace[:, chosen], result.objectives[:, chosen]
    known = ~trace.isnan()
    if model.priors is not None:  # with the normalisers of the priors, which EM leaves out
        objectives = objectives + sum(
            float(model._prior_of(name, value.detach()).log_prob(torch.zeros_like(value)))
            for name, part in model.parts.items() for value in part.parameters()
        )  # fmt: skip
    history.log_likelihoods, history.log_posteriors = trace[known].tolist(), objectives[known].tolist()
    if plan.method == "sgd":
        history.losses = (-trace[known] / problem.num_steps).tolist()
        history.log_likelihoods = [float(result.log_likelihoods[chosen])]
        history.log_posteriors = [float(result.log_posteriors[chosen])]
    history.converged = bool(result.converged[chosen])
    steps = int(result.num_iterations[chosen])
    history.reason = "converged" if history.converged else f"{steps} steps done"
    scores = enumerate(result.validations[:, chosen].tolist())
    history.validations = [(iteration, nats) for iteration, nats in scores if not math.isnan(nats)]
    since = [step for step, _ in history.validations if step > (history.best_iteration or 0)]
    if not history.converged and len(since) == plan.early_stop:
        history.reason = "early_stop"
    history.note(notes)
    loud[:] = [note for note in notes if any("likelihood" in why for why in result.dropped.values())]
    if chosen in result.fell:
        history.reason = "the objective fell"
        todo = "use float64" if model.reference.dtype != torch.float64 else "scale inputs and outputs to similar spreads"
        loud.append(f"EM's objective fell by more than rounding: the parameters before are kept; {todo}")
    if chosen in result.empty:
        loud.append(f"states {', '.join(map(str, result.empty[chosen]))} of the chosen restart are empty")
    if chosen in result.floored:
        given = model.covariance_floor
        allowed = f"{FLOOR:g} of the outputs' own" if given is None else f"{given:g}"
        loud.append(
            f"a variance met its floor of {allowed}: fewer states may fit better, or a lower "
            "covariance_floor where the outputs' own variance is as small"
        )
    if history.validations and history.best_iteration is None:
        loud.append(IMPOSSIBLE)
    history.note(loud)
    return history


def as_blocks(num_restarts) -> list[RestartBlock]:
    """Blocks of restarts from a number, a block, or a list of blocks or of mappings of their arguments."""
    if isinstance(num_restarts, bool) or not isinstance(num_restarts, (int, RestartBlock, list, tuple)):
        came = type(num_restarts).__name__
        raise TypeError(f"num_restarts must be a number, a RestartBlock or a list of them, got {came}")
    if isinstance(num_restarts, int):
        return [RestartBlock(checks.count("num_restarts", num_restarts))]
    if isinstance(num_restarts, RestartBlock):
        return [num_restarts]
    blocks = [RestartBlock(**block) if isinstance(block, Mapping) else block for block in num_restarts]
    if not blocks or not all(isinstance(block, RestartBlock) for block in blocks):
        raise TypeError("num_restarts must list RestartBlock's, or mappings of their arguments")
    return blocks


def _groups(blocks: list[RestartBlock], problem: RestartProblem) -> list[list[RestartBlock]]:
    """The blocks cut into groups that fit into memory together."""
    num_states = problem.outputs.num_states
    numbers = problem.lattice.num_packed * num_states
    numbers *= num_states if problem.lattice.pair_index is None else 1
    most = max(1, CELLS // max(numbers, 1))
    groups, room = [[]], most
    for block in blocks:
        left = block.num_restarts
        while left:
            if room == 0:
                groups.append([])
                room = most
            now = min(left, room)
            groups[-1].append(block.replaced(now))
            left, room = left - now, room - now
    return groups
