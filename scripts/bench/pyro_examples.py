"""Pyro's example hidden Markov models, unmodified, on all 229 training chorales: TraceEnum_ELBO beside TraceBlockedEnum_ELBO.

    python scripts/bench/pyro_examples.py [--models 1,2,3,4,5,6,7] [--repeat 3]

The example file (Pyro's examples/hmm.py) and the chorales are no part of this repository; they are looked for beside it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import sys
import time
from pathlib import Path

import pyro
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyro.infer.autoguide import AutoDelta
from record import ROOT, data_folder, record

from pplseq.infer import TraceBlockedEnum_ELBO

GOAL = 5.0  # times faster
FILE = ROOT.parent / "shared" / "peers" / "pyro_hmm_examples.py"
SETTINGS = argparse.Namespace(hidden_dim=16, nn_dim=48, nn_channels=2, jit=False, raftery_parameterization=False)


def load_examples():
    if not FILE.exists():
        sys.exit(f"Pyro's examples/hmm.py not found at {FILE}")
    spec = importlib.util.spec_from_file_location("pyro_hmm_examples", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    logging.getLogger().handlers.clear()
    return module


def load_chorales(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """(229, T, D) notes that occur at all, and lengths."""
    chorales = json.loads(file.read_text())["train"]
    lengths = torch.tensor([len(chorale) for chorale in chorales])
    notes = torch.zeros(len(chorales), int(lengths.max()), 88)
    for row, chorale in enumerate(chorales):
        for step, chord in enumerate(chorale):
            notes[row, step, [int(pitch) - 21 for pitch in chord]] = 1
    return notes[..., (notes == 1).sum((0, 1)) > 0], lengths


def measure(examples, number: str, notes, lengths, repeat: int) -> dict:
    """Loss and gradients by both, in turn."""
    model = examples.models[number]
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    examples.tones_generator = None
    guide = AutoDelta(poutine.block(model, expose_fn=lambda msg: msg["name"].startswith("probs_")))
    elbos = {
        "TraceEnum_ELBO": TraceEnum_ELBO(max_plate_nesting=2, strict_enumeration_warning=False),
        "TraceBlockedEnum_ELBO": TraceBlockedEnum_ELBO(max_plate_nesting=2),
    }
    losses, wall, processor = {}, {name: [] for name in elbos}, {name: [] for name in elbos}
    for round_ in range(repeat + 1):
        for name, elbo in elbos.items():
            begin, begin_processor = time.perf_counter(), time.process_time()
            losses[name] = elbo.loss_and_grads(model, guide, notes, lengths, args=SETTINGS)
            if round_:  # the first warms up
                wall[name].append(time.perf_counter() - begin)
                processor[name].append(time.process_time() - begin_processor)
    first, second = losses.values()
    assert abs(first - second) < 1e-5 * abs(first), losses
    seconds = {name: round(min(times), 4) for name, times in processor.items()}
    row = {
        "model": number,
        "loss": second,
        "processor_seconds": seconds,
        "wall_seconds": {name: round(min(times), 4) for name, times in wall.items()},
        "times_faster": round(seconds["TraceEnum_ELBO"] / seconds["TraceBlockedEnum_ELBO"], 2),
    }
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="1,2,3,4,5,6,7")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    examples = load_examples()
    notes, lengths = load_chorales(data_folder() / "jsb_chorales" / "jsb-chorales-quarter.json")
    rows = [measure(examples, number, notes, lengths, options.repeat) for number in options.models.split(",")]
    shape = dict(zip(("sequences", "steps", "notes"), notes.shape, strict=True))
    record("pyro_examples", rows, states=16, dtype="float32", threads=1, goal=GOAL, **shape)


if __name__ == "__main__":
    main()
