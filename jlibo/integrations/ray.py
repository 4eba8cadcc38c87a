"""A search algorithm for Ray Tune that learns from past tasks. Requires the extra `ray`."""
# pyright: reportMissingImports=false

import functools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

try:
    from ray.tune.search import Searcher, sample
except ImportError as error:
    raise ImportError("jlibo.integrations.ray needs Ray Tune: pip install 'jlibo[ray]'") from error

from jlibo import tune
from jlibo.checks import fail


@final
class LiBOSearch(Searcher):
    """Ray Tune search algorithm whose model is learned from past tasks of a memory.

    **Arguments:**

    - `memory`: the path of the memory file; with None, nothing is remembered.
    - `task`: the name of the task, such as that of the data set. A task of this name is continued.
    - `space`: a `SearchSpace`; with None, it is made of the `param_space` of Ray's tuner.
    - `metric`, `mode`: the metric, and "max" or "min"; with None, those of Ray's `TuneConfig`.
    - `budget`: the approximate number of trials, 50 if None. Ray's `num_samples` says when the search ends.
    - `points_to_evaluate`: configurations to try first.
    - `tuner_options`: further arguments of `jlibo.Tuner`, such as `dict(seed=1)`.
    """

    def __init__(
        self,
        memory: str | os.PathLike[str] | None = None,
        *,
        task: str,
        space: tune.SearchSpace | None = None,
        metric: str | None = None,
        mode: str | None = None,
        budget: int | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] = (),
        tuner_options: Mapping[str, Any] | None = None,
    ):
        super().__init__(metric=metric, mode=mode)
        if memory is not None and not isinstance(memory, str | os.PathLike):
            fail("memory", "None or the path of a memory, which Ray can copy", type(memory).__name__)
        self._arguments = {"memory": memory, **(tuner_options or {})}
        self._space, self._name, self._budget = space, task, budget
        self._first = [_flat(point) for point in points_to_evaluate]
        self._running: dict[str, tune.Trial] = {}
        self._spare: list[tune.Trial] = []
        self._opened: tune.TunerTask | None = None

    def __getstate__(self) -> dict[str, Any]:  # Ray copies a search; the copy that is used opens the memory
        return self.__dict__ | {"_opened": None, "_running": {}, "_spare": []}

    def set_search_properties(self, metric: Any, mode: Any, config: dict, **spec: Any) -> bool:
        """Take metric, mode and search space from Ray's tuner; False if there is a space already."""
        self._metric, self._mode = metric or self._metric, mode or self._mode
        domains = {name: value for name, value in _flat(config).items() if isinstance(value, sample.Domain)}
        if self._space is not None:
            return not domains
        self._space = tune.SearchSpace({name: _parameter(name, one) for name, one in domains.items()})
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """Return the configuration of a new trial."""
        trial = self._running[trial_id] = self._spare.pop(0) if self._spare else self._task().ask()
        return _nested(trial.params)

    def on_trial_result(self, trial_id: str, result: dict) -> None:
        """Store an intermediate result of a trial."""
        if trial_id in self._running and self.metric in result:
            self._running[trial_id].report(result["training_iteration"], result[self.metric])

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Store the result of a trial; without the metric, it has failed."""
        trial = self._running.pop(trial_id, None)
        score = math.nan if error or not result else result.get(self.metric, math.nan)
        if trial is not None:
            self._task().tell(trial, score)
        elif result and self._space is not None:  # it ran when the search was restored in the same process
            config = _flat(result["config"])
            self._task().add({name: config[name] for name in self._space if name in config}, score)

    def add_evaluated_point(self, parameters: dict, value: float, error: bool = False, *_: Any) -> None:
        """Store the result of a configuration that was evaluated elsewhere."""
        self._task().add(_flat(parameters), math.nan if error else value)

    def save(self, checkpoint_path: str) -> None:
        """Write which trial of Ray is which trial of the memory. All else is in the memory."""
        ids = {trial.id: trial_id for trial_id, trial in self._running.items()}
        Path(checkpoint_path).write_text(json.dumps(ids), encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Take over the trials that were running, if the memory is a file."""
        ids = json.loads(Path(checkpoint_path).read_text(encoding="utf-8"))
        for trial in [self._task().ask() for _ in ids]:  # those that an ended process left come first
            if str(trial.id) in ids:
                self._running[ids[str(trial.id)]] = trial
            else:
                self._spare.append(trial)

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


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with names such as "model/rate"."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and "grid_search" in value:
            fail("param_space", "without grid_search, which tries all values anyway", prefix + name)
        found |= _flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def _nested(params: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in params.items():
        *folders, last = name.split("/")
        functools.reduce(lambda place, folder: place.setdefault(folder, {}), folders, found)[last] = value
    return found


def _parameter(name: str, domain: sample.Domain) -> tune.Parameter:
    """Return the parameter of a domain. The upper end of `randint` is not a value, that of `qrandint` is."""
    if isinstance(domain, sample.Categorical):
        return tune.Categorical(domain.categories)
    sampler, step = domain.get_sampler(), None
    if isinstance(sampler, sample.Quantized):
        sampler, step = sampler.get_sampler(), sampler.q
    if not isinstance(sampler, sample.LogUniform | sample.Uniform):
        fail(f"param_space[{name!r}]", "uniform, loguniform, randint or choice", domain.domain_str)
    kind = tune.Int if isinstance(domain, sample.Integer) else tune.Float
    upper = domain.upper - (isinstance(domain, sample.Integer) and step is None)
    return kind(domain.lower, upper, log=isinstance(sampler, sample.LogUniform), step=step)
