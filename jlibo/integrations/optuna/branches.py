"""The search space of define-by-run trials: parameters that some trials have and others do not. Internal.

An objective function may suggest some parameters only in one of its branches. Optuna does not know the
branches, but the trials show them: a parameter that is there exactly for some values of categorical ones
exists under that condition (`when`). A parameter whose presence nothing explains is not in the space.

| here            | meaning                                                                           |
|-----------------|-----------------------------------------------------------------------------------|
| `Config`        | the coded parameters of one trial, each with its kind                             |
| `infer_space`   | the space, with conditions, of some trials                                        |
| `explains`      | whether trials are configurations of a space, with exactly the parameters on      |
| `choose_space`  | the space of a study: one that explains its trials and most of the past trials    |

A study that has seen only one branch fits into the space of past tasks that have seen all of them, and the
other way round. Therefore past tasks are compared by `explains` and not by equality of spaces. If a
distribution has changed since, the study has the branches of the past with its own distributions
(`_with_kinds`), and the trials that fit count (`jlibo.tune.space.fitting`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from jlibo.integrations.optuna.space import coded_parameter, encode_value
from jlibo.tune.space.fitting import fit
from jlibo.tune.space.parameters import Categorical, Parameter, conditioned
from jlibo.tune.space.space import SearchSpace
from jlibo.tune.space.values import key_of

Config = dict[str, tuple[Parameter, Any]]
"""Kind and value of each parameter of a trial, by its coded name."""


def config_of(trial: FrozenTrial) -> Config:
    """Return the parameters of a trial that a model can represent."""
    found = {}
    for name, value in trial.params.items():
        pair = coded_parameter(name, trial.distributions[name])
        if pair is not None:
            found[pair[0]] = pair[1], encode_value(trial.distributions[name], value)
    return found


def full_trials(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return the complete trials, or the pruned ones if there are none.

    A pruned trial may have ended before it suggested all of its parameters.
    """
    trials = list(trials)
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return complete or [trial for trial in trials if trial.state == TrialState.PRUNED]


def infer_space(configs: Sequence[Config]) -> SearchSpace | None:
    """Return the space of trials with these parameters; None if there is none.

    A parameter is left out if its kind is not always the same, or if some trials do not have it and the
    values of categorical parameters do not tell which.
    """
    kinds: dict[str, Parameter] = {}
    changing = set()
    for config in configs:
        for name, (kind, _) in config.items():
            if kinds.setdefault(name, kind) != kind:
                changing.add(name)
    having = {
        name: frozenset(place for place, config in enumerate(configs) if name in config)
        for name in sorted(set(kinds) - changing)
    }
    found: dict[str, Parameter] = {}
    for name in sorted(having, key=lambda name: -len(having[name])):  # parents first
        if len(having[name]) == len(configs):
            found[name] = kinds[name]
        else:
            when = _condition(having[name], configs, {one: having[one] for one in found}, found)
            if when is not None:
                found[name] = conditioned(kinds[name], when)
    return SearchSpace(found) if found else None


def _condition(
    present: frozenset[int],
    configs: Sequence[Config],
    having: Mapping[str, frozenset[int]],
    found: Mapping[str, Parameter],
) -> dict[str, list[Any]] | None:
    """Return the condition that holds in the trials `present` and in no other; None if there is none.

    A single parent is preferred to several, and one that more trials have.
    """
    parents = [name for name in found if isinstance(found[name], Categorical) and present < having[name]]
    values = {
        name: {key_of(configs[at][name][1]): configs[at][name][1] for at in present} for name in parents
    }
    absent = [config for place, config in enumerate(configs) if place not in present]

    def is_exact(chosen: Sequence[str]) -> bool:
        return not any(
            all(name in config and key_of(config[name][1]) in values[name] for name in chosen)
            for config in absent
        )

    parents.sort(key=lambda name: (-len(having[name]), name))
    chosen = next(([name] for name in parents if is_exact([name])), parents)
    if not chosen or not is_exact(chosen):
        return None
    for name in list(chosen):
        fewer = [other for other in chosen if other != name]
        if fewer and is_exact(fewer):
            chosen = fewer
    return {name: list(values[name].values()) for name in chosen}


def explains(space: SearchSpace, configs: Iterable[Config]) -> bool:
    """Return whether each trial has exactly the parameters of `space` that are on, of the same kinds."""
    for config in configs:
        for name, (kind, _) in config.items():
            if name not in space or conditioned(space[name], None) != kind:
                return False
        if set(space.active_names({name: value for name, (_, value) in config.items()})) != set(config):
            return False
    return True


def only(space: SearchSpace, configs: Iterable[Config]) -> list[Config]:
    """Return the configurations without parameters that are not in `space`."""
    return [{name: pair for name, pair in config.items() if name in space} for config in configs]


def choose_space(
    own: Sequence[Config], past: Sequence[tuple[SearchSpace, Sequence[Config]]]
) -> SearchSpace | None:
    """Return the space of a study, with the trials `own`, that can use most of the past tasks.

    **Arguments:**

    - `own`: the trials of the study; may be empty.
    - `past`: the space and the trials of each past task, oldest first.

    **Returns:**

    The space that explains the trials of the study, and of these the one that explains most past tasks, or
    into which most of their trials fit: a space of a past task, the same with the study's own distributions,
    that of all related trials together, or that of the study's trials alone. None if the study's trials have
    no parameter of a model.
    """
    alone = infer_space(own)
    if own and alone is None:
        return None
    modelled = [] if alone is None else only(alone, own)
    kinds = {name: kind for config in modelled for name, (kind, _) in config.items()}
    related = [configs for _, configs in past if _is_related(kinds, configs)]
    pooled = infer_space([*modelled, *(config for configs in related for config in configs)])
    options: list[SearchSpace] = [space for space, _ in reversed(past)]
    options += [pooled] if pooled else []
    changed = [_with_kinds(space, alone) for space, _ in reversed(past)] if alone else []
    options += [*changed, alone] if alone else []
    best, most = None, 0.0
    for option in list(dict.fromkeys(options)):
        if explains(option, modelled):
            count = sum(_share(option, configs) for _, configs in past)
            if count > most:  # of equals, a past task's: it may know branches that this study has not seen
                best, most = option, count
    if best is None:  # no past trial fits, for want of a parameter; the past still shows the branches
        best = next((option for option in changed if explains(option, modelled)), alone)
    return best


def _share(space: SearchSpace, configs: Sequence[Config]) -> float:
    """Return the share of the trials that fit into a space; one if it explains all of them."""
    if explains(space, configs):
        return 1.0
    fits = [fit(space, {name: value for name, (_, value) in one.items()}).params for one in configs]
    return sum(params is not None for params in fits) / len(fits)


def _with_kinds(space: SearchSpace, alone: SearchSpace) -> SearchSpace:
    """Return the space of a past task with the distributions of a study, whose own space is `alone`.

    Parameters that the study has not seen yet keep their conditions, as far as these can still be met.
    """
    found = {name: alone[name] for name in alone if name not in space}
    for place in space.conditions.order:  # parents first
        name = space.names[place]
        when: dict[str, list[Any]] = {}
        for parent, values in (space[name].when or {}).items():
            kind = found.get(parent)
            choices = kind.choices if isinstance(kind, Categorical) else ()
            when[parent] = [value for value in values if key_of(value) in map(key_of, choices)]
        is_gone = name not in alone and not when
        if not is_gone and all(when.values()):
            found[name] = conditioned(alone.get(name, space[name]), when or None)
    try:
        return SearchSpace(found)
    except ValueError:  # the conditions of the study and of the past contradict each other
        return alone


def _is_related(kinds: Mapping[str, Parameter], configs: Iterable[Config]) -> bool:
    """Return whether trials share a parameter with those of these kinds, and none has another kind."""
    theirs = {name: kind for config in configs for name, (kind, _) in config.items()}
    shared = set(theirs) & set(kinds)
    return not kinds or (bool(shared) and all(theirs[name] == kinds[name] for name in shared))
