"""The tuner and its tasks: ask and tell, what is stored, what is learned, importance and plots.

All but a few tests have the same shapes of space, list and budget, so that they share compiled programs.
"""

import itertools
import math
import re

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jlibo
from jlibo import cli
from jlibo.tune import TrialStateError, arrays, learning
from jlibo.tune import tuner as tuner_module
from jlibo.tune.memory.memory import Memory
from tests.tune.problem import BUDGET, CONFIGS, SPACE, play, score, teach

# --- the loop -----------------------------------------------------------------------------------------------


def test_loop_of_the_documentation(tmp_path):
    path = tmp_path / "glmnet.db"
    with jlibo.Tuner(SPACE, memory=path) as tuner:
        with tuner.task("credit-g", budget=12) as task:
            assert task.best is None and "no score yet" in repr(task)
            for trial in task:
                assert SPACE.validate(trial.params) == trial.params
                assert trial.score is None
                task.tell(trial, score(trial.params))
        trials = task.trials
        assert [trial.number for trial in trials] == list(range(12))
        best = max(trials, key=lambda trial: trial.score)
        assert task.best == best and best.score > 0.95
        assert best.score == score(best.params)
        assert list(task) == []
        assert repr(task) == f"TunerTask('credit-g', 12 of 12 trials done, best {best.score:.6g})"
        assert repr(tuner) == f"Tuner(2 parameters, memory {str(path)!r}, mode 'adaptive')"
    with Memory.open_existing(path) as memory:
        assert [trial.score for trial in memory.all_trials()] == [trial.score for trial in trials]
    assert repr(jlibo.Tuner(SPACE, mode="paper")) == "Tuner(2 parameters, memory in RAM, mode 'paper')"


def test_first_trial_is_good_with_past_tasks():
    tuner = jlibo.Tuner(SPACE)
    teach(tuner)
    (first,) = play(tuner.task("new", budget=BUDGET), 1)
    assert score(first) > 0.95


@pytest.mark.parametrize("listed", [False, True])
def test_ask_for_several_gives_distinct_trials(listed):
    tuner = jlibo.Tuner(SPACE, candidates=CONFIGS if listed else None)
    teach(tuner)
    task = tuner.task("new", budget=BUDGET)
    play(task, 2)
    pending = task.ask(4)
    more = [task.ask(), *task.ask(n=3)]
    keys = {tuple(trial.params.values()) for trial in [*task.trials, *pending, *more]}
    assert len(keys) == 10
    for trial in reversed(pending):
        task.tell(trial, score(trial.params))
    assert [trial.number for trial in task.trials] == [0, 1, 2, 3, 4, 5]


def test_pending_trial_changes_the_next_suggestion():
    """A pending trial reduces the variance without a score, so the next trial is not near it."""
    near = [SPACE.from_unit([0.5, unit]) for unit in (0.66, 0.6601)]
    tuner = jlibo.Tuner(SPACE, candidates=[*CONFIGS[:38], *near], mode="paper")
    task = tuner.task("new", budget=BUDGET)
    record = tuner.memory.task("new")
    tuner.memory.add_finished(record.id, [(c, score(c)) for c in CONFIGS[:8]], explored=True)
    first, second = task.ask(2)
    units = [SPACE.to_unit(trial.params) for trial in (first, second)]
    assert np.linalg.norm(units[0] - units[1]) > 0.01


def test_budget_counts_failures_is_stored_and_can_be_increased():
    tuner = jlibo.Tuner(SPACE)
    with tuner.task("one", budget=3) as task:
        for number, trial in enumerate(task):
            task.fail(trial) if number == 1 else task.tell(trial, 1.0 + number)
    assert len(task.trials) == 3 and task.trials[1].score is None
    again = tuner.task("one")  # the budget is stored, and can be increased
    assert again.budget == 3 and list(again) == []
    assert sum(1 for _ in itertools.islice(tuner.task("one", budget=5), 9)) == 2
    assert tuner.task("two").budget == tuner_module.DEFAULT_BUDGET
    assert again.ask().number == 5  # the budget does not limit `ask`


def test_two_tuners_do_not_exceed_a_shared_budget(tmp_path, monkeypatch):
    """One process adds the last trial while the other is about to add it."""
    path = tmp_path / "memory.db"
    first, second = jlibo.Tuner(SPACE, memory=path), jlibo.Tuner(SPACE, memory=path)
    one, two = first.task("new", budget=4), second.task("new")
    play(one, 3)
    add_trial = first.memory.add_trial

    def late(*args, **kwargs):
        monkeypatch.undo()
        two.tell(two.ask(), 0.5)
        return add_trial(*args, **kwargs)

    monkeypatch.setattr(first.memory, "add_trial", late)
    assert list(one) == []
    assert len(one.trials) == 4


def test_two_tuners_share_one_file(tmp_path):
    path = tmp_path / "memory.db"
    first, second = jlibo.Tuner(SPACE, memory=path), jlibo.Tuner(SPACE, memory=path)
    tasks = first.task("new", budget=BUDGET), second.task("new", budget=BUDGET)
    trials = [task.ask() for _ in range(3) for task in tasks]
    assert len({tuple(trial.params.values()) for trial in trials}) == 6
    assert [trial.number for trial in trials] == list(range(6))
    tasks[1].tell(trials[0], 1.0)  # another object may tell
    with pytest.raises(TrialStateError):
        tasks[0].tell(trials[0], 2.0)
    assert tasks[0].best.score == 1.0
    for trial in trials[1:]:
        tasks[0].tell(trial, score(trial.params))
    # Both read the same trials, so both would make the same suggestion.
    chosen = [task._next_config(task._trials()) for task in tasks]
    assert chosen[0].params == chosen[1].params


# --- memory and learning ------------------------------------------------------------------------------------


def test_pending_trials_are_offered_first_after_reopening(tmp_path):
    path = tmp_path / "memory.db"
    with jlibo.Tuner(SPACE, memory=path) as tuner, tuner.task("new", budget=6) as task:
        play(task, 2)
        left = task.ask(2)
        assert task.ask().id not in {trial.id for trial in left}  # not while their owner is alive
    with jlibo.Tuner(SPACE, memory=path) as tuner, tuner.task("new") as task:
        for trial in task:
            task.tell(trial, score(trial.params))
            if trial.number == 2:
                assert trial == left[0]
        assert len(task.trials) == 6
        assert task.trials[2].params == left[0].params


def test_learning_is_repeated_only_if_past_tasks_change(monkeypatch):
    tuner = jlibo.Tuner(SPACE)
    teach(tuner)
    calls = []
    learn = learning._learn
    monkeypatch.setattr(learning, "_learn", lambda *args: calls.append(1) or learn(*args))
    task = tuner.task("new", budget=BUDGET)
    play(task, 3)
    assert len(calls) == 1
    tuner.importance()  # from all tasks, including the running one
    play(task, 1)
    assert len(calls) == 2
    tuner.add_task("more", CONFIGS[:5], [score(params) for params in CONFIGS[:5]])
    task.ask()
    assert len(calls) == 3


def test_past_tasks_with_fewer_than_two_scores_are_ignored():
    tuner = jlibo.Tuner(SPACE, candidates=CONFIGS)
    tuner.add_task("empty", [], [])
    tuner.add_task("failed", CONFIGS[:3], [None, math.nan, math.inf])
    tuner.add_task("one score", CONFIGS[:1], [1.0])
    assert tuner.importance() == {}
    with_past = play(tuner.task("new", budget=BUDGET), 6)
    # The past affects the choices only through the number of the task, which seeds its draws.
    empty = jlibo.Tuner(SPACE, candidates=CONFIGS)
    for name in ("empty", "failed", "one score"):
        empty.memory.task(name)
    assert with_past == play(empty.task("new", budget=BUDGET), 6)


# --- scores -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "shift"), [(2.0**-40, 0), (1e6, 0), (1, 1000), (3e-5, -0.02)])
def test_choices_are_invariant_to_scale_and_shift_of_scores(factor, shift):
    def run(factor, shift):
        def changed(params, peak=1.0):
            return factor * score(params, peak) + shift

        tuner = jlibo.Tuner(SPACE, candidates=CONFIGS)
        first = play(tuner.task("first", budget=BUDGET), 6, lambda params: changed(params, 0.5))
        teach(tuner, 2, changed)
        return first + play(tuner.task("new", budget=BUDGET), 8, changed)

    assert run(factor, shift) == run(1, 0)


def test_outlier_scores_do_not_prevent_optimisation():
    """A diverged fit may have a finite score of 1e30; the others can still be distinguished."""
    best = []
    for seed in range(5):
        task = jlibo.Tuner(SPACE, maximise=False, seed=seed).task("new", budget=BUDGET)
        for number in range(20):
            trial = task.ask()
            task.tell(trial, 1e30 if number in (1, 4) else 1 - score(trial.params))
        best.append(task.best.score)
    assert np.median(best) < 0.03


def test_failed_trials_are_avoided_but_not_observations():
    tuner = jlibo.Tuner(SPACE, candidates=CONFIGS)
    teach(tuner)

    def next_after(failed):
        tuner_now = jlibo.Tuner(SPACE, candidates=CONFIGS)
        teach(tuner_now)
        task = tuner_now.task("new", budget=BUDGET)
        record = tuner_now.memory.task("new")
        scored = [(params, score(params, -1.0)) for params in CONFIGS[:4]]
        tuner_now.memory.add_finished(record.id, [*scored, *((params, math.nan) for params in failed)])
        return SPACE.to_unit(task.ask().params)

    plain = next_after([])
    # Failures of distant configurations change nothing; any score would.
    far = sorted(CONFIGS[4:], key=lambda params: -np.linalg.norm(SPACE.to_unit(params) - plain))[:3]
    assert next_after(far) == pytest.approx(plain)
    there = SPACE.from_unit(plain)
    assert next_after([there]) != pytest.approx(plain)


def test_failing_region_is_avoided():
    """Trials with a large beta fail, and the best score would be there."""
    tuner = jlibo.Tuner(SPACE)
    teach(tuner)
    with tuner.task("new", budget=20) as task:
        for number, trial in enumerate(task):
            if trial.params["beta"] > 3:
                task.fail(trial) if number % 2 else task.tell(trial, math.nan)
            else:
                task.tell(trial, score(trial.params))
    failed = [trial for trial in task.trials if trial.score is None]
    assert 1 <= len(failed) <= 12 and sum(trial.number < 10 for trial in failed) <= 6
    assert len({tuple(trial.params.values()) for trial in task.trials}) == 20
    assert task.best.params["beta"] > 2  # although the boundary of the failing region is close
    # Failed trials are no observations for the next task.
    own = tuner.memory.task("new").id
    tasks, trials = tuner.memory.snapshot()
    past, num_tasks = arrays.past_trials(SPACE, tuner.model.features, tasks, trials, maximise=True)
    assert num_tasks == 4 and own == tasks[3].id
    assert past.present.sum() == 60 + 20 - len(failed)


def test_all_trials_may_fail():
    tuner = jlibo.Tuner(SPACE)
    with tuner.task("new", budget=12) as task:
        for trial in task:
            task.tell(trial, -math.inf)
    assert task.best is None and len(task.trials) == 12
    assert len({tuple(trial.params.values()) for trial in task.trials}) == 12


# --- listed candidates, and invalid use ---------------------------------------------------------------------


def test_only_listed_candidates_are_suggested():
    tuner = jlibo.Tuner(SPACE, candidates=iter(CONFIGS))
    asked = play(tuner.task("new", budget=BUDGET), 20)
    assert all(any(params == one for one in CONFIGS) for params in asked)
    assert len({tuple(params.values()) for params in asked}) == 20


def test_invalid_use_of_a_task_raises():
    tuner = jlibo.Tuner(SPACE, candidates=CONFIGS)
    for budget in (0, -3, 2.5, "many"):
        with pytest.raises(ValueError, match="budget"):
            tuner.task("one", budget=budget)
    with pytest.raises(ValueError, match="name"):
        tuner.task("")
    one, two = tuner.task("one", budget=BUDGET), tuner.task("two", budget=BUDGET)
    for n in (0, 1.5):
        with pytest.raises(ValueError, match="`n`"):
            one.ask(n)
    trial = one.ask()
    for foreign in (trial.params, 3, None):
        with pytest.raises(ValueError, match="`trial` should be a Trial that `ask` returned"):
            one.tell(foreign, 1.0)
    with pytest.raises(ValueError, match="`trial` should be a trial of the task 'two'"):
        two.tell(trial, 1.0)
    with pytest.raises(ValueError, match="`score` should be a number"):
        one.tell(trial, "good")
    one.tell(trial, 1)
    one.tell(trial, 1.0)  # telling the same score again is allowed
    with pytest.raises(TrialStateError, match=r"has the score 1\.0 already, .* told the score 2\.0"):
        one.tell(trial, 2.0)
    with pytest.raises(TrialStateError, match="cannot be told that it failed"):
        one.fail(trial)


# --- importance and plots -----------------------------------------------------------------------------------


def test_importance_ranks_the_relevant_parameter_first():
    tuner = jlibo.Tuner(SPACE)
    assert tuner.importance() == {}
    teach(tuner)
    importance = tuner.importance()
    assert set(importance) == {"alpha", "log beta"}
    assert sum(importance.values()) == pytest.approx(1)
    assert list(importance.values()) == sorted(importance.values(), reverse=True)
    assert next(iter(importance)) == "log beta" and importance["log beta"] > 0.8


def test_memory_show_prints_importance(tmp_path, capsys):
    path = tmp_path / "memory.db"
    with jlibo.Tuner(SPACE, memory=path) as tuner:
        tuner.add_task("one score", CONFIGS[:1], [1.0])
        assert cli.main(["memory", "show", str(path)]) == 0
        assert "matters" not in capsys.readouterr().out
        teach(tuner)
        first, *others = tuner.importance()
    before = path.read_bytes()
    assert cli.main(["memory", "show", str(path)]) == 0
    words = capsys.readouterr().out.splitlines()[-1]
    assert first == "log beta" and re.match(r"matters: log beta \d+ %", words)
    assert all(re.search(rf"(: |, ){name}( \d| <|,|$)", words) for name in others)
    assert path.read_bytes() == before


def test_plots_show_importance_and_progress():
    tuner = jlibo.Tuner(SPACE, maximise=False)
    axes = tuner.plot_importance(), tuner.plot_progress()  # also valid before the first score
    assert all(len(ax.lines) == len(ax.patches) == 0 for ax in axes)
    scores = [3.0, 5.0, None, 1.0, 2.0]
    tuner.add_task("one", CONFIGS[:5], scores)
    tuner.add_task("two", CONFIGS[:20], [score(params) for params in CONFIGS[:20]])
    tuner.task("three", budget=BUDGET).ask()
    ax = tuner.plot_progress()
    assert ax.lines[0].get_ydata().tolist() == [3, 3, 3, 1, 1]
    assert len(ax.lines) == 2
    ax = tuner.plot_importance()
    importance = tuner.importance()
    assert [label.get_text() for label in ax.get_yticklabels()] == list(importance)[::-1]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx(list(importance.values())[::-1])


# --- seeds --------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**63 - 1))
def test_any_seed_is_valid(seed):
    tuner = jlibo.Tuner(SPACE, candidates=CONFIGS, seed=seed)
    task = tuner.task("new", budget=BUDGET)
    assert task.ask().params in CONFIGS
    assert task._candidates.key == jax.random.fold_in(jax.random.key(seed), 0)
