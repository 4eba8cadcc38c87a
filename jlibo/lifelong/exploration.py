"""Draws of forced exploration: with repeats, as the paper has it, or without, as a tuner wants it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from jlibo.envs.base import Task


def explore_uniformly(task: Task, num_draws: int, *, key: PRNGKeyArray) -> Int[Array, " draws"]:
    """Independent uniform draws from the candidates that can be played."""
    num_candidates = task.values.shape[0]
    if task.available is None:
        # One draw of bits, where `randint` needs two; the bias of rounding is below one in a million.
        places = jax.random.uniform(key, (num_draws,)) * num_candidates
        return jnp.minimum(places.astype(jnp.int32), num_candidates - 1)
    logits = jnp.where(task.available, 0.0, -jnp.inf)
    return jax.random.categorical(key, logits, shape=(num_draws,))


def explore_once(task: Task, num_draws: int, *, key: PRNGKeyArray) -> Int[Array, " draws"]:
    """Uniform draws without repeats; where fewer candidates can be played, these over again."""
    places = jax.random.uniform(key, task.values.shape)
    num_playable = places.shape[0]
    if task.available is not None:
        places = jnp.where(task.available, places, 2)
        num_playable = jnp.maximum(task.available.sum(), 1)
    return jnp.argsort(places)[jnp.arange(num_draws) % num_playable]
