"""Speed and memory of online EM: one user at any number of words, the dense recursion, many users at once.

    python scripts/bench/props.py [--users 1000] [--no-record]

K = 3, one source, two perturbations. Words are drawn by Zipf's law; results are compared with the dense recursion before any
time is reported. Times of one user are those of the processor, since other work on a shared machine does not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from record import record

from pplseq.models.props.online_batch import BatchStream
from pplseq.models.props.online_em import StreamState, start_stream
from pplseq.models.props.settings import OnlineEM

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from support.oracles.props import DenseStream  # noqa: E402

SIZES = (200, 2_000, 13_711, 200_000)
NUM_SOURCES, NUM_OWN = 1, 2
PROMISE = 60.0  # microseconds a token of one user at W = 13,711


def tables(num_words: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "initial": np.ones(3) / 3,
        "transition": random.dirichlet(5 * np.ones(3), 3),
        "emission": random.dirichlet(np.ones(num_words), NUM_OWN),
    }


def stream(num_words: int, shape, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Words by Zipf's law and the log-probabilities that a source gives to them."""
    frequency = 1 / np.arange(1, num_words + 1)
    words = random.choice(num_words, shape, p=frequency / frequency.sum())
    return words, np.log(random.beta(0.5, 20, (*np.atleast_1d(shape), NUM_SOURCES)))


def num_bytes(state: StreamState) -> int:
    """What a user's stream holds: its arrays, and the places of the words it saw (about 100 bytes each)."""
    cold = state.emissions.cold
    arrays = (state.rho, state.other, state.rows, state.transition, cold.values, cold.sums, cold.corrections)
    return sum(array.nbytes for array in arrays) + 100 * len(cold.places)


def compare(num_words: int, options: OnlineEM) -> tuple[float, float]:
    """The largest difference to the dense recursion over 400 tokens, and its microseconds a token."""
    random = np.random.default_rng(1)
    start, (words, logs) = tables(num_words, random), stream(num_words, 400, random)
    dense = DenseStream(
        **start, step_sizes=options.gain, warm_up=options.warm_up, smoothing=options.smoothing_at,
        transition_prior=lambda t: options.transition_prior / t,
        initial_prior=lambda t: options.initial_prior / t,
    )  # fmt: skip
    fast, worst = start_stream(**start, options=options), 0.0
    dense.history = _Nothing()
    begin = time.process_time()
    predictive = [dense.step(int(word), np.exp(log)) for word, log in zip(words, logs, strict=True)]
    seconds = time.process_time() - begin
    for word, log, expected in zip(words, logs, predictive, strict=True):
        worst = max(worst, abs(np.exp(fast.step(int(word), log).log_prob) / expected - 1))
    worst = max(
        worst, float(abs(fast.emission() - dense.emission).max()), float(abs(fast.transition - dense.transition).max())
    )
    if worst > 1e-12:
        raise SystemExit(f"W = {num_words}: differs from the dense recursion by {worst:.1e}; no speed is reported")
    return worst, 1e6 * seconds / 400


class _Nothing(list):
    """A history that is not kept: at this size it would not fit."""

    def append(self, item) -> None:
        pass


def one_user(num_words: int, num_tokens: int, options: OnlineEM) -> dict:
    """Microseconds a token, after 1,000 tokens; the median of five parts."""
    random = np.random.default_rng(2)
    state, (words, logs) = (
        start_stream(**tables(num_words, random), options=options),
        stream(num_words, num_tokens, random),
    )
    words, logs, times = words.tolist(), logs.tolist(), []
    for first in range(0, num_tokens, num_tokens // 6):
        begin = time.process_time()
        part = range(first, min(first + num_tokens // 6, num_tokens))
        for t in part:
            state.step(words[t], logs[t])
        times.append(1e6 * (time.process_time() - begin) / len(part))
    return {
        "microseconds": round(statistics.median(times[1:6]), 1),
        "bytes_per_user": num_bytes(state),
        "words_seen": len(set(words)),
        "hot": len(state.emissions.hot),
    }


def many_users(num_users: int, num_words: int, options: OnlineEM, device: str) -> dict:
    """Microseconds a token when all users take a step together."""
    random = np.random.default_rng(3)
    start = {name: torch.as_tensor(value, device=device) for name, value in tables(num_words, random).items()}
    batch = BatchStream(**start, num_users=num_users, options=options)
    words, logs = stream(num_words, (80, num_users), random)
    words, logs = torch.as_tensor(words, device=device), torch.as_tensor(logs, device=device)
    for t in range(70):  # until every slot is in use
        batch.step(words[t], logs[t])
    if device != "cpu":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for t in range(70, 80):
        batch.step(words[t], logs[t])
    if device != "cpu":
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / 10
    held = (batch.cold, batch.rho, batch.rows, batch.words, batch.transition)
    return {
        "users": num_users, "words": num_words, "device": device, "milliseconds_a_step": round(1e3 * seconds, 2),
        "microseconds_a_token": round(1e6 * seconds / num_users, 3),
        "bytes_per_user": sum(v.numel() * v.element_size() for v in held) // num_users,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=6_000)
    parser.add_argument("--users", type=int, nargs="+", default=[1, 100, 1_000])
    parser.add_argument("--no-record", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = OnlineEM(exponent=0.8)
    results: dict = {"one_user": {}, "dense": {}, "many_users": []}
    for size in SIZES:
        if size <= 13_711:  # a dense step beyond takes as long as a thousand of the others
            worst, microseconds = compare(size, options)
            results["dense"][str(size)] = {"microseconds": round(microseconds, 1), "largest_difference": worst}
        results["one_user"][str(size)] = one_user(size, arguments.tokens, options)
        print(f"W = {size:7}: {results['one_user'][str(size)]}, dense {results['dense'].get(str(size))}", flush=True)
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        for users in arguments.users:
            results["many_users"].append(many_users(users, 13_711, options, device))
            print(results["many_users"][-1], flush=True)
    if not arguments.no_record:
        kept = results["one_user"]["13711"]["microseconds"] <= PROMISE
        promise = {"microseconds a token, K = 3, W = 13,711": PROMISE, "kept": kept}
        record("props", results, settings={"exponent": 0.8, "tokens": arguments.tokens}, promise=promise)


if __name__ == "__main__":
    main()
