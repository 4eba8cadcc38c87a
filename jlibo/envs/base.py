"""What an environment is: candidates to play, and one task after another that says what they are worth."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray


class Task(eqx.Module):
    """One bandit problem over a finite set of candidates."""

    values: Float[Array, " candidates"]
    """f_s at every candidate: the expected rewards, which the agent never sees."""
    available: Bool[Array, " candidates"] | None = None
    """Which candidates can be played; None: all."""
    points: Float[Array, "candidates dim"] | None = None
    """This task's own candidates; None: those of the environment."""

    @property
    def best_value(self) -> Float[Array, ""]:
        """f_s(x*_s), the value that regret is measured from."""
        if self.available is None:
            return self.values.max()
        return jnp.where(self.available, self.values, -jnp.inf).max()


class AbstractEnv(eqx.Module):
    """A sequence of tasks. Implement `task`; it must be jittable and a pure function of its arguments."""

    candidates: eqx.AbstractVar[Float[Array, "candidates dim"]]
    noise_std: eqx.AbstractVar[Float[Array, ""]]

    @abc.abstractmethod
    def task(self, index: Int[Array, ""], *, key: PRNGKeyArray) -> Task:
        """Task number `index`, counted from 0. `key` is the task's own."""


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
