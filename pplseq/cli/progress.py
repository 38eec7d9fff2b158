"""What a person sees of a training run: a bar on stderr, and TensorBoard if asked for."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm


class TrainingBar:
    """A tqdm bar over steps with nats per token, perplexity and tokens a second, and a line per validation.

    Args:
        num_steps: steps of the whole run.
        batches_per_epoch: for the epoch shown.
    """

    def __init__(self, num_steps: int, batches_per_epoch: int, start: int = 0) -> None:
        # In a log file every refresh is a line of its own: be sparing.
        interval = 0.5 if sys.stderr.isatty() else 15.0
        self.bar = tqdm(
            total=num_steps, initial=start, unit="step", mininterval=interval, dynamic_ncols=True, file=sys.stderr
        )
        self.batches_per_epoch = batches_per_epoch
        self.tokens, self.since, self.shown = 0, time.monotonic(), {}

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
        self.bar.update()

    def record(self, record: dict[str, Any]) -> None:
        """For every record of metrics.jsonl; validations are printed above the bar."""
        if record["kind"] == "validation":
            mark = "  * best" if record["best"] else ""
            text = f"step {record['step']:>7,}  epoch {record['epoch']:>3}  {record['seconds']:>7.0f} s"
            score = f"valid {record['nats_per_token']:.4f} nats/token  perplexity {record['perplexity']:,.2f}"
            score += f" ({record['protocol']})"
            self.bar.write(f"{text}  {score}  lr {record['lr']:.2g}{mark}", file=sys.stderr)
            # Time spent in validation is no training time.
            self.tokens, self.since = 0, time.monotonic()

    def close(self) -> None:
        self.bar.close()


class TensorBoard:
    """Every number of metrics.jsonl as a TensorBoard scalar."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise click.UsageError(
                f'--tensorboard needs the package tensorboard: pip install "pplseq[tensorboard]" ({error})'
            ) from error
        self.writer = SummaryWriter(str(folder))

    def record(self, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step":
                self.writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        self.writer.close()
