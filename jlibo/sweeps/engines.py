"""Engines that compute chunks: local devices, several processes, or Dask workers.

Each engine yields `(number, arrays)` in the order in which chunks finish. Results do not depend on the order.

| engine              | when                                                                            |
|---------------------|---------------------------------------------------------------------------------|
| `local_chunks`      | one process with one or more devices, or one device and several threads         |
| `Processes`         | several processes under `jax.distributed`: each takes every n-th chunk          |
| `dask_chunks`       | workers that join and leave (in `dask_engine`)                                  |
"""

import os
import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, final

import jax
import numpy as np

from jlibo.checks import fail
from jlibo.sweeps.compiled import CompiledChunks
from jlibo.sweeps.folder import SweepWarning
from jlibo.sweeps.points import Plan
from jlibo.sweeps.program import Program, double_precision
from jlibo.sweeps.progress import Meter

Finished = tuple[int, list[np.ndarray]]


def local_chunks(
    compiled: CompiledChunks,
    plan: Plan,
    numbers: Sequence[int],
    meter: Meter | None,
    *,
    num_threads: int = 1,
) -> Generator[Finished, None, None]:
    """Compute chunks on the local devices, one chunk per device and thread at a time."""
    num_devices = len(compiled.devices)
    batches = [numbers[begin : begin + num_devices] for begin in range(0, len(numbers), num_devices)]
    stop = threading.Event()

    def after_segment() -> None:
        if stop.is_set():
            raise _Stopped
        if meter is not None and compiled.program.num_segments > 1:
            for _ in range(num_devices):
                meter.on_tick(1 / compiled.program.num_segments)

    def run(batch: Sequence[int]) -> list[Finished]:
        if meter is not None:
            meter.begin(len(batch))
        outputs = compiled.run(plan, batch, segment_fn=after_segment)
        if meter is not None:
            jax.effects_barrier()
        return list(zip(batch, outputs, strict=True))

    for finished in _in_threads(run, batches, num_threads, stop):
        yield from finished
        if meter is not None:
            meter.finish(len(finished))


class _Stopped(Exception):
    """Another thread failed or the user interrupted, so this thread stops."""


def _in_threads(
    fn: Callable[[Any], Any], items: Sequence[Any], num_threads: int, stop: threading.Event
) -> Generator[Any, None, None]:
    """Yield `fn` of each item as it finishes. If one fails or the caller stops, `stop` is set."""
    if num_threads == 1 or len(items) <= 1:
        yield from map(fn, items)
        return
    # A thread does not inherit `with jax.enable_x64(...)` of its caller.
    wide = double_precision()

    def in_this_precision(item):
        with jax.enable_x64(wide):
            return fn(item)

    pool = ThreadPoolExecutor(min(num_threads, len(items)))
    try:
        for future in as_completed([pool.submit(in_this_precision, item) for item in items]):
            yield future.result()
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def usual_threads() -> int:
    """Return the number of chunks that one CPU device should compute at a time: the number of cores.

    XLA shares only the larger products of a program among cores, so several chunks at a time are faster. On
    other platforms it is 1.
    """
    return _num_cores() if jax.default_backend() == "cpu" else 1


def _num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_devices(devices: int | Sequence[Any] | None) -> list[Any]:
    """Return the local devices to use: all, the first `devices`, or those given.

    On a CPU, programs can deadlock if as many run at once as XLA has threads (jax 0.10). Fewer devices than
    threads are therefore used there.
    """
    local = jax.local_devices()
    if devices is None:
        chosen = local
    elif isinstance(devices, int):
        if not 1 <= devices <= len(local):
            fail("devices", f"between 1 and the {len(local)} local devices", devices)
        chosen = local[:devices]
    else:
        chosen = list(devices)
        if not chosen or any(device not in local for device in chosen):
            fail("devices", f"devices among {local}", chosen)
    threads = _num_threads()
    if chosen[0].platform == "cpu" and len(chosen) > 1 and len(chosen) >= threads:
        words = f"fewer than the {threads} threads of XLA, or NPROC={len(chosen) + 2} set before jax starts"
        if devices is not None:
            fail("devices", words, f"{len(chosen)} devices")
        chosen = chosen[: max(1, threads - 1)]
        warnings.warn(
            f"{len(local)} devices with {threads} threads could wait for each other for ever: only "
            f"{len(chosen)} of them are used. Set NPROC={len(local) + 2} before jax starts to use all.",
            SweepWarning,
            stacklevel=3,
        )
    return list(chosen)


def _num_threads() -> int:
    """Return the size of XLA's thread pool, computed as XLA does."""
    try:
        return int(os.environ["NPROC"])
    except (KeyError, ValueError):
        return _num_cores()


@final
class Processes:
    """The processes of `jax.distributed`. A single process is the first one and never waits."""

    def __init__(self):
        self.count = jax.process_count()
        self.index = jax.process_index()

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def share(self, numbers: Sequence[int]) -> list[int]:
        """Return the chunks of this process.

        The share depends only on the chunk number, so processes agree on it without communication, and
        independently of which chunks are finished.
        """
        return [number for number in numbers if number % self.count == self.index]

    def wait(self, name: str) -> None:
        """Block until all processes have called this with the same name."""
        if self.count > 1:
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices(name)

    def agree(self, number: int) -> int:
        """Return the first process's `number` on every process."""
        if self.count == 1:
            return number
        from jax.experimental import multihost_utils

        return int(multihost_utils.broadcast_one_to_all(np.asarray(number, np.int32)))

    def all_good(self, problem: str | None) -> str | None:
        """Return the first process's `problem` on every process, so that all of them stop.

        If one process stopped alone, the others would wait for it forever.
        """
        if self.count == 1:
            return problem
        from jax.experimental import multihost_utils

        text = np.zeros(4096, np.uint8)
        encoded = (problem or "").encode()[: text.size]
        text[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        told = np.asarray(multihost_utils.broadcast_one_to_all(text)).astype(np.uint8)
        return told.tobytes().rstrip(b"\0").decode("utf-8", "replace") or None

    def gather(self, plan: Plan, program: Program, parts: dict[int, list[np.ndarray]]) -> dict[int, Any]:
        """Return the chunks of all processes by number, on every process."""
        if self.count == 1:
            return parts
        from jax.experimental import multihost_utils

        rounds = -(-plan.num_chunks // self.count)
        padded = []
        for place, output in enumerate(program.outputs):
            block = np.zeros((rounds, plan.chunk, *output.shape), output.dtype)
            for number, arrays in parts.items():
                block[number // self.count, : plan.num_present(number)] = arrays[place]
            padded.append(block)
        gathered = multihost_utils.process_allgather(padded)
        return {
            number: [
                np.asarray(block)[number % self.count, number // self.count, : plan.num_present(number)]
                for block in gathered
            ]
            for number in range(plan.num_chunks)
        }
