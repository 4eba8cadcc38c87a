"""The method of `Tuner` that runs the whole loop of a task. Internal."""

import abc
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from jlibo.front_door import front_door
from jlibo.sweeps.progress import ProgressFn
from jlibo.tune.curves.rule import MedianRule
from jlibo.tune.loop.task_loop import Backend, Callback
from jlibo.tune.stopping import ExpectedGainBelow

if TYPE_CHECKING:
    from jlibo.tune.task import TunerTask


class AbstractTunerLoop(abc.ABC):
    """A tuner whose tasks can be run in a loop."""

    @abc.abstractmethod
    def task(
        self,
        name: str,
        budget: int | None = None,
        *,
        stop_when: float | ExpectedGainBelow | None = None,
        stop_trials: bool | MedianRule = True,
    ) -> "TunerTask":
        """Return the task called `name`."""

    @front_door
    def optimise(
        self,
        evaluate: Callable[..., Any],
        task: str,
        *,
        budget: int | None = None,
        seconds: float | None = None,
        workers: int = 1,
        backend: Backend = "threads",
        callbacks: Callback | Iterable[Callback] = (),
        progress: bool | ProgressFn = True,
        raise_errors: bool = False,
        max_failures: int | None = 5,
        stop_when: float | ExpectedGainBelow | None = None,
        stop_trials: bool | MedianRule = True,
    ) -> "TunerTask":
        """Optimise a function on a task: ask for trials, evaluate them and tell their scores.

        Every score is on the disk before the next trial begins. If the process ends, or the loop is left by
        Ctrl-C, the same call resumes the task.

        **Arguments:**

        - `evaluate`: called as `evaluate(**trial.params)`; returns the score. If it has an argument `trial`,
          it also gets the trial, for `trial.report` and `trial.should_stop`. An exception is stored as the
          error of a failed trial, and so are None, NaN and an infinite score.
        - `task`: the name of the task.
        - `budget`: the number of trials of the task in total, those of earlier calls included. None stands
          for no limit if `seconds` is given, and otherwise for the stored budget, or 50.
        - `seconds`: no trial begins after this time. Trials that run then are finished.
        - `workers`: the number of trials that are evaluated at once.
        - `backend`: "threads" or "processes". Threads run any function, but only code that releases Python's
          lock, such as NumPy's, runs at the same time. Processes need a function that can be imported. One
          that crashes ends its worker and not the loop: its trial is offered twice more and then failed.
        - `callbacks`: functions called as `callback(task, trial)` after each trial that ends, in the thread
          of the caller. The loop ends if one returns True.
        - `progress`: True for a progress bar, shown in a terminal only; or a function of the share of work
          done and a word.
        - `raise_errors`: whether the first exception of `evaluate` ends the loop. Its trial is stored as
          failed.
        - `max_failures`: the loop ends with an error if this many trials end and all of them failed, because
          `evaluate` is then probably wrong. None for no limit.
        - `stop_when`: as in `task`: end the loop when the expected gain of one more trial is below this.
        - `stop_trials`: as in `task`: the rule by which `trial.should_stop` judges trials.

        **Returns:**

        The `TunerTask`, with `best`, `trials`, `recommended` and so on.

        **Raises:**

        - `EvaluationError`: the first `max_failures` trials all failed, or a worker process could not start.
        - `ValueError`: an argument is invalid, or `evaluate` does not take the parameters of the space.
        - `KeyboardInterrupt`, `SystemExit`: whatever `evaluate` raises that is not an `Exception` ends the
          loop. The trials that were running are released and come first when the task is resumed.

        ```python
        import jlibo

        tuner = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 1)))
        task = tuner.optimise(lambda x: -((x - 0.3) ** 2), task="parabola", budget=8)
        print(task.best.params, task.best.score)
        ```
        """
        running = self.task(task, budget, stop_when=stop_when, stop_trials=stop_trials)
        running.optimise(
            evaluate,
            budget=budget,
            seconds=seconds,
            workers=workers,
            backend=backend,
            callbacks=callbacks,
            progress=progress,
            raise_errors=raise_errors,
            max_failures=max_failures,
        )
        return running

    optimize = optimise
