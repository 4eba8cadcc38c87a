"""The messages between the server of a federated run and its clients.

| message        | direction        | content                                                                |
|----------------|------------------|------------------------------------------------------------------------|
| `Announcement` | server to client | elected kernels, forced exploration steps, number of votes so far      |
| `Vote`         | client to server | a random task id and the indices of the selected kernels; nothing else |
| `Receipt`      | server to client | ids of the client's votes that it need not send again                  |

| here          | paper                                                                                    |
|---------------|------------------------------------------------------------------------------------------|
| `selected`    | J_hat_s^(client), as indices of base kernels                                             |
| `support`     | J_hat_s, the vote of the first s clients                                                 |
| `num_explore` | n_s                                                                                      |
| `num_clients` | s                                                                                        |

A message is a line of JSON with its fields and the version of the protocol. Bytes from the network are
untrusted: their length is checked before they are parsed, and a message with a field more or less, a value
out of range or another version is refused. The transport encrypts and authenticates; the messages contain
neither keys nor names.
"""

import dataclasses
import itertools
import json
import re
import secrets
from typing import Any, ClassVar, final

from jlibo.front_door import front_door
from jlibo.printable import described, printable
from jlibo.strict_json import strict_json

PROTOCOL = 1
"""Version of the protocol; both sides must have the same."""
MAX_VOTE_BYTES = 1024
"""Largest size of a `Vote` in bytes."""
MAX_MESSAGE_BYTES = 64 * 1024
"""Largest size of a message of the server in bytes."""
MAX_KERNELS = 4096
"""Largest number of base kernels."""
MAX_RECEIPTS = 1000
"""Largest number of task ids in a `Receipt`."""
LARGEST_NUMBER = 2**53 - 1
"""Largest whole number in a message: JSON readers of other languages represent it exactly."""

_TASK = re.compile(r"[0-9a-f]{32}")


class MessageError(ValueError):
    """A message is malformed, too long or of another version; the text says what was expected."""


def new_task_id() -> str:
    """Return a random id for a task: 32 hexadecimal digits that say nothing about the task."""
    return secrets.token_hex(16)


@final
@dataclasses.dataclass(frozen=True)
class Vote:
    """The kernels that a client selected from the data of one finished task.

    **Arguments:**

    - `task`: the id of the task, from `new_task_id`.
    - `selected`: indices of the selected base kernels, strictly increasing. May be empty.

    **Raises:** `MessageError` for a field that is not valid.

    ```python
    from jlibo.federated import Vote, new_task_id

    vote = Vote(new_task_id(), (2, 5))
    assert Vote.from_bytes(vote.to_bytes()) == vote
    ```
    """

    task: str
    selected: tuple[int, ...]

    _max_bytes: ClassVar[int] = MAX_VOTE_BYTES

    def __post_init__(self):
        _check_task("task", self.task)
        object.__setattr__(self, "selected", _indices("selected", self.selected, MAX_KERNELS))

    def to_bytes(self) -> bytes:
        """Return the message as bytes.

        **Raises:** `MessageError` if there are more than `MAX_VOTE_BYTES`.
        """
        return _encoded(self, self._max_bytes)

    @classmethod
    @front_door
    def from_bytes(cls, data: bytes) -> "Vote":
        """Return the message in `data`, or raise a `MessageError`."""
        return cls(**_decoded(cls, data, cls._max_bytes))


@final
@dataclasses.dataclass(frozen=True)
class Announcement:
    """What a client needs to start its next task.

    **Arguments:**

    - `num_kernels`: number of base kernels; the client's search space must have as many.
    - `support`: indices of the elected kernels, strictly increasing. All of them before the first election,
      and none if no kernel has enough votes: the client then uses all kernels.
    - `num_explore`: number of forced exploration steps of the next task.
    - `num_clients`: number of votes that were counted so far.

    **Raises:** `MessageError` for a field that is not valid.

    ```python
    from jlibo.federated import Announcement

    announcement = Announcement(num_kernels=20, support=(2, 5), num_explore=10, num_clients=57)
    assert Announcement.from_bytes(announcement.to_bytes()) == announcement
    ```
    """

    num_kernels: int
    support: tuple[int, ...]
    num_explore: int
    num_clients: int

    _max_bytes: ClassVar[int] = MAX_MESSAGE_BYTES

    def __post_init__(self):
        _check_whole("num_kernels", self.num_kernels, at_least=1, at_most=MAX_KERNELS)
        object.__setattr__(self, "support", _indices("support", self.support, self.num_kernels))
        _check_whole("num_explore", self.num_explore, at_least=0)
        _check_whole("num_clients", self.num_clients, at_least=0)

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return _encoded(self, self._max_bytes)

    @classmethod
    @front_door
    def from_bytes(cls, data: bytes) -> "Announcement":
        """Return the message in `data`, or raise a `MessageError`."""
        return cls(**_decoded(cls, data, cls._max_bytes))


@final
@dataclasses.dataclass(frozen=True)
class Receipt:
    """The ids of those votes of a client that need not be sent again.

    **Arguments:**

    - `tasks`: ids of tasks, at most `MAX_RECEIPTS`, each once.

    **Raises:** `MessageError` for a field that is not valid.

    ```python
    from jlibo.federated import Receipt, new_task_id

    receipt = Receipt((new_task_id(), new_task_id()))
    assert Receipt.from_bytes(receipt.to_bytes()) == receipt
    ```
    """

    tasks: tuple[str, ...]

    _max_bytes: ClassVar[int] = MAX_MESSAGE_BYTES

    def __post_init__(self):
        if not isinstance(self.tasks, tuple | list) or len(self.tasks) > MAX_RECEIPTS:
            _refuse("tasks", f"a list of at most {MAX_RECEIPTS} task ids", self.tasks)
        for task in self.tasks:
            _check_task("tasks", task)
        if len(set(self.tasks)) < len(self.tasks):
            _refuse("tasks", "different task ids", self.tasks)
        object.__setattr__(self, "tasks", tuple(self.tasks))

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return _encoded(self, self._max_bytes)

    @classmethod
    @front_door
    def from_bytes(cls, data: bytes) -> "Receipt":
        """Return the message in `data`, or raise a `MessageError`."""
        return cls(**_decoded(cls, data, cls._max_bytes))


# --- encoding -----------------------------------------------------------------------------------------------


def _encoded(message: Any, max_bytes: int) -> bytes:
    content = {"protocol": PROTOCOL, **dataclasses.asdict(message)}
    data = json.dumps(content, separators=(",", ":"), sort_keys=True).encode("ascii")
    if len(data) > max_bytes:
        raise MessageError(
            f"a {_name(type(message))} should have at most {max_bytes:,} bytes, but this one has "
            f"{len(data):,}: select fewer kernels."
        )
    return data


def _decoded(kind: Any, data: bytes, max_bytes: int) -> dict[str, Any]:
    """Return the fields in `data`, whose values are not checked yet."""
    name = _name(kind)
    if len(data) > max_bytes:
        raise MessageError(f"a {name} should have at most {max_bytes:,} bytes, but got {len(data):,}.")
    try:
        content = strict_json(data.decode("ascii"))
    except ValueError as error:
        raise MessageError(f"a {name} cannot be read: {printable(error)}.") from None
    if not isinstance(content, dict):
        raise MessageError(f"a {name} should be a JSON object, but got {described(content)}.")
    # The version comes first: the fields of another version are unknown.
    version = content.pop("protocol", None)
    if type(version) is not int or version != PROTOCOL:
        newer = "; update jlibo" if type(version) is int and version > PROTOCOL else ""
        raise MessageError(
            f"a {name} should be of version {PROTOCOL} of the protocol, but got {described(version)}{newer}."
        )
    expected = {field.name for field in dataclasses.fields(kind)}
    unknown, missing = content.keys() - expected, expected - content.keys()
    if unknown or missing:
        words = f"has the unknown field '{printable(min(unknown))}'" if unknown else f"lacks '{min(missing)}'"
        fields = ", ".join(sorted(expected))
        raise MessageError(f"a {name} {words}; its fields are protocol, {fields}, and nothing else.")
    return content


def _name(kind: type) -> str:
    return kind.__name__.lower()


# --- checks -------------------------------------------------------------------------------------------------


def _refuse(field: str, expected: str, got: Any) -> None:
    raise MessageError(f"`{field}` should be {expected}, but got {described(got)}.")


def _check_task(field: str, task: Any) -> None:
    if not isinstance(task, str) or _TASK.fullmatch(task) is None:
        _refuse(field, "a task id of 32 hexadecimal digits", task)


def _check_whole(field: str, value: Any, *, at_least: int, at_most: int = LARGEST_NUMBER) -> None:
    if type(value) is not int or not at_least <= value <= at_most:
        _refuse(field, f"a whole number from {at_least} to {at_most}", value)


def _indices(field: str, indices: Any, num_kernels: int) -> tuple[int, ...]:
    """Return the indices as a tuple; they must be strictly increasing and below `num_kernels`."""
    if not isinstance(indices, tuple | list):
        _refuse(field, "a list of indices of kernels", indices)
    for index in indices:
        _check_whole(field, index, at_least=0, at_most=num_kernels - 1)
    if any(index >= after for index, after in itertools.pairwise(indices)):
        _refuse(field, "strictly increasing indices", indices)
    return tuple(indices)
