"""Explanations of Optuna studies agree with those of a tuner's task, in the units of the study."""

import optuna
import pytest

from jlibo.integrations.optuna.sampler import LiBOSampler
from jlibo.tune import Explanation, Tuner
from tests.integrations.studies import DISTRIBUTIONS, SPACE, loss, objective, random_study


@pytest.mark.slow
def test_study_is_explained_in_its_own_units():
    found = {}
    for direction, sign in (("minimize", 1.0), ("maximize", -1.0)):
        past = [random_study(15, seed=seed, direction=direction) for seed in range(2)]
        sampler = LiBOSampler(past_studies=past, seed=0)
        study = optuna.create_study(sampler=sampler, direction=direction, study_name="new")
        study.optimize(objective(sign=sign), n_trials=8)
        study.ask(DISTRIBUTIONS)  # a running trial
        one = found[direction] = sampler.explain(study, num_trials=3)
        assert isinstance(one, Explanation)
        assert (one.task, one.num_scores, one.num_past) == ("new", 8, 2)
        assert {task.name for task in one.similar} == {"random 0", "random 1"}
        assert one.best.number == study.best_trial.number and one.best.params == study.best_params
        assert one.best.score == study.best_value
        chosen = one.recommended
        value = sign * loss(**chosen.params)
        assert chosen.trial.score == pytest.approx(value)
        assert chosen.expected_score == pytest.approx(value, abs=4 * chosen.std)
        assert one.expected_gain > 0 and list(one.expected_gains) == [1, 2, 3]
    low, high = found["minimize"], found["maximize"]
    assert high.recommended.expected_score == pytest.approx(-low.recommended.expected_score, rel=1e-4)
    assert high.expected_gain == pytest.approx(low.expected_gain, rel=1e-4)
    assert 0 < low.trust <= 1


def test_study_and_task_have_the_same_explanation():
    study = optuna.create_study(sampler=LiBOSampler(seed=0))
    study.optimize(objective(), n_trials=8)
    one = study.sampler.explain(study)
    tuner = Tuner(SPACE, maximise=False)
    record = tuner.memory.task("new", budget=50)
    tuner.memory.add_finished(record.id, [(trial.params, trial.value) for trial in study.trials])
    two = tuner.task("new").explain()
    assert one.recommended.trial.number == two.recommended.trial.number
    assert one.recommended.expected_score == pytest.approx(two.recommended.expected_score, rel=1e-6)
    assert one.scale == pytest.approx(two.scale, rel=1e-6)
    assert one.expected_gain == pytest.approx(two.expected_gain, rel=0.2)  # the candidates differ
    assert one.trust is None and one.similar == ()


def test_study_without_a_complete_trial_raises():
    study = optuna.create_study(sampler=LiBOSampler(seed=0))
    with pytest.raises(ValueError, match="`study` should be one with a complete trial"):
        study.sampler.explain(study)
    study.optimize(objective(), n_trials=1)
    assert study.sampler.explain(study).expected_gain is None  # a single score has no scale
    with pytest.raises(ValueError, match="`num_trials` should be"):
        study.sampler.explain(study, num_trials=0)
    several = optuna.create_study(directions=["minimize", "minimize"])
    with pytest.raises(ValueError, match="one objective"):
        study.sampler.explain(several)
