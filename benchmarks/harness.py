"""What every benchmark shares: the machine it ran on, interleaved timing, one JSON line and a table."""

import json
import os
import platform
import statistics
import time
from importlib import metadata
from pathlib import Path
from typing import NamedTuple


class Timing(NamedTuple):
    """Seconds of repeated runs."""

    median: float
    lowest: float
    highest: float
    runs: int


def describe_machine(packages=("jax", "jaxlib", "numpy", "scipy")):
    """Processor, cores, memory and versions, as far as the system tells."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return dict(
        cpu=model,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        memory_gb=round(memory / 2**30, 1),
        python=platform.python_version(),
        **versions(packages),
    )


def versions(packages):
    """Installed versions of packages, those that are absent left out."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def timed(function):
    """A contender: calls `function` and returns the seconds it took."""

    def run():
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return run


def interleaved(contenders, repeats, budget=15.0, pause=0.005):
    """Time contenders (name -> callable that returns its seconds) in turn, a new order each round.

    One warm-up each comes first. A contender that has used up its `budget` of seconds sits out the later
    rounds; the pause lets threads that spin after a parallel region go to sleep before the next one starts.
    """
    seconds = {name: [] for name in contenders}
    names = list(contenders)
    for name in names:
        contenders[name]()
    for turn in range(repeats):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            if sum(seconds[name]) < budget:
                time.sleep(pause)
                seconds[name].append(contenders[name]())
    return {
        name: Timing(statistics.median(taken), min(taken), max(taken), len(taken))
        for name, taken in seconds.items()
    }


def print_table(header, rows):
    """A plain table, columns as wide as they must be."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for number, row in enumerate(cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def emit(result, path=None):
    """Print the result as one JSON line, and write the same to `path` if given."""
    line = json.dumps(result)
    print(line)
    if path:
        Path(path).write_text(line + "\n")
