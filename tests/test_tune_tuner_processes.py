"""A tuner after a process was killed: nothing that was acknowledged is lost, and the next question works."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and POSIX signals")

SCRIPT = """
    import json, os, random, signal, sqlite3, sys, time
    import numpy as np
    import jlibo
    from jlibo.tune.memory import Memory, new_owner

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
    for round in range(100):
        os.write(orders[1], b"k")
        while (line := told.readline()) != "done\\n":
            trial_id, score = line.split()
            acknowledged[int(trial_id)] = float(score)
        with jlibo.Tuner(SPACE, memory=path) as tuner, tuner.task("iris", budget=1000) as task:
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


def test_after_a_hundred_kills_the_next_question_works(tmp_path):
    path = tmp_path / "memory.db"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "NPROC": "4"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    num_told, num_left = json.loads(done.stdout.splitlines()[-1])
    assert num_told > 150 and num_left > 0  # it was no dry run: kills came between ask and tell
    assert os.listdir(tmp_path) == ["memory.db"]
