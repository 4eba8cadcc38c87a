"""One seed of an experiment as a function of its settings, for `jlibo sweep`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jlibo.experiments import worlds
from jlibo.experiments.settings import Experiment
from jlibo.lifelong import metrics
from jlibo.lifelong.loop import LifelongResult, run_agents
from jlibo.lifelong.offline import OfflineResult, run_offline
from jlibo.sweeps import task_ticks

_PER_TASK, _PER_STEP = ("agent", "task"), ("agent", "task", "step")
OUTPUTS: dict[str, tuple[str, ...]] = {
    "task_regret": _PER_TASK,
    "support_size": _PER_TASK,
    "recovery": _PER_TASK,
    "fell_back": _PER_TASK,
    "status": _PER_TASK,
    "num_explore": _PER_TASK,
    "regret": _PER_STEP,
    "simple_regret": _PER_STEP,
    "rewards": _PER_STEP,
    "actions": _PER_STEP,
    "explored": _PER_STEP,
    "support": ("agent", "task", "group"),
}
"""The outputs that can be stored, and their axes."""
ONLY_LIFELONG = ("num_explore", "rewards", "actions", "explored")
"""Outputs that an offline experiment does not have."""


@final
@dataclasses.dataclass(frozen=True)
class ExperimentRun:
    """One seed of an experiment as a function of `key` and settings, for `sweep`. Returns `outputs`."""

    experiment: Experiment
    outputs: tuple[str, ...]

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        return {name: OUTPUTS[name] for name in self.outputs}

    @property
    def coords(self) -> dict[str, np.ndarray]:
        return {"agent": np.asarray(self.experiment.agents)}

    def __call__(self, key, **settings: Array) -> dict[str, Array]:
        experiment = self.experiment
        numbers = {name: jnp.asarray(value) for name, value in experiment.numbers().items()}
        # The barrier makes constants opaque. The compiler would multiply them in an order that depends on the
        # number of devices, and a fixed setting would round differently from a swept one.
        numbers = jax.lax.optimization_barrier(numbers) | settings
        features = worlds.make_features(experiment)
        env, agents, run_key = worlds.make_world(experiment, features, numbers, key=key)
        policy = worlds.make_policy(numbers)
        results: Mapping[str, LifelongResult | OfflineResult]
        if experiment.kind == "offline":
            results = run_offline(
                env,
                features,
                policy,
                agents,
                num_tasks=experiment.num_tasks,
                num_rows=experiment.offline_rows,
                horizon=experiment.horizon,
                key=run_key,
            )
        else:
            results = run_agents(
                env,
                features,
                policy,
                agents,
                num_tasks=experiment.num_tasks,
                horizon=experiment.horizon,
                scaling=worlds.make_scaling(experiment),
                progress_fn=task_ticks(experiment.num_tasks),
                key=run_key,
            )
        truth = worlds.true_support(env)
        made: dict[str, Callable[[Any], Array]] = {
            "task_regret": metrics.task_regret,
            "simple_regret": metrics.simple_regret,
            "support_size": metrics.support_size,
        }
        if truth is not None:
            made["recovery"] = lambda result: metrics.recovery(result, truth)

        def keep(name: str) -> Array:
            each = [results[agent] for agent in experiment.agents]
            return jnp.stack([made[name](one) if name in made else getattr(one, name) for one in each])

        return {name: keep(name) for name in self.outputs}
