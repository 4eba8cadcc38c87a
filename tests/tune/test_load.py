"""The tuner under load: long tasks, many past tasks, and repeated learning while scores arrive."""

import math
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.meta import AdaptiveMetaKGL
from jlibo.tune import UntoldTrialsWarning, arrays, engine, learning, modes
from jlibo.tune.history import TaskHistory
from jlibo.tune.memory import rows as rows
from jlibo.tune.memory.lines import import_lines
from jlibo.tune.memory.memory import Memory
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.model import make_model
from tests.tune.problem import SIZES, SPACE, score


def configs(num, seed=0):
    return [SPACE.from_unit(point) for point in np.random.default_rng(seed).uniform(size=(num, 2))]


def long_task(tuner, num_trials, seed=0):
    record = tuner.memory.task("long", budget=50)
    tuner.memory.add_finished(record.id, [(params, score(params)) for params in configs(num_trials, seed)])
    return tuner.task("long")


def teach(tuner, num_tasks, num_trials=5):
    for number in range(num_tasks):
        given = configs(num_trials, number)
        tuner.add_task(f"past {number}", given, [score(params, 0.5 + 0.01 * number) for params in given])


# --- the task's own trials ----------------------------------------------------------------------------------


OUTLIERS, NUMS_PENDING = (None, -1e9, 1e4), (0, 5, 90)
COMPRESSED = [
    # Quick: all pairs of two values, but not all triples.
    pytest.param(
        outlier,
        num_pending,
        mode,
        marks=[] if (i + j + k) % 2 == 0 else [pytest.mark.slow],
        id=f"{outlier}-{num_pending}-{mode}",
    )
    for i, outlier in enumerate(OUTLIERS)
    for j, num_pending in enumerate(NUMS_PENDING)
    for k, mode in enumerate(modes.MODES)
]


@pytest.mark.parametrize(("outlier", "num_pending", "mode"), COMPRESSED)
def test_compressed_rows_equal_one_row_per_trial(outlier, num_pending, mode):
    """Mean, standard deviation, component weights and the chosen candidate are equal."""
    rng = np.random.default_rng(3)
    num = 400
    points = np.concatenate(
        [rng.uniform(size=(num - 50, 2)), np.repeat(rng.uniform(size=(5, 2)), 10, axis=0)]
    )
    scores = 3e4 * np.cos(3 * points[:, 0]) + 1e4 * points[:, 1] + 500 * rng.normal(size=num)
    if outlier is not None:
        scores[[3, 200]] = outlier * 1e4
    states = np.full(num, "complete", object)
    states[7:27] = "failed"
    states[num - num_pending :] = "pending"  # at the end, where the order does not matter
    told, pending = states == "complete", states == "pending"
    none = np.zeros(num, bool)
    own = arrays.TrialArrays(points, np.where(told, scores, 0.0), told, pending, none, none)
    with jax.enable_x64(True):
        model = make_model(SPACE, mode=mode, sizes=SIZES)
        features, policy, scaling = model.features, model.policy, model.scaling
        knowledge = learning.learn_records(model, [], [], maximise=True).knowledge
        one_by_one, log_unit = arrays.own_rows(own, maximise=True)
        values = arrays.feature_values(features, points)
        in_base = told & (np.arange(num) < 340)  # the others have one row each
        base = arrays.Factor.of(values[in_base].T @ values[in_base])
        compressed, same_log_unit = arrays.compressed_trials(values, base, in_base, own, maximise=True)
        assert same_log_unit == log_unit
        assert len(compressed.scores) == 2 * features.num_features + arrays.NUM_RECENT
        candidates = features(jnp.asarray(rng.uniform(size=(50, 2))))
        answers = [
            engine.suggest(
                *(policy, scaling, knowledge, trials, candidates, jnp.ones(50, bool)),
                jnp.asarray(log_unit),
                key=jax.random.key(0),
            )
            for trials in (one_by_one.with_features(features), compressed)
        ]
        leaves = [jax.tree.leaves(answer) for answer in answers]
        for expected, found in zip(*leaves, strict=True):
            assert np.asarray(found) == pytest.approx(np.asarray(expected), rel=1e-6, abs=1e-9)


def test_ask_reads_only_new_trials(monkeypatch):
    tuner = jlibo.Tuner(SPACE, sizes=SIZES)
    task = long_task(tuner, 600)
    task.tell(task.ask(), 0.5)
    read = []
    checked_trial = rows.checked_trial
    monkeypatch.setattr(rows, "checked_trial", lambda *row: read.append(1) or checked_trial(*row))
    counts = []
    for _ in range(5):
        trial = task.ask()
        counts.append(len(read))
        task.tell(trial, score(trial.params))
        read.clear()
    assert max(counts) <= 4


def test_long_task_is_not_recompiled(monkeypatch, count_traces):
    suggest, suggestions = count_traces(engine.suggest)
    monkeypatch.setattr(engine, "suggest", suggest)
    sizes = {"num_basis": 2, "num_pair_basis": 2}  # not used by other tests
    tuner = jlibo.Tuner(SPACE, learner=AdaptiveMetaKGL(select=False, num_steps=2), sizes=sizes)
    teach(tuner, 1)
    task = long_task(tuner, 300)
    record = tuner.memory.task("long")
    for number in range(4):
        task.ask()
        pairs = [(params, score(params)) for params in configs(400, 10 + number)]
        tuner.memory.add_finished(record.id, pairs)
    assert suggestions.count == 1


@pytest.mark.parametrize("mode", modes.MODES)
def test_long_task_equals_uncompressed(mode, monkeypatch):
    def run():
        with jax.enable_x64(True):
            tuner = jlibo.Tuner(SPACE, sizes=SIZES, mode=mode)
            task = long_task(tuner, 320)
            record = tuner.memory.task("long")
            tuner.memory.add_finished(record.id, [(c, score(c)) for c in configs(9, 1)], explored=True)
            asked = []
            for _ in range(8):
                trial = task.ask()
                asked.append(trial.params)
                task.tell(trial, score(trial.params))
            return asked

    compressed = run()
    monkeypatch.setattr(arrays, "most_rows", lambda num_features: 512)
    assert compressed == run()


@pytest.mark.parametrize("seed", range(3))
def test_incremental_history_equals_full_read(seed):
    rng = np.random.default_rng(seed)
    memory = Memory.open(None, space=SPACE)
    record = memory.task("one", budget=3)
    features = SPACE.features(**SIZES)
    history = TaskHistory(memory, record.id, SPACE, features)
    pending = []
    for step in range(60):
        action = rng.integers(4)
        if step == 40:  # an import may fill gaps in the numbers
            line = '{"task": "one", "number": %d, "params": {"alpha": 0.5, "beta": 1.0}, "state": "failed", '
            for number in (5000, 2500):
                import_lines(memory, [(line + '"score": null}') % number])
                history.refresh()
        elif action <= 1:
            params = SPACE.from_unit(rng.uniform(size=2))
            pending.append(memory.add_trial(record.id, params, explored=bool(rng.integers(2)), owner=None).id)
        elif action == 2 and pending:
            told = pending.pop(rng.integers(len(pending)))
            memory.tell(told, None if rng.integers(3) == 0 else rng.normal())
        elif action == 3:
            memory.add_finished(record.id, [(params, rng.normal()) for params in configs(30, step)])
        if rng.integers(2):
            history.refresh()
            fresh = TaskHistory(memory, record.id, SPACE, features)
            fresh.refresh()
            for name in ("points", "scores", "is_told", "is_pending", "explored"):
                assert np.array_equal(getattr(history.trials, name), getattr(fresh.trials, name))
            assert (history.last_id, history.pending_ids) == (fresh.last_id, fresh.pending_ids)
            old, new = history.compressed(), fresh.compressed()
            told = old[0].compressed.moments.count
            assert told == new[0].compressed.moments.count == history.trials.is_told.sum()
            for own in (old[0], new[0]):
                gram = own.features[own.told].T @ own.features[own.told]
                values = arrays.feature_values(features, history.trials.points[history.trials.is_told])
                assert gram == pytest.approx(values.T @ values, rel=1e-4, abs=1e-3)
    assert len(history) > 100
    memory.delete_task("one")
    history.refresh()
    assert len(history) == 0 and history.trials.points.shape == (0, 2)


# --- past tasks ---------------------------------------------------------------------------------------------


def records(num_tasks, num_trials, explored=0):
    tasks = [TaskRecord(n, f"task {n}", None, "tuner", 0, "") for n in range(num_tasks)]
    trials = [
        TrialRecord(
            id=0,
            task_id=n,
            number=m,
            params=params,
            state="complete",
            score=float(-abs(m - 700)),
            explored=m < explored,
            owner=None,
            created="",
            finished="",
        )
        for n in range(num_tasks)
        for m, params in enumerate(configs(num_trials, n))
    ]
    return tasks, trials


def test_past_tasks_are_bounded_in_number_and_length():
    features = SPACE.features(**SIZES)
    for count, size in ((8, 8), (9, 32), (33, 128), (129, 256), (530, 512)):
        tasks, trials = records(count, 3)
        past, num_tasks = arrays.past_trials(SPACE, features, tasks, trials, maximise=True)
        assert num_tasks == count and past.scores.shape == (size, arrays.LEAST_TRIALS)
    latest, _ = arrays.past_trials(SPACE, features, tasks[18:], trials, maximise=True)
    assert np.array_equal(past.features, latest.features)
    tasks, trials = records(1, 2000, explored=45)
    past, _ = arrays.past_trials(SPACE, features, tasks, trials, maximise=True)
    assert past.present.sum() == arrays.MOST_TRIALS == past.scores.shape[1]
    assert past.explored.sum() == 45
    kept = arrays.thinned(trials, maximise=True)
    assert [trial.number for trial in kept] == sorted({trial.number for trial in kept})
    assert {700, *range(45)} <= {trial.number for trial in kept}
    assert np.diff([trial.number for trial in kept if trial.number > 45]).max() < 12
    assert arrays.thinned(trials[:200], maximise=True) == trials[:200]


@pytest.mark.parametrize("learner", [jlibo.MetaKGL, jlibo.MetaKeL])
def test_learner_of_the_latest_tasks_learns_from_them_alone(learner):
    """The padding of the past is that of all tasks, so the results differ by round-off."""
    numbers = dict(lam=0.02, data="all", tol=1e-9) | ({"omega": 0.02} if learner is jlibo.MetaKGL else {})
    tasks, trials = records(11, 12)
    capped, plain = (
        make_model(SPACE, learner=learner(**numbers, max_past=most), sizes=SIZES) for most in (3, None)
    )
    with jax.enable_x64(True):
        found = learning.learn_records(capped, tasks, trials, maximise=True)
        expected = learning.learn_records(plain, tasks[-3:], trials, maximise=True).knowledge
        other = learning.learn_records(plain, tasks, trials, maximise=True).knowledge
    assert found.num_tasks == 11
    np.testing.assert_array_equal(found.knowledge.support, expected.support)
    np.testing.assert_allclose(found.knowledge.prior.covariance, expected.prior.covariance, atol=1e-6)
    assert np.abs(other.prior.covariance - expected.prior.covariance).max() > 1e-3


def test_learning_is_not_repeated_for_few_new_scores(monkeypatch):
    learner = AdaptiveMetaKGL(select=False, num_steps=2)  # quick to compile
    tuner = jlibo.Tuner(SPACE, learner=learner, sizes=SIZES)
    teach(tuner, 6, 50)
    calls = []
    learn = learning._learn
    monkeypatch.setattr(learning, "_learn", lambda *args: calls.append(1) or learn(*args))
    task = tuner.task("new", budget=50)
    task.ask()
    assert len(calls) == 1
    past = tuner.memory.task("past 0")
    for number, params in enumerate(configs(12, 99)):
        tuner.memory.add_finished(past.id, [(params, 0.5)])
        task.ask()
        # 300 scores are known: the seventh new one is more than a fiftieth of them.
        assert len(calls) == (1 if number < 6 else 2)
    tuner.importance()  # `importance` learns again for any new score
    assert len(calls) == 3
    tuner.add_task("two scores", configs(2), [1.0, 2.0])
    task.ask()
    assert len(calls) == 4
    tuner.memory.delete_task("two scores")
    task.ask()
    assert len(calls) == 5


def test_change_of_at_most_a_fiftieth_is_ignored():
    counts = {1: 20, 2: 2}
    assert not learning.has_changed(counts, counts)
    assert learning.has_changed(counts, {1: 21, 2: 2})
    assert learning.has_changed(counts, {1: 22})
    assert not learning.has_changed(counts, {**counts, 3: 1})  # nothing is learned from one score
    assert not learning.has_changed({1: 1000}, {1: 1020})
    assert learning.has_changed({1: 1000}, {1: 1021})


def test_concurrent_threads_learn_once(monkeypatch):
    tuner = jlibo.Tuner(SPACE, sizes=SIZES)
    teach(tuner, 2)
    calls, barrier = [], threading.Barrier(4)

    def learn(*args, **kwargs):
        calls.append(1)
        threading.Event().wait(0.2)  # the others arrive during the computation
        return learning.Learned("knowledge", 2)

    def ask():
        barrier.wait()
        answers.append(tuner.knowledge())

    answers = []
    monkeypatch.setattr("jlibo.tune.tuner.learn_records", learn)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [("knowledge", 2)] * 4 and len(calls) == 1


# --- missing `tell` -----------------------------------------------------------------------------------------


def test_loop_without_tell_warns():
    task = jlibo.Tuner(SPACE, sizes=SIZES).task("silent", budget=4)

    def loop():
        for trial in task:
            if trial.number == 1:
                task.tell(trial, math.nan)

    with pytest.warns(UntoldTrialsWarning, match=r"'silent' .* 3 of its 4 trials .* task\.tell"):
        loop()


def test_loop_with_tell_does_not_warn(recwarn):
    tuner = jlibo.Tuner(SPACE, sizes=SIZES)
    other = tuner.task("shared", budget=4)
    other.ask()  # still running
    for trial in (task := tuner.task("shared")):
        task.tell(trial, 1.0)
    assert len(task.trials) == 3
    assert not [one for one in recwarn if issubclass(one.category, UserWarning)]
