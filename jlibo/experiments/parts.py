"""Parts of the paper's experiments: environments, base kernels and agents, as functions for a `Spec`.

| environment      | tasks                                                                                  |
|------------------|----------------------------------------------------------------------------------------|
| `synthetic`      | the paper's data model, with a support drawn for each seed                             |
| `glmnet`         | the elastic net on real data sets, by look-up, in a random order for each seed         |

Settings are chosen on one half of the data sets and reported on the other. The halves take every second data
set in the order of the table, so that each has its share of every source. Nearly equal data sets are kept in
one half (`australian` and `crx` are the same credit applications).
"""

from collections.abc import Mapping
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from jlibo.belief.prior import support_prior
from jlibo.belief.scaling import AbstractScaling, RawRewards, Standardise
from jlibo.envs import AbstractEnv, SyntheticEnv, TableEnv
from jlibo.experiments.spec import SettingError
from jlibo.features import AbstractFeatures, Cosine, Legendre, Scaled, Unpenalised, box_midpoints
from jlibo.front_door import front_door
from jlibo.meta import FixedPrior
from jlibo.meta.exploration import CustomExploration
from jlibo.tables import load_table

TWINS = {"crx": "australian"}
"""Data sets that must be in the half of another."""


# --- environments -------------------------------------------------------------------------------------------


def synthetic(
    features: AbstractFeatures,
    *,
    support_size: int,
    norm_bound: float,
    beta_min: float,
    noise_std: float,
    num_candidates: int | None = None,
    key: PRNGKeyArray,
) -> SyntheticEnv:
    """Return the synthetic environment of one seed.

    Candidates are the paper's grid with the ends of the domain. If `num_candidates` is given, they are the
    midpoints of that many cells per dimension, which are inside of it.
    """
    return SyntheticEnv.draw(
        features,
        support_size=support_size,
        norm_bound=norm_bound,
        beta_min=beta_min,
        noise_std=noise_std,
        candidates=None if num_candidates is None else box_midpoints(features, num_candidates),
        key=key,
    )


def check_synthetic(settings: Mapping[str, Any]) -> None:
    """Raise a `SettingError` if the settings of `synthetic` do not fit together."""
    for name in ("support_size", "norm_bound"):
        if not settings[name] > 0:
            raise SettingError(f"'{name}' should be above 0, but got {settings[name]}.")
    if settings.get("num_candidates", 2) < 2:
        raise SettingError(f"'num_candidates' should be at least 2, but got {settings['num_candidates']}.")
    for name in ("beta_min", "noise_std"):
        if not settings[name] >= 0:
            raise SettingError(f"'{name}' should be a number >= 0, but got {settings[name]}.")
    num_features = settings.get("num_features")
    if num_features is not None and settings["support_size"] > num_features:
        raise SettingError(
            f"'support_size' should be at most num_features = {num_features}, "
            f"but got {settings['support_size']}."
        )
    if settings["beta_min"] * settings["support_size"] ** 0.5 >= settings["norm_bound"]:
        raise SettingError(
            "'beta_min' should be below norm_bound / sqrt(support_size), so that every kernel can matter, "
            f"but got {settings['beta_min']}."
        )


def glmnet(
    features: AbstractFeatures,
    *,
    half: Literal["all", "first", "second"],
    metric: Literal["auc", "accuracy", "logloss"],
    noise_std: float,
    key: PRNGKeyArray,
) -> TableEnv:
    """Return the look-up environment of one seed: the tasks of a half in a random order."""
    table = load_table("glmnet")
    values = table.metric(metric)[half_of(table.tasks, half)]
    env = TableEnv(
        jnp.asarray(values if metric != "logloss" else -values, jnp.result_type(float)),
        table.unit_params(),
        noise_std=noise_std,
    )
    return env.shuffled(key=key)


def half_of(tasks: tuple[str, ...], half: str) -> list[int]:
    """Return the positions in `tasks` of the "first" or "second" half, or of "all" of them."""
    if half == "all":
        return list(range(len(tasks)))
    wanted = 0 if half == "first" else 1
    return [place for place, name in enumerate(tasks) if tasks.index(TWINS.get(name, name)) % 2 == wanted]


def check_glmnet(settings: Mapping[str, Any]) -> None:
    """Raise a `SettingError` if the table has fewer tasks, or the base kernels another dimension."""
    if not settings["noise_std"] >= 0:
        raise SettingError(f"'noise_std' should be a number >= 0, but got {settings['noise_std']}.")
    kinds = [name for name in _BASES if name.startswith("cosine2d")]
    if settings.get("features", kinds[0]) not in kinds:
        raise SettingError(
            f"'features' of glmnet should be one of {', '.join(kinds)}, but got {settings['features']}."
        )
    most = len(half_of(load_table("glmnet").tasks, settings["half"]))
    if settings["num_tasks"] > most:
        raise SettingError(f"'num_tasks' should be at most {most}, but got {settings['num_tasks']}.")


def true_support(env: AbstractEnv) -> Bool[Array, " groups"] | None:
    """Return J*, or None if the environment does not know it."""
    return env.support if isinstance(env, SyntheticEnv) else None


# --- base kernels -------------------------------------------------------------------------------------------


def _effects(num_features: int) -> AbstractFeatures:
    products = Cosine.grid(round(num_features**0.5) - 1, dim=2, constant=True)
    return Unpenalised(products, ["constant"])


def _orthonormal_legendre(num_features: int) -> AbstractFeatures:
    # P_j has the mean square 1 / (2 j + 1) on [-1, 1].
    polynomials = Legendre(num_features)
    degrees = jnp.asarray([degree for (degree,) in polynomials.degrees])
    return Scaled(polynomials, jnp.sqrt(2.0 * degrees + 1))


_BASES = {
    "cosine": Cosine,
    "cosine2d": lambda num_features: Cosine(num_features, dim=2),
    "cosine2d-grid": lambda num_features: Cosine.grid(round(num_features**0.5), dim=2),
    "cosine2d-effects": _effects,
    "legendre": Legendre,
    "legendre-orthonormal": _orthonormal_legendre,
}


def base_kernels(
    features: Literal[
        "cosine", "cosine2d", "cosine2d-grid", "cosine2d-effects", "legendre", "legendre-orthonormal"
    ],
    num_features: int,
) -> AbstractFeatures:
    """Return base kernels by name.

    `cosine2d-grid` are the products of the paper. `cosine2d-effects` also has the main effects of each
    coordinate, and a constant that is never penalised. `legendre-orthonormal` are the polynomials scaled to a
    mean square of one under the uniform distribution, as Prop. 4.3 requires; they exceed k_j(x, x) <= 1.
    """
    return _BASES[features](num_features)


def check_base_kernels(settings: Mapping[str, Any]) -> None:
    """Raise a `SettingError` for fewer than one base kernel."""
    if settings["num_features"] < 1:
        raise SettingError(f"'num_features' should be above 0, but got {settings['num_features']}.")


# --- scaling of rewards and agents --------------------------------------------------------------------------


def scaling_of(rewards: Literal["raw", "standardised"]) -> AbstractScaling:
    """Return the units in which agents see rewards: raw, or standardised by the task's own rewards."""
    return {"raw": RawRewards, "standardised": Standardise}[rewards]()


@front_door
def oracle(env: AbstractEnv, features: AbstractFeatures) -> FixedPrior:
    """Return the agent that knows the true support."""
    support = true_support(env)
    if support is None:
        raise SettingError("the oracle needs an environment with a known support, such as 'synthetic'.")
    return FixedPrior(fixed_prior=support_prior(support, features.groups))


@front_door
def random_search(env: AbstractEnv, features: AbstractFeatures) -> FixedPrior:
    """Return the agent that explores in every step."""
    return FixedPrior(exploration=CustomExploration(lambda task, horizon: horizon))
