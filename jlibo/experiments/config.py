"""Config files of sweeps: the experiment, the seeds, and the settings that vary.

| key          | what it is                                                                            |
|--------------|---------------------------------------------------------------------------------------|
| `experiment` | a name that `jlibo list` shows                                                        |
| `seeds`      | number of seeds (default 20)                                                          |
| `first_seed` | the first seed (default 0)                                                            |
| `chunk`      | runs in one batch on a device; by default chosen to fit into `memory_gb`              |
| `memory_gb`  | memory budget per device in GiB; by default half of the free memory                   |
| `outputs`    | the outputs to store, see `run.outputs_of`; by default `DEFAULT_OUTPUTS`              |
| `[set]`      | settings for all points                                                               |
| `[grid]`     | settings that vary: all combinations                                                  |
| `[[points]]` | settings that vary: a list of points, instead of `[grid]`                             |

Seed i is seed i of `jlibo reproduce`: the same tasks and the same random draws.
"""

import dataclasses
import itertools
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from jlibo.checks import did_you_mean_or_known
from jlibo.experiments.budget import check_fits
from jlibo.experiments.experiment import Experiment
from jlibo.experiments.registry import find
from jlibo.experiments.run import outputs_of
from jlibo.experiments.spec import SettingError
from jlibo.host_memory import free_host_memory, in_units
from jlibo.printable import described, printable

DEFAULT_OUTPUTS = ("task_regret", "support_size", "recovery", "fell_back", "status")
MAX_COMBINATIONS = 10_000
"""Largest grid whose points are all checked before the sweep; of a larger one, each value is."""
MAX_CONFIG = 2**20
MAX_MEMORY_GB = 2**20
_MAX_PARTS, _MAX_MESSAGE = 20, 800
# The time that tomllib needs for a dotted key is quadratic in its parts. Keys of a config have at most two.
_WORD = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_WORD}(?:\.[ \t]*+{_WORD}){{{_MAX_PARTS}}}")


class ConfigError(ValueError):
    """An error in the file or the command that the user can fix; the message is one line."""


@final
@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """The checked content of a config file."""

    experiment: Experiment
    num_seeds: int
    first_seed: int
    chunk: int | None
    memory_budget: int | None
    outputs: tuple[str, ...]
    grid: dict[str, list[float]] | list[dict[str, float]]

    def record(self) -> dict[str, Any]:
        """Return the metadata that is stored with the result and compared on resume."""
        return {
            "experiment": self.experiment.name,
            "settings": self.experiment.settings(),
            "agents": list(self.experiment.agents),
        }


def read_config(path: str | Path, *, memory: int | None = None) -> SweepConfig:
    """Return the checked content of a config file.

    **Arguments:**

    - `path`: a TOML file.
    - `memory`: limit on the memory of one run in bytes; by default the free memory of this machine.

    **Raises:** `ConfigError`, whose one-line message names the file.
    """
    named = printable(path)
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_CONFIG + 1)
        if len(content) > MAX_CONFIG:
            raise ConfigError(f"'{named}' is no config: it is larger than {in_units(MAX_CONFIG)}.")
        text = content.decode("utf-8")
        if _LONG_KEY.search(text):
            raise ConfigError(f"'{named}' is no config: it has a key of more than {_MAX_PARTS} parts.")
        entries = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read '{named}': {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"'{named}' is not text in UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"'{named}' is not TOML: {printable(error)}.") from None
    except RecursionError:
        raise ConfigError(f"'{named}' is no config: its values are nested too deeply.") from None
    except ConfigError:
        raise
    except ValueError as error:  # for example a number with more than 4,300 digits
        raise ConfigError(f"'{named}' is not TOML that can be read: {printable(error)}.") from None
    try:
        return check_config(entries, memory=memory)
    except (ConfigError, SettingError) as error:
        # The message contains names from the file, which are escaped.
        raise ConfigError(f"{named}: {printable(error, max_length=_MAX_MESSAGE)}") from None


def check_config(entries: Mapping[str, Any], *, memory: int | None = None) -> SweepConfig:
    """Return the checked config of a file's entries. `memory` is the same as in `read_config`.

    Raises a `ConfigError` or a `SettingError`.
    """
    known = ("experiment", "seeds", "first_seed", "chunk", "memory_gb", "outputs", "set", "grid", "points")
    for name in entries:
        if name not in known:
            raise ConfigError(f"there is no key '{name}'.{did_you_mean_or_known(name, known)}")
    if not isinstance(entries.get("experiment"), str):
        raise ConfigError(
            "'experiment' should be a name that `jlibo list` shows, such as \"lifelong-cosine\", "
            f"but got {described(entries.get('experiment'))}."
        )
    changes = entries.get("set", {})
    if not isinstance(changes, Mapping):
        raise ConfigError("'set' should be a table, [set], with lines such as lam = 0.3.")
    for name, value in changes.items():
        if isinstance(value, list | dict | bool) or not _is_printable_number(value):
            raise ConfigError(f"'set.{name}' should be a number or a word, but got {described(value)}.")
    experiment = find(entries["experiment"]).changed({name: str(value) for name, value in changes.items()})
    budget = entries.get("memory_gb")
    if budget is not None and (not _is_number(budget) or not 0 < budget <= MAX_MEMORY_GB):
        raise ConfigError(
            f"'memory_gb' should be a number above 0, at most {MAX_MEMORY_GB}, but got {described(budget)}."
        )
    num_seeds = _count(entries, "seeds", 20, at_least=1)
    first_seed = _count(entries, "first_seed", 0, at_least=0)
    if first_seed + num_seeds > 2**31:
        raise ConfigError(
            f"'first_seed' should leave all seeds below 2**31, but got {first_seed} with {num_seeds} seeds."
        )
    _check_fits(entries, experiment, num_seeds, memory)
    return SweepConfig(
        experiment,
        num_seeds,
        first_seed,
        _count(entries, "chunk", None, at_least=1),
        None if budget is None else max(1, int(budget * 2**30)),
        _outputs(entries.get("outputs"), experiment),
        _points(entries, experiment, changes),
    )


def _check_fits(
    entries: Mapping[str, Any], experiment: Experiment, num_seeds: int, memory: int | None
) -> None:
    """Raise an error if the sweep cannot fit into memory, before any array or loop over all points."""
    free = free_host_memory()
    check_fits(experiment, 1, seeds_at_once=1, budget=free if memory is None else memory)
    grid, points = entries.get("grid"), entries.get("points")
    if isinstance(grid, Mapping):
        num_points = math.prod(len(values) for values in grid.values() if isinstance(values, list))
    else:
        num_points = len(points) if isinstance(points, list) else 1
    # At least two outputs of four bytes per agent and task are always stored.
    needed = num_points * num_seeds * len(experiment.agents) * experiment.make_protocol().num_tasks * 2 * 4
    if needed > free:
        raise ConfigError(
            f"'seeds' x points should be fewer: {num_seeds:,} x {num_points:,} runs need at least "
            f"{in_units(needed)} of memory, and {in_units(free)} are free."
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
                _check_value(f"points.{name}", name, value, changes, experiment)
            _check_point("points", point, experiment)
        return [{name: float(value) for name, value in point.items()} for point in points]
    grid = entries.get("grid", {})
    if not isinstance(grid, Mapping):
        raise ConfigError("'grid' should be a table, [grid], with lines such as lam = [0.1, 0.3].")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(
                f"'grid.{name}' should be a list of numbers, such as [0.1, 0.3], but got {described(values)}."
            )
        for value in values:
            _check_value(f"grid.{name}", name, value, changes, experiment)
        if len(set(values)) != len(values):
            raise ConfigError(f"'grid.{name}' should have each value once, but got {described(values)}.")
    if math.prod(len(values) for values in grid.values()) <= MAX_COMBINATIONS:
        points = itertools.product(*grid.values())
        checked = (dict(zip(grid, values, strict=True)) for values in points)
    else:
        checked = ({name: value} for name, values in grid.items() for value in values)
    for point in checked:
        _check_point("grid", point, experiment)
    return {name: [float(value) for value in values] for name, values in grid.items()}


def _check_point(place: str, point: Mapping[str, float], experiment: Experiment) -> None:
    """Check all settings of a point together: some bound each other."""
    try:
        experiment.changed({name: str(value) for name, value in point.items()})
    except SettingError as error:
        raise ConfigError(f"'{place}': {error}") from None


def _check_value(place: str, name: str, value: Any, changes: Mapping, experiment: Experiment) -> None:
    swept = experiment.data()
    if name not in swept:
        if name in experiment.settings():
            raise ConfigError(
                f"'{place}' should be one of {', '.join(swept)}: '{name}' changes the program, so give it in "
                "[set], a file for each value."
            )
        raise ConfigError(f"'{place}' is no setting.{did_you_mean_or_known(name, swept)}")
    if name in changes:
        raise ConfigError(f"'{place}' is in [set] too: keep one of them.")
    if not _is_number(value) or not _is_printable_number(value):
        raise ConfigError(f"'{place}' should be numbers, but got {described(value)}.")


def _outputs(given: Any, experiment: Experiment) -> tuple[str, ...]:
    possible = list(outputs_of(experiment))
    if given is None:
        return tuple(name for name in DEFAULT_OUTPUTS if name in possible)
    if not isinstance(given, list) or not given:
        raise ConfigError(f"'outputs' should be a list of names, but got {described(given)}.")
    for name in given:
        if name not in possible:
            raise ConfigError(
                f"'outputs' of {experiment.name} should be among {', '.join(possible)}, "
                f"but got {described(name)}."
            )
    # The summary table needs the first two.
    return tuple(dict.fromkeys(["task_regret", "support_size", *given]))


def _count(entries: Mapping[str, Any], name: str, default: Any, *, at_least: int) -> Any:
    value = entries.get(name, default)
    if value is default:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ConfigError(
            f"'{name}' should be a whole number of at least {at_least}, but got {described(value)}."
        )
    if value >= 2**31:
        raise ConfigError(f"'{name}' should be a whole number below 2**31, but got {described(value)}.")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_printable_number(value: Any) -> bool:
    """Return whether Python can convert the number to text and float. Integers in TOML are unbounded."""
    return not isinstance(value, int) or value.bit_length() <= 128
