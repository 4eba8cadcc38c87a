"""A sweep as a file: which experiment, which seeds, which settings vary. Read, checked, and made a function.

| key          | what it is                                                                            |
|--------------|---------------------------------------------------------------------------------------|
| `experiment` | a name that `jlibo list` shows                                                        |
| `seeds`      | how many (20); `first_seed` is the number of the first (0)                            |
| `chunk`      | runs in one batch of a device; by default as memory allows: `memory_gb` a device      |
| `outputs`    | what to keep, names of `OUTPUTS`; by default `DEFAULT_OUTPUTS`                        |
| `[set]`      | settings changed for all points                                                       |
| `[grid]`     | settings that vary, all combinations                                                  |
| `[[points]]` | settings that vary, a list of points; instead of `[grid]`                             |

Seed i is the seed i of `jlibo reproduce`: the same tasks, and the same draws.
"""

import dataclasses
import difflib
import itertools
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jlibo import metrics
from jlibo.experiments import worlds
from jlibo.experiments.offline import OfflineResult, run_offline
from jlibo.experiments.settings import Experiment, SettingError, find, override
from jlibo.lifelong import LifelongResult, run_agents
from jlibo.sweeps import task_ticks

SWEPT = (
    "lam",
    "lam_federated",
    "omega",
    "omega_federated",
    "alpha",
    "nu",
    "regulariser",
    "norm_bound",
    "beta_min",
    "noise_std",
)
"""The settings that are data to the compiled program. All others, `explore_scale` too, give it its shape."""

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
"""What can be kept, and its axes."""
DEFAULT_OUTPUTS = ("task_regret", "support_size", "recovery", "fell_back", "status")
_ONLY_LIFELONG = ("num_explore", "rewards", "actions", "explored")


class ConfigError(ValueError):
    """Something in the file that the user can put right, said in one line."""


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """A checked file."""

    experiment: Experiment
    num_seeds: int
    first_seed: int
    chunk: int | None
    memory_budget: int | None
    outputs: tuple[str, ...]
    grid: dict[str, list[float]] | list[dict[str, float]]

    def record(self) -> dict[str, Any]:
        """What is kept with the result, and checked in an old folder."""
        return {
            "experiment": self.experiment.name,
            "settings": self.experiment.settings(),
            "agents": list(self.experiment.agents),
        }


def read_config(path: str | Path) -> SweepConfig:
    """Read and check a file."""
    try:
        text = Path(path).read_bytes().decode("utf-8")
        entries = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read '{path}': {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"'{path}' is not text in UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"'{path}' is not TOML: {error}.") from None
    try:
        return check_config(entries)
    except (ConfigError, SettingError) as error:
        raise ConfigError(f"{path}: {error}") from None


def check_config(entries: Mapping[str, Any]) -> SweepConfig:
    """The sweep that a file's entries describe."""
    known = ("experiment", "seeds", "first_seed", "chunk", "memory_gb", "outputs", "set", "grid", "points")
    for name in entries:
        if name not in known:
            raise ConfigError(f"there is no key '{name}'.{_nearest(name, known)}")
    if not isinstance(entries.get("experiment"), str):
        raise ConfigError(
            "'experiment' should be a name that `jlibo list` shows, such as \"lifelong-cosine\", "
            f"but got {_said(entries.get('experiment'))}."
        )
    changes = entries.get("set", {})
    if not isinstance(changes, Mapping):
        raise ConfigError("'set' should be a table, [set], with lines such as lam = 0.3.")
    for name, value in changes.items():
        if isinstance(value, list | dict | bool):
            raise ConfigError(f"'set.{name}' should be a number or a word, but got {_said(value)}.")
    experiment = override(find(entries["experiment"]), {name: str(value) for name, value in changes.items()})
    worlds.check_num_tasks(experiment)
    memory = entries.get("memory_gb")
    if memory is not None and (not _is_number(memory) or not 0 < memory < float("inf")):
        raise ConfigError(f"'memory_gb' should be a number above 0, but got {_said(memory)}.")
    num_seeds = _count(entries, "seeds", 20, at_least=1)
    first_seed = _count(entries, "first_seed", 0, at_least=0)
    if first_seed + num_seeds > 2**31:
        raise ConfigError(f"'first_seed' should leave all seeds below 2**31, but got {first_seed}.")
    return SweepConfig(
        experiment,
        num_seeds,
        first_seed,
        _count(entries, "chunk", None, at_least=1),
        None if memory is None else max(1, int(memory * 2**30)),
        _outputs(entries.get("outputs"), experiment),
        _points(entries, experiment, changes),
    )


def _points(entries, experiment, changes) -> dict[str, list[float]] | list[dict[str, float]]:
    if "grid" in entries and "points" in entries:
        raise ConfigError("'grid' and 'points' exclude each other: keep one of them.")
    if "points" in entries:
        points = entries["points"]
        if not isinstance(points, list) or not points or not all(isinstance(one, dict) for one in points):
            raise ConfigError(
                "'points' should be a list of tables, [[points]], with lines such as lam = 0.3."
            )
        for number, point in enumerate(points, 1):
            if set(point) != set(points[0]):
                raise ConfigError(
                    f"'points' should all have the settings {', '.join(points[0])}, "
                    f"but number {number} has {', '.join(point) or 'none'}."
                )
            for name, value in point.items():
                _check_value(f"points.{name}", name, value, changes)
            _check_point("points", point, experiment)
        return [{name: float(value) for name, value in point.items()} for point in points]
    grid = entries.get("grid", {})
    if not isinstance(grid, Mapping):
        raise ConfigError("'grid' should be a table, [grid], with lines such as lam = [0.1, 0.3].")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(
                f"'grid.{name}' should be a list of numbers, such as [0.1, 0.3], but got {_said(values)}."
            )
        for value in values:
            _check_value(f"grid.{name}", name, value, changes)
        if len(set(values)) != len(values):
            raise ConfigError(f"'grid.{name}' should have each value once, but got {_said(values)}.")
    for values in itertools.product(*grid.values()):
        _check_point("grid", dict(zip(grid, values, strict=True)), experiment)
    return {name: [float(value) for value in values] for name, values in grid.items()}


def _check_point(place: str, point: Mapping[str, float], experiment: Experiment) -> None:
    """All settings of a point at once: some bound each other."""
    try:
        override(experiment, {name: str(value) for name, value in point.items()})
    except SettingError as error:
        raise ConfigError(f"'{place}': {error}") from None


def _check_value(place: str, name: str, value: Any, changes: Mapping) -> None:
    if name not in SWEPT:
        if name in {field.name for field in dataclasses.fields(Experiment)}:
            raise ConfigError(
                f"'{place}' should be one of {', '.join(SWEPT)}: '{name}' changes the program, so give it in "
                "[set], a file for each value."
            )
        raise ConfigError(f"'{place}' is no setting.{_nearest(name, SWEPT)}")
    if name in changes:
        raise ConfigError(f"'{place}' is in [set] too: keep one of them.")
    if not _is_number(value):
        raise ConfigError(f"'{place}' should be numbers, but got {_said(value)}.")


def _outputs(given: Any, experiment: Experiment) -> tuple[str, ...]:
    lifelong, truth = experiment.kind == "lifelong", experiment.environment == "synthetic"
    possible = [name for name in OUTPUTS if truth or name != "recovery"]
    possible = [name for name in possible if lifelong or name not in _ONLY_LIFELONG]
    if given is None:
        return tuple(name for name in DEFAULT_OUTPUTS if name in possible)
    if not isinstance(given, list) or not given:
        raise ConfigError(f"'outputs' should be a list of names, but got {_said(given)}.")
    for name in given:
        if name not in possible:
            raise ConfigError(
                f"'outputs' of {experiment.name} should be among {', '.join(possible)}, "
                f"but got {_said(name)}."
            )
    # The table at the end is made of these two.
    return tuple(dict.fromkeys(["task_regret", "support_size", *given]))


def _count(entries: Mapping[str, Any], name: str, default: Any, *, at_least: int) -> Any:
    value = entries.get(name, default)
    if value is default:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value < 2**31:
        raise ConfigError(
            f"'{name}' should be a whole number of at least {at_least}, but got {_said(value)}."
        )
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _said(value: Any) -> str:
    return "nothing" if value is None else repr(value)


def _nearest(name: str, known) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else f" Known: {', '.join(known)}."


# --- the function -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ExperimentRun:
    """One seed of an experiment with some settings given: a function that `sweep` can run."""

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
        # As if they were data: the compiler multiplies constants together in an order that depends on the
        # number of devices, and then a setting that is fixed rounds in another way than one that is swept.
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
