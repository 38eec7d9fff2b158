"""Whether a fit by gradients begins with inputs far from 0 or in units far from their deviations, which it depends on."""

from __future__ import annotations

import torch

from pplseq.infer.fit.em import Batch
from pplseq.models.iohmm.estimates import input_names
from pplseq.models.iohmm.parameters import IOParameters

FAR = 3.0  # deviations between 0 and the mean
WIDE = 10.0  # deviations up to this, and down to its inverse, are near 1
VARIES = 1e-12  # of the mean: less is rounding


def units_note(model: IOParameters, batch: Batch, method: str) -> str | None:
    """What to say of inputs whose units matter: where EM has no closed form, steps of gradients are of one size for all.

    Indicators, 0 and 1 or -1 and 1, are as they should be however rare. Networks of the user's own may bring inputs to other
    units themselves.
    """
    found: dict[str, str] = {}
    kinds = ("layered", "embedded") if method == "em" else ("layered", "embedded", "linear")
    for part, value in model.format.check_inputs(batch.inputs, batch.x.shape[:2], batch.lengths).items():
        network = model.network(part) if f"{part}_network" in model.parts else None
        if network is None or network.kind not in kinds or not value.is_floating_point():
            continue
        rows = value[batch.valid]
        if not rows.numel():
            continue
        means, spreads = rows.mean(0), rows.std(0, correction=0)
        plain = (rows.abs() == 1).logical_or(rows == 0).all(0)
        constant = spreads <= VARIES * means.abs()
        odd = (means.abs() > FAR * spreads) | (spreads > WIDE) | (spreads < 1 / WIDE)
        odd = torch.where(constant, means.abs() > WIDE, odd) & ~plain
        odd[list(model.format.embeddings or ())] = False  # numbers of symbols
        names = input_names(model, part)
        for number in odd.nonzero().flatten().tolist():
            found.setdefault(names[number], f"{names[number]} is {float(means[number]):.3g} +- {float(spreads[number]):.3g}")
    if not found:
        return None
    what = "networks with hidden layers or embeddings depend" if method == "em" else f"fits by method {method!r} depend"
    rest = "" if len(found) <= 3 else f" and {len(found) - 3} more"
    return (
        f"inputs: {', '.join(list(found.values())[:3])}{rest} (mean +- standard deviation), and {what} on the "
        "units of inputs: bring them to mean 0 and deviation 1, (inputs - mean) / deviation by those of the training data, as "
        "`pplseq train iohmm` does, and leave out those that do not vary"
    )
