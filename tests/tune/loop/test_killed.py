"""`tuner.optimise` with two worker processes, killed or interrupted: nothing acknowledged is lost.

All configurations are in the queue, so that no model is compiled.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jlibo
from jlibo.tune.memory.memory import Memory
from jlibo.tune.memory.owner import owner_is_dead

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")

SPACE = jlibo.SearchSpace(x=jlibo.Float(0, 1))
NUM_TRIALS = 80

SCRIPT = """
import os, sys, time
import jlibo

SPACE = jlibo.SearchSpace(x=jlibo.Float(0, 1))


def evaluate(x, trial):
    trial.report(0, os.getpid())
    time.sleep(0.01)
    return x


def acknowledge(task, trial):
    pid = int(task.curve(trial)[0])
    os.write(1, f"{trial.id} {trial.score!r} {pid}\\n".encode())


if __name__ == "__main__":
    with jlibo.Tuner(SPACE, memory=sys.argv[1]) as tuner:
        tuner.optimise(
            evaluate,
            task="one",
            budget=int(sys.argv[2]),
            workers=int(sys.argv[3]),
            backend=sys.argv[4],
            callbacks=acknowledge,
        )
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    path = tmp_path / "memory.db"
    with jlibo.Tuner(SPACE, memory=path) as tuner:
        task = tuner.task("one", budget=NUM_TRIALS)
        for number in range(NUM_TRIALS):
            task.enqueue({"x": number / NUM_TRIALS})
    return path


def start(path, workers=2, backend="processes"):
    root = str(Path(jlibo.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, path.with_name("script.py"), path, str(NUM_TRIALS), str(workers), backend],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group of its own, as that of a command in a terminal
        env=os.environ | {"PYTHONPATH": root, "JAX_PLATFORMS": "cpu"},
    )


def acknowledged(lines):
    """Return the scores by trial id, and the processes that computed them."""
    words = [line.split() for line in lines if line.endswith("\n")]
    return {int(trial): float(score) for trial, score, _ in words}, {int(pid) for *_, pid in words}


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A killed process stays as a zombie until its parent, here the first process, has noticed.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] not in "ZX"


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_loops_lose_nothing_and_are_resumed(path):
    chance = random.Random(0)
    told, num_left = {}, 0
    for _ in range(6):
        process = start(path)
        lines = [process.stdout.readline() for _ in range(chance.randint(1, 10))]
        time.sleep(chance.uniform(0, 0.03))
        process.kill()
        more, _ = process.communicate(timeout=60)
        new, workers = acknowledged([*lines, *more.splitlines(keepends=True)])
        wait_until(lambda workers=workers: not any(map(is_running, workers)))  # they end with the loop
        told |= new
        with Memory.open_existing(path) as memory:
            trials = {trial.id: trial for trial in memory.all_trials()}
        assert all(trials[trial_id].score == score for trial_id, score in told.items())
        held = [trial for trial in trials.values() if trial.owner is not None]
        assert len(held) <= 2 and all(owner_is_dead(trial.owner, 0.0) for trial in held)
        num_left += len(held)
    assert num_left > 0  # the test was effective: trials were running when the loop was killed
    process = start(path)
    rest, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    told |= acknowledged(rest.splitlines(keepends=True))[0]
    with Memory.open_existing(path) as memory:
        trials = memory.all_trials()
    assert [trial.state for trial in trials] == ["complete"] * NUM_TRIALS
    assert all(trial.score == trial.params["x"] == told.get(trial.id, trial.score) for trial in trials)


@pytest.mark.slow
def test_killed_workers_do_not_end_the_loop(path):
    process = start(path)
    killed, lines = set(), []
    while len(killed) < 3:
        lines.append(process.stdout.readline())
        _, workers = acknowledged(lines[-1:])
        for pid in workers - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    rest, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    told, workers = acknowledged([*lines, *rest.splitlines(keepends=True)])
    with Memory.open_existing(path) as memory:
        trials = memory.all_trials()
    assert {trial.id: trial.score for trial in trials} == told
    assert [trial.state for trial in trials] == ["complete"] * NUM_TRIALS
    assert not any(map(is_running, workers))


@pytest.mark.slow
@pytest.mark.parametrize("workers, backend", [(2, "processes"), (2, "threads"), (1, "threads")])
def test_interrupt_keeps_everything_and_ends_the_workers(path, workers, backend):
    process = start(path, workers, backend)
    lines = [process.stdout.readline() for _ in range(5)]
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C goes to all processes of the terminal
    rest, errors = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 130) and "KeyboardInterrupt" in errors
    told, workers = acknowledged([*lines, *rest.splitlines(keepends=True)])
    assert not any(map(is_running, workers))
    with Memory.open_existing(path) as memory:
        trials = {trial.id: trial for trial in memory.all_trials()}
    assert {trial_id: trials[trial_id].score for trial_id in told} == told
    left = [trial for trial in trials.values() if trial.state == "pending"]
    assert len(left) >= NUM_TRIALS - len(told) - 2
    assert all(trial.owner is None and trial.claims == 0 for trial in left)  # released
