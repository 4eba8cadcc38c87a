"""The methods of `Tuner` for results that the user has, for looking, and the short list. Internal."""

import abc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jlibo.checks import check_count, fail
from jlibo.front_door import front_door
from jlibo.tune.learning import Learned
from jlibo.tune.memory import finished
from jlibo.tune.memory.memory import Memory, MergeReport
from jlibo.tune.memory.merge import OnConflict
from jlibo.tune.memory.records import finite_score
from jlibo.tune.memory.tables import SCORE, Table, is_table, read_results
from jlibo.tune.model import Model
from jlibo.tune.portfolio import Defaults, portfolio
from jlibo.tune.process import check_process
from jlibo.tune.space.fitting import completed
from jlibo.tune.space.space import SearchSpace
from jlibo.tune.summary import TaskSummary, summaries, tasks_html, to_dataframe


class AbstractTunerResults(abc.ABC):
    """A tuner whose memory can be added to and looked at."""

    space: SearchSpace
    memory: Memory
    model: Model
    maximise: bool
    seed: int

    @abc.abstractmethod
    def knowledge(self, excluding: int | None = None, *, at_once: bool = False) -> Learned:
        """Return what is learned from all tasks but `excluding`, and their number."""

    @abc.abstractmethod
    def importance(self) -> dict[str, float]:
        """Return how much each parameter matters."""

    @front_door
    def add_task(
        self,
        name: str,
        configs: Sequence[Mapping[str, Any]] | Table,
        scores: Sequence[float | None] | None = None,
        *,
        score: str = SCORE,
    ) -> None:
        """Add a finished task from elsewhere to the memory, all of it or nothing.

        It contains no forced exploration, so the paper's guarantee does not cover what is learned from it.

        **Arguments:**

        - `name`: the name of the task; must be new.
        - `configs`: the configurations that were evaluated: a list, or a table as in `TunerTask.add` (a
          pandas or polars DataFrame, a list of records, or the path of a CSV file).
        - `scores`: the score of each; None or NaN for a failed trial. If it is not given, the scores are a
          column of the table.
        - `score`: the name of that column.

        **Raises:**

        - `ValueError`: the name is taken, the lengths differ, a configuration is not in the space, a score is
          not a number, or a column is unknown or missing. Nothing is added.
        - `OSError`: the file cannot be read.
        """
        # Everything is validated before anything is written.
        if scores is None:
            table = [configs] if isinstance(configs, Mapping) else configs
            pairs = [one[:2] for one in read_results(self.space, table, score=score, argument="configs")]
        else:
            own = configs
            if is_table(configs):
                own = [
                    one.params for one in read_results(self.space, configs, score=None, argument="configs")
                ]
            if len(own) != len(scores):
                fail("scores", f"one for each of the {len(own)} configs", f"{len(scores)}")
            pairs = [
                (completed(self.space, params), finite_score(one))
                for params, one in zip(own, scores, strict=True)
            ]
        finished.add_task(self.memory, name, pairs)

    def delete_task(self, name: str) -> None:
        """Delete a task and its trials from the memory.

        **Raises:**

        - `TrialStateError`: there is no task with this name.
        """
        self.memory.delete_task(name)

    def rename_task(self, old: str, new: str) -> None:
        """Give a task of the memory another name. What is learned from it stays the same.

        **Raises:**

        - `TrialStateError`: there is no task `old`.
        - `ValueError`: `new` is not a valid name, or the name of another task.
        """
        self.memory.rename_task(old, new)

    def merge(
        self, other: str | os.PathLike[str] | Memory, *, on_conflict: OnConflict = "error"
    ) -> MergeReport:
        """Add all tasks and trials of another memory to that of the tuner; see `Memory.merge`.

        **Arguments:**

        - `other`: the path of a memory, or an open one. It is not changed. Its search space may differ: the
          trials teach as far as they fit.
        - `on_conflict`: what to do with another task of the same name: "error", "join", "rename" or "skip".

        **Returns:**

        A `MergeReport`.

        **Raises:**

        - `MemoryMismatch`: the other memory has another direction, or no parameter of this one.
        - `MemoryFileError`: the other file is not a memory or cannot be read.
        - `ValueError`: both memories have different tasks of one name and `on_conflict` is "error". Nothing
          is changed.
        """
        return self.memory.merge(other, on_conflict=on_conflict)

    @property
    def tasks(self) -> list[TaskSummary]:
        """All tasks of the memory in the order of their creation: names, counts, and the best of each."""
        return summaries(*self.memory.snapshot(), maximise=self.maximise)

    def to_dataframe(self, score: str = SCORE) -> Any:
        """Return all trials of all tasks as a `pandas.DataFrame`, one row each.

        The columns are `task`, `number`, the parameters, the score, `state` ("complete", "failed", "stopped"
        or "pending"), `explored`, and `error`, the text of a failure. A parameter that is off has no value.
        Written as a CSV file, it can be read by `jlibo memory import`.

        **Arguments:**

        - `score`: the name of the column of scores.

        **Raises:**

        - `ImportError`: pandas is not installed.
        - `ValueError`: `score` or "task" is the name of a parameter.
        """
        tasks, trials = self.memory.snapshot()
        return to_dataframe(self.space, trials, tasks=tasks, score=score)

    def defaults(self, k: int) -> Defaults:
        """Return the `k` configurations that together do best over all remembered tasks under the model.

        The first does best on average; each further one adds most to what the best of the list achieves in
        each task. It may be one that was never tried, if the model expects more of it. A configuration that
        violates the constraint, or that is not one of the `candidates`, is left out. The same memory gives
        the same list.

        **Arguments:**

        - `k`: the number of configurations.

        **Returns:**

        A list of at most `k` different configurations, the most useful first, which prints as Python code.
        It is empty before the first task with two scores.

        **Raises:**

        - `ValueError`: `k` is not a positive whole number.
        - `ForkedProcessError`: jax was used in a parent process before the fork.

        ```python
        import jlibo

        tuner = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Int(0, 9)))
        for name, best in [("first", 3), ("second", 8)]:
            tuner.add_task(name, [{"x": x, "score": -((x - best) ** 2)} for x in range(10)])
        print(tuner.defaults(2))
        ```
        """
        check_count("k", k)
        check_process("defaults")
        knowledge, num_tasks = self.knowledge(at_once=True)
        if num_tasks == 0:
            return Defaults()
        tasks, trials = self.memory.snapshot()
        return portfolio(self.model, knowledge, tasks, trials, k, maximise=self.maximise, seed=self.seed)

    @front_door
    def report(
        self, path: str | os.PathLike[str], *, title: str | None = None, num_defaults: int = 5
    ) -> Path:
        """Write a report of the memory as one HTML page, which a browser opens without a network.

        It shows the tasks, their progress, what matters, scores against each parameter and pairs of them,
        parallel coordinates, what the model believes of each task, and the defaults as code. The file is
        replaced atomically, and only its owner can read it.

        **Arguments:**

        - `path`: the file to write, such as "report.html".
        - `title`: the title of the page; None for a general one.
        - `num_defaults`: the number of configurations of `defaults`.

        **Returns:**

        The path.

        **Raises:**

        - `ValueError`: `path` is the memory itself, or `num_defaults` is not a positive whole number.
        - `OSError`: the file cannot be written.
        - `ForkedProcessError`: jax was used in a parent process before the fork.

        ```python
        import jlibo

        tuner = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Int(0, 9)))
        tuner.add_task("first", [{"x": x, "score": -((x - 3) ** 2)} for x in range(10)])
        tuner.report("report.html")
        ```
        """
        from jlibo.tune.report import write_report  # imported here: few programs write reports

        check_process("report")
        return write_report(self.memory, self, path, title=title, num_defaults=num_defaults)

    def _repr_html_(self) -> str:
        return tasks_html(repr(self), self.tasks)
