"""Progress of a sweep: reported after each chunk, and within a chunk if the function calls `tick`.

| here          | what it is                                                                             |
|---------------|----------------------------------------------------------------------------------------|
| `ProgressFn`  | the caller's function of the share of work done (0 to 1) and a word                    |
| `tick`        | reports from within a scan that a step is done                                         |
| `task_ticks`  | the same as a `progress_fn` for `run_lifelong`                                         |

A tick is a host callback in the compiled program. It is compiled only if progress is shown. A batch ticks
once per step, whether or not the step number is batched.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import final

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Int

from jlibo.front_door import front_door

ProgressFn = Callable[[float, str], None]


@final
class Meter:
    """Counts finished chunks and ticks of running chunks, and reports the share of work done."""

    def __init__(self, report_fn: ProgressFn, *, num_chunks: int = 1, num_done: int = 0):
        self._report_fn = report_fn
        self._num_chunks = num_chunks
        self._num_done = num_done
        self._ticked = 0.0
        self._num_running = 0
        # Ticks are called from the threads of the devices.
        self._lock = threading.Lock()

    def expect(self, num_chunks: int, num_done: int) -> None:
        """Set the total number of chunks and the number of those that are already finished."""
        with self._lock:
            self._num_chunks, self._num_done = num_chunks, num_done
        self._report("running")

    def say(self, words: str) -> None:
        """Report the current share with a new description."""
        self._report(words)

    def begin(self, num_running: int) -> None:
        """Count chunks that start to run."""
        with self._lock:
            self._num_running += num_running

    def finish(self, num_finished: int) -> None:
        """Count chunks that are finished and stored."""
        with self._lock:
            self._num_done += num_finished
            self._num_running = max(0, self._num_running - num_finished)
            # Ticks of chunks that still run are kept: a finished chunk has ticked once in total.
            self._ticked = max(0.0, self._ticked - num_finished) if self._num_running else 0.0
        self._report("running")

    def on_tick(self, share: float) -> None:
        """Count one step on one device, which is the given share of a chunk."""
        with self._lock:
            self._ticked += share
        self._report("running")

    def _report(self, words: str) -> None:
        with self._lock:
            within = min(self._ticked, float(self._num_running))
            share = min(1.0, (self._num_done + within) / max(self._num_chunks, 1))
        self._report_fn(share, words)


_tracing: list[Meter | None] = [None]
"""A stack; its last entry is the meter of the sweep whose function is being traced."""


@contextlib.contextmanager
def traced_with(meter: Meter | None) -> Iterator[None]:
    """Send ticks of functions that are traced in the block to `meter`; None leaves the ticks out."""
    _tracing.append(meter)
    try:
        yield
    finally:
        _tracing.pop()


@front_door
def tick(step: int | Int[Array, ""], total: int) -> None:
    """Report from within a scan that `step` of `total` is done.

        Does nothing outside of a sweep that shows progress.

        **Arguments:**

        - `step`: 1, ..., `total`; may be traced.
        - `total`: number of ticks in one run.

        ```python
        import jax
        import jax.numpy as jnp
    from jaxtyping import Array, Int
        import jlibo

        def run(scale, *, key):
            def step(position, number):
                jlibo.sweeps.tick(number, 100)
                position += scale * jax.random.normal(jax.random.fold_in(key, number))
                return position, position

            return {"walk": jax.lax.scan(step, 0.0, jnp.arange(1, 101))[1]}

        jlibo.sweep(run, {"scale": [0.1, 1.0]}, num_seeds=10, progress=True, key=jax.random.key(0))
        ```
    """
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


@front_door
def task_ticks(num_tasks: int) -> Callable[[int], None] | None:
    """Return a `progress_fn` for `run_lifelong`, or None outside of a sweep that shows progress.

    **Arguments:**

    - `num_tasks`: the number of tasks of the run.

    **Returns:** a function for `run_lifelong(..., progress_fn=task_ticks(num_tasks))`. With None,
    `run_lifelong` has no host callback.

    ```python
    import jax
    import jlibo

    features = jlibo.Cosine(10)

    def run(omega, *, key):
        env_key, run_key = jax.random.split(key)
        return jlibo.run_lifelong(
            jlibo.SyntheticEnv.draw(features, support_size=3, key=env_key),
            features,
            jlibo.GPUCB(nu=10.0, noise_std=0.1),
            jlibo.MetaKGL(lam=0.1, omega=omega),
            num_tasks=3,
            horizon=10,
            progress_fn=jlibo.sweeps.task_ticks(3),
            key=run_key,
        )

    jlibo.sweep(run, {"omega": [0.1, 0.25]}, num_seeds=2, progress=True, key=jax.random.key(0))
    ```
    """
    meter = _tracing[-1]
    return None if meter is None else lambda _: meter.on_tick(1.0 / num_tasks)


def progress_fn(progress: bool | ProgressFn, stack: contextlib.ExitStack, *, name: str) -> ProgressFn | None:
    """Return the function that an argument `progress` stands for: True for a bar, which `stack` closes."""
    if progress is False:
        return None
    return stack.enter_context(bar(name)) if progress is True else progress


@contextlib.contextmanager
def bar(name: str) -> Iterator[ProgressFn]:
    """Yield a function that updates a progress bar with the estimated remaining time.

    Nothing is printed if the standard error is not a terminal.
    """
    from rich.console import Console
    from rich.markup import escape
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
        disable=not console.is_terminal,  # otherwise it prints empty lines
    )
    task = drawn.add_task("starting", total=1.0, name=escape(name))
    with drawn:
        yield lambda share, words: drawn.update(task, completed=share, description=escape(words))
