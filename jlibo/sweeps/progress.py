"""How far a sweep is: told between chunks, and if the function says so, from within a chunk.

| here          | what it is                                                                             |
|---------------|----------------------------------------------------------------------------------------|
| `ProgressFn`  | what the caller gives: called with the share of the work done and a word               |
| `tick`        | what a function calls in its scan: step so-and-so of so many is done                   |
| `task_ticks`  | the same as a `progress_fn` for `run_lifelong`                                         |

A tick is a host callback in the compiled program. It is left out when nobody asked for a bar, and a batch of
lanes ticks once a step, whether or not the step has lanes of its own.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

ProgressFn = Callable[[float, str], None]


class Meter:
    """Adds up finished chunks and the ticks of those that run; reports the share of the whole."""

    def __init__(self, report_fn: ProgressFn, *, num_chunks: int = 1, num_done: int = 0):
        self._report_fn = report_fn
        self._num_chunks = num_chunks
        self._num_done = num_done
        self._ticked = 0.0
        self._num_running = 0
        # Ticks come from the threads of the devices.
        self._lock = threading.Lock()

    def expect(self, num_chunks: int, num_done: int) -> None:
        """How many chunks there are in all, and how many of them were there before."""
        with self._lock:
            self._num_chunks, self._num_done = num_chunks, num_done
        self._report("running")

    def say(self, words: str) -> None:
        """Report the same share with other words."""
        self._report(words)

    def begin(self, num_running: int) -> None:
        """So many chunks run at once now."""
        with self._lock:
            self._num_running, self._ticked = num_running, 0.0

    def finish(self, num_finished: int) -> None:
        """So many chunks are finished, and kept."""
        with self._lock:
            self._num_done += num_finished
            self._num_running, self._ticked = 0, 0.0
        self._report("running")

    def on_tick(self, share: float) -> None:
        """One device has done one step, which is this share of its chunk."""
        with self._lock:
            self._ticked += share
        self._report("running")

    def _report(self, words: str) -> None:
        with self._lock:
            within = min(self._ticked, float(self._num_running))
            share = min(1.0, (self._num_done + within) / max(self._num_chunks, 1))
        self._report_fn(share, words)


_tracing: list[Meter | None] = [None]
"""The meter of the sweep whose function is being traced."""


@contextlib.contextmanager
def traced_with(meter: Meter | None) -> Iterator[None]:
    """While a sweep's function is traced: where its ticks go, or None to leave them out."""
    _tracing.append(meter)
    try:
        yield
    finally:
        _tracing.pop()


def tick(step: Any, total: int) -> None:
    """Say within a scan that `step` (1, ..., `total`) is done. Does nothing outside of a sweep with a bar."""
    meter = _tracing[-1]
    if meter is None:
        return

    def on_host(_):
        meter.on_tick(1.0 / total)

    @custom_vmap
    def emit(step):
        jax.debug.callback(on_host, step)
        return step

    @emit.def_vmap
    def emit_once(num_lanes, flags, step):
        emit(jnp.max(step) if flags[0] else step)
        return step, flags[0]

    emit(jnp.asarray(step))


def task_ticks(num_tasks: int) -> Callable[[int], None] | None:
    """For `run_lifelong(..., progress_fn=task_ticks(num_tasks))`; None, and no cost, where nobody looks."""
    meter = _tracing[-1]
    return None if meter is None else lambda _: meter.on_tick(1.0 / num_tasks)


@contextlib.contextmanager
def bar(name: str) -> Iterator[ProgressFn]:
    """A bar with an estimate of the time left, on a terminal that can draw one; else silent."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    drawn = Progress(
        TextColumn("{task.fields[name]} [dim]{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,  # or it leaves empty lines behind
    )
    task = drawn.add_task("starting", total=1.0, name=name)
    with drawn:
        yield lambda share, words: drawn.update(task, completed=share, description=words)
