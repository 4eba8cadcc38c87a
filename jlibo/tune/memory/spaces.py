"""The search spaces of a memory: all that it was used with, and what a change of them did. Internal.

A trial stays in the file as it was written, in the space of the process that wrote it. Each process sees all
trials in the space that it has asked for (`jlibo.tune.space.fitting`). So processes with different spaces can
share a file, and a process that returns to an earlier space sees its trials as they were.

| here           | what it is                                                                          |
|----------------|-------------------------------------------------------------------------------------|
| `KnownSpace`   | a space that the memory was used with, and what its users were told                 |
| `adopt`        | record a space, inside the transaction of the caller                                |
| `SpaceChange`  | what there is to tell about a space that was adopted                                |
| `mark_told`    | record that it was told                                                             |

The entry `space` of the table `meta` is the space that was asked for last. The entry `spaces` lists all of
them, oldest first. It is written with the second space. Every trial is a configuration of at least one of
them, which is how a damaged row is recognised.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from jlibo.printable import printable
from jlibo.tune.memory import rows, schema
from jlibo.tune.memory.errors import MemoryMismatch, place_of
from jlibo.tune.memory.records import DamagedRow, Params, is_time, strict_json, utc_now
from jlibo.tune.space.fitting import describe, fit
from jlibo.tune.space.space import SearchSpace

MOST_LINES = 20
"""Largest number of changed parameters that a message lists."""


class SpaceChangedWarning(UserWarning):
    """A memory was opened with another search space; the message says what changed and what still teaches.

    It is recorded in the file that this was said, so that it is said once.
    """


@final
@dataclass(frozen=True)
class KnownSpace:
    """A space of the memory. Its users were told about the first `num_told` spaces of the list."""

    space: SearchSpace
    since: str
    num_told: int


@final
@dataclass(frozen=True)
class SpaceChange:
    """What a change of the search space did to the trials with a score.

    - `sentences`: what changed, by parameter.
    - `num_trials`: the number of trials with a score.
    - `num_fitting`: the number of those that teach.
    - `missing`, `outside`: the numbers of the others, by the parameters that they have no value of, or one
      that is not in its range.
    """

    sentences: tuple[str, ...]
    num_trials: int
    num_fitting: int
    missing: Mapping[str, int]
    outside: Mapping[str, int]

    def __str__(self) -> str:
        lines = [f"  {printable(line, max_length=500)}" for line in self.sentences[:MOST_LINES]]
        if len(self.sentences) > MOST_LINES:
            lines.append(f"  and {len(self.sentences) - MOST_LINES} more")
        words = f"Trials with a score that teach the model: {self.num_fitting} of {self.num_trials}."
        words += f" Out of range: {_counts(self.outside)}." if self.outside else ""
        if self.missing:
            words += f" Without a value: {_counts(self.missing)}; give the value that they had as `default=`."
        return "\n".join([*lines, f"  {words} All trials stay in the file as they are."])


def _counts(by_name: Mapping[str, int]) -> str:
    return ", ".join(f"'{printable(name)}' ({count})" for name, count in by_name.items())


def read_spaces(meta: Mapping[str, str]) -> tuple[KnownSpace, ...]:
    """Return the spaces of a memory, oldest first, or raise a `DamagedRow`."""
    current, _ = rows.read_problem(meta)
    if "spaces" not in meta:
        return (KnownSpace(current, "", 1),)
    try:
        found = tuple(_known(entry) for entry in strict_json(meta["spaces"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedRow(f"its search spaces cannot be read: {printable(error, max_length=300)}") from error
    if current not in [known.space for known in found]:
        raise DamagedRow("its search space is not in the list of its search spaces")
    return found


def _known(entry: Any) -> KnownSpace:
    since, num_told = entry["since"], entry["told"]
    if type(num_told) is not int or num_told < 0 or not (since == "" or is_time(since)):
        raise ValueError(f"the entry of {since!r} is not valid")
    return KnownSpace(SearchSpace.from_spec(entry["space"]), since, num_told)


def write_spaces(database: rows.MemoryConnection, spaces: Sequence[KnownSpace], current: SearchSpace) -> None:
    """Write the spaces of a memory and the one that was asked for last."""
    entries = [{"space": one.space.spec(), "since": one.since, "told": one.num_told} for one in spaces]
    schema.replace_problem(
        database,
        space=json.dumps(current.spec(), allow_nan=False),
        spaces=json.dumps(entries, allow_nan=False),
    )


def valid_in(spaces: Sequence[SearchSpace], params: Params) -> Params:
    """Return a configuration as the first of the spaces reads it, or raise the error of that space."""
    first = None
    for space in spaces:
        try:
            return space.validate(params)
        except ValueError as error:
            first = first or error
    assert first is not None  # a memory has a space
    raise first


def is_in(space: SearchSpace, params: Params) -> bool:
    """Return whether `params` is a configuration of a space."""
    try:
        space.validate(params)
    except ValueError:
        return False
    return True


def view(space: SearchSpace, known: Sequence[KnownSpace], params: Params) -> rows.View:
    """Return the parameters of a row as seen in `space`; raise a `ValueError` if no known space has them."""
    try:
        return rows.View(space.validate(params))
    except ValueError:
        written = valid_in([space, *(one.space for one in reversed(known) if one.space != space)], params)
    found = fit(space, written)
    if found.params is None:
        return rows.View(written, fits=False, runnable=False, written=written)
    return rows.View(found.params, runnable=found.is_exact, written=written)


def untold(spaces: Sequence[KnownSpace], space: SearchSpace) -> list[SearchSpace] | None:
    """Return the spaces that users of `space` were not told about; None if `space` is not in the list."""
    own = next((known for known in spaces if known.space == space), None)
    if own is None:
        return None
    return [known.space for known in spaces[own.num_told :] if known.space != space]


def adopt(
    database: rows.MemoryConnection, space: SearchSpace, path: str | None, *, is_inferred: bool = False
) -> SpaceChange | None:
    """Record that the memory is used with `space`, as the one that was asked for last.

    **Arguments:**

    - `database`: a write transaction, whose rows are read in `space`.
    - `space`: the space.
    - `path`: the path of the file, for messages.
    - `is_inferred`: the space is not the user's, but inferred from trials. Then there is no error, only
      trials that do not fit are something to tell, and the space is recorded only to tell it once. See
      `make_current`.

    **Returns:**

    What there is to tell, until `mark_told`; None if there is nothing.

    **Raises:**

    - `MemoryMismatch`: trials have scores but no parameter of `space`; or no trial fits, because a parameter
      that is new has no default.
    """
    meta = rows.read_meta(database)
    current, known = rows.read_problem(meta)[0], read_spaces(meta)
    new = untold(known, space)
    if new == []:
        if current != space and not is_inferred:
            write_spaces(database, known, space)
        return None
    others = [one.space for one in known] if new is None else new
    is_first = all(one.num_told == 0 for one in known if one.space == space)
    found = _change(space, current if current in others else others[-1], database)
    if is_inferred:
        if found.change.num_fitting == found.num_trials:
            return None
        remember(database, [space])
        return found.change
    if new is None:
        _check_related(found, space, [one.space for one in known], path)
    make_current(database, space)
    if found.num_adapted > 0 or (is_first and found.num_trials > 0):
        return found.change
    mark_told(database, space)
    return None


def make_current(database: rows.MemoryConnection, space: SearchSpace, *, is_told: bool = False) -> None:
    """Record a space as the one that was asked for last; `is_told` if there is nothing to tell about it."""
    remember(database, [space], is_told=is_told)
    meta = rows.read_meta(database)
    if rows.read_problem(meta)[0] != space:
        write_spaces(database, read_spaces(meta), space)


def remember(
    database: rows.MemoryConnection, spaces: Iterable[SearchSpace], *, is_told: bool = False
) -> None:
    """Record the spaces of trials that are written in this transaction."""
    meta = rows.read_meta(database)
    current, known = rows.read_problem(meta)[0], list(read_spaces(meta))
    there = [one.space for one in known]
    num_told = len(known) if is_told else 0
    new = [KnownSpace(space, utc_now(), num_told) for space in spaces if space not in there]
    if new:
        write_spaces(database, [*known, *new], current)


def mark_told(database: rows.MemoryConnection, space: SearchSpace) -> None:
    """Record that the users of `space` were told about all spaces that the memory has by now."""
    meta = rows.read_meta(database)
    current, known = rows.read_problem(meta)[0], read_spaces(meta)
    told = [replace(one, num_told=len(known)) if one.space == space else one for one in known]
    if told != list(known):
        write_spaces(database, told, current)


@final
@dataclass(frozen=True)
class _Counted:
    """A change and the number of trials that are not as they were written."""

    change: SpaceChange
    num_adapted: int
    is_for_want_of_default: bool

    @property
    def num_trials(self) -> int:
        return self.change.num_trials


def _change(space: SearchSpace, before: SearchSpace, database: rows.MemoryConnection) -> _Counted:
    """Return what the change to `space` does; the rows of `database` are read in `space`."""
    missing, outside = Counter[str](), Counter[str]()
    num_trials = num_fitting = num_adapted = 0
    is_for_want_of_default = False
    for trial in rows.read_trials(database, "state = 'complete'"):
        num_trials += 1
        num_adapted += trial.written is not None
        num_fitting += trial.fits
        if not trial.fits:
            misfits = fit(space, trial.as_written).misfits
            missing.update(misfit.name for misfit in misfits if misfit.is_missing)
            outside.update(misfit.name for misfit in misfits if not misfit.is_missing)
            is_for_want_of_default |= all(misfit.is_missing for misfit in misfits)
    found = SpaceChange(tuple(describe(space, before)), num_trials, num_fitting, missing, outside)
    return _Counted(found, num_adapted, is_for_want_of_default and num_fitting == 0)


def _check_related(
    found: _Counted, space: SearchSpace, spaces: Sequence[SearchSpace], path: str | None
) -> None:
    if found.num_trials == 0:
        return
    if not any(set(space) & set(other) for other in spaces):
        names = ", ".join(f"'{printable(name)}'" for name in list(spaces[-1])[:5])
        raise MemoryMismatch(
            f"{place_of(path)} remembers another problem: its parameters are {names}, and the search space "
            "has none of them. Give another path."
        )
    if found.is_for_want_of_default:
        examples = [f"  '{printable(name)}': {_with_default(space, name)}" for name in found.change.missing]
        raise MemoryMismatch(
            f"{place_of(path)} has {found.num_trials} trials with a score, and none of them would teach: a "
            "parameter that is new needs a default, the value that they had. Give it, or another path:\n"
            + "\n".join(examples)
        )


def _with_default(space: SearchSpace, name: str) -> str:
    return printable(repr(space[name])[:-1], max_length=500) + ", default=...)"
