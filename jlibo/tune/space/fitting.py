"""Configurations of one search space seen in another, for memories whose space has changed. Internal.

| here             | what it is                                                                        |
|------------------|-----------------------------------------------------------------------------------|
| `fit`            | a configuration of any space as one of a given space, or why it is none           |
| `completed`      | a configuration with the defaults of parameters that it does not have             |
| `describe`       | what changed from one space to another, as sentences                              |

A parameter is its name, and a value is what it is, whatever the kind, range or scale of the parameter was. So
a trial fits if each parameter that exists has a value in its range: its own, or the default if the trial has
none. Values of parameters that are gone, or off, are dropped. A number between the steps of a parameter is in
its range, because the score at that number tells something about the steps beside it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, final

from jlibo.tune.space.parameters import Categorical, Parameter
from jlibo.tune.space.space import SearchSpace
from jlibo.tune.space.values import Value, copied, key_of, plain


@final
class Misfit(NamedTuple):
    """A parameter that has no value (`is_missing`), or one outside of its range."""

    name: str
    is_missing: bool


@final
class Fit(NamedTuple):
    """A configuration seen in another space."""

    params: dict[str, Value] | None
    """The configuration, by sorted names; None if it does not fit."""
    misfits: tuple[Misfit, ...] = ()
    """Why it does not fit."""
    is_exact: bool = True
    """Whether it is a configuration of the space itself: no value was dropped or is between two steps."""


def fit(space: SearchSpace, params: Mapping[str, Any]) -> Fit:
    """Return a configuration of another space as one of `space`."""
    codes: list[float | None] = [None] * len(space)
    found: dict[str, Value] = {}
    misfits: list[Misfit] = []
    is_exact = True
    for place in space.conditions.order:
        name = space.names[place]
        parameter = space[name]
        if not space.conditions.are_met(place, codes):
            continue
        if name not in params and not parameter.has_default:
            misfits.append(Misfit(name, is_missing=True))
            continue
        value = plain(params[name]) if name in params else parameter.default
        # Whether other parameters exist is known only for the values of their parent, not between them.
        is_parent = place in space.conditions.parents
        try:
            code = parameter.code_of(name, value) if is_parent else parameter.code_near(name, value)
        except ValueError:
            misfits.append(Misfit(name, is_missing=False))
            continue
        is_value = parameter.num_values is None or float(code).is_integer()
        is_exact = is_exact and is_value
        codes[place] = code
        found[name] = parameter.value_of(code) if is_value else value
    if misfits:
        return Fit(None, tuple(misfits), is_exact=False)
    is_exact = is_exact and all(name in found for name in params)
    return Fit({name: found[name] for name in space if name in found}, is_exact=is_exact)


def completed(space: SearchSpace, params: Mapping[str, Any]) -> dict[str, Value]:
    """Return `space.validate` of a configuration from elsewhere.

    A parameter that is on and has no value has its default, as in older trials.

    **Raises:**

    - `ValueError`: it is not a configuration of the space.
    """
    if not isinstance(params, Mapping):
        return space.validate(params)  # raises
    found = dict(params)
    for place in space.conditions.order:  # parents first
        name = space.names[place]
        if name not in found and space[name].has_default and name in space.active_names(found):
            found[name] = copied(space[name].default)
    return space.validate(found)


def describe(new: SearchSpace, old: SearchSpace) -> list[str]:
    """Return what changed from `old` to `new`, one sentence per parameter; empty if they are equal."""
    sentences = []
    for name in sorted({*new, *old}):
        now, before = new.get(name), old.get(name)
        if before is None and now is not None:
            words = f"; it is {now.default!r} where a trial has no value" if now.has_default else ""
            sentences.append(f"{name!r} is new: {now!r}{words}")
        elif now is None:
            sentences.append(f"{name!r} is gone: {before!r}; its values are ignored")
        elif before is not None and now != before:
            sentences.append(f"{name!r}: {now!r} now, {before!r} before{_what(now, before)}")
    return sentences


def _what(now: Parameter, before: Parameter) -> str:
    """Return what differs between two parameters, for a change that is easily overlooked."""
    if type(now) is not type(before):
        return "; values stay what they are, also as another kind"
    if isinstance(now, Categorical) and isinstance(before, Categorical):
        own, others = ({key_of(one): one for one in some.choices} for some in (now, before))
        if own != others:
            added = ", ".join(repr(one) for key, one in own.items() if key not in others)
            removed = ", ".join(repr(one) for key, one in others.items() if key not in own)
            words = [f"new: {added}"] if added else []
            words += [f"gone: {removed}"] if removed else []
            return f"; {'; '.join(words)}"
        if list(own) != list(others):
            return "; in another order"
    return ""
