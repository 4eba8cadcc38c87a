"""LiBOSampler in Optuna studies: what it learns from, which values it chooses, and its warnings.

Nearly all studies have the same space, so that learning and suggesting are compiled once.
"""

import math
import pickle

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from jlibo.integrations.optuna import LiBOSamplerWarning, choice
from jlibo.tune import Float, Memory, MemoryMismatch, SearchSpace, Tuner
from tests.integrations.studies import (
    DISTRIBUTIONS,
    LEVEL,
    SIZES,
    SPACE,
    LiBOSamplerAt,
    all_params,
    loss,
    objective,
    random_study,
    small_sampler,
    trials_needed,
    watch_trials,
)

# --- learning from past studies ---------------------------------------------------------------------------


def test_second_study_in_a_storage_needs_fewer_trials(tmp_path):
    """Three seeds, each with a control: the second study without the first one."""
    needed, control = [], []
    for seed in range(3):
        # One seed with a file, which takes most of the time.
        storage = optuna.storages.InMemoryStorage() if seed else f"sqlite:///{tmp_path}/studies.db"
        first = optuna.create_study(
            storage=storage, study_name="first", sampler=small_sampler(storage=storage, seed=seed)
        )
        first.optimize(objective(), n_trials=15)
        second = optuna.create_study(
            storage=storage, study_name="second", sampler=small_sampler(storage=storage, seed=100 + seed)
        )
        second.optimize(objective(0.05), n_trials=15)
        alone = optuna.create_study(sampler=small_sampler(seed=100 + seed))
        alone.optimize(objective(0.05), n_trials=15)
        needed.append(trials_needed(second, LEVEL))
        control.append(trials_needed(alone, LEVEL))
    fewer = sum(a < b for a, b in zip(needed, control, strict=True))
    assert fewer == 3, (needed, control)
    assert np.mean(needed) <= 0.5 * np.mean(control), (needed, control)


def test_past_studies_of_either_direction_are_used():
    """The first trial is already near the optimum, for either direction of the past study."""
    for direction in ("minimize", "maximize"):
        past = random_study(25, direction=direction)
        study = optuna.create_study(sampler=small_sampler(past_studies=[past], seed=0))
        study.optimize(objective(), n_trials=3)
        assert study.best_value < np.quantile([abs(trial.value) for trial in past.trials], 0.1)


def test_learning_is_not_repeated_at_every_trial(monkeypatch):
    calls = []
    learn = choice.learn_records
    monkeypatch.setattr(
        choice, "learn_records", lambda *args, **more: calls.append(args[1]) or learn(*args, **more)
    )
    past = random_study()
    sampler = small_sampler(past_studies=[past], seed=0)
    optuna.create_study(sampler=sampler, study_name="one").optimize(objective(), n_trials=6)
    assert [len(tasks) for tasks in calls] == [1]
    past.optimize(objective(), n_trials=1)
    optuna.create_study(sampler=sampler, study_name="two").optimize(objective(), n_trials=3)
    assert [len(tasks) for tasks in calls] == [1, 1]  # a new study reads the past again


def test_study_with_other_parameters_is_skipped_with_one_warning():
    past = random_study()
    other = optuna.create_study(study_name="other", sampler=optuna.samplers.RandomSampler(seed=0))
    # The same name with another kind of distribution, which is an error in a relative sample of Optuna.
    other.optimize(lambda trial: trial.suggest_categorical("x", ["a", "b"]) == "a", n_trials=5)
    study = optuna.create_study(sampler=small_sampler(past_studies=[past, other], seed=0))
    with pytest.warns(LiBOSamplerWarning, match=r"nothing is learned from 'other'.*(?s:.*)'x'") as said:
        study.optimize(objective(), n_trials=4)
    assert len(said) == 1
    assert all(trial.state == TrialState.COMPLETE for trial in study.trials)


@pytest.mark.parametrize("shared", [False, True])
def test_only_studies_that_share_a_parameter_cause_a_warning(shared, recwarn):
    storage = optuna.storages.InMemoryStorage()
    for number in range(4):
        other = optuna.create_study(storage=storage, study_name=f"other {number}")
        other.optimize(lambda trial: trial.suggest_float("unrelated", 0, 1), n_trials=3)
    if shared:  # the same name with a step, which is another parameter to the model
        other = optuna.create_study(storage=storage, study_name="near")
        other.optimize(lambda trial: trial.suggest_float("x", 0, 1, step=0.25), n_trials=3)
    study = optuna.create_study(
        storage=storage, study_name="mine", sampler=small_sampler(storage=storage, seed=0)
    )
    study.optimize(objective(), n_trials=3)
    said = [str(one.message) for one in recwarn if one.category is LiBOSamplerWarning]
    assert len(said) == int(shared)
    assert all("'near'" in words and "'other " not in words for words in said)


# --- suggestions ------------------------------------------------------------------------------------------


def test_same_seed_gives_same_trials():
    def run(seed: int | None) -> list[dict]:
        study = optuna.create_study(sampler=small_sampler(seed=seed))
        study.optimize(objective(), n_trials=7)
        return all_params(study)

    assert run(3) == run(3)
    assert run(3) != run(4)
    assert run(None) != run(None)


def test_running_trials_are_not_offered_again(monkeypatch):
    seen = watch_trials(monkeypatch)
    study = optuna.create_study(sampler=small_sampler(seed=0))
    study.optimize(objective(), n_trials=5)
    asked = [study.ask(DISTRIBUTIONS).params for _ in range(4)]
    assert [trial.state for trial in seen[-1]] == ["complete"] * 5 + ["pending"] * 3
    assert [trial.params for trial in seen[-1][5:]] == asked[:3]
    # Chosen values count before the trial has suggested them, since another thread may ask earlier.
    started = [study.ask().number for _ in range(2)]
    for number in started:
        offered = study.sampler.sample_relative(study, study.trials[number], dict(DISTRIBUTIONS))
        assert offered not in asked
        asked.append(offered)
    assert [trial.params for trial in seen[-1][5:]] == asked[:5]
    points = np.asarray([SPACE.to_unit(params) for params in asked])
    assert (np.abs(points[:, None] - points[None]).max(-1) + np.eye(6)).min() > 0.01


def test_threads_suggest_distinct_trials():
    study = optuna.create_study(sampler=small_sampler(past_studies=[random_study()], seed=0))
    study.optimize(objective(), n_trials=12, n_jobs=3)
    assert len(study.trials) == 12
    assert len({tuple(sorted(params.items())) for params in all_params(study)}) == 12


def test_failed_trials_are_avoided_and_not_observations():
    study = optuna.create_study(sampler=small_sampler(seed=1))
    study.optimize(objective(), n_trials=6)
    best = study.best_params
    trial = study.ask()  # the model would choose points near the best; let these fail
    study.tell(trial, state=TrialState.FAIL)
    study.enqueue_trial({**best, "x": min(best["x"] + 0.03, 1.0)})
    failing = study.ask(DISTRIBUTIONS)
    study.tell(failing, state=TrialState.FAIL)
    scored = [SPACE.to_unit(t.params) for t in study.trials if t.state == TrialState.COMPLETE]
    failed = SPACE.to_unit(failing.params)
    for _ in range(5):
        point = SPACE.to_unit(study.ask(DISTRIBUTIONS).params)
        to_failure = np.linalg.norm(point - failed)
        nearest = min(np.linalg.norm(point - other) for other in scored)
        assert to_failure >= 0.1 * math.sqrt(3) or to_failure >= nearest
    _, learned = study.sampler._chooser.knowledge(study, SPACE)
    assert learned.num_tasks == 0


def test_reported_values_of_pruned_trials_are_used():
    """All trials are pruned, and their reported values are used."""

    def pruned(trial: optuna.Trial) -> float:
        trial.report(objective()(trial), 0)
        raise optuna.TrialPruned

    study = optuna.create_study(sampler=small_sampler(seed=0))
    study.optimize(pruned, n_trials=20)
    reported = [trial.intermediate_values[0] for trial in study.trials]
    assert min(reported[4:]) < LEVEL
    assert np.median(reported[10:]) < np.median(reported[:4])


def test_enqueued_trials_are_run_unchanged_and_observed(monkeypatch):
    seen = watch_trials(monkeypatch)
    study = optuna.create_study(sampler=small_sampler(seed=0))
    study.optimize(objective(), n_trials=4)
    study.enqueue_trial({"x": 0.7, "rate": 2e-3, "depth": 3})
    study.enqueue_trial({"x": 0.25})
    study.optimize(objective(), n_trials=3)
    assert study.trials[4].params == {"x": 0.7, "rate": 2e-3, "depth": 3}
    assert study.trials[5].params["x"] == 0.25
    assert [trial.params for trial in seen[-1]] == all_params(study)[:6]
    study.enqueue_trial({"x": 1.5, "rate": 2e-3, "depth": 3})
    with pytest.warns(UserWarning, match="out of range"):
        study.optimize(objective(), n_trials=1)
    study.optimize(objective(), n_trials=1)
    assert 0 <= study.trials[-1].params["x"] <= 1
    assert [trial.number for trial in seen[-1]] == list(range(7))  # without the one outside of the space


# --- independent sampling ---------------------------------------------------------------------------------


def test_conditional_parameters_are_sampled_independently_with_one_warning():
    def conditional(trial: optuna.Trial) -> float:
        value = objective()(trial)
        if trial.number % 2:
            return value + trial.suggest_float("odd", 0, 1)
        return value + trial.suggest_int("even", 0, 9)

    study = optuna.create_study(sampler=small_sampler(seed=0))
    with pytest.warns(LiBOSamplerWarning, match="'(odd|even)' is sampled by RandomSampler") as said:
        study.optimize(conditional, n_trials=8)
    assert len(said) == 1
    assert {len(trial.params) for trial in study.trials} == {4}
    silent = small_sampler(seed=0, warn_independent_sampling=False)
    optuna.create_study(sampler=silent).optimize(conditional, n_trials=4)


def test_unsupported_parameters_are_sampled_independently():
    def wide(trial: optuna.Trial) -> float:
        return objective()(trial) + (trial.suggest_int("wide", 0, 2**50) < 0)

    study = optuna.create_study(sampler=small_sampler(seed=0))
    with pytest.warns(LiBOSamplerWarning, match="'wide'.*not supported by the model") as said:
        study.optimize(wide, n_trials=5)
    assert len(said) == 1


# --- the memory -------------------------------------------------------------------------------------------


def test_memory_is_shared_with_the_tuner(tmp_path):
    path = tmp_path / "memory.db"
    with LiBOSamplerAt(path) as sampler:
        study = optuna.create_study(study_name="by optuna", sampler=sampler)
        study.optimize(objective(), n_trials=1)
        assert not path.exists()  # nothing is learned from one score, and the space may still change
        study.optimize(objective(), n_trials=15)
    with Tuner(SPACE, path, maximise=False, sizes=SIZES) as tuner:
        (task,) = tuner.memory.tasks()
        held = tuner.memory.trials(task.id)
        assert (task.name, task.source) == ("by optuna", "added")
        assert [trial.score for trial in held] == [trial.value for trial in study.trials]
        assert [trial.params for trial in held] == [trial.params for trial in study.trials]
        assert tuner.knowledge()[1] == 1
        with tuner.task("by tuner", budget=3) as own:
            for trial in own:
                own.tell(trial, loss(**trial.params))
    with LiBOSamplerAt(path) as sampler:
        study = optuna.create_study(study_name="by tuner", sampler=sampler)
        study.optimize(objective(), n_trials=3)
        assert sampler._chooser.knowledge(study, SPACE)[1].num_tasks == 2
    assert study.best_value < LEVEL
    with Memory.open_existing(path) as memory:
        assert [task.name for task in memory.tasks()] == ["by optuna", "by tuner", "by tuner (2)"]


def test_resumed_study_stays_one_task(tmp_path):
    """Two workers in turn, then a new study of the same name."""
    storage, path = optuna.storages.InMemoryStorage(), tmp_path / "memory.db"
    optuna.create_study(storage=storage, study_name="s")
    for _ in range(2):
        with LiBOSamplerAt(path) as sampler:
            study = optuna.load_study(study_name="s", storage=storage, sampler=sampler)
            study.optimize(objective(), n_trials=3)
            study.tell(study.ask(DISTRIBUTIONS), state=TrialState.FAIL)
            assert sampler._chooser.knowledge(study, SPACE)[1].num_tasks == 0
    with LiBOSamplerAt(path) as sampler:
        again = optuna.create_study(study_name="s", sampler=sampler)
        again.optimize(objective(), n_trials=2)
        assert sampler._chooser.knowledge(again, SPACE)[1].num_tasks == 1
    with Memory.open_existing(path) as memory:
        tasks, trials = memory.snapshot()
        assert [task.name for task in tasks] == ["s", "s (2)"]
        assert [trial.number for trial in trials] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
        assert [trial.state for trial in trials[:8]] == [*(["complete"] * 3), "failed"] * 2


def test_memory_of_another_problem_raises_or_is_skipped(tmp_path):
    with Memory.open(tmp_path / "up.db", space=SPACE, maximise=True):
        pass
    study = optuna.create_study(sampler=small_sampler(tmp_path / "up.db"))
    with pytest.raises(MemoryMismatch, match=r"the study minimises but the memory .* maximises"):
        study.ask(DISTRIBUTIONS)
    other = SearchSpace(alpha=Float(0, 2))
    with Memory.open(tmp_path / "other.db", space=other, maximise=False) as memory:
        memory.add_finished(memory.task("past").id, [({"alpha": 1.0}, 1.0)])
        study = optuna.create_study(sampler=small_sampler(memory, seed=0))
        with pytest.warns(LiBOSamplerWarning, match="has no parameter of the study(?s:.*)'alpha'") as said:
            study.optimize(objective(), n_trials=4)
        assert len(said) == 1
        assert [task.name for task in memory.tasks()] == ["past"] and memory.spaces == [other]


def test_memory_gets_all_trials_with_hyperband(tmp_path):
    """Optuna passes only the trials of one Hyperband bracket to the sampler."""

    def reporting(trial: optuna.Trial) -> float:
        value = objective()(trial)
        for step in range(9):
            trial.report(value + 1 / (step + 1), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=9)
    with LiBOSamplerAt(tmp_path / "memory.db") as sampler:
        study = optuna.create_study(study_name="h", sampler=sampler, pruner=pruner)
        study.optimize(reporting, n_trials=12)
    assert {TrialState.PRUNED, TrialState.COMPLETE} == {trial.state for trial in study.trials}
    with Memory.open_existing(tmp_path / "memory.db") as memory:
        (task,) = memory.tasks()
        assert [trial.number for trial in memory.trials(task.id)] == list(range(12))


# --- pickling and seeds -----------------------------------------------------------------------------------


def test_sampler_can_be_pickled(tmp_path):
    sampler = small_sampler(tmp_path / "memory.db", seed=5)
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective(), n_trials=5)
    copy = pickle.loads(pickle.dumps(sampler))
    asked = [
        one.sample_relative(study, study.trials[-1], dict(DISTRIBUTIONS)) for one in (sampler, copy, copy)
    ]
    assert asked[0] == asked[1] == asked[2]
    sampler.close()
    copy.close()
    with Memory.open(None, space=SPACE) as memory, pytest.raises(TypeError, match="memory in RAM"):
        pickle.dumps(small_sampler(memory))


def test_reseeding_changes_the_next_suggestion():
    study = optuna.create_study(sampler=small_sampler(seed=5))
    study.optimize(objective(), n_trials=5)
    trial = study.ask()
    frozen = study.trials[trial.number]
    before = study.sampler.sample_relative(study, frozen, dict(DISTRIBUTIONS))
    assert before == study.sampler.sample_relative(study, frozen, dict(DISTRIBUTIONS))
    study.sampler.reseed_rng()
    assert before != study.sampler.sample_relative(study, frozen, dict(DISTRIBUTIONS))
