"""The tuner's choices over several tasks, in both modes: equal to those of the simulator with the same key,
unchanged if the tuner is reopened, and unchanged if the sign of the scores and the direction change."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import jlibo
from jlibo.tune import arrays, modes
from jlibo.tune.model import make_model
from tests.tune.problem import CONFIGS, POINTS, SIZES, SPACE, make_tuner, play

NUM_TASKS, HORIZON, SEED = 4, 12, 3
PEAKS = 0.5 + 0.3 * np.sin(np.arange(NUM_TASKS))
# Scores such as accuracies, in tasks that are similar but not equal.
VALUES = 0.7 + 0.1 * np.cos(3 * POINTS[:, 0]) - (POINTS[:, 1] - PEAKS[:, None]) ** 2
VALUES *= np.array([1.0, 0.5, 2.0, 1.0])[:, None]


@pytest.fixture
def all_scores(monkeypatch):
    """The tuner clips scores far below the median, and the simulator does not."""
    monkeypatch.setattr(arrays, "FARTHEST", np.inf)


def simulate(mode, scaling):
    return jlibo.run_lifelong(
        jlibo.TableEnv(VALUES, POINTS),
        make_model(SPACE, mode=mode, sizes=SIZES).features,
        modes.make_policy(mode),
        modes.make_learner(mode),
        num_tasks=NUM_TASKS,
        horizon=HORIZON,
        scaling=scaling,
        repeats=False,
        key=jax.random.key(SEED),
    )


def tune(tuner, number):
    actions = []
    with tuner.task(f"task {number}", budget=HORIZON) as task:
        for trial in task:
            actions.append(CONFIGS.index(trial.params))
            task.tell(trial, VALUES[number, actions[-1]])
        explored = [trial.explored for trial in task.trials]
    return actions, explored


def curve(params, peak=1.0):
    """Return a score with its maximum at beta = 10**peak, and a weak effect of alpha."""
    return 1 - (np.log10(params["beta"]) - peak) ** 2 / 9 - 0.02 * (params["alpha"] - 0.5) ** 2


def replay(tuner, result, number):
    """Add a task of the simulator to the tuner, as if the tuner had run it."""
    record = tuner.memory.task(f"task {number}", budget=HORIZON)
    for action, is_forced in zip(result.actions[number], result.explored[number], strict=True):
        trial = tuner.memory.add_trial(record.id, CONFIGS[int(action)], explored=bool(is_forced), owner=None)
        tuner.memory.tell(trial.id, VALUES[number, int(action)])


@pytest.mark.parametrize("mode", modes.MODES)
@pytest.mark.usefixtures("all_scores")
def test_actions_equal_simulation_from_the_second_task(mode):
    """In the first task the simulator uses an initial scale, while the tuner uses the scale of the scores, so
    the first task is replayed. From the second task on both are equal."""
    result = simulate(mode, modes.make_scaling())
    tuner = make_tuner(mode=mode, candidates=CONFIGS, seed=SEED)
    replay(tuner, result, 0)
    for number in range(1, NUM_TASKS):
        actions, explored = tune(tuner, number)
        assert actions == result.actions[number].tolist()
        assert explored == result.explored[number].tolist()


@pytest.mark.parametrize("mode", modes.MODES)
@pytest.mark.usefixtures("all_scores")
def test_actions_equal_simulation_from_the_first_task(mode):
    """The initial scale has hardly any weight, so that the first task also uses the scale of its scores."""
    scaling = jlibo.Standardise(weight=1e-9)
    result = simulate(mode, scaling)
    tuner = make_tuner(mode=mode, candidates=CONFIGS, seed=SEED)
    tuner.model = dataclasses.replace(tuner.model, scaling=scaling)
    for number in range(NUM_TASKS):
        actions, explored = tune(tuner, number)
        assert actions == result.actions[number].tolist()
        assert explored == result.explored[number].tolist()


@pytest.mark.parametrize("mode", modes.MODES)
def test_reopened_tuner_equals_one_that_stayed_open(tmp_path, mode):
    def run(path, num_at_once):
        asked = []
        for name, peak in (("one", 0.5), ("two", 1.0)):
            for _ in range(0, 8, num_at_once):
                with (
                    make_tuner(memory=path, mode=mode, seed=5) as tuner,
                    tuner.task(name, budget=HORIZON) as task,
                ):
                    asked += play(task, num_at_once, lambda params, peak=peak: curve(params, peak))
        return asked

    assert run(tmp_path / "often.db", 2) == run(tmp_path / "once.db", 8)


@pytest.mark.parametrize("mode", modes.MODES)
def test_minimising_equals_maximising_the_negative(mode):
    runs = []
    for maximise, sign in ((True, 1), (False, -1)):
        tuner = make_tuner(maximise=maximise, mode=mode)
        asked = []
        for name, peak in (("one", 0.5), ("two", 1.0)):
            task = tuner.task(name, budget=HORIZON)
            asked += play(task, 8, lambda params, peak=peak, sign=sign: sign * curve(params, peak))
        runs.append((asked, task.best.params))
    assert runs[0] == runs[1]


def test_paper_mode_explores_as_scheduled():
    tuner = make_tuner(mode="paper")
    counts = tuner.model.learner.exploration.counts(3, 12)
    for number in range(3):
        with tuner.task(f"task {number}", budget=12) as task:
            for trial in task:
                # A failed exploration step gives no score, so it is replaced by another one.
                task.tell(trial, math.nan if trial.number == 0 else curve(trial.params))
        explored = [trial.explored for trial in task.trials]
        assert explored == [True] * (counts[number] + 1) + [False] * (11 - counts[number])


@pytest.mark.parametrize("mode", modes.MODES)
def test_importance_is_finite_for_constant_scores(mode):
    tuner = make_tuner(mode=mode)
    for number in range(2):
        tuner.add_task(f"past {number}", CONFIGS[:20], [0.1] * 20)
    importance = tuner.importance()
    assert sum(importance.values()) == pytest.approx(1)
    assert all(math.isfinite(share) for share in importance.values())
