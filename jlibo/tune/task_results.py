"""The methods of `TunerTask` for results and configurations that the user has, and for looking. Internal."""

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jlibo.checks import fail
from jlibo.front_door import front_door
from jlibo.tune.memory import finished
from jlibo.tune.memory.records import TaskRecord, finite_score
from jlibo.tune.memory.tables import SCORE, Table, read_results
from jlibo.tune.model import Model, is_allowed
from jlibo.tune.space.fitting import completed
from jlibo.tune.summary import to_dataframe, trials_html

if TYPE_CHECKING:
    from jlibo.tune.tuner import Tuner


class AbstractTaskResults(abc.ABC):
    """A task whose results can be added and looked at."""

    _tuner: "Tuner"
    _record: TaskRecord
    name: str
    budget: int

    def add(
        self,
        params: Mapping[str, Any] | Table,
        score: float | str | None = SCORE,
    ) -> int:
        """Add results that you have to the task: one configuration and its score, or a table.

        They are on the disk when this returns, all of them or none. They count as finished trials, also
        towards the budget, but not as forced exploration. A result that the task has already, with the same
        configuration and score, is skipped, so that a script can be run again. A configuration that waits in
        the queue (`enqueue`) and whose result is added is not tried any more.

        **Arguments:**

        - `params`: a configuration; or a pandas or polars DataFrame, a list of records, or the path of a CSV
          file, with a column for each parameter and one for the score. An empty cell is a parameter that is
          off, or the score of a failed trial. A parameter with a `default` may be missing.
        - `score`: the score of the configuration; None, NaN or infinite if it failed. For a table, the name
          of the column of scores.

        **Returns:**

        The number of trials that are new.

        **Raises:**

        - `ValueError`: a configuration is not in the space, a score is not a number, or a column is unknown
          or missing. Nothing is added.
        - `OSError`: the file cannot be read.

        ```python
        import jlibo

        task = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 1))).task("new", budget=10)
        task.add({"x": 0.5}, 0.81)
        task.add([{"x": 0.1, "score": 0.6}, {"x": 0.9, "score": None}])
        assert [trial.score for trial in task.trials] == [0.81, 0.6, None]
        ```
        """
        space = self._tuner.space
        if isinstance(params, Mapping) and not isinstance(score, str):
            pairs = [(completed(space, params), finite_score(score))]
        else:
            if not isinstance(score, str):
                fail("score", "the name of a column, since a table is added", repr(score))
            table = [params] if isinstance(params, Mapping) else params
            pairs = [one[:2] for one in read_results(space, table, score=score, argument="params")]
        return finished.add_results(self._tuner.memory, self._record.id, pairs)

    @front_door
    def enqueue(self, params: Mapping[str, Any], *, repeat: bool = False) -> bool:
        """Have a configuration tried before any new suggestion, in the order of these calls.

        It is on the disk when this returns, as a pending trial that `ask` returns in whichever process asks
        first. It counts towards the budget. A configuration that is pending or finished in this task is not
        enqueued again, so that a script can be run again.

        **Arguments:**

        - `params`: the configuration.
        - `repeat`: whether to try a configuration once more that is finished, for instance if scores are
          noisy.

        **Returns:**

        True; or False if the task has the configuration already.

        **Raises:**

        - `ValueError`: the configuration is not in the space, violates the constraint of the tuner, or is not
          one of its `candidates`.

        ```python
        import jlibo

        task = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 1))).task("new", budget=10)
        assert task.enqueue({"x": 0.25}) and not task.enqueue({"x": 0.25})
        assert task.ask().params == {"x": 0.25}
        ```
        """
        check_allowed(self._tuner.model, params)
        return finished.enqueue(self._tuner.memory, self._record.id, params, repeat=repeat)

    def to_dataframe(self, score: str = SCORE) -> Any:
        """Return all trials as a `pandas.DataFrame`, one row each; `add` of another task reads it.

        The columns are `number`, the parameters, the score, `state` ("complete", "failed", "stopped" or
        "pending"), `explored`, and `error`, the text of a failure. A parameter that is off has no value.

        **Arguments:**

        - `score`: the name of the column of scores.

        **Raises:**

        - `ImportError`: pandas is not installed.
        - `ValueError`: `score` is the name of a parameter.
        """
        trials = self._tuner.memory.trials(self._record.id)
        return to_dataframe(self._tuner.space, trials, score=score)

    def _repr_html_(self) -> str:
        tuner = self._tuner
        trials = tuner.memory.trials(self._record.id)
        done = sum(trial.state != "pending" for trial in trials)
        title = f"Task {self.name}: {done} of {self.budget} trials done"
        return trials_html(title, tuner.space, trials, maximise=tuner.maximise)


def check_allowed(model: Model, params: Mapping[str, Any]) -> None:
    """Raise a `ValueError` if a tuner would never suggest a configuration."""
    checked = model.space.validate(params)
    if not is_allowed(model, checked):
        expected = "a configuration that satisfies the constraint of the tuner"
        expected = expected if model.configs is None else "one of the `candidates` of the tuner"
        fail("params", expected, repr(checked))
