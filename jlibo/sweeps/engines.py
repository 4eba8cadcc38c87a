"""Who computes the chunks: the devices of this process, its share among several processes, or Dask's workers.

Each engine yields `(number, arrays)` in whatever order chunks get finished; nothing depends on the order.

| engine              | when                                                                            |
|---------------------|---------------------------------------------------------------------------------|
| `local_chunks`      | one process with one or more devices                                            |
| `Processes`         | several processes under `jax.distributed`: each takes every n-th chunk          |
| `dask_chunks`       | workers that come and go (in `dask_engine`)                                     |
"""

import os
import warnings
from collections.abc import Generator, Sequence
from typing import Any

import jax
import numpy as np

from jlibo.checks import fail
from jlibo.sweeps.folder import SweepWarning
from jlibo.sweeps.points import Plan
from jlibo.sweeps.program import CompiledChunks, Program
from jlibo.sweeps.progress import Meter

Finished = tuple[int, list[np.ndarray]]


def local_chunks(
    compiled: CompiledChunks, plan: Plan, numbers: Sequence[int], meter: Meter | None
) -> Generator[Finished, None, None]:
    """One chunk on each device at a time."""
    at_once = len(compiled.devices)
    for begin in range(0, len(numbers), at_once):
        now = numbers[begin : begin + at_once]
        if meter is not None:
            meter.begin(len(now))
        yield from zip(now, compiled.run(plan, now), strict=True)
        if meter is not None:
            jax.effects_barrier()
            meter.finish(len(now))


def choose_devices(devices: int | Sequence[Any] | None) -> list[Any]:
    """The local devices to use: all of them, the first few, or those given.

    As many programs at once as XLA has threads can wait for each other for ever (jax 0.10 on a CPU), so that
    fewer devices than threads are taken there.
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
    """The size of XLA's pool, as XLA finds it."""
    try:
        return int(os.environ["NPROC"])
    except (KeyError, ValueError):
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes:
    """The processes of `jax.distributed`; one process alone is its own first, and never waits."""

    def __init__(self):
        self.count = jax.process_count()
        self.index = jax.process_index()

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def share(self, numbers: Sequence[int]) -> list[int]:
        """This process's part. By number: processes agree without a word, whatever is done already."""
        return [number for number in numbers if number % self.count == self.index]

    def wait(self, name: str) -> None:
        """Until all processes are here."""
        if self.count > 1:
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices(name)

    def agree(self, number: int) -> int:
        """The number of the first process, for all of them."""
        if self.count == 1:
            return number
        from jax.experimental import multihost_utils

        return int(multihost_utils.broadcast_one_to_all(np.asarray(number, np.int32)))

    def all_good(self, problem: str | None) -> str | None:
        """The problem of the first process as all see it: one that stops alone leaves the others waiting."""
        if self.count == 1:
            return problem
        from jax.experimental import multihost_utils

        text = np.zeros(4096, np.uint8)
        encoded = (problem or "").encode()[: text.size]
        text[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        told = np.asarray(multihost_utils.broadcast_one_to_all(text)).astype(np.uint8)
        return told.tobytes().rstrip(b"\0").decode("utf-8", "replace") or None

    def gather(self, plan: Plan, program: Program, parts: dict[int, list[np.ndarray]]) -> dict[int, Any]:
        """Every process's chunks, on every process."""
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
