"""How many lanes fit: the chunk of a sweep from a budget of memory.

The compiler says what a program needs, so the chunk that one would like is compiled and asked; only if it is
too large, smaller ones are tried. A sweep that fits, and most do, is compiled once.

On a CPU a lane gets no cheaper in a batch of 64 than it is in one of 2, and so chunks there are small, and
as many of them as would keep eight devices busy: the choice is then the same on 1, 2, 4 and 8 devices, and so
are the results. An accelerator wants the largest batch that there is.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jlibo.host_memory import BudgetError, free_host_memory, in_units
from jlibo.sweeps.program import CompiledChunks, Program

CPU_CHUNK, CPU_SHARES = 32, 8
ACCELERATOR_CHUNK = 1024
SHARE = 0.5
"""Of the memory that is free, to be used when nobody says how much."""


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
            raise _one_run(needed, budget)
        # What does not grow with the lanes is counted as if it did, so this rather takes too few.
        chunk = max(1, min(chunk - 1, chunk * budget // needed))


def _one_run(needed: int, budget: int) -> BudgetError:
    return BudgetError(
        f"`memory_budget` should be at least the {needed} bytes that one run needs, but got {budget} "
        f"(by default half of the free memory)."
    )


def check_one_run(program: Program, budget: int) -> None:
    """Raise a `BudgetError` if not even one run can fit. Nothing is compiled."""
    needed = program.least_bytes(1)
    if needed > budget:
        raise _one_run(needed, budget)


def check_result(program: Program, num_lanes: int) -> None:
    """Raise a `BudgetError` if the results of all runs do not fit into the memory of this machine."""
    sizes = [output.num_bytes for output in program.outputs]
    # All outputs of all runs, and a second copy of one while it gets its axes.
    _compare(num_lanes * (sum(sizes) + max(sizes)), free_host_memory(), f"the result, of {num_lanes:,} runs,")


def check_chunk(program: Program, chunk: int, budget: int) -> None:
    """Raise a `BudgetError` if a chunk cannot fit, whatever the compiler does. Nothing is compiled."""
    _compare(program.least_bytes(chunk), budget, _runs(chunk))


def check_compiled(compiled: CompiledChunks, budget: int) -> CompiledChunks:
    """Return the program of a chunk size that was given; raises a `BudgetError` if it needs more memory."""
    needed = compiled.bytes_per_device()
    if needed is not None:
        _compare(needed, budget, _runs(compiled.chunk))
    return compiled


def _runs(chunk: int) -> str:
    return "one run" if chunk == 1 else f"a chunk of {chunk:,} runs"


def _compare(needed: int, free: int, what: str) -> None:
    if needed > free:
        raise BudgetError(
            f"{what} needs at least {in_units(needed)} of memory, and {in_units(free)} are free: take fewer "
            "or smaller runs, a smaller chunk, or fewer outputs."
        )


def free_of(devices: Sequence[Any]) -> int:
    """Return the free bytes of one device. On a CPU the devices share the memory of the machine."""
    device = devices[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return free_host_memory() // len(devices)
