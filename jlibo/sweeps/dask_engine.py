"""Sweeps on Dask: chunks are tasks of `distributed`, and workers may join and leave.

A chunk is a pure function of its number, so the task of a lost worker can be run again on another one.
Workers compile the program once and keep it. They need the same versions of jlibo and of its libraries, and
one thread each. A worker with several threads still runs one chunk at a time (`engines.choose_devices` says
why).

The user's function is sent to the workers with `cloudpickle`, as Dask sends functions. Any process that can
connect to a scheduler can therefore run code on it and on its workers. Workers can also send objects that run
code in the client when they are unpickled. All members of a cluster must trust each other. `dask_cluster`
starts local clusters that only their own client can connect to. Nothing pickled is written to disk: folders
hold arrays only.
"""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from jlibo.printable import printable
from jlibo.sweeps.compiled import CompiledChunks
from jlibo.sweeps.engines import Finished
from jlibo.sweeps.points import Plan
from jlibo.sweeps.program import Program, double_precision, trace, versions
from jlibo.sweeps.progress import Meter
from jlibo.sweeps.segments import AbstractSegmentedRun

NEEDS_DASK = "a sweep on Dask needs distributed: pip install 'jlibo[dask]'."


@final
@dataclasses.dataclass(frozen=True)
class Order:
    """Everything that a worker needs to compute any chunk of a sweep."""

    run_fn: Callable[..., Any] | AbstractSegmentedRun
    plan: Plan
    dims: Mapping[str, Sequence[str]] | None
    key_data: np.ndarray
    key_impl: str
    x64: bool
    digest: str
    versions: Mapping[str, str]


class WorkerError(RuntimeError):
    """A worker would compute something else than the client: its versions or its traced program differ."""


class ClusterError(RuntimeError):
    """The scheduler cannot be reached, has dropped a chunk, or is open to other processes."""


# --- on a worker --------------------------------------------------------------------------------------------

_one_at_a_time = threading.Lock()
_kept: dict[str, tuple[Order, CompiledChunks]] = {}


def compute_chunk(order_bytes: bytes, number: int) -> list[np.ndarray]:
    """Return the outputs of one chunk, computed on the first device of this process.

    The program of the most recent sweep is kept.
    """
    with _one_at_a_time:
        name = hashlib.sha256(order_bytes).hexdigest()
        if name not in _kept:
            _kept.clear()
            _kept[name] = _prepare(order_bytes)
        order, compiled = _kept[name]
        with jax.enable_x64(order.x64):
            return compiled.run(order.plan, [number])[0]


def _prepare(order_bytes: bytes) -> tuple[Order, CompiledChunks]:
    import cloudpickle

    order: Order = cloudpickle.loads(order_bytes)
    if order.versions != versions():
        raise WorkerError(f"a worker has {_words(versions())}, but should have {_words(order.versions)}.")
    with jax.enable_x64(order.x64):
        key = jax.random.wrap_key_data(jnp.asarray(order.key_data), impl=order.key_impl)
        program = trace(order.run_fn, order.plan.points, key, dims=order.dims)
        if program.digest != order.digest:
            raise WorkerError(
                "on a worker the function computes something else than here: does it depend on anything that "
                "differs there, such as a file, a setting of jax or the time?"
            )
        return order, CompiledChunks(program, order.plan.chunk, jax.local_devices()[:1], key)


def _words(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


# --- on the client ------------------------------------------------------------------------------------------


def dask_chunks(
    client: Any,
    run_fn: Callable[..., Any] | AbstractSegmentedRun,
    program: Program,
    plan: Plan,
    numbers: Sequence[int],
    *,
    dims: Mapping[str, Sequence[str]] | None,
    meter: Meter | None,
    key: Any,
) -> Generator[Finished, None, None]:
    """Submit all chunks to the cluster and yield them as they finish."""
    try:
        import cloudpickle
        from distributed import as_completed
    except ImportError:
        raise ImportError(NEEDS_DASK) from None
    order = Order(
        run_fn,
        plan,
        dims,
        np.asarray(jax.random.key_data(key)),
        program.key_impl,
        double_precision(),
        program.digest,
        versions(),
    )
    order_bytes = cloudpickle.dumps(order)
    name = hashlib.sha256(order_bytes).hexdigest()[:16]
    # Submitted once, as a task, so that it survives the loss of any worker; workers fetch it.
    with _cluster_errors():
        shipped = client.submit(bytes, order_bytes, key=f"jlibo-order-{name}")
        futures = {
            client.submit(compute_chunk, shipped, number, key=f"jlibo-chunk-{name}-{number:05d}"): number
            for number in numbers
        }
    if meter is not None:
        meter.begin(0)
    try:
        # Results are fetched here and not by `as_completed`: if the scheduler dies during a fetch,
        # `as_completed` loses the future and waits for it forever.
        for future in as_completed(list(futures)):
            if future.status == "error":
                raise future.exception()
            if future.status != "finished":
                raise _lost(f"a chunk was {printable(future.status)}")
            with _cluster_errors():
                arrays = future.result()
            number = futures.pop(future)
            future.release()
            yield number, arrays
            if meter is not None:
                meter.finish(1)
    finally:
        # If the sweep was stopped early, its remaining tasks are cancelled. A scheduler that is gone is not
        # contacted: that would block.
        if futures and client.status == "running":
            with contextlib.suppress(Exception):
                client.cancel(list(futures))


@contextlib.contextmanager
def _cluster_errors() -> Iterator[None]:
    """Replace exceptions that `distributed` raises for a lost scheduler by a `ClusterError`."""
    from distributed.comm.core import CommClosedError

    try:
        yield
    except (CommClosedError, OSError, TimeoutError, concurrent.futures.CancelledError) as error:
        raise _lost(type(error).__name__) from None


def _lost(what: str) -> ClusterError:
    return ClusterError(
        f"the connection to the Dask scheduler was lost ({what}). Finished chunks are kept if the sweep has "
        "a folder: start the scheduler and run the same sweep again to resume."
    )


def worker_memory(client: Any) -> int | None:
    """Return the smallest memory limit of all workers in bytes, or None if no worker has a limit."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [worker["memory_limit"] for worker in workers if worker.get("memory_limit")]
    return min(limits, default=None)
