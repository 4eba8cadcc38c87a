"""What the model expects of a task: the numbers behind `TunerTask.explain`. Internal.

Pure functions of padded arrays. They extend the outlook (`jlibo.tune.outlook`), whose definitions of f and x*
they share; f(x) = phi(x) . w with weights w.

| here          | what it is                                                                          |
|---------------|-------------------------------------------------------------------------------------|
| `gains`       | E[max(f(x_1) - f(x*), ..., f(x_k) - f(x*), 0)] of the next k trials, by simulation  |
| `shares`      | the share of the variance of f over the space that each group of features has       |
| `likeness`    | the correlation over the space of f with the posterior mean of each past task       |
| `weights`     | the posterior probability of each component of the prior                            |
"""

from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jlibo.belief import belief as running
from jlibo.belief.moments import Units
from jlibo.belief.scaling import Standardise
from jlibo.features import AbstractFeatures
from jlibo.policies.base import AbstractPolicy
from jlibo.programs.programs import UNSTORED, Programs
from jlibo.tune.arrays import OwnRows
from jlibo.tune.ask import Choices
from jlibo.tune.engine import Knowledge, OwnTrials, PastTrials, condition
from jlibo.tune.outlook import HIGHEST, Look, Outlook, Tried, components, look

NUM_DRAWS = 64
"""Number of functions drawn from the posterior for `gains`, `shares` and `likeness`."""
BATCH = 16
"""Number of functions simulated at once; bounds the memory, since each has a posterior of its own."""


@final
class Insight(eqx.Module):
    """Everything that an explanation shows; see the module. Means and standard deviations over the draws."""

    outlook: Outlook
    weights: Float[Array, " components"]
    gains: Float[Array, " steps"]
    gain_errors: Float[Array, " steps"]
    """Standard errors of `gains`, which are means over the draws."""
    shares: Float[Array, " parameters"]
    share_stds: Float[Array, " parameters"]
    likeness: Float[Array, " tasks"] | None
    likeness_stds: Float[Array, " tasks"] | None


def insight(
    policy: AbstractPolicy,
    scaling: Standardise,
    knowledge: Knowledge,
    features: AbstractFeatures,
    rows: OwnRows | OwnTrials,
    tried: Tried,
    choices: Choices,
    log_units: Float[Any, ""],
    present: Bool[Any, " fixed"],
    effects: Float[Any, "parameters features features"],
    past: PastTrials | None,
    num_steps: int,
    *,
    programs: Programs = UNSTORED,
    key: PRNGKeyArray,
) -> Insight:
    """Return everything that an explanation shows.

    **Arguments:** those of `look` and

    - `policy`: chooses the simulated trials.
    - `present`: which of the fixed candidates are no padding; they stand for the whole space.
    - `effects`: the matrices of the parameters' total effects, see `jlibo.tune.importance`.
    - `past`: the past tasks; None if there are none.
    - `num_steps`: the largest number of further trials.
    - `programs`: whether compiled programs are stored.
    """
    parts = (policy.noise_std, scaling, knowledge)
    seen = programs.run(look, *parts, features, rows, tried, choices, log_units)
    drawn, moments = programs.run(_simulated, policy, seen, choices.available, effects, num_steps, key=key)
    similar = (None, None)
    if past is not None:
        similar = programs.run(_similar, *parts, past, choices.fixed_features, present, drawn)
    return Insight(seen.outlook, *moments, *similar)


@eqx.filter_jit
def _simulated(
    policy: AbstractPolicy,
    seen: Look,
    available: Bool[Any, " candidates"],
    effects: Float[Any, "parameters features features"],
    num_steps: int,
    *,
    key: PRNGKeyArray,
) -> tuple[Float[Array, "draws features"], tuple[Array, Array, Array, Array, Array]]:
    """Return draws of w from the posterior, and the fields `weights` to `share_stds` of `Insight`."""
    state, units, values, best = seen.state, seen.units, seen.values, seen.best
    draw_key, play_key = jax.random.split(key)
    weights, drawn, noise_stds = _draw(state, units, NUM_DRAWS, draw_key)

    def play(draw):
        theta, noise_std, key = draw
        return _play(policy, state, units, values, available, best, theta, noise_std, num_steps, key)

    keys = jax.random.split(play_key, NUM_DRAWS)
    gains = lax.map(play, (drawn, noise_stds, keys), batch_size=BATCH) * units.scale
    shares = _shares(drawn, effects)
    errors = gains.std(0) / np.sqrt(NUM_DRAWS)
    return drawn, (weights, gains.mean(0), errors, shares.mean(0), shares.std(0))


@eqx.filter_jit
def _similar(
    noise_std: Float[Array, ""],
    scaling: Standardise,
    knowledge: Knowledge,
    past: PastTrials,
    values: Float[Array, "points features"],
    present: Bool[Any, " points"],
    drawn: Float[Array, "draws features"],
) -> tuple[Float[Array, " tasks"], Float[Array, " tasks"]]:
    """Return `likeness` and `likeness_stds` of `Insight`."""
    surfaces = past_surfaces(noise_std, scaling, knowledge, past, values)
    likeness = _likeness(drawn, _centred(values, present), surfaces, present)
    return likeness.mean(0), likeness.std(0)


def _draw(
    state: running.RunningBelief, units: Units, num: int, key: PRNGKeyArray
) -> tuple[Float[Array, " components"], Float[Array, "draws features"], Float[Array, " draws"]]:
    """Return the components' weights, draws of w from the posterior, and the noise of each draw."""
    weights, _, posteriors = components(state, units)
    weight_key, normal_key = jax.random.split(key)
    # Systematic sampling: the number of draws of a component differs from its expectation by less than one.
    shifted = (jnp.arange(num) + jax.random.uniform(weight_key)) / num
    chosen = jnp.clip(jnp.searchsorted(jnp.cumsum(weights), shifted), 0, weights.shape[0] - 1)
    normal = jax.random.normal(normal_key, (num, posteriors.mean.shape[-1]), posteriors.mean.dtype)
    away = jnp.einsum("nz,kfz->knf", normal, posteriors.factor, precision=HIGHEST)
    drawn = posteriors.mean[chosen] + away[chosen, jnp.arange(num)]
    return weights, drawn, posteriors.noise_std[chosen]


def _play(
    policy: AbstractPolicy,
    state: running.RunningBelief,
    units: Units,
    values: Float[Array, "candidates features"],
    available: Bool[Array, " candidates"],
    best: Float[Array, " features"],
    theta: Float[Array, " features"],
    noise_std: Float[Array, ""],
    num_steps: int,
    key: PRNGKeyArray,
) -> Float[Array, " steps"]:
    """Simulate the policy on f = phi . theta; return the gain of the best trial after each step.

    The units stay as they are.
    """
    truth = jnp.matmul(values, theta, precision=HIGHEST)
    baseline = jnp.matmul(best, theta, precision=HIGHEST)

    def step(carry, key):
        state, free, gain = carry
        policy_key, noise_key = jax.random.split(key)
        state = running.with_features(state, values)
        scores = policy.scores(running.in_units(state, units), key=policy_key)
        scores = jnp.where(scores > -jnp.inf, scores, jnp.finfo(scores.dtype).min)
        index = jnp.argmax(jnp.where(free, scores, -jnp.inf))
        score = truth[index] + noise_std * jax.random.normal(noise_key, (), truth.dtype)
        # Once every candidate was tried, nothing is gained any more.
        state = running.observe(state, index, score * units.scale + units.centre, free[index])
        gain = jnp.where(free[index], jnp.maximum(gain, truth[index] - baseline), gain)
        return (running.with_features(state, None), free.at[index].set(False), gain), gain

    begin = running.with_features(running.at(state, values), None)
    start = (begin, jnp.asarray(available), jnp.zeros_like(baseline))
    return lax.scan(step, start, jax.random.split(key, num_steps))[1]


def _centred(values: Float[Array, "points features"], present: Bool[Any, " points"]) -> Array:
    """Return the features minus their mean over the points that are present; zero at the others."""
    weights = jnp.asarray(present, values.dtype)
    mean = jnp.matmul(weights, values, precision=HIGHEST) / weights.sum()
    return (values - mean) * weights[:, None]


def _shares(
    drawn: Float[Array, "draws features"], effects: Float[Array, "parameters features features"]
) -> Float[Array, "draws parameters"]:
    """Return the share of each parameter in the sum of the total effects."""
    totals = jnp.einsum("nf,pfg,ng->np", drawn, effects, drawn, precision=HIGHEST)
    totals = jnp.maximum(totals, 0)
    total = totals.sum(1, keepdims=True)
    return totals / jnp.where(total > 0, total, 1)


def past_surfaces(
    noise_std: Float[Array, ""],
    scaling: Standardise,
    knowledge: Knowledge,
    past: PastTrials,
    values: Float[Array, "points features"],
) -> Float[Array, "tasks points"]:
    """Return the posterior mean of each past task at the points, under the same prior as the own task."""

    def one_task(task: PastTrials):
        return running.in_units(*past_belief(noise_std, scaling, knowledge, task, values)).mean

    return lax.map(one_task, past, batch_size=8)


def past_belief(
    noise_std: Float[Array, ""],
    scaling: Standardise,
    knowledge: Knowledge,
    task: PastTrials,
    values: Float[Array, "points features"],
) -> tuple[running.RunningBelief, Units]:
    """Return the belief of one past task at the points, given its trials, and the units of its scores."""
    own = OwnTrials(task.features, task.scores, task.present, jnp.zeros_like(task.present))
    return condition(noise_std, scaling, knowledge, own, values, task.log_units)


def _likeness(
    drawn: Float[Array, "draws features"],
    centred: Float[Array, "points features"],
    surfaces: Float[Array, "tasks points"],
    present: Bool[Any, " points"],
) -> Float[Array, "draws tasks"]:
    """Return the correlation of each draw with each surface; zero if one of them is constant."""
    own = jnp.matmul(drawn, centred.T, precision=HIGHEST)
    others = _centred(surfaces.T, present).T

    def normed(rows):
        size = jnp.sqrt((rows**2).sum(1, keepdims=True))
        return rows / jnp.where(size > 0, size, 1)

    return jnp.matmul(normed(own), normed(others).T, precision=HIGHEST)
