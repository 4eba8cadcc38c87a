"""Coverage of the confidence bands, measured: how often f leaves them anywhere, at any step of a task.

| here                | paper                                                                              |
|---------------------|------------------------------------------------------------------------------------|
| `ratio`             | max over i and x of |f(x) - mu_{i-1}(x)| / (nu_i sigma_{i-1}(x))                    |
| `Coverage.left`     | the event that f is not in C_{i-1}(x) for some i and x, which has probability delta |
| `width="kernel"`    | nu_i of Chowdhury & Gopalan, proved for lambda_ucb^2 = 1 + 2/n (`TheoreticalNu`)    |
| `width="ellipsoid"` | nu_i of OFUL times sigma / lambda_ucb, proved for every lambda_ucb                  |
| `norm_of`           | B, for the kernel of a prior and a bound on ||beta||_2                              |

A learned kernel that lacks a kernel of J* does not contain f: then no B is large enough, and the band fails.
"""

from collections.abc import Mapping
from typing import Any, Literal, final

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief import belief as running
from jlibo.belief.moments import Moments
from jlibo.belief.posterior import Belief
from jlibo.belief.prior import Prior, PriorMixture, largest_variance
from jlibo.belief.scaling import RAW
from jlibo.checks import ArrayLike, fail
from jlibo.envs import AbstractEnv
from jlibo.features import AbstractFeatures
from jlibo.front_door import front_door
from jlibo.lifelong.one_task import TaskResult, draw_task, run_task
from jlibo.lifelong.play import plan_agents
from jlibo.meta import AbstractMetaLearner, RunSizes, TaskData
from jlibo.policies import AbstractPolicy
from jlibo.policies.gp_ucb import kernel_width
from jlibo.policies.oful import ellipsoid_width

Width = Literal["kernel", "ellipsoid"]


@final
class Coverage(eqx.Module):
    """Coverage of the bands of one agent; returned by `measure_coverage`."""

    ratio: Float[Array, " tasks"]
    """Largest distance of f from the mean in a task, in multiples of the band's half width."""

    @property
    def left(self) -> Bool[Array, " tasks"]:
        """Whether f left the band anywhere in the task."""
        return self.ratio > 1


@front_door
def norm_of(prior: Prior | PriorMixture, coef_norm: Float[ArrayLike, ""]) -> Float[Array, ""]:
    """Return B for the kernel of a prior: `||beta||_2` over the largest standard deviation of a weight.

    For the average of |J| kernels it is sqrt(|J|) ||beta||_2.

    **Arguments:**

    - `prior`: its covariance defines the kernel. Of a mixture, the widest component counts.
    - `coef_norm`: bound on ||beta||_2.
    """
    covariance = prior.covariance if isinstance(prior, Prior) else prior.components.covariance
    return jnp.asarray(coef_norm) / jnp.sqrt(largest_variance(covariance))


@front_door
def band_ratio(
    prior: Prior | PriorMixture,
    features: Float[Array, "candidates features"],
    values: Float[Array, " candidates"],
    played: TaskResult,
    *,
    norm_bound: Float[ArrayLike, ""],
    noise_level: Float[ArrayLike, ""],
    regulariser: Float[ArrayLike, ""],
    delta: Float[ArrayLike, ""],
    width: Width = "ellipsoid",
) -> Float[Array, " horizon"]:
    """Return the largest distance of f from the mean before every step, in multiples of the half width.

    **Arguments:**

    - `prior`, `features`: prior of the task, and features of the candidates.
    - `values`: f at the candidates.
    - `played`: actions and rewards of the task.
    - `norm_bound`: B.
    - `noise_level`: sigma.
    - `regulariser`: lambda_ucb.
    - `delta`: probability that the band may fail.
    - `width`: "kernel" or "ellipsoid", see `jlibo.theory.coverage`.

    **Raises:** `ValueError` for another `width`.
    """
    if width not in ("kernel", "ellipsoid"):
        fail("width", "'kernel' or 'ellipsoid'", repr(width))

    norm, noise, level = jnp.asarray(norm_bound), jnp.asarray(noise_level), jnp.asarray(delta)

    def half_width(belief: Belief) -> Float[Array, ""]:
        gain = belief.posterior.information_gain
        if width == "kernel":
            return kernel_width(norm, noise, gain, level)
        return norm + noise / jnp.asarray(regulariser) * ellipsoid_width(jnp.zeros(()), gain, level)

    def step(state, observed):
        state = running.with_features(state, features)
        belief = running.in_units(state, RAW.units((), Moments.empty(values.dtype), state))
        # A deviation of round-off at a point whose variance vanished is no failure.
        slack = 1e3 * jnp.finfo(values.dtype).eps * jnp.maximum(jnp.abs(values).max(), 1)
        ratio = jnp.abs(values - belief.mean) / (half_width(belief) * belief.std + slack)
        state = running.observe(state, *observed, refresh=True)
        return running.with_features(state, None), ratio.max()

    start = running.start(prior, features, regulariser, RAW.num_columns)
    _, ratios = lax.scan(step, running.with_features(start, None), (played.actions, played.rewards))
    return ratios


@front_door
def measure_coverage(
    env: AbstractEnv,
    features: AbstractFeatures,
    policy: AbstractPolicy,
    meta_learners: Mapping[str, AbstractMetaLearner],
    *,
    coef_norm: Float[ArrayLike, ""],
    delta: Float[ArrayLike, ""] = 0.1,
    width: Width = "ellipsoid",
    num_tasks: int,
    horizon: int,
    key: PRNGKeyArray,
) -> dict[str, Coverage]:
    """Run agents and return, for every task, how far f was from the centre of their confidence bands.

    **Arguments:**

    - `env`, `features`, `policy`, `meta_learners`, `num_tasks`, `horizon`, `key`: as in `jlibo.run_agents`.
      All agents of a key face the same tasks.
    - `coef_norm`: bound on ||beta_s||_2; `norm_of` makes it a B for each agent's kernel.
    - `delta`: probability that a band may fail.
    - `width`: "kernel" or "ellipsoid", see `jlibo.theory.coverage`.

    **Returns:** a `Coverage` for each agent. It can be vmapped over `key`.

    ```python
    import jax

    import jlibo
    from jlibo import theory

    features, key = jlibo.Cosine(6), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    agents = {"full": jlibo.FixedPrior(), "libo": jlibo.MetaKGL(lam=0.1, omega=0.25)}
    policy = jlibo.GPUCB(nu=10.0, noise_std=0.1)
    found = theory.measure_coverage(
        env, features, policy, agents, coef_norm=10.0, num_tasks=3, horizon=16, key=key
    )
    print(found["libo"].left)
    ```
    """
    found = measure_bands(
        env,
        features,
        policy,
        meta_learners,
        coef_norm=coef_norm,
        delta=delta,
        widths=(width,),
        num_tasks=num_tasks,
        horizon=horizon,
        key=key,
    )
    return {name: bands[width] for name, bands in found.items()}


def measure_bands(
    env: AbstractEnv,
    features: AbstractFeatures,
    policy: AbstractPolicy,
    meta_learners: Mapping[str, AbstractMetaLearner],
    *,
    coef_norm: Float[ArrayLike, ""],
    delta: Float[ArrayLike, ""],
    widths: tuple[Width, ...],
    num_tasks: int,
    horizon: int,
    key: PRNGKeyArray,
) -> dict[str, dict[Width, Coverage]]:
    """Return a `Coverage` for each agent and width, from one play; arguments as in `measure_coverage`."""
    plan = plan_agents(env, features, meta_learners, num_tasks=num_tasks, horizon=horizon)
    candidate_features = features(env.candidates)

    return {
        name: _cover(
            env,
            policy,
            learner,
            candidate_features,
            plan.sizes[name],
            jnp.asarray(plan.counts[:, place], jnp.int32),
            (jnp.asarray(coef_norm), jnp.asarray(delta)),
            tuple(widths),
            key=key,
        )
        for place, (name, learner) in enumerate(meta_learners.items())
    }


@eqx.filter_jit
def _cover(
    env: AbstractEnv,
    policy: AbstractPolicy,
    learner: AbstractMetaLearner,
    candidate_features: Float[Array, "candidates features"],
    sizes: RunSizes,
    counts: Int[Array, " tasks"],
    assumed: tuple[Float[Array, ""], Float[Array, ""]],
    widths: tuple[Width, ...],
    *,
    key: PRNGKeyArray,
) -> dict[Width, Coverage]:
    """Return the coverage of one agent for bands of each width. `assumed`: bound on ||beta||_2, and delta."""
    # Jitted, because a scan outside of `jit` is recompiled at every call.
    coef_norm, delta = assumed

    def one_task(state: Any, step):
        index, num_explore = step
        draws = draw_task(env, index, sizes.horizon, key=key)
        prior = learner.prior(state, sizes)
        played = run_task(policy, prior, candidate_features, draws, num_explore)

        def furthest(width: Width) -> Float[Array, ""]:
            ratios = band_ratio(
                prior,
                candidate_features,
                draws.task.values,
                played,
                norm_bound=norm_of(prior, coef_norm),
                noise_level=env.noise_std,
                regulariser=policy.noise_std,
                delta=delta,
                width=width,
            )
            return ratios.max()

        data = TaskData(candidate_features[played.actions], played.rewards, played.explored)
        state, _ = learner.update(state, data, sizes)
        return state, {width: furthest(width) for width in widths}

    steps = (jnp.arange(sizes.num_tasks, dtype=jnp.int32), counts)
    _, ratios = lax.scan(one_task, learner.init(sizes), steps)
    return {width: Coverage(ratios[width]) for width in widths}
