"""An object of a wrong type, for any argument of any public entry, is refused by an error that names it.

The entries are those of the API reference: functions, constructors, and the methods that users call. For each
argument a call is made in which it is an object that fits nothing. The other arguments fit their annotations.
An argument that may be anything has an entry in `ANYTHING`, with the reason.
"""

import collections.abc
import dataclasses
import functools
import inspect
import os
import re
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optuna
import pytest

import jlibo
from jlibo import actions, arena, experiments, metrics
from jlibo.arena import estimators
from jlibo.envs import linear
from jlibo.integrations.optuna import LiBOSampler
from jlibo.lifelong.one_task import Draws
from jlibo.sweeps import Variable
from tests.test_docs import find, importable_names

FEATURES = jlibo.Cosine(3)
RESULTS = (  # values that the library makes. As pytrees they may hold anything, such as the axes of a vmap.
    *("AbstractEnv", "AbstractExploration", "AbstractFeatures", "AbstractMetaLearner", "AbstractPolicy"),
    *("AbstractScaling", "sweeps.AbstractSegmentedRun", "metrics.HasRegret", "metrics.HasSupport"),
    *("Belief", "BoxMaximum", "LifelongResult", "MetaInfo", "PastTasks", "Posterior", "PriorMixture"),
    "RunSizes",
    *("Solution", "Status", "Task", "TaskData", "TaskResult", "Trial", "sweeps.Variable", "tune.Defaults"),
    *("tune.Estimate", "tune.Explanation", "tune.Recommendation", "tune.SimilarTask", "tune.SpaceFeatures"),
    *(
        "tune.MergeReport",
        "tune.TaskSummary",
        "tune.TunerTask",
        "tune.Memory",
        "theory.Coverage",
        "theory.Direction",
    ),
    *("theory.Finding", "theory.GreedyGain", "theory.KappaBracket", "theory.NoiseEstimate", "theory.Plan"),
    *("theory.RegretBound", "theory.RunReport", "experiments.ExperimentResult", "experiments.OfflineResult"),
    *(f"arena.estimators.{name}" for name in ("DiagonalPrior", "Gaussian", "HyperPrior", "JointChoice")),
    *(f"arena.estimators.{name}" for name in ("LowRankFit", "MeanEvidence", "TaskMoments", "TaskRows")),
    *(f"arena.estimators.{name}" for name in ("TaskStatistics", "TraceNormFit")),
    "arena.methods.AbstractStatisticsLearner",
    *(f"arena.{name}" for name in ("AbstractJointLearner", "ArenaResult", "Choice", "RoundsResult", "Score")),
    *("arena.Turn", "actions.AbstractActionSet", "actions.Action", "envs.linear.AbstractArms"),
    *("envs.linear.AbstractWeights", "envs.linear.LinearTask"),
    *("plot.NotebookFigure", "federated.BallotFile", "federated.Reception", "federated.Release"),
    "privacy.AbstractMechanism",
)
ANYTHING = {
    ("run_lifelong", "carry"): "the state of a meta-learner, any pytree; compared with the expected one",
    ("run_agents", "carry"): "the same, by agent",
    ("run_task", "scale_state"): "the state of a scaling, any pytree",
    ("integrations.wandb.WandbCallback", "init"): "arguments of `wandb.init`, which checks them",
    ("experiments.Spec", "values"): "arguments of the function, which checks them",
    ("Spec.make", "args"): "the same",
    ("Spec.make", "kwargs"): "the same",
    ("SearchSpace.features", "sizes"): "arguments of `space_features`, which checks them",
    ("Labelled.sel", "values"): "compared with the values of the axis, which may be anything",
}
HOOKS = (
    "after_trial",
    "before_trial",
    "infer_relative_search_space",
    "sample_independent",
    "sample_relative",
)
ROWS = (
    *("add_finished", "add_trial", "changed_trials", "claim_pending", "fail", "release", "revision"),
    *("score_counts", "tell", "trial", "trials", "curve", "curves", "report", "stop"),
)
NOT_CALLED_BY_USERS = {
    "integrations.sklearn.LifelongSearchCV": "`fit` checks, as scikit-learn asks of estimators",
    "SearchSpace.get": "of Mapping: any key, and any default",
    "SearchSpace.with_off": "an array that the space made",
    "Cosine.evaluate": "one point, inside of a compiled function; `__call__` checks",
    "NoExploration.rates": "called by `counts`, which checks",
    "SyntheticEnv.task": "called by the loop, which checks",
    **{f"LiBOSampler.{name}": "called by Optuna" for name in HOOKS},
    **{f"Memory.{name}": "the rows of a file, called by the tuner, which checks" for name in ROWS},
}


class Wrong:
    """Fits no annotation."""


@functools.cache
def values_of_classes() -> dict[Any, Any]:
    """A value of each class that an annotation may name; made without compilation where it can be."""
    points = np.linspace(0, 1, 4)[:, None]
    prior = jlibo.Prior(np.zeros(3), np.ones(3))
    posterior = jlibo.posterior.init(prior, 0.1)
    belief = jlibo.Belief(jnp.zeros(4), jnp.ones(4), jnp.zeros((4, 3)), posterior)
    flags = jnp.zeros((2, 3), bool)
    zeros, counts = jnp.zeros((2, 3)), jnp.zeros((2, 3), int)
    result = jlibo.LifelongResult(
        actions=counts,
        rewards=zeros,
        regret=zeros,
        explored=flags,
        num_explore=counts[:, 0],
        support=flags,
        fell_back=flags[:, 0],
        status=counts[:, 0],
        gap=zeros[:, 0],
        num_steps=counts[:, 0],
        carry=(),
    )
    synthetic = jlibo.SyntheticEnv(
        groups=FEATURES.groups,
        support=jnp.ones(3, bool),
        candidates=jnp.asarray(points),
        candidate_features=jnp.ones((4, 3)),
        norm_bound=1.0,
        beta_min=0.1,
        noise_std=0.1,
    )
    draws = Draws(*[None] * len(inspect.signature(Draws).parameters))
    return {
        jlibo.AbstractEnv: synthetic,
        jlibo.SyntheticEnv: synthetic,
        jlibo.AbstractFeatures: FEATURES,
        jlibo.AbstractPolicy: jlibo.Greedy(0.1),
        jlibo.AbstractMetaLearner: jlibo.FixedPrior(),
        jlibo.AbstractExploration: jlibo.NoExploration(),
        jlibo.AbstractScaling: jlibo.RawRewards(),
        jlibo.Prior: prior,
        jlibo.Posterior: posterior,
        jlibo.Belief: belief,
        jlibo.LifelongResult: result,
        jlibo.TaskResult: jlibo.TaskResult(counts[0], zeros[0], zeros[0], flags[0]),
        metrics.HasRegret: result,
        metrics.HasSupport: result,
        jlibo.Table: a_table(),
        jlibo.TheoreticalNu: jlibo.TheoreticalNu(1.0, 0.1, 0.1),
        Draws: draws,
        experiments.Experiment: experiments.find("lifelong-cosine"),
        experiments.Spec: experiments.Spec(jlibo.Cosine),
        jlibo.SearchSpace: a_space(),
        **values_of_the_arena(),
        jlibo.federated.Announcement: jlibo.federated.Announcement(2, (1,), 3, 4),
        jlibo.federated.Receipt: jlibo.federated.Receipt(()),
        jlibo.federated.Vote: jlibo.federated.Vote("a" * 32, (1,)),
        str: "name",
        bool: True,
        int: 2,
        float: 0.5,
        range: range(2),
        slice: slice(None),
        type(None): None,
        os.PathLike: "path",
        np.random.Generator: np.random.default_rng(0),
    }


def values_of_the_arena() -> dict[Any, Any]:
    """A value of each class of the arena that an annotation may name; two tasks with two features."""
    zeros, squares = jnp.zeros((2, 2)), jnp.zeros((2, 2, 2))
    gaussian = estimators.Gaussian(zeros[0], squares[0])
    weights, arms = linear.LowRankWeights(jnp.eye(2)), linear.BallArms(1.0, 2)
    return {
        actions.AbstractActionSet: actions.Ball(1.0, 2),
        actions.BoxActions: actions.BoxActions(FEATURES),
        linear.AbstractWeights: weights,
        linear.AbstractArms: arms,
        linear.LinearEnv: linear.LinearEnv(weights, arms, 0.1),
        arena.AbstractJointLearner: arena.OneAfterAnother(jlibo.FixedPrior(), jlibo.Greedy(0.1)),
        arena.Schedule: arena.Schedule.sequential(2, 2),
        arena.Method: arena.METHODS["oracle"],
        arena.Environment: arena.ENVIRONMENTS["gaussian-arms"],
        arena.ArenaResult: arena.ArenaResult((arena.METHODS["oracle"],), (), 1, 0, {}),
        estimators.TaskStatistics: estimators.TaskStatistics(squares, zeros, zeros[0], zeros[0]),
        estimators.Gaussian: gaussian,
        estimators.MeanEvidence: estimators.MeanEvidence(squares[0], zeros[0]),
        estimators.TaskMoments: estimators.TaskMoments(zeros[0], squares[0], zeros[0, 0]),
        estimators.TaskRows: estimators.TaskRows(squares, zeros, zeros > 0),
        estimators.DiagonalPrior: estimators.DiagonalPrior(zeros[0], zeros[0]),
        estimators.HyperPrior: estimators.HyperPrior.none(2),
    }


def fitting(annotation: Any) -> Any:
    """Return a value that fits an annotation; None if it fits."""
    if annotation == jaxtyping.PRNGKeyArray:
        return jax.random.key(0)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return None if type(None) in args else fitting(args[0])
    if origin is typing.Literal:
        return args[0]
    if origin is collections.abc.Callable:
        return lambda *args, **kwargs: None
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return {"a": fitting(args[1])}
    if isinstance(origin, type) and issubclass(origin, collections.abc.Iterable):
        return (fitting(args[0]),) if origin is tuple else [fitting(args[0])]
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, jaxtyping.AbstractArray):
        return np.ones((2,) * len(annotation.dim_str.split()))
    if issubclass(annotation, jax.Array | np.ndarray):
        return np.ones(2)
    return values_of_classes().get(annotation)


# --- entries ------------------------------------------------------------------------------------------------


class Lazy(NamedTuple):
    """A value that is made when it is needed."""

    make_fn: Callable[[], Any]


class Entry(NamedTuple):
    """A public function, constructor or method, and the values of arguments that annotations cannot give."""

    name: str
    call_fn: Callable[..., Any]
    values: dict[str, Any]


def is_constructor(name: str, found: Any) -> bool:
    return inspect.isclass(found) and name not in RESULTS and not issubclass(found, Exception)


def documented_entries() -> list[Entry]:
    """Return the functions and constructors of the API reference."""
    found = {name.removeprefix("jlibo."): find(name) for name in sorted(importable_names())}
    return [
        Entry(name, one, VALUES.get(name, {}))
        for name, one in found.items()
        if is_constructor(name, one) or inspect.isroutine(one)
    ]


def methods() -> list[Entry]:
    """Return the public methods of the classes of which users hold an object."""
    found = []
    for cls in (*OBJECTS, jlibo.TableEnv):
        for name in dir(cls):
            kind = type(inspect.getattr_static(cls, name))
            label = f"{cls.__name__}.{name}"
            if name.startswith("_") and name != "__call__":
                continue
            if kind in (classmethod, staticmethod):
                found.append(Entry(label, getattr(cls, name), VALUES.get(label, {})))
            elif cls in OBJECTS and inspect.isfunction(getattr(cls, name)):
                found.append(Entry(label, _method(cls, name), VALUES.get(label, {})))
    return found


def _method(cls: type, name: str) -> Callable[..., Any]:
    """Return a method that makes its object when it is called."""

    @functools.wraps(getattr(cls, name))
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(the_object(cls), name)(*args, **kwargs)

    return call


@functools.cache
def the_object(cls: type) -> Any:
    return OBJECTS[cls]()


def a_space() -> jlibo.SearchSpace:
    return jlibo.SearchSpace(x=jlibo.Float(0, 1))


def a_table() -> jlibo.Table:
    return jlibo.Table(("first", "second"), ("x",), np.ones((4, 1)), {"score": np.zeros((2, 4))})


def an_array_with_axes() -> jlibo.Labelled:
    seeds = {"seed": Variable(("seed",), np.arange(2))}
    return jlibo.Labelled({"x": Variable(("seed",), np.zeros(2))}, seeds)


OBJECTS: dict[type, Callable[[], Any]] = {
    jlibo.SearchSpace: a_space,
    jlibo.Tuner: lambda: jlibo.Tuner(a_space()),
    jlibo.tune.TunerTask: lambda: the_object(jlibo.Tuner).task("first"),
    jlibo.tune.Memory: lambda: the_object(jlibo.Tuner).memory,
    jlibo.SyntheticEnv: lambda: values_of_classes()[jlibo.SyntheticEnv],
    jlibo.Cosine: lambda: FEATURES,
    jlibo.NoExploration: jlibo.NoExploration,
    jlibo.Prior: lambda: values_of_classes()[jlibo.Prior],
    jlibo.Table: a_table,
    experiments.Experiment: lambda: experiments.find("lifelong-cosine"),
    experiments.Spec: lambda: experiments.Spec(jlibo.Cosine),
    LiBOSampler: LiBOSampler,
    jlibo.Labelled: an_array_with_axes,
}
VALUES: dict[str, dict[str, Any]] = {
    "federated.Announcement": {"support": (1,)},
    "federated.Receipt": {"tasks": ("a" * 32,)},
    "federated.Vote": {"task": "a" * 32},
    "privacy.GNMaxNoise": {"delta": 0.1},
    "privacy.ToeplitzNoise": {"delta": 0.1},
    "SearchSpace": {"parameters": {"x": jlibo.Float(0, 1)}},
    "Float": {"low": 0, "high": 1},
    "Int": {"low": 1, "high": 9},
    "Categorical": {"choices": ["a", "b"]},
    "Labelled": {"arrays": {"x": Variable(("seed",), np.zeros(2))}},
    "SearchSpace.difference": {"other": Lazy(a_space)},
    "LiBOSampler.explain": {"study": Lazy(optuna.create_study)},
    "TunerTask.add": {"params": {"x": 0.5}},
    "TunerTask.fail": {"trial": Lazy(lambda: the_object(jlibo.tune.TunerTask).ask())},
    "Memory.merge": {"other": "other.db"},
    "TunerTask.tell": {"trial": Lazy(lambda: the_object(jlibo.tune.TunerTask).ask())},
}


def parameters_of(entry: Entry) -> dict[str, inspect.Parameter]:
    return {
        name: one
        for name, one in inspect.signature(entry.call_fn).parameters.items()
        if name not in ("self", "cls")
    }


def annotation_of(entry: Entry, name: str, found: Any) -> Any:
    """Return the annotation of an argument; that of the field if the constructor is generated."""
    if dataclasses.is_dataclass(entry.call_fn):
        return {field.name: field.type for field in dataclasses.fields(entry.call_fn)}.get(name, found)
    return found


def arguments(entry: Entry, wrong: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call in which the one called `wrong` fits nothing."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, one in parameters_of(entry).items():
        is_required = one.default is inspect.Parameter.empty
        if name == wrong:
            value = Wrong()
        elif name in entry.values:
            value = entry.values[name]
            value = value.make_fn() if isinstance(value, Lazy) else value
        elif is_required and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            value = fitting(annotation_of(entry, name, one.annotation))
        else:
            continue
        if one.kind in (one.VAR_POSITIONAL, one.POSITIONAL_ONLY):
            args.append(value)
        else:
            kwargs[name] = value
    return args, kwargs


CASES = [
    pytest.param(entry, parameter, id=f"{entry.name}-{parameter}")
    for entry in (*documented_entries(), *methods())
    for parameter in parameters_of(entry)
    if entry.name not in NOT_CALLED_BY_USERS and (entry.name, parameter) not in ANYTHING
]


@pytest.mark.parametrize("entry, parameter", CASES)
def test_wrong_type_is_refused_by_name(entry, parameter):
    args, kwargs = arguments(entry, parameter)
    with pytest.raises(ValueError, match=rf"`[^`]*\b{parameter}\b.*` should be .*, but got") as failure:
        entry.call_fn(*args, **kwargs)
    assert "Wrong" in str(failure.value)


NO_POLICY = "`policy` should be an AbstractPolicy, such as ExpectedImprovement(...)"
NO_ENV = "`env` should be an AbstractEnv, such as FunctionEnv(...) or a LinearEnv"


def run(**changes: Any) -> Any:
    known = values_of_classes()
    given = {
        "env": known[jlibo.AbstractEnv],
        "features": FEATURES,
        "policy": jlibo.Greedy(0.1),
        "meta_learner": jlibo.FixedPrior(),
        "num_tasks": 2,
        "horizon": 2,
        "key": jax.random.key(0),
    }
    return jlibo.run_lifelong(**given | changes)


@pytest.mark.parametrize(
    ("call_fn", "message"),
    [
        (lambda: run(policy=print), f"{NO_POLICY}, but got <built-in function print>"),
        (lambda: run(policy=jlibo.Greedy), f"{NO_POLICY}, but got <class"),
        (lambda: run(env=FEATURES, features=None), f"{NO_ENV}, but got Cosine("),
        (lambda: run(env=[1, 2]), f"{NO_ENV}, but got [1, 2] (list)"),
        (lambda: run(key=0), "`key` should be one random key, such as jax.random.key(0), but got 0 (int)"),
        (
            lambda: run(key=jax.random.split(jax.random.key(0), 3)),
            "`key` should be one random key, such as jax.random.key(0), but got an array of shape [3]",
        ),
        (
            lambda: run(num_tasks=jnp.asarray(2)),
            "`num_tasks` should be a whole number, but got an array of shape []",
        ),
        (lambda: jlibo.MetaKGL(lam="a", omega=0.1), "`lam` should be a number, but got 'a' (str)"),
        (lambda: jlibo.GPUCB(nu=print, noise_std=0.1), "`nu` should be a number, but got <built-in"),
        (lambda: jlibo.MetaKGL(1.0, 0.1, tol="a"), "`tol` should be a number, but got 'a' (str)"),
        (lambda: jlibo.Tuner("space"), "`space` should be a SearchSpace, but got 'space' (str)"),
        (
            lambda: jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 1)), 3),
            "`memory` should be a string or a PathLike or a Memory, but got 3 (int)",
        ),
        (
            lambda: jlibo.group_lasso("a", "b", 0.1),
            "`design` should be an array of numbers, but got 'a' (str)",
        ),
        (
            lambda: jlibo.run_agents(
                values_of_classes()[jlibo.AbstractEnv],
                FEATURES,
                jlibo.Greedy(0.1),
                {"first": jlibo.FixedPrior},
                num_tasks=2,
                horizon=2,
                key=jax.random.key(0),
            ),
            "`meta_learners['first']` should be an AbstractMetaLearner, such as AdaptiveMetaKGL(...), but",
        ),
        (
            lambda: jlibo.theory.margin([0.5, "a"], 0.2),
            "`beta_min` should be a number or an array of numbers",
        ),
    ],
)
def test_messages_say_what_is_expected(call_fn, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call_fn()
