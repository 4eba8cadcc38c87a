"""Pools of workers that evaluate trials: in place, in threads; `processes` has that of processes. Internal.

| pool         | evaluates                                                                                  |
|--------------|--------------------------------------------------------------------------------------------|
| `InPlace`    | one trial at a time, in the thread of the loop                                             |
| `Threads`    | several trials at once, in threads of this process                                         |
| `Processes`  | several trials at once, in processes of their own                                          |

The loop asks for trials and stores what comes out; a worker only evaluates.
"""

import abc
import queue
import threading
from collections.abc import Sequence
from typing import final

from jlibo.tune.loop.evaluation import Evaluation, Outcome
from jlibo.tune.trial import Trial, TrialReporter, TrialStopped, with_reporter

POLL_S = 0.5
"""Seconds after which a wait is repeated: on Windows, Ctrl-C does not interrupt a wait."""


class AbstractPool(abc.ABC):
    """Workers that evaluate trials. It is a context manager that ends its workers."""

    @property
    @abc.abstractmethod
    def running(self) -> list[Trial]:
        """The trials that were started and whose outcome `wait` has not returned."""

    @property
    @abc.abstractmethod
    def has_room(self) -> bool:
        """Whether a further trial can be started."""

    @abc.abstractmethod
    def start(self, trial: Trial) -> None:
        """Start the evaluation of a trial."""

    @abc.abstractmethod
    def wait(self) -> Sequence[Outcome]:
        """Wait until an evaluation has ended, and return the outcomes so far, at least one."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the workers. Evaluations that still run are ended if possible; their outcome is lost."""

    def __enter__(self) -> "AbstractPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class InPlace(AbstractPool):
    """Evaluates one trial at a time, in the thread that calls `wait`."""

    def __init__(self, evaluation: Evaluation):
        self._evaluation = evaluation
        self._running: list[Trial] = []

    @property
    def running(self) -> list[Trial]:
        return list(self._running)

    @property
    def has_room(self) -> bool:
        return not self._running

    def start(self, trial: Trial) -> None:
        self._running = [trial]

    def wait(self) -> Sequence[Outcome]:
        outcome = self._evaluation(self._running[0])
        self._running = []
        return [outcome]

    def close(self) -> None:
        pass


@final
class Threads(AbstractPool):
    """Evaluates trials in threads of this process.

    A thread cannot be ended. After `close`, an evaluation that reports is told to stop; others go on, and
    their outcome is lost. The threads are daemons: they do not keep the process alive.
    """

    def __init__(self, evaluation: Evaluation, num_workers: int):
        self._evaluation = evaluation
        self._trials: queue.SimpleQueue[Trial | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._running: dict[int, Trial] = {}
        self._is_closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"jlibo-worker-{number}", daemon=True)
            for number in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> list[Trial]:
        return list(self._running.values())

    @property
    def has_room(self) -> bool:
        return len(self._running) < len(self._threads)

    def start(self, trial: Trial) -> None:
        self._running[trial.id] = trial
        self._trials.put(trial)

    def wait(self) -> Sequence[Outcome]:
        while True:
            try:
                outcome = self._outcomes.get(timeout=POLL_S)
            except queue.Empty:
                continue
            del self._running[outcome.trial.id]
            return [outcome]

    def close(self) -> None:
        self._is_closed.set()
        for _ in self._threads:
            self._trials.put(None)

    def _work(self) -> None:
        while (trial := self._trials.get()) is not None and not self._is_closed.is_set():
            reporter = trial._reporter
            if reporter is not None:
                trial = with_reporter(trial, _UntilClosed(reporter, self._is_closed))
            self._outcomes.put(self._evaluation(trial))


@final
class _UntilClosed:
    """A reporter that stops all trials once the pool is closed."""

    def __init__(self, reporter: TrialReporter, is_closed: threading.Event):
        self._reporter = reporter
        self._is_closed = is_closed

    def report(self, trial: Trial, step: int, score: float) -> None:
        if self._is_closed.is_set():  # the trial was released, and may belong to another process by now
            raise TrialStopped
        self._reporter.report(trial, step, score)

    def should_stop(self, trial: Trial) -> bool:
        return self._is_closed.is_set() or self._reporter.should_stop(trial)
