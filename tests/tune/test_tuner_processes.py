"""The tuner after killed and forked processes: no acknowledged score is lost, and the next `ask` works."""

import json
import os
import subprocess
import sys
import textwrap
import warnings

import pytest

from jlibo.tune import Float, SearchSpace, TrialGivenUpWarning
from jlibo.tune.memory.memory import Memory
from tests import forked

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and POSIX signals")

SCRIPT = """
    import json, os, random, signal, sqlite3, sys, time
    import numpy as np
    import jlibo
    from jlibo.tune.memory.memory import Memory, new_owner

    SPACE = jlibo.SearchSpace(alpha=jlibo.Float(0, 1), lam=jlibo.Float(1e-4, 1e4, log=True))
    path, rng = sys.argv[1], np.random.default_rng(0)

    def tell_in_a_loop(acknowledge):
        with Memory.open(path, space=SPACE) as memory:
            task, owner = memory.task("iris"), new_owner()
            while True:
                trial = memory.claim_pending(task.id, owner=owner)
                if trial is None:
                    params = SPACE.from_unit(np.random.default_rng().uniform(size=2))
                    trial = memory.add_trial(task.id, params, explored=False, owner=owner)
                score = random.random()
                memory.tell(trial.id, score)
                os.write(acknowledge, f"{trial.id} {score!r}\\n".encode())

    def kill_one():
        # Children are forked by a process that never starts jax, whose threads a fork would lose.
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            tell_in_a_loop(writer)
        os.close(writer)
        text = b"".join(os.read(reader, 4096) for _ in range(random.randint(0, 2)))
        time.sleep(random.uniform(0, 0.02))
        os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        while more := os.read(reader, 4096):
            text += more
        os.close(reader)
        return text

    orders, answers = os.pipe(), os.pipe()
    if (killer := os.fork()) == 0:
        os.close(orders[1])
        while os.read(orders[0], 1):
            os.write(answers[1], kill_one() + b"done\\n")
        os._exit(0)
    os.close(orders[0])
    told = os.fdopen(answers[0])
    acknowledged, num_left = {}, 0
    for round in range(50):
        os.write(orders[1], b"k")
        while (line := told.readline()) != "done\\n":
            trial_id, score = line.split()
            acknowledged[int(trial_id)] = float(score)
        sizes = {"num_basis": 2, "num_pair_basis": 1}
        with jlibo.Tuner(SPACE, memory=path, sizes=sizes) as tuner, tuner.task("iris", budget=1000) as task:
            scores = {trial.id: trial.score for trial in task.trials}
            assert all(scores[trial_id] == score for trial_id, score in acknowledged.items())
            pending = [trial for trial in tuner.memory.all_trials() if trial.state == "pending"]
            num_left += len(pending)
            for trial in [task.ask() for _ in range(len(pending) + 1)]:
                assert SPACE.validate(trial.params) == trial.params
                assert trial.id not in scores
                if pending:  # what the dead one left behind comes first
                    assert trial.id == pending.pop(0).id
                task.tell(trial, 0.5)
                acknowledged[trial.id] = 0.5
    os.close(orders[1])
    os.waitpid(killer, 0)
    print(json.dumps([len(acknowledged), num_left]))
"""


def test_ask_works_after_killed_processes(tmp_path):
    path = tmp_path / "memory.db"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "NPROC": "4"}
    done = forked.run(
        ["-c", textwrap.dedent(SCRIPT), str(path)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    num_told, num_left = json.loads(done.stdout.splitlines()[-1])
    assert num_told > 75 and num_left > 0  # the test was effective: kills came between ask and tell
    assert os.listdir(tmp_path) == ["memory.db"]


def run_script(script, *args):
    done = forked.run(
        ["-W", "always", "-c", textwrap.dedent(script), *map(str, args)],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "NPROC": "4"},
    )
    assert done.returncode == 0, done.stderr
    return done


FORK = """
    import os, sys, traceback
    import jlibo
    from jlibo.tune import ForkedProcessError

    SPACE = jlibo.SearchSpace(alpha=jlibo.Float(0, 1))
    tuner = jlibo.Tuner(SPACE, memory=sys.argv[1])
    task = tuner.task("one", budget=5)
    trial, other = (task.ask(), task.ask()) if sys.argv[2] == "asked" else (None, None)

    def refused(fn):
        try:
            fn()
        except ForkedProcessError as error:
            assert "spawn" in str(error) and str(os.getppid()) in str(error)
            return True
        return False

    def in_child():
        for call in (task.ask, lambda: next(iter(task)), tuner.knowledge, tuner.importance):
            assert refused(call)
        assert refused(lambda: jlibo.Tuner(SPACE))
        assert refused(lambda: tuner.task("two").ask())
        if trial is not None:
            task.tell(trial, 0.5)
            task.fail(other)
            assert tuner.task("one").best.score == 0.5 and len(task.trials) == 2
            assert "2 of 5 trials done" in repr(task)
        try:
            from jlibo.integrations.optuna import LiBOSampler
        except ImportError:
            return
        assert refused(LiBOSampler)

    if (pid := os.fork()) == 0:
        try:
            in_child()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert task.ask() is not None  # the parent goes on
"""


@pytest.mark.parametrize("before", ["asked", "not asked"])
def test_forked_process_raises_forked_process_error(tmp_path, before):
    run_script(FORK, tmp_path / "memory.db", before)


SAMPLER = """
    import os, traceback
    import optuna
    from jlibo.integrations.optuna import LiBOSampler
    from jlibo.tune import ForkedProcessError

    study = optuna.create_study(sampler=LiBOSampler(seed=0))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    if (pid := os.fork()) == 0:
        try:
            study.ask({"x": optuna.distributions.FloatDistribution(0, 1)})
        except ForkedProcessError as error:
            os._exit(0 if "spawn" in str(error) else 1)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_forked_sampler_raises_forked_process_error():
    pytest.importorskip("optuna")
    run_script(SAMPLER)


DEADLY = """
    import os, signal, sys
    import jlibo

    SPACE = jlibo.SearchSpace(alpha=jlibo.Float(0, 1))
    with jlibo.Tuner(SPACE, memory=sys.argv[1]) as tuner:
        task = tuner.task("deadly", budget=4)
        for trial in task:
            if trial.number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            task.tell(trial, trial.params["alpha"])
        assert [trial.score is None for trial in task.trials] == [False, True, False, False]
"""


@pytest.mark.slow
def test_trial_that_kills_its_process_is_given_up(tmp_path):
    path = tmp_path / "memory.db"
    command = [sys.executable, "-c", textwrap.dedent(DEADLY), str(path)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "NPROC": "4"}
    for _ in range(3):
        died = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert died.returncode == -9, died.stderr
        assert "given up" not in died.stderr
    done = run_script(DEADLY, path)
    (said,) = [line for line in done.stderr.splitlines() if "TrialGivenUpWarning:" in line]
    assert "trial 1 of task 'deadly'" in said and "'alpha': " in said and "3 processes" in said


def test_released_trials_are_offered_again_without_limit():
    space = SearchSpace(alpha=Float(0, 1))
    with Memory.open(None, space=space) as memory:
        task = memory.task("one")
        trial = memory.add_trial(task.id, {"alpha": 0.5}, explored=False, owner="first")
        memory.release("first")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number in range(10):
                claimed = memory.claim_pending(task.id, owner=f"{number}", is_dead_fn=lambda *_: False)
                assert claimed.id == trial.id
                memory.release(f"{number}")
        for number in range(3):  # then three owners die
            assert (
                memory.claim_pending(task.id, owner=f"d{number}", is_dead_fn=lambda *_: True).id == trial.id
            )
        with pytest.warns(TrialGivenUpWarning, match="trial 0 of task 'one'"):
            assert memory.claim_pending(task.id, owner="last", is_dead_fn=lambda *_: True) is None
        assert memory.trial(trial.id).state == "failed"
