"""Work that is a sum over parts, on the workers of a Dask cluster: what is mapped, added in a tree, and done again where a
worker dies.

Dask sends functions and numbers as pickles between the scheduler and the workers, so a cluster is as trusted as this process
is: give only the address of one of your own. Importing this imports no Dask.
"""

from __future__ import annotations

import contextlib
import copy
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pplseq
from pplseq import checks

LOCAL = "local:"
TRIES = 3  # at a part that could not be read; a file system may be away for a moment
QUICK = {  # of workers here: no profile; and memory is not given back at once, which costs a sixth of the time of large arrays
    "distributed.worker.profile.enabled": False,
    "distributed.nanny.pre-spawn-environ": dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), 1),
}
PATIENCE = 30.0  # seconds for a scheduler to answer, for its first worker, and for another where all have died


class ClusterError(RuntimeError):
    """A cluster that does not answer, or whose workers cannot do this work."""


class PartFailed(ClusterError):
    """One part of the work, or several, could not be done; says which, and why."""


def distributed() -> Any:
    """dask.distributed, on first use; ImportError names the extra that brings it."""
    try:
        import distributed
    except ImportError as error:
        raise ImportError('cluster: work on several machines needs Dask: pip install "pplseq[cluster]"') from error
    return distributed


@contextlib.contextmanager
def connected(
    where: Any, *, say: Callable[[str], None] | None = None, patience: float = PATIENCE
) -> Iterator[Cluster]:
    """The cluster at an address, while it is used.

    Args:
        where: "local:N" starts N workers of one thread on this machine, and ends them; "tcp://HOST:PORT" is a scheduler that
            runs, of workers that have this version of the library; or a ``distributed.Client``, or a :class:`Cluster`, which
            stay open.
        say: is told the dashboard's address.
        patience: seconds for the scheduler to answer and a worker to be there, at first and where all have died.

    Raises:
        ImportError: Dask is absent. ValueError, TypeError: no address.
        ClusterError: nobody answers, no worker comes, or workers have another version of the library.
    """
    if isinstance(where, Cluster):
        yield where
        return
    dask, close = distributed(), contextlib.ExitStack()
    with close:
        if isinstance(where, dask.Client):
            client = where
        else:
            address = close.enter_context(_started(where))
            try:
                client = close.enter_context(dask.Client(address, timeout=patience, set_as_default=False))
            except (OSError, TimeoutError) as error:
                raise ClusterError(
                    f"cluster: {where} does not answer within {patience:g} s; is a scheduler running there (`dask scheduler`)?"
                ) from error
        try:
            client.wait_for_workers(1, timeout=patience)
        except TimeoutError as error:
            raise ClusterError(
                f"cluster: the scheduler at {client.scheduler.address} has no worker; start one (`dask worker ADDRESS`)"
            ) from error
        check_versions(client)
        if say is not None:
            count = Cluster(client).num_workers
            say(f"{count} worker{'s' * (count != 1)}; dashboard: {client.dashboard_link}")
        with client.as_current():
            yield Cluster(client, patience)


@contextlib.contextmanager
def _started(where: Any) -> Iterator[Any]:
    if not isinstance(where, str):
        raise TypeError(f"cluster: expected 'local:N', 'tcp://HOST:PORT' or a distributed.Client, got {where!r}")
    if not where.startswith(LOCAL):
        if "://" not in where:
            raise ValueError(f"cluster: expected 'local:N' or 'tcp://HOST:PORT', got {where!r}")
        yield where
        return
    number = where.removeprefix(LOCAL)
    if not (number.isascii() and number.isdigit() and int(number)):
        raise ValueError(f"cluster: expected local:N with N workers, such as local:2, got {where!r}")
    local = distributed()
    import dask.config

    with dask.config.set(QUICK):
        cluster = local.LocalCluster(
            n_workers=int(number), threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
        )
    try:
        yield cluster
    finally:
        # Dask's own, where a worker that died is just being started again; what is left then ends with this process
        with contextlib.suppress(AssertionError, TimeoutError):
            cluster.close(timeout=PATIENCE)


def version_here() -> str:
    """The library's version, where this is run."""
    return pplseq.__version__


def check_versions(client: Any) -> None:
    """Raises ClusterError, with names, where workers have another version of the library, or none."""
    found = client.run(version_here, on_error="return")
    for worker, version in found.items():
        if isinstance(version, BaseException):
            raise ClusterError(f"cluster: worker {worker} cannot load pplseq ({version}); install it there") from version
        if version != pplseq.__version__:
            raise ClusterError(_other_version(f"worker {worker}", version, pplseq.__version__))


def _other_version(who: str, theirs: str, asking: str) -> str:
    return f"cluster: {who} has pplseq {theirs}, and {asking} is asking; install the same version everywhere"


class Cluster:
    """The workers of a Dask client.

    Example:
        >>> with connected("local:2") as cluster:  # doctest: +SKIP
        ...     cluster.total(len, [[1, 2], [3]], operator.add)
        3
    """

    def __init__(self, client: Any, patience: float = PATIENCE):
        self.client, self.patience = client, patience

    @property
    def num_workers(self) -> int:
        """How many there are now."""
        return len(self.client.scheduler_info(n_workers=-1)["workers"])

    def keep(self, values: Sequence[Any]) -> list[Any]:
        """Values that stay on the workers, and are sent anew where one dies; what stands for them in the calls below."""
        return [self.client.submit(_same, value, key=f"kept-{uuid4().hex}", pure=False) for value in values]

    def each(
        self,
        function: Callable[..., Any],
        parts: Sequence[Any],
        names: Sequence[str] | None = None,
        *,
        done: Callable[[int, int], None] | None = None,
    ) -> list[Any]:
        """function(part) of every part, in their order; a part whose worker dies is done by another.

        Args:
            function: of this library or of an importable module, so that the workers know it.
            parts: what it is called with, tuples of arguments or single ones.
            names: of the parts, for errors.
            done: is told how many parts of how many are done.

        Raises:
            PartFailed: when all others are done; names those that could not be.
            ClusterError: all workers are gone, and none comes; or the scheduler is.
        """
        names = [f"part {number}" for number in range(1, len(parts) + 1)] if names is None else names
        run, futures = uuid4().hex, []
        for name, part in zip(names, parts, strict=True):
            arguments = part if isinstance(part, tuple) else (part,)
            key = f"{name}-{run}-{len(futures)}"
            futures.append(
                self.client.submit(_do_part, pplseq.__version__, function, name, *arguments, key=key, pure=False)
            )
        try:
            for number, _ in enumerate(self._as_done(futures), 1):
                if done is not None:
                    done(number, len(futures))
            found, failed = [], []
            for name, future in zip(names, futures, strict=True):
                if (error := future.exception()) is None:
                    found.append(future.result())
                else:
                    failed.append(_why(name, error))
        except BaseException:
            self.client.cancel(futures)
            raise
        if failed:
            more = f"; and {len(failed) - 5} more" if len(failed) > 5 else ""
            raise PartFailed(f"{len(failed)} of {len(futures)} parts failed: {'; '.join(failed[:5])}{more}")
        return found

    def total(
        self,
        function: Callable[..., Any],
        parts: Sequence[Any],
        add: Callable[[Any, Any], Any],
        names: Sequence[str] | None = None,
    ) -> Any:
        """The sum of function(part) over the parts, added on the workers two by two.

        The tree is made of the parts alone, so the sum has the same bits for any number of workers. A worker holds a part,
        and log(parts) sums that wait for their neighbour.

        Args:
            function, parts, names: as of :meth:`each`. add: the sum of two results.

        Raises:
            PartFailed: names the first part that could not be done. ClusterError: as of :meth:`each`.
        """
        from dask.delayed import delayed

        if not parts:
            raise ValueError("parts: nothing to add up, got none")
        names = [f"part {number}" for number in range(1, len(parts) + 1)] if names is None else names
        do, join, run = delayed(_do_part, pure=False), delayed(add, pure=False), uuid4().hex
        layer = []
        for number, (name, part) in enumerate(zip(names, parts, strict=True)):
            arguments = part if isinstance(part, tuple) else (part,)
            layer.append(do(pplseq.__version__, function, name, *arguments, dask_key_name=f"{name}-{run}-{number}"))
        while len(layer) > 1:
            pairs = [join(*layer[n : n + 2]) for n in range(0, len(layer) - 1, 2)]
            layer = pairs + layer[2 * len(pairs) :]
        future = self.client.compute(layer[0])
        try:
            [done] = self._as_done([future])
            return done.result()
        except distributed().KilledWorker as error:
            raise PartFailed(_why(str(error.task).rsplit("-", 2)[0], error)) from error
        except BaseException:
            future.cancel()
            raise

    def _as_done(self, futures: Sequence[Any]) -> Iterator[Any]:
        """Each when it is done, in whichever way. Dask itself waits for ever where there is no worker."""
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for future in futures:
            future.add_done_callback(done.put)
        for _ in futures:
            gone = 0  # looks in a row that found no worker, a patience apart: one that is started again is there by the second
            while gone < 2:
                try:
                    found = done.get(timeout=self.patience)
                    break
                except queue.Empty:
                    with contextlib.suppress(OSError):  # a scheduler that is gone: Dask tries for a while, and cancels
                        gone = 0 if self.num_workers else gone + 1
            else:
                raise ClusterError(
                    f"cluster: all workers of {self.client.scheduler.address} are gone, and none came within "
                    f"{self.patience:g} s; start some (`dask worker ADDRESS`) and run this again"
                )
            if found.cancelled():
                raise ClusterError("cluster: its work was cancelled; start its scheduler, if that is gone, and run this again")
            yield found

    def expectation_of(self, model: Any, batches: Sequence[Any]) -> Callable[[], tuple[dict, float]]:
        """An E-step of EM over batches, each on a worker: expected statistics and log-likelihood at the model's parameters.

        The batches are sent once and stay on the workers.
        """
        whole, *held = self.keep([copy.deepcopy(model), *batches])

        def expect() -> tuple[dict, float]:
            [now] = self.keep([{name: value.detach().cpu() for name, value in model.state_dict().items()}])
            return self.total(_expected, [(whole, now, batch) for batch in held], _add_expected)

        return expect


def _same(value: Any) -> Any:
    return value


def _do_part(version: str, function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """A part, on a worker."""
    if version != pplseq.__version__:
        raise ClusterError(_other_version("a worker", pplseq.__version__, version))
    for attempt in range(TRIES):
        try:
            return function(*arguments)
        except OSError as error:
            if attempt == TRIES - 1:
                raise PartFailed(_why(name, error)) from error
            time.sleep(0.1 * 2**attempt)
        except Exception as error:
            raise PartFailed(_why(name, error)) from error


def _why(name: str, error: BaseException) -> str:
    if isinstance(error, PartFailed):
        return str(error)
    if type(error).__name__ == "KilledWorker":
        return f"{name}: its worker died again and again, perhaps for want of memory; choose smaller parts"
    return f"{name}: {type(error).__name__}: {error}"


def _expected(model: Any, state: dict, batch: Any) -> tuple[dict, float]:
    from pplseq.infer.fit.em import expectation

    model = copy.deepcopy(model)  # threads of a worker share what it keeps
    model.load_state_dict(state)
    with checks.trusted():
        return expectation(model, batch)


def _add_expected(first: tuple[dict, float], second: tuple[dict, float]) -> tuple[dict, float]:
    return {name: value + second[0][name] for name, value in first[0].items()}, first[1] + second[1]
