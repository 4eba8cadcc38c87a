"""The parts of the Optuna integration that need no model: distributions, trials, and the link to a memory."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from jlibo.integrations.optuna import trials as optuna_trials
from jlibo.integrations.optuna.branches import infer_space
from jlibo.integrations.optuna.memory import own_task
from jlibo.integrations.optuna.space import MOST_CHOICES, coded_parameter, coded_space, decode, encode
from jlibo.tune import Categorical, Float, Int, Memory, SearchSpace
from jlibo.tune.model import make_model
from jlibo.tune.space.dictionary import MANY_FEATURES

NAN = float("nan")
X = FloatDistribution(0, 1)


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (FloatDistribution(-1, 2), ("p", Float(-1, 2))),
        (FloatDistribution(1e-5, 1, log=True), ("p", Float(1e-5, 1, log=True))),
        (FloatDistribution(0, 1, step=0.1), ("p [0.0 + 0.1 k]", Int(0, 10))),
        (FloatDistribution(-10.2, 10.2, step=0.1), ("p [-10.2 + 0.1 k]", Int(0, 204))),
        (IntDistribution(-3, 7), ("p", Int(-3, 7))),
        (IntDistribution(1, 64, log=True), ("p", Int(1, 64, log=True))),
        (IntDistribution(8, 28, step=4), ("p [8 + 4 k]", Int(0, 5))),
        (CategoricalDistribution(["a", None, True, 1.5]), ("p", Categorical(["a", None, True, 1.5]))),
        (CategoricalDistribution([0.0, NAN]), ("p", Categorical(["0: 0.0", "1: nan"]))),
    ],
)
def test_distribution_becomes_a_parameter(distribution, expected):
    assert coded_parameter("p", distribution) == expected


@pytest.mark.parametrize(
    "distribution",
    [
        IntDistribution(3, 3),
        FloatDistribution(0.5, 0.5),
        FloatDistribution(0, 0, step=1),
        CategoricalDistribution(["only"]),
        CategoricalDistribution(list(range(MOST_CHOICES + 1))),
        IntDistribution(0, 2**50),
        FloatDistribution(-1e308, 1e308),
    ],
)
def test_unsupported_distributions_are_left_out(distribution):
    assert coded_parameter("p", distribution) is None
    assert coded_space({"p": distribution}) is None
    assert coded_space({"p": distribution, "x": X}) == SearchSpace(x=Float(0, 1))


@pytest.mark.filterwarnings("ignore:Choices for a categorical")
def test_encode_then_decode_is_the_identity():
    """Values on grids, choices and bounds keep value and type, and Optuna accepts them."""
    pair = (3, 3)
    values = {
        FloatDistribution(0, 1, step=0.1): [0.1 * k for k in range(11)],
        FloatDistribution(-10.2, 10.2, step=0.1): [-10.2, 0.0, 10.2],
        IntDistribution(8, 28, step=4): [8, 12, 16, 20, 24, 28],
        IntDistribution(-3, 7): list(range(-3, 8)),
        IntDistribution(1, 1000, log=True): [1, 2, 999, 1000],
        FloatDistribution(1e-5, 1, log=True): [1e-5, 0.3, 1.0],
        CategoricalDistribution([None, False, True, "a", 2, 2.5]): [None, False, True, "a", 2, 2.5],
        CategoricalDistribution([pair, (5, 5)]): [pair],
    }
    for distribution, some in values.items():
        space = coded_space({"p": distribution})
        assert space is not None
        for value in some:
            coded = encode({"p": distribution}, {"p": value})
            coded = space.from_unit(space.to_unit(coded))
            back = decode({"p": distribution}, coded)["p"]
            assert type(back) is type(value)
            assert back == value or math.isclose(back, value, rel_tol=1e-9, abs_tol=1e-12)
            assert distribution._contains(distribution.to_internal_repr(back))
    assert decode({"p": CategoricalDistribution([pair])}, {"p": "0: (3, 3)"}) == {}


def test_different_steps_give_different_spaces():
    fine, coarse = FloatDistribution(0, 1, step=0.1), FloatDistribution(0, 2, step=0.2)
    assert coded_space({"p": fine}) != coded_space({"p": coarse})
    assert coded_space({"p": IntDistribution(0, 20, step=2)}) != coded_space({"p": IntDistribution(0, 10)})


def test_dictionary_fits_the_number_of_parameters():
    for count in (1, 3, 8, 16, 30):
        space = SearchSpace({f"p{n}": Float(0, 1) for n in range(count)})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            features = make_model(space, mode="adaptive", sizes=None).features
        assert features.num_features <= MANY_FEATURES
        # The constant, a group per parameter, and the joint group instead of pairs.
        assert features.num_groups == count + 2
    large = SearchSpace({f"p{n}": Float(0, 1) for n in range(15)})
    features = make_model(large, mode="paper", sizes=None).features
    assert features.num_features <= MANY_FEATURES
    # Interactions get fewer functions before they are dropped.
    assert features.num_groups == 1 + 15 + 15 * 14 // 2


def test_features_do_not_depend_on_names_and_ranges():
    """Spaces of one shape share a compiled program, and the numbers are those of the tuner's dictionary."""
    one = SearchSpace(a=Float(0, 1), b=Int(1, 9), c=Categorical(["u", "v", None]), d=Float(1, 9, log=True))
    two = SearchSpace(e=Float(5, 7), f=Int(2, 10), g=Categorical([1, 2, 3]), h=Float(0, 1))
    mine, other = (make_model(space, mode="adaptive", sizes=None).features for space in (one, two))
    assert jax.tree.structure(mine) == jax.tree.structure(other)
    points = jnp.asarray(one.sample_unit(16, rng=np.random.default_rng(0)))
    np.testing.assert_array_equal(mine(points), other(points))
    np.testing.assert_array_equal(mine(points), one.features(interactions=False, num_joint=128)(points))


def _trial(number, x, **more):
    trial = create_trial(params={"x": x}, distributions={"x": X}, **more)
    trial.number = number
    return trial


def test_state_and_score_of_each_kind_of_trial():
    trials = [
        _trial(0, 0.0, value=1.0),
        _trial(1, 0.1, value=3.0),
        _trial(2, 0.2, value=float("inf")),
        _trial(3, 0.3, state=TrialState.PRUNED, intermediate_values={0: 9.0, 4: 7.0}),
        _trial(4, 0.4, state=TrialState.PRUNED, intermediate_values={0: 0.5}),
        _trial(5, 0.5, state=TrialState.PRUNED),
        _trial(6, 0.6, state=TrialState.PRUNED, intermediate_values={0: NAN}),
        _trial(7, 0.7, state=TrialState.FAIL),
        _trial(8, 0.8, state=TrialState.RUNNING),
        _trial(9, 0.9, state=TrialState.WAITING),
        _trial(10, 1.0, value=0.0),
    ]
    trials[-1].params = {"x": 1.5}  # enqueued by a user, outside of the range
    space = SearchSpace(x=Float(0, 1))
    minimised = {r.number: (r.state, r.score) for r in optuna_trials.records(trials, space, -1.0)}
    assert minimised == {
        0: ("complete", -1.0),
        1: ("complete", -3.0),
        2: ("failed", None),
        3: ("complete", -7.0),
        4: ("complete", -1.0),  # a pruned trial is at most the median of the complete ones
        5: ("failed", None),
        6: ("failed", None),
        7: ("failed", None),
        8: ("pending", None),
    }
    scores = optuna_trials.trial_scores(trials, 1.0)
    assert scores == {0: 1.0, 1: 3.0, 3: 1.0, 4: 0.5, 10: 0.0}


def test_running_trial_is_pending_with_its_offered_values():
    trial = create_trial(state=TrialState.RUNNING, params={"x": 0.25}, distributions={"x": X})
    trial.number = 4
    space = SearchSpace(x=Float(0, 1), y=Float(0, 1))
    assert optuna_trials.records([trial], space, 1.0) == []
    (record,) = optuna_trials.records([trial], space, 1.0, offers={4: {"x": 0.7, "y": 0.5}})
    assert record.params == {"x": 0.25, "y": 0.5}  # suggested values take precedence over chosen ones


def test_pruned_trials_do_not_remove_parameters():
    both = {"x": X, "y": X}
    complete = create_trial(params={"x": 0.1, "y": 0.2}, distributions=both, value=1.0)
    pruned = create_trial(state=TrialState.PRUNED, params={"x": 0.1}, distributions={"x": X})
    assert set(infer_space(optuna_trials.configs_of([complete, pruned]))) == {"x", "y"}
    assert set(infer_space(optuna_trials.configs_of([pruned]))) == {"x"}


def test_study_is_matched_only_to_its_own_task():
    with Memory.open(None, space=SearchSpace(x=Float(0, 1))) as memory:
        first = memory.task("a", source="added")
        memory.add_finished(first.id, [({"x": 0.1}, 1.0), ({"x": 0.2}, 2.0)])
        tuned = memory.task("t")
        tasks, trials = memory.snapshot()
        held = {task.name: (task, [one for one in trials if one.task_id == task.id]) for task in tasks}
    own = {0: {"x": 0.1}, 1: {"x": 0.2}, 2: {"x": 0.3}}
    assert own_task("a", held, own) == ("a", first.id)
    assert own_task("a", held, {}) == ("a (2)", None)  # an earlier run: its trials are not the study's
    assert own_task("a", held, {0: {"x": 0.1}, 1: {"x": 0.9}}) == ("a (2)", None)
    assert own_task("t", held, {}) == ("t (2)", None)  # a task of a tuner
    assert own_task("b", held, own) == ("b", None)
    assert tuned.source == "tuner"
