"""Define-by-run branches and constraints: what the sampler infers from trials, and how it uses the past."""

import warnings

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from jlibo.integrations.optuna import LiBOSampler, LiBOSamplerWarning
from jlibo.integrations.optuna import trials as optuna_trials
from jlibo.integrations.optuna.branches import choose_space, explains, infer_space
from jlibo.tune import Categorical, Float, Int, Memory, SearchSpace, Tuner

UNIT = FloatDistribution(0, 1)
KIND = CategoricalDistribution(["a", "b", "c"])
DISTRIBUTIONS = {
    "kind": KIND,
    "x": UNIT,
    "y": UNIT,
    "n": IntDistribution(1, 9),
    "inner": CategoricalDistribution(["u", "v"]),
}
FULL = SearchSpace(
    kind=Categorical(["a", "b", "c"]), x=Float(0, 1, when={"kind": "a"}), y=Float(0, 1, when={"kind": "b"})
)


def trial(**params):
    return create_trial(
        params=params, distributions={name: DISTRIBUTIONS[name] for name in params}, value=1.0
    )


def configs(*trials):
    return optuna_trials.configs_of(trials)


def branched(shift=0.0):
    """Return an objective whose best branch is "b", with the minimum 0 at y = 0.3 + shift."""

    def evaluate(trial: optuna.Trial) -> float:
        kind = trial.suggest_categorical("kind", ["a", "b", "c"])
        if kind == "a":
            return 0.5 + (trial.suggest_float("x", 0, 1) - 0.8) ** 2
        if kind == "b":
            return (trial.suggest_float("y", 0, 1) - 0.3 - shift) ** 2
        return 0.7

    return evaluate


def random_study(seed, num_trials=15, storage=None, shift=0.0):
    study = optuna.create_study(
        storage=storage, study_name=f"past {seed}", sampler=optuna.samplers.RandomSampler(seed=seed)
    )
    study.optimize(branched(shift), n_trials=num_trials)
    return study


# --- inference ---


def test_conditions_are_inferred_from_trials():
    found = infer_space(configs(trial(kind="a", x=0.1), trial(kind="b", y=0.1), trial(kind="c")))
    assert found == FULL
    nested = [
        trial(kind="a", inner="u", x=0.1),
        trial(kind="a", inner="v"),
        trial(kind="b", y=0.3, n=2),
        trial(kind="c", n=3),
    ]
    assert infer_space(configs(*nested)) == SearchSpace(
        kind=Categorical(["a", "b", "c"]),
        inner=Categorical(["u", "v"], when={"kind": "a"}),
        x=Float(0, 1, when={"inner": "u"}),
        y=Float(0, 1, when={"kind": "b"}),
        n=Int(1, 9, when={"kind": ["b", "c"]}),
    )
    both = [trial(kind="a", inner="u", x=0.1), trial(kind="a", inner="v"), trial(kind="b", inner="u")]
    both += [trial(kind="b", inner="v")]
    assert infer_space(configs(*both))["x"] == Float(0, 1, when={"kind": "a", "inner": "u"})


def test_parameters_without_an_explanation_are_left_out():
    found = infer_space(configs(trial(kind="a", n=1, x=0.1), trial(kind="a", n=2), trial(kind="b", n=2)))
    assert found == SearchSpace(kind=Categorical(["a", "b", "c"]), n=Int(1, 9))
    assert infer_space(configs(trial(x=0.1), trial(y=0.1))) is None
    assert infer_space([]) is None


def test_space_of_a_study_is_the_one_that_most_past_tasks_fit():
    one_branch = configs(trial(kind="a", x=0.1), trial(kind="a", x=0.2))
    other_branch = configs(trial(kind="b", y=0.1), trial(kind="b", y=0.2))
    alone = infer_space(one_branch)
    assert alone["x"] == Float(0, 1) and explains(FULL, one_branch) and not explains(alone, other_branch)
    assert choose_space(one_branch, []) == alone
    # A past task with all branches, and two past tasks that know one each.
    assert choose_space(one_branch, [(FULL, configs(trial(kind="a", x=0.3), trial(kind="c")))]) == FULL
    past = [(infer_space(some), some) for some in (one_branch, other_branch)]
    assert choose_space([], past) == SearchSpace({name: FULL[name] for name in ("kind", "x", "y")})
    # Another problem does not count.
    other = configs(create_trial(params={"x": 2.0}, distributions={"x": FloatDistribution(0, 3)}, value=1.0))
    assert choose_space(one_branch, [(infer_space(other), other)]) == alone


# --- studies ---


def test_study_with_branches_is_modelled_without_a_warning():
    """Warnings are errors here. Each parameter is chosen by the model once its branch is known."""
    sampler = LiBOSampler(seed=0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(branched(), n_trials=12)
    assert {trial.params["kind"] for trial in study.trials} == {"a", "b", "c"}
    assert sampler._chooser.space(study, study.trials) == FULL
    assert study.best_params["kind"] == "b" and study.best_value < 0.05


def test_past_studies_with_branches_are_used_from_the_first_trial():
    past = [random_study(seed, shift=0.02 * seed) for seed in range(3)]
    sampler = LiBOSampler(past_studies=past, seed=0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(branched(0.03), n_trials=3)
    assert all(trial.params["kind"] == "b" for trial in study.trials)  # it has seen only one branch itself
    assert study.best_value < 0.01
    assert sampler._chooser.knowledge(study, sampler._chooser.space(study, study.trials))[1].num_tasks == 3


def test_past_studies_that_saw_one_branch_each_teach_together():
    past = []
    for number, kind in enumerate("ab"):
        one = optuna.create_study(study_name=kind, sampler=optuna.samplers.RandomSampler(seed=number))
        for _ in range(8):
            one.enqueue_trial({"kind": kind})
        one.optimize(branched(), n_trials=8)
        past.append(one)
    sampler = LiBOSampler(past_studies=past, seed=0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(branched(), n_trials=3)
    assert study.best_value < 0.05
    assert sampler._chooser.knowledge(study, sampler._chooser.space(study, study.trials))[1].num_tasks == 2


def test_unexplained_parameter_is_named_and_the_past_is_kept():
    def uncertain(trial: optuna.Trial) -> float:
        value = branched()(trial)
        return value + (trial.suggest_float("extra", 0, 1) * 1e-3 if trial.number % 2 else 0.0)

    past = random_study(0)
    sampler = LiBOSampler(past_studies=[past], seed=0)
    study = optuna.create_study(sampler=sampler)
    words = "'extra' is sampled by RandomSampler, without the model: some trials do not have it"
    with pytest.warns(LiBOSamplerWarning, match=words) as said:
        study.optimize(uncertain, n_trials=6)
    assert len(said) == 1
    assert sampler._chooser.knowledge(study, sampler._chooser.space(study, study.trials))[1].num_tasks == 1


def test_branches_with_a_fixed_parameter():
    """PartialFixedSampler asks for the other parameters alone; those in its branch are independent."""
    base = LiBOSampler(seed=0, warn_independent_sampling=False)
    study = optuna.create_study(sampler=base)
    study.optimize(branched(), n_trials=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.sampler = optuna.samplers.PartialFixedSampler({"kind": "b"}, base)
    study.optimize(branched(), n_trials=2)
    assert [trial.params["kind"] for trial in study.trials[5:]] == ["b", "b"]


# --- the memory ---


def test_memory_grows_with_the_branches_of_a_study(tmp_path):
    path = tmp_path / "memory.db"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler = LiBOSampler(path, seed=0)
        study = optuna.create_study(study_name="first", sampler=sampler)
        for kind in "aabbc":
            study.enqueue_trial({"kind": kind})
        study.optimize(branched(), n_trials=2)
        with Memory.open_existing(path) as before:
            assert before.space["x"] == Float(0, 1)  # nothing else was seen
            study.optimize(branched(), n_trials=3)
            assert [len(one.params) for one in before.snapshot()[1]] == [2, 2, 2, 2, 1]
            assert before.space == FULL  # an open memory follows
        sampler.close()
    with Tuner(FULL, path, direction="minimize") as tuner:
        assert tuner.knowledge().num_tasks == 1
        trial = tuner.task("by tuner", budget=3).ask()
        assert FULL.validate(trial.params) == trial.params
    second = LiBOSampler(path, seed=1)
    study = optuna.create_study(study_name="second", sampler=second)
    study.optimize(branched(), n_trials=2)
    second.close()
    with Memory.open_existing(path) as memory:
        assert memory.space == FULL
        assert [task.name for task in memory.tasks()] == ["first", "by tuner", "second"]


def test_memory_is_widened_only_if_all_trials_fit(tmp_path):
    with Memory.open(tmp_path / "memory.db", space=SearchSpace(x=Float(0, 1))) as memory:
        memory.add_finished(memory.task("t").id, [({"x": 0.5}, 1.0)])
        with pytest.raises(Exception, match=r"cannot have the new search space, because trial 0 of task 1"):
            memory.widen(SearchSpace(x=Float(0, 0.25)))
        assert memory.space == SearchSpace(x=Float(0, 1))
        memory.widen(SearchSpace(x=Float(0, 2)))
        assert memory.snapshot()[1][0].params == {"x": 0.5}
    with Memory.open_existing(tmp_path / "memory.db") as memory:
        assert memory.space == SearchSpace(x=Float(0, 2))


# --- constraints ---


def half(trial: optuna.trial.FrozenTrial):
    return (trial.params["x"] - 0.5,)  # feasible up to 0.5


def constrained(trial: optuna.Trial) -> float:
    return -trial.suggest_float("x", 0, 1)  # the best value is infeasible


@pytest.mark.parametrize("way", ["constraints_func", "set_constraint"])
def test_infeasible_trials_are_avoided_and_never_the_best(way):
    def evaluate(trial: optuna.Trial) -> float:
        value = constrained(trial)
        if way == "set_constraint":
            trial.set_constraint("x", trial.params["x"] - 0.5)
        return value

    if way == "set_constraint" and not hasattr(optuna.Trial, "set_constraint"):
        pytest.skip("Optuna before 5.0 has no set_constraint")
    sampler = LiBOSampler(seed=0, constraints_func=half if way == "constraints_func" else None)
    study = optuna.create_study(sampler=sampler)
    study.optimize(evaluate, n_trials=14)
    feasible = [one.params["x"] for one in study.trials if one.params["x"] <= 0.5]
    assert study.best_params["x"] == max(feasible) > 0.35  # Optuna reads the constraints as well
    assert np.mean([one.params["x"] <= 0.5 for one in study.trials[7:]]) > 0.5
    records = sampler._chooser.records(study, SearchSpace(x=Float(0, 1)))
    assert [one.params["x"] for one in records if one.state == "complete"] == feasible


def test_infeasible_trials_are_failed_ones_in_the_memory_and_as_past(tmp_path):
    sampler = LiBOSampler(tmp_path / "memory.db", seed=0, constraints_func=half)
    study = optuna.create_study(study_name="s", sampler=sampler)
    for x in (0.2, 0.9, 0.4):
        study.enqueue_trial({"x": x})
    study.optimize(constrained, n_trials=3)
    sampler.close()
    with Memory.open_existing(tmp_path / "memory.db") as memory:
        assert [one.state for one in memory.snapshot()[1]] == ["complete", "failed", "complete"]
    task = optuna_trials.past_task(study, 0)
    assert [one.state for one in task.records] == ["complete", "failed", "complete"]
    assert [one.state for one in study.trials] == [TrialState.COMPLETE] * 3


def test_constraints_func_must_be_a_function():
    with pytest.raises(ValueError, match=r"`constraints_func` should be a function, but got 0\.5"):
        LiBOSampler(constraints_func=0.5)
