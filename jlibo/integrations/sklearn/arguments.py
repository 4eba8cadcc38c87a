"""Checks and meanings of the arguments of a search, made when it is fitted. Internal."""

import dataclasses
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any, final

from sklearn.metrics import check_scoring

from jlibo.checks import check_count, did_you_mean, fail
from jlibo.tune import Categorical, SearchSpace

RESERVED = ("space", "memory", "maximise", "maximize", "direction", "seed")
"""Arguments of a `Tuner` that a search sets itself."""


@final
@dataclasses.dataclass(frozen=True)
class Metrics:
    """The metrics of a search.

    - `scorer`: returns the score of one metric, or a dictionary.
    - `by_name`: the scorer of each of several metrics; None for one metric, and for a callable, whose names
      are known only after its first call.
    - `given`: the argument `scoring`.
    """

    scorer: Any
    by_name: dict[str, Any] | None
    given: Any


def metrics_of(estimator: Any, scoring: Any, refit: Any, error_score: Any) -> Metrics:
    """Return the metrics that `scoring` stands for, checked against `refit`."""
    if scoring is None or isinstance(scoring, str) or callable(scoring):
        return Metrics(check_scoring(estimator, scoring=scoring), None, scoring)
    if not isinstance(scoring, Mapping | list | tuple | set) or not scoring:
        fail("scoring", "a name, a callable, or a list or dictionary of them", repr(scoring))
    named = dict(scoring) if isinstance(scoring, Mapping) else {name: name for name in scoring}
    by_name: dict[str, Any] = {
        str(name): check_scoring(estimator, scoring=one) for name, one in named.items()
    }
    objective_of(list(by_name), refit, several=True)
    raises = isinstance(error_score, str)
    return Metrics(check_scoring(estimator, scoring=by_name, raise_exc=raises), by_name, scoring)


def objective_of(names: Sequence[str], refit: Any, *, several: bool) -> str:
    """Return the metric that is optimised: the one that `refit` names, otherwise the first."""
    if several and refit is not False and not callable(refit) and refit not in names:
        known = ", ".join(map(repr, names))
        expected = f"one of {known}, a callable or False, since there are several metrics"
        fail("refit", expected, f"{refit!r}{did_you_mean(refit, names)}")
    return refit if several and isinstance(refit, str) else names[0]


def space_of(space: Any) -> SearchSpace:
    """Return the search space; a mapping from names to parameters is one."""
    if not isinstance(space, Mapping):
        fail("space", "a SearchSpace, or a mapping from names to parameters", repr(space))
    return space if isinstance(space, SearchSpace) else SearchSpace(space)


def is_in(space: SearchSpace, params: Mapping[str, Any]) -> bool:
    """Return whether a configuration is one of a space."""
    try:
        space.validate(params)
    except ValueError:
        return False
    return True


def check_plain(
    *, memory: Any, task: Any, budget: Any, refit: Any, error_score: Any, tuner_options: Any
) -> None:
    """Check the arguments that are plain values."""
    if memory is not None and not isinstance(memory, str | os.PathLike):
        expected = "None or the path of a memory, which can be copied and sent to other processes"
        fail("memory", expected, f"{memory!r} ({type(memory).__name__})")
    if task is not None and not isinstance(task, str):
        fail("task", "None or the name of a task", f"{task!r} ({type(task).__name__})")
    check_count("budget", budget)
    if not isinstance(refit, bool | str) and not callable(refit):
        fail("refit", "True, False, the name of a metric, or a callable", repr(refit))
    is_number = isinstance(error_score, numbers.Real) and not isinstance(error_score, bool)
    if error_score != "raise" and not is_number:
        fail("error_score", "'raise' or a number", repr(error_score))
    if not isinstance(tuner_options, Mapping | None):
        fail("tuner_options", "None or a mapping of further arguments of jlibo.Tuner", repr(tuner_options))
    for name in tuner_options or {}:
        if name in RESERVED:
            fail("tuner_options", f"without {', '.join(RESERVED)}, which the search sets", repr(name))


def error_value(error_score: Any) -> float:
    """Return the score of a failed fit; NaN if a failure raises."""
    return math.nan if isinstance(error_score, str) else float(error_score)


def check_names(estimator: Any, space: SearchSpace, objects: Mapping[str, Mapping[Any, Any]]) -> None:
    """Check that the estimator has the parameters of the space, and the space those of `objects`."""
    for name, values in objects.items():
        parameter = space.get(name)
        if not isinstance(parameter, Categorical):
            fail("objects", "named by Categorical parameters of the space", repr(name))
        if not isinstance(values, Mapping):
            fail(f"objects[{name!r}]", "a mapping from choices to objects", repr(values))
        for choice in values:
            if choice not in parameter.choices:
                known = ", ".join(map(repr, parameter.choices))
                fail(f"objects[{name!r}]", f"keyed by the choices {known}", repr(choice))
    known = estimator.get_params(deep=True)
    for name in space:
        # The parameters below an object exist only once the object is set.
        if name not in known and not any(name.startswith(f"{one}__") for one in objects):
            expected = f"named by parameters of {type(estimator).__name__}"
            fail("space", expected, f"{name!r}{did_you_mean(name, known)}")
