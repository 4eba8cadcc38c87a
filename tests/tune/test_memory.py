"""The memory in one process: tasks, trials, owners and threads. See `test_memory_file.py` for its file."""

import json
import math
import os
import threading
import time
from dataclasses import asdict, replace

import numpy as np
import pytest

from jlibo.tune.memory.memory import Memory, TrialStateError, new_owner, owner_is_dead
from jlibo.tune.space.space import Categorical, Float, SearchSpace

SPACE = SearchSpace(alpha=Float(0, 1), lam=Float(1e-4, 1e4, log=True), kind=Categorical(["a", "b"]))


def params(alpha=0.5, lam=1.0, kind="a"):
    return {"alpha": alpha, "kind": kind, "lam": lam}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a memory? #1%.db"  # characters that must be quoted in a URI


@pytest.fixture
def memory(path):
    with Memory.open(path, space=SPACE) as opened:
        yield opened


# --- tasks and trials ---------------------------------------------------------------------------------------


def test_task_is_created_once_and_keeps_its_seed(memory, path):
    first = memory.task("iris", budget=30, seed=5)
    assert (first.name, first.budget, first.source, first.seed) == ("iris", 30, "tuner", 5)
    assert memory.task("iris") == first
    assert memory.task("iris", seed=6, source="added") == first
    assert memory.task("iris", budget=np.int64(40)) == replace(first, budget=40)
    second = memory.task("wine", source="added")
    with Memory.open(path, space=SPACE) as again:
        assert again.tasks() == [replace(first, budget=40), second]


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": ""},
        {"name": 3},
        {"name": "\ud800"},
        {"name": "a", "budget": 0},
        {"name": "a", "budget": 1.5},
        {"name": "a", "seed": 2**63},
        {"name": "a", "seed": True},
        {"name": "a", "source": "me"},
    ],
)
def test_invalid_task_arguments_raise(memory, arguments):
    with pytest.raises(ValueError, match=f"`{list(arguments)[-1]}` should be"):
        memory.task(**arguments)
    assert memory.tasks() == []


def test_told_trial_is_stored_exactly(memory, path):
    task, owner = memory.task("iris"), new_owner()
    point = params(alpha=np.float64(0.1) + 0.2, lam=math.pi)
    trial = memory.add_trial(task.id, point, explored=True, owner=owner)
    assert (trial.number, trial.state, trial.score, trial.owner) == (0, "pending", None, owner)
    assert trial.params == point and type(trial.params["alpha"]) is float
    assert memory.trials(task.id) == [trial]

    told = memory.tell(trial.id, np.float32(0.1))
    assert told == replace(
        trial, state="complete", score=float(np.float32(0.1)), owner=None, finished=told.finished
    )
    with Memory.open_existing(path, write=False) as again:
        assert again.all_trials() == [told]
        assert again.snapshot() == ([task], [told])
        assert again.space == SPACE and again.maximise is True


@pytest.mark.parametrize("score", [None, math.nan, math.inf, -math.inf, np.float32("nan")])
def test_missing_or_non_finite_score_marks_the_trial_failed(memory, score):
    task = memory.task("iris")
    trial = memory.add_trial(task.id, params(), explored=False, owner=None)
    failed = memory.tell(trial.id, score)
    assert (failed.state, failed.score) == ("failed", None)
    assert memory.fail(trial.id) == memory.tell(trial.id, math.nan) == failed
    with pytest.raises(TrialStateError, match="has failed already, so it cannot be told the score 1"):
        memory.tell(trial.id, 1)


def test_repeated_tell_must_have_the_same_score(memory):
    trial = memory.add_trial(memory.task("iris").id, params(), explored=False, owner=None)
    first = memory.tell(trial.id, 0.25)
    revision = memory.revision()
    assert memory.tell(trial.id, 0.25) == first
    assert memory.revision() == revision
    for other in (0.5, None, math.nan):
        with pytest.raises(TrialStateError, match=r"trial 0 .* has the score 0.25 already"):
            memory.tell(trial.id, other)
    with pytest.raises(TrialStateError, match="no trial with the id 99"):
        memory.tell(99, 1.0)
    with pytest.raises(ValueError, match="`score` should be a number"):
        memory.tell(trial.id, "0.25")


def test_parameters_outside_the_space_raise(memory):
    task = memory.task("iris")
    for bad in (params(alpha=2), params(alpha=math.nan), params(kind="c"), {"alpha": 0.5}):
        with pytest.raises(ValueError, match="params"):
            memory.add_trial(task.id, bad, explored=False, owner=None)
        with pytest.raises(ValueError, match="params"):
            memory.add_finished(task.id, [(params(), 1.0), (bad, 2.0)])
    assert memory.trials(task.id) == []


def test_add_trial_returns_none_if_the_expected_count_is_wrong(memory):
    task = memory.task("iris")
    assert memory.add_trial(task.id, params(), explored=False, owner=None, expected_count=1) is None
    assert memory.trials(task.id) == []
    assert memory.add_trial(task.id, params(), explored=False, owner=None, expected_count=0).number == 0
    assert memory.add_trial(task.id, params(), explored=False, owner=None, expected_count=0) is None
    assert memory.add_trial(task.id, params(), explored=False, owner=None, expected_count=1).number == 1
    with pytest.raises(TrialStateError, match="no task with the id 99"):
        memory.add_trial(99, params(), explored=False, owner=None)


def test_add_finished_continues_numbering_and_returns_the_records(memory):
    task = memory.task("iris")
    memory.add_trial(task.id, params(), explored=False, owner=None)
    added = memory.add_finished(task.id, [(params(), 1), (params(), None)], explored=True)
    assert [(t.number, t.state, t.score, t.explored) for t in added] == [
        (1, "complete", 1.0, True),
        (2, "failed", None, True),
    ]
    assert memory.trials(task.id)[1:] == added
    assert memory.add_finished(task.id, []) == []


def test_ids_of_deleted_tasks_are_not_reused(memory):
    task = memory.task("iris")
    trial = memory.add_trial(task.id, params(), explored=False, owner=None)
    memory.delete_task("iris")
    assert memory.snapshot() == ([], [])
    again = memory.task("iris")
    assert again.id != task.id
    assert memory.add_trial(again.id, params(), explored=False, owner=None).id != trial.id
    with pytest.raises(TrialStateError, match="deleted"):
        memory.tell(trial.id, 1.0)
    with pytest.raises(TrialStateError, match="no task 'wine'"):
        memory.delete_task("wine")


def test_revision_grows_with_scores_of_the_other_tasks(memory, path):
    mine, other = memory.task("mine"), memory.task("other")
    seen = [memory.revision(excluding=mine.id)]
    pending = memory.add_trial(mine.id, params(), explored=False, owner=None)
    memory.tell(pending.id, 1.0)
    memory.add_trial(other.id, params(), explored=False, owner=None)
    assert memory.revision(excluding=mine.id) == seen[-1]

    def grew():
        seen.append(memory.revision(excluding=mine.id))
        return seen[-1] > seen[-2]

    with Memory.open(path, space=SPACE) as elsewhere:
        elsewhere.add_finished(other.id, [(params(), 1.0)])
    assert grew()
    memory.fail(memory.trials(other.id)[0].id)
    assert grew()
    memory.delete_task("other")
    assert grew()
    memory.add_finished(memory.task("other").id, [(params(), 1.0)])
    assert grew()
    memory.add_finished(mine.id, [(params(), 1.0)])
    assert not grew()
    assert memory.revision() > seen[-1]


# --- owners -------------------------------------------------------------------------------------------------


def test_pending_trials_of_dead_owners_can_be_claimed_once(memory):
    task = memory.task("iris")
    living, dead, me = "living", "dead", "me"
    for owner in (living, dead, None, me):
        memory.add_trial(task.id, params(), explored=False, owner=owner)

    def claim(owner):
        return memory.claim_pending(task.id, owner=owner, is_dead_fn=lambda owner, age: owner == dead)

    first = claim(me)
    assert (first.number, first.owner, first.state) == (1, me, "pending")
    assert claim("you").number == 2
    assert claim(me) is None
    assert memory.release(me) == 2
    assert [claim("you").number, claim("you").number] == [1, 3]
    assert claim("you") is None
    assert memory.release("nobody") == 0


def test_age_of_a_claim_counts_from_the_claim(memory):
    task = memory.task("iris")
    memory.add_trial(task.id, params(), explored=False, owner="far")
    time.sleep(0.05)
    begin, ages = time.time(), []

    def is_dead(_, age):
        ages.append(age)
        return len(ages) == 1

    assert memory.claim_pending(task.id, owner="farther", is_dead_fn=is_dead)
    assert memory.claim_pending(task.id, owner="me", is_dead_fn=is_dead) is None
    assert ages[0] >= 0.05 and ages[1] <= time.time() - begin


def test_owner_is_dead_if_its_process_is():
    mine = new_owner()
    host, start, pid, _ = mine.split(":")
    assert int(pid) == os.getpid() and new_owner() != mine
    assert not owner_is_dead(mine, age_s=1e9)
    assert not owner_is_dead(f"{host}::{pid}:x", age_s=1e9)  # a system without start times of processes
    if start:
        assert owner_is_dead(f"{host}:{start}0:{pid}:x", age_s=0)  # the pid was reused by another process
    for other in (f"elsewhere:{start}:{pid}:x", "a name of the user's own", f"{host}:{start}:no:x"):
        assert not owner_is_dead(other, age_s=23 * 3600)
        assert owner_is_dead(other, age_s=25 * 3600)
        assert owner_is_dead(other, age_s=2, max_age_s=1)
    assert owner_is_dead(f"{host}:{start}:{2**70}:x", age_s=0)
    if hasattr(os, "fork"):
        child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit"], {})
        gone = f"{host}::{child}:x"
        deadline = time.time() + 10
        while not owner_is_dead(gone, age_s=0) and time.time() < deadline:
            time.sleep(0.01)
        assert owner_is_dead(gone, age_s=0) == bool(start)  # a zombie is detected only with /proc
        os.waitpid(child, 0)
        assert owner_is_dead(gone, age_s=0)


def test_released_claims_are_not_counted(memory):
    task = memory.task("iris")

    def claim(owner):
        return memory.claim_pending(task.id, owner=owner, is_dead_fn=lambda *_: True).claims

    assert memory.add_trial(task.id, params(), explored=False, owner="a").claims == 1
    assert claim("b") == 2 and claim("c") == 3
    assert memory.release("c") == 1
    (trial,) = memory.trials(task.id)
    assert (trial.claims, trial.owner) == (2, None)
    assert claim("d") == 3
    assert memory.tell(trial.id, 1.0).claims == 3
    free = memory.add_trial(task.id, params(), explored=False, owner=None)
    assert free.claims == 0 and claim("e") == 1
    assert memory.trials(task.id)[1].claims == 1


def test_failed_transaction_is_rolled_back(memory):
    def interrupted():
        with memory.writing() as database:
            database.execute("DELETE FROM meta")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    memory.task("iris")
    assert len(memory.tasks()) == 1


def test_records_are_json_serialisable(memory):
    task = memory.task("iris")
    memory.add_finished(task.id, [(params(alpha=np.float32(0.5)), np.int64(3))])
    json.dumps([asdict(record) for records in memory.snapshot() for record in records], allow_nan=False)


# --- threads ------------------------------------------------------------------------------------------------


def test_threads_share_one_memory(memory):
    task = memory.task("iris")
    errors = []

    def work(owner):
        try:
            for i in range(15):
                trial = memory.add_trial(task.id, params(alpha=i / 15), explored=False, owner=owner)
                memory.claim_pending(memory.task(f"task {i}").id, owner=owner)
                memory.tell(trial.id, i)
                memory.snapshot()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    trials = memory.trials(task.id)
    assert [trial.number for trial in trials] == list(range(120))
    assert all(trial.state == "complete" for trial in trials)
    assert len(memory.tasks()) == 16
