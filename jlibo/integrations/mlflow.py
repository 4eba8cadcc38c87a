"""A callback of `Tuner.optimise` that logs trials to MLflow. MLflow is imported when the callback is made."""

import time
from collections.abc import Mapping
from typing import Any, final

from jlibo.checks import fail
from jlibo.front_door import front_door
from jlibo.integrations.tracking import TrackedTrial, imported, reported_name
from jlibo.tune.task import TunerTask
from jlibo.tune.trial import Trial

LONGEST_VALUE = 500  # characters; the limit of MLflow's servers
STATUS = {"complete": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


@final
class MLflowCallback:
    """Logs each finished trial as a run of MLflow, with its parameters, its score and the scores it reported.

    It uses a client of its own: neither the active run nor the tracking URI of the process changes.

    **Arguments:**

    - `experiment`: the name of MLflow's experiment, which is created if it does not exist.
    - `tracking_uri`: where MLflow stores its runs; None for MLflow's own setting, such as the environment
      variable `MLFLOW_TRACKING_URI`.
    - `metric`: the name of the score. Reported scores have the name with `_reported` appended.
    - `tags`: tags of every run, beside `jlibo.task`, `jlibo.trial`, `jlibo.state` and `jlibo.error`.

    **Raises:**

    - `ImportError`: MLflow is not installed.
    - `ValueError`: an argument is invalid.

    ```python
    from jlibo.integrations.mlflow import MLflowCallback

    # tuner.optimise(evaluate, task="credit-g", budget=50, callbacks=MLflowCallback("glmnet"))
    ```
    """

    @front_door
    def __init__(
        self,
        experiment: str = "jlibo",
        *,
        tracking_uri: str | None = None,
        metric: str = "score",
        tags: Mapping[str, str] | None = None,
    ):
        for argument, value in (("experiment", experiment), ("metric", metric)):
            if not isinstance(value, str) or not value:
                fail(argument, "a string that is not empty", repr(value))
        needed = "MLflowCallback needs MLflow: pip install mlflow, or the smaller mlflow-skinny."
        self._entities: Any = imported("mlflow.entities", needed)
        self._client: Any = imported("mlflow", needed).MlflowClient(tracking_uri=tracking_uri)
        self._experiment = experiment
        self._metric = metric
        self._tags = dict(tags or {})
        self._experiment_id: str | None = None

    def __call__(self, task: TunerTask, trial: Trial) -> None:
        """Log a finished trial."""
        tracked = TrackedTrial.of(task, trial)
        client, now = self._client, int(1000 * time.time())
        tags = {key: value[:LONGEST_VALUE] for key, value in (self._tags | tracked.tags).items()}
        run_id = client.create_run(self._find_experiment(), run_name=tracked.name, tags=tags).info.run_id
        reported = reported_name(self._metric)
        points = [(reported, score, step) for step, score in tracked.curve.items()]
        if tracked.score is not None:
            points.append((self._metric, tracked.score, 0))
        metrics = [self._entities.Metric(key, value, now, step) for key, value, step in points]
        params = [
            self._entities.Param(name, str(value)[:LONGEST_VALUE]) for name, value in tracked.params.items()
        ]
        client.log_batch(run_id, params=params)
        for start in range(0, len(metrics), 1000):  # the most that one call takes
            client.log_batch(run_id, metrics=metrics[start : start + 1000])
        client.set_terminated(run_id, STATUS[tracked.state])

    def _find_experiment(self) -> str:
        """Return the id of the experiment. It is created on first use: an unused callback leaves nothing."""
        if self._experiment_id is not None:
            return self._experiment_id
        found = self._client.get_experiment_by_name(self._experiment)
        own: str = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        self._experiment_id = own
        return own
