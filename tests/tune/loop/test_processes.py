"""`tuner.optimise` with worker processes: results, reports over the pipe, and workers that die."""

import os
import subprocess
import sys
import textwrap
from functools import partial

import pytest

import jlibo
from jlibo.tune import EvaluationError, MedianRule, TrialGivenUpWarning
from jlibo.tune.memory.memory import Memory
from tests.tune.loop import functions

SPACE = jlibo.SearchSpace(x=jlibo.Float(0, 1))


@pytest.fixture
def tuner():
    with jlibo.Tuner(SPACE, seed=0) as tuner:  # in RAM: only this process uses the memory
        yield tuner


def test_evaluations_that_end_in_all_ways(tuner, tmp_path):
    """One pool for all. The worker that dies is replaced, and its trial is offered again."""
    task = tuner.task("one", budget=7)
    for x in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
        task.enqueue({"x": x})
    evaluate = partial(functions.troubled, folder=str(tmp_path))
    task.optimise(evaluate, backend="processes")
    assert (tmp_path / "died").exists()
    by_number = {trial.number: (trial.state, trial.score, trial.error) for trial in task.trials}
    assert by_number == {
        0: ("complete", 0.1, None),
        1: ("failed", None, "Unpicklable: oil and water"),
        2: ("failed", None, "KeyError: 'missing'"),
        3: ("failed", None, "ValueError: `step` should be a whole number from 0 to 2**63 - 1, but got -1."),
        4: ("stopped", None, None),
        5: ("failed", None, "evaluate returned {'not': 'a number'} (dict), which is not a number"),
        6: ("complete", 0.7, None),
    }


def test_function_that_cannot_be_pickled_raises(tuner):
    with pytest.raises(ValueError, match="cannot be pickled"):
        tuner.optimise(lambda x: x, task="one", budget=3, backend="processes")
    assert tuner.memory.all_trials() == []


@pytest.mark.slow
def test_function_that_cannot_be_unpickled_raises(tuner):
    with pytest.raises(
        EvaluationError, match="cannot be imported in a worker process: RuntimeError: no such"
    ):
        tuner.optimise(functions.Undone(), task="one", budget=3, backend="processes")
    assert tuner.memory.all_trials() == []


@pytest.mark.slow
def test_reports_are_judged_in_the_process_of_the_loop(tuner):
    task = tuner.task("one", budget=9, stop_trials=MedianRule(control_every=None))
    for x in (0.9, 0.8, 0.7, 0.6, 0.5, 0.1):
        task.enqueue({"x": x})
    task.optimise(functions.curve, budget=6, backend="processes")
    assert [trial.state for trial in task.trials] == ["complete"] * 5 + ["stopped"]
    assert task.curve(task.trials[5]) == {0: 0.1}
    tuner.optimise(functions.process_id, task="two", budget=6, workers=2, backend="processes")
    ids = {curve[0] for trial, curve in tuner.memory.curves(2).items()}
    assert len(ids) == 2 and float(os.getpid()) not in ids


@pytest.mark.slow
def test_trial_that_kills_its_workers_is_given_up(tuner):
    with pytest.warns(TrialGivenUpWarning, match="trial 1 of task 'one' is given up"):
        task = tuner.optimise(functions.deadly, task="one", budget=4, workers=2, backend="processes")
    assert [trial.state for trial in task.trials] == ["complete", "failed", "complete", "complete"]
    assert task.trials[1].error == "3 processes ended while they worked on it"
    assert tuner.memory.trials(1)[1].claims == 4  # three workers, and the claim that gave it up


@pytest.mark.slow
def test_exit_in_a_worker_ends_the_loop(tuner):
    with pytest.raises(SystemExit) as caught:
        tuner.optimise(functions.exits, task="one", budget=9, backend="processes")
    assert caught.value.code == 7
    assert "In the worker process" in caught.value.__notes__[0]
    assert [trial.state for trial in tuner.memory.all_trials()] == ["complete", "complete", "pending"]


@pytest.mark.slow
def test_script_without_a_guard_says_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import jlibo

            def evaluate(x):
                return x

            tuner = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 1)), memory="memory.db")
            tuner.optimise(evaluate, task="one", budget=3, backend="processes")
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert "needs `if __name__ == '__main__':`" in done.stderr
    with Memory.open_existing(tmp_path / "memory.db") as memory:
        assert memory.all_trials() == []
