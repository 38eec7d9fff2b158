"""The parameters of an input-output HMM as its summary tells them: with names, and only what data can say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pplseq.models.iohmm.networks import GaussianNoise, masked_log_softmax, scale_tril
from pplseq.models.parts.responses import Dispersions

if TYPE_CHECKING:
    from pplseq.models.iohmm.parameters import IOParameters

CONSTANT = "1"  # the name of a constant among inputs, as formulas write it


def estimates_of(model: IOParameters) -> dict[str, Tensor]:
    """Parameters by name, differentiable.

    Tables are probabilities, or means. Of softmax regressions only differences from a first outcome (of those that are allowed)
    say something: "transition[0->2].u1" is how much the log odds of a move from 0 to 2 against the first move from 0 grow with
    input u1; "initial[2].u1" and "emission[0].x0=2.u1" are alike. Other regressions are told as they are, "emission[0].x0.u1",
    on the scale of the link; "1" is the constant.

    Raises:
        ValueError: for networks with hidden layers, embeddings or of the user's, whose weights have no meaning one by one.
    """
    found: dict[str, Tensor] = {}
    for name in model.parts:
        kind = "" if name == "noise" else model.network(name.removesuffix("_network")).kind
        if what := {"layered": "has hidden layers", "embedded": "embeds symbols", "module": "is one of your own"}.get(kind):
            raise ValueError(
                f"summary: the {name.replace('_', ' ')} {what}, whose weights mean nothing one by one; ask effect_curves what "
                "it does, or use a model without hidden and embeddings"
            )
    if "initial_network" in model.parts:
        found |= _softmax(model, "initial", model.start_states)
    found |= _softmax(model, "transition", model.graph)
    if "emission_network" in model.parts:
        if model.columns is not None:
            found |= dict(_columns(model))
        elif model.outputs == "categorical":
            found |= _softmax(model, "emission", None)
        else:
            found |= _plain(model)
    if isinstance(model.noise, GaussianNoise):
        noise = dict(model.noise.named_parameters())
        if "log_scale" in noise:
            found["scale"] = noise["log_scale"].exp()
        else:
            tril = scale_tril(noise["scale_tril"])
            found["covariance"] = tril @ tril.mT
    elif isinstance(model.noise, Dispersions):
        found |= {f"{name}.{output_name(model, column.number)}": value for column, name, value in model.noise.values()}
    return found


def input_names(model: IOParameters, part: str) -> list[str]:
    """Of what a part's regression is on, the constant last."""
    source, named = model.format.source(part), model.input_names.get(part, [])
    size = 0 if source is None else source[1]  # past outputs behind the inputs
    if not named and source is not None and source[0] == "vectors":
        named = list((model.input_column_names or ())[:size])
    return [*named, *(f"u{number}" for number in range(len(named), size)), CONSTANT]


def output_name(model: IOParameters, number: int) -> str:
    """Of a column of outputs."""
    names = model.output_names or model.column_names
    return f"x{number}" if names is None else names[number]


def _softmax(model: IOParameters, part: str, allowed: Tensor | None) -> dict[str, Tensor]:
    network: Any = model.network(part)
    if network.kind in ("constant", "table"):
        return {part: masked_log_softmax(network.logits, allowed).exp()}
    weight = network.weight if network.weight.dim() == 3 else network.weight.unsqueeze(0)  # (Z or 1, U + 1, K)
    mask = torch.ones(len(weight), weight.shape[-1], dtype=torch.bool) if allowed is None else allowed.reshape(len(weight), -1)
    named: dict[str, Tensor] = {}
    for state, (own, possible) in enumerate(zip(weight, mask.tolist(), strict=True)):
        outcomes = [outcome for outcome, yes in enumerate(possible) if yes]
        names = [_outcome(model, part, state, outcome) for outcome in outcomes[1:]]
        contrasts = own[:, outcomes[1:]] - own[:, outcomes[:1]]
        named |= dict(_named(names, input_names(model, part), contrasts))
    return named


def _state(model: IOParameters, state: int) -> str:
    return str(state) if model.state_names is None else model.state_names[state]


def _outcome(model: IOParameters, part: str, state: int, outcome: int) -> str:
    if part == "emission":
        return f"emission[{_state(model, state)}].x={outcome}"
    to = _state(model, outcome)
    return f"initial[{to}]" if part == "initial" else f"transition[{_state(model, state)}->{to}]"


def _named(names: Sequence[str], inputs: Sequence[str], values: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Single numbers of (U + 1, K)."""
    for place, name in enumerate(names):
        for row, of in enumerate(inputs):
            yield f"{name}.{of}", values[row, place]


def _plain(model: IOParameters) -> dict[str, Tensor]:
    """Means of vectors, or probabilities of ones, and regressions of them (of their log odds)."""
    network: Any = model.network("emission")
    if network.kind in ("constant", "table"):
        return {"emission": network.logits.sigmoid() if model.outputs == "bernoulli" else network.logits}
    named: dict[str, Tensor] = {}
    for state, own in enumerate(network.weight):
        names = [f"emission[{_state(model, state)}].{output_name(model, number)}" for number in range(model.num_outputs)]
        named |= dict(_named(names, input_names(model, "emission"), own))
    return named


def _columns(model: IOParameters) -> Iterator[tuple[str, Tensor]]:
    network: Any = model.network("emission")
    columns = model.columns
    assert columns is not None
    for column in columns.columns:
        name = output_name(model, column.number)
        if network.kind in ("constant", "table"):
            eta = network.logits[..., column.predictors]
            mean = column.mean(eta)
            yield f"emission.{name}", mean if column.family == "categorical" else mean[..., 0]
            continue
        for state, own in enumerate(network.weight[..., column.predictors]):
            names = [f"emission[{_state(model, state)}].{name}"]
            if column.family == "categorical":
                names = [f"emission[{_state(model, state)}].{name}={outcome}" for outcome in range(1, column.size)]
                own = own[:, 1:] - own[:, :1]
            yield from _named(names, input_names(model, "emission"), own)
