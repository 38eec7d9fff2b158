"""Input-output HMMs in every option, and data for them; shared by their tests."""

from __future__ import annotations

import torch

from pplseq.models import IOHMM
from pplseq.models.iohmm.queries import Outputs

LENGTHS = torch.tensor([5, 1, 3])
GRAPH = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 0]]).bool()

OPTIONS = {
    "symbols, moore": dict(num_symbols=3, num_outputs=2),
    "symbols, mealy": dict(num_symbols=3, num_outputs=2, mealy=True, initial="inputs"),
    "as the paper starts": dict(num_symbols=3, num_outputs=2, initial="transition", start_states=[0]),
    "graph": dict(num_inputs=2, num_outputs=4, graph=GRAPH),
    "left to right": dict(num_symbols=3, num_outputs=2, graph="left_right"),
    "bits": dict(num_inputs=2, outputs="bernoulli", num_outputs=2, mealy=True, initial="transition"),
    "vectors": dict(num_inputs=2, outputs="gaussian", num_outputs=2, mealy=True, initial="inputs"),
    "full covariances": dict(num_symbols=3, outputs="gaussian", num_outputs=2, covariance="full"),
    "tied covariance": dict(num_inputs=2, outputs="gaussian", num_outputs=2, covariance="tied", mealy=True),
    "spherical": dict(num_inputs=1, outputs="gaussian", num_outputs=1, covariance="spherical"),
    "columns": dict(
        num_inputs=2,
        outputs=["normal", "poisson", "categorical", "negative_binomial", "gamma", "binomial", "exponential", "bernoulli"],
        num_outputs=[1, 1, 3, 1, 1, 1, 1, 1],
        links=[None, "sqrt", None, None, None, "cloglog", None, "probit"],
        trials=4,
        mealy=True,
    ),
    "counts": dict(num_symbols=3, outputs="poisson", num_outputs=2),
    "states": dict(num_inputs=2, outputs="states", graph=GRAPH),
    "hidden layers": dict(num_inputs=2, num_outputs=3, mealy=True, initial="inputs", hidden=(4, 3)),
    "hidden layers of symbols": dict(num_symbols=3, num_outputs=3, mealy=True, initial="inputs", hidden=(2,)),
    "inputs of their own": dict(
        num_inputs={"initial": 1, "emission": 3},
        num_symbols={"transition": 2},
        num_outputs=2,
        mealy=True,
        initial="inputs",
    ),
    "only outputs see inputs": dict(num_inputs={"emission": 3}, num_outputs=2, mealy=True),
    "one state": dict(num_states=1, num_inputs=2, num_outputs=3, mealy=True),
    "no inputs": dict(num_inputs=0, num_outputs=3),
    "feedback of words": dict(num_symbols=2, num_outputs=3, mealy=True, feedback=True),
    "feedback of vectors": dict(num_inputs=1, outputs="gaussian", num_outputs=2, feedback="transition"),
    "feedback of bits": dict(num_symbols=3, outputs="bernoulli", num_outputs=1, mealy=True, feedback="emission"),
}


def make(name, **more):
    torch.manual_seed(2)
    options = {"num_states": 3} | OPTIONS[name] | more
    model = IOHMM(options.pop("num_states"), **options)
    if model.noise is not None:
        for value in model.noise.parameters():
            value.data.normal_(0, 0.5)
    return model


def source_values(source, rows, steps):
    kind, size = source
    return torch.randint(size, (rows, steps)) if kind == "symbols" else torch.randn(rows, steps, size).double()


def inputs_of(model, rows=3, steps=5):
    parts = {part: source_values(source, rows, steps) for part, source in model.sources.items() if source is not None}
    if len(set(model.sources.values()) - {None}) == 1:
        return parts.get("transition", next(iter(parts.values())))
    return parts


def outputs_of(coming):
    """What comes next as expected outputs."""
    outputs = coming.word_log_probs.exp() if coming.means is None else coming.means
    return Outputs(coming.state_log_probs.exp(), outputs, coming.covariances)


def data(model, rows=3, steps=5, missing=False, partly=False):
    """Outputs and inputs; some targets missing, or parts of them."""
    inputs = inputs_of(model, rows, steps)
    if model.outputs == "states":  # possible ones
        x = model.sample(inputs=inputs, seed=0)[0]
    elif model.format.discrete:
        x = torch.randint(model.num_outputs, (rows, steps))
    elif model.outputs == "bernoulli":
        x = torch.randint(2, (rows, steps, model.num_outputs)).double()
    elif model.columns is not None:
        x = torch.randn(rows, steps, model.num_outputs).double()
        for column in model.columns.columns:
            if column.family == "bernoulli":
                x[..., column.number] = (x[..., column.number] > 0).to(x)
            elif column.family in ("gamma", "exponential"):
                x[..., column.number] = x[..., column.number].exp()
            elif column.family != "normal":
                x[..., column.number] = (3 * x[..., column.number].exp()).floor().clamp_max(2)
    else:
        x = torch.randn(rows, steps, model.num_outputs).double()
    if missing:
        x[0, 1], x[0, 4], x[2, 0] = (model.format.missing(1, 1)[0, 0] for _ in range(3))
    if partly and x.is_floating_point():
        x[0, 2, 0] = x[2, 1, -1] = x[1, 0, 0] = torch.nan
    return x, inputs
