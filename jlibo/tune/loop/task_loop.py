"""The method of `TunerTask` that runs the whole loop: ask, evaluate, tell. Internal.

    while there is room and the loop has not ended:  ask for a trial, start its evaluation
    wait for an evaluation that ends:                tell, fail or stop its trial; show progress; call back

All trials are asked for and told in the thread that calls `optimise`, whatever evaluates them. If it is left
by an exception, such as Ctrl-C, the trials that are still running are released, so that they come first when
the task is resumed.
"""

import abc
import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from jlibo.checks import check_count, fail
from jlibo.front_door import front_door
from jlibo.printable import printable
from jlibo.sweeps.progress import ProgressFn, progress_fn
from jlibo.tune.curves.reporting import Reporting
from jlibo.tune.loop.evaluation import Evaluation, EvaluationError, Outcome
from jlibo.tune.loop.pools import AbstractPool, InPlace, Threads
from jlibo.tune.loop.processes import Processes
from jlibo.tune.memory.memory import Memory, MemoryFileError
from jlibo.tune.process import check_process
from jlibo.tune.space.space import SearchSpace
from jlibo.tune.trial import Trial, as_trial

if TYPE_CHECKING:
    from jlibo.tune.task import TunerTask

Callback = Callable[["TunerTask", Trial], Any]
"""A function of the task and a trial that has just finished. The loop ends if it returns True."""
Backend = Literal["threads", "processes"]

logger = logging.getLogger(__name__)


@final
@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """How a loop runs; see `Tuner.optimise`. `most` is the number of trials at which it ends, if any."""

    most: int | None
    seconds: float | None = None
    workers: int = 1
    backend: Backend = "threads"
    callbacks: tuple[Callback, ...] = ()
    progress: bool | ProgressFn = True
    raise_errors: bool = False
    max_failures: int | None = 5

    def __post_init__(self):
        if self.most is not None:
            check_count("budget", self.most)
        is_number = isinstance(self.seconds, int | float | np.number) and not isinstance(self.seconds, bool)
        if self.seconds is not None and not (is_number and 0 < self.seconds < math.inf):
            fail("seconds", "a finite number above 0, or None", repr(self.seconds))
        check_count("workers", self.workers)
        if self.backend not in ("threads", "processes"):
            fail("backend", '"threads" or "processes"', repr(self.backend))
        for callback in self.callbacks:
            if not callable(callback):
                fail("callbacks", "functions of the task and a trial", f"the entry {callback!r}")
        if not isinstance(self.progress, bool) and not callable(self.progress):
            fail(
                "progress",
                "True, False, or a function of the share of work done and a word",
                repr(self.progress),
            )
        if not isinstance(self.raise_errors, bool):
            fail("raise_errors", "True or False", repr(self.raise_errors))
        if self.max_failures is not None:
            check_count("max_failures", self.max_failures)


def callback_list(callbacks: Any) -> tuple[Callback, ...]:
    """Return the argument `callbacks` as a tuple; a single function stands for a list of one."""
    if callable(callbacks):
        return (callbacks,)
    if not isinstance(callbacks, Iterable):
        fail("callbacks", "a list of functions of the task and a trial", repr(callbacks))
    return tuple(callbacks)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LoopTask:
    """What a loop uses of a task. `next_fn(most)` returns the next trial, or the reason why the loop ends."""

    task: "TunerTask"
    task_id: int
    space: SearchSpace
    memory: Memory
    owner: str
    reports: Reporting
    next_fn: Callable[[int | None], Trial | str]

    def held(self) -> set[int]:
        """Return the ids of the pending trials that the task holds."""
        return {trial.id for trial in self.memory.trials(self.task_id) if trial.owner == self.owner}


class AbstractTaskLoop(abc.ABC):
    """A task whose trials can be evaluated in a loop."""

    budget: int

    @abc.abstractmethod
    def _loop_task(self) -> LoopTask:
        """Return what the loop uses of the task."""

    @front_door
    def optimise(
        self,
        evaluate: Callable[..., Any],
        *,
        budget: int | None = None,
        seconds: float | None = None,
        workers: int = 1,
        backend: Backend = "threads",
        callbacks: Callback | Iterable[Callback] = (),
        progress: bool | ProgressFn = True,
        raise_errors: bool = False,
        max_failures: int | None = 5,
    ) -> None:
        """Ask for trials, evaluate them and tell their scores.

        See `Tuner.optimise` for the arguments and errors. `budget` is by default that of the task, or none if
        `seconds` is given.

        ```python
        import jlibo

        task = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 1))).task("parabola", budget=5)
        task.enqueue({"x": 0.5})
        task.optimise(lambda x: -((x - 0.3) ** 2))
        assert len(task.trials) == 5
        ```
        """
        if budget is None and seconds is None:
            budget = self.budget
        options = LoopOptions(
            budget,
            seconds,
            workers,
            backend,
            callback_list(callbacks),
            progress,
            raise_errors,
            max_failures,
        )
        run_loop(self._loop_task(), evaluate, options)

    optimize = optimise


def run_loop(loop: LoopTask, evaluate: Callable[..., Any], options: LoopOptions) -> None:
    """Run the loop of a task; see `Tuner.optimise`."""
    check_process("optimise")
    evaluation = Evaluation.of(evaluate, loop.space)
    name = loop.task.name
    logger.info("task %r: the loop begins", name)
    before = loop.held()  # trials that the user asked for
    with _pool(evaluation, options) as pool, contextlib.ExitStack() as stack:
        show = progress_fn(options.progress, stack, name=f"task {printable(name, max_length=40)}")
        state = _LoopState(loop, options, show)
        try:
            while True:
                while pool.has_room and (trial := state.next_trial()) is not None:
                    pool.start(trial)
                if not pool.running:
                    break
                for outcome in pool.wait():
                    state.finish(outcome)
        except BaseException as error:
            with contextlib.suppress(MemoryFileError):  # the first error is the one to report
                left = loop.held() - before
                loop.memory.release(loop.owner, list(left))
                why = type(error).__name__
                logger.info("task %r: the loop ends by %s; %d trials are released", name, why, len(left))
            raise
    logger.info("task %r: the loop ends because %s", name, state.why)


def _pool(evaluation: Evaluation, options: LoopOptions) -> AbstractPool:
    if options.backend == "processes":
        return Processes(evaluation, options.workers)
    return InPlace(evaluation) if options.workers == 1 else Threads(evaluation, options.workers)


@final
class _LoopState:
    """What a loop has done so far."""

    def __init__(self, loop: LoopTask, options: LoopOptions, show: ProgressFn | None):
        self._loop = loop
        self._task = task = loop.task
        self._options = options
        self._show = show
        self._begin = time.monotonic()
        self._counts = {"complete": 0, "failed": 0, "stopped": 0}
        self._best = task.best
        self._num_before = len(task.trials)
        self._has_ended = False
        self.why = ""
        self._show_progress()

    def next_trial(self) -> Trial | None:
        """Return the next trial; None if the loop has ended, or has to wait for running trials."""
        seconds = self._options.seconds
        if seconds is not None and time.monotonic() - self._begin >= seconds:
            self._end(f"its {seconds:g} s are over")
        if self._has_ended:
            return None
        trial = self._loop.next_fn(self._options.most)
        if isinstance(trial, str):
            self.why = trial  # not the end: a trial whose process ends is offered again
            return None
        logger.debug("task %r: trial %d begins: %s", self._task.name, trial.number, trial.params)
        return trial

    def finish(self, outcome: Outcome) -> None:
        """Store how an evaluation ended, and tell those who want to know."""
        task, trial, memory = self._task, outcome.trial, self._loop.memory
        if outcome.has_died:
            memory.release(self._loop.owner, [trial.id], counts=True)
            logger.warning("task %r: the process of trial %d ended", task.name, trial.number)
            return
        if outcome.error is not None and not isinstance(outcome.error, Exception):
            raise outcome.error  # such as KeyboardInterrupt and SystemExit
        has_ended_early = outcome.error is None and self._loop.reports.was_told_to_stop(trial)
        if outcome.is_stopped or has_ended_early:
            task.stop(trial)
        elif outcome.score is None:
            task.fail(trial, outcome.failure)
        else:
            task.tell(trial, outcome.score)
        finished = as_trial(memory.trial(trial.id))
        self._count(finished)
        self._log(finished, outcome.error)
        self._show_progress()
        for callback in self._options.callbacks:
            if callback(task, finished) is True:
                self._end("a callback returned True")
        if finished.state == "failed":
            self._check_failures(finished, outcome.error)

    def _end(self, why: str) -> None:
        if not self._has_ended:
            self._has_ended, self.why = True, why

    def _count(self, trial: Trial) -> None:
        self._counts[trial.state] += 1
        sign = 1 if self._loop.memory.maximise else -1
        if trial.score is not None and (
            self._best is None or self._best.score is None or sign * trial.score > sign * self._best.score
        ):
            self._best = trial

    def _check_failures(self, trial: Trial, error: BaseException | None) -> None:
        if self._options.raise_errors:
            if error is not None:
                raise error
            raise EvaluationError(
                f"trial {trial.number} failed: {trial.error}. Its parameters: {trial.params}."
            )
        counts, most = self._counts, self._options.max_failures
        if counts["failed"] == most == sum(counts.values()):
            raise EvaluationError(
                f"the first {most} evaluations all failed, the last one with: {trial.error}. Its parameters: "
                f"{trial.params}. They are stored as failed; `task.enqueue(params, repeat=True)` has one "
                "tried again. `raise_errors=True` raises the first error, and `max_failures=None` goes on."
            ) from error

    def _log(self, trial: Trial, error: BaseException | None) -> None:
        if trial.state == "failed":
            message = "task %r: trial %d failed: %s"
            logger.warning(message, self._task.name, trial.number, trial.error, exc_info=error)
        elif trial.state == "stopped":
            logger.info("task %r: trial %d is stopped early", self._task.name, trial.number)
        else:
            message = "task %r: trial %d has the score %r"
            logger.info(message, self._task.name, trial.number, trial.score)

    def _show_progress(self) -> None:
        if self._show is None:
            return
        done = sum(self._counts.values())
        shares = [0.0]
        if self._options.most is not None:
            shares.append((self._num_before + done) / self._options.most)
        if self._options.seconds is not None:
            shares.append((time.monotonic() - self._begin) / self._options.seconds)
        words = f"{self._num_before + done}" + (
            "" if self._options.most is None else f" of {self._options.most}"
        )
        words += " trials" if self._best is None else f" trials, best {self._best.score:.6g}"
        for state in ("failed", "stopped"):
            if self._counts[state]:
                words += f", {self._counts[state]} {state}"
        self._show(min(max(shares), 1.0), words)
