"""A callback of `Tuner.optimise` that logs trials to Weights & Biases, imported when the callback is made."""

from typing import Any, final

from jlibo.checks import fail
from jlibo.front_door import front_door
from jlibo.integrations.tracking import TrackedTrial, imported, reported_name
from jlibo.tune.task import TunerTask
from jlibo.tune.trial import Trial


@final
class WandbCallback:
    """Logs each finished trial as a run of Weights & Biases, in a group of the name of the task.

    The parameters are the run's config. Reported scores are its history, and the score is in its summary.

    **Arguments:**

    - `project`: the name of the project.
    - `metric`: the name of the score. Reported scores have the name with `_reported` appended.
    - `init`: further arguments of `wandb.init`, such as `entity="my-team"`, `mode="offline"` or `dir="logs"`.

    **Raises:**

    - `ImportError`: wandb is not installed.
    - `ValueError`: an argument is invalid.

    ```python
    from jlibo.integrations.wandb import WandbCallback

    # tuner.optimise(evaluate, task="credit-g", budget=50, callbacks=WandbCallback("glmnet"))
    ```
    """

    @front_door
    def __init__(self, project: str = "jlibo", *, metric: str = "score", **init: Any):
        for argument, value in (("project", project), ("metric", metric)):
            if not isinstance(value, str) or not value:
                fail(argument, "a string that is not empty", repr(value))
        for argument in ("group", "name", "config", "reinit"):
            if argument in init:
                fail("init", "arguments of wandb.init that the callback does not set", repr(argument))
        self._init_fn: Any = imported("wandb", "WandbCallback needs wandb: pip install wandb.").init
        self._metric = metric
        self._arguments = {"project": project, **init}

    def __call__(self, task: TunerTask, trial: Trial) -> None:
        """Log a finished trial."""
        tracked = TrackedTrial.of(task, trial)
        run = self._init_fn(
            **self._arguments,
            group=tracked.group,
            name=tracked.name,
            config=tracked.params,
            reinit="create_new",  # a run that the program has open stays as it is
        )
        reported = reported_name(self._metric)
        for step, score in tracked.curve.items():
            run.log({reported: score}, step=step)
        run.summary.update(tracked.tags)
        if tracked.score is not None:
            run.summary[self._metric] = tracked.score
        run.finish(exit_code=1 if tracked.state == "failed" else 0)
