"""Conversion of Optuna's trials to records, and of past studies to past tasks. Internal.

| Optuna state    | record                                                                             |
|-----------------|------------------------------------------------------------------------------------|
| complete        | complete with its value; failed if the value is not finite, or if the trial is     |
|                 | infeasible: one of its constraint values is positive                               |
| pruned          | complete with the value that complete trials with the same standing at that step   |
|                 | have, at most their median (`curves.estimated_final`); failed if nothing finite    |
|                 | was reported last                                                                  |
| failed          | failed: its neighbourhood is avoided, but the model is not conditioned on it       |
| running         | pending; parameters that it has not suggested yet have the values chosen for it    |
| waiting         | none                                                                               |

Scores are signed so that higher is better, so that studies of either direction can be combined.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from jlibo.checks import fail
from jlibo.integrations.optuna.branches import Config, config_of, full_trials, infer_space, only
from jlibo.integrations.optuna.space import Coded, coded_parameter, coded_space, encode
from jlibo.tune.curves.curves import TaskCurves, estimated_final
from jlibo.tune.memory.records import TrialRecord
from jlibo.tune.space.fitting import fit
from jlibo.tune.space.parameters import Parameter, conditioned
from jlibo.tune.space.space import SearchSpace

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


@final
@dataclasses.dataclass(frozen=True)
class PastTask:
    """A past study as a task.

    `space` has the parameters of its trials, with the conditions under which they have them, and `configs`
    the values of these parameters in the trials with all of them.
    """

    task_id: int
    name: str
    space: SearchSpace
    configs: tuple[Config, ...]
    records: tuple[TrialRecord, ...]


def sign_of(study: Study) -> float:
    """Return the sign that turns values into scores; raise an error if there is more than one objective."""
    if len(study.directions) != 1:
        raise ValueError(
            f"LiBOSampler optimises one objective, but the study {study.study_name!r} has "
            f"{len(study.directions)}. Give the study one direction, or another sampler."
        )
    return 1.0 if study.directions[0] == StudyDirection.MAXIMIZE else -1.0


def whole_study(study: Study) -> Study:
    """Return the study behind a filtered view: with Hyperband, samplers get the trials of one bracket."""
    # Optuna defines the class of the view inside of a method, so it can only be detected by its attribute.
    return getattr(study, "_study", study)


def configs_of(trials: Iterable[FrozenTrial]) -> list[Config]:
    """Return the parameters of the trials that show the space of a study."""
    return [config_of(trial) for trial in full_trials(trials)]


def distributions_in(space: SearchSpace, trials: Iterable[FrozenTrial]) -> dict[str, BaseDistribution]:
    """Return the distributions of the space's parameters that one of the trials has."""
    found = {}
    for trial in trials:
        for name, distribution in trial.distributions.items():
            pair = coded_parameter(name, distribution)
            if pair is not None and has_parameter(space, *pair):
                found.setdefault(name, distribution)
    return found


def has_parameter(space: SearchSpace, coded_name: str, kind: Parameter) -> bool:
    """Return whether a space has a parameter of this kind, under whatever condition."""
    return coded_name in space and conditioned(space[coded_name], None) == kind


def space_of(
    distributions: Mapping[str, BaseDistribution], inferred: tuple[SearchSpace, set[str]] | None
) -> SearchSpace | None:
    """Return the space of a relative sample of these distributions.

    `inferred` is the space that was chosen for the trial, and the names that Optuna was told of. It is the
    answer if all of them are asked for. `optuna.samplers.PartialFixedSampler` asks only for parameters that
    it does not fix; those with a condition on a fixed one are then sampled independently.
    """
    asked = coded_space(distributions)
    if inferred is None or asked is None:
        return asked
    space, known = inferred
    if set(distributions) == known:
        return space
    kept = {name: space[name] for name in asked if has_parameter(space, name, asked[name])}
    while any(set(one.when or ()) - set(kept) for one in kept.values()):
        kept = {name: one for name, one in kept.items() if not set(one.when or ()) - set(kept)}
    return SearchSpace(kept) if kept else None


def constraint_writer(
    constraints_func: Callable[[FrozenTrial], Sequence[float]] | None,
) -> BaseSampler | None:
    """Return a sampler whose `after_trial` stores the constraint values of a trial; None without a function.

    Storing them is not part of Optuna's public interface, but its own samplers do it, and `study.best_trial`
    reads them.
    """
    if constraints_func is None:
        return None
    if not callable(constraints_func):
        expected = "a function from a finished trial to a sequence of numbers"
        fail("constraints_func", expected, f"{constraints_func!r} ({type(constraints_func).__name__})")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls the argument experimental, or deprecated
        return optuna.samplers.TPESampler(constraints_func=constraints_func)


def is_feasible(trial: FrozenTrial) -> bool:
    """Return whether no constraint value of a trial is positive; True if it has none."""
    if hasattr(trial, "constraints"):  # since Optuna 5
        values = trial.constraints.values()
    else:
        values = trial.system_attrs.get("constraints") or ()
    return all(value <= 0 for value in values)


def records(
    trials: Sequence[FrozenTrial],
    space: SearchSpace,
    sign: float,
    *,
    offers: Mapping[int, Coded] | None = None,
    task_id: int = 0,
) -> list[TrialRecord]:
    """Return records of the trials in `space`. `offers`: the values chosen for running trials, by number."""
    scores = trial_scores(trials, sign)
    found = []
    for trial in trials:
        if trial.state == TrialState.WAITING:
            continue
        coded = encode(trial.distributions, trial.params)
        if trial.state == TrialState.RUNNING and offers:
            coded = {**offers.get(trial.number, {}), **coded}
        params = fit(space, coded).params
        if params is None:
            continue
        score = scores.get(trial.number)
        state = "pending" if trial.state == TrialState.RUNNING else "failed" if score is None else "complete"
        found.append(
            TrialRecord(
                id=0,
                task_id=task_id,
                number=trial.number,
                params=params,
                state=state,
                score=score,
                explored=False,
                owner=None,
                created="",
                finished=None,
            )
        )
    return found


def with_explored(
    own: Sequence[TrialRecord], known: Mapping[int, bool], num_forced: int
) -> list[TrialRecord]:
    """Return the records of a study with the flag of forced exploration set.

    `known` has the flag of the trials that this sampler chose, by number. The others were chosen by another
    worker, or before a restart, by the same rule: the first `num_forced` that did not fail were exploration.
    """
    marked, count = [], 0
    for record in own:
        explored = known.get(record.number, count < num_forced)
        count += explored and record.state != "failed"
        marked.append(dataclasses.replace(record, explored=explored))
    return marked


def trial_scores(trials: Iterable[FrozenTrial], sign: float) -> dict[int, float]:
    """Return the scores by trial number, for the trials that have one."""
    complete: dict[int, float] = {}
    curves: list[dict[int, float | None]] = []
    pruned: dict[int, tuple[int, float]] = {}
    for trial in trials:
        if not is_feasible(trial):
            continue
        values = trial.intermediate_values
        if trial.state == TrialState.COMPLETE and trial.value is not None and math.isfinite(trial.value):
            complete[trial.number] = sign * trial.value
            curves.append(
                {step: sign * value if math.isfinite(value) else None for step, value in values.items()}
            )
        elif trial.state == TrialState.PRUNED and values and math.isfinite(values[max(values)]):
            pruned[trial.number] = max(values), sign * values[max(values)]
    finals = list(complete.values())
    own = TaskCurves.of(curves, finals, maximise=True)
    estimates = {
        number: estimated_final(*last, own, finals, maximise=True) for number, last in pruned.items()
    }
    return complete | {number: score for number, score in estimates.items() if score is not None}


def past_task(study: Study, number: int) -> PastTask | None:
    """Return a study as a past task; None if it has several objectives or fewer than two scores."""
    if len(study.directions) != 1:
        return None
    trials = study.get_trials(deepcopy=False, states=FINISHED)
    configs = configs_of(trials)
    space = infer_space(configs)
    if space is None:
        return None
    own = records(trials, space, sign_of(study), task_id=number)
    if sum(record.state == "complete" for record in own) < 2:
        return None
    return PastTask(number, study.study_name, space, tuple(only(space, configs)), tuple(own))


def load_studies(past_studies: Sequence[Study | str] | None, storage: Any) -> list[Study]:
    """Return the studies to learn from: those given, by name or as objects, or else all of the storage."""
    if past_studies is None:
        summaries = optuna.get_all_study_summaries(storage, include_best_trial=False)
        past_studies = [summary.study_name for summary in summaries]
    return [
        optuna.load_study(study_name=study, storage=storage) if isinstance(study, str) else study
        for study in past_studies
    ]


def check_sources(past_studies: Sequence[Study | str] | None, storage: Any) -> None:
    """Check the arguments `past_studies` and `storage` of the sampler."""
    if past_studies is None:
        return
    expected = "a list of Optuna studies, or of their names together with `storage`"
    for study in past_studies:
        if isinstance(study, str) and storage is None:
            fail("past_studies", expected, f"the name {study!r} without a `storage`")
