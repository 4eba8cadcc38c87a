"""The registered experiments, by name."""

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

from jlibo.checks import did_you_mean_or_known
from jlibo.experiments import federated, paper, theory, theory_lam
from jlibo.experiments.experiment import Experiment
from jlibo.experiments.spec import SettingError, Value
from jlibo.front_door import front_door
from jlibo.printable import printable

_BUILT_IN: dict[str, Experiment] = {
    **paper.EXPERIMENTS,
    **theory.EXPERIMENTS,
    **theory_lam.EXPERIMENTS,
    **federated.EXPERIMENTS,
}
_own: dict[str, Experiment] = {}


@final
class _Registry(Mapping[str, Experiment]):
    """A read-only view of the registered experiments, sorted by name."""

    def __getitem__(self, name: str) -> Experiment:
        return _own[name] if name in _own else _BUILT_IN[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*_BUILT_IN, *_own}))

    def __len__(self) -> int:
        return len({*_BUILT_IN, *_own})


REGISTRY: Mapping[str, Experiment] = _Registry()
"""Every experiment by its name: those of jlibo, and those that were registered."""


@front_door
def register(experiment: Experiment) -> Experiment:
    """Add an experiment to those that `jlibo list`, `reproduce` and `sweep` know, and return it.

    The same name again replaces it; the names of jlibo's experiments are taken.

    **Raises:** `SettingError` for a name that is taken or that is no file name.
    """
    name = experiment.name
    if name in _BUILT_IN:
        raise SettingError(f"'name' should be another than '{name}', which is an experiment of jlibo.")
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or name.startswith("."):
        raise SettingError(
            f"'name' should consist of letters, digits, '-', '_' and '.', but got '{printable(name)}'."
        )
    _own[name] = experiment
    return experiment


@front_door
def load_experiments(path: str | Path) -> None:
    """Run a Python file that registers experiments.

    **Arguments:**

    - `path`: a file that calls `register`. It is run with the rights of the caller.

    **Raises:** `SettingError` if the file cannot be read, fails, or registers nothing.
    """
    path = Path(path)
    shown, before = printable(path), dict(_own)
    # The name of the module lets `cloudpickle` send its functions to the workers of a cluster.
    name = f"jlibo_experiments_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path) if path.suffix == ".py" else None
    if spec is None or spec.loader is None or not path.is_file():
        raise SettingError(f"'{shown}' should be a Python file that registers experiments.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(name, None)
        problem = f"{type(error).__name__}: {printable(error, max_length=200)}"
        raise SettingError(f"'{shown}' cannot be run ({problem}).") from error
    if _own == before:
        raise SettingError(f"'{shown}' registers no experiment: call jlibo.experiments.register.")
    try:
        import cloudpickle
    except ImportError:
        return
    cloudpickle.register_pickle_by_value(module)


@front_door
def find(name: str) -> Experiment:
    """Return the experiment called `name`; raises a `SettingError` if there is none."""
    if name not in REGISTRY:
        raise SettingError(
            f"There is no experiment '{printable(name, max_length=60)}'."
            f"{did_you_mean_or_known(name, REGISTRY)} `jlibo list` shows all."
        )
    return REGISTRY[name]


@front_door
def override(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """Return the experiment with other settings, given as values or as text; see `Experiment.changed`."""
    return experiment.changed(changes)


def changed_settings(experiment: Experiment) -> dict[str, Value]:
    """Return the settings in which `experiment` differs from the registered one of its name."""
    registered = REGISTRY.get(experiment.name, experiment).settings()
    return {name: value for name, value in experiment.settings().items() if value != registered.get(name)}
