"""What the model believes of each task along each parameter, for the report. Internal.

The curve of a parameter goes through the best trial of the task in which the parameter is on: the parameter
changes and all others stay. A task is conditioned on by the same function as for `Tuner.defaults` and for
similar tasks (`insight.past_belief`). As there, the prior is learned from all tasks, the shown one included.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jlibo.belief import belief as running
from jlibo.belief.scaling import Standardise
from jlibo.features import AbstractFeatures
from jlibo.tune import arrays
from jlibo.tune.engine import Knowledge, PastTrials
from jlibo.tune.insight import past_belief
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.model import Model
from jlibo.tune.space.space import SearchSpace

NUM_POINTS = 32
"""Number of points of a curve, and largest number of choices with a point each."""


@final
class Curve(NamedTuple):
    """Mean and standard deviation along one parameter, and the value of the configuration it goes through."""

    mean: list[float]
    std: list[float]
    at: Any


@final
class Curves(NamedTuple):
    """The curves of tasks and of a new task, one for each parameter; None where the parameter is off."""

    points: list[list[Any]]
    """The values of each parameter at which its curves are computed."""
    tasks: dict[int, list[Curve | None]]
    """By task id, in the units of the scores."""
    new: list[Curve | None]
    """Of a new task before its first score, in standard deviations of the scores of a task."""


def curves(
    model: Model,
    knowledge: Knowledge,
    tasks: Sequence[TaskRecord],
    trials: Sequence[TrialRecord],
    defaults: Sequence[Mapping[str, Any]],
    *,
    maximise: bool,
    most: int,
) -> Curves | None:
    """Return the curves of the latest `most` tasks that have two scores; None if there is no such task.

    **Arguments:**

    - `model`, `knowledge`: the model, and what was learned from the tasks.
    - `tasks`, `trials`: the records of the memory.
    - `defaults`: configurations for the curves of a new task, the best first.
    - `maximise`: whether a higher score is better.
    - `most`: the largest number of tasks.
    """
    space = model.space
    rows = arrays.scored_trials(tasks, trials)
    shown = [task for task in tasks if task.id in rows][-most:]
    past = arrays.past_trials(space, model.features, shown, trials, maximise=maximise)
    if past is None:
        return None
    grids = [_grid(space, place) for place in range(space.num_parameters)]
    own = [_best_first(space, rows[task.id], maximise=maximise) for task in shown]
    own.append([_Base(params, space.to_unit(params)) for params in defaults])
    bases = [_bases(space, some) for some in own]
    padded, num_points = _with_new_task(past[0]), space.num_parameters * NUM_POINTS
    points = np.full((len(padded.scores), num_points, space.num_parameters), 0.5)
    places = [*range(len(shown)), len(padded.scores) - 1]
    for place, base in zip(places, bases, strict=True):
        points[place] = _lines(space, grids, base)
    found = task_curves(
        model.policy.noise_std,
        model.scaling,
        knowledge,
        model.features,
        padded,
        points.astype(jnp.result_type(float)),
    )
    means, stds, centres, scales = (np.asarray(leaf, np.float64) for leaf in found)
    values = [
        [space[name].value_of(float(code)) for code in codes] for name, (_, codes) in _named(space, grids)
    ]
    result = Curves(values, {}, [])
    for place, task, base in zip(places, (*shown, None), bases, strict=True):
        mean, std = means[place], stds[place]
        if task is not None:
            used = arrays.thinned(rows[task.id], maximise=maximise)  # as in `past_trials`
            scores = [trial.model_score for trial in used if trial.model_score is not None]
            level = arrays.Level.of(scores, maximise=maximise)
            mean = np.array([level.score(one) for one in mean * scales[place] + centres[place]])
            std = np.array([level.size(one) for one in std * scales[place]])
        own_curves = _split(space, grids, base, mean, std)
        if task is None:
            result.new.extend(own_curves)
        else:
            result.tasks[task.id] = own_curves
    return result


@eqx.filter_jit
def task_curves(
    noise_std: Float[Array, ""],
    scaling: Standardise,
    knowledge: Knowledge,
    features: AbstractFeatures,
    past: PastTrials,
    points: Float[Any, "tasks points dim"],
) -> tuple[
    Float[Array, "tasks points"], Float[Array, "tasks points"], Float[Array, " tasks"], Float[Array, " tasks"]
]:
    """Return mean and standard deviation of each task at its points, and centre and scale of its units."""

    def one_task(one: tuple[PastTrials, Float[Array, "points dim"]]):
        task, own = one
        state, units = past_belief(noise_std, scaling, knowledge, task, features(own))
        belief, shown = running.in_units(state, units), running.common_units(state, units)
        return belief.mean, belief.std, shown.centre, shown.scale

    return lax.map(one_task, (past, points), batch_size=8)


def _with_new_task(past: PastTrials) -> PastTrials:
    """Return the tasks, padded, followed by one without trials."""
    return jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf[:1])]), past)


def _grid(space: SearchSpace, place: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit coordinates along a parameter, each once, and the codes of the values there."""
    parameter = space[space.names[place]]
    codes = np.unique(parameter.unit_to_codes(np.linspace(0, 1, NUM_POINTS)))
    if parameter.num_values is not None and parameter.num_values <= NUM_POINTS:
        codes = parameter.first_code + np.arange(float(parameter.num_values))
    return parameter.codes_to_unit(codes), codes


def _named(space: SearchSpace, grids: Sequence[Any]) -> list[tuple[str, Any]]:
    return list(zip(space.names, grids, strict=True))


@final
class _Base(NamedTuple):
    """A configuration that curves go through, and its unit point."""

    params: Mapping[str, Any]
    point: Float[np.ndarray, " dim"]


def _best_first(space: SearchSpace, trials: Sequence[TrialRecord], *, maximise: bool) -> list[_Base]:
    """Return the configurations of the complete trials, best first."""
    complete = [trial for trial in trials if trial.score is not None]
    sign = -1 if maximise else 1
    complete.sort(key=lambda trial: sign * (trial.score or 0.0))
    points = arrays.unit_points(space, complete)
    return [_Base(trial.params, point) for trial, point in zip(complete, points, strict=True)]


def _bases(space: SearchSpace, bases: Sequence[_Base]) -> list[_Base | None]:
    """Return for each parameter the first configuration in which it is on; None if there is none."""
    return [next((base for base in bases if name in base.params), None) for name in space.names]


def _lines(
    space: SearchSpace, grids: Sequence[Any], bases: Sequence[_Base | None]
) -> Float[np.ndarray, "points dim"]:
    """Return the points of all curves of a task, padded by repetition of the last one."""
    lines = []
    for place, ((units, _), base) in enumerate(zip(grids, bases, strict=True)):
        point = np.full(space.num_parameters, 0.5) if base is None else base.point
        line = np.repeat(point[None], NUM_POINTS, axis=0)
        line[:, place] = np.pad(units, (0, NUM_POINTS - len(units)), mode="edge")
        lines.append(space.with_off(line))
    return np.concatenate(lines)


def _split(
    space: SearchSpace,
    grids: Sequence[Any],
    bases: Sequence[_Base | None],
    mean: np.ndarray,
    std: np.ndarray,
) -> list[Curve | None]:
    """Return the curves of a task, one for each parameter."""
    found: list[Curve | None] = []
    for place, (name, (units, _)) in enumerate(_named(space, grids)):
        base, part = bases[place], slice(place * NUM_POINTS, place * NUM_POINTS + len(units))
        if base is None or not np.isfinite([mean[part], std[part]]).all():
            found.append(None)
        else:
            found.append(Curve(mean[part].tolist(), std[part].tolist(), base.params[name]))
    return found
