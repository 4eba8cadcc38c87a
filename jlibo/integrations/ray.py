"""A search algorithm for Ray Tune that learns from past tasks. Requires the extra `ray`.

    search = LiBOSearch("trials.db", task="credit-g")
    config = tune.TuneConfig(search_alg=search, metric="accuracy", mode="max", num_samples=50)
    tune.Tuner(train, param_space={"rate": tune.loguniform(1e-4, 1)}, tune_config=config).fit()

| Ray Tune                                | here                                                            |
|-----------------------------------------|-----------------------------------------------------------------|
| `uniform`, `loguniform`, `quniform`     | `Float`, with `log` or `step`                                   |
| `randint`, `lograndint`, `qrandint`     | `Int`; the upper end of `randint` is not a value                |
| `choice`                                | `Categorical`                                                   |
| `{"model": {"rate": ...}}`              | the parameter "model/rate"                                      |
| a result with the metric                | a report; the last one is the score                             |
| a trial that ends by an error           | a failed trial                                                  |

The state of a search is in the memory. Ray's checkpoint of it only says which trial of Ray is which trial of
the memory.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

try:
    from ray.tune.search import Searcher
    from ray.tune.search.sample import Categorical, Domain, Float, Integer, LogUniform, Quantized, Uniform
except ImportError as error:
    raise ImportError("jlibo.integrations.ray needs Ray Tune: pip install 'jlibo[ray]'") from error

from jlibo import tune
from jlibo.checks import fail
from jlibo.tune.trial import as_trial
from jlibo.tune.tuner import DEFAULT_BUDGET


@final
class LiBOSearch(Searcher):
    """Ray Tune search algorithm whose model is learned from past tasks of a memory.

    **Arguments:**

    - `memory`: the path of the memory file; with None, nothing is remembered.
    - `task`: the name of the task, such as that of the data set. A task of this name is continued.
    - `space`: a `SearchSpace`; with None, it is made of the `param_space` of Ray's tuner.
    - `metric`, `mode`: the metric, and "max" or "min"; with None, those of Ray's `TuneConfig`.
    - `budget`: the approximate number of trials. Ray's `num_samples` says when the search ends.
    - `points_to_evaluate`: configurations to try first.
    - `seed`, `tuner_options`: the seed, and further arguments of `jlibo.Tuner`.

    **Raises:**

    - `ValueError`: an argument is invalid, or `param_space` has a domain without bounds or a grid.
    """

    def __init__(
        self,
        memory: str | os.PathLike | None = None,
        *,
        task: str,
        space: tune.SearchSpace | None = None,
        metric: str | None = None,
        mode: str | None = None,
        budget: int = DEFAULT_BUDGET,
        points_to_evaluate: Sequence[Mapping[str, Any]] = (),
        seed: int = 0,
        tuner_options: Mapping[str, Any] | None = None,
    ):
        super().__init__(metric=metric, mode=mode)
        if memory is not None and not isinstance(memory, str | os.PathLike):
            fail("memory", "None or the path of a memory, which Ray can copy", type(memory).__name__)
        self._arguments = {"memory": memory, "seed": seed, **(tuner_options or {})}
        self._space = space
        self._name, self._budget = task, budget
        self._first = [_flat(point) for point in points_to_evaluate]
        self._running: dict[str, tune.Trial] = {}
        self._spare: list[tune.Trial] = []
        self._opened: tune.TunerTask | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Ray copies a search before it starts. The memory is opened by the copy that is used.
        return self.__dict__ | {"_opened": None, "_running": {}, "_spare": []}

    def set_search_properties(self, metric: Any, mode: Any, config: dict, **spec: Any) -> bool:
        """Take metric, mode and search space from Ray's tuner; False if there is a space already."""
        self._metric, self._mode = metric or self._metric, mode or self._mode
        domains = {name: value for name, value in _flat(config).items() if isinstance(value, Domain)}
        if self._space is not None:
            return not domains
        self._space = tune.SearchSpace({name: _parameter(name, one) for name, one in domains.items()})
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """Return the configuration of a new trial."""
        trial = self._spare.pop(0) if self._spare else self._task().ask()
        self._running[trial_id] = trial
        return _nested(trial.params)

    def on_trial_result(self, trial_id: str, result: dict) -> None:
        """Store an intermediate result of a trial."""
        if trial_id in self._running and self.metric in result:
            self._running[trial_id].report(result["training_iteration"], result[self.metric])

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Store the result of a trial."""
        trial = self._running.pop(trial_id, None)
        if trial is None:
            return
        if error or not result or self.metric not in result:
            self._task().fail(trial, "Ray reports an error" if error else f"no metric {self.metric!r}")
        else:
            self._task().tell(trial, result[self.metric])

    def add_evaluated_point(self, parameters: dict, value: float, error: bool = False, *_: Any) -> None:
        """Store the result of a configuration that was evaluated elsewhere."""
        self._task().add(_flat(parameters), None if error else value)

    def save(self, checkpoint_path: str) -> None:
        """Write which trial of Ray is which trial of the memory."""
        ids = {trial_id: trial.id for trial_id, trial in self._running.items()}
        Path(checkpoint_path).write_text(json.dumps(ids), encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Take over the trials that were running. The memory has to be a file."""
        if self._arguments["memory"] is None:
            fail("memory", "a path, since a search is restored from its memory", None)
        ids: dict[str, int] = json.loads(Path(checkpoint_path).read_text(encoding="utf-8"))
        names = {number: trial_id for trial_id, number in ids.items()}
        while names and not self._spare:  # `ask` returns the trials of a process that has ended first
            trial = self._task().ask()
            if trial.id in names:
                self._running[names.pop(trial.id)] = trial
            else:
                self._spare.append(trial)
        memory = self._task().memory
        for number, trial_id in names.items():  # finished meanwhile, or their owner is still there
            self._running[trial_id] = as_trial(memory.trial(number))

    def _task(self) -> tune.TunerTask:
        if self._opened is None:
            if self._space is None or self.metric is None or self.mode not in ("max", "min"):
                got = f"space={self._space}, metric={self.metric!r}, mode={self.mode!r}"
                fail("space, metric and mode", "given here or to Ray's tuner", got)
            tuner = tune.Tuner(self._space, maximise=self.mode == "max", **self._arguments)
            self._opened = tuner.task(self._name, self._budget)
            for params in self._first:
                self._opened.enqueue(params)
        return self._opened
