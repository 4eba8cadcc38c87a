"""Trials that report scores and stop early: what is stored, what past tasks teach, what the model is told."""

import pickle

import chex
import numpy as np
import pytest

import jlibo
from jlibo.tune import MedianRule, TrialStateError, TrialStopped
from jlibo.tune.arrays import past_trials
from tests.tune.loop.functions import curve

SPACE = jlibo.SearchSpace(x=jlibo.Float(0, 1))
POINTS = np.linspace(0.05, 0.95, 10)
RULE = MedianRule(control_every=None)


@pytest.fixture
def tuner():
    with jlibo.Tuner(SPACE, seed=0) as tuner:
        yield tuner


def run_one(task, x, values, *, final=None):
    """Evaluate the configuration x, which reports `values`; return the step at which it was told to stop."""
    task.enqueue({"x": float(x)}, repeat=True)
    trial = task.ask()
    assert trial.params["x"] == x
    for step, value in enumerate(values):
        trial.report(step, value)
        if trial.should_stop:
            task.stop(trial)
            return step
    task.tell(trial, values[-1] if final is None else final)
    return None


def lines(x, num_steps=6):
    return [x + step for step in range(num_steps)]


def test_loop_stops_trials_that_are_behind(tuner):
    task = tuner.task("one", budget=12, stop_trials=RULE)
    for x in (0.9, 0.8, 0.7, 0.6, 0.5, 0.95, 0.1, 0.2, 0.85):
        task.enqueue({"x": x})
    task.optimise(curve, budget=9)
    assert [trial.state for trial in task.trials] == ["complete"] * 6 + ["stopped"] * 2 + ["complete"]
    assert [trial.score for trial in task.trials[6:8]] == [None, None]
    assert task.curve(task.trials[6]) == {0: 0.1} and len(task.curve(task.trials[0])) == 6
    assert task.best.params == {"x": 0.95}
    (summary,) = tuner.tasks
    assert (summary.num_complete, summary.num_stopped, summary.num_failed) == (7, 2, 0)
    frame = task.to_dataframe()
    assert frame["state"].tolist().count("stopped") == 2 and frame["score"].isna().sum() == 2
    other = tuner.task("two", budget=12)
    assert other.add(frame) == 7  # a stopped trial is not a result
    assert "stopped" in tuner._repr_html_()


@pytest.mark.parametrize("how", ["return", "break", "raise", "ignore", "not asked"])
def test_ways_to_stop_in_a_loop(tuner, how):
    task = tuner.task("one", budget=9, stop_trials=RULE)
    for x in (0.9, 0.8, 0.7, 0.6, 0.5):
        run_one(task, x, lines(x))
    task.enqueue({"x": 0.1})

    def evaluate(x, trial):
        score = None
        for step, score in enumerate(lines(x)):
            trial.report(step, score)
            if how == "not asked" or not trial.should_stop:
                continue
            if how == "raise":
                raise TrialStopped
            if how == "return":
                return None
            if how == "break":
                break
        return score

    task.optimise(evaluate, budget=6)
    expected = "complete" if how in ("ignore", "not asked") else "stopped"
    assert task.trials[5].state == expected
    assert len(task.curve(task.trials[5])) == (6 if expected == "complete" else 1)


def test_rule_of_a_task(tuner):
    for name, rule, stops in [
        ("on", True, 0),
        ("later", MedianRule(min_step=2), 2),
        ("many", MedianRule(min_trials=9), None),
        ("off", False, None),
    ]:
        task = tuner.task(name, budget=9, stop_trials=rule)
        for x in (0.9, 0.8, 0.7, 0.6, 0.5):
            assert run_one(task, x, lines(x)) is None
        assert run_one(task, 0.1, lines(0.1)) == stops


def test_past_tasks_say_whether_a_standing_is_safe():
    """In some memories the curves of past tasks cross after the first step, in others they do not."""
    for cross, units in [(False, 1.0), (True, 1.0), (True, 1e6)]:
        tuner = jlibo.Tuner(SPACE, seed=0)
        for number in range(3):
            past = tuner.task(f"past {number}", stop_trials=False)
            for x in POINTS:
                start = -x if cross else x
                run_one(past, x, [units * start, units * x, units * x])
        task = tuner.task("new", stop_trials=RULE)
        for x in (0.9, 0.8, 0.7, 0.6, 0.5):
            run_one(task, x, lines(x))
        assert run_one(task, 0.1, lines(0.1)) == (1 if cross else 0)


def test_directions_and_diverging_trials():
    tuner = jlibo.Tuner(SPACE, seed=0, maximise=False)
    task = tuner.task("loss", stop_trials=RULE)
    for x in (0.9, 0.8, 0.7, 0.6, 0.5):
        run_one(task, x, [x + 3, x + 2, x + 1])
    assert run_one(task, 0.1, [3.1, 2.1, 1.1]) is None
    assert run_one(task, 0.95, [3.95, 2.95, 1.95]) == 0
    assert run_one(task, 0.2, [float("nan"), 2.2, 1.2]) == 0
    estimates = [trial.estimate for trial in tuner.memory.all_trials() if trial.state == "stopped"]
    assert estimates == [1.9, 1.9]  # the worst final score


# --- the model ----------------------------------------------------------------------------------------------


def peak(x):
    return 1 - (x - 0.7) ** 2


def test_model_is_given_an_estimate_and_not_the_last_report():
    """Scores rise by 50 between the report and the end. The model must not take the report for a score."""
    expected = {}
    for kind in ("told", "stopped", "misled"):
        tuner = jlibo.Tuner(SPACE, seed=0)
        task = tuner.task("one", budget=20, stop_trials=RULE)
        for x in POINTS[3:]:
            task.enqueue({"x": float(x)})
            trial = task.ask()
            trial.report(0, peak(x) - 50)
            trial.report(1, peak(x))
            task.tell(trial, peak(x))
        for x in POINTS[:3]:
            task.enqueue({"x": float(x)})
            trial = task.ask()
            trial.report(0, peak(x) - 50)
            assert trial.should_stop
            if kind == "stopped":
                task.stop(trial)
            else:
                task.tell(trial, peak(x) - (50 if kind == "misled" else 0))
        chosen = task.recommended
        assert chosen.trial.state == "complete"
        expected[kind] = chosen.expected_score
        if kind == "stopped":
            record = tuner.memory.all_trials()[-1]
            finals = sorted(peak(x) for x in POINTS[3:])
            assert finals[0] <= record.estimate <= finals[3] and record.score is None
    assert expected["stopped"] == pytest.approx(expected["told"], abs=0.02)
    assert abs(expected["misled"] - expected["told"]) > 0.5  # what the estimate avoids


def test_stopped_trials_are_not_repeated():
    configs = [{"x": float(x)} for x in POINTS[:6]]
    tuner = jlibo.Tuner(SPACE, candidates=configs, seed=0)
    task = tuner.task("one", budget=40, stop_trials=False)
    stopped = configs[2]
    for _ in range(20):
        trial = task.ask()
        if trial.params == stopped:
            trial.report(0, 0.0)
            task.stop(trial)
        else:
            task.tell(trial, trial.params["x"])
    tried = [trial.params for trial in task.trials]
    assert tried.count(stopped) == 1 and all(config in tried for config in configs)


def test_stopped_trials_of_past_tasks_are_learned_from():
    """The model gets the same past whether a score was told or estimated."""
    found = []
    for kind in ("complete", "stopped"):
        with jlibo.Tuner(SPACE) as own:
            task = own.memory.task("past")
            for x in POINTS:
                trial = own.memory.add_trial(task.id, {"x": x}, explored=False, owner=None)
                if kind == "stopped" and x < 0.4:
                    own.memory.stop(trial.id, peak(x))
                else:
                    own.memory.tell(trial.id, peak(x))
            lost = own.memory.add_trial(task.id, {"x": 0.0}, explored=False, owner=None)
            own.memory.stop(lost.id, None)  # without an estimate, nothing is learned
            snapshot = own.memory.snapshot()
            found.append(past_trials(SPACE, own.model.features, *snapshot, maximise=True))
    chex.assert_trees_all_equal(*found)
    assert int(found[0][0].present.sum()) == len(POINTS)


# --- trials -------------------------------------------------------------------------------------------------


def test_only_a_running_trial_can_report(tuner):
    task = tuner.task("one")
    trial = task.ask()
    assert not trial.should_stop  # before the first report
    with pytest.raises(ValueError, match="`step` should be a whole number"):
        trial.report(0.5, 1.0)
    copy = pickle.loads(pickle.dumps(trial))
    assert copy == trial
    with pytest.raises(TrialStateError, match="needs the object that `ask` returned in this process"):
        copy.report(0, 1.0)
    task.tell(trial, 1.0)
    with pytest.raises(TrialStateError, match="has the score 1"):
        trial.report(0, 1.0)
    with pytest.raises(TrialStateError, match="while the trial is running"):
        _ = task.trials[0].should_stop


def test_reports_survive_the_object(tmp_path):
    path = tmp_path / "memory.db"
    with jlibo.Tuner(SPACE, memory=path) as tuner:
        task = tuner.task("one", stop_trials=RULE)
        for x in (0.9, 0.8, 0.7, 0.6, 0.5):
            run_one(task, x, lines(x))
        trial = task.ask()
        trial.report(0, 0.1)
    with jlibo.Tuner(SPACE, memory=path) as tuner:
        task = tuner.task("one", stop_trials=RULE)
        assert task.curve(task.trials[0]) == {step: 0.9 + step for step in range(6)}
        task.stop(trial)  # as another object of the same task
        assert tuner.memory.trial(trial.id).estimate == 5.5
        assert run_one(task, 0.1, lines(0.1)) == 0
