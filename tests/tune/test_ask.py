"""The next configuration: any learner and policy, listed configurations, and forced exploration."""

import dataclasses
import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution

import jlibo
from jlibo.integrations.optuna.sampler import LiBOSampler
from jlibo.integrations.optuna.trials import with_explored
from jlibo.tune import Categorical, Float, Int, SearchSpace, arrays
from jlibo.tune.ask import Candidates, next_config
from jlibo.tune.history import GivenHistory
from jlibo.tune.learning import learn_records
from jlibo.tune.memory.memory import Memory
from jlibo.tune.memory.records import TrialRecord
from jlibo.tune.model import make_model
from tests.contracts.table import OneOf
from tests.tune.problem import SIZES, SPACE

CONFIGS = [SPACE.from_unit(point) for point in SPACE.sample_unit(24, rng=np.random.default_rng(0))]
POINTS = np.asarray([SPACE.to_unit(params) for params in CONFIGS])
NUM_TASKS, HORIZON, SEED = 3, 8, 3
PEAKS = 0.5 + 0.3 * np.sin(np.arange(NUM_TASKS))
VALUES = 0.7 + 0.1 * np.cos(3 * POINTS[:, 0]) - (POINTS[:, 1] - PEAKS[:, None]) ** 2
SCALING = jlibo.Standardise(weight=1e-9)  # the initial scale has hardly any weight

LEARNERS = {
    "MetaKGL": jlibo.MetaKGL(0.02, 0.05),
    "MetaKGL, all data": jlibo.MetaKGL(0.02, 0.05, data="all"),
    "MetaKeL": jlibo.MetaKeL(0.02),
    "FederatedMetaKGL": jlibo.FederatedMetaKGL(0.02, 0.05, 0.5),
    "FixedPrior": jlibo.FixedPrior(),
    "SelfTunedMetaKGL": jlibo.SelfTunedMetaKGL(),
    "AdaptiveMetaKGL": jlibo.AdaptiveMetaKGL(num_lams=4, num_steps=4),
}
QUICK = ("MetaKGL", "MetaKeL", "FixedPrior", "AdaptiveMetaKGL")
"""The others are variants of these. `tests/meta` checks for all that learning at once equals updating."""
POLICIES = {"GPUCB": jlibo.GPUCB(2.0, 0.1), "LogEI": jlibo.LogExpectedImprovement(0.1)}


# --- any learner and policy ---------------------------------------------------------------------------------


@cache
def simulate(policy, names):
    """Return the results of the simulator by learner. All are one program, to which the policy is data."""
    number = jnp.asarray(list(POLICIES).index(policy))
    return jlibo.run_agents(
        jlibo.TableEnv(VALUES, POINTS),
        SPACE.features(**SIZES),
        OneOf(list(POLICIES.values()), number),
        {name: LEARNERS[name] for name in names},
        num_tasks=NUM_TASKS,
        horizon=HORIZON,
        scaling=SCALING,
        repeats=False,
        key=jax.random.key(SEED),
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "learner", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in LEARNERS]
)
def test_tuner_equals_simulation_for_every_learner_and_policy(learner, policy):
    """Runs in float64, so that round-off does not decide ties."""
    names = tuple(name for name in LEARNERS if (name in QUICK) == (learner in QUICK))
    with jax.enable_x64(True):
        result = simulate(policy, names)[learner]
        parts = dict(learner=LEARNERS[learner], policy=POLICIES[policy])
        tuner = jlibo.Tuner(SPACE, **parts, candidates=CONFIGS, seed=SEED, sizes=SIZES)
        tuner.model = dataclasses.replace(tuner.model, scaling=SCALING)
        for number in range(NUM_TASKS):
            task = tuner.task(f"task {number}", budget=HORIZON)
            actions = []
            for trial in task:
                actions.append(CONFIGS.index(trial.params))
                task.tell(trial, VALUES[number, actions[-1]])
            assert actions == result.actions[number].tolist()
            assert [trial.explored for trial in task.trials] == result.explored[number].tolist()
        assert sum(tuner.importance().values()) == pytest.approx(1)
    assert LEARNERS[learner].__class__.__name__ in repr(tuner)


def test_thompson_sampling_depends_on_the_seed_alone():
    """The simulator draws with another factor of the same covariance, so its draws are different ones."""

    def asked(seed):
        tuner = jlibo.Tuner(SPACE, policy=jlibo.GPTS(0.1), candidates=CONFIGS, seed=seed, sizes=SIZES)
        task, chosen = tuner.task("one", budget=HORIZON), []
        for trial in task:
            chosen.append(CONFIGS.index(trial.params))
            task.tell(trial, VALUES[0, chosen[-1]])
        return chosen

    first, again, other = asked(0), asked(0), asked(1)
    assert first == again and first != other and len(set(first)) == HORIZON


def test_missing_parts_default_to_the_mode():
    paper = make_model(SPACE, mode="paper", learner=LEARNERS["MetaKeL"], sizes=SIZES)
    assert isinstance(paper.policy, jlibo.GPUCB) and paper.learner is LEARNERS["MetaKeL"]
    adaptive = make_model(SPACE, policy=POLICIES["LogEI"], sizes=SIZES)
    assert isinstance(adaptive.learner, jlibo.AdaptiveMetaKGL) and adaptive.policy is POLICIES["LogEI"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"learner": jlibo.MetaKGL}, r"`learner` should be an AbstractMetaLearner, such as"),
        ({"learner": POLICIES["GPUCB"]}, r"`learner` should be an AbstractMetaLearner, .* \(GPUCB\)"),
        ({"policy": "GPUCB"}, r"`policy` should be an AbstractPolicy, such as .* but got 'GPUCB'"),
        ({"policy": LEARNERS["MetaKeL"]}, r"`policy` should be an AbstractPolicy"),
        (
            {"learner": jlibo.FixedPrior(jlibo.Prior(np.zeros(5), np.ones(5)))},
            r"`learner` should be one whose prior is over the \d+ features .* but got 5 features",
        ),
        (
            {"learner": jlibo.MetaKGL(0.1, 0.1, exploration=jlibo.NoExploration())},
            r"`exploration` should be a schedule that explores",
        ),
        ({"policy": jlibo.GPUCB(2.0, 1e-30)}, r"`noise_std` should be"),
        ({"mode": "other", "learner": LEARNERS["MetaKeL"]}, r"`mode` should be 'adaptive' or 'paper'"),
        ({"candidates": []}, r"`candidates` should be at least one configuration"),
        ({"candidates": 3}, r"`candidates` should be a list of mappings"),
        ({"candidates": [{"alpha": 0.5}]}, r"none for 'beta'"),
    ],
)
def test_invalid_parts_raise(arguments, words):
    with pytest.raises(ValueError, match=words):
        jlibo.Tuner(SPACE, sizes=SIZES, **arguments)


# --- listed configurations ----------------------------------------------------------------------------------

LISTED = SearchSpace(
    rate=Float(1e-7, 10, log=True),
    share=Float(-0.3, 0.7),
    width=Int(1, 2**40, log=True),
    depth=Int(-5, 10**6),
    kind=Categorical(["a", None, True, 1, 1.5]),
)


@pytest.mark.parametrize("seed", range(3))
def test_listed_configurations_are_suggested_exactly(tmp_path, seed):
    rng = np.random.default_rng(seed)
    rates = [1e-7, 1e-3, 1e-2, 0.1, 3e-5, 10, *10 ** rng.uniform(-7, 1, 14)]
    configs = [
        {
            "rate": float(rate),
            "share": [0.1, 0.3, -0.3, 0.7, 1 / 3][place % 5],
            "width": [1, 3, 1023, 2**40, 2**39 + 1][place % 5],
            "depth": int(rng.integers(-5, 10**6)),
            "kind": ["a", None, True, 1, 1.5][int(rng.integers(5))],
        }
        for place, rate in enumerate(rates)
    ]
    path = tmp_path / "memory.db"
    sizes = {"num_basis": 1, "interactions": False}
    asked = []
    for _ in range(2):  # one half; the other half is run by another tuner
        with (
            jlibo.Tuner(LISTED, path, candidates=configs, sizes=sizes, seed=seed) as tuner,
            tuner.task("new", budget=20) as task,
        ):
            for number in range(10):
                trial = task.ask()
                asked.append(trial.params)
                task.tell(trial, float(number % 3))
            held = [trial.params for trial in task.trials]

    def typed(config):
        return sorted((name, repr(value)) for name, value in config.items())

    assert sorted(map(typed, asked)) == sorted(map(typed, configs))
    assert list(map(typed, held)) == list(map(typed, asked))


def test_alternatives_rank_all_listed_configurations():
    """If another process took the best configuration, the next one is also from the list."""
    configs = [{"alpha": share, "beta": 10.0**power} for share in (0.1, 0.3) for power in (-2, -1, 1)]
    model = make_model(SPACE, candidates=configs, sizes=SIZES)
    learned = learn_records(model, [], [], maximise=True)
    none = GivenHistory(arrays.trial_arrays(np.zeros((0, 2)), []), model.features, maximise=True)
    for budget in (1, 50):  # the adaptive mode explores in the first task
        chosen = next_config(
            model,
            learned,
            none,
            candidates=Candidates(model, seed=(0, 0)),
            budget=budget,
            key=jax.random.key(0),
        )
        ranking = [chosen.params, *chosen.others]
        assert sorted(map(repr, ranking)) == sorted(map(repr, configs))


# --- forced exploration -------------------------------------------------------------------------------------


def record(number, state="complete", explored=False):
    return TrialRecord(
        id=0,
        task_id=0,
        number=number,
        params=CONFIGS[number],
        state=state,
        score=0.0 if state == "complete" else None,
        explored=explored,
        owner=None,
        created="",
        finished=None,
    )


def is_forced(model, trials, budget=16):
    learned = learn_records(model, [], [], maximise=True)
    own = arrays.trial_arrays(arrays.unit_points(SPACE, trials), trials)
    return next_config(
        model,
        learned,
        GivenHistory(own, model.features, maximise=True),
        candidates=Candidates(model, seed=(0, len(trials))),
        budget=budget,
        key=jax.random.key(0),
    ).is_forced


def test_exploration_counts_explored_trials_that_did_not_fail():
    model = make_model(SPACE, mode="paper", sizes=SIZES)  # sqrt(16) = 4 steps in the first task
    assert is_forced(model, [])
    assert is_forced(model, [record(n, explored=True) for n in range(3)])
    assert not is_forced(model, [record(n, explored=True) for n in range(4)])
    assert not is_forced(model, [record(n, "pending", explored=True) for n in range(4)])
    assert is_forced(model, [record(n, "failed" if n == 2 else "complete", explored=True) for n in range(4)])
    assert is_forced(model, [record(n) for n in range(9)])  # none of them explored


def test_explored_flags_of_other_workers_are_inferred():
    own = [record(0), record(1, "failed"), record(2), record(3), record(4, "pending"), record(6)]
    flags = [trial.explored for trial in with_explored(own, {}, 3)]
    assert flags == [True, True, True, True, False, False]
    flags = [trial.explored for trial in with_explored(own, {0: False, 6: True}, 3)]
    assert flags == [False, True, True, True, True, True]


DISTRIBUTIONS = {"alpha": FloatDistribution(0, 1), "beta": FloatDistribution(1e-3, 1e3, log=True)}


@pytest.fixture
def _quiet_optuna():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def run_study(path, num_trials, *, failing=(), enqueued=(), name="new"):
    """Run a study in the paper's mode with a memory; return the stored flags of its trials."""
    sampler = LiBOSampler(path, seed=0, mode="paper", budget=16, sizes=SIZES)
    study = optuna.create_study(study_name=name, direction="maximize", sampler=sampler)
    for number in range(num_trials):
        if number in enqueued:
            study.enqueue_trial(CONFIGS[number])
        trial = study.ask(DISTRIBUTIONS)
        study.tell(trial, math.nan if number in failing else trial.params["alpha"])
    sampler.close()
    with Memory.open_existing(path) as memory:
        (task,) = (task for task in memory.tasks() if task.name == name)
        return [trial.explored for trial in memory.trials(task.id)]


@pytest.mark.filterwarnings("ignore:The value nan is not acceptable")
@pytest.mark.usefixtures("_quiet_optuna")
def test_sampler_explores_as_the_tuner_does(tmp_path):
    """A failed step is replaced by another, and all flags are stored, including that of the first trial."""
    path = tmp_path / "memory.db"
    with jlibo.Tuner(SPACE, path, mode="paper", sizes=SIZES) as tuner:
        tuner.add_task("past", CONFIGS[:10], [params["alpha"] for params in CONFIGS[:10]])
        count = int(tuner.model.learner.exploration.counts(2, 16)[1])
        with tuner.task("tuned", budget=16) as task:
            for number in range(count + 3):
                trial = task.ask()
                task.tell(trial, math.nan if number in (0, 2) else trial.params["alpha"])
            expected = [trial.explored for trial in task.trials]
        tuner.memory.delete_task("tuned")
    assert expected == [True] * (count + 2) + [False]
    assert run_study(path, count + 3, failing=(0, 2)) == expected


@pytest.mark.filterwarnings("ignore:The value nan is not acceptable")
@pytest.mark.usefixtures("_quiet_optuna")
def test_enqueued_trial_is_not_forced_exploration(tmp_path):
    path = tmp_path / "memory.db"
    with jlibo.Tuner(SPACE, path, mode="paper", sizes=SIZES) as tuner:
        tuner.add_task("past", CONFIGS[:10], [params["alpha"] for params in CONFIGS[:10]])
        count = int(tuner.model.learner.exploration.counts(2, 16)[1])
    for place in range(2):
        flags = run_study(path, count + 3, enqueued=(place,), name=f"new {place}")
        expected = [True] * count + [False] * 2
        assert flags == [*expected[:place], False, *expected[place:]]
        with Memory.open_existing(path) as memory:
            memory.delete_task(f"new {place}")


@pytest.mark.filterwarnings("ignore:The value nan is not acceptable")
@pytest.mark.usefixtures("_quiet_optuna")
def test_study_without_past_explores_from_its_first_trial(tmp_path):
    """The first trial is drawn at random by Optuna, before the space is known."""
    flags = run_study(tmp_path / "memory.db", 7, failing=(3,))
    assert flags == [True] * 5 + [False] * 2
