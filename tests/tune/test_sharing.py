"""Threads and processes that share a task: no configuration is tried twice while untried ones remain."""

import json
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import jlibo
from jlibo.tune import task as task_module
from jlibo.tune.memory.memory import Memory
from jlibo.tune.space import candidates
from jlibo.tune.space.space import Categorical, Int, SearchSpace
from tests.tune.problem import SIZES, SPACE

SMALL = SearchSpace(a=Int(1, 6), b=Categorical(["x", "y", "z"]))


def keys(trials):
    return [json.dumps(trial.params, sort_keys=True) for trial in trials]


def add_a_rival(tuner, monkeypatch):
    """Simulate another process that always adds the configuration that is about to be added."""
    add_trial = tuner.memory.add_trial
    taken = []

    def late(task_id, params, **kwargs):
        if not any(trial.params == params for trial in tuner.memory.trials(task_id)):
            taken.append(add_trial(task_id, params, explored=False, owner=None))
        return add_trial(task_id, params, **kwargs)

    monkeypatch.setattr(tuner.memory, "add_trial", late)
    return taken


@pytest.mark.parametrize("space", [SPACE, SMALL])
@pytest.mark.parametrize("mode", ["adaptive", "paper"])
def test_lost_races_give_no_duplicates(space, mode, monkeypatch):
    monkeypatch.setattr(task_module, "MAX_RACES", 1)
    tuner = jlibo.Tuner(space, mode=mode, sizes=SIZES)
    task = tuner.task("shared", budget=30)
    taken = add_a_rival(tuner, monkeypatch)
    own = [task._suggest() for _ in range(4)]
    assert len(taken) >= 4
    found = keys([*own, *taken])
    assert len(set(found)) == len(found)


def test_shared_budget_is_not_exceeded_after_lost_races(monkeypatch):
    monkeypatch.setattr(task_module, "MAX_RACES", 0)  # no suggestion is recomputed after a lost race
    tuner = jlibo.Tuner(SPACE, sizes=SIZES)
    task = tuner.task("shared", budget=3)
    add_a_rival(tuner, monkeypatch)
    while task._suggest(most=3) is not None:
        pass
    assert len(tuner.memory.all_trials()) == 3


def test_small_shared_space_is_exhausted_before_repeats(monkeypatch):
    monkeypatch.setattr(task_module, "MAX_RACES", 1)
    tuner = jlibo.Tuner(SMALL, sizes=SIZES)
    task = tuner.task("shared", budget=30)
    add_a_rival(tuner, monkeypatch)
    while len(tuner.memory.all_trials()) < 18:
        task._suggest()
    assert len(set(keys(tuner.memory.all_trials()))) == 18
    assert task._suggest() is not None  # all configurations were tried: they are repeated


@pytest.mark.parametrize("num_left", [1, 7])
def test_finite_space_larger_than_the_candidate_pool_is_exhausted(num_left):
    space = SearchSpace(a=Int(1, 30), b=Int(0, 39))  # 1200, of which 1024 are candidates
    assert candidates.whole_space(space) is None
    points = candidates._configurations(space, np.arange(1200))
    configs = [space.from_unit(point) for point in points]
    assert len({tuple(params.values()) for params in configs}) == 1200
    left = np.random.default_rng(num_left).choice(1200, num_left, replace=False)
    tuner = jlibo.Tuner(space, sizes=SIZES)
    record = tuner.memory.task("long")
    done = [(params, params["a"]) for place, params in enumerate(configs) if place not in left]
    tuner.memory.add_finished(record.id, done)
    task = tuner.task("long")
    asked = keys(task.ask() for _ in range(num_left))
    assert sorted(asked) == sorted(json.dumps(configs[place], sort_keys=True) for place in left)
    assert task.ask().params in configs  # all were tried, so one is repeated


def test_untried_points_are_in_the_space_and_new():
    rng = np.random.default_rng(0)
    huge = SearchSpace(a=Int(0, 2**40), b=Int(0, 2**40))
    for space in (SPACE, SMALL, SearchSpace(a=Int(1, 2)), SearchSpace(a=Int(0, 2**40)), huge):
        count = candidates.num_configurations(space)
        num = 1 if count == 2 else 17
        tried = space.sample_unit(num, rng=rng)
        points = candidates.untried(space, tried, seed=(1, 2))
        assert points.shape == (candidates.NEARBY, len(space))
        assert not candidates._same(points, tried).any()
        assert space.snap(points) == pytest.approx(points)
    whole = candidates.whole_space(SMALL)
    assert candidates.untried(SMALL, whole, seed=(1,)) is None


def test_tree_search_equals_brute_force():
    rng = np.random.default_rng(1)
    points = np.round(rng.uniform(size=(1500, 3)), 2)
    others = np.concatenate([points[::7] + rng.uniform(-4e-10, 4e-10, (215, 3)), rng.uniform(size=(100, 3))])
    few, many = (
        [fn(others, some) for some in np.array_split(points, 5)]
        for fn in (candidates._same, candidates._distance)
    )
    assert np.array_equal(candidates._same(others, points), np.any(few, axis=0))
    assert candidates._distance(others, points) == pytest.approx(np.min(many, axis=0))


def test_threads_sharing_a_task_try_nothing_twice(tmp_path):
    tuner = jlibo.Tuner(SPACE, memory=tmp_path / "memory.db", sizes=SIZES)
    shared, errors, asked = tuner.task("shared", budget=200), [], []
    barrier = threading.Barrier(8)

    def work(task):
        try:
            barrier.wait()
            for _ in range(6):
                trial = task.ask()
                asked.append(trial)
                task.tell(trial, trial.params["alpha"])
        except BaseException as error:
            errors.append(error)

    # Some threads share an object, the others only the file.
    tasks = [shared] * 5 + [tuner.task("shared") for _ in range(3)]
    threads = [threading.Thread(target=work, args=[task]) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(set(keys(asked))) == 48 == len({trial.number for trial in asked})


WORKER = """
    import sys
    import jlibo
    from jlibo.tune import task as task_module
    task_module.MAX_RACES = 2
    SPACE = jlibo.SearchSpace(a=jlibo.Int(1, 20), b=jlibo.Int(1, 9))
    tuner = jlibo.Tuner(SPACE, memory=sys.argv[1], sizes={"num_basis": 2, "num_pair_basis": 1})
    task = tuner.task("shared", budget=170)
    task.tell(task.ask(), 1.0)
    print("ready", flush=True)
    sys.stdin.readline()
    for trial in task:
        task.tell(trial, float(trial.params["a"]))
"""


@pytest.mark.slow
def test_processes_sharing_a_task_try_nothing_twice(tmp_path):
    path = tmp_path / "memory.db"
    space = SearchSpace(a=Int(1, 20), b=Int(1, 9))
    Memory.open(path, space=space).close()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WORKER), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu", "NPROC": "4"},
        )
        for _ in range(8)
    ]
    try:
        for worker in workers:  # all start together, after each has compiled
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        assert [worker.wait(timeout=240) for worker in workers] == [0] * 8
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    with Memory.open_existing(path) as memory:
        trials = memory.all_trials()
    assert len(trials) == 170 and len(set(keys(trials))) == 170
