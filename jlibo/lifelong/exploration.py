"""Draws of forced exploration: with repeats, as in the paper, or without, as in tuning."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from jlibo.envs.base import Task


def explore_uniformly(task: Task, num_draws: int, *, key: PRNGKeyArray) -> Int[Array, " draws"]:
    """Return independent uniform draws from the available candidates."""
    num_candidates = task.values.shape[0]
    if task.available is None:
        # `uniform` needs half the random bits of `randint`; its rounding bias is below one in a million.
        places = jax.random.uniform(key, (num_draws,)) * num_candidates
        return jnp.minimum(places.astype(jnp.int32), num_candidates - 1)
    logits = jnp.where(task.available, 0.0, -jnp.inf)
    return jax.random.categorical(key, logits, shape=(num_draws,))


def explore_once(task: Task, num_draws: int, *, key: PRNGKeyArray) -> Int[Array, " draws"]:
    """Return uniform draws without repeats; if fewer candidates are available, their order is repeated."""
    places = jax.random.uniform(key, task.values.shape)
    num_playable = places.shape[0]
    if task.available is not None:
        places = jnp.where(task.available, places, 2)
        num_playable = jnp.maximum(task.available.sum(), 1)
    return jnp.argsort(places)[jnp.arange(num_draws) % num_playable]
