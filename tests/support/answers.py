"""What a model says of data: the same questions of every model, and the tensors that their answers hold."""

import warnings

import torch

from support.model_cases import DISCRETE


def parts(value):
    """What a result holds, one behind the other."""
    if isinstance(value, (torch.Tensor, float, int, str, type(None))):
        return [value]
    inside = value if isinstance(value, (list, tuple)) else (value if isinstance(value, dict) else vars(value)).values()
    return [part for inner in inside for part in parts(inner)]


def asked(case, model, x, lengths, known):
    """Answers that do not depend on chance."""
    with_gap = x.clone()
    with_gap[0, 1] = torch.nan if x.is_floating_point() else -1
    future = {"future_inputs": known["inputs"][:, :2]} if "inputs" in known else {}
    answers = {
        "score": lambda: model.score(x, lengths, **known),
        "filter": lambda: model.filter(x, lengths, **known),
        "smooth": lambda: model.smooth(x, lengths, **known),
        "decode": lambda: model.decode(x, lengths, **known),
        "forecast": lambda: model.forecast(x, 2, lengths, **known, **future),
    }
    found = {verb: ask() for verb, ask in answers.items() if verb in case.verbs | case.own}
    found["with a gap"] = model.score(with_gap, lengths, **known)
    if case in DISCRETE.values() and not x.is_floating_point() and "forecast" in case.verbs:
        found["infill"] = model.infill(with_gap, lengths, **known)
    return found


def fit_a_step(model, method, x, lengths, known):
    """The shortest fit that there is."""
    options = {"method": method} | ({"max_iterations": 1} if method == "em" else {"num_steps": 1})
    if type(model).__name__ == "VLHMM":
        options = {"epochs": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of one step, after which no information is positive
        model.fit(x, lengths, seed=0, **known, **options)
