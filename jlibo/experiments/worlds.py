"""Where an experiment takes place: the features, the tasks, and the agents that meet them.

| environment   | tasks                                                                                     |
|---------------|-------------------------------------------------------------------------------------------|
| `synthetic`   | the paper's data model, a support drawn for each seed                                     |
| `glmnet`      | the elastic net on real data sets, by look-up, in a random order for each seed            |

A setting is chosen on one half of the data sets and reported on the other. The halves take every second data
set in the order of the table, so that each has its share of every source, and keep together what is nearly
the same data (`australian` and `crx` are the same credit applications).
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from jlibo.belief.prior import support_prior
from jlibo.belief.scaling import AbstractScaling, RawRewards, Standardise
from jlibo.envs import AbstractEnv, SyntheticEnv, TableEnv
from jlibo.experiments.settings import Experiment, SettingError
from jlibo.features import AbstractFeatures, Cosine, Legendre, Unpenalised
from jlibo.meta import AbstractMetaLearner, FederatedMetaKGL, FixedPrior, MetaKGL
from jlibo.meta.exploration import ConstantExploration, CustomExploration, DecreasingExploration
from jlibo.policies import GPUCB, AbstractPolicy
from jlibo.tables import Table, load_table

SOLVER_TOL = 1e-5
"""Relative duality gap of the group lassos: far finer than the thresholds that their answers are put to."""

TWINS = {"crx": "australian"}
"""Data sets that must be in the half of another."""


def make_features(experiment: Experiment) -> AbstractFeatures:
    """The base kernels. `cosine2d-grid` are the products of the paper; `cosine2d-effects` has the main
    effects of each coordinate as well, and a constant that is never penalised."""
    if experiment.features == "cosine":
        return Cosine(experiment.num_features)
    if experiment.features == "cosine2d":
        return Cosine(experiment.num_features, dim=2)
    if experiment.features == "cosine2d-grid":
        return Cosine.grid(round(experiment.num_features**0.5), dim=2)
    if experiment.features == "cosine2d-effects":
        products = Cosine.grid(round(experiment.num_features**0.5) - 1, dim=2, constant=True)
        return Unpenalised(products, ["constant"])
    return Legendre(experiment.num_features)


def half_of(tasks: tuple[str, ...], half: str) -> list[int]:
    """The places in `tasks` of the "first" or "second" half, or of "all" of them."""
    if half == "all":
        return list(range(len(tasks)))
    wanted = 0 if half == "first" else 1
    return [place for place, name in enumerate(tasks) if tasks.index(TWINS.get(name, name)) % 2 == wanted]


def glmnet_tasks(experiment: Experiment) -> tuple[Table, list[int]]:
    """The table, and which of its data sets the experiment plays."""
    table = load_table("glmnet")
    return table, half_of(table.tasks, experiment.half)


def make_env(
    experiment: Experiment, features: AbstractFeatures, numbers: Mapping[str, Any], *, key: PRNGKeyArray
) -> AbstractEnv:
    """The environment of one seed."""
    if experiment.environment == "glmnet":
        table, places = glmnet_tasks(experiment)
        values = table.metric(experiment.metric)[places]
        env = TableEnv(
            jnp.asarray(values if experiment.metric != "logloss" else -values, jnp.result_type(float)),
            table.unit_params(),
            noise_std=numbers["noise_std"],
        )
        return env.shuffled(key=key)
    return SyntheticEnv.draw(
        features,
        support_size=experiment.support_size,
        norm_bound=numbers["norm_bound"],
        beta_min=numbers["beta_min"],
        noise_std=numbers["noise_std"],
        key=key,
    )


def true_support(env: AbstractEnv) -> Bool[Array, " groups"] | None:
    """J*, where there is one."""
    return env.support if isinstance(env, SyntheticEnv) else None


def make_policy(numbers: Mapping[str, Any]) -> AbstractPolicy:
    return GPUCB(numbers["nu"], numbers["regulariser"])


def make_scaling(experiment: Experiment) -> AbstractScaling:
    return Standardise() if experiment.rewards == "standardised" else RawRewards()


def make_agents(
    experiment: Experiment, features: AbstractFeatures, env: AbstractEnv, numbers: Mapping[str, Any]
) -> dict[str, AbstractMetaLearner]:
    """The agents by name: the paper's four, or where nobody knows the truth, random search for the oracle."""
    support = true_support(env)
    if support is None:
        # To explore all the time is to search at random.
        first = FixedPrior(exploration=CustomExploration(lambda task, horizon: horizon))
    else:
        first = FixedPrior(fixed_prior=support_prior(support, features.groups))
    learners = (
        first,
        FixedPrior(),
        MetaKGL(
            lam=numbers["lam"],
            omega=numbers["omega"],
            data=experiment.data,
            lam_scaling=experiment.lam_scaling,
            exploration=DecreasingExploration(experiment.explore_scale),
            tol=SOLVER_TOL,
        ),
        FederatedMetaKGL(
            lam=numbers["lam_federated"],
            omega=numbers["omega_federated"],
            alpha=numbers["alpha"],
            data=experiment.data,
            exploration=ConstantExploration(experiment.explore_scale),
            tol=SOLVER_TOL,
        ),
    )
    return dict(zip(experiment.agents, learners, strict=True))


def make_world(
    experiment: Experiment, features: AbstractFeatures, numbers: Mapping[str, Any], *, key: PRNGKeyArray
) -> tuple[AbstractEnv, dict[str, AbstractMetaLearner], PRNGKeyArray]:
    """Environment, agents and remaining key of one seed."""
    env_key, run_key = jax.random.split(key)
    env = make_env(experiment, features, numbers, key=env_key)
    return env, make_agents(experiment, features, env, numbers), run_key


def check_num_tasks(experiment: Experiment) -> None:
    """A table has only so many tasks."""
    if experiment.environment != "glmnet":
        return
    most = len(glmnet_tasks(experiment)[1])
    if experiment.num_tasks > most:
        raise SettingError(f"'num_tasks' should be at most {most}, but got {experiment.num_tasks}.")
