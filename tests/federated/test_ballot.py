"""The ballot in one process: what counts, what is refused, what is released, and its file."""

import os
import sqlite3
import stat
import threading
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.federated import (
    BallotFile,
    BallotFileError,
    BallotMismatch,
    BallotRules,
    MessageError,
    Receipt,
    Vote,
    VoteRefused,
    new_task_id,
)
from jlibo.meta.federated import server_vote
from jlibo.tune import Memory, MemoryFileError
from jlibo.tune.space.space import Float, SearchSpace
from tests.federated.ballots import NUM_KERNELS, make_rules, vote


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "ballot.db")


def content(path):
    with open(path, "rb") as file:
        return file.read()


def test_elections_are_those_of_the_simulation(path):
    counts = np.zeros(NUM_KERNELS, int)
    with BallotFile.open(path, make_rules()) as ballot:
        assert ballot.announcement().support == tuple(range(NUM_KERNELS))
        for number in range(30):
            one = vote(number)
            assert ballot.cast(f"client {number}", one) == "counted"
            counts[list(one.selected)] += 1
            elected = server_vote(jnp.asarray(counts), jnp.asarray(number + 1), jnp.asarray(0.25))
            release = ballot.releases()[-1]
            # Until the quorum of four votes, the kernel is the full one.
            expected = np.flatnonzero(elected) if number + 1 >= 4 else np.arange(NUM_KERNELS)
            assert release == (number + 1, tuple(expected))
            announcement = ballot.announcement()
            assert (announcement.num_clients, announcement.support) == release
            assert (announcement.num_kernels, announcement.num_explore) == (NUM_KERNELS, 5)
        assert ballot.counts() == tuple(counts) == tuple(map(int, ballot.estimates()))
    with BallotFile.open_existing(path, write=False) as ballot:
        assert ballot.counts() == tuple(counts)
        assert ballot.num_votes == 30


def test_repeated_vote_changes_nothing(path):
    with BallotFile.open(path, make_rules()) as ballot:
        assert ballot.cast("a", vote(0)) == "counted"
        before = content(path)
        assert ballot.cast("a", vote(0)) == "repeated"
        assert ballot.cast("a", vote(0).to_bytes()) == "repeated"
        assert content(path) == before


@pytest.mark.parametrize(
    "client, refused, words",
    [
        ("a", Vote(new_task_id(), tuple(range(11))), "at most 10 indices, but got 11"),
        ("a", Vote(new_task_id(), (NUM_KERNELS,)), "one of 12 kernels, but got 12"),
        ("b", vote(0), "is that of another client"),
        ("a", replace(vote(0), selected=()), "has voted, with other indices"),
        ("full", vote(99), "has cast its 2 vote"),
        ("", vote(99), "the identity of a client should be a text"),
        ("x" * 501, vote(99), "the identity of a client should be a text"),
        ("\udc80", vote(99), "that UTF-8 can write"),
    ],
)
def test_refused_vote_changes_nothing(path, client, refused, words):
    with BallotFile.open(path, make_rules(max_votes=2)) as ballot:
        ballot.cast("a", vote(0))
        for number in (1, 2):
            ballot.cast("full", vote(number))
        before, announced = content(path), ballot.announcement()
        with pytest.raises(VoteRefused, match=words):
            ballot.cast(client, refused)
        assert content(path) == before
        assert ballot.announcement() == announced


@pytest.mark.parametrize(
    "data, words",
    [
        (
            b'{"protocol":2,"selected":[1],"task":"%032x"}' % 7,
            "of version 1 of the protocol, but got 2",
        ),
        (b'{"protocol":1,"score":1,"selected":[],"task":"%032x"}' % 7, "has the unknown field 'score'"),
        (b" " * 2000, "at most 1,024 bytes, but got 2,000"),
    ],
)
def test_refused_bytes_change_nothing(path, data, words):
    with BallotFile.open(path, make_rules()) as ballot:
        before = content(path)
        with pytest.raises(MessageError, match=words):
            ballot.cast("a", data)
        reception = ballot.receive("a", [data])
        assert reception.receipt == Receipt(()) and reception.num_counted == 0
        assert words in reception.refusals[0]
        assert content(path) == before


def test_receipt_has_what_need_not_be_sent_again(path):
    with BallotFile.open(path, make_rules(max_votes=2)) as ballot:
        sent = [vote(number).to_bytes() for number in (0, 1, 0, 2)]
        reception = ballot.receive("a", sent)
        assert reception.receipt.tasks == tuple(vote(number).task for number in (0, 1, 2))
        assert reception.num_counted == 2 == ballot.num_votes
        assert len(reception.refusals) == 1 and "has cast its 2 vote" in reception.refusals[0]
        again = ballot.receive("a", sent)
        assert again.receipt == reception.receipt and again.num_counted == 0


def test_support_freezes_at_the_horizon(path):
    with BallotFile.open(path, make_rules(horizon=6)) as ballot:
        for number in range(6):
            ballot.cast("a", vote(number))
        frozen = ballot.announcement()
        with pytest.raises(VoteRefused, match="the ballot is closed: it has its 6 votes"):
            ballot.cast("a", vote(6))
        assert ballot.cast("a", vote(5)) == "repeated"
        assert ballot.announcement() == frozen and frozen.num_clients == 6


def test_other_rules_are_refused(path):
    with BallotFile.open(path, make_rules()):
        pass
    before = content(path)
    with pytest.raises(BallotMismatch, match=r"alpha is 0.25 there and 0.3 here"):
        BallotFile.open(path, make_rules(alpha=0.3))
    assert content(path) == before
    with BallotFile.open(path, make_rules()) as ballot:
        assert ballot.rules == make_rules()


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(alpha=1.5), "`alpha`"),
        (dict(num_kernels=0), "`num_kernels`"),
        (dict(num_kernels=5000), "`num_kernels`"),
        (dict(quorum=0), "`quorum`"),
        (dict(horizon=2.5), "`horizon`"),
        (dict(mechanism="magic"), "`mechanism` should be 'none' or 'toeplitz' or 'gnmax' or 'local'"),
        (dict(epsilon=1.0), "`epsilon` should be None with mechanism='none'"),
        (dict(mechanism="toeplitz", epsilon=1.0), "`delta` should be a number"),
        (dict(mechanism="toeplitz", epsilon=0.0, delta=1e-5), "`epsilon` should be a number"),
        (dict(mechanism="local", epsilon=1.0, delta=1e-5), "`delta` should be None with mechanism='local'"),
        (dict(mechanism="gnmax", epsilon=float("nan"), delta=1e-5), "`epsilon`"),
        (dict(neighbours="all"), "`neighbours` should be 'zero-out' or 'replace-one'"),
    ],
)
def test_bad_rules_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        make_rules(**options)


def test_rules_survive_json():
    rules = make_rules(mechanism="toeplitz", epsilon=0.1, delta=1e-7, neighbours="replace-one")
    assert BallotRules.from_json(rules.to_json()) == rules
    for text in ("[]", "{}", rules.to_json().replace("alpha", "beta")):
        with pytest.raises(ValueError, match="fields of the rules"):
            BallotRules.from_json(text)


def test_several_threads_and_connections_share_a_ballot(path):
    with BallotFile.open(path, make_rules()) as ballot, BallotFile.open_existing(path) as other:

        def cast(box, first):
            for number in range(first, first + 20):
                box.cast(f"client {number}", vote(number))
                box.cast(f"client {number}", vote(number))

        threads = [
            threading.Thread(target=cast, args=(box, 10 * start))
            for start, box in enumerate((ballot, other, ballot, other))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = np.zeros(NUM_KERNELS, int)
        for number in range(50):
            expected[list(vote(number).selected)] += 1
        assert ballot.num_votes == 50
        assert ballot.counts() == other.counts() == tuple(expected)
        assert ballot.estimates() == other.estimates()


def test_ballot_notices_a_file_that_was_put_in_its_place(tmp_path):
    first, second = (str(tmp_path / name) for name in ("first.db", "second.db"))
    with BallotFile.open(first, make_rules()) as ballot, BallotFile.open(second, make_rules()) as other:
        for number in range(5):
            ballot.cast("a", vote(number))
        for number in range(100, 108):
            other.cast("a", vote(number))
        database = sqlite3.connect(first)
        database.execute("DELETE FROM votes")
        database.executemany(
            "INSERT INTO votes VALUES (?, ?, ?, ?, ?, ?, ?)",
            sqlite3.connect(second).execute("SELECT * FROM votes").fetchall(),
        )
        database.commit()
        database.close()
        assert ballot.estimates() == other.estimates()


# --- its file -----------------------------------------------------------------------------------------------


def test_file_is_for_its_owner_only(path):
    with BallotFile.open(path, make_rules()):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_other_files_are_refused_and_unchanged(tmp_path, path):
    memory = str(tmp_path / "memory.db")
    Memory.open(memory, space=SearchSpace(x=Float(0, 1))).close()
    BallotFile.open(path, make_rules()).close()
    text = tmp_path / "text"
    text.write_text("hello")
    before = content(memory), content(path)
    with pytest.raises(BallotFileError, match="is not a ballot of jlibo, it is an SQLite file of another"):
        BallotFile.open_existing(memory)
    with pytest.raises(MemoryFileError, match="is not a memory of jlibo"):
        Memory.open_existing(path)
    with pytest.raises(BallotFileError, match="is not a ballot of jlibo, it is not an SQLite file"):
        BallotFile.open(str(text), make_rules())
    with pytest.raises(BallotFileError, match="there is no ballot at"):
        BallotFile.open_existing(str(tmp_path / "none.db"))
    assert (content(memory), content(path)) == before


@pytest.mark.parametrize(
    "change, words",
    [
        (
            "UPDATE votes SET selected = '[0, 1]' WHERE number = 2",
            "vote 2: its checksum does not match",
        ),
        (
            "UPDATE meta SET value = replace(value, '0.25', '0.01')",
            "checksum of its rules",
        ),
        (
            "CREATE TRIGGER t AFTER INSERT ON votes BEGIN SELECT 1; END",
            "does not belong in a ballot",
        ),
        ("DROP TABLE votes", "its table 'votes' is missing"),
    ],
)
def test_damage_is_noticed(path, change, words):
    with BallotFile.open(path, make_rules()) as ballot:
        for number in range(3):
            ballot.cast("a", vote(number))
    database = sqlite3.connect(path)
    database.execute(change)
    database.commit()
    database.close()
    with pytest.raises(BallotFileError, match=words), BallotFile.open_existing(path) as ballot:
        ballot.releases()


def test_closed_ballot_says_so(path):
    ballot = BallotFile.open(path, make_rules())
    ballot.close()
    with pytest.raises(BallotFileError, match="this ballot is closed"):
        ballot.cast("a", vote(0))
