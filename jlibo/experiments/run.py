"""One seed of an experiment as a function of its key and settings, for `sweep`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jlibo.experiments.experiment import Experiment
from jlibo.experiments.parts import true_support
from jlibo.experiments.protocols import World
from jlibo.lifelong import metrics
from jlibo.sweeps.segments import AbstractSegmentedRun

_PER_TASK, _PER_STEP = ("agent", "task"), ("agent", "task", "step")
_COMPUTED: dict[str, tuple[str, ...]] = {
    "task_regret": _PER_TASK,
    "support_size": _PER_TASK,
    "recovery": _PER_TASK,
    "simple_regret": _PER_STEP,
}
TRUE_SUPPORT = "true_support"
_NEEDS_TRUTH = ("recovery", TRUE_SUPPORT)


def outputs_of(experiment: Experiment) -> dict[str, tuple[str, ...]]:
    """Return the outputs that a run of the experiment can have, and their axes."""
    every = {**_COMPUTED, **experiment.make_protocol().fields, TRUE_SUPPORT: ("group",)}
    if knows_truth(experiment):
        return every
    return {name: dims for name, dims in every.items() if name not in _NEEDS_TRUTH}


def knows_truth(experiment: Experiment) -> bool:
    """Return whether the experiment's environment knows the true support. Nothing is computed."""
    found = []

    def look() -> Any:
        found.append(true_support(experiment.make_world(key=jax.random.key(0)).env) is not None)
        return jnp.zeros(())

    jax.eval_shape(look)
    return found[0]


@final
@dataclasses.dataclass(frozen=True)
class ExperimentRun(AbstractSegmentedRun):
    """One seed of an experiment, as a function of `key` and of settings that are data.

    Its outputs are those named in `outputs`, with the agents as first axis.
    """

    experiment: Experiment
    outputs: tuple[str, ...]

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        every = outputs_of(self.experiment)
        return {name: every[name] for name in self.outputs}

    @property
    def coords(self) -> dict[str, np.ndarray]:
        return {"agent": np.asarray(list(self.experiment.agents))}

    @property
    def num_segments(self) -> int:
        return self.experiment.make_protocol().num_segments

    @property
    def segment_axis(self) -> str:
        return "task"

    def start(self, *, key, **params):
        world = self._world(key, params)
        return world, self.experiment.make_protocol().start(world)

    def advance(self, shared, state, segment):
        world: World = shared
        results, state = self.experiment.make_protocol().advance(world, state, segment)
        truth = true_support(world.env)
        computed: dict[str, Callable[[Any], Array]] = {
            "task_regret": metrics.task_regret,
            "simple_regret": metrics.simple_regret,
            "support_size": metrics.support_size,
        }
        if truth is not None:
            computed["recovery"] = lambda result: metrics.recovery(result, truth)

        def output(name: str) -> Array:
            if name == TRUE_SUPPORT:
                assert truth is not None
                return truth
            each = [results[agent] for agent in self.experiment.agents]
            return jnp.stack(
                [computed[name](one) if name in computed else getattr(one, name) for one in each]
            )

        return {name: output(name) for name in self.outputs}, state

    def _world(self, key: Any, params: Mapping[str, Array]) -> World:
        # The barrier makes constants opaque. The compiler would multiply them in an order that depends on the
        # number of devices, and a fixed setting would round differently from a swept one.
        data = {name: jnp.asarray(value) for name, value in self.experiment.data().items()}
        constants = {name: value for name, value in data.items() if name not in params}
        return self.experiment.make_world({**jax.lax.optimization_barrier(constants), **params}, key=key)
