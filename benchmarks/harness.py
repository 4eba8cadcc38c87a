"""What every benchmark shares: the machine it ran on, interleaved timing, one JSON line and a table.

A result is a dictionary. What `results.py` makes RESULTS.md of are its `tables` (title, header, rows), its
`aims` (`aim(...)`) and its `notes`, the words that say why a figure is what it is.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
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


def arguments(doc, **choices):
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats")
    parser.add_argument("--json", metavar="FILE", help="write the JSON line to a file too")
    for name, words in choices.items():
        parser.add_argument(f"--{name}", help=words)
    return parser


def aim(words, wanted, measured, at_most=False):
    """What was aimed at and what came out: at least `wanted`, or at most."""
    met = measured is not None and (measured <= wanted if at_most else measured >= wanted)
    return dict(aim=words, wanted=wanted, measured=measured, at_most=at_most, met=bool(met))


def child(script, request, environment=None):
    """Run `script --child REQUEST` in a process of its own: (seconds from start to end, its last line).

    The request tells the child when it was started (`begin`).
    """
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, script, "--child", json.dumps(dict(request, begin=time.time()))],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, **(environment or {})},
    )
    return time.perf_counter() - begin, json.loads(done.stdout.splitlines()[-1])


def peak_memory_mb():
    """The most memory this process ever had."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def number(value):
    """Three digits or so, for people."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def print_table(header, rows):
    """A plain table, columns as wide as they must be."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for number, row in enumerate(cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def report(result, path=None):
    """Print a result's tables and aims for people, then the JSON line."""
    for table in result.get("tables", ()):
        print(f"\n{table['title']}")
        print_table(table["header"], table["rows"])
    for one in result.get("aims", ()):
        print(aim_words(one))
    emit(result, path)


def aim_words(one):
    """One aim as a line."""
    bound = f"{'at most' if one['at_most'] else 'at least'} {number(one['wanted'])}"
    verdict = "met" if one["met"] else "missed"
    return f"{verdict}: {one['aim']}: aimed at {bound}, measured {number(one['measured'])}"


def emit(result, path=None):
    """Print the result as one JSON line, and write the same to `path` if given."""
    line = json.dumps(result)
    print(line)
    if path:
        Path(path).write_text(line + "\n")
