"""Where restarts of an input-output HMM begin: R parameter sets drawn at once, block by block."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Gamma

from pplseq.models.iohmm.restarts.gaussian import GaussianOutputs
from pplseq.models.iohmm.restarts.history import RestartBlock
from pplseq.models.iohmm.restarts.networks import Penalty, RestartNetwork, Rows, in_units_of
from pplseq.models.iohmm.restarts.outputs import BernoulliOutputs, Parameters
from pplseq.models.iohmm.restarts.problem import RestartProblem
from pplseq.models.iohmm.restarts.responses import ResponseOutputs
from pplseq.models.iohmm.restarts.stationary import StationaryStart


def draw_parameters(problem: RestartProblem, blocks: Sequence[RestartBlock]) -> Parameters:
    """Random parameters of all blocks' restarts, from torch's generator.

    Tables are drawn from Dirichlet (for bits: Beta) distributions, weights of generalised linear models and of layers from
    normal ones, in units of the inputs' deviations from their mean; Gaussian means are targets picked at random, with slopes no
    steeper than targets vary, and their covariances those of all targets.
    """
    drawn = [_draw(problem, block) for block in blocks]
    parameters = {
        part: {name: torch.cat([one[part][name] for one in drawn], -1) for name in weights}
        for part, weights in drawn[0].items()
    }
    return parameters if problem.seen.states is None else _from_known(problem, parameters)


def _from_known(problem: RestartProblem, parameters: Parameters) -> Parameters:
    """The same with outputs of states that are observed at some steps fitted to these, and a little to all, as a step more."""
    seen, index, like = problem.seen, problem.lattice.emit_index, next(iter(parameters["transition"].values()))
    assert seen.states is not None
    count = torch.ones(len(seen.x)).to(like) if index is None else torch.bincount(index, minlength=len(seen.x)).to(like)
    known = (seen.states >= 0) & seen.known
    labelled = seen.states[known].unique()
    if not len(labelled) or not problem.outputs.names:
        return parameters
    visits = count.new_zeros(problem.outputs.num_states, len(count))
    visits[labelled] = count * seen.known / (count * seen.known).sum()
    visits[seen.states[known], known.nonzero().flatten()] += count[known]
    visits = visits.unsqueeze(-1).expand(*visits.shape, like.shape[-1]).contiguous()
    return parameters | problem.outputs.maximize(parameters, seen, visits, Penalty(None, 0.0, 0.0), False)[0]


def _draw(problem: RestartProblem, block: RestartBlock) -> Parameters:
    initial, transition, outputs = problem.initial, problem.transition, problem.outputs
    result = {"transition": _network(transition, block, problem.rows)}
    result["initial"] = {} if isinstance(initial, StationaryStart) else _network(initial, block, problem.start_rows)
    if block.fixed_start and initial.kind == "constant":
        logits = torch.full_like(result["initial"]["logits"], -torch.inf)
        first = 0 if initial.forbidden is None else int((~initial.forbidden).nonzero()[0])
        logits[first] = 0.0
        result["initial"]["logits"] = logits
    if not outputs.names:
        return result
    if isinstance(outputs, ResponseOutputs):
        return result | outputs.start(problem.seen, block.scale, block.num_restarts, _network(outputs.network, block))
    # means of Gaussians that are linear have units of their own, below
    linear = isinstance(outputs, GaussianOutputs) and outputs.network.network.linear_weight is not None
    rows = None if linear else problem.seen.rows
    result["emission"] = _network(outputs.network, block, rows, bits=isinstance(outputs, BernoulliOutputs))
    if isinstance(outputs, GaussianOutputs):
        result["emission"], result["noise"] = _gaussian(problem, outputs, block, result["emission"])
    return result


def _like(network: RestartNetwork) -> Tensor:
    return next(iter(network.network.parameters()))


def _network(
    network: RestartNetwork, block: RestartBlock, rows: Rows | None = None, bits: bool = False
) -> dict[str, Tensor]:
    """Weights, in units of the rows' inputs if these are given."""
    like, count = _like(network), block.num_restarts
    if network.kind in ("constant", "table"):
        shape = network.network.logits.shape
        if bits:
            ones, zeros = (_log_gamma(block.concentration, (*shape, count), like) for _ in range(2))
            return {"logits": ones - zeros}
        logits = _log_gamma(block.concentration, (*shape[:-1], count, shape[-1]), like)
        if network.forbidden is not None:
            logits = logits.masked_fill(network.forbidden.unsqueeze(-2), -torch.inf)
        logits = torch.log_softmax(logits, -1)
        if network.forbidden is not None:  # of which nothing depends but their priors, highest at 0
            logits = logits.masked_fill(network.forbidden.unsqueeze(-2), 0.0)
        return {"logits": logits.transpose(-1, -2).contiguous()}
    if network.kind == "linear":
        shape = network.network.weight.shape
        weight = block.scale * torch.randn(*shape, count, dtype=like.dtype, device=like.device)
        if rows is not None:
            in_units_of(rows.features[..., :-1], weight)
        return {"weight": weight}
    copies, one = [], copy.deepcopy(network.network)
    for _ in range(count):
        if network.kind in ("layered", "embedded"):
            one.randomise(block.scale)
        else:
            for module in one.modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()
        copies.append({name: value.detach().clone() for name, value in one.named_parameters()})
    drawn = {name: torch.stack([each[name] for each in copies], -1) for name in copies[0]}
    if network.kind == "layered" and network.network.input_dims and rows is not None:
        in_units_of(rows.features, drawn["layers.0"])
    if network.kind == "embedded" and rows is not None:
        _plain_in_units_of(network.network, rows, drawn)
    return drawn


def _plain_in_units_of(network, rows: Rows, weights: dict[str, Tensor]) -> None:
    """The same for inputs that hold no symbols, which come before the vectors of those that do."""
    first = weights[network.first_weight]
    places = [*range(len(network.plain)), -1]
    own = first[..., places, :, :]
    in_units_of(rows.features[..., network.plain], own)
    first[..., places, :, :] = own


def _log_gamma(concentration: float, shape, like: Tensor) -> Tensor:
    """Logarithms of gamma variates, whatever their size (those of shape below 1 underflow)."""
    shape_plus = torch.full(shape, concentration + 1.0, dtype=like.dtype, device=like.device)
    uniform = torch.rand(shape, dtype=like.dtype, device=like.device).clamp_min(torch.finfo(like.dtype).tiny)
    return Gamma(shape_plus, torch.ones_like(shape_plus)).sample().log() + uniform.log() / concentration


def _gaussian(problem, outputs, block, emission):
    seen, count = problem.seen, block.num_restarts
    targets, num_states, size = seen.x[seen.known], outputs.num_states, seen.x.shape[-1]
    if seen.present is not None:  # missing dimensions at their column's mean
        there = seen.present[seen.known]
        targets = torch.where(there, targets, (targets * there).sum(0) / there.sum(0).clamp_min(1))
    eye = torch.eye(size, dtype=targets.dtype, device=targets.device)
    if len(targets) == 0:
        raise ValueError("x must hold at least one target to start from, got none")
    picked = targets[torch.randint(len(targets), (num_states, count), device=targets.device)].transpose(
        1, 2
    )  # (Z, D, R)
    kind = outputs.network.kind
    if kind in ("constant", "table"):
        emission = {"logits": picked.expand(emission["logits"].shape).clone()}
    spread = torch.cov(targets.T).reshape(size, size) if len(targets) > 1 else eye
    if kind == "linear":
        # slopes as steep as targets vary, whatever their units: others would begin all states but one far from any
        emission["weight"] *= spread.diagonal().sqrt().unsqueeze(-1)
        emission["weight"][..., -1, :, :] = picked
        in_units_of(seen.rows.features[..., :-1], emission["weight"])
    elif (linear := outputs.network.network.linear_weight) is not None:
        emission[linear] *= spread.diagonal().sqrt().unsqueeze(-1)
        emission[linear][..., -1, :, :] = picked
        _plain_in_units_of(outputs.network.network, seen.rows, emission)
    spread = spread + torch.as_tensor(outputs.floor).to(eye) * eye
    if outputs.covariance in ("diag", "spherical"):
        variance = spread.diagonal() if outputs.covariance == "diag" else spread.diagonal().mean(0, keepdim=True)
        return emission, {"log_scale": (variance.log() / 2)[:, None].expand(num_states, -1, count).clone()}
    tril = torch.linalg.cholesky(spread)
    raw = tril.tril(-1) + torch.diag(tril.diagonal().log())
    states = () if outputs.covariance == "tied" else (num_states,)
    return emission, {"scale_tril": raw.unsqueeze(-1).expand(*states, size, size, count).clone()}
