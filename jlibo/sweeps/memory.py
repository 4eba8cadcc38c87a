"""How many lanes fit: the chunk of a sweep from a budget of memory.

The compiler says what a program needs, so the chunk that one would like is compiled and asked; only if it is
too large, smaller ones are tried. A sweep that fits, and most do, is compiled once.

On a CPU a lane gets no cheaper in a batch of 64 than it is in one of 2, and so chunks there are small, and
as many of them as would keep eight devices busy: the choice is then the same on 1, 2, 4 and 8 devices, and so
are the results. An accelerator wants the largest batch that there is.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jlibo.host_memory import free_host_memory
from jlibo.sweeps.program import CompiledChunks

CPU_CHUNK, CPU_SHARES = 32, 8
ACCELERATOR_CHUNK = 1024
SHARE = 0.5
"""Of the memory that is free, to be used when nobody says how much."""


class BudgetError(ValueError):
    """Not even one run fits."""


def wanted_chunk(num_lanes: int, devices: Sequence[Any]) -> int:
    """The chunk that one would like, whatever memory it takes."""
    if devices[0].platform == "cpu":
        most, shares = CPU_CHUNK, max(CPU_SHARES, len(devices))
    else:
        most, shares = ACCELERATOR_CHUNK, len(devices)
    return max(min(2, num_lanes), min(most, -(-num_lanes // shares)))


def fitting(compile_fn: Callable[[int], CompiledChunks], wanted: int, budget: int) -> CompiledChunks:
    """The program of the largest chunk up to `wanted` whose memory is within `budget` bytes a device."""
    chunk = wanted
    while True:
        compiled = compile_fn(chunk)
        needed = compiled.bytes_per_device()
        if needed is None or needed <= budget:
            return compiled
        if chunk == 1:
            raise BudgetError(
                f"`memory_budget` should be at least the {needed} bytes that one run needs, but got {budget}."
            )
        # What does not grow with the lanes is counted as if it did, so this rather takes too few.
        chunk = max(1, min(chunk - 1, chunk * budget // needed))


def default_budget(devices: Sequence[Any]) -> int:
    """Bytes for one device: half of what is free."""
    device = devices[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            return int(SHARE * (stats["bytes_limit"] - stats.get("bytes_in_use", 0)))
    return int(SHARE * free_host_memory() / len(devices))
