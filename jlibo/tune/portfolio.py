"""The short list of a memory: the configurations that together do best over all past tasks. Internal.

| here            | what it is                                                                         |
|-----------------|------------------------------------------------------------------------------------|
| `Defaults`      | the result, a list that prints as Python code; public                              |
| `portfolio`     | the greedy choice                                                                  |

The value of a configuration in a past task is the posterior mean of the model given the trials of that task,
in units of the task's own scale, so that all tasks count alike. A list of configurations is worth the mean
over tasks of the best value in each. This is a submodular function of the list, so that the greedy choice is
within a factor of 1 - 1/e of the best list.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jlibo.belief.scaling import Standardise
from jlibo.features import AbstractFeatures
from jlibo.tune import arrays
from jlibo.tune.engine import Knowledge, PastTrials
from jlibo.tune.insight import past_surfaces
from jlibo.tune.memory import rows
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.model import Model, is_allowed
from jlibo.tune.space import candidates as unit_points
from jlibo.tune.space.fitting import fit

LEAST_POINTS, MOST_POINTS = 1024, 4096
"""Numbers of configurations to choose from: the smallest padded one, and the largest."""
EQUAL_GAINS = 1e-5
"""Gains that differ by less, in standard deviations of the scores, are equal up to round-off."""


@final
class Defaults(list[dict[str, Any]]):
    """Configurations as a list of dicts, made by `Tuner.defaults`; it prints as Python code.

    ```python
    from jlibo.tune import Defaults

    code = str(Defaults([{"depth": 3, "kind": "a"}]))
    names = {}
    exec(code, names)
    assert names["defaults"] == [{"depth": 3, "kind": "a"}]
    ```
    """

    def __str__(self) -> str:
        return "defaults = [" + "".join(f"\n    {params!r}," for params in self) + ("\n]" if self else "]")


@final
class _Choices(NamedTuple):
    """The configurations to choose from, and their unit points. Those of trials come first."""

    configs: list[dict[str, Any]]
    points: Float[np.ndarray, "configs dim"]


def portfolio(
    model: Model,
    knowledge: Knowledge,
    tasks: Sequence[TaskRecord],
    trials: Sequence[TrialRecord],
    num: int,
    *,
    maximise: bool,
    seed: int,
) -> Defaults:
    """Return the configurations that together do best over the tasks, the most useful first.

    **Arguments:**

    - `model`, `knowledge`: the model, and what was learned from the tasks.
    - `tasks`, `trials`: the records of the memory.
    - `num`: the number of configurations.
    - `maximise`: whether a higher score is better.
    - `seed`: the seed of the pool.
    """
    past = arrays.past_trials(model.space, model.features, tasks, trials, maximise=maximise)
    scored = arrays.scored_trials(tasks, trials)
    if past is None:
        return Defaults()
    kept = [task.id for task in tasks if task.id in scored][-arrays.MOST_TASKS :]
    choices = _choices(model, {task: scored[task] for task in kept}, maximise=maximise, seed=seed)
    count = len(choices.configs)
    if count == 0:
        return Defaults()
    size = arrays.padded(count, LEAST_POINTS)
    padded = np.pad(choices.points, ((0, size - count), (0, 0)), mode="edge")
    values = model.programs.run(
        task_values,
        model.policy.noise_std,
        model.scaling,
        knowledge,
        model.features,
        past[0],
        padded.astype(jnp.result_type(float)),
    )
    worth = np.array(values, np.float64)[: len(kept), :count]
    worth = np.where(np.isfinite(worth), worth, 0.0)
    # A configuration that failed in a task is of no use there.
    worth = np.where(_failures(choices, kept, trials), worth.min(1, keepdims=True), worth)
    return Defaults(choices.configs[place] for place in greedy(worth, num))


def greedy(worth: Float[np.ndarray, "tasks configs"], num: int) -> list[int]:
    """Return the positions that most raise the mean over tasks of the best value, one after another.

    Of equal gains, such as none at all, the highest mean over tasks is chosen, then the first position.
    """
    chosen: list[int] = []
    best = np.full((len(worth), 1), worth.min())
    left = np.ones(worth.shape[1], bool)
    mean = worth.mean(0)
    while len(chosen) < num and left.any():
        gains = np.where(left, np.maximum(worth - best, 0).mean(0), -np.inf)
        is_best = gains >= gains.max() - EQUAL_GAINS
        place = int(np.argmax(np.where(is_best, mean, -np.inf)))
        chosen.append(place)
        left[place] = False
        best = np.maximum(best, worth[:, place : place + 1])
    return chosen


@eqx.filter_jit
def task_values(
    noise_std: Float[Array, ""],
    scaling: Standardise,
    knowledge: Knowledge,
    features: AbstractFeatures,
    past: PastTrials,
    points: Float[Any, "points dim"],
) -> Float[Array, "tasks points"]:
    """Return the posterior mean of each task at the points, in units of the task."""
    # Without the scales of the other tasks, the units of a task depend on its own scores alone.
    alone = Knowledge(knowledge.prior, knowledge.support, scaling.init(past.scores.dtype))
    return past_surfaces(noise_std, scaling, alone, past, features(points))


def _choices(model: Model, scored: dict[int, list[TrialRecord]], *, maximise: bool, seed: int) -> _Choices:
    """Return all configurations with a score, best of each task first if they are too many, and a pool.

    There is a pool only if the space is a box. Configurations that the tuner would not suggest are left out.
    """
    sign = -1 if maximise else 1
    ranked = [sorted(some, key=lambda trial: sign * (trial.model_score or 0.0)) for some in scored.values()]
    pool = np.zeros((0, model.space.num_parameters))
    if model.points is None:
        pool = unit_points.pool(model.space, seed=(seed,), allowed=model.allowed)
    configs: dict[str, dict[str, Any]] = {}
    for rank in range(max(map(len, ranked))):
        for some in ranked:
            if rank < len(some) and len(configs) < MOST_POINTS - len(pool):
                text = rows.params_text(some[rank].params)
                if text not in configs and _is_choice(model, some[rank].params):
                    configs[text] = some[rank].params
    for point in pool:
        params = model.space.from_unit(point)
        configs.setdefault(rows.params_text(params), params)
    own = list(configs.values())
    points = [model.space.to_unit(params) for params in own]
    return _Choices(own, np.reshape(points, (len(own), model.space.num_parameters)))


def _is_choice(model: Model, params: dict[str, Any]) -> bool:
    """Return whether a tuner would suggest a configuration; a trial may be between the steps of the space."""
    return fit(model.space, params).is_exact and is_allowed(model, params)


def _failures(
    choices: _Choices, kept: Sequence[int], trials: Sequence[TrialRecord]
) -> Bool[np.ndarray, "tasks configs"]:
    """Return which configurations failed in which task and have no score there."""
    places = {rows.params_text(params): place for place, params in enumerate(choices.configs)}
    row_of = {task: row for row, task in enumerate(kept)}
    state = np.zeros((len(kept), len(places), 2), bool)  # failed, has a score or an estimate
    for trial in trials:
        place = places.get(rows.params_text(trial.params))
        is_scored = trial.model_score is not None
        is_known = trial.fits and (is_scored or trial.state == "failed")
        if place is not None and trial.task_id in row_of and is_known:
            state[row_of[trial.task_id], place, int(is_scored)] = True
    return state[..., 0] & ~state[..., 1]
