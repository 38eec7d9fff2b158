"""SIGINT, SIGTERM and SIGHUP as a request that a long loop answers when its numbers are consistent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(BaseException):
    """A signal asked the loop to stop (no Exception, so that nothing on the way swallows it)."""


class TimeOver(BaseException):
    """A stretch took longer than it was given."""


class StopSignals:
    """While entered, a first SIGINT, SIGTERM or SIGHUP is only noted; the loop calls `check` between two steps.

    A second one raises KeyboardInterrupt at once. Handlers are put back on exit. SIGHUP stays ignored under nohup.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.may_raise = False

    def __enter__(self) -> StopSignals:
        self.previous = {}
        # Python delivers signals to the main thread only; elsewhere they are not ours to handle.
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):  # the last on Windows alone, which has no SIGHUP
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                    self.previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        if self.received is not None:
            # Asked twice: do not wait for the step. The checkpoint on disk is whole anyway.
            raise KeyboardInterrupt
        self.received = number
        if self.may_raise:
            raise Stopped

    def check(self) -> None:
        """Raise Stopped if a signal came."""
        if self.received is not None:
            raise Stopped

    @contextmanager
    def immediate(self, seconds: float | None = None) -> Iterator[None]:
        """A stretch that may be cut short anywhere: a signal raises Stopped there and then.

        Args:
            seconds: after which TimeOver is raised there; None has no limit.
        """
        self.check()
        self.may_raise = True
        try:
            with alarm(seconds):
                yield
        finally:
            self.may_raise = False

    def reraise(self) -> None:
        """Act as the signal would have without this class."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            raise SystemExit(128 + self.received)


@contextmanager
def all_as_interrupts() -> Iterator[None]:
    """Around what knows nothing of signals: SIGTERM and SIGHUP interrupt it as SIGINT does, and then end the process so.

    Raises:
        SystemExit: 143 or 129, in the place of the KeyboardInterrupt.
    """
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, handle)
    try:
        yield
    except KeyboardInterrupt:
        if not received:
            raise
        raise SystemExit(128 + received[0]) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def alarm(seconds: float | None) -> Iterator[None]:
    """A stretch that TimeOver ends after so many seconds, in the main thread of a system with alarms; None has no limit."""
    if seconds is None or not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: object) -> None:
        raise TimeOver

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, min(max(seconds, 1e-6), 1e9))  # a clock has no more
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
