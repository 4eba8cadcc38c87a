"""What a memory holds, as plain values: the records of tasks and trials, and the checks of what goes in."""

import math
import operator
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, final

Params = dict[str, Any]
Source = Literal["tuner", "added"]
State = Literal["pending", "complete", "failed"]

LARGEST = 2**63 - 1  # SQLite's whole numbers have 64 bits

# The columns that a row's checksum covers, in this order.
TASK_CONTENT = ("name", "budget", "source", "seed", "created")
TRIAL_CONTENT = (
    *("task_id", "number", "params", "state", "score", "explored"),
    *("owner", "claimed", "created", "finished", "claims"),
)
META_CONTENT = ("space", "maximise", "jlibo")


class TrialStateError(ValueError):
    """A task or trial that is not there, or not in the state that the call needs."""


@final
@dataclass(frozen=True)
class TaskRecord:
    """One task: a data set on which the model is tuned. `created` is ISO 8601, UTC."""

    id: int
    name: str
    budget: int | None
    source: Source
    seed: int
    created: str


@final
@dataclass(frozen=True)
class TrialRecord:
    """One configuration of a task and what became of it.

    Only a complete trial has a `score`, only a pending one may have an `owner`, and only the others have
    `finished`. `explored`: it was a step of forced exploration. `claims`: how many owners have had it and did
    not give it back. Times are ISO 8601, UTC.
    """

    id: int
    task_id: int
    number: int
    params: Params
    state: State
    score: float | None
    explored: bool
    owner: str | None
    created: str
    finished: str | None
    claims: int = 0


def row_checksum(content: Sequence[Any]) -> int:
    """The CRC-32 of a row's content: plain values, as SQLite gives them back."""
    # `ascii` is exact and the same in every Python; what `repr` escapes depends on the version of Unicode.
    return zlib.crc32(ascii(tuple(content)).encode())


def meta_checksum(meta: Mapping[str, str]) -> int:
    """The CRC-32 of the entries of `meta` that never change."""
    return row_checksum([meta.get(key) for key in META_CONTENT])


def utc_text(moment: datetime) -> str:
    """A moment as the memory writes it, such as 2026-03-01T09:30:00.125000Z."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def utc_now() -> str:
    return utc_text(datetime.now(UTC))


def seconds_since(text: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()


def finite_score(score: Any) -> float | None:
    """A score as a float, and `None` for what makes a trial failed: `None`, NaN or an infinite number."""
    if score is None:
        return None
    try:
        if isinstance(score, str | bytes):
            raise TypeError
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        message = f"`score` should be a number, or None for a failed trial, but got {score!r}."
        raise ValueError(message) from None
    return number + 0.0 if math.isfinite(number) else None  # the sum makes -0.0 a 0.0, as SQLite does


def whole(argument: str, value: Any, *, at_least: int) -> int:
    """A whole number that SQLite can hold."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not at_least <= number <= LARGEST:
        raise ValueError(
            f"`{argument}` should be a whole number from {at_least} to 2**63 - 1, but got {value!r}."
        )
    return number


def task_name(name: Any) -> str:
    """The name of a task: words, with at least one visible character."""
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"`name` should be a task's name, a string that is not empty, but got {name!r}.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"`name` should be a string that UTF-8 can write, but got {name!r}.") from None
    return name
