"""Arguments of LiBOSampler: past studies, sizes of the dictionary, and invalid ones.

These tests compile at most a small program; those with the full dictionary are in `test_optuna.py`.
"""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution

from jlibo.integrations.optuna.sampler import LiBOSampler
from tests.integrations.studies import DISTRIBUTIONS, SPACE, all_params, random_study


def test_past_excludes_the_study_itself():
    """Both for all studies of a storage and for given names."""
    storage = optuna.storages.InMemoryStorage()
    for name in ("a", "b", "mine"):
        study = optuna.create_study(storage=storage, study_name=name)
        for trial in random_study(4).trials:
            study.add_trial(trial)
    two = optuna.create_study(storage=storage, study_name="two", directions=["minimize", "minimize"])
    two.add_trial(optuna.create_trial(values=[0.0, 1.0]))
    mine = optuna.load_study(study_name="mine", storage=storage)
    for given, expected in ((None, ["a", "b"]), (["b", "mine"], ["b"])):
        past = LiBOSampler(storage=storage, past_studies=given)._chooser.past
        tasks, trials, problem = past.read(mine, SPACE)
        assert [task.name for task in tasks] == expected
        assert len(trials) == 4 * len(expected)
        assert problem is None


def test_two_workers_exhaust_a_small_space_without_repeats():
    """Two samplers that share only the storage, as in two processes, with the same seed."""
    distributions = {"a": IntDistribution(0, 4, step=2), "b": CategoricalDistribution([None, True])}
    storage = optuna.storages.InMemoryStorage()
    optuna.create_study(storage=storage, study_name="s")
    sizes = {"num_basis": 1, "interactions": False}
    workers = [
        optuna.load_study(study_name="s", storage=storage, sampler=LiBOSampler(seed=0, sizes=sizes))
        for _ in range(2)
    ]
    workers[0].tell(workers[0].ask(distributions), 0.0)
    for turn in range(5):
        workers[turn % 2].ask(distributions)
    assert len({tuple(params.items()) for params in all_params(workers[0])}) == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"memory": "m.db", "past_studies": []}, "`memory` should be given alone"),
        ({"past_studies": ["a"]}, "the name 'a' without a `storage`"),
        ({"past_studies": "a"}, "`past_studies` should be a list of Study objects or strings"),
        ({"past_studies": [3]}, r"`past_studies\[0\]` should be a Study or a string, but got 3 \(int\)"),
        ({"mode": "other"}, "`mode` should be 'adaptive' or 'paper'"),
        ({"seed": -1}, "`seed` should be a whole number >= 0"),
        ({"budget": 0}, "`budget` should be a whole number >= 1"),
    ],
)
def test_invalid_arguments_raise(arguments, words):
    with pytest.raises(ValueError, match=words):
        LiBOSampler(**arguments)


def test_several_objectives_raise():
    study = optuna.create_study(directions=["minimize", "maximize"], sampler=LiBOSampler())
    with pytest.raises(ValueError, match=r"optimises one objective, but the study .* has 2"):
        study.ask(DISTRIBUTIONS)
