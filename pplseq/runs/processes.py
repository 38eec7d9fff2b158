"""Several processes that work on one model, as torchrun starts them: who writes, what they agree on, what each one takes.

Each has its rows of every batch and its share of held-out text; gradients are averaged by torch's DistributedDataParallel.
The first process alone writes. Importing this imports no torch.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PATIENCE = timedelta(hours=2)  # how long the others wait while one clusters words or saves; one that died is known at once


class ProcessLost(RuntimeError):
    """Another process of this training ended."""


class Processes:
    """The processes of a training: this one alone, unless :func:`started` was told otherwise.

    Attributes:
        rank: the number of this one, from 0. count: how many there are. several: whether there are more than this one.
        writes: whether this is the one that writes.
    """

    rank, count, several, writes = 0, 1, False, True

    def share(self, num_rows: int) -> slice:
        """Which of so many rows are this process's: as many as another's, one more or less."""
        return slice(self.rank * num_rows // self.count, (self.rank + 1) * num_rows // self.count)

    def highest(self, *values: int) -> Sequence[int]:
        """The highest of all processes' numbers, one by one."""
        return values

    def said_first(self, value: Any) -> Any:
        """What the first process says."""
        return value

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over the processes."""
        return value

    def rows(self, value: torch.Tensor) -> torch.Tensor:
        """All processes' rows, in their order."""
        return value

    @contextlib.contextmanager
    def one_first(self) -> Iterator[None]:
        """The first process goes through the block before the others do: it leaves files there that they read."""
        yield


class Several(Processes):
    """Processes that talk by torch.distributed."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.rank, self.count, self.several = dist.get_rank(), dist.get_world_size(), True
        self.writes = self.rank == 0

    def highest(self, *values: int) -> Sequence[int]:
        import torch
        import torch.distributed as dist

        found = torch.tensor(values)
        with one_lost():
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.tolist()

    def said_first(self, value: Any) -> Any:
        import torch.distributed as dist

        said = [value]
        with one_lost():
            dist.broadcast_object_list(said, src=0)
        return said[0]

    def total(self, value: torch.Tensor) -> torch.Tensor:
        import torch.distributed as dist

        value = value.clone()
        with one_lost():
            dist.all_reduce(value)
        return value

    def rows(self, value: torch.Tensor) -> torch.Tensor:
        import torch
        import torch.distributed as dist

        sizes = self.total(torch.nn.functional.one_hot(torch.tensor(self.rank), self.count) * len(value)).tolist()
        parts = [value.new_empty(size, *value.shape[1:]) for size in sizes]
        with one_lost():
            dist.all_gather(parts, value.contiguous())
        return torch.cat(parts)

    @contextlib.contextmanager
    def one_first(self) -> Iterator[None]:
        import torch.distributed as dist

        if not self.writes:
            with one_lost():
                dist.barrier()
        yield
        if self.writes:
            with one_lost():
                dist.barrier()


@contextlib.contextmanager
def one_lost() -> Iterator[None]:
    """Around what the processes do together.

    Raises:
        ProcessLost: in the place of what torch says where another process ended.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, ProcessLost) or not _of_connection(error):
            raise
        raise ProcessLost(
            "another process ended, so this one ends too; checkpoints of a training are whole: go on with --resume, with as "
            "many processes as you like"
        ) from error


def _of_connection(error: RuntimeError) -> bool:
    from torch.distributed import DistError

    said = str(error)
    return isinstance(error, DistError) or any(word in said for word in ("Connection", "gloo", "NCCL", "peer", "Broken pipe"))


_alone = Processes()
_now: list[Processes] = []


def current() -> Processes:
    """The processes of the training that runs here."""
    return _now[-1] if _now else _alone


def asked_for() -> int:
    """How many processes torchrun started with this one; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def is_first() -> bool:
    """Whether this is the process that people hear: known before torch is loaded."""
    return asked_for() == 1 or os.environ["RANK"] == "0"


@contextlib.contextmanager
def started() -> Iterator[Processes]:
    """Inside, the processes that torchrun started know each other; gloo between CPUs, nccl between GPUs."""
    if asked_for() == 1 or _now:
        yield current()
        return
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # numbers that decide what the host does next go over the host's own connection
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE)
    _now.append(Several())
    try:
        yield _now[-1]
        with contextlib.suppress(RuntimeError):  # none leaves while another still hears from it: that one would abort
            _now[-1].highest(0)
    finally:
        _now.pop()
        gc.collect()  # a training that still held the group would end it when Python is gone, which aborts one process in two
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
