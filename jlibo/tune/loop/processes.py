"""A pool of processes that evaluate trials. Internal.

Processes are started with the "spawn" method, so the function must be importable: defined at the top level of
a module or of a script. A worker gets trials over a pipe and answers with messages:

| message                         | answer of the pool                                     |
|---------------------------------|--------------------------------------------------------|
| ("ready",)                      | none                                                   |
| ("broken", text)                | none: the function cannot be imported in a worker      |
| ("report", step, score)         | None, or the text of an error                          |
| ("should_stop",)                | True or False                                          |
| ("done", outcome)               | none; the worker is free                               |

A worker ignores Ctrl-C, which goes to all processes of a terminal: the process of the loop decides. It ends
when that process has ended, whatever it is doing.
"""

import contextlib
import dataclasses
import math
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, final

from jlibo.tune.loop.evaluation import Evaluation, EvaluationError, Outcome, text_of
from jlibo.tune.loop.pools import POLL_S, AbstractPool
from jlibo.tune.memory.records import TrialStateError, finite_score, whole
from jlibo.tune.trial import Trial, with_reporter

END_S = 5.0
"""Seconds that a worker has to end before it is killed."""


@final
class Processes(AbstractPool):
    """Evaluates trials in processes.

    **Raises:**

    - `ValueError`: the function cannot be pickled.
    - `EvaluationError`: a worker could not import it.
    """

    def __init__(self, evaluation: Evaluation, num_workers: int):
        try:
            self._payload = pickle.dumps(evaluation)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                "`evaluate` should be a function that other processes can import, defined at the top level "
                f'of a module, but it cannot be pickled ({text_of(error)}). Or use backend="threads".'
            ) from error
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        try:
            for _ in range(num_workers):
                self._workers.append(_Worker(self._context, self._payload))
            while any(not worker.is_ready for worker in self._workers):
                self._serve()
        except BaseException:
            self.close()
            raise

    @property
    def running(self) -> list[Trial]:
        return [worker.trial for worker in self._workers if worker.trial is not None]

    @property
    def has_room(self) -> bool:
        return any(worker.trial is None for worker in self._workers)

    def start(self, trial: Trial) -> None:
        worker = next(worker for worker in self._workers if worker.trial is None)
        worker.trial = trial
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # has it died, `wait` finds out
            worker.connection.send(trial)

    def wait(self) -> Sequence[Outcome]:
        while True:
            outcomes = self._serve()
            if outcomes:
                return outcomes

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.join()
        self._workers = []

    def _serve(self) -> list[Outcome]:
        """Handle the messages that have come, or come within `POLL_S`; return the outcomes among them."""
        by_connection = {worker.connection: worker for worker in self._workers}
        outcomes = []
        for connection in multiprocessing.connection.wait(list(by_connection), POLL_S):
            worker = by_connection[connection]  # pyright: ignore[reportArgumentType]
            try:
                outcome = worker.handle(worker.connection.recv())
            except (EOFError, OSError):
                outcome = self._replace(worker)
            if outcome is not None:
                outcomes.append(outcome)
        return outcomes

    def _replace(self, worker: "_Worker") -> Outcome | None:
        """Start a worker in place of one that has ended; return the outcome of its trial, if it had one."""
        worker.join()
        if not worker.is_ready:
            raise EvaluationError(
                f"a worker process ended (exit code {worker.exit_code}) before it could evaluate. A script "
                "that starts processes needs `if __name__ == '__main__':` around what it runs, and "
                "`evaluate` must be importable in a new process."
            )
        self._workers[self._workers.index(worker)] = _Worker(self._context, self._payload)
        return None if worker.trial is None else Outcome(worker.trial, has_died=True)


@final
class _Worker:
    """A process and the trial that it evaluates, as the pool sees it."""

    def __init__(self, context: Any, payload: bytes):
        self.connection, theirs = context.Pipe()
        self.trial: Trial | None = None
        self.is_ready = False
        # Not a daemon process, because a function may start processes of its own.
        self._process = context.Process(
            target=_work, args=(theirs, payload), name="jlibo-worker", daemon=False
        )
        try:
            self._process.start()
        finally:
            theirs.close()

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def handle(self, message: tuple) -> Outcome | None:
        """Answer a message; return the outcome if the trial is done."""
        kind, *content = message
        if kind == "ready":
            self.is_ready = True
            return None
        if kind == "broken":
            raise EvaluationError(f"`evaluate` cannot be imported in a worker process: {content[0]}")
        trial = self.trial
        assert trial is not None and trial._reporter is not None
        if kind == "report":
            self.connection.send(_reported(trial, *content))
        elif kind == "should_stop":
            self.connection.send(trial.should_stop)
        else:
            self.trial = None
            outcome, error = content
            return dataclasses.replace(outcome, trial=trial, error=_unpickled(error))
        return None

    def end(self) -> None:
        """Ask the process to end: at once if it evaluates a trial."""
        if self.trial is None and self.is_ready:
            with contextlib.suppress(OSError):  # it has ended
                self.connection.send(None)
        else:
            self._process.terminate()

    def join(self) -> None:
        """Wait until the process has ended; kill it if it does not."""
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.connection.close()


def _reported(trial: Trial, step: int, score: float) -> str | None:
    """Store a report; return the text of the error, if there is one."""
    try:
        trial.report(step, score)
    except TrialStateError as error:
        return str(error)
    return None


# --- in the worker ------------------------------------------------------------------------------------------


def _work(connection: Connection, payload: bytes) -> None:
    """Evaluate the trials that come over a pipe, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        evaluation = pickle.loads(payload)
    except Exception as error:
        connection.send(("broken", text_of(error)))
        return
    connection.send(("ready",))
    while True:
        try:
            trial = connection.recv()
        except (EOFError, OSError):
            return
        if trial is None:
            return
        outcome: Outcome = evaluation(with_reporter(trial, _PipeReporter(connection)))
        connection.send(("done", dataclasses.replace(outcome, error=None), _pickled(outcome.error)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


@final
class _PipeReporter:
    """A reporter that sends reports to the process of the loop and waits for its answer."""

    def __init__(self, connection: Connection):
        self._connection = connection
        # The threads of an evaluation may all report.
        self._lock = threading.Lock()

    def report(self, trial: Trial, step: int, score: float) -> None:
        number = finite_score(score)  # a plain number, which the other process reads without further imports
        problem = self._ask("report", whole("step", step, at_least=0), math.nan if number is None else number)
        if problem is not None:
            raise TrialStateError(problem)

    def should_stop(self, trial: Trial) -> bool:
        return self._ask("should_stop")

    def _ask(self, *message: Any) -> Any:
        with self._lock:
            self._connection.send(message)
            return self._connection.recv()


def _pickled(error: BaseException | None) -> tuple[bytes, str] | None:
    """Return an exception as bytes, and its traceback as text. One that cannot be pickled becomes text."""
    if error is None:
        return None
    trace = "".join(traceback.format_exception(error))
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        data = pickle.dumps(EvaluationError(text_of(error)))
    return data, trace


def _unpickled(pickled: tuple[bytes, str] | None) -> BaseException | None:
    if pickled is None:
        return None
    data, trace = pickled
    try:
        error = pickle.loads(data)
    except Exception as problem:
        error = EvaluationError(f"an exception of a worker process cannot be read here: {text_of(problem)}")
    error.add_note(f"In the worker process:\n{trace}")
    return error
