"""Conversion between Optuna's distributions and the parameters of a search space. Internal.

| Optuna                                | here                                                              |
|---------------------------------------|-------------------------------------------------------------------|
| Float, Int (log or not)               | Float, Int of the same name                                       |
| Float or Int with a step              | Int: the k of low + step * k; the name says so, "width [8 + 4 k]" |
| Categorical                           | Categorical of the same choices                                   |
| Categorical of tuples, objects, ...   | Categorical of labels such as "1: (3, 3)"                         |
| a single value, too many choices, ... | none: sampled independently                                       |

A *coded* configuration has these names and values. The step is part of the name, so that two spaces are
equal only if equal values have the same meaning.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from jlibo.checks import fail
from jlibo.tune.space.parameters import Categorical, Float, Int, Parameter, defaulted
from jlibo.tune.space.space import SearchSpace

MOST_CHOICES = 100
"""A categorical of k choices has k - 1 features and more in pairs; one with more choices is left out."""

Coded = dict[str, Any]


def coded_parameter(name: str, distribution: BaseDistribution) -> tuple[str, Parameter] | None:
    """Return the name and the parameter that represent a distribution; None if none can."""
    try:
        if distribution.single():
            return None
        if isinstance(distribution, CategoricalDistribution):
            if len(distribution.choices) > MOST_CHOICES:
                return None
            return name, _categorical(distribution)
        if has_steps(distribution):
            low, step = distribution.low, distribution.step
            return f"{name} [{low!r} + {step!r} k]", Int(0, _num_steps(distribution))
        if isinstance(distribution, IntDistribution):
            return name, Int(distribution.low, distribution.high, log=distribution.log)
        if isinstance(distribution, FloatDistribution):
            return name, Float(distribution.low, distribution.high, log=distribution.log)
        return None
    except (ValueError, OverflowError):  # the range is too wide, or too narrow for its scale
        return None


def plain_name(coded_name: str) -> str:
    """Return the name of a parameter in Optuna, without the step."""
    return coded_name.rsplit(" [", 1)[0] if coded_name.endswith(" k]") else coded_name


def with_defaults(space: SearchSpace, defaults: Mapping[str, Any]) -> SearchSpace:
    """Return a coded space with the values, by Optuna's names, that older trials have of its parameters.

    **Raises:**

    - `ValueError`: a value is not one of its parameter.
    """
    found = dict(space)
    for name in space:
        if plain_name(name) in defaults:
            try:
                value = _coded_default(name, space[name], defaults[plain_name(name)])
                found[name] = defaulted(space[name], value)
            except (TypeError, ValueError) as error:
                words = f"a value of the parameter ({error})"
                fail(f"defaults[{plain_name(name)!r}]", words, repr(defaults[plain_name(name)]))
    return SearchSpace(found)


def _coded_default(coded_name: str, parameter: Parameter, value: Any) -> Any:
    steps = re.fullmatch(r".* \[(\S+) \+ (\S+) k\]", coded_name, re.DOTALL)
    if steps is not None:
        low, step = map(float, steps.groups())
        return round((value - low) / step)
    if isinstance(parameter, Categorical):
        labels = [one for one in parameter.choices if str(one).partition(": ")[2] == repr(value)]
        return labels[0] if labels else value
    return value


def coded_space(distributions: Mapping[str, BaseDistribution]) -> SearchSpace | None:
    """Return the space of those distributions that can be represented; None if none can."""
    pairs = [coded_parameter(name, distribution) for name, distribution in distributions.items()]
    parameters = dict(pair for pair in pairs if pair is not None)
    return SearchSpace(parameters) if parameters else None


def encode(distributions: Mapping[str, BaseDistribution], params: Mapping[str, Any]) -> Coded:
    """Return the coded configuration of parameter values, without those that cannot be represented."""
    coded = {}
    for name, value in params.items():
        pair = coded_parameter(name, distributions[name])
        if pair is not None:
            coded[pair[0]] = encode_value(distributions[name], value)
    return coded


def encode_value(distribution: BaseDistribution, value: Any) -> Any:
    """Return the coded value. It may be out of range, because a user may enqueue such values."""
    if isinstance(distribution, CategoricalDistribution):
        choices = _categorical(distribution).choices
        return choices[int(distribution.to_internal_repr(value))]
    if has_steps(distribution):
        return round((value - distribution.low) / distribution.step)
    return value


def decode(distributions: Mapping[str, BaseDistribution], coded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of those distributions that have a value in the coded configuration."""
    params = {}
    for name, distribution in distributions.items():
        pair = coded_parameter(name, distribution)
        if pair is not None and pair[0] in coded:
            params[name] = decode_value(distribution, coded[pair[0]])
    return params


def decode_value(distribution: BaseDistribution, value: Any) -> Any:
    """Return the Optuna value of a coded value."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(_categorical(distribution).code_of("value", value))]
    if has_steps(distribution):
        return min(distribution.low + distribution.step * value, distribution.high)
    return value


def has_steps(distribution: BaseDistribution) -> TypeGuard["FloatDistribution | IntDistribution"]:
    """Return whether a numeric distribution has a step (for integers, other than 1)."""
    if isinstance(distribution, IntDistribution):
        return distribution.step != 1
    return isinstance(distribution, FloatDistribution) and distribution.step is not None


def _num_steps(distribution: Any) -> int:
    return round((distribution.high - distribution.low) / distribution.step)


def _categorical(distribution: CategoricalDistribution) -> Categorical:
    # Labels stand also for tuples and lists, as in the memories of earlier versions.
    is_nested = any(isinstance(choice, tuple | list | dict) for choice in distribution.choices)
    try:
        if not is_nested:
            return Categorical(distribution.choices)
    except ValueError:
        pass
    return Categorical([f"{place}: {choice!r}" for place, choice in enumerate(distribution.choices)])
