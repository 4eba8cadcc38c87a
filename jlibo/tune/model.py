"""The model of a search space: what a space and a mode determine, for tuner and integrations. Internal.

| field               | what it is                                                                      |
|---------------------|---------------------------------------------------------------------------------|
| `features`, `names` | the dictionary of base kernels, and the names of its groups                     |
| `points`, `configs` | the candidates, if they are a list and not a box                                |
| `learner`, `policy` | maps past tasks to a prior; maps a posterior to scores of candidates            |
| `scaling`           | the units of the scores                                                         |
| `allowed`           | the constraint on the candidates, if there is one                               |
| `programs`          | whether compiled programs are stored for later processes                        |

Any meta-learner and any policy that `jlibo.run_lifelong` accepts can be used; a mode names one of each.
"""

import dataclasses
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64

from jlibo.belief.prior import Prior
from jlibo.belief.scaling import Standardise
from jlibo.checks import check_shape, fail
from jlibo.federated.messages import Announcement
from jlibo.meta import AbstractMetaLearner, FixedPrior, RunSizes
from jlibo.meta.base import check_run_noise, selected_prior
from jlibo.meta.exploration import FirstTasksExploration
from jlibo.policies import AbstractPolicy
from jlibo.programs.programs import UNSTORED, Programs
from jlibo.tune import modes
from jlibo.tune.space import candidates as candidate_points
from jlibo.tune.space.constraints import Constraint, make_constraint
from jlibo.tune.space.dictionary import MANY_FEATURES, LargeDictionaryWarning, SpaceFeatures
from jlibo.tune.space.parameters import Categorical, Float, Value
from jlibo.tune.space.space import SearchSpace

PAPER_SIZES: tuple[dict[str, Any], ...] = (
    {},
    {"num_pair_basis": 2},
    {"num_pair_basis": 1},
    {"interactions": False},
    {"interactions": False, "num_basis": 3},
)
ADAPTIVE_SIZES: tuple[dict[str, Any], ...] = tuple(
    {"interactions": False, "num_basis": num_basis, "num_joint": 128} for num_basis in (6, 4, 3, 2)
)
"""Sizes of the dictionary, largest first; the default is the first with at most `MANY_FEATURES` features.

The paper's algorithm selects among parameters and pairs. The adaptive mode represents interactions of any
order by the joint group instead. Pairs beside it would take half of the prior variance, most of it in the
corners of the box.
"""
CHECKED_TASKS, CHECKED_BUDGET = 128, 50
"""Numbers of tasks and of trials per task for which a learner's exploration schedule is checked."""


DEFAULT_BUDGET = 50
"""Number of trials of a task whose budget was not given."""
ALL_TASKS = 2**31 - 1


class FederatedMismatch(ValueError):
    """What the server of a federated run announced does not fit the search space of the client."""


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """What a space and a mode determine. Created by `make_model`."""

    space: SearchSpace
    features: SpaceFeatures
    """Without the names and ranges of the space, so that spaces of one shape share compiled programs."""
    names: tuple[str, ...]
    """Names of the groups of the features."""
    points: Float64[np.ndarray, "configs dim"] | None
    """The candidates as unit points, if they are a list; None for any point of the unit box."""
    configs: tuple[dict[str, Value], ...] | None
    """The configurations at `points` if the user gave them, since unit points are exact only to round-off."""
    learner: AbstractMetaLearner
    policy: AbstractPolicy
    scaling: Standardise
    allowed: Constraint | None = None
    """The constraint that candidates satisfy; None if there is none. Applied to `points` already."""
    programs: Programs = UNSTORED

    def sizes(self, num_tasks: int, num_trials: int) -> RunSizes:
        """Return the sizes of a history of `num_tasks` tasks with at most `num_trials` trials each."""
        return _sizes(self.features, num_tasks, num_trials, num_trials)


def make_model(
    space: SearchSpace,
    *,
    mode: str = "adaptive",
    learner: AbstractMetaLearner | None = None,
    policy: AbstractPolicy | None = None,
    candidates: Iterable[Mapping[str, Any]] | None = None,
    sizes: Mapping[str, Any] | None = None,
    constraint: Any = None,
    keep_programs: bool = False,
) -> Model:
    """Return the model on `space`.

    **Arguments:**

    - `space`: the search space.
    - `mode`: "adaptive", "paper" or "federated", see `jlibo.tune.modes`.
    - `learner`, `policy`: used instead of those of the mode.
    - `candidates`: the configurations to choose from. With None, all of a small finite space, or the whole
      box.
    - `sizes`: the sizes of the dictionary, see `jlibo.tune.space_features`; None for the default of the mode.
    - `constraint`: a function from a configuration to whether it is a candidate, or a list of functions.
    - `keep_programs`: whether compiled programs are stored on disk, see `jlibo.programs`.
    """
    is_own = learner is not None or policy is not None
    mode_learner, mode_policy = modes.make_learner(mode), modes.make_policy(mode)
    learner = mode_learner if learner is None else learner
    policy = mode_policy if policy is None else policy
    features = _default_features(space, mode) if sizes is None else space.features(**sizes)
    if is_own:
        _check_parts(learner, policy, features)
    configs, points = None, candidate_points.whole_space(space)
    if candidates is not None:
        configs, points = _listed(space, candidates)
    allowed = make_constraint(space, constraint)
    if allowed is not None and points is not None:
        configs, points = _those_allowed(configs, points, allowed)
    return Model(
        space=space,
        features=without_names(features),
        names=features.names,
        points=points,
        configs=configs,
        learner=learner,
        policy=policy,
        scaling=modes.make_scaling(),
        allowed=allowed,
        programs=Programs(keep_programs),
    )


def following(model: Model, announcement: Announcement | None) -> Model:
    """Return the model of a client with the support and the exploration that the server announced.

    **Raises:** `FederatedMismatch` if the announcement has another number of kernels than the dictionary.
    """
    if announcement is None:
        return dataclasses.replace(model, learner=modes.make_learner("federated"))
    if announcement.num_kernels != model.features.num_groups:
        raise FederatedMismatch(
            f"the announcement in the memory is about {announcement.num_kernels} kernels, but the dictionary "
            f"of this tuner has {model.features.num_groups}: use the space and the sizes of the ballot."
        )
    support = np.zeros(announcement.num_kernels, bool)
    support[list(announcement.support)] = True
    exploration = FirstTasksExploration(announcement.num_explore, num_tasks=ALL_TASKS)
    prior = selected_prior(jnp.asarray(support), model.sizes(1, 1))
    return dataclasses.replace(model, learner=FixedPrior(prior, exploration))


def is_allowed(model: Model, params: Mapping[str, Any]) -> bool:
    """Return whether a configuration satisfies the constraint and is in the user's list, if there is one."""
    if model.allowed is not None and not model.allowed.holds(params):
        return False
    if model.configs is None or model.points is None:
        return True
    return candidate_points.was_tried(model.space.to_unit(params), model.points)


def without_names(features: SpaceFeatures) -> SpaceFeatures:
    """Return the same features without the names and ranges of the space.

    Features depend only on unit points and conditions, so that all spaces of one shape with the same
    conditions share a compiled program.
    """
    kinds = [
        Categorical(range(one.num_values)) if isinstance(one, Categorical) else Float(0, 1)
        for one in features.space.values()
    ]
    nameless = SearchSpace({f"{place:06}": kind for place, kind in enumerate(kinds)})
    names = tuple(f"{group}" for group in range(features.num_groups))
    return dataclasses.replace(features, space=nameless, names=names)


def _default_features(space: SearchSpace, mode: str) -> SpaceFeatures:
    """Return the mode's largest dictionary with at most `MANY_FEATURES` features, or its smallest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LargeDictionaryWarning)
        made = (space.features(**sizes) for sizes in (ADAPTIVE_SIZES if mode == "adaptive" else PAPER_SIZES))
        features = next(made)
        for smaller in made:
            if features.num_features <= MANY_FEATURES:
                break
            features = smaller
    return features


def _listed(
    space: SearchSpace, candidates: Iterable[Mapping[str, Any]]
) -> tuple[tuple[dict[str, Value], ...], Float64[np.ndarray, "configs dim"]]:
    configs = tuple(space.validate(config) for config in candidates)
    if not configs:
        fail("candidates", "at least one configuration", "none")
    points = np.asarray([space.to_unit(config) for config in configs])
    check_shape("candidates", points, ("candidates", space.num_parameters))
    return configs, points


def _those_allowed(
    configs: tuple[dict[str, Value], ...] | None, points: np.ndarray, allowed: Constraint
) -> tuple[tuple[dict[str, Value], ...] | None, np.ndarray]:
    """Return the candidates of a list that satisfy the constraint; there is at least one."""
    is_allowed = allowed(points) if configs is None else np.array([allowed.holds(one) for one in configs])
    if not is_allowed.any():
        fail("constraint", "satisfied by at least one candidate", f"none of {len(points)}")
    kept = (
        None if configs is None else tuple(one for one, keep in zip(configs, is_allowed, strict=True) if keep)
    )
    return kept, points[is_allowed]


def _check_parts(learner: AbstractMetaLearner, policy: AbstractPolicy, features: SpaceFeatures) -> None:
    """Raise an error if the learner or the policy cannot be used with these features."""
    most = int(learner.exploration.counts(CHECKED_TASKS, CHECKED_BUDGET).max())
    sizes = _sizes(features, 1, CHECKED_BUDGET, most)
    check_run_noise(policy.noise_std, learner, sizes)
    # Traced without computation. A learner of exploration data rejects a schedule without exploration here.
    prior = eqx.filter_eval_shape(lambda: learner.prior(learner.init(sizes), sizes))
    size = (prior if isinstance(prior, Prior) else prior.components).mean.shape[-1]
    if size != features.num_features:
        expected = f"one whose prior is over the {features.num_features} features of the space"
        fail("learner", f"{expected} (`space.features()`)", f"{size} features")


def _sizes(features: SpaceFeatures, num_tasks: int, num_trials: int, max_explore: int) -> RunSizes:
    dtype = jnp.result_type(float)
    return RunSizes.of(
        features, num_tasks=num_tasks, horizon=num_trials, max_explore=max_explore, dtype=dtype
    )
