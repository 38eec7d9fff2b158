"""One training step of the very large HMM, against the same step written plainly.

The peer computes what the library computes on the same parameters, the direct way: the whole score matrix through
torch.logsumexp, a dense state x word table, and an autograd loop over time. Both losses are compared before anything is
timed.

    python scripts/bench/vlhmm_step.py [--num-states 4096] [--threads 2] [--no-peer] [--steps 20] [--device cpu]
"""

from __future__ import annotations

import argparse
import itertools
import os
import time

import torch
from record import data_folder, in_turn, peak_gigabytes, record, seconds

from pplseq.data.batches import StreamBatches
from pplseq.data.clustering import brown_clusters
from pplseq.data.text import load_corpus
from pplseq.distributions.hierarchical import HierarchicalTransition
from pplseq.infer import TraceBlockedEnum_ELBO
from pplseq.infer.programs.blocked_enum import no_guide
from pplseq.kernels.precision import MATMUL_PRECISIONS, matmul_precision
from pplseq.models import VLHMM
from pplseq.runs.memory import keep_freed_memory


def plain_loss(model: VLHMM, x: torch.Tensor) -> torch.Tensor:
    """The negative log-likelihood of segments from the start distribution, written plainly."""
    transition, emission = model.specs()
    if isinstance(transition, HierarchicalTransition):
        return plain_hierarchical_loss(transition, emission, x)
    layout = transition.layout
    scores = transition.out @ transition.into.T
    matrix = scores - torch.logsumexp(scores, -1, keepdim=True)
    table = emission.log_likelihood(torch.arange(model.num_words))[:, layout.kept_ids]
    emit = table[x.T]
    ids = layout.slots[emission.support(x.T)]
    emit = emit.gather(-1, ids)
    message = transition.initial[ids[0]] + emit[0]
    for t in range(1, len(emit)):
        pair = matrix[ids[t - 1].unsqueeze(-1), ids[t].unsqueeze(-2)]
        message = torch.logsumexp(message.unsqueeze(-1) + pair, -2) + emit[t]
    return -torch.logsumexp(message, -1).sum()


def plain_hierarchical_loss(transition: HierarchicalTransition, emission, x: torch.Tensor) -> torch.Tensor:
    """The same where the next block is drawn first: a matrix a token, an autograd loop over time."""
    layout, block, emit = transition.layout, emission.support(x.T), emission.log_prob_at(x.T)
    out = layout.of_blocks(transition.out, block[:-1])
    inner = torch.log_softmax(out @ layout.of_blocks(transition.into, block[1:]).transpose(-1, -2), -1)
    gate = torch.log_softmax(transition.out @ transition.block_weight.T + transition.block_bias, -1)
    gate = layout.of_blocks(gate, block[:-1]).gather(-1, block[1:, :, None, None].expand(*out.shape[:-1], 1))
    message = transition.initial_of(block[0]) + emit[0]
    for t in range(1, len(emit)):
        message = torch.logsumexp(message.unsqueeze(-1) + inner[t - 1] + gate[t - 1], -2) + emit[t]
    return -torch.logsumexp(message, -1).sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-states", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--normalizer-dtype", default="float32")
    parser.add_argument("--transition", choices=("softmax", "hierarchical"), default="softmax")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=128)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--shared-layer", action="store_true")
    parser.add_argument("--matmul-precision", choices=MATMUL_PRECISIONS, default="float32")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    corpus = load_corpus(data_folder() / "ptb")
    keep_freed_memory()
    clusters = brown_clusters(corpus.train.tokens, len(corpus.vocabulary), options.blocks)
    model = VLHMM(
        options.num_states, num_words=len(corpus.vocabulary), blocks=torch.as_tensor(clusters.block_of_word),
        state_dropout=0.5,
        normalizer_dtype=options.normalizer_dtype,
        transition=options.transition,
        hidden_size=options.hidden_size,
        shared_layer=options.shared_layer,
    ).to(options.device)
    elbo = TraceBlockedEnum_ELBO()(model, no_guide)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.0, fused=True)
    segments = itertools.cycle(list(itertools.islice(StreamBatches(corpus.train, options.streams, 32), 64)))
    synchronize = torch.cuda.synchronize if options.device != "cpu" else lambda: None

    def step(loss_of):
        x = next(segments).x.to(options.device)
        optimizer.zero_grad()
        with matmul_precision(options.matmul_precision):
            (loss_of(x) / x.numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        synchronize()

    states = torch.get_rng_state()
    x = next(segments).x.to(options.device)
    result = {"states": options.num_states, "blocks": options.blocks, "hidden_size": options.hidden_size}
    result |= {"batch": [options.streams, 32], "threads": options.threads, "shared_layer": options.shared_layer}
    result |= {"matmul_precision": options.matmul_precision}
    result |= {"normalizer_dtype": options.normalizer_dtype, "device": options.device, "transition": options.transition}
    if options.no_peer:
        result["step_ms"] = 1e3 * seconds(lambda: step(elbo), repeat=options.steps)
        clocks = []
        for _ in range(options.steps):
            clock = time.process_time()
            step(elbo)
            clocks.append(time.process_time() - clock)
        result["step_processor_ms"] = 1e3 * min(clocks)
        result["peak_gb"] = peak_gigabytes()
    else:
        for _ in range(3):
            step(elbo)
        result["peak_gb"] = peak_gigabytes()  # before the peer runs
        torch.set_rng_state(states)
        torch.manual_seed(1)
        ours = float(elbo(x).detach())
        torch.manual_seed(1)
        plain = float(plain_loss(model, x).detach())
        if abs(ours - plain) > 1e-4 * abs(plain):
            raise SystemExit(f"the two losses differ, {ours} and {plain}: no speed is reported")
        runs = {"pplseq": lambda: step(elbo), "plain": lambda: step(lambda x: plain_loss(model, x))}
        times = in_turn(runs, repeat=options.steps)
        result |= {"step_ms": 1e3 * times["pplseq"], "plain_step_ms": 1e3 * times["plain"]}
        result |= {"speedup": times["plain"] / times["pplseq"], "peak_with_plain_gb": peak_gigabytes()}
    if options.device != "cpu":
        result["peak_device_gb"] = torch.cuda.max_memory_allocated() / 1e9
    result["load_average"] = [round(value, 2) for value in os.getloadavg()]
    result["tokens_per_second"] = 32 * options.streams / result["step_ms"] * 1e3
    print(result)
    suffix = "" if options.normalizer_dtype == "float32" else f"_{options.normalizer_dtype}"
    suffix += "" if options.matmul_precision == "float32" else f"_{options.matmul_precision}_products"
    suffix += "" if options.transition == "softmax" else f"_{options.transition}"
    record(f"vlhmm_step_{options.num_states}{suffix}", result)


if __name__ == "__main__":
    main()
