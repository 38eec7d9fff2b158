"""What a blocked HMM will cost, from its sizes alone, before anything is allocated."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from pplseq import checks

PROGRAM_BYTES = 350_000_000  # Python with torch and Pyro loaded


@dataclass(frozen=True)
class Cost:
    """The cost of one training step, of the weights, and of one exact evaluation.

    Attributes:
        num_weights: parameters.
        normaliser_flops, numerator_flops, residual_flops, emission_flops: of a step, forward and backward.
        evaluation_flops: of the row normalisers of all states, once per evaluation.
        token_flops: of the transitions that one more token of an evaluation takes.
        weight_bytes: weights, gradients and AdamW's two moments, float32.
        working_bytes: what a step holds on top of that at its peak, roughly.
        evaluation_bytes: the same at test, with all states.
    """

    num_weights: int
    normaliser_flops: float
    numerator_flops: float
    residual_flops: float
    emission_flops: float
    evaluation_flops: float
    token_flops: float
    weight_bytes: int
    working_bytes: int
    evaluation_bytes: int

    @property
    def step_flops(self) -> float:
        return self.normaliser_flops + self.numerator_flops + self.residual_flops + self.emission_flops


def _kept_pairs(num_states: int, num_blocks: int) -> int:
    """Bytes of the transition blocks that an evaluation keeps, at most."""
    from pplseq.distributions.block import CACHED_WIDTH, PAIR_CACHE_BYTES

    width = num_states // num_blocks
    return min(PAIR_CACHE_BYTES, 4 * (num_blocks * width) ** 2) if num_blocks > 1 and width >= CACHED_WIDTH else 0


def vlhmm_cost(
    num_words: int,
    num_states: int,
    num_blocks: int,
    *,
    hidden_size: int = 256,
    state_dropout: float = 0.25,
    num_tokens: int = 512,
    blocks_present: float = 1.0,
    tied: bool = True,
    transition: str = "softmax",
    shared_layer: bool = False,
    parameterization: str = "independent",
    num_topics: int = 1,
) -> Cost:
    """The cost of a VL-HMM; of scalar tables the weights, and operations as if they were embeddings.

    With n = (1 - dropout) Z kept states, K = n / M of them a block, h the width, and r = n * blocks_present rows whose
    block occurs in a step: normalisers 8 r n h (forward, recomputed, backward by both factors), numerators 6 N K^2 h,
    three residual nets 36 n h^2, emissions 6 K V h; at test, normalisers 2 Z^2 h. With hierarchical transitions the
    normalisers are those of the next block, 8 r M h, and at test K M h a token.

    Args:
        num_words: V. num_states: Z. num_blocks: M; 1 for no blocks.
        hidden_size: h.
        state_dropout: share of the states left out of a step.
        num_tokens: tokens N of a step (batch size times segment length); it bounds the block pairs that occur.
        blocks_present: share of the blocks that occur in a step (about 0.86 at 512 tokens and 128 Brown clusters).
        tied: one embedding table instead of four.
        transition, shared_layer, parameterization, num_topics: as of the model.

    Source: the operation counts behind Chiu and Rush (2020), section 4; the normaliser dominates.
    """
    kept = (1.0 - state_dropout) * num_states
    width = kept / num_blocks
    rows = kept * blocks_present
    h = hidden_size
    layers, softmax = (2 if shared_layer else 3), transition == "softmax"
    num_weights = (1 if tied else 4) * num_states * h + layers * (2 * h * h + 4 * h) + num_words * (h + 1) + h + 1
    num_weights += 0 if softmax else num_blocks * (h + 1)
    if parameterization == "factored":
        num_weights += (1 if tied else 4) * (num_blocks * (h - h // 2) - num_states * (h - h // 2))
    elif parameterization == "scalar":
        num_weights = num_states * (1 + num_states + (0 if softmax else num_blocks)) + num_words * (num_states // num_blocks)
    pairs = min(num_tokens, num_blocks**2)
    copies = 0 if num_topics == 1 else num_topics  # of what a token's states say, and of normalisers
    num_weights += copies * (num_words + 2 * num_blocks + 1)
    # float32 numbers at the peak: residual activations, emission tables, the chain's pairs, tiles of the normaliser.
    working = 10 * layers * kept * h + 6 * width * num_words + (4 if softmax else 1) * pairs * width**2
    working += 4 * min(kept, 2048) * kept if softmax else 0
    working += copies * width * (12 * num_tokens + 4 * num_blocks)
    width_at_test = num_states / num_blocks
    at_test = 6 * num_states * h + 3 * width_at_test * num_words + (0 if softmax else pairs * width_at_test**2)
    return Cost(
        num_weights=num_weights,
        normaliser_flops=8 * rows * (kept if softmax else num_blocks) * h,
        numerator_flops=6 * pairs * width**2 * h,
        residual_flops=12 * layers * kept * h * h,
        emission_flops=6 * width * num_words * h,
        evaluation_flops=2.0 * num_states**2 * h if softmax else 4.0 * layers * num_states * h * h,
        token_flops=2.0 * width_at_test**2 * h + (0.0 if softmax else 2.0 * width_at_test * num_blocks * h),
        weight_bytes=16 * num_weights,
        working_bytes=int(4 * working),
        evaluation_bytes=int(4 * at_test) + (_kept_pairs(num_states, num_blocks) if softmax else 0),
    )


def memory_of(device: torch.device | str = "cpu") -> int | None:
    """Bytes of memory that the device has; None where the system does not say."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return checks.machine_memory()


def check_fits(cost: Cost, device: torch.device | str = "cpu") -> None:
    """Raise ValueError, before anything is allocated, for a training that the device's memory cannot hold."""
    there, needed = memory_of(device), PROGRAM_BYTES + cost.weight_bytes + cost.working_bytes
    if there is not None and needed > there:
        raise ValueError(
            f"states: a training of this size takes about {needed / 1e9:,.0f} GB of memory, and {device} has "
            f"{there / 1e9:,.0f} GB; choose fewer states, more blocks (--num-blocks) or a smaller --hidden-size"
        )


@dataclass(frozen=True)
class Speed:
    """What this machine does, in FLOP a second: the normaliser kernel in training and at test, a plain product."""

    normaliser_training: float
    normaliser_test: float
    product: float

    def training_step(self, cost: Cost) -> float:
        """Seconds of a training step."""
        rest = cost.numerator_flops + cost.residual_flops + cost.emission_flops
        return cost.normaliser_flops / self.normaliser_training + rest / self.product

    def evaluation(self, cost: Cost, num_tokens: int) -> float:
        """Seconds of an evaluation."""
        return cost.evaluation_flops / self.normaliser_test + num_tokens * cost.token_flops / self.product


def measure_speed(hidden_size: int = 256, size: int = 2048, device: torch.device | str = "cpu") -> Speed:
    """Time the kernel that dominates on a piece of `size` rows; well under a second on two cores."""
    from pplseq.kernels.log_semiring import streamed_log_norm

    generator = torch.Generator().manual_seed(0)
    out, into = (0.1 * torch.randn(size, hidden_size, generator=generator) for _ in range(2))
    out, into = out.to(device).requires_grad_(), into.to(device).requires_grad_()
    flops = 2.0 * size * size * hidden_size

    def training() -> None:
        streamed_log_norm(out, into).sum().backward()

    def test() -> None:
        with torch.no_grad():
            streamed_log_norm(out, into)

    def product() -> None:
        with torch.no_grad():
            torch.matmul(out, into.T)

    return Speed(
        4 * flops / _best_time(training, device), flops / _best_time(test, device), flops / _best_time(product, device)
    )


def estimate(num_train_tokens: int, num_tokens: int, device: torch.device, **sizes: Any) -> dict[str, Any]:
    """What `pplseq info` prints: memory, and time on this machine, of a model that does not exist yet.

    Args:
        num_train_tokens: tokens of an epoch.
        num_tokens: tokens of a step.
        device: where the kernel is timed.
        sizes: arguments of `vlhmm_cost`.
    """
    cost = vlhmm_cost(num_tokens=num_tokens, **sizes)
    speed = measure_speed(sizes["hidden_size"], device=device)
    step, there = speed.training_step(cost), memory_of(device)
    steps = -(-num_train_tokens // num_tokens)
    return {
        "num_states": sizes["num_states"],
        "num_blocks": sizes["num_blocks"],
        "device": str(device) if device.type != "cpu" else f"{torch.get_num_threads()} CPU threads",
        "num_weights": cost.num_weights,
        "training_gigabytes": (PROGRAM_BYTES + cost.weight_bytes + cost.working_bytes) / 1e9,
        "memory_gigabytes": None if there is None else there / 1e9,
        "evaluation_gigabytes": (PROGRAM_BYTES + cost.weight_bytes / 4 + cost.evaluation_bytes) / 1e9,
        "step_gigaflops": cost.step_flops / 1e9,
        "step_seconds": step,
        "steps_per_epoch": steps,
        "epoch_seconds": steps * step,
        "evaluation_seconds": speed.evaluation(cost, 100_000),
    }


def _best_time(function, device: torch.device | str, repeats: int = 3) -> float:
    """Seconds of the fastest of a few calls, the first (which warms caches up) left out."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        function()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:])
