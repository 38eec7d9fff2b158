"""A disk that kills the process, or is full, at the n-th operation that writes; commands run on it in a process of their own.

Counted are: every write of a file (half of it reaches the disk), every file that is opened to be written, renamed, removed or
flushed, and every folder that is made or removed. What safetensors writes itself counts as one.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import faulthandler
import io
import json
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

NOT_TOLD = {"seconds", "check", "tokens_per_second", "pid", "host", "path", "run", "seconds_per_token"}
LONGEST = 120  # seconds that a call may take
STUCK = "Timeout ("  # how faulthandler says so
CHANGING = ("rename", "replace", "remove", "unlink", "mkdir", "rmdir", "truncate", "fsync", "chmod")


class Disk:
    """Counts operations; at the n-th it kills the process or, from there on, says that it is full (`full`)."""

    def __init__(self, at: int | None, full: bool = False, below: Path | None = None) -> None:
        self.at, self.full, self.count, self.below = at, full, 0, None if below is None else str(below)

    def tick(self, half: Callable[[], object] | None = None, grows: bool = True) -> None:
        """Before an operation; `half` does a part of it, `grows` is whether a full disk refuses it."""
        self.count += 1
        if self.at is None or self.count < self.at:
            return
        if not self.full:
            if half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL)
        elif grows:
            if half is not None:
                half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def install(self) -> None:
        """For the rest of this process."""
        disk, real_open = self, io.open

        class Raw(io.FileIO):
            def write(self, data):
                disk.tick(lambda: super(Raw, self).write(memoryview(data)[: len(data) // 2]))
                return super().write(data)

        def opened(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
            outside = isinstance(file, int) or disk.below is None or disk.below not in os.path.abspath(file)
            if outside or not set(mode) & set("wax+"):
                return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
            disk.tick()
            raw = Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline)

        builtins.open = io.open = opened
        for name in CHANGING:
            real = getattr(os, name)

            def counted(*arguments, _real=real, _grows=name == "mkdir", **options):
                disk.tick(grows=_grows)
                return _real(*arguments, **options)

            setattr(os, name, counted)
        import safetensors.torch as safetensors

        real_save = safetensors.save_file

        def save_file(tensors, path, *more):
            def half():
                real_save(tensors, path, *more)
                with real_open(path, "r+b") as file:
                    file.truncate(Path(path).stat().st_size // 2)

            disk.tick(half)
            return real_save(tensors, path, *more)

        safetensors.save_file = save_file


def forked() -> int:
    """``os.fork`` of a process that has computed: 0 in the child, which ends after LONGEST seconds and tells where it stood.

    Only the thread that forks is there in the child. It computes alone, as it would wait for ever for the others of torch's.
    """
    import torch

    process = os.fork()
    if process == 0:
        torch.set_num_threads(1)
        faulthandler.dump_traceback_later(LONGEST, exit=True, file=2)
    return process


def in_process(function: Callable[[], object], disk: Disk | None = None, log: Path | None = None) -> tuple[int, int]:
    """(exit code, operations counted) of a function in a process of its own, forked from this one; 137 where it was killed."""
    read, write = os.pipe()
    process = forked()
    if process == 0:
        code = 70
        try:
            os.close(read)
            target = os.open(os.devnull if log is None else log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(target, 1), os.dup2(target, 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            if disk is not None:
                disk.install()
            try:
                function()
                code = 0
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            except BaseException:
                import traceback

                traceback.print_exc()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os.write(write, str(0 if disk is None else disk.count).encode())
        finally:
            os._exit(code)
    os.close(write)
    with open(read) as pipe:
        told = pipe.read()
    status = os.waitpid(process, 0)[1]
    return os.waitstatus_to_exitcode(status) % 256 if os.WIFEXITED(status) else 128 + os.WTERMSIG(status), int(told or 0)


def command(*arguments: object) -> Callable[[], object]:
    """A call of `pplseq`."""
    from pplseq.cli import main

    return lambda: main([str(argument) for argument in arguments], prog_name="pplseq")


def content(folder: Path) -> dict[str, object]:
    """What a folder holds, without what differs from run to run: times, processes and checksums of files with times."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or name.rpartition("/")[2].startswith("."):
            continue
        if path.suffix == ".json":
            found[name] = timeless(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
        else:
            found[name] = path.read_bytes()
    return found


def timeless(value: object) -> object:
    """JSON without times and checksums of what holds times."""
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if name not in NOT_TOLD and not name.endswith("seconds")}
        if kept.pop("sha256", None) is not None and "files" in kept:
            kept["files"] = {n: part for n, part in kept["files"].items() if not n.endswith(".json")}
        return {name: timeless(part) for name, part in kept.items()}
    if isinstance(value, str):
        return re.sub(r"\(\d+\.\d s\)", "", value)
    if not isinstance(value, list):
        return value
    if len(value) == 2 and value[0] == "seconds":  # a pair of a packed mapping
        return value[:1]
    return [timeless(part) for part in value]


class Kills:
    """Kills a command at random operations, goes on with it, and compares what it leaves with what an undisturbed one does.

    Args:
        place: an empty folder. begin: from the folder of a trial to the call that begins, and that goes on when it is made
            again. seed: of the operations.
        replaces: whether it writes files alone, each of which it replaces: they hold something else before each trial, and
            after a trial that or the whole new content.
    """

    def __init__(
        self, place: Path, begin: Callable[[Path], Callable[[], object]], seed: int = 0, replaces: bool = False
    ) -> None:
        self.place, self.begin, self.random, self.replaces = place, begin, random.Random(seed), replaces
        self.expected: dict[str, object] = {}
        whole = self._trial()
        warm(begin(whole))
        whole = self._trial()  # in the same place, as some files hold their paths
        code, self.num_operations = in_process(begin(whole), Disk(None, below=place), place / "log")
        assert code == 0, (place / "log").read_text()
        self.expected = content(whole)

    def _trial(self) -> Path:
        trial = self.place / "trial"
        shutil.rmtree(trial, ignore_errors=True)
        trial.mkdir(parents=True)
        for name in self.expected if self.replaces else ():
            (trial / name).parent.mkdir(parents=True, exist_ok=True)
            (trial / name).write_text(json.dumps("before"))
        return trial

    def _half_replaced(self, trial: Path) -> list[str]:
        """Names of files that are neither what they were before nor what they ought to be, and of files left behind."""
        if not self.replaces:
            return []
        found, before = content(trial), ("before", b'"before"', ["before"])
        left = [path.name for path in trial.rglob(".*.new")]
        return left + [n for n in self.expected if found.get(n) != self.expected[n] and found.get(n) not in before]

    def kill(self, at: int | None = None, times: int = 1) -> str | None:
        """None where all is well after a kill at an operation (a random one by default), else what is wrong."""
        trial, points = self._trial(), []
        for _ in range(times):
            points.append(at or self.random.randint(1, self.num_operations))
            code, _ = in_process(self.begin(trial), Disk(points[-1], below=self.place), self.place / "log")
            if code not in (0, 137):
                return f"refused after a kill at {points}: {(self.place / 'log').read_text()}"
            if half := [name for name in self._half_replaced(trial) if not name.endswith(".new")]:
                return f"half replaced after a kill at {points}: {half}"
        code, _ = in_process(self.begin(trial), None, self.place / "log")
        found = content(trial)
        if code != 0 and found != self.expected:  # a run that was killed when it had finished refuses to be made again
            return f"refused after a kill at {points}: {(self.place / 'log').read_text()}"
        wrong = [name for name in {*found, *self.expected} if found.get(name) != self.expected.get(name)]
        return f"unequal after a kill at {points}: {sorted(wrong)}" if wrong else None

    def fill(self, at: int | None = None) -> str | None:
        """As :meth:`_fill`, made once more where a process was stuck; one that is stuck again is wrong."""
        at = at or self.random.randint(1, self.num_operations)
        found = self._fill(at)
        return self._fill(at) if found is not None and STUCK in found else found

    def _fill(self, at: int) -> str | None:
        """As :meth:`kill`, of a disk that is full from an operation on and then has space again; the error says so."""
        trial = self._trial()
        code, _ = in_process(self.begin(trial), Disk(at, full=True, below=self.place), self.place / "log")
        told = (self.place / "log").read_text()
        if code == 70 or "Traceback" in told or (code != 0 and "No space left" not in told):
            return f"a disk full at {at} ends with {code}: {told[-3000:]}"
        if half := self._half_replaced(trial):
            return f"half replaced where a disk was full at {at}: {half}"
        code, _ = in_process(self.begin(trial), None, self.place / "log")
        found = content(trial)
        if found == self.expected:
            return None
        wrong = sorted(name for name in {*found, *self.expected} if found.get(name) != self.expected.get(name))
        again = (self.place / "log").read_text()
        return f"unequal after a disk was full at {at} ({code}): {wrong}; {told[-500:]} {again[-500:]}"


def warm(function: Callable[[], object]) -> None:
    """Makes a call here, silently, so that what is compiled or imported on the way is there in processes forked later."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        with contextlib.suppress(SystemExit):
            function()


def import_everything() -> None:
    """So that no process forked from this one has to."""
    import importlib
    import pkgutil

    import pplseq

    for module in pkgutil.walk_packages(pplseq.__path__, "pplseq."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                if "pplseq[" not in str(error):  # else an extra that is not installed
                    raise
    for name in ("pyro.optim", "pyro.infer", "safetensors.torch", "tqdm", "scipy.sparse.linalg", "scipy.optimize"):
        importlib.import_module(name)
