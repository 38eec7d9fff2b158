"""What a step costs of dense HMMs and of products of moves: processor milliseconds of a step of some rows, in single precision.

    OMP_NUM_THREADS=1 python scripts/bench/products.py [--rows 64] [--steps 32] [--write]

Before, a small product is compared with the dense HMM that it multiplies out to. Times are the least of some rounds; beside
other work processor time still grows with what that does to caches and memory, so that --write belongs on a quiet machine.
"""

from __future__ import annotations

import argparse
import time

import torch
from record import peak_gigabytes, record

from pplseq import HMM
from pplseq.models import ProductMoves

NUM_WORDS = 27
MODELS = {
    "dense 512": 512, "dense 1024": 1024, "product 2^12": (64, 64), "product 2^14": (128, 128), "product 2^16": (256, 256),
    "product 2^18": (512, 512),
}  # fmt: skip


def made(sizes: int | tuple[int, ...]) -> HMM:
    torch.manual_seed(0)
    moves = {"num_states": sizes} if isinstance(sizes, int) else {"transition": ProductMoves(*sizes)}
    model = HMM(num_words=NUM_WORDS, dtype="float32", **moves)
    model.is_fitted = True
    return model


def compare() -> None:
    """The same likelihoods, or there is nothing to time."""
    model = made((8, 16))
    dense = made(128).set_parameters(initial=model.initial, transition=model.transition, emission=model.emission)
    x = torch.randint(NUM_WORDS, (4, 30))
    torch.testing.assert_close(model.log_prob(x), dense.log_prob(x), rtol=1e-5, atol=0)


def milliseconds(model: HMM, x: torch.Tensor, rounds: int) -> dict[str, float]:
    """Processor time of the likelihood and of an E-step of EM: of each step, and of what is done once before."""
    found, half = {}, x.shape[1] // 2
    for name, ask in (
        ("score", lambda x: model.posterior(x).log_prob()),
        ("expected_counts", lambda x: model.posterior(x).expected_counts()),
    ):
        least = []
        for part in (x[:, :half], x):
            times = []
            for _ in range(rounds + 1):
                begin = time.process_time()
                ask(part)
                times.append(time.process_time() - begin)
            least.append(1000 * min(times[1:]))
        step = (least[1] - least[0]) / (x.shape[1] - half)
        found |= {name: round(step, 3), f"{name}_once": round(least[1] - step * x.shape[1], 1)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=MODELS, default=[*MODELS])
    parser.add_argument("--write", action="store_true", help="to results/bench/products.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    compare()
    result: dict = {"rows": options.rows, "steps": options.steps, "num_words": NUM_WORDS, "milliseconds_a_step": {}}
    for name in options.only:
        model = made(MODELS[name])
        rows = options.rows if model.num_states <= 1 << 16 else min(options.rows, 8)  # whose messages find room
        x = torch.randint(NUM_WORDS, (rows, options.steps))
        found = milliseconds(model, x, options.rounds)
        result["milliseconds_a_step"][name] = {"rows": rows, "parameters": model.num_free_parameters} | found
        print(name, result["milliseconds_a_step"][name], flush=True)
    result["peak_gb"] = peak_gigabytes()
    if options.write:
        record("products", result)


if __name__ == "__main__":
    main()
