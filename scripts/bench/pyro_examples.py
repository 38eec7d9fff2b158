"""Pyro's example hidden Markov models on all 229 training chorales: TraceEnum_ELBO beside TraceBlockedEnum_ELBO, which runs
them unmodified, and again with their loops written as ``pplseq.markov``.

    python scripts/bench/pyro_examples.py [--models 1,2,3,4,5,6,7] [--repeat 3]

Rewritten, models 1, 3 and 4 differ in the name of the loop alone; 2 and 5 index the notes before instead of carrying them,
and 5 looks its network's first layer up instead of building one-hot vectors; 7, one DiscreteHMM, whose network sees the notes
of the step itself, is written as 5 is. A second-order loop (6) runs step by step. So do 5 and 7 (``vectorize=False``): what
their network makes of all steps at once, 100 MB a layer, leaves the processor's cache, which costs more than the loop does.

Models 5 and 7 spend most of a step in the network that is part of the program: "network_processor_seconds" is the time of that
network alone, forward and backward, without any inference around it, and "most_times_faster" what TraceEnum's time is of that:
no engine that runs the program as it is can be faster than this.

The example file (Pyro's examples/hmm.py) and the chorales are no part of this repository; they are looked for beside it.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import logging
import os
import sys
import time
import types
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyro.infer.autoguide import AutoDelta
from record import ROOT, data_folder, record

import pplseq
from pplseq.infer import TraceBlockedEnum_ELBO

GOAL = 5.0  # times faster, unmodified
GOALS = {"1": 10.0, "2": 10.0, "3": 15.0, "4": 15.0, "5": 10.0, "6": 5.0, "7": 10.0}  # rewritten
NETWORKS = "57"  # models whose emissions are a network's
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


class _Pyro:
    """Pyro, but for its loop."""

    markov = staticmethod(pplseq.markov)

    def __getattr__(self, name):
        return getattr(pyro, name)


def rewritten(examples, number: str):
    """The model with its loop run once for all steps."""
    if number == "2":
        return _autoregressive
    if number in "57":
        return functools.partial(_neural, examples, number == "5")
    model = examples.models[number]
    return types.FunctionType(model.__code__, {**vars(examples), "pyro": _Pyro()}, model.__name__, model.__defaults__)


def _notes_before(sequences):
    return torch.cat([torch.zeros_like(sequences[:, :1]), sequences[:, :-1]], 1)


def _autoregressive(sequences, lengths, args, include_prior=True):
    num_sequences, max_length, data_dim = sequences.shape
    before = _notes_before(sequences).long()
    with poutine.mask(mask=include_prior):
        probs_x = pyro.sample("probs_x", dist.Dirichlet(0.9 * torch.eye(args.hidden_dim) + 0.1).to_event(1))
        law = dist.Beta(0.1, 0.9).expand([args.hidden_dim, 2, data_dim]).to_event(3)
        probs_y = pyro.sample("probs_y", law)
    tones_plate = pyro.plate("tones", data_dim, dim=-1)
    with pyro.plate("sequences", num_sequences, dim=-2) as batch:
        x = 0
        for t in pplseq.markov(range(lengths.max())):
            with poutine.mask(mask=(t < lengths).unsqueeze(-1)):
                x = pyro.sample(f"x_{t}", dist.Categorical(probs_x[x]), infer={"enumerate": "parallel"})
                with tones_plate as tones:
                    pyro.sample(f"y_{t}", dist.Bernoulli(probs_y[x, before[batch, t], tones]), obs=sequences[batch, t])


def _neural(examples, of_before, sequences, lengths, args, include_prior=True):
    num_sequences, max_length, data_dim = sequences.shape
    if examples.tones_generator is None:
        examples.tones_generator = examples.TonesGenerator(args, data_dim)
    net = pyro.module("tones_generator", examples.tones_generator)
    shown, of_state = _notes_before(sequences) if of_before else sequences, _of_state(net)
    with poutine.mask(mask=include_prior):
        probs_x = pyro.sample("probs_x", dist.Dirichlet(0.9 * torch.eye(args.hidden_dim) + 0.1).to_event(1))
    tones_plate = pyro.plate("tones", data_dim, dim=-1)
    with pyro.plate("sequences", num_sequences, dim=-2):
        x = 0
        for t in pplseq.markov(range(lengths.max()), vectorize=False):
            with poutine.mask(mask=(t < lengths).unsqueeze(-1)):
                x = pyro.sample(f"x_{t}", dist.Categorical(probs_x[x]), infer={"enumerate": "parallel"})
                logits = _logits(net, of_state[x.squeeze(-1)], shown[:, t])
                with tones_plate:
                    pyro.sample(f"y_{t}", dist.Bernoulli(logits=logits), obs=sequences[:, t])


def _of_state(net):
    """(K, hidden) what the network's first layer makes of each state."""
    return net.x_to_hidden.weight.T + net.x_to_hidden.bias


def _logits(net, of_state, notes):
    """The example's network without one-hot vectors: (*states, rows, notes) of a step."""
    conv = net.relu(net.conv(notes.reshape(-1, 1, notes.shape[-1])))
    return net.hidden_to_logits(net.relu(of_state + net.y_to_hidden(conv.reshape(len(notes), -1))))


def network_alone(examples, number: str, notes) -> dict:
    """The logits of all steps, as the program computes them and as the rewritten one does: name -> a call that makes them."""
    net, data_dim = examples.tones_generator, notes.shape[-1]
    states = torch.arange(SETTINGS.hidden_dim)

    def by_steps():
        before = [torch.zeros(data_dim), *notes[:, :-1].unbind(1)]
        return [net(states.reshape(-1, 1, 1), y) for y in before]

    def at_once():
        return [net(states.unsqueeze(-1), notes.unsqueeze(-2))]

    def looked_up():
        shown, of_state = _notes_before(notes) if number == "5" else notes, _of_state(net).unsqueeze(1)
        return [_logits(net, of_state, y) for y in shown.unbind(1)]

    return {"TraceBlockedEnum_ELBO": by_steps if number == "5" else at_once, "rewritten": looked_up}


def measure_network(calls: dict, repeat: int) -> dict:
    """Processor seconds of each, forward and backward."""
    seconds: dict = {name: [] for name in calls}
    for round_ in range(repeat + 1):
        for name, call in calls.items():
            begin = time.process_time()
            logits = call()
            torch.autograd.backward(logits, [torch.ones_like(one) for one in logits])
            if round_:
                seconds[name].append(time.process_time() - begin)
    return {name: round(min(times), 4) for name, times in seconds.items()}


def measure(examples, number: str, notes, lengths, repeat: int) -> dict:
    """Loss and gradients by both, in turn."""
    model = examples.models[number]
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    examples.tones_generator = None
    guide = AutoDelta(poutine.block(model, expose_fn=lambda msg: msg["name"].startswith("probs_")))
    elbos = {
        "TraceEnum_ELBO": (TraceEnum_ELBO(max_plate_nesting=2, strict_enumeration_warning=False), model),
        "TraceBlockedEnum_ELBO": (TraceBlockedEnum_ELBO(max_plate_nesting=2), model),
        "rewritten": (TraceBlockedEnum_ELBO(max_plate_nesting=2), rewritten(examples, number)),
    }
    losses, wall, processor = {}, {name: [] for name in elbos}, {name: [] for name in elbos}
    for round_ in range(repeat + 1):
        for name, (elbo, program) in elbos.items():
            begin, begin_processor = time.perf_counter(), time.process_time()
            losses[name] = elbo.loss_and_grads(program, guide, notes, lengths, args=SETTINGS)
            if round_:  # the first warms up
                wall[name].append(time.perf_counter() - begin)
                processor[name].append(time.process_time() - begin_processor)
    first, *others = losses.values()
    assert all(abs(first - other) < 1e-5 * abs(first) for other in others), losses
    seconds = {name: round(min(times), 4) for name, times in processor.items()}
    row = {
        "model": number,
        "loss": others[0],
        "processor_seconds": seconds,
        "wall_seconds": {name: round(min(times), 4) for name, times in wall.items()},
        "times_faster": round(seconds["TraceEnum_ELBO"] / seconds["TraceBlockedEnum_ELBO"], 2),
        "times_faster_rewritten": round(seconds["TraceEnum_ELBO"] / seconds["rewritten"], 2),
    }
    if number in NETWORKS:
        alone = measure_network(network_alone(examples, number, notes), repeat)
        row["network_processor_seconds"] = alone
        row["most_times_faster"] = round(seconds["TraceEnum_ELBO"] / alone["TraceBlockedEnum_ELBO"], 2)
        row["most_times_faster_rewritten"] = round(seconds["TraceEnum_ELBO"] / alone["rewritten"], 2)
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
    load = round(os.getloadavg()[0], 1)
    about = dict(states=16, dtype="float32", threads=1, load=load, goal=GOAL, goals_rewritten=GOALS)
    record("pyro_examples", rows, **about, **shape)


if __name__ == "__main__":
    main()
