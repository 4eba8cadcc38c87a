"""Records of tasks and trials as plain values, and checks of what is written to a memory. Internal."""

import itertools
import math
import operator
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, final

from jlibo.sqlite_file.checksum import row_checksum as row_checksum
from jlibo.sqlite_file.errors import DamagedRow as DamagedRow
from jlibo.strict_json import strict_json as strict_json

Params = dict[str, Any]
Source = Literal["tuner", "added"]
State = Literal["pending", "complete", "failed", "stopped"]

LARGEST = 2**63 - 1  # SQLite's integers have 64 bits

# The columns that the checksum of a row covers, in this order. Those that a later format added come last.
TASK_CONTENT = ("name", "budget", "source", "seed", "created")
TRIAL_CONTENT = (
    *("task_id", "number", "params", "state", "score", "explored"),
    *("owner", "claimed", "created", "finished", "claims"),
    *("error", "stopped", "estimate"),
)
REPORT_CONTENT = ("trial_id", "step", "score")
META_CONTENT = ("space", "maximise", "jlibo", "spaces")  # the last is missing in a memory of one space


LONGEST_NAME = 4096  # characters
LONGEST_ERROR = 2000  # characters


class TrialStateError(ValueError):
    """A task or trial does not exist, or is not in the state that the call requires."""


@final
@dataclass(frozen=True)
class TaskRecord:
    """A task, such as a data set on which the model is tuned. `created` is in ISO 8601, UTC."""

    id: int
    name: str
    budget: int | None
    source: Source
    seed: int
    created: str


@final
@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A configuration of a task, and its state and score.

    - `params`: the configuration in the search space of the `Memory` that read it. If the trial does not fit
      into that space, it is the configuration as it was written.
    - `state`: "stopped" if it was stopped early, given its reports. It has no score.
    - `score`: set only for a complete trial.
    - `explored`: whether it was a step of forced exploration.
    - `owner`: may be set only for a pending trial.
    - `created`, `finished`: times in ISO 8601, UTC. A pending trial has no `finished`.
    - `claims`: the number of owners that claimed the trial and did not release it.
    - `error`: why it failed, if that is known.
    - `estimate`: the score that a stopped trial would probably have had, if that is known.
    - `fits`: whether the trial fits into the search space, so that the model can learn from it.
    - `runnable`: whether what a process evaluates is what the file says: nothing but defaults was added.
    - `written`: the configuration as it was written, if that was not in this search space.
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
    error: str | None = None
    estimate: float | None = None
    fits: bool = True
    runnable: bool = True
    written: Params | None = None

    @property
    def model_score(self) -> float | None:
        """The score that the model is given: that of a complete trial, the estimate of a stopped one."""
        return {"complete": self.score, "stopped": self.estimate}.get(self.state)

    @property
    def as_written(self) -> Params:
        """The configuration as it was asked for, and as it is in the file."""
        return self.params if self.written is None else self.written


def negated(trial: TrialRecord) -> TrialRecord:
    """Return the trial with the sign of its score changed, to combine tasks of both directions."""
    score, estimate = (None if value is None else -value for value in (trial.score, trial.estimate))
    return replace(trial, score=score, estimate=estimate)


def meta_checksum(meta: Mapping[str, str]) -> int:
    """Return the CRC-32 of the entries of `meta` that change only with the search space."""
    return row_checksum([meta.get(key) for key in META_CONTENT if key != "spaces" or key in meta])


def utc_text(moment: datetime) -> str:
    """Return a time as the memory writes it, such as 2026-03-01T09:30:00.125000Z."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def utc_now() -> str:
    return utc_text(datetime.now(UTC))


def pending_trial(
    task_id: int, number: int, params: Params, *, explored: bool = False, owner: str | None = None
) -> TrialRecord:
    """Return a new pending trial, which is not stored yet."""
    return TrialRecord(
        id=0,
        task_id=task_id,
        number=number,
        params=params,
        state="pending",
        score=None,
        explored=explored,
        owner=owner,
        created=utc_now(),
        finished=None,
    )


def seconds_since(text: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()


def is_time(text: Any) -> bool:
    """Return whether `text` is a time in any form of ISO 8601 with a time zone."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except (TypeError, ValueError):
        return False


def finite_score(score: Any) -> float | None:
    """Return a score as a float, or None if it marks a failed trial: None, NaN or infinite."""
    if score is None:
        return None
    try:
        if isinstance(score, str | bytes):
            raise TypeError
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        message = f"`score` should be a number, or None for a failed trial, but got {score!r}."
        raise ValueError(message) from None
    return number + 0.0 if math.isfinite(number) else None  # the sum turns -0.0 into 0.0, as SQLite does


def error_text(error: Any) -> str | None:
    """Return the text of a failure as the memory stores it: not empty, of bounded length, valid UTF-8."""
    if error is None:
        return None
    if not isinstance(error, str):
        raise ValueError(f"`error` should be a string, or None, but got {error!r}.")
    text = error.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0").strip()
    return f"{text[: LONGEST_ERROR - 3]}..." if len(text) > LONGEST_ERROR else text or None


def whole(argument: str, value: Any, *, at_least: int) -> int:
    """Return `value` as an integer from `at_least` to the largest that SQLite can hold."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not at_least <= number <= LARGEST:
        raise ValueError(
            f"`{argument}` should be a whole number from {at_least} to 2**63 - 1, but got {value!r}."
        )
    return number


def free_name(name: str, taken: Container[str]) -> str:
    """Return the name of a task, or "name (2)" and so on if it is taken."""
    numbered = (f"{name[: LONGEST_NAME - 20]} ({number})" for number in itertools.count(2))
    return next(one for one in itertools.chain([name], numbered) if one not in taken)


def task_name(name: Any) -> str:
    """Return `name` if it is valid for a task: encodable text with at least one visible character."""
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"`name` should be a task's name, a string that is not empty, but got {name!r}.")
    if len(name) > LONGEST_NAME:
        raise ValueError(
            f"`name` should be a task's name of at most {LONGEST_NAME} characters, but got {len(name)}."
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"`name` should be a string that UTF-8 can write, but got {name!r}.") from None
    return name
