"""What a person sees of a long computation: a bar on stderr from its first second."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from pplseq import checks
from pplseq.files import printable

LOG_SECONDS = 15.0


class Watch:
    """Who is told how a long computation goes on; this one says nothing. The command line's draws a bar."""

    def say(self, line: str) -> None:
        """A remark for people."""

    def stage(self, what: str) -> None:
        """What is done now, before the first step: "reading builtin:python"."""

    @contextmanager
    def preparing(self, what: str) -> Iterator[None]:
        """Around a part of what is done before the first step."""
        self.stage(what)
        yield

    def begin(self, num_steps: int | None) -> None:
        """Steps begin; so many in all, None where a time limit is likely to come first."""

    def step(self, progress: Any, num_tokens: int) -> None:
        """After every step."""

    def record(self, record: dict[str, Any]) -> None:
        """For every record of metrics.jsonl."""

    def close(self) -> None:
        """Nothing follows."""


class Unread:
    """A stream of remarks whose reader may go: what nobody reads any more is lost, and ends nothing."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """As of the stream."""
        with contextlib.suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As of the stream."""
        with contextlib.suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class TrainingBar(Watch):
    """A tqdm bar, which notebooks draw too: what is done and for how long before the first step; then steps, nats per token,
    perplexity and tokens a second, and a line per validation.

    Where stderr is neither that nor a terminal, lines stand in for the bar: one a stage and a validation, and one about every
    15 seconds.
    """

    def __init__(self) -> None:
        from tqdm.auto import tqdm  # not for those who only name a watch

        in_notebook = draws_in_notebook(tqdm)
        self.terminal, self.tokens = sys.stderr.isatty() or in_notebook, 0
        self.since = self.logged = time.monotonic()
        self.out: Any = sys.stdout if in_notebook else Unread(sys.stderr)  # notebooks show the other as an error
        self.bar = tqdm(file=self.out, unit="step", mininterval=0.5, dynamic_ncols=True, disable=not self.terminal)
        self.bar.bar_format = "{desc} [{elapsed}]"
        self.bar.set_description_str("starting")
        self.shown: dict[str, str] = {}
        self.stepping = threading.Event()
        if self.terminal:
            threading.Thread(target=self._tick, daemon=True).start()

    def _tick(self) -> None:
        """Before the first step nothing else moves the clock of the bar."""
        while not self.stepping.wait(0.5):
            self.bar.refresh()

    def say(self, line: str) -> None:
        """Above the bar."""
        self._write(line)

    def stage(self, what: str) -> None:
        """What is done before the first step."""
        self.bar.set_description_str(what)
        if not self.terminal:
            self._write(what)

    def begin(self, num_steps: int | None) -> None:
        """From here on steps are counted."""
        self.stepping.set()
        self.bar.bar_format, self.bar.total, self.since = None, num_steps, time.monotonic()

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
            self.bar.set_postfix(self.shown, refresh=False)
        self.bar.set_description(f"epoch {progress.epoch + 1}", refresh=False)
        if self.terminal and self.bar.n == 0:
            self.bar.initial = self.bar.n = progress.step - 1  # a resumed run
        self.bar.update()

    def record(self, record: dict[str, Any]) -> None:
        """For every record of metrics.jsonl; validations are printed above the bar."""
        numbers = [
            f"{name.replace('_', ' ')} {value:,.4f}" for name, value in record.items() if name.endswith("per_token")
        ]
        text = f"step {record['step']:>7,}  {record['seconds']:>7.0f} s  {record.get('kind', ''):<10}  {'  '.join(numbers)}"
        if "perplexity" in record:
            text += f"  perplexity {record['perplexity']:>9,.2f}"
        if record.get("kind") != "train":
            rate = f"  lr {record['lr']:.2g}" if "lr" in record else ""
            self._write(f"{text}{rate}{'  * best' if record.get('best') else ''}")
            # Time spent in validation is no training time.
            self.tokens, self.since = 0, time.monotonic()
        elif not self.terminal and time.monotonic() - self.logged > LOG_SECONDS:
            self._write(text)
        if record.get("kind") != "validation":
            self.bar.update(max(0, record["step"] - self.bar.n))  # where nobody tells of each step

    def _write(self, line: str) -> None:
        self.bar.write(printable(line), file=self.out)
        self.logged = time.monotonic()

    def close(self) -> None:
        """The end."""
        self.stepping.set()
        self.bar.close()


@contextmanager
def recorder(
    progress: bool, on_record: Callable[[dict[str, Any]], None] | None, num_steps: int | None = None
) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """What a fit calls with every record: the caller's function, and a bar where one is asked for; None for neither.

    Raises:
        TypeError: for what is no function, or no flag.
    """
    checks.function("on_record", on_record, "a record")
    if not checks.flag("progress", progress):
        yield on_record
        return
    bar = TrainingBar()
    bar.begin(num_steps)

    def tell(record: dict[str, Any]) -> None:
        bar.record(record)
        if on_record is not None:
            on_record(record)

    try:
        yield tell
    finally:
        bar.close()


def draws_in_notebook(bar: type) -> bool:
    """Whether a class of ``tqdm.auto`` is the one that notebooks draw."""
    return any(base.__module__ == "tqdm.notebook" for base in bar.__mro__)


@contextmanager
def parts_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar of parts on a terminal, else nothing: gives what is told how many of how many are done."""
    from tqdm.auto import tqdm

    seen = sys.stderr.isatty() or draws_in_notebook(tqdm)
    with tqdm(desc=what, unit=" parts", dynamic_ncols=True, disable=not seen) as bar:

        def done(number: int, count: int) -> None:
            bar.total = count
            bar.update(number - bar.n)

        yield done
