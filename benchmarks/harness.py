"""Common code of the benchmarks: description of the machine, interleaved timing, output as JSON and tables.

A result is a dictionary. `results.py` writes RESULTS.md from its `tables` (title, header, rows), its `aims`
(`aim(...)`) and its `notes`, which explain the figures.
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
    """Return processor, cores, memory and versions, as far as the system provides them."""
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
    """Return the versions of the packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def timed(function):
    """Return a contender, which calls `function` and returns the elapsed seconds."""

    def run():
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return run


def interleaved(contenders, repeats, budget=15.0, pause=0.005):
    """Time contenders (name -> callable that returns its seconds) in rounds, each in a new random order.

    Each contender is called once for warm-up. One that has exceeded its `budget` of seconds is skipped in
    later rounds. The pause lets threads that spin after a parallel region go to sleep before the next call.
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
    """Return a parser with the options of all benchmarks."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats")
    parser.add_argument("--json", metavar="FILE", help="write the JSON line to a file too")
    for name, words in choices.items():
        parser.add_argument(f"--{name}", help=words)
    return parser


def aim(words, wanted, measured, at_most=False):
    """Return an aim and its result: at least `wanted`, or at most."""
    met = measured is not None and (measured <= wanted if at_most else measured >= wanted)
    return dict(aim=words, wanted=wanted, measured=measured, at_most=at_most, met=bool(met))


def user_environment(more=None):
    """Return the environment of a fresh process, with `more` variables.

    Modules are stored as bytecode, as those of an installed package are. Otherwise, the import would compile
    them in every process, which takes as long as importing jax.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | (more or {})


def child(script, request, environment=None):
    """Run `script --child REQUEST` in a new process; return (seconds from start to end, last line).

    The request contains the start time (`begin`).
    """
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, script, "--child", json.dumps(dict(request, begin=time.time()))],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=user_environment(environment),
    )
    return time.perf_counter() - begin, json.loads(done.stdout.splitlines()[-1])


def peak_memory_mb():
    """Return the peak memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        # The figure of `getrusage` may include that of the parent process before this one was started.
        lines = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        if lines:
            return int(lines[0].split()[1]) / 2**10
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def number(value):
    """Format a number with about three digits."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def print_table(header, rows):
    """Print a plain-text table with columns as wide as needed."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for number, row in enumerate(cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def markdown_table(header, rows):
    """Return the lines of a markdown table."""

    def line(cells):
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(header), "|" + "---|" * len(header), *(line(row) for row in rows)]


def report(result, path=None):
    """Print the tables and aims of a result, then its JSON line."""
    for table in result.get("tables", ()):
        print(f"\n{table['title']}")
        print_table(table["header"], table["rows"])
    for one in result.get("aims", ()):
        print(aim_words(one))
    emit(result, path)


def aim_words(one):
    """Return an aim as a line of text."""
    bound = f"{'at most' if one['at_most'] else 'at least'} {number(one['wanted'])}"
    verdict = "met" if one["met"] else "missed"
    return f"{verdict}: {one['aim']}: aimed at {bound}, measured {number(one['measured'])}"


def emit(result, path=None):
    """Print the result as one JSON line, and write it to `path` if given."""
    line = json.dumps(result)
    print(line)
    if path:
        Path(path).write_text(line + "\n")
