"""A client of a federated run: its votes, what is published to it, and its file."""

import os
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

import jlibo
from jlibo.federated import Announcement, BallotFile, BallotRules, Receipt
from jlibo.tune import (
    ClientSettings,
    FederatedMismatch,
    Memory,
    MemoryFileError,
    confirm,
    new_votes,
    num_kernels,
    publish,
    published,
)
from jlibo.tune.memory import schema
from tests.tune.problem import CONFIGS, SIZES, SPACE, score

SETTINGS = ClientSettings(sizes=SIZES)
KERNELS = num_kernels(SPACE, sizes=SIZES)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "client.db")


def add_tasks(path, names, num_trials=20, budget=20):
    with Memory.open(path, space=SPACE) as memory:
        for number, name in enumerate(names):
            task = memory.task(name, budget=budget)
            pairs = [(params, score(params, 0.5 + 0.2 * number)) for params in CONFIGS[:num_trials]]
            memory.add_finished(task.id, pairs)


def announcement(support=(0, 2), num_explore=2, num_clients=30, kernels=KERNELS):
    return Announcement(kernels, support, num_explore, num_clients)


def test_finished_tasks_vote_once_and_for_the_kernel_that_matters(path):
    add_tasks(path, ["a", "b", "c"])
    with Memory.open(path, space=SPACE) as memory:
        memory.task("unfinished", budget=5)
    votes = new_votes(path, settings=SETTINGS)
    assert len({vote.task for vote in votes}) == 3
    names = jlibo.tune.space_features(SPACE, **SIZES).names
    for vote in votes:
        assert "log beta" in [names[index] for index in vote.selected]
        assert "alpha" not in [names[index] for index in vote.selected]
        assert len(vote.to_bytes()) <= 1024
    assert new_votes(path, settings=SETTINGS) == votes
    add_tasks(path, ["a", "b", "c", "d"])
    assert new_votes(path, settings=SETTINGS)[:3] == votes
    assert new_votes(path, settings=SETTINGS, limit=2) == votes[:2]


def test_confirmed_votes_are_not_returned_again(path):
    add_tasks(path, ["a", "b"])
    first, second = new_votes(path, settings=SETTINGS)
    confirm(path, Receipt((first.task, "f" * 32)))
    assert new_votes(path, settings=SETTINGS) == [second]
    confirm(path, Receipt((first.task, second.task)))
    assert new_votes(path, settings=SETTINGS) == []


def test_one_task_has_no_influence_on_the_vote_of_another(tmp_path):
    together, alone = str(tmp_path / "two.db"), str(tmp_path / "one.db")
    add_tasks(together, ["a", "b"])
    add_tasks(alone, ["a"])
    (of_a,) = new_votes(alone, settings=SETTINGS)
    assert new_votes(together, settings=SETTINGS)[0].selected == of_a.selected


def test_votes_have_at_most_the_allowed_number_of_kernels(path):
    with Memory.open(path, space=SPACE) as memory:
        task = memory.task("a", budget=20)
        memory.add_finished(task.id, [(one, one["alpha"] + score(one)) for one in CONFIGS[:20]])
    (vote,) = new_votes(path, settings=ClientSettings(sizes=SIZES, max_selected=1, omega=0.0, lam_share=0.01))
    assert len(vote.selected) == 1


def test_randomised_votes_are_drawn_once(tmp_path):
    pytest.importorskip("opendp")
    flips, settings = 0, replace(SETTINGS, epsilon=2.0, max_selected=3)
    for number in range(6):
        path = str(tmp_path / f"{number}.db")
        add_tasks(path, ["a", "b"])
        votes = new_votes(path, settings=settings)
        assert new_votes(path, settings=settings) == votes
        flips += len({vote.selected for vote in votes})
    assert flips > 6


def test_failed_tasks_and_tasks_without_scores_do_not_vote(path):
    with Memory.open(path, space=SPACE) as memory:
        task = memory.task("a", budget=3)
        memory.add_finished(task.id, [(one, None) for one in CONFIGS[:3]])
    assert new_votes(path, settings=SETTINGS) == []
    with pytest.raises(MemoryFileError, match="there is no memory at"):
        new_votes(path + "x")


def test_deleted_task_has_no_vote_and_a_merged_one_keeps_it(tmp_path, path):
    add_tasks(path, ["a", "b"])
    votes = new_votes(path, settings=SETTINGS)
    confirm(path, Receipt((votes[0].task,)))
    with Memory.open_existing(path) as memory, Memory.open(tmp_path / "new.db", space=SPACE) as new:
        new.merge(memory)
        assert new_votes(new, settings=SETTINGS) == votes[1:]
        assert sorted(new.votes().values(), key=str) == sorted(memory.votes().values(), key=str)
        new.merge(memory)
        assert len(new.votes()) == 2
        memory.delete_task("b")
        assert new_votes(memory, settings=SETTINGS) == []


# --- what the server publishes ------------------------------------------------------------------------------


def test_published_announcement_is_stored_and_never_replaced_by_an_older_one(path):
    add_tasks(path, ["a"])
    assert published(path) is None
    publish(path, announcement(), sizes=SIZES)
    publish(path, announcement(support=(1,), num_clients=29), sizes=SIZES)
    assert published(path) == announcement()
    newer = announcement(support=(), num_clients=31)
    publish(path, newer, sizes=SIZES)
    assert published(path) == newer


def test_announcement_for_another_space_is_refused(path):
    add_tasks(path, ["a"])
    publish(path, announcement(), sizes=SIZES)
    with pytest.raises(FederatedMismatch, match=f"is about 9 kernels, but the search space .* has {KERNELS}"):
        publish(path, announcement(kernels=9), sizes=SIZES)
    assert published(path) == announcement()
    with jlibo.Tuner(SPACE, path, mode="federated", sizes={"interactions": False}) as tuner:
        task = tuner.task("new", budget=5)
        with pytest.raises(FederatedMismatch, match="use the space and the sizes of the ballot"):
            task.ask()


def test_tuner_uses_the_published_support_and_exploration(path):
    add_tasks(path, ["a"])
    with jlibo.Tuner(SPACE, path, mode="federated", sizes=SIZES) as tuner:
        everything = np.asarray(tuner.knowledge().knowledge.support)
        assert everything.all()
        task = tuner.task("first", budget=16)
        assert task.ask() is not None
        (trial,) = [one for one in tuner.memory.all_trials() if one.state == "pending"]
        assert trial.explored  # sqrt(16) steps
        publish(path, announcement(support=(1, 2), num_explore=0), sizes=SIZES)
        task = tuner.task("second", budget=16)
        task.ask()
        assert not tuner.memory.all_trials()[-1].explored
        assert np.flatnonzero(tuner.knowledge().knowledge.support).tolist() == [0, 1, 2]  # 0 is the constant
        publish(path, announcement(support=(), num_explore=1, num_clients=40), sizes=SIZES)
        assert tuner.knowledge().knowledge.support.all()
    # Another process, offline, has the last support that was seen.
    with jlibo.Tuner(SPACE, path, mode="federated", sizes=SIZES) as tuner:
        assert tuner.knowledge().knowledge.support.all()
        assert len(tuner.importance()) == 2


def test_federated_mode_has_its_own_learner():
    with pytest.raises(ValueError, match="`learner` should be None with mode='federated'"):
        jlibo.Tuner(SPACE, mode="federated", learner=jlibo.FixedPrior())
    assert repr(jlibo.Tuner(SPACE, mode="federated")).endswith("mode 'federated')")


def test_clients_and_a_ballot_find_the_kernel_that_matters(tmp_path):
    rules = BallotRules(num_kernels=KERNELS, alpha=0.5, horizon=100, num_explore=2, quorum=3, max_votes=9)
    paths = [str(tmp_path / f"client {number}.db") for number in range(3)]
    for number, path in enumerate(paths):
        add_tasks(path, ["a", "b"][: 1 + number % 2])
    with BallotFile.open(tmp_path / "ballot.db", rules) as ballot:
        for _ in range(2):  # the second round changes nothing
            for path in paths:
                votes = [vote.to_bytes() for vote in new_votes(path, settings=SETTINGS)]
                reception = ballot.receive(path, votes)
                assert reception.refusals == ()
                confirm(path, reception.receipt)
        assert ballot.num_votes == 4
        for path in paths:
            publish(path, Announcement.from_bytes(ballot.announcement().to_bytes()), sizes=SIZES)
    names = jlibo.tune.space_features(SPACE, **SIZES).names
    for path in paths:
        last = published(path)
        assert last is not None and last.num_clients == 4
        assert "log beta" in [names[index] for index in last.support]
        assert "alpha" not in [names[index] for index in last.support]


# --- its file -----------------------------------------------------------------------------------------------


def test_memory_of_the_format_before_votes_is_migrated(path):
    add_tasks(path, ["a"])
    database = sqlite3.connect(path)
    for table in ("votes", "published"):
        database.execute(f"DROP TABLE {table}")
    database.execute("PRAGMA user_version = 3")
    database.commit()
    assert schema.problem_of(database, 3) is None
    database.close()
    before = Memory.open_existing(path, write=False)
    assert before.published() is None and before.votes() == {}  # a copy in RAM, or migrated
    before.close()
    (vote,) = new_votes(path, settings=SETTINGS)
    publish(path, announcement(), sizes=SIZES)
    assert published(path) == announcement()
    database = sqlite3.connect(path)
    assert schema.problem_of(database, 4) is None
    assert database.execute("SELECT public FROM votes").fetchall() == [(vote.task,)]
    database.close()


@pytest.mark.parametrize(
    "change, words",
    [
        ("UPDATE votes SET selected = '[1]'", "the vote of task 1: its checksum does not match"),
        (
            "UPDATE published SET content = replace(content, '30', '31')",
            "what the server published",
        ),
    ],
)
def test_damage_is_noticed(path, change, words):
    add_tasks(path, ["a"])
    new_votes(path, settings=SETTINGS)
    publish(path, announcement(), sizes=SIZES)
    database = sqlite3.connect(path)
    database.execute(change)
    database.commit()
    database.close()
    read = published if "published" in change else new_votes
    with pytest.raises(MemoryFileError, match=words):
        read(path)


def test_nothing_but_ids_and_indices_is_in_a_vote(path):
    add_tasks(path, ["secret name"])
    (vote,) = new_votes(path, settings=SETTINGS)
    text = vote.to_bytes().decode()
    assert "secret" not in text and "alpha" not in text and "." not in text
    assert os.path.getsize(path) > 0


@pytest.mark.parametrize(
    "options",
    [
        dict(lam_share=0.0),
        dict(lam_share=1.5),
        dict(omega=-1.0),
        dict(max_selected=0),
        dict(epsilon=0.0),
        dict(lam_share=float("nan")),
    ],
)
def test_bad_settings_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"`{name}`"):
        ClientSettings(**options)
