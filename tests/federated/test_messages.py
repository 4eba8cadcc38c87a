"""Messages: exact round trips, bounded sizes, and refusals of everything else."""

import contextlib
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jlibo.federated import (
    MAX_KERNELS,
    MAX_MESSAGE_BYTES,
    MAX_RECEIPTS,
    MAX_VOTE_BYTES,
    PROTOCOL,
    Announcement,
    MessageError,
    Receipt,
    Vote,
    new_task_id,
)

TASK = "0123456789abcdef" * 2
TASK_IDS = st.text("0123456789abcdef", min_size=32, max_size=32)


def indices(most: int):
    return st.sets(st.integers(0, most - 1), max_size=50).map(lambda some: tuple(sorted(some)))


VOTES = st.builds(Vote, TASK_IDS, indices(MAX_KERNELS))
ANNOUNCEMENTS = st.integers(1, MAX_KERNELS).flatmap(
    lambda num: st.builds(
        Announcement, st.just(num), indices(num), st.integers(0, 10_000), st.integers(0, 2**53 - 1)
    )
)
RECEIPTS = st.builds(lambda tasks: Receipt(tuple(sorted(tasks))), st.sets(TASK_IDS, max_size=20))


@given(st.one_of(VOTES, ANNOUNCEMENTS, RECEIPTS))
def test_bytes_restore_the_message(message):
    data = message.to_bytes()
    assert type(message).from_bytes(data) == message
    assert data == type(message).from_bytes(data).to_bytes()
    fields = {field.name for field in dataclasses.fields(message)}
    assert json.loads(data).keys() == {"protocol", *fields}


def test_a_vote_has_a_task_id_and_indices_and_nothing_else():
    assert {field.name for field in dataclasses.fields(Vote)} == {"task", "selected"}
    vote = Vote(TASK, tuple(range(100, 110)))
    assert len(vote.to_bytes()) < 150 < MAX_VOTE_BYTES == 1024


def test_task_ids_are_random():
    ids = {new_task_id() for _ in range(100)}
    assert len(ids) == 100
    for task in ids:
        Vote(task, ())


def content(**changes):
    return {"protocol": PROTOCOL, "task": TASK, "selected": [1, 4], **changes}


@pytest.mark.parametrize(
    "data, words",
    [
        (content(score=0.5), "has the unknown field 'score'"),
        ({"protocol": PROTOCOL, "task": TASK}, "lacks 'selected'"),
        (content(protocol=PROTOCOL + 1), "should be of version 1 of the protocol, but got 2; update jlibo"),
        (content(protocol=True), "should be of version 1 of the protocol, but got True"),
        ({"task": TASK, "selected": []}, "should be of version 1 of the protocol, but got nothing"),
        (content(task="iris"), "`task` should be a task id of 32 hexadecimal digits, but got 'iris'"),
        (content(task=TASK.upper()), "`task` should be a task id"),
        (content(task=7), "`task` should be a task id"),
        (content(selected=[4, 1]), "strictly increasing"),
        (content(selected=[1, 1]), "strictly increasing"),
        (content(selected=[-1]), "a whole number from 0 to 4095, but got -1"),
        (content(selected=[MAX_KERNELS]), "a whole number from 0 to 4095, but got 4096"),
        (content(selected=[1.0]), "a whole number"),
        (content(selected=[True]), "a whole number"),
        (content(selected="1"), "a list of indices"),
        (content(selected={"1": 1}), "a list of indices"),
        ([1, 2], "should be a JSON object, but got"),
        (b'{"protocol": 1, "protocol": 1}', "the key 'protocol' is there twice"),
        (b"not json", "this is not JSON"),
        (b'{"protocol": NaN}', "NaN is not a number of JSON"),
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 1000, "cannot be read"),
        (b"", "cannot be read"),
        (b" " * (MAX_VOTE_BYTES + 1), "should have at most 1,024 bytes, but got 1,025"),
    ],
)
def test_bytes_that_are_not_a_vote_are_refused(data, words):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(MessageError, match=words.replace("(", r"\(")):
        Vote.from_bytes(data)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_message_error(data):
    for kind in (Vote, Announcement, Receipt):
        with contextlib.suppress(MessageError):
            assert kind.from_bytes(data).to_bytes()


def test_other_messages_are_checked():
    with pytest.raises(MessageError, match="`num_kernels` should be a whole number from 1 to 4096"):
        Announcement(0, (), 0, 0)
    with pytest.raises(MessageError, match="`support` should be a whole number from 0 to 4, but got 5"):
        Announcement(5, (5,), 0, 0)
    with pytest.raises(MessageError, match="`num_explore`"):
        Announcement(5, (), -1, 0)
    with pytest.raises(MessageError, match="`tasks` should be different task ids"):
        Receipt((TASK, TASK))
    with pytest.raises(MessageError, match=f"`tasks` should be a list of at most {MAX_RECEIPTS}"):
        Receipt(tuple(new_task_id() for _ in range(MAX_RECEIPTS + 1)))
    with pytest.raises(MessageError, match="select fewer kernels"):
        Vote(TASK, tuple(range(1000))).to_bytes()


def test_the_largest_messages_of_the_server_fit():
    announcement = Announcement(MAX_KERNELS, tuple(range(MAX_KERNELS)), 10, 2**53 - 1)
    assert len(announcement.to_bytes()) <= MAX_MESSAGE_BYTES
    receipt = Receipt(tuple(new_task_id() for _ in range(MAX_RECEIPTS)))
    assert len(receipt.to_bytes()) <= MAX_MESSAGE_BYTES
