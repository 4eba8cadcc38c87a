"""The messages of `jlibo.federated` as records of Flower, with exactly the expected fields."""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from jlibo.federated import Announcement, MessageError, Receipt

QUERY = "votes"
"""The kind of query that the server sends: "query.votes" on the wire."""

MAX_VOTES = 100
"""Number of votes in one answer. A node with more sends the rest when it is asked again."""

_RECORD = "jlibo"


def question(announcement: Announcement, receipt: Receipt | None) -> RecordDict:
    """Return the content of a message to a node: the latest support and a receipt for its last votes."""
    content = {"announcement": announcement.to_bytes()}
    if receipt is not None:
        content["receipt"] = receipt.to_bytes()
    return _record(content)


def read_question(content: RecordDict) -> tuple[Announcement, Receipt | None]:
    """Return announcement and receipt of a message from the server.

    **Raises:** `MessageError` if it has other fields, or other content.
    """
    fields = _fields(content, required={"announcement"}, optional={"receipt"})
    receipt = Receipt.from_bytes(fields["receipt"]) if "receipt" in fields else None
    return Announcement.from_bytes(fields["announcement"]), receipt


def answer(votes: Sequence[bytes]) -> RecordDict:
    """Return the content of a node's answer: encoded votes."""
    return _record({"votes": list(votes)})


def read_answer(content: RecordDict) -> list[bytes]:
    """Return the encoded votes of an answer, which are not decoded here: one may be bad and others good.

    **Raises:** `MessageError` if the answer has other fields, or too many votes.
    """
    votes = _fields(content, required={"votes"})["votes"]
    if not isinstance(votes, list) or any(type(vote) is not bytes for vote in votes):
        raise MessageError("The field 'votes' of an answer should be a list of bytes.")
    if len(votes) > MAX_VOTES:
        raise MessageError(f"An answer has {len(votes)} votes, and at most {MAX_VOTES} are allowed.")
    return votes


def _record(fields: dict[str, Any]) -> RecordDict:
    return RecordDict({_RECORD: ConfigRecord(fields)})


def _fields(
    content: RecordDict, *, required: set[str], optional: frozenset[str] | set[str] = frozenset()
) -> dict[str, Any]:
    records = sorted(content)
    if records != [_RECORD] or not isinstance(content[_RECORD], ConfigRecord):
        raise MessageError(f"A message should have one configuration record '{_RECORD}', got {records}.")
    fields = dict(content[_RECORD])
    if not required <= fields.keys() <= required | optional:
        expected = sorted(required | optional)
        raise MessageError(f"A message should have the fields {expected}, got {sorted(fields)}.")
    return fields
