"""`tuner.optimise` in this process: results, failures, what ends it, callbacks, threads."""

import contextlib
import logging
import math
import threading
import warnings

import pytest

import jlibo
from jlibo.tune import EvaluationError, TrialStopped, UntoldTrialsWarning
from jlibo.tune.loop.evaluation import Evaluation
from jlibo.tune.memory.lines import export_lines
from tests.tune.loop.functions import parabola

SPACE = jlibo.SearchSpace(x=jlibo.Float(0, 1))


def new_tuner():
    """Return a tuner without a past: learning from one takes long to compile."""
    return jlibo.Tuner(SPACE, seed=0)


@pytest.fixture
def tuner():
    with new_tuner() as tuner:
        yield tuner


def states(task):
    return [trial.state for trial in task.trials]


def pending(task):
    return [trial.number for trial in task._tuner.memory.all_trials() if trial.state == "pending"]


def test_whole_loop(tuner):
    task = tuner.optimise(parabola, task="one", budget=8)
    assert states(task) == ["complete"] * 8 and task.budget == 8
    assert task.best.score == max(parabola(**trial.params) for trial in task.trials)
    assert all(trial.score == parabola(**trial.params) for trial in task.trials)
    assert len(tuner.optimise(parabola, task="one").trials) == 8  # the budget is stored and spent
    assert len(tuner.optimize(parabola, "one", budget=10).trials) == 10


def test_task_runs_its_queue_first(tuner):
    task = tuner.task("one", budget=3)
    task.enqueue({"x": 0.125})
    task.optimise(parabola)
    assert task.trials[0].params == {"x": 0.125} and len(task.trials) == 3
    task.optimise(parabola, budget=4)
    assert len(task.trials) == 4


# --- the function -------------------------------------------------------------------------------------------


def test_trial_is_passed_if_asked_for_by_name(tuner):
    seen = []

    def with_trial(x, trial):
        seen.append(trial)
        assert trial.params == {"x": x}
        return x

    def with_any(**everything):
        seen.append(everything)
        return 0.0

    tuner.optimise(with_trial, task="one", budget=1)
    tuner.optimise(with_any, task="two", budget=1)
    tuner.optimise(lambda *, trial=None, x: seen.append(trial) or 0.0, task="three", budget=1)
    assert isinstance(seen[0], jlibo.Trial) and set(seen[1]) == {"x"} and isinstance(seen[2], jlibo.Trial)


def test_parameter_called_trial_is_the_parameter():
    tuner = jlibo.Tuner(jlibo.SearchSpace(trial=jlibo.Float(0, 1)))
    assert tuner.optimise(lambda trial: trial, task="one", budget=1).best.params["trial"] <= 1


@pytest.mark.parametrize(
    "evaluate, words",
    [
        ("parabola", "`evaluate` should be a function, but got 'parabola'"),
        (lambda y: y, "arguments x, but got one without 'x'"),
        (lambda xx: xx, r"one without 'x' \(did you mean 'xx'\?\)"),
        (lambda x, epochs: x, "one that also needs 'epochs'"),
        (lambda x, trial, /: x, "one without 'x'"),
    ],
)
def test_function_with_other_arguments_raises(tuner, evaluate, words):
    with pytest.raises(ValueError, match=words):
        tuner.optimise(evaluate, task="one", budget=1)
    assert tuner.memory.all_trials() == []


def test_argument_of_a_condition_needs_a_default():
    space = jlibo.SearchSpace(kind=jlibo.Categorical(["a", "b"]), depth=jlibo.Int(1, 3, when={"kind": "a"}))
    with pytest.raises(ValueError, match="'depth', which not every configuration has, has a default"):
        Evaluation.of(lambda kind, depth: 0.0, space)
    assert not Evaluation.of(lambda kind, depth=0: float(depth), space).wants_trial
    assert Evaluation.of(lambda kind, trial, **others: 0.0, space).wants_trial


@pytest.mark.parametrize(
    "arguments, words",
    [
        (dict(budget=0), "budget"),
        (dict(seconds=0), "seconds"),
        (dict(seconds=math.nan), "seconds"),
        (dict(workers=0), "workers"),
        (dict(backend="dask"), "`backend` should be 'threads' or 'processes'"),
        (dict(callbacks=3), "callbacks"),
        (dict(callbacks=["print"]), "callbacks"),
        (dict(progress="yes"), "progress"),
        (dict(raise_errors="yes"), "raise_errors"),
        (dict(max_failures=0), "max_failures"),
        (dict(stop_trials=3), "stop_trials"),
    ],
)
def test_invalid_arguments_raise(tuner, arguments, words):
    with pytest.raises(ValueError, match=words):
        tuner.optimise(parabola, task="one", **arguments)
    assert tuner.memory.all_trials() == []


# --- failures -----------------------------------------------------------------------------------------------


def test_failures_are_stored_with_their_text(tuner):
    ways = [
        lambda: 1.0,
        lambda: [].pop(),
        lambda: None,
        lambda: math.nan,
        lambda: "high",
        lambda: (1.0, 2.0),
        lambda: 2.0,
        lambda: {}["key"],
    ]
    task = tuner.optimise(lambda x, trial: ways[trial.number](), task="one", budget=8)
    assert [trial.error for trial in task.trials] == [
        None,
        "IndexError: pop from empty list",
        "evaluate returned None (NoneType)",
        "evaluate returned nan (float)",
        "evaluate returned 'high' (str), which is not a number",
        "evaluate returned (1.0, 2.0) (tuple), which is not a number",
        None,
        "KeyError: 'key'",
    ]
    assert states(task) == ["complete"] + ["failed"] * 5 + ["complete", "failed"]
    assert task.to_dataframe()["error"][1] == "IndexError: pop from empty list"
    assert any('"error": "IndexError: pop from empty list"' in line for line in export_lines(tuner.memory))
    assert tuner.tasks[0].num_failed == 6


def test_errors_can_be_raised_at_once(tuner):
    def failing(x, trial):
        if trial.number == 2:
            raise ZeroDivisionError("as told")
        return x

    with pytest.raises(ZeroDivisionError, match="as told"):
        tuner.optimise(failing, task="one", budget=5, raise_errors=True)
    task = tuner.task("one")
    assert states(task) == ["complete"] * 2 + ["failed"] and not pending(task)
    with pytest.raises(EvaluationError, match="trial 3 failed: evaluate returned None"):
        tuner.optimise(lambda x: None, task="one", budget=5, raise_errors=True)


def test_failures_from_the_start_end_the_loop(tuner):
    def broken(x):
        raise TypeError("a typing mistake")

    with pytest.raises(
        EvaluationError, match=r"first 5 evaluations all failed, .*TypeError: a typing mist"
    ) as caught:
        tuner.optimise(broken, task="one", budget=20)
    assert isinstance(caught.value.__cause__, TypeError)
    task = tuner.task("one")
    assert states(task) == ["failed"] * 5
    tuner.optimise(parabola, task="two", budget=1)
    with pytest.raises(EvaluationError, match="first 2 evaluations"):  # also after results of earlier calls
        tuner.optimise(broken, task="two", budget=20, max_failures=2)
    assert states(tuner.task("two")) == ["complete"] + ["failed"] * 2
    assert len(tuner.optimise(broken, task="three", budget=7, max_failures=None).trials) == 7

    def failing_later(x, trial):
        return None if trial.number else x

    assert len(tuner.optimise(failing_later, task="four", budget=9, max_failures=2).trials) == 9


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_is_not_an_error_ends_the_loop_and_loses_nothing(tuner, kind):
    def interrupted(x, trial):
        if trial.number == 2:
            raise kind
        return x

    with pytest.raises(kind):
        tuner.optimise(interrupted, task="one", budget=5)
    task = tuner.task("one")
    assert states(task) == ["complete"] * 2 and pending(task) == [2]
    left = tuner.memory.all_trials()[2]
    assert left.owner is None and left.claims == 0  # released, so it does not count as a crash
    seen = []
    tuner.optimise(lambda x, trial: seen.append(trial.number) or x, task="one", budget=5)
    assert seen == [2, 3, 4]


# --- callbacks, time, progress, logging ---------------------------------------------------------------------


def test_callbacks_get_the_finished_trial(tuner):
    seen = []

    def note(task, trial):
        assert task.trials[-1] == trial
        seen.append((trial.number, trial.state, trial.score, trial.error))

    def evaluate(x, trial):
        if trial.number == 1:
            raise ValueError("bad")
        return float(trial.number)

    tuner.optimise(evaluate, task="one", budget=3, callbacks=[note, lambda task, trial: "not True"])
    expected = [
        (0, "complete", 0.0, None),
        (1, "failed", None, "ValueError: bad"),
        (2, "complete", 2.0, None),
    ]
    assert seen == expected
    ends = lambda task, trial: trial.number == 2  # noqa: E731
    assert len(new_tuner().optimise(evaluate, task="two", budget=9, callbacks=ends).trials) == 3


def test_error_of_a_callback_ends_the_loop_after_the_trial_was_told(tuner):
    def failing(task, trial):
        raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        tuner.optimise(parabola, task="one", budget=3, callbacks=failing)
    assert states(tuner.task("one")) == ["complete"] and not pending(tuner.task("one"))


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("jlibo.tune.loop.task_loop.time.monotonic", lambda: now[0])
    return now


def test_no_trial_begins_after_the_time_is_over(tuner, clock):
    def slow(x):
        clock[0] += 10.0
        return x

    task = tuner.optimise(slow, task="one", seconds=35)
    assert len(task.trials) == 4 and not pending(task)  # the fourth began after 30 s and was finished
    assert len(tuner.optimise(slow, task="one", seconds=35).trials) == 8
    assert len(new_tuner().optimise(slow, task="two", budget=2, seconds=35).trials) == 2
    assert len(new_tuner().optimise(lambda x: x, task="three", budget=3, seconds=1e9).trials) == 3


def test_time_alone_is_not_limited_by_the_budget(tuner, clock):
    def slow(x):
        clock[0] += 1.0
        return x

    tuner.task("one", budget=2)
    assert len(tuner.optimise(slow, task="one", seconds=6).trials) == 6


def test_progress_says_how_far_and_what_is_best(tuner):
    said = []

    def evaluate(x, trial):
        if trial.number == 1:
            raise ValueError
        return float(trial.number)

    tuner.optimise(evaluate, task="one", budget=4, progress=lambda *words: said.append(words))
    assert said == [
        (0.0, "0 of 4 trials"),
        (0.25, "1 of 4 trials, best 0"),
        (0.5, "2 of 4 trials, best 0, 1 failed"),
        (0.75, "3 of 4 trials, best 2, 1 failed"),
        (1.0, "4 of 4 trials, best 3, 1 failed"),
    ]


def test_bar_is_drawn_in_a_terminal_only(tuner, capfd, monkeypatch):
    tuner.optimise(parabola, task="quiet", budget=1)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then treats any stream as a terminal
    monkeypatch.setenv("COLUMNS", "150")
    tuner.optimise(parabola, task="[red]loud", budget=2)
    shown = capfd.readouterr().err
    assert "[red]loud" in shown and "2 of 2 trials, best -" in shown


def test_logging_under_the_name_of_the_package(tuner, caplog, capfd):
    def evaluate(x, trial):
        if trial.number == 1:
            raise ValueError("bad")
        return 0.5

    tuner.optimise(evaluate, task="silent", budget=2)
    assert capfd.readouterr() == ("", "")
    with caplog.at_level(logging.INFO, "jlibo"):
        tuner.optimise(evaluate, task="one", budget=2)
    assert {record.name.split(".")[0] for record in caplog.records} == {"jlibo"}
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("INFO", "task 'one': trial 0 has the score 0.5") in said
    assert ("WARNING", "task 'one': trial 1 failed: ValueError: bad") in said
    assert said[-1] == ("INFO", "task 'one': the loop ends because its budget of 2 trials is spent")
    assert "Traceback" in caplog.text


# --- threads ------------------------------------------------------------------------------------------------


def test_threads_evaluate_at_the_same_time(tuner):
    together = threading.Barrier(3, timeout=60)
    main, seen = threading.get_ident(), set()

    def evaluate(x):
        together.wait()  # passes only if three evaluations run at once
        seen.add(threading.get_ident())
        return x

    def callback(task, trial):
        assert threading.get_ident() == main

    task = tuner.optimise(evaluate, task="one", budget=6, workers=3, callbacks=callback)
    assert states(task) == ["complete"] * 6 and len(seen) == 3 and main not in seen
    assert len({trial.params["x"] for trial in task.trials}) == 6


def test_interrupted_threads_release_their_trials(tuner):
    """One trial is told, then the loop is interrupted while two others run. They stop when they report."""
    running, go, ended = threading.Barrier(3, timeout=60), threading.Event(), threading.Barrier(3, timeout=60)
    ends = []

    def evaluate(x, trial):
        running.wait()
        if trial.number == 0:
            return x
        go.wait(60)
        ends.append(trial.should_stop)
        try:
            trial.report(0, x)
        except TrialStopped:
            ends.append("stopped")
            raise
        finally:
            ended.wait()

    def interrupt(task, trial):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuner.optimise(evaluate, task="one", budget=3, workers=3, callbacks=interrupt)
    task = tuner.task("one")
    assert states(task) == ["complete"] and pending(task) == [1, 2]
    go.set()
    ended.wait()
    assert sorted(map(str, ends)) == ["True", "True", "stopped", "stopped"]
    assert pending(task) == [1, 2] and tuner.memory.curves() == {}
    tuner.optimise(lambda x: x, task="one", budget=3)
    assert states(task) == ["complete"] * 3


def test_exit_in_a_thread_ends_the_loop(tuner):
    def exits(x, trial):
        raise SystemExit(3)

    with pytest.raises(SystemExit) as caught:
        tuner.optimise(exits, task="one", budget=4, workers=2)
    assert caught.value.code == 3 and not tuner.task("one").trials


# --- trials without a score ---------------------------------------------------------------------------------


def untold(block):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        block()
    return [str(one.message) for one in caught if one.category is UntoldTrialsWarning]


def test_forgotten_tell_warns_after_a_break(tuner):
    def forgetful():
        for trial in tuner.task("one", budget=9):
            if trial.number == 3:
                break

    (said,) = untold(forgetful)
    assert "the loop over task 'one' ends because it was left, but 3 of its 4 trials were never told" in said

    def careful():
        task = tuner.task("two", budget=9)
        for trial in task:
            if trial.number == 3:
                break  # the last one need not be told
            task.tell(trial, 1.0)

    assert untold(careful) == []


def test_forgotten_tell_warns_at_the_end_of_a_with_block(tuner):
    def forgetful():
        with tuner.task("one") as task:
            for _ in range(3):
                task.ask()

    (said,) = untold(forgetful)
    assert "its `with` block ends, but 3 of its 3 trials" in said

    def puts_back():
        with tuner.task("two") as task:
            trials = task.ask(3)
            task.tell(trials[0], 1.0)

    def one_alone():
        with tuner.task("three") as task:
            task.ask()

    def raises():
        with contextlib.suppress(OSError), tuner.task("four") as task:
            task.ask(3)
            raise OSError

    def once():
        with tuner.task("five", budget=2) as task:
            for _ in task:
                pass

    assert untold(puts_back) == untold(one_alone) == untold(raises) == []
    assert len(untold(once)) == 1


def test_released_trial_comes_again(tuner):
    task = tuner.task("one", budget=5)
    first, second = task.ask(2)
    task.release(first)
    assert task.ask().id == first.id and tuner.memory.trial(second.id).owner is not None
