"""Environments of the arena: a name, a function that draws one for a seed, and the sizes of a run."""

import dataclasses
import functools
from collections.abc import Callable
from typing import final

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from jlibo.checks import check_count
from jlibo.envs.linear.base import ArmKind, LinearEnv
from jlibo.front_door import check_fields


@final
@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment of the arena.

    **Arguments:**

    - `name`: name of the environment.
    - `summary`: what it is, in one line.
    - `source`: whose setting it is.
    - `draw`: returns the environment of a seed, given its key. It runs inside of `jit` and of `vmap`.
    - `num_tasks`: number of tasks of a run.
    - `horizon`: number of steps of each task.
    - `is_default`: whether it is part of the arena if no environments are named.

    ```python
    from jlibo.arena import ENVIRONMENTS

    print(ENVIRONMENTS["low-rank-ball"].kind)  # continuous
    ```
    """

    name: str
    summary: str
    source: str
    draw: Callable[[PRNGKeyArray], LinearEnv]
    num_tasks: int
    horizon: int
    is_default: bool = True

    def __post_init__(self):
        check_fields(self)
        check_count("num_tasks", self.num_tasks)
        check_count("horizon", self.horizon)

    @functools.cached_property
    def shape(self) -> LinearEnv:
        """The environment with shapes in place of arrays."""
        return eqx.filter_eval_shape(self.draw, jax.random.key(0))

    @property
    def kind(self) -> ArmKind:
        """Kind of its action sets; see `jlibo.envs.linear.AbstractArms`."""
        return self.shape.arms.kind

    @property
    def num_features(self) -> int:
        """Number of features of an action."""
        return self.shape.num_features

    @functools.cached_property
    def known_facts(self) -> frozenset[str]:
        """Names of the facts that the environment has."""
        facts = eqx.filter_eval_shape(lambda key: self.draw(key).facts, jax.random.key(0))
        return frozenset(
            field.name for field in dataclasses.fields(facts) if getattr(facts, field.name) is not None
        )

    def sized(self, *, num_tasks: int | None = None, horizon: int | None = None) -> "Environment":
        """Return the environment with another number of tasks or steps."""
        return dataclasses.replace(
            self,
            num_tasks=self.num_tasks if num_tasks is None else num_tasks,
            horizon=self.horizon if horizon is None else horizon,
        )
