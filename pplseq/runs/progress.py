"""What a person sees of a training run: a bar on stderr."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from tqdm import tqdm

LOG_SECONDS = 15.0


class TrainingBar:
    """A tqdm bar over steps with nats per token, perplexity and tokens a second, and a line per validation.

    Where stderr is no terminal, lines stand in for the bar: one a validation, and one about every 15 seconds.

    Args:
        num_steps: steps of the whole run; None where a time limit is likely to come first.
    """

    def __init__(self, num_steps: int | None) -> None:
        terminal = sys.stderr.isatty()
        self.bar = tqdm(total=num_steps, unit="step", mininterval=0.5, dynamic_ncols=True, disable=not terminal)
        self.terminal, self.tokens, self.since, self.logged = terminal, 0, time.monotonic(), time.monotonic()
        self.shown: dict[str, str] = {}

    def step(self, progress: Any, num_tokens: int) -> None:
        """After every training step."""
        self.tokens += num_tokens
        elapsed = time.monotonic() - self.since
        if elapsed > 1.0:
            self.shown["tok/s"] = f"{self.tokens / elapsed:,.0f}"
            self.tokens, self.since = 0, time.monotonic()
            if progress.window_tokens:
                nats = progress.window_nats / progress.window_tokens
                self.shown |= {"nats/token": f"{nats:.3f}", "ppl": f"{math.exp(min(nats, 700)):,.1f}"}
            self.bar.set_description(f"epoch {progress.epoch + 1}", refresh=False)
            self.bar.set_postfix(self.shown, refresh=False)
        if self.terminal and self.bar.n == 0:
            self.bar.initial = self.bar.n = progress.step - 1  # a resumed run
        self.bar.update()

    def record(self, record: dict[str, Any]) -> None:
        """For every record of metrics.jsonl; validations are printed above the bar."""
        text = (
            f"step {record['step']:>7,}  epoch {record['epoch']:>3}  {record['seconds']:>7.0f} s  {record['kind']:<10}"
        )
        text += f"  {record['nats_per_token']:.4f} nats/token  perplexity {record['perplexity']:>9,.2f}"
        if record["kind"] == "validation":
            rate = f"  lr {record['lr']:.2g}" if "lr" in record else ""
            self._write(f"{text}{rate}{'  * best' if record['best'] else ''}")
            # Time spent in validation is no training time.
            self.tokens, self.since = 0, time.monotonic()
        elif not self.terminal and time.monotonic() - self.logged > LOG_SECONDS:
            self._write(text)
        if "lr" not in record and record["kind"] == "train":
            self.bar.update()  # an iteration of EM

    def _write(self, line: str) -> None:
        tqdm.write(line, file=sys.stderr)
        self.logged = time.monotonic()

    def close(self) -> None:
        self.bar.close()
