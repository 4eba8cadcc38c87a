"""Optuna's distributions as the parameters of a search space, and values there and back.

| Optuna                                | here                                                              |
|---------------------------------------|-------------------------------------------------------------------|
| Float, Int (log or not)               | Float, Int of the same name                                       |
| Float or Int with a step              | Int: the k of low + step * k; the name says so, "width [8 + 4 k]" |
| Categorical                           | Categorical of the same choices                                   |
| Categorical of what JSON cannot hold  | Categorical of labels such as "1: (3, 3)"                         |
| a single value, too many choices, ... | nothing: it is left to independent sampling                       |

A *coded* configuration is one in these names and values. The step is in the name, so that two spaces are
equal only if their values mean the same.
"""

from collections.abc import Mapping
from typing import Any, TypeGuard

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from jlibo.tune.space.parameters import Categorical, Float, Int, Parameter
from jlibo.tune.space.space import SearchSpace

MOST_CHOICES = 100
"""A categorical of k choices has k - 1 features and more in its pairs; with more than this it is left out."""

Coded = dict[str, Any]


def coded_parameter(name: str, distribution: BaseDistribution) -> tuple[str, Parameter] | None:
    """The name and the parameter that stand for a distribution; None if nothing can."""
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
    except (ValueError, OverflowError):  # a range too wide, or too narrow for its scale
        return None


def plain_name(coded_name: str) -> str:
    """The name that Optuna has for a parameter, without the step."""
    return coded_name.rsplit(" [", 1)[0] if coded_name.endswith(" k]") else coded_name


def coded_space(distributions: Mapping[str, BaseDistribution]) -> SearchSpace | None:
    """The space of those distributions that can be represented; None if none can."""
    pairs = [coded_parameter(name, distribution) for name, distribution in distributions.items()]
    parameters = dict(pair for pair in pairs if pair is not None)
    return SearchSpace(parameters) if parameters else None


def encode(distributions: Mapping[str, BaseDistribution], params: Mapping[str, Any]) -> Coded:
    """The coded configuration of parameter values, without those that cannot be represented."""
    coded = {}
    for name, value in params.items():
        pair = coded_parameter(name, distributions[name])
        if pair is not None:
            coded[pair[0]] = encode_value(distributions[name], value)
    return coded


def encode_value(distribution: BaseDistribution, value: Any) -> Any:
    """The coded value. It may lie outside of the range, as values that a user enqueued may."""
    if isinstance(distribution, CategoricalDistribution):
        choices = _categorical(distribution).choices
        return choices[int(distribution.to_internal_repr(value))]
    if has_steps(distribution):
        return round((value - distribution.low) / distribution.step)
    return value


def decode(distributions: Mapping[str, BaseDistribution], coded: Mapping[str, Any]) -> dict[str, Any]:
    """The values of those distributions that the coded configuration has a value for."""
    params = {}
    for name, distribution in distributions.items():
        pair = coded_parameter(name, distribution)
        if pair is not None and pair[0] in coded:
            params[name] = decode_value(distribution, coded[pair[0]])
    return params


def decode_value(distribution: BaseDistribution, value: Any) -> Any:
    """The value of a coded one, as Optuna has it."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(_categorical(distribution).code_of("value", value))]
    if has_steps(distribution):
        return min(distribution.low + distribution.step * value, distribution.high)
    return value


def has_steps(distribution: BaseDistribution) -> TypeGuard["FloatDistribution | IntDistribution"]:
    """Whether the values of a number lie on a grid of its own."""
    if isinstance(distribution, IntDistribution):
        return distribution.step != 1
    return isinstance(distribution, FloatDistribution) and distribution.step is not None


def _num_steps(distribution: Any) -> int:
    return round((distribution.high - distribution.low) / distribution.step)


def _categorical(distribution: CategoricalDistribution) -> Categorical:
    try:
        return Categorical(distribution.choices)
    except ValueError:
        return Categorical([f"{place}: {choice!r}" for place, choice in enumerate(distribution.choices)])
