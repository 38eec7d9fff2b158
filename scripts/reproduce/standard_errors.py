"""Whether standard errors are right: fits to simulated data, the spread of estimates, and how often intervals hold the truth.

    python scripts/reproduce/standard_errors.py --fits 500

Of every family a model with known parameters draws data sets; each is fitted from the true parameters (so that states keep
their numbers), and `summary` gives standard errors and intervals. Written to results/standard_errors.json: of every parameter
the truth, the spread of the estimates, their standard errors, and the share of 90 % intervals that hold the truth.
"""

from __future__ import annotations

import copy
import json
import platform
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import torch

from pplseq.models import ARHMM, HMM, IOHMM, LDS

REPOSITORY = Path(__file__).parents[2]
MOVES = [[0.9, 0.1], [0.2, 0.8]]
ROWS, STEPS = 20, 50


def gaussian_hmm():
    model = HMM(2, num_features=1).double()
    return model.set_parameters(initial=[0.5, 0.5], transition=MOVES, loc=[[0.0], [2.0]], covariance=[[1.0], [0.5]]), {}


def poisson_hmm():
    model = HMM(2, emission="poisson").double()
    return model.set_parameters(initial=[0.5, 0.5], transition=MOVES, rate=[[2.0], [7.0]]), {}


def word_hmm():
    emission = [[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]]
    return HMM(2, 3).double().set_parameters(initial=[0.6, 0.4], transition=MOVES, emission=emission), {}


def iohmm():
    """States that follow inputs, outputs that do not."""
    model = IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=1).double()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(0.7 * torch.randn(value.shape, dtype=value.dtype) if "network" in name else value)
    x = torch.randn(ROWS, STEPS, 1).double() + 3 * (torch.arange(STEPS) // 10 % 2).unsqueeze(-1)
    inputs = torch.randn(ROWS, STEPS, 1).double()
    model.fit(x, inputs=inputs, seed=0)  # a model that is somewhere sensible
    return model, {"inputs": inputs}


def autoregressive_hmm():
    model = ARHMM(2, 1, order=1).double()
    values: dict[str, Any] = {"transition": torch.tensor(MOVES)}
    for name, value in model.estimates().items():
        if name == "covariances":
            values[name] = torch.tensor([0.5, 1.0]).reshape(value.shape)
        elif name not in ("transition", "initial"):
            values[name] = torch.tensor([0.0, 3.0] if "offset" in name else [0.7, -0.3]).reshape(value.shape)
    return model.set_parameters(**values), {}


def lds():
    """Of a state whose scale is fixed."""
    model = LDS(1, 1, offsets="none", initial="stationary").double()
    return model.set_parameters(transition=[[0.8]], state_noise=[[0.5]], emission=[[1.0]], emission_noise=[[0.3]]), {}


FAMILIES: dict[str, Callable[[], tuple[Any, dict[str, torch.Tensor]]]] = {
    "HMM of numbers": gaussian_hmm, "HMM of counts": poisson_hmm, "HMM of words": word_hmm, "IOHMM": iohmm,
    "autoregressive HMM": autoregressive_hmm, "LDS": lds,
}  # fmt: skip


def flat(values: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.detach().double().reshape(-1) for value in values.values()])


def measure(family: str, fits: int) -> dict[str, Any]:
    """The table of a family."""
    truth, known = FAMILIES[family]()
    right, began = flat(truth.estimates()), time.process_time()
    estimates, errors, names, failed = [], [], [], 0
    for seed in range(fits):
        steps = {"num_steps": STEPS, "num_sequences": ROWS, "seed": seed}
        x = truth.sample(**(steps if not known else {"seed": seed}), **known).x
        model = copy.deepcopy(truth)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                table = model.fit(x, warm_start=True, **known).summary(x, **known)
        except ValueError:
            failed += 1
            continue
        names = table.names
        estimates.append(table.estimates.double())
        errors.append(table.errors.double())
    found, error = torch.stack(estimates), torch.stack(errors)
    z = (found - right) / error
    has, rows = ~error.isnan(), {}
    for k, name in enumerate(names):
        own = has[:, k]
        if int(own.sum()) < 0.5 * len(own):
            continue  # parameters that have no standard error: bounds, what other values make up for
        inside = float((z[own, k].abs() < 1.6449).double().mean())
        rows[name] = {
            "truth": round(float(right[k]), 4), "spread": round(float(found[own, k].std()), 4),
            "mean_error": round(float(error[own, k].mean()), 4), "median_error": round(float(error[own, k].median()), 4),
            "covered": round(inside, 3), "without_error": int((~own).sum()),
        }  # fmt: skip
    seconds = round(time.process_time() - began, 1)
    return {"fits": len(found), "failed": failed, "processor_seconds": seconds, "parameters": rows}


@click.command(help=__doc__.split("\n")[0])
@click.option("--fits", default=500, show_default=True)
@click.option("--family", "families", multiple=True, type=click.Choice(list(FAMILIES)), help="default: all")
@click.option("--out", type=Path, default=REPOSITORY / "results" / "standard_errors.json")
def main(fits: int, families: tuple[str, ...], out: Path) -> None:
    torch.set_num_threads(1)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
    content = {
        "command": shlex.join(["python", *sys.argv]), "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip(), "processor": platform.processor() or platform.machine(),
        "rows": ROWS, "steps": STEPS, "level": 0.9,
        "simulation_error_of_a_share": round((0.9 * 0.1 / fits) ** 0.5, 4), "families": {},
    }  # fmt: skip
    for family in families or FAMILIES:
        content["families"][family] = found = measure(family, fits)
        click.echo(f"{family}: {found['fits']} fits, {found['failed']} failed, {found['processor_seconds']} s")
        for name, row in found["parameters"].items():
            click.echo(f"  {name:28} {row}")
        out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
