"""Chunk size of a sweep from a memory budget.

The compiler reports the memory that a program needs. The preferred chunk size is compiled first, and smaller
ones are tried only if it needs too much. Most sweeps fit and are compiled once.

On a CPU a lane is as expensive in a batch of 64 as in a batch of 2. Chunks are therefore small there, and
there are enough of them to occupy eight devices. The choice, and with it the result, is the same on 1, 2, 4
and 8 devices. On an accelerator the largest possible batch is preferred.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jlibo.host_memory import BudgetError, free_host_memory, in_units
from jlibo.sweeps.compiled import CompiledChunks
from jlibo.sweeps.program import Program

CPU_CHUNK, CPU_SHARES = 32, 8
ACCELERATOR_CHUNK = 1024
SHARE = 0.5
"""Share of the free memory that is used if no budget is given."""


def wanted_chunk(num_lanes: int, devices: Sequence[Any]) -> int:
    """Return the preferred chunk size, without regard to memory."""
    if devices[0].platform == "cpu":
        most, shares = CPU_CHUNK, max(CPU_SHARES, len(devices))
    else:
        most, shares = ACCELERATOR_CHUNK, len(devices)
    return max(min(2, num_lanes), min(most, -(-num_lanes // shares)))


def fitting(compile_fn: Callable[[int], CompiledChunks], wanted: int, budget: int) -> CompiledChunks:
    """Return the program of a chunk of at most `wanted` lanes that needs at most `budget` bytes per device.

    Raises a `BudgetError` if one lane needs more.
    """
    chunk = wanted
    while True:
        compiled = compile_fn(chunk)
        needed = compiled.bytes_per_device()
        if needed is None or needed <= budget:
            return compiled
        if chunk == 1:
            raise _one_run(needed, budget)
        # Memory that is independent of the number of lanes is scaled too, so this errs on the small side.
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
    # All outputs of all runs, and a second copy of one output while it is reshaped to its axes.
    _compare(num_lanes * (sum(sizes) + max(sizes)), free_host_memory(), f"the result, of {num_lanes:,} runs,")


def check_chunk(program: Program, chunk: int, budget: int) -> None:
    """Raise a `BudgetError` if the lower bound of a chunk's memory exceeds `budget`. Nothing is compiled."""
    _compare(program.least_bytes(chunk), budget, _runs(chunk))


def check_compiled(compiled: CompiledChunks, budget: int) -> CompiledChunks:
    """Return `compiled`; raises a `BudgetError` if it needs more than `budget` bytes per device."""
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
    """Return the free memory of one device in bytes. CPU devices share the memory of the machine equally."""
    device = devices[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return free_host_memory() // len(devices)
